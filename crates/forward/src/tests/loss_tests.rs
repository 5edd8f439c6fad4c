//! Seats that are lost while they are served, and tables that must be persisted before an answer.

use super::*;
use crate::SeatTable;
use crate::back_end_files::{Access, Errno};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tidegate_wire::{Lock, LockFamily, LockKind, ReplySlot, SetAttr};

const TTL: u64 = 4 * SECOND;

/// A forwarder with a seat by lease, and a client.
fn leased() -> (World, Host, Tester) {
    let mut world = World::new();
    let mut host = Host::new(&world, world.config(0, 1));
    let until = host.now + TTL;
    host.tell(Input::LeaseRenewed { until });
    host.give_seat(&mut world, 0);
    let tester = Tester::new(&mut host, 7);
    (world, host, tester)
}

fn lock(handle: Handle, owner: u64) -> Op {
    Op::SetLock {
        handle,
        lock: Lock {
            family: LockFamily::Range,
            kind: LockKind::Exclusive,
            owner,
            pid: 1,
            start: 0,
            end: 9,
        },
        wait: false,
        reclaim: false,
    }
}

fn fsync(handle: Handle) -> Op {
    Op::Fsync {
        handle,
        data_only: false,
    }
}

/// Carries out the jobs that are held, and those that follow from them.
fn finish_jobs(host: &mut Host) {
    while !host.jobs.is_empty() {
        host.run_job();
    }
}

#[test]
fn a_seat_is_served_until_its_lease_ends_and_no_longer() {
    let (mut world, mut host, mut tester) = leased();
    let root = tester.root();
    host.advance(TTL - 1);
    let ask = Op::Getattr { handle: root };
    assert!(tester.call(&mut host, ask.clone()).is_ok());
    host.advance(1);
    assert_eq!(host.released, [0]);
    assert_eq!(host.asked_seats, [0, 0], "it goes on wanting its own seat");
    let late = tester.send(&mut host, ask.clone(), &[]);
    host.advance(SECOND);
    assert_eq!(tester.take(&mut host, &late).0, Err(Status::NotMySeat));
    let until = host.now + TTL;
    host.tell(Input::LeaseRenewed { until });
    host.give_seat(&mut world, 0);
    assert_eq!(
        tester.call(&mut host, ask.clone()),
        Err(Status::NewGeneration)
    );
    assert!(tester.call(&mut host, ask).is_ok());
}

#[test]
fn a_renewed_lease_goes_on() {
    let (_world, mut host, mut tester) = leased();
    let root = tester.root();
    for _ in 0..5 {
        host.advance(TTL / 2);
        let until = host.now + TTL;
        host.tell(Input::LeaseRenewed { until });
    }
    assert!(tester.call(&mut host, Op::Getattr { handle: root }).is_ok());
    assert_eq!((&*host.asked_seats, &*host.released), (&[0][..], &[][..]));
}

#[test]
fn a_seat_that_comes_after_its_lease_is_let_go() {
    let mut world = World::new();
    let mut host = Host::new(&world, world.config(0, 1));
    let until = host.now + TTL;
    host.tell(Input::LeaseRenewed { until });
    host.advance(TTL);
    host.give_seat(&mut world, 0);
    assert_eq!(
        (&*host.asked_seats, &*host.released),
        (&[0, 0][..], &[0][..])
    );
}

#[test]
fn what_was_begun_before_the_loss_is_not_answered_after_it() {
    let (_world, mut host, mut tester) = leased();
    let file = tester.create(&mut host, "file");
    host.hold_jobs = true;
    let writing = tester.send(&mut host, write(file, 0, 5), b"bytes");
    host.tell(Input::SeatLost { seat: 0 });
    // The client goes elsewhere at once; the seat is let go when the back end has answered.
    assert_eq!(tester.take(&mut host, &writing).0, Err(Status::NotMySeat));
    assert!(host.released.is_empty());
    finish_jobs(&mut host);
    assert!(host.replies.is_empty(), "answered once");
    assert_eq!(host.released, [0]);
}

#[test]
fn what_waits_at_the_loss_has_no_effect() {
    let (world, mut host, mut tester) = leased();
    let root = tester.root();
    let mut other = Tester::new(&mut host, 8);
    host.hold_jobs = true;
    // The second change of names waits for the first.
    let first = tester.send(&mut host, create(root, "first", true), &[]);
    let second = other.send(&mut host, create(root, "second", true), &[]);
    assert_eq!(host.jobs.len(), 1);
    host.tell(Input::SeatLost { seat: 0 });
    assert_eq!(tester.take(&mut host, &first).0, Err(Status::NotMySeat));
    assert_eq!(other.take(&mut host, &second).0, Err(Status::NotMySeat));
    finish_jobs(&mut host);
    assert!(world.disk.contents("first").is_some(), "it had begun");
    assert!(world.disk.contents("second").is_none());
    assert_eq!(host.released, [0]);
}

#[test]
fn a_batch_over_two_seats_has_no_effect_for_the_one_that_is_lost() {
    const STRIPE: usize = 4096;
    let mut world = World::new();
    let mut config = world.config(0, 2);
    config.scheduler.merge = Some(true);
    let mut host = Host::new(&world, config);
    let until = host.now + TTL;
    host.tell(Input::LeaseRenewed { until });
    host.give_seat(&mut world, 0);
    let mut tester = Tester::new(&mut host, 7);
    let root = tester.root();
    let made = host.files.create(None, root, b"file", 0o644);
    let file = made.expect("created").handle;
    let piece = |at: usize| write(file, (at * STRIPE) as u64, STRIPE as u64);
    let mut send = |host: &mut Host, at: usize| {
        let sent = tester.request(piece(at), STRIPE);
        // A reply slot of its own: they are under way at once.
        let reply_slot = ReplySlot {
            index: at as u16,
            sequence: 1,
        };
        let sent = Request {
            reply_slot: Some(reply_slot),
            ..sent
        };
        assert!(host.receive(tester.conn, sent.clone(), &[b'x'; STRIPE]));
        sent
    };
    // The second seat is taken because somebody asks for it.
    let of_seats = [0, 1].map(|at| send(&mut host, at).seat);
    assert_eq!(of_seats, [1, 0]);
    host.give_seat(&mut world, 1);
    host.replies.clear();
    host.hold_jobs = true;
    // One write occupies the device. The others wait and join in pairs, a stripe of either seat in
    // each: the lost one's comes first in one pair, and last in the other.
    let places = [2, 5, 11, 12];
    send(&mut host, 8);
    let sent = places.map(|at| send(&mut host, at));
    assert_eq!(sent.each_ref().map(|sent| sent.seat), [1, 0, 0, 1]);
    host.tell(Input::SeatLost { seat: 1 });
    finish_jobs(&mut host);
    let contents = world.disk.contents("file").expect("there");
    for (at, sent) in places.into_iter().zip(&sent) {
        let written = contents.get(at * STRIPE) == Some(&b'x');
        assert_eq!(written, sent.seat == 0, "stripe {at}");
        let mut replies = host.replies.iter().map(|(_, reply, _)| reply);
        let reply = replies.find(|reply| reply.id == sent.id);
        let result = &reply.expect("answered").result;
        assert_eq!(result.is_ok(), written, "stripe {at}: {result:?}");
    }
    assert_eq!(host.released, [1]);
}

#[test]
fn a_lost_seat_gives_no_answer_its_generation() {
    let (_world, mut host, mut tester) = leased();
    let file = tester.create(&mut host, "file");
    host.hold_jobs = true;
    // It keeps the seat from being let go.
    let writing = tester.send(&mut host, write(file, 0, 5), b"bytes");
    host.tell(Input::SeatLost { seat: 0 });
    let fsync = fsync(file);
    let syncing = tester.send(&mut host, fsync, &[]);
    finish_jobs(&mut host);
    let named = |id| {
        let mut replies = host.replies.iter().map(|(_, reply, _)| reply);
        replies.find(|reply| reply.id == id).map(|it| it.generation)
    };
    assert_eq!((named(writing.id), named(syncing.id)), (Some(0), Some(0)));
}

#[test]
fn a_path_that_cannot_be_asked_for_is_told_elsewhere() {
    let (_world, mut host, mut tester) = leased();
    let file = tester.create(&mut host, "file");
    host.advance(TTL);
    host.hold_jobs = true;
    let resolve = Op::ResolvePath {
        handle: file,
        path: b"file"[..].into(),
    };
    let resolving = tester.send(&mut host, resolve, &[]);
    // The fence has closed, or the back end has given this node up.
    host.end_jobs(Access::NotHeld);
    assert_eq!(tester.take(&mut host, &resolving).0, Err(Status::NotMySeat));
}

/// A table whose back end may be out of reach.
struct Written {
    table: ModelTable,
    fails: AtomicBool,
    full: AtomicBool,
    closed: AtomicBool,
    /// The seat goes to another forwarder while this one persists.
    goes: AtomicBool,
    lacks: bool,
    persisted: AtomicUsize,
}

impl SeatTable for Written {
    fn load(&self, at: usize, bytes: &mut [u8]) {
        self.table.load(at, bytes);
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        self.table.store(at, bytes);
    }

    fn must_persist(&self) -> bool {
        true
    }

    fn persist(&self) -> Result<(), Errno> {
        self.persisted.fetch_add(1, Ordering::Relaxed);
        let set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        self.closed.fetch_or(set(&self.goes), Ordering::Relaxed);
        match (set(&self.fails), set(&self.full)) {
            (true, _) => Err(Errno::EIO),
            (_, true) => Err(Errno::ENOSPC),
            _ => Ok(()),
        }
    }

    fn is_held(&self) -> bool {
        !self.closed.load(Ordering::Relaxed)
    }

    fn may_lack_holders(&self) -> bool {
        self.lacks
    }

    fn grow(&self) -> bool {
        self.table.grow()
    }

    fn len(&self) -> usize {
        self.table.len()
    }
}

fn written() -> (World, Host, Tester, Arc<Written>) {
    let mut world = World::new();
    let mut host = Host::new(&world, world.config(0, 1));
    let until = host.now + TTL;
    host.tell(Input::LeaseRenewed { until });
    let (generation, table) = world.take(0, &host.switch);
    let table = Arc::new(Written {
        table,
        fails: AtomicBool::new(false),
        full: AtomicBool::new(false),
        closed: AtomicBool::new(false),
        goes: AtomicBool::new(false),
        lacks: false,
        persisted: AtomicUsize::new(0),
    });
    host.tell(Input::SeatTaken {
        seat: 0,
        generation,
        table: table.clone(),
    });
    let tester = Tester::new(&mut host, 7);
    (world, host, tester, table)
}

#[test]
fn an_intent_is_persisted_before_its_effect_or_there_is_none() {
    let (world, mut host, mut tester, table) = written();
    tester.create(&mut host, "one");
    assert_eq!(table.persisted.load(Ordering::Relaxed), 1);
    table.fails.store(true, Ordering::Relaxed);
    let root = tester.root();
    let refused = tester.call(&mut host, create(root, "two", true));
    assert_eq!(errno(refused), Errno::EIO.0);
    assert!(world.disk.contents("two").is_none());
}

#[test]
fn nothing_takes_effect_when_the_seat_goes_while_its_intent_is_persisted() {
    let (world, mut host, mut tester, table) = written();
    let root = tester.root();
    tester.create(&mut host, "one");
    table.goes.store(true, Ordering::Relaxed);
    let unlink = Op::Unlink {
        parent: root,
        name: b"one"[..].into(),
    };
    // The core has not been told yet.
    let request = tester.send(&mut host, unlink, &[]);
    assert_eq!(tester.take(&mut host, &request).0, Err(Status::NotMySeat));
    assert!(world.disk.contents("one").is_some());
    // It was only refused here: what comes again is not answered from a reply slot.
    table.goes.store(false, Ordering::Relaxed);
    table.closed.store(false, Ordering::Relaxed);
    assert!(host.receive(tester.conn, request.clone(), &[]));
    assert!(tester.take(&mut host, &request).0.is_ok());
}

#[test]
fn a_call_that_storage_refuses_for_its_seat_is_sent_elsewhere() {
    let (_world, mut host, mut tester) = leased();
    let file = tester.create(&mut host, "file");
    host.hold_jobs = true;
    let writing = tester.send(&mut host, write(file, 0, 5), b"bytes");
    let root = tester.root();
    let asking = tester.send(&mut host, Op::Getattr { handle: root }, &[]);
    host.end_jobs(Access::NotHeld);
    for request in [&writing, &asking] {
        assert_eq!(tester.take(&mut host, request).0, Err(Status::NotMySeat));
    }
    host.hold_jobs = false;
    assert!(tester.again(&mut host, &writing, b"bytes").is_ok());
}

#[test]
fn a_full_back_end_keeps_nobody_from_removing_files() {
    let (world, mut host, mut tester, table) = written();
    tester.create(&mut host, "one");
    table.full.store(true, Ordering::Relaxed);
    let root = tester.root();
    let refused = tester.call(&mut host, create(root, "two", true));
    assert_eq!(errno(refused), Errno::ENOSPC.0);
    let unlink = Op::Unlink {
        parent: root,
        name: b"one"[..].into(),
    };
    assert!(tester.call(&mut host, unlink).is_ok());
    assert!(world.disk.contents("one").is_none());
}

#[test]
fn an_intent_that_was_not_persisted_leaves_no_result() {
    let (_world, mut host, mut tester, table) = written();
    let root = tester.root();
    table.fails.store(true, Ordering::Relaxed);
    let request = tester.send(&mut host, create(root, "one", true), &[]);
    assert_eq!(errno(tester.take(&mut host, &request).0), Errno::EIO.0);
    // The reply was lost, and the same request comes again.
    table.fails.store(false, Ordering::Relaxed);
    assert!(host.receive(tester.conn, request.clone(), &[]));
    assert!(tester.take(&mut host, &request).0.is_ok());
}

/// A client repeats a request of which the next holder's table says that it is done, but whose
/// bytes went with the node that took them: what the file holds in the end.
fn done_and_lost(op: impl Fn(Handle) -> Op) -> Vec<u8> {
    let (world, mut host, mut tester, table) = written();
    let file = tester.create(&mut host, "file");
    let request = tester.send(&mut host, op(file), b"bytes");
    let nothing = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    let lost = host.files.set_attr(None, file, &nothing);
    lost.expect("the node dies with its page cache");
    let mut next = Host::new(&world, world.config(0, 1));
    let until = next.now + TTL;
    next.tell(Input::LeaseRenewed { until });
    let table = Arc::new(Written {
        table: table.table.seen_by(&next.switch),
        fails: AtomicBool::new(false),
        full: AtomicBool::new(false),
        closed: AtomicBool::new(false),
        goes: AtomicBool::new(false),
        lacks: false,
        persisted: AtomicUsize::new(0),
    });
    next.tell(Input::SeatTaken {
        seat: 0,
        generation: 2,
        table,
    });
    tester.connect(&mut next, peer(0));
    let path = b"file"[..].into();
    let resolve = Op::ResolvePath { handle: file, path };
    assert!(tester.call(&mut next, resolve).is_ok());
    assert!(tester.again(&mut next, &request, b"bytes").is_ok());
    // By now it has done so itself.
    let effects = world.disk.effects();
    assert!(tester.again(&mut next, &request, b"bytes").is_ok());
    assert_eq!(world.disk.effects(), effects);
    world.disk.contents("file").expect("it is there")
}

#[test]
fn bytes_that_were_written_and_lost_before_the_answer_are_written_again() {
    assert_eq!(done_and_lost(|file| write(file, 0, 5)), b"bytes");
    assert_eq!(done_and_lost(|handle| Op::Append { handle }), b"bytes");
}

#[test]
fn a_lock_is_granted_when_the_table_says_so_for_the_next_holder() {
    let (_world, mut host, mut tester, table) = written();
    let file = tester.create(&mut host, "file");
    host.hold_jobs = true;
    let first = tester.send(&mut host, lock(file, 1), &[]);
    assert!(host.replies.is_empty(), "the table is on its way");
    finish_jobs(&mut host);
    assert_eq!(tester.take(&mut host, &first).0, Ok(Outcome::Done));
    // The table says it by now: nothing is to wait for.
    let before = table.persisted.load(Ordering::Relaxed);
    let other = Tester::request(&mut tester, lock(file, 2), 0);
    assert!(host.receive(tester.conn, other.clone(), &[]));
    assert_eq!(errno(tester.take(&mut host, &other).0), Errno::EAGAIN.0);
    assert_eq!(table.persisted.load(Ordering::Relaxed), before);
}

#[test]
fn a_lock_that_cannot_be_told_is_asked_for_again() {
    let (_world, mut host, mut tester, table) = written();
    let file = tester.create(&mut host, "file");
    table.fails.store(true, Ordering::Relaxed);
    assert_eq!(tester.call(&mut host, lock(file, 1)), Err(Status::TryLater));
    table.fails.store(false, Ordering::Relaxed);
    assert_eq!(tester.call(&mut host, lock(file, 1)), Ok(Outcome::Done));
}

#[test]
fn an_fsync_that_hangs_with_the_back_end_is_sent_to_another_forwarder() {
    let (_world, mut host, mut tester) = leased();
    let file = tester.create(&mut host, "file");
    let fsync = fsync(file);
    host.hold_jobs = true;
    let hanging = tester.send(&mut host, fsync.clone(), &[]);
    host.advance(TTL);
    assert_eq!(tester.take(&mut host, &hanging).0, Err(Status::NotMySeat));
    host.tell(Input::BackEnd(Some("it does not answer".into())));
    let refused = tester.send(&mut host, fsync, &[]);
    assert_eq!(tester.take(&mut host, &refused).0, Err(Status::NotMySeat));
    finish_jobs(&mut host);
    assert!(host.replies.is_empty());
}

#[test]
fn a_first_taking_slower_than_its_lease_is_let_go() {
    let mut world = World::new();
    let mut host = Host::new(&world, world.config(0, 1));
    host.advance(TTL);
    let until = host.now;
    host.tell(Input::LeaseRenewed { until });
    host.give_seat(&mut world, 0);
    assert_eq!(host.released, [0], "it is served for ever instead");
}

#[test]
fn what_an_fsync_said_behind_an_early_answer_is_told_to_the_next() {
    let (_world, mut host, mut tester) = leased();
    let file = tester.create(&mut host, "file");
    let fsync = fsync(file);
    host.hold_jobs = true;
    let hanging = tester.send(&mut host, fsync.clone(), &[]);
    host.advance(TTL);
    assert_eq!(tester.take(&mut host, &hanging).0, Err(Status::NotMySeat));
    // The kernel says EIO now, once, and nobody waits for it.
    host.end_jobs(Errno::EIO);
    host.hold_jobs = false;
    let again = tester.send(&mut host, fsync, &[]);
    let (result, _) = tester.take(&mut host, &again);
    assert_eq!(errno(result), Errno::EIO.0, "the loss is told");
}

#[test]
fn a_second_lock_waits_for_the_mark_that_is_on_its_way() {
    let (_world, mut host, mut tester, _table) = written();
    let file = tester.create(&mut host, "file");
    let other = tester.create(&mut host, "other");
    host.hold_jobs = true;
    let _first = tester.send(&mut host, lock(file, 1), &[]);
    assert!(host.replies.is_empty(), "the table is on its way");
    let _second = tester.send(&mut host, lock(other, 2), &[]);
    assert!(
        host.replies.is_empty(),
        "granted before the table says that the client holds anything"
    );
}

#[test]
fn an_intent_refused_because_the_seat_is_lost_is_no_error_of_the_back_end() {
    let (_world, mut host, mut tester, table) = written();
    let root = tester.root();
    // The host has closed the table, and has not said yet that the seat is lost.
    table.fails.store(true, Ordering::Relaxed);
    table.closed.store(true, Ordering::Relaxed);
    let request = tester.send(&mut host, create(root, "one", true), &[]);
    assert_eq!(tester.take(&mut host, &request).0, Err(Status::NotMySeat));
}

#[test]
fn a_table_that_may_lack_holders_has_a_whole_grace_period() {
    let mut world = World::new();
    let mut host = Host::new(&world, world.config(0, 1));
    let until = host.now + 100 * SECOND;
    host.tell(Input::LeaseRenewed { until });
    let (generation, table) = world.take(0, &host.switch);
    host.tell(Input::SeatTaken {
        seat: 0,
        generation,
        table: Arc::new(Written {
            table,
            fails: AtomicBool::new(false),
            full: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            goes: AtomicBool::new(false),
            lacks: true,
            persisted: AtomicUsize::new(0),
        }),
    });
    let mut tester = Tester::new(&mut host, 7);
    let file = tester.create(&mut host, "file");
    assert!(host.reclaimed.is_empty(), "the table names nobody");
    assert!(tester.call(&mut host, Op::ReclaimDone).is_ok());
    let asked = tester.call(&mut host, lock(file, 1));
    assert_eq!(asked, Err(Status::TryLater), "somebody may have it");
    host.advance(11 * SECOND);
    assert_eq!(host.reclaimed, [0]);
    assert_eq!(tester.call(&mut host, lock(file, 1)), Ok(Outcome::Done));
}
