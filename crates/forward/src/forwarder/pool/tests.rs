//! Tests of the pool of slots.

use super::{ConnId, Holder, Pool, Queue, Room, SlotId};
use alloc::vec::Vec;

const A: ConnId = ConnId(1);
const B: ConnId = ConnId(2);

/// A slot for a client that has the reserve.
fn take(pool: &mut Pool, conn: ConnId, len: u32) -> Option<SlotId> {
    match pool.admit(conn, len, Holder::RESERVE) {
        Room::Slot(slot) => Some(slot),
        Room::Full => None,
        Room::FullForHolder => panic!("it has no part of its own"),
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
fn one_holder_has_a_part_and_keeps_nobody_waiting() {
    let mut pool = Pool::new(64 << 10, 4096);
    let [user, other_user] = [7, 8].map(Holder::user);
    let node = pool.node("cn1");
    assert_eq!(node, pool.node("cn1"));
    assert_ne!(node, pool.node("cn2"));
    for holder in [user, node] {
        let conns: Vec<ConnId> = (1..=20).map(ConnId).collect();
        let mut slots = Vec::new();
        for conn in &conns {
            match pool.admit(*conn, 4096, holder) {
                Room::Slot(slot) => slots.push((*conn, slot)),
                room => assert_eq!(room, Room::FullForHolder),
            }
        }
        assert_eq!(slots.len(), 4);
        assert_eq!(pool.queue_of(conns[4]), holder.own_queue());
        let other = ConnId(30);
        let room =
            |pool: &mut Pool, holder| matches!(pool.admit(other, 4096, holder), Room::Slot(_));
        assert!((0..4).all(|_| room(&mut pool, other_user)));
        assert!(!room(&mut pool, other_user));
        // Six of what everybody has, and the two that users leave.
        assert!((0..8).all(|_| room(&mut pool, Holder::RESERVE)));
        assert_eq!(pool.admit(other, 4096, Holder::RESERVE), Room::Full);
        // Also a reply that it does not read is the holder's.
        let (conn, slot) = slots[0];
        assert!(pool.received(conn, slot) && pool.sending(slot));
        assert_eq!(pool.admit(conns[4], 4096, holder), Room::FullForHolder);
        assert_eq!(pool.roomier(), None);
        assert!(pool.sent(slot));
        assert_eq!(pool.roomier(), Some(holder.own_queue()));
        assert_eq!(pool.roomier(), None);
        pool.wait_no_longer(other);
        assert!(matches!(pool.admit(conns[4], 4096, holder), Room::Slot(_)));
        assert_ne!(pool.queue_of(conns[4]), holder.own_queue());
        for conn in conns.iter().chain([&other]) {
            while pool.closed(*conn).is_some() {}
        }
        while pool.roomier().is_some() {}
    }
}

#[test]
fn who_has_the_reserve_waits_in_order_for_what_all_have_and_for_nobody_beyond() {
    let mut pool = Pool::new(64 << 10, 4096);
    let users: Vec<Holder> = (0..4).map(Holder::user).collect();
    let taken: Vec<SlotId> = (0..14)
        .filter_map(|at: usize| match pool.admit(A, 4096, users[at / 4]) {
            Room::Slot(slot) => Some(slot),
            _ => None,
        })
        .collect();
    assert_eq!(taken.len(), 14, "users leave two");
    // A user waits, and so does a node, which has what is left to nodes, behind him.
    assert_eq!(pool.admit(B, 4096, users[3]), Room::Full);
    let node = pool.node("cn1");
    assert!(matches!(pool.admit(ConnId(3), 4096, node), Room::Slot(_)));
    assert_eq!(pool.admit(ConnId(4), 4096, node), Room::Full);
    let first = take(&mut pool, ConnId(5), 4096).expect("it is left");
    assert_eq!(take(&mut pool, ConnId(6), 4096), None);
    let kinds = [B, ConnId(4), ConnId(6)].map(|conn| pool.queue_of(conn));
    assert_eq!(kinds, Queue::OF_KINDS);
    // What all have goes to who came first, whoever asks first.
    assert!(pool.received(A, taken[0]) && pool.done(taken[0]));
    assert_eq!(take(&mut pool, ConnId(6), 4096), None);
    assert_eq!(pool.admit(ConnId(4), 4096, node), Room::Full);
    assert!(matches!(pool.admit(B, 4096, users[3]), Room::Slot(_)));
    // What is left to some goes to them.
    assert!(pool.received(ConnId(5), first) && pool.done(first));
    assert_eq!(pool.admit(ConnId(4), 4096, node), Room::Full);
    assert!(take(&mut pool, ConnId(6), 4096).is_some());
}
