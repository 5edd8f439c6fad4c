//! First in, first out: the order of a server that does not schedule, and the base of comparisons.
//!
//! It does not merge by default, so that a comparison shows what another policy gains by merging.

use crate::merge::Merge;
use crate::options::Options;
use crate::policy::{Bound, Pick, Policy, PolicySpec};
use crate::requests::{Index, List, Requests};
use crate::types::Time;
use alloc::boxed::Box;
use alloc::vec::Vec;

pub(super) const SPEC: PolicySpec = PolicySpec {
    name: "fifo",
    options: &[],
    merges: false,
    keeps_shares: false,
    make: |options| Ok(Box::new(Fifo::new(options))),
};

struct Fifo {
    queue: List,
    merge: Merge,
}

impl Fifo {
    fn new(options: &Options) -> Fifo {
        Fifo {
            queue: List::new(),
            merge: Merge::new(options),
        }
    }
}

impl Policy for Fifo {
    fn arrived(&mut self, requests: &mut Requests, index: Index) {
        requests.push_back(&mut self.queue, index);
        if self.merge.on {
            self.merge.arrived(requests, 0, index);
        }
    }

    fn pick(&mut self, requests: &mut Requests, _now: Time, into: &mut Vec<Index>) -> Pick {
        let index = requests
            .pop_front(&mut self.queue)
            .expect("pick on an empty policy");
        if self.merge.on {
            self.merge
                .take_one(requests, index, into, |requests, index| {
                    requests.unlink(&mut self.queue, index);
                });
        } else {
            into.push(index);
        }
        Pick::Run
    }

    fn cancelled(&mut self, requests: &mut Requests, index: Index) {
        requests.unlink(&mut self.queue, index);
        self.merge.cancelled(requests, index);
    }

    fn bound(&self) -> Bound {
        Bound::Ahead
    }
}

#[cfg(test)]
mod tests {
    use crate::test::{drain, read, write};
    use crate::{Options, Scheduler};
    use std::vec;

    #[test]
    fn runs_in_order_of_arrival_and_joins_nothing() {
        let mut scheduler = Scheduler::new(&Options::for_policy("fifo")).unwrap();
        let input = [
            write(1, 0, 4096),
            read(2, 0, 4096),
            write(1, 4096, 4096),
            read(1, 8192, 1),
        ];
        assert_eq!(drain(&mut scheduler, &input), [[0], [1], [2], [3]]);
    }

    #[test]
    fn joins_adjacent_requests_when_told_to() {
        let options = Options {
            merge: Some(true),
            ..Options::for_policy("fifo")
        };
        let mut scheduler = Scheduler::new(&options).unwrap();
        let input = [
            write(1, 4096, 4096),
            write(1, 0, 4096),
            write(1, 12288, 1),
            write(1, 8192, 4096),
        ];
        assert_eq!(drain(&mut scheduler, &input), [[1, 0, 3, 2]]);
    }

    #[test]
    fn a_batch_ends_at_its_limits() {
        let mut options = Options {
            merge: Some(true),
            ..Options::for_policy("fifo")
        };
        options.batch_bytes_max = 8192;
        let mut scheduler = Scheduler::new(&options).unwrap();
        let input = [
            write(1, 0, 4096),
            write(1, 4096, 4096),
            write(1, 8192, 4096),
        ];
        assert_eq!(drain(&mut scheduler, &input), [vec![0, 1], vec![2]]);
        options.batch_requests_max = 1;
        let mut scheduler = Scheduler::new(&options).unwrap();
        assert_eq!(drain(&mut scheduler, &input), [[0], [1], [2]]);
    }
}
