//! Bounds the bytes in flight: calls beyond the bound wait in arrival order.

use super::slot::{Slot, Woken};
use super::undisturbed::Calm;
use crate::api::Errno;
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
    waiting: VecDeque<(u64, Arc<Slot>)>,
    closed: bool,
}

/// Bytes taken from a budget; given back when dropped.
pub(crate) struct Permit<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Budget {
    /// A budget of `bytes_max`. A single call beyond it is let in alone.
    pub(crate) fn new(bytes_max: u64) -> Budget {
        Budget {
            bytes_max: bytes_max.max(1),
            state: Mutex::default(),
        }
    }

    /// Takes `bytes`, waiting on `slot` for room: EINTR if it is interrupted, ETIMEDOUT at
    /// `until`, EIO after [`Budget::close`].
    pub(crate) fn take(
        &self,
        calm: &Calm,
        bytes: u64,
        slot: &Arc<Slot>,
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
        state.waiting.push_back((bytes, Arc::clone(slot)));
        drop(state);
        let errno = match slot.wait(calm, until) {
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
        self.leave(bytes, slot);
        Err(errno)
    }

    /// Ends all waits with EIO, now and later.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        for (_, slot) in state.waiting.drain(..) {
            slot.finish(Err(Errno::IO));
        }
    }

    /// Takes a waiter out that gave up; it may have been admitted meanwhile.
    fn leave(&self, bytes: u64, slot: &Arc<Slot>) {
        let mut state = self.state();
        let before = state.waiting.len();
        state
            .waiting
            .retain(|(_, waiting)| !Arc::ptr_eq(waiting, slot));
        if state.waiting.len() == before && !state.closed {
            state.used -= bytes;
        }
        self.admit(&mut state);
    }

    fn admit(&self, state: &mut State) {
        while let Some((bytes, _)) = state.waiting.front()
            && state.used + bytes <= self.bytes_max
        {
            let (bytes, slot) = state.waiting.pop_front().expect("the front was just seen");
            state.used += bytes;
            slot.admit();
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
        let slot = Arc::new(Slot::default());
        let first = budget
            .take(&Calm::begin(), 80, &slot, None)
            .expect("there is room");
        let (order, came) = mpsc::channel();
        thread::scope(|scope| {
            let mut queued = 0;
            for (number, bytes) in [(1, 60), (2, 50), (3, 10)] {
                let (budget, order) = (&budget, order.clone());
                scope.spawn(move || {
                    let slot = Arc::new(Slot::default());
                    let permit = budget
                        .take(&Calm::begin(), bytes, &slot, None)
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
        let slot = Arc::new(Slot::default());
        let permit = budget
            .take(&Calm::begin(), 1000, &slot, None)
            .expect("alone it may");
        let until = Some(Instant::now());
        assert_eq!(
            budget.take(&Calm::begin(), 1, &slot, until).err(),
            Some(Errno::TIMEDOUT)
        );
        drop(permit);
        assert!(budget.take(&Calm::begin(), 1, &slot, until).is_ok());
    }

    #[test]
    fn an_interrupted_or_closed_wait_gives_nothing_away() {
        let budget = Budget::new(10);
        let holder = Arc::new(Slot::default());
        let permit = budget
            .take(&Calm::begin(), 10, &holder, None)
            .expect("there is room");
        let slot = Arc::new(Slot::default());
        slot.interrupt();
        assert_eq!(
            budget.take(&Calm::begin(), 5, &slot, None).err(),
            Some(Errno::INTR)
        );
        budget.close();
        assert_eq!(
            budget.take(&Calm::begin(), 5, &slot, None).err(),
            Some(Errno::IO)
        );
        drop(permit);
        assert_eq!(budget.state().used, 0);
    }
}
