//! Keeps jobs from the back end after this forwarder's lease of its seats has run out.
//!
//! The forwarder's core refuses what it hears too late. A job may still wait for a storage thread
//! then, or its thread may have been stopped: each looks here before it begins.

use crate::clock::Zero;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_sched::Time;

/// When the lease runs out. Clones are the same fence.
#[derive(Clone, Debug)]
pub struct Fence {
    until_ns: Arc<AtomicU64>,
    zero: Zero,
    /// The time in the place of the clock's, which tests set.
    #[cfg(test)]
    set_ns: Option<Arc<AtomicU64>>,
}

impl Default for Fence {
    /// Where there are no leases: it never closes.
    fn default() -> Fence {
        Fence::new(Zero::now())
    }
}

impl Fence {
    /// Never closes until it is told a time; `zero` is the forwarder's zero of time.
    pub fn new(zero: Zero) -> Fence {
        Fence {
            until_ns: Arc::new(AtomicU64::new(u64::MAX)),
            zero,
            #[cfg(test)]
            set_ns: None,
        }
    }

    /// A fence whose time is what the returned number says.
    #[cfg(test)]
    pub(crate) fn with_time_set() -> (Fence, Arc<AtomicU64>) {
        let time = Arc::new(AtomicU64::new(0));
        let fence = Fence {
            set_ns: Some(time.clone()),
            ..Fence::default()
        };
        (fence, time)
    }

    /// Closes at that time, unless it is told a later one before.
    pub fn opens_until(&self, until: Time) {
        self.until_ns.store(until.0, Ordering::Release);
    }

    /// When it closes.
    pub fn until(&self) -> Time {
        Time(self.until_ns.load(Ordering::Acquire))
    }

    /// The time now, as the forwarder counts it.
    pub fn now(&self) -> Time {
        #[cfg(test)]
        if let Some(set) = &self.set_ns {
            return Time(set.load(Ordering::Acquire));
        }
        self.zero.time()
    }

    /// Nothing may begin any more.
    pub fn is_closed(&self) -> bool {
        let until = self.until();
        until != Time(u64::MAX) && self.now() >= until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_closes_when_its_time_has_come_and_not_without_one() {
        let fence = Fence::default();
        assert!(!fence.is_closed());
        let same = fence.clone();
        same.opens_until(Time(0));
        assert!(fence.is_closed());
        same.opens_until(Time(fence.now().0 + 60_000_000_000));
        assert!(!fence.is_closed());
    }
}
