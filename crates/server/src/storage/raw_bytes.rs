//! Bytes as an address and a length: all that this process says of memory that a client can change
//! while it is looked at.
//!
//! A reference to such memory would promise the compiler what a client can break. So there is none:
//! the kernel reads and writes these bytes in system calls, to which a client's change is no more
//! than another program's change of a buffer during a call. What has to be judged is copied first:
//! a single byte, which may be the last one of the file.

use rustix::io::{Errno, Result};
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use tidegate_sched::Direction;

/// Bytes that stay mapped for `'a`, and that only the kernel accesses by this, but for single
/// bytes.
#[derive(Clone, Copy)]
pub(super) struct RawBytes<'a> {
    start: NonNull<u8>,
    len: usize,
    lives: PhantomData<&'a ()>,
}

impl<'a> RawBytes<'a> {
    /// The `len` bytes at `start`.
    ///
    /// # Safety
    ///
    /// They are mapped, readable and writable for `'a`, and no reference to them is used in `'a`.
    pub(super) unsafe fn new(start: *mut u8, len: usize) -> RawBytes<'a> {
        RawBytes {
            // SAFETY: what is mapped is not at address 0.
            start: unsafe { NonNull::new_unchecked(start) },
            len,
            lives: PhantomData,
        }
    }

    /// The address of the first byte.
    pub(super) fn start(self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The number of bytes.
    pub(super) fn len(self) -> usize {
        self.len
    }

    /// The `len` bytes from `begin` on, or None if there are fewer.
    pub(super) fn part(self, begin: usize, len: usize) -> Option<RawBytes<'a>> {
        let inside = begin.checked_add(len).is_some_and(|end| end <= self.len);
        inside.then(|| RawBytes {
            // SAFETY: `begin` is inside of what is mapped, or its end.
            start: unsafe { self.start.add(begin) },
            len,
            lives: PhantomData,
        })
    }

    /// All bytes from `begin` on; none if there are no more than `begin`.
    pub(super) fn after(self, begin: usize) -> RawBytes<'a> {
        let begin = begin.min(self.len);
        RawBytes {
            // SAFETY: `begin` is inside of what is mapped, or its end.
            start: unsafe { self.start.add(begin) },
            len: self.len - begin,
            lives: PhantomData,
        }
    }

    /// One byte, as it is now: a client may change it at any time.
    pub(super) fn byte(self, at: usize) -> Option<u8> {
        // SAFETY: it is inside of what is mapped, and any value is a byte.
        (at < self.len).then(|| unsafe { self.start.add(at).read_volatile() })
    }

    /// The bytes, as the kernel's lists of buffers name them.
    pub(super) fn iovec(self) -> libc::iovec {
        libc::iovec {
            iov_base: self.start().cast(),
            iov_len: self.len,
        }
    }
}

/// Moves bytes between a file from `offset` on and these, in their order, by one system call.
/// Returns how many were moved. Fails with what the kernel says.
pub(super) fn transfer<'a>(
    fd: impl AsFd,
    direction: Direction,
    offset: u64,
    mut bytes: impl ExactSizeIterator<Item = RawBytes<'a>>,
) -> Result<usize> {
    let fd = fd.as_fd().as_raw_fd();
    // The kernel refuses offsets that are negative as its own type.
    let offset = offset as i64;
    let moved = match bytes.len() {
        0 => return Ok(0),
        1 => {
            let only = bytes.next().map(RawBytes::iovec).ok_or(Errno::INVAL)?;
            let (start, len) = (only.iov_base, only.iov_len);
            // SAFETY: `RawBytes` says that the bytes are mapped and that nobody refers to them.
            unsafe {
                match direction {
                    Direction::Read => libc::pread64(fd, start, len, offset),
                    Direction::Write => libc::pwrite64(fd, start, len, offset),
                }
            }
        }
        _ => {
            let list: Vec<libc::iovec> = bytes.map(RawBytes::iovec).collect();
            let count = i32::try_from(list.len()).map_err(|_| Errno::INVAL)?;
            // SAFETY: as above, for each buffer of the list, which lives until the call has ended.
            unsafe {
                match direction {
                    Direction::Read => libc::preadv64(fd, list.as_ptr(), count, offset),
                    Direction::Write => libc::pwritev64(fd, list.as_ptr(), count, offset),
                }
            }
        }
    };
    moved_of(moved)
}

/// Fills the bytes from `offset` of a file on, as far as its pages are in the page cache. Returns
/// how many were filled. Fails with what the kernel says.
pub(super) fn read_cached(fd: impl AsFd, offset: u64, into: RawBytes<'_>) -> Result<usize> {
    let (list, fd) = ([into.iovec()], fd.as_fd().as_raw_fd());
    // SAFETY: `RawBytes` says that the bytes are mapped and that nobody refers to them.
    let moved = unsafe { libc::preadv2(fd, list.as_ptr(), 1, offset as i64, libc::RWF_NOWAIT) };
    moved_of(moved)
}

fn moved_of(moved: isize) -> Result<usize> {
    usize::try_from(moved).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}
