//! What processes have in common that `run` forks and that start no program: which signals they
//! take, and which descriptors they keep.

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::null_mut;

/// Blocks all signals of this thread. Returns those that were blocked before.
pub fn block_all() -> libc::sigset_t {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: room for both sets, which the calls fill.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

/// Blocks these signals of this thread, and no others.
pub fn block(these: &libc::sigset_t) {
    // SAFETY: a set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, these, null_mut()) };
}

/// Closes all descriptors but these, in order of their numbers, by system calls alone. Before Linux
/// 5.9 none is closed.
pub fn keep_only(kept: &[RawFd]) {
    let mut from = 0;
    for fd in kept {
        if *fd > from {
            close_range(from, fd - 1);
        }
        from = fd + 1;
    }
    close_range(from, RawFd::MAX);
}

fn close_range(first: RawFd, last: RawFd) {
    // SAFETY: the caller needs none of these.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
}
