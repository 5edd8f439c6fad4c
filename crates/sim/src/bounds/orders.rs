//! Orders of operations: those of the literature, for comparison with the bounds.

use super::Instance;
use crate::rng::Rng;
use std::cmp::Reverse;

/// So often neighbours are compared at most; a pass takes time for operations times servers.
const EXCHANGE_PASSES_MAX: usize = 100;

/// A rule that gives all servers the same order. Ties keep the order in which operations were
/// given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As they were given.
    Given,
    /// By application id: what Song et al. (SC'11) do within a time window.
    AppId,
    /// Smallest bottleneck first (SEBF): by the longest work on any server.
    SmallestBottleneck,
    /// The primal-dual order (BSSF; Mastrolilli et al. 2010): without shuffles and releases its sum
    /// of completion times is at most twice the optimum.
    PrimalDual,
    /// The primal-dual order, then neighbours change places as long as that helps.
    Exchanged,
}

impl Order {
    /// All rules, from the simplest on.
    pub const ALL: [Order; 5] = [
        Order::Given,
        Order::AppId,
        Order::SmallestBottleneck,
        Order::PrimalDual,
        Order::Exchanged,
    ];

    /// The name that the literature uses.
    pub fn name(self) -> &'static str {
        match self {
            Order::Given => "given",
            Order::AppId => "application id",
            Order::SmallestBottleneck => "SEBF",
            Order::PrimalDual => "BSSF",
            Order::Exchanged => "BSSF + exchange",
        }
    }

    /// The operations' indices, first to be served first.
    pub fn of(self, instance: &Instance) -> Vec<usize> {
        let operations = instance.operations();
        let mut order: Vec<usize> = (0..operations.len()).collect();
        match self {
            Order::Given => {}
            Order::AppId => order.sort_by_key(|index| operations[*index].app),
            Order::SmallestBottleneck => {
                order.sort_by_key(|index| operations[*index].work_ns.iter().max());
            }
            Order::PrimalDual => return instance.primal_dual().order,
            Order::Exchanged => {
                order = instance.primal_dual().order;
                instance.exchange(&mut order);
            }
        }
        order
    }
}

/// What the primal-dual algorithm finds.
pub(super) struct PrimalDual {
    /// The order.
    pub order: Vec<usize>,
    /// The value of its dual solution, which no schedule beats; 1/1000000 is taken off for the
    /// rounding of floats.
    pub bound_ns: u128,
}

impl Instance {
    /// A random order for each server: what servers do that do not coordinate.
    pub fn random_per_server(&self, rng: &mut Rng) -> Vec<Vec<usize>> {
        let orders = (0..self.servers()).map(|_| {
            let mut order: Vec<usize> = (0..self.operations().len()).collect();
            for i in (1..order.len()).rev() {
                order.swap(i, rng.below(i as u64 + 1) as usize);
            }
            order
        });
        orders.collect()
    }

    /// Places operations from the last place on: on the server with the most work left, the one
    /// with the least weight for its work there. The others' weights go down by what that costs.
    pub(super) fn primal_dual(&self) -> PrimalDual {
        let operations = self.operations();
        let mut weights = vec![1.0; operations.len()];
        let mut left: Vec<usize> = (0..operations.len()).collect();
        let mut loads: Vec<u64> = (0..self.servers())
            .map(|server| operations.iter().map(|op| op.work_ns[server]).sum())
            .collect();
        let (mut backwards, mut dual) = (Vec::with_capacity(left.len()), 0.0);
        loop {
            let busiest = (0..loads.len()).max_by_key(|server| (loads[*server], Reverse(*server)));
            let Some(server) = busiest.filter(|server| loads[*server] > 0) else {
                break;
            };
            let work = |index: usize| operations[index].work_ns[server] as f64;
            let (place, price) = cheapest(&left, &weights, work);
            // The dual variable of this server and set is the price; its factor in the dual value
            // is half of the square of the sum and of the sum of squares.
            let squares: f64 = left.iter().map(|index| work(*index) * work(*index)).sum();
            let sum = loads[server] as f64;
            dual += price * (sum * sum + squares) / 2.0;
            for index in &left {
                weights[*index] -= price * work(*index);
            }
            let index = left.remove(place);
            for (load, work) in loads.iter_mut().zip(&operations[index].work_ns) {
                *load -= work;
            }
            backwards.push(index);
        }
        // What is left needs no work at all: it comes first, as it was given.
        left.extend(backwards.iter().rev());
        PrimalDual {
            order: left,
            bound_ns: (dual * (1.0 - 1e-6)) as u128,
        }
    }

    /// Lets neighbours change places where that lowers the sum of their completion times and
    /// leaves no server busy for longer, so that those behind them lose nothing; in at most
    /// [`EXCHANGE_PASSES_MAX`] passes. The order must name operations that exist.
    fn exchange(&self, order: &mut [usize]) {
        for _ in 0..EXCHANGE_PASSES_MAX {
            let mut changed = false;
            let mut free_ns = vec![0; self.servers()];
            for place in 1..order.len() {
                let (a, b) = (order[place - 1], order[place]);
                let (kept_ns, kept) = self.both(&free_ns, a, b);
                let (swapped_ns, swapped) = self.both(&free_ns, b, a);
                let mut servers = swapped.iter().zip(&kept);
                if swapped_ns < kept_ns && servers.all(|(swapped, kept)| swapped <= kept) {
                    order.swap(place - 1, place);
                    changed = true;
                }
                self.append(&mut free_ns, order[place - 1]);
            }
            if !changed {
                break;
            }
        }
    }

    /// The sum of the completion times of two operations, one after the other, on servers that are
    /// free at these times; and when the servers are free afterwards.
    fn both(&self, free_ns: &[u64], first: usize, second: usize) -> (u128, Vec<u64>) {
        let mut free_ns = free_ns.to_vec();
        let first_ns = self.append(&mut free_ns, first);
        let second_ns = self.append(&mut free_ns, second);
        (u128::from(first_ns) + u128::from(second_ns), free_ns)
    }
}

/// The place of the operation with the least weight for its work, and that weight; of equals the
/// last one. At least one of them has work.
fn cheapest(left: &[usize], weights: &[f64], work: impl Fn(usize) -> f64) -> (usize, f64) {
    let mut found = (0, f64::INFINITY);
    for (place, index) in left.iter().enumerate() {
        let work = work(*index);
        // Rounding can take a weight that is used up slightly below 0.
        let price = weights[*index].max(0.0) / work;
        if work > 0.0 && price <= found.1 {
            found = (place, price);
        }
    }
    found
}
