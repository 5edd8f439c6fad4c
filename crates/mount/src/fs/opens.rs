//! Open files and directories, by the number that the kernel gives back with each request.

use super::forwarders::Held;
use crate::fuse::Errno;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use tidegate_client::Collective;
use tidegate_client::collective::{HintCounts, Hints};
use tidegate_client::wire::{Caller, Handle};

/// An open file.
pub(super) struct OpenFile {
    /// Its number.
    pub(super) number: u64,
    pub(super) handle: Handle,
    /// The application that opened it; all its data operations count for that one.
    pub(super) app: AtomicU64,
    /// Who opened it. The rights to read and write were checked then, and do not change.
    pub(super) caller: Option<Caller>,
    /// Hints of collective operations from an MPI program.
    pub(super) hints: Mutex<Hints>,
    /// Whether there are hints. Requests of programs without hints take no lock.
    pub(super) is_hinted: AtomicBool,
    /// Keeps it open at the forwarders.
    pub(super) held: Box<dyn Held>,
}

impl OpenFile {
    pub(super) fn app(&self) -> u64 {
        self.app.load(Ordering::Relaxed)
    }

    /// The collective operation to which a request for this range belongs.
    pub(super) fn collective(&self, offset: u64, len: u64) -> Option<Collective> {
        let is_hinted = self.is_hinted.load(Ordering::Relaxed);
        let mut hints =
            is_hinted.then(|| self.hints.lock().unwrap_or_else(PoisonError::into_inner));
        hints.as_mut()?.find(offset, len)
    }

    pub(super) fn change_hints(&self, change: impl FnOnce(&mut Hints)) -> HintCounts {
        let mut hints = self.hints.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut hints);
        self.is_hinted.store(!hints.is_empty(), Ordering::Relaxed);
        hints.counts()
    }
}

/// The open files, or the open directories. The kernel's limits on open files bound their number.
pub(super) struct Opens<T> {
    table: RwLock<HashMap<u64, Arc<T>>>,
    number_next: AtomicU64,
}

impl<T> Opens<T> {
    pub(super) fn new() -> Self {
        Self {
            table: RwLock::default(),
            number_next: AtomicU64::new(1),
        }
    }

    /// Stores what `make` returns for the next number, and returns that number.
    pub(super) fn insert(&self, make: impl FnOnce(u64) -> T) -> u64 {
        let number = self.number_next.fetch_add(1, Ordering::Relaxed);
        let made = Arc::new(make(number));
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.insert(number, made);
        number
    }

    pub(super) fn find(&self, number: u64) -> Result<Arc<T>, Errno> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.get(&number).cloned().ok_or(Errno::BADF)
    }

    pub(super) fn remove(&self, number: u64) -> Option<Arc<T>> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.remove(&number)
    }

    pub(super) fn is_empty(&self) -> bool {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.is_empty()
    }

    /// Closes everything, because the kernel drops its last releases with the connection.
    pub(super) fn clear(&self) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let closed = std::mem::take(&mut *table);
        drop(table);
        drop(closed);
    }
}
