//! Finding who serves a seat, reply slots and replays.

use super::*;

fn other(forwarder: usize) -> usize {
    1 - forwarder
}

#[test]
fn a_replay_keeps_id_and_reply_slot() {
    let mut rig = Rig::open(1);
    let id = rig.call(create(b"a"));
    let first = rig.next();
    assert!(!first.request.replay);
    rig.lose(0);
    rig.wake();
    rig.greet(0, GRANT, &[(0, 1)]);
    let again = rig.next();
    assert!(again.request.replay);
    assert_eq!(again.request.id, first.request.id);
    assert_eq!(again.request.reply_slot, first.request.reply_slot);
    assert_eq!(again.request.reply_slot.map(|its| its.sequence), Some(1));
    rig.ok(&again, Outcome::Attr(attr(file(9))));
    rig.succeeded(id);
    rig.call(create(b"b"));
    let next = rig.next();
    assert_eq!(
        next.request.reply_slot.map(|its| (its.index, its.sequence)),
        Some((0, 2))
    );
}

#[test]
fn not_my_seat_moves_on_and_the_seat_is_remembered() {
    let mut rig = Rig::open(2);
    let owner = rig.seat_of(file(ROOT));
    let id = rig.call(create(b"a"));
    let later = rig.call(lookup(b"b"));
    let first = rig.next();
    assert_eq!(first.forwarder, owner);
    rig.fail(&first, Status::NotMySeat);
    let again = rig.take(|sent| sent.request.id == first.request.id);
    assert_eq!(again.forwarder, other(owner));
    assert_eq!(again.request.reply_slot, first.request.reply_slot);
    // What the owner was asked meanwhile comes after.
    let lookup_sent = rig.next();
    rig.fail(&lookup_sent, Status::NotMySeat);
    rig.ok(&again, Outcome::Attr(attr(file(9))));
    rig.succeeded(id);
    let lookup_sent = rig.next();
    assert_eq!(lookup_sent.forwarder, other(owner));
    rig.ok(&lookup_sent, Outcome::Attr(attr(file(8))));
    rig.succeeded(later);
    rig.call(lookup(b"c"));
    assert_eq!(rig.next().forwarder, other(owner));
}

#[test]
fn a_full_round_pauses_and_begins_with_the_owner() {
    let mut rig = Rig::open(2);
    let owner = rig.seat_of(file(ROOT));
    rig.call(lookup(b"a"));
    let mut pause = 20 * MS;
    for _ in 0..7 {
        let first = rig.next();
        assert_eq!(first.forwarder, owner);
        rig.fail(&first, Status::NotMySeat);
        let second = rig.next();
        assert_eq!(second.forwarder, other(owner));
        rig.fail(&second, Status::NotMySeat);
        assert!(rig.sent.is_empty());
        assert_eq!(rig.core.seats[owner].paused_until, Some(rig.now + pause));
        rig.at(rig.now + pause);
        pause = (2 * pause).min(500 * MS);
        rig.sent.retain(|sent| sent.request.op != Op::Ping);
    }
}

#[test]
fn a_refused_connection_leads_to_the_next_forwarder() {
    let mut rig = Rig::new(3);
    rig.greet(0, GRANT, &[]);
    let handle = rig.file_of_seat(1);
    let id = rig.call(getattr(handle));
    rig.lose(1);
    assert_eq!(rig.connects, [2], "the owner is followed by those after it");
    rig.lose(2);
    let sent = rig.next();
    assert_eq!(sent.forwarder, 0);
    rig.ok(&sent, Outcome::Attr(attr(handle)));
    rig.succeeded(id);
}

#[test]
fn silence_leads_nowhere() {
    let mut rig = Rig::open(2);
    rig.call_with(lookup(b"a"), Bytes::new(), Some(9000 * MS));
    let sent = rig.next();
    rig.at(8999 * MS);
    assert!(
        rig.sent
            .iter()
            .all(|other| other.request.id != sent.request.id)
    );
    assert!(rig.connects.is_empty());
}

#[test]
fn calls_wait_for_a_free_reply_slot() {
    let mut rig = Rig::new(1);
    rig.greet(
        0,
        Grant {
            reply_slots: 2,
            ..GRANT
        },
        &[],
    );
    let names: [&[u8]; 3] = [b"a", b"b", b"c"];
    let ids = names.map(|name| rig.call(create(name)));
    assert_eq!(rig.sent.len(), 2);
    // What needs no reply slot does not wait.
    rig.call(lookup(b"d"));
    assert_eq!(rig.sent.len(), 3);
    let second = rig.take(|sent| sent.request.reply_slot.is_some_and(|its| its.index == 1));
    rig.fail(&second, Status::Errno(17));
    assert_eq!(rig.errno(ids[1]), 17);
    let third = rig.take(|sent| sent.request.op == create(b"c"));
    assert_eq!(
        third
            .request
            .reply_slot
            .map(|its| (its.index, its.sequence)),
        Some((1, 2))
    );
}

#[test]
fn try_later_is_repeated_after_a_while() {
    let mut rig = Rig::open(1);
    let id = rig.call(lookup(b"a"));
    let first = rig.next();
    rig.fail(&first, Status::TryLater);
    assert!(rig.sent.is_empty());
    assert_eq!(rig.core.wake_at(), Some(50 * MS));
    rig.wake();
    let again = rig.next();
    assert_eq!(again.request.id, first.request.id);
    assert!(again.request.replay);
    rig.ok(&again, Outcome::Attr(attr(file(9))));
    rig.succeeded(id);
}
