//! Ends waiting calls from other threads.

use crate::io::Calm;
use crate::io::slot::Slot;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Ends a waiting call from another thread with EINTR. Clones are the same token; a token stays
/// cancelled, so each operation that can be interrupted apart needs one of its own.
#[derive(Clone, Default)]
pub struct CancelToken(Arc<CancelState>);

#[derive(Default)]
struct CancelState {
    cancelled: AtomicBool,
    /// Calls that wait with this token: one, unless a caller shares a token between threads.
    waiting: Mutex<Vec<Arc<Slot>>>,
}

impl CancelToken {
    /// A token that has not been cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Ends the calls that use this token, now or when they start. Never blocks.
    pub fn cancel(&self) {
        let _calm = Calm::begin();
        let waiting = {
            let mut waiting = self.waiting();
            // Set under the lock, so that a call that registers later sees it.
            self.0.cancelled.store(true, Ordering::Release);
            std::mem::take(&mut *waiting)
        };
        for slot in waiting {
            slot.interrupt();
        }
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// Interrupts `slot` on cancellation, at once if that has happened, until the result is
    /// dropped.
    pub(crate) fn attach(&self, slot: &Arc<Slot>) -> Attached {
        let mut waiting = self.waiting();
        if self.is_cancelled() {
            drop(waiting);
            slot.interrupt();
        } else {
            waiting.push(Arc::clone(slot));
        }
        Attached {
            token: self.clone(),
            slot: Arc::clone(slot),
        }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Slot>>> {
        // A list of pointers is whole after any panic.
        self.0
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Detaches a slot from its token when dropped.
pub(crate) struct Attached {
    token: CancelToken,
    slot: Arc<Slot>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.token
            .waiting()
            .retain(|slot| !Arc::ptr_eq(slot, &self.slot));
    }
}
