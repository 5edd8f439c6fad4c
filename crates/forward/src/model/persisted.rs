//! A seat's table as a forwarder on one of several nodes has it: memory of its process, and a file
//! of its generation that receives what is persisted.

use super::{ModelTable, PAGE, Switch, lock};
use crate::back_end_files::Errno;
use crate::reply_table::SeatTable;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::vec::Vec;

/// Where a generation's table is kept. Clones are the same file.
#[derive(Clone, Default)]
pub struct TableFile(Arc<Mutex<Stored>>);

#[derive(Clone, Default)]
struct Stored {
    pages: BTreeMap<usize, Vec<u8>>,
    segments: usize,
}

impl TableFile {
    /// Another file with the same contents.
    pub fn copy(&self) -> TableFile {
        TableFile(Arc::new(Mutex::new(lock(&self.0).clone())))
    }
}

/// Closes when nothing may be persisted any more. Clones are the same fence.
#[derive(Clone, Default)]
pub struct TableFence(Arc<AtomicBool>);

impl TableFence {
    /// Closes or opens it.
    pub fn set_closed(&self, closed: bool) {
        self.0.store(closed, Ordering::Relaxed);
    }

    /// Nothing may be persisted.
    pub fn is_closed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A table in memory, with its file.
pub struct PersistedTable {
    memory: ModelTable,
    file: TableFile,
    fence: TableFence,
    marks: Mutex<Marks>,
    closed: AtomicBool,
}

/// Pages to be persisted, and those that can wait.
#[derive(Default)]
struct Marks {
    now: BTreeSet<usize>,
    later: BTreeSet<usize>,
}

impl PersistedTable {
    /// A table of the process of `switch`, to be kept in `file`, that begins with what another file
    /// holds.
    pub fn take_over(
        switch: &Switch,
        file: TableFile,
        fence: TableFence,
        last: Option<&TableFile>,
    ) -> PersistedTable {
        let memory = ModelTable::new(switch);
        let mut marks = Marks::default();
        if let Some(last) = last {
            let last = lock(&last.0).clone();
            memory
                .segments
                .store(last.segments.max(1), Ordering::Relaxed);
            marks.now = last.pages.keys().copied().collect();
            *lock(&memory.pages) = last.pages;
        }
        PersistedTable {
            memory,
            file,
            fence,
            marks: Mutex::new(marks),
            closed: AtomicBool::new(false),
        }
    }

    /// The same, looking at another fence.
    pub fn fenced_by(mut self, fence: TableFence) -> PersistedTable {
        self.fence = fence;
        self
    }

    /// Writes what is marked; `all`: what could wait too.
    pub fn write(&self, all: bool) -> Result<(), Errno> {
        let dead = !self.memory.switch.call();
        let tears = dead && self.memory.switch.tears();
        if self.closed.load(Ordering::Relaxed) || self.fence.is_closed() || dead && !tears {
            return Err(Errno::EIO);
        }
        let mut marks = lock(&self.marks);
        let mut marked = core::mem::take(&mut marks.now);
        marks.later.retain(|page| !marked.contains(page));
        if all {
            marked.append(&mut marks.later);
        }
        // Of one that dies in the middle some pages are written.
        let written = if tears {
            marked.len() / 2
        } else {
            marked.len()
        };
        let pages = lock(&self.memory.pages);
        let mut stored = lock(&self.file.0);
        stored.segments = self.memory.segments.load(Ordering::Relaxed);
        for page in marked.into_iter().take(written) {
            match pages.get(&page) {
                Some(bytes) => stored.pages.insert(page, bytes.clone()),
                None => stored.pages.remove(&page),
            };
        }
        match tears {
            true => Err(Errno::EIO),
            false => Ok(()),
        }
    }

    /// Nothing is persisted from now on: the seat was let go or lost.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    fn pages(at: usize, len: usize) -> core::ops::Range<usize> {
        at / PAGE..(at + len).div_ceil(PAGE)
    }
}

impl SeatTable for PersistedTable {
    fn load(&self, at: usize, bytes: &mut [u8]) {
        self.memory.load(at, bytes);
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        self.memory.store(at, bytes);
        lock(&self.marks).now.extend(Self::pages(at, bytes.len()));
    }

    fn store_later(&self, at: usize, bytes: &[u8]) {
        self.memory.store(at, bytes);
        lock(&self.marks).later.extend(Self::pages(at, bytes.len()));
    }

    fn store_here(&self, at: usize, bytes: &[u8]) {
        self.memory.store(at, bytes);
    }

    fn reserve(&self, at: usize, len: usize) -> bool {
        // The file may hold reply slots of whoever had the place before.
        lock(&self.marks).now.extend(Self::pages(at, len));
        self.memory.reserve(at, len)
    }

    fn must_persist(&self) -> bool {
        true
    }

    fn persist(&self) -> Result<(), Errno> {
        self.write(false)
    }

    fn give_back(&self, at: usize, len: usize) {
        self.memory.give_back(at, len);
        lock(&self.marks).now.extend(Self::pages(at, len));
    }

    fn grow(&self) -> bool {
        self.memory.grow()
    }

    fn len(&self) -> usize {
        self.memory.len()
    }
}
