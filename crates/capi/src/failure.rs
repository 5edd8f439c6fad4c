//! What can go wrong in a call: its code, its text, and the text's way to the C program.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::fmt;
use tidegate_sched::Rejected;

/// The queue is full.
pub(crate) const TG_SCHED_E_FULL: c_int = -4;

/// Why a call was refused. Codes are part of the ABI.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// Not a live handle.
    Handle(&'static str),
    /// A pointer that must not be NULL.
    Null(&'static str),
    /// An argument is out of range; the text says which.
    Argument(String),
    /// A structure whose size nobody set.
    Size { what: &'static str, size: usize },
    /// A structure of a later version that asks for what this one cannot do.
    Newer { what: &'static str },
    /// Neither a read nor a write.
    Direction(u32),
    /// Flags that do not exist.
    Flags(u32),
    /// An option or its value.
    Options(String),
    /// What the scheduler refuses.
    Rejected(Rejected),
    /// The batch does not fit.
    Room { needed: usize, room: usize },
    /// Another thread is in a call on a handle for one thread.
    Busy,
    /// The call does not fit the state of the handle.
    State(&'static str),
    /// What the system refuses.
    System(String),
    /// An earlier call panicked.
    Poisoned(String),
    /// It did not happen in time.
    Timeout(String),
}

/// A call's failure. Boxed, so that results of the data path fit into a register.
#[cold]
pub(crate) fn fail<T>(failure: Failure) -> Result<T, Box<Failure>> {
    Err(Box::new(failure))
}

impl Failure {
    /// The number that the header gives it.
    pub(crate) fn code(&self) -> c_int {
        match self {
            Failure::Handle(_) => -1,
            Failure::Null(_)
            | Failure::Argument(_)
            | Failure::Size { .. }
            | Failure::Newer { .. }
            | Failure::Direction(_)
            | Failure::Flags(_) => -2,
            Failure::Options(_) => -3,
            Failure::Rejected(Rejected::QueueFull) => TG_SCHED_E_FULL,
            Failure::Rejected(Rejected::IdInUse(_)) => -5,
            Failure::Rejected(Rejected::UnknownId(_)) => -6,
            Failure::Rejected(Rejected::NotRunning(_)) => -7,
            Failure::Rejected(_) => -2,
            Failure::Room { .. } => -8,
            Failure::Busy => -9,
            Failure::State(_) => -10,
            Failure::System(_) => -11,
            Failure::Poisoned(_) => -12,
            Failure::Timeout(_) => -13,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Handle(kind) => write!(f, "not a live handle of {kind}: NULL, freed or wild"),
            Failure::Null(what) => write!(f, "{what} is NULL"),
            Failure::Argument(text)
            | Failure::Options(text)
            | Failure::System(text)
            | Failure::Timeout(text) => f.write_str(text),
            Failure::Size { what, size } => write!(
                f,
                "{what} has size = {size}: initialise it with the macro of the header"
            ),
            Failure::Newer { what } => write!(
                f,
                "{what} sets fields that this version of the library does not know"
            ),
            Failure::Direction(value) => write!(
                f,
                "direction = {value} is neither TG_SCHED_READ nor TG_SCHED_WRITE"
            ),
            Failure::Flags(value) => write!(f, "flags = {value:#x} has bits that do not exist"),
            Failure::Rejected(rejected) => rejected.fmt(f),
            Failure::Room { needed, room } => write!(
                f,
                "the batch has {needed} requests, and there is room for {room}; poll again with \
                 more room"
            ),
            Failure::Busy => f.write_str(
                "another thread is in a call on this handle, which was made with \
                 single_thread=true",
            ),
            Failure::State(text) => f.write_str(text),
            Failure::Poisoned(text) => {
                write!(f, "the handle is unusable after an internal error: {text}")
            }
        }
    }
}

/// The last failed call of a thread. The text is made when it is asked for: a full queue is a
/// failure on the data path.
struct Last {
    call: &'static str,
    handle: usize,
    failure: Box<Failure>,
    text: CString,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// Keeps why a call of this thread failed; returns the code.
#[cold]
pub(crate) fn keep(call: &'static str, handle: usize, failure: Box<Failure>) -> c_int {
    let code = failure.code();
    // Gone only while the thread ends.
    let _ = LAST.try_with(|last| {
        let last = &mut *last.borrow_mut();
        match last {
            Some(last) => {
                (last.call, last.handle, last.failure) = (call, handle, failure);
            }
            None => {
                *last = Some(Last {
                    call,
                    handle,
                    failure,
                    text: CString::default(),
                });
            }
        }
    });
    code
}

/// The text of this thread's last failed call, if it was on `handle` or `handle` is 0. Valid until
/// the thread asks again.
pub(crate) fn last_text(handle: usize) -> *const c_char {
    let text = LAST.try_with(|last| {
        let last = &mut *last.borrow_mut();
        let last = last
            .as_mut()
            .filter(|last| handle == 0 || last.handle == handle)?;
        let text = format!("{}: {}", last.call, last.failure).replace('\0', " ");
        last.text = CString::new(text).expect("the NULs were replaced");
        Some(last.text.as_ptr())
    });
    text.ok().flatten().unwrap_or(c"".as_ptr())
}
