//! New shares for those who wait, or did lately.

use super::node::{Node, NodeState, Reservation, level_of};
use super::{SCALE, Tags};
use crate::share::{AppShare, Share, Shares};
use crate::types::Time;

impl Tags {
    /// New shares. Who waits keeps its place in its own queue. Applications come and go, which
    /// changes shares too, so who has the share that it had keeps all that it was given.
    pub(crate) fn set_shares(&mut self, shares: &Shares, now: Time) {
        let before = core::mem::replace(&mut self.shares, shares.clone());
        if (&before.groups, before.forwarders) != (&shares.groups, shares.forwarders) {
            return self.begin_again(now);
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

    /// Goes on with what another policy's tags know. Requests that wait come again, and bring their
    /// delays with them.
    pub(crate) fn adopt(&mut self, mut known: Tags, now: Time) {
        known.requests_leave();
        (known.credit_ns, known.by_deadline) = (self.credit_ns, self.by_deadline);
        known.set_shares(&self.shares, now);
        *self = known;
    }

    /// Everybody stands nowhere, without requests, and keeps its place for when they come again.
    fn requests_leave(&mut self) {
        for number in 0..self.nodes.len() as u32 {
            self.detach(number);
            let node = &mut self.nodes[number as usize];
            let delay_ns = node.delayed.take().map_or(0, |(_, ns)| ns);
            if node.waiting > 0 {
                let delay = u128::from(delay_ns) * SCALE / u128::from(node.share.weight);
                node.tag = node.tag.saturating_sub(delay);
            }
            (node.waiting, node.behind) = (0, 0);
        }
        self.levels.iter_mut().for_each(|level| level.waiting = 0);
    }

    /// The share of an application that has a node.
    fn share_now(&self, number: u32) -> Option<AppShare> {
        let node = self.node(number);
        let is_known = node.is_group.is_none() && self.known(node.app) == Some(number);
        is_known.then(|| self.shares.of(node.app))
    }

    /// Another share for an application, perhaps in another group. By how much it is ahead of its
    /// level it stays, in device time.
    fn change(&mut self, number: u32, known: AppShare, now: Time) {
        self.both(number).for_each(|one| self.detach(one));
        let node = self.node(number);
        let (waiting, deadline) = (node.waiting, node.deadline);
        let ahead = node.tag.saturating_sub(self.levels[level_of(node)].now);
        let ahead = ahead * u128::from(node.share.weight) / u128::from(known.share.weight);
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
        self.joins(number, waiting, deadline, now);
    }

    /// Counts an application that stands nowhere where it belongs, and puts it there.
    fn joins(&mut self, number: u32, waiting: u32, deadline: u64, now: Time) {
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

    /// Other groups: weights count from now.
    fn begin_again(&mut self, now: Time) {
        for number in core::mem::take(&mut self.groups) {
            self.nodes[number as usize].is_group = None;
            self.nodes_free.push(number);
        }
        for set in [&mut self.met_until, &mut self.due, &mut self.throttled] {
            set.clear();
        }
        self.levels.clear();
        self.lay_out();
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
            self.joins(number, waiting, deadline, now);
        }
    }
}

impl Node {
    /// Gives it another share. What a rate gave it counts while that stays; under another one it
    /// would have come at another time, by a rate that was far too low at one that is never.
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
