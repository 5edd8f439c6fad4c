//! Operations on names and attributes, each taking effect once: intent, effect, result.

use crate::files::{Access, Errno, Files};
use crate::host::RowAddress;
use tidegate_wire::{Caller, Op, Outcome};

/// Carries out any operation but reads, writes, locks and session operations ([`crate::Job::Op`]).
///
/// With a row, the intent is stored in it before the effect and the result right after it. An error
/// of kind [`Access::UnknownHandle`] leaves the row without record, because nothing was tried.
/// `payload` is the bytes of an append, else empty.
pub fn perform(
    files: &mut dyn Files,
    caller: Option<&Caller>,
    op: &Op,
    row: Option<&RowAddress>,
    payload: &[u8],
) -> Result<Outcome, Access> {
    let _ = (files, caller, op, row, payload);
    Err(Access::Errno(Errno::EOPNOTSUPP))
}

/// Looks up whether the intent that the row holds took effect, and stores its result if so; otherwise
/// empties the row, so that the client's replay carries the operation out ([`crate::Job::Resolve`]).
pub fn resolve(files: &mut dyn Files, row: &RowAddress) {
    let _ = (files, row);
}
