//! The guard against starving: who has waited longest, for policies whose order is not that of
//! arrival.
//!
//! A shared block of the policies. A request that has waited `age_ms_max` goes before everything
//! that the policy would rather run.

use crate::options::Options;
use crate::policy::Bound;
use crate::policy_options::OptionSpec;
use crate::requests::{Index, Requests};
use crate::types::Time;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The policy's option. The default is longer than a busy disk makes anybody wait who is not
/// starved.
pub(crate) const AGE_MS_MAX: OptionSpec = OptionSpec::integer(
    "age_ms_max",
    5000,
    [1, 3_600_000],
    "a request that has waited so many milliseconds goes before all that the policy prefers",
);

/// What a policy holds, in the order in which it got it.
///
/// Who leaves is only marked, in an array that is small beside the requests; marks are cleared
/// away when they reach the front, or are more than what is left.
pub(crate) struct Aging {
    max_ns: u64,
    /// The index of a request, and its number.
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

    /// The request that must go now, whatever the policy prefers.
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

    /// What a policy with this guard promises.
    pub(crate) fn bound(&self) -> Bound {
        Bound::Overtaking(self.max_ns)
    }
}
