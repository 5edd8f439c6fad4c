//! The budget of bytes in flight. A call that would exceed it waits, in order of arrival.

use super::signal_guard::SignalGuard;
use super::waiter::{Waiter, Woken};
use crate::core::Errno;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Bytes that calls may have in flight together.
pub(crate) struct Budget {
    bytes_max: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
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

    fn admit(&self, state: &mut State) {
        while let Some((bytes, _)) = state.waiting.front()
            && state.used + bytes <= self.bytes_max
        {
            let (bytes, waiter) = state.waiting.pop_front().expect("the front was just seen");
            state.used += bytes;
            waiter.admit();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
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
