//! The library's state in this process: the mode that the environment sets, what is known of each
//! descriptor number, intercepted files, mounts, connections.
//!
//! Of a descriptor number the library knows one word, which it changes without a lock. A word is
//! valid in the generation in which it was written. A new generation, in a fork child or after a
//! call that may have changed many descriptors at once, makes all numbers unknown.

use crate::libc_next;
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use tidegate_client::collective::Hints;
use tidegate_client::{Client, Context, OpenFile};

/// Not the program's heap: a signal handler may have interrupted it in `malloc`.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// How the short-cut behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The mount serves everything.
    Off = 0,
    /// The library intercepts a file after several data calls on it.
    Normal = 1,
    /// The library intercepts a file with its first data call: for tests.
    Eager = 2,
    /// Like `Eager`. In addition, a descriptor that became another file without a hook seeing it
    /// ends the program, because it shows that a hook is missing.
    Check = 3,
}

static MODE: AtomicU8 = AtomicU8::new(Mode::Off as u8);

/// Reads the mode from the environment (`TIDEGATE_SHORTCUT`), once, before the program runs.
pub(crate) fn read_mode() {
    // SAFETY: nobody changes the environment before the program runs.
    let value = unsafe { libc::getenv(c"TIDEGATE_SHORTCUT".as_ptr()) };
    let text = match value.is_null() {
        true => c"",
        // SAFETY: a variable is a string.
        false => unsafe { std::ffi::CStr::from_ptr(value) },
    };
    let mode = match text.to_bytes() {
        b"" | b"on" => Mode::Normal,
        b"eager" => Mode::Eager,
        b"check" => Mode::Check,
        b"off" => Mode::Off,
        _ => {
            libc_next::say(
                b"tidegate: TIDEGATE_SHORTCUT is neither on, off, eager nor check; it is off\n",
            );
            Mode::Off
        }
    };
    set_mode(mode);
}

/// The effective mode.
#[inline]
pub(crate) fn mode() -> Mode {
    match MODE.load(Ordering::Relaxed) {
        1 => Mode::Normal,
        2 => Mode::Eager,
        3 => Mode::Check,
        _ => Mode::Off,
    }
}

/// Sets the mode.
pub(crate) fn set_mode(mode: Mode) {
    MODE.store(mode as u8, Ordering::Relaxed);
}

/// The library leaves descriptors from this number on to the mount.
const DESCRIPTORS_MAX: usize = 65_536;

/// The last number that has a word.
pub(crate) const LAST: u32 = DESCRIPTORS_MAX as u32 - 1;

/// The client's own descriptors begin at this number, or below it where the limit is lower.
pub(crate) const OWN_FROM_MAX: u64 = 60_000;

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Not examined yet.
    Unknown,
    /// The kernel serves it, for whatever reason.
    Foreign,
    /// A file on a mount, with this number of data calls so far.
    Seen(u16),
    /// A file whose data calls this library sends to the forwarders.
    Intercepted,
    /// The client's own descriptor, which the program must not close.
    Own,
}

static WORDS: [AtomicU32; DESCRIPTORS_MAX] = [const { AtomicU32::new(0) }; DESCRIPTORS_MAX];
static GENERATION: AtomicU16 = AtomicU16::new(0);

const FOREIGN: u32 = 1;
const INTERCEPTED: u32 = 2;
const OWN: u32 = 3;
const SEEN: u32 = 4;
/// The largest count of calls.
const CALLS_MAX: u16 = 0x0fff;

fn word(fd: i32) -> Option<&'static AtomicU32> {
    WORDS.get(usize::try_from(fd).ok()?)
}

fn generation() -> u32 {
    u32::from(GENERATION.load(Ordering::Relaxed)) << 16
}

/// What the library knows of a descriptor.
#[inline]
pub(crate) fn kind(fd: i32) -> Kind {
    let Some(word) = word(fd) else {
        return Kind::Foreign;
    };
    let value = word.load(Ordering::Acquire);
    if value & 0xffff_0000 != generation() {
        return Kind::Unknown;
    }
    match value & 0xffff {
        0 => Kind::Unknown,
        FOREIGN => Kind::Foreign,
        INTERCEPTED => Kind::Intercepted,
        OWN => Kind::Own,
        seen => Kind::Seen((seen - SEEN) as u16),
    }
}

/// Records what a descriptor is.
pub(crate) fn set_kind(fd: i32, kind: Kind) {
    let value = match kind {
        Kind::Unknown => 0,
        Kind::Foreign => FOREIGN,
        Kind::Intercepted => INTERCEPTED,
        Kind::Own => OWN,
        Kind::Seen(calls) => SEEN + u32::from(calls.min(CALLS_MAX)),
    };
    if let Some(word) = word(fd) {
        word.store(generation() | value, Ordering::Release);
    }
}

/// Makes all descriptors unknown, the client's own too.
fn begin_generation() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

/// A file by its device and inode.
pub(crate) type Identity = (u64, u64);

/// A file whose data calls the library sends to the forwarders.
pub(crate) struct Intercepted {
    pub(crate) open: OpenFile,
    pub(crate) context: Context,
    pub(crate) identity: Identity,
    pub(crate) allows: Allows,
    /// Hints of collective operations from an MPI program.
    pub(crate) hints: Mutex<Hints>,
    /// Whether there are hints. Requests of programs without hints take no lock.
    pub(crate) is_hinted: AtomicBool,
}

impl Intercepted {
    /// The context of a request for this range: with the collective operation that a hint gives it.
    pub(crate) fn context_of(&self, offset: u64, len: usize) -> Cow<'_, Context> {
        let found = self.is_hinted.load(Ordering::Relaxed);
        let found = found.then(|| lock(&self.hints).find(offset, len as u64));
        match found.flatten() {
            None => Cow::Borrowed(&self.context),
            Some(collective) => Cow::Owned(Context {
                collective: Some(collective),
                ..self.context.clone()
            }),
        }
    }
}

/// What the library may do through a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allows {
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    /// Writes go to the end of the file.
    pub(crate) appends: bool,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the head of the file.
pub(crate) struct State {
    /// The process that made it.
    pub(crate) process: i32,
    /// Intercepted files by descriptor.
    pub(crate) files: RwLock<HashMap<i32, Arc<Intercepted>>>,
    /// By device: whether it is a mount of Tidegate.
    pub(crate) mounts: Mutex<HashMap<u64, bool>>,
    /// By the forwarders' addresses: the client; None if it could not connect.
    pub(crate) connections: Mutex<HashMap<String, Option<Arc<Client>>>>,
    /// Files that the program has mapped. Their data stays in the page cache, which only the kernel
    /// keeps right.
    pub(crate) mapped: Mutex<HashSet<Identity>>,
    /// Number of data calls on files of mounts.
    pub(crate) calls: AtomicU64,
}

static STATE: AtomicPtr<State> = AtomicPtr::new(ptr::null_mut());

/// The client's own descriptors lie between these.
static OWN_FIRST: AtomicI32 = AtomicI32::new(i32::MAX);
static OWN_LAST: AtomicI32 = AtomicI32::new(i32::MIN);

thread_local! {
    /// Whether this thread is inside the library: the calls that it makes now are the library's, or
    /// a signal handler's.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// Whether descriptors that this thread opens are the client's.
    static CLIENT: Cell<bool> = const { Cell::new(false) };
}

/// Runs in a fork child. It does not touch the parent's state: threads that the child does not have
/// may hold locks, and the connections are the parent's.
pub(crate) fn forked() {
    STATE.store(ptr::null_mut(), Ordering::Release);
    for fd in OWN_FIRST.load(Ordering::Relaxed)..=OWN_LAST.load(Ordering::Relaxed) {
        if kind(fd) == Kind::Own {
            // SAFETY: a plain number. Past the hook, which is for the program's.
            unsafe { libc::syscall(libc::SYS_close, fd) };
        }
    }
    begin_generation();
}

/// The state of this process.
fn state() -> &'static State {
    let made = STATE.load(Ordering::Acquire);
    if !made.is_null() {
        // SAFETY: a state that was published is never freed.
        return unsafe { &*made };
    }
    let new = Box::into_raw(Box::new(State {
        // SAFETY: it cannot fail.
        process: unsafe { libc::getpid() },
        files: RwLock::default(),
        mounts: Mutex::default(),
        connections: Mutex::default(),
        mapped: Mutex::default(),
        calls: AtomicU64::new(0),
    }));
    match STATE.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: as above.
        Ok(_) => unsafe { &*new },
        Err(other) => {
            // SAFETY: `new` was published to nobody; `other` was, and is never freed.
            unsafe {
                drop(Box::from_raw(new));
                &*other
            }
        }
    }
}

/// Whether this thread is inside the library.
#[inline]
pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}

/// Marks the client's own thread: none of its calls is the program's.
pub(crate) fn stay_inside() {
    INSIDE.set(true);
    CLIENT.set(true);
}

/// Whether descriptors that this thread opens now are the client's. What a signal handler opens is
/// not, unless it interrupts the making of a connection.
pub(crate) fn is_client() -> bool {
    CLIENT.get()
}

/// Makes a client; the descriptors that this opens are the client's.
pub(crate) fn as_client<T>(make: impl FnOnce() -> T) -> T {
    CLIENT.set(true);
    let made = make();
    CLIENT.set(false);
    made
}

/// Runs `call` inside the library; returns `otherwise` if this thread is inside already. After a
/// panic in it, the mount serves everything.
#[inline]
pub(crate) fn inside<T>(otherwise: T, call: impl FnOnce(&'static State) -> T) -> T {
    if INSIDE.replace(true) {
        return otherwise;
    }
    let result = catch_unwind(AssertUnwindSafe(|| call(state())));
    INSIDE.set(false);
    result.unwrap_or_else(|_| {
        CLIENT.set(false);
        set_mode(Mode::Off);
        libc_next::say(b"tidegate: the short-cut failed inside; the mount serves this program\n");
        otherwise
    })
}

/// Forgets a descriptor, because after what the program does its number may stand for another file.
pub(crate) fn forget(fd: i32) {
    match kind(fd) {
        Kind::Unknown | Kind::Own => {}
        Kind::Foreign | Kind::Seen(_) => set_kind(fd, Kind::Unknown),
        Kind::Intercepted => {
            set_kind(fd, Kind::Unknown);
            inside((), |state| {
                // A vfork child shares the memory, but the descriptor that it closes is its own:
                // the parent will find the file again.
                // SAFETY: it cannot fail.
                if unsafe { libc::getpid() } == state.process {
                    let mut files = state.files.write().unwrap_or_else(PoisonError::into_inner);
                    let gone = files.remove(&fd);
                    drop(files);
                    drop(gone);
                }
            });
        }
    }
}

/// Gives the program a number that is the client's. The client is broken without it, so from then
/// on the mount serves everything.
pub(crate) fn yield_own(fd: i32) {
    if kind(fd) == Kind::Own && !is_inside() {
        set_mode(Mode::Off);
        set_kind(fd, Kind::Unknown);
    }
}

/// Moves a socket of the client to a number that is the client's own.
pub(crate) fn place(socket: OwnedFd) -> OwnedFd {
    let fd = own(socket.into_raw_fd());
    // SAFETY: `own` gives back a descriptor for the one that it got.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Moves a descriptor to a number that programs do not use, and records that it is the client's.
/// Programs number theirs from below; shells use some in the hundreds.
pub(crate) fn own(fd: i32) -> i32 {
    if fd < 0 {
        return fd;
    }
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: there is room for the answer; else plain numbers.
    let moved = unsafe {
        let known = libc::getrlimit(libc::RLIMIT_NOFILE, limit.as_mut_ptr()) == 0;
        let most = if known {
            limit.assume_init().rlim_cur
        } else {
            0
        };
        let from = (most / 4 * 3).min(OWN_FROM_MAX);
        libc_next::fcntl64(fd, libc::F_DUPFD_CLOEXEC, from as usize)
    };
    let fd = match moved {
        // There is no room above: the client keeps the number that it has.
        -1 => fd,
        moved => {
            // SAFETY: it is ours, and was given to nobody.
            unsafe { libc_next::close(fd) };
            moved
        }
    };
    OWN_FIRST.fetch_min(fd, Ordering::Relaxed);
    OWN_LAST.fetch_max(fd, Ordering::Relaxed);
    set_kind(fd, Kind::Own);
    fd
}

/// Ends all clients, because the program's first thread ends: the program ends with the last of its
/// threads, and none of the client's may remain.
pub(crate) fn leave() {
    set_mode(Mode::Off);
    inside((), |state| {
        let connections = std::mem::take(&mut *lock(&state.connections));
        for client in connections.into_values().flatten() {
            client.shutdown();
        }
    });
}

/// Forgets all intercepted descriptors, because a call may have changed any of them.
pub(crate) fn forget_all() {
    inside((), |state| {
        let mut files = state.files.write().unwrap_or_else(PoisonError::into_inner);
        for &fd in files.keys() {
            set_kind(fd, Kind::Unknown);
        }
        let gone = std::mem::take(&mut *files);
        drop(files);
        drop(gone);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_known_until_the_next_generation() {
        let kinds = [
            Kind::Foreign,
            Kind::Intercepted,
            Kind::Own,
            Kind::Seen(0),
            Kind::Seen(7),
            Kind::Unknown,
        ];
        for (fd, kind_of) in (0..).zip(kinds) {
            set_kind(fd, kind_of);
        }
        for (fd, kind_of) in (0..).zip(kinds) {
            assert_eq!(kind(fd), kind_of);
        }
        set_kind(9, Kind::Seen(u16::MAX));
        assert_eq!(kind(9), Kind::Seen(CALLS_MAX));
        begin_generation();
        assert!((0..10).all(|fd| kind(fd) == Kind::Unknown));
        // Numbers that have no word.
        for fd in [-1, i32::MIN, DESCRIPTORS_MAX as i32] {
            set_kind(fd, Kind::Intercepted);
            assert_eq!(kind(fd), Kind::Foreign);
        }
    }
}
