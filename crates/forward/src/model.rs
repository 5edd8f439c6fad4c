//! A file system and seat tables in memory, for tests and the simulator.
//!
//! [`Disk`] is what all forwarders share. Each forwarder process has its own [`ModelFiles`] over
//! it, which knows handles only after it met them, and its own view of each [`ModelTable`]. Both
//! hang on the process's [`Switch`]: from the n-th call on, nothing that the process does has an
//! effect any more. A process killed at every n in turn is one killed between any two of its steps.

mod disk;
mod listing;
mod model_data;
mod model_files;
mod model_names;
mod mount;
mod persisted;

pub use disk::{Copies, Disk};
pub use model_files::ModelFiles;
pub use mount::{BackEnd, Mount, Way};
pub use persisted::{PersistedTable, TableFence, TableFile};

use crate::back_end_files::{Access, Errno};
use crate::reply_table::{SEGMENT_BYTES, SEGMENTS_MAX, SeatTable};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec;
use std::vec::Vec;

/// What every call answers after the process was killed. Nobody is there to read it.
pub const KILLED: Access = Access::Errno(Errno(u16::MAX));

/// Kills a process after a number of calls. Clones are the same switch.
#[derive(Clone, Default)]
pub struct Switch(Arc<Countdown>);

struct Countdown {
    left: AtomicU64,
    torn: AtomicBool,
}

impl Default for Countdown {
    fn default() -> Self {
        Countdown {
            left: AtomicU64::new(u64::MAX),
            torn: AtomicBool::new(false),
        }
    }
}

impl Switch {
    /// A process that is never killed.
    pub fn new() -> Switch {
        Switch::default()
    }

    /// Lets `calls` more calls to files and stores to tables take effect, then none. With `torn`,
    /// the first store that does not is done by half.
    pub fn fail_after(&self, calls: u64, torn: bool) {
        self.0.torn.store(torn, Ordering::Relaxed);
        self.0.left.store(calls, Ordering::Relaxed);
    }

    /// Whether the process is dead.
    pub fn is_killed(&self) -> bool {
        self.0.left.load(Ordering::Relaxed) == 0
    }

    /// Counts a call; false if the process is dead.
    fn call(&self) -> bool {
        let left = self.0.left.load(Ordering::Relaxed);
        self.0.left.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0
    }

    fn tears(&self) -> bool {
        self.0.torn.swap(false, Ordering::Relaxed)
    }
}

/// The table of one seat: memory that all processes map. A view belongs to one process.
#[derive(Clone)]
pub struct ModelTable {
    pages: Arc<Mutex<BTreeMap<usize, Vec<u8>>>>,
    segments: Arc<AtomicUsize>,
    switch: Switch,
}

const PAGE: usize = 4096;

impl ModelTable {
    /// An empty table, seen by the process of `switch`.
    pub fn new(switch: &Switch) -> ModelTable {
        ModelTable {
            pages: Arc::default(),
            segments: Arc::new(AtomicUsize::new(1)),
            switch: switch.clone(),
        }
    }

    /// The same table, seen by another process.
    pub fn seen_by(&self, switch: &Switch) -> ModelTable {
        ModelTable {
            pages: self.pages.clone(),
            segments: self.segments.clone(),
            switch: switch.clone(),
        }
    }

    /// Pages that hold something or did.
    #[cfg(test)]
    pub(crate) fn pages_used(&self) -> usize {
        lock(&self.pages).len()
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(
            at + bytes.len() <= self.len(),
            "a store past the table's end"
        );
        let mut pages = lock(&self.pages);
        let mut done = 0;
        while done < bytes.len() {
            let (page, from) = ((at + done) / PAGE, (at + done) % PAGE);
            let len = (PAGE - from).min(bytes.len() - done);
            let page = pages.entry(page).or_insert_with(|| vec![0; PAGE]);
            page[from..][..len].copy_from_slice(&bytes[done..][..len]);
            done += len;
        }
    }
}

impl SeatTable for ModelTable {
    fn load(&self, at: usize, bytes: &mut [u8]) {
        assert!(
            at + bytes.len() <= self.len(),
            "a load past the table's end"
        );
        let pages = lock(&self.pages);
        let mut done = 0;
        while done < bytes.len() {
            let (page, from) = ((at + done) / PAGE, (at + done) % PAGE);
            let len = (PAGE - from).min(bytes.len() - done);
            match pages.get(&page) {
                Some(page) => bytes[done..][..len].copy_from_slice(&page[from..][..len]),
                None => bytes[done..][..len].fill(0),
            }
            done += len;
        }
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        if self.switch.call() {
            self.write(at, bytes);
        } else if self.switch.tears() {
            self.write(at, &bytes[..bytes.len() / 2]);
        }
    }

    fn give_back(&self, at: usize, len: usize) {
        assert!(at + len <= self.len(), "room past the table's end");
        if self.switch.call() {
            lock(&self.pages).retain(|page, _| page * PAGE < at || (page + 1) * PAGE > at + len);
        }
    }

    fn grow(&self) -> bool {
        let more = self.segments.load(Ordering::Relaxed) + 1;
        if more > SEGMENTS_MAX || !self.switch.call() {
            return false;
        }
        self.segments.store(more, Ordering::Relaxed);
        true
    }

    fn len(&self) -> usize {
        self.segments.load(Ordering::Relaxed) * SEGMENT_BYTES
    }
}

/// Nothing here is left half done by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
