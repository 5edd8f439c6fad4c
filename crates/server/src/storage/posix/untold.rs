//! Errors of write-back that the forwarder found when it closed a descriptor. The kernel tells them
//! to no later descriptor, so the next sync of the file tells them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use tidegate_forward::{Access, Errno};
use tidegate_wire::Handle;

/// The most files with such an error.
const FILES_MAX: usize = 4096;

/// The files with an error that nobody was told.
#[derive(Default)]
pub(super) struct Untold {
    /// Whether there are any, so that no lock is taken while there are none.
    any: AtomicBool,
    errors: Mutex<BTreeMap<Handle, Access>>,
}

impl Untold {
    /// Whether one more file has room.
    pub(super) fn has_room(&self) -> bool {
        self.lock().len() < FILES_MAX
    }

    /// Notes an error.
    pub(super) fn add(&self, handle: Handle, error: Access) {
        let mut errors = self.lock();
        if errors.len() >= FILES_MAX && !errors.contains_key(&handle) {
            errors.pop_first();
        }
        errors.insert(handle, error);
        self.any.store(true, Ordering::Release);
    }

    /// The error of a file, which whoever asks tells.
    pub(super) fn take(&self, handle: Handle) -> Option<Access> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut errors = self.lock();
        let error = errors.remove(&handle);
        self.any.store(!errors.is_empty(), Ordering::Release);
        error
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Handle, Access>> {
        crate::lock::lock(&self.errors)
    }
}

/// Whether the kernel says this of bytes that it could not write back.
pub(super) fn tells_loss(error: Access) -> bool {
    let lost = [Errno::EIO, Errno::ENOSPC, Errno::EDQUOT];
    matches!(error, Access::Errno(errno) if lost.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_once() {
        let untold = Untold::default();
        let file = |inode| Handle { inode, birth: 0 };
        assert_eq!(untold.take(file(1)), None);
        untold.add(file(1), Errno::EIO.into());
        assert_eq!(untold.take(file(2)), None);
        assert_eq!(untold.take(file(1)), Some(Errno::EIO.into()));
        assert_eq!(untold.take(file(1)), None);
        assert!(!untold.any.load(Ordering::Acquire));
        (0..FILES_MAX as u64).for_each(|inode| untold.add(file(inode), Errno::ENOSPC.into()));
        assert!(!untold.has_room());
        assert!(tells_loss(Errno::ENOSPC.into()) && !tells_loss(Errno::EACCES.into()));
    }
}
