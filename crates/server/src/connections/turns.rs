//! Turns of users: how many requests of one user a shard takes in one pass, so that who asks much
//! keeps nobody else waiting for long.

use std::collections::BTreeMap;

/// Requests of one user in one pass, on all his connections. The loop carries out most of them at
/// once, so everybody else waits for as many of his.
const REQUESTS_MAX: u32 = 16;

/// The turns of one pass.
#[derive(Default)]
pub struct Turns {
    /// Requests that each user has brought.
    of: BTreeMap<u32, u32>,
}

impl Turns {
    /// Begins a pass.
    pub fn begin(&mut self) {
        self.of.clear();
    }

    /// Whether a user has brought in this pass as much as one may. None: who speaks for others, and
    /// has no bound.
    pub fn is_over(&self, user: Option<u32>) -> bool {
        user.and_then(|uid| self.of.get(&uid))
            .is_some_and(|brought| *brought >= REQUESTS_MAX)
    }

    /// Counts a request.
    pub fn count(&mut self, user: Option<u32>) {
        if let Some(uid) = user {
            *self.of.entry(uid).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_turn_in_each_pass() {
        let mut turns = Turns::default();
        for _ in 0..2 {
            turns.begin();
            for _ in 0..REQUESTS_MAX {
                assert!(!turns.is_over(Some(7)));
                turns.count(Some(7));
                turns.count(None);
            }
            assert!(turns.is_over(Some(7)));
            assert!(!turns.is_over(Some(8)) && !turns.is_over(None));
        }
    }
}
