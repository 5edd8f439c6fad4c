//! Changes of shares, and of the policy that uses the tags.

use super::Tags;
use super::node::{Node, NodeState, Reservation, level_of};
use crate::share::{AppShare, Share, Shares};
use crate::types::Time;

impl Tags {
    /// Replaces the shares. An application whose share stays the same keeps its tags: shares change
    /// whenever applications come and go, and that must not reset the others.
    pub(crate) fn set_shares(&mut self, shares: &Shares, now: Time) {
        match self.crowd {
            Some(_) => {
                self.crowd = Some(shares.groups.len() as u32);
                self.follow(&shares.with_crowd(), now);
            }
            None => self.follow(shares, now),
        }
    }

    fn follow(&mut self, shares: &Shares, now: Time) {
        let before = core::mem::replace(&mut self.shares, shares.clone());
        if (&before.groups, before.forwarders) != (&shares.groups, shares.forwarders) {
            return self.reset(now);
        }
        for number in 0..self.nodes.len() as u32 {
            if let Some(known) = self.share_now(number) {
                let node = self.node(number);
                if (node.group, node.share) != (known.group, known.share) {
                    self.change(number, known, now);
                }
            }
        }
    }

    /// Adopts the tags of the policy before. The scheduler hands in its waiting requests again, and
    /// their delays are computed anew.
    pub(crate) fn adopt(&mut self, mut known: Tags, now: Time) {
        known.remove_requests();
        (known.credit_ns, known.by_deadline) = (self.credit_ns, self.by_deadline);
        let had_crowd = core::mem::replace(&mut known.crowd, self.crowd);
        known.follow(&self.shares, now);
        if had_crowd != self.crowd {
            // A group's number may have been the crowd's, whose weight was not the group's.
            known.reset(now);
        }
        *self = known;
    }

    /// Detaches all nodes and removes their requests. Their tags stay, without delays.
    fn remove_requests(&mut self) {
        for number in 0..self.nodes.len() as u32 {
            self.detach(number);
            let node = &mut self.nodes[number as usize];
            let delayed = node.delayed.take();
            if node.waiting > 0 {
                let delay = delayed.map_or(0, |delayed| delayed.tag_of(delayed.ns));
                node.tag = node.tag.saturating_sub(delay);
            }
            (node.waiting, node.behind) = (0, 0);
        }
        self.levels.iter_mut().for_each(|level| level.waiting = 0);
    }

    /// The share of the application that has this node, if one does.
    fn share_now(&self, number: u32) -> Option<AppShare> {
        let node = self.node(number);
        let is_known = node.is_group.is_none() && self.known(node.app) == Some(number);
        is_known.then(|| self.shares.of(node.app))
    }

    /// Gives an application another share, perhaps in another group. It stays as far ahead of its
    /// level's virtual time as it was, in device time.
    fn change(&mut self, number: u32, known: AppShare, now: Time) {
        self.both(number).for_each(|one| self.detach(one));
        let node = self.node(number);
        let (waiting, deadline) = (node.waiting, node.deadline);
        let ahead = node.tag.saturating_sub(self.levels[level_of(node)].now);
        let ahead = ahead * u128::from(node.share.weight) / u128::from(known.share.weight);
        if let Some(delayed) = &mut self.nodes[number as usize].delayed {
            // A delay is part of what it is ahead.
            delayed.weight = known.share.weight;
        }
        for one in self.both(number) {
            let node = &mut self.nodes[one as usize];
            if one != number {
                node.waiting -= waiting;
            }
            let level = &mut self.levels[level_of(node)];
            level.waiting -= waiting;
            if one != number {
                self.place(one, now);
            }
        }
        let old = level_of(self.node(number));
        if old > 0 && self.levels[old].waiting == 0 {
            self.levels[old].now = self.levels[old].latest;
        }
        let node = &mut self.nodes[number as usize];
        node.promise(known.share, now);
        node.group = known.group;
        node.tag = self.levels[level_of(node)].now + ahead;
        self.attach(number, waiting, deadline, now);
    }

    /// Adds a detached application, with its waiting requests, to its level.
    fn attach(&mut self, number: u32, waiting: u32, deadline: u64, now: Time) {
        for one in self.both(number) {
            let node = &mut self.nodes[one as usize];
            if one != number {
                node.waiting += waiting;
                node.deadline = deadline;
            }
            let level = level_of(node);
            self.levels[level].waiting += waiting;
            self.detach(one);
            self.place(one, now);
        }
    }

    /// Lays the levels out anew for other groups. All tags of weights start from zero.
    fn reset(&mut self, now: Time) {
        for number in core::mem::take(&mut self.groups) {
            let node = &mut self.nodes[number as usize];
            (node.is_group, node.waiting, node.state) = (None, 0, NodeState::Idle);
            self.nodes_free.push(number);
        }
        for set in [&mut self.met_until, &mut self.due, &mut self.throttled] {
            set.clear();
        }
        self.levels.clear();
        self.add_levels();
        for number in 0..self.nodes.len() as u32 {
            let Some(known) = self.share_now(number) else {
                continue;
            };
            let node = &mut self.nodes[number as usize];
            node.promise(known.share, now);
            (node.group, node.tag) = (known.group, 0);
            (node.state, node.reservation) = (NodeState::Idle, Reservation::None);
            node.delayed = None;
            let (waiting, deadline) = (node.waiting, node.deadline);
            self.attach(number, waiting, deadline, now);
        }
    }
}

impl Node {
    /// Sets another share. The tag of a reservation or limit that changes is not later than now:
    /// a rate that was far too low by mistake would otherwise hold the node back for ever.
    fn promise(&mut self, share: Share, now: Time) {
        if self.share.min != share.min {
            self.reservation_at = self.reservation_at.min(now.0);
        }
        if self.share.max != share.max {
            self.limit_at = self.limit_at.min(now.0);
        }
        (self.share, self.stayed, self.behind) = (share, false, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Next, ServiceDelta};
    use super::*;
    use crate::share::Service;
    use crate::types::AppId;

    const MS: u64 = 1_000_000;

    fn weights(weight: u32) -> Shares {
        let mut shares = Shares {
            forwarders: 4,
            ..Shares::default()
        };
        let own = shares.apps.entry(AppId(1)).or_default();
        own.share.weight = weight;
        shares
    }

    /// How far an application is behind, in device time, whose request was delayed and has waited
    /// for long, after its weight was changed to the second one.
    fn behind_ms(shares: [Shares; 2]) -> u128 {
        let [before, after] = shares;
        let mut tags = Tags::new(&before, 0, false);
        let number = tags.number(AppId(1));
        let first = Next {
            cost_ns: 10 * MS,
            delay_ns_max: 1000 * MS,
            deadline: 0,
        };
        let told = ServiceDelta {
            elsewhere: Service {
                device_ns: 1000 * MS,
                ..Service::default()
            },
            here_ns: 10 * MS,
            away_ms: 100,
        };
        tags.arrived(number, Time(0), &told, first);
        tags.set_shares(&after, Time(0));
        // Its clients say nothing for so long that part of the delay is left.
        tags.shorten_delays(Time(4000 * MS));
        let node = tags.node(number);
        node.tag * u128::from(node.share.weight) / super::super::SCALE / u128::from(MS)
    }

    #[test]
    fn a_delay_is_taken_back_as_it_counts_after_a_change_of_weight() {
        let same = behind_ms([weights(10), weights(10)]);
        assert!(same > 10, "{same} ms: some of it is still there");
        for other in [1, 100] {
            let changed = behind_ms([weights(10), weights(other)]);
            assert!(changed.abs_diff(same) <= 1, "{changed} and {same} ms");
        }
    }
}
