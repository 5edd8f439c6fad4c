//! What a device does at each depth, and whether that is enough for what is asked for within a
//! latency target.
//!
//! A target bounds the depth, see `depth`. But where the device gains by depth, it may do less at
//! that bound than those with targets ask for. Then their requests wait, whatever their order, and
//! the longer the more of them come: no target is kept. With a few calls more there is no backlog,
//! and calls are soon done although many may run. So what was done in intervals in which requests
//! waited all the time is kept in mind by depth, and what those with targets ask for is compared
//! with it.

/// So many depths are known at once, those that were used last.
const DEPTHS: usize = 32;

/// What was seen so many intervals ago may have changed.
const FORGOTTEN: u64 = 512;

/// A depth is not enough if requests with a target still wait after so many intervals at it.
const PATIENCE: u64 = 32;

/// What was done in an interval at one depth.
#[derive(Clone, Copy, Default)]
struct Seen {
    depth: u64,
    work_ns: u64,
    /// The number of the last interval; 0: of none.
    at: u64,
}

/// What is known of the device, and of what is asked of it.
pub(crate) struct Capacity {
    seen: [Seen; DEPTHS],
    /// Work that those with targets ask for in an interval. While their requests are late it does
    /// not fall: who waits for answers asks for no more than what is done.
    asked_ns: u64,
    interval: u64,
    is_late: bool,
    /// The depth now, and intervals in a row at it in which requests were late.
    depth: u64,
    late: u64,
}

impl Capacity {
    pub(crate) fn new() -> Capacity {
        Capacity {
            seen: [Seen::default(); DEPTHS],
            asked_ns: 0,
            interval: 0,
            is_late: false,
            depth: 0,
            late: 0,
        }
    }

    /// Takes in an interval that ran at `depth`: the work done if requests waited all the time, the
    /// work that those with targets asked for, and whether their requests waited for too long.
    pub(crate) fn ended(&mut self, depth: u64, done_ns: Option<u64>, asked_ns: u64, is_late: bool) {
        self.interval += 1;
        let mean_ns = self.asked_ns / 4 + asked_ns / 4 * 3;
        self.asked_ns = match is_late {
            true => self.asked_ns.max(mean_ns),
            false => mean_ns,
        };
        self.late = match is_late && self.depth == depth {
            true => self.late + 1,
            false => 0,
        };
        (self.is_late, self.depth) = (is_late, depth);
        let Some(done_ns) = done_ns else { return };
        let mean_ns = self.saw(depth, done_ns);
        if self.late > PATIENCE {
            self.asked_ns = self.asked_ns.max(mean_ns.saturating_add(mean_ns / 16));
        }
    }

    /// Whether the device does less at this depth than those with targets ask for, as far as is
    /// known. Where they are not late, it does no less than most of that.
    pub(crate) fn lacks(&self, depth: u64) -> bool {
        let spare_ns = match self.is_late {
            true => 0,
            false => self.asked_ns / 16,
        };
        let wanted_ns = self.asked_ns - spare_ns;
        let lacks = |seen: &Seen| seen.depth >= depth && seen.work_ns < wanted_ns;
        self.seen.iter().any(|seen| self.knows(seen) && lacks(seen))
    }

    /// Of `most`, half of it, and so on, as long as more than `bound`: the smallest one before the
    /// first that is known to lack.
    pub(crate) fn least(&self, bound: u64, most: u64) -> u64 {
        let mut depth = most;
        while depth / 2 > bound && !self.lacks(depth / 2) {
            depth /= 2;
        }
        depth
    }

    fn knows(&self, seen: &Seen) -> bool {
        seen.at > 0 && self.interval - seen.at < FORGOTTEN
    }

    /// Keeps in mind what was done at a depth. Returns its mean.
    fn saw(&mut self, depth: u64, work_ns: u64) -> u64 {
        let known = self.seen.iter().position(|seen| seen.depth == depth);
        let oldest = (0..DEPTHS).min_by_key(|at| self.seen[*at].at);
        let number = known.or(oldest).expect("there are some");
        let before = self.seen[number];
        let work_ns = match known.is_some() && self.knows(&before) {
            true => before.work_ns / 4 * 3 + work_ns / 4,
            false => work_ns,
        };
        let at = self.interval;
        self.seen[number] = Seen { depth, work_ns, at };
        work_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_depth_lacks_if_more_is_asked_for_than_was_done_there_or_deeper() {
        let mut capacity = Capacity::new();
        capacity.ended(4, Some(1000), 4000, false);
        assert!(capacity.lacks(4) && capacity.lacks(3) && !capacity.lacks(5));
        // Somebody who waits for answers asks for what is done.
        for _ in 0..9 {
            capacity.ended(4, Some(1000), 1000, true);
        }
        assert!(capacity.lacks(4));
        (0..3).for_each(|_| capacity.ended(16, None, 1010, false));
        // Without a backlog what was done is what was asked for.
        assert!(!capacity.lacks(4));
        capacity.ended(16, None, 1500, false);
        assert!(capacity.lacks(4) && !capacity.lacks(16));
        assert_eq!(capacity.least(3, 16), 8);
        assert_eq!(capacity.least(9, 16), 16);
        (0..FORGOTTEN).for_each(|_| capacity.ended(16, None, 1500, false));
        assert!(!capacity.lacks(4));
    }

    #[test]
    fn a_depth_at_which_requests_stay_late_is_not_enough() {
        let mut capacity = Capacity::new();
        for _ in 0..PATIENCE {
            capacity.ended(16, Some(1000), 1000, true);
            assert!(!capacity.lacks(16));
        }
        capacity.ended(16, Some(1000), 1000, true);
        capacity.ended(16, Some(1000), 1000, true);
        assert!(capacity.lacks(16));
    }

    #[test]
    fn depths_that_were_not_used_for_long_make_room() {
        let mut capacity = Capacity::new();
        for depth in 1..=2 * DEPTHS as u64 {
            capacity.ended(depth, Some(10), 1000, false);
        }
        let last = 2 * DEPTHS as u64;
        assert!(capacity.lacks(last) && !capacity.lacks(last + 1));
        let known = capacity.seen.iter().map(|seen| seen.depth);
        assert_eq!(known.min(), Some(last - DEPTHS as u64 + 1));
    }
}
