//! Back ends that are full: seats are kept there and change hands all the same.

use super::*;
use crate::seats::uncached::PAGE;
use crate::seats::uncached::full::IS_FULL;
use crate::storage::scratch::Tmpfs;

/// Renews as the keeper does.
fn renew(seats: &mut LeasedSeats) -> Renewal {
    let mut renewal = seats.renew();
    if renewal.until.is_some() {
        let until = Instant::now() + Duration::from_secs(60);
        renewal.trouble = renewal.trouble.or(seats.write_tables(until).err());
    }
    renewal
}

/// A reply slot that a holder has persisted for a client, with the client's entry.
fn persist_reply_slot(table: &dyn tidegate_forward::SeatTable, reply_slot: &[u8]) {
    let mut entry = [0; 64];
    entry[0] = 1;
    let crc = tidegate_wire::frame::checksum(&entry[..8]);
    entry[8..12].copy_from_slice(&crc.to_le_bytes());
    table.store(0, &entry);
    table.store(tidegate_forward::ENTRIES_BYTES, reply_slot);
    table.persist().expect("room");
}

fn reply_slot_of(taken: &TakenSeat) -> [u8; 9] {
    let mut bytes = [0; 9];
    taken
        .table
        .load(tidegate_forward::ENTRIES_BYTES, &mut bytes);
    bytes
}

/// Renews until what had no room is written: that is not tried each time.
fn renew_until_there_is_room(seats: &mut LeasedSeats, clock: &Clock) {
    for _ in 0..10 {
        let renewal = renew(seats);
        assert!(renewal.until.is_some(), "the seat is kept meanwhile");
        if renewal.trouble.is_none() {
            return;
        }
        clock.pass(TTL / 2);
    }
    panic!("nothing is written");
}

/// Fills a file system to its last byte.
fn fill_up(scratch: &Scratch) {
    use std::io::Write;
    let mut ballast =
        std::fs::File::create(scratch.path().join("ballast")).expect("a name has room");
    while ballast.write_all(&[1; 4096]).is_ok() {}
}

#[test]
fn a_seat_changes_hands_where_there_is_no_room_for_another_file() {
    let scratch = Scratch::new("leased-full");
    let Some(_mount) = Tmpfs::mount(scratch.path(), "4m") else {
        return;
    };
    let (mut a, mut b, clock) = two(&scratch);
    let first = taken(&mut a, 0);
    persist_reply_slot(&*first.table, b"an intent");
    assert!(renew(&mut a).until.is_some());
    fill_up(&scratch);
    assert!(renew(&mut a).until.is_some(), "records need no more room");
    clock.lose_lock(0, 0);
    let second = wait_and_take(&mut b, 0, &clock);
    assert_eq!(second.generation, first.generation + 1);
    assert_eq!(&reply_slot_of(&second), b"an intent");
    second
        .table
        .store(tidegate_forward::ENTRIES_BYTES, b"its own 2");
    second
        .table
        .persist()
        .expect("the room of that reply slot is had");
    assert!(renew(&mut b).until.is_some());
    // Nothing could be made ahead for the third one: it needs room.
    std::fs::remove_file(scratch.path().join("ballast")).expect("it was made");
    a.release(0).expect("it was lost");
    clock.lose_lock(1, 0);
    let third = wait_and_take(&mut a, 0, &clock);
    assert_eq!(&reply_slot_of(&third), b"its own 2");
}

#[test]
fn seats_are_kept_and_change_hands_where_no_bytes_are_taken() {
    let scratch = Scratch::new("leased-no-bytes");
    let (mut a, mut b, clock) = two(&scratch);
    let first = taken(&mut a, 0);
    persist_reply_slot(&*first.table, b"an intent");
    IS_FULL.set(true);
    for _ in 0..5 {
        clock.pass(TTL / 2);
        let renewal = renew(&mut a);
        assert!(renewal.until.is_some() && renewal.lost.is_empty());
        assert!(busy(&mut b, 0));
    }
    clock.lose_lock(0, 0);
    let second = wait_and_take(&mut b, 0, &clock);
    assert_eq!(&reply_slot_of(&second), b"an intent");
    assert!(second.table.persist().is_err(), "the copy is not made yet");
    a.release(0).expect("it was lost");
    clock.lose_lock(1, 0);
    let third = wait_and_take(&mut a, 0, &clock);
    assert_eq!(third.generation, first.generation + 2);
    assert_eq!(&reply_slot_of(&third), b"an intent");
    b.release(0).expect("it was lost");
    IS_FULL.set(false);
    renew_until_there_is_room(&mut a, &clock);
    third.table.persist().expect("room");
    assert!(renew(&mut a).until.is_some());
    let files = a.generations.list().expect("list");
    assert_eq!(files[&0].leases, [third.generation], "the others are gone");
    let mut spares = files[&0].spares.clone();
    spares.sort_unstable();
    assert_eq!(spares, [1, 2, 3].map(|ahead| third.generation + ahead));
    clock.lose_lock(0, 0);
    let fourth = wait_and_take(&mut b, 0, &clock);
    assert_eq!(&reply_slot_of(&fourth), b"an intent");
}

#[test]
fn a_taking_that_came_to_nothing_leaves_files_for_others_that_follow() {
    let scratch = Scratch::new("leased-again");
    let Some(_mount) = Tmpfs::mount(scratch.path(), "4m") else {
        return;
    };
    let (mut a, mut b, clock) = two(&scratch);
    let first = taken(&mut a, 0);
    persist_reply_slot(&*first.table, b"an intent");
    assert!(renew(&mut a).until.is_some());
    fill_up(&scratch);
    clock.lose_lock(0, 0);
    assert!(waits(&mut b, 0));
    clock.pass(2 * TTL);
    slow::each_call_takes(&clock.0, TTL / 4);
    assert!(pieces(&mut b, 0).is_err(), "it is too slow");
    slow::each_call_takes(&[], 0);
    // What it had is others' now.
    fill_up(&scratch);
    let second = wait_and_take(&mut b, 0, &clock);
    assert_eq!(&reply_slot_of(&second), b"an intent");
    second
        .table
        .store(tidegate_forward::ENTRIES_BYTES, b"its own 2");
    second
        .table
        .persist()
        .expect("the room of that reply slot is had");
}

#[test]
fn a_seat_that_is_let_go_without_room_for_its_table_is_free_at_once() {
    let scratch = Scratch::new("leased-let-go");
    let (mut a, mut b, _clock) = two(&scratch);
    let first = taken(&mut a, 0);
    persist_reply_slot(&*first.table, b"an intent");
    IS_FULL.set(true);
    let later = tidegate_forward::ENTRIES_BYTES + PAGE;
    first.table.store_later(later, b"a result");
    first.table.store(64, &[1; 64]);
    assert!(first.table.persist_holders().is_err(), "no record says so");
    a.release(0).expect("the record has room");
    let second = taken(&mut b, 0);
    assert_eq!(&reply_slot_of(&second), b"an intent");
    assert!(second.table.may_lack_holders());
    // Its table is where it was.
    b.release(0).expect("the record has room");
    let third = taken(&mut a, 0);
    assert_eq!(&reply_slot_of(&third), b"an intent");
    assert!(third.table.may_lack_holders());
}

#[test]
fn who_holds_something_without_room_to_say_so_is_waited_for() {
    let scratch = Scratch::new("leased-holders");
    let (mut a, mut b, clock) = two(&scratch);
    let first = taken(&mut a, 0);
    assert!(!first.table.may_lack_holders());
    IS_FULL.set(true);
    first.table.store(64, &[1; 64]);
    assert!(first.table.persist_holders().is_err(), "no record says so");
    assert!(renew(&mut a).until.is_some());
    assert_eq!(first.table.persist_holders(), Ok(()));
    assert!(
        first.table.persist().is_err(),
        "an intent is another matter"
    );
    clock.lose_lock(0, 0);
    let second = wait_and_take(&mut b, 0, &clock);
    assert!(second.table.may_lack_holders());
    // Nobody has come to it yet when it is lost, too.
    a.release(0).expect("it was lost");
    assert!(renew(&mut b).until.is_some());
    clock.lose_lock(1, 0);
    let third = wait_and_take(&mut a, 0, &clock);
    assert!(third.table.may_lack_holders());
    a.settle(0).expect("the lock works");
    IS_FULL.set(false);
    b.release(0).expect("it was lost");
    renew_until_there_is_room(&mut a, &clock);
    clock.lose_lock(0, 0);
    let fourth = wait_and_take(&mut b, 0, &clock);
    assert!(
        !fourth.table.may_lack_holders(),
        "all that came are in the table"
    );
}

#[test]
fn a_full_back_end_is_not_asked_again_for_a_while() {
    let scratch = Scratch::new("leased-asked");
    let (mut a, _b, clock) = two(&scratch);
    let table = taken(&mut a, 0).table;
    slow::each_call_takes(&clock.0, MS);
    IS_FULL.set(true);
    table.store(reply_slots_at(0), b"an intent");
    assert_eq!(table.persist(), Err(tidegate_forward::Errno::ENOSPC));
    IS_FULL.set(false);
    let now = || a.options.fence.now();
    let before = now();
    assert_eq!(table.persist(), Err(tidegate_forward::Errno::ENOSPC));
    assert_eq!(now(), before, "no call is made");
    clock.pass(TTL / 2);
    table.persist().expect("there is room again");
}

#[test]
fn of_two_that_take_a_generation_one_gets_it() {
    let scratch = Scratch::new("leased-spare");
    let (a, _b, _clock) = two(&scratch);
    let dir = a.generations.folder();
    let until = Instant::now() + Duration::from_secs(60);
    let fit = |generation| Spare::default().fit(dir, (0, generation), 9, Way::Past, until);
    for made in [false, true] {
        let generation = 7 + u64::from(made);
        if made {
            fit(generation).expect("room");
        }
        let took = |made| spare::take(dir, 0, generation, made, Way::Past).expect("take");
        assert!(took(made).is_some());
        assert!(took(made).is_none(), "it has been seen before it was moved");
        assert!(took(false).is_none(), "it has not been seen");
        fit(generation).expect("it is too late, and no error");
    }
    let files = a.generations.list().expect("list");
    assert_eq!(
        (&*files[&0].leases, &*files[&0].spares),
        (&[7, 8][..], &[][..])
    );
}

#[test]
fn a_file_made_ahead_has_its_name_when_all_its_room_is_had() {
    let scratch = Scratch::new("leased-ahead");
    let (a, _b, _clock) = two(&scratch);
    let dir = a.generations.folder();
    let mut spare = Spare::default();
    let mut fit = |pages, secs| {
        let until = Instant::now() + Duration::from_secs(secs);
        let fitted = spare.fit(dir, (0, 7), pages, Way::Past, until);
        fitted.expect("room");
        let file = UncachedFile::open(dir, "spare.0.7", Way::Past).expect("open");
        file.map_or(0, |file| file.len().expect("stat") / PAGE as u64)
    };
    assert_eq!(fit(600, 0), 0, "there was no time");
    assert_eq!(fit(600, 60), 600);
    assert_eq!(fit(610, 60), 600, "it is nearly enough");
    assert_eq!(fit(900, 60), 900);
    let mut later = Spare::begun(dir, (0, 8), 7, Way::Past).expect("room");
    let mut fit = |secs| {
        let until = Instant::now() + Duration::from_secs(secs);
        let fitted = later.fit(dir, (0, 8), 600, Way::Past, until);
        fitted.expect("room");
        let files = a.generations.of_seat(0).expect("list");
        (files.spares.len(), files.drafts.len())
    };
    assert_eq!(fit(0), (1, 1), "it waits for the next time");
    assert_eq!(fit(60), (2, 0));
}

#[test]
fn nobody_gives_a_name_to_what_another_is_still_writing() {
    let scratch = Scratch::new("leased-drafts");
    let (a, _b, _clock) = two(&scratch);
    let dir = a.generations.folder();
    let begun = |maker| Spare::begun(dir, (0, 8), maker, Way::Past).expect("room");
    let (mut late, _next) = (begun(6), begun(7));
    let until = Instant::now() + Duration::from_secs(60);
    // It was held up while the next holder began.
    let _ = late.fit(dir, (0, 8), 600, Way::Past, until);
    let file = UncachedFile::open(dir, "spare.0.8", Way::Past).expect("open");
    let pages = file.map(|file| file.len().expect("stat") / PAGE as u64);
    assert!(pages.is_none_or(|pages| pages == 600), "{pages:?}");
}
