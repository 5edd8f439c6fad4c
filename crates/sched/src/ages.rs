//! The guard against starving: who has waited longest, for policies whose order is not that of
//! arrival.
//!
//! A shared block of the policies. A request that has waited `age_ms_max` goes before everything
//! that the policy would rather run.

use crate::options::{Options, OptionsError};
use crate::policy::Bound;
use crate::requests::{List, Requests, Slot};
use crate::types::Time;

/// The policy's option.
pub(crate) const OPTION: &str = "age_ms_max";

/// Milliseconds unless configured: longer than a busy disk makes anybody wait who is not starved.
const DEFAULT_MS: u64 = 5000;

/// What a policy holds, in the order in which it got it.
pub(crate) struct Ages {
    list: List,
    max_ns: u64,
}

impl Ages {
    /// The limit is the option `age_ms_max`, in milliseconds.
    pub(crate) fn new(options: &Options) -> Result<Ages, OptionsError> {
        let ms = options.table.integer(OPTION, DEFAULT_MS, 1, 3_600_000)?;
        Ok(Ages {
            list: List::second(),
            max_ns: ms * 1_000_000,
        })
    }

    /// Takes a request that the policy got.
    #[inline]
    pub(crate) fn arrived(&mut self, requests: &mut Requests, slot: Slot) {
        requests.push_back(&mut self.list, slot);
    }

    /// Forgets a request that leaves the policy.
    #[inline]
    pub(crate) fn gone(&mut self, requests: &mut Requests, slot: Slot) {
        requests.unlink(&mut self.list, slot);
    }

    /// The request that must go now, whatever the policy prefers.
    #[inline]
    pub(crate) fn overdue(&self, requests: &Requests, now: Time) -> Option<Slot> {
        let oldest = requests.front(&self.list)?;
        (now.since(requests[oldest].ready) >= self.max_ns).then_some(oldest)
    }

    /// What a policy with this guard promises.
    pub(crate) fn bound(&self) -> Bound {
        Bound::Overtaking(self.max_ns)
    }
}
