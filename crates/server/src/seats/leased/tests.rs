//! Leases over a real hidden folder: takings, losses, tables that go from hand to hand.

use super::super::uncached::{Page, slow};
use super::super::{HELD_BYTE, lock};
use super::*;
use crate::storage::ofd;
use crate::storage::scratch::Scratch;
use crate::storage::{ExportOptions, PosixFiles};
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_forward::{ENTRIES_BYTES, SEGMENT_BYTES, SEGMENT_CLIENTS, SeatTable};
use tidegate_wire::Layout;

mod full;
mod pieces;

const LAYOUT: Layout = Layout {
    seats: 4,
    stripe: 1 << 20,
};
const MS: u64 = 1_000_000;
const TTL: u64 = 400 * MS;

/// What a test does to its forwarders: their time, in steps, and their locks.
struct Clock(Vec<Arc<AtomicU64>>, [Arc<Seats>; 2]);

impl Clock {
    fn pass(&self, ns: u64) {
        for clock in &self.0 {
            clock.fetch_add(ns, Ordering::AcqRel);
        }
    }

    /// Drops a lock as a back end does that has lost the holder's node: the holder is not told.
    fn lose_lock(&self, holder: usize, seat: u16) {
        let held = lock(&self.1[holder].held);
        ofd::unlock(held[&seat].as_fd(), HELD_BYTE).expect("unlock");
    }
}

fn two(scratch: &Scratch) -> (LeasedSeats, LeasedSeats, Clock) {
    let (a, locks_a, clock_a) = forwarder(scratch, 0);
    let (b, locks_b, clock_b) = forwarder(scratch, 1);
    let clock = Clock(vec![clock_a, clock_b], [locks_a, locks_b]);
    (a, b, clock)
}

/// A forwarder of its own process, as far as leases tell, its locks and its clock.
fn forwarder(scratch: &Scratch, own: u16) -> (LeasedSeats, Arc<Seats>, Arc<AtomicU64>) {
    let files = PosixFiles::open(scratch.path(), &ExportOptions::new(LAYOUT)).expect("export");
    let locks = Seats::open(&files, LAYOUT, own).expect("seats");
    let (fence, clock) = Fence::with_time_set();
    let options = LeaseOptions {
        ttl_ns: TTL,
        outlives_node: true,
        one_node: false,
        fence,
    };
    let mut holder = Holder::own(own).expect("random numbers");
    // As if it ran on a node of its own: nobody else can see whether it lives.
    holder.namespace = u64::from(own) + 1;
    holder.host = format!("io{own}");
    let locks = Arc::new(locks);
    let seats = LeasedSeats::by_locks(&locks, holder, options);
    (seats.expect("the folder is open"), locks, clock)
}

fn taken(seats: &mut LeasedSeats, seat: u16) -> TakenSeat {
    match pieces(seats, seat).expect("the back end works") {
        Tried::Taken(taken, _) => taken,
        Tried::GoesOn => unreachable!("it went on"),
        Tried::Busy => panic!("seat {seat} is busy"),
        Tried::Waits(name) => panic!("seat {seat} is waited for: {name}"),
    }
}

/// Tries until nothing is left to copy.
fn pieces(seats: &mut LeasedSeats, seat: u16) -> Result<Tried, SeatsError> {
    loop {
        match seats.try_take(seat) {
            Ok(Tried::GoesOn) => {}
            other => return other,
        }
    }
}

fn entry(client: u64) -> [u8; 64] {
    let mut entry = [0; 64];
    entry[..8].copy_from_slice(&client.to_le_bytes());
    let crc = tidegate_wire::frame::checksum(&entry[..8]);
    entry[8..12].copy_from_slice(&crc.to_le_bytes());
    // One of its pages is used.
    entry[18..20].copy_from_slice(&0xfffe_u16.to_le_bytes());
    entry
}

/// Where the reply slots of the client in a place are.
fn reply_slots_at(client: usize) -> usize {
    let segment = client / SEGMENT_CLIENTS * SEGMENT_BYTES;
    segment + ENTRIES_BYTES + client % SEGMENT_CLIENTS * (64 << 10)
}

/// Gives a seat so many clients, each with something in its reply slots.
fn fill(table: &dyn SeatTable, clients: usize) {
    for client in 0..clients {
        let segment = client / SEGMENT_CLIENTS;
        while table.len() <= segment * SEGMENT_BYTES {
            assert!(table.grow());
        }
        let at = segment * SEGMENT_BYTES + client % SEGMENT_CLIENTS * 64;
        table.store(at, &entry(client as u64 + 1));
        table.store(reply_slots_at(client), &(client as u64).to_le_bytes());
    }
    table.persist().expect("room");
}

fn waits(seats: &mut LeasedSeats, seat: u16) -> bool {
    matches!(seats.try_take(seat), Ok(Tried::Waits(_)))
}

fn busy(seats: &mut LeasedSeats, seat: u16) -> bool {
    matches!(seats.try_take(seat), Ok(Tried::Busy))
}

/// Takes a seat when its lease must be over, and not a moment before.
fn wait_and_take(seats: &mut LeasedSeats, seat: u16, clock: &Clock) -> TakenSeat {
    assert!(waits(seats, seat), "looked at for the first time");
    clock.pass(TTL + TTL / 4 - 1);
    assert!(waits(seats, seat), "a moment too early");
    clock.pass(1);
    taken(seats, seat)
}

#[test]
fn each_taking_has_a_higher_number_and_a_file_of_its_own() {
    let scratch = Scratch::new("leased");
    let (mut a, mut b, _clock) = two(&scratch);
    let first = taken(&mut a, 0).generation;
    assert!(busy(&mut b, 0));
    a.release(0).expect("release");
    let second = taken(&mut b, 0).generation;
    assert_eq!(second, first + 1);
    b.release(0).expect("release");
    assert_eq!(taken(&mut a, 0).generation, first + 2);
    let files = a.generations.list().expect("list");
    assert_eq!(files[&0].leases, [first + 2], "older files are gone");
}

#[test]
fn a_seat_whose_lock_is_free_is_taken_when_its_lease_must_be_over() {
    let scratch = Scratch::new("leased-wait");
    let (mut a, mut b, clock) = two(&scratch);
    let first = taken(&mut a, 0);
    first.table.store(0, &[0; 64]);
    clock.lose_lock(0, 0);
    let second = wait_and_take(&mut b, 0, &clock);
    assert_eq!(second.generation, first.generation + 1);
    // The first one finds out as soon as it reaches the back end, and says nothing any more.
    assert!(a.options.fence.is_closed());
    assert!(first.table.persist().is_err());
    assert!(a.renew().until.is_none());
    a.release(0).expect("release");
    assert!(busy(&mut a, 0), "the second one has it");
}

#[test]
fn a_renewed_lease_is_waited_for_anew() {
    let scratch = Scratch::new("leased-renew");
    let (mut a, mut b, clock) = two(&scratch);
    taken(&mut a, 0);
    clock.lose_lock(0, 0);
    assert!(waits(&mut b, 0));
    // The lock is lost: this renewal is the last.
    let renewal = a.renew();
    assert_eq!(renewal.lost.len(), 1);
    assert!(renewal.lost[0].1.contains("dropped its lock"));
    assert!(renewal.until.is_none() && a.held().is_empty());
}

#[test]
fn a_seat_that_is_lost_is_closed_to_its_jobs_while_the_others_are_renewed() {
    let scratch = Scratch::new("leased-one-lost");
    let (mut a, _b, clock) = two(&scratch);
    let lost = taken(&mut a, 0);
    taken(&mut a, 2);
    clock.lose_lock(0, 0);
    clock.pass(TTL / 2);
    let renewal = a.renew();
    assert_eq!(renewal.lost.len(), 1);
    assert!(renewal.until.is_some() && a.held() == [2]);
    let fence = &a.options.fence;
    assert!(fence.is_closed_to(0) && !fence.is_closed_to(2));
    assert!(!lost.table.is_held());
    a.release(0).expect("release");
    let again = taken(&mut a, 0);
    assert!(again.table.is_held() && !a.options.fence.is_closed_to(0));
    assert!(!lost.table.is_held());
}

/// Makes what a forwarder writes for a seat fail from now on.
fn fail_writes(seats: &mut LeasedSeats, seat: u16) {
    seats.held.get_mut(&seat).expect("held").file = Arc::new(UncachedFile::full());
}

#[test]
fn a_seat_whose_lease_cannot_be_written_is_lost_alone_before_its_time_is_over() {
    let scratch = Scratch::new("leased-one-unwritten");
    let (mut a, _b, clock) = two(&scratch);
    let unwritten = taken(&mut a, 0);
    taken(&mut a, 2);
    let pass = || clock.pass(TTL / u64::from(RENEWALS));
    pass();
    let until = a.renew().until.expect("renewed");
    fail_writes(&mut a, 0);
    pass();
    let renewal = a.renew();
    assert_eq!(renewal.until, Some(until), "nothing goes on for longer");
    assert!(renewal.trouble.is_some() && renewal.lost.is_empty());
    assert!(unwritten.table.is_held());
    // The other one goes on, though this time it fails too.
    fail_writes(&mut a, 2);
    pass();
    let renewal = a.renew();
    let [(0, why)] = &*renewal.lost else {
        panic!("the seat is not lost: {:?}", renewal.lost);
    };
    assert!(why.contains("No space left"), "{why}");
    assert!(!unwritten.table.is_held() && a.held() == [2]);
    assert!(renewal.until.expect("the other") > until && !a.options.fence.is_closed());
}

#[test]
fn seats_of_which_none_can_be_renewed_run_out_together() {
    let scratch = Scratch::new("leased-none-written");
    let (mut a, _b, clock) = two(&scratch);
    taken(&mut a, 0);
    fail_writes(&mut a, 0);
    clock.pass(TTL / u64::from(RENEWALS));
    let renewal = a.renew();
    assert!(renewal.until.is_none() && renewal.trouble.is_some() && renewal.lost.is_empty());
}

#[test]
fn a_holder_that_renews_keeps_its_seat() {
    let scratch = Scratch::new("leased-keeps");
    let (mut a, mut b, clock) = two(&scratch);
    taken(&mut a, 0);
    for _ in 0..10 {
        clock.pass(TTL / 2);
        let renewal = a.renew();
        assert!(renewal.until.is_some() && renewal.lost.is_empty());
        assert!(busy(&mut b, 0));
    }
    assert!(!a.options.fence.is_closed());
}

#[test]
fn a_newer_generation_ends_the_older_one_at_its_next_renewal() {
    let scratch = Scratch::new("leased-newer");
    let (mut a, b, _clock) = two(&scratch);
    let taken = taken(&mut a, 0);
    let name = file_name(0, taken.generation + 1);
    let made = UncachedFile::make(b.generations.folder(), &name, Way::Past).expect("make");
    let record = Record {
        stage: Stage::Held,
        generation: taken.generation + 1,
        renewals: 0,
        ttl_ns: TTL,
        holder: b.holder.clone(),
        table_of: 0,
        lacks_holders: false,
    };
    let page = [record.encode()];
    made.expect("new").write(0, &page).expect("write");
    let renewal = a.renew();
    let [(0, why)] = &*renewal.lost else {
        panic!("the seat is not lost: {:?}", renewal.lost);
    };
    assert!(why.contains("forwarder 1 on io1"), "{why}");
    assert!(taken.table.persist().is_err());
}

#[test]
fn the_table_goes_to_the_next_holder_past_a_taking_that_was_not_finished() {
    let scratch = Scratch::new("leased-table");
    let (mut a, mut b, clock) = two(&scratch);
    let first = taken(&mut a, 0);
    first.table.store(0, &entry(1));
    let reply_slot = tidegate_forward::ENTRIES_BYTES;
    first.table.store(reply_slot, b"an intent");
    first.table.persist().expect("room");
    clock.lose_lock(0, 0);
    // A third one began to take it, and died.
    let name = file_name(0, first.generation + 1);
    let made = UncachedFile::make(b.generations.folder(), &name, Way::Past).expect("make");
    let record = Record {
        stage: Stage::Taking,
        ..a.held[&0].record.clone()
    };
    let record = Record {
        generation: first.generation + 1,
        ..record
    };
    let page = [record.encode()];
    made.expect("new").write(0, &page).expect("write");
    let second = wait_and_take(&mut b, 0, &clock);
    assert_eq!(second.generation, first.generation + 2);
    let mut bytes = [0; 9];
    second.table.load(reply_slot, &mut bytes);
    assert_eq!(&bytes, b"an intent");
}

#[test]
fn a_process_of_this_node_that_is_dead_is_not_waited_for() {
    let scratch = Scratch::new("leased-dead");
    let (mut a, mut b, clock) = two(&scratch);
    let own = Holder::own(0).expect("random numbers");
    a.holder = Holder {
        began: own.began + 1,
        ..own
    };
    taken(&mut a, 0);
    clock.lose_lock(0, 0);
    taken(&mut b, 0);
}

#[test]
fn nothing_is_taken_before_what_was_lost_is_let_go() {
    let scratch = Scratch::new("leased-lapsed");
    let (mut a, _b, clock) = two(&scratch);
    taken(&mut a, 0);
    clock.pass(TTL);
    assert!(a.options.fence.is_closed());
    assert!(busy(&mut a, 1));
    a.release(0).expect("release");
    taken(&mut a, 1);
    assert!(!a.options.fence.is_closed());
    taken(&mut a, 0);
}

#[test]
fn who_has_the_same_index_is_told_while_he_renews_and_not_when_he_is_dead() {
    let scratch = Scratch::new("leased-double");
    let (mut a, locks_a, clock_a) = forwarder(&scratch, 0);
    let (mut b, locks_b, clock_b) = forwarder(&scratch, 0);
    let clock = Clock(vec![clock_a, clock_b], [locks_a, locks_b]);
    taken(&mut a, 0);
    assert!(a.renew().until.is_some());
    // Nobody can see whether it lives, and the back end keeps its lock.
    for _ in 0..10 {
        assert!(busy(&mut b, 0));
        assert_eq!(b.double(0), None);
        clock.pass(TTL / 20);
    }
    for _ in 0..3 {
        assert!(a.renew().until.is_some());
        assert_eq!(b.double(0).as_deref(), Some("forwarder 0 on io0"));
        clock.pass(TTL / 5);
        assert!(b.double(0).is_some());
    }
    clock.pass(TTL * 2);
    assert!(busy(&mut b, 0));
    assert_eq!(b.double(0), None);
}
