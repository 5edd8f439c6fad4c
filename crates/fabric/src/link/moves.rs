//! Moves of payload between memory of this process and registered memory of the peer.

use super::{Local, Remote};
use crate::domain::Error;
use crate::endpoint::Endpoint;
use std::collections::{BTreeMap, VecDeque};

/// Added to the number of a move, so that it differs from those of messages.
const MOVE: u64 = 1 << 40;
/// Moves that the endpoint has at once; the others wait.
const MOVES_MAX: usize = 64;

#[derive(Default)]
pub(super) struct Moves {
    /// By our own numbers.
    begun: BTreeMap<u64, Move>,
    waiting: VecDeque<u64>,
    /// With the endpoint.
    under_way: usize,
    next: u64,
    /// What is to be told.
    pub(super) finished: VecDeque<(u64, Result<(), String>)>,
    put_off: bool,
}

struct Move {
    put: bool,
    local: Local,
    remote: Remote,
    number: u64,
}

// SAFETY: the pointer is to memory that is the move's alone, wherever the move is.
unsafe impl Send for Move {}

impl Moves {
    /// Whether an operation's number is a move's.
    pub(super) fn is_own(number: u64) -> bool {
        number & MOVE != 0
    }

    pub(super) fn begin(&mut self, put: bool, local: Local, remote: Remote, number: u64) {
        let own = self.next;
        self.next = (self.next + 1) % MOVE;
        let one = Move {
            put,
            local,
            remote,
            number,
        };
        self.begun.insert(own, one);
        self.waiting.push_back(own);
    }

    /// Gives the endpoint what it takes; true if it took something.
    pub(super) fn go_on(&mut self, endpoint: &mut Endpoint) -> Result<bool, Error> {
        let mut began = false;
        self.put_off = false;
        while self.under_way < MOVES_MAX
            && let Some(own) = self.waiting.front()
        {
            let one = &self.begun[own];
            let (start, len) = (one.local.start, one.local.len);
            let remote = (one.remote.address, one.remote.key);
            let memory = one.local.registration.as_deref();
            // SAFETY: whoever began the move has promised that the bytes are left alone, and what
            // keeps them is with us until it is over, or the endpoint is closed.
            let taken =
                unsafe { endpoint.move_bytes(one.put, start, len, memory, remote, MOVE | own)? };
            if !taken {
                self.put_off = true;
                break;
            }
            self.waiting.pop_front();
            self.under_way += 1;
            began = true;
        }
        Ok(began)
    }

    pub(super) fn done(&mut self, number: u64, error: Option<String>) {
        if let Some(one) = self.begun.remove(&(number & !MOVE)) {
            self.under_way -= 1;
            let result = error.map_or(Ok(()), Err);
            self.finished.push_back((one.number, result));
        }
    }

    /// The link is over, and what is not done will not be. The memory stays with us until the
    /// endpoint is closed, which may still work on it.
    pub(super) fn end(&mut self, why: &str) {
        let why = if why.is_empty() {
            "the peer is gone"
        } else {
            why
        };
        for one in self.begun.values() {
            self.finished.push_back((one.number, Err(why.to_string())));
        }
        self.waiting.clear();
    }

    pub(super) fn under_way(&self) -> bool {
        self.under_way > 0
    }

    pub(super) fn is_put_off(&self) -> bool {
        self.put_off
    }
}
