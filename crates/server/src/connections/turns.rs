//! Turns of users: how many requests of one user a shard hands to the loop at a time, so that who
//! asks much keeps nobody else waiting for long.

use std::collections::BTreeMap;

/// Requests of one user in one turn, on all his connections. The loop carries out most of them at
/// once, so everybody else waits for as many of his. With 16 another user's calls took up to twice
/// as long under floods.
const REQUESTS_MAX: u32 = 4;

/// The turns of one shard. A turn ends with the pass of the shard or, if somebody has brought as
/// much as one may, when the loop has taken what was brought: it may be slower than the shard.
#[derive(Default)]
pub struct Turns {
    /// Requests that each user has brought.
    of: BTreeMap<u32, u32>,
    /// Whether the loop has been asked for the next turn, and has not given it.
    asked: bool,
}

impl Turns {
    /// Begins a pass.
    pub fn begin(&mut self) {
        if !self.asked {
            self.of.clear();
        }
    }

    /// Whether the loop must be asked for the next turn, now that somebody waits for it.
    pub fn ask(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    /// The loop has taken all that was brought before it was asked. The next turn begins with the
    /// next pass.
    pub fn granted(&mut self) {
        self.asked = false;
    }

    /// Whether a user has brought in this turn as much as one may. None: who speaks for others, and
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

    #[test]
    fn a_loop_that_is_slower_than_its_shard_gets_no_more_than_a_turn_of_one_user() {
        let mut turns = Turns::default();
        let (mut brought, mut asked) = (0, 0);
        for _ in 0..1000 {
            turns.begin();
            while !turns.is_over(Some(7)) {
                turns.count(Some(7));
                brought += 1;
            }
            asked += u32::from(turns.ask());
        }
        assert_eq!((brought, asked), (REQUESTS_MAX, 1));
        turns.granted();
        turns.begin();
        assert!(!turns.is_over(Some(7)) && turns.ask());
    }
}
