//! A seat's reply table as memory shared with the seat's file.
//!
//! What is stored here is in the page cache at once: it survives the process, not the node.

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering, fence};
use tidegate_forward::{SeatTable, TABLE_BYTES};

/// Bytes of the file before the table.
pub(super) const HEADER_BYTES: u64 = 4096;

/// The mapped table. Unmapped when dropped.
pub(super) struct MappedTable {
    start: NonNull<u8>,
}

// SAFETY: the memory is mapped for the life of the value and only accessed through atomics.
unsafe impl Send for MappedTable {}
// SAFETY: as above.
unsafe impl Sync for MappedTable {}

impl MappedTable {
    /// Maps the table of a seat's file, which must have its whole length.
    pub(super) fn map(file: &File) -> io::Result<MappedTable> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        if file.metadata()?.len() < HEADER_BYTES + TABLE_BYTES as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let hint = std::ptr::null_mut();
        // SAFETY: the kernel chooses the place, so no existing memory is touched.
        let start = unsafe { mmap(hint, TABLE_BYTES, prot, flags, file, HEADER_BYTES)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(MappedTable { start })
    }

    /// A range of the table. Whoever asks for one outside it has a bug that would corrupt others'
    /// rows.
    fn bytes(&self, at: usize, len: usize) -> &[AtomicU8] {
        let inside = at.checked_add(len).is_some_and(|end| end <= TABLE_BYTES);
        assert!(inside, "{len} bytes at {at} are outside the table");
        // SAFETY: the range is inside the mapping (checked), which lives as long as `self`;
        // AtomicU8 has the layout of a byte, and everyone who maps the file accesses it through
        // atomics.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at).cast(), len) }
    }
}

impl Drop for MappedTable {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this start and length, and no slice of it
        // outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), TABLE_BYTES) };
        debug_assert!(unmapped.is_ok(), "a mapping of our own can be unmapped");
    }
}

impl SeatTable for MappedTable {
    fn load(&self, at: usize, bytes: &mut [u8]) {
        let stored = self.bytes(at, bytes.len());
        for (to, from) in bytes.iter_mut().zip(stored) {
            *to = from.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        // Nothing stored before may be overtaken by what follows: a state byte comes after its
        // record.
        fence(Ordering::Release);
        for (to, from) in self.bytes(at, bytes.len()).iter().zip(bytes) {
            to.store(*from, Ordering::Relaxed);
        }
    }

    fn len(&self) -> usize {
        TABLE_BYTES
    }
}
