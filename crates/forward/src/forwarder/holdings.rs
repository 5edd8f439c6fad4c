//! What one holder may have, in all of its sessions together. A holder is a user who is not
//! trusted, or one node: the mounts whose secrets have limits and the same name.

use super::Forwarder;
use super::standing::Standing;
use crate::reply_table::CLIENTS_MAX;
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::format;
use tidegate_sched::Time;

/// How much of something one holder may have.
#[derive(Clone, Copy)]
pub(crate) struct Bound {
    pub(crate) of_user: u32,
    /// A node serves many users, and has as much as a mount without limits.
    pub(crate) of_node: u32,
}

/// Opens.
pub(crate) const OPENS: Bound = Bound {
    of_user: 1 << 17,
    of_node: 1 << 20,
};

/// Locks that are held or waited for.
pub(crate) const LOCKS: Bound = Bound {
    of_user: 1 << 14,
    of_node: 1 << 16,
};

/// How many more a client may have before all of its holder's are counted again. So a holder can
/// have that many more in each of its sessions.
pub(super) const STEP: u32 = 64;

/// Of so many bounds of nodes the log tells at most.
const BOUNDS_TOLD_MAX: usize = 256;

/// What the log has said about refusals.
#[derive(Default)]
pub(super) struct Refusals {
    /// When it may next tell of a refused caller.
    pub(super) tells_callers: Time,
    /// The bounds of nodes of which it has told, by the secret's name and what is bounded.
    bounds: BTreeSet<(Box<str>, &'static str)>,
}

impl Forwarder {
    /// Whether a client that has `own` of something may have one more. `count` says how many a
    /// client has.
    pub(super) fn may_have_more(
        &self,
        client: u64,
        own: u32,
        bound: Bound,
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
        let max = match client.standing.is_node() {
            true => bound.of_node,
            false => bound.of_user,
        };
        let clients = self.clients.values();
        let its = clients
            .filter(|it| it.standing.shares_with(&client.standing))
            .map(|it| count(it.id));
        its.fold(0, u32::saturating_add) < max
    }

    /// Tells once, if the client is a node, that it has all it may have of something, and with
    /// which error more is refused.
    pub(super) fn has_all_of(
        &mut self,
        client: u64,
        what: &'static str,
        bound: Bound,
        error: &'static str,
    ) {
        if let Some(client) = self.clients.get(&client) {
            let standing = client.standing.clone();
            self.tell_of_bound(&standing, what, bound.of_node as usize, error);
        }
    }

    fn tell_of_bound(
        &mut self,
        standing: &Standing,
        what: &'static str,
        max: usize,
        error: &'static str,
    ) {
        let Some(name) = &standing.secret else {
            return;
        };
        let bounds = &mut self.refusals.bounds;
        if bounds.len() < BOUNDS_TOLD_MAX && bounds.insert((name.clone(), what)) {
            let text = format!(
                "the mounts with the secret {name} have all {what} that secrets of one name may \
                 have together, {max}; more are refused ({error}). If this is more than one \
                 node, give each a secret with a name of its own"
            );
            self.log(text);
        }
    }

    /// Whether one more session may begin, or why not. One holder has a part of them. All users
    /// leave some to nodes, and both leave some to those that have the reserve.
    pub(super) fn room_for(&mut self, standing: &Standing) -> Result<(), &'static str> {
        // A seat's table has no room for more.
        let max = (self.config.sessions_max as usize).min(CLIENTS_MAX);
        let quarter = (max / 4).max(1);
        let of_user_max = match self.config.sessions_of_user_max as usize {
            0 => quarter,
            of_user_max => of_user_max,
        };
        let is_node = standing.is_node();
        let own_max = match is_node {
            true => of_user_max.max(quarter),
            false => of_user_max,
        };
        let (mut users, mut nodes, mut own) = (0, 0, 0);
        let standings = self.clients.values().map(|client| &client.standing);
        for it in standings.filter(|it| !it.has_reserve()) {
            *(if it.is_node() { &mut nodes } else { &mut users }) += 1;
            own += usize::from(it.is_same_holder(standing));
        }
        let reserve = max / 16;
        let fits = match (standing.has_reserve(), is_node) {
            (true, _) => true,
            (false, true) => users + nodes < max - reserve,
            (false, false) => users + nodes < max - reserve && users < max - 2 * reserve,
        };
        if self.clients.len() >= max || !fits {
            return Err("too many sessions");
        }
        if standing.has_reserve() || own < own_max {
            return Ok(());
        }
        self.tell_of_bound(standing, "sessions", own_max, "EUSERS");
        match is_node {
            true => Err("too many sessions by secrets of this name"),
            false => Err("too many sessions of this user"),
        }
    }

    /// Whether a session may have one more connection. One holder has a quarter of the further
    /// connections.
    pub(super) fn has_room_to_join(&mut self, standing: &Standing) -> bool {
        let max = self.config.joined_max as usize;
        if self.joined >= max || standing.has_reserve() {
            return self.joined < max;
        }
        let clients = self.clients.values();
        let its = clients.filter(|it| it.standing.shares_with(standing));
        let own_max = (max / 4).max(1);
        let has_room = its.map(|it| it.joined.len()).sum::<usize>() < own_max;
        if !has_room {
            let what = "further connections of their sessions";
            self.tell_of_bound(standing, what, own_max, "EUSERS; the sessions go on");
        }
        has_room
    }
}
