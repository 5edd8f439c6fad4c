//! What every call from C does: its answer is a code, no panic leaves it, and its pointers are
//! checked for NULL.

use crate::failure::{self, Failure, fail};
use crate::handles;
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The answer of a call: its number, or the code of its failure, whose text is kept.
#[inline]
pub(crate) fn answer(
    call: &'static str,
    handle: usize,
    result: Result<c_int, Box<Failure>>,
) -> c_int {
    match result {
        Ok(value) => value,
        Err(failure) => failure::keep(call, handle, failure),
    }
}

/// As `answer`, for calls that are not on a scheduler, whose panics stop there.
pub(crate) fn caught(
    call: &'static str,
    handle: usize,
    run: impl FnOnce() -> Result<c_int, Box<Failure>>,
) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|panic| fail(Failure::Poisoned(handles::panic_text(&*panic))));
    answer(call, handle, result)
}

/// # Safety
/// `text` is NULL or a string.
pub(crate) unsafe fn text_of<'a>(
    what: &'static str,
    text: *const c_char,
) -> Result<&'a str, Box<Failure>> {
    if text.is_null() {
        return fail(Failure::Null(what));
    }
    // SAFETY: the caller's word.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .or_else(|_| fail(Failure::Argument(format!("{what} is not UTF-8"))))
}

/// Writes a new handle where the caller wants it, which is NULL until then.
pub(crate) unsafe fn put<T>(
    what: &'static str,
    into: *mut *mut T,
    make: impl FnOnce() -> Result<usize, Box<Failure>>,
) -> Result<c_int, Box<Failure>> {
    if into.is_null() {
        return fail(Failure::Null(what));
    }
    // SAFETY: the caller's word: a place for a pointer.
    unsafe {
        into.write(std::ptr::null_mut());
        into.write(make()? as *mut T);
    }
    Ok(0)
}
