//! What the reactor has asked the system for, and what it has copied itself: plain counts, for the
//! status and for the table in docs/data-path.md.

use super::Core;
use crate::storage::Counts;
use tidegate_forward::{HostCounts, Input};

/// Counts since the start, kept by the reactor's thread alone.
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

impl Core {
    /// Tells the forwarder's core, for whoever asks for the status next.
    pub(super) fn tell_counts(&mut self) {
        let (traffic, storage) = (&self.traffic, &self.storage);
        let counts = HostCounts {
            waits: traffic.waits,
            wakes: traffic.wakes,
            receives: traffic.receives,
            receives_empty: traffic.receives_empty,
            received_bytes: traffic.received_bytes,
            sends: traffic.sends,
            sends_blocked: traffic.sends_blocked,
            sent_bytes: traffic.sent_bytes,
            spliced_bytes: traffic.spliced_bytes,
            copied_bytes: traffic.copied_bytes,
            storage_reads: storage.read_syscalls,
            storage_writes: storage.write_syscalls,
            storage_operations: storage.operations,
        };
        self.forwarder.handle(self.now, Input::Counted(counts));
    }

    /// Notes what storage has done by now.
    pub(super) fn note_storage(&mut self, counts: Counts) {
        self.storage = counts;
    }
}
