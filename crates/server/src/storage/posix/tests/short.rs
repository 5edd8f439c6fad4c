//! Appends for which the back end has not room enough: file systems take whole pages of them.

use super::*;
use crate::storage::scratch::Tmpfs;
use crate::storage::{Fence, Permit};
use tidegate_forward::{ReplySlotAddress, effect};
use tidegate_wire::{Op, Outcome};

const RECORD: [u8; 211] = [b'r'; 211];
/// What of the record's page is free, and nothing else.
const ROOM: usize = 96;

/// Does that with a file that ends so many bytes before its page does, on a full file system.
fn on_a_full_disk(act: impl FnOnce(&mut PosixFiles, Handle, ReplySlotAddress)) {
    if !is_root("a file system of its own") {
        return;
    }
    let outer = Scratch::new("short");
    let Some(_mount) = Tmpfs::mount(outer.path(), "40m") else {
        return;
    };
    let mut files = PosixFiles::open(outer.path(), &ExportOptions::new(LAYOUT)).expect("export");
    let seats = Seats::open(&files, LAYOUT, 0).expect("seats");
    let reply_slot = ReplySlotAddress {
        seat: 0,
        table: seats.try_take(0).expect("take").expect("free").table,
        reply_slot: 0,
        sequence: 1,
        unresolved: Vec::new(),
    };
    let root = files.root().expect("root").handle;
    let mut create = |name: &[u8]| {
        let made = files.create(None, root, name, 0o644);
        made.expect("create").handle
    };
    let (log, fill) = (create(b"log"), create(b"fill"));
    let begun = rustix::param::page_size() - ROOM;
    assert_eq!(files.write_at(log, 0, &vec![b'b'; begun]), Ok(begun as u64));
    let full = (0..1000).find_map(|i| files.write_at(fill, i << 16, &[1; 1 << 16]).err());
    assert_eq!(full, Some(Errno(libc::ENOSPC as u16).into()));
    act(&mut files, log, reply_slot);
}

fn append(
    files: &mut PosixFiles,
    log: Handle,
    reply_slot: &ReplySlotAddress,
) -> Result<Outcome, Access> {
    let op = Op::Append { handle: log };
    effect::perform(files, None, &op, Some(reply_slot), &RECORD)
}

#[test]
fn an_append_tells_how_much_there_was_room_for() {
    on_a_full_disk(|files, log, mut reply_slot| {
        let offset = files.attr(log).expect("there").size;
        let told = Ok(Outcome::Appended {
            offset,
            len: ROOM as u64,
        });
        assert_eq!(append(files, log, &reply_slot), told);
        assert_eq!(append(files, log, &reply_slot), told, "asked for again");
        reply_slot.sequence += 1;
        let full = Err(Errno(libc::ENOSPC as u16).into());
        assert_eq!(append(files, log, &reply_slot), full);
        let there = files.read_at(log, offset, 4096).expect("readable");
        assert_eq!(there, &RECORD[..ROOM]);
    });
}

#[test]
fn an_append_whose_seat_is_lost_after_a_part_tells_nothing() {
    on_a_full_disk(|files, log, reply_slot| {
        let offset = files.attr(log).expect("there").size;
        files.permit = Fence::closing_after(1).permit(Some(0));
        assert_eq!(append(files, log, &reply_slot), Err(Access::NotHeld));
        assert_eq!(files.attr(log).expect("there").size, offset + ROOM as u64);
        files.permit = Permit::default();
    });
}
