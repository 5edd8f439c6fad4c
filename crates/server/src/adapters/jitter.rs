//! Artificial delays, for tests and benchmarks. The forwarder receives every request a random time
//! after it arrived, as over a network whose messages overtake each other. A local socket delays
//! nothing, so without this all forwarders would see the same order of arrival.
//!
//! The delays are made here, because neither the forwarder nor its peers can tell a delayed request
//! from a late one.

use crate::connections::Came;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use tidegate_forward::{ConnId, SlotId};
use tidegate_sched::{Time, mix64};

/// The delayed requests, by the time when they are due.
pub struct Jitter {
    max_ns: u64,
    /// How many delays were drawn so far. This number and the seed determine the next delay.
    drawn: u64,
    seed: u64,
    due: BTreeMap<(Time, u64), Held>,
    /// Wakes the loop's thread on time, where a timeout of `epoll_wait` would be up to a
    /// millisecond late.
    timer: OwnedFd,
    armed: Option<Time>,
}

/// A request that is delayed.
pub struct Held {
    /// The connection on which it came.
    pub conn: ConnId,
    /// The request.
    pub came: Came,
    /// The buffer with its payload, if it has payload.
    pub slot: Option<SlotId>,
}

impl Jitter {
    /// Draws delays from 0 to `max_us` microseconds, which follow from `seed`. Fails if the system
    /// gives no timer.
    pub fn new(max_us: u32, seed: u64) -> io::Result<Jitter> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Jitter {
            max_ns: u64::from(max_us) * 1000,
            drawn: 0,
            seed,
            due: BTreeMap::new(),
            timer: timerfd_create(TimerfdClockId::Monotonic, flags)?,
            armed: None,
        })
    }

    /// A descriptor that becomes readable when the next request is due.
    pub fn wake_fd(&self) -> RawFd {
        self.timer.as_raw_fd()
    }

    /// Delays a request that arrived at `now`.
    pub fn hold(&mut self, now: Time, held: Held) {
        self.drawn += 1;
        let chance = mix64(self.seed ^ mix64(self.drawn));
        // The high half of a product spreads evenly over any range.
        let delay_ns = ((u128::from(chance) * u128::from(self.max_ns)) >> 64) as u64;
        self.due.insert((now + delay_ns, self.drawn), held);
    }

    /// Takes a request that is due, the earliest first.
    pub fn take(&mut self, now: Time) -> Option<Held> {
        let entry = self.due.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }

    /// Drops the delayed requests of a connection that has ended; the forwarder frees their payload
    /// buffers.
    pub fn forget(&mut self, conn: ConnId) {
        self.due.retain(|_, held| held.conn != conn);
    }

    /// Sets the timer to the time when the next request is due. The caller has read `now` just
    /// before.
    pub fn arm(&mut self, now: Time) -> io::Result<()> {
        let next = self.due.first_key_value().map(|((at, _), _)| *at);
        if next == self.armed {
            return Ok(());
        }
        self.armed = next;
        // Zero would disarm it.
        let wait_ns = next.map_or(0, |at| at.since(now).max(1));
        let value = Timespec {
            tv_sec: (wait_ns / 1_000_000_000) as i64,
            tv_nsec: (wait_ns % 1_000_000_000) as i64,
        };
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: value,
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_wire::{Op, Request};

    fn held(conn: u64, id: u64) -> Held {
        let request = Request {
            id,
            seat: 0,
            generation: 0,
            reply_slot: None,
            epoch: 0,
            replay: false,
            caller: None,
            hints: None,
            op: Op::Statfs,
            payload_len: 0,
        };
        Held {
            conn: ConnId(conn),
            came: Came {
                request: Box::new(request),
                shared: None,
            },
            slot: None,
        }
    }

    /// The ids of all requests in order of arrival, and when the last arrived.
    fn arrivals(jitter: &mut Jitter) -> (Vec<u64>, u64) {
        let (mut ids, mut last_us) = (Vec::new(), 0);
        for us in 0..2000 {
            while let Some(held) = jitter.take(Time(us * 1000)) {
                ids.push(held.came.request.id);
                last_us = us;
            }
        }
        (ids, last_us)
    }

    #[test]
    fn requests_overtake_each_other_within_the_bound_and_by_the_seed() {
        let run = |seed| {
            let mut jitter = Jitter::new(1000, seed).unwrap();
            (0..500).for_each(|id| jitter.hold(Time(0), held(1, id)));
            arrivals(&mut jitter)
        };
        let (ids, last_us) = run(7);
        assert!((900..=1000).contains(&last_us), "{last_us}");
        assert!(!ids.is_sorted());
        assert_eq!(run(7), (ids.clone(), last_us));
        assert_ne!(run(8).0, ids);
        let mut sorted = ids;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..500).collect::<Vec<_>>());
    }

    #[test]
    fn what_a_closed_connection_sent_does_not_arrive() {
        let mut jitter = Jitter::new(1000, 1).unwrap();
        (0..10).for_each(|id| jitter.hold(Time(0), held(id % 2, id)));
        jitter.forget(ConnId(0));
        let (mut ids, _) = arrivals(&mut jitter);
        ids.sort_unstable();
        assert_eq!(ids, [1, 3, 5, 7, 9]);
    }

    #[test]
    fn the_timer_rings_within_a_fraction_of_a_millisecond() {
        let mut jitter = Jitter::new(1, 1).unwrap();
        jitter.hold(Time(2_000_000), held(1, 1));
        let started = std::time::Instant::now();
        jitter.arm(Time(0)).unwrap();
        let mut rings = [0; 8];
        let read = loop {
            match rustix::io::read(&jitter.timer, &mut rings) {
                Err(rustix::io::Errno::AGAIN) => std::thread::yield_now(),
                other => break other,
            }
        };
        assert_eq!(read, Ok(8));
        assert!(started.elapsed().as_micros() >= 2000);
    }
}
