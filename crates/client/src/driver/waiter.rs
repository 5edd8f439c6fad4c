//! Where one calling thread waits: for its result, an interruption, the lead, or a place in the
//! budget.

use super::signal_guard::{SignalGuard, wake};
use crate::core::{Answer, Errno, Served};
use mio::Waker;
use rustix::thread::futex;
use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One waiting call. Woken once for each thing that happens to it.
#[derive(Default)]
pub(crate) struct Waiter {
    state: Mutex<State>,
    /// Counts what happens. The thread sleeps on it without the lock, so that a signal handler that
    /// comes in its sleep keeps nobody waiting.
    changes: AtomicU32,
}

#[derive(Default)]
struct State {
    result: Option<Result<Answer, Errno>>,
    served: Vec<Served>,
    admitted: bool,
    interrupted: bool,
    /// It shall lead.
    lead: bool,
    /// A thread sleeps, or is about to.
    waiting: bool,
    /// What wakes the thread where it leads.
    leads: Option<Arc<Waker>>,
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
    /// It shall take in what comes ([`LeaderFollower`](super::leader::LeaderFollower)).
    Lead,
    /// The time is over.
    TimedOut,
}

impl Waiter {
    /// Hands over the result. The first one counts.
    pub(crate) fn finish(&self, result: Result<Answer, Errno>) {
        let mut state = self.state();
        if state.result.is_none() {
            state.result = Some(result);
            self.wake(state);
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
        let mut state = self.state();
        state.admitted = true;
        self.wake(state);
    }

    /// Tells that the caller wants no result any more.
    pub(crate) fn interrupt(&self) {
        let mut state = self.state();
        state.interrupted = true;
        if let Some(waker) = &state.leads {
            wake(waker);
        }
        self.wake(state);
    }

    /// Tells that it shall lead.
    pub(crate) fn lead(&self) {
        let mut state = self.state();
        state.lead = true;
        self.wake(state);
    }

    /// Forgets that it was told to lead.
    pub(crate) fn refuse_lead(&self) {
        self.state().lead = false;
    }

    /// The thread waits in the reactor, where this wakes it; or no longer.
    pub(crate) fn leads(&self, waker: Option<Arc<Waker>>) {
        self.state().leads = waker;
    }

    /// What has happened, if anything has.
    pub(crate) fn take(&self) -> Option<Woken> {
        self.state().take()
    }

    /// Blocks until something happens; a result goes before everything else. Signals come while it
    /// sleeps.
    pub(crate) fn wait(&self, guard: &SignalGuard, until: Option<Instant>) -> Woken {
        loop {
            let mut state = self.state();
            state.waiting = false;
            if let Some(woken) = state.take() {
                return woken;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Woken::TimedOut;
            }
            state.waiting = true;
            let seen = self.changes.load(Ordering::Relaxed);
            drop(state);
            guard.let_signals_in(|| self.sleep(seen, left));
        }
    }

    /// Sleeps unless something has happened since `seen`; at most `left`, at times shorter.
    fn sleep(&self, seen: u32, left: Option<Duration>) {
        // A time that no clock counts is none.
        let left = left.and_then(|left| left.try_into().ok());
        // Whatever it says, the caller looks.
        let _ = futex::wait(&self.changes, futex::Flags::PRIVATE, seen, left.as_ref());
    }

    /// Wakes the thread if it sleeps: a system call, left out where it does not.
    fn wake(&self, state: MutexGuard<'_, State>) {
        // Under the lock: a thread that has looked before sees that it is not as it was.
        self.changes.fetch_add(1, Ordering::Relaxed);
        let waiting = state.waiting;
        drop(state);
        if waiting {
            let _ = futex::wake(&self.changes, futex::Flags::PRIVATE, 1);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each field is whole after any panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What has happened; a result goes before everything else.
    fn take(&mut self) -> Option<Woken> {
        if let Some(result) = self.result.take() {
            return Some(Woken::Finished(result));
        }
        if mem::take(&mut self.admitted) {
            return Some(Woken::Admitted);
        }
        if mem::take(&mut self.interrupted) {
            return Some(Woken::Interrupted);
        }
        mem::take(&mut self.lead).then_some(Woken::Lead)
    }
}
