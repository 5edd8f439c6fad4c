//! The throughput of the back end: as measured while the back end was busy, or else as the cost
//! model predicts.

use tidegate_sched::{CostModel, Direction, Time};

/// Length of a window of measurement, ns.
const WINDOW_NS: u64 = 1_000_000_000;

/// How many of the last busy windows count.
const WINDOWS: usize = 16;

/// Bytes of an access where nothing was measured.
const ACCESS_BYTES: u64 = 1 << 20;

/// What the back end did in a window.
#[derive(Clone, Copy, Default)]
struct Done {
    bytes: u64,
    operations: u64,
    device_ns: u64,
    ns: u64,
}

/// The last windows in which the device was busy all the time.
#[derive(Default)]
pub(super) struct Capacity {
    since: Time,
    now: Done,
    busy: [Done; WINDOWS],
    /// Windows that were ever busy.
    count: usize,
}

/// The back end's throughput, for each second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rates {
    pub(super) bytes: u64,
    pub(super) operations: u64,
    /// Whether the rates are measured. Otherwise they follow from the cost model, for accesses of
    /// 1 MiB one after the other.
    pub(super) measured: bool,
}

impl Capacity {
    /// A call to the back end is done.
    pub(super) fn finished(&mut self, now: Time, bytes: u64, operations: u64, device_ns: u64) {
        let elapsed_ns = now.since(self.since);
        if elapsed_ns >= WINDOW_NS {
            self.end(elapsed_ns);
            self.since = now;
        }
        self.now.bytes = self.now.bytes.saturating_add(bytes);
        self.now.operations += operations;
        self.now.device_ns = self.now.device_ns.saturating_add(device_ns);
    }

    fn end(&mut self, ns: u64) {
        let done = Done {
            ns,
            ..core::mem::take(&mut self.now)
        };
        // What is told of a call counts when it ends: a little of each window is the next one's.
        if done.device_ns >= ns / 10 * 9 {
            self.busy[self.count % WINDOWS] = done;
            self.count += 1;
        }
    }

    /// The rates of the back end when it was busy or, if it never was, those of the cost model.
    pub(super) fn rates(&self, cost: &CostModel) -> Rates {
        let sum = |of: fn(&Done) -> u64| -> u128 {
            self.busy.iter().map(|done| u128::from(of(done))).sum()
        };
        let ns = sum(|done| done.ns);
        let each_second =
            |amount: u128| u64::try_from(amount * 1_000_000_000 / ns).unwrap_or(u64::MAX);
        if ns > 0 {
            return Rates {
                bytes: each_second(sum(|done| done.bytes)),
                operations: each_second(sum(|done| done.operations)),
                measured: true,
            };
        }
        let read_ns = cost.access(Direction::Read, true).ns(ACCESS_BYTES);
        let write_ns = cost.access(Direction::Write, true).ns(ACCESS_BYTES);
        let ns = read_ns.max(write_ns).max(1);
        Rates {
            bytes: (u128::from(ACCESS_BYTES) * 1_000_000_000 / u128::from(ns)) as u64,
            operations: 1_000_000_000 / ns,
            measured: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_busy_windows_count() {
        let mut capacity = Capacity::default();
        let cost = CostModel::default();
        let model = capacity.rates(&cost);
        assert!(!model.measured && model.bytes > 0 && model.operations > 0);
        // Ten calls of 1 MB in each second, each of 100 ms; then one call in a second.
        for call in 1..=30 {
            capacity.finished(Time(call * 100_000_000), 1_000_000, 1, 100_000_000);
        }
        capacity.finished(Time(4_500_000_000), 1_000_000, 1, 100_000_000);
        capacity.finished(Time(6_000_000_000), 1_000_000, 1, 100_000_000);
        let rates = capacity.rates(&cost);
        assert!(rates.measured);
        assert!((9_000_000..=10_000_000).contains(&rates.bytes), "{rates:?}");
        assert!((9..=10).contains(&rates.operations), "{rates:?}");
    }
}
