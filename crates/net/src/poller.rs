//! One thread's wait for events, which begins with a moment of busy polling where that pays.
//!
//! To sleep and be woken takes longer than a small request does. So a thread polls for a few
//! microseconds before it sleeps, but only where polling has lately found events, and only while no
//! other thread wants the processor. It learns the latter from `sched_yield`, which then takes long
//! to return.

use mio::{Events, Poll, Registry};
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

/// Longest time of busy polling in one wait.
const LOOK_MAX: Duration = Duration::from_micros(30);
/// A `sched_yield` that took longer has let another thread run.
const GAVE_WAY: Duration = Duration::from_micros(4);
/// Largest number of waits in a row that begin asleep after busy polling was in vain.
const ASLEEP_MAX: u32 = 16;

/// An epoll of one thread, or of threads that take turns.
pub struct Poller {
    poll: Poll,
    spin: Spin,
}

impl Poller {
    /// A poller that watches nothing yet. The error says that the process has no descriptors left.
    pub fn new() -> io::Result<Poller> {
        Ok(Poller {
            poll: Poll::new()?,
            spin: Spin::default(),
        })
    }

    /// The registry in which the caller registers the descriptors to watch.
    pub fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    /// Polls for events for a few microseconds at most, and no longer than `wait`; not at all while
    /// polling was lately in vain. `has_other` says whether something else than an event has
    /// arrived. Returns true if there are events or `has_other` said so.
    pub fn look(
        &mut self,
        events: &mut Events,
        wait: Duration,
        has_other: impl Fn() -> bool,
    ) -> bool {
        let poll = &mut self.poll;
        self.spin.look(wait, || {
            // If polling fails, the sleep that follows reports the error.
            let looked = poll.poll(events, Some(Duration::ZERO));
            looked.is_ok() && !events.is_empty() || has_other()
        })
    }

    /// Sleeps until there are events, for at most `timeout`. A signal ends the sleep without
    /// events.
    pub fn sleep(&mut self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(events, timeout) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                events.clear();
                Ok(())
            }
            other => other,
        }
    }
}

/// Decides whether a wait begins with busy polling, from how the last waits of one thread, or of
/// threads that take turns, went.
#[derive(Debug, Default)]
pub struct Spin {
    /// Number of waits that still begin asleep.
    asleep: u32,
    /// Number of waits that begin asleep after the next busy polling that is in vain.
    penalty: u32,
}

impl Spin {
    /// Calls `look` again and again until it returns true, for at most `wait`; not at all while
    /// that was lately in vain. Returns whether `look` returned true.
    pub fn look(&mut self, wait: Duration, mut look: impl FnMut() -> bool) -> bool {
        if self.asleep > 0 {
            self.asleep -= 1;
            return false;
        }
        let begin = Instant::now();
        let until = begin + LOOK_MAX.min(wait);
        let mut before = begin;
        loop {
            if look() {
                self.penalty = 0;
                return true;
            }
            std::thread::yield_now();
            let now = Instant::now();
            if now >= until {
                self.penalty = (2 * self.penalty).clamp(1, ASLEEP_MAX);
                self.asleep = self.penalty;
                return false;
            }
            if now - before > GAVE_WAY {
                return false;
            }
            before = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_vain_is_tried_ever_less_often() {
        let mut spin = Spin::default();
        let wait = Duration::from_micros(1);
        let looked = |spin: &mut Spin, has_come: bool| {
            let mut looked = false;
            spin.look(wait, || {
                looked = true;
                has_come
            });
            looked
        };
        let in_vain = (0..10_000).filter(|_| looked(&mut spin, false)).count();
        assert!((1..800).contains(&in_vain), "{in_vain}");
        while !looked(&mut spin, true) {}
        assert!((0..100).all(|_| looked(&mut spin, true)));
    }

    #[test]
    fn to_give_way_is_free_and_to_poll_for_the_whole_time_is_not() {
        // One look that takes so long; returns the wait's time, which may be longer.
        let look = |spin: &mut Spin, takes: Duration| {
            let begin = Instant::now();
            spin.look(LOOK_MAX, || {
                while begin.elapsed() < takes {}
                false
            });
            begin.elapsed()
        };
        let mut spin = Spin::default();
        // Until this thread is not interrupted amid it.
        while look(&mut spin, 2 * GAVE_WAY) >= LOOK_MAX {
            spin = Spin::default();
        }
        assert_eq!((spin.asleep, spin.penalty), (0, 0));
        for penalty in [1, 2, 4] {
            look(&mut spin, LOOK_MAX);
            assert_eq!((spin.asleep, spin.penalty), (penalty, penalty));
            spin.asleep = 0;
        }
    }
}
