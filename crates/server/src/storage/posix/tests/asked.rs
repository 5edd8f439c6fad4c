//! How often operations ask for attributes, and what stays open after them: over a network each
//! question is a trip to a server, and what one forwarder has open costs the others trips.

use super::sys::asked;
use super::*;
use tidegate_forward::{ReplySlotAddress, effect};
use tidegate_wire::{Op, Outcome};

/// Files that are asked through a seat's table, as by a storage thread.
struct Asked {
    rig: Rig,
    reply_slot: ReplySlotAddress,
}

impl Asked {
    fn new() -> Asked {
        let rig = rig("asked");
        // Any table will do, and the seats' own have been given away.
        let other = Scratch::new("asked-table");
        let files = PosixFiles::open(other.path(), &ExportOptions::new(LAYOUT)).expect("export");
        let seats = Seats::open(&files, LAYOUT, 0).expect("seats");
        let reply_slot = ReplySlotAddress {
            seat: 0,
            table: seats.try_take(0).expect("take").expect("free").table,
            reply_slot: 0,
            sequence: 0,
            unresolved: Vec::new(),
        };
        Asked { rig, reply_slot }
    }

    /// How often an operation that succeeds asks.
    fn by(&mut self, op: &Op, payload: &[u8]) -> u32 {
        self.reply_slot.sequence += 1;
        let act = || {
            effect::perform(
                &mut self.rig.files,
                None,
                op,
                Some(&self.reply_slot),
                payload,
            )
        };
        let (done, count) = asked(act);
        done.expect("done");
        count
    }

    fn by_rename(&mut self, name: &[u8], new_name: &[u8]) -> u32 {
        let op = Op::Rename {
            parent: self.rig.root,
            name: name.into(),
            new_parent: self.rig.root,
            new_name: new_name.into(),
            mode: RenameMode::Replace,
        };
        self.by(&op, &[])
    }
}

#[test]
fn an_append_asks_for_the_size_and_nothing_else() {
    let mut asked = Asked::new();
    let file = asked.rig.create("log");
    asked
        .rig
        .files
        .opened(None, file, false, true)
        .expect("open");
    for _ in 0..3 {
        assert_eq!(asked.by(&Op::Append { handle: file }, b"record"), 1);
    }
    asked
        .rig
        .files
        .write_at(file, 100, b"others'")
        .expect("write");
    let op = Op::Append { handle: file };
    asked.reply_slot.sequence += 1;
    let done = effect::perform(
        &mut asked.rig.files,
        None,
        &op,
        Some(&asked.reply_slot),
        b"record",
    );
    let offset = 100 + b"others'".len() as u64;
    assert_eq!(done, Ok(Outcome::Appended { offset, len: 6 }));
}

#[test]
fn a_file_that_becomes_known_by_its_path_is_asked_for_once() {
    let mut rig = rig("asked");
    let file = rig.create("file");
    let mut other = rig.other_forwarder();
    let (reached, count) = asked(|| other.resolve_path(file, b"file"));
    assert_eq!((reached.expect("there").handle, count), (file, 1));
}

#[test]
fn removals_and_renames_ask_for_what_they_take_away_and_no_more() {
    let mut asked = Asked::new();
    let root = asked.rig.root;
    let unlink = |name: &[u8]| Op::Unlink {
        parent: root,
        name: name.into(),
    };
    // The first of a seat finds out who vouches for its opens.
    let names: Vec<String> = (0..64).map(|number| format!("first{number}")).collect();
    for name in &names {
        asked.rig.create(name);
    }
    for name in &names {
        asked.by(&unlink(name.as_bytes()), &[]);
    }
    let [_, _, file] = ["b", "c", "d"].map(|name| asked.rig.create(name));
    // What is moved and whether something is in the way, before; what was moved, after.
    assert_eq!(asked.by_rename(b"b", b"f"), 3);
    // Both names; what is replaced, and that it is another file; what was moved.
    assert_eq!(asked.by_rename(b"f", b"c"), 5);
    // What goes: for the intent, and whether it may be open.
    assert_eq!(asked.by(&unlink(b"c"), &[]), 2);
    assert_eq!(asked.by(&unlink(b"d"), &[]), 2);
    assert_eq!(asked.rig.files.attr(file), Err(Access::UnknownHandle));
}

#[test]
fn only_a_file_of_the_seat_itself_stays_open_for_data_where_it_was_created() {
    let mut rig = rig("asked");
    let seat = rig.files.seat_of(rig.root);
    rig.files.permit.turn_to(Some(seat));
    let mut seen = [false; 2];
    for number in 0..64 {
        let file = rig.create(&format!("f{number}"));
        let ours = rig.files.seat_of(file) == seat;
        assert_eq!(
            rig.files.open_read_fd(file).is_some(),
            ours,
            "file {number}"
        );
        assert_eq!(rig.files.write_at(file, 0, b"data"), Ok(4));
        seen[usize::from(ours)] = true;
    }
    assert_eq!(seen, [true; 2], "of 64 files");
}
