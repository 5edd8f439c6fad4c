//! Complete requests on their way to the forwarder. They are counted, for a fault that tests
//! inject, and delayed where delays are emulated.

use super::jitter::{Held, Jitter};
use crate::clock::Zero;
use crate::connections::Came;
use std::io;
use tidegate_forward::{ConnId, SlotId};
use tidegate_sched::Time;
use tidegate_wire::session_ops;

/// Every request passes through here once its payload has arrived.
pub struct Arrivals {
    /// Requests so far, without operations on sessions.
    requests: u64,
    kill_at_request: Option<u64>,
    jitter: Option<Jitter>,
}

impl Arrivals {
    /// Starts at no request. The process kills itself when `kill_at_request` of them have arrived.
    pub fn new(jitter: Option<Jitter>, kill_at_request: Option<u64>) -> Arrivals {
        Arrivals {
            requests: 0,
            kill_at_request,
            jitter,
        }
    }

    /// Takes a request that has arrived, with its payload in the buffer `slot` if it has one.
    /// Returns the request unless it has to be delayed.
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

    /// Takes a delayed request that is due.
    pub fn take(&mut self, now: Time) -> Option<Held> {
        self.jitter.as_mut()?.take(now)
    }

    /// Sets the timer to the time when the next delayed request is due.
    pub fn arm(&mut self, zero: Zero) -> io::Result<()> {
        match &mut self.jitter {
            Some(jitter) => jitter.arm(zero.time()),
            None => Ok(()),
        }
    }

    /// Drops the delayed requests of a connection that has ended.
    pub fn closed(&mut self, conn: ConnId) {
        if let Some(jitter) = &mut self.jitter {
            jitter.forget(conn);
        }
    }
}

/// The fault that tests inject: ends the process as abruptly as `kill -9`.
fn kill_self() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}
