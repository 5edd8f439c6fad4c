//! Transfers in `serial` mode: the forwarder executes their chunks one at a time, the lowest
//! request id first.
//!
//! The scheduler does not know a chunk that waits here. A chunk waits only for another one that has
//! arrived, has its slot, and is being executed. So no chunk waits for one that may never arrive,
//! and the device meanwhile serves other requests.

use super::Forwarder;
use super::pending_request::{Key, Pending};
use alloc::collections::BTreeMap;
use tidegate_wire::Pipelining;

/// An operation of a client.
type Transfer = (u64, u64);

/// See the file's first line.
#[derive(Default)]
pub(super) struct SerialTransfers {
    /// For each transfer of which the forwarder is executing a chunk: the chunks that wait, by id.
    waiting: BTreeMap<Transfer, BTreeMap<u64, Key>>,
}

impl SerialTransfers {
    /// A chunk has come. False if it waits.
    fn enter(&mut self, transfer: Transfer, id: u64, key: Key) -> bool {
        match self.waiting.get_mut(&transfer) {
            Some(waiting) => {
                waiting.insert(id, key);
                false
            }
            None => {
                self.waiting.insert(transfer, BTreeMap::new());
                true
            }
        }
    }

    /// A chunk of the transfer is done. Returns the next one, if one waits.
    fn leave(&mut self, transfer: Transfer) -> Option<Key> {
        let next = self.waiting.get_mut(&transfer)?.pop_first();
        if next.is_none() {
            self.waiting.remove(&transfer);
        }
        next.map(|(_, key)| key)
    }

    /// Takes out a chunk that waits; false if it does not.
    pub(super) fn cancel(&mut self, pending: &Pending) -> bool {
        let waiting = self.waiting.get_mut(&transfer(pending));
        waiting.is_some_and(|waiting| waiting.remove(&pending.id).is_some())
    }
}

fn transfer(pending: &Pending) -> Transfer {
    (pending.client, pending.hints.operation)
}

/// Whether a request is a chunk of a transfer whose chunks the forwarder executes one at a time.
pub(super) fn is_serial_chunk(pending: &Pending, mode: Pipelining) -> bool {
    let Some((_, extents)) = pending.op().data() else {
        return false;
    };
    mode == Pipelining::Serial && pending.hints.operation_bytes > extents.bytes()
}

impl Forwarder {
    /// Whether the forwarder may execute a chunk now; otherwise the chunk waits for the one that
    /// runs.
    pub(super) fn enter_transfer(&mut self, key: Key) -> bool {
        let pending = &mut self.requests[key];
        pending.chunk_runs = self
            .serial_transfers
            .enter(transfer(pending), pending.id, key);
        pending.chunk_runs
    }

    /// The chunk that ran was answered: the next one of its transfer runs.
    pub(super) fn end_chunk(&mut self, answered: &Pending) {
        if let Some(key) = self.serial_transfers.leave(transfer(answered)) {
            self.requests[key].chunk_runs = true;
            self.queue_data(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_number_that_waits_is_next_and_transfers_do_not_meet() {
        let mut transfers = SerialTransfers::default();
        let (one, other) = ((7, 1), (7, 2));
        assert!(transfers.enter(one, 10, 0));
        assert!(!transfers.enter(one, 13, 3));
        assert!(!transfers.enter(one, 12, 2));
        assert!(transfers.enter(other, 20, 4));
        assert_eq!(transfers.leave(one), Some(2));
        assert!(!transfers.enter(one, 11, 1), "another one is under way");
        assert_eq!(transfers.leave(one), Some(1));
        assert_eq!(transfers.leave(one), Some(3));
        assert_eq!(transfers.leave(one), None);
        assert_eq!(transfers.leave(other), None);
        assert!(transfers.waiting.is_empty());
        assert!(transfers.enter(one, 14, 5));
    }
}
