//! Buffers that are registered with the kernel. Their pages stay pinned, so that a call need not
//! pin them.
//!
//! A buffer is registered when it is first used in a call, and stays registered as long as it
//! lives. Buffers are reused in the order last freed, first used, so few buffers do most of the
//! work. For a user other than root, pinned pages count against RLIMIT_MEMLOCK. A buffer that
//! exceeds the limit is used unregistered.

use crate::storage::slots::{Memory, SlotBuffer};
use io_uring::IoUring;
use std::sync::{Mutex, Weak};

/// The most registered buffers.
const BUFFERS_MAX: u32 = 1024;

/// Smaller buffers gain nothing from being registered.
const BYTES_MIN: usize = 32 << 10;

/// The ring's table of buffers.
pub(super) struct Registered {
    /// The buffers by index. The entry of a freed buffer is cleared when the next one is
    /// registered.
    entries: Vec<Option<Weak<Mutex<Memory>>>>,
    /// Why no more buffers can be registered, if so.
    refusal: Option<String>,
}

impl Registered {
    /// An empty table, if the kernel supports one.
    pub(super) fn new(uring: &IoUring) -> Registered {
        let made = uring.submitter().register_buffers_sparse(BUFFERS_MAX);
        let refusal = made
            .err()
            .map(|error| format!("the kernel has no table for it: {error}"));
        Registered {
            entries: (0..BUFFERS_MAX).map(|_| None).collect(),
            refusal,
        }
    }

    /// Whether buffers can be registered; if not, the error says why.
    pub(super) fn works(&self) -> Result<(), &str> {
        match &self.refusal {
            None => Ok(()),
            Some(why) => Err(why),
        }
    }

    /// The index of the buffer, if it is registered or can be registered now.
    pub(super) fn index(
        &mut self,
        uring: &IoUring,
        buffer: &SlotBuffer,
        bytes: &mut Memory,
    ) -> Option<u16> {
        let Memory::Own(bytes) = bytes else {
            return None;
        };
        if bytes.registered.is_some() || bytes.len() < BYTES_MIN || self.refusal.is_some() {
            return bytes.registered;
        }
        self.sweep(uring);
        let index = self.entries.iter().position(Option::is_none)?;
        match update(uring, index, bytes.start(), bytes.len()) {
            Ok(()) => {
                self.entries[index] = Some(std::sync::Arc::downgrade(buffer));
                bytes.registered = Some(index as u16);
            }
            Err(error) => {
                tracing::warn!(
                    "{} buffers are registered with io_uring and no more ({error}): a higher \
                     limit of locked memory (ulimit -l) saves processor time",
                    self.entries.iter().flatten().count()
                );
                self.refusal = Some(format!("{error}"));
            }
        }
        bytes.registered
    }

    /// Unpins the pages of buffers that were freed.
    fn sweep(&mut self, uring: &IoUring) {
        for (index, entry) in self.entries.iter_mut().enumerate() {
            let gone = |weak: &mut Weak<_>| weak.strong_count() == 0;
            if entry.take_if(gone).is_some()
                && let Err(error) = update(uring, index, std::ptr::null_mut(), 0)
            {
                tracing::warn!(%error, "io_uring keeps a buffer that is gone");
            }
        }
    }
}

fn update(uring: &IoUring, index: usize, start: *mut u8, len: usize) -> std::io::Result<()> {
    let bytes = libc::iovec {
        iov_base: start.cast(),
        iov_len: len,
    };
    // SAFETY: the memory is used by calls only while its task holds the buffer; afterwards the
    // kernel keeps pages, and touches none.
    unsafe {
        uring
            .submitter()
            .register_buffers_update(index as u32, &[bytes], None)
    }
}
