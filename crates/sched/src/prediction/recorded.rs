//! Links requests to the requests of a [`Prediction`], which was made from traces.
//!
//! A request is linked to the predicted request of the same file, direction, offset and length
//! whose relative time is nearest. A run is compared with the predicted run of its first request.
//! If the predicted run is longer, the run waits, once, for
//! `(AT_last - AT_first) - (now - arrival of its first)`, where AT are predicted times of arrival.

use super::expected::Expected;
use crate::hash_table::NONE;
use crate::predicted_runs::{Observed, Prediction};
use crate::requests::{Entry, Index, Requests};
use crate::runs::Runs;
use crate::types::Time;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

/// A request is not linked if it is further from the predicted time than this, and than a quarter
/// of that time. The paper mentions such bounds without their values.
const TOLERANCE_NS: u64 = 1_000_000_000;

/// Longer times, from a broken trace or clock, are cut to this (73 years), so that differences do
/// not overflow.
const NS_MAX: i64 = i64::MAX / 4;

/// A span of time that can be subtracted from others.
fn signed(ns: u64) -> i64 {
    ns.min(NS_MAX as u64) as i64
}

/// The predictor that follows traces.
pub(super) struct Recorded {
    prediction: Arc<Prediction>,
    /// By predicted request: whether it has been linked in this repetition.
    came: Vec<bool>,
    /// By request: the predicted request it was linked to.
    links: Vec<u32>,
    /// By queue.
    paces: Vec<Pace>,
}

/// How far the program is from the times of the traces. Each queue has its own, because programs do
/// not slow down together.
#[derive(Clone, Copy, Default)]
struct Pace {
    /// When this repetition of the traced load began.
    began: Option<Time>,
    /// The mean lateness of requests against the prediction, as a moving mean.
    late_ns: i64,
}

impl Recorded {
    pub(super) fn new(prediction: Arc<Prediction>) -> Recorded {
        Recorded {
            came: vec![false; prediction.requests.len()],
            paces: vec![Pace::default(); prediction.queues.len()],
            prediction,
            links: Vec::new(),
        }
    }

    pub(super) fn arrived(&mut self, entry: &Entry, index: Index) {
        if self.links.len() <= index as usize {
            self.links.resize(index as usize + 1, NONE);
        }
        self.links[index as usize] = self.link(entry).unwrap_or(NONE);
    }

    /// The predicted request that a request corresponds to, if there is one.
    fn link(&mut self, entry: &Entry) -> Option<u32> {
        let request = &entry.request;
        let place = |observed: &Observed| {
            (
                observed.file,
                observed.direction,
                observed.offset,
                observed.len,
            )
        };
        let own = (request.file, request.direction, request.offset, request.len);
        let all = &self.prediction.requests;
        let first = all.partition_point(|other| place(other) < own);
        let count = all[first..]
            .iter()
            .take_while(|other| place(other) == own)
            .count();
        if count == 0 {
            return None;
        }
        let range = first..first + count;
        let queue = self.prediction.queue_of[first] as usize;
        let pace = &mut self.paces[queue];
        if self.came[range.clone()].iter().all(|came| *came) {
            // All of them have been linked: the program runs again.
            let (start, end) = self.prediction.queues[queue];
            self.came[start..end].fill(false);
            *pace = Pace::default();
        }
        let at_ns = |number: usize| all[number].at_ns;
        let earliest = Time(entry.ready.0.saturating_sub(at_ns(first)));
        let began = *pace.began.get_or_insert(earliest);
        let late_ns = pace.late_ns;
        let late =
            |number: usize| signed(entry.ready.since(began)) - late_ns - signed(at_ns(number));
        let free = range.filter(|&number| !self.came[number]);
        let number = free.min_by_key(|&number| late(number).unsigned_abs())?;
        let off = late(number);
        if off.unsigned_abs() > TOLERANCE_NS.max(at_ns(number) / 4) {
            // The program has become faster or slower, perhaps by this very prediction. The pace
            // follows, so that later requests are compared with this one.
            pace.late_ns = (late_ns + off / 2).clamp(-NS_MAX, NS_MAX);
            return None;
        }
        pace.late_ns = (late_ns + off / 8).clamp(-NS_MAX, NS_MAX);
        self.came[number] = true;
        Some(number as u32)
    }

    pub(super) fn expected(
        &self,
        requests: &Requests,
        runs: &Runs,
        number: u32,
        now: Time,
    ) -> Option<Expected> {
        let run = runs.run(number);
        let first = runs.first_of(requests, number)?;
        let link = *self.links.get(first as usize)?;
        let predicted = self.prediction.run_of.get(link as usize)?;
        let predicted = &self.prediction.runs[*predicted as usize];
        let (len, whole) = (run.end - run.start, predicted.end - predicted.start);
        let span = predicted.last_ns - predicted.first_ns;
        let wait_ns = span.saturating_sub(now.since(run.since));
        (whole > len && wait_ns > 0).then_some(Expected {
            len: whole,
            wait_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CostModel;
    use crate::types::{Direction, FileId};

    fn seen(file: u64, offset: u64, at_ns: u64) -> Observed {
        Observed {
            file: FileId(file),
            direction: Direction::Read,
            offset,
            len: 4096,
            at_ns,
        }
    }

    #[test]
    fn a_program_that_runs_faster_than_its_trace_is_found_again() {
        // Steps of four requests, 3 s apart in the trace and 0.5 s apart now.
        let step = |n: u64, apart_ns: u64| (0..4).map(move |i| (n, i, n * apart_ns + i * 1000));
        let trace = (0..20).flat_map(|n| step(n, 3_000_000_000));
        let trace = trace.map(|(n, i, at_ns)| seen(1, n * 65_536 + i * 4096, at_ns));
        let prediction = Prediction::new(&[trace.collect()], &CostModel::default());
        assert_eq!(prediction.len(), (80, 20));
        let mut recorded = Recorded::new(Arc::new(prediction));
        let mut requests = Requests::new();
        for repetition in 0..2 {
            let mut linked = 0;
            for (n, i, at_ns) in (0..20).flat_map(|n| step(n, 500_000_000)) {
                let request = crate::test::read(1, n * 65_536 + i * 4096, 4096);
                let now = Time(repetition * 60_000_000_000 + at_ns);
                let index = requests.insert(now, &request);
                linked += u32::from(recorded.link(&requests[index]).is_some());
            }
            assert!(linked > 50, "{linked} of 80");
        }
    }

    #[test]
    fn wild_times_link_nothing_and_break_nothing() {
        let wild = [0, 1 << 63, (1 << 63) - 1, u64::MAX];
        let trace = wild.map(|at_ns| seen(1, 0, at_ns)).to_vec();
        let prediction = Prediction::new(&[trace], &CostModel::default());
        let mut recorded = Recorded::new(Arc::new(prediction));
        let mut requests = Requests::new();
        for now in [wild, wild, wild].concat() {
            let index = requests.insert(Time(now), &crate::test::read(1, 0, 4096));
            recorded.link(&requests[index]);
        }
        assert!(
            recorded
                .paces
                .iter()
                .all(|pace| pace.late_ns.abs() <= NS_MAX)
        );
    }
}
