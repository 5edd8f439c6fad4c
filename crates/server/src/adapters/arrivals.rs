//! Requests that are handed to the forwarder: counted, for the fault that tests ask for, and held
//! back, where delays are emulated.

use super::jitter::{Held, Jitter};
use crate::clock::Zero;
use crate::connections::Came;
use std::io;
use tidegate_forward::{ConnId, SlotId};
use tidegate_sched::Time;
use tidegate_wire::session_ops;

/// Every request passes here once it has come with its payload.
pub struct Arrivals {
    /// Requests so far, session operations left out.
    requests: u64,
    kill_at_request: Option<u64>,
    jitter: Option<Jitter>,
}

impl Arrivals {
    /// No request yet. The process kills itself when `kill_at_request` of them have come.
    pub fn new(jitter: Option<Jitter>, kill_at_request: Option<u64>) -> Arrivals {
        Arrivals {
            requests: 0,
            kill_at_request,
            jitter,
        }
    }

    /// A request has come; with `slot` its payload is there. Gives it back unless it is held back.
    pub fn came(
        &mut self,
        now: Time,
        conn: ConnId,
        came: Came,
        slot: Option<SlotId>,
    ) -> Option<Came> {
        if matches!(came.request.op, session_ops!()) {
            return Some(came);
        }
        self.requests += 1;
        if self.kill_at_request == Some(self.requests) {
            kill_self();
        }
        let Some(jitter) = &mut self.jitter else {
            return Some(came);
        };
        jitter.hold(now, Held { conn, came, slot });
        None
    }

    /// Takes a request that was held back for long enough.
    pub fn take(&mut self, now: Time) -> Option<Held> {
        self.jitter.as_mut()?.take(now)
    }

    /// Sets the timer to the next request that is due.
    pub fn arm(&mut self, zero: Zero) -> io::Result<()> {
        match &mut self.jitter {
            Some(jitter) => jitter.arm(zero.time()),
            None => Ok(()),
        }
    }

    /// A connection is gone, and what is held back of it.
    pub fn closed(&mut self, conn: ConnId) {
        if let Some(jitter) = &mut self.jitter {
            jitter.forget(conn);
        }
    }
}

/// The fault that tests ask for: as abrupt as `kill -9`.
fn kill_self() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}
