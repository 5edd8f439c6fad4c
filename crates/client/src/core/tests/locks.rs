//! Locks: cancelling, giving back, and the credits that waiting takes.

use super::*;

const FILE: Handle = Handle { inode: 5, birth: 0 };

fn exclusive(owner: u64) -> Lock {
    lock(LockKind::Exclusive, owner, 0, 99)
}

fn held(rig: &Rig) -> Vec<(u64, LockKind, u64, u64)> {
    let layout = rig.core.layout().expect("the layout is known");
    let locks = (0..layout.seats).flat_map(|seat| rig.core.locks.of_seat(&layout, seat));
    locks
        .map(|(_, l)| (l.owner, l.kind, l.start, l.end))
        .collect()
}

#[test]
fn a_cancelled_wait_is_taken_back() {
    let mut rig = Rig::open(1);
    let id = rig.call(set_lock(FILE, exclusive(1), true));
    let wait = rig.next();
    rig.input(Input::Cancel { id });
    assert_eq!(rig.errno(id), 4);
    let cancel = rig.next();
    let request = wait.request.id;
    assert_eq!(cancel.request.op, Op::CancelLock { request });
    rig.fail(&wait, Status::Errno(4));
    rig.ok(&cancel, Outcome::Done);
    assert!(rig.sent.is_empty());
    assert!(rig.core.gates.is_empty());
    assert!(rig.core.requests.is_empty());
}

#[test]
fn a_lock_granted_to_a_cancelled_call_is_given_back() {
    let mut rig = Rig::open(1);
    let shared = rig.call(set_lock(FILE, lock(LockKind::Shared, 1, 50, 200), false));
    let sent = rig.next();
    rig.ok(&sent, Outcome::Done);
    rig.succeeded(shared);

    let id = rig.call(set_lock(FILE, exclusive(1), true));
    let wait = rig.next();
    rig.input(Input::Cancel { id });
    rig.errno(id);
    let cancel = rig.next();
    // The owner asks again at once: it must not lose what it is granted now.
    let retry = rig.call(set_lock(FILE, exclusive(1), true));
    assert!(rig.sent.is_empty());
    rig.ok(&wait, Outcome::Done);
    rig.ok(&cancel, Outcome::Done);
    let restores = [rig.next(), rig.next()];
    let pieces = restores.each_ref().map(|sent| match &sent.request.op {
        Op::SetLock { lock, .. } => (lock.kind, lock.start, lock.end),
        op => panic!("{op:?} restores nothing"),
    });
    assert_eq!(
        pieces,
        [(LockKind::None, 0, 49), (LockKind::Shared, 50, 99)]
    );
    rig.ok(&restores[0], Outcome::Done);
    assert!(rig.sent.is_empty());
    rig.ok(&restores[1], Outcome::Done);
    let again = rig.next();
    rig.ok(&again, Outcome::Done);
    rig.succeeded(retry);
    let wanted = [
        (1, LockKind::Exclusive, 0, 99),
        (1, LockKind::Shared, 100, 200),
    ];
    assert_eq!(held(&rig), wanted);
}

#[test]
fn a_lock_abandoned_while_its_forwarder_is_gone_is_taken_back_at_the_next() {
    let mut rig = Rig::open(1);
    let id = rig.call(set_lock(FILE, exclusive(1), true));
    let wait = rig.next();
    rig.lose(0);
    rig.input(Input::Cancel { id });
    rig.errno(id);
    rig.wake();
    rig.greet(0, GRANT, &[]);
    let cancel = rig.next();
    let request = wait.request.id;
    assert_eq!(cancel.request.op, Op::CancelLock { request });
    rig.ok(&cancel, Outcome::Done);
    let restore = rig.next();
    assert_eq!(
        restore.request.op,
        set_lock(FILE, lock(LockKind::None, 1, 0, 99), false)
    );
    rig.ok(&restore, Outcome::Done);
    assert!(rig.core.gates.is_empty());
}

#[test]
fn a_release_goes_on_after_its_caller_has_gone() {
    let mut rig = Rig::open(1);
    let id = rig.call(set_lock(FILE, exclusive(1), false));
    let sent = rig.next();
    rig.ok(&sent, Outcome::Done);
    rig.succeeded(id);
    rig.lose(0);
    let drop_locks = Op::DropLocks {
        handle: FILE,
        family: LockFamily::Range,
        owner: 1,
    };
    let id = rig.call_with(drop_locks.clone(), Bytes::new(), Some(rig.now + 1));
    rig.at(rig.now + 1);
    assert_eq!(rig.errno(id), 110);
    rig.wake();
    rig.greet(0, GRANT, &[(0, 1)]);
    let sent = rig.take(|sent| sent.request.op == drop_locks);
    rig.ok(&sent, Outcome::Done);
    assert!(held(&rig).is_empty());
    assert!(rig.core.gates.is_empty());
}

#[test]
fn waiting_locks_leave_credits_for_releases() {
    let mut rig = Rig::new(1);
    rig.greet(
        0,
        Grant {
            credits: 4,
            ..GRANT
        },
        &[],
    );
    let ids: Vec<CallId> = (1..=3)
        .map(|owner| rig.call(set_lock(FILE, exclusive(owner), true)))
        .collect();
    let sent: Vec<Sent> = rig.sent.drain(..).collect();
    let waits = |sent: &Sent| matches!(sent.request.op, Op::SetLock { wait: true, .. });
    assert_eq!(
        sent.iter().map(waits).collect::<Vec<_>>(),
        [true, true, false]
    );
    // The third polls until there is room for it to wait.
    rig.fail(&sent[2], Status::Errno(11));
    assert!(rig.done.is_empty());
    rig.wake();
    let poll = rig.next();
    assert!(!waits(&poll));
    rig.fail(&poll, Status::Errno(11));
    rig.ok(&sent[0], Outcome::Done);
    rig.succeeded(ids[0]);
    rig.wake();
    let wait = rig.next();
    assert!(waits(&wait));
    rig.ok(&wait, Outcome::Done);
    rig.succeeded(ids[2]);
    // One that does not want to wait hears the truth.
    let id = rig.call(set_lock(FILE, exclusive(9), false));
    let sent = rig.next();
    rig.fail(&sent, Status::Errno(11));
    assert_eq!(rig.errno(id), 11);
}
