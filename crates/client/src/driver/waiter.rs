//! Where a calling thread waits: for its result, an interruption, its turn to lead, or until its
//! bytes fit the budget of bytes in flight.

use super::{SignalGuard, wake};
use crate::core::{Answer, Errno, Served};
use mio::Waker;
use rustix::thread::futex;
use std::collections::VecDeque;
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

    /// Notes that the thread waits for the sockets, where `waker` wakes it; None: no longer.
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

/// Bytes that calls may have in flight together. A call that would exceed them waits, in order of
/// arrival.
pub(crate) struct Budget {
    bytes_max: u64,
    state: Mutex<Budgeted>,
}

#[derive(Default)]
struct Budgeted {
    used: u64,
    waiting: VecDeque<(u64, Arc<Waiter>)>,
    closed: bool,
}

/// Bytes taken from a budget; given back when dropped.
pub(crate) struct Permit<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Budget {
    /// A budget of `bytes_max`. A call that is larger than the whole budget is admitted alone.
    pub(crate) fn new(bytes_max: u64) -> Budget {
        Budget {
            bytes_max: bytes_max.max(1),
            state: Mutex::default(),
        }
    }

    /// Takes `bytes` from the budget; waits on `waiter` until there is room. EINTR if the wait is
    /// interrupted, ETIMEDOUT at `until`, EIO after [`Budget::close`].
    pub(crate) fn take(
        &self,
        guard: &SignalGuard,
        bytes: u64,
        waiter: &Arc<Waiter>,
        until: Option<Instant>,
    ) -> Result<Permit<'_>, Errno> {
        let bytes = bytes.min(self.bytes_max);
        let mut state = self.state();
        if state.closed {
            return Err(Errno::IO);
        }
        if bytes == 0 || (state.waiting.is_empty() && state.used + bytes <= self.bytes_max) {
            state.used += bytes;
            return Ok(Permit {
                budget: self,
                bytes,
            });
        }
        state.waiting.push_back((bytes, Arc::clone(waiter)));
        drop(state);
        let errno = match waiter.wait(guard, until) {
            Woken::Admitted => {
                return Ok(Permit {
                    budget: self,
                    bytes,
                });
            }
            Woken::Interrupted => Errno::INTR,
            Woken::TimedOut => Errno::TIMEDOUT,
            Woken::Finished(_) | Woken::Lead => Errno::IO,
        };
        self.leave(bytes, waiter);
        Err(errno)
    }

    /// Ends all waits with EIO, now and later.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        for (_, waiter) in state.waiting.drain(..) {
            waiter.finish(Err(Errno::IO));
        }
    }

    /// Removes a waiter that has stopped waiting; the budget may have admitted it meanwhile.
    fn leave(&self, bytes: u64, waiter: &Arc<Waiter>) {
        let mut state = self.state();
        let before = state.waiting.len();
        state
            .waiting
            .retain(|(_, waiting)| !Arc::ptr_eq(waiting, waiter));
        if state.waiting.len() == before && !state.closed {
            state.used -= bytes;
        }
        self.admit(&mut state);
    }

    fn admit(&self, state: &mut Budgeted) {
        while let Some((bytes, _)) = state.waiting.front()
            && state.used + bytes <= self.bytes_max
        {
            let (bytes, waiter) = state.waiting.pop_front().expect("the front was just seen");
            state.used += bytes;
            waiter.admit();
        }
    }

    fn state(&self) -> MutexGuard<'_, Budgeted> {
        // Sums and queue change together without a panic between them.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let mut state = self.budget.state();
        state.used -= self.bytes;
        self.budget.admit(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    #[test]
    fn no_call_overtakes_and_the_bound_holds() {
        let budget = Budget::new(100);
        let waiter = Arc::new(Waiter::default());
        let first = budget
            .take(&SignalGuard::begin(), 80, &waiter, None)
            .expect("there is room");
        let (order, came) = mpsc::channel();
        thread::scope(|scope| {
            let mut queued = 0;
            for (number, bytes) in [(1, 60), (2, 50), (3, 10)] {
                let (budget, order) = (&budget, order.clone());
                scope.spawn(move || {
                    let waiter = Arc::new(Waiter::default());
                    let permit = budget
                        .take(&SignalGuard::begin(), bytes, &waiter, None)
                        .expect("admitted in the end");
                    assert!(budget.state().used <= 100);
                    order.send(number).expect("the test listens");
                    drop(permit);
                });
                queued += 1;
                while budget.state().waiting.len() < queued {
                    thread::yield_now();
                }
            }
            // 10 would fit beside 80, but overtaking would starve large calls.
            assert!(
                came.try_recv().is_err(),
                "a small call overtook a large one"
            );
            drop(first);
        });
        assert_eq!(came.try_iter().count(), 3);
        assert_eq!(budget.state().used, 0);
    }

    #[test]
    fn one_call_beyond_the_bound_runs_alone() {
        let budget = Budget::new(10);
        let waiter = Arc::new(Waiter::default());
        let permit = budget
            .take(&SignalGuard::begin(), 1000, &waiter, None)
            .expect("alone it may");
        let until = Some(Instant::now());
        assert_eq!(
            budget.take(&SignalGuard::begin(), 1, &waiter, until).err(),
            Some(Errno::TIMEDOUT)
        );
        drop(permit);
        assert!(
            budget
                .take(&SignalGuard::begin(), 1, &waiter, until)
                .is_ok()
        );
    }

    #[test]
    fn an_interrupted_or_closed_wait_gives_nothing_away() {
        let budget = Budget::new(10);
        let holder = Arc::new(Waiter::default());
        let permit = budget
            .take(&SignalGuard::begin(), 10, &holder, None)
            .expect("there is room");
        let waiter = Arc::new(Waiter::default());
        waiter.interrupt();
        assert_eq!(
            budget.take(&SignalGuard::begin(), 5, &waiter, None).err(),
            Some(Errno::INTR)
        );
        budget.close();
        assert_eq!(
            budget.take(&SignalGuard::begin(), 5, &waiter, None).err(),
            Some(Errno::IO)
        );
        drop(permit);
        assert_eq!(budget.state().used, 0);
    }
}
