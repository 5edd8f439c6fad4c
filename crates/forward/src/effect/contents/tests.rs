//! Appends, begun, ended and looked up.

use super::*;
use crate::effect::perform;
use crate::host::RowAddress;
use crate::model::{Disk, ModelTable, Switch};
use crate::table::SeatTable;
use std::boxed::Box;
use std::sync::Arc;
use tidegate_wire::Op;

const RECORD: &[u8] = b"a record that is longer than the head in its intent";

/// A file of 10 bytes whose append of a record at its end was begun by a process that died. What is
/// told is the same with the record at hand and with its head alone, as where a seat is taken.
fn after(effect: impl Fn(&mut dyn Files, Handle)) -> (Option<Outcome>, std::vec::Vec<u8>) {
    assert!(RECORD.len() > HEAD_MAX);
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

/// What all copies of the file were made to hold.
fn aligned(effect: impl Fn(&mut dyn Files, Handle)) -> std::vec::Vec<(u64, Box<[u8]>)> {
    let (_, disk) = looked_up(&effect, head(RECORD));
    let aligned = disk.aligned().into_iter();
    aligned.map(|(_, offset, bytes)| (offset, bytes)).collect()
}

#[test]
fn all_copies_get_an_append_that_one_has_and_none_keeps_what_one_has_not() {
    let found = aligned(|files, file| {
        files.write_at(file, 10, RECORD).expect("written");
    });
    assert_eq!(found, [(10, RECORD.into())]);
    assert_eq!(aligned(|_, _| ()), [(10, [].into())]);
    let others = aligned(|files, file| {
        files.write_at(file, 10, b"new").expect("written");
    });
    assert_eq!(others, []);
}

#[test]
fn all_copies_get_a_size_that_one_has_and_the_times_that_were_asked() {
    let disk = Disk::new();
    let mut files = disk.files(&Switch::new());
    let root = disk.root().handle;
    let file = files.create(None, root, b"f", 0o644).expect("made").handle;
    let set = SetAttr {
        size: Some(5),
        mtime: Some(SetTime::At(77)),
        ..SetAttr::default()
    };
    assert_eq!(was_set(&mut files, file, &set, 0), Ok(None));
    assert_eq!(disk.aligned(), []);
    files.set_attr(None, file, &set).expect("set");
    let told = was_set(&mut files, file, &set, 0).expect("told");
    let Some(Outcome::Attr(attr)) = told else {
        panic!("{told:?}");
    };
    assert_eq!((attr.size, attr.mtime_ns), (5, 77));
    assert_eq!(disk.aligned(), [(file, 5, [].into())]);
}

#[test]
fn an_append_is_done_where_its_own_bytes_are() {
    let (told, bytes) = after(|files, file| {
        files.write_at(file, 10, RECORD).expect("written");
        files.write_at(file, 90, b"others'").expect("written");
    });
    let len = RECORD.len() as u64;
    assert_eq!(told, Some(Outcome::Appended { offset: 10, len }));
    assert_eq!(bytes.len(), 97);
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
struct Meanwhile<F: Fn() + Send + Sync>(ModelTable, F);

impl<F: Fn() + Send + Sync> SeatTable for Meanwhile<F> {
    fn load(&self, at: usize, bytes: &mut [u8]) {
        self.0.load(at, bytes);
    }
    fn store(&self, at: usize, bytes: &[u8]) {
        self.0.store(at, bytes);
    }
    fn must_persist(&self) -> bool {
        true
    }
    fn persist(&self) -> Result<(), Errno> {
        (self.1)();
        Ok(())
    }
    fn grow(&self) -> bool {
        self.0.grow()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
}

/// What an append of "record" to a file of 10 bytes says, which is told again when it is asked for
/// again, and what the file holds then.
fn appended(
    meanwhile: impl Fn(&Disk, Handle) + Send + Sync + 'static,
) -> (Result<Outcome, Access>, std::vec::Vec<u8>) {
    let disk = Disk::new();
    let mut files = disk.files(&Switch::new());
    let root = disk.root().handle;
    let file = files.create(None, root, b"f", 0o644).expect("made").handle;
    files.write_at(file, 0, b"0123456789").expect("written");
    let others = disk.clone();
    let table = Meanwhile(ModelTable::new(&Switch::new()), move || {
        meanwhile(&others, file);
    });
    let row = RowAddress {
        seat: 0,
        table: Arc::new(table),
        row: 3,
        sequence: 7,
        unresolved: std::vec::Vec::new(),
    };
    let op = Op::Append { handle: file };
    let mut append = || perform(&mut files, None, &op, Some(&row), b"record");
    let told = append();
    assert_eq!(append(), told, "asked for again");
    (told, disk.contents("f").expect("there"))
}

#[test]
fn an_append_that_has_room_for_a_part_says_so() {
    let (told, bytes) = appended(|disk, _| disk.set_room(4));
    assert_eq!(told, Ok(Outcome::Appended { offset: 10, len: 4 }));
    assert_eq!(&bytes[..], b"0123456789reco");
}

#[test]
fn an_append_without_room_took_nothing_whatever_others_wrote() {
    let (told, bytes) = appended(|disk, file| {
        let mut theirs = disk.files(&Switch::new());
        theirs
            .lookup(None, disk.root().handle, b"f")
            .expect("there");
        theirs.write_at(file, 30, b"others'").expect("written");
        disk.set_room(0);
    });
    assert_eq!(told, Err(Errno::ENOSPC.into()));
    assert_eq!((bytes.len(), &bytes[10..30]), (37, &[0; 20][..]));
}
