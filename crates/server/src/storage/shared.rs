//! Memory that a client shares for its payload. Storage reads files into it and writes files from
//! it, so payload is not copied on its way.
//!
//! The client can change the memory at any time. So this process never accesses it; only the kernel
//! does. To the kernel it is no more than a program that changes a buffer during a call.

use rustix::fs::SealFlags;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

/// The most bytes that one connection may share.
pub const SHARED_BYTES_MAX: u64 = 1 << 30;

/// The type of file system that memfds without huge pages belong to.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

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
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    fn memory(bytes: u64, seals: SealFlags) -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create(c"test", flags).expect("memory");
        ftruncate(&fd, bytes).expect("its size");
        fcntl_add_seals(&fd, seals).expect("seals");
        fd
    }

    #[test]
    fn only_memory_that_stays_is_taken() {
        let sound = memory(8192, SealFlags::SHRINK);
        assert!(SharedMemory::map(&sound, 8193).is_err());
        assert!(SharedMemory::map(&sound, 0).is_err());
        assert!(SharedMemory::map(&sound, u64::MAX).is_err());
        let mapped = SharedMemory::map(&sound, 8192).expect("a sound offer");
        assert!(mapped.holds(0, 8192) && mapped.holds(8192, 0));
        assert!(!mapped.holds(1, 8192) && !mapped.holds(u64::MAX, 2));
        assert!(SharedMemory::map(&memory(8192, SealFlags::GROW), 4096).is_err());
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        if let Ok(huge) = memfd_create(c"test", flags) {
            ftruncate(&huge, 1 << 30).expect("its size");
            fcntl_add_seals(&huge, SealFlags::SHRINK).expect("seals");
            let refused = SharedMemory::map(&huge, 4096).err().expect("it is refused");
            assert!(refused.to_string().contains("ordinary"), "{refused}");
        }
        let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").expect("this program"));
        assert!(SharedMemory::map(&file, 4096).is_err());
    }
}
