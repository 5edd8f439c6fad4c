//! Seats that change hands: opens and locks are told again before anything else.

use super::*;

const FILE: Handle = Handle { inode: 5, birth: 0 };

/// One forwarder, one open file, one lock on it.
fn rig_with_state() -> Rig {
    let mut rig = Rig::open(1);
    rig.name_file(FILE, b"f");
    rig.open_file(FILE);
    let id = rig.call(set_lock(FILE, lock(LockKind::Exclusive, 1, 0, 9), false));
    let sent = rig.next();
    rig.ok(&sent, Outcome::Done);
    rig.succeeded(id);
    rig
}

/// Takes the first request of a recovery: the open.
fn opened(rig: &mut Rig, generation: u64) -> Sent {
    let open = rig.next();
    assert!(matches!(open.request.op, Op::Open { .. }));
    assert_eq!(open.request.generation, generation);
    assert!(rig.sent.is_empty(), "the rest waits: {:?}", rig.sent);
    open
}

/// Answers the first request of a recovery and takes the second: the lock.
fn told(rig: &mut Rig, generation: u64) -> Sent {
    let open = opened(rig, generation);
    rig.reply(&open, generation, Ok(Outcome::Attr(attr(FILE))));
    let reclaim = rig.next();
    assert!(matches!(
        reclaim.request.op,
        Op::SetLock { reclaim: true, .. }
    ));
    assert_eq!(reclaim.request.generation, generation);
    assert!(rig.sent.is_empty(), "the rest waits: {:?}", rig.sent);
    reclaim
}

#[test]
fn a_new_generation_is_told_opens_and_locks_first() {
    let mut rig = rig_with_state();
    let id = rig.call(create(b"new"));
    let first = rig.next();
    assert_eq!(first.request.generation, 1);
    rig.reply(&first, 2, Err(Status::NewGeneration));
    let reclaim = told(&mut rig, 2);
    rig.call(getattr(FILE));
    assert!(rig.sent.is_empty());
    rig.reply(&reclaim, 2, Ok(Outcome::Done));
    let done = rig.next();
    assert_eq!(done.request.op, Op::ReclaimDone);
    assert_eq!(done.request.generation, 2);
    assert!(rig.sent.is_empty());
    rig.reply(&done, 2, Ok(Outcome::Done));
    let again = rig.next();
    assert_eq!(
        (again.request.id, again.request.reply_slot),
        (first.request.id, first.request.reply_slot)
    );
    assert!(again.request.replay);
    assert_eq!(again.request.generation, 2);
    assert_eq!(rig.next().request.op, getattr(FILE));
    rig.reply(&again, 2, Ok(Outcome::Attr(attr(file(9)))));
    rig.succeeded(id);
    assert!(rig.sent.is_empty(), "there was one recovery");
}

#[test]
fn what_a_former_holder_said_late_is_not_believed() {
    let mut rig = rig_with_state();
    let id = rig.call(set_lock(FILE, lock(LockKind::Exclusive, 1, 20, 29), false));
    let asked = rig.next();
    rig.call(getattr(FILE));
    let probe = rig.next();
    rig.reply(&probe, 2, Err(Status::NewGeneration));
    let reclaim = told(&mut rig, 2);
    // The lock was granted by who held the seat before: the present holder knows nothing of it.
    rig.reply(&asked, 1, Ok(Outcome::Done));
    rig.reply(&reclaim, 2, Ok(Outcome::Done));
    let done = rig.next();
    assert_eq!(done.request.op, Op::ReclaimDone);
    rig.reply(&done, 2, Ok(Outcome::Done));
    let again = rig.take(|sent| sent.request.id == asked.request.id);
    assert!(again.request.replay);
    assert_eq!(again.request.generation, 2);
    rig.reply(&again, 2, Ok(Outcome::Done));
    rig.succeeded(id);
}

#[test]
fn a_hello_that_shows_a_new_generation_begins_the_recovery() {
    let mut rig = rig_with_state();
    rig.lose(0);
    rig.wake();
    rig.greet(0, GRANT, &[(0, 2)]);
    told(&mut rig, 2);
}

#[test]
fn a_fresh_forwarder_is_told_again() {
    let mut rig = rig_with_state();
    rig.lose(0);
    rig.wake();
    rig.greet(
        0,
        Grant {
            fresh: true,
            ..GRANT
        },
        &[(0, 1)],
    );
    told(&mut rig, 1);
}

#[test]
fn without_opens_and_locks_nothing_is_told_to_a_fresh_forwarder() {
    let mut rig = Rig::open(1);
    rig.name_file(FILE, b"f");
    rig.lose(0);
    rig.call(getattr(FILE));
    rig.wake();
    rig.greet(
        0,
        Grant {
            fresh: true,
            ..GRANT
        },
        &[(0, 1)],
    );
    assert_eq!(rig.next().request.op, getattr(FILE));
}

#[test]
fn a_lost_server_is_looked_for_though_nobody_calls() {
    let mut rig = rig_with_state();
    rig.lose(0);
    rig.wake();
    rig.greet(0, GRANT, &[]);
    let probe = rig.next();
    assert_eq!(
        (probe.request.op.clone(), probe.request.generation),
        (Op::ReclaimDone, 1)
    );
    rig.reply(&probe, 2, Err(Status::NewGeneration));
    let reclaim = told(&mut rig, 2);
    rig.reply(&reclaim, 2, Ok(Outcome::Done));
    let done = rig.next();
    rig.reply(&done, 2, Ok(Outcome::Done));
    assert!(rig.core.requests.is_empty());
}

#[test]
fn a_lock_that_another_has_now_is_lost_and_logged() {
    let mut rig = rig_with_state();
    rig.call(getattr(FILE));
    let first = rig.next();
    rig.reply(&first, 2, Err(Status::NewGeneration));
    let open = opened(&mut rig, 2);
    rig.reply(&open, 2, Err(Status::UnknownHandle));
    let resolve = rig.next();
    assert!(matches!(resolve.request.op, Op::ResolvePath { .. }));
    rig.reply(&resolve, 0, Ok(Outcome::Attr(attr(FILE))));
    let reclaim = told(&mut rig, 2);
    rig.reply(&reclaim, 2, Err(Status::Errno(11)));
    assert_eq!(rig.next().request.op, Op::ReclaimDone);
    assert_eq!(rig.logs.len(), 1);
    let layout = rig.core.layout.expect("there was a session");
    let seat = layout.seat_of_file(FILE);
    assert_eq!(rig.core.locks.of_seat(&layout, seat), []);
    assert_eq!(rig.core.opens.len(), 1);
}

#[test]
fn an_open_that_the_client_may_not_make_itself_is_told_for_its_opener() {
    let opener = Some(Caller::alone(7, 7));
    let again = |last| {
        let mut rig = Rig::open(1);
        rig.name_file(FILE, b"f");
        rig.caller = opener.clone();
        rig.open_file(FILE);
        rig.call(getattr(FILE));
        let first = rig.next();
        rig.reply(&first, 2, Err(Status::NewGeneration));
        let open = opened(&mut rig, 2);
        assert_eq!(open.request.caller, None);
        rig.reply(&open, 2, Err(Status::Errno(13)));
        let open = opened(&mut rig, 2);
        assert_eq!(open.request.caller, opener);
        // The forwarder walks the path as him too.
        rig.reply(&open, 2, Err(Status::UnknownHandle));
        let resolve = rig.next();
        assert!(matches!(resolve.request.op, Op::ResolvePath { .. }));
        assert_eq!(resolve.request.caller, opener);
        rig.reply(&resolve, 0, Ok(Outcome::Attr(attr(FILE))));
        let open = opened(&mut rig, 2);
        rig.reply(&open, 2, last);
        assert_eq!(rig.next().request.op, Op::ReclaimDone);
        (rig.core.opens.len(), rig.logs.len())
    };
    assert_eq!(again(Ok(Outcome::Attr(attr(FILE)))), (1, 0));
    assert_eq!(again(Err(Status::Errno(13))), (0, 1));
}

#[test]
fn a_recovery_that_is_cut_begins_anew() {
    let mut rig = rig_with_state();
    let id = rig.call(getattr(FILE));
    let first = rig.next();
    rig.reply(&first, 2, Err(Status::NewGeneration));
    told(&mut rig, 2);
    rig.lose(0);
    rig.wake();
    rig.greet(0, GRANT, &[]);
    // The call comes first, with the generation that its state was last told to.
    let first = rig.take(|sent| sent.request.op == getattr(FILE));
    assert_eq!(first.request.generation, 1);
    rig.sent.clear();
    rig.reply(&first, 3, Err(Status::NewGeneration));
    let reclaim = told(&mut rig, 3);
    rig.reply(&reclaim, 3, Ok(Outcome::Done));
    let done = rig.next();
    rig.reply(&done, 3, Ok(Outcome::Done));
    let again = rig.next();
    rig.reply(&again, 3, Ok(Outcome::Attr(attr(FILE))));
    rig.succeeded(id);
}

#[test]
fn a_stand_in_takes_over_with_everything_told() {
    let mut rig = Rig::open(2);
    let handle = rig.file_of_seat(1);
    rig.open_file(handle);
    rig.lose(1);
    let probe = rig.next();
    assert_eq!((probe.forwarder, probe.request.seat), (0, 1));
    rig.reply(&probe, 7, Err(Status::NewGeneration));
    let open = rig.next();
    assert_eq!((open.forwarder, open.request.generation), (0, 7));
    assert!(matches!(open.request.op, Op::Open { .. }));
    rig.reply(&open, 7, Ok(Outcome::Attr(attr(handle))));
    let done = rig.next();
    rig.reply(&done, 7, Ok(Outcome::Done));
    rig.call(getattr(handle));
    let sent = rig.next();
    assert_eq!((sent.forwarder, sent.request.generation), (0, 7));
}

#[test]
fn closed_files_are_not_told_again() {
    let mut rig = rig_with_state();
    let open = *rig.core.opens.keys().next().expect("one file is open");
    rig.call(Op::Close {
        handle: FILE,
        open: open.1,
    });
    let close = rig.next();
    rig.reply(&close, 2, Err(Status::NewGeneration));
    let reclaim = rig.next();
    assert!(matches!(
        reclaim.request.op,
        Op::SetLock { reclaim: true, .. }
    ));
    rig.reply(&reclaim, 2, Ok(Outcome::Done));
    let done = rig.next();
    rig.reply(&done, 2, Ok(Outcome::Done));
    assert!(matches!(rig.next().request.op, Op::Close { .. }));
}

#[test]
fn a_seat_that_was_given_away_is_told_though_nobody_calls() {
    let mut rig = Rig::open(2);
    let file = rig.file_of_seat(0);
    rig.name_file(file, b"f");
    rig.open_file(file);
    let notice = Reply {
        id: 0,
        seat: 0,
        generation: 0,
        epoch: 0,
        charged_ns: 0,
        result: Err(Status::NotMySeat),
        payload_len: 0,
        lent: Default::default(),
    };
    for (forwarder, seat) in [(1, 0), (0, 1), (0, 9)] {
        let reply = Reply {
            seat,
            ..notice.clone()
        };
        let payload = Bytes::new();
        rig.input(Input::Received {
            forwarder,
            reply,
            payload: payload.into(),
        });
        assert!(rig.sent.is_empty(), "it does not hold anything there");
    }
    rig.input(Input::Received {
        forwarder: 0,
        reply: notice,
        payload: Payload::new(),
    });
    let probe = rig.next();
    assert_eq!((probe.forwarder, probe.request.op), (1, Op::ReclaimDone));
}

#[test]
fn a_lock_that_is_being_released_is_not_claimed() {
    let mut rig = rig_with_state();
    rig.call(set_lock(FILE, lock(LockKind::None, 1, 5, 9), false));
    let release = rig.next();
    rig.reply(&release, 2, Err(Status::NewGeneration));
    let reclaim = told(&mut rig, 2);
    let Op::SetLock { lock, .. } = reclaim.request.op.clone() else {
        panic!("it is a lock");
    };
    assert_eq!((lock.start, lock.end), (0, 4));
    rig.reply(&reclaim, 2, Ok(Outcome::Done));
    let done = rig.next();
    rig.reply(&done, 2, Ok(Outcome::Done));
    assert_eq!(rig.next().request.id, release.request.id);
}
