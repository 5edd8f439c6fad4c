//! Looks for the smallest depth that gets out of a device what it can do, by trying.
//!
//! Which depth that is, no model tells: a disk that serves calls in order gains nothing from more
//! than one, one with a queue of its own gains from four on and up to its queue's length, an SSD
//! until its channels are busy. So while requests wait all the time, the work done at one depth is
//! compared with that at another one: first at half the depth, which is enough if nearly as much is
//! done; then at four times the depth, which must do more. (Twice is not enough: of two calls a
//! disk with a queue can choose as little as of one.) Before each search there is a rest, the
//! longer the more often nothing better was found.
//!
//! Work is what requests cost by the cost model, so that those of different sizes can be compared.

/// A smaller depth is enough if it does so much of the work, and a larger one is taken if the known
/// one does less than so much of its work; in percent. What is measured varies by some percent.
const ENOUGH_PERCENT: u64 = 96;
const MORE_PERCENT: u64 = 92;

/// A measurement ends after so many requests, or intervals.
const REQUESTS: u64 = 96;
const INTERVALS: u64 = 4;

/// The rest after a search, in intervals.
const REST_MIN: u32 = 16;
const REST_MAX: u32 = 128;

/// What one interval tells.
#[derive(Clone, Copy)]
pub(crate) struct Interval {
    /// Requests that finished, and what they cost by the cost model.
    pub(crate) done: u64,
    pub(crate) work_ns: u64,
    /// Whether requests waited all the time.
    pub(crate) is_backlogged: bool,
    /// The largest depth that may be tried in the next one.
    pub(crate) bound: u64,
}

/// What is being tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The depth that was enough so far, to compare others with it.
    Known,
    /// A smaller one.
    Down,
    /// A larger one, as far as it is allowed.
    Up,
    /// Nothing, for so many intervals.
    Rest(u32),
}

/// The search.
pub(crate) struct Climb {
    /// The depth that is enough, as far as is known.
    enough: u64,
    /// Work at that depth in an interval; 0: not known.
    rate: u64,
    step: Step,
    /// The present measurement: work, requests, intervals.
    work_ns: u64,
    done: u64,
    intervals: u64,
    /// Intervals since it began, those that tell nothing too.
    passed: u64,
    rest: u32,
}

impl Climb {
    pub(crate) fn new() -> Climb {
        Climb {
            enough: 1,
            rate: 0,
            step: Step::Rest(REST_MIN),
            work_ns: 0,
            done: 0,
            intervals: 0,
            passed: 0,
            rest: REST_MIN,
        }
    }

    /// The depth to use, if as many as `bound` are allowed.
    pub(crate) fn depth(&self, bound: u64) -> u64 {
        let depth = match self.step {
            Step::Known | Step::Rest(_) => self.enough,
            Step::Down => self.enough / 2,
            Step::Up => self.enough * 4,
        };
        depth.clamp(1, bound.max(1))
    }

    /// Takes in an interval, which ran at `depth`.
    pub(crate) fn ended(&mut self, depth: u64, interval: Interval) {
        if let Step::Rest(left) = self.step {
            self.step = match left {
                0 => Step::Known,
                _ => Step::Rest(left - 1),
            };
            return;
        }
        self.passed += 1;
        // An interval in which something else limited the work tells nothing.
        if interval.is_backlogged && depth == self.depth(interval.bound) {
            self.work_ns = self.work_ns.saturating_add(interval.work_ns);
            self.done += interval.done;
            self.intervals += 1;
        }
        if self.done >= REQUESTS || self.intervals >= INTERVALS {
            let rate = self.work_ns / self.intervals;
            self.begin();
            self.measured(depth, rate, interval.bound);
        } else if self.passed >= 2 * INTERVALS && matches!(self.step, Step::Up | Step::Down) {
            self.begin();
            self.step = self.next_rest();
        }
    }

    /// Begins a measurement.
    fn begin(&mut self) {
        (self.work_ns, self.done, self.intervals, self.passed) = (0, 0, 0, 0);
    }

    /// Decides what is tried next.
    fn measured(&mut self, depth: u64, rate: u64, bound: u64) {
        let is_less = |one: u64, percent: u64, other: u64| {
            u128::from(one) * 100 < u128::from(other) * u128::from(percent)
        };
        match self.step {
            Step::Known => {
                self.rate = rate;
                self.step = self.next_down(bound);
            }
            Step::Down if is_less(rate, ENOUGH_PERCENT, self.rate) => {
                self.step = self.next_up(bound)
            }
            Step::Down => {
                (self.enough, self.rest) = (depth, REST_MIN);
                self.step = self.next_down(bound);
            }
            Step::Up if is_less(self.rate, MORE_PERCENT, rate) => {
                (self.enough, self.rate, self.rest) = (depth, rate, REST_MIN);
                self.step = match self.next_up(bound) {
                    Step::Up => Step::Up,
                    _ => self.next_down(bound),
                };
            }
            Step::Up | Step::Rest(_) => self.step = self.next_rest(),
        }
    }

    fn next_down(&mut self, bound: u64) -> Step {
        match self.enough {
            1 => self.next_up(bound),
            _ => Step::Down,
        }
    }

    fn next_up(&mut self, bound: u64) -> Step {
        match bound > self.enough + self.enough / 4 {
            true => Step::Up,
            false => self.next_rest(),
        }
    }

    fn next_rest(&mut self) -> Step {
        let rest = self.rest;
        self.rest = (rest * 2).min(REST_MAX);
        Step::Rest(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The depth after so many intervals on a device that does `rates` at depths 1, 2, ...; the
    /// last one holds for all larger depths.
    fn after(climb: &mut Climb, intervals: u32, bound: u64, rates: &[u64]) -> u64 {
        let mut depth = climb.depth(bound);
        for _ in 0..intervals {
            let rate = rates[(depth as usize).min(rates.len()) - 1];
            let interval = Interval {
                done: 30,
                work_ns: rate,
                is_backlogged: true,
                bound,
            };
            climb.ended(depth, interval);
            depth = climb.depth(bound);
        }
        climb.enough
    }

    #[test]
    fn a_device_that_serves_in_order_needs_one_call() {
        assert_eq!(after(&mut Climb::new(), 100, 64, &[1000]), 1);
    }

    #[test]
    fn a_queue_that_gains_late_is_found() {
        // Two calls are no better than one, four are, and so on up to 32.
        let gain = |at: usize| if at < 2 { 1000 } else { 1000 + 50 * at as u64 };
        let rates: [u64; 32] = core::array::from_fn(gain);
        assert_eq!(after(&mut Climb::new(), 100, 64, &rates), 32);
        // No more is tried than what is allowed.
        let mut climb = Climb::new();
        assert_eq!(after(&mut climb, 100, 8, &rates), 8);
        // When more is allowed, it is tried after a rest.
        assert_eq!(after(&mut climb, 200, 64, &rates), 32);
    }

    #[test]
    fn a_device_that_changes_is_looked_at_again() {
        let mut climb = Climb::new();
        assert_eq!(after(&mut climb, 100, 64, &[1000, 1500, 1800, 2000]), 4);
        assert_eq!(after(&mut climb, 300, 64, &[1000]), 1);
        assert_eq!(after(&mut climb, 300, 64, &[1000, 1500, 1800, 2000]), 4);
    }

    #[test]
    fn intervals_without_a_backlog_tell_nothing() {
        let mut climb = Climb::new();
        let idle = Interval {
            done: 1000,
            work_ns: 1,
            is_backlogged: false,
            bound: 64,
        };
        (0..100).for_each(|_| climb.ended(1, idle));
        assert_eq!((climb.step, climb.depth(64)), (Step::Known, 1));
        // So does a trial that comes to nothing, but it ends.
        after(&mut climb, 5, 64, &[1000]);
        assert_eq!(climb.step, Step::Up);
        (0..100).for_each(|_| climb.ended(4, idle));
        assert_ne!(climb.step, Step::Up);
    }
}
