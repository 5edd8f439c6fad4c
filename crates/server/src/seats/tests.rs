//! Seats over a real hidden folder, shared by several forwarders and processes.

use super::*;
use crate::storage::ExportOptions;
use crate::storage::scratch::Scratch;
use std::process::{Command, Stdio};

const LAYOUT: Layout = Layout {
    seats: 4,
    stripe: 1 << 20,
};

fn seats_of(scratch: &Scratch, own: u16) -> Seats {
    let files = PosixFiles::open(scratch.path(), &ExportOptions::new(LAYOUT)).expect("export");
    Seats::open(&files, LAYOUT, own).expect("seats")
}

#[test]
fn one_forwarder_at_a_time_holds_a_seat_and_each_taking_raises_its_generation() {
    let scratch = Scratch::new("seats");
    let (a, b) = (seats_of(&scratch, 0), seats_of(&scratch, 1));
    assert!(a.fail_over_refusal().is_none());
    assert!(!a.is_locked(0, HELD_BYTE));
    let taken = a.try_take(0).expect("take").expect("free");
    let first = taken.generation;
    assert_eq!(
        (taken.seat, first > 1_700_000_000),
        (0, true),
        "it is the time"
    );
    assert!(a.is_locked(0, HELD_BYTE) && b.is_locked(0, HELD_BYTE) && !b.is_locked(1, HELD_BYTE));
    assert!(b.try_take(0).expect("take").is_none());
    assert!(a.try_take(0).expect("take").is_none(), "held here already");
    a.release(0);
    // The table is still mapped, which must not keep the seat.
    let second = b.try_take(0).expect("take").expect("free").generation;
    assert_eq!(second, first + 1);
    drop(taken);
    drop(b);
    let third = a.try_take(0).expect("take").expect("free").generation;
    assert_eq!(third, first + 2);
    assert_eq!(a.held(), [0]);
}

#[test]
fn the_table_is_kept_for_the_next_holder() {
    let scratch = Scratch::new("seats");
    let (a, b) = (seats_of(&scratch, 0), seats_of(&scratch, 1));
    let table = a.try_take(2).expect("take").expect("free").table;
    assert_eq!(table.len(), tidegate_forward::SEGMENT_BYTES);
    table.store(0, b"first");
    table.store(table.len() - 4, b"last");
    a.release(2);
    let table = b.try_take(2).expect("take").expect("free").table;
    let (mut first, mut last) = ([0; 5], [0; 4]);
    table.load(0, &mut first);
    table.load(table.len() - 4, &mut last);
    assert_eq!((&first, &last), (b"first", b"last"));
}

#[test]
fn a_table_takes_room_for_clients_beyond_the_first_when_they_come() {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::new("seats");
    let seats = seats_of(&scratch, 0);
    let file = scratch.path().join(".tidegate/seat.1");
    let blocks = || std::fs::metadata(&file).expect("metadata").blocks();
    let table = seats.try_take(1).expect("take").expect("free").table;
    let first = blocks();
    let block = 64 * tidegate_forward::ReplyRecord::BYTES_MAX;
    assert!(table.reserve(tidegate_forward::table_bytes(255), block));
    assert_eq!(blocks(), first);
    assert!(table.reserve(table.len() - block, block));
    let more = (blocks() - first) * 512;
    assert!((block as u64..2 << 20).contains(&more), "{more} bytes");
    table.store(table.len() - 4, b"last");
    // Room for one client takes nothing of another's.
    assert!(table.reserve(tidegate_forward::table_bytes(256), block));
    let mut last = [0; 4];
    table.load(table.len() - 4, &mut last);
    assert_eq!(&last, b"last");
}

#[test]
fn a_table_grows_for_more_clients_and_gives_back_what_they_leave() {
    use std::os::unix::fs::MetadataExt;
    use tidegate_forward::{SEGMENT_BYTES, SEGMENTS_MAX};
    let scratch = Scratch::new("seats");
    let (a, b) = (seats_of(&scratch, 0), seats_of(&scratch, 1));
    let file = scratch.path().join(".tidegate/seat.2");
    let blocks = || std::fs::metadata(&file).expect("metadata").blocks();
    let table = a.try_take(2).expect("take").expect("free").table;
    let first = blocks();
    for segments in 2..=SEGMENTS_MAX {
        assert!(table.grow());
        assert_eq!(table.len(), segments * SEGMENT_BYTES);
    }
    assert!(!table.grow(), "it has all its segments");
    table.store((SEGMENTS_MAX - 1) * SEGMENT_BYTES, b"entry");
    let grown = blocks();
    assert!((grown - first) * 512 < 4 << 20, "{} blocks", grown - first);
    let (at, len) = (table.len() - 64 * 4096, 64 * 4096);
    assert!(table.reserve(at, len));
    table.store(table.len() - 4, b"last");
    assert!((blocks() - grown) * 512 >= len as u64);
    table.give_back(at, len);
    assert_eq!(blocks(), grown);
    let mut last = [0; 4];
    table.load(table.len() - 4, &mut last);
    assert_eq!(last, [0; 4]);
    assert!(table.reserve(at, len), "and can be had again");
    table.store(table.len() - 4, b"last");
    a.release(2);
    drop(table);
    let table = b.try_take(2).expect("take").expect("free").table;
    assert_eq!(table.len(), SEGMENTS_MAX * SEGMENT_BYTES);
    let mut entry = [0; 5];
    table.load((SEGMENTS_MAX - 1) * SEGMENT_BYTES, &mut entry);
    table.load(table.len() - 4, &mut last);
    assert_eq!((&entry, &last), (b"entry", b"last"));
}

#[test]
fn the_table_of_a_file_of_before_is_read_and_kept() {
    use std::os::unix::fs::FileExt;
    let scratch = Scratch::new("seats");
    let seats = seats_of(&scratch, 0);
    let first = seats.try_take(3).expect("take").expect("free").generation;
    seats.release(3);
    let file = scratch.path().join(".tidegate/seat.3");
    let raw = File::options()
        .read(true)
        .write(true)
        .open(&file)
        .expect("open");
    raw.write_all_at(&2u32.to_le_bytes(), 8).expect("version 2");
    raw.write_all_at(b"a client", 4096).expect("an entry");
    let taken = seats.try_take(3).expect("take").expect("free");
    assert_eq!(taken.generation, first + 1);
    let mut entry = [0; 8];
    taken.table.load(0, &mut entry);
    assert_eq!(&entry, b"a client");
    let mut version = [0; 4];
    raw.read_exact_at(&mut version, 8).expect("read");
    assert_eq!(u32::from_le_bytes(version), VERSION);
    seats.release(3);
    for version in [1u32, 4] {
        raw.write_all_at(&version.to_le_bytes(), 8).expect("write");
        assert!(matches!(seats.try_take(3), Err(SeatsError::Foreign { .. })));
    }
    raw.write_all_at(&VERSION.to_le_bytes(), 8).expect("write");
    // The one after it would be no number, or one that is below all others.
    raw.write_all_at(&u64::MAX.to_le_bytes(), 16)
        .expect("write");
    assert!(matches!(seats.try_take(3), Err(SeatsError::Foreign { .. })));
}

#[test]
#[should_panic(expected = "outside the table")]
fn a_store_beyond_the_table_is_refused() {
    let scratch = Scratch::new("seats");
    let table = seats_of(&scratch, 0)
        .try_take(0)
        .expect("take")
        .expect("free")
        .table;
    table.store(table.len() - 3, b"last");
}

#[test]
fn an_owner_that_waits_is_seen_by_the_stand_in() {
    let scratch = Scratch::new("seats");
    let (owner, stand_in) = (seats_of(&scratch, 0), seats_of(&scratch, 1));
    assert!(stand_in.try_take(0).expect("take").is_some());
    assert!(!stand_in.wanted(0));
    owner.want(0).expect("want");
    owner.want(0).expect("want");
    assert!(stand_in.wanted(0) && !stand_in.wanted(1));
    stand_in.release(0);
    let again = stand_in.try_take(0).expect("take");
    assert!(again.is_none(), "the owner is next");
    assert!(owner.try_take(0).expect("take").is_some());
    assert!(!owner.wanted(0), "who has it wants it no longer");
    owner.want(1).expect("want");
    owner.stop_wanting(1);
    assert!(!stand_in.wanted(1));
}

#[test]
fn an_owner_whose_sign_was_dropped_gives_it_again() {
    let scratch = Scratch::new("seats");
    let (owner, stand_in) = (seats_of(&scratch, 0), seats_of(&scratch, 1));
    assert!(stand_in.try_take(0).expect("take").is_some());
    owner.want(0).expect("want");
    // As a back end does that has lost the owner's node for a while.
    ofd::unlock(lock(&owner.wanted)[&0].as_fd(), WANTED_BYTE).expect("unlock");
    assert!(!stand_in.wanted(0));
    owner.want(0).expect("want");
    assert!(stand_in.wanted(0));
}

#[test]
fn an_export_whose_seats_are_kept_otherwise_is_refused_in_words() {
    let scratch = Scratch::new("seats");
    let (a, b) = (seats_of(&scratch, 0), seats_of(&scratch, 1));
    a.agree_on_keeper("locks").expect("the first");
    b.agree_on_keeper("locks").expect("the same");
    let refused = b.agree_on_keeper("leases").expect_err("refused");
    let refused = refused.to_string();
    for part in [".tidegate/keeper", "by locks", "by leases", "one_node"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
}

#[test]
fn a_live_forwarder_with_another_page_cache_is_not_believed_to_be_here() {
    let scratch = Scratch::new("seats");
    let (a, mut b) = (seats_of(&scratch, 0), seats_of(&scratch, 1));
    a.try_take(0).expect("take").expect("free");
    b.try_take(1).expect("the same one").expect("free");
    b.release(1);
    // As if it were on another node.
    b.page_cache ^= 2;
    let refused = b.try_take(1).err().expect("the other one lives");
    assert!(refused.to_string().contains("holds seat 0"), "{refused}");
    assert!(b.held().is_empty());
    // A dead one, or one that has stopped, is no matter.
    a.release(0);
    b.try_take(1).expect("nobody else").expect("free");
    assert!(a.try_take(0).is_err(), "now it is the other one");
}

#[test]
fn another_layout_is_refused_in_words() {
    let scratch = Scratch::new("seats");
    seats_of(&scratch, 0);
    let other = Layout { seats: 5, ..LAYOUT };
    let files = PosixFiles::open(scratch.path(), &ExportOptions::new(other)).expect("export");
    let refused = Seats::open(&files, other, 0)
        .err()
        .expect("refused")
        .to_string();
    assert!(refused.contains("seats = 4, stripe = 1048576"), "{refused}");
    assert!(refused.contains("seats = 5"), "{refused}");
}

#[test]
fn a_file_that_is_no_seat_is_refused_and_an_unfinished_one_is_made_anew() {
    let scratch = Scratch::new("seats");
    let seats = seats_of(&scratch, 0);
    let file = scratch.path().join(".tidegate/seat.3");
    std::fs::write(&file, vec![7; 5000]).expect("write");
    assert!(matches!(seats.try_take(3), Err(SeatsError::Foreign { .. })));
    std::fs::write(&file, vec![0; 5000]).expect("write");
    assert!(seats.try_take(3).expect("take").is_some());
}

/// Not a test of its own: the process that the next one kills.
#[test]
fn child_that_holds_a_seat() {
    let Some(dir) = std::env::var_os("TIDEGATE_TEST_SEAT_DIR") else {
        return;
    };
    let files = PosixFiles::open(Path::new(&dir), &ExportOptions::new(LAYOUT)).expect("export");
    let seats = Seats::open(&files, LAYOUT, 1).expect("seats");
    let taken = seats.try_take(1).expect("take").expect("free");
    taken.table.store(64, b"written by the dead");
    seats.settle(1).expect("settle");
    println!("\nholding {}", taken.generation);
    loop {
        std::thread::sleep(std::time::Duration::from_secs(60));
    }
}

#[test]
fn a_killed_holder_frees_its_seat_and_leaves_its_table() {
    use std::io::BufRead;
    let scratch = Scratch::new("seats");
    let seats = seats_of(&scratch, 0);
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args([
            "--exact",
            "seats::tests::child_that_holds_a_seat",
            "--nocapture",
        ])
        .env("TIDEGATE_TEST_SEAT_DIR", scratch.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("child");
    let output = std::io::BufReader::new(child.stdout.take().expect("piped"));
    let mut lines = output.lines().map(|line| line.expect("text"));
    let first = lines.find_map(|line| line.strip_prefix("holding ")?.parse::<u64>().ok());
    let first = first.expect("the child ended without the seat");
    assert!(seats.is_locked(1, HELD_BYTE));
    assert!(seats.try_take(1).expect("take").is_none());
    child.kill().expect("SIGKILL");
    child.wait().expect("dead");
    assert!(!seats.is_locked(1, HELD_BYTE));
    let taken = seats.try_take(1).expect("take").expect("free");
    assert_eq!(taken.generation, first + 1);
    let mut bytes = [0; 19];
    taken.table.load(64, &mut bytes);
    assert_eq!(&bytes, b"written by the dead");
}
