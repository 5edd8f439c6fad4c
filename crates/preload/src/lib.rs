//! The short-cut: a preloaded library that sends a program's reads and writes of files on a
//! Tidegate mount straight to the forwarders, past the kernel and the mount's process.
//!
//! Every descriptor is a real one of the mount, which the program opened through the kernel, and
//! the kernel also keeps the file offset. So the mount can serve any call that this library does
//! not take or gives up, with the right result. The library takes the data calls of `data` on
//! regular files for which the mount has given the addresses of the forwarders (`intercept`).
//!
//! Under `tidegate run` the library also leads names of the exported directory itself to the mount
//! (`redirect`), and counts what goes past it (`count`).
//!
//! The library runs inside programs that know nothing of it. Hence some rules:
//! - *To forget is always right*: the library examines an unknown descriptor anew. All that the
//!   hooks of `close`, `dup2` and the like do is forget. That also makes a `vfork` child harmless.
//! - *A number proves nothing*: before each call the library asks the kernel, which answers without
//!   asking the mount, whether the descriptor still is that file. Libc may close and open files
//!   inside, where no hook sees it.
//! - *Signal handlers may read and write*: a call from a thread that is inside the library already
//!   goes to the kernel. The library takes no memory from the program's heap, whose lock the
//!   interrupted thread may hold.
//! - *A fork child begins anew*: it makes its own connections, and all descriptors are unknown.

#![cfg_attr(test, expect(dead_code, reason = "the hooks are left out"))]

mod again;
mod count;
mod data;
mod folders;
mod hints;
mod intercept;
mod led;
// A test is not to be hooked by what it tests.
#[cfg(not(test))]
mod hooks;
mod libc_next;
mod mounted;
#[cfg(not(test))]
mod names;
mod paths;
mod redirect;
#[cfg(not(test))]
mod starts;
mod state;

use libc::{c_char, c_int};

/// Runs before the program.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: unsafe extern "C" fn(c_int, Words, Words) = begin;

/// Strings, and NULL after the last.
type Words = *const *const c_char;

/// glibc passes what it passes to `main`.
unsafe extern "C" fn begin(count: c_int, arguments: Words, environment: Words) {
    // SAFETY: nothing was allocated yet, and the handler only stores to atomics.
    unsafe {
        // A child must not find the heap locked by a thread that it does not have.
        dlmalloc::enable_alloc_after_fork();
        libc::pthread_atfork(None, None, Some(forked));
    }
    state::read_mode();
    // SAFETY: the arguments of `main`.
    unsafe { again::begin(count, arguments, environment) };
    redirect::begin();
    count::begin();
}

extern "C" fn forked() {
    state::forked();
    redirect::forked();
}
