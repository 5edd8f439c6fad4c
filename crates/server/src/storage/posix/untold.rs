//! Errors of write-back that the forwarder found when it closed a descriptor. The kernel tells them
//! to no later descriptor, so the next sync of the file tells them.

use super::sys::Done;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tidegate_forward::{Access, Errno};
use tidegate_wire::Handle;

/// The most files with such an error that are not registered as open.
const FILES_MAX: usize = 4096;

/// How often the log says that such errors are forgotten.
const SAID_EVERY: Duration = Duration::from_secs(10);

/// The files with an error that nobody was told.
#[derive(Default)]
pub(super) struct Untold {
    /// Whether there are any, so that no lock is taken while there are none.
    any: AtomicBool,
    errors: Mutex<Errors>,
}

#[derive(Default)]
struct Errors {
    /// Of files that are registered as open.
    open: BTreeMap<Handle, Access>,
    /// Of files that are not: they wait for whoever opens the file next. Where they are too many,
    /// one is forgotten.
    others: BTreeMap<Handle, Access>,
    /// How many were forgotten since the log said so, and when it did.
    forgotten: u64,
    said: Option<Instant>,
}

impl Errors {
    fn add_open(&mut self, handle: Handle, error: Access) {
        let told = self.open.entry(handle).or_insert(error);
        *told = worse(*told, error);
    }

    fn add_other(&mut self, handle: Handle, error: Access) {
        if self.others.len() >= FILES_MAX
            && !self.others.contains_key(&handle)
            && let Some((handle, error)) = self.others.pop_first()
        {
            self.say_forgotten(handle, error);
        }
        let told = self.others.entry(handle).or_insert(error);
        *told = worse(*told, error);
    }

    fn say_forgotten(&mut self, handle: Handle, error: Access) {
        self.forgotten += 1;
        if self.said.is_some_and(|said| said.elapsed() < SAID_EVERY) {
            return;
        }
        self.said = Some(Instant::now());
        let (files, inode) = (std::mem::take(&mut self.forgotten), handle.inode);
        tracing::warn!(
            files,
            inode,
            ?error,
            "nobody is told that bytes of files were lost, the last of which is this one"
        );
    }
}

impl Untold {
    /// Notes an error of a file that is registered as open, which is never forgotten, or is not.
    pub(super) fn add(&self, handle: Handle, error: Access, open: bool) {
        let mut errors = self.lock();
        match open {
            true => errors.add_open(handle, error),
            false => errors.add_other(handle, error),
        }
        self.any.store(true, Ordering::Release);
    }

    /// Registers a file as no longer open.
    pub(super) fn closed(&self, handle: Handle) {
        let mut errors = self.lock();
        if let Some(error) = errors.open.remove(&handle) {
            errors.add_other(handle, error);
        }
    }

    /// The error of a file, which whoever asks tells.
    pub(super) fn take(&self, handle: Handle) -> Option<Access> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut errors = self.lock();
        let (open, other) = (errors.open.remove(&handle), errors.others.remove(&handle));
        let any = !errors.open.is_empty() || !errors.others.is_empty();
        self.any.store(any, Ordering::Release);
        match (open, other) {
            (Some(open), Some(other)) => Some(worse(open, other)),
            (open, other) => open.or(other),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Errors> {
        crate::lock::lock(&self.errors)
    }
}

/// Whether the kernel says this of bytes that it could not write back.
pub(super) fn tells_loss(error: Access) -> bool {
    let lost = [Errno::EIO, Errno::ENOSPC, Errno::EDQUOT];
    matches!(error, Access::Errno(errno) if lost.contains(&errno))
}

/// The result of two calls of which each may have been told of a loss.
pub(super) fn of_both(one: Done<()>, other: Done<()>) -> Done<()> {
    match (one, other) {
        (Err(one), Err(other)) => Err(worse(one, other)),
        (one, other) => one.and(other),
    }
}

/// The one of two errors that must be told: the kernel tells a loss once, and all who have the file
/// open are to hear of it.
fn worse(one: Access, other: Access) -> Access {
    match tells_loss(other) && !tells_loss(one) {
        true => other,
        false => one,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_once() {
        let untold = Untold::default();
        let file = |inode| Handle { inode, birth: 0 };
        assert_eq!(untold.take(file(1)), None);
        untold.add(file(1), Errno::EIO.into(), true);
        assert_eq!(untold.take(file(2)), None);
        assert_eq!(untold.take(file(1)), Some(Errno::EIO.into()));
        assert_eq!(untold.take(file(1)), None);
        assert!(!untold.any.load(Ordering::Acquire));
        assert!(tells_loss(Errno::ENOSPC.into()) && !tells_loss(Errno::EACCES.into()));
    }

    #[test]
    fn a_loss_is_told_whatever_else_has_failed() {
        let untold = Untold::default();
        let file = |inode| Handle { inode, birth: 0 };
        let (loss, other) = (Errno::EIO.into(), Errno::ETIMEDOUT.into());
        for (inode, [first, second]) in [(1, [loss, other]), (2, [other, loss])] {
            for (inode, open) in [(inode, true), (10 + inode, false)] {
                untold.add(file(inode), first, open);
                untold.add(file(inode), second, open);
                assert_eq!(untold.take(file(inode)), Some(loss));
            }
            // Of one that was opened again.
            untold.add(file(inode), first, false);
            untold.add(file(inode), second, true);
            assert_eq!(untold.take(file(inode)), Some(loss));
            untold.add(file(inode), first, false);
            untold.add(file(inode), second, true);
            untold.closed(file(inode));
            assert_eq!(untold.take(file(inode)), Some(loss));
            assert_eq!(of_both(Err(first), Err(second)), Err(loss));
        }
        assert_eq!(of_both(Ok(()), Err(other)), Err(other));
        assert_eq!(of_both(Err(other), Ok(())), Err(other));
    }

    #[test]
    fn files_that_nobody_syncs_keep_no_room() {
        let untold = Untold::default();
        let file = |inode| Handle { inode, birth: 0 };
        let add = |inode, open| untold.add(file(inode), Errno::ENOSPC.into(), open);
        let max = FILES_MAX as u64;
        (0..max).for_each(|inode| add(inode, true));
        (0..max).for_each(|inode| untold.closed(file(inode)));
        // Who opens such a file next is told.
        assert_eq!(untold.take(file(7)), Some(Errno::ENOSPC.into()));
        (max..3 * max).for_each(|inode| add(inode, false));
        let errors = untold.lock();
        assert_eq!((errors.open.len(), errors.others.len()), (0, FILES_MAX));
    }
}
