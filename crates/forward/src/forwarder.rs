//! The forwarder: see the crate's documentation.

use crate::host::{Admission, Config, ConnId, Input, Output};
use tidegate_sched::Time;
use tidegate_wire::Request;

/// One forwarder.
pub struct Forwarder {
    config: Config,
}

impl Forwarder {
    /// A forwarder that holds no seat yet and will ask for its own.
    pub fn new(config: Config) -> Result<Forwarder, tidegate_sched::OptionsError> {
        Ok(Forwarder { config })
    }

    /// Asks whether the payload of a request whose head has come may be read (or its reply's be kept).
    pub fn admit(&mut self, _now: Time, _conn: ConnId, _request: &Request) -> Admission {
        Admission::Refuse(
            self.config
                .root
                .size
                .checked_add(0)
                .map_or("", |_| "not yet")
                .into(),
        )
    }

    /// Tells what happened. `now` never goes back.
    pub fn handle(&mut self, _now: Time, _input: Input) {}

    /// What to do now; call until None.
    pub fn poll(&mut self, _now: Time) -> Option<Output> {
        None
    }

    /// When to call [`Forwarder::poll`] again though nothing happened.
    pub fn wake_at(&self) -> Option<Time> {
        None
    }
}
