//! Advisory locks through sessions: waiting, cancelling, losing.

use super::*;
use crate::back_end_files::Errno;
use tidegate_wire::{Lock, LockFamily, LockKind};

fn set(handle: Handle, owner: u64, kind: LockKind, wait: bool) -> Op {
    let lock = Lock {
        family: LockFamily::Range,
        kind,
        owner,
        pid: owner as u32,
        start: 0,
        end: 99,
    };
    Op::SetLock {
        handle,
        lock,
        wait,
        reclaim: false,
    }
}

fn three() -> (World, Host, [Tester; 3], Handle) {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut testers = [1, 2, 3].map(|id| Tester::new(&mut host, id));
    let file = testers[0].create(&mut host, "file");
    (world, host, testers, file)
}

#[test]
fn a_lock_in_the_way_is_eagain_or_waited_for_in_order() {
    let (_world, mut host, [mut a, mut b, mut c], file) = three();
    let exclusive = LockKind::Exclusive;
    a.call(&mut host, set(file, 1, exclusive, false))
        .expect("granted");
    let refused = b.call(&mut host, set(file, 1, exclusive, false));
    assert_eq!(errno(refused), Errno::EAGAIN.0);
    let first = b.send(&mut host, set(file, 1, exclusive, true), &[]);
    let second = c.send(&mut host, set(file, 1, exclusive, true), &[]);
    let test = Op::TestLock {
        handle: file,
        lock: match set(file, 9, exclusive, false) {
            Op::SetLock { lock, .. } => lock,
            _ => unreachable!(),
        },
    };
    match c.call(&mut host, test) {
        Ok(Outcome::Lock(Some(found))) => assert_eq!((found.pid, found.end), (1, 99)),
        other => panic!("no lock found: {other:?}"),
    }
    let release = a.send(&mut host, set(file, 1, LockKind::None, false), &[]);
    assert!(a.take(&mut host, &release).0.is_ok());
    assert!(b.take(&mut host, &first).0.is_ok());
    assert!(host.replies.is_empty());
    let drop = Op::DropLocks {
        handle: file,
        family: LockFamily::Range,
        owner: 1,
    };
    let dropped = b.send(&mut host, drop, &[]);
    assert!(b.take(&mut host, &dropped).0.is_ok());
    assert!(c.take(&mut host, &second).0.is_ok());
}

#[test]
fn a_waiting_lock_can_be_taken_back_and_does_not_stop_its_client() {
    let (_world, mut host, [mut a, mut b, _c], file) = three();
    a.call(&mut host, set(file, 1, LockKind::Exclusive, false))
        .expect("granted");
    let waits = b.send(&mut host, set(file, 1, LockKind::Exclusive, true), &[]);
    b.call(&mut host, Op::Getattr { handle: file })
        .expect("beside the lock");
    let cancel = b.send(&mut host, Op::CancelLock { request: waits.id }, &[]);
    assert_eq!(errno(b.take(&mut host, &waits).0), Errno::EINTR.0);
    assert!(b.take(&mut host, &cancel).0.is_ok());
    // One that was granted stays granted.
    let late = a.call(&mut host, Op::CancelLock { request: 2 });
    assert!(late.is_ok());
    let refused = b.call(&mut host, set(file, 1, LockKind::Shared, false));
    assert_eq!(errno(refused), Errno::EAGAIN.0);
}

#[test]
fn a_client_that_goes_or_dies_loses_its_locks() {
    let (_world, mut host, [mut a, mut b, mut c], file) = three();
    a.call(&mut host, set(file, 1, LockKind::Exclusive, false))
        .expect("granted");
    let first = b.send(&mut host, set(file, 1, LockKind::Exclusive, true), &[]);
    let second = c.send(&mut host, set(file, 1, LockKind::Exclusive, true), &[]);
    let bye = a.send(&mut host, Op::Bye, &[]);
    assert!(a.take(&mut host, &bye).0.is_ok());
    assert!(b.take(&mut host, &first).0.is_ok());
    host.tell(Input::Closed { conn: b.conn });
    for _ in 0..4 {
        host.advance(9 * SECOND);
        host.receive(c.conn, plain(1000 + host.now.0, Op::Ping), &[]);
        let (_, reply, _) = host.replies.pop_front().expect("an answer");
        if reply.id == second.id {
            assert!(reply.result.is_ok());
            return;
        }
    }
    panic!("the lease of a client without connection did not end");
}

#[test]
fn waiting_for_each_other_is_edeadlk() {
    let (_world, mut host, [mut a, mut b, _c], file) = three();
    let other = a.create(&mut host, "other");
    a.call(&mut host, set(file, 1, LockKind::Exclusive, false))
        .expect("granted");
    b.call(&mut host, set(other, 1, LockKind::Exclusive, false))
        .expect("granted");
    b.send(&mut host, set(file, 1, LockKind::Exclusive, true), &[]);
    let closes = a.call(&mut host, set(other, 1, LockKind::Exclusive, true));
    assert_eq!(errno(closes), Errno::EDEADLK.0);
}
