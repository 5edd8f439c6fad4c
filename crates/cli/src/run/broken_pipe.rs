//! SIGPIPE as this process was started with it. Rust ignores it before `main`, and has programs
//! that it starts not ignore it; those under `run` are to do so if this process was told to.

use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::null;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_IGNORED: AtomicBool = AtomicBool::new(false);

/// Runs before Rust's own start.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: room for an action, whose parts may all be zero.
    let action = unsafe {
        libc::sigaction(libc::SIGPIPE, null(), action.as_mut_ptr());
        action.assume_init()
    };
    IS_IGNORED.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
}

/// Has a program begin with SIGPIPE as this process was started with it.
pub fn keep(command: &mut Command) {
    if IS_IGNORED.load(Ordering::Relaxed) {
        // SAFETY: the closure makes a system call alone.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
                Ok(())
            });
        }
    }
}
