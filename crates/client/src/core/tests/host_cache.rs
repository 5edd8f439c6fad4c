//! What callers cache of what is lent: for no longer than it lasts, and cleared before anybody
//! counts on that.

use super::loans::{BOTH, LOAN, getattr, lent_rig, lookup};
use super::*;
use crate::core::host_cache;
use crate::wire::{RenameMode, SetAttr};

/// The attributes of a regular file: those of files of no type are not cached.
fn attr(handle: Handle) -> Attr {
    Attr {
        mode: 0o100_644,
        ..super::attr(handle)
    }
}

/// A core whose caller has cached the attributes of the files 8 and 9.
fn cached_rig() -> Rig {
    let mut rig = lent_rig();
    rig.caches = true;
    for (name, inode) in [("a", 8), ("b", 9)] {
        rig.asks(lookup(name), Ok(Outcome::Attr(attr(file(inode)))), BOTH);
        assert_eq!(rig.lasts(), LOAN);
    }
    rig
}

impl Rig {
    /// For how long the last call's answer may be cached.
    fn lasts(&mut self) -> u64 {
        let done = self.done.remove(&CallId(self.calls));
        let answer = done.expect("it has ended").expect("it worked");
        answer.lasts_ns
    }

    /// Takes what is to be cleared.
    fn cleared(&mut self) -> (u64, Vec<Handle>) {
        assert_eq!(self.invalid.len(), 1, "{:?}", self.invalid);
        self.invalid.remove(0)
    }

    fn clear(&mut self, number: u64) {
        self.input(Input::Invalidated { number });
    }
}

fn chmod(inode: u64) -> Op {
    Op::Setattr {
        handle: file(inode),
        set: SetAttr {
            mode: Some(0o600),
            ..SetAttr::default()
        },
    }
}

#[test]
fn attributes_are_cached_only_by_callers_who_can_and_while_they_are_lent() {
    let mut rig = cached_rig();
    rig.at(LOAN / 4);
    rig.call(getattr(8));
    assert_eq!(rig.lasts(), LOAN - LOAN / 4);
    rig.call(lookup("a"));
    assert_eq!(rig.lasts(), LOAN - LOAN / 4);
    rig.caches = false;
    rig.call(getattr(8));
    assert_eq!(rig.lasts(), 0);
    rig.caches = true;
    let found = Ok(Outcome::Attr(attr(file(20))));
    rig.asks(getattr(20), found, Lent::default());
    assert_eq!(rig.lasts(), 0, "it is not lent");
}

#[test]
fn a_file_is_given_back_when_no_cache_has_it() {
    let mut rig = cached_rig();
    rig.recall(8);
    assert!(rig.sent.is_empty());
    let (number, files) = rig.cleared();
    assert_eq!(files, [file(8)]);
    // What is still to be cleared is cleared again for the next one who needs it.
    rig.recall(8);
    let (again, files) = rig.cleared();
    assert_eq!(files, [file(8)]);
    rig.clear(number);
    rig.clear(again);
    for _ in 0..2 {
        assert_eq!(rig.next().request.op, Op::GiveBack { handle: file(8) });
    }
    // Nothing is cached of it now.
    rig.recall(8);
    assert_eq!(rig.next().request.op, Op::GiveBack { handle: file(8) });
    assert!(rig.invalid.is_empty());
}

#[test]
fn an_own_change_waits_until_no_cache_has_what_it_changes() {
    let mut rig = cached_rig();
    rig.call(chmod(8));
    assert!(rig.sent.is_empty());
    let (number, files) = rig.cleared();
    assert_eq!(files, [file(8)]);
    // Other files can be changed meanwhile, and looked at.
    rig.call(chmod(20));
    assert_eq!(rig.next().request.op, chmod(20));
    rig.clear(number);
    assert_eq!(rig.next().request.op, chmod(8));
    // By its name: the client knows which file that is.
    let unlink = Op::Unlink {
        parent: file(loans::DIR),
        name: Box::from(*b"b"),
    };
    rig.call(unlink.clone());
    assert!(rig.sent.is_empty());
    let (number, files) = rig.cleared();
    assert_eq!(files, [file(9)]);
    rig.clear(number);
    assert_eq!(rig.next().request.op, unlink);
}

#[test]
fn a_caller_who_waits_no_longer_changes_nothing_later() {
    let mut rig = cached_rig();
    let id = rig.call(chmod(8));
    let (number, _) = rig.cleared();
    rig.input(Input::Cancel { id });
    rig.clear(number);
    assert!(rig.sent.is_empty(), "{:?}", rig.sent);
}

#[test]
fn nobody_is_greeted_before_the_caches_are_empty() {
    let mut rig = cached_rig();
    rig.connects.clear();
    rig.input(Input::ConnectionLost { forwarder: 0 });
    assert_eq!(rig.cleared().1, [file(8), file(9)]);
    rig.call(getattr(8));
    // The pause after a full round of forwarders is over.
    rig.at(LOAN / 2);
    assert_eq!(rig.connects, [0]);
    rig.input(Input::Connected { forwarder: 0 });
    assert!(rig.sent.is_empty());
    let (number, files) = rig.cleared();
    assert_eq!(files, [file(8), file(9)], "they are not cleared yet");
    // The connection is lost before, and another one is not there yet.
    rig.input(Input::ConnectionLost { forwarder: 0 });
    rig.invalid.clear();
    rig.at(LOAN);
    rig.clear(number);
    assert!(rig.sent.is_empty());
    rig.input(Input::Connected { forwarder: 0 });
    let (number, _) = rig.cleared();
    rig.clear(number);
    assert!(matches!(rig.next().request.op, Op::Hello(_)));
}

#[test]
fn who_greets_another_forwarder_has_nothing_of_what_the_first_one_lent() {
    let mut rig = Rig::new(2);
    let loan_ms = 100;
    (rig.seats, rig.caches) = (1, true);
    rig.greet(0, Grant { loan_ms, ..GRANT }, &[]);
    let found = || Ok(Outcome::Attr(attr(file(8))));
    rig.asks(lookup("a"), found(), BOTH);
    assert_eq!(rig.lasts(), LOAN);
    // On its way while the other one is greeted.
    rig.call(lookup("b"));
    let late = rig.next();
    rig.core.connect(1);
    rig.pump();
    rig.input(Input::Connected { forwarder: 1 });
    assert!(rig.sent.is_empty());
    let (number, files) = rig.cleared();
    assert_eq!(files, [file(8)]);
    rig.clear(number);
    assert!(matches!(rig.next().request.op, Op::Hello(_)));
    rig.reply_lending(&late, (1, BOTH), found(), Bytes::new());
    assert_eq!(rig.lasts(), 0);
    assert!(rig.needs_request(lookup("a")) && rig.needs_request(lookup("b")));
}

#[test]
fn a_change_of_an_unknown_name_clears_all_only_where_names_were_forgotten() {
    let rename = || Op::Rename {
        parent: file(loans::DIR),
        name: Box::from(*b"a"),
        new_parent: file(loans::DIR),
        new_name: Box::from(*b"new"),
        mode: RenameMode::Replace,
    };
    let mut rig = cached_rig();
    rig.call(rename());
    assert_eq!(rig.cleared().1, [file(8)]);
    let mut rig = cached_rig();
    rig.caches = false;
    for number in 0..NAMES_MAX {
        let handle = file(1000 + number as u64);
        rig.call(Op::Mkdir {
            parent: file(71),
            name: format!("{number}").into_bytes().into(),
            mode: 0o755,
        });
        let sent = rig.next();
        rig.reply(&sent, 1, Ok(Outcome::Attr(attr(handle))));
    }
    assert!(rig.invalid.is_empty());
    rig.call(rename());
    assert_eq!(rig.cleared().1, [file(8), file(9)]);
}

#[test]
fn what_is_to_be_cleared_of_everything_names_each_file_once() {
    let mut rig = cached_rig();
    for _ in 0..6 {
        rig.core.invalidate_all(host_cache::After::Nothing);
        rig.pump();
        assert_eq!(rig.cleared().1, [file(8), file(9)]);
    }
}

#[test]
fn attributes_of_a_file_whose_name_is_not_lent_are_not_cached() {
    let mut rig = cached_rig();
    rig.recall(loans::DIR);
    rig.call(getattr(8));
    assert_eq!(rig.lasts(), 0);
}

#[test]
fn caches_are_cleared_of_what_has_ended() {
    let mut rig = cached_rig();
    rig.at(LOAN / 2);
    // Asked for again, it lasts no longer; asked for anew, it does.
    rig.caches = true;
    let handle = file(30);
    let found = Ok(Outcome::Attr(attr(handle)));
    let elsewhere = Op::Lookup {
        parent: file(70),
        name: Box::from(*b"c"),
    };
    rig.asks(elsewhere, found, BOTH);
    assert_eq!(rig.lasts(), LOAN);
    rig.at(LOAN - 1);
    assert!(rig.invalid.is_empty());
    rig.at(LOAN);
    assert_eq!(rig.cleared().1, [file(8), file(9)]);
    rig.at(LOAN + LOAN / 2);
    assert_eq!(rig.cleared().1, [handle]);
    assert_eq!(rig.core.wake_at().filter(|at| *at < 2 * LOAN), None);
}

#[test]
fn what_is_cleared_and_cached_again_and_again_leaves_nothing_behind() {
    let mut rig = lent_rig();
    rig.caches = true;
    let found = || Ok(Outcome::Attr(attr(file(8))));
    for round in 1..1000 {
        rig.at(round * MS);
        rig.recall(8);
        while !rig.invalid.is_empty() {
            let (number, _) = rig.invalid.remove(0);
            rig.clear(number);
        }
        while !rig.sent.is_empty() {
            let back = rig.next();
            rig.reply(&back, 0, Ok(Outcome::Done));
        }
        rig.asks(lookup("a"), found(), BOTH);
        assert_eq!(rig.lasts(), LOAN);
    }
    // One for each round of the last loan's time.
    let looks = rig.core.host_cache.looks();
    assert!(looks <= 102, "{looks}");
}
