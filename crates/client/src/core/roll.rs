//! The roll call: the client asks every forwarder of a list who it is, and opens no session.
//!
//! A core that was made to ask ([`CoreOptions::asks`](super::CoreOptions::asks)) does nothing else.
//! It connects to all forwarders at once. It tries unreachable ones again until the first forwarder
//! has answered. After that it takes them for down, and the client does without them.

use super::{BACKOFF_MAX, BACKOFF_MIN, Core, Output};
use crate::core::Errno;
use crate::wire::HelloReply;

/// The state of one forwarder in the roll call.
#[derive(Clone, Debug, Default)]
pub enum Told {
    /// It has not answered yet.
    #[default]
    Silent,
    /// The client cannot connect to it now.
    Away,
    /// It refuses this client.
    Refused(Errno),
    /// It has answered who it is.
    Here(Box<HelloReply>),
}

/// The roll call of all forwarders.
#[derive(Default)]
pub(super) struct Roll {
    told: Vec<Told>,
    backoff: u64,
}

impl Roll {
    pub(super) fn new(forwarders: usize) -> Roll {
        Roll {
            told: vec![Told::Silent; forwarders],
            backoff: BACKOFF_MIN,
        }
    }

    fn anybody_told(&self) -> bool {
        self.told.iter().any(|told| matches!(told, Told::Here(_)))
    }
}

impl Core {
    /// The state of each forwarder, by its place in the list; empty for a core that does not ask.
    pub fn roll(&self) -> &[Told] {
        &self.roll.told
    }

    pub(super) fn call_roll(&mut self) {
        self.discovering.1 = None;
        for forwarder in 0..self.sessions.len() {
            self.connect(forwarder);
        }
    }

    /// Records a forwarder's answer.
    pub(super) fn has_told(&mut self, forwarder: usize, granted: &HelloReply) {
        self.roll.told[forwarder] = Told::Here(Box::new(granted.clone()));
        self.discovering.1 = None;
        self.outputs.push_back(Output::Opened { forwarder });
        self.disconnect(forwarder);
    }

    /// Records that a connection has ended or could not be made.
    pub(super) fn has_not_told(&mut self, forwarder: usize, refused: Option<Errno>) {
        let told = &mut self.roll.told[forwarder];
        match (&told, refused) {
            (Told::Here(_) | Told::Refused(_), _) => return,
            (_, Some(errno)) => *told = Told::Refused(errno),
            (_, None) => *told = Told::Away,
        }
        let waits = self.roll.anybody_told() || self.discovering.1.is_some();
        if refused.is_none() && !waits {
            self.discovering.1 = Some(self.now + self.roll.backoff);
            self.roll.backoff = (self.roll.backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// Connects again to the forwarders that could not be reached.
    pub(super) fn call_again(&mut self) {
        self.discovering.1 = None;
        for forwarder in 0..self.sessions.len() {
            if matches!(self.roll.told[forwarder], Told::Away) {
                self.connect(forwarder);
            }
        }
    }
}
