//! What is kept of each application and group that shares count, and of the levels at which they
//! stand beside each other.

use crate::flat_btree::FlatBTree;
use crate::share::Share;
use crate::types::{AppId, Time};

/// What others gave counts against reservation and limit for so long at most.
pub(super) const TOLD_NS_MAX: u64 = 1_000_000_000;

/// In such a time half of what was given before is forgotten. Short ones follow chance: processes
/// that go from forwarder to forwarder then gather in waves, and miss what they would get
/// elsewhere.
pub(super) const HALF_NS: u64 = 1_500_000_000;

/// It is forgotten in ticks, so that it does not matter how often one looks.
const TICKS: u64 = 64;
const TICK_NS: u64 = HALF_NS / TICKS;

/// By ticks: how many of 2^32 are kept, 2^(-1/64) in each.
const KEPT: [u64; TICKS as usize] = {
    let mut kept = [1 << 32; TICKS as usize];
    let mut tick = 1;
    while tick < kept.len() {
        kept[tick] = (kept[tick - 1] * 4_248_701_965) >> 32;
        tick += 1;
    }
    kept
};

/// For so long a reservation waits for what clients tell.
const UNKNOWN_NS_MAX: u64 = 2_000_000_000;

/// The longest time that a client is said to have been away, and some more.
const AWAY_NS: u64 = 1_000_000 << 16;

/// So much of what an application was given here can be told later: by clients that stay away as
/// long as they can say.
const UNTOLD_NS_MAX: u64 = 66_000_000_000;

/// What is known of an application's first request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Next {
    /// What it takes here.
    pub(crate) cost_ns: u64,
    /// By how much device time of others it is delayed at most.
    pub(crate) delay_ns_max: u64,
    /// When it should be done.
    pub(crate) deadline: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeState {
    /// Nothing of it can run.
    Idle,
    /// At its level, by its tag.
    Active,
    /// Until its limit allows more.
    Throttled,
}

/// Where an application or group stands with its reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reservation {
    None,
    /// Has its reservation until then.
    MetUntil(u64),
    /// Is owed, and due by then.
    Due(u64),
}

/// An application, or a group.
pub(super) struct Node {
    pub(super) app: AppId,
    /// The group in which it counts.
    pub(super) group: Option<u32>,
    /// The group that it is.
    pub(super) is_group: Option<u32>,
    pub(super) share: Share,
    /// When it came first.
    pub(super) here_since: Option<Time>,
    /// Requests, for a group those of its applications.
    pub(super) waiting: u32,
    pub(super) state: NodeState,
    /// Start tag of its first request, finish tag of the last one when it has none.
    pub(super) tag: u128,
    /// Whether it keeps its tag when it is placed: it stood at its level until now.
    pub(super) stayed: bool,
    /// Its first request, and by how much device time of others the tag is delayed.
    pub(super) delayed: Option<(Next, u64)>,
    /// How far behind virtual time it may begin again: what others gave while it was away.
    pub(super) behind: u128,
    /// When its reservation owes it the next request, and its limit allows it.
    pub(super) reservation_at: u64,
    pub(super) limit_at: u64,
    pub(super) reservation: Reservation,
    /// Lately: what clients told, of others and of this forwarder.
    pub(super) told: Recent,
    /// Whether that is among what is known of all.
    pub(super) is_counted: bool,
    /// When one did last.
    pub(super) told_at: Time,
    /// Lately: what others gave, times how long the client was away meanwhile in units of
    /// [`AWAY_NS`]; and what they gave.
    pub(super) away: Recent,
    /// Lately: what others told themselves, and what was given here.
    pub(super) heard: Recent,
    /// Device time of others that clients told, less what the others told themselves.
    pub(super) told_ns: i64,
    /// How long the device worked for it, less what clients told of it.
    untold_ns: u64,
    /// When its first request should be done.
    pub(super) deadline: u64,
    /// In what order it came to rest.
    pub(super) idle_mark: u64,
}

/// The groups and single applications, or the applications of a group.
pub(super) struct Level {
    pub(super) active: FlatBTree<(u128, u32), ()>,
    /// Virtual time, and the latest finish tag, to which it goes when nothing waits.
    pub(super) now: u128,
    pub(super) latest: u128,
    pub(super) waiting: u32,
    /// Lately: what clients told of all that stand here.
    pub(super) told: Recent,
}

impl Node {
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
            reservation: Reservation::None,
            told: Recent::default(),
            is_counted: false,
            told_at: Time(0),
            away: Recent::default(),
            heard: Recent::default(),
            told_ns: 0,
            untold_ns: 0,
            deadline: 0,
            idle_mark: 0,
        }
    }
}

impl Node {
    /// The device worked so long for it.
    pub(super) fn gives(&mut self, device_ns: u64) {
        self.untold_ns = self.untold_ns.saturating_add(device_ns).min(UNTOLD_NS_MAX);
    }

    /// How much of what a client says it was given here can be true: all clients together cannot
    /// have more than was given. Who says more would have others give little in proportion.
    pub(super) fn was_given(&mut self, here_ns: u64) -> u64 {
        let here_ns = here_ns.min(self.untold_ns);
        self.untold_ns -= here_ns;
        here_ns
    }

    /// Takes what a client tells: what others gave and what was given here in so many ms.
    pub(super) fn hears(&mut self, now: Time, others_ns: u64, here_ns: u64, away_ms: u16) {
        let here_since = *self.here_since.get_or_insert(now);
        self.told_at = now;
        self.told.add(now, others_ns, here_ns);
        let away_ns = u64::from(away_ms) * 1_000_000;
        // Who went before the application was here was here when this forwarder was another one.
        if away_ns <= now.0.saturating_sub(here_since.0) {
            let times_away = scaled(others_ns, away_ns, AWAY_NS);
            self.away.add(now, times_away, others_ns);
        }
    }

    /// Adds what it was told just now to what is known of all at its level: when it can be believed
    /// first, all that it was told.
    pub(super) fn tells(&mut self, now: Time, told: (u64, u64), all: &mut Recent) {
        let is_believed = self.believed(now) != (0, 0);
        match (is_believed, self.is_counted) {
            (true, true) => all.add(now, told.0, told.1),
            (true, false) => all.join(now, self.told),
            (false, _) => {}
        }
        self.is_counted = is_believed;
    }

    /// From when its reservation counts: at most so much of it is owed for the past. What others
    /// gave while clients were away is not known yet, and counts later.
    pub(super) fn reservation_from(&mut self, now: Time, credit_ns: u64) -> u64 {
        let unknown_ns = self.away_ns(now).min(UNKNOWN_NS_MAX);
        let past_ns = credit_ns.saturating_add(unknown_ns);
        self.reservation_at.max(now.0.saturating_sub(past_ns))
    }

    /// From when its limit counts, which may be passed by what it gives in `burst_ns`. While
    /// clients are away others give, and what they tell of it must find that time.
    pub(super) fn limit_from(&mut self, now: Time, burst_ns: u64) -> u64 {
        let unknown_ns = self.away_ns(now).min(UNKNOWN_NS_MAX);
        let past_ns = burst_ns.saturating_add(unknown_ns);
        self.limit_at.max(now.0.saturating_sub(past_ns))
    }

    /// How long clients stay away, before they tell of it.
    pub(super) fn away_ns(&mut self, now: Time) -> u64 {
        let (times_away, others_ns) = self.away.now(now);
        scaled(times_away, AWAY_NS, others_ns)
    }

    /// What clients told of others and of this forwarder, as far as it can be believed. Who stays
    /// away for long comes late to tell it, so at first only those come who were away for a short
    /// time: it must have been watched for longer than they stay away. And when nobody comes any
    /// more, what others gave may have ended: the last requests must not wait for ever.
    pub(super) fn believed(&mut self, now: Time) -> (u64, u64) {
        let away_ns = self.away_ns(now);
        let watched_ns = self
            .here_since
            .map_or(0, |since| now.0.saturating_sub(since.0));
        match watched_ns >= away_ns.saturating_mul(2) {
            true => {
                let (others_ns, here_ns) = self.told.now(now);
                let quiet_ns = now.0.saturating_sub(self.told_at.0);
                (others_ns >> (quiet_ns / HALF_NS).min(63), here_ns)
            }
            false => (0, 0),
        }
    }
}

/// Device time of others and of this forwarder lately: half of both is forgotten in [`HALF_NS`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recent {
    others_ns: u64,
    here_ns: u64,
    at: u64,
}

impl Recent {
    /// What is left by now: of others, of this forwarder.
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

    /// Adds what another one has.
    pub(super) fn join(&mut self, now: Time, mut other: Recent) {
        let ((others, here), more) = (self.now(now), other.now(now));
        self.others_ns = others.saturating_add(more.0);
        self.here_ns = here.saturating_add(more.1);
    }

    pub(super) fn add(&mut self, now: Time, others_ns: u64, here_ns: u64) {
        let (others, here) = self.now(now);
        self.others_ns = others.saturating_add(others_ns.min(TOLD_NS_MAX));
        self.here_ns = here.saturating_add(here_ns.min(TOLD_NS_MAX));
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
        recent.add(Time(9 * HALF_NS), 2 * TOLD_NS_MAX, 0);
        assert!(recent.now(Time(9 * HALF_NS)).0 <= TOLD_NS_MAX + 4000);
        assert_eq!(recent.now(Time(200 * HALF_NS)), (0, 0));
        // Time that goes back changes nothing.
        assert_eq!(recent.now(Time(0)), (0, 0));
    }
}
