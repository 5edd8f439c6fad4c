//! Asks DNS, by the resolver of the C library: it reads `/etc/resolv.conf` for servers and time
//! limits, and asks again by TCP where an answer is too long for UDP.
//!
//! The resolver is in libc itself since glibc 2.34. It blocks the calling thread, which has a
//! resolver state of its own, and keeps no socket open.

use std::ffi::{CString, c_char, c_int};
use std::io;

/// The longest message of DNS.
const MESSAGE_MAX: usize = 0xffff;

/// `ns_c_in` and `ns_t_srv` of `arpa/nameser.h`.
const INTERNET: c_int = 1;
const SRV: c_int = 33;

/// Values of `h_errno`, from `netdb.h`.
const HOST_NOT_FOUND: c_int = 1;
const TRY_AGAIN: c_int = 2;
const NO_DATA: c_int = 4;

/// Why there is no answer to read.
#[derive(Debug)]
pub(super) enum Silence {
    /// The name does not exist.
    NoName,
    /// The name exists, but has no record of this kind.
    NoRecord,
    /// No server answered in time, or none was willing.
    NoAnswer(io::Error),
    /// The resolver could not send the question.
    Failed(io::Error),
}

unsafe extern "C" {
    fn res_search(
        name: *const c_char,
        class: c_int,
        kind: c_int,
        answer: *mut u8,
        room: c_int,
    ) -> c_int;
    fn __h_errno_location() -> *mut c_int;
}

/// Asks for the SRV records of a name and returns the answer. Waits as long as `timeout` and
/// `attempts` of `/etc/resolv.conf` say.
pub(super) fn srv(name: &str) -> Result<Vec<u8>, Silence> {
    let name = CString::new(name).expect("a name of DNS has no NUL");
    let mut answer = vec![0; MESSAGE_MAX];
    // SAFETY: `name` ends in NUL, and `answer` has room for as many bytes as are told.
    let len = unsafe {
        res_search(
            name.as_ptr(),
            INTERNET,
            SRV,
            answer.as_mut_ptr(),
            MESSAGE_MAX as c_int,
        )
    };
    // Before anything else may change them.
    let error = io::Error::last_os_error();
    // SAFETY: this thread's own `h_errno`, which lives as long as the thread.
    let why = unsafe { *__h_errno_location() };
    match usize::try_from(len) {
        Ok(len) => {
            answer.truncate(len);
            Ok(answer)
        }
        Err(_) => Err(match why {
            HOST_NOT_FOUND => Silence::NoName,
            NO_DATA => Silence::NoRecord,
            TRY_AGAIN => Silence::NoAnswer(error),
            _ => Silence::Failed(error),
        }),
    }
}
