//! Leads the names of calls that take more than a name to read: two names, or one that they choose.

use crate::redirect::{climbs, led};
use libc::{c_char, c_int};
use std::cell::Cell;
use std::ffi::CStr;

/// As [`led`], for a call with two names. Where the one name leads to the mount and the other does
/// not, the call is not possible between them, but perhaps with the names as they are; also returns
/// whether it was made so, and if so, whether the second name is the one in the directory.
///
/// # Safety
/// As [`concern`](crate::redirect::concern), for both.
pub(crate) unsafe fn led_pair(
    (from_folder, from): (c_int, *const c_char),
    (to_folder, to): (c_int, *const c_char),
    call: impl Fn(*const c_char, *const c_char) -> c_int,
) -> (c_int, Option<bool>) {
    let is_into = Cell::new(None);
    // SAFETY: the caller says so.
    let result = unsafe {
        led(from_folder, from, |old| {
            led(to_folder, to, |new| {
                is_into.set(((old != from) != (new != to)).then_some(new != to));
                call(old, new)
            })
        })
    };
    // SAFETY: the place of this thread's errno.
    let is_across = result == -1 && unsafe { *libc::__errno_location() } == libc::EXDEV;
    let Some(is_into) = is_into.get().filter(|_| is_across) else {
        return (result, None);
    };
    // SAFETY: the caller says so.
    if unsafe { climbs(from_folder, from) || climbs(to_folder, to) } {
        // SAFETY: the place of this thread's errno.
        unsafe { *libc::__errno_location() = libc::EXDEV };
        return (result, None);
    }
    (call(from, to), Some(is_into))
}

/// As [`led`], for a call that writes the name which it has chosen over the end of the one given.
///
/// # Safety
/// As [`concern`](crate::redirect::concern); the string may be written.
pub(crate) unsafe fn led_template<T>(
    template: *mut c_char,
    call: impl FnOnce(*mut c_char) -> T,
) -> T {
    // SAFETY: the caller says so. Both strings end with the same component, which the call has
    // changed in the one.
    unsafe {
        led(libc::AT_FDCWD, template, |path| {
            let result = call(path.cast_mut());
            if path != template.cast_const() {
                let chosen = CStr::from_ptr(path).to_bytes();
                let last = chosen.rsplit(|byte| *byte == b'/').next();
                let last = last.unwrap_or(chosen);
                let len = CStr::from_ptr(template).to_bytes().len();
                if let Some(at) = len.checked_sub(last.len()) {
                    let end = template.cast::<u8>().add(at);
                    end.copy_from_nonoverlapping(last.as_ptr(), last.len());
                }
            }
            result
        })
    }
}
