//! Tables and their files: what is written, when, and what the next holder finds.

use super::super::uncached::{Way, slow};
use super::*;
use crate::storage::Fence;
use crate::storage::scratch::Scratch;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use tidegate_forward::ReplyRecord;
use tidegate_sched::Time;

/// Pages of the first clients' entries, which every table has.
const ENTRIES: usize = ENTRIES_BYTES / PAGE;

fn file(scratch: &Scratch, name: &str) -> Arc<UncachedFile> {
    let dir: OwnedFd = std::fs::File::open(scratch.path()).expect("there").into();
    let made = UncachedFile::make(dir.as_fd(), name, Way::Past).expect("make");
    Arc::new(made.expect("new"))
}

fn table(scratch: &Scratch, name: &str, last: Option<&str>) -> WrittenTable {
    let last = last.map(|last| open(scratch, last));
    take_over(file(scratch, name), Permit::default(), last).expect("table")
}

fn open(scratch: &Scratch, name: &str) -> UncachedFile {
    let dir: OwnedFd = std::fs::File::open(scratch.path()).expect("there").into();
    let opened = UncachedFile::open(dir.as_fd(), name, Way::Past).expect("open");
    opened.expect("there")
}

fn take_over(
    file: Arc<UncachedFile>,
    permit: Permit,
    last: Option<UncachedFile>,
) -> io::Result<WrittenTable> {
    let mut taking = TakeOver::begin(file, last, false)?;
    while !taking.go_on()? {}
    Ok(taking.done(permit, Room::default()))
}

fn loaded(table: &WrittenTable, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    table.load(at, &mut bytes);
    bytes
}

/// All of the client's pages are used.
fn entry_of_client_1() -> [u8; 20] {
    let mut entry = [0; 20];
    entry[0] = 1;
    let crc = tidegate_wire::frame::checksum(&entry[..8]);
    entry[8..12].copy_from_slice(&crc.to_le_bytes());
    entry
}

#[test]
fn what_is_persisted_is_found_by_the_next_holder_and_nothing_else() {
    let scratch = Scratch::new("written");
    let first = table(&scratch, "lease.0.1", None);
    first.store(0, &entry_of_client_1());
    first.store(ENTRIES_BYTES, b"a row");
    first.persist().expect("room");
    first.store(ENTRIES_BYTES + 1024, b"lost with the node");
    first.store_later(ENTRIES_BYTES + PAGE, b"later");
    first.persist().expect("room");
    first.store(ENTRIES_BYTES + 2 * PAGE, b"never persisted");
    let next = table(&scratch, "lease.0.2", Some("lease.0.1"));
    let read = |at: usize, len: usize| {
        let mut bytes = vec![0; len];
        next.load(at, &mut bytes);
        bytes
    };
    assert_eq!(read(ENTRIES_BYTES, 5), b"a row");
    assert_eq!(read(ENTRIES_BYTES + 1024, 4), b"lost");
    assert_eq!(read(ENTRIES_BYTES + PAGE, 5), [0; 5]);
    assert_eq!(read(ENTRIES_BYTES + 2 * PAGE, 5), [0; 5]);
    first.write(true).expect("room");
    let third = table(&scratch, "lease.0.3", Some("lease.0.1"));
    let mut later = [0; 5];
    third.load(ENTRIES_BYTES + PAGE, &mut later);
    assert_eq!(&later, b"later");
}

#[test]
fn nothing_is_written_after_the_lease_or_the_release() {
    let scratch = Scratch::new("written-late");
    let fence = Fence::default();
    let file = file(&scratch, "lease.0.1");
    let late = take_over(file.clone(), fence.taken(0), None).expect("table");
    let len = file.len().expect("stat");
    late.store(ENTRIES_BYTES, b"a row");
    fence.opens_until(Time(0));
    assert_eq!(late.persist(), Err(Errno::EIO));
    assert_eq!(file.len().expect("stat"), len);
    fence.opens_until(Time(u64::MAX));
    late.persist().expect("room");
    assert_eq!(file.len().expect("stat"), len + PAGE as u64);
    late.close();
    late.store(64, b"more");
    assert_eq!(late.persist(), Err(Errno::EIO));
}

#[test]
fn what_took_longer_than_the_lease_to_write_is_not_persisted() {
    let scratch = Scratch::new("written-slow");
    let file = file(&scratch, "lease.0.1");
    // Open when the writing begins, and closed when it has ended.
    let fence = Fence::closing_after(1);
    let slow = take_over(file, fence.taken(0), None).expect("table");
    slow.store(0, &entry_of_client_1());
    assert_eq!(slow.persist(), Err(Errno::EIO));
    assert!(!slow.is_held());
}

#[test]
fn a_lost_seat_is_closed_without_waiting_for_what_is_being_written() {
    let scratch = Scratch::new("written-closed");
    let fence = Fence::default();
    let table = take_over(file(&scratch, "lease.3.1"), fence.taken(3), None).expect("table");
    let hangs = table.turn();
    table.close();
    drop(hangs);
    assert!(!table.is_held() && fence.is_closed_to(3) && !fence.is_closed_to(2));
    // A later taking of this process has another table.
    fence.taken(3);
    assert!(!table.is_held() && !fence.is_closed_to(3));
    table.close();
    assert!(!fence.is_closed_to(3));
}

#[test]
fn a_table_that_has_grown_is_found_so() {
    let scratch = Scratch::new("written-grown");
    let first = table(&scratch, "lease.0.1", None);
    assert!(first.grow() && first.grow());
    first.persist().expect("room");
    let next = table(&scratch, "lease.0.2", Some("lease.0.1"));
    assert_eq!(next.len(), 3 * SEGMENT_BYTES);
    next.persist().expect("room");
    let third = table(&scratch, "lease.0.3", Some("lease.0.2"));
    assert_eq!(third.len(), 3 * SEGMENT_BYTES);
}

#[test]
fn threads_that_persist_at_once_find_all_they_stored() {
    let scratch = Scratch::new("written-together");
    let shared = Arc::new(table(&scratch, "lease.0.1", None));
    shared.store(0, &entry_of_client_1());
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let shared = shared.clone();
            scope.spawn(move || {
                for reply_slot in 0..16 {
                    let at = ENTRIES_BYTES + (reply_slot * 4 + thread) * 1024;
                    shared.store(at, &[thread as u8 + 1; 100]);
                    shared.persist().expect("room");
                    let place = shared.turn().of(at / PAGE);
                    let mut page = [Page::ZERO];
                    shared.file.read(place_at(place), &mut page).expect("read");
                    assert_eq!(page[0].0[at % PAGE], thread as u8 + 1);
                }
            });
        }
    });
}

#[test]
fn a_page_has_its_place_beside_others_wherever_its_reply_slots_are() {
    let scratch = Scratch::new("written-compact");
    let first = table(&scratch, "lease.0.1", None);
    let reply_slots = ENTRIES_BYTES..SEGMENT_BYTES;
    for at in reply_slots.step_by(64 * ReplyRecord::BYTES_MAX) {
        first.store(at, b"a row");
    }
    first.store(0, &entry_of_client_1());
    first.persist().expect("room");
    let len = first.file.len().expect("stat");
    assert_eq!(
        len,
        ((1 + 1024 + ENTRIES) * PAGE) as u64,
        "most of the table is not used"
    );
    // The reply slots of clients that are gone do not go on.
    let next = table(&scratch, "lease.0.2", Some("lease.0.1"));
    assert_eq!(loaded(&next, ENTRIES_BYTES, 5), b"a row");
    assert_eq!(
        next.file.len().expect("stat"),
        ((2 + ENTRIES) * PAGE) as u64
    );
}

#[test]
fn what_only_its_holder_believes_is_not_written() {
    let scratch = Scratch::new("written-here");
    let first = table(&scratch, "lease.0.1", None);
    first.store(0, &entry_of_client_1());
    first.persist().expect("room");
    let len = first.file.len().expect("stat");
    first.store_here(ENTRIES_BYTES, b"written");
    first.write(true).expect("room");
    assert_eq!(first.file.len().expect("stat"), len);
}

#[test]
fn reply_slots_given_back_wait_for_no_call_and_are_nobodys_before_they_are_used_again() {
    let scratch = Scratch::new("written-back");
    let first = Arc::new(table(&scratch, "lease.0.1", None));
    first.store(0, &entry_of_client_1());
    for page in 0..3 {
        first.store(ENTRIES_BYTES + page * PAGE, b"old");
    }
    first.persist().expect("room");
    // As if a write hung: what is given back must not wait for it.
    let hung = first.turn();
    let (reactor, (said, heard)) = (first.clone(), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        reactor.give_back(ENTRIES_BYTES, 3 * PAGE);
        said.send(())
    });
    let given_back = heard.recv_timeout(Duration::from_secs(20));
    drop(hung);
    assert_eq!(given_back, Ok(()));
    assert_eq!(loaded(&first, ENTRIES_BYTES, 3), [0; 3]);
    // One page is used again before the room is given back in the file, one after.
    assert!(first.reserve(ENTRIES_BYTES, PAGE));
    first.store_here(ENTRIES_BYTES, b"new");
    first.persist().expect("room");
    first.punch_until(Instant::now() + Duration::from_secs(60));
    assert!(first.reserve(ENTRIES_BYTES + PAGE, PAGE));
    first.persist().expect("room");
    let next = table(&scratch, "lease.0.2", Some("lease.0.1"));
    assert_eq!(loaded(&next, ENTRIES_BYTES, 3), b"new");
    assert_eq!(loaded(&next, ENTRIES_BYTES + PAGE, 3), [0; 3]);
    let place = first.turn().of((ENTRIES_BYTES + 2 * PAGE) / PAGE);
    let mut page = [Page([1; PAGE])];
    first.file.read(place_at(place), &mut page).expect("read");
    assert!(
        page[0].0.iter().all(|byte| *byte == 0),
        "its room is given back"
    );
}

#[test]
fn a_time_that_is_over_leaves_the_rest_for_the_next_one() {
    let scratch = Scratch::new("written-until");
    let first = table(&scratch, "lease.0.1", None);
    let reply_slots = ENTRIES_BYTES..SEGMENT_BYTES;
    for at in reply_slots.step_by(64 * ReplyRecord::BYTES_MAX) {
        first.store_later(at, b"a row");
    }
    let over = Some(Instant::now());
    let mut calls = 1;
    while !first.write_until(true, over).expect("room") {
        calls += 1;
    }
    assert_eq!(calls, 1024 / TOGETHER);
    assert_eq!(
        first.file.len().expect("stat"),
        ((1 + ENTRIES + 1024) * PAGE) as u64
    );
}

#[test]
fn what_is_to_be_written_by_a_time_waits_no_longer_for_another_thread() {
    let scratch = Scratch::new("written-busy");
    let first = Arc::new(table(&scratch, "lease.0.1", None));
    first.store_later(ENTRIES_BYTES, b"a row");
    // As if a write took long to be refused.
    let busy = first.turn();
    let (renewer, (said, heard)) = (first.clone(), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        let over = Instant::now() + Duration::from_millis(10);
        let written = renewer.write_all(over).expect("it is held");
        renewer.punch_until(over);
        said.send(written)
    });
    let written = heard.recv_timeout(Duration::from_secs(20));
    drop(busy);
    assert_eq!(written, Ok(AllWritten::GoesOn));
    let until = Instant::now() + Duration::from_secs(60);
    assert_eq!(first.write_all(until).expect("room"), AllWritten::Yes);
}

#[test]
fn a_table_with_a_page_twice_is_refused() {
    let scratch = Scratch::new("written-twice");
    let first = table(&scratch, "lease.0.1", None);
    first.store(0, &entry_of_client_1());
    first.persist().expect("room");
    let mut page = [Page::ZERO];
    first.file.read(place_at(0), &mut page).expect("read");
    first.file.write(place_at(1), &page).expect("write");
    let last = open(&scratch, "lease.0.1");
    let refused = take_over(file(&scratch, "lease.0.2"), Permit::default(), Some(last));
    let kind = refused.err().expect("it is damaged").kind();
    assert_eq!(kind, io::ErrorKind::InvalidData);
}

#[test]
fn reply_slots_that_come_into_use_while_others_are_written_come_before_their_entry() {
    let scratch = Scratch::new("written-order");
    let first = Arc::new(table(&scratch, "lease.0.1", None));
    let used = [&entry_of_client_1()[..18], &[0xfe, 0xff]].concat();
    first.store(0, &used);
    for page in 0..2 {
        first.store(ENTRIES_BYTES + page * PAGE, b"of a client that is gone");
    }
    first.persist().expect("room");
    // The second page is given to the next client of that place while a reply slot is written.
    first.store(ENTRIES_BYTES, b"a row");
    first.store(0, &used);
    let reactor = first.clone();
    slow::meanwhile(move || {
        assert!(reactor.reserve(ENTRIES_BYTES + PAGE, PAGE));
        reactor.store(ENTRIES_BYTES + PAGE, &[0; 24]);
        reactor.store(18, &[0xfc, 0xff]);
    });
    first.persist().expect("room");
    // The node is lost.
    let next = table(&scratch, "lease.0.2", Some("lease.0.1"));
    assert_eq!(loaded(&next, ENTRIES_BYTES, 5), b"a row");
    assert_eq!(loaded(&next, ENTRIES_BYTES + PAGE, 24), [0; 24]);
}
