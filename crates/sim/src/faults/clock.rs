//! Clocks of forwarders, which drift apart.

use tidegate_sched::Time;

/// A clock that may run faster or slower than the true one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Milliseconds that it counts in a true second.
    pub per_mille: u64,
    /// What it showed at the start of the run, ns.
    pub offset_ns: u64,
}

impl Clock {
    /// The true clock.
    pub const TRUE: Clock = Clock {
        per_mille: 1000,
        offset_ns: 0,
    };

    /// What it shows at a true time.
    pub fn shows(self, true_ns: u64) -> Time {
        let ns = u128::from(true_ns) * u128::from(self.per_mille) / 1000;
        Time(ns as u64 + self.offset_ns)
    }

    /// The first true time, in ns, at which it shows at least `time`.
    pub fn when(self, time: Time) -> u64 {
        let ns = u128::from(time.0.saturating_sub(self.offset_ns)) * 1000;
        ns.div_ceil(u128::from(self.per_mille)) as u64
    }
}
