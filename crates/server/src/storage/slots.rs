//! The memory of payload buffers. A new request gets the most recently freed buffer of its size.
//!
//! The forwarder decides which request gets a payload buffer, and numbers the buffers; this module
//! gives each number its memory. Sizes are powers of two, so that a freed buffer fits the next
//! request of its kind while it is still in the processor's cache.

use super::pages::{Pages, Pipes};
use super::{SharedMemory, SlotBytes};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard};
use tidegate_forward::{IoPart, SlotId};

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

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Memory::Own(bytes) => bytes,
            // SAFETY: the mapping holds them, and lives as long as this. The client may change them
            // meanwhile; only the kernel looks.
            Memory::Shared { memory, place, len } => unsafe {
                std::slice::from_raw_parts(memory.at(*place), *len as usize)
            },
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Own(bytes) => bytes,
            // SAFETY: as above.
            Memory::Shared { memory, place, len } => unsafe {
                std::slice::from_raw_parts_mut(memory.at(*place), *len as usize)
            },
        }
    }
}

impl Memory {
    /// The address of the first byte, for the kernel, which may write there while this process does
    /// not access the bytes.
    pub(super) fn start(&self) -> *mut u8 {
        match self {
            Memory::Own(bytes) => bytes.start(),
            Memory::Shared { memory, place, .. } => memory.at(*place),
        }
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

/// The smallest buffer, in bytes.
const BUFFER_MIN: usize = 4096;

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
}

impl Used {
    fn new(buffer: SlotBuffer, bytes: u64) -> Used {
        Used {
            buffer,
            bytes,
            to_send: None,
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

    /// Gives the number a buffer of at least `len` bytes, which are not cleared. Replaces a buffer
    /// that it already has.
    pub fn open(&self, slot: SlotId, len: u32) -> SlotBuffer {
        let size = (len as usize).max(BUFFER_MIN).next_power_of_two();
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
    pub fn open_count(&self) -> usize {
        self.lock().used.len()
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        // No code that can panic runs under this lock, so a poisoned pool is still consistent.
        self.pool
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Locks a payload buffer. A panic of an earlier holder does not matter, because bytes have no
/// invariant.
pub fn lock_buffer(buffer: &SlotBuffer) -> MutexGuard<'_, Memory> {
    buffer
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_freed_buffer_is_handed_out_first() {
        let slots = Slots::new(1 << 20);
        let first = Arc::as_ptr(&slots.open(SlotId(1), 5000));
        let second = Arc::as_ptr(&slots.open(SlotId(2), 5000));
        slots.free(SlotId(1));
        slots.free(SlotId(2));
        assert_eq!(Arc::as_ptr(&slots.open(SlotId(3), 8192)), second);
        assert_eq!(Arc::as_ptr(&slots.open(SlotId(4), 6000)), first);
        assert_eq!(
            lock_buffer(&slots.buffer(SlotId(4)).expect("open")).len(),
            8192
        );
        assert_eq!(slots.open_count(), 2);
    }

    #[test]
    fn a_buffer_that_is_still_held_is_not_reused_and_the_pool_is_bounded() {
        let slots = Slots::new(4096);
        let held = slots.open(SlotId(1), 10);
        slots.free(SlotId(1));
        let other = slots.open(SlotId(2), 10);
        assert!(!Arc::ptr_eq(&held, &other));
        drop((held, other));
        slots.open(SlotId(3), 10);
        slots.free(SlotId(2));
        slots.free(SlotId(3));
        assert_eq!(slots.lock().free_bytes, 4096);
        slots.free(SlotId(9));
        assert!(slots.buffer(SlotId(9)).is_none());
    }

    #[test]
    fn unused_buffers_make_room_for_those_in_use() {
        let slots = Slots::new(64 << 10);
        (0..16).for_each(|slot| drop(slots.open(SlotId(slot), 4096)));
        (0..16).for_each(|slot| slots.free(SlotId(slot)));
        assert_eq!(slots.lock().free_bytes, 64 << 10);
        slots.open(SlotId(0), 32 << 10);
        let held = |slots: &Slots| {
            let pool = slots.lock();
            (pool.used_bytes, pool.free_bytes)
        };
        assert_eq!(held(&slots), (32 << 10, 32 << 10));
        slots.open(SlotId(0), 4096);
        assert_eq!(held(&slots), (4096, 28 << 10), "the older buffer is gone");
        slots.free(SlotId(0));
        assert_eq!(held(&slots), (0, 32 << 10));
    }
}
