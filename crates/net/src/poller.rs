//! One thread's wait for events, which begins with a moment of busy polling where that pays.
//!
//! To sleep and be woken takes longer than a small request does. So a thread polls for a few
//! microseconds before it sleeps, but only where polling has lately found events, and only while no
//! other thread wants the processor. It learns the latter from `sched_yield`, which then takes long
//! to return. To give way for some microseconds, as to the thread that a request passes next, costs
//! nothing; to wait for a thread that computes counts as polling in vain. Such a thread may keep a
//! processor for milliseconds, however soon there is something to do, and even if another processor
//! has become free: unlike a thread that sleeps, one that has given way is not woken, and every
//! request to it waits as long. So after such a loss a thread does not poll for many times as long,
//! and for twice as many each time it loses again at once: beside a thread that computes all the
//! time, few requests in thousands wait for it.

use mio::{Events, Poll, Registry};
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

/// Longest time of busy polling in one wait.
const LOOK_MAX: Duration = Duration::from_micros(30);
/// A `sched_yield` that took longer has let another thread run.
const GAVE_WAY: Duration = Duration::from_micros(4);
/// A `sched_yield` that took longer has let a thread run that computes.
const LOST: Duration = Duration::from_micros(200);
/// After a loss to such a thread, polling pauses for so many times as long, and for up to so many
/// where it is lost again and again.
const LOST_PARTS: u32 = 32;
const LOST_PARTS_MAX: u32 = 256;
/// What took longer was no thread that computes: the process or the machine was stopped.
const LOST_MAX: Duration = Duration::from_millis(10);
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
    /// Until then all waits begin asleep.
    not_before: Option<Instant>,
    /// The last pause: its end, and of how many times what had been lost it was.
    last: Option<(Instant, u32)>,
}

impl Spin {
    /// Calls `look` again and again until it returns true, for at most `wait`; not at all while
    /// that was lately in vain. Returns whether `look` returned true.
    pub fn look(&mut self, wait: Duration, look: impl FnMut() -> bool) -> bool {
        self.look_by(wait, look, Instant::now, std::thread::yield_now)
    }

    /// [`Spin::look`] by the caller's clock and way to yield.
    fn look_by(
        &mut self,
        wait: Duration,
        mut look: impl FnMut() -> bool,
        now: impl Fn() -> Instant,
        yield_now: impl Fn(),
    ) -> bool {
        if self.asleep > 0 {
            self.asleep -= 1;
            return false;
        }
        let begin = now();
        if self.not_before.is_some_and(|at| begin < at) {
            return false;
        }
        self.not_before = None;
        let until = begin + LOOK_MAX.min(wait);
        let mut before = begin;
        loop {
            if look() {
                self.penalty = 0;
                return true;
            }
            yield_now();
            let now = now();
            if now - before > LOST {
                self.pause(now, now - before);
            }
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

    /// Begins a pause of polling, for so much time was lost to a thread that computes.
    fn pause(&mut self, now: Instant, lost: Duration) {
        let lost = lost.min(LOST_MAX);
        let parts = self.last.map_or(LOST_PARTS, |(end, parts)| {
            match now - end < lost * LOST_PARTS {
                true => (2 * parts).min(LOST_PARTS_MAX),
                false => (parts / 2).max(LOST_PARTS),
            }
        });
        let end = now + lost * parts;
        (self.not_before, self.last) = (Some(end), Some((end, parts)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// One wait in which each yield takes so long, and a look only finds something if it `finds`;
    /// returns the number of looks.
    fn looks(spin: &mut Spin, yield_us: u64, finds: bool) -> u32 {
        looks_at(spin, &Cell::new(Instant::now()), yield_us, finds)
    }

    fn looks_at(spin: &mut Spin, clock: &Cell<Instant>, yield_us: u64, finds: bool) -> u32 {
        let mut looks = 0;
        let look = || {
            looks += 1;
            finds
        };
        let yield_now = || clock.set(clock.get() + Duration::from_micros(yield_us));
        let found = spin.look_by(LOOK_MAX, look, || clock.get(), yield_now);
        assert_eq!(found, finds && looks > 0);
        looks
    }

    #[test]
    fn what_is_in_vain_is_tried_ever_less_often() {
        let mut spin = Spin::default();
        let in_vain = (0..10_000).filter(|_| looks(&mut spin, 1, false) == 30);
        assert_eq!(in_vain.count(), 4 + (10_000 - 19) / 17 + 1);
        while looks(&mut spin, 1, true) == 0 {}
        assert!((0..100).all(|_| looks(&mut spin, 1, true) == 1));
    }

    #[test]
    fn to_give_way_is_free_and_to_wait_for_computing_threads_is_in_vain() {
        let mut spin = Spin::default();
        for _ in 0..100 {
            assert_eq!(looks(&mut spin, 10, false), 1);
        }
        assert_eq!(looks(&mut spin, 100, false), 1);
        assert_eq!(looks(&mut spin, 10, false), 0);
        assert_eq!(looks(&mut spin, 10, false), 1);
    }

    #[test]
    fn who_loses_to_threads_that_compute_polls_ever_less_often() {
        let (mut spin, clock) = (Spin::default(), Cell::new(Instant::now()));
        let (begin, mut losses, mut late) = (clock.get(), 0, 0);
        while clock.get() - begin < Duration::from_secs(60) {
            if looks_at(&mut spin, &clock, 1500, false) > 0 {
                losses += 1;
                late += u32::from(clock.get() - begin > Duration::from_secs(30));
            }
            // The next wait.
            clock.set(clock.get() + Duration::from_micros(20));
        }
        assert!(
            (120..180).contains(&losses) && late >= 60,
            "{losses} {late}"
        );
    }

    /// How much of the time polling is paused with a loss of 2 ms in each so many ms, somewhere.
    fn paused(period_ms: u64) -> f64 {
        let (mut spin, clock) = (Spin::default(), Cell::new(Instant::now()));
        let (begin, mut random, mut paused) = (clock.get(), 1_u64, Duration::ZERO);
        while clock.get() - begin < Duration::from_secs(600) {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            clock.set(clock.get() + Duration::from_micros((random >> 33) % (2000 * period_ms)));
            if looks_at(&mut spin, &clock, 2000, false) > 0 {
                paused += spin
                    .not_before
                    .map_or(Duration::ZERO, |end| end - clock.get());
            }
        }
        paused.as_secs_f64() / (clock.get() - begin).as_secs_f64()
    }

    #[test]
    fn losses_now_and_then_keep_nobody_from_polling() {
        assert!((0.001..0.1).contains(&paused(1000)), "{}", paused(1000));
        assert!(paused(10) > 0.9, "{}", paused(10));
        // Nor does a process that was stopped for an hour do without polling for a day.
        let (mut spin, clock) = (Spin::default(), Cell::new(Instant::now()));
        looks_at(&mut spin, &clock, 3_600_000_000, false);
        clock.set(clock.get() + Duration::from_millis(330));
        assert!((0..=ASLEEP_MAX).any(|_| looks_at(&mut spin, &clock, 1, true) == 1));
        assert!((0..100).all(|_| looks_at(&mut spin, &clock, 1, true) == 1));
    }
}
