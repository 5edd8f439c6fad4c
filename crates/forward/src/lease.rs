//! The lease of a seat: what its record says, how long its holder may serve, and when another may
//! take it.
//!
//! A lock alone is not ownership: a back end drops the locks of a node that it loses, and does not
//! tell the node. So a holder renews a record, past every cache, and stops by itself before the
//! record could have run out; whoever wants the seat waits until it must have. Both count on
//! their own clocks, which need not agree, only run at most a tenth too fast or too slow: the
//! holder's three quarters of the time to live are then over before the other's five quarters.

use tidegate_sched::Time;

/// What a forwarder reads of a seat's last taking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    /// The taking's number.
    pub generation: u64,
    /// A random number of the holder's process.
    pub holder: u64,
    /// Renewals since the taking.
    pub renewals: u64,
    /// Time to live, ns, as the holder was configured.
    pub ttl_ns: u64,
    /// The holder has let the seat go in order, or is known to be dead: nothing is to wait for.
    pub free: bool,
}

/// Until when a holder may serve that began to write its record at `began`.
pub fn serves_until(began: Time, ttl_ns: u64) -> Time {
    began + ttl_ns / 4 * 3
}

/// How long a record must not have changed before its seat may be taken, ns.
pub fn wait_ns(ttl_ns: u64) -> u64 {
    ttl_ns.saturating_add(ttl_ns / 4)
}

/// Looks at a record again and again until its seat may be taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeaseWatch {
    seen: Option<(LeaseRecord, Time)>,
}

impl LeaseWatch {
    /// Whether the seat may be taken; `own_ttl_ns` is waited for where the record names none.
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
