//! A descriptor of a file, counted for as long as it is open.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The descriptor.
pub(crate) struct Descriptor {
    fd: OwnedFd,
    count: Arc<AtomicUsize>,
}

impl Descriptor {
    /// Adds one to `count` until it is closed.
    pub(in crate::storage) fn new(fd: OwnedFd, count: &Arc<AtomicUsize>) -> Descriptor {
        count.fetch_add(1, Ordering::Relaxed);
        Descriptor {
            fd,
            count: count.clone(),
        }
    }
}

impl Deref for Descriptor {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        &self.fd
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}
