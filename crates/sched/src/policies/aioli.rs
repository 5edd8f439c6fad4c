//! aIOLi, the base algorithm of AGIOS (Boito et al., ICPADS'13, section III).
//!
//! One queue for each file and direction. Inside a queue requests go by offset; between queues the
//! one whose next request is the oldest goes first. Adjacent requests are one virtual request, a
//! run. All quanta grow by `quantum_bytes` worth of device time at each step, a run has the sum of
//! its requests' quanta, and only a run whose quantum covers its cost is chosen. See `runs`.
//!
//! The public code of AGIOS goes on with a queue while the queue's own quantum lasts, and adapts
//! that by use; `quantum = "adaptive"` does so here. With `prediction` a run may wait for more of
//! it; see `prediction`.

use crate::aging::{AGE_MS_MAX, Aging};
use crate::cost::CostModel;
use crate::options::Options;
use crate::options_error::OptionsError;
use crate::policy::{Bound, Pick, Policy, PolicySpec};
use crate::policy_options::{OptionKind, OptionSpec};
use crate::prediction::{IDLE_PERCENT_MAX, PREDICTION, Predictor, WAIT_US_MAX};
use crate::requests::{Index, Requests};
use crate::runs::{Growth, Order, Runs};
use crate::types::Time;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The paper's rule, and that of the public code.
const QUANTUM: OptionSpec = OptionSpec::new(
    "quantum",
    OptionKind::Word(&["fixed", "adaptive"]),
    "`adaptive`: goes on with a queue while its own quantum lasts, and adapts that by use, as \
     AGIOS's public code",
);

/// AGIOS's default.
const QUANTUM_BYTES: OptionSpec = OptionSpec::integer(
    "quantum_bytes",
    65_536,
    [1, 1 << 40],
    "what a request of so many bytes costs is the quantum of a step",
);

pub(super) const SPEC: PolicySpec = PolicySpec {
    name: "aioli",
    options: &[
        AGE_MS_MAX,
        IDLE_PERCENT_MAX,
        PREDICTION,
        QUANTUM,
        QUANTUM_BYTES,
        WAIT_US_MAX,
    ],
    merges: true,
    keeps_shares: false,
    make: |options| Ok(Box::new(Aioli::new(options)?)),
};

/// An adaptive quantum grows to so many times the first one.
const QUANTUM_GROWTH_MAX: u64 = 64;

struct Aioli {
    runs: Runs,
    aging: Aging,
    predictor: Predictor,
    adaptive: Option<Adaptive>,
}

/// The quantum of the queue that is being served.
struct Adaptive {
    first_ns: u64,
    /// By number of a queue: what it may use in a turn.
    quanta_ns: Vec<u64>,
    /// Whose turn it is, and what is left of it.
    turn: Option<(u32, u64)>,
}

impl Adaptive {
    /// Goes on with the same queue as long as something is left.
    fn stays(&mut self, runs: &Runs) -> Option<u32> {
        let (queue, left_ns) = self.turn?;
        let next = runs.next_of(queue).filter(|_| left_ns > 0);
        if next.is_none() {
            self.ends(queue, left_ns);
        }
        next
    }

    /// The next quantum follows from how much of this one was used, as in AGIOS's code.
    fn ends(&mut self, queue: u32, left_ns: u64) {
        self.turn = None;
        let quantum = &mut self.quanta_ns[queue as usize];
        let percent = (*quantum - left_ns.min(*quantum)).saturating_mul(100) / *quantum;
        *quantum = match percent {
            100.. => quantum.saturating_mul(2),
            75.. => *quantum,
            _ => *quantum / 2,
        };
        let most = self.first_ns.saturating_mul(QUANTUM_GROWTH_MAX);
        *quantum = (*quantum).clamp(self.first_ns, most);
    }

    fn used(&mut self, queue: u32, cost_ns: u64) {
        if queue as usize >= self.quanta_ns.len() {
            self.quanta_ns.resize(queue as usize + 1, self.first_ns);
        }
        let left_ns = match self.turn {
            Some((same, left_ns)) if same == queue => left_ns,
            _ => self.quanta_ns[queue as usize],
        };
        self.turn = Some((queue, left_ns.saturating_sub(cost_ns)));
    }
}

impl Aioli {
    fn new(options: &Options) -> Result<Aioli, OptionsError> {
        let table = &options.table;
        let quantum_bytes = table.integer(&QUANTUM_BYTES);
        let runs = Runs::new(options, Growth::Linear, Order::Oldest, quantum_bytes);
        let adaptive = table.is(&QUANTUM, "adaptive").then(|| Adaptive {
            first_ns: runs.quantum_ns(),
            quanta_ns: Vec::new(),
            turn: None,
        });
        Ok(Aioli {
            runs,
            aging: Aging::new(options),
            predictor: Predictor::new(options)?,
            adaptive,
        })
    }
}

impl Aioli {
    /// The next run, or until when to wait for more of one.
    fn choose(&mut self, requests: &Requests, now: Time) -> Result<u32, Time> {
        self.runs.step(requests, now);
        loop {
            let stays = self.adaptive.as_mut();
            let same = stays.and_then(|adaptive| adaptive.stays(&self.runs));
            let Some(run) = same.or_else(|| self.runs.next()) else {
                // Whatever there is waits for more.
                let until = self.runs.parked_until();
                let until = until.expect("a step makes one eligible, or all are parked");
                if let Some(until) = self.predictor.may_anticipate(now, until) {
                    return Err(until);
                }
                let first = self.runs.first_parked().expect("one is parked");
                self.runs.unpark(requests, first);
                continue;
            };
            let waited = self.runs.run(run).waited;
            match (!waited).then(|| self.predictor.waits(requests, &self.runs, run, now)) {
                Some(Some(until)) => self.runs.park(requests, run, until),
                _ => return Ok(run),
            }
        }
    }
}

impl Policy for Aioli {
    fn arrived(&mut self, requests: &mut Requests, index: Index) {
        let run = self.runs.arrived(requests, index);
        self.aging.arrived(index);
        if self.predictor.arrived(requests, index, &self.runs) {
            self.runs.unpark(requests, run);
        }
    }

    fn pick(&mut self, requests: &mut Requests, now: Time, into: &mut Vec<Index>) -> Pick {
        let run = match self.aging.overdue(requests, now) {
            Some(index) => requests[index].tag,
            None => match self.choose(requests, now) {
                Ok(run) => run,
                Err(until) => return Pick::Anticipate(until),
            },
        };
        if let Some(adaptive) = &mut self.adaptive {
            adaptive.used(self.runs.run(run).queue, self.runs.cost_ns(run));
        }
        self.predictor.leaves(&self.runs, run);
        self.runs.remove(requests, run, into);
        for &index in into.iter() {
            self.aging.gone(index);
        }
        self.predictor.dispatched(into.len(), now);
        Pick::Run
    }

    fn cancelled(&mut self, requests: &mut Requests, index: Index) {
        self.runs.cancelled(requests, index);
        self.aging.gone(index);
        self.predictor.cancelled(index);
    }

    fn finished(&mut self, _requests: &Requests, index: Index, now: Time) {
        self.predictor.finished(index, now);
    }

    fn wait_ns_max(&self) -> u64 {
        self.predictor.wait_ns_max()
    }

    fn uses_cost_model(&self) -> bool {
        true
    }

    fn set_cost_model(&mut self, cost: &CostModel) {
        self.runs.set_cost_model(cost);
        self.predictor.set_cost_model(cost);
        if let Some(adaptive) = &mut self.adaptive {
            adaptive.first_ns = self.runs.quantum_ns();
        }
    }

    fn bound(&self) -> Bound {
        self.aging.bound()
    }
}

#[cfg(test)]
mod tests {
    use crate::Scheduler;
    use crate::test::{drain, quantum_counts_bytes, read, write};
    use std::vec;

    #[test]
    fn offsets_inside_a_queue_and_age_between_queues() {
        let mut scheduler = Scheduler::new(&quantum_counts_bytes("aioli")).unwrap();
        let input = [
            read(1, 9000, 1000),
            write(2, 5000, 1000),
            read(1, 3000, 1000),
            write(2, 0, 1000),
            read(1, 6000, 1000),
        ];
        // The lowest of file 1 is younger than that of file 2's first; then 1 and 2 in turn as
        // their next ones came.
        assert_eq!(drain(&mut scheduler, &input), [[2], [3], [1], [4], [0]]);
    }

    #[test]
    fn a_run_needs_a_quantum_for_its_cost_and_its_requests_earn_together() {
        let mut scheduler = Scheduler::new(&quantum_counts_bytes("aioli")).unwrap();
        // Alone 4000 bytes need four steps; four requests of 1000 that touch need one.
        let input = [
            read(1, 0, 4000),
            read(2, 1000, 1000),
            read(2, 0, 1000),
            read(2, 3000, 1000),
            read(2, 2000, 1000),
            read(3, 0, 1000),
            read(3, 8000, 1000),
        ];
        let batches = drain(&mut scheduler, &input);
        assert_eq!(batches, [vec![2, 1, 4, 3], vec![5], vec![6], vec![0]]);
    }

    #[test]
    fn an_adaptive_quantum_stays_with_a_queue_that_uses_it() {
        let mut options = quantum_counts_bytes("aioli");
        options.table.set("quantum", "adaptive");
        let mut scheduler = Scheduler::new(&options).unwrap();
        // Two files, interleaved: the turns of each take 1, then 2, then 4 requests.
        let input: std::vec::Vec<_> = (0..28).map(|i| read(1 + i % 2, i * 10_000, 1000)).collect();
        let files: std::vec::Vec<u64> = drain(&mut scheduler, &input)
            .iter()
            .map(|batch| 1 + batch[0] % 2)
            .collect();
        let turns: std::vec::Vec<usize> = files.chunk_by(|a, b| a == b).map(|t| t.len()).collect();
        assert_eq!(turns, [1, 1, 2, 2, 4, 4, 7, 7]);
    }
}
