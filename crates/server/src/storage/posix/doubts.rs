//! Files whose copies may differ at their ends (GlusterFS): an append has failed, and its result
//! could not be looked up. The forwarder makes the copies agree before it reports the size of such
//! a file again.

use crate::lock::lock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use tidegate_wire::Handle;

/// The most files in doubt.
const FILES_MAX: usize = 65_536;

/// The files in doubt, each with the range of the append: offset and length in bytes.
#[derive(Default)]
pub(super) struct Doubts {
    /// Whether there are any, so that no lock is taken while there are none.
    any: AtomicBool,
    ranges: Mutex<BTreeMap<Handle, (u64, u64)>>,
}

impl Doubts {
    /// Notes a range of a file as in doubt, unless an earlier one of the same file is. False if
    /// there are too many such files.
    pub(super) fn add(&self, handle: Handle, range: (u64, u64)) -> bool {
        let mut ranges = self.lock();
        if ranges.len() >= FILES_MAX && !ranges.contains_key(&handle) {
            return false;
        }
        ranges.entry(handle).or_insert(range);
        self.any.store(true, Ordering::Release);
        true
    }

    /// The range of a file that is in doubt.
    pub(super) fn of(&self, handle: Handle) -> Option<(u64, u64)> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.lock().get(&handle).copied()
    }

    /// Notes that all copies of a file agree.
    pub(super) fn settle(&self, handle: Handle) {
        let mut ranges = self.lock();
        ranges.remove(&handle);
        self.any.store(!ranges.is_empty(), Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Handle, (u64, u64)>> {
        lock(&self.ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_doubt_of_a_file_stays_until_it_is_settled() {
        let doubts = Doubts::default();
        let file = |inode| Handle { inode, birth: 0 };
        assert!(doubts.add(file(1), (10, 5)) && doubts.add(file(1), (20, 5)));
        assert_eq!(doubts.of(file(1)), Some((10, 5)));
        assert_eq!(doubts.of(file(2)), None);
        doubts.settle(file(1));
        assert_eq!(doubts.of(file(1)), None);
        assert!(!doubts.any.load(Ordering::Acquire));
        assert!((0..FILES_MAX as u64).all(|inode| doubts.add(file(inode), (0, 1))));
        assert!(!doubts.add(file(u64::MAX), (0, 1)) && doubts.add(file(0), (0, 1)));
    }
}
