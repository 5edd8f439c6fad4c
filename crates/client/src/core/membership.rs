//! Who the members of the set are: the client asks every forwarder of a list who it is, and opens
//! no session.
//!
//! A core that was made to ask ([`CoreOptions::asks`](super::CoreOptions::asks)) does nothing else.
//! It connects to all forwarders at once. It tries unreachable ones again until the first forwarder
//! has answered. After that it takes them for down, and the client does without them.

use super::{BACKOFF_MAX, BACKOFF_MIN, Core, Output};
use crate::core::Errno;
use crate::wire::HelloReply;

/// What is known of one forwarder of a list.
#[derive(Clone, Debug, Default)]
pub enum Member {
    /// It has not answered yet.
    #[default]
    Silent,
    /// The client cannot connect to it now.
    Unreachable,
    /// It refuses this client.
    Refused(Errno),
    /// It has answered who it is.
    Known(Box<HelloReply>),
}

/// How a forwarder's wall clock compares with this node's, as its answer showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockSeen {
    /// How far it is ahead, in ns, if the answer took as long as the question.
    pub ahead_ns: i64,
    /// How long question and answer took together, in ns: `ahead_ns` is wrong by half of it at
    /// most.
    pub trip_ns: u64,
}

/// What a forwarder says of itself.
#[derive(Clone, Debug)]
pub struct Told {
    /// Its answer.
    pub hello: Box<HelloReply>,
    /// How its wall clock compares with this node's.
    pub clock: ClockSeen,
}

/// All forwarders of a list.
#[derive(Default)]
pub(super) struct Membership {
    members: Vec<Member>,
    clocks: Vec<ClockSeen>,
    backoff: u64,
}

impl Membership {
    pub(super) fn new(forwarders: usize) -> Membership {
        Membership {
            members: vec![Member::Silent; forwarders],
            clocks: vec![ClockSeen::default(); forwarders],
            backoff: BACKOFF_MIN,
        }
    }

    fn is_any_known(&self) -> bool {
        let mut members = self.members.iter();
        members.any(|member| matches!(member, Member::Known(_)))
    }
}

impl Core {
    /// The state of each forwarder, by its place in the list; empty for a core that does not ask.
    pub fn members(&self) -> &[Member] {
        &self.membership.members
    }

    /// The clock of a forwarder that is known, as it was when that answered.
    pub fn member_clock(&self, forwarder: usize) -> Option<ClockSeen> {
        self.membership.clocks.get(forwarder).copied()
    }

    pub(super) fn ask_members(&mut self) {
        self.discovering.1 = None;
        for forwarder in 0..self.sessions.len() {
            self.connect(forwarder);
        }
    }

    /// Records a forwarder's answer to a question of `at`, when this node's wall clock showed
    /// `wall`; both in ns.
    pub(super) fn member_known(
        &mut self,
        forwarder: usize,
        granted: &HelloReply,
        (at, wall): (u64, u64),
    ) {
        let trip_ns = self.now.saturating_sub(at);
        let middle = wall.saturating_add(trip_ns / 2);
        self.membership.clocks[forwarder] = ClockSeen {
            ahead_ns: granted.wall_ns.wrapping_sub(middle) as i64,
            trip_ns,
        };
        self.membership.members[forwarder] = Member::Known(Box::new(granted.clone()));
        self.discovering.1 = None;
        self.outputs.push_back(Output::Opened { forwarder });
        self.disconnect(forwarder);
    }

    /// Records that a connection has ended or could not be made.
    pub(super) fn member_lost(&mut self, forwarder: usize, refused: Option<Errno>) {
        let member = &mut self.membership.members[forwarder];
        match (&member, refused) {
            (Member::Known(_) | Member::Refused(_), _) => return,
            (_, Some(errno)) => *member = Member::Refused(errno),
            (_, None) => *member = Member::Unreachable,
        }
        let waits = self.membership.is_any_known() || self.discovering.1.is_some();
        if refused.is_none() && !waits {
            self.discovering.1 = Some(self.now + self.membership.backoff);
            self.membership.backoff = (self.membership.backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// Connects again to the forwarders that could not be reached.
    pub(super) fn ask_members_again(&mut self) {
        self.discovering.1 = None;
        for forwarder in 0..self.sessions.len() {
            if matches!(self.membership.members[forwarder], Member::Unreachable) {
                self.connect(forwarder);
            }
        }
    }
}
