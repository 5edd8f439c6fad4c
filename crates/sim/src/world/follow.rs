//! What the simulator follows during a run, in windows and slices of time: promises, the effective
//! depth, and what was served when.

use super::process::App;
use crate::metrics::{Promised, Promises, Quantiles};
use tidegate_sched::{AppId, Shares};

/// Largest number of slices of a timeline; it leaves out what comes later.
const SLICES_MAX: usize = 10_000;

/// What happened when, in slices of equal length from the start of the programs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Length of a slice, ns.
    pub slice_ns: u64,
    /// By application, in the run's order.
    pub applications: Vec<Slices>,
    /// By slice: how many calls forwarders let run at once, mean over all forwarders and the
    /// slice's time.
    pub depth: Vec<f64>,
}

/// An application's accesses, by slice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slices {
    /// Bytes of the accesses that ended.
    pub bytes: Vec<u64>,
    /// 95th percentile of their times, ns; None: none ended.
    pub p95_ns: Vec<Option<u64>>,
}

/// How many calls forwarders let run at once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Depth {
    /// Mean over time and forwarders.
    pub mean: f64,
    /// The smallest and the largest of any forwarder at any time.
    pub min: u32,
    /// See `min`.
    pub max: u32,
}

/// What is followed of each load.
pub(super) struct Follows {
    pub(super) promises: bool,
    pub(super) slice_ns: Option<u64>,
    pub(super) shares: Shares,
    pub(super) forwarders: usize,
}

impl Follows {
    pub(super) fn begin(&self, apps: &[App]) -> Option<Follow> {
        let promised = apps.iter().map(|app| self.promised(app));
        let wanted = self.promises || self.slice_ns.is_some();
        wanted.then(|| Follow::new(promised, self.forwarders, self.slice_ns))
    }

    fn promised(&self, app: &App) -> Promised {
        let share = self.shares.of(AppId(app.id));
        let group = share
            .group
            .map(|number| (number, self.shares.groups[number as usize]));
        let target = share
            .share
            .latency
            .or(group.and_then(|(_, group)| group.latency));
        let within = app.within.or(target);
        Promised {
            measured: !app.background,
            weight: share.share.weight,
            group: group.map(|(number, group)| (number, group.weight)),
            within: within.map(|it| (it.ns, 10 * u32::from(it.percentile))),
        }
    }
}

/// Times are ns since the start of the programs.
pub(super) struct Follow {
    pub(super) promises: Promises,
    depth: Meter,
    timeline: Option<Recording>,
}

/// A timeline that goes on.
struct Recording {
    done: Timeline,
    /// By application: what ended in the present slice.
    present: Vec<(u64, Quantiles)>,
    /// The meter's sum when the slice began.
    sum: u128,
}

/// Adds up depth times time.
#[derive(Clone, Debug, Default)]
struct Meter {
    /// By forwarder: its depth, and since when.
    now: Vec<(u32, u64)>,
    sum: u128,
    min: u32,
    max: u32,
}

impl Follow {
    pub(super) fn new(
        promised: impl IntoIterator<Item = Promised>,
        forwarders: usize,
        slice_ns: Option<u64>,
    ) -> Follow {
        let promised: Vec<Promised> = promised.into_iter().collect();
        let recording = |slice_ns: u64| Recording {
            done: Timeline {
                slice_ns: slice_ns.max(1),
                applications: vec![Slices::default(); promised.len()],
                depth: Vec::new(),
            },
            present: vec![(0, Quantiles::new()); promised.len()],
            sum: 0,
        };
        Follow {
            timeline: slice_ns.map(recording),
            promises: Promises::new(promised),
            depth: Meter {
                now: vec![(0, 0); forwarders],
                sum: 0,
                min: u32::MAX,
                max: 0,
            },
        }
    }

    pub(super) fn begins(&mut self, app: u32, now: u64) {
        self.promises.begins(app as usize, now);
    }

    pub(super) fn ends(&mut self, app: u32, now: u64, took_ns: u64, bytes: u64) {
        self.advance(now);
        self.promises.ends(app as usize, now, took_ns, bytes);
        if let Some(timeline) = &mut self.timeline {
            let (served, times) = &mut timeline.present[app as usize];
            *served += bytes;
            times.add(took_ns);
        }
    }

    /// Records that a forwarder lets `depth` calls run at once from now on.
    pub(super) fn depth_is(&mut self, forwarder: usize, depth: u32, now: u64) {
        if self.depth.now[forwarder].0 != depth {
            self.advance(now);
            self.depth.set(forwarder, depth, now);
        }
    }

    /// Ends slices that are over.
    fn advance(&mut self, now: u64) {
        let Some(timeline) = &mut self.timeline else {
            return;
        };
        loop {
            let number = timeline.done.depth.len();
            let ends_ns = (number as u64 + 1).saturating_mul(timeline.done.slice_ns);
            if now < ends_ns || number == SLICES_MAX {
                return;
            }
            timeline.end_slice(&self.depth, ends_ns);
        }
    }

    /// The results at `now`.
    pub(super) fn finish(mut self, now: u64) -> (Promises, Depth, Option<Timeline>) {
        self.advance(now);
        let depth = Depth {
            mean: self.depth.mean(self.depth.sum_at(now), now),
            min: self.depth.min.min(self.depth.max),
            max: self.depth.max,
        };
        (self.promises, depth, self.timeline.map(|it| it.done))
    }
}

impl Recording {
    fn end_slice(&mut self, depth: &Meter, now: u64) {
        let sum = depth.sum_at(now);
        let mean = depth.mean(sum - self.sum, self.done.slice_ns);
        self.done.depth.push(mean);
        self.sum = sum;
        for (slices, (bytes, times)) in self.done.applications.iter_mut().zip(&mut self.present) {
            slices.bytes.push(std::mem::take(bytes));
            let p95_ns = (times.count() > 0).then(|| times.quantile(950));
            slices.p95_ns.push(p95_ns);
            *times = Quantiles::new();
        }
    }
}

impl Meter {
    fn set(&mut self, forwarder: usize, depth: u32, now: u64) {
        let (was, since) = std::mem::replace(&mut self.now[forwarder], (depth, now));
        self.sum += u128::from(was) * u128::from(now - since);
        self.min = self.min.min(depth);
        self.max = self.max.max(depth);
    }

    /// The sum up to `now`; nothing has changed since the last call.
    fn sum_at(&self, now: u64) -> u128 {
        let running = self.now.iter();
        let running = running
            .map(|(depth, since)| u128::from(*depth) * u128::from(now.saturating_sub(*since)));
        self.sum + running.sum::<u128>()
    }

    /// A sum as a mean over a time and all forwarders.
    fn mean(&self, sum: u128, ns: u64) -> f64 {
        let whole = ns as f64 * self.now.len() as f64;
        if whole > 0.0 { sum as f64 / whole } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_and_depths_by_hand() {
        let promised = Promised {
            measured: true,
            weight: 1,
            group: None,
            within: None,
        };
        let mut follow = Follow::new([promised, promised], 2, Some(100));
        follow.depth_is(0, 4, 0);
        follow.depth_is(1, 4, 0);
        follow.begins(0, 0);
        follow.begins(1, 10);
        follow.ends(0, 50, 50, 7);
        follow.depth_is(0, 8, 150);
        follow.ends(1, 230, 220, 9);
        follow.depth_is(1, 8, 250);
        let (_, depth, timeline) = follow.finish(400);
        let timeline = timeline.expect("it was asked for");
        assert_eq!(timeline.depth, [4.0, 5.0, 7.0, 8.0]);
        assert_eq!(timeline.applications[0].bytes, [7, 0, 0, 0]);
        assert_eq!(
            timeline.applications[1].p95_ns,
            [None, None, Some(220), None]
        );
        assert_eq!((depth.min, depth.max, depth.mean), (4, 8, 6.0));
    }

    #[test]
    fn a_timeline_has_an_end() {
        let mut follow = Follow::new([], 1, Some(1));
        follow.depth_is(0, 1, 0);
        let (_, depth, timeline) = follow.finish(1 << 40);
        assert_eq!(timeline.map(|it| it.depth.len()), Some(SLICES_MAX));
        assert_eq!(depth.mean, 1.0);
        follow = Follow::new([], 0, None);
        assert_eq!(follow.finish(9).1, Depth::default());
    }
}
