//! On whose behalf a call is made, and how another thread cancels it.

use super::SignalGuard;
use super::waiter::Waiter;
use crate::collective::Collective;
use crate::wire::{Caller, Extent};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// On whose behalf a call is made.
#[derive(Clone, Default)]
pub struct Context {
    /// User and groups; None: this process's own.
    pub caller: Option<Caller>,
    /// Application id (`app_id(name)`); 0: the client's own name.
    pub app: u64,
    /// A token with which another thread cancels the call.
    pub cancel: Option<CancelToken>,
    /// Timeout of this call, instead of [`Options::timeout`](crate::Options::timeout).
    pub timeout: Option<Duration>,
    /// The collective operation to which a read or write belongs; None: it is an operation of its
    /// own.
    pub collective: Option<Collective>,
    /// [`OpenFile::number`](crate::OpenFile::number) of the open file by which an fsync is made,
    /// so that each is told once of an error; [`OpenFile::fsync`](crate::OpenFile::fsync) sets it.
    pub open: Option<u64>,
    /// Where in the file the bytes are that an fsync must make stable, so that it asks no more
    /// forwarders than it must; None: everywhere.
    pub range: Option<Extent>,
    /// Whether the caller caches the attributes in the answer for as long as that says
    /// ([`Answer::lasts_ns`](crate::Answer)); see [`Client::caches_by`](crate::Client::caches_by).
    pub caches: bool,
}

/// Lets another thread end a waiting call with EINTR. Clones are the same token. A token stays
/// cancelled, so each operation that is to be cancelled by itself needs its own token.
#[derive(Clone, Default)]
pub struct CancelToken(Arc<CancelState>);

#[derive(Default)]
struct CancelState {
    cancelled: AtomicBool,
    /// Calls that wait with this token: one, unless a caller shares a token between threads.
    waiting: Mutex<Vec<Arc<Waiter>>>,
}

impl CancelToken {
    /// A token that has not been cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Ends the calls that use this token with EINTR, now or when they start. Never blocks.
    pub fn cancel(&self) {
        let _guard = SignalGuard::begin();
        let waiting = {
            let mut waiting = self.waiting();
            // Set under the lock, so that a call that registers later sees it.
            self.0.cancelled.store(true, Ordering::Release);
            std::mem::take(&mut *waiting)
        };
        for waiter in waiting {
            waiter.interrupt();
        }
    }

    /// Whether the token was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// Interrupts `waiter` when the token is cancelled, at once if it already was, until the result
    /// is dropped.
    pub(crate) fn attach(&self, waiter: &Arc<Waiter>) -> Attached {
        let mut waiting = self.waiting();
        if self.is_cancelled() {
            drop(waiting);
            waiter.interrupt();
        } else {
            waiting.push(Arc::clone(waiter));
        }
        Attached {
            token: self.clone(),
            waiter: Arc::clone(waiter),
        }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Waiter>>> {
        // A list of pointers is whole after any panic.
        self.0
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Detaches a waiter from its token when dropped.
pub(crate) struct Attached {
    token: CancelToken,
    waiter: Arc<Waiter>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.token
            .waiting()
            .retain(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
    }
}
