//! The memory of a reply table. Address space for the largest table is reserved, and memory is used
//! only as far as the table reaches.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering, fence};
use tidegate_forward::{SEGMENT_BYTES, SEGMENTS_MAX};

/// How many bytes are mapped. The table may grow into them, and unused bytes cost no memory.
pub(super) const MAPPED_BYTES: usize = SEGMENTS_MAX * SEGMENT_BYTES;

/// A mapping that is unmapped when it is dropped.
pub(super) struct TableMemory {
    start: NonNull<u8>,
    /// The size of the table now, in bytes; whole segments.
    len: AtomicUsize,
}

// SAFETY: the memory is mapped for the life of the value and only accessed through atomics.
unsafe impl Send for TableMemory {}
// SAFETY: as above.
unsafe impl Sync for TableMemory {}

impl TableMemory {
    /// Takes over memory at `start`, which the caller has mapped with [`MAPPED_BYTES`] bytes for
    /// this value alone. `len` of them can be accessed.
    pub(super) unsafe fn of_mapping(start: *mut u8, len: usize) -> io::Result<TableMemory> {
        Ok(TableMemory {
            start: NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?,
            len: AtomicUsize::new(len),
        })
    }

    /// Memory of zeros that belongs to this process alone.
    pub(super) fn private(len: usize) -> io::Result<TableMemory> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let flags = flags | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the place, so no existing memory is touched.
        unsafe {
            let start = mmap_anonymous(std::ptr::null_mut(), MAPPED_BYTES, prot, flags)?;
            TableMemory::of_mapping(start.cast(), len)
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Notes that the table has grown to `len` bytes, which can be accessed.
    pub(super) fn set_len(&self, len: usize) {
        assert!(len <= MAPPED_BYTES, "a table larger than its memory");
        self.len.store(len, Ordering::Release);
    }

    /// A range of the table. Panics if the range lies outside it, because that is a bug which would
    /// corrupt the reply slots of others.
    pub(super) fn bytes(&self, at: usize, len: usize) -> &[AtomicU8] {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len());
        assert!(inside, "{len} bytes at {at} are outside the table");
        // SAFETY: the range is inside the mapping and what lies under it (checked), the mapping
        // lives as long as `self`, and nothing makes it shorter; AtomicU8 has the layout of a byte,
        // and everyone who maps the memory accesses it through atomics.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at).cast(), len) }
    }

    pub(super) fn load(&self, at: usize, bytes: &mut [u8]) {
        let stored = self.bytes(at, bytes.len());
        for (to, from) in bytes.iter_mut().zip(stored) {
            *to = from.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
    }

    pub(super) fn store(&self, at: usize, bytes: &[u8]) {
        // Nothing stored before may be overtaken by what follows: a state byte comes after its
        // record.
        fence(Ordering::Release);
        for (to, from) in self.bytes(at, bytes.len()).iter().zip(bytes) {
            to.store(*from, Ordering::Relaxed);
        }
    }

    /// Frees the memory of whole pages. Later accesses read the file below them again, or zeros.
    pub(super) fn drop_pages(&self, at: usize, len: usize) -> io::Result<()> {
        use rustix::mm::{Advice, madvise};
        let start = self.bytes(at, len).as_ptr().cast_mut();
        // SAFETY: the range is inside the mapping, and its bytes are accessed through atomics.
        unsafe { madvise(start.cast(), len, Advice::LinuxDontNeed)? };
        Ok(())
    }
}

impl Drop for TableMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping has this start and length (see `of_mapping`), and no slice of it
        // outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), MAPPED_BYTES) };
        debug_assert!(unmapped.is_ok(), "a mapping of our own can be unmapped");
    }
}
