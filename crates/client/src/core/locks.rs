//! The advisory locks that the client holds. It reclaims them from the new holder after a seat has
//! changed hands.

use crate::wire::{Handle, Layout, Lock, LockFamily, LockKind};
use std::collections::BTreeMap;

/// File, kind and owner of locks.
pub(super) type LockKey = (Handle, LockFamily, u64);

/// The key of a lock on a file.
pub(super) fn key_of(handle: Handle, lock: &Lock) -> LockKey {
    (handle, lock.family, lock.owner)
}

/// The locks that the client holds: for each owner on a file, disjoint ranges in ascending order.
#[derive(Clone, Default)]
pub(super) struct Locks {
    held: BTreeMap<LockKey, Vec<Lock>>,
}

impl Locks {
    /// Records that a forwarder has granted or released a lock, which replaces what its owner had
    /// in the range.
    pub(super) fn set(&mut self, handle: Handle, lock: Lock) {
        let key = key_of(handle, &lock);
        let ranges = self.held.entry(key).or_default();
        let mut left = Vec::with_capacity(ranges.len() + 2);
        for old in ranges.drain(..) {
            if old.end < lock.start || old.start > lock.end {
                left.push(old);
                continue;
            }
            if old.start < lock.start {
                left.push(Lock {
                    end: lock.start - 1,
                    ..old
                });
            }
            if old.end > lock.end {
                left.push(Lock {
                    start: lock.end + 1,
                    ..old
                });
            }
        }
        if lock.kind != LockKind::None {
            left.push(lock);
        }
        left.sort_by_key(|lock| lock.start);
        *ranges = merge(left);
        if ranges.is_empty() {
            self.held.remove(&key);
        }
    }

    /// Narrows the locks for a lock call without an answer: the client then claims only what it
    /// still holds if the forwarder has carried the call out. Somebody else may hold by now what
    /// the call releases.
    pub(super) fn weaken(&mut self, handle: Handle, lock: &Lock) {
        if lock.kind == LockKind::Exclusive {
            return;
        }
        let pieces = self.restoring(handle, lock).into_iter();
        for held in pieces.filter(|piece| piece.kind != LockKind::None) {
            let kind = lock.kind;
            self.set(handle, Lock { kind, ..held });
        }
    }

    /// Removes every lock of an owner on a file.
    pub(super) fn drop_all(&mut self, key: &LockKey) {
        self.held.remove(key);
    }

    /// The locks and releases that set the lock's range at the forwarder to the state recorded
    /// here.
    pub(super) fn restoring(&self, handle: Handle, lock: &Lock) -> Vec<Lock> {
        let nothing = Lock {
            kind: LockKind::None,
            ..*lock
        };
        let mut pieces = Vec::new();
        let mut at = Some(lock.start);
        let held = self.held.get(&key_of(handle, lock));
        for old in held.into_iter().flatten() {
            let Some(start) = at else { break };
            if old.end < start || old.start > lock.end {
                continue;
            }
            if old.start > start {
                pieces.push(Lock {
                    start,
                    end: old.start - 1,
                    ..nothing
                });
            }
            pieces.push(Lock {
                start: old.start.max(start),
                end: old.end.min(lock.end),
                ..*old
            });
            at = old.end.checked_add(1).filter(|next| *next <= lock.end);
        }
        if let Some(start) = at {
            pieces.push(Lock { start, ..nothing });
        }
        pieces
    }

    /// The locks on files that belong to a seat.
    pub(super) fn of_seat(&self, layout: &Layout, seat: u16) -> Vec<(Handle, Lock)> {
        let files = self.held.iter();
        files
            .filter(|(key, _)| layout.seat_of_file(key.0) == seat)
            .flat_map(|(key, locks)| locks.iter().map(|lock| (key.0, *lock)))
            .collect()
    }
}

/// Joins ranges that are adjacent and locked the same way.
fn merge(ranges: Vec<Lock>) -> Vec<Lock> {
    let mut merged: Vec<Lock> = Vec::with_capacity(ranges.len());
    for lock in ranges {
        match merged.last_mut() {
            Some(last)
                if last.end.checked_add(1) == Some(lock.start)
                    && (last.kind, last.pid) == (lock.kind, lock.pid) =>
            {
                last.end = lock.end;
            }
            _ => merged.push(lock),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Handle = Handle { inode: 5, birth: 0 };

    fn lock(kind: LockKind, start: u64, end: u64) -> Lock {
        Lock {
            family: LockFamily::Range,
            kind,
            owner: 1,
            pid: 2,
            start,
            end,
        }
    }

    fn held(locks: &Locks) -> Vec<(LockKind, u64, u64)> {
        let layout = Layout {
            seats: 1,
            stripe: 4096,
        };
        let held = locks.of_seat(&layout, 0).into_iter();
        held.map(|(_, lock)| (lock.kind, lock.start, lock.end))
            .collect()
    }

    #[test]
    fn ranges_split_and_merge_as_posix_says() {
        use LockKind::*;
        let mut locks = Locks::default();
        locks.set(FILE, lock(Shared, 0, 99));
        locks.set(FILE, lock(Exclusive, 40, 59));
        let split = [(Shared, 0, 39), (Exclusive, 40, 59), (Shared, 60, 99)];
        assert_eq!(held(&locks), split);
        locks.set(FILE, lock(Shared, 40, 59));
        assert_eq!(held(&locks), [(Shared, 0, 99)]);
        locks.set(FILE, lock(None, 10, u64::MAX));
        assert_eq!(held(&locks), [(Shared, 0, 9)]);
        locks.set(FILE, lock(None, 0, 9));
        assert!(locks.held.is_empty());
    }

    #[test]
    fn no_more_is_claimed_than_an_unanswered_call_leaves() {
        use LockKind::*;
        let mut locks = Locks::default();
        locks.set(FILE, lock(Exclusive, 0, 9));
        locks.set(FILE, lock(Shared, 20, 29));
        locks.weaken(FILE, &lock(Exclusive, 20, 29));
        assert_eq!(held(&locks), [(Exclusive, 0, 9), (Shared, 20, 29)]);
        locks.weaken(FILE, &lock(Shared, 5, 24));
        let weaker = [(Exclusive, 0, 4), (Shared, 5, 9), (Shared, 20, 29)];
        assert_eq!(held(&locks), weaker);
        locks.weaken(FILE, &lock(None, 3, 25));
        assert_eq!(held(&locks), [(Exclusive, 0, 2), (Shared, 26, 29)]);
    }

    #[test]
    fn restoring_covers_the_range_once() {
        use LockKind::*;
        let mut locks = Locks::default();
        locks.set(FILE, lock(Shared, 10, 19));
        locks.set(FILE, lock(Exclusive, 30, u64::MAX));
        let pieces = locks.restoring(FILE, &lock(Exclusive, 0, u64::MAX));
        let pieces: Vec<_> = pieces.iter().map(|p| (p.kind, p.start, p.end)).collect();
        let wanted = [
            (None, 0, 9),
            (Shared, 10, 19),
            (None, 20, 29),
            (Exclusive, 30, u64::MAX),
        ];
        assert_eq!(pieces, wanted);
        let other = Lock {
            owner: 9,
            ..lock(Exclusive, 5, 6)
        };
        assert_eq!(locks.restoring(FILE, &other)[0].kind, None);
    }
}
