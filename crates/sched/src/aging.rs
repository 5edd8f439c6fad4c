//! Aging: the guard against starvation, for policies whose order is not that of arrival.
//!
//! Several policies share this block. A request that has waited `age_ms_max` goes before all
//! requests that the policy prefers.

use crate::options::Options;
use crate::policy::Bound;
use crate::policy_options::OptionSpec;
use crate::requests::{Index, Requests};
use crate::types::Time;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The policy's option. The default is longer than a request waits for a busy disk without being
/// starved.
pub(crate) const AGE_MS_MAX: OptionSpec = OptionSpec::integer(
    "age_ms_max",
    5000,
    [1, 3_600_000],
    "a request that has waited so many milliseconds goes before all that the policy prefers",
);

/// The requests of a policy, in the order in which the policy got them.
///
/// Removal is lazy: `gone` marks a request in an array, and its entry in `order` is swept when it
/// reaches the front, or when stale entries outnumber live ones.
pub(crate) struct Aging {
    max_ns: u64,
    /// Index and number of each request; stale if the number is not the one in `numbers`.
    order: VecDeque<(Index, u32)>,
    /// By request: the number under which it is in `order`; 0 when it left.
    numbers: Vec<u32>,
    number: u32,
    held: usize,
}

impl Aging {
    /// The limit is the option `age_ms_max`, in milliseconds.
    pub(crate) fn new(options: &Options) -> Aging {
        Aging {
            max_ns: options.table.integer(&AGE_MS_MAX) * 1_000_000,
            order: VecDeque::new(),
            numbers: Vec::new(),
            number: 0,
            held: 0,
        }
    }

    /// Takes a request that the policy got.
    #[inline]
    pub(crate) fn arrived(&mut self, index: Index) {
        if self.order.len() > 2 * self.held + 64 {
            let numbers = &self.numbers;
            self.order
                .retain(|&(index, number)| numbers[index as usize] == number);
        }
        // A number comes again after 2^32 requests, when nothing in `order` can have it any more.
        self.number = self.number.wrapping_add(1).max(1);
        if index as usize >= self.numbers.len() {
            self.numbers.resize(index as usize + 1, 0);
        }
        self.numbers[index as usize] = self.number;
        self.order.push_back((index, self.number));
        self.held += 1;
    }

    /// Forgets a request that leaves the policy.
    #[inline]
    pub(crate) fn gone(&mut self, index: Index) {
        self.numbers[index as usize] = 0;
        self.held -= 1;
    }

    /// The oldest request, if it has waited for the limit: it must go next.
    #[inline]
    pub(crate) fn overdue(&mut self, requests: &Requests, now: Time) -> Option<Index> {
        while let Some(&(index, number)) = self.order.front() {
            if self.numbers[index as usize] == number {
                let is_overdue = now.since(requests[index].ready) >= self.max_ns;
                return is_overdue.then_some(index);
            }
            self.order.pop_front();
        }
        None
    }

    /// The bound of a policy with this guard.
    pub(crate) fn bound(&self) -> Bound {
        Bound::Overtaking(self.max_ns)
    }
}
