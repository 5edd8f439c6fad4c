//! Predicts runs of adjacent requests from traces of earlier runs of a program (Boito et al.,
//! ICPADS'13, section IV).
//!
//! Several traces are averaged. Their requests are sorted by file, direction and offset. A request
//! r joins the predicted run v before it where that pays: `TTP(v) + TTP(r) > TTP(v + r) + |AT_r -
//! AT_v| (1 - alpha)`. TTP is the cost of an access, AT the time of arrival, and alpha the part of
//! the wait that work of other queues hides. Here alpha is the cost of the requests that other
//! queues get in that time, divided by the time. A wait is never longer than twice its gain.

use crate::cost::CostModel;
use crate::types::{Direction, FileId};
use alloc::vec;
use alloc::vec::Vec;

/// A wait is at most so many times as long as its gain, however much of it other work hides. A
/// request that arrives later than that comes from a program that waits for replies, and one of
/// them may be the reply to this run.
pub(crate) const HIDDEN_MOST: u64 = 2;

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

/// A predicted run: adjacent requests of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PredictedRun {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
}

/// What traces of earlier runs predict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// By file, direction and offset. The time of each is the mean over the traces.
    pub(crate) requests: Vec<Observed>,
    /// By request: its run.
    pub(crate) run_of: Vec<u32>,
    pub(crate) runs: Vec<PredictedRun>,
    /// By request: its queue, of a file and direction; by queue: where its requests begin and end.
    pub(crate) queue_of: Vec<u32>,
    pub(crate) queues: Vec<(usize, usize)>,
}

impl Prediction {
    /// Averages traces, and joins requests to runs where waiting pays under these costs. A request
    /// that is in fewer than half of the traces is left out.
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

    /// The numbers of predicted requests and of predicted runs.
    pub fn len(&self) -> (usize, usize) {
        (self.requests.len(), self.runs.len())
    }

    /// Whether nothing is predicted.
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
        // Requests that are not adjacent do not join, nor those of another file.
        assert_eq!(runs(&[seen(1, 0, 0), seen(1, 8192, 0)]), 2);
        assert_eq!(runs(&[seen(1, 0, 0), seen(2, 4096, 0)]), 2);
    }
}
