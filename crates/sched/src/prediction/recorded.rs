//! Prediction from traces of earlier runs (Boito et al., ICPADS'13, section IV).
//!
//! Several traces are averaged. Their requests, in queues by file and direction and in order of
//! offset, are joined to predicted runs where that pays: v and the next r join if
//! `TTP(v) + TTP(r) > TTP(v + r) + |AT_r - AT_v| (1 - alpha)`, with TTP the cost of an access, AT
//! the time of arrival, and alpha the part of the wait that the work of other queues can hide:
//! here the cost of what other queues get in that time, divided by the time; yet nobody waits for
//! longer than twice the gain. A real request is
//! linked to the predicted one of the same file, direction, offset and length whose relative time
//! is near. If the predicted run of a chosen run is longer, it waits, once, for
//! `(AT_last - AT_first) - (now - arrival of its first)`.

use super::{Expected, HIDDEN_MOST};
use crate::cost::CostModel;
use crate::index::NONE;
use crate::requests::{Entry, Requests, Slot};
use crate::runs::Runs;
use crate::types::{Direction, FileId, Time};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

/// A request that is this far from its predicted time, or a quarter of that time, is another one.
/// The paper has bounds and does not tell them.
const TOLERANCE_NS: u64 = 1_000_000_000;

/// Times beyond this, of a broken trace or a strange clock, count as it, so that differences of
/// them are numbers: 73 years.
const NS_MAX: i64 = i64::MAX / 4;

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Observed {
    /// The file; the same in the traces and when they are used.
    pub file: FileId,
    /// Read or write.
    pub direction: Direction,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Nanoseconds since the first request of the trace.
    pub at_ns: u64,
}

/// What a queue will get as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PredictedRun {
    start: u64,
    end: u64,
    first_ns: u64,
    last_ns: u64,
}

/// What traces of earlier runs foretell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// In order; the time is the mean over the traces.
    requests: Vec<Observed>,
    /// By request: its run.
    run_of: Vec<u32>,
    runs: Vec<PredictedRun>,
    /// By request: its queue, of a file and direction; by queue: where its requests begin and end.
    queue_of: Vec<u32>,
    queues: Vec<(usize, usize)>,
}

impl Prediction {
    /// Averages traces, and joins what will be worth waiting for under these costs. A request that
    /// is in fewer than half of the traces is left out.
    pub fn new(traces: &[Vec<Observed>], cost: &CostModel) -> Prediction {
        let requests = average(traces);
        let work = Work::new(&requests, cost);
        let (queue_of, queues) = queues(&requests);
        let mut run_of = vec![0; requests.len()];
        let mut runs: Vec<PredictedRun> = Vec::new();
        for (number, request) in requests.iter().enumerate() {
            let end = request.offset.saturating_add(request.len);
            let access = cost.access(request.direction, false);
            let same = number > 0 && queue_of[number] == queue_of[number - 1];
            let joined = runs.last_mut().filter(|run| {
                let gap = distance(run.first_ns, run.last_ns, request.at_ns);
                let from = request.at_ns.min(run.last_ns);
                let priced = gap - work.hidden_ns(number, from, gap);
                let len = run.end - run.start;
                let apart = access.ns(len).saturating_add(access.ns(request.len));
                let together = access.ns(len.saturating_add(request.len));
                same && run.end == request.offset
                    && request.len > 0
                    && apart > together.saturating_add(priced)
                    && gap <= HIDDEN_MOST * (apart - together)
            });
            match joined {
                Some(run) => {
                    run.end = end;
                    run.first_ns = run.first_ns.min(request.at_ns);
                    run.last_ns = run.last_ns.max(request.at_ns);
                }
                None => runs.push(PredictedRun {
                    start: request.offset,
                    end,
                    first_ns: request.at_ns,
                    last_ns: request.at_ns,
                }),
            }
            run_of[number] = runs.len() as u32 - 1;
        }
        Prediction {
            requests,
            run_of,
            runs,
            queue_of,
            queues,
        }
    }

    /// Requests that are foretold, and the runs that they will be.
    pub fn len(&self) -> (usize, usize) {
        (self.requests.len(), self.runs.len())
    }

    /// Whether nothing is foretold.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

/// By request its queue, and by queue where its requests begin and end.
fn queues(requests: &[Observed]) -> (Vec<u32>, Vec<(usize, usize)>) {
    let (mut queue_of, mut queues) = (Vec::new(), Vec::new());
    let same = |one: &Observed, other: &Observed| {
        (one.file, one.direction) == (other.file, other.direction)
    };
    for queue in requests.chunk_by(same) {
        let start = queue_of.len();
        queue_of.extend(queue.iter().map(|_| queues.len() as u32));
        queues.push((start, queue_of.len()));
    }
    (queue_of, queues)
}

/// How far a time lies from a span of times.
fn distance(first: u64, last: u64, at: u64) -> u64 {
    first.saturating_sub(at) + at.saturating_sub(last)
}

/// A span of time that can be subtracted from others.
fn signed(ns: u64) -> i64 {
    ns.min(NS_MAX as u64) as i64
}

/// The n-th request of each place, with its mean time.
fn average(traces: &[Vec<Observed>]) -> Vec<Observed> {
    let mut all: Vec<(Observed, u64)> = Vec::new();
    for trace in traces {
        let mut trace = trace.clone();
        trace.sort_unstable();
        let mut occurrence = 0;
        for (at, observed) in trace.iter().enumerate() {
            let same = at > 0 && is_same(&trace[at - 1], observed);
            occurrence = if same { occurrence + 1 } else { 0 };
            all.push((*observed, occurrence));
        }
    }
    all.sort_unstable_by_key(|(observed, occurrence)| {
        let Observed {
            file,
            direction,
            offset,
            len,
            at_ns,
        } = *observed;
        (file, direction, offset, len, *occurrence, at_ns)
    });
    let group = |one: &(Observed, u64), other: &(Observed, u64)| {
        is_same(&one.0, &other.0) && one.1 == other.1
    };
    let groups = all
        .chunk_by(group)
        .filter(|group| 2 * group.len() >= traces.len());
    let mut mean: Vec<Observed> = groups
        .map(|group| {
            let sum: u128 = group.iter().map(|(one, _)| u128::from(one.at_ns)).sum();
            Observed {
                at_ns: (sum / group.len() as u128) as u64,
                ..group[0].0
            }
        })
        .collect();
    mean.sort_unstable();
    mean
}

fn is_same(one: &Observed, other: &Observed) -> bool {
    let place = |observed: &Observed| {
        (
            observed.file,
            observed.direction,
            observed.offset,
            observed.len,
        )
    };
    place(one) == place(other)
}

/// How much work arrives when, in all queues and in each.
struct Work {
    /// Time and the cost of all up to it.
    all: Vec<(u64, u64)>,
    /// The same for each queue, one after the other; by request: where its queue's begin and end.
    own: Vec<(u64, u64)>,
    queues: Vec<(usize, usize)>,
}

impl Work {
    fn new(requests: &[Observed], cost: &CostModel) -> Work {
        let priced = |request: &Observed| {
            let access = cost.access(request.direction, false);
            (request.at_ns, access.ns(request.len))
        };
        let sums = |mut work: Vec<(u64, u64)>| {
            work.sort_unstable();
            let mut sum = 0u64;
            for (_, ns) in &mut work {
                sum = sum.saturating_add(*ns);
                *ns = sum;
            }
            work
        };
        let mut own = Vec::with_capacity(requests.len());
        let mut queues = Vec::with_capacity(requests.len());
        let same = |one: &Observed, other: &Observed| {
            (one.file, one.direction) == (other.file, other.direction)
        };
        for queue in requests.chunk_by(same) {
            let span = (own.len(), own.len() + queue.len());
            own.extend(sums(queue.iter().map(priced).collect()));
            queues.extend(queue.iter().map(|_| span));
        }
        Work {
            all: sums(requests.iter().map(priced).collect()),
            own,
            queues,
        }
    }

    /// The part of a gap that the work of other queues than this request's covers.
    fn hidden_ns(&self, request: usize, from: u64, gap: u64) -> u64 {
        let within = |work: &[(u64, u64)]| {
            let sum = |at: u64| {
                let before = work.partition_point(|(time, _)| *time <= at);
                before.checked_sub(1).map_or(0, |last| work[last].1)
            };
            sum(from.saturating_add(gap)).saturating_sub(sum(from))
        };
        let (start, end) = self.queues[request];
        let others = within(&self.all).saturating_sub(within(&self.own[start..end]));
        others.min(gap)
    }
}

/// A prediction in use.
pub(super) struct Recorded {
    prediction: Arc<Prediction>,
    /// By predicted request: whether it came.
    came: Vec<bool>,
    /// By slot: the predicted request it was linked to.
    links: Vec<u32>,
    /// By queue.
    paces: Vec<Pace>,
}

/// How a program keeps the times of the traces. Programs do not speed up together, so each queue
/// has its own.
#[derive(Clone, Copy, Default)]
struct Pace {
    /// When the repetition began.
    began: Option<Time>,
    /// How much later than predicted requests come, as a moving mean.
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

    pub(super) fn arrived(&mut self, entry: &Entry, slot: Slot) {
        if self.links.len() <= slot as usize {
            self.links.resize(slot as usize + 1, NONE);
        }
        self.links[slot as usize] = self.link(entry).unwrap_or(NONE);
    }

    /// The predicted request that this one is.
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
            // All of these came: the program runs again.
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
            // The program has become faster or slower, by this very prediction perhaps: those that
            // follow are compared with this one.
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
    fn traces_are_averaged_and_what_is_rare_is_left_out() {
        let traces = [
            vec![seen(1, 0, 0), seen(1, 8192, 100), seen(1, 0, 500)],
            vec![
                seen(1, 0, 20),
                seen(1, 8192, 300),
                seen(1, 0, 700),
                seen(2, 0, 9),
            ],
            vec![seen(1, 0, 40)],
        ];
        let mean = average(&traces);
        assert_eq!(mean, [seen(1, 0, 20), seen(1, 0, 600), seen(1, 8192, 200)]);
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
                let slot = requests.insert(now, &request);
                linked += u32::from(recorded.link(&requests[slot]).is_some());
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
            let slot = requests.insert(Time(now), &crate::test::read(1, 0, 4096));
            recorded.link(&requests[slot]);
        }
        assert!(
            recorded
                .paces
                .iter()
                .all(|pace| pace.late_ns.abs() <= NS_MAX)
        );
    }

    #[test]
    fn requests_join_when_the_wait_costs_less_than_the_gain_unless_others_hide_it() {
        let cost = CostModel::default();
        // The gain of joining two is one base, 8 ms.
        let near = [seen(1, 0, 0), seen(1, 4096, 7_000_000)];
        let far = [seen(1, 0, 0), seen(1, 4096, 9_000_000)];
        let runs = |trace: &[Observed]| Prediction::new(&[trace.to_vec()], &cost).len().1;
        assert_eq!((runs(&near), runs(&far)), (1, 2));
        // One access of another file in between hides most of the wait.
        let mut hidden = far.to_vec();
        hidden.push(seen(2, 0, 1_000_000));
        assert_eq!(runs(&hidden), 2);
        // But what comes much later comes from a program that waited for an answer.
        let mut later = vec![seen(1, 0, 0), seen(1, 4096, 40_000_000)];
        later.extend((1..9).map(|n| seen(2, n << 20, n * 1_000_000)));
        assert_eq!(runs(&later), 10);
        // The later one may come first.
        assert_eq!(runs(&[seen(1, 0, 7_000_000), seen(1, 4096, 0)]), 1);
        // What does not touch does not join, nor what is of another file.
        assert_eq!(runs(&[seen(1, 0, 0), seen(1, 8192, 0)]), 2);
        assert_eq!(runs(&[seen(1, 0, 0), seen(2, 4096, 0)]), 2);
    }
}
