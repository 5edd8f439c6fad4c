//! Appends, begun, ended and looked up.

use super::*;
use crate::effect::perform;
use crate::host::ReplySlotAddress;
use crate::model::{Copies, Disk, ModelFiles, ModelTable, Switch};
use crate::reply_table::SeatTable;
use std::sync::Arc;
use tidegate_wire::Op;

/// A record that is longer than the head in its intent.
const RECORD: &[u8] = &{
    let mut record = [b'r'; HEAD_MAX + 20];
    record[0] = b'a';
    record
};

/// A file of 10 bytes whose append of a record at its end was begun by a process that died. What is
/// told is the same with the record at hand and with its head alone, as where a seat is taken.
fn after(effect: impl Fn(&mut dyn Files, Handle)) -> (Option<Outcome>, std::vec::Vec<u8>) {
    let [whole, alone] = [RECORD, head(RECORD)].map(|known| after_with(&effect, known));
    assert_eq!(whole, alone);
    whole
}

fn after_with(
    effect: &impl Fn(&mut dyn Files, Handle),
    known: &[u8],
) -> (Option<Outcome>, std::vec::Vec<u8>) {
    let (told, disk) = looked_up(effect, known);
    (told, disk.contents("f").expect("there"))
}

fn looked_up(effect: &impl Fn(&mut dyn Files, Handle), known: &[u8]) -> (Option<Outcome>, Disk) {
    let disk = Disk::new();
    let mut files = disk.files(&Switch::new());
    let root = disk.root().handle;
    let file = files.create(None, root, b"f", 0o644).expect("made").handle;
    files.write_at(file, 0, b"0123456789").expect("written");
    effect(&mut files, file);
    let place = (10, RECORD.len() as u64);
    let told = was_appended(&mut files, file, place, checksum(RECORD), known).expect("told");
    (told, disk)
}

/// What a taker is told, and what both copies of the file hold then.
type Told = (
    Result<Option<Outcome>, Access>,
    [Option<std::vec::Vec<u8>>; 2],
);

/// A file of 10 bytes of which `effect` was found in one of two copies by a taker of the seat that
/// has so much room.
fn in_one_copy(copies: Copies, room: u64, effect: &[u8]) -> Told {
    let disk = Disk::new();
    let mut files = disk.files(&Switch::new());
    let root = disk.root().handle;
    let file = files.create(None, root, b"f", 0o644).expect("made").handle;
    files.write_at(file, 0, b"0123456789").expect("written");
    disk.keep_copies(copies);
    disk.set_room(0);
    let failed = files.write_at(file, 10, effect);
    assert_eq!(failed, Err(Errno::ENOSPC.into()));
    disk.set_room(room);
    let place = (10, RECORD.len() as u64);
    let told = was_appended(&mut files, file, place, checksum(RECORD), head(RECORD));
    (told, [disk.contents("f"), disk.other_copy("f")])
}

#[test]
fn all_copies_get_an_append_that_one_shows_and_none_keeps_what_it_does_not() {
    let len = RECORD.len() as u64;
    let without = Some(b"0123456789".to_vec());
    let with = Some([b"0123456789", RECORD].concat());
    let none = (Ok(None), [without.clone(), without]);
    let done = Ok(Some(Outcome::Appended { offset: 10, len }));
    let seen = in_one_copy(Copies::Seen, u64::MAX, RECORD);
    assert_eq!(seen, (done, [with.clone(), with]));
    assert_eq!(in_one_copy(Copies::Unseen, u64::MAX, RECORD), none);
    assert_eq!(in_one_copy(Copies::Seen, u64::MAX, &RECORD[..1]), none);
    assert_eq!(in_one_copy(Copies::Seen, 0, RECORD), none, "no room");
}

#[test]
fn what_others_wrote_in_the_place_of_an_append_is_in_all_copies() {
    let theirs = Some(b"0123456789theirs".to_vec());
    let found = in_one_copy(Copies::Seen, u64::MAX, b"theirs");
    assert_eq!(found, (Ok(None), [theirs.clone(), theirs]));
}

/// Appends to a file of 10 bytes of which one copy of two took an append that was refused.
fn after_a_refusal(refused: Access, before: impl Fn(&Disk) + Send + Sync + Copy + 'static) {
    for copies in [Copies::Seen, Copies::Unseen] {
        let (told, disk, mut files) = appended_on(true, move |disk, _| {
            disk.keep_copies(copies);
            disk.set_room(0);
            before(disk);
        });
        assert_eq!(told, Err(refused), "{copies:?}");
        disk.set_room(u64::MAX);
        let root = disk.root().handle;
        let file = files.lookup(None, root, b"f").expect("there").handle;
        let end = files.size(file).expect("there");
        files.write_at(file, end, b"next").expect("room");
        let [one, other] = [disk.contents("f"), disk.other_copy("f")];
        assert_eq!(one, other, "{copies:?}");
        let bytes = one.expect("there");
        assert!(bytes.ends_with(b"next") && !bytes.contains(&0), "{bytes:?}");
    }
}

#[test]
fn an_append_that_failed_leaves_nothing_in_any_copy() {
    after_a_refusal(Errno::ENOSPC.into(), |_| ());
}

#[test]
fn an_append_of_unknown_fate_leaves_the_same_end_in_all_copies() {
    after_a_refusal(Errno::EIO.into(), |disk| disk.blind(1));
}

#[test]
fn a_change_of_size_that_was_looked_up_keeps_the_times_that_were_asked() {
    let disk = Disk::new();
    let mut files = disk.files(&Switch::new());
    disk.keep_copies(Copies::Unseen);
    let root = disk.root().handle;
    let file = files.create(None, root, b"f", 0o644).expect("made").handle;
    let set = SetAttr {
        size: Some(5),
        mtime: Some(SetTime::At(77)),
        ..SetAttr::default()
    };
    assert_eq!(was_set(&mut files, file, &set, 0), Ok(None));
    files.set_attr(None, file, &set).expect("set");
    let told = was_set(&mut files, file, &set, 0).expect("told");
    let Some(Outcome::Attr(attr)) = told else {
        panic!("{told:?}");
    };
    assert_eq!((attr.size, attr.mtime_ns), (5, 77));
}

#[test]
fn an_append_is_done_where_its_own_bytes_are() {
    let (told, bytes) = after(|files, file| {
        files.write_at(file, 10, RECORD).expect("written");
        files.write_at(file, 490, b"others'").expect("written");
    });
    let len = RECORD.len() as u64;
    assert_eq!(told, Some(Outcome::Appended { offset: 10, len }));
    assert_eq!(bytes.len(), 497);
}

#[test]
fn growth_by_others_is_no_append_and_stays() {
    let (told, bytes) = after(|files, file| {
        files.write_at(file, 30, b"others'").expect("written");
    });
    assert_eq!(told, None);
    assert_eq!(&bytes[30..], b"others'");
}

#[test]
fn what_others_appended_after_a_loss_stays() {
    let (told, bytes) = after(|files, file| {
        files.write_at(file, 10, b"new").expect("written");
    });
    assert_eq!((told, &bytes[..]), (None, &b"0123456789new"[..]));
}

#[test]
fn a_part_is_cut_off() {
    let (told, bytes) = after(|files, file| {
        files.write_at(file, 10, &RECORD[..3]).expect("written");
    });
    assert_eq!((told, &bytes[..]), (None, &b"0123456789"[..]));
    let (told, bytes) = after(|files, file| {
        files
            .write_at(file, 10, &RECORD[..HEAD_MAX + 1])
            .expect("written");
    });
    assert_eq!((told, &bytes[..]), (None, &b"0123456789"[..]));
}

/// A table during whose first persisting, which comes between an operation's look at a file and its
/// effect, others do something.
struct Meanwhile<F: Fn() + Send + Sync> {
    table: ModelTable,
    /// Persisting outlives a node.
    persists: bool,
    others: F,
}

impl<F: Fn() + Send + Sync> SeatTable for Meanwhile<F> {
    fn load(&self, at: usize, bytes: &mut [u8]) {
        self.table.load(at, bytes);
    }
    fn store(&self, at: usize, bytes: &[u8]) {
        self.table.store(at, bytes);
    }
    fn must_persist(&self) -> bool {
        self.persists
    }
    fn persist(&self) -> Result<(), Errno> {
        (self.others)();
        Ok(())
    }
    // Asked after the intent where nothing is persisted.
    fn is_held(&self) -> bool {
        if !self.persists {
            (self.others)();
        }
        true
    }
    fn grow(&self) -> bool {
        self.table.grow()
    }
    fn len(&self) -> usize {
        self.table.len()
    }
}

/// What an append of "record" to a file of 10 bytes says, which is told again when it is asked for
/// again, and what the file holds then.
fn appended(
    persists: bool,
    meanwhile: impl Fn(&Disk, Handle) + Send + Sync + 'static,
) -> (Result<Outcome, Access>, std::vec::Vec<u8>) {
    let (told, disk, _) = appended_on(persists, meanwhile);
    (told, disk.contents("f").expect("there"))
}

fn appended_on(
    persists: bool,
    meanwhile: impl Fn(&Disk, Handle) + Send + Sync + 'static,
) -> (Result<Outcome, Access>, Disk, ModelFiles) {
    let disk = Disk::new();
    let mut files = disk.files(&Switch::new());
    let root = disk.root().handle;
    let file = files.create(None, root, b"f", 0o644).expect("made").handle;
    files.write_at(file, 0, b"0123456789").expect("written");
    let others = disk.clone();
    let table = Meanwhile {
        table: ModelTable::new(&Switch::new()),
        persists,
        others: move || meanwhile(&others, file),
    };
    let reply_slot = ReplySlotAddress {
        seat: 0,
        table: Arc::new(table),
        reply_slot: 3,
        sequence: 7,
        unresolved: std::vec::Vec::new(),
    };
    let op = Op::Append { handle: file };
    let mut append = || perform(&mut files, None, &op, Some(&reply_slot), b"record");
    let told = append();
    assert_eq!(append(), told, "asked for again");
    (told, disk, files)
}

#[test]
fn an_append_that_has_room_for_a_part_says_so_where_that_outlives_the_process() {
    let (told, bytes) = appended(false, |disk, _| disk.set_room(4));
    assert_eq!(told, Ok(Outcome::Appended { offset: 10, len: 4 }));
    assert_eq!(&bytes[..], b"0123456789reco");
}

#[test]
fn an_append_that_has_room_for_a_part_is_taken_back_where_its_count_could_be_lost() {
    let (told, bytes) = appended(true, |disk, _| disk.set_room(4));
    assert_eq!(told, Err(Errno::ENOSPC.into()));
    assert_eq!(&bytes[..], b"0123456789");
}

#[test]
fn a_part_of_an_append_stays_where_others_wrote_behind_it() {
    let (told, bytes) = appended(true, |disk, file| {
        write_theirs(disk, file);
        disk.set_room(4);
    });
    assert_eq!(told, Ok(Outcome::Appended { offset: 10, len: 4 }));
    assert_eq!((bytes.len(), &bytes[..14]), (37, &b"0123456789reco"[..]));
}

fn write_theirs(disk: &Disk, file: Handle) {
    let mut theirs = disk.files(&Switch::new());
    let found = theirs.lookup(None, disk.root().handle, b"f");
    found.expect("there");
    theirs.write_at(file, 30, b"others'").expect("written");
}

#[test]
fn an_append_without_room_took_nothing_whatever_others_wrote() {
    let (told, bytes) = appended(true, |disk, file| {
        write_theirs(disk, file);
        disk.set_room(0);
    });
    assert_eq!(told, Err(Errno::ENOSPC.into()));
    assert_eq!((bytes.len(), &bytes[10..30]), (37, &[0; 20][..]));
}
