//! The functions of libc that this library replaces because they open and close descriptors, or
//! change what the program may do through them.
//!
//! From those that open and close, the library only learns that a number may stand for another
//! file. `data.rs` has the functions that move data.

use crate::count;
use crate::intercept;
use crate::libc_next;
use crate::redirect;
use crate::state::{self, Kind, Mode, forget};
use libc::{AT_FDCWD, FILE, c_char, c_int, c_uint, c_void, mode_t, off_t, rlimit, size_t, ssize_t};
use std::ffi::CStr;

/// Defines hooks of calls that open a file by a name, relative to a folder, with flags. The library
/// knows nothing yet of the descriptor that they return.
macro_rules! opens {
    ($([$($name:ident)+] $arguments:tt $next:ident, $folder:expr, $path:ident, $flags:expr;)*) => {
        $($(opens!(@one $name $arguments $next, $folder, $path, $flags);)+)*
    };
    (@one $name:ident ($($argument:ident: $type:ty),*)
        $next:ident, $folder:expr, $path:ident, $flags:expr) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: what the caller promises libc.
            unsafe {
                let named = $path;
                let fd = redirect::led($folder, $path, |$path| libc_next::$next($($argument),*));
                not_known(fd);
                count::opened(fd, $folder, named, $flags);
                fd
            }
        }
    };
}

opens! {
    [open open64] (path: *const c_char, flags: c_int, mode: mode_t)
        open64, AT_FDCWD, path, flags;
    [openat openat64] (folder: c_int, path: *const c_char, flags: c_int, mode: mode_t)
        openat64, folder, path, flags;
    [creat creat64] (path: *const c_char, mode: mode_t)
        creat64, AT_FDCWD, path, libc::O_WRONLY;
    [__open_2 __open64_2] (path: *const c_char, flags: c_int)
        __open64_2, AT_FDCWD, path, flags;
    [__openat_2 __openat64_2] (folder: c_int, path: *const c_char, flags: c_int)
        __openat64_2, folder, path, flags;
}

/// Learns that a number stands for something new.
fn not_known(fd: c_int) {
    match state::is_client() {
        true => state::set_kind(fd, Kind::Own),
        false => forget(fd),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: a plain number.
    let fd = unsafe { libc_next::dup(fd) };
    not_known(fd);
    fd
}

/// Whether the descriptor is the client's: for the program it does not exist.
fn is_own(fd: c_int) -> bool {
    state::kind(fd) == Kind::Own && !state::is_inside()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    if is_own(fd) {
        // SAFETY: the place of this thread's errno.
        unsafe { *libc::__errno_location() = libc::EBADF };
        return -1;
    }
    match state::kind(fd) {
        Kind::Own => state::set_kind(fd, Kind::Unknown),
        // The program has taken the number meanwhile (`yield_own`), and with it closed what was
        // there. Else it is a signal handler that closes what is the program's.
        _ if state::is_inside() && state::mode() == Mode::Off => return 0,
        _ => forget(fd),
    }
    // SAFETY: a plain number.
    unsafe { libc_next::close(fd) }
}

/// Calls `with` on the parts of a range of descriptors that are not the client's, and forgets those
/// in them.
fn around_own(first: c_uint, last: c_uint, mut with: impl FnMut(c_uint, c_uint) -> c_int) -> c_int {
    let mut from = first;
    let mut result = 0;
    for fd in first..=last.min(state::LAST) {
        if is_own(fd as c_int) {
            if from < fd {
                result |= with(from, fd - 1);
            }
            from = fd + 1;
        } else {
            forget(fd as c_int);
        }
    }
    if from <= last {
        result |= with(from, last);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // SAFETY: plain numbers.
    let range = |first, last| unsafe { libc_next::close_range(first, last, flags) };
    if first > last {
        return range(first, last);
    }
    around_own(first, last, range)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: plain numbers.
    let range = |first, last| unsafe { libc_next::close_range(first, last, 0) };
    around_own(first.max(0) as c_uint, c_uint::MAX, range);
}

/// Defines hooks of calls that put a descriptor onto another number.
macro_rules! onto {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(fd: c_int, onto: c_int $(, $argument: $type)*) -> c_int {
                if fd != onto {
                    state::yield_own(onto);
                    forget(onto);
                }
                // SAFETY: plain numbers.
                unsafe { libc_next::$name(fd, onto $(, $argument)*) }
            }
        )*
    };
}

onto! {
    dup2();
    dup3(flags: c_int);
}

/// Defines hooks of `fcntl`.
macro_rules! control {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(fd: c_int, command: c_int, argument: usize) -> c_int {
                // SAFETY: what the caller promises libc.
                let result = unsafe { libc_next::fcntl64(fd, command, argument) };
                match command {
                    libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => forget(result),
                    // Flags belong to the description, which other numbers may share.
                    libc::F_SETFL if result == 0 && intercept::identity(fd).is_some() => {
                        forget(fd);
                        state::forget_all();
                    }
                    _ => {}
                }
                result
            }
        )*
    };
}

control!(fcntl fcntl64);

fn number(stream: *mut FILE) -> c_int {
    if stream.is_null() {
        return -1;
    }
    // SAFETY: a stream of libc's.
    unsafe { libc::fileno(stream) }
}

/// Whether a stream of this mode is written, as flags of `open`.
///
/// # Safety
/// A stream was opened with it.
unsafe fn flags_of(mode: *const c_char) -> c_int {
    if mode.is_null() {
        return libc::O_RDONLY;
    }
    // SAFETY: libc has read it, so it is a string.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    match mode.first() == Some(&b'r') && !mode.contains(&b'+') {
        true => libc::O_RDONLY,
        false => libc::O_WRONLY,
    }
}

/// Defines hooks of calls that open streams, which read and write inside of libc.
macro_rules! streams {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char) -> *mut FILE {
                // SAFETY: what the caller promises libc.
                unsafe {
                    let open = |path| libc_next::fopen64(path, mode);
                    let stream = redirect::led(AT_FDCWD, path, open);
                    forget(number(stream));
                    count::opened(number(stream), AT_FDCWD, path, flags_of(mode));
                    stream
                }
            }
        )*
    };
}

streams!(fopen fopen64);

/// Defines hooks of `freopen`, which closes the stream's descriptor first.
macro_rules! reopens {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(
                path: *const c_char,
                mode: *const c_char,
                stream: *mut FILE,
            ) -> *mut FILE {
                forget(number(stream));
                // SAFETY: what the caller promises libc.
                unsafe {
                    let open = |path| libc_next::freopen64(path, mode, stream);
                    let stream = redirect::led(AT_FDCWD, path, open);
                    forget(number(stream));
                    count::opened(number(stream), AT_FDCWD, path, flags_of(mode));
                    stream
                }
            }
        )*
    };
}

reopens!(freopen freopen64);

#[unsafe(no_mangle)]
unsafe extern "C" fn fclose(stream: *mut FILE) -> c_int {
    forget(number(stream));
    // SAFETY: what the caller promises libc.
    unsafe { libc_next::fclose(stream) }
}

/// Defines hooks of `setrlimit`: after it, other writes may have to go to the kernel.
macro_rules! limits {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(resource: c_uint, limit: *const rlimit) -> c_int {
                // SAFETY: what the caller promises libc.
                let result = unsafe { libc_next::setrlimit64(resource, limit) };
                if result == 0 && resource == libc::RLIMIT_FSIZE as c_uint {
                    state::forget_all();
                }
                result
            }
        )*
    };
}

limits!(setrlimit setrlimit64);

/// Defines hooks of `prlimit`.
macro_rules! process_limits {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(
                process: libc::pid_t,
                resource: c_uint,
                new: *const rlimit,
                old: *mut rlimit,
            ) -> c_int {
                // SAFETY: what the caller promises libc.
                let result = unsafe { libc_next::prlimit64(process, resource, new, old) };
                if result == 0 && resource == libc::RLIMIT_FSIZE as c_uint && !new.is_null() {
                    state::forget_all();
                }
                result
            }
        )*
    };
}

process_limits!(prlimit prlimit64);

/// Defines hooks of the calls that make the client's descriptors, so that the program does not
/// close these.
macro_rules! made {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
                // SAFETY: plain numbers.
                let fd = unsafe { libc_next::$name($($argument),*) };
                match state::is_client() {
                    true => state::own(fd),
                    false => {
                        forget(fd);
                        fd
                    }
                }
            }
        )*
    };
}

made! {
    epoll_create1(flags: c_int);
    eventfd(value: c_uint, flags: c_int);
}

/// The kernel copies up to where it believes that the file ends, and has not seen what was written
/// past it.
#[unsafe(no_mangle)]
unsafe extern "C" fn copy_file_range(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    if intercept::identity(from).is_some() && state::kind(from) != Kind::Foreign {
        intercept::refresh(from);
    }
    // SAFETY: what the caller promises libc.
    unsafe { libc_next::copy_file_range(from, from_at, to, to_at, len, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_exit(value: *mut c_void) -> ! {
    // SAFETY: plain numbers.
    let is_first = unsafe { libc::gettid() == libc::getpid() };
    if is_first {
        state::leave();
    }
    // SAFETY: what the caller promises libc.
    unsafe { libc_next::pthread_exit(value) }
}

/// Defines hooks of calls that change the user.
macro_rules! users {
    ($($name:ident ($($argument:ident),*);)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: c_uint),*) -> c_int {
                crate::count::keep();
                // SAFETY: plain numbers.
                unsafe { libc_next::$name($($argument),*) }
            }
        )*
    };
}

users! {
    setuid(user);
    seteuid(user);
    setreuid(user, effective);
    setresuid(user, effective, saved);
}
