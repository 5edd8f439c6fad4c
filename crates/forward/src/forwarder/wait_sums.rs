//! What the requests of one application waited for: sums by cause, the neighbours that had the
//! device or the turn meanwhile, and a histogram of times at the forwarder.

use tidegate_sched::Cause;

/// Neighbours that are kept of each application. What others caused is the rest of the sums.
pub(super) const NEIGHBOURS: usize = 4;

/// The causes that are a neighbour's.
pub(super) const OF_NEIGHBOURS: [Cause; 4] =
    [Cause::Overlap, Cause::Window, Cause::Share, Cause::Device];

/// The first bucket of the histogram has the times below this, ns. Each next one reaches twice as
/// far, and the last one has all others.
const FIRST_NS: u64 = 64_000;

/// The last but one reaches to 67 s.
const BUCKETS: usize = 22;

/// Times of requests, summed up.
#[derive(Clone, Default)]
pub(super) struct WaitSums {
    /// By cause, ns. What requests that are not answered yet waited for may be in it.
    pub(super) ns: [u64; Cause::COUNT],
    histogram: [u64; BUCKETS],
    neighbours: [Neighbour; NEIGHBOURS],
}

/// What one neighbour caused.
#[derive(Clone, Copy, Default)]
pub(super) struct Neighbour {
    pub(super) app: u64,
    /// By the causes of [`OF_NEIGHBOURS`], ns. All 0: nobody.
    pub(super) ns: [u64; OF_NEIGHBOURS.len()],
    /// What others must cause before one of them takes its place, ns (the frequent items of Misra
    /// and Gries, 1982).
    stays_ns: u64,
}

impl WaitSums {
    /// Adds time, ns.
    #[inline]
    pub(super) fn add(&mut self, cause: Cause, ns: u64) {
        // Where many wait all the time, it is full after days.
        let sum = &mut self.ns[cause as usize];
        *sum = sum.saturating_add(ns);
    }

    /// Notes whose requests caused time that is in the sums.
    pub(super) fn add_neighbour(&mut self, app: u64, cause: Cause, ns: u64) {
        let Some(at) = OF_NEIGHBOURS.iter().position(|one| *one == cause) else {
            return;
        };
        if ns > 0
            && let Some(neighbour) = self.neighbour(app, ns)
        {
            neighbour.ns[at] = neighbour.ns[at].saturating_add(ns);
        }
    }

    /// The entry of a neighbour, which may take that of another one who has caused less.
    fn neighbour(&mut self, app: u64, ns: u64) -> Option<&mut Neighbour> {
        let its = |one: &Neighbour| one.stays_ns > 0 && one.app == app;
        if let Some(at) = self.neighbours.iter().position(its) {
            let known = &mut self.neighbours[at];
            known.stays_ns = known.stays_ns.saturating_add(ns);
            return Some(known);
        }
        let least = self.neighbours.iter_mut().min_by_key(|one| one.stays_ns)?;
        if least.stays_ns > ns {
            least.stays_ns -= ns;
            return None;
        }
        *least = Neighbour {
            app,
            stays_ns: ns,
            ns: Default::default(),
        };
        Some(least)
    }

    /// Counts a request that was answered, after so long at the forwarder.
    #[inline]
    pub(super) fn answered(&mut self, ns: u64) {
        let bucket = match (ns / FIRST_NS).checked_ilog2() {
            None => 0,
            Some(log) => (log as usize + 1).min(BUCKETS - 1),
        };
        self.histogram[bucket] += 1;
    }

    /// Adds the sums of another application, or of more.
    pub(super) fn add_all(&mut self, other: &WaitSums) {
        let pairs = self.ns.iter_mut().zip(&other.ns);
        pairs.for_each(|(sum, ns)| *sum = sum.saturating_add(*ns));
        let pairs = self.histogram.iter_mut().zip(&other.histogram);
        pairs.for_each(|(sum, count)| *sum += count);
        for neighbour in other.neighbours() {
            for (cause, ns) in OF_NEIGHBOURS.into_iter().zip(neighbour.ns) {
                self.add_neighbour(neighbour.app, cause, ns);
            }
        }
    }

    /// Time that requests waited for something, and were not executed, ns.
    pub(super) fn lost_ns(&self) -> u64 {
        let waits = Cause::ALL.iter().zip(&self.ns);
        let waits = waits.filter(|(cause, _)| **cause != Cause::Service);
        waits.fold(0, |sum, (_, ns)| u64::saturating_add(sum, *ns))
    }

    /// The neighbours that are kept, in no order.
    pub(super) fn neighbours(&self) -> impl Iterator<Item = &Neighbour> {
        self.neighbours.iter().filter(|one| one.ns != [0; 4])
    }

    /// Requests that were answered.
    pub(super) fn requests(&self) -> u64 {
        self.histogram.iter().sum()
    }

    /// The buckets of the histogram that have requests: up to how many microseconds they took, None
    /// for the last, and how many there were.
    pub(super) fn histogram(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let counts = self.histogram.iter().enumerate();
        counts.filter(|(_, count)| **count > 0).map(|(at, count)| {
            let below_us = (at < BUCKETS - 1).then(|| (FIRST_NS / 1000) << at);
            (below_us, *count)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    #[test]
    fn buckets_double() {
        let mut sums = WaitSums::default();
        for us in [0, 63, 64, 127, 128, 67_000_000, 68_000_000] {
            sums.answered(us * 1000);
        }
        sums.answered(u64::MAX / 4);
        let buckets: Vec<_> = sums.histogram().collect();
        let wanted = vec![
            (Some(64), 2),
            (Some(128), 2),
            (Some(256), 1),
            (Some(64 << 20), 1),
            (None, 2),
        ];
        assert_eq!(buckets, wanted);
    }

    #[test]
    fn who_causes_most_stays_among_many() {
        let mut sums = WaitSums::default();
        for round in 0..1000 {
            sums.add_neighbour(7, Cause::Device, 100);
            // Each of them comes once.
            sums.add_neighbour(1000 + round, Cause::Share, 60);
        }
        let his: Vec<&Neighbour> = sums.neighbours().filter(|one| one.app == 7).collect();
        assert_eq!(his.len(), 1);
        assert_eq!(his[0].ns.iter().sum::<u64>(), 100_000);
        // One that comes later and causes much gets in.
        for _ in 0..1000 {
            sums.add_neighbour(8, Cause::Window, 50);
        }
        assert!(sums.neighbours().any(|one| one.app == 8));
        assert!(sums.neighbours().count() <= NEIGHBOURS);
        // No neighbour causes memory to be full, or a limit to be kept.
        sums.add_neighbour(9, Cause::Limit, 1 << 40);
        assert!(sums.neighbours().all(|one| one.app != 9));
    }
}
