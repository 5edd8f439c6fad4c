//! What this node's kernel has of what forwarders use where it is there: for those who ask without
//! starting one. Nothing is changed by asking.

pub use crate::sandbox::Landlock;

use crate::sandbox;
use crate::storage::UringRefused;
use crate::storage::uring;

/// The kernel's Landlock.
pub fn landlock() -> Landlock {
    sandbox::landlock()
}

/// Whether the kernel has seccomp with filters that refuse a call with an error.
pub fn has_seccomp() -> bool {
    const ACTION_IS_THERE: libc::c_uint = 2;
    let refusal: u32 = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the call reads four bytes, and changes nothing.
    let found = unsafe { libc::syscall(libc::SYS_seccomp, ACTION_IS_THERE, 0, &raw const refusal) };
    found == 0
}

/// Whether this process can have a ring of io_uring that knows the calls which direct I/O needs.
/// The error says why not, and what to do about it.
pub fn io_uring() -> Result<(), UringRefused> {
    uring::try_kernel()
}
