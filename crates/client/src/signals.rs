//! Keeps a program's signals, and the cancellation of its threads, out of code that holds locks.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// While a guard lives, no signal handler runs in its thread or in threads that the thread starts,
/// and no cancellation ends the thread. A handler may wait for calls of other threads, and may jump
/// out of a call. So a thread that holds a lock must hold a guard, and lets signals in only where
/// it sleeps without a lock.
pub(crate) struct SignalGuard {
    before: Option<libc::sigset_t>,
    uncancelled: Uncancelled,
    /// The mask is the thread's own.
    _stays: PhantomData<*const ()>,
}

impl SignalGuard {
    pub(crate) fn begin() -> SignalGuard {
        SignalGuard {
            before: block_all(),
            uncancelled: Uncancelled::begin(),
            _stays: PhantomData,
        }
    }

    /// Runs `part` with the signals let in that were let in before the guard. `part` must hold no
    /// lock.
    pub(crate) fn let_signals_in<T>(&self, part: impl FnOnce() -> T) -> T {
        self.restore();
        let done = part();
        block_all();
        done
    }

    fn restore(&self) {
        if let Some(before) = &self.before {
            // SAFETY: it is a mask that this thread had.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut()) };
        }
    }
}

impl Drop for SignalGuard {
    fn drop(&mut self) {
        self.uncancelled.end();
        self.restore();
    }
}

/// Blocks all signals; returns those that were blocked before.
fn block_all() -> Option<libc::sigset_t> {
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises `all`; pthread_sigmask reads it and, where it succeeds,
    // initialises `before`.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        let blocked = libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        (blocked == 0).then(|| before.assume_init())
    }
}

/// `pthread_cancel` ends the thread only later: the calls that wait and wake are points of
/// cancellation, where the thread would be torn out of Rust code. No system call.
pub(crate) struct Uncancelled {
    before: Option<c_int>,
}

impl Uncancelled {
    pub(crate) fn begin() -> Uncancelled {
        let mut before = 0;
        // SAFETY: a plain number, and a place for one.
        let disabled = unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before) };
        Uncancelled {
            before: (disabled == 0).then_some(before),
        }
    }

    pub(crate) fn end(&mut self) {
        if let Some(before) = self.before.take() {
            // SAFETY: the state that the thread had.
            unsafe { pthread_setcancelstate(before, ptr::null_mut()) };
        }
    }
}
