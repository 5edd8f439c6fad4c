//! The client without I/O: what to send where, and what an answer means.
//!
//! The host says what happened ([`Core::handle`]) and does what it is told ([`Core::poll`], until
//! None); [`Core::wake_at`] says when to come back though nothing happened. There is no clock,
//! thread, socket or random source inside: the same inputs give the same outputs. The rules are in
//! `docs/protocol.md`.

mod types;

pub use types::{Call, CallId, CoreOptions, Input, Lost, Output, Stats};

use crate::wire::{Attr, Layout};

/// One client of a set of forwarders.
pub struct Core {
    options: CoreOptions,
}

impl Core {
    /// A client that connects to one forwarder after the other until it is granted a session, and
    /// to the others when they are needed.
    pub fn new(options: CoreOptions) -> Core {
        Core { options }
    }

    /// Tells what happened. `now_ns` is monotonic, `wall_ns` is the clock that files are stamped
    /// with, in ns since 1970. Call [`Core::poll`] until None afterwards.
    pub fn handle(&mut self, _now_ns: u64, _wall_ns: u64, _input: Input) {}

    /// What to do now; call until None.
    pub fn poll(&mut self, _now_ns: u64) -> Option<Output> {
        None
    }

    /// When to call [`Core::poll`] again though nothing happened.
    pub fn wake_at(&self) -> Option<u64> {
        None
    }

    /// The root directory, once a session was granted.
    pub fn root(&self) -> Option<Attr> {
        None
    }

    /// The layout, once a session was granted.
    pub fn layout(&self) -> Option<Layout> {
        None
    }

    /// Largest payload of one frame: the smallest that client and forwarders have agreed on.
    pub fn payload_max(&self) -> u32 {
        self.options.payload_max
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        Stats::default()
    }
}
