//! Parts that nothing may break off: no signal handler runs amid them, and no cancellation ends the
//! thread there.

use mio::Waker;
use std::ffi::c_int;
use std::mem::MaybeUninit;

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Runs `part` with all signals blocked, also in threads that it starts, and as
/// [`without_cancellation`].
pub(super) fn without_signals<T>(part: impl FnOnce() -> T) -> T {
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises `all`; pthread_sigmask reads it and initialises `before`.
    let blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr())
    };
    let done = without_cancellation(part);
    if blocked == 0 {
        // SAFETY: pthread_sigmask has succeeded and so initialised `before`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        }
    }
    done
}

/// Wakes whoever waits for the sockets.
pub(super) fn wake(waker: &Waker) {
    // Fails only if the client is gone, and the wait with it.
    let _ = without_cancellation(|| waker.wake());
}

/// Runs `part` in a thread that `pthread_cancel` ends only later: the calls that wait and wake are
/// points of cancellation, where the thread would be torn out of Rust code. No system call.
fn without_cancellation<T>(part: impl FnOnce() -> T) -> T {
    let mut before = 0;
    // SAFETY: a plain number, and a place for one.
    let disabled = unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before) };
    let done = part();
    if disabled == 0 {
        // SAFETY: the state that the thread had.
        unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
    }
    done
}
