//! The functions of libc that this library replaces.
//!
//! `files` has those that open and close descriptors; from them the library only learns that a
//! number may stand for another file. This file has those that move data. The 64-bit names are the
//! same functions as those without 64.

mod files;

use crate::data::{Done, Memory, Way, mapped, sync, transfer};
use crate::libc_next;
use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};
use tidegate_client::Errno;

fn set_errno(errno: Errno) {
    // SAFETY: the place of this thread's errno.
    unsafe { *libc::__errno_location() = errno.0 };
}

/// The value that the program's call returns; None if the kernel must do the call.
fn answer(done: Done) -> Option<ssize_t> {
    match done {
        Done::Moved(len) => Some(len as ssize_t),
        Done::Failed(errno) => {
            set_errno(errno);
            Some(-1)
        }
        Done::NotOurs => None,
    }
}

/// Defines hooks of data calls: their memory, their place in the file, and the call that the kernel
/// gets instead.
macro_rules! data {
    ($(
        $way:ident [$($name:ident)+] $arguments:tt $fd:expr, $memory:expr, $at:expr, $next:expr;
    )*) => {
        $($(data!(@one $way $name $arguments $fd, $memory, $at, $next);)+)*
    };
    (@one $way:ident $name:ident ($($argument:ident: $type:ty),*)
        $fd:expr, $memory:expr, $at:expr, $next:expr) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> ssize_t {
            // SAFETY: what the caller promises libc. Nothing is dereferenced that the kernel would
            // not move bytes from or to.
            unsafe {
                let errno = *libc::__errno_location();
                let done = transfer(Way::$way, $fd, $memory, $at);
                *libc::__errno_location() = errno;
                match answer(done) {
                    Some(result) => result,
                    None => $next,
                }
            }
        }
    };
}

data! {
    Read [read] (fd: c_int, buffer: *mut c_void, len: size_t)
        fd, Memory::one(buffer, len), None, libc_next::read(fd, buffer, len);
    Write [write] (fd: c_int, buffer: *const c_void, len: size_t)
        fd, Memory::one(buffer, len), None, libc_next::write(fd, buffer, len);
    Read [pread pread64] (fd: c_int, buffer: *mut c_void, len: size_t, offset: off_t)
        fd, Memory::one(buffer, len), Some(offset), libc_next::pread64(fd, buffer, len, offset);
    Write [pwrite pwrite64] (fd: c_int, buffer: *const c_void, len: size_t, offset: off_t)
        fd, Memory::one(buffer, len), Some(offset), libc_next::pwrite64(fd, buffer, len, offset);
    Read [readv] (fd: c_int, vector: *const iovec, count: c_int)
        fd, Memory::new(vector, count), None, libc_next::readv(fd, vector, count);
    Write [writev] (fd: c_int, vector: *const iovec, count: c_int)
        fd, Memory::new(vector, count), None, libc_next::writev(fd, vector, count);
    Read [preadv preadv64] (fd: c_int, vector: *const iovec, count: c_int, offset: off_t)
        fd, Memory::new(vector, count), Some(offset),
        libc_next::preadv64(fd, vector, count, offset);
    Write [pwritev pwritev64] (fd: c_int, vector: *const iovec, count: c_int, offset: off_t)
        fd, Memory::new(vector, count), Some(offset),
        libc_next::pwritev64(fd, vector, count, offset);
    Read [preadv2 preadv64v2] (
        fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int
    )
        fd, without(flags, vector, count), place(offset),
        libc_next::preadv64v2(fd, vector, count, offset, flags);
    Write [pwritev2 pwritev64v2] (
        fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int
    )
        fd, without(flags, vector, count), place(offset),
        libc_next::pwritev64v2(fd, vector, count, offset, flags);
    Read [__read_chk] (fd: c_int, buffer: *mut c_void, len: size_t, room: size_t)
        fd, fitting(buffer, len, room), None, libc_next::__read_chk(fd, buffer, len, room);
    Read [__pread_chk __pread64_chk] (
        fd: c_int, buffer: *mut c_void, len: size_t, offset: off_t, room: size_t
    )
        fd, fitting(buffer, len, room), Some(offset),
        libc_next::__pread64_chk(fd, buffer, len, offset, room);
}

/// The memory of a call without flags; flags are the kernel's.
///
/// # Safety
/// As [`Memory::new`].
unsafe fn without<'a>(flags: c_int, vector: *const iovec, count: c_int) -> Option<Memory<'a>> {
    if flags != 0 {
        return None;
    }
    // SAFETY: the caller says so.
    unsafe { Memory::new(vector, count) }
}

/// The place of a call in the file; None for -1, which stands for the descriptor's offset.
fn place(offset: off_t) -> Option<off_t> {
    (offset != -1).then_some(offset)
}

/// The memory of a buffer of which the compiler knows the size, `room`. None if the call would
/// overrun it: then libc ends the program.
fn fitting<'a>(buffer: *mut c_void, len: size_t, room: size_t) -> Option<Memory<'a>> {
    Memory::one(buffer, len).filter(|_| len <= room)
}

/// Defines hooks of calls that make a file's bytes stable.
macro_rules! stable {
    ($($name:ident $data_only:literal;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(fd: c_int) -> c_int {
                if let Err(errno) = sync(fd, $data_only) {
                    set_errno(errno);
                    return -1;
                }
                // SAFETY: a plain number.
                unsafe { libc_next::$name(fd) }
            }
        )*
    };
}

stable! {
    fsync false;
    fdatasync true;
}

/// Defines hooks of `mmap`.
macro_rules! map {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(
                at: *mut c_void,
                len: size_t,
                protection: c_int,
                flags: c_int,
                fd: c_int,
                offset: off_t,
            ) -> *mut c_void {
                if fd >= 0 && flags & libc::MAP_ANONYMOUS == 0 {
                    mapped(fd);
                }
                // SAFETY: what the caller promises libc.
                unsafe { libc_next::mmap64(at, len, protection, flags, fd, offset) }
            }
        )*
    };
}

map!(mmap mmap64);
