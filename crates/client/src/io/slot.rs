//! Where one calling thread waits: for its result, an interruption, or a place in the budget.

use crate::api::{Answer, Errno};
use crate::core::Served;
use std::mem;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// One waiting call. Woken once for each thing that happens to it.
#[derive(Default)]
pub(crate) struct Slot {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    result: Option<Result<Answer, Errno>>,
    served: Vec<Served>,
    admitted: bool,
    interrupted: bool,
}

/// Why a wait ended.
#[derive(Debug)]
pub(crate) enum Woken {
    /// The call has a result.
    Finished(Result<Answer, Errno>),
    /// The budget has room for it.
    Admitted,
    /// Its token was cancelled. Told once.
    Interrupted,
    /// The time is over.
    TimedOut,
}

impl Slot {
    /// Hands over the result. The first one counts.
    pub(crate) fn finish(&self, result: Result<Answer, Errno>) {
        let mut state = self.state();
        if state.result.is_none() {
            state.result = Some(result);
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Notes when forwarders served the call, before its result.
    pub(crate) fn note(&self, served: Vec<Served>) {
        self.state().served = served;
    }

    /// What was noted.
    pub(crate) fn take_served(&self) -> Vec<Served> {
        mem::take(&mut self.state().served)
    }

    /// Tells that the budget has room.
    pub(crate) fn admit(&self) {
        self.state().admitted = true;
        self.changed.notify_one();
    }

    /// Tells that the caller wants no result any more.
    pub(crate) fn interrupt(&self) {
        self.state().interrupted = true;
        self.changed.notify_one();
    }

    /// Blocks until something happens; a result goes before everything else.
    pub(crate) fn wait(&self, until: Option<Instant>) -> Woken {
        let mut state = self.state();
        loop {
            if let Some(result) = state.result.take() {
                return Woken::Finished(result);
            }
            if mem::take(&mut state.admitted) {
                return Woken::Admitted;
            }
            if mem::take(&mut state.interrupted) {
                return Woken::Interrupted;
            }
            state = match until {
                None => self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Woken::TimedOut;
                    }
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each field is whole after any panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
