//! A seat's reply table as memory that is shared with the seat's file, and the memory that every
//! reply table has.
//!
//! A store is in the page cache at once: it survives a crash of the process, but not of the node.
//! Address space for the largest table is reserved, and memory is used only as far as the table
//! reaches.

use super::marks::Marks;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering, fence};
use tidegate_forward::{ENTRIES_BYTES, SEGMENT_BYTES, SEGMENTS_MAX, SeatTable, table_bytes};

/// The offset of the table in the file, in bytes.
pub(super) const HEADER_BYTES: u64 = 4096;
/// How many bytes of the file are allocated when it is made, if it has room for so many clients on
/// the back end from the start. Then a full file system does not keep them from removing files.
/// Room for more is allocated when they come.
pub(super) const fn first_bytes(clients: u16) -> u64 {
    HEADER_BYTES + table_bytes(clients as usize) as u64
}
/// The size of a file with one segment, most of which is a hole. Later segments follow it.
pub(super) const FILE_BYTES_MIN: u64 = HEADER_BYTES + SEGMENT_BYTES as u64;
/// The unit of allocation in bytes.
const PAGE_BYTES: usize = 4096;

/// How many bytes are mapped. The table may grow into them, and unused bytes cost no memory.
pub(super) const MAPPED_BYTES: usize = SEGMENTS_MAX * SEGMENT_BYTES;

/// The mapped table.
pub(super) struct MappedTable {
    memory: TableMemory,
    /// The pages of the table that were allocated since it was mapped, so that the kernel is asked
    /// only once for reply slots that are used again and again.
    set_aside: Marks,
    file: File,
    /// Bytes at the file's beginning that stay allocated.
    first_bytes: u64,
}

/// The number of segments of a seat's file with that length; None if it is not a whole number.
pub(super) fn segments(file_bytes: u64) -> Option<usize> {
    let table = usize::try_from(file_bytes.checked_sub(HEADER_BYTES)?).ok()?;
    let segments = table / SEGMENT_BYTES;
    let whole = table.is_multiple_of(SEGMENT_BYTES) && (1..=SEGMENTS_MAX).contains(&segments);
    whole.then_some(segments)
}

/// Sets the file's length and allocates its first bytes. A store into a mapped hole raises SIGBUS
/// if the file system is full.
pub(super) fn allocate(file: &File, first_bytes: u64) -> io::Result<()> {
    let len = file.metadata()?.len();
    if !set_aside(file, 0, first_bytes)? {
        write_zeros(file, len.min(first_bytes), first_bytes)?;
    }
    if len < FILE_BYTES_MIN {
        file.set_len(FILE_BYTES_MIN)?;
    }
    Ok(())
}

/// Allocates blocks for a range of the file. False if the file system cannot.
fn set_aside(file: &File, from: u64, to: u64) -> io::Result<bool> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    let flags = FallocateFlags::empty();
    match rustix::io::retry_on_intr(|| fallocate(file, flags, from, to - from)) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn write_zeros(file: &File, from: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0; to.saturating_sub(from).min(1 << 20) as usize];
    let mut at = from;
    while at < to {
        let len = (to - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..len as usize], at)?;
        at += len;
    }
    Ok(())
}

impl MappedTable {
    /// Maps the table of a seat's file, which must have whole segments.
    pub(super) fn map(file: &File, first_bytes: u64) -> io::Result<MappedTable> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
        let segments = segments(file.metadata()?.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        let kept = file.try_clone()?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let hint = std::ptr::null_mut();
        // SAFETY: the kernel chooses the place, so no existing memory is touched.
        let start = unsafe { mmap(hint, MAPPED_BYTES, prot, flags, file, HEADER_BYTES)? };
        // One page of each client is used: reading ahead would bring in sixteen. Only advice.
        // SAFETY: the range is the mapping just made, and the advice changes nothing that is in it.
        let _ = unsafe { madvise(start, MAPPED_BYTES, Advice::Random) };
        // SAFETY: it was just mapped, and no holder of a seat makes its file shorter.
        let memory = unsafe { TableMemory::of_mapping(start.cast(), segments * SEGMENT_BYTES)? };
        Ok(MappedTable {
            memory,
            set_aside: Marks::new(MAPPED_BYTES / PAGE_BYTES),
            file: kept,
            first_bytes,
        })
    }
}

impl SeatTable for MappedTable {
    fn load(&self, at: usize, bytes: &mut [u8]) {
        self.memory.load(at, bytes);
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        self.memory.store(at, bytes);
    }

    fn reserve(&self, at: usize, len: usize) -> bool {
        let (from, to) = (HEADER_BYTES + at as u64, HEADER_BYTES + (at + len) as u64);
        if to <= self.first_bytes || pages(at, len).all(|page| self.set_aside.is_set(page)) {
            return true;
        }
        let done = self.make_room(from, to);
        if done {
            self.set_aside.set_all(pages(at, len));
        }
        done
    }

    fn give_back(&self, at: usize, len: usize) {
        let end = at + len;
        let at = at.max((self.first_bytes - HEADER_BYTES) as usize);
        if at >= end {
            return;
        }
        self.set_aside.clear_all(pages(at, end - at));
        if let Err(error) = self.punch(at, end - at) {
            // The blocks stay allocated, which does no harm: they are used again.
            tracing::debug!(%error, "reply slots of a seat's reply table keep their room");
        }
    }

    fn grow(&self) -> bool {
        let len = self.len();
        if len >= MAPPED_BYTES {
            return false;
        }
        let entries = HEADER_BYTES + len as u64;
        if let Err(error) = self.file.set_len(entries + SEGMENT_BYTES as u64) {
            tracing::warn!(%error, "a seat's reply table cannot grow for more clients");
            return false;
        }
        if !self.make_room(entries, entries + ENTRIES_BYTES as u64) {
            return false;
        }
        self.memory.set_len(len + SEGMENT_BYTES);
        true
    }

    fn len(&self) -> usize {
        self.memory.len()
    }
}

impl MappedTable {
    /// Allocates blocks for a range of the file that is not used yet.
    fn make_room(&self, from: u64, to: u64) -> bool {
        let done = match set_aside(&self.file, from, to) {
            Ok(false) => write_zeros(&self.file, from, to),
            other => other.map(|_| ()),
        };
        if let Err(error) = &done {
            tracing::warn!(%error, "no room for one more client in a seat's reply table");
        }
        done.is_ok()
    }

    /// Removes a range of reply slots from memory, and frees its blocks where the file system can.
    fn punch(&self, at: usize, len: usize) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let from = HEADER_BYTES + at as u64;
        let punched = rustix::io::retry_on_intr(|| fallocate(&self.file, flags, from, len as u64));
        if punched.is_err() {
            self.memory.drop_pages(at, len)?;
        }
        Ok(punched?)
    }
}

/// The pages of a range that begins and ends at a page.
fn pages(at: usize, len: usize) -> std::ops::Range<usize> {
    at / PAGE_BYTES..(at + len).div_ceil(PAGE_BYTES)
}

/// The memory of a reply table: a mapping that is unmapped when it is dropped.
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
