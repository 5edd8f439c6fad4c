//! Feedback control of the depth: how many batches run at once, so that latency targets hold.
//!
//! Two policies share this block. It is the lower level of the two-level scheduler (SARC/AVATAR,
//! Zhang et al., TOS'06), whose rule it keeps: with the target D, the mean time MT in the queue and
//! T, a percentile of the times in the device at depth L, the depth can be L * (D - MT) / T.
//! Requests with the same target are a *class*; the class that can bear least decides. No more is
//! asked of the device than that, so the rest of what it can do goes to throughput.
//!
//! What differs from the original, and why:
//! - Times in the device are divided by the batches that ran when the request was dispatched. What
//!   was measured at one depth then says something of another one, so times of the last seconds
//!   count and not those of one interval alone, in which a class has a handful of requests.
//! - A part of the target is kept free ([`USED_PERCENT`]): the depth that meets it on average
//!   misses it in every second interval.
//! - A class whose requests spend most of their target waiting is not helped by a smaller depth. It
//!   sets no bound; if its requests, and those of classes with shorter targets, are more than the
//!   device serves within the target, it is *overloaded* until they are not. The original compares
//!   the requests of all classes with those that finished; then one application without a target
//!   that always has requests waiting decides.
//! - A target sets no bound below what the device needs to do what those with targets ask for, see
//!   `capacity`. The original takes the wait from what a target leaves; then the depth falls the
//!   more the more requests wait, although a smaller one makes more of them wait.
//! - Where a class is overloaded, or none sets a bound, the smallest depth is looked for that gets
//!   out of the device what it can do, see `climb`: the fewer calls the device has, the more their
//!   order is the policy's. The original goes to its largest depth in overload.

use crate::capacity::Capacity;
use crate::climb::{Climb, Interval};
use crate::hash_table::NONE;
use crate::same_target::{COUNT, Class, KEPT};
use crate::share::{Latency, Shares};
use crate::types::Time;
use alloc::vec::Vec;

/// The controller's interval, in nanoseconds: that of the original's figures.
const INTERVAL_NS: u64 = 500_000_000;

/// So much of a target may be spent, by the percentile of the times in the device and the mean time
/// in the queue.
const USED_PERCENT: u64 = 60;

/// What the targets allow.
struct Bounds {
    /// The largest depth that all classes can bear, and the one if what their requests spend in the
    /// queue is taken from their targets.
    most: u64,
    less_waits: u64,
    /// No more is to be used of it than what the device has use for: a target cannot be kept
    /// anyway, or none sets a bound.
    opens: bool,
}

/// What is known of one request.
#[derive(Clone, Copy)]
struct Known {
    /// When it arrived or, once it runs, was dispatched.
    since: Time,
    class: u32,
    /// Batches that ran with it when it was dispatched.
    calls: u32,
    /// What it costs the device by the cost model of the start.
    cost_ns: u64,
}

const UNKNOWN: Known = Known {
    since: Time(0),
    class: NONE,
    calls: 1,
    cost_ns: 0,
};

/// The controller.
pub(crate) struct Feedback {
    /// The largest depth.
    most: u64,
    /// The depth now.
    depth: u64,
    climb: Climb,
    capacity: Capacity,
    classes: Vec<Class>,
    interval_ends: u64,
    /// Batches that run, the one that may be dispatched now included.
    calls: u32,
    /// Requests that wait.
    queued: u64,
    /// Requests that finished in this interval, those that did while others waited, and what they
    /// cost by the cost model of the start.
    done: u64,
    done_beside_queue: u64,
    work_ns: u64,
    /// What the requests with targets cost that arrived in this interval.
    asked_ns: u64,
    /// Requests that finished before, and how long that took.
    done_before: u64,
    busy_ns: u64,
    requests: Vec<Known>,
}

impl Feedback {
    /// Each latency target in `shares` makes a class. `default` is the target of all other
    /// applications, and `most` the largest depth.
    pub(crate) fn new(shares: &Shares, default: Latency, most: u32) -> Feedback {
        let mut feedback = Feedback {
            most: most.into(),
            depth: 1,
            climb: Climb::new(),
            capacity: Capacity::new(),
            classes: Vec::new(),
            interval_ends: 0,
            calls: 1,
            queued: 0,
            done: 0,
            done_beside_queue: 0,
            work_ns: 0,
            asked_ns: 0,
            done_before: 0,
            busy_ns: 0,
            requests: Vec::new(),
        };
        feedback.class_for(default, Time(0));
        for target in shares.all().filter_map(|share| share.latency) {
            feedback.class_for(target, Time(0));
        }
        feedback
    }

    /// The class of a target, which is added if it is new.
    fn class_for(&mut self, target: Latency, now: Time) -> u32 {
        if let Some(known) = self.classes.iter().position(|class| class.target == target) {
            return known as u32;
        }
        // Targets come and go with the rules, so idle classes are reused; but not the first one,
        // which is the default's.
        let mut others = self.classes.iter().skip(1);
        let number = match others.position(|class| class.is_idle(now)) {
            Some(idle) => idle + 1,
            None => self.classes.len(),
        };
        let class = Class::new(target, now);
        match self.classes.get_mut(number) {
            Some(idle) => *idle = class,
            None => self.classes.push(class),
        }
        number as u32
    }

    /// The most batches that may run at once now.
    pub(crate) fn depth(&self) -> u32 {
        self.depth as u32
    }

    /// Whether one more batch may run beside `calls` that run.
    pub(crate) fn has_room(&mut self, now: Time, calls: u32) -> bool {
        self.advance(now);
        let has_room = calls < self.depth();
        self.calls = calls + u32::from(has_room);
        has_room
    }

    /// Counts a request with that target that arrived, and what it costs by a cost model that stays
    /// the same.
    pub(crate) fn arrived(&mut self, index: u32, target: Latency, cost_ns: u64, now: Time) {
        // Before the class is looked up: a class that was idle for long may be removed.
        self.advance(now);
        let class = self.class_for(target, now);
        if index as usize >= self.requests.len() {
            self.requests.resize(index as usize + 1, UNKNOWN);
        }
        self.requests[index as usize] = Known {
            since: now,
            class,
            calls: 1,
            cost_ns,
        };
        self.queued += 1;
        if class > 0 {
            self.asked_ns = self.asked_ns.saturating_add(cost_ns);
        }
        let class = &mut self.classes[class as usize];
        class.queued += 1;
        class.came_at = now;
    }

    /// Removes a request that was cancelled.
    pub(crate) fn cancelled(&mut self, index: u32) {
        let known = core::mem::replace(&mut self.requests[index as usize], UNKNOWN);
        self.classes[known.class as usize].queued -= 1;
        self.queued -= 1;
    }

    /// Counts a request as dispatched.
    pub(crate) fn dispatched(&mut self, index: u32, now: Time) {
        let known = &mut self.requests[index as usize];
        let waited_ns = now.0.saturating_sub(known.since.0);
        known.since = now;
        known.calls = self.calls.max(1);
        let class = &mut self.classes[known.class as usize];
        self.queued -= 1;
        class.queued -= 1;
        class.running += 1;
        class.waited(waited_ns);
    }

    /// Counts a request as finished, unless it was dispatched before this controller existed.
    pub(crate) fn finished(&mut self, index: u32, now: Time) {
        self.advance(now);
        let known = self.requests.get_mut(index as usize);
        let Some(known) = known.filter(|known| known.class != NONE) else {
            return;
        };
        let known = core::mem::replace(known, UNKNOWN);
        let class = &mut self.classes[known.class as usize];
        let took_ns = now.0.saturating_sub(known.since.0);
        let slot_ns = took_ns / u64::from(known.calls);
        class.took(slot_ns);
        class.running -= 1;
        self.done += 1;
        self.done_beside_queue += u64::from(self.queued > 0);
        self.work_ns = self.work_ns.saturating_add(known.cost_ns);
    }

    /// Ends the interval if it is over.
    fn advance(&mut self, now: Time) {
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
            self.done_before = self.done_before * KEPT / 8 + self.done * u64::from(COUNT);
            self.busy_ns = self.busy_ns * KEPT / 8 + INTERVAL_NS * u64::from(COUNT);
            self.depth = self.next_depth();
            self.classes.iter_mut().for_each(Class::fade);
        }
        (self.done, self.done_beside_queue) = (0, 0);
        (self.work_ns, self.asked_ns) = (0, 0);
        // Only from the end, so that the other classes keep their numbers.
        while self.classes.len() > 1 && self.classes.last().is_some_and(|last| last.is_idle(now)) {
            self.classes.pop();
        }
    }

    fn next_depth(&mut self) -> u64 {
        // The first class is that of the applications without a target.
        let late = self.classes.iter().skip(1).any(Class::is_late);
        let is_backlogged = self.done_beside_queue * 10 >= self.done * 9;
        let done_ns = is_backlogged.then_some(self.work_ns);
        let capacity = &mut self.capacity;
        capacity.ended(self.depth, done_ns, self.asked_ns, late);
        let bounds = self.bounds();
        // Waiting is no reason for a depth at which there is more of it.
        let bound = match self.capacity.lacks(bounds.less_waits) {
            true => bounds.most,
            false => bounds.less_waits,
        };
        let lacks = self.capacity.lacks(bound);
        let interval = Interval {
            done: self.done,
            work_ns: self.work_ns,
            is_backlogged,
            is_late: late,
            bound: if lacks { self.most } else { bound },
        };
        self.climb.ended(self.depth, interval);
        if lacks {
            let most = self.climb.depth(self.most);
            let depth = match late {
                true => most,
                false => self.capacity.least(bound, most),
            };
            if depth > bound && !self.capacity.lacks(depth) {
                return depth;
            }
        }
        if bounds.opens {
            return self.climb.depth(bound);
        }
        self.climb.was_at(bound);
        bound
    }

    fn bounds(&mut self) -> Bounds {
        let (mut most, mut less_waits) = (self.most, self.most);
        let (mut any, mut waits) = (false, false);
        for number in 0..self.classes.len() {
            if self.classes[number].done == 0 {
                continue;
            }
            match self.bounds_of(number) {
                Some(its) => {
                    (most, less_waits, any) = (most.min(its.0), less_waits.min(its.1), true);
                }
                None => waits |= number > 0,
            }
        }
        Bounds {
            most: most.max(1),
            less_waits: less_waits.max(1),
            opens: waits || !any,
        }
    }

    /// The largest depths that one class can bear, the second one with the time that its requests
    /// spend in the queue; None: it sets no bound.
    fn bounds_of(&mut self, number: usize) -> Option<(u64, u64)> {
        let need_ns = self.need_ns(number);
        let class = &mut self.classes[number];
        let (target_ns, is_late) = (class.target.ns, class.is_late());
        class.overloaded = match class.overloaded {
            true => need_ns > target_ns / 2,
            false => is_late && need_ns > target_ns,
        };
        if class.overloaded || is_late {
            return None;
        }
        let used_ns = u128::from(target_ns) * u128::from(USED_PERCENT) / 100;
        let left_ns = used_ns.saturating_sub(class.mean_wait_ns().into());
        let most = self.depth_within(number, used_ns);
        Some((most, self.depth_within(number, left_ns)))
    }

    /// The largest depth at which a class's percentile of times in the device is within a time.
    fn depth_within(&self, number: usize, within_ns: u128) -> u64 {
        let class = &self.classes[number];
        let (mean_ns, slot_ns) = (class.mean_ns(), class.slot_ns());
        let above_ns = slot_ns.saturating_sub(mean_ns);
        // The mean grows with the depth, what a percentile lies above it with the depth's root.
        let took_ns = |depth: u64| {
            let root_milli = (depth * self.depth * 1_000_000).isqrt();
            let above_ns = u128::from(above_ns) * u128::from(root_milli) / 1000;
            u128::from(mean_ns) * u128::from(depth) + above_ns
        };
        let (mut fits, mut not) = (0, self.most + 1);
        while not - fits > 1 {
            let depth = fits.midpoint(not);
            match took_ns(depth) <= within_ns {
                true => fits = depth,
                false => not = depth,
            }
        }
        fits
    }

    /// How long the device takes for the requests that there are of a class and of those with
    /// shorter targets.
    fn need_ns(&self, number: usize) -> u64 {
        let target_ns = self.classes[number].target.ns;
        let urgent = self.classes.iter();
        let urgent = urgent.filter(|class| class.target.ns <= target_ns);
        let requests: u64 = urgent.map(|class| class.queued + class.running).sum();
        let ns = u128::from(requests) * u128::from(self.busy_ns);
        let ns = ns / u128::from(self.done_before.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
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

    /// The median depth in the second half of a minute, on a device that has a request done every
    /// `gap_ms` of the number that runs. `urgent` clients have this target and go first, 30 others
    /// have none; each has one request on its way all the time.
    fn settles(target_ms: u64, gap_ms: impl Fn(u64) -> u64, urgent: u32) -> u32 {
        let (mut now, mut depths) = (Time(0), Vec::new());
        let mut feedback = Feedback::new(&Shares::default(), target(60_000), 100);
        let mut device = VecDeque::new();
        let mut queue: VecDeque<u32> = (0..urgent + 30).collect();
        let of = |index: u32| target(if index < urgent { target_ms } else { 60_000 });
        for &index in &queue {
            feedback.arrived(index, of(index), MS, now);
        }
        while now.0 < 60_000 * MS {
            while !queue.is_empty() && feedback.has_room(now, device.len() as u32) {
                let index = queue.pop_front().expect("just seen");
                feedback.dispatched(index, now);
                device.push_back(index);
            }
            now = now + gap_ms(device.len() as u64) * MS;
            let index = device.pop_front().expect("depth is at least 1");
            feedback.finished(index, now);
            feedback.arrived(index, of(index), MS, now);
            let at = queue.iter().position(|it| *it >= urgent);
            let at = at.filter(|_| index < urgent).unwrap_or(queue.len());
            queue.insert(at, index);
            depths.push(feedback.depth());
        }
        let half = depths.len() / 2;
        depths[half..].sort_unstable();
        depths[half + half / 2]
    }

    /// The more run, the sooner the next one is done.
    fn gains(running: u64) -> u64 {
        50 - 3 * running.min(10)
    }

    #[test]
    fn the_nearest_target_bounds_the_depth() {
        // Three fifths of the target: one takes 47 ms, five take 35 ms each, 30 take 20 ms each.
        let depth = settles(100, gains, 1);
        assert_eq!(depth, 1);
        let depth = settles(300, gains, 1);
        assert!((3..=5).contains(&depth), "{depth}");
        let depth = settles(1000, gains, 1);
        assert!((20..=30).contains(&depth), "{depth}");
    }

    #[test]
    fn a_backlog_that_the_target_cannot_cover_opens_the_depth() {
        let depth = settles(100, gains, 60);
        assert!((10..=16).contains(&depth), "{depth}");
        // But not where that is of no use.
        assert_eq!(settles(100, |_| 20, 60), 1);
    }

    /// How many of the requests in the second half of a minute miss their target, in percent. Of
    /// thirty clients each wants one every 320 ms, and waits for its answer: all together one each
    /// 10.7 ms. Ten of them want it within 100 ms, and go first; the others within 300 ms. The
    /// device has one done every 14 ms if fewer than six run, and every 9 ms otherwise.
    fn late_percent() -> u64 {
        const EVERY_NS: u64 = 320 * MS;
        let of = |index: u32| target(if index < 10 { 100 } else { 300 });
        let mut feedback = Feedback::new(&Shares::default(), target(60_000), 100);
        let mut due: Vec<(u64, u32)> = (0..30).map(|it| (it * EVERY_NS / 30, it as u32)).collect();
        let (mut queue, mut device) = (Vec::new(), VecDeque::new());
        let (mut now, mut ends) = (0, u64::MAX);
        let (mut late, mut all) = (0, 0);
        while now < 60_000 * MS {
            due.sort_unstable();
            let comes = due.first().map_or(u64::MAX, |it| it.0.max(now));
            now = comes.min(ends);
            if now == ends {
                let (at, index): (u64, u32) = device.pop_front().expect("something ends");
                feedback.finished(index, Time(now));
                due.push((at + EVERY_NS, index));
                all += u64::from(now > 30_000 * MS);
                late += u64::from(now > 30_000 * MS && now - at > of(index).ns);
                ends = u64::MAX;
            } else {
                let (at, index) = due.remove(0);
                feedback.arrived(index, of(index), MS, Time(now));
                queue.push((index >= 10, at, index));
                queue.sort_unstable();
            }
            while !queue.is_empty() && feedback.has_room(Time(now), device.len() as u32) {
                let (_, at, index) = queue.remove(0);
                feedback.dispatched(index, Time(now));
                device.push_back((at, index));
            }
            if ends == u64::MAX && !device.is_empty() {
                ends = now + if device.len() < 6 { 14 } else { 9 } * MS;
            }
        }
        late * 100 / all
    }

    #[test]
    fn a_target_sets_no_bound_at_which_less_is_done_than_is_asked_for() {
        let late = late_percent();
        assert!(late <= 5, "{late} %");
    }

    #[test]
    fn targets_that_nobody_has_any_more_are_forgotten() {
        let mut feedback = Feedback::new(&Shares::default(), target(1000), 100);
        let second = |second: u64| Time(second * 1000 * MS);
        feedback.arrived(0, target(7), MS, second(1));
        let first = feedback.class_for(target(7), second(1));
        // One that waits all the time stays what it is; the others pass.
        for n in 0..1000 {
            feedback.arrived(1, target(100 + n), MS, second(1 + n));
            feedback.dispatched(1, second(1 + n));
            feedback.finished(1, second(1 + n));
        }
        assert!(feedback.classes.len() <= 40, "{}", feedback.classes.len());
        assert_eq!(feedback.class_for(target(7), second(1001)), first);
        feedback.cancelled(0);
        feedback.has_room(second(2000), 0);
        assert_eq!(feedback.classes.len(), 1);
        // Somebody who comes again when it is time to forget it.
        for again in [3000, 3100, 3200] {
            feedback.arrived(0, target(7), MS, second(again));
            feedback.dispatched(0, second(again));
            feedback.finished(0, second(again));
        }
    }
}
