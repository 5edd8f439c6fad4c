//! Multi-level feedback (MLF), as aIOLi and AGIOS have it: short requests soon, long ones when
//! they have waited long enough to have earned it.
//!
//! Queues, one for each file and direction, take turns. In its turn a queue gives its next run in
//! the order of offsets, if one is eligible: its quantum is `quantum_bytes` at the first step after
//! it came, and doubles at each further one. See `runs` for what a step is. Touching requests join
//! as they arrive, unless told otherwise.

use super::{Bound, Pick, Policy};
use crate::ages::{self, Ages};
use crate::cost::CostModel;
use crate::options::{Options, OptionsError};
use crate::requests::{Requests, Slot};
use crate::runs::{Growth, Order, Runs};
use crate::types::{Direction, Time};
use alloc::vec::Vec;

/// AGIOS's: what a request of this length costs is the first quantum.
const QUANTUM_BYTES: u64 = 8192;

pub(super) struct Mlf {
    runs: Runs,
    ages: Ages,
    quantum_bytes: u64,
}

impl Mlf {
    pub(super) fn new(options: &Options) -> Result<Mlf, OptionsError> {
        let table = &options.table;
        table.only("mlf", &[ages::OPTION, "quantum_bytes"])?;
        let bytes = table.integer("quantum_bytes", QUANTUM_BYTES, 1, 1 << 40)?;
        let quantum_ns = quantum_ns(&options.cost, bytes);
        Ok(Mlf {
            runs: Runs::new(options, Growth::Doubling, Order::Turns, quantum_ns),
            ages: Ages::new(options)?,
            quantum_bytes: bytes,
        })
    }
}

/// What a read of the first quantum costs.
fn quantum_ns(cost: &CostModel, bytes: u64) -> u64 {
    cost.access(Direction::Read, false).ns(bytes)
}

impl Policy for Mlf {
    fn arrived(&mut self, requests: &mut Requests, slot: Slot) {
        self.runs.arrived(requests, slot);
        self.ages.arrived(slot);
    }

    fn pick(&mut self, requests: &mut Requests, now: Time, into: &mut Vec<Slot>) -> Pick {
        let run = match self.ages.overdue(requests, now) {
            Some(slot) => requests[slot].tag,
            None => {
                self.runs.step(requests, now);
                self.runs.next().expect("a step makes one eligible")
            }
        };
        self.runs.remove(requests, run, into);
        for &slot in into.iter() {
            self.ages.gone(slot);
        }
        Pick::Run
    }

    fn cancelled(&mut self, requests: &mut Requests, slot: Slot) {
        self.runs.cancelled(requests, slot);
        self.ages.gone(slot);
    }

    fn prices(&self) -> bool {
        true
    }

    fn costs(&mut self, cost: &CostModel) {
        self.runs.costs(cost, quantum_ns(cost, self.quantum_bytes));
    }

    fn in_force(&self, options: &mut Options) {
        options.merge = Some(self.runs.is_on());
        self.ages.in_force(options);
        options.table.set("quantum_bytes", self.quantum_bytes);
    }

    fn bound(&self) -> Bound {
        self.ages.bound()
    }
}

#[cfg(test)]
mod tests {
    use crate::test::{drain, read, write};
    use crate::{AccessCost, CostModel, Options, PolicyOptions, Scheduler};
    use std::vec;
    use std::vec::Vec;

    fn options() -> Options {
        // A nanosecond for a byte and nothing else, so that quanta count bytes.
        let free = AccessCost {
            base_ns: 0,
            ns_per_mib: 1 << 20,
        };
        Options {
            cost: CostModel {
                read_random: free,
                write_random: free,
                ..CostModel::default()
            },
            table: PolicyOptions::default().with("quantum_bytes", 1000),
            ..Options::for_policy("mlf")
        }
    }

    #[test]
    fn queues_take_turns_and_long_requests_wait_for_their_quantum() {
        let mut scheduler = Scheduler::new(&options()).unwrap();
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
    fn touching_requests_are_one_in_whatever_order_they_come() {
        let mut scheduler = Scheduler::new(&options()).unwrap();
        let mut input: Vec<_> = (0..8).map(|i| read(1, i * 1000, 1000)).collect();
        input.swap(1, 6);
        input.swap(2, 7);
        input.push(read(1, 4000, 1000));
        let batches = drain(&mut scheduler, &input);
        assert_eq!(batches, [vec![0, 6, 7, 3, 4, 5, 1, 2], vec![8]]);
    }
}
