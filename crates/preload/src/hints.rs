//! The functions that the MPI shim calls to announce requests that it is going to make
//! (`mpi/src/hint.h`).
//!
//! The shim looks these functions up by name; without them it sends the hints to the mount.

use crate::intercept;
use crate::state::{self, Intercepted, Mode};
use libc::c_int;
use std::sync::atomic::Ordering;
use tidegate_client::collective::{HINT_LEN, Hint, HintCounts, Hints};

/// The MPI shim announces requests of this descriptor that belong together. The library intercepts
/// the file at once. Returns 1 if the library does the file's data calls and has taken the hint; 0
/// if the mount does them.
///
/// # Safety
/// `hint` is NULL or a `struct tidegate_hint`.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn tidegate_hint_publish(fd: c_int, hint: *mut u8) -> c_int {
    // SAFETY: the caller says so.
    let Some(bytes) = (unsafe { bytes_of(hint) }) else {
        return 0;
    };
    let Some(hint) = Hint::decode(bytes) else {
        return 0;
    };
    let counts = with(fd, |hints| hints.publish(hint));
    answer(counts, bytes)
}

/// The MPI shim announces that the operation has ended for this descriptor. Returns 1 if the
/// library had the hint.
///
/// # Safety
/// As [`tidegate_hint_publish`].
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn tidegate_hint_end(fd: c_int, hint: *mut u8) -> c_int {
    // SAFETY: the caller says so.
    let Some(bytes) = (unsafe { bytes_of(hint) }) else {
        return 0;
    };
    let Some(operation) = Hint::operation_in(bytes) else {
        return 0;
    };
    let counts = with(fd, |hints| hints.end(operation));
    answer(counts, bytes)
}

/// # Safety
/// As [`tidegate_hint_publish`], for as long as the result is used.
unsafe fn bytes_of<'a>(hint: *mut u8) -> Option<&'a mut [u8]> {
    // SAFETY: the caller says so.
    (!hint.is_null()).then(|| unsafe { std::slice::from_raw_parts_mut(hint, HINT_LEN) })
}

fn answer(counts: Option<HintCounts>, bytes: &mut [u8]) -> c_int {
    let Some(counts) = counts else {
        return 0;
    };
    counts.put_into(bytes);
    1
}

/// Changes the hints of an intercepted file; None if the file is not intercepted.
fn with(fd: c_int, change: impl FnOnce(&mut Hints)) -> Option<HintCounts> {
    if state::mode() == Mode::Off {
        return None;
    }
    state::inside(None, |state| {
        let file = intercept::take(state, fd)?;
        Some(changed(&file, change))
    })
}

fn changed(file: &Intercepted, change: impl FnOnce(&mut Hints)) -> HintCounts {
    let mut hints = state::lock(&file.hints);
    change(&mut hints);
    file.is_hinted.store(!hints.is_empty(), Ordering::Relaxed);
    hints.counts()
}
