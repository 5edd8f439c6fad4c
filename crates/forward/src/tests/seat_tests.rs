//! Seats change hands: taking, refusing, generations, grace, draining.

use super::*;
use tidegate_wire::{Lock, LockFamily, LockKind};

fn lock(handle: Handle, wait: bool, reclaim: bool) -> Op {
    let lock = Lock {
        family: LockFamily::Range,
        kind: LockKind::Exclusive,
        owner: 1,
        pid: 1,
        start: 0,
        end: 9,
    };
    Op::SetLock {
        handle,
        lock,
        wait,
        reclaim,
    }
}

/// An operation on seat `seat` of two that changes nothing.
fn test_lock(handle: Handle) -> Op {
    let Op::SetLock { lock, .. } = lock(handle, false, false) else {
        unreachable!()
    };
    Op::TestLock { handle, lock }
}

fn ask(world: &World, seat: u16) -> Op {
    let layout = world.config(0, 2).layout;
    let inode = (2..).find(|inode| {
        let handle = Handle {
            inode: *inode,
            birth: 0,
        };
        layout.seat_of_file(handle) == seat
    });
    Op::Getattr {
        handle: Handle {
            inode: inode.expect("one of each"),
            birth: 0,
        },
    }
}

#[test]
fn the_own_seat_is_asked_for_at_the_start_and_waited_for_a_while() {
    let mut world = World::new();
    let mut host = Host::new(&world, world.config(0, 2));
    assert_eq!(host.asked_seats, [0]);
    let mut tester = Tester::new(&mut host, 7);
    let request = tester.send(&mut host, ask(&world, 0), &[]);
    host.tell(Input::SeatRefused { seat: 0 });
    host.advance(99 * MS);
    assert!(
        host.replies.is_empty(),
        "the host goes on waiting for the lock, and so do we"
    );
    host.advance(2 * MS);
    assert_eq!(tester.take(&mut host, &request).0, Err(Status::NotMySeat));
    let request = tester.send(&mut host, ask(&world, 0), &[]);
    host.give_seat(&mut world, 0);
    assert_eq!(
        tester.take(&mut host, &request).0,
        Err(Status::UnknownHandle),
        "served"
    );
    assert_eq!(host.asked_seats, [0], "asked once");
}

#[test]
fn another_seat_is_taken_on_request_and_requests_wait_for_the_answer() {
    let mut world = World::new();
    let mut host = Host::new(&world, world.config(0, 2));
    let mut tester = Tester::new(&mut host, 7);
    let first = tester.send(&mut host, ask(&world, 1), &[]);
    let second = tester.send(&mut host, ask(&world, 1), &[]);
    assert_eq!(host.asked_seats, [0, 1]);
    assert!(host.replies.is_empty());
    host.tell(Input::SeatRefused { seat: 1 });
    for request in [first, second] {
        assert_eq!(tester.take(&mut host, &request).0, Err(Status::NotMySeat));
    }
    let third = tester.send(&mut host, ask(&world, 1), &[]);
    assert_eq!(host.asked_seats, [0, 1, 1], "it may be free by now");
    host.give_seat(&mut world, 1);
    assert_eq!(
        tester.take(&mut host, &third).0,
        Err(Status::UnknownHandle),
        "served"
    );
}

#[test]
fn without_fail_over_other_seats_are_never_taken() {
    let world = World::new();
    let mut config = world.config(0, 2);
    config.fail_over = false;
    let mut host = Host::new(&world, config);
    let mut tester = Tester::new(&mut host, 7);
    assert_eq!(
        tester.call(&mut host, ask(&world, 1)),
        Err(Status::NotMySeat)
    );
    assert_eq!(host.asked_seats, [0]);
}

#[test]
fn a_changed_generation_is_told_once_and_to_those_who_were_known() {
    let mut world = World::new();
    let mut first = Host::serving(&mut world);
    let mut tester = Tester::new(&mut first, 7);
    let mut reader = Tester::new(&mut first, 8);
    tester.create(&mut first, "file");
    let root = tester.root();
    reader
        .call(&mut first, Op::Getattr { handle: root })
        .expect("there");
    let mut second = Host::serving(&mut world);
    for tester in [&mut tester, &mut reader] {
        tester.connect(&mut second, peer(0));
        let mut ask = || tester.call(&mut second, Op::Getattr { handle: root });
        assert_eq!(
            ask(),
            Err(Status::NewGeneration),
            "it names the old generation"
        );
        assert!(ask().is_ok());
    }
    // Generation 0, but in the table: known to the last holder.
    let mut third = Host::serving(&mut world);
    tester.connect(&mut third, peer(0));
    tester.generations.clear();
    let result = tester.call(&mut third, Op::Getattr { handle: root });
    assert_eq!(result, Err(Status::NewGeneration));
    // One that this holder met itself may send several with generation 0 before it hears.
    let mut fresh = Tester::new(&mut third, 9);
    let one = fresh.send(&mut third, create(root, "a", true), &[]);
    let reply_slot = ReplySlot {
        index: 1,
        sequence: 1,
    };
    let other = Request {
        reply_slot: Some(reply_slot),
        ..fresh.request(create(root, "b", true), 0)
    };
    third.receive(fresh.conn, other.clone(), &[]);
    assert!(fresh.take(&mut third, &one).0.is_ok());
    assert!(fresh.take(&mut third, &other).0.is_ok());
}

#[test]
fn locks_are_reclaimed_in_grace_in_which_no_new_ones_are_granted() {
    let mut world = World::new();
    let mut first = Host::serving(&mut world);
    let mut holder = Tester::new(&mut first, 7);
    let mut other = Tester::new(&mut first, 8);
    let file = holder.create(&mut first, "file");
    holder
        .call(&mut first, lock(file, false, false))
        .expect("granted");

    let mut second = Host::serving(&mut world);
    assert!(
        second.reclaimed.is_empty(),
        "the table names a client with locks"
    );
    for tester in [&mut holder, &mut other] {
        tester.connect(&mut second, peer(0));
        let _ = tester.call(&mut second, Op::ReclaimDone);
        let _ = tester.generations.insert(0, 2);
    }
    let asked = other.call(&mut second, lock(file, false, false));
    assert_eq!(asked, Err(Status::TryLater));
    let asked = other.call(&mut second, test_lock(file));
    assert_eq!(asked, Err(Status::TryLater), "its holder has not told it");
    let waits = other.send(&mut second, lock(file, true, false), &[]);
    let resolve = Op::ResolvePath {
        handle: file,
        path: Box::from(&b"file"[..]),
    };
    other.call(&mut second, resolve).expect("there");
    let got = other.call(&mut second, Op::Getattr { handle: file });
    assert!(got.is_ok(), "everything else is served: {got:?}");
    holder
        .call(&mut second, lock(file, false, true))
        .expect("reclaimed");
    let found = other.call(&mut second, test_lock(file));
    assert!(matches!(found, Ok(Outcome::Lock(Some(_)))), "{found:?}");
    holder.call(&mut second, Op::ReclaimDone).expect("told");
    assert_eq!(second.reclaimed, [0]);
    assert!(second.replies.is_empty(), "the holder has it");
    let Op::SetLock { lock: held, .. } = lock(file, false, false) else {
        unreachable!()
    };
    let release = Op::SetLock {
        handle: file,
        lock: Lock {
            kind: LockKind::None,
            ..held
        },
        wait: false,
        reclaim: false,
    };
    let released = holder.send(&mut second, release, &[]);
    assert!(holder.take(&mut second, &released).0.is_ok());
    assert!(other.take(&mut second, &waits).0.is_ok(), "its turn");
}

#[test]
fn grace_ends_by_itself_when_a_client_does_not_come() {
    let mut world = World::new();
    let mut first = Host::serving(&mut world);
    let mut holder = Tester::new(&mut first, 7);
    let file = holder.create(&mut first, "file");
    holder
        .call(&mut first, lock(file, false, false))
        .expect("granted");
    let mut second = Host::serving(&mut world);
    let mut other = Tester::new(&mut second, 8);
    assert_eq!(
        other.call(&mut second, lock(file, false, false)),
        Err(Status::TryLater)
    );
    let waits = other.send(&mut second, lock(file, true, false), &[]);
    second.advance(9 * SECOND);
    assert!(second.replies.is_empty());
    second.advance(2 * SECOND);
    assert_eq!(second.reclaimed, [0]);
    assert!(other.take(&mut second, &waits).0.is_ok());
    // The lost client's lock, told late, is refused; it learns that it has lost it.
    holder.connect(&mut second, peer(0));
    let _ = holder.call(&mut second, Op::ReclaimDone);
    let late = holder.call(&mut second, lock(file, false, true));
    assert_eq!(errno(late), crate::Errno::ENOLCK.0);
}

#[test]
fn clients_that_never_come_lose_their_reply_slots_after_a_lease() {
    let mut world = World::new();
    let mut first = Host::serving(&mut world);
    Tester::new(&mut first, 7).create(&mut first, "file");
    let mut second = Host::serving(&mut world);
    let clients = |host: &mut Host| {
        let status = String::from_utf8(host.forwarder_status()).expect("text");
        status.contains("\"clients\":1")
    };
    second.advance(29 * SECOND);
    assert!(clients(&mut second));
    second.advance(2 * SECOND);
    assert!(!clients(&mut second));
    let third = Host::serving(&mut world);
    assert_eq!(third.reclaimed, [0]);
}

#[test]
fn a_wanted_seat_is_drained_and_released() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut tester = Tester::new(&mut host, 7);
    let mut other = Tester::new(&mut host, 8);
    let file = tester.create(&mut host, "file");
    tester
        .call(&mut host, lock(file, false, false))
        .expect("granted");
    let waits = other.send(&mut host, lock(file, true, false), &[]);
    host.hold_jobs = true;
    let runs = tester.send(&mut host, write(file, 0, 4), b"data");
    host.tell(Input::SeatWanted { seat: 0 });
    assert_eq!(other.take(&mut host, &waits).0, Err(Status::NotMySeat));
    let new = other.call(&mut host, Op::Getattr { handle: file });
    assert_eq!(new, Err(Status::NotMySeat));
    assert!(host.released.is_empty(), "an accepted request runs");
    host.run_job();
    assert!(tester.take(&mut host, &runs).0.is_ok());
    assert_eq!(host.released, [0]);
    let notices = host.replies.iter().filter(|(_, reply, _)| reply.id == 0);
    let told: Vec<_> = notices
        .map(|(conn, reply, _)| (*conn, reply.seat, reply.result.clone()))
        .collect();
    assert_eq!(
        told,
        [(tester.conn, 0, Err(Status::NotMySeat))],
        "only the holder is told"
    );
    // The next holder knows from the table whom to wait for.
    let next = Host::serving(&mut world);
    assert!(next.reclaimed.is_empty());
}

#[test]
fn a_drain_finishes_what_was_accepted_and_takes_nothing_new() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut tester = Tester::new(&mut host, 7);
    host.hold_jobs = true;
    let runs = tester.send(&mut host, create(tester.root(), "file", true), &[]);
    host.tell(Input::Drain);
    let root = tester.root();
    let late = tester.call(&mut host, Op::Getattr { handle: root });
    assert_eq!(late, Err(Status::NotMySeat));
    let conn = host.connect(peer(0));
    host.receive(conn, plain(1, Op::Hello(hello(9, 1))), &[]);
    assert!(host.reply().result.is_err());
    assert!(!host.drained);
    host.run_job();
    assert!(tester.take(&mut host, &runs).0.is_ok());
    assert_eq!((host.released.clone(), host.drained), (vec![0], true));
}

#[test]
fn a_damaged_table_reads_as_empty_and_is_logged() {
    let mut world = World::new();
    let switch = Switch::new();
    let (_, table) = world.take(0, &switch);
    let mut noise = 1u64;
    for at in (0..crate::SEGMENT_BYTES).step_by(64) {
        noise = tidegate_sched::mix64(noise + 1);
        crate::SeatTable::store(&table, at, &noise.to_le_bytes().repeat(8));
    }
    let mut host = Host::serving(&mut world);
    assert_eq!(host.logs.len(), 1, "{:?}", host.logs);
    let mut tester = Tester::new(&mut host, 7);
    tester.create(&mut host, "file");
    let root = tester.root();
    assert!(tester.call(&mut host, create(root, "other", true)).is_ok());
}
