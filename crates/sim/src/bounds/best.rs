//! The best order that all servers share, by trying every one, for a few operations.

use super::{Instance, Value};

/// More operations than these are not enumerated: 8 have 40320 orders.
pub const OPERATIONS_MAX: usize = 8;

/// The best order that all servers share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Best {
    /// The operations' indices, first to be served first.
    pub order: Vec<usize>,
    /// Its value.
    pub value: Value,
    /// Whether no schedule at all has a smaller sum of completion times. This is so without
    /// shuffles and with all releases at one time; else servers with orders of their own can be
    /// better.
    pub optimal: bool,
}

impl Instance {
    /// The order with the smallest sum of completion times, the first such in lexicographic order;
    /// `None` for more than [`OPERATIONS_MAX`] operations.
    pub fn best(&self) -> Option<Best> {
        let count = self.operations().len();
        if count > OPERATIONS_MAX {
            return None;
        }
        let mut search = Search {
            instance: self,
            alone_ns: self.operations().iter().map(|op| op.alone_ns()).collect(),
            order: Vec::with_capacity(count),
            best: (0..count).collect(),
            best_sum_ns: u128::MAX,
        };
        let free_ns = vec![0; self.servers()];
        search.extend(&free_ns, 0);
        Some(Best {
            value: self.value(&search.best),
            order: search.best,
            optimal: !self.has_shuffles() && !self.has_releases(),
        })
    }
}

struct Search<'a> {
    instance: &'a Instance,
    alone_ns: Vec<u64>,
    order: Vec<usize>,
    best: Vec<usize>,
    best_sum_ns: u128,
}

impl Search<'_> {
    /// Tries every way to go on from an order that leaves the servers free at these times, with
    /// this sum of completion times.
    fn extend(&mut self, free_ns: &[u64], sum_ns: u128) {
        let all = 0..self.instance.operations().len();
        let rest = all.filter(|index| !self.order.contains(index));
        let rest: Vec<usize> = rest.collect();
        if rest.is_empty() {
            self.best_sum_ns = sum_ns;
            self.best.clone_from(&self.order);
            return;
        }
        for &index in &rest {
            let mut free_ns = free_ns.to_vec();
            let completed_ns = self.instance.append(&mut free_ns, index);
            let sum_ns = sum_ns + u128::from(completed_ns);
            let others = rest.iter().filter(|other| **other != index);
            let least: u128 = others.map(|other| u128::from(self.alone_ns[*other])).sum();
            // Only what is strictly better replaces the best, so the first of equals stays.
            if sum_ns + least < self.best_sum_ns {
                self.order.push(index);
                self.extend(&free_ns, sum_ns);
                self.order.pop();
            }
        }
    }
}
