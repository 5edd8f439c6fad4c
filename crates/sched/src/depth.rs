//! Feedback control of the depth: how many batches run at once, so that latency targets hold.
//!
//! Two policies share this block. It is the lower level of the two-level scheduler (SARC/AVATAR,
//! Zhang et al., TOS'06). Requests with the same target are a *class*. For each class and interval
//! the controller measures T, a percentile of the times in the device, and MT, the mean time in the
//! queue before it. With the target D, E = (D - MT) / T is the factor by which more requests could
//! run at once. Two bounds limit the result. Below `low` the depth is too small for the requests
//! that are due soon; the class is then overloaded, and asks for the largest depth to get over its
//! backlog. Above `high` the depth is more than the requests that there are.
//!
//! Both bounds count the requests of the class and of classes with shorter targets. Requests with
//! longer targets run behind these, so a backlog of them is no reason to give up a short target.
//! (The original counts the requests of all classes. One application without a target that always
//! has requests waiting then keeps the depth at its largest.)
//!
//! In the original two rules can hold at once while a class is overloaded. The class leaves
//! overload when 0.9 of the finished requests cover those that are due, and stays when they do not
//! cover all that there are. Here the rule for leaving is tested first. The smallest depth is 1,
//! even when requests wait longer than their target.

use crate::hash_table::NONE;
use crate::share::{Latency, Shares};
use crate::types::Time;
use alloc::vec::Vec;

/// The controller's interval, in nanoseconds: that of the original's figures.
const INTERVAL_NS: u64 = 500_000_000;

/// Arrivals are counted in so many parts of an interval.
const PARTS: u64 = 8;
const PART_NS: u64 = INTERVAL_NS / PARTS;

/// Arrivals are kept for so many parts. Longer targets count as that long.
const HISTORY: usize = 256;

/// The depth at the start.
const FIRST: u64 = 4;

/// Depths and factors are in thousandths.
const ONE: u64 = 1000;

/// Steps of an octave in the histogram of times, and all its steps.
const STEPS: usize = 8;
const TIMES: usize = 64 * STEPS;

/// The requests with one target.
struct Class {
    target: Latency,
    overloaded: bool,
    queued: u64,
    running: u64,
    /// The number of arrivals in each part of time, as a ring.
    arrivals: Vec<u32>,
    /// The histogram of times in the device, of the requests that finished in this interval.
    times: Vec<u32>,
    done: u64,
    /// Times in the queue, of the requests that were dispatched in this interval: sum and count.
    waited_ns: u64,
    went: u64,
    /// The part of time in which its last request arrived.
    came_at: u64,
}

/// The controller.
pub(crate) struct Feedback {
    /// The largest depth.
    most: u64,
    /// The depth now, in thousandths.
    milli: u64,
    classes: Vec<Class>,
    interval_ends: u64,
    /// The part of time up to which arrivals are counted.
    part: u64,
    /// The most batches that ran at once in this interval.
    calls_max: u64,
    done: u64,
    /// By request: when it arrived or, once it runs, when it was dispatched; and its class.
    requests: Vec<(u64, u32)>,
}

/// One class in one interval, as the rules see it.
struct Seen {
    /// The smallest depth that serves what is due, and the largest that the class can use.
    low: u64,
    high: u64,
    /// Requests of all classes that finished. Then, of this class and of classes with shorter
    /// targets: the requests that are due soon, and all.
    done: u64,
    due: u64,
    all: u64,
    /// (D - MT) / T, in thousandths; 0 if requests wait longer than their target.
    factor: u64,
}

impl Feedback {
    /// Each latency target in `shares` makes a class. `default` is the target of all other
    /// applications, and `most` the largest depth.
    pub(crate) fn new(shares: &Shares, default: Latency, most: u32) -> Feedback {
        let mut feedback = Feedback {
            most: most.into(),
            milli: FIRST.min(most.into()) * ONE,
            classes: Vec::new(),
            interval_ends: 0,
            part: 0,
            calls_max: 0,
            done: 0,
            requests: Vec::new(),
        };
        feedback.class_for(default);
        for target in shares.all().filter_map(|share| share.latency) {
            feedback.class_for(target);
        }
        feedback
    }

    /// The class of a target, which is added if it is new.
    fn class_for(&mut self, target: Latency) -> u32 {
        if let Some(known) = self.classes.iter().position(|class| class.target == target) {
            return known as u32;
        }
        // Targets come and go with the rules, so idle classes are reused; but not the first one,
        // which is the default's.
        let part = self.part;
        let mut others = self.classes.iter().skip(1);
        let number = match others.position(|class| class.is_idle(part)) {
            Some(idle) => idle + 1,
            None => self.classes.len(),
        };
        let class = Class::new(target, part);
        match self.classes.get_mut(number) {
            Some(idle) => *idle = class,
            None => self.classes.push(class),
        }
        number as u32
    }

    /// The most batches that may run at once now.
    pub(crate) fn depth(&self) -> u32 {
        (self.milli / ONE) as u32
    }

    /// Whether one more batch may run beside `calls` that run.
    pub(crate) fn has_room(&mut self, now: Time, calls: u32) -> bool {
        self.advance(now);
        let has_room = calls < self.depth();
        self.calls_max = self.calls_max.max(u64::from(calls) + u64::from(has_room));
        has_room
    }

    /// Counts a request with that target that arrived.
    pub(crate) fn arrived(&mut self, index: u32, target: Latency, now: Time) {
        // Before the class is looked up: a class that was idle for long may be removed.
        self.advance(now);
        let class = self.class_for(target);
        if index as usize >= self.requests.len() {
            self.requests.resize(index as usize + 1, (0, NONE));
        }
        self.requests[index as usize] = (now.0, class);
        let class = &mut self.classes[class as usize];
        class.queued += 1;
        class.came_at = self.part;
        class.arrivals[self.part as usize % HISTORY] += 1;
    }

    /// Removes a request that was cancelled.
    pub(crate) fn cancelled(&mut self, index: u32) {
        let class = core::mem::replace(&mut self.requests[index as usize].1, NONE);
        self.classes[class as usize].queued -= 1;
    }

    /// Counts a request as dispatched.
    pub(crate) fn dispatched(&mut self, index: u32, now: Time) {
        let (arrived, class) = self.requests[index as usize];
        self.requests[index as usize].0 = now.0;
        let class = &mut self.classes[class as usize];
        class.queued -= 1;
        class.went += 1;
        class.waited_ns = class
            .waited_ns
            .saturating_add(now.0.saturating_sub(arrived));
        class.running += 1;
    }

    /// Counts a request as finished, unless it was dispatched before this controller existed.
    pub(crate) fn finished(&mut self, index: u32, now: Time) {
        self.advance(now);
        let known = self.requests.get_mut(index as usize);
        let Some((dispatched, class)) = known.filter(|(_, class)| *class != NONE) else {
            return;
        };
        let (dispatched, class) = (*dispatched, core::mem::replace(class, NONE));
        let class = &mut self.classes[class as usize];
        class.times[step_of(now.0.saturating_sub(dispatched))] += 1;
        class.done += 1;
        class.running -= 1;
        self.done += 1;
    }

    /// Moves on to the present part of time, and ends the interval if it is over.
    fn advance(&mut self, now: Time) {
        let part = now.0 / PART_NS;
        if part > self.part {
            let passed = (part - self.part).min(HISTORY as u64);
            for class in &mut self.classes {
                for old in (0..passed).map(|back| part - back) {
                    class.arrivals[old as usize % HISTORY] = 0;
                }
            }
            self.part = part;
        }
        if now.0 >= self.interval_ends {
            if self.interval_ends > 0 {
                self.review(now);
            }
            self.interval_ends = (now.0 / INTERVAL_NS + 1) * INTERVAL_NS;
        }
    }

    /// Computes the depth of the next interval. It stays the same if nothing finished.
    fn review(&mut self, now: Time) {
        if self.done > 0 {
            let mut depth = self.most * ONE;
            for number in 0..self.classes.len() {
                if self.classes[number].done > 0 {
                    depth = depth.min(self.depth_of(number, now));
                }
            }
            self.milli = depth.clamp(ONE, self.most * ONE);
        }
        for class in &mut self.classes {
            class.times.fill(0);
            (class.done, class.waited_ns, class.went) = (0, 0, 0);
        }
        (self.done, self.calls_max) = (0, 0);
        // Only from the end, so that the other classes keep their numbers.
        while self.classes.len() > 1
            && self
                .classes
                .last()
                .is_some_and(|last| last.is_idle(self.part))
        {
            self.classes.pop();
        }
    }

    /// The depth that one class asks for.
    fn depth_of(&mut self, number: usize, now: Time) -> u64 {
        let seen = self.seen(number, now);
        let most = self.most * ONE;
        let class = &mut self.classes[number];
        if class.overloaded {
            let wanted = seen.factor.saturating_mul(self.calls_max);
            class.overloaded = 10 * seen.due > 9 * seen.done && 10 * seen.all > 9 * seen.done;
            return if class.overloaded {
                most
            } else {
                wanted.max(seen.low)
            };
        }
        let wanted = seen.factor.saturating_mul(self.milli) / ONE;
        class.overloaded = wanted < seen.low;
        if class.overloaded {
            most
        } else if wanted > seen.high {
            seen.high
        } else if wanted < self.milli || self.calls_max * ONE >= self.milli {
            wanted
        } else {
            self.milli
        }
    }

    fn seen(&self, number: usize, now: Time) -> Seen {
        let (mut due, mut all) = (0, 0);
        let target_ns = self.classes[number].target.ns;
        let urgent = |class: &&Class| class.target.ns <= target_ns;
        for class in self.classes.iter().filter(urgent) {
            due += class.running;
            all += class.running;
            let part = now.0 / PART_NS;
            // Queues keep their order, so of the waiting requests the last ones are due later.
            let later_parts = (class.target.ns / PART_NS).saturating_sub(PARTS);
            let later = class.came(part, later_parts);
            due += class.queued.saturating_sub(later);
            all += class.queued;
            let interval = class.came(part, PARTS);
            let not_yet = class.came(part, (class.target.ns / PART_NS).min(PARTS));
            due += interval - not_yet;
            all += interval;
        }
        let class = &self.classes[number];
        let waited_ns = class.waited_ns.checked_div(class.went).unwrap_or(0);
        let left_ns = class.target.ns.saturating_sub(waited_ns);
        let took_ns = class.took_ns().max(1);
        Seen {
            low: self.milli * due / self.done,
            high: self.milli * all / self.done,
            done: self.done,
            due,
            all,
            factor: (u128::from(left_ns) * u128::from(ONE) / u128::from(took_ns)) as u64,
        }
    }
}

impl Class {
    fn new(target: Latency, part: u64) -> Class {
        Class {
            target,
            overloaded: false,
            queued: 0,
            running: 0,
            arrivals: alloc::vec![0; HISTORY],
            times: alloc::vec![0; TIMES],
            done: 0,
            waited_ns: 0,
            went: 0,
            came_at: part,
        }
    }

    /// Whether it has no requests, and had none for as long as arrivals are kept.
    fn is_idle(&self, part: u64) -> bool {
        let parts = part.saturating_sub(self.came_at);
        self.queued == 0 && self.running == 0 && parts >= HISTORY as u64
    }

    /// Arrivals in the last `parts` of time, the present one included.
    fn came(&self, part: u64, parts: u64) -> u64 {
        let parts = parts.min(HISTORY as u64).min(part + 1);
        let counts = (0..parts).map(|back| self.arrivals[(part - back) as usize % HISTORY]);
        counts.map(u64::from).sum()
    }

    /// The target's percentile of the times in the device, to within an eighth.
    fn took_ns(&self) -> u64 {
        let wanted = (self.done * u64::from(self.target.percentile)).div_ceil(100);
        let mut count = 0;
        for (step, times) in self.times.iter().enumerate() {
            count += u64::from(*times);
            if count >= wanted {
                return time_of(step);
            }
        }
        u64::MAX
    }
}

/// The step of a time in the histogram: eight for each power of two.
fn step_of(ns: u64) -> usize {
    let octave = ns.max(8).ilog2() as usize;
    (octave * STEPS) + ((ns.max(8) >> (octave - 3)) & 7) as usize
}

/// The time in the middle of a step.
fn time_of(step: usize) -> u64 {
    let (octave, eighth) = ((step / STEPS).max(3), (step % STEPS) as u64);
    ((8 + eighth) << (octave - 3)) + (1 << (octave - 3)) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;

    const MS: u64 = 1_000_000;

    fn target(ms: u64) -> Latency {
        Latency {
            ns: ms * MS,
            percentile: 95,
        }
    }

    /// A device that serves one request each `service_ms` in order of arrival, and so many clients
    /// that each have one on its way all the time. Returns the depth after `seconds`.
    fn settles(target_ms: u64, service_ms: u64, clients: u32, seconds: u64) -> u32 {
        let mut feedback = Feedback::new(&Shares::default(), target(target_ms), 100);
        let mut now = Time(0);
        let mut device = VecDeque::new();
        let mut queue: VecDeque<u32> = (0..clients).collect();
        queue
            .iter()
            .for_each(|index| feedback.arrived(*index, target(target_ms), now));
        while now.0 < seconds * 1000 * MS {
            while !queue.is_empty() && feedback.has_room(now, device.len() as u32) {
                let index = queue.pop_front().expect("just seen");
                feedback.dispatched(index, now);
                device.push_back(index);
            }
            now = now + service_ms * MS;
            let index = device.pop_front().expect("depth is at least 1");
            feedback.finished(index, now);
            feedback.arrived(index, target(target_ms), now);
            queue.push_back(index);
        }
        feedback.depth()
    }

    #[test]
    fn depth_follows_target_and_service_time() {
        // Little's law: within 300 ms at 20 ms each 15 can be on their way.
        let depth = settles(300, 20, 12, 60);
        assert!((6..=15).contains(&depth), "{depth}");
        let depth = settles(100, 20, 4, 60);
        assert!((3..=5).contains(&depth), "{depth}");
    }

    #[test]
    fn a_backlog_that_the_target_cannot_cover_opens_the_depth() {
        assert_eq!(settles(100, 20, 60, 20), 100);
    }

    #[test]
    fn of_the_rules_for_overload_leaving_it_is_asked_first() {
        let mut feedback = Feedback::new(&Shares::default(), target(10_000), 100);
        feedback.classes[0].overloaded = true;
        // Ten were done, nothing is due soon, but far more waits: both rules hold.
        for index in 0..40 {
            feedback.arrived(index, target(10_000), Time(1));
        }
        for index in 0..10 {
            feedback.dispatched(index, Time(1));
        }
        for index in 0..10 {
            feedback.finished(index, Time(20 * MS));
        }
        feedback.has_room(Time(INTERVAL_NS), 0);
        assert!(!feedback.classes[0].overloaded);
        // Nothing done: nothing changes.
        let depth = feedback.depth();
        feedback.has_room(Time(3 * INTERVAL_NS), 0);
        assert_eq!(feedback.depth(), depth);
    }

    #[test]
    fn targets_that_nobody_has_any_more_are_forgotten() {
        let mut feedback = Feedback::new(&Shares::default(), target(1000), 100);
        let second = |second: u64| Time(second * 1000 * MS);
        feedback.arrived(0, target(7), second(1));
        let first = feedback.class_for(target(7));
        // One that waits all the time stays what it is; the others pass.
        for n in 0..1000 {
            feedback.arrived(1, target(100 + n), second(1 + n));
            feedback.dispatched(1, second(1 + n));
            feedback.finished(1, second(1 + n));
        }
        assert!(feedback.classes.len() <= 40, "{}", feedback.classes.len());
        assert_eq!(feedback.class_for(target(7)), first);
        feedback.cancelled(0);
        feedback.has_room(second(2000), 0);
        assert_eq!(feedback.classes.len(), 1);
        // Somebody who comes again when it is time to forget it.
        for again in [3000, 3100, 3200] {
            feedback.arrived(0, target(7), second(again));
            feedback.dispatched(0, second(again));
            feedback.finished(0, second(again));
        }
    }

    #[test]
    fn times_keep_three_bits() {
        for ns in [8, 9, 1000, 123_456_789, u64::MAX >> 1] {
            let again = time_of(step_of(ns));
            assert!(again.abs_diff(ns) <= ns / 8 + 1, "{ns} became {again}");
        }
        assert!(step_of(u64::MAX) < TIMES && step_of(0) < TIMES);
    }
}
