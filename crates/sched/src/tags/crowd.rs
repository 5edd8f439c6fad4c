//! The crowd: all applications without a share of their own, as one flow beside the others.

use super::Tags;
use super::node::NodeState;
use crate::share::{Shares, WEIGHT_MAX};
use crate::types::AppId;

impl Tags {
    /// Tags for the applications with a share of their own, and for the crowd of all others, which
    /// must have no promises: they are one flow, in which another order decides, with the weights
    /// of all that wait together.
    pub(crate) fn beside_crowd(shares: &Shares, credit_ns: u64, by_deadline: bool) -> Tags {
        let mut tags = Tags::new(&shares.with_crowd(), credit_ns, by_deadline);
        tags.crowd = Some(shares.groups.len() as u32);
        tags
    }

    /// Whether an application is one of the crowd.
    #[inline]
    pub(crate) fn is_in_crowd(&self, number: u32) -> bool {
        self.crowd.is_some() && self.node(number).group == self.crowd
    }

    /// Whether the applications without a share of their own are a crowd.
    pub(crate) fn has_crowd(&self) -> bool {
        self.crowd.is_some() && self.shares.others.group == self.crowd
    }

    /// Whether an application enters or leaves the crowd by these shares.
    pub(crate) fn changes_crowd(&self, app: AppId, shares: &Shares) -> bool {
        let is_in = self.has_crowd() && !self.shares.apps.contains_key(&app);
        is_in != (shares.others_are_crowd() && !shares.apps.contains_key(&app))
    }

    /// Whether nobody enters or leaves the crowd by these shares who has requests here.
    pub(crate) fn keeps_crowd(&self, shares: &Shares) -> bool {
        let mut known = self.by_app.iter();
        !known.any(|(app, number)| {
            self.node(number).waiting > 0 && self.changes_crowd(AppId(app), shares)
        })
    }

    /// The number of the flow that an application is, or is part of if it is one of the crowd.
    pub(crate) fn flow_of(&self, number: u32) -> u32 {
        match self.crowd {
            Some(crowd) if self.is_in_crowd(number) => self.groups[crowd as usize],
            _ => number,
        }
    }

    /// Whether a flow is the crowd.
    pub(crate) fn is_crowd(&self, flow: u32) -> bool {
        self.crowd.is_some() && self.node(flow).is_group == self.crowd
    }

    /// Whether a flow may go on although `next` named another by weight: it has requests, and no
    /// limit holds it back.
    pub(crate) fn may_go_on(&self, flow: u32) -> bool {
        let node = self.node(flow);
        let is_flow = node.is_group.is_none() && !self.is_in_crowd(flow) || self.is_crowd(flow);
        let is_active = node.state == NodeState::Active && is_flow;
        is_active && node.waiting > 0 && self.blocked_until(flow).is_none()
    }

    /// How many requests of an application wait.
    pub(crate) fn waiting_of(&self, number: u32) -> u32 {
        self.node(number).waiting
    }

    /// An application whose requests are taken out, to be counted again, has no delay any more.
    pub(crate) fn take_back_delay(&mut self, number: u32) {
        let node = &mut self.nodes[number as usize];
        if node.waiting == 0
            && let Some(delayed) = node.delayed.take()
        {
            node.tag = node.tag.saturating_sub(delayed.tag_of(delayed.ns));
        }
    }

    /// Of the crowd, which `next` named by one of its applications, this one is served.
    pub(crate) fn chose_of_crowd(&mut self, number: u32) {
        self.chosen = Some(number);
    }

    /// Gives the crowd the weights of its applications that wait.
    pub(super) fn weigh_crowd(&mut self) {
        if let Some(crowd) = self.crowd {
            let count = self.levels[crowd as usize + 1].active.len() as u32;
            let of_one = self.shares.others.share.weight;
            let weight = of_one.saturating_mul(count.max(1)).min(WEIGHT_MAX);
            let node = self.groups[crowd as usize];
            self.nodes[node as usize].share.weight = weight;
        }
    }
}
