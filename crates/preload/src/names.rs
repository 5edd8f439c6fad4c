//! The functions of libc that this library replaces because they take names of files: a name of the
//! exported directory leads to the mount (`redirect`). `hooks.rs` has those that open files,
//! `starts.rs` those that start programs.

use crate::count;
use crate::led::{led_pair, led_template};
use crate::libc_next;
use crate::redirect::{led, look_around};
use libc::{AT_FDCWD, c_char, c_int, c_long, c_uint, c_void, mode_t, off_t, size_t, ssize_t};
use tidegate_client::opened::Word;

type Text = *const c_char;
type Template = *mut c_char;
type Room = *mut c_void;
type Bytes = *const c_void;

/// Defines hooks of calls that take a name, relative to a folder.
macro_rules! named {
    ($(
        [$($name:ident)+] $arguments:tt -> $result:ty, $folder:expr, $path:ident, $next:ident;
    )*) => {
        $($(named!(@one $name $arguments $result, $folder, $path, $next);)+)*
    };
    (@one $name:ident ($($argument:ident: $type:ty),*)
        $result:ty, $folder:expr, $path:ident, $next:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            // SAFETY: what the caller promises libc.
            unsafe { led($folder, $path, |$path| libc_next::$next($($argument),*)) }
        }
    };
}

named! {
    [stat stat64] (path: Text, found: Room) -> c_int, AT_FDCWD, path, stat64;
    [lstat lstat64] (path: Text, found: Room) -> c_int, AT_FDCWD, path, lstat64;
    [fstatat fstatat64] (folder: c_int, path: Text, found: Room, flags: c_int) -> c_int,
        folder, path, fstatat64;
    [statx] (folder: c_int, path: Text, flags: c_int, mask: c_uint, found: Room) -> c_int,
        folder, path, statx;
    [__xstat __xstat64] (version: c_int, path: Text, found: Room) -> c_int,
        AT_FDCWD, path, __xstat64;
    [__lxstat __lxstat64] (version: c_int, path: Text, found: Room) -> c_int,
        AT_FDCWD, path, __lxstat64;
    [__fxstatat __fxstatat64] (
        version: c_int, folder: c_int, path: Text, found: Room, flags: c_int
    ) -> c_int, folder, path, __fxstatat64;
    [access] (path: Text, mode: c_int) -> c_int, AT_FDCWD, path, access;
    [eaccess euidaccess] (path: Text, mode: c_int) -> c_int, AT_FDCWD, path, eaccess;
    [faccessat] (folder: c_int, path: Text, mode: c_int, flags: c_int) -> c_int,
        folder, path, faccessat;
    [mkdir] (path: Text, mode: mode_t) -> c_int, AT_FDCWD, path, mkdir;
    [mkdirat] (folder: c_int, path: Text, mode: mode_t) -> c_int, folder, path, mkdirat;
    [mknod] (path: Text, mode: mode_t, device: u64) -> c_int, AT_FDCWD, path, mknod;
    [mknodat] (folder: c_int, path: Text, mode: mode_t, device: u64) -> c_int,
        folder, path, mknodat;
    [mkfifo] (path: Text, mode: mode_t) -> c_int, AT_FDCWD, path, mkfifo;
    [mkfifoat] (folder: c_int, path: Text, mode: mode_t) -> c_int, folder, path, mkfifoat;
    [rmdir] (path: Text) -> c_int, AT_FDCWD, path, rmdir;
    [unlink] (path: Text) -> c_int, AT_FDCWD, path, unlink;
    [unlinkat] (folder: c_int, path: Text, flags: c_int) -> c_int, folder, path, unlinkat;
    [remove] (path: Text) -> c_int, AT_FDCWD, path, remove;
    [symlink] (target: Text, path: Text) -> c_int, AT_FDCWD, path, symlink;
    [symlinkat] (target: Text, folder: c_int, path: Text) -> c_int, folder, path, symlinkat;
    [readlink] (path: Text, buffer: Room, len: size_t) -> ssize_t, AT_FDCWD, path, readlink;
    [readlinkat] (folder: c_int, path: Text, buffer: Room, len: size_t) -> ssize_t,
        folder, path, readlinkat;
    [__readlink_chk] (path: Text, buffer: Room, len: size_t, room: size_t) -> ssize_t,
        AT_FDCWD, path, __readlink_chk;
    [__readlinkat_chk] (
        folder: c_int, path: Text, buffer: Room, len: size_t, room: size_t
    ) -> ssize_t, folder, path, __readlinkat_chk;
    [truncate truncate64] (path: Text, len: off_t) -> c_int, AT_FDCWD, path, truncate64;
    [chmod] (path: Text, mode: mode_t) -> c_int, AT_FDCWD, path, chmod;
    [fchmodat] (folder: c_int, path: Text, mode: mode_t, flags: c_int) -> c_int,
        folder, path, fchmodat;
    [chown] (path: Text, user: c_uint, group: c_uint) -> c_int, AT_FDCWD, path, chown;
    [lchown] (path: Text, user: c_uint, group: c_uint) -> c_int, AT_FDCWD, path, lchown;
    [fchownat] (folder: c_int, path: Text, user: c_uint, group: c_uint, flags: c_int) -> c_int,
        folder, path, fchownat;
    [utime] (path: Text, times: Bytes) -> c_int, AT_FDCWD, path, utime;
    [utimes] (path: Text, times: Bytes) -> c_int, AT_FDCWD, path, utimes;
    [lutimes] (path: Text, times: Bytes) -> c_int, AT_FDCWD, path, lutimes;
    [futimesat] (folder: c_int, path: Text, times: Bytes) -> c_int, folder, path, futimesat;
    [utimensat] (folder: c_int, path: Text, times: Bytes, flags: c_int) -> c_int,
        folder, path, utimensat;
    [opendir] (path: Text) -> Room, AT_FDCWD, path, opendir;
    [statfs statfs64] (path: Text, found: Room) -> c_int, AT_FDCWD, path, statfs64;
    [statvfs statvfs64] (path: Text, found: Room) -> c_int, AT_FDCWD, path, statvfs64;
    [pathconf] (path: Text, name: c_int) -> c_long, AT_FDCWD, path, pathconf;
    [getxattr] (path: Text, name: Text, value: Room, len: size_t) -> ssize_t,
        AT_FDCWD, path, getxattr;
    [lgetxattr] (path: Text, name: Text, value: Room, len: size_t) -> ssize_t,
        AT_FDCWD, path, lgetxattr;
    [setxattr] (path: Text, name: Text, value: Bytes, len: size_t, flags: c_int) -> c_int,
        AT_FDCWD, path, setxattr;
    [lsetxattr] (path: Text, name: Text, value: Bytes, len: size_t, flags: c_int) -> c_int,
        AT_FDCWD, path, lsetxattr;
    [listxattr] (path: Text, names: Room, len: size_t) -> ssize_t, AT_FDCWD, path, listxattr;
    [llistxattr] (path: Text, names: Room, len: size_t) -> ssize_t, AT_FDCWD, path, llistxattr;
    [removexattr] (path: Text, name: Text) -> c_int, AT_FDCWD, path, removexattr;
    [lremovexattr] (path: Text, name: Text) -> c_int, AT_FDCWD, path, lremovexattr;
}

/// Defines hooks of calls that take two names.
macro_rules! paired {
    ($(
        $name:ident $arguments:tt ($from_folder:expr, $from:ident) ($to_folder:expr, $to:ident);
    )*) => {
        $(paired!(@one $name $arguments ($from_folder, $from) ($to_folder, $to));)*
    };
    (@one $name:ident ($($argument:ident: $type:ty),*)
        ($from_folder:expr, $from:ident) ($to_folder:expr, $to:ident)) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: what the caller promises libc.
            unsafe {
                let (result, is_into) =
                    led_pair(($from_folder, $from), ($to_folder, $to), |$from, $to| {
                        libc_next::$name($($argument),*)
                    });
                if let Some(is_into) = is_into.filter(|_| result == 0) {
                    count::add(Word::Renamed);
                    if is_into {
                        count::add(Word::Brought);
                    }
                }
                result
            }
        }
    };
}

paired! {
    rename(from: Text, to: Text) (AT_FDCWD, from) (AT_FDCWD, to);
    renameat(from_folder: c_int, from: Text, to_folder: c_int, to: Text)
        (from_folder, from) (to_folder, to);
    renameat2(from_folder: c_int, from: Text, to_folder: c_int, to: Text, flags: c_uint)
        (from_folder, from) (to_folder, to);
    link(from: Text, to: Text) (AT_FDCWD, from) (AT_FDCWD, to);
    linkat(from_folder: c_int, from: Text, to_folder: c_int, to: Text, flags: c_int)
        (from_folder, from) (to_folder, to);
}

/// Defines hooks of calls that choose a name by a template, in which they write it.
macro_rules! chosen {
    ($([$($name:ident)+] $arguments:tt $next:ident;)*) => {
        $($(chosen!(@one $name $arguments $next);)+)*
    };
    (@one $name:ident ($($argument:ident: $type:ty),*) $next:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(template: Template $(, $argument: $type)*) -> c_int {
            // SAFETY: what the caller promises libc.
            unsafe {
                let fd = led_template(template, |template| {
                    libc_next::$next(template $(, $argument)*)
                });
                crate::state::forget(fd);
                count::opened(fd, AT_FDCWD, template, libc::O_RDWR);
                fd
            }
        }
    };
}

chosen! {
    [mkstemp mkstemp64] () mkstemp64;
    [mkostemp mkostemp64] (flags: c_int) mkostemp64;
    [mkstemps mkstemps64] (after: c_int) mkstemps64;
    [mkostemps mkostemps64] (after: c_int, flags: c_int) mkostemps64;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkdtemp(template: Template) -> Template {
    // SAFETY: what the caller promises libc.
    let made = unsafe { led_template(template, |template| libc_next::mkdtemp(template)) };
    match made.is_null() {
        true => made,
        false => template,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn chdir(path: Text) -> c_int {
    // SAFETY: what the caller promises libc.
    let result = unsafe { led(AT_FDCWD, path, |path| libc_next::chdir(path)) };
    if result == 0 {
        look_around();
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fchdir(fd: c_int) -> c_int {
    // SAFETY: a plain number.
    let result = unsafe { libc_next::fchdir(fd) };
    if result == 0 {
        look_around();
    }
    result
}
