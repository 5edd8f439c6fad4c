//! The short-cut: a library to preload that takes reads and writes of files on a Tidegate mount
//! straight to the forwarders, past the kernel and the mount's process.
//!
//! Every descriptor is a real one of the mount, opened through the kernel, and the offset stays in
//! the kernel too. So whatever this library does not take, or gives up, the mount does, and it is
//! right: it may be left out at any time. What it takes are the data calls of `hooks`, on regular
//! files that the mount has told the forwarders' names of (`intercept`).
//!
//! It lives in programs that know nothing of it, hence some rules:
//! - *Forgetting is always right*: a descriptor that is not known is looked at anew. All that hooks
//!   of `close`, `dup2` and the like do is forget. That also makes a `vfork` child harmless.
//! - *Nothing is believed of a number*: before each call the kernel is asked, without asking the
//!   mount, whether the descriptor still is that file, since what closes and opens files inside of
//!   libc cannot be seen.
//! - *Signal handlers may read and write*: a thread that is inside already goes to the kernel, and
//!   memory is not taken from the program's heap, whose lock it may hold.
//! - *A fork child begins anew*: with its own connections, and nothing known.

#![cfg_attr(test, expect(dead_code, reason = "the hooks are left out"))]

mod data;
mod descriptors;
mod hints;
mod intercept;
// A test is not to be hooked by what it tests.
#[cfg(not(test))]
mod hooks;
mod libc_next;
mod settings;
mod state;

/// Not the program's heap: a signal handler may have interrupted it in `malloc`.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// Runs before the program.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    // SAFETY: nothing was allocated yet, and the handler only stores to atomics.
    unsafe {
        // A child must not find the heap locked by a thread that it does not have.
        dlmalloc::enable_alloc_after_fork();
        libc::pthread_atfork(None, None, Some(state::forked));
    }
    settings::read();
}
