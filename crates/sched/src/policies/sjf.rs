//! Shortest job first: the request that costs the device least.
//!
//! The cost comes from the cost model, so a short read may go before a shorter write. Equal costs
//! keep their order of arrival. A request that has waited `age_ms_max` goes before shorter ones,
//! without which large ones would starve. Adjacent requests are merged only on demand.

use crate::aging::{AGE_MS_MAX, Aging};
use crate::cost::CostModel;
use crate::flat_btree::FlatBTree;
use crate::merge::Merge;
use crate::options::Options;
use crate::policy::{Bound, Pick, Policy, PolicySpec};
use crate::requests::{Index, Requests};
use crate::types::Time;
use alloc::boxed::Box;
use alloc::vec::Vec;

pub(super) const SPEC: PolicySpec = PolicySpec {
    name: "sjf",
    options: &[AGE_MS_MAX],
    merges: false,
    keeps_shares: false,
    make: |options| Ok(Box::new(Sjf::new(options))),
};

struct Sjf {
    cost: CostModel,
    aging: Aging,
    merge: Merge,
    /// By request: what the request was taken to cost when it came.
    costs_ns: Vec<u64>,
    /// By cost and arrival, in one number.
    queue: FlatBTree<u128, Index>,
}

impl Sjf {
    fn new(options: &Options) -> Sjf {
        Sjf {
            cost: options.cost,
            aging: Aging::new(options),
            merge: Merge::new(options),
            costs_ns: Vec::new(),
            queue: FlatBTree::new(),
        }
    }

    fn key(&self, requests: &Requests, index: Index) -> u128 {
        u128::from(self.costs_ns[index as usize]) << 64 | u128::from(requests[index].arrival)
    }

    fn left(&mut self, requests: &mut Requests, index: Index) {
        self.queue.remove(&self.key(requests, index));
        self.aging.gone(index);
    }
}

impl Policy for Sjf {
    fn arrived(&mut self, requests: &mut Requests, index: Index) {
        if index as usize >= self.costs_ns.len() {
            self.costs_ns.resize(index as usize + 1, 0);
        }
        self.costs_ns[index as usize] = self.cost.request_ns(&requests[index].request);
        self.queue.insert(self.key(requests, index), index);
        self.aging.arrived(index);
        self.merge.arrived(requests, 0, index);
    }

    fn pick(&mut self, requests: &mut Requests, now: Time, into: &mut Vec<Index>) -> Pick {
        let index = self.aging.overdue(requests, now).unwrap_or_else(|| {
            let (_, index) = self.queue.first().expect("pick on an empty policy");
            index
        });
        self.left(requests, index);
        self.merge.take_one(requests, index, into, |_, _| {});
        for &index in &into[1..] {
            self.left(requests, index);
        }
        Pick::Run
    }

    fn cancelled(&mut self, requests: &mut Requests, index: Index) {
        self.left(requests, index);
        self.merge.cancelled(requests, index);
    }

    fn uses_cost_model(&self) -> bool {
        true
    }

    fn set_cost_model(&mut self, cost: &CostModel) {
        self.cost = *cost;
    }

    fn bound(&self) -> Bound {
        self.aging.bound()
    }
}

#[cfg(test)]
mod tests {
    use crate::test::{drain, read, write};
    use crate::{
        AccessCost, CostModel, Input, Options, Output, Request, RequestId, Scheduler, Time,
    };
    use std::vec::Vec;

    #[test]
    fn what_costs_least_goes_first() {
        let free = AccessCost {
            base_ns: 0,
            ns_per_mib: 1,
        };
        let options = Options {
            cost: CostModel {
                read_random: free,
                ..CostModel::default()
            },
            ..Options::for_policy("sjf")
        };
        let mut scheduler = Scheduler::new(&options).unwrap();
        let input = [
            read(1, 0, 2 << 20),
            write(2, 0, 512),
            read(1, 0, 1 << 20),
            write(3, 0, 4096),
            read(4, 0, 1 << 20),
        ];
        assert_eq!(drain(&mut scheduler, &input), [[2], [4], [0], [1], [3]]);
    }

    #[test]
    fn a_large_request_waits_no_longer_than_the_limit() {
        let mut scheduler = Scheduler::new(&Options::for_policy("sjf")).unwrap();
        let (mut batch, mut order) = (Vec::new(), Vec::new());
        for step in 0..100 {
            let now = Time(step * 100_000_000);
            let len = if step == 0 { 1 << 20 } else { 4096 };
            for id in [2 * step, 2 * step + 1] {
                let request = Request {
                    id: RequestId(id),
                    ..read(id, 0, len)
                };
                scheduler.handle(now, Input::Arrived(request)).unwrap();
            }
            if step > 0 {
                assert_eq!(scheduler.poll(now, &mut batch), Output::Dispatch);
                order.push(batch[0].id.0);
                scheduler.handle(now, Input::Finished(batch[0].id)).unwrap();
            }
        }
        // Five seconds are fifty steps; step 1 is the first that picks.
        assert_eq!(order.iter().position(|&id| id == 0), Some(49));
    }
}
