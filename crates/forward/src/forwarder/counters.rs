//! What the forwarder counts: answers, the bytes and device time of each application, and the
//! throughput of the back end.

use super::Forwarder;
use super::accounts::{Accounts, Moved};
use super::receive::{Dispatch, Pending};
use crate::back_end_files::Errno;
use crate::host::HostCounts;
use tidegate_sched::{CostModel, Direction, Time};
use tidegate_wire::{Outcome, Reply, Status};

/// Length of a window of measurement, ns.
const WINDOW_NS: u64 = 1_000_000_000;

/// How many of the last busy windows count.
const WINDOWS: usize = 16;

/// Bytes of an access where nothing was measured.
const ACCESS_BYTES: u64 = 1 << 20;

/// Counts since the start.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) answered: u64,
    /// With an errno, but for the absent.
    pub(super) errors: u64,
    /// Look-ups of what is not there: ordinary answers, most programs' first ones.
    pub(super) absent: u64,
    /// Requests answered from a reply slot.
    pub(super) replays: u64,
    pub(super) batches: u64,
    /// Back-end calls that move data, by direction.
    pub(super) calls: [u64; 2],
    /// What the host told last.
    pub(super) host: Option<HostCounts>,
    pub(super) total: Moved,
    pub(super) applications: Accounts,
    /// The throughput of the back end.
    pub(super) capacity: Capacity,
}

impl Forwarder {
    /// Counts a reply.
    pub(super) fn count_answer(&mut self, pending: &Pending, reply: &Reply) {
        let moved = self.counters.count(pending, reply);
        let has_run = pending.wait.has_run();
        if moved.is_none() && !has_run {
            return;
        }
        let counters = &mut self.counters;
        let (app, user) = (pending.hints.app, pending.user);
        let account = counters.applications.account(app, user);
        if let Some((direction, bytes)) = moved {
            account.moved.add(direction, bytes, reply.charged_ns);
            counters.total.add(direction, bytes, reply.charged_ns);
        }
        if has_run {
            pending.wait.end(self.now, &mut account.waits);
        }
    }
}

impl Counters {
    /// Counts a reply. Returns what data it moved, if it moved any.
    fn count(&mut self, pending: &Pending, reply: &Reply) -> Option<(Direction, u64)> {
        let counters = self;
        counters.answered += 1;
        let bytes = match &reply.result {
            Ok(Outcome::Written { len }) | Ok(Outcome::Appended { len, .. }) => *len,
            Ok(_) => u64::from(reply.payload_len),
            Err(status) => {
                match status {
                    Status::Errno(errno) if pending.looks_up && is_absence(*errno) => {
                        counters.absent += 1;
                    }
                    Status::Errno(_) => counters.errors += 1,
                    // Clients ask elsewhere, or again; programs do not see it.
                    Status::NotMySeat | Status::UnknownHandle => {}
                    Status::NewGeneration | Status::TryLater => {}
                }
                return None;
            }
        };
        let direction = match (pending.dispatch, &reply.result) {
            (Dispatch::Data(direction), _) => direction,
            (_, Ok(Outcome::Appended { .. })) => Direction::Write,
            _ => return None,
        };
        Some((direction, bytes))
    }
}

/// Whether an errno says that there is no such name, or no such attribute.
fn is_absence(errno: u16) -> bool {
    [Errno::ENOENT.0, Errno::ENODATA.0].contains(&errno)
}

/// What the back end did in a window.
#[derive(Clone, Copy, Default)]
struct Done {
    bytes: u64,
    operations: u64,
    device_ns: u64,
    ns: u64,
}

/// The throughput of the back end: as measured in the last windows in which it was busy all the
/// time, or else as the cost model predicts.
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
