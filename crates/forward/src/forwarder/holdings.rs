//! How many opens and locks the sessions of one user may have together, if he is not trusted, and
//! those of a mount with limits.

use super::Forwarder;
use super::sessions::Client;

/// Opens that one user may have.
pub(crate) const OPENS_OF_USER_MAX: u32 = 1 << 17;

/// Locks that one user may hold or wait for. Of one file each costs every other one's request.
pub(crate) const LOCKS_OF_USER_MAX: u32 = 1 << 14;

/// How many more a client may have before all of its user's are counted again. So a user can have
/// that many more in each of his sessions.
const STEP: u32 = 64;

impl Forwarder {
    /// Whether a client that has `own` of something may have one more, where a user's clients may
    /// have `of_user_max` together. `count` says how many a client has.
    pub(super) fn may_have_more(
        &self,
        client: u64,
        own: u32,
        of_user_max: u32,
        count: impl Fn(u64) -> u32,
    ) -> bool {
        let Some(client) = self
            .clients
            .get(&client)
            .filter(|it| !it.standing.has_reserve())
        else {
            return true;
        };
        if own == 0 || !own.is_multiple_of(STEP) {
            return true;
        }
        let same = |it: &&Client| it.standing.shares_with(&client.standing);
        let his = self.clients.values().filter(same).map(|it| count(it.id));
        his.fold(0, u32::saturating_add) < of_user_max
    }
}
