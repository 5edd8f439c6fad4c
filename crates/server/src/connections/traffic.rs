//! What the threads of connections have asked the system for, and what they have copied themselves:
//! plain counts, for the status and for the table in docs/data-path.md.

use std::sync::{Mutex, PoisonError};

/// Counts since the start, kept by one thread alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Calls of epoll.
    pub waits: u64,
    /// Of them, those that storage, or a thread of ours, ended.
    pub wakes: u64,
    /// Calls that received something from a socket, or its end.
    pub receives: u64,
    /// Calls that found nothing to receive.
    pub receives_empty: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Calls that sent something.
    pub sends: u64,
    /// Calls that found no room in the socket.
    pub sends_blocked: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes of them that were sent as pages of a file, and so never copied here.
    pub spliced_bytes: u64,
    /// Bytes of payload that were copied from one buffer of this process to another.
    pub copied_bytes: u64,
}

impl Traffic {
    /// Adds what another thread has counted.
    pub fn add(&mut self, other: &Traffic) {
        self.waits += other.waits;
        self.wakes += other.wakes;
        self.receives += other.receives;
        self.receives_empty += other.receives_empty;
        self.received_bytes += other.received_bytes;
        self.sends += other.sends;
        self.sends_blocked += other.sends_blocked;
        self.sent_bytes += other.sent_bytes;
        self.spliced_bytes += other.spliced_bytes;
        self.copied_bytes += other.copied_bytes;
    }
}

/// Another thread's counts, for the loop's thread to read: as they were at the end of a pass.
#[derive(Default)]
pub struct Published {
    traffic: Mutex<Traffic>,
}

impl Published {
    /// Says what there is to count now.
    pub fn publish(&self, traffic: &Traffic) {
        *self.traffic.lock().unwrap_or_else(PoisonError::into_inner) = *traffic;
    }

    /// What was published last.
    pub fn read(&self) -> Traffic {
        *self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
