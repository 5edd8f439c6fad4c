//! One thread's wait for events, for a moment awake where that pays.

use crate::spin::Spin;
use mio::{Events, Poll, Registry};
use std::io::{self, ErrorKind};
use std::time::Duration;

/// An epoll of one thread, or of threads that take turns.
pub struct Poller {
    poll: Poll,
    spin: Spin,
}

impl Poller {
    /// Nothing is watched yet. An error of the system's: it has no descriptors left.
    pub fn new() -> io::Result<Poller> {
        Ok(Poller {
            poll: Poll::new()?,
            spin: Spin::default(),
        })
    }

    /// Where descriptors are named that are to be watched.
    pub fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    /// Looks for events for a few microseconds at most, and no longer than `wait`, unless that was
    /// in vain lately. `has_other` says whether something has come that is no event. True: there
    /// are events, or it said so.
    pub fn look(
        &mut self,
        events: &mut Events,
        wait: Duration,
        has_other: impl Fn() -> bool,
    ) -> bool {
        let poll = &mut self.poll;
        self.spin.look(wait, || {
            // What is wrong, the sleep will say.
            let looked = poll.poll(events, Some(Duration::ZERO));
            looked.is_ok() && !events.is_empty() || has_other()
        })
    }

    /// Sleeps until there are events, at most for `timeout`. A signal ends it without events.
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
