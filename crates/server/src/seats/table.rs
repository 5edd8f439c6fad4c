//! A seat's reply table as memory shared with the seat's file.
//!
//! What is stored here is in the page cache at once: it survives the process, not the node.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering, fence};
use tidegate_forward::{SeatTable, TABLE_BYTES, table_bytes};

/// Bytes of the file before the table.
pub(super) const HEADER_BYTES: u64 = 4096;
/// Clients for which there is room on the back end from the start, so that a file system that is
/// full does not keep them from removing files. More get room when they come.
const CLIENTS_MIN: usize = 256;
/// Bytes of the file that are set aside when it is made.
const FIRST_BYTES: u64 = HEADER_BYTES + table_bytes(CLIENTS_MIN) as u64;
/// Bytes of the whole file, most of which is a hole.
pub(super) const FILE_BYTES: u64 = HEADER_BYTES + TABLE_BYTES as u64;

/// The mapped table. Unmapped when dropped.
pub(super) struct MappedTable {
    start: NonNull<u8>,
    file: File,
}

/// Gives the file its length, and its first bytes their place on the disk: a store into a mapped
/// hole of a full file system is a SIGBUS.
pub(super) fn allocate(file: &File) -> io::Result<()> {
    let len = file.metadata()?.len();
    if !set_aside(file, 0, FIRST_BYTES)? {
        write_zeros(file, len.min(FIRST_BYTES), FIRST_BYTES)?;
    }
    if len < FILE_BYTES {
        file.set_len(FILE_BYTES)?;
    }
    Ok(())
}

/// Blocks for a range of the file; false if the file system does not know how.
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
    let zeros = vec![0; 1 << 20];
    let mut at = from;
    while at < to {
        let len = (to - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..len as usize], at)?;
        at += len;
    }
    Ok(())
}

// SAFETY: the memory is mapped for the life of the value and only accessed through atomics.
unsafe impl Send for MappedTable {}
// SAFETY: as above.
unsafe impl Sync for MappedTable {}

impl MappedTable {
    /// Maps the table of a seat's file, which must have its whole length.
    pub(super) fn map(file: &File) -> io::Result<MappedTable> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        if file.metadata()?.len() < FILE_BYTES {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let kept = file.try_clone()?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let hint = std::ptr::null_mut();
        // SAFETY: the kernel chooses the place, so no existing memory is touched.
        let start = unsafe { mmap(hint, TABLE_BYTES, prot, flags, file, HEADER_BYTES)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(MappedTable { start, file: kept })
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

    fn reserve(&self, at: usize, len: usize) -> bool {
        let (from, to) = (HEADER_BYTES + at as u64, HEADER_BYTES + (at + len) as u64);
        if to <= FIRST_BYTES {
            return true;
        }
        let done = match set_aside(&self.file, from, to) {
            Ok(false) => write_zeros(&self.file, from, to),
            other => other.map(|_| ()),
        };
        if let Err(error) = &done {
            tracing::warn!(%error, "no room for one more client in a seat's reply table");
        }
        done.is_ok()
    }

    fn len(&self) -> usize {
        TABLE_BYTES
    }
}
