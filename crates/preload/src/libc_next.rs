//! The functions behind the hooks: the next ones with their name, mostly libc's.

use libc::{c_char, c_int, c_uint, c_void, iovec, mode_t, off_t, size_t, ssize_t};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

type Buffer = *mut c_void;
type Source = *const c_void;
type Address = *mut c_void;
type Vector = *const iovec;
type Text = *const c_char;
type Template = *mut c_char;
type Words = *const *const c_char;
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
    stat64(path: Text, found: Address) -> c_int;
    lstat64(path: Text, found: Address) -> c_int;
    fstatat64(folder: c_int, path: Text, found: Address, flags: c_int) -> c_int;
    statx(folder: c_int, path: Text, flags: c_int, mask: c_uint, found: Address) -> c_int;
    __xstat64(version: c_int, path: Text, found: Address) -> c_int;
    __lxstat64(version: c_int, path: Text, found: Address) -> c_int;
    __fxstatat64(
        version: c_int, folder: c_int, path: Text, found: Address, flags: c_int
    ) -> c_int;
    access(path: Text, mode: c_int) -> c_int;
    eaccess(path: Text, mode: c_int) -> c_int;
    faccessat(folder: c_int, path: Text, mode: c_int, flags: c_int) -> c_int;
    mkdir(path: Text, mode: mode_t) -> c_int;
    mkdirat(folder: c_int, path: Text, mode: mode_t) -> c_int;
    mknod(path: Text, mode: mode_t, device: u64) -> c_int;
    mknodat(folder: c_int, path: Text, mode: mode_t, device: u64) -> c_int;
    mkfifo(path: Text, mode: mode_t) -> c_int;
    mkfifoat(folder: c_int, path: Text, mode: mode_t) -> c_int;
    rmdir(path: Text) -> c_int;
    unlink(path: Text) -> c_int;
    unlinkat(folder: c_int, path: Text, flags: c_int) -> c_int;
    remove(path: Text) -> c_int;
    rename(from: Text, to: Text) -> c_int;
    renameat(from_folder: c_int, from: Text, to_folder: c_int, to: Text) -> c_int;
    renameat2(
        from_folder: c_int, from: Text, to_folder: c_int, to: Text, flags: c_uint
    ) -> c_int;
    link(from: Text, to: Text) -> c_int;
    linkat(from_folder: c_int, from: Text, to_folder: c_int, to: Text, flags: c_int) -> c_int;
    symlink(target: Text, path: Text) -> c_int;
    symlinkat(target: Text, folder: c_int, path: Text) -> c_int;
    readlink(path: Text, buffer: Buffer, len: size_t) -> ssize_t;
    readlinkat(folder: c_int, path: Text, buffer: Buffer, len: size_t) -> ssize_t;
    __readlink_chk(path: Text, buffer: Buffer, len: size_t, room: size_t) -> ssize_t;
    __readlinkat_chk(
        folder: c_int, path: Text, buffer: Buffer, len: size_t, room: size_t
    ) -> ssize_t;
    truncate64(path: Text, len: off_t) -> c_int;
    chmod(path: Text, mode: mode_t) -> c_int;
    fchmodat(folder: c_int, path: Text, mode: mode_t, flags: c_int) -> c_int;
    chown(path: Text, user: c_uint, group: c_uint) -> c_int;
    lchown(path: Text, user: c_uint, group: c_uint) -> c_int;
    fchownat(folder: c_int, path: Text, user: c_uint, group: c_uint, flags: c_int) -> c_int;
    utime(path: Text, times: Source) -> c_int;
    utimes(path: Text, times: Source) -> c_int;
    lutimes(path: Text, times: Source) -> c_int;
    futimesat(folder: c_int, path: Text, times: Source) -> c_int;
    utimensat(folder: c_int, path: Text, times: Source, flags: c_int) -> c_int;
    opendir(path: Text) -> Address;
    chdir(path: Text) -> c_int;
    fchdir(fd: c_int) -> c_int;
    statfs64(path: Text, found: Address) -> c_int;
    statvfs64(path: Text, found: Address) -> c_int;
    pathconf(path: Text, name: c_int) -> libc::c_long;
    getxattr(path: Text, name: Text, value: Buffer, len: size_t) -> ssize_t;
    lgetxattr(path: Text, name: Text, value: Buffer, len: size_t) -> ssize_t;
    setxattr(path: Text, name: Text, value: Source, len: size_t, flags: c_int) -> c_int;
    lsetxattr(path: Text, name: Text, value: Source, len: size_t, flags: c_int) -> c_int;
    listxattr(path: Text, names: Buffer, len: size_t) -> ssize_t;
    llistxattr(path: Text, names: Buffer, len: size_t) -> ssize_t;
    removexattr(path: Text, name: Text) -> c_int;
    lremovexattr(path: Text, name: Text) -> c_int;
    mkstemp64(template: Template) -> c_int;
    mkostemp64(template: Template, flags: c_int) -> c_int;
    mkstemps64(template: Template, after: c_int) -> c_int;
    mkostemps64(template: Template, after: c_int, flags: c_int) -> c_int;
    mkdtemp(template: Template) -> Template;
    execve(path: Text, arguments: Words, environment: Words) -> c_int;
    execv(path: Text, arguments: Words) -> c_int;
    execvp(name: Text, arguments: Words) -> c_int;
    execvpe(name: Text, arguments: Words, environment: Words) -> c_int;
    system(line: Text) -> c_int;
    popen(line: Text, mode: Text) -> Stream;
    posix_spawn(
        process: Address, path: Text, actions: Source, attributes: Source, arguments: Words,
        environment: Words
    ) -> c_int;
    posix_spawnp(
        process: Address, name: Text, actions: Source, attributes: Source, arguments: Words,
        environment: Words
    ) -> c_int;
    posix_spawn_file_actions_addopen(
        actions: Address, fd: c_int, path: Text, flags: c_int, mode: mode_t
    ) -> c_int;
    posix_spawn_file_actions_addchdir_np(actions: Address, path: Text) -> c_int;
    posix_spawn_file_actions_addfchdir_np(actions: Address, fd: c_int) -> c_int;
    setuid(user: c_uint) -> c_int;
    seteuid(user: c_uint) -> c_int;
    setreuid(user: c_uint, effective: c_uint) -> c_int;
    setresuid(user: c_uint, effective: c_uint, saved: c_uint) -> c_int;
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
