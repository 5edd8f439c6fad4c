//! The memory of payload buffers: the forwarder's, or memory that a client shares.
//!
//! The forwarder decides which request gets a payload buffer, and numbers the buffers; this module
//! gives each number its memory. A new request gets the most recently freed buffer of its size.
//! Sizes are powers of two, so that a freed buffer fits the next request of its kind while it is
//! still in the processor's cache.
//!
//! Storage reads files into a client's memory and writes files from it, so payload is not copied on
//! its way. The client can change that memory at any time. So this process never accesses it, and
//! has no reference to it; only the kernel gets its address (`raw_bytes`).

use super::pages::{Pages, Pipes};
use super::raw_bytes::RawBytes;
use crate::lock::lock;
use rustix::fs::SealFlags;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};
use tidegate_fabric::{Domain, Registration};
use tidegate_forward::{IoPart, SlotId};

/// The alignment and the least size of a payload buffer, in bytes: one page, which is the most that
/// any device asks for.
const ALIGN: usize = 4096;

/// The most bytes that one connection may share.
const SHARED_BYTES_MAX: u64 = 1 << 30;

/// The type of file system that memfds without huge pages belong to.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// The memory of one payload buffer. One side at a time works on it: the thread of its connection
/// while it receives or sends, a storage thread while a job runs. The lock is for jobs that share a
/// buffer.
pub type SlotBuffer = Arc<Mutex<Memory>>;

/// The bytes of a payload buffer, wherever they are.
pub enum Memory {
    /// Memory of the forwarder.
    Own(SlotBytes),
    /// Memory of a client. Storage passes its address to the kernel; this process never reads or
    /// writes the bytes itself.
    Shared {
        /// The mapping of the client's memory.
        memory: Arc<SharedMemory>,
        /// The offset of the first byte in the mapping.
        place: u64,
        /// The number of bytes, all of them within the mapping.
        len: u32,
    },
}

impl Memory {
    /// The bytes, if they are the forwarder's own; None if a client can change them.
    pub(crate) fn own(&self) -> Option<&[u8]> {
        match self {
            Memory::Own(bytes) => Some(bytes),
            Memory::Shared { .. } => None,
        }
    }

    /// The bytes, to receive payload into.
    ///
    /// # Panics
    ///
    /// Panics if a client can change them: payload of such requests is never received.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        match self {
            Memory::Own(bytes) => bytes,
            Memory::Shared { .. } => panic!("a client's memory is for the kernel alone"),
        }
    }

    /// The bytes for the kernel, which may write there while this process does not access them.
    pub(super) fn raw(&mut self) -> RawBytes<'_> {
        let (start, len) = match self {
            Memory::Own(bytes) => (bytes.start(), bytes.len),
            Memory::Shared { memory, place, len } => (memory.at(*place), *len as usize),
        };
        // SAFETY: they were allocated or mapped so, and live as long as this, which is borrowed. Of
        // a client's there are no references.
        unsafe { RawBytes::new(start, len) }
    }

    /// The pages that are sent instead of the bytes, if there are any.
    pub(crate) fn pages(&mut self) -> Option<&mut Pages> {
        match self {
            Memory::Own(bytes) => bytes.pages.as_mut(),
            Memory::Shared { .. } => None,
        }
    }

    /// Sets the pages to send instead of the bytes; None sends the bytes.
    pub(super) fn set_pages(&mut self, pages: Option<Pages>) {
        if let Memory::Own(bytes) = self {
            bytes.pages = pages;
        }
    }

    /// The index of these bytes in the ring's table of registered buffers, if they are registered.
    #[cfg(test)]
    pub(super) fn registered(&self) -> Option<u16> {
        match self {
            Memory::Own(bytes) => bytes.registered,
            Memory::Shared { .. } => None,
        }
    }
}

/// The payload buffers. Cheap to clone; all clones share one pool.
#[derive(Clone)]
pub struct Slots {
    pool: Arc<Mutex<Pool>>,
    pipes: Pipes,
}

struct Pool {
    used: BTreeMap<SlotId, Used>,
    used_bytes: u64,
    /// Freed buffers by power of two, the last freed one last.
    free: Vec<Vec<SlotBuffer>>,
    free_bytes: u64,
    bytes_max: u64,
}

struct Used {
    buffer: SlotBuffer,
    /// Its length in bytes; 0 if the bytes lie in a client's memory.
    bytes: u64,
    /// Set if the buffer is for one read, whose bytes go to a socket and are used for nothing else:
    /// their number.
    to_send: Option<u32>,
    /// Whether the loop's thread encrypts the bytes before they go to a socket.
    to_encrypt: bool,
}

impl Used {
    fn new(buffer: SlotBuffer, bytes: u64) -> Used {
        Used {
            buffer,
            bytes,
            to_send: None,
            to_encrypt: false,
        }
    }
}

impl Pool {
    /// Releases unused buffers until there is room for `bytes` more. Releases large ones first, so
    /// that the fewest must be allocated again.
    fn make_room(&mut self, bytes: u64) {
        let room = self.bytes_max.saturating_sub(self.used_bytes);
        let room = room.saturating_sub(bytes);
        for (power, class) in self.free.iter_mut().enumerate().rev() {
            while self.free_bytes > room && class.pop().is_some() {
                self.free_bytes -= 1 << power;
            }
        }
    }
}

impl Slots {
    /// An empty pool. Buffers in use and buffers kept for reuse have at most `bytes_max` bytes
    /// together. The forwarder, which counts the same bytes, opens no more than that.
    pub fn new(bytes_max: u64) -> Slots {
        let free = (0..usize::BITS as usize).map(|_| Vec::new()).collect();
        let pool = Pool {
            used: BTreeMap::new(),
            used_bytes: 0,
            free,
            free_bytes: 0,
            bytes_max,
        };
        Slots {
            pool: Arc::new(Mutex::new(pool)),
            pipes: Pipes::default(),
        }
    }

    /// The same, with so many pipes for pages at most.
    pub fn with_pipes(self, most: usize) -> Slots {
        self.pipes.bound(most);
        self
    }

    /// Gives the number a buffer of at least `len` bytes, which are not cleared. Replaces a buffer
    /// that it already has.
    pub fn open(&self, slot: SlotId, len: u32) -> SlotBuffer {
        let size = (len as usize).max(ALIGN).next_power_of_two();
        let reused = {
            let mut pool = self.lock();
            let found = pool.free[size.trailing_zeros() as usize].pop();
            match found {
                Some(_) => pool.free_bytes -= size as u64,
                None => pool.make_room(size as u64),
            }
            pool.used_bytes += size as u64;
            found
        };
        // Fresh memory is zeroed outside the lock.
        let buffer =
            reused.unwrap_or_else(|| Arc::new(Mutex::new(Memory::Own(SlotBytes::zeroed(size)))));
        let mut pool = self.lock();
        let used = Used::new(buffer.clone(), size as u64);
        if let Some(before) = pool.used.insert(slot, used) {
            pool.used_bytes -= before.bytes;
        }
        drop(pool);
        buffer
    }

    /// Gives the number bytes of a client's memory, which must hold `len` bytes at `place`.
    pub fn open_shared(&self, slot: SlotId, memory: Arc<SharedMemory>, place: u64, len: u32) {
        assert!(memory.holds(place, len), "the bytes lie in the memory");
        let bytes = Memory::Shared { memory, place, len };
        let buffer = Arc::new(Mutex::new(bytes));
        let mut pool = self.lock();
        if let Some(before) = pool.used.insert(slot, Used::new(buffer, 0)) {
            pool.used_bytes -= before.bytes;
        }
    }

    /// Notes that the buffer is for one read of `len` bytes, which go to a socket and are used for
    /// nothing else, so pages of the file can be sent instead.
    pub fn set_to_send(&self, slot: SlotId, len: u32) {
        if let Some(used) = self.lock().used.get_mut(&slot) {
            used.to_send = Some(len);
        }
    }

    /// The buffer, if it was so noted and the part of a job fills all of it.
    pub(super) fn to_send(&self, part: &IoPart) -> Option<SlotBuffer> {
        let pool = self.lock();
        let used = pool.used.get(&part.slot)?;
        let whole = part.slot_offset == 0 && used.to_send == Some(part.len);
        whole.then(|| used.buffer.clone())
    }

    /// Notes that the loop's thread encrypts the bytes of the buffer before they go to a socket.
    pub fn set_to_encrypt(&self, slot: SlotId) {
        if let Some(used) = self.lock().used.get_mut(&slot) {
            used.to_encrypt = true;
        }
    }

    /// Whether that was noted.
    pub(super) fn is_to_encrypt(&self, slot: SlotId) -> bool {
        (self.lock().used.get(&slot)).is_some_and(|used| used.to_encrypt)
    }

    /// The pipes for pages.
    pub(super) fn pipes(&self) -> &Pipes {
        &self.pipes
    }

    /// The client's memory in which the payload lies, if it does. To be called for requests that
    /// are finished, when no thread works on the bytes.
    pub fn memory_of(&self, slot: SlotId) -> Option<Arc<SharedMemory>> {
        let shared = |used: &Used| (used.bytes == 0).then(|| used.buffer.clone());
        let buffer = self.lock().used.get(&slot).and_then(shared)?;
        match &*lock_buffer(&buffer) {
            Memory::Own(_) => None,
            Memory::Shared { memory, .. } => Some(Arc::clone(memory)),
        }
    }

    /// The buffer with this number, or None if it has none.
    pub fn buffer(&self, slot: SlotId) -> Option<SlotBuffer> {
        self.lock().used.get(&slot).map(|used| used.buffer.clone())
    }

    /// Takes the buffer back. Ignores unknown numbers.
    pub fn free(&self, slot: SlotId) {
        let mut pool = self.lock();
        let Some(Used { buffer, bytes, .. }) = pool.used.remove(&slot) else {
            return;
        };
        pool.used_bytes -= bytes;
        // A buffer that is still in use (by a job of a closed session) is dropped by its last user.
        if Arc::strong_count(&buffer) != 1 {
            return;
        }
        lock_buffer(&buffer).set_pages(None);
        // A client's memory is not kept for reuse.
        if bytes > 0 && pool.used_bytes + pool.free_bytes + bytes <= pool.bytes_max {
            pool.free_bytes += bytes;
            pool.free[bytes.trailing_zeros() as usize].push(buffer);
        }
    }

    /// How many numbers have a buffer.
    #[cfg(test)]
    pub fn open_count(&self) -> usize {
        self.lock().used.len()
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        lock(&self.pool)
    }
}

/// Locks a payload buffer. A panic of an earlier holder does not matter, because bytes have no
/// invariant.
pub fn lock_buffer(buffer: &SlotBuffer) -> MutexGuard<'_, Memory> {
    lock(buffer)
}

/// Bytes of a fixed length that begin at a page, as direct I/O needs on every device, and never
/// move.
pub struct SlotBytes {
    start: NonNull<u8>,
    len: usize,
    /// The index of these bytes in the ring's table of registered buffers, if they are registered.
    pub(super) registered: Option<u16>,
    /// The pages that are sent instead of these bytes, if there are any.
    pub(crate) pages: Option<Pages>,
    /// The registrations of these bytes with domains of libfabric. Each is made when it is first
    /// needed, and lives as long as the bytes.
    fabric: Vec<Arc<Registration>>,
}

// SAFETY: the bytes belong to this value alone, as those of a Vec do.
unsafe impl Send for SlotBytes {}
// SAFETY: as above; a shared reference only reads.
unsafe impl Sync for SlotBytes {}

impl SlotBytes {
    /// `len` zeros; at least one.
    pub fn zeroed(len: usize) -> SlotBytes {
        let layout = layout(len);
        // SAFETY: the layout has at least one byte.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout);
        };
        SlotBytes {
            start,
            len,
            registered: None,
            pages: None,
            fabric: Vec::new(),
        }
    }

    /// The registration of the bytes with a domain, which is made if there is none.
    pub fn registration(
        &mut self,
        domain: &Arc<Domain>,
    ) -> Result<Option<Arc<Registration>>, tidegate_fabric::Error> {
        if let Some(found) = self.fabric.iter().find(|one| one.is_of(domain)) {
            return Ok(Some(Arc::clone(found)));
        }
        // SAFETY: the bytes never move, and go after their registrations.
        let made = unsafe { domain.register(self.start(), self.len)? };
        let made = made.map(Arc::new);
        self.fabric.extend(made.clone());
        Ok(made)
    }

    /// The address of the first byte, for the kernel, which may write there while this process does
    /// not access the bytes.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

fn layout(len: usize) -> Layout {
    assert!(len > 0, "a slot has bytes");
    Layout::from_size_align(len, ALIGN).expect("a slot is far smaller than the address space")
}

impl Deref for SlotBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: so many bytes were allocated there, and initialised with zeros.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for SlotBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the exclusive reference is handed on.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for SlotBytes {
    fn drop(&mut self) {
        self.fabric.clear();
        // SAFETY: allocated by `zeroed` with the same layout, and not used any more.
        unsafe { dealloc(self.start.as_ptr(), layout(self.len)) };
    }
}

/// A client's memory, mapped until its last payload buffer is freed.
pub struct SharedMemory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: it is an address range, which no thread owns; what is in it belongs to another process
// anyway.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Maps the first `bytes` of a client's memfd. The memfd must be sealed against shrinking;
    /// otherwise the client could take away pages that the kernel is told to fill. Fails if the
    /// memfd is not sealed, has huge pages, is too short or too large, or cannot be mapped.
    pub fn map(fd: &OwnedFd, bytes: u64) -> io::Result<SharedMemory> {
        let wrong = |what: &str| io::Error::new(ErrorKind::InvalidInput, what.to_string());
        if bytes == 0 || bytes > SHARED_BYTES_MAX {
            return Err(wrong("an offer of no, or too much, memory"));
        }
        let seals = rustix::fs::fcntl_get_seals(fd)
            .map_err(|_| wrong("it is no memory that can be sealed"))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(wrong("it is not sealed against shrinking"));
        }
        if rustix::fs::fstatfs(fd)?.f_type != TMPFS_MAGIC {
            // Huge pages, which are mapped and unmapped as wholes, and of which there are few.
            return Err(wrong("it is no ordinary memory"));
        }
        let size = rustix::fs::fstat(fd)?.st_size;
        if u64::try_from(size).is_ok_and(|size| size < bytes) {
            return Err(wrong("there is less of it than is offered"));
        }
        let len = usize::try_from(bytes).map_err(|_| wrong("an offer of too much memory"))?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, fd, 0)? };
        let base = NonNull::new(base.cast()).ok_or_else(|| wrong("it was mapped at no address"))?;
        Ok(SharedMemory { base, len })
    }

    /// Whether the `len` bytes at offset `place` lie in it.
    pub fn holds(&self, place: u64, len: u32) -> bool {
        let end = place.checked_add(u64::from(len));
        end.is_some_and(|end| end <= self.len as u64)
    }

    /// The address of offset `place`, which must lie in it.
    pub(super) fn at(&self, place: u64) -> *mut u8 {
        debug_assert!(self.holds(place, 0));
        self.base.as_ptr().wrapping_add(place as usize)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: it was mapped so, and nobody has its addresses any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests;
