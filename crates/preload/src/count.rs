//! Counts the files that this program opens, through the forwarders or past them, in memory that
//! `tidegate run` has made for all programs of the run. Also names the programs that this one
//! starts and that cannot load this library.

use crate::Words;
use crate::folders::{folders, is_program, with_path};
use crate::libc_next;
use crate::redirect::{self, Concern};
use crate::state;
use libc::{c_char, c_int};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use tidegate_client::opened::{
    BYTES, MAGIC, NAME_LEN, NAMES_AT, NAMES_MAX, Program, VARIABLE, Word, device,
};

const WORDS: usize = BYTES / 8;
/// Words of a name.
const NAME_WORDS: usize = NAME_LEN / 8;

type Memory = [AtomicU64; WORDS];

/// The memory's path; NULL if nobody counts.
static PATH: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());
static MEMORY: AtomicPtr<Memory> = AtomicPtr::new(ptr::null_mut());
/// The user as whom this process ran when it saw the memory.
static USER: AtomicU32 = AtomicU32::new(0);

/// Reads from the environment whether to count.
pub(crate) fn begin() {
    let mut name = VARIABLE.as_bytes().to_vec();
    name.push(0);
    let Some(path) = CStr::from_bytes_with_nul(&name)
        .ok()
        .and_then(redirect::variable)
    else {
        return;
    };
    // The program may change its environment.
    PATH.store(path.to_owned().into_raw(), Ordering::Release);
}

/// Whether anybody wants to know.
#[inline]
fn is_wanted() -> bool {
    !PATH.load(Ordering::Relaxed).is_null()
}

/// The memory, of which this process first sees when it needs it.
fn memory() -> Option<&'static Memory> {
    let made = MEMORY.load(Ordering::Acquire);
    if made.is_null() {
        let path = PATH.load(Ordering::Acquire);
        if path.is_null() {
            return None;
        }
        // SAFETY: a path that was stored stays.
        let new = match map(unsafe { CStr::from_ptr(path) }) {
            Ok(new) => new,
            Err(Missing::Gone) => {
                PATH.store(ptr::null_mut(), Ordering::Release);
                return None;
            }
            // Another time, or for the parent of a vfork child that has changed its user.
            Err(Missing::Now) => return None,
        };
        // SAFETY: it cannot fail.
        USER.store(unsafe { libc::geteuid() }, Ordering::Relaxed);
        // Of two threads that do this at once, one leaves a page behind.
        MEMORY.store(new, Ordering::Release);
    }
    // SAFETY: it is not taken away.
    unsafe { MEMORY.load(Ordering::Acquire).as_ref() }
}

/// Sees the memory while this process may: it is about to change its user.
pub(crate) fn keep() {
    if is_wanted() {
        memory();
    }
}

/// Why there is no memory.
enum Missing {
    /// It is not there, or is something else.
    Gone,
    /// This process cannot map it now.
    Now,
}

/// Maps the memory.
fn map(path: &CStr) -> Result<*mut Memory, Missing> {
    let look = libc::O_PATH | libc::O_CLOEXEC;
    let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: strings, room for the answer, and a new mapping. Past the hooks.
    unsafe {
        let open = |path: &CStr, flags: c_int| {
            let fd = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags);
            match (c_int::try_from(fd), *libc::__errno_location()) {
                (Ok(fd @ 0..), _) => Ok(fd),
                (_, libc::ENOENT | libc::ENOTDIR | libc::ESRCH) => Err(Missing::Gone),
                _ => Err(Missing::Now),
            }
        };
        let open_seen = |name: &CStr| open(name, flags).map_err(|_| Missing::Now);
        // To open what has that number in another process by now could have effects.
        let seen = open(path, look)?;
        let fd = if libc::fstat(seen, found.as_mut_ptr()) != 0 {
            Err(Missing::Now)
        } else {
            let found = found.assume_init();
            // Without a name, and of a size that stays.
            let is_memory = found.st_mode & libc::S_IFMT == libc::S_IFREG
                && found.st_nlink == 0
                && found.st_size == BYTES as libc::off_t;
            match CStr::from_bytes_until_nul(&link_name(seen)) {
                Ok(name) if is_memory && found.st_uid == libc::geteuid() => open_seen(name),
                _ if is_memory => Err(Missing::Now),
                _ => Err(Missing::Gone),
            }
        };
        libc::syscall(libc::SYS_close, seen);
        let fd = fd?;
        let mapped = libc_next::mmap64(
            ptr::null_mut(),
            BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd,
            0,
        );
        libc::syscall(libc::SYS_close, fd);
        let memory = mapped.cast::<Memory>();
        if mapped == libc::MAP_FAILED {
            return Err(Missing::Now);
        }
        if (&*memory)[Word::Magic as usize].load(Ordering::Relaxed) != MAGIC {
            libc::munmap(mapped, BYTES);
            return Err(Missing::Gone);
        }
        Ok(memory)
    }
}

/// Counts one more.
pub(crate) fn add(word: Word) {
    if is_wanted()
        && let Some(memory) = memory()
    {
        memory[word as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts a file that the program has opened by this name, if it has to do with the forwarders.
///
/// # Safety
/// As [`redirect::concern`].
#[inline]
pub(crate) unsafe fn opened(fd: c_int, folder: c_int, path: *const c_char, flags: c_int) {
    if fd < 0 || !is_wanted() {
        return;
    }
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    // SAFETY: the caller says so.
    let concern = unsafe { redirect::concern(folder, path) };
    // A name that seems to have nothing to do with the directory may lead there by a link. That is
    // looked at for writing alone.
    if (writes || concern != Concern::None) && !state::is_inside() && !state::is_client() {
        look(fd, writes, concern);
    }
}

#[cold]
fn look(fd: c_int, writes: bool, concern: Concern) {
    // SAFETY: the place of this thread's errno.
    let errno = unsafe { *libc::__errno_location() };
    if let Some(memory) = memory() {
        look_at(memory, fd, writes, concern);
    }
    // SAFETY: likewise.
    unsafe { *libc::__errno_location() = errno };
}

fn look_at(memory: &Memory, fd: c_int, writes: bool, concern: Concern) {
    let word = |word: Word| &memory[word as usize];
    let mut found = MaybeUninit::<libc::statx>::uninit();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the path is a string, and there is room for the answer.
    let found = unsafe {
        let (name, room) = (c"".as_ptr(), found.as_mut_ptr());
        if libc::syscall(libc::SYS_statx, fd, name, flags, libc::STATX_TYPE, room) != 0 {
            return;
        }
        found.assume_init()
    };
    if u32::from(found.stx_mode) & libc::S_IFMT != libc::S_IFREG {
        return;
    }
    let on = device(found.stx_dev_major, found.stx_dev_minor);
    if on == word(Word::Mount).load(Ordering::Relaxed) {
        word(Word::Through).fetch_add(1, Ordering::Relaxed);
        return;
    }
    let may_be_past = writes || concern == Concern::Export || concern == Concern::Near;
    if on != word(Word::Export).load(Ordering::Relaxed) || !may_be_past || !is_past(fd) {
        return;
    }
    let why = match (redirect::redirects(), redirect::leads()) {
        (false, _) => Word::Asked,
        (true, false) => Word::Unreached,
        (true, true) => Word::Alias,
    };
    word(why).fetch_add(1, Ordering::Relaxed);
    if writes {
        word(Word::Written).fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether an open file lies below the exported directory.
fn is_past(fd: c_int) -> bool {
    let mut room = [0; 4096];
    let name = link_name(fd);
    let name = CStr::from_bytes_until_nul(&name);
    name.is_ok_and(|name| redirect::is_past(redirect::link(name, &mut room)))
}

/// The name that the kernel has for an open file, with a NUL at its end: one of the calling thread,
/// since the process has none where the main thread has ended.
fn link_name(fd: c_int) -> [u8; 33] {
    const FOLDER: &[u8] = b"/proc/thread-self/fd/";
    let mut name = [0; FOLDER.len() + 12];
    name[..FOLDER.len()].copy_from_slice(FOLDER);
    let mut left = fd.unsigned_abs();
    let digits = left.checked_ilog10().unwrap_or(0) as usize + 1;
    for at in (FOLDER.len()..FOLDER.len() + digits).rev() {
        name[at] = b'0' + (left % 10) as u8;
        left /= 10;
    }
    name
}

/// Bytes of a program that are looked at.
const HEAD: usize = 1024;

/// Notes a program that this one is about to start with this environment, if it cannot load this
/// library.
///
/// # Safety
/// `path` is a string, or an address for which the kernel would say EFAULT; so are the words.
pub(crate) unsafe fn starts(path: *const c_char, environment: Words) {
    if !is_wanted() || !redirect::may_be_read(path) {
        return;
    }
    // SAFETY: the place of this thread's errno, and what the caller says.
    unsafe {
        let errno = *libc::__errno_location();
        let path = CStr::from_ptr(path);
        let kind = match kind(path) {
            Some(Program::Loads) if !has_library(environment) => Program::Bare,
            Some(Program::Loads) if has_other_rights() => Program::Privileged,
            Some(Program::Loads) if is_stranger() => Program::Stranger,
            kind => kind.unwrap_or(Program::Loads),
        };
        if let Some(letter) = kind.letter() {
            note(path.to_bytes(), letter);
        }
        *libc::__errno_location() = errno;
    }
}

/// The same for a program that is looked for in the folders of `PATH`.
///
/// # Safety
/// As [`starts`].
pub(crate) unsafe fn starts_found(name: *const c_char, environment: Words) {
    if !is_wanted() || !redirect::may_be_read(name) {
        return;
    }
    // SAFETY: the caller says so; the environment is the program's, which is calling.
    unsafe {
        if !libc::strchr(name, c_int::from(b'/')).is_null() {
            return starts(name, environment);
        }
        folders().any(|folder| {
            let mut is_found = false;
            with_path(folder, CStr::from_ptr(name), &mut |path| {
                if is_program(path) {
                    starts(path, environment);
                    is_found = true;
                }
            });
            is_found
        });
    }
}

/// Whether an environment has this library loaded.
unsafe fn has_library(mut environment: Words) -> bool {
    const NAME: &[u8] = b"libtidegate_preload";
    // SAFETY: strings, and NULL after the last.
    unsafe {
        while redirect::may_be_read(environment.cast()) && redirect::may_be_read(*environment) {
            // Reads no byte after the first one that differs.
            if libc::strncmp(*environment, c"LD_PRELOAD=".as_ptr(), 11) == 0 {
                let value = CStr::from_ptr(*environment).to_bytes();
                return value.windows(NAME.len()).any(|part| part == NAME);
            }
            environment = environment.add(1);
        }
    }
    false
}

/// Whether this process has the rights of another than of who has started it. The loader gives its
/// programs no library, as those that are set-user-ID.
fn has_other_rights() -> bool {
    // SAFETY: they cannot fail.
    unsafe { libc::geteuid() != libc::getuid() || libc::getegid() != libc::getgid() }
}

/// Whether this process has become a user whose programs cannot reach the mount.
fn is_stranger() -> bool {
    // SAFETY: it cannot fail.
    let user = unsafe { libc::geteuid() };
    memory().is_some() && user != USER.load(Ordering::Relaxed) && redirect::is_closed()
}

/// Whether a program loads this library as far as its file says; None if there is no such program.
#[inline(never)]
fn kind(path: &CStr) -> Option<Program> {
    let mut head = [0u8; HEAD];
    let mut found = MaybeUninit::<libc::stat>::zeroed();
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    // SAFETY: a string, and room for the answers. Past the hooks.
    unsafe {
        let fd = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags);
        let fd = c_int::try_from(fd).ok().filter(|fd| *fd >= 0)?;
        let known = libc::fstat(fd, found.as_mut_ptr()) == 0;
        let len = libc::syscall(libc::SYS_pread64, fd, head.as_mut_ptr(), HEAD, 0);
        let (name, none) = (c"security.capability".as_ptr(), ptr::null_mut::<c_char>());
        // Root's programs have all capabilities without that.
        let gets_more =
            libc::getuid() != 0 && libc::syscall(libc::SYS_fgetxattr, fd, name, none, 0) > 0;
        libc::syscall(libc::SYS_close, fd);
        let len = usize::try_from(len).unwrap_or(0);
        let found = found.assume_init();
        if !known || found.st_mode & libc::S_IFMT != libc::S_IFREG {
            return None;
        }
        let gets_user = found.st_mode & libc::S_ISUID != 0 && found.st_uid != libc::geteuid();
        let group = libc::S_ISGID | libc::S_IXGRP;
        let gets_group = found.st_mode & group == group && found.st_gid != libc::getegid();
        Some(match Program::of_head(&head[..len.min(HEAD)]) {
            Program::Loads if gets_user || gets_group || gets_more => Program::Privileged,
            kind => kind,
        })
    }
}

/// Notes the name of a program, once.
fn note(path: &[u8], letter: u8) {
    let Some(memory) = memory() else {
        return;
    };
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let mut bytes = [0u8; NAME_LEN];
    bytes[0] = letter;
    let len = name.len().min(NAME_LEN - 2);
    bytes[1..=len].copy_from_slice(&name[..len]);
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[8 * at..8 * at + 8]);
        #[expect(clippy::host_endian_bytes, reason = "memory of this node")]
        u64::from_ne_bytes(word)
    };
    let slot = |slot: usize| &memory[NAMES_AT / 8 + slot * NAME_WORDS..][..NAME_WORDS];
    let is_same = |known: &[AtomicU64]| {
        (0..NAME_WORDS).all(|at| known[at].load(Ordering::Relaxed) == word(at))
    };
    if (0..NAMES_MAX).any(|at| is_same(slot(at))) {
        return;
    }
    let free = memory[Word::Unseen as usize].fetch_add(1, Ordering::Relaxed);
    if let Some(free) = usize::try_from(free).ok().filter(|free| *free < NAMES_MAX) {
        for (at, known) in slot(free).iter().enumerate() {
            known.store(word(at), Ordering::Relaxed);
        }
    }
}
