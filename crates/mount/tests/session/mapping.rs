//! A shared mapping of a file, with the few accesses that the tests need.

use std::fs::File;

/// A shared mapping of a file.
pub struct Mapping {
    start: *mut u8,
    len: usize,
}

impl Mapping {
    pub fn new(file: &File, len: usize) -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses disturbs nothing.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                protection,
                MapFlags::SHARED,
                file,
                0,
            )
        };
        Self {
            start: start.expect("mapped").cast(),
            len,
        }
    }

    pub fn at(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: inside the mapping, which lives as long as self.
        unsafe { self.start.add(at).read_volatile() }
    }

    pub fn set(&self, at: usize, byte: u8) {
        assert!(at < self.len);
        // SAFETY: inside the mapping, which is writable and lives as long as self.
        unsafe { self.start.add(at).write_volatile(byte) }
    }

    pub fn sync(&self) {
        // SAFETY: exactly the mapping.
        let synced =
            unsafe { rustix::mm::msync(self.start.cast(), self.len, rustix::mm::MsyncFlags::SYNC) };
        synced.expect("synced");
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping, to which no reference is left.
        unsafe { rustix::mm::munmap(self.start.cast(), self.len) }.expect("unmapped");
    }
}
