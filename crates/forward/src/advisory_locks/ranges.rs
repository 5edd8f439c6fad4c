//! Which locks exclude each other.

use super::Owner;
use tidegate_wire::{Lock, LockFamily, LockKind};

/// A lock that was granted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) owner: Owner,
    pub(super) kind: LockKind,
    pub(super) pid: u32,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// Whole-file locks have no range.
pub(super) fn normal(lock: Lock) -> Lock {
    match lock.family {
        LockFamily::Range => lock,
        LockFamily::Whole => Lock {
            start: 0,
            end: u64::MAX,
            ..lock
        },
    }
}

/// Whether a held lock is in the way of another owner's.
pub(super) fn excludes(held: &Held, lock: &Lock) -> bool {
    (held.kind == LockKind::Exclusive || lock.kind == LockKind::Exclusive)
        && held.start <= lock.end
        && lock.start <= held.end
}

/// Whether two locks that are asked for cannot both be held.
pub(super) fn overlap(one: &Lock, other: &Lock) -> bool {
    (one.kind == LockKind::Exclusive || other.kind == LockKind::Exclusive)
        && one.start <= other.end
        && other.start <= one.end
}
