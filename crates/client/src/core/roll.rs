//! The roll call: every forwarder of a list is asked who it is, and no session is opened.
//!
//! A core that was made to ask ([`CoreOptions::asks`](super::CoreOptions::asks)) does nothing else.
//! It connects to all at once. Whoever cannot be reached is tried again until the first one has
//! told: then the others are as good as down, and a client does without them.

use super::{BACKOFF_MAX, BACKOFF_MIN, Core, Output};
use crate::core::Errno;
use crate::wire::HelloReply;

/// What became of asking one forwarder.
#[derive(Clone, Debug, Default)]
pub enum Told {
    /// It has said nothing yet.
    #[default]
    Silent,
    /// It cannot be reached now.
    Away,
    /// It refuses us.
    Refused(Errno),
    /// It has told who it is.
    Here(Box<HelloReply>),
}

/// Of all forwarders.
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
    /// What the forwarders have told, by their places in the list; nothing of a core that does not
    /// ask.
    pub fn roll(&self) -> &[Told] {
        &self.roll.told
    }

    pub(super) fn call_roll(&mut self) {
        self.discovering.1 = None;
        for forwarder in 0..self.sessions.len() {
            self.connect(forwarder);
        }
    }

    /// A forwarder has told who it is.
    pub(super) fn has_told(&mut self, forwarder: usize, granted: &HelloReply) {
        self.roll.told[forwarder] = Told::Here(Box::new(granted.clone()));
        self.discovering.1 = None;
        self.outputs.push_back(Output::Opened { forwarder });
        self.disconnect(forwarder);
    }

    /// A connection has ended or has not come about.
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

    /// Tries those again that could not be reached.
    pub(super) fn call_again(&mut self) {
        self.discovering.1 = None;
        for forwarder in 0..self.sessions.len() {
            if matches!(self.roll.told[forwarder], Told::Away) {
                self.connect(forwarder);
            }
        }
    }
}
