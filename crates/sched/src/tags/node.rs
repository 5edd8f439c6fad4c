//! The state of one application or group, and of the level at which it competes with others.

use super::SCALE;
use super::limited::Limited;
use crate::flat_btree::FlatBTree;
use crate::share::Share;
use crate::types::{AppId, Time};

/// Service by other forwarders moves the tags of reservation and limit at most so far beyond now.
pub(super) const REPORTED_NS_MAX: u64 = 1_000_000_000;

/// The half-life of the counts in [`Recent`]. With a shorter one the ratio of service elsewhere to
/// service here follows chance: processes that go from forwarder to forwarder then gather in waves,
/// and lose service.
pub(super) const HALF_NS: u64 = 1_500_000_000;

/// Counts decay in ticks, so that the result does not depend on how often they are read.
const TICKS: u64 = 64;
const TICK_NS: u64 = HALF_NS / TICKS;

/// The part, of 2^32, that is left after so many ticks; each tick leaves 2^(-1/64).
const KEPT: [u64; TICKS as usize] = {
    let mut kept = [1 << 32; TICKS as usize];
    let mut tick = 1;
    while tick < kept.len() {
        kept[tick] = (kept[tick - 1] * 4_248_701_965) >> 32;
        tick += 1;
    }
    kept
};

/// Reservations and limits allow at most so long for the reports of clients that are away.
const UNKNOWN_NS_MAX: u64 = 2_000_000_000;

/// The unit of [`Node::away`]; longer than any time that a client can report to have been away.
const AWAY_NS: u64 = 1_000_000 << 16;

/// Clients can later confirm at most so much device time that this forwarder gave: as much as it
/// gives in the longest time that a client can report to have been away.
const UNCONFIRMED_NS_MAX: u64 = 66_000_000_000;

/// An application's first request, as far as the tags need it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Next {
    /// Its cost on this forwarder's device.
    pub(crate) cost_ns: u64,
    /// The largest delay that service elsewhere can cause.
    pub(crate) delay_ns_max: u64,
    /// Its deadline.
    pub(crate) deadline: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeState {
    /// It has no request that could run, or is detached while its tags change.
    Idle,
    /// It competes at its level by its tag.
    Active,
    /// Its limit holds it back.
    Throttled,
}

/// A first request, and the delay that is part of its node's tag.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delayed {
    pub(super) first: Next,
    pub(super) ns: u64,
    /// The node's weight when the delay became part of the tag.
    pub(super) weight: u32,
}

impl Delayed {
    /// How far so much of the delay moved the tag.
    pub(super) fn tag_of(self, ns: u64) -> u128 {
        u128::from(ns) * SCALE / u128::from(self.weight)
    }
}

/// The state of a node's reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reservation {
    /// It has none, or nothing to run.
    None,
    /// It is met until this time.
    MetUntil(u64),
    /// It is due; the number orders due reservations: the deadline, or the time it became due.
    Due(u64),
}

/// An application, or a group.
pub(super) struct Node {
    pub(super) app: AppId,
    /// The number of the group that it belongs to.
    pub(super) group: Option<u32>,
    /// For the node of a group: the group's number.
    pub(super) is_group: Option<u32>,
    pub(super) share: Share,
    /// When its first request arrived.
    pub(super) here_since: Option<Time>,
    /// Requests that wait; for a group those of its applications.
    pub(super) waiting: u32,
    pub(super) state: NodeState,
    /// The start tag of its first request; without requests the finish tag of its last one.
    pub(super) tag: u128,
    /// Whether it keeps its tag when it is placed again: it was active until it was detached.
    pub(super) stayed: bool,
    /// Its first request, and the delay that is part of the tag.
    pub(super) delayed: Option<Delayed>,
    /// How far behind the virtual time it may start again: the service it got elsewhere meanwhile.
    pub(super) behind: u128,
    /// When its next request is due by its reservation, and when its limit allows that request.
    pub(super) reservation_at: u64,
    pub(super) limit_at: u64,
    /// For how long its limit has held it back.
    pub(super) limited: Limited,
    pub(super) reservation: Reservation,
    /// What clients reported lately: service by other forwarders, and by this one.
    pub(super) reported: Recent,
    /// Whether that is part of its level's counts.
    pub(super) is_counted: bool,
    /// When a client reported last.
    pub(super) reported_at: Time,
    /// Lately: the sum of service elsewhere times the client's time away, in units of [`AWAY_NS`];
    /// and the sum of service elsewhere. Their ratio is the mean time away.
    pub(super) away: Recent,
    /// Lately: service that other forwarders reported themselves, and service given here.
    pub(super) peers: Recent,
    /// Device time elsewhere that clients reported, less what the other forwarders reported.
    pub(super) unmatched_ns: i64,
    /// Device time that it had here, less what clients have confirmed of it.
    unconfirmed_ns: u64,
    /// The deadline of its first request.
    pub(super) deadline: u64,
    /// Its number in the order of becoming idle; 0 while it is not in the list of idle ones.
    pub(super) idle_mark: u64,
}

/// Nodes that compete with each other: all groups and single applications, or the applications of
/// one group.
pub(super) struct Level {
    pub(super) active: FlatBTree<(u128, u32), ()>,
    /// The virtual time, and the latest tag. The virtual time jumps to it when nothing waits.
    pub(super) now: u128,
    pub(super) latest: u128,
    pub(super) waiting: u32,
    /// What clients of all nodes of this level reported lately.
    pub(super) reported: Recent,
}

impl Node {
    /// A delay of its first request, by its weight.
    pub(super) fn delayed_by(&self, first: Next, ns: u64) -> Delayed {
        Delayed {
            first,
            ns,
            weight: self.share.weight,
        }
    }

    pub(super) fn new(app: AppId, group: Option<u32>, share: Share) -> Node {
        Node {
            app,
            group,
            is_group: None,
            share,
            here_since: None,
            waiting: 0,
            state: NodeState::Idle,
            tag: 0,
            stayed: false,
            delayed: None,
            behind: 0,
            reservation_at: 0,
            limit_at: 0,
            limited: Limited::default(),
            reservation: Reservation::None,
            reported: Recent::default(),
            is_counted: false,
            reported_at: Time(0),
            away: Recent::default(),
            peers: Recent::default(),
            unmatched_ns: 0,
            unconfirmed_ns: 0,
            deadline: 0,
            idle_mark: 0,
        }
    }
}

impl Node {
    /// Adds device time that it had here.
    pub(super) fn add_device_time(&mut self, device_ns: u64) {
        self.unconfirmed_ns = self
            .unconfirmed_ns
            .saturating_add(device_ns)
            .min(UNCONFIRMED_NS_MAX);
    }

    /// The part of a client's report about this forwarder that can be true: all clients together
    /// cannot have had more than the device gave. A client that reports too much would make service
    /// elsewhere seem small in proportion.
    pub(super) fn credible_ns(&mut self, here_ns: u64) -> u64 {
        let here_ns = here_ns.min(self.unconfirmed_ns);
        self.unconfirmed_ns -= here_ns;
        here_ns
    }

    /// Adds a client's report: what other forwarders and this one gave in `away_ms`.
    pub(super) fn add_report(&mut self, now: Time, others_ns: u64, here_ns: u64, away_ms: u16) {
        let here_since = *self.here_since.get_or_insert(now);
        self.reported_at = now;
        self.reported.add(now, others_ns, here_ns);
        let away_ns = u64::from(away_ms) * 1_000_000;
        // A client that went away before the application's first request here knew an earlier
        // forwarder of this seat.
        if away_ns <= now.0.saturating_sub(here_since.0) {
            let times_away = scaled(others_ns, away_ns, AWAY_NS);
            self.away.add(now, times_away, others_ns);
        }
    }

    /// Adds the report of just now to the counts of its level, `all`. The first time that its
    /// reports are trusted, all of them are added.
    pub(super) fn add_to_level(&mut self, now: Time, reported: (u64, u64), all: &mut Recent) {
        let is_trusted = self.trusted(now) != (0, 0);
        match (is_trusted, self.is_counted) {
            (true, true) => all.add(now, reported.0, reported.1),
            (true, false) => all.join(now, self.reported),
            (false, _) => {}
        }
        self.is_counted = is_trusted;
    }

    /// The reservation's tag, moved up to now less `credit_ns`: an older claim has expired. The
    /// time that clients are away is added to the credit, because they have yet to report what
    /// other forwarders gave in it.
    pub(super) fn reservation_from(&mut self, now: Time, credit_ns: u64) -> u64 {
        let unknown_ns = self.away_ns(now).min(UNKNOWN_NS_MAX);
        let past_ns = credit_ns.saturating_add(unknown_ns);
        self.reservation_at.max(now.0.saturating_sub(past_ns))
    }

    /// The limit's tag, moved up to now less `burst_ns`. The time that clients are away is added,
    /// as for the reservation.
    pub(super) fn limit_from(&mut self, now: Time, burst_ns: u64) -> u64 {
        let unknown_ns = self.away_ns(now).min(UNKNOWN_NS_MAX);
        let past_ns = burst_ns.saturating_add(unknown_ns);
        self.limit_at.max(now.0.saturating_sub(past_ns))
    }

    /// The mean time for which clients stay away before they report.
    pub(super) fn away_ns(&mut self, now: Time) -> u64 {
        let (times_away, others_ns) = self.away.now(now);
        scaled(times_away, AWAY_NS, others_ns)
    }

    /// The service elsewhere and here that clients reported, as far as it is trusted. A client that
    /// stays away for long reports late, so the first reports come from clients with short absences
    /// and are not typical: reports are used after two mean absences of history. Without new
    /// reports service elsewhere halves every [`HALF_NS`], because it may have ended.
    pub(super) fn trusted(&mut self, now: Time) -> (u64, u64) {
        let away_ns = self.away_ns(now);
        let watched_ns = self
            .here_since
            .map_or(0, |since| now.0.saturating_sub(since.0));
        match watched_ns >= away_ns.saturating_mul(2) {
            true => {
                let (others_ns, here_ns) = self.reported.now(now);
                let quiet_ns = now.0.saturating_sub(self.reported_at.0);
                (others_ns >> (quiet_ns / HALF_NS).min(63), here_ns)
            }
            false => (0, 0),
        }
    }
}

/// Device time of other forwarders and of this one lately: both decay by half in [`HALF_NS`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recent {
    others_ns: u64,
    here_ns: u64,
    at: u64,
}

impl Recent {
    /// The counts by now: other forwarders, this one.
    pub(super) fn now(&mut self, now: Time) -> (u64, u64) {
        let passed_ns = now.0.saturating_sub(self.at);
        if passed_ns >= TICK_NS {
            let ticks = passed_ns / TICK_NS;
            self.at += ticks * TICK_NS;
            let kept = KEPT[(ticks % TICKS) as usize];
            for ns in [&mut self.others_ns, &mut self.here_ns] {
                *ns = scaled(*ns >> (ticks / TICKS).min(63), kept, 1 << 32);
            }
        }
        (self.others_ns, self.here_ns)
    }

    /// Adds the counts of another one.
    pub(super) fn join(&mut self, now: Time, mut other: Recent) {
        let ((others, here), more) = (self.now(now), other.now(now));
        self.others_ns = others.saturating_add(more.0);
        self.here_ns = here.saturating_add(more.1);
    }

    pub(super) fn add(&mut self, now: Time, others_ns: u64, here_ns: u64) {
        let (others, here) = self.now(now);
        self.others_ns = others.saturating_add(others_ns.min(REPORTED_NS_MAX));
        self.here_ns = here.saturating_add(here_ns.min(REPORTED_NS_MAX));
    }
}

/// `amount * part / whole`.
pub(super) fn scaled(amount: u64, part: u64, whole: u64) -> u64 {
    let whole = whole.max(1);
    match amount.checked_mul(part) {
        // The usual case; a division of 128 bits takes many times as long.
        Some(product) => product / whole,
        None => (u128::from(amount) * u128::from(part) / u128::from(whole)) as u64,
    }
}

/// The level at which a node stands.
pub(super) fn level_of(node: &Node) -> usize {
    node.group.map_or(0, |group| group as usize + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_what_was_given_is_forgotten_in_time() {
        let mut recent = Recent::default();
        recent.add(Time(5), 1_000_000, 4);
        assert_eq!(recent.now(Time(5)), (1_000_000, 4));
        let mut often = recent;
        for look in 0..1000 {
            often.now(Time(5 + look * HALF_NS / 1000));
        }
        let (half, _) = recent.now(Time(5 + HALF_NS + TICK_NS));
        assert!((485_000..=500_000).contains(&half), "{half}");
        let (often_half, _) = often.now(Time(5 + HALF_NS + TICK_NS));
        assert!(often_half.abs_diff(half) < 100);
        recent.add(Time(9 * HALF_NS), 2 * REPORTED_NS_MAX, 0);
        assert!(recent.now(Time(9 * HALF_NS)).0 <= REPORTED_NS_MAX + 4000);
        assert_eq!(recent.now(Time(200 * HALF_NS)), (0, 0));
        // Time that goes back changes nothing.
        assert_eq!(recent.now(Time(0)), (0, 0));
    }
}
