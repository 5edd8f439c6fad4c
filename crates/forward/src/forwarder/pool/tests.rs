//! Tests of the pool of slots.

use super::{ConnId, Pool, Room, SlotId};
use alloc::vec::Vec;

const A: ConnId = ConnId(1);
const B: ConnId = ConnId(2);

/// A slot for a client that is trusted.
fn take(pool: &mut Pool, conn: ConnId, len: u32) -> Option<SlotId> {
    match pool.admit(conn, len, None) {
        Room::Slot(slot) => Some(slot),
        Room::Full => None,
        Room::FullForUser => panic!("it is of no user"),
    }
}

#[test]
fn a_single_payload_of_any_size_fits_an_empty_pool() {
    let mut pool = Pool::new(1, 1 << 20);
    let slot = take(&mut pool, A, 1 << 20).expect("an empty pool has room");
    assert_eq!(take(&mut pool, B, 1), None);
    assert!(pool.received(A, slot) && pool.done(slot));
    assert!(take(&mut pool, B, 1).is_some());
}

#[test]
fn a_small_payload_passes_a_waiting_large_one_only_if_both_fit() {
    let mut pool = Pool::new(112 << 10, 64 << 10);
    let first = take(&mut pool, A, 64 << 10).expect("room");
    assert!(pool.received(A, first));
    assert_eq!(take(&mut pool, A, 64 << 10), None);
    assert_eq!(
        take(&mut pool, B, 32 << 10),
        None,
        "48 KiB are free, but A waits for 64"
    );
    assert!(pool.done(first));
    assert!(
        take(&mut pool, B, 32 << 10).is_some(),
        "there is room for both"
    );
    assert!(take(&mut pool, A, 64 << 10).is_some());
    assert!(take(&mut pool, B, 8 << 10).is_some());
}

#[test]
fn shared_memory_takes_nothing_of_the_pool() {
    let mut pool = Pool::new(4096, 4096);
    let full = take(&mut pool, A, 4096).expect("room");
    let shared = pool.admit_shared(A);
    assert_eq!(pool.usage().0, 4096);
    assert!(pool.received(A, shared) && pool.done(shared));
    assert_eq!(pool.closed(A), Some(full));
    assert_eq!(pool.usage().0, 0);
}

#[test]
fn a_closed_connection_gives_back_what_it_was_reading_into() {
    let mut pool = Pool::new(10_000, 4096);
    let slot = take(&mut pool, A, 4096).expect("room");
    assert_eq!(pool.closed(A), Some(slot));
    assert_eq!(pool.closed(A), None);
    assert!(!pool.sent(slot), "freed already");
    assert_eq!(pool.usage().0, 0);
}

#[test]
fn a_slot_counts_the_memory_that_it_takes() {
    let mut pool = Pool::new(1 << 20, 4096);
    assert!(take(&mut pool, A, (256 << 10) + 1).is_some());
    assert_eq!(pool.usage().0, 512 << 10);
    assert!(take(&mut pool, A, 1).is_some());
    assert_eq!(pool.usage().0, (512 << 10) + 4096);
}

#[test]
fn order_of_arrival_holds_whoever_asks_first() {
    let mut pool = Pool::new(16_384, 4096);
    let conns: Vec<ConnId> = (1..=8).map(ConnId).collect();
    let slots: Vec<SlotId> = (0..4).filter_map(|_| take(&mut pool, A, 4096)).collect();
    assert_eq!(slots.len(), 4);
    assert!(slots.iter().all(|slot| pool.received(A, *slot)));
    for conn in &conns {
        assert_eq!(take(&mut pool, *conn, 4096), None);
    }
    assert!(pool.done(slots[0]) && pool.done(slots[1]));
    // Two places are free: the first two have them, whoever asks before.
    assert_eq!(take(&mut pool, conns[2], 4096), None);
    assert_eq!(take(&mut pool, ConnId(9), 4096), None);
    assert_eq!(pool.closed(conns[0]), None);
    assert!(take(&mut pool, conns[2], 4096).is_some());
    assert!(take(&mut pool, conns[1], 4096).is_some());
    assert_eq!(take(&mut pool, conns[3], 4096), None);
    // It may have come to wait for more.
    assert!(pool.done(slots[2]));
    assert_eq!(take(&mut pool, conns[3], 8192), None);
    assert_eq!(take(&mut pool, conns[4], 4096), None);
    assert!(pool.done(slots[3]));
    assert!(take(&mut pool, conns[3], 8192).is_some());
    assert_eq!(pool.usage(), (16_384, 16_384, 16_384));
}

#[test]
fn a_slot_is_used_by_its_own_connection_only() {
    let mut pool = Pool::new(10_000, 4096);
    let slot = take(&mut pool, A, 10).expect("room");
    assert!(!pool.received(B, slot));
    assert!(pool.received(A, slot));
    assert!(!pool.received(A, slot));
}

#[test]
fn one_user_has_a_part_and_keeps_nobody_waiting() {
    let mut pool = Pool::new(64 << 10, 4096);
    let conns: Vec<ConnId> = (1..=20).map(ConnId).collect();
    let mut slots = Vec::new();
    for conn in &conns {
        match pool.admit(*conn, 4096, Some(7)) {
            Room::Slot(slot) => slots.push((*conn, slot)),
            room => assert_eq!(room, Room::FullForUser),
        }
    }
    assert_eq!(slots.len(), 4);
    assert_eq!(pool.waits_apart(conns[4]), Some(7));
    let other = ConnId(30);
    let room = |pool: &mut Pool, uid| matches!(pool.admit(other, 4096, uid), Room::Slot(_));
    assert!((0..4).all(|_| room(&mut pool, Some(8))));
    assert!(!room(&mut pool, Some(8)));
    assert!((0..8).all(|_| room(&mut pool, None)));
    assert_eq!(pool.admit(other, 4096, None), Room::Full);
    // Also a reply that he does not read is his.
    let (conn, slot) = slots[0];
    assert!(pool.received(conn, slot) && pool.sending(slot));
    assert_eq!(pool.admit(conns[4], 4096, Some(7)), Room::FullForUser);
    assert_eq!(pool.roomier(), None);
    assert!(pool.sent(slot));
    assert_eq!(pool.roomier(), Some(7));
    assert_eq!(pool.roomier(), None);
    pool.wait_no_longer(other);
    assert!(matches!(pool.admit(conns[4], 4096, Some(7)), Room::Slot(_)));
    assert_eq!(pool.waits_apart(conns[4]), None);
}
