//! What forwarders lend: answered without a request, until it is recalled, changed or over.

use super::*;
use crate::wire::SetAttr;
use crate::wire::frame::NOTICE;

pub(super) const LOAN: u64 = 100 * MS;
pub(super) const DIR: u64 = 7;

/// A core with one forwarder that lends.
pub(super) fn lent_rig() -> Rig {
    let mut rig = Rig::new(1);
    let loan_ms = 100;
    rig.greet(0, Grant { loan_ms, ..GRANT }, &[]);
    rig
}

pub(super) fn lookup(name: &str) -> Op {
    let (parent, name) = (file(DIR), name.as_bytes().into());
    Op::Lookup { parent, name }
}

pub(super) fn getattr(inode: u64) -> Op {
    let handle = file(inode);
    Op::Getattr { handle }
}

fn xattr(inode: u64) -> Op {
    let (handle, name) = (file(inode), Box::from(*b"user.one"));
    Op::Getxattr { handle, name }
}

pub(super) const BOTH: Lent = Lent {
    asked: true,
    found: true,
    directory: None,
};

impl Rig {
    /// Makes the call, and answers its request, lending what is said.
    pub(super) fn asks(&mut self, op: Op, result: Result<Outcome, Status>, lent: Lent) {
        let before = self.sent.len();
        self.call(op.clone());
        assert_eq!(self.sent.len(), before + 1, "{op:?} needs a request");
        let sent = self.sent.pop().expect("it was counted");
        self.reply_lending(&sent, (1, lent), result, Bytes::new());
    }

    /// Makes the call, which must be answered without a request.
    pub(super) fn held(&mut self, op: Op) -> Result<Outcome, Errno> {
        let before = self.sent.len();
        let id = self.call(op.clone());
        assert_eq!(
            self.sent.len(),
            before,
            "{op:?} is answered from what is lent"
        );
        let answer = self.done.remove(&id).expect("it is done at once");
        answer.map(|answer| answer.outcome)
    }

    /// Whether the call needs a request, which is then taken back.
    pub(super) fn needs_request(&mut self, op: Op) -> bool {
        let before = self.sent.len();
        self.call(op);
        let needs = self.sent.len() > before;
        self.sent.truncate(before);
        needs
    }

    fn learn_both(&mut self) {
        self.asks(lookup("a"), Ok(Outcome::Attr(attr(file(8)))), BOTH);
    }

    pub(super) fn recall(&mut self, inode: u64) {
        let reply = Reply {
            id: NOTICE,
            seat: 0,
            generation: 0,
            epoch: 0,
            charged_ns: 0,
            result: Ok(Outcome::Recalled(Some(file(inode)))),
            payload_len: 0,
            lent: Lent::default(),
        };
        let (forwarder, payload) = (0, Payload::new());
        self.input(Input::Received {
            forwarder,
            reply,
            payload,
        });
    }
}

#[test]
fn what_is_lent_is_answered_until_its_time_is_over() {
    let mut rig = lent_rig();
    rig.learn_both();
    let found = Ok(Outcome::Attr(attr(file(8))));
    assert_eq!(rig.held(lookup("a")), found);
    assert_eq!(rig.held(getattr(8)), found);
    rig.asks(lookup("b"), Err(Status::Errno(2)), BOTH);
    assert_eq!(rig.held(lookup("b")), Err(Errno::NOENT));
    rig.asks(xattr(8), Err(Status::Errno(61)), BOTH);
    assert_eq!(rig.held(xattr(8)), Err(Errno::NODATA));
    let text = Outcome::Text(Box::from(*b"target"));
    let readlink = || Op::Readlink { handle: file(9) };
    rig.asks(readlink(), Ok(text.clone()), BOTH);
    assert_eq!(rig.held(readlink()), Ok(text));
    rig.at(LOAN - 1);
    assert_eq!(rig.held(lookup("a")), found);
    rig.at(LOAN);
    for op in [lookup("a"), lookup("b"), getattr(8), xattr(8), readlink()] {
        assert!(rig.needs_request(op.clone()), "{op:?}");
    }
}

#[test]
fn the_time_counts_from_when_the_request_was_sent() {
    let mut rig = lent_rig();
    rig.call(getattr(8));
    let sent = rig.next();
    rig.at(LOAN - 1);
    let answer = Ok(Outcome::Attr(attr(file(8))));
    rig.reply_lending(&sent, (1, BOTH), answer, Bytes::new());
    assert!(rig.held(getattr(8)).is_ok());
    rig.at(LOAN);
    assert!(rig.needs_request(getattr(8)));
}

#[test]
fn what_is_not_lent_is_asked_for_each_time() {
    let mut rig = lent_rig();
    let (asked, found) = (true, false);
    rig.asks(
        lookup("a"),
        Ok(Outcome::Attr(attr(file(8)))),
        Lent {
            asked,
            found,
            directory: None,
        },
    );
    assert!(rig.needs_request(getattr(8)));
    // The name is known, and the attributes are not.
    assert!(rig.needs_request(lookup("a")));
    rig.asks(
        getattr(9),
        Ok(Outcome::Attr(attr(file(9)))),
        Lent::default(),
    );
    assert!(rig.needs_request(getattr(9)));
}

#[test]
fn what_is_recalled_is_thrown_away_and_given_back() {
    let mut rig = lent_rig();
    rig.learn_both();
    rig.recall(8);
    let back = rig.next().request;
    assert_eq!(back.op, Op::GiveBack { handle: file(8) });
    assert!(rig.needs_request(getattr(8)));
    assert!(rig.needs_request(lookup("a")));
    // What the client never had it gives back too.
    rig.recall(55);
    assert_eq!(rig.next().request.op, Op::GiveBack { handle: file(55) });
}

#[test]
fn what_is_recalled_is_given_back_without_a_credit() {
    let mut rig = Rig::new(1);
    let (loan_ms, credits) = (100, 1);
    rig.greet(
        0,
        Grant {
            loan_ms,
            credits,
            ..GRANT
        },
        &[],
    );
    rig.call(getattr(8));
    rig.recall(8);
    assert_eq!(rig.sent.len(), 2);
}

#[test]
fn an_own_change_ends_what_is_lent_from_its_call_on() {
    let mut rig = lent_rig();
    rig.learn_both();
    let set = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    let handle = file(8);
    rig.call(Op::Setattr { handle, set });
    let change = rig.next();
    assert!(rig.needs_request(getattr(8)), "the change is under way");
    // A look that the forwarder answered before the change, and whose answer comes now.
    rig.asks(getattr(8), Ok(Outcome::Attr(attr(file(8)))), BOTH);
    assert!(rig.needs_request(getattr(8)));
    rig.ok(&change, Outcome::Attr(attr(file(8))));
    assert!(rig.needs_request(getattr(8)));
    rig.asks(getattr(8), Ok(Outcome::Attr(attr(file(8)))), BOTH);
    assert!(rig.held(getattr(8)).is_ok());
}

#[test]
fn an_own_change_of_a_name_leaves_the_other_names() {
    let mut rig = lent_rig();
    rig.learn_both();
    rig.asks(lookup("b"), Err(Status::Errno(2)), BOTH);
    rig.asks(getattr(DIR), Ok(Outcome::Attr(attr(file(DIR)))), BOTH);
    let (parent, name) = (file(DIR), Box::from(*b"a"));
    rig.call(Op::Unlink { parent, name });
    let change = rig.next();
    assert!(rig.needs_request(lookup("b")), "the change is under way");
    rig.ok(&change, Outcome::Removed(Some(file(8))));
    assert_eq!(rig.held(lookup("b")), Err(Errno::NOENT));
    assert!(rig.needs_request(lookup("a")));
    assert!(rig.needs_request(getattr(8)), "it has lost a name");
    assert!(rig.needs_request(getattr(DIR)), "its times have changed");
}

#[test]
fn a_file_opened_for_writing_is_asked_for() {
    let mut rig = lent_rig();
    rig.learn_both();
    let (handle, open) = (file(8), 1);
    let opens = |write| Op::Open {
        handle,
        open,
        read: true,
        write,
    };
    rig.call(opens(false));
    rig.next();
    assert!(rig.held(getattr(8)).is_ok());
    rig.call(opens(true));
    rig.next();
    assert!(rig.needs_request(getattr(8)));
}

#[test]
fn an_answer_counts_for_the_users_who_got_it() {
    let mut rig = lent_rig();
    rig.caller = Some(Caller::alone(1000, 100));
    rig.learn_both();
    assert!(rig.held(lookup("a")).is_ok());
    rig.caller = Some(Caller::alone(1001, 100));
    assert!(rig.needs_request(lookup("a")));
    rig.at(LOAN / 2);
    rig.learn_both();
    assert!(rig.held(lookup("a")).is_ok());
    rig.caller = Some(Caller::alone(1000, 100));
    assert!(rig.held(lookup("a")).is_ok());
    // Another's answer does not make a user's own last longer.
    rig.at(LOAN);
    assert!(rig.needs_request(lookup("a")));
}

#[test]
fn nothing_is_left_when_the_session_has_ended() {
    let mut rig = lent_rig();
    rig.learn_both();
    rig.lose(0);
    rig.call(getattr(8));
    while rig.connects.is_empty() {
        rig.wake();
    }
    let loan_ms = 100;
    let grant = Grant { loan_ms, ..GRANT };
    rig.greet(0, grant, &[]);
    assert_eq!(rig.next().request.op, getattr(8));
}

#[test]
fn newer_answers_take_the_place_of_those_that_end_first() {
    let mut rig = lent_rig();
    rig.learn_both();
    let ask = |rig: &mut Rig, inode| {
        rig.asks(getattr(inode), Ok(Outcome::Attr(attr(file(inode)))), BOTH);
    };
    // With the name goes what it leads to.
    for inode in 1000..1000 + 65_536 {
        ask(&mut rig, inode);
    }
    assert!(rig.needs_request(lookup("a")));
    assert!(rig.needs_request(getattr(8)));
    assert!(rig.held(getattr(1000 + 65_535)).is_ok());
    assert!(rig.needs_request(getattr(1)));
}

/// The reply to a change of names with the attributes that the directory has then.
fn lends_directory(mtime_ns: i64) -> Lent {
    let directory = Attr {
        mtime_ns,
        ..attr(file(1))
    };
    Lent {
        directory: Some(Box::new(directory)),
        ..Lent::default()
    }
}

#[test]
fn what_a_directory_is_after_an_own_change_is_answered() {
    let mut rig = lent_rig();
    let unlink = |name: &[u8]| Op::Unlink {
        parent: file(1),
        name: name.into(),
    };
    let mtime = |found: Result<Outcome, Errno>| match found {
        Ok(Outcome::Attr(attr)) => attr.mtime_ns,
        other => panic!("{other:?}"),
    };
    rig.asks(getattr(1), Ok(Outcome::Attr(attr(file(1)))), BOTH);
    let removed = || Ok(Outcome::Removed(Some(file(8))));
    rig.asks(unlink(b"a"), removed(), lends_directory(7));
    assert_eq!(mtime(rig.held(getattr(1))), 7);
    // Without it the attributes are asked for again.
    rig.asks(unlink(b"b"), removed(), Lent::default());
    assert!(rig.needs_request(getattr(1)));
    // While another own change is under way it says nothing.
    rig.call(unlink(b"c"));
    let first = rig.next();
    rig.call(unlink(b"d"));
    let second = rig.next();
    rig.reply_lending(&first, (1, lends_directory(8)), removed(), Bytes::new());
    assert!(rig.needs_request(getattr(1)));
    rig.reply_lending(&second, (1, lends_directory(9)), removed(), Bytes::new());
    assert_eq!(mtime(rig.held(getattr(1))), 9);
    rig.recall(1);
    assert!(rig.needs_request(getattr(1)));
}
