//! The functions of libc that this library replaces because they start programs. One that is named
//! in the exported directory is started from the mount: the forwarders may still hold it open for
//! writing, and then the kernel does not start it by its own name.

use crate::count;
use crate::folders::{folders, is_program, mode, with_path};
use crate::libc_next;
use crate::redirect::{Concern, concern, led, may_be_read, may_hold, may_leave, plain, redirects};
use libc::{AT_FDCWD, c_char, c_int, c_void, mode_t};
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

type Text = *const c_char;
type Words = *const *const c_char;
type Room = *mut c_void;
type Bytes = *const c_void;

/// Bytes of a script in which the kernel looks for its interpreter.
const FIRST_LINE: usize = 256;
/// Words of a program that the library puts others before; with more, the kernel does it.
const WORDS_MAX: usize = 500;
/// Words of most programs. A child of `vfork` or `clone` may have little stack, and there is more
/// room on it only for what needs more.
const WORDS_USUAL: usize = 28;
/// What is put before the words, and the NULL behind them.
const MORE: usize = 4;

/// Whether file actions of this process may change a directory, so that a relative name means
/// another program.
static MOVES: AtomicBool = AtomicBool::new(false);

/// A way to start a program.
struct Way<'a> {
    /// Starts the program of this path with these words.
    start: &'a dyn Fn(Text, Words) -> c_int,
    /// Whether a start does more than that, so that none is to be tried twice: file actions.
    acts: bool,
    /// Whether a relative name means what it means here.
    is_here: bool,
    /// The environment of the program.
    environment: Words,
}

impl Way<'_> {
    /// Starts the program of a path.
    ///
    /// # Safety
    /// The path is a string, or an address for which the kernel would say EFAULT; so are words.
    unsafe fn by_path(&self, path: Text, words: Words) -> c_int {
        // SAFETY: the caller says so; where there is a concern, it is a string.
        unsafe {
            let is_left =
                !redirects() || !may_be_read(path) || (!self.is_here && *path.cast::<u8>() != b'/');
            if is_left {
                count::starts(path, self.environment);
                return (self.start)(path, words);
            }
            led(AT_FDCWD, path, |found| {
                count::starts(found, self.environment);
                if found == path {
                    return self.with_interpreter(path, words);
                }
                if has_rights(found) || (self.acts && is_denied(found)) {
                    return plain(path, |path| (self.start)(path, words));
                }
                let result = self.with_interpreter(found, words);
                self.or_itself(result, path, words)
            })
        }
    }

    /// Starts the path by its own name if a start from the mount was denied: the mount may be one
    /// from which nothing is started. Where a start acts, that was asked before it.
    unsafe fn or_itself(&self, result: c_int, path: Text, words: Words) -> c_int {
        // SAFETY: the place of this thread's errno.
        match !self.acts && unsafe { *libc::__errno_location() } == libc::EACCES {
            // SAFETY: the caller gives a string.
            true => unsafe { plain(path, |path| (self.start)(path, words)) },
            false => result,
        }
    }

    /// Starts a script by its interpreter, if this is a program of the directory; else the path.
    #[inline(never)]
    unsafe fn with_interpreter(&self, path: Text, words: Words) -> c_int {
        let mut line = [0u8; FIRST_LINE + 1];
        // SAFETY: the path is a string; the words end with NULL.
        unsafe {
            let count = match words.is_null() {
                true => 0,
                false => (0..=WORDS_MAX)
                    .take_while(|at| !(*words.add(*at)).is_null())
                    .count(),
            };
            let found = match count {
                1..=WORDS_MAX => interpreter(path, &mut line),
                _ => None,
            };
            let Some((program, word)) = found else {
                return (self.start)(path, words);
            };
            if self.acts && led(AT_FDCWD, program.as_ptr(), |program| is_denied(program)) {
                return (self.start)(path, words);
            }
            let before = [program.as_ptr(), word.map_or(path, CStr::as_ptr), path];
            let before = &before[..2 + usize::from(word.is_some())];
            let after = std::slice::from_raw_parts(words.add(1), count - 1);
            let result = match count <= WORDS_USUAL {
                true => self.with_words::<{ WORDS_USUAL + MORE }>(before, after),
                false => self.with_words::<{ WORDS_MAX + MORE }>(before, after),
            };
            self.or_itself(result, path, words)
        }
    }

    /// Starts the program of the first word, from the mount if it is one of the directory.
    #[cold]
    #[inline(never)]
    unsafe fn with_words<const ROOM: usize>(&self, before: &[Text], after: &[Text]) -> c_int {
        let mut all = [ptr::null::<c_char>(); ROOM];
        for (place, word) in all.iter_mut().zip(before.iter().chain(after)) {
            *place = *word;
        }
        // SAFETY: the caller gives strings, and fewer than there is room for.
        unsafe {
            led(AT_FDCWD, all[0], |program| {
                (self.start)(program, all.as_ptr())
            })
        }
    }

    /// Starts the program of a name that is looked for in the folders of `PATH`.
    ///
    /// # Safety
    /// As [`Way::by_path`].
    unsafe fn by_name(&self, name: Text, words: Words) -> c_int {
        // SAFETY: the caller says so.
        unsafe {
            if !may_be_read(name) {
                return (self.start)(name, words);
            }
            if !libc::strchr(name, c_int::from(b'/')).is_null() {
                return self.by_path(name, words);
            }
            // Most programs have no such folder: then nothing is looked at twice.
            let is_wanted = redirects() && *name != 0 && folders().any(|folder| self.leads(folder));
            if is_wanted && let Some(result) = self.by_found(CStr::from_ptr(name), words) {
                return result;
            }
            count::starts_found(name, self.environment);
            (self.start)(name, words)
        }
    }

    /// Whether names in a folder may be some of the directory.
    fn leads(&self, folder: &[u8]) -> bool {
        (self.is_here || folder.first() == Some(&b'/')) && may_hold(folder)
    }

    /// Starts the first program of a name in the folders of `PATH`, if it is one of the directory,
    /// or the kernel would find another.
    #[cold]
    #[inline(never)]
    unsafe fn by_found(&self, name: &CStr, words: Words) -> Option<c_int> {
        // SAFETY: the environment is the program's, which is calling; `with_path` gives strings.
        unsafe {
            let is_there = |folder: &[u8], is_it: &dyn Fn(Text) -> bool| {
                let mut is_found = false;
                with_path(folder, name, &mut |path| {
                    is_found = led(AT_FDCWD, path, is_it)
                });
                is_found
            };
            let folder = folders().find(|folder| is_there(folder, &|path| is_program(path)));
            // As they are, such folders are others: nothing may be found there.
            let mut leaving = folders().filter(|folder| self.is_here && may_leave(folder));
            let folder = match (folder, leaving.next()) {
                (folder, None) => folder.filter(|folder| self.leads(folder))?,
                (Some(folder), _) => folder,
                // For the error: of a file that may not be started, else of one that is not there.
                (None, Some(leaving)) => folders()
                    .find(|folder| is_there(folder, &|path| mode(path) != 0))
                    .unwrap_or(leaving),
            };
            let mut result = None;
            with_path(folder, name, &mut |path| {
                result = Some(self.by_path(path, words));
            });
            result
        }
    }
}

/// Whether this process may not start the file of a path, as where nothing is started from a mount.
unsafe fn is_denied(path: Text) -> bool {
    // SAFETY: a string, and the place of this thread's errno.
    unsafe {
        libc::syscall(libc::SYS_faccessat, AT_FDCWD, path, libc::X_OK) != 0
            && *libc::__errno_location() == libc::EACCES
    }
}

/// Whether a program gets rights by its file, which it would not get on the mount.
unsafe fn has_rights(path: Text) -> bool {
    // SAFETY: strings, and room for nothing.
    unsafe {
        let (mode, group) = (mode(path), libc::S_ISGID | libc::S_IXGRP);
        let name = c"security.capability".as_ptr();
        let none = ptr::null_mut::<c_void>();
        mode & libc::S_ISUID != 0
            || mode & group == group
            || libc::syscall(libc::SYS_getxattr, path, name, none, 0) > 0
    }
}

/// The interpreter that the first line of a script names, and the word after it, if this process
/// may start the script and the interpreter is a program of the directory.
unsafe fn interpreter(
    path: Text,
    line: &mut [u8; FIRST_LINE + 1],
) -> Option<(&CStr, Option<&CStr>)> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    // SAFETY: a string, and room. Past the hooks.
    let len = unsafe {
        let fd = libc::syscall(libc::SYS_openat, AT_FDCWD, path, flags);
        if fd < 0 {
            return None;
        }
        let len = libc::syscall(libc::SYS_pread64, fd, line.as_mut_ptr(), FIRST_LINE, 0);
        libc::syscall(libc::SYS_close, fd);
        usize::try_from(len).ok()?
    };
    let end = line[..len].iter().position(|byte| *byte == b'\n')?;
    let is_blank = |byte: &u8| [b' ', b'\t'].contains(byte);
    if !line.starts_with(b"#!") || line[..end].contains(&0) {
        return None;
    }
    let end = end
        - line[..end]
            .iter()
            .rev()
            .take_while(|byte| is_blank(byte))
            .count();
    let from = 2 + line[..end]
        .iter()
        .skip(2)
        .take_while(|byte| is_blank(byte))
        .count();
    line[end] = 0;
    let middle = line[from..end]
        .iter()
        .position(is_blank)
        .map(|len| from + len);
    if let Some(middle) = middle {
        line[middle] = 0;
    }
    let text = |from: usize| CStr::from_bytes_until_nul(line.get(from..)?).ok();
    let program = text(from)?;
    // SAFETY: strings.
    let is_wanted =
        unsafe { concern(AT_FDCWD, program.as_ptr()) == Concern::Export && is_program(path) };
    if !is_wanted {
        return None;
    }
    let word = middle.map(|at| at + 1);
    let word = word.map(|at| at + line[at..].iter().take_while(|byte| is_blank(byte)).count());
    Some((program, word.and_then(text)))
}

/// Whether file actions may change a directory.
fn may_move(actions: Bytes) -> bool {
    // A libc with this function has a way to say so that is not seen here.
    let newer = c"posix_spawn_file_actions_addchdir".as_ptr();
    !actions.is_null()
        && (MOVES.load(Ordering::Relaxed)
            // SAFETY: a string.
            || !unsafe { libc::dlsym(libc::RTLD_NEXT, newer) }.is_null())
}

/// The environment of this process.
fn here() -> Words {
    unsafe extern "C" {
        static environ: Words;
    }
    // SAFETY: it is the program's, which is calling.
    unsafe { environ }
}

/// Defines hooks of calls by which another program takes the place of this one.
macro_rules! replaced {
    ($($name:ident $by:ident ($($environment:ident)?) $its:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(
                path: Text, arguments: Words $(, $environment: Words)?
            ) -> c_int {
                let start = |path, words| {
                    // SAFETY: what the caller promises libc.
                    unsafe { libc_next::$name(path, words $(, $environment)?) }
                };
                let (acts, is_here, environment) = (false, true, $its);
                let way = Way { start: &start, acts, is_here, environment };
                // SAFETY: likewise.
                unsafe { way.$by(path, arguments) }
            }
        )*
    };
}

replaced! {
    execve by_path (environment) environment;
    execv by_path () here();
    execvp by_name () here();
    execvpe by_name (environment) environment;
}

/// Defines hooks of calls that start a program beside this one.
macro_rules! spawned {
    ($($name:ident $by:ident;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(
                process: Room, path: Text, actions: Bytes, attributes: Bytes, arguments: Words,
                environment: Words
            ) -> c_int {
                let start = |path, words| {
                    // SAFETY: what the caller promises libc.
                    unsafe {
                        libc_next::$name(process, path, actions, attributes, words, environment)
                    }
                };
                let is_here = !may_move(actions);
                let way = Way { start: &start, acts: true, is_here, environment };
                // SAFETY: likewise.
                unsafe { way.$by(path, arguments) }
            }
        )*
    };
}

spawned! {
    posix_spawn by_path;
    posix_spawnp by_name;
}

/// Defines hooks of calls by which libc itself starts a shell, past the other hooks.
macro_rules! shells {
    ($($name:ident($($mode:ident)?) -> $result:ty;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(line: Text $(, $mode: Text)?) -> $result {
                // SAFETY: what the caller promises libc, and a string.
                unsafe {
                    if !line.is_null() {
                        count::starts(c"/bin/sh".as_ptr(), here());
                    }
                    libc_next::$name(line $(, $mode)?)
                }
            }
        )*
    };
}

shells! {
    system() -> c_int;
    popen(mode) -> *mut libc::FILE;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn_file_actions_addopen(
    actions: Room,
    fd: c_int,
    path: Text,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    // SAFETY: what the caller promises libc.
    unsafe {
        let add =
            |path| libc_next::posix_spawn_file_actions_addopen(actions, fd, path, flags, mode);
        // An action before this one may have moved the child.
        match may_be_read(path) && *path.cast::<u8>() != b'/' && may_move(actions) {
            true => add(path),
            false => led(AT_FDCWD, path, add),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn_file_actions_addchdir_np(actions: Room, path: Text) -> c_int {
    MOVES.store(true, Ordering::Relaxed);
    // SAFETY: what the caller promises libc.
    unsafe {
        led(AT_FDCWD, path, |path| {
            libc_next::posix_spawn_file_actions_addchdir_np(actions, path)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn_file_actions_addfchdir_np(actions: Room, fd: c_int) -> c_int {
    MOVES.store(true, Ordering::Relaxed);
    // SAFETY: what the caller promises libc.
    unsafe { libc_next::posix_spawn_file_actions_addfchdir_np(actions, fd) }
}

/// Defines a hook of a call that takes the program's words one by one: puts them in a row and calls
/// another function with its path and them. They lie in registers, then on the stack.
macro_rules! listed {
    ($($name:ident $with_row:ident;)*) => {
        $(
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            #[cfg(target_arch = "x86_64")]
            unsafe extern "C" fn $name(_path: Text, _first: Text) -> c_int {
                // The words after the sixth follow the return address, which moves below them all.
                std::arch::naked_asm!(
                    "pop rax",
                    "push r9",
                    "push r8",
                    "push rcx",
                    "push rdx",
                    "push rsi",
                    "mov rsi, rsp",
                    "push rax",
                    "call {with_row}",
                    "pop rcx",
                    "add rsp, 40",
                    "push rcx",
                    "ret",
                    with_row = sym $with_row,
                )
            }

            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            #[cfg(target_arch = "aarch64")]
            unsafe extern "C" fn $name(_path: Text, _first: Text) -> c_int {
                std::arch::naked_asm!(
                    "sub sp, sp, #64",
                    "str x1, [sp, #8]",
                    "stp x2, x3, [sp, #16]",
                    "stp x4, x5, [sp, #32]",
                    "stp x6, x7, [sp, #48]",
                    "add x1, sp, #8",
                    "stp x29, x30, [sp, #-16]!",
                    "bl {with_row}",
                    "ldp x29, x30, [sp], #16",
                    "add sp, sp, #64",
                    "ret",
                    with_row = sym $with_row,
                )
            }
        )*
    };
}

listed! {
    execl with_row;
    execlp with_row_found;
    execle with_row_and_environment;
}

unsafe extern "C" fn with_row(path: Text, row: Words) -> c_int {
    // SAFETY: the row ends with NULL.
    unsafe { execv(path, row) }
}

unsafe extern "C" fn with_row_found(name: Text, row: Words) -> c_int {
    // SAFETY: likewise.
    unsafe { execvp(name, row) }
}

unsafe extern "C" fn with_row_and_environment(path: Text, row: Words) -> c_int {
    // SAFETY: the environment comes after the NULL.
    unsafe {
        let mut end = row;
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(path, row, (*end.add(1)).cast())
    }
}
