//! The library's state in this process, besides the descriptors' words: intercepted files, mounts,
//! connections.

use crate::descriptors::{self, Kind};
use crate::libc_next;
use crate::settings::{self, Mode};
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use tidegate_client::collective::Hints;
use tidegate_client::{Client, Context, OpenFile};

/// A file by its device and inode.
pub(crate) type Identity = (u64, u64);

/// A file whose data calls the library sends to the forwarders.
pub(crate) struct Intercepted {
    pub(crate) open: OpenFile,
    pub(crate) context: Context,
    pub(crate) identity: Identity,
    pub(crate) allows: Allows,
    /// Whether this process has written through it.
    pub(crate) wrote: AtomicBool,
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
pub(crate) extern "C" fn forked() {
    STATE.store(ptr::null_mut(), Ordering::Release);
    for fd in OWN_FIRST.load(Ordering::Relaxed)..=OWN_LAST.load(Ordering::Relaxed) {
        if descriptors::kind(fd) == Kind::Own {
            // SAFETY: a plain number. Past the hook, which is for the program's.
            unsafe { libc::syscall(libc::SYS_close, fd) };
        }
    }
    descriptors::forget_all();
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
        settings::set(Mode::Off);
        settings::say(b"tidegate: the short-cut failed inside; the mount serves this program\n");
        otherwise
    })
}

/// Forgets a descriptor, because after what the program does its number may stand for another file.
pub(crate) fn forget(fd: i32) {
    match descriptors::kind(fd) {
        Kind::Unknown | Kind::Own => {}
        Kind::Foreign | Kind::Seen(_) => descriptors::set(fd, Kind::Unknown),
        Kind::Intercepted => {
            descriptors::set(fd, Kind::Unknown);
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
    if descriptors::kind(fd) == Kind::Own && !is_inside() {
        settings::set(Mode::Off);
        descriptors::set(fd, Kind::Unknown);
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
        let from = (most / 4 * 3).min(descriptors::OWN_FROM_MAX);
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
    descriptors::set(fd, Kind::Own);
    fd
}

/// Ends all clients, because the program's first thread ends: the program ends with the last of its
/// threads, and none of the client's may remain.
pub(crate) fn leave() {
    settings::set(Mode::Off);
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
            descriptors::set(fd, Kind::Unknown);
        }
        let gone = std::mem::take(&mut *files);
        drop(files);
        drop(gone);
    });
}
