//! Where one calling thread waits: for its result, an interruption, its turn to lead, or a place in
//! the budget.

use super::signal_guard::{SignalGuard, wake};
use crate::core::{Answer, Errno, Served};
use mio::Waker;
use rustix::thread::futex;
use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One waiting call. Each event wakes it once.
#[derive(Default)]
pub(crate) struct Waiter {
    state: Mutex<State>,
    /// Counts events. The thread sleeps on it without the lock, so a signal handler that runs in
    /// its sleep keeps no other thread waiting.
    changes: AtomicU32,
}

#[derive(Default)]
struct State {
    result: Option<Result<Answer, Errno>>,
    served: Vec<Served>,
    admitted: bool,
    interrupted: bool,
    /// Whether it shall lead.
    lead: bool,
    /// Whether a thread sleeps, or is about to.
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
    /// Its token was cancelled. Reported once.
    Interrupted,
    /// It shall lead and take in what arrives ([`LeaderFollower`](super::leader::LeaderFollower)).
    Lead,
    /// The time is over.
    TimedOut,
}

impl Waiter {
    /// Stores the result and wakes the thread. Only the first result counts.
    pub(crate) fn finish(&self, result: Result<Answer, Errno>) {
        let mut state = self.state();
        if state.result.is_none() {
            state.result = Some(result);
            self.wake(state);
        }
    }

    /// Stores when forwarders answered the call, before its result.
    pub(crate) fn note(&self, served: Vec<Served>) {
        self.state().served = served;
    }

    /// Takes what [`Waiter::note`] has stored.
    pub(crate) fn take_served(&self) -> Vec<Served> {
        mem::take(&mut self.state().served)
    }

    /// Wakes the thread because the budget has room for it.
    pub(crate) fn admit(&self) {
        let mut state = self.state();
        state.admitted = true;
        self.wake(state);
    }

    /// Wakes the thread because its call was cancelled.
    pub(crate) fn interrupt(&self) {
        let mut state = self.state();
        state.interrupted = true;
        if let Some(waker) = &state.leads {
            wake(waker);
        }
        self.wake(state);
    }

    /// Wakes the thread to lead.
    pub(crate) fn lead(&self) {
        let mut state = self.state();
        state.lead = true;
        self.wake(state);
    }

    /// Withdraws [`Waiter::lead`].
    pub(crate) fn refuse_lead(&self) {
        self.state().lead = false;
    }

    /// Notes that the thread waits in the reactor, where `waker` wakes it; None: it no longer does.
    pub(crate) fn leads(&self, waker: Option<Arc<Waker>>) {
        self.state().leads = waker;
    }

    /// Takes the next event, if there is one.
    pub(crate) fn take(&self) -> Option<Woken> {
        self.state().take()
    }

    /// Blocks until an event; a result goes before everything else. Signals are let in while the
    /// thread sleeps.
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

    /// Sleeps unless there was an event since `seen`; for at most `left`, sometimes shorter.
    fn sleep(&self, seen: u32, left: Option<Duration>) {
        // A time that is too long for the clock counts as no limit.
        let left = left.and_then(|left| left.try_into().ok());
        // Its result does not matter: the caller checks for events.
        let _ = futex::wait(&self.changes, futex::Flags::PRIVATE, seen, left.as_ref());
    }

    /// Wakes the thread if it sleeps. Makes no system call if it does not.
    fn wake(&self, state: MutexGuard<'_, State>) {
        // Under the lock, so that a thread which checked before sees the change.
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
    /// Takes the next event; a result goes before everything else.
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
