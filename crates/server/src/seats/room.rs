//! Whether the back end has lately refused bytes for want of room: then it is not asked again for
//! a while.
//!
//! A full GlusterFS takes a second to refuse, and all other writes to the file, renewals of the
//! lease's record too, wait for that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_sched::Time;

/// See the file's first line.
#[derive(Clone, Default)]
pub(super) struct Room {
    asked_at: Arc<AtomicU64>,
    pause_ns: u64,
}

impl Room {
    /// It is asked again after so long.
    pub(super) fn asked_after(pause_ns: u64) -> Room {
        Room {
            pause_ns,
            ..Room::default()
        }
    }

    /// Bytes were refused.
    pub(super) fn refused(&self, now: Time) {
        self.asked_at
            .store((now + self.pause_ns).0, Ordering::Release);
    }

    /// The back end is not to be asked now.
    pub(super) fn is_out(&self, now: Time) -> bool {
        now.0 < self.asked_at.load(Ordering::Acquire)
    }
}
