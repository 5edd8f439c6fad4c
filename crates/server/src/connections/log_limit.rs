//! How many lines of the log one peer may cause.

use super::doors::Whose;
use std::collections::BTreeMap;
use tidegate_sched::Time;

/// Lines about one peer in a period.
const LINES_MAX: u32 = 20;
/// A period, in ns.
const PERIOD_NS: u64 = 10_000_000_000;
/// Peers that are told apart; further ones count as one.
const PEERS_MAX: usize = 256;

/// Counts the lines about each peer. Lines beyond the bound are left out and counted.
#[derive(Default)]
pub struct LogLimit {
    of: BTreeMap<Option<Whose>, Period>,
}

struct Period {
    until: Time,
    lines: u32,
    left_out: u64,
}

impl LogLimit {
    /// Whether a line about a peer may be written.
    pub fn has_room(&mut self, whose: &Whose, now: Time) -> bool {
        let known = self.of.len() < PEERS_MAX || self.of.contains_key(&Some(whose.clone()));
        let key = known.then(|| whose.clone());
        let period = self.of.entry(key).or_insert_with(|| Period {
            until: now + PERIOD_NS,
            lines: 0,
            left_out: 0,
        });
        let room = period.lines < LINES_MAX;
        match room {
            true => period.lines += 1,
            false => period.left_out += 1,
        }
        room
    }

    /// Ends the periods that are over. Returns how many lines each peer's left out, if any; None
    /// stands for peers that were not told apart.
    pub fn over(&mut self, now: Time) -> Vec<(Option<Whose>, u64)> {
        let mut left_out = Vec::new();
        self.of.retain(|whose, period| {
            let over = period.until <= now;
            if over && period.left_out > 0 {
                left_out.push((whose.clone(), period.left_out));
            }
            !over
        });
        left_out
    }

    /// Writes how many lines were left out in the periods that are over.
    pub fn tell(&mut self, now: Time) {
        for (whose, left_out) in self.over(now) {
            let peer = whose.map_or("many peers".to_string(), |whose| whose.to_string());
            tracing::warn!(peer, left_out, "lines about connections were left out");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_counted() {
        let mut limit = LogLimit::default();
        let at = |ms: u64| Time(ms * 1_000_000);
        let room = |limit: &mut LogLimit, uid| limit.has_room(&Whose::User(uid), at(1));
        let written = (0..1000).filter(|_| room(&mut limit, 7)).count();
        assert_eq!(written, LINES_MAX as usize);
        assert!(room(&mut limit, 8), "another user's lines are his");
        assert_eq!(limit.over(at(9_000)), []);
        let left_out = 1000 - u64::from(LINES_MAX);
        assert_eq!(limit.over(at(10_001)), [(Some(Whose::User(7)), left_out)]);
        for uid in 0..100_000 {
            limit.has_room(&Whose::User(uid), at(20_000));
        }
        assert_eq!(limit.of.len(), PEERS_MAX + 1);
        let all = limit.over(at(40_000));
        assert!(matches!(all[..], [(None, _)]), "{all:?}");
    }
}
