//! Start-time fair queueing: gives each flow its weight's share of the device's time.
//!
//! The algorithm is that of Goyal, Vin and Cheng (1996). A flow is an application, or whatever the
//! policy shares between. A request has the start tag S = max(v, F) and the finish tag
//! F = S + cost / weight. F on the right of the first is the finish tag of the flow's previous
//! request; v is the start tag of the request that was dispatched last, or the
//! least that waits if that is less. The least start tag goes
//! next. The requests of one flow run in order of arrival, so only the first one needs a tag: a
//! flow has a tag, and requests have none.

use crate::flat_btree::FlatBTree;
use crate::hash_table::put;
use crate::heap::Heap;
use alloc::vec::Vec;

/// Units of virtual time for each nanosecond of device time at weight 1. Weights above this number
/// all count as equal.
const SCALE: u128 = 1 << 16;

/// The largest weight.
pub(crate) const WEIGHT_MAX: u64 = 1 << 16;

/// At most so many flows without requests are remembered. Those with the least tags are forgotten.
const IDLE_MAX: usize = 1024;

#[derive(Clone, Copy)]
struct Flow {
    id: u64,
    weight: u64,
    /// The start tag of its first request; the finish tag of its last one when it has none.
    tag: u128,
    waiting: u32,
}

/// The flows that have requests, and those whose share is used up for now.
pub(crate) struct Fair {
    flows: Vec<Flow>,
    flows_free: Vec<u32>,
    /// By id: the number of a flow.
    by_id: FlatBTree<u64, u32>,
    /// With requests, by start tag.
    active: Heap<u128>,
    /// Without, by finish tag and number; forgotten when the virtual time has passed it.
    idle: FlatBTree<(u128, u32), ()>,
    now: u128,
}

impl Fair {
    pub(crate) fn new() -> Fair {
        Fair {
            flows: Vec::new(),
            flows_free: Vec::new(),
            by_id: FlatBTree::new(),
            active: Heap::new(),
            idle: FlatBTree::new(),
            now: 0,
        }
    }

    /// A request of flow `id` came; returns the flow's number, which it keeps while it has
    /// requests. `weight` (1 to [`WEIGHT_MAX`]) counts when it is new.
    pub(crate) fn arrived(&mut self, id: u64, weight: u64) -> u32 {
        let found = self.by_id.at_or_after(&id);
        let number = match found.filter(|&(found, _)| found == id) {
            Some((_, number)) => number,
            None => self.make(id, weight),
        };
        let flow = &mut self.flows[number as usize];
        flow.waiting += 1;
        if flow.waiting == 1 {
            self.idle.remove(&(flow.tag, number));
            flow.tag = flow.tag.max(self.now);
            self.active.set(number, flow.tag);
        }
        number
    }

    /// The flow whose turn it is.
    #[inline]
    pub(crate) fn next(&self) -> Option<u32> {
        self.active.first().map(|(_, number)| number)
    }

    /// Whether a flow has requests.
    #[inline]
    pub(crate) fn has_requests(&self, number: u32) -> bool {
        self.flows[number as usize].waiting > 0
    }

    /// The first request of a flow runs, and costs so much device time. In a turn it may be ahead
    /// of the least tag.
    pub(crate) fn charge(&mut self, number: u32, cost_ns: u64) {
        let flow = self.flows[number as usize];
        let least = self.active.first().map_or(flow.tag, |(tag, _)| tag);
        self.now = self.now.max(least);
        self.rest(number, flow.tag + time(cost_ns, flow.weight));
        self.forget();
    }

    /// A request of a flow was cancelled, which costs nothing.
    pub(crate) fn cancelled(&mut self, number: u32) {
        let tag = self.flows[number as usize].tag;
        self.rest(number, tag);
        self.forget();
    }

    /// One request less, and a new tag.
    fn rest(&mut self, number: u32, tag: u128) {
        let flow = &mut self.flows[number as usize];
        flow.tag = tag;
        flow.waiting -= 1;
        if flow.waiting > 0 {
            self.active.set(number, tag);
        } else {
            self.active.remove(number);
            self.idle.insert((tag, number), ());
        }
    }

    /// Forgets flows that a new one would not differ from.
    fn forget(&mut self) {
        if self.active.is_empty()
            && let Some(((tag, _), ())) = self.idle.last()
        {
            // Nothing waits: the next request finds every flow equal.
            self.now = self.now.max(tag);
        }
        while let Some(((tag, number), ())) = self.idle.first() {
            if tag > self.now && self.idle.len() <= IDLE_MAX {
                break;
            }
            self.idle.remove(&(tag, number));
            self.by_id.remove(&self.flows[number as usize].id);
            self.flows_free.push(number);
        }
    }

    fn make(&mut self, id: u64, weight: u64) -> u32 {
        let flow = Flow {
            id,
            weight,
            tag: self.now,
            waiting: 0,
        };
        let number = put(&mut self.flows, &mut self.flows_free, flow);
        self.by_id.insert(id, number);
        number
    }
}

/// Virtual time of device time, in numbers that are divided fast.
#[inline]
fn time(cost_ns: u64, weight: u64) -> u128 {
    let (whole, rest) = match weight {
        1 => (cost_ns, 0),
        _ => (cost_ns / weight, cost_ns % weight),
    };
    u128::from(whole) * SCALE + u128::from(rest * SCALE as u64 / weight)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn flows_that_wait_get_their_weights() {
        let mut fair = Fair::new();
        let weights = [1, 2, 5];
        for id in [0, 1, 2] {
            for _ in 0..1000 {
                fair.arrived(id, weights[id as usize]);
            }
        }
        let mut served = [0; 3];
        for _ in 0..800 {
            let number = fair.next().unwrap();
            served[fair.flows[number as usize].id as usize] += 1;
            fair.charge(number, 1_000_000);
        }
        assert_eq!(served, [100, 200, 500]);
    }

    #[test]
    fn flows_that_never_come_back_are_forgotten() {
        let mut fair = Fair::new();
        // One that waits all the time, with a weight by which virtual time hardly moves.
        for _ in 0..20_000 {
            fair.arrived(0, WEIGHT_MAX);
        }
        for id in 1..10_000 {
            fair.arrived(id, 1);
            fair.charge(fair.next().unwrap(), 1_000_000);
            fair.charge(fair.next().unwrap(), 1_000_000);
        }
        assert!(fair.flows.len() < IDLE_MAX + 20, "{}", fair.flows.len());
    }

    #[test]
    fn what_was_not_used_is_not_saved() {
        let mut fair = Fair::new();
        for _ in 0..100 {
            fair.arrived(1, 1);
        }
        for _ in 0..50 {
            fair.charge(fair.next().unwrap(), 1000);
        }
        // The second flow comes late: from now on they alternate.
        (0..50).for_each(|_| {
            fair.arrived(2, 1);
        });
        let mut order = vec![];
        for _ in 0..10 {
            let number = fair.next().unwrap();
            order.push(fair.flows[number as usize].id);
            fair.charge(number, 1000);
        }
        assert_eq!(order.iter().filter(|&&id| id == 2).count(), 5);
        while let Some(number) = fair.next() {
            fair.charge(number, 1000);
        }
        assert!(fair.by_id.is_empty());
    }
}
