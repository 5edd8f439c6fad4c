//! Transfers whose chunks take turns: one after another, in the order of their numbers.
//!
//! A chunk that waits here is unknown to the scheduler. It waits only for one that has come before
//! it, has its slot, and is under way; so nothing waits for what may never come, and the device has
//! whatever else there is to do.

use super::Forwarder;
use super::request::{Key, Pending};
use alloc::collections::BTreeMap;
use tidegate_wire::{Op, Pipelining};

/// An operation of a client.
type Transfer = (u64, u64);

/// See the file's first line.
#[derive(Default)]
pub(super) struct Turns {
    /// By transfer, while a chunk of it is under way: those that wait, by the request's number.
    waiting: BTreeMap<Transfer, BTreeMap<u64, Key>>,
}

impl Turns {
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

    /// The chunk that was under way is done; the next is, if one waits.
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

/// Whether a request is one of several chunks, of which one is carried out at a time.
pub(super) fn takes_turns(pending: &Pending, mode: Pipelining) -> bool {
    let (Op::Read { extents, .. } | Op::Write { extents, .. }) = pending.op() else {
        return false;
    };
    mode == Pipelining::Serial && pending.hints.operation_bytes > extents.bytes()
}

impl Forwarder {
    /// Whether a data request may be carried out now; otherwise it waits for its turn.
    pub(super) fn enter_turn(&mut self, key: Key) -> bool {
        let pending = &mut self.requests[key];
        pending.has_turn = self.turns.enter(transfer(pending), pending.id, key);
        pending.has_turn
    }

    /// A request that had its turn was answered.
    pub(super) fn end_turn(&mut self, answered: &Pending) {
        if let Some(key) = self.turns.leave(transfer(answered)) {
            self.requests[key].has_turn = true;
            self.queue_data(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_number_that_waits_is_next_and_transfers_do_not_meet() {
        let mut turns = Turns::default();
        let (one, other) = ((7, 1), (7, 2));
        assert!(turns.enter(one, 10, 0));
        assert!(!turns.enter(one, 13, 3));
        assert!(!turns.enter(one, 12, 2));
        assert!(turns.enter(other, 20, 4));
        assert_eq!(turns.leave(one), Some(2));
        assert!(!turns.enter(one, 11, 1), "another one is under way");
        assert_eq!(turns.leave(one), Some(1));
        assert_eq!(turns.leave(one), Some(3));
        assert_eq!(turns.leave(one), None);
        assert_eq!(turns.leave(other), None);
        assert!(turns.waiting.is_empty());
        assert!(turns.enter(one, 14, 5));
    }
}
