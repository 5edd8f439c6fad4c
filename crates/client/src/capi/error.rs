//! Failures at the C border: errno, text, and panics that stop here.

use crate::{ConnectError, Errno};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tidegate_net::SecretError;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Why the last call of this thread that failed did so; empty if none has. Valid until the thread's
/// next failure.
#[unsafe(no_mangle)]
pub extern "C" fn tidegate_error_text() -> *const c_char {
    // Gone only while the thread ends.
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// An errno and, where it says more, a text.
#[derive(Debug)]
pub(super) struct Failure {
    errno: Errno,
    text: String,
}

impl Failure {
    pub(super) fn invalid(text: &str) -> Failure {
        Failure {
            errno: Errno::INVAL,
            text: text.to_string(),
        }
    }

    pub(super) fn broken(text: String) -> Failure {
        Failure {
            errno: Errno::IO,
            text,
        }
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        Failure {
            errno,
            text: errno.to_string(),
        }
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Failure {
        let errno = match &error {
            ConnectError::Unreachable(_) | ConnectError::Lookup(_) => Errno::NOTCONN,
            ConnectError::Refused(..) => Errno::ACCES,
            ConnectError::Secret(_, SecretError::Exposed) => Errno::ACCES,
            ConnectError::Secret(_, SecretError::Read(cause)) | ConnectError::Resources(cause) => {
                cause.raw_os_error().map_or(Errno::INVAL, Errno)
            }
            _ => Errno::INVAL,
        };
        Failure {
            errno,
            text: error.to_string(),
        }
    }
}

/// Runs a call: its result, or the negative errno with a text kept. No panic goes further.
pub(super) fn run(what: &str, call: impl FnOnce() -> Result<i64, Failure>) -> i64 {
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => return value,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::broken(text_of(&*panic)),
    };
    let text = format!("{what}: {}", failure.text).replace('\0', " ");
    let text = CString::new(text).expect("the NULs were replaced");
    let _ = LAST.try_with(|last| last.replace(text));
    -i64::from(failure.errno.0)
}

/// What a panic says.
pub(super) fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("internal error: {}", text.unwrap_or("unknown"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn last() -> String {
        // SAFETY: the text stays until this thread's next failure.
        let text = unsafe { CStr::from_ptr(tidegate_error_text()) };
        text.to_string_lossy().into_owned()
    }

    #[test]
    fn failures_leave_a_text_for_their_thread() {
        assert_eq!(last(), "");
        assert_eq!(run("open /x", || Err(Errno::NOENT.into())), -2);
        assert!(last().starts_with("open /x: No such file"), "{}", last());
        let other = std::thread::spawn(last).join().expect("no panic");
        assert_eq!(other, "");
        assert_eq!(run("fine", || Ok(7)), 7);
        assert!(last().starts_with("open /x"));
    }

    #[test]
    fn a_panic_is_an_io_error() {
        assert_eq!(run("read", || panic!("broken invariant")), -5);
        assert_eq!(last(), "read: internal error: broken invariant");
    }
}
