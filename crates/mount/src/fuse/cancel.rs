//! Tokens that cancel a blocked operation when its caller no longer waits for the answer.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is called once when a token is cancelled.
type Waker = Arc<dyn Fn() + Send + Sync>;

/// The token of one request. The session sets it when the process that asked is dying, when it
/// waits for a lock and any signal came, or when the file system was unmounted. Never cleared.
#[derive(Clone, Default)]
pub struct CancelToken {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    cancelled: AtomicBool,
    id_next: AtomicU64,
    wakers: Mutex<Vec<(u64, Waker)>>,
}

impl CancelToken {
    /// A token that nothing has cancelled yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the operation should end with EINTR.
    pub fn is_cancelled(&self) -> bool {
        self.shared.cancelled.load(Ordering::Acquire)
    }

    /// Sets the token and calls each waker registered so far, once, on this thread.
    pub fn cancel(&self) {
        let wakers = {
            let mut registered = self.wakers();
            // Set under the lock, so that a waker registered later sees it.
            self.shared.cancelled.store(true, Ordering::Release);
            std::mem::take(&mut *registered)
        };
        // Called without the lock: a waker may drop its own registration.
        for (_, wake) in wakers {
            wake();
        }
    }

    /// Registers `wake` to be called on cancellation, at once if that has already happened. It is
    /// forgotten when the returned value is dropped, though a call that has begun may then still
    /// be running; it must not block.
    #[must_use = "the waker is forgotten when this is dropped"]
    pub fn on_cancel(&self, wake: impl Fn() + Send + Sync + 'static) -> Registration {
        let id = self.shared.id_next.fetch_add(1, Ordering::Relaxed);
        let mut registered = self.wakers();
        if self.is_cancelled() {
            drop(registered);
            wake();
        } else {
            registered.push((id, Arc::new(wake)));
        }
        Registration {
            token: self.clone(),
            id,
        }
    }

    fn wakers(&self) -> MutexGuard<'_, Vec<(u64, Waker)>> {
        self.shared
            .wakers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken")
            .field("cancelled", &self.is_cancelled())
            .finish()
    }
}

/// Keeps a waker registered.
#[derive(Debug)]
pub struct Registration {
    token: CancelToken,
    id: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let removed = {
            let mut registered = self.token.wakers();
            let at = registered.iter().position(|(id, _)| *id == self.id);
            at.map(|at| registered.swap_remove(at))
        };
        // Dropped without the lock, as what the waker holds may itself use the token.
        drop(removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn counting(token: &CancelToken) -> (Registration, Arc<AtomicUsize>) {
        let calls = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&calls);
        (
            token.on_cancel(move || _ = seen.fetch_add(1, Ordering::SeqCst)),
            calls,
        )
    }

    #[test]
    fn each_waker_is_called_once() {
        let token = CancelToken::new();
        let (_kept, calls) = counting(&token);
        assert!(!token.is_cancelled());
        token.cancel();
        token.cancel();
        assert!(token.is_cancelled());
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_dropped_registration_is_forgotten_and_a_late_one_called_at_once() {
        let token = CancelToken::new();
        let (dropped, calls) = counting(&token);
        drop(dropped);
        token.cancel();
        assert_eq!(calls.load(Ordering::SeqCst), 0);
        let (_late, calls) = counting(&token);
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }
}
