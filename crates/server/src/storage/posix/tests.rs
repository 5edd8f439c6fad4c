//! The export against a real file system, subject by subject.

mod asked;
mod callers;
mod escapes;
mod fenced;
mod file_data_tests;
mod file_name_tests;
mod moved;
mod orphan_tests;
mod parked;
mod parked_moved;
mod removals_tests;
mod short;
mod unsynced;

use super::*;
use crate::seats::Seats;
use crate::storage::scratch::Scratch;
use std::path::PathBuf;
use tidegate_forward::Access;
use tidegate_sched::Direction;
use tidegate_wire::{Entry, Layout};

const LAYOUT: Layout = Layout {
    seats: 2,
    stripe: 1 << 20,
};

/// A forwarder's files over a fresh directory, all seats held and settled by it.
struct Rig {
    scratch: Scratch,
    files: PosixFiles,
    seats: Seats,
    root: Handle,
}

fn rig(name: &str) -> Rig {
    rig_with(name, &ExportOptions::new(LAYOUT))
}

fn rig_with(name: &str, options: &ExportOptions) -> Rig {
    crate::storage::prepare_process();
    let scratch = Scratch::new(name);
    let mut files = PosixFiles::open(scratch.path(), options).expect("export");
    let seats = Seats::open(&files, LAYOUT, 0).expect("seats");
    for seat in 0..LAYOUT.seats {
        seats.try_take(seat).expect("take").expect("free");
        seats.settle(seat).expect("settle");
    }
    let root = files.root().expect("root").handle;
    Rig {
        scratch,
        files,
        seats,
        root,
    }
}

impl Rig {
    /// All entries of the root with attributes, in as many parts as there is time for.
    fn looked_up(&mut self) -> Vec<Entry> {
        let mut all: Vec<Entry> = Vec::new();
        loop {
            let cookie = all.last().map_or(0, |entry| entry.cookie);
            let part = (self.files).readdir(None, self.root, cookie, 65536, Some(&[]));
            let part = part.expect("readdir");
            all.extend(part.entries);
            if part.ended {
                return all;
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn create(&mut self, name: &str) -> Handle {
        let made = self.files.create(None, self.root, name.as_bytes(), 0o644);
        made.expect("create").handle
    }

    fn lookup(&mut self, name: &str) -> Done<Attr> {
        self.files.lookup(None, self.root, name.as_bytes())
    }

    /// A second forwarder over the same directory.
    fn other_forwarder(&self) -> PosixFiles {
        PosixFiles::open(self.scratch.path(), &ExportOptions::new(LAYOUT)).expect("export")
    }

    /// Hidden names that exist now.
    fn orphans(&self) -> usize {
        std::fs::read_dir(self.path(".tidegate/orphans"))
            .expect("folder")
            .count()
    }
}

fn errno(number: u16) -> Access {
    Access::Errno(Errno(number))
}

/// Whether the test runs as root; says so if not.
fn is_root(what: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped, needs root: {what}");
    }
    root
}
