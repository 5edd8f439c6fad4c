//! Which locks exclude each other, and how one replaces parts of others.

use super::Owner;
use alloc::vec::Vec;
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

/// Replaces what the owner holds of the lock's bytes, in a list sorted by first byte and owner:
/// other kinds are cut, the same kind is joined. Returns how many locks of the owner it took out
/// and how many it put in.
pub(super) fn replace(list: &mut Vec<Held>, owner: Owner, lock: &Lock) -> (u32, u32) {
    let mut new = Held {
        owner,
        kind: lock.kind,
        pid: lock.pid,
        start: lock.start,
        end: lock.end,
    };
    let mut rest = Vec::new();
    let before = list.len();
    // Those that begin behind it do not touch it.
    let near = list.partition_point(|held| held.start <= lock.end.saturating_add(1));
    let is_near = |held: &Held| held.end.saturating_add(1) >= lock.start;
    let first = list[..near]
        .iter()
        .position(|held| held.owner == owner && is_near(held));
    let mut keeps = |held: &Held| {
        if held.owner != owner {
            return true;
        }
        let touches =
            held.start <= new.end.saturating_add(1) && new.start <= held.end.saturating_add(1);
        if held.kind == new.kind && touches {
            new.start = new.start.min(held.start);
            new.end = new.end.max(held.end);
            return false;
        }
        if held.end < lock.start || held.start > lock.end {
            return true;
        }
        if held.start < lock.start {
            rest.push(Held {
                end: lock.start - 1,
                ..*held
            });
        }
        if held.end > lock.end {
            rest.push(Held {
                start: lock.end + 1,
                ..*held
            });
        }
        false
    };
    if let Some(first) = first {
        let mut behind = list.split_off(first);
        behind.retain(|held| keeps(held));
        list.append(&mut behind);
    }
    let taken = before - list.len();
    if lock.kind != LockKind::None {
        rest.push(new);
    }
    let put = rest.len();
    for held in rest {
        let at = list.partition_point(|it| (it.start, it.owner) < (held.start, held.owner));
        list.insert(at, held);
    }
    (taken as u32, put as u32)
}
