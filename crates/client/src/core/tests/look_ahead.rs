//! Names that the core asks for together, because programs look them up one after the other.

use super::loans::{BOTH, DIR, LOAN, getattr, lent_rig, lookup};
use super::*;
use crate::wire::{Entry, Listing, Name, RenameMode};

fn xattr_of(inode: u64, name: &str) -> Op {
    let (handle, name) = (file(inode), name.as_bytes().into());
    Op::Getxattr { handle, name }
}

/// The entries f0, f1 and so on of these numbers; the cookie behind one is the next one's number.
fn listing(numbers: std::ops::Range<u64>, plus: bool, ended: bool) -> Outcome {
    let entry = |number: u64| Entry {
        name: format!("f{number}").into_bytes().into(),
        inode: 100 + number,
        kind: 8,
        cookie: number + 1,
        attr: plus.then(|| attr(file(100 + number))),
        lacks: 1,
        lent: plus,
    };
    let entries = numbers.map(entry).collect();
    Outcome::Entries(Listing { entries, ended })
}

fn list() -> Op {
    Op::Readdir {
        handle: file(DIR),
        cookie: 0,
        bytes_max: 4096,
        plus: false,
        xattrs: Vec::new(),
    }
}

impl Rig {
    /// Makes the call, which must look ahead from there, and answers that.
    fn looks_ahead(&mut self, op: Op, from: u64, answer: Result<Outcome, Status>) -> CallId {
        let id = self.call(op.clone());
        let sent = self.next();
        match &sent.request.op {
            Op::Readdir {
                handle,
                cookie,
                plus: true,
                ..
            } => assert_eq!((*handle, *cookie), (file(DIR), from), "{op:?}"),
            other => panic!("{op:?} became {other:?}"),
        }
        let asked = answer.is_ok();
        let lent = Lent {
            asked,
            found: false,
            directory: None,
        };
        self.reply_lending(&sent, (1, lent), answer, Bytes::new());
        id
    }

    /// Lets time pass; the lease is renewed meanwhile.
    fn waits_until(&mut self, now: u64) {
        self.at(now);
        while !self.sent.is_empty() {
            let renewal = self.take(|sent| sent.request.op == Op::Ping);
            self.ok(&renewal, Outcome::Done);
        }
    }

    fn names_asked(&self, sent: &Sent) -> Vec<Name> {
        match &sent.request.op {
            Op::Readdir { xattrs, .. } => xattrs.clone(),
            other => panic!("it asks {other:?}"),
        }
    }

    /// Looks up f{number} and says that it is there.
    fn finds(&mut self, number: u64) {
        let found = Ok(Outcome::Attr(attr(file(100 + number))));
        self.asks(lookup(&format!("f{number}")), found, BOTH);
    }
}

#[test]
fn the_first_name_of_a_listing_brings_the_others() {
    let mut rig = lent_rig();
    let id = rig.call(list());
    let sent = rig.next();
    rig.ok(&sent, listing(0..9, false, true));
    rig.succeeded(id);
    let id = rig.looks_ahead(lookup("f0"), 0, Ok(listing(0..4, true, false)));
    assert_eq!(rig.succeeded(id), Outcome::Attr(attr(file(100))));
    for number in 1..4 {
        assert!(rig.held(lookup(&format!("f{number}"))).is_ok());
        assert!(rig.held(getattr(100 + number)).is_ok());
    }
    // They were used, so the next one brings more.
    let id = rig.looks_ahead(lookup("f4"), 4, Ok(listing(4..9, true, true)));
    assert_eq!(rig.succeeded(id), Outcome::Attr(attr(file(104))));
    assert!(rig.held(lookup("f8")).is_ok());
}

#[test]
fn names_found_one_by_one_bring_others() {
    let mut rig = lent_rig();
    rig.finds(7);
    // A name that is not there says nothing of others.
    rig.asks(lookup("absent"), Err(Status::Errno(2)), BOTH);
    rig.asks(lookup("absent too"), Err(Status::Errno(2)), BOTH);
    rig.finds(3);
    let id = rig.looks_ahead(lookup("f5"), 0, Ok(listing(0..4, true, false)));
    // It was not among them.
    let sent = rig.next();
    assert_eq!(sent.request.op, lookup("f5"));
    rig.ok(&sent, Outcome::Attr(attr(file(105))));
    assert_eq!(rig.succeeded(id), Outcome::Attr(attr(file(105))));
    assert!(rig.held(lookup("f0")).is_ok());
}

#[test]
fn where_what_comes_is_of_no_use_the_core_waits_for_more_look_ups() {
    let mut rig = lent_rig();
    let mut number = 1000;
    let mut waits = Vec::new();
    for _ in 0..4 {
        let mut found = 0;
        loop {
            number += 1;
            let op = lookup(&format!("f{number}"));
            let id = rig.call(op.clone());
            let sent = rig.next();
            let ahead = matches!(sent.request.op, Op::Readdir { .. });
            if ahead {
                let lent = Lent {
                    asked: true,
                    found: false,
                    directory: None,
                };
                let other = Ok(listing(0..160, true, false));
                rig.reply_lending(&sent, (1, lent), other, Bytes::new());
            }
            let sent = if ahead { rig.next() } else { sent };
            let found_it = Ok(Outcome::Attr(attr(file(number))));
            rig.reply_lending(&sent, (1, BOTH), found_it, Bytes::new());
            rig.succeeded(id);
            if ahead {
                break;
            }
            found += 1;
        }
        waits.push(found);
    }
    // Each request costs as much as ten look-ups.
    assert_eq!(waits, [2, 9, 19, 39]);
}

#[test]
fn extended_attributes_that_programs_ask_for_come_along() {
    let mut rig = lent_rig();
    rig.finds(0);
    rig.finds(1);
    rig.looks_ahead(lookup("f2"), 0, Ok(listing(0..6, true, true)));
    // One that was asked for once is asked for of the next file with all others.
    rig.asks(
        xattr_of(102, "system.acl"),
        Err(Status::Errno(61)),
        Lent::default(),
    );
    assert!(rig.held(lookup("f3")).is_ok());
    let id = rig.call(xattr_of(103, "system.acl"));
    let sent = rig.next();
    assert_eq!(rig.names_asked(&sent), [Box::from(*b"system.acl")]);
    let lent = Lent {
        asked: true,
        found: false,
        directory: None,
    };
    let more = Ok(listing(0..6, true, true));
    rig.reply_lending(&sent, (1, lent), more, Bytes::new());
    assert_eq!(rig.errno(id), Errno::NODATA.0);
    assert!(rig.held(lookup("f4")).is_ok());
    let op = xattr_of(104, "system.acl");
    assert_eq!(rig.held(op), Err(Errno::NODATA));
}

#[test]
fn a_call_goes_on_by_itself_where_the_directory_cannot_be_listed() {
    let mut rig = lent_rig();
    rig.finds(0);
    rig.finds(1);
    let id = rig.looks_ahead(lookup("f2"), 0, Err(Status::Errno(13)));
    let sent = rig.next();
    assert_eq!(sent.request.op, lookup("f2"));
    rig.ok(&sent, Outcome::Attr(attr(file(102))));
    rig.succeeded(id);
    for number in 3..6 {
        rig.finds(number);
    }
}

#[test]
fn a_caller_need_not_wait_for_what_comes_along() {
    let mut rig = lent_rig();
    rig.finds(0);
    rig.finds(1);
    let id = rig.call(lookup("f2"));
    let sent = rig.next();
    rig.input(Input::Cancel { id });
    assert_eq!(rig.errno(id), Errno::INTR.0);
    // Others do not wait for it either.
    rig.finds(9);
    let lent = Lent {
        asked: true,
        found: false,
        directory: None,
    };
    rig.reply_lending(
        &sent,
        (1, lent),
        Ok(listing(0..4, true, true)),
        Bytes::new(),
    );
    assert!(rig.sent.is_empty());
    assert!(rig.held(lookup("f3")).is_ok());
}

#[test]
fn nothing_is_asked_for_ahead_where_nothing_is_lent() {
    let mut rig = Rig::new(1);
    rig.greet(0, GRANT, &[]);
    for number in 0..9 {
        rig.finds(number);
    }
}

#[test]
fn a_change_of_ones_own_takes_away_what_came_along() {
    let mut rig = lent_rig();
    rig.finds(0);
    rig.finds(1);
    rig.looks_ahead(lookup("f2"), 0, Ok(listing(0..6, true, true)));
    let (parent, name) = (file(DIR), Box::from(*b"f4"));
    let id = rig.call(Op::Unlink { parent, name });
    let sent = rig.next();
    assert!(rig.needs_request(lookup("f3")), "the directory is changing");
    rig.ok(&sent, Outcome::Removed(Some(file(104))));
    rig.succeeded(id);
    assert!(rig.held(lookup("f3")).is_ok());
    assert!(rig.needs_request(lookup("f4")));
    assert!(rig.needs_request(getattr(104)));
}

fn rename_of_f4() -> Op {
    Op::Rename {
        parent: file(DIR),
        name: Box::from(*b"f4"),
        new_parent: file(DIR),
        new_name: Box::from(*b"other"),
        mode: RenameMode::Replace,
    }
}

#[test]
fn a_rename_takes_away_what_came_along_of_the_file() {
    let mut rig = lent_rig();
    rig.finds(0);
    rig.finds(1);
    rig.looks_ahead(lookup("f2"), 0, Ok(listing(0..6, true, true)));
    assert!(rig.held(getattr(104)).is_ok());
    let id = rig.call(rename_of_f4());
    let sent = rig.next();
    rig.ok(&sent, Outcome::Removed(None));
    rig.succeeded(id);
    assert!(rig.needs_request(getattr(104)));
    assert!(rig.held(getattr(103)).is_ok());
}

#[test]
fn a_change_by_a_name_of_which_the_file_is_not_known_takes_away_everything() {
    let answers = [
        Ok(Outcome::Removed(None)),
        Err(Status::Errno(13)),
        Err(Status::Errno(2)),
    ];
    for (answer, takes) in answers.into_iter().zip([true, true, false]) {
        let mut rig = lent_rig();
        rig.finds(0);
        rig.finds(1);
        rig.looks_ahead(lookup("f2"), 0, Ok(listing(0..6, true, true)));
        // With the directory its names go, and their files stay.
        rig.recall(DIR);
        let given_back = rig.take(|sent| matches!(sent.request.op, Op::GiveBack { .. }));
        rig.ok(&given_back, Outcome::Recalled(None));
        assert!(rig.held(getattr(104)).is_ok());
        rig.call(rename_of_f4());
        let sent = rig.next();
        rig.reply(&sent, 1, answer);
        assert_eq!(rig.needs_request(getattr(104)), takes);
    }
}

#[test]
fn what_comes_beside_a_change_of_the_directory_is_not_kept() {
    let mut rig = lent_rig();
    rig.finds(0);
    rig.finds(1);
    rig.call(lookup("f2"));
    let ahead = rig.next();
    rig.call(rename_of_f4());
    let rename = rig.next();
    let lent = Lent {
        asked: true,
        found: false,
        directory: None,
    };
    let entries = Ok(listing(0..6, true, true));
    rig.reply_lending(&ahead, (1, lent), entries, Bytes::new());
    rig.ok(&rename, Outcome::Removed(None));
    assert!(rig.needs_request(getattr(104)));
}

#[test]
fn a_call_looks_ahead_once_whatever_came_before() {
    let mut rig = lent_rig();
    rig.finds(0);
    rig.finds(1);
    rig.looks_ahead(lookup("f2"), 0, Ok(listing(0..6, true, false)));
    for number in 0..6 {
        assert!(rig.held(lookup(&format!("f{number}"))).is_ok());
    }
    // What came was used. Now the directory cannot be listed any more.
    rig.looks_ahead(lookup("f6"), 6, Err(Status::Errno(13)));
    let sent = rig.next();
    assert_eq!(sent.request.op, lookup("f6"));
    rig.ok(&sent, Outcome::Attr(attr(file(106))));
    rig.finds(7);
}

#[test]
fn names_that_are_not_in_a_directory_listed_to_its_end_are_asked_for_alone() {
    let mut rig = lent_rig();
    rig.finds(0);
    rig.finds(1);
    rig.looks_ahead(lookup("f2"), 0, Ok(listing(0..4, true, true)));
    for number in 0..4 {
        assert!(rig.held(lookup(&format!("f{number}"))).is_ok());
    }
    for name in ["absent", "other"] {
        rig.asks(lookup(name), Err(Status::Errno(2)), BOTH);
    }
}

#[test]
fn a_name_that_is_looked_up_again_and_again_brings_no_others() {
    let mut rig = lent_rig();
    for turn in 1..9 {
        rig.finds(7);
        rig.waits_until(turn * LOAN);
    }
    // Nor does the first of a directory that is listed each time, if the others are of no use.
    for turn in 9..13 {
        let id = rig.call(list());
        let sent = rig.next();
        rig.ok(&sent, listing(0..200, false, false));
        rig.succeeded(id);
        if turn < 11 {
            let brings = Ok(listing(0..200, true, false));
            rig.looks_ahead(lookup("f0"), 0, brings);
        } else {
            rig.finds(0);
        }
        rig.waits_until(turn * LOAN + LOAN / 2);
    }
}
