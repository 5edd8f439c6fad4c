//! Multi-level feedback (MLF), as aIOLi and AGIOS have it: short requests soon, long ones when
//! they have waited long enough to have earned it.
//!
//! Queues, one for each file and direction, take turns. In its turn a queue gives its next run in
//! the order of offsets, if one is eligible: its quantum is `quantum_bytes` at the first step after
//! it came, and doubles at each further one. See `runs` for what a step is. By default adjacent
//! requests are merged as they arrive.

use crate::aging::{AGE_MS_MAX, Aging};
use crate::cost::CostModel;
use crate::options::Options;
use crate::policy::{Bound, Pick, Policy, PolicySpec};
use crate::policy_options::OptionSpec;
use crate::requests::{Index, Requests};
use crate::runs::{Growth, Order, Runs};
use crate::types::Time;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// AGIOS's default.
const QUANTUM_BYTES: OptionSpec = OptionSpec::integer(
    "quantum_bytes",
    8192,
    [1, 1 << 40],
    "what a request of so many bytes costs is the quantum of a request's first step",
);

pub(super) const SPEC: PolicySpec = PolicySpec {
    name: "mlf",
    options: &[AGE_MS_MAX, QUANTUM_BYTES],
    merges: true,
    keeps_shares: false,
    make: |options| Ok(Box::new(Mlf::new(options))),
};

struct Mlf {
    runs: Runs,
    aging: Aging,
}

impl Mlf {
    fn new(options: &Options) -> Mlf {
        let quantum_bytes = options.table.integer(&QUANTUM_BYTES);
        Mlf {
            runs: Runs::new(options, Growth::Doubling, Order::Turns, quantum_bytes),
            aging: Aging::new(options),
        }
    }
}

impl Policy for Mlf {
    fn arrived(&mut self, requests: &mut Requests, index: Index) {
        self.runs.arrived(requests, index);
        self.aging.arrived(index);
    }

    fn pick(&mut self, requests: &mut Requests, now: Time, into: &mut Vec<Index>) -> Pick {
        let run = match self.aging.overdue(requests, now) {
            Some(index) => requests[index].tag,
            None => {
                self.runs.step(requests, now);
                self.runs.next().expect("a step makes one eligible")
            }
        };
        self.runs.remove(requests, run, into);
        for &index in into.iter() {
            self.aging.gone(index);
        }
        Pick::Run
    }

    fn cancelled(&mut self, requests: &mut Requests, index: Index) {
        self.runs.cancelled(requests, index);
        self.aging.gone(index);
    }

    fn uses_cost_model(&self) -> bool {
        true
    }

    fn set_cost_model(&mut self, cost: &CostModel) {
        self.runs.set_cost_model(cost);
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
    use std::vec::Vec;

    #[test]
    fn queues_take_turns_and_long_requests_wait_for_their_quantum() {
        let mut scheduler = Scheduler::new(&quantum_counts_bytes("mlf")).unwrap();
        // 8000 bytes need quanta of 1000, 2000, 4000 and 8000: the fourth step.
        let input = [
            read(1, 0, 8000),
            read(2, 0, 1000),
            read(2, 5000, 1000),
            write(2, 0, 1000),
            read(2, 9000, 1000),
        ];
        // The overlapping write comes when the read before it has finished.
        assert_eq!(drain(&mut scheduler, &input), [[1], [2], [3], [0], [4]]);
    }

    #[test]
    fn adjacent_requests_are_one_in_whatever_order_they_come() {
        let mut scheduler = Scheduler::new(&quantum_counts_bytes("mlf")).unwrap();
        let mut input: Vec<_> = (0..8).map(|i| read(1, i * 1000, 1000)).collect();
        input.swap(1, 6);
        input.swap(2, 7);
        input.push(read(1, 4000, 1000));
        let batches = drain(&mut scheduler, &input);
        assert_eq!(batches, [vec![0, 6, 7, 3, 4, 5, 1, 2], vec![8]]);
    }
}
