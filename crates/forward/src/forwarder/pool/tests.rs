//! Tests of the pool of slots.

use super::{ArrivalNumber, ConnId, Holder, Owner, Pool, Queue, Room, SlotId};
use alloc::vec::Vec;
use tidegate_sched::Time;

const A: ConnId = ConnId(1);
const B: ConnId = ConnId(2);

/// An application of a holder.
fn app(holder: Holder, app: u64) -> Owner {
    Owner { holder, app }
}

/// A payload of an application that has nothing yet.
fn admit(pool: &mut Pool, conn: ConnId, len: u32, holder: Holder) -> Room {
    let new = (1..).map(|number| app(holder, number));
    let mut new = new.filter(|owner| pool.of_applications.get(owner).is_none_or(|has| *has == 0));
    let owner = new.next().expect("numbers are many");
    ask(pool, conn, len, owner)
}

/// Asks for a connection. What waits has arrived in the order of the connections' numbers.
fn ask(pool: &mut Pool, conn: ConnId, len: u32, owner: Owner) -> Room {
    pool.admit(conn, ArrivalNumber(conn.0, Time(0)), len, owner)
}

/// A slot for a client that has the reserve.
fn take(pool: &mut Pool, conn: ConnId, len: u32) -> Option<SlotId> {
    match admit(pool, conn, len, Holder::RESERVE) {
        Room::Slot(slot) => Some(slot),
        Room::Full => None,
        Room::FullForOwner => panic!("it has no part of its own"),
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
            match admit(&mut pool, *conn, 4096, holder) {
                Room::Slot(slot) => slots.push((*conn, slot)),
                room => assert_eq!(room, Room::FullForOwner),
            }
        }
        assert_eq!(slots.len(), 4);
        assert_eq!(pool.queue_of(conns[4]), holder.own_queue());
        let other = ConnId(30);
        let room =
            |pool: &mut Pool, holder| matches!(admit(pool, other, 4096, holder), Room::Slot(_));
        assert!((0..4).all(|_| room(&mut pool, other_user)));
        assert!(!room(&mut pool, other_user));
        // Six of what everybody has, and the two that users leave.
        assert!((0..8).all(|_| room(&mut pool, Holder::RESERVE)));
        assert_eq!(admit(&mut pool, other, 4096, Holder::RESERVE), Room::Full);
        // Also a reply that it does not read is the holder's.
        let (conn, slot) = slots[0];
        assert!(pool.received(conn, slot) && pool.sending(slot));
        assert_eq!(admit(&mut pool, conns[4], 4096, holder), Room::FullForOwner);
        assert_eq!(pool.roomier(), None);
        assert!(pool.sent(slot));
        assert_eq!(pool.roomier(), Some(holder.own_queue()));
        assert_eq!(pool.roomier(), None);
        pool.wait_no_longer(other);
        assert!(matches!(
            admit(&mut pool, conns[4], 4096, holder),
            Room::Slot(_)
        ));
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
        .filter_map(|at: usize| match admit(&mut pool, A, 4096, users[at / 4]) {
            Room::Slot(slot) => Some(slot),
            _ => None,
        })
        .collect();
    assert_eq!(taken.len(), 14, "users leave two");
    // A user waits, and so does a node, which has what is left to nodes, behind him.
    assert_eq!(admit(&mut pool, B, 4096, users[3]), Room::Full);
    let node = pool.node("cn1");
    assert!(matches!(
        admit(&mut pool, ConnId(3), 4096, node),
        Room::Slot(_)
    ));
    assert_eq!(admit(&mut pool, ConnId(4), 4096, node), Room::Full);
    let first = take(&mut pool, ConnId(5), 4096).expect("it is left");
    assert_eq!(take(&mut pool, ConnId(6), 4096), None);
    let kinds = [B, ConnId(4), ConnId(6)].map(|conn| pool.queue_of(conn));
    assert_eq!(kinds, Queue::OF_KINDS);
    // What all have goes to who came first, whoever asks first.
    assert!(pool.received(A, taken[0]) && pool.done(taken[0]));
    assert_eq!(take(&mut pool, ConnId(6), 4096), None);
    assert_eq!(admit(&mut pool, ConnId(4), 4096, node), Room::Full);
    assert!(matches!(admit(&mut pool, B, 4096, users[3]), Room::Slot(_)));
    // What is left to some goes to them.
    assert!(pool.received(ConnId(5), first) && pool.done(first));
    assert_eq!(admit(&mut pool, ConnId(4), 4096, node), Room::Full);
    assert!(take(&mut pool, ConnId(6), 4096).is_some());
}

#[test]
fn an_application_leaves_room_to_those_that_come_later() {
    let mut pool = Pool::new(64 << 12, 4096);
    let [large, second, small] = [1, 2, 3].map(|number| app(Holder::RESERVE, number));
    let fill = |pool: &mut Pool, conn: ConnId, owner: Owner| {
        let mut slots = Vec::new();
        while let Room::Slot(slot) = ask(pool, conn, 4096, owner) {
            assert!(pool.received(conn, slot));
            slots.push(slot);
        }
        slots
    };
    // Eight times as much as what is free after it.
    let of_large = fill(&mut pool, A, large);
    assert_eq!(of_large.len(), 56);
    assert_eq!(pool.queue_of(A), large.own_queue());
    assert_eq!(pool.roomier(), None, "nothing was freed");
    // The next has less, and one that has nothing has room at once.
    assert_eq!(fill(&mut pool, B, second).len(), 7);
    assert!(matches!(
        ask(&mut pool, ConnId(3), 4096, small),
        Room::Slot(_)
    ));
    assert_eq!(ask(&mut pool, ConnId(4), 4096, small), Room::FullForOwner);
    // Who has nothing waits in order of arrival, before all that have something.
    let last = app(Holder::RESERVE, 4);
    assert_eq!(ask(&mut pool, ConnId(5), 4096, last), Room::Full);
    assert!(pool.done(of_large[0]));
    assert_eq!(pool.roomier(), None, "the last one waits for it");
    assert_eq!(ask(&mut pool, A, 4096, large), Room::FullForOwner);
    assert_eq!(ask(&mut pool, ConnId(4), 4096, small), Room::FullForOwner);
    assert!(matches!(
        ask(&mut pool, ConnId(5), 4096, last),
        Room::Slot(_)
    ));
    // What the large one frees goes to those that have less, each told of once.
    assert!(of_large[1..5].iter().all(|slot| pool.done(*slot)));
    let told: Vec<Queue> = core::iter::from_fn(|| pool.roomier()).collect();
    assert_eq!(told, [second, small].map(Owner::own_queue));
    assert!(matches!(
        ask(&mut pool, ConnId(4), 4096, small),
        Room::Slot(_)
    ));
    assert_eq!(ask(&mut pool, A, 4096, large), Room::FullForOwner);
    // Nor does room stay unused that somebody waited for who has gone.
    assert_eq!(
        ask(&mut pool, ConnId(6), 4096 << 3, app(Holder::RESERVE, 5)),
        Room::Full
    );
    assert_eq!(ask(&mut pool, B, 4096, second), Room::FullForOwner);
    while pool.roomier().is_some() {}
    pool.wait_no_longer(ConnId(6));
    assert_eq!(pool.roomier(), Some(second.own_queue()));
    pool.wait_no_longer(A);
    pool.wait_no_longer(B);
    assert!(pool.apart.is_empty() && pool.apart_of.is_empty());
}

#[test]
fn a_users_applications_share_his_part() {
    let mut pool = Pool::new(256 << 12, 4096);
    let user = Holder::user(7);
    let of = |pool: &mut Pool, conn: ConnId, number: u64| {
        let mut got = 0;
        while let Room::Slot(_) = ask(pool, conn, 4096, app(user, number)) {
            got += 1;
        }
        got
    };
    assert_eq!(of(&mut pool, A, 1), 56, "of his 64");
    assert_eq!(of(&mut pool, B, 2), 7);
    assert_eq!(of(&mut pool, ConnId(3), 3), 1);
    assert_eq!(
        ask(&mut pool, ConnId(4), 4096, app(user, 4)),
        Room::FullForOwner
    );
    assert_eq!(pool.queue_of(ConnId(4)), user.own_queue());
}

#[test]
fn small_requests_of_an_application_do_not_pass_its_large_one() {
    let mut pool = Pool::new(64 << 16, 1 << 16);
    let owner = app(Holder::RESERVE, 1);
    let mut slots = Vec::new();
    while let Room::Slot(slot) = ask(&mut pool, A, 4096, owner) {
        assert!(pool.received(A, slot));
        slots.push(slot);
    }
    pool.wait_no_longer(A);
    let large = ConnId(3);
    assert_eq!(ask(&mut pool, large, 1 << 16, owner), Room::FullForOwner);
    // One by one small requests end, and others come.
    let (mut passed, mut asked) = (0, 0);
    while let Some(slot) = slots.pop() {
        assert!(pool.done(slot));
        // The host is told once something may have room, not before: nobody but it has asked yet.
        let told = pool.roomier().is_some();
        assert!(!told || asked > 0, "for 64 KiB there is no room yet");
        if let Room::Slot(_) = ask(&mut pool, large, 1 << 16, owner) {
            return;
        }
        asked += 1;
        let later = ConnId(4);
        passed += usize::from(matches!(ask(&mut pool, later, 4096, owner), Room::Slot(_)));
        pool.wait_no_longer(later);
        assert_eq!(passed, 0, "a small one has what the large one waits for");
    }
    panic!("the large one never had room");
}

#[test]
fn requests_of_one_connection_wait_in_order_of_their_own_arrival() {
    let mut pool = Pool::new(8192, 4096);
    let request = |pool: &mut Pool, conn: ConnId, number: u64| {
        let owner = app(Holder::RESERVE, number);
        let room = pool.admit(conn, ArrivalNumber(number, Time(0)), 4096, owner);
        let Room::Slot(slot) = room else { return None };
        assert!(pool.received(conn, slot));
        Some(slot)
    };
    let [first, second] = [1, 2].map(|number| request(&mut pool, A, number).expect("room"));
    assert_eq!(request(&mut pool, A, 3), None);
    assert_eq!(request(&mut pool, B, 5), None);
    assert!(pool.done(first));
    assert_eq!(request(&mut pool, B, 5), None, "A's third came before it");
    assert!(request(&mut pool, A, 3).is_some());
    // A's next came before B's, though A waits with it only since now.
    assert_eq!(request(&mut pool, A, 4), None);
    assert!(pool.done(second));
    assert_eq!(request(&mut pool, B, 5), None, "A's fourth came before it");
    assert!(request(&mut pool, A, 4).is_some());
}

#[test]
fn of_an_application_too_requests_wait_in_order_of_their_own_arrival() {
    let mut pool = Pool::new(64 << 12, 4096);
    let owner = app(Holder::RESERVE, 1);
    let mut slots = Vec::new();
    while let Room::Slot(slot) = ask(&mut pool, A, 4096, owner) {
        assert!(pool.received(A, slot));
        slots.push(slot);
    }
    let ask = |pool: &mut Pool, conn, number| {
        pool.admit(conn, ArrivalNumber(number, Time(0)), 4096, owner)
    };
    assert_eq!(ask(&mut pool, B, 5), Room::FullForOwner);
    assert!(slots.drain(..2).all(|slot| pool.done(slot)));
    let Room::Slot(_) = ask(&mut pool, A, 1) else {
        panic!("two are free");
    };
    // A's next came before B's, though A waits with it only since now.
    assert!(matches!(ask(&mut pool, A, 4), Room::Slot(_)));
    assert_eq!(ask(&mut pool, B, 5), Room::FullForOwner);
}

#[test]
fn small_requests_of_a_user_do_not_pass_his_large_one() {
    let mut pool = Pool::new(64 << 16, 1 << 16);
    let user = Holder::user(7);
    let (mut slots, mut conn) = (Vec::new(), 0);
    // Applications without number, so that none has its own part.
    while let Room::Slot(slot) = ask(&mut pool, ConnId(conn), 4096, app(user, conn)) {
        assert!(pool.received(ConnId(conn), slot));
        slots.push(slot);
        conn += 1;
    }
    pool.wait_no_longer(ConnId(conn));
    let large = ConnId(conn + 1);
    let large_one = app(user, u64::MAX);
    assert_eq!(
        ask(&mut pool, large, 1 << 16, large_one),
        Room::FullForOwner
    );
    while let Some(slot) = slots.pop() {
        assert!(pool.done(slot));
        if let Room::Slot(_) = ask(&mut pool, large, 1 << 16, large_one) {
            return;
        }
        conn += 2;
        let passed = ask(&mut pool, ConnId(conn), 4096, app(user, conn));
        assert_eq!(
            passed,
            Room::FullForOwner,
            "it has what the large one waits for"
        );
        pool.wait_no_longer(ConnId(conn));
    }
    panic!("the large one never had room");
}
