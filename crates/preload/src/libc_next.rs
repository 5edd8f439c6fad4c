//! The functions behind the hooks: the next ones with their name, mostly libc's.

use libc::{c_char, c_int, c_uint, c_void, iovec, mode_t, off_t, size_t, ssize_t};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

type Buffer = *mut c_void;
type Source = *const c_void;
type Address = *mut c_void;
type Vector = *const iovec;
type Text = *const c_char;
type Stream = *mut libc::FILE;
type Limit = *const libc::rlimit;
type OldLimit = *mut libc::rlimit;

/// A function that the library looks up when it first needs it.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Next {
        Next {
            name,
            found: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Its address. A function that no other library has cannot have been called before this
    /// library either.
    #[inline]
    pub(crate) fn address(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() { self.find() } else { found }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: the name is a string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            say(b"tidegate: a function of libc is missing behind the short-cut\n");
            std::process::abort();
        }
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Defines callers of the next function of a name.
macro_rules! next {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            #[doc = concat!("The next `", stringify!($name), "`.")]
            ///
            /// # Safety
            /// That of the function.
            #[inline]
            pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
                static NEXT: Next = Next::new(
                    match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a name has no NUL in it"),
                    },
                );
                type Function = unsafe extern "C" fn($($type),*) -> $result;
                // SAFETY: that is its type in libc; arguments that are variadic there are passed
                // the same way on the machines that Linux runs on with glibc and 64 bits.
                unsafe {
                    let next = std::mem::transmute::<*mut c_void, Function>(NEXT.address());
                    next($($argument),*)
                }
            }
        )*
    };
}

next! {
    read(fd: c_int, buffer: Buffer, len: size_t) -> ssize_t;
    write(fd: c_int, buffer: Source, len: size_t) -> ssize_t;
    pread64(fd: c_int, buffer: Buffer, len: size_t, offset: off_t) -> ssize_t;
    pwrite64(fd: c_int, buffer: Source, len: size_t, offset: off_t) -> ssize_t;
    readv(fd: c_int, vector: Vector, count: c_int) -> ssize_t;
    writev(fd: c_int, vector: Vector, count: c_int) -> ssize_t;
    preadv64(fd: c_int, vector: Vector, count: c_int, offset: off_t) -> ssize_t;
    pwritev64(fd: c_int, vector: Vector, count: c_int, offset: off_t) -> ssize_t;
    preadv64v2(fd: c_int, vector: Vector, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    pwritev64v2(fd: c_int, vector: Vector, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    __read_chk(fd: c_int, buffer: Buffer, len: size_t, room: size_t) -> ssize_t;
    __pread64_chk(fd: c_int, buffer: Buffer, len: size_t, offset: off_t, room: size_t) -> ssize_t;
    fsync(fd: c_int) -> c_int;
    fdatasync(fd: c_int) -> c_int;
    mmap64(
        at: Address, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t
    ) -> Address;
    open64(path: Text, flags: c_int, mode: mode_t) -> c_int;
    openat64(folder: c_int, path: Text, flags: c_int, mode: mode_t) -> c_int;
    creat64(path: Text, mode: mode_t) -> c_int;
    __open64_2(path: Text, flags: c_int) -> c_int;
    __openat64_2(folder: c_int, path: Text, flags: c_int) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    copy_file_range(
        from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t, flags: c_uint
    ) -> ssize_t;
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, onto: c_int) -> c_int;
    dup3(fd: c_int, onto: c_int, flags: c_int) -> c_int;
    fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int;
    fopen64(path: Text, mode: Text) -> Stream;
    freopen64(path: Text, mode: Text, stream: Stream) -> Stream;
    fclose(stream: Stream) -> c_int;
    setrlimit64(resource: c_uint, limit: Limit) -> c_int;
    prlimit64(process: libc::pid_t, resource: c_uint, new: Limit, old: OldLimit) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    eventfd(value: c_uint, flags: c_int) -> c_int;
}

/// The next `pthread_exit`, which unwinds.
///
/// # Safety
/// That of the function.
pub(crate) unsafe fn pthread_exit(value: *mut c_void) -> ! {
    static NEXT: Next = Next::new(c"pthread_exit");
    type Function = unsafe extern "C-unwind" fn(*mut c_void) -> !;
    // SAFETY: that is its type in libc.
    unsafe {
        let next = std::mem::transmute::<*mut c_void, Function>(NEXT.address());
        next(value)
    }
}

/// Writes a line to standard error, without the hooks.
pub(crate) fn say(line: &[u8]) {
    // SAFETY: the bytes are there. There is nobody to tell if it fails.
    unsafe {
        libc::syscall(libc::SYS_write, 2, line.as_ptr(), line.len());
    }
}
