//! Clocks of forwarders, which run apart.

use tidegate_sched::Time;

/// A clock that does not run as the true one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Its thousandths of a second in a true one.
    pub per_mille: u64,
    /// What it showed at the beginning, ns.
    pub offset_ns: u64,
}

impl Clock {
    /// The true one.
    pub const TRUE: Clock = Clock {
        per_mille: 1000,
        offset_ns: 0,
    };

    /// What it shows.
    pub fn shows(self, true_ns: u64) -> Time {
        let ns = u128::from(true_ns) * u128::from(self.per_mille) / 1000;
        Time(ns as u64 + self.offset_ns)
    }

    /// The first moment at which it shows at least that.
    pub fn when(self, time: Time) -> u64 {
        let ns = u128::from(time.0.saturating_sub(self.offset_ns)) * 1000;
        ns.div_ceil(u128::from(self.per_mille)) as u64
    }
}
