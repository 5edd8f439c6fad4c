//! The known files: open descriptors by handle, which all storage threads share.
//!
//! An `O_PATH` descriptor keeps a file reachable when it is renamed. The table has room for so many
//! descriptors. When it is full, those of files that were not used since it last looked at them go
//! (the clock algorithm). Of a file that is registered as open the table then keeps the place, and
//! the file is opened again when it is next used (`parking.rs`).

use super::PosixFiles;
use super::descriptor::Descriptor;
use super::direct::{Direct, DirectFd};
use super::place::Place;
use super::sys::{self, Done};
use crate::storage::cache_gate::Gate;
use rustix::fs::OFlags;
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use tidegate_forward::Errno;
use tidegate_sched::Direction;
use tidegate_wire::{Caller, Handle};

/// The number of buckets of the table. Each bucket has a lock of its own.
const BUCKETS: usize = 16;

/// The most files that are not open, and of which the table keeps the place alone.
const PLACES_MAX: usize = 16_384;

/// For how many calls nothing is looked for after a look that found nothing.
const FUTILE: isize = 64;

/// A file that can be reached by its handle.
pub(super) struct Known {
    /// The handle of the file.
    pub(super) handle: Handle,
    /// The type of the file, as the bits of a mode.
    pub(super) kind: u32,
    /// A descriptor with `O_PATH`.
    pub(super) path: Descriptor,
    /// Descriptors that read and write its data, opened when needed.
    data: Mutex<DataFds>,
    /// Keeps direct writes apart from calls through the page cache.
    pub(super) gate: Arc<Gate>,
    used: AtomicBool,
    open: AtomicBool,
    /// Whether the kernel may hold bytes back, and tell their loss to the descriptor that wrote
    /// them.
    unsynced: AtomicBool,
    /// Shared by syncs, held alone by what stands for one. Each takes the error of the same
    /// description, so a sync must not overtake one that has an error to leave behind.
    pub(super) syncing: RwLock<()>,
}

/// Descriptors of a file's data. They outlive changes of the file's mode.
#[derive(Default)]
pub(super) struct DataFds {
    /// Reads data (and syncs a directory).
    pub(super) read: Option<Arc<Descriptor>>,
    /// Writes data.
    pub(super) write: Option<Arc<Descriptor>>,
    /// Descriptors for direct I/O: one for reads, one for writes.
    pub(super) direct: [DirectFd; 2],
}

/// The descriptors that may have written a file. Each may be told what no other one is.
pub(super) struct Writers {
    /// Through the page cache, or past it at any place.
    pub(super) buffered: Option<Arc<Descriptor>>,
    pub(super) direct: Option<Arc<Direct>>,
}

/// All known files.
pub(super) struct HandleTable {
    buckets: Vec<Mutex<Bucket>>,
    fds_max: usize,
    fds: Arc<AtomicUsize>,
    /// Whether the process has had no descriptor left.
    short: AtomicBool,
    /// For how many calls more none is looked for that could be closed.
    futile: AtomicIsize,
    /// The number of open files of which only the place is kept.
    parked: AtomicUsize,
    looked: AtomicUsize,
    tidied: AtomicUsize,
}

#[derive(Default)]
struct Bucket {
    files: HashMap<Handle, Arc<Known>>,
    /// The keys of `files`, each once. The hand of the clock is at the front.
    order: VecDeque<Handle>,
    /// Files without a descriptor; none of them is in `files`.
    places: HashMap<Handle, Parked>,
    /// Those of `places` that are not open, the oldest first; others too.
    closed: VecDeque<Handle>,
}

struct Parked {
    place: Place,
    open: bool,
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

    /// Whether the loss of bytes may be told to the file's descriptor and to no other.
    pub(super) fn is_unsynced(&self) -> bool {
        self.unsynced.load(Ordering::Relaxed)
    }

    /// Notes that a sync, or the write-back before a close, begins: what is written from now on is
    /// unsynced again. The caller says with [`Known::set_unsynced`] if the sync has failed.
    pub(super) fn sync_begins(&self) -> Writers {
        let data = self.data();
        // What is written just now may come after the sync.
        if data.is_idle() {
            self.unsynced.store(false, Ordering::Relaxed);
        }
        let direct = &data.direct[Direction::Write as usize];
        Writers {
            buffered: data.write.clone(),
            direct: direct.descriptor().cloned(),
        }
    }

    /// Notes that the kernel may hold bytes back.
    pub(super) fn set_unsynced(&self) {
        self.unsynced.store(true, Ordering::Relaxed);
    }

    /// The descriptor that writes the file's data, `made` if there is none yet. `unsynced` says
    /// whether the kernel may hold back what the caller writes by it.
    fn writing(&self, unsynced: bool, made: Option<Arc<Descriptor>>) -> Option<Arc<Descriptor>> {
        let mut data = self.data();
        data.write = data.write.take().or(made);
        if unsynced && data.write.is_some() {
            self.set_unsynced();
        }
        data.write.clone()
    }

    /// What there is for direct I/O; `made` if nothing is known yet. `unsynced` says whether what
    /// the caller writes by it may be held back.
    pub(super) fn direct(
        &self,
        direction: Direction,
        unsynced: bool,
        made: Option<Arc<Direct>>,
    ) -> DirectFd {
        let mut data = self.data();
        let found = &mut data.direct[direction as usize];
        if let (DirectFd::Unknown, Some(made)) = (&*found, made) {
            *found = DirectFd::Open(made);
        }
        if unsynced && direction == Direction::Write && found.descriptor().is_some() {
            self.set_unsynced();
        }
        found.clone()
    }

    /// Notes that the file does not take direct I/O.
    pub(super) fn refuse_direct(&self, direction: Direction) {
        let found = &mut self.data().direct[direction as usize];
        let wrote = found.descriptor().filter(|_| direction == Direction::Write);
        *found = DirectFd::Refused(wrote.cloned());
    }

    /// Takes the file's data descriptors, unless a call uses one or bytes are unsynced.
    pub(super) fn take_idle_data(&self) -> Option<DataFds> {
        let mut data = self.data();
        let idle = data.is_idle() && !self.is_unsynced();
        idle.then(|| std::mem::take(&mut *data))
    }
}

impl DataFds {
    /// Whether there is no descriptor.
    pub(super) fn is_empty(&self) -> bool {
        let mut direct = self.direct.iter().filter_map(DirectFd::descriptor);
        self.read.is_none() && self.write.is_none() && direct.next().is_none()
    }

    /// Whether no call uses a descriptor.
    fn is_idle(&self) -> bool {
        let shared = match (&self.read, &self.write) {
            (Some(read), Some(write)) => usize::from(Arc::ptr_eq(read, write)),
            _ => 0,
        };
        let both = [&self.read, &self.write].into_iter().flatten();
        let used = both.map(|fd| Arc::strong_count(fd) - shared);
        let direct = self.direct.iter().filter_map(DirectFd::descriptor);
        used.chain(direct.map(Arc::strong_count))
            .all(|count| count == 1)
    }
}

impl PosixFiles {
    /// The descriptor that reads a file's data, if it is open. Makes no system call.
    pub(crate) fn open_read_fd(&self, handle: Handle) -> Option<Arc<Descriptor>> {
        let known = self.export.table.find(handle)?;
        let data = known.data();
        data.read.clone()
    }

    /// The descriptor that reads or writes a file's data. A thread that writes by it must first be
    /// prepared by [`PosixFiles::write_as`].
    pub(crate) fn data_fd(&self, handle: Handle, direction: Direction) -> Done<Arc<Descriptor>> {
        let known = self.export.known(handle)?;
        match direction {
            Direction::Read if known.kind == sys::DIRECTORY => Err(Errno::EISDIR.into()),
            Direction::Read => self.read_fd(&known),
            Direction::Write => self.write_fd(&known),
        }
    }

    /// A descriptor that reads the file (or syncs a directory), opened with the forwarder's own
    /// rights.
    pub(super) fn read_fd(&self, known: &Known) -> Done<Arc<Descriptor>> {
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
        let fd = Arc::new(self.export.for_data(fd));
        Ok(known.data().read.get_or_insert(fd).clone())
    }

    /// A descriptor that writes the file, opened with the forwarder's own rights.
    pub(super) fn write_fd(&self, known: &Known) -> Done<Arc<Descriptor>> {
        // Past the page cache, the process behind a mount may still hold bytes back.
        let unsynced = !self.bypasses() || !self.export.is_local;
        if let Some(fd) = known.writing(unsynced, None) {
            return Ok(fd);
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
        let fd = Arc::new(self.export.for_data(fd));
        let fd = known.writing(unsynced, Some(fd));
        fd.ok_or(Errno::EIO.into())
    }

    /// The descriptor that writes a file's data. The calling thread is prepared to use it for the
    /// writer of its job.
    pub(super) fn writing_fd(&self, known: &Known) -> Done<Arc<Descriptor>> {
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
    /// A table with room for so many descriptors. Those that calls use at the moment may be more.
    pub(super) fn new(fds_max: usize) -> HandleTable {
        HandleTable {
            buckets: (0..BUCKETS).map(|_| Mutex::default()).collect(),
            fds_max,
            fds: Arc::default(),
            short: AtomicBool::new(false),
            futile: AtomicIsize::new(0),
            parked: AtomicUsize::new(0),
            looked: AtomicUsize::new(0),
            tidied: AtomicUsize::new(0),
        }
    }

    /// Counts a descriptor of a known file.
    pub(super) fn counted(&self, fd: OwnedFd) -> Descriptor {
        Descriptor::new(fd, &self.fds)
    }

    /// How many descriptors of known files are open.
    pub(super) fn fds(&self) -> usize {
        self.fds.load(Ordering::Relaxed)
    }

    /// How many descriptors of known files must be closed now.
    pub(super) fn too_many(&self) -> usize {
        let fds = self.fds();
        if fds > self.fds_max && self.futile.load(Ordering::Relaxed) > 0 {
            self.futile.fetch_sub(1, Ordering::Relaxed);
            return 0;
        }
        match self.short.load(Ordering::Relaxed) {
            true => (fds / 4).max(1),
            false => fds.saturating_sub(self.fds_max),
        }
    }

    /// The most descriptors.
    pub(super) fn fds_max(&self) -> usize {
        self.fds_max
    }

    /// Notes that the process has no descriptor left, or that enough were closed.
    pub(super) fn set_short(&self, short: bool) {
        self.futile.store(0, Ordering::Relaxed);
        self.short.store(short, Ordering::Relaxed);
    }

    /// Notes that no descriptor could be closed: the next calls need not look again.
    pub(super) fn wait_with_room(&self) {
        self.futile.store(FUTILE, Ordering::Relaxed);
    }

    /// The number of open files of which only the place is kept.
    pub(super) fn parked(&self) -> usize {
        self.parked.load(Ordering::Relaxed)
    }

    /// The file of a handle, if it has a descriptor.
    pub(super) fn find(&self, handle: Handle) -> Option<Arc<Known>> {
        let known = self.bucket(handle).files.get(&handle).cloned()?;
        known.used.store(true, Ordering::Relaxed);
        Some(known)
    }

    /// The same for a look that is no use of the file.
    pub(super) fn look(&self, handle: Handle) -> Option<Arc<Known>> {
        self.bucket(handle).files.get(&handle).cloned()
    }

    /// All files that have a descriptor and are not open.
    pub(super) fn not_open(&self) -> Vec<Arc<Known>> {
        let mut found = Vec::new();
        for bucket in &self.buckets {
            let bucket = lock(bucket);
            let files = bucket.files.values();
            found.extend(files.filter(|known| !known.is_open()).cloned());
        }
        found
    }

    /// The place of a file that has none.
    pub(super) fn place(&self, handle: Handle) -> Option<Place> {
        let bucket = self.bucket(handle);
        bucket.places.get(&handle).map(|it| it.place.clone())
    }

    /// Changes the place of a file that has none.
    pub(super) fn moved(&self, handle: Handle, place: Place) {
        if let Some(parked) = self.bucket(handle).places.get_mut(&handle) {
            parked.place = place;
        }
    }

    /// Adds a file by its `O_PATH` descriptor. A file that is known already stays as it is.
    pub(super) fn insert(&self, handle: Handle, kind: u32, path: OwnedFd) -> Arc<Known> {
        self.insert_in(&mut self.bucket(handle), handle, kind, path)
    }

    /// Does the same for a file that the table knows, if by its place alone. While the caller holds
    /// what is returned, and until the table has looked for the file's place anew, the file keeps
    /// its descriptor.
    pub(super) fn hold(&self, handle: Handle, kind: u32, path: OwnedFd) -> Option<Arc<Known>> {
        let mut bucket = self.bucket(handle);
        let known = bucket.files.contains_key(&handle) || bucket.places.contains_key(&handle);
        known.then(|| self.insert_in(&mut bucket, handle, kind, path))
    }

    fn insert_in(
        &self,
        bucket: &mut Bucket,
        handle: Handle,
        kind: u32,
        path: OwnedFd,
    ) -> Arc<Known> {
        if let Some(known) = bucket.files.get(&handle) {
            known.used.store(true, Ordering::Relaxed);
            return known.clone();
        }
        let parked = bucket.places.remove(&handle);
        let open = parked.is_some_and(|it| it.open);
        if open {
            self.parked.fetch_sub(1, Ordering::Relaxed);
        }
        let known = Arc::new(Known {
            handle,
            kind,
            path: self.counted(path),
            data: Mutex::default(),
            gate: Arc::default(),
            used: AtomicBool::new(true),
            open: AtomicBool::new(open),
            unsynced: AtomicBool::new(false),
            syncing: RwLock::default(),
        });
        bucket.files.insert(handle, known.clone());
        bucket.order.push_back(handle);
        known
    }

    /// Registers a file as no longer open.
    pub(super) fn closed(&self, handle: Handle) {
        let mut bucket = self.bucket(handle);
        if let Some(known) = bucket.files.get(&handle) {
            known.set_open(false);
        }
        if bucket.places.get(&handle).is_some_and(|it| it.open) {
            bucket.places.remove(&handle);
            self.parked.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Drops a file that has lost its last name, unless it is open. False if it is.
    pub(super) fn forget(&self, handle: Handle) -> bool {
        let mut bucket = self.bucket(handle);
        let parked = bucket.places.get(&handle).is_some_and(|it| it.open);
        let known = bucket.files.get(&handle);
        if parked || known.is_some_and(|known| known.is_open()) {
            return false;
        }
        let forgotten = match known.is_some() {
            true => bucket.remove(handle),
            false => None,
        };
        bucket.places.remove(&handle);
        drop(bucket);
        // Descriptors are closed outside the lock.
        drop(forgotten);
        true
    }

    /// Files that were not used since the last look at them and that no call uses, `count` at most.
    pub(super) fn unused(&self, count: usize) -> Vec<Arc<Known>> {
        let mut found = Vec::new();
        for _ in 0..BUCKETS {
            let turn = self.looked.fetch_add(1, Ordering::Relaxed) % BUCKETS;
            lock(&self.buckets[turn]).unused(count, &mut found);
            if found.len() == count {
                break;
            }
        }
        found
    }

    /// Drops a file that nothing else uses. Its place, if given, is kept. False if it was used
    /// meanwhile.
    pub(super) fn park(&self, known: Arc<Known>, place: Option<Place>) -> bool {
        let (handle, open) = (known.handle, known.is_open());
        let mut bucket = self.bucket(handle);
        let is_it = |it: &Arc<Known>| Arc::ptr_eq(it, &known) && Arc::strong_count(it) == 2;
        let unused = bucket.files.get(&handle).is_some_and(is_it)
            && known.is_open() == open
            && !known.used.load(Ordering::Relaxed);
        // Who is inside the gate must meet whoever uses the file next.
        let unused = unused && Arc::strong_count(&known.gate) == 1;
        if !unused || open && (place.is_none() || !known.data().is_empty()) {
            return false;
        }
        let Some(data) = known.take_idle_data() else {
            return false;
        };
        let dropped = (bucket.remove(handle), data);
        if let Some(place) = place {
            bucket.places.insert(handle, Parked { place, open });
            match open {
                true => drop(self.parked.fetch_add(1, Ordering::Relaxed)),
                false => bucket.keep_closed(handle),
            }
        }
        drop(bucket);
        drop(dropped);
        true
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
    fn unused(&mut self, count: usize, found: &mut Vec<Arc<Known>>) {
        for _ in 0..self.order.len() {
            if found.len() == count {
                break;
            }
            let Some(handle) = self.order.pop_front() else {
                break;
            };
            self.order.push_back(handle);
            let known = &self.files[&handle];
            // A use that is not over stays noted: whoever parks the file just now looks for it.
            let used = Arc::strong_count(known) > 1 || known.used.swap(false, Ordering::Relaxed);
            if !used {
                found.push(known.clone());
            }
        }
    }

    fn remove(&mut self, handle: Handle) -> Option<Arc<Known>> {
        // Most were looked at last.
        let at = self.order.iter().rposition(|other| *other == handle);
        at.and_then(|at| self.order.remove(at));
        self.files.remove(&handle)
    }

    /// Bounds the places of files that are not open.
    fn keep_closed(&mut self, handle: Handle) {
        self.closed.push_back(handle);
        while self.closed.len() > PLACES_MAX / BUCKETS {
            let oldest = self.closed.pop_front();
            if let Some(oldest) = oldest
                && self.places.get(&oldest).is_some_and(|it| !it.open)
            {
                self.places.remove(&oldest);
            }
        }
    }
}

fn lock(bucket: &Mutex<Bucket>) -> MutexGuard<'_, Bucket> {
    // Nothing under the lock panics half-way through a change.
    bucket
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests;
