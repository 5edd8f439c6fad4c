//! The known files: open descriptors by handle, which all storage threads share.
//!
//! An `O_PATH` descriptor keeps a file reachable when it is renamed. The table is bounded. When it
//! is full, it drops files that were not used since it last looked at them (the clock algorithm),
//! but never files that are registered as open.

use super::PosixFiles;
use super::direct::DirectFd;
use super::sys::{self, Done};
use crate::storage::cache_gate::Gate;
use rustix::fs::OFlags;
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tidegate_forward::Errno;
use tidegate_sched::Direction;
use tidegate_wire::{Caller, Handle};

/// The number of buckets of the table. Each bucket has a lock of its own.
const BUCKETS: usize = 16;

/// A file that can be reached by its handle.
pub(super) struct Known {
    /// The handle of the file.
    pub(super) handle: Handle,
    /// The type of the file, as the bits of a mode.
    pub(super) kind: u32,
    /// A descriptor with `O_PATH`.
    pub(super) path: OwnedFd,
    /// Descriptors that read and write its data, opened when needed.
    pub(super) data: Mutex<DataFds>,
    /// Keeps direct writes apart from calls through the page cache.
    pub(super) gate: Arc<Gate>,
    used: AtomicBool,
    open: AtomicBool,
}

/// Descriptors of a file's data. They outlive changes of the file's mode.
#[derive(Default)]
pub(super) struct DataFds {
    /// Reads data (and syncs a directory).
    pub(super) read: Option<Arc<OwnedFd>>,
    /// Writes data.
    pub(super) write: Option<Arc<OwnedFd>>,
    /// Descriptors for direct I/O: one for reads, one for writes.
    pub(super) direct: [DirectFd; 2],
}

/// All known files.
pub(super) struct HandleTable {
    buckets: Vec<Mutex<Bucket>>,
    bucket_max: usize,
    tidied: AtomicUsize,
}

#[derive(Default)]
struct Bucket {
    files: HashMap<Handle, Arc<Known>>,
    /// The keys of `files`, each once. The hand of the clock is at the front.
    order: VecDeque<Handle>,
}

impl Known {
    /// Whether the file is registered as open.
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Registers the file as open or as no longer open.
    pub(super) fn set_open(&self, open: bool) {
        self.open.store(open, Ordering::Relaxed);
    }

    /// The file's data descriptors.
    pub(super) fn data(&self) -> MutexGuard<'_, DataFds> {
        // Only whole assignments happen under the lock.
        self.data
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl PosixFiles {
    /// The descriptor that reads a file's data, if it is open. Makes no system call.
    pub(crate) fn open_read_fd(&self, handle: Handle) -> Option<Arc<OwnedFd>> {
        let known = self.export.table.find(handle)?;
        let data = known.data();
        data.read.clone()
    }

    /// The descriptor that reads or writes a file's data. A thread that writes by it must first be
    /// prepared by [`PosixFiles::write_as`].
    pub(crate) fn data_fd(&self, handle: Handle, direction: Direction) -> Done<Arc<OwnedFd>> {
        let known = self.export.known(handle)?;
        match direction {
            Direction::Read if known.kind == sys::DIRECTORY => Err(Errno::EISDIR.into()),
            Direction::Read => self.read_fd(&known),
            Direction::Write => self.write_fd(&known),
        }
    }

    /// A descriptor that reads the file (or syncs a directory), opened with the forwarder's own
    /// rights.
    pub(super) fn read_fd(&self, known: &Known) -> Done<Arc<OwnedFd>> {
        if let Some(fd) = &known.data().read {
            return Ok(fd.clone());
        }
        if !matches!(known.kind, sys::REGULAR | sys::DIRECTORY) {
            return Err(Errno::EINVAL.into());
        }
        let flags = match known.kind {
            sys::REGULAR => OFlags::RDONLY | self.export.bypass.flags(),
            _ => OFlags::RDONLY,
        };
        let fd = self.export.reopen_widened(known, flags)?;
        let fd = Arc::new(self.export.without_read_ahead(fd));
        Ok(known.data().read.get_or_insert(fd).clone())
    }

    /// A descriptor that writes the file, opened with the forwarder's own rights.
    pub(super) fn write_fd(&self, known: &Known) -> Done<Arc<OwnedFd>> {
        if let Some(fd) = &known.data().write {
            return Ok(fd.clone());
        }
        match known.kind {
            sys::REGULAR => {}
            sys::DIRECTORY => return Err(Errno::EISDIR.into()),
            _ => return Err(Errno::EINVAL.into()),
        }
        let fd = self
            .export
            .reopen_widened(known, OFlags::WRONLY | self.export.bypass.flags())?;
        let fd = self.export.bypass.for_writing(fd)?;
        let fd = Arc::new(self.export.without_read_ahead(fd));
        Ok(known.data().write.get_or_insert(fd).clone())
    }

    /// The descriptor that writes a file's data. The calling thread is prepared to use it for the
    /// writer of its job.
    pub(super) fn writing_fd(&self, known: &Known) -> Done<Arc<OwnedFd>> {
        let fd = self.write_fd(known)?;
        self.write_as(self.writer.as_deref())?;
        Ok(fd)
    }

    /// Prepares the calling thread to write data for a user; None being the forwarder itself.
    pub(crate) fn write_as(&self, writer: Option<&Caller>) -> Done<()> {
        self.export.own.write_as(writer)
    }

    /// Ends what [`PosixFiles::write_as`] began.
    pub(crate) fn act_as_itself(&self) -> Done<()> {
        self.export.own.act_as_itself()
    }
}

impl HandleTable {
    /// A table for about `max` files.
    pub(super) fn new(max: usize) -> HandleTable {
        HandleTable {
            buckets: (0..BUCKETS).map(|_| Mutex::default()).collect(),
            bucket_max: (max / BUCKETS).max(4),
            tidied: AtomicUsize::new(0),
        }
    }

    /// The file of a handle, if it is known.
    pub(super) fn find(&self, handle: Handle) -> Option<Arc<Known>> {
        let known = self.bucket(handle).files.get(&handle).cloned()?;
        known.used.store(true, Ordering::Relaxed);
        Some(known)
    }

    /// Adds a file by its `O_PATH` descriptor. A file that is known already stays as it is.
    pub(super) fn insert(&self, handle: Handle, kind: u32, path: OwnedFd) -> Arc<Known> {
        let mut bucket = self.bucket(handle);
        if let Some(known) = bucket.files.get(&handle) {
            return known.clone();
        }
        let known = Arc::new(Known {
            handle,
            kind,
            path,
            data: Mutex::default(),
            gate: Arc::default(),
            used: AtomicBool::new(true),
            open: AtomicBool::new(false),
        });
        bucket.files.insert(handle, known.clone());
        bucket.order.push_back(handle);
        let evicted = bucket.evict_over(self.bucket_max);
        drop(bucket);
        // Descriptors are closed outside the lock.
        drop(evicted);
        known
    }

    /// Drops a file that has lost its last name, unless it is open.
    pub(super) fn forget(&self, handle: Handle) {
        let mut bucket = self.bucket(handle);
        if bucket
            .files
            .get(&handle)
            .is_some_and(|known| !known.is_open())
        {
            let forgotten = bucket.files.remove(&handle);
            bucket.order.retain(|other| *other != handle);
            drop(bucket);
            drop(forgotten);
        }
    }

    /// Drops a quarter of the files that may be dropped, because the process is short of
    /// descriptors.
    pub(super) fn shrink(&self) {
        for bucket in &self.buckets {
            let mut bucket = lock(bucket);
            let keep = bucket.files.len() * 3 / 4;
            let evicted = bucket.evict_over(keep);
            drop(bucket);
            drop(evicted);
        }
    }

    /// The files of the next bucket that are not open and were not used since that bucket's last
    /// turn.
    pub(super) fn idle(&self) -> Vec<Arc<Known>> {
        let turn = self.tidied.fetch_add(1, Ordering::Relaxed) % BUCKETS;
        let bucket = lock(&self.buckets[turn]);
        let idle =
            |known: &&Arc<Known>| !known.is_open() && !known.used.swap(false, Ordering::Relaxed);
        bucket.files.values().filter(idle).cloned().collect()
    }

    fn bucket(&self, handle: Handle) -> MutexGuard<'_, Bucket> {
        // Neighbouring inodes go to different buckets.
        lock(&self.buckets[handle.inode as usize % BUCKETS])
    }
}

impl Bucket {
    /// Drops files until at most `max` are left, or all others are open.
    fn evict_over(&mut self, max: usize) -> Vec<Arc<Known>> {
        let mut evicted = Vec::new();
        // Each file gets a second chance once, so two rounds find all that can go.
        let mut turns = self.order.len() * 2;
        while self.files.len() > max && turns > 0 {
            turns -= 1;
            let Some(handle) = self.order.pop_front() else {
                break;
            };
            let known = &self.files[&handle];
            if known.is_open() || known.used.swap(false, Ordering::Relaxed) {
                self.order.push_back(handle);
            } else {
                evicted.extend(self.files.remove(&handle));
            }
        }
        evicted
    }
}

fn lock(bucket: &Mutex<Bucket>) -> MutexGuard<'_, Bucket> {
    // Nothing under the lock panics half-way through a change.
    bucket
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fd() -> OwnedFd {
        std::fs::File::open("/").expect("the root exists").into()
    }

    #[test]
    fn the_table_is_bounded_and_open_files_stay() {
        let table = HandleTable::new(64);
        let handle = |inode| Handle { inode, birth: 1 };
        for inode in 0..10 {
            table
                .insert(handle(inode * 16), 0, fd())
                .set_open(inode == 3);
        }
        let left: Vec<u64> = (0..10)
            .filter(|i| table.find(handle(i * 16)).is_some())
            .collect();
        assert_eq!(left.len(), 4);
        assert!(left.contains(&3) && left.contains(&9), "{left:?}");
        table.forget(handle(3 * 16));
        assert!(table.find(handle(3 * 16)).is_some());
        table.find(handle(3 * 16)).expect("known").set_open(false);
        table.forget(handle(3 * 16));
        assert!(table.find(handle(3 * 16)).is_none());
    }

    #[test]
    fn a_second_insert_keeps_the_first_descriptor() {
        let table = HandleTable::new(64);
        let handle = Handle { inode: 1, birth: 2 };
        let first = table.insert(handle, 0, fd());
        assert!(Arc::ptr_eq(&first, &table.insert(handle, 0, fd())));
        assert!(table.find(Handle { inode: 1, birth: 3 }).is_none());
    }
}
