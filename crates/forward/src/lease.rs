//! The lease of a seat: what its record says, how long its holder may serve, and when another
//! forwarder may take the seat.
//!
//! A lock alone does not make a holder safe: a back end drops the locks of a node that it cannot
//! reach, and does not tell the node. So a holder keeps renewing a record on the back end, past
//! every cache, and stops serving by itself before the lease can have ended. A forwarder that wants
//! the seat waits until the lease must have ended. The holder serves for three quarters of the time
//! to live after it began to renew, and the other forwarder waits for five quarters of it. Each
//! uses its own clock. The clocks need not show the same time, but each may run at most a tenth too
//! fast or too slow; the holder then stops before the other takes the seat.

use tidegate_sched::Time;

/// The record of a seat's lease, as a forwarder reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    /// The seat's generation since this holder took it.
    pub generation: u64,
    /// A random number of the holder's process.
    pub holder: u64,
    /// How often the holder has renewed the lease since it took the seat.
    pub renewals: u64,
    /// Time to live, ns, as the holder's configuration says.
    pub ttl_ns: u64,
    /// Whether the holder has released the seat, or is known to be dead. Another forwarder then
    /// need not wait.
    pub free: bool,
}

/// Until when a holder may serve if it began to write its record at `began`.
pub fn serves_until(began: Time, ttl_ns: u64) -> Time {
    began + ttl_ns / 4 * 3
}

/// How long another forwarder must see a record unchanged before it may take the seat, ns.
pub fn wait_ns(ttl_ns: u64) -> u64 {
    ttl_ns.saturating_add(ttl_ns / 4)
}

/// What a forwarder that wants a seat has seen of the seat's record so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeaseWatch {
    seen: Option<(LeaseRecord, Time)>,
}

impl LeaseWatch {
    /// Whether the forwarder may take the seat, now that it has read `record`; at once where there
    /// is no record. `own_ttl_ns` is the time to live that the forwarder itself has configured, ns.
    /// The longer one of it and the record's counts.
    pub fn may_take(&mut self, now: Time, record: Option<LeaseRecord>, own_ttl_ns: u64) -> bool {
        let Some(record) = record.filter(|record| !record.free) else {
            self.seen = None;
            return true;
        };
        match self.seen {
            Some((seen, since)) if seen == record => {
                now >= since + wait_ns(record.ttl_ns.max(own_ttl_ns))
            }
            _ => {
                self.seen = Some((record, now));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: u64 = 1_000;

    fn record(renewals: u64) -> Option<LeaseRecord> {
        Some(LeaseRecord {
            generation: 3,
            holder: 7,
            renewals,
            ttl_ns: TTL,
            free: false,
        })
    }

    #[test]
    fn a_seat_is_taken_after_its_record_has_rested() {
        let mut watch = LeaseWatch::default();
        assert!(!watch.may_take(Time(100), record(1), TTL));
        assert!(!watch.may_take(Time(1_349), record(1), TTL));
        assert!(watch.may_take(Time(1_350), record(1), TTL));
        // A renewal begins the wait anew.
        assert!(!watch.may_take(Time(1_351), record(2), TTL));
        assert!(!watch.may_take(Time(2_600), record(2), TTL));
        assert!(watch.may_take(Time(2_601), record(2), TTL));
    }

    #[test]
    fn a_seat_that_was_let_go_is_taken_at_once() {
        let mut watch = LeaseWatch::default();
        assert!(watch.may_take(Time(0), None, TTL));
        let free = record(1).map(|record| LeaseRecord {
            free: true,
            ..record
        });
        assert!(watch.may_take(Time(0), free, TTL));
    }

    #[test]
    fn the_longer_time_to_live_counts() {
        let mut watch = LeaseWatch::default();
        assert!(!watch.may_take(Time(0), record(1), 4 * TTL));
        assert!(!watch.may_take(Time(1_250), record(1), 4 * TTL));
        assert!(watch.may_take(Time(5_000), record(1), 4 * TTL));
    }

    #[test]
    fn clocks_that_run_a_tenth_wrong_leave_no_moment_with_two_holders() {
        // A holder whose clock is slow takes longer than it thinks; a waiter whose clock is fast
        // waits shorter. Both began at once, which is the worst case.
        let holds = serves_until(Time(0), TTL).0 * 11 / 10;
        let waits = wait_ns(TTL) * 9 / 10;
        assert!(holds < waits, "{holds} {waits}");
    }
}
