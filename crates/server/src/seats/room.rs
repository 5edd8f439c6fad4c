//! Recognises that the back end has refused bytes for want of room, and remembers it, so that the
//! back end is not asked again for a while.
//!
//! A full GlusterFS takes a second to refuse a write. All other writes to the file, including
//! renewals of the lease's record, wait meanwhile.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_sched::Time;

/// Whether the back end has refused bytes lately.
#[derive(Clone, Default)]
pub(super) struct Room {
    asked_at: Arc<AtomicU64>,
    pause_ns: u64,
}

impl Room {
    /// Begins with room. After a refusal the back end is not asked for `pause_ns`.
    pub(super) fn asked_after(pause_ns: u64) -> Room {
        Room {
            pause_ns,
            ..Room::default()
        }
    }

    /// Notes that the back end has refused bytes.
    pub(super) fn refused(&self, now: Time) {
        self.asked_at
            .store((now + self.pause_ns).0, Ordering::Release);
    }

    /// Whether the back end should not be asked now.
    pub(super) fn is_out(&self, now: Time) -> bool {
        now.0 < self.asked_at.load(Ordering::Acquire)
    }
}

/// Whether the error means that there is no room, or none for this user.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}
