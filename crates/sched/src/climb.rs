//! Looks for the smallest depth that gets out of a device what it can do, by trying.
//!
//! Which depth that is, no model tells: a disk that serves calls in order gains nothing from more
//! than one, one with a queue of its own gains from four on and up to its queue's length, an SSD
//! until its channels are busy. So while requests wait all the time, the work done at one depth is
//! compared with that at another one: first at half the depth, which is enough if nearly as much is
//! done as at the best one of this search; then at four times the depth, which must do more. (Twice
//! is not enough: of two calls a disk with a queue can choose as little as of one.) Where requests
//! are late that is the other way round. If four times the depth does no more, a far larger one is
//! tried, so that what little one step after another gains is not lost: as many calls as the device
//! does in half an interval, since whoever comes during a trial waits for what is in the device.
//! Trials end as soon as a larger depth does no more, or a smaller one far less. Before each
//! further search there is a rest, the longer the more often it ended where it began.
//!
//! Work is what requests cost by a cost model that stays the same, so that those of different sizes
//! can be compared. (One that learns follows the time between ends, but late: what is then compared
//! is two prices and not two depths.)

/// A depth is enough if it does so much of the work of the best one, in percent. What is measured
/// varies by some percent.
const ENOUGH_PERCENT: u64 = 96;

/// A measurement ends after so many requests, or intervals.
const REQUESTS: u64 = 96;
const INTERVALS: u64 = 4;

/// The rest after a search, in intervals.
const REST_MIN: u32 = 16;
const REST_MAX: u32 = 128;

/// What one interval tells.
#[derive(Clone, Copy)]
pub(crate) struct Interval {
    /// Requests that finished, and what they cost by the cost model of the start.
    pub(crate) done: u64,
    pub(crate) work_ns: u64,
    /// Whether requests waited all the time.
    pub(crate) is_backlogged: bool,
    /// The largest depth that may be tried in the next one.
    pub(crate) bound: u64,
    /// Whether requests with a target waited for too long.
    pub(crate) is_late: bool,
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
    /// One that is far larger.
    Far,
    /// Nothing, for so many intervals.
    Rest(u32),
}

/// The search.
pub(crate) struct Climb {
    /// The depth that is enough, as far as is known.
    enough: u64,
    /// Work at that depth in an interval; 0: not known.
    rate: u64,
    /// Where this search began, as many requests as were done there in half an interval, and the
    /// most work at any of its depths.
    start: u64,
    far: u64,
    best: u64,
    step: Step,
    /// Whether larger depths are tried before smaller ones, and which were tried to no use since
    /// the depth is known.
    up_first: bool,
    tried_down: bool,
    tried_up: bool,
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
            start: 1,
            far: 0,
            best: 0,
            step: Step::Known,
            up_first: false,
            tried_down: false,
            tried_up: false,
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
            Step::Far => self.far,
        };
        depth.clamp(1, bound.max(1))
    }

    /// The depth was `depth` for another reason. If nothing is known yet, the search begins there.
    pub(crate) fn was_at(&mut self, depth: u64) {
        if self.rate == 0 {
            self.enough = depth;
        }
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
        if self.done >= REQUESTS || self.intervals >= INTERVALS || self.is_vain() {
            let rate = self.work_ns / self.intervals;
            if self.step == Step::Known {
                self.far = self.done / self.intervals / 2;
            }
            self.begin();
            self.measured(depth, rate, interval);
        } else if self.passed >= 2 * INTERVALS {
            self.begin();
            if self.step != Step::Known {
                self.step = self.next_rest();
            }
        }
    }

    /// Whether a larger depth is being tried and does no more so far, or a smaller one that does
    /// far less.
    fn is_vain(&self) -> bool {
        let known_ns = self.rate.saturating_mul(self.intervals);
        let is_vain = match self.step {
            Step::Up | Step::Far => self.work_ns <= known_ns,
            Step::Down => self.work_ns <= known_ns / 8 * 7,
            Step::Known | Step::Rest(_) => false,
        };
        is_vain && self.intervals > 0
    }

    /// Begins a measurement.
    fn begin(&mut self) {
        (self.work_ns, self.done, self.intervals, self.passed) = (0, 0, 0, 0);
    }

    /// Decides what is tried next.
    fn measured(&mut self, depth: u64, rate: u64, interval: Interval) {
        let bound = interval.bound;
        let is_less = |one: u64, percent: u64, other: u64| {
            u128::from(one) * 100 < u128::from(other) * u128::from(percent)
        };
        match self.step {
            Step::Known => {
                (self.start, self.rate, self.best) = (self.enough, rate, rate);
                self.begins(interval.is_late);
            }
            Step::Down if is_less(rate, ENOUGH_PERCENT, self.best) => self.tried_down = true,
            Step::Down => self.takes(depth, rate, false),
            Step::Up | Step::Far if is_less(self.rate, ENOUGH_PERCENT, rate) => {
                self.takes(depth, rate, true);
            }
            Step::Up if is_far(bound.min(self.far), depth) => {
                self.step = Step::Far;
                return;
            }
            Step::Up | Step::Far | Step::Rest(_) => self.tried_up = true,
        }
        self.step = self.next(bound);
    }

    /// Another depth is better than the known one.
    fn takes(&mut self, depth: u64, rate: u64, up: bool) {
        (self.enough, self.rate) = (depth, rate);
        self.best = self.best.max(rate);
        self.begins(up);
    }

    /// Both directions are to be tried.
    fn begins(&mut self, up_first: bool) {
        self.up_first = up_first;
        (self.tried_down, self.tried_up) = (false, false);
    }

    /// What is tried next beside the known depth.
    fn next(&mut self, bound: u64) -> Step {
        let down = !self.tried_down && self.enough > 1;
        let up = !self.tried_up && is_far(bound, self.enough);
        match (down, up) {
            (_, true) if self.up_first || !down => Step::Up,
            (true, _) => Step::Down,
            _ => self.next_rest(),
        }
    }

    fn next_rest(&mut self) -> Step {
        let rest = match self.enough == self.start {
            true => self.rest,
            false => REST_MIN,
        };
        self.rest = (rest * 2).min(REST_MAX);
        Step::Rest(rest)
    }
}

/// Whether a depth is so much larger that it is worth a trial.
fn is_far(larger: u64, depth: u64) -> bool {
    larger > depth + depth / 4
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
                done: 200,
                work_ns: rate,
                is_backlogged: true,
                bound,
                is_late: false,
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
    fn small_losses_do_not_add_up() {
        // Each halving costs 2 or 3 %: whenever it rests, it has all but 4 % of the best.
        for gain in [20, 31] {
            let rates: [u64; 64] =
                core::array::from_fn(|at| 1000 + gain * u64::from((at as u32 + 1).ilog2()));
            let (mut climb, mut searches) = (Climb::new(), 0);
            for _ in 0..3000 {
                let was = climb.step;
                let depth = after(&mut climb, 1, 64, &rates);
                if matches!(climb.step, Step::Rest(_)) {
                    searches += u32::from(!matches!(was, Step::Rest(_)));
                    assert!(rates[depth as usize - 1] * 100 >= rates[63] * 96, "{depth}");
                }
            }
            // Where nothing better is found, there are few.
            assert!((20..30).contains(&searches), "{searches}");
        }
    }

    #[test]
    fn no_trial_fills_a_slow_device_for_longer_than_half_an_interval() {
        let mut climb = Climb::new();
        for _ in 0..1000 {
            let interval = Interval {
                done: 20,
                work_ns: 1000,
                is_backlogged: true,
                bound: 64,
                is_late: false,
            };
            climb.ended(climb.depth(64), interval);
            assert!(climb.depth(64) <= 10, "{:?}", climb.step);
        }
        assert_eq!(climb.enough, 1);
    }

    #[test]
    fn what_gains_late_is_found() {
        // Nothing is gained below 32.
        let rates: [u64; 32] = core::array::from_fn(|at| if at < 31 { 1000 } else { 2000 });
        assert_eq!(after(&mut Climb::new(), 200, 64, &rates), 32);
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
            is_late: false,
        };
        (0..100).for_each(|_| climb.ended(1, idle));
        assert_eq!((climb.step, climb.depth(64)), (Step::Known, 1));
        // So does a trial that comes to nothing, but it ends.
        after(&mut climb, 1, 64, &[1000]);
        assert_eq!(climb.step, Step::Up);
        (0..100).for_each(|_| climb.ended(4, idle));
        assert_ne!(climb.step, Step::Up);
    }
}
