//! Time order: first come, first served, where the client's clock says who came first.
//!
//! AGIOS calls it TO, and TO-agg with aggregation. Forwarders that see the requests of an
//! operation at different times still agree on the order, because the time is the client's stamp;
//! a request without one counts from its arrival. Stamps are cut to a second before and 5 ms after
//! the arrival, so that a wrong clock moves a request by no more. By default adjacent requests are
//! merged.

use crate::cause::Cause;
use crate::flat_btree::FlatBTree;
use crate::merge::Merge;
use crate::options::Options;
use crate::policy::{Bound, Pick, Policy, PolicySpec};
use crate::requests::{Index, Requests};
use crate::types::Time;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// How far before its arrival a stamp may lie.
const BEFORE_NS_MAX: u64 = 1_000_000_000;

/// How far a client's clock may run ahead before its stamps are cut.
const AHEAD_NS_MAX: u64 = 5_000_000;

pub(super) const SPEC: PolicySpec = PolicySpec {
    name: "time-order",
    options: &[],
    merges: true,
    keeps_shares: false,
    make: |options| Ok(Box::new(TimeOrder::new(options))),
};

struct TimeOrder {
    wall_offset_ns: u64,
    merge: Merge,
    /// By time and arrival, in one number.
    queue: FlatBTree<u128, Index>,
}

impl TimeOrder {
    fn new(options: &Options) -> TimeOrder {
        TimeOrder {
            wall_offset_ns: options.wall_offset_ns,
            merge: Merge::new(options),
            queue: FlatBTree::new(),
        }
    }

    fn key(&self, requests: &Requests, index: Index) -> u128 {
        let entry = &requests[index];
        let arrived_ns = entry.arrived.0.saturating_add(self.wall_offset_ns);
        let began_ns = match entry.request.stamp_ns {
            0 => arrived_ns,
            stamp_ns => stamp_ns.clamp(
                arrived_ns.saturating_sub(BEFORE_NS_MAX),
                arrived_ns.saturating_add(AHEAD_NS_MAX),
            ),
        };
        u128::from(began_ns) << 64 | u128::from(entry.arrival)
    }
}

impl Policy for TimeOrder {
    fn arrived(&mut self, requests: &mut Requests, index: Index) {
        self.queue.insert(self.key(requests, index), index);
        self.merge.arrived(requests, 0, index);
    }

    fn pick(&mut self, requests: &mut Requests, _now: Time, into: &mut Vec<Index>) -> Pick {
        let (key, index) = self.queue.first().expect("pick on an empty policy");
        self.queue.remove(&key);
        if let Some((_, next)) = self.queue.first() {
            requests.prefetch(next);
        }
        self.merge.take_one(requests, index, into, |_, _| {});
        // What leaves with it has a place in the queue as well.
        for &index in &into[1..] {
            let key = self.key(requests, index);
            self.queue.remove(&key);
        }
        Pick::Run
    }

    fn cancelled(&mut self, requests: &mut Requests, index: Index) {
        self.queue.remove(&self.key(requests, index));
        self.merge.cancelled(requests, index);
    }

    /// The latest that runs before a request arrived `BEFORE_NS_MAX` after its time, and that is
    /// at most `AHEAD_NS_MAX` after its arrival.
    fn turns(&self) -> Cause {
        Cause::Window
    }

    fn bound(&self) -> Bound {
        Bound::Overtaking(BEFORE_NS_MAX + AHEAD_NS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use crate::test::{drain_at, read};
    use crate::{Options, Request, Scheduler, Time};
    use std::vec;

    const NOW: Time = Time(10_000_000_000);

    fn at(offset: u64, ms_ago: i64) -> Request {
        let stamp_ns = NOW.0.saturating_add_signed(-ms_ago * 1_000_000);
        Request {
            stamp_ns,
            ..read(1, offset, 4096)
        }
    }

    #[test]
    fn the_client_s_time_decides_within_limits() {
        let options = Options {
            merge: Some(false),
            ..Options::for_policy("time-order")
        };
        let mut scheduler = Scheduler::new(&options).unwrap();
        // The last has no stamp; those far off are cut, and then the first to arrive is first.
        let input = [
            at(0, 10),
            at(1 << 20, 30),
            at(2 << 20, -7000),
            at(3 << 20, 7000),
            at(4 << 20, 1000),
            read(1, 5 << 20, 1),
        ];
        assert_eq!(
            drain_at(&mut scheduler, NOW, &input),
            [[3], [4], [1], [0], [5], [2]]
        );
    }

    #[test]
    fn adjacent_requests_leave_with_the_oldest() {
        let mut scheduler = Scheduler::new(&Options::for_policy("time-order")).unwrap();
        let input = [
            at(4096, 1),
            at(65_536, 2),
            at(8192, 3),
            at(0, 4),
            at(69_632, 5),
        ];
        let batches = drain_at(&mut scheduler, NOW, &input);
        assert_eq!(batches, [vec![1, 4], vec![3, 0, 2]]);
    }
}
