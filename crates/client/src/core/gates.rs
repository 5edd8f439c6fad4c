//! Lock calls whose callers have stopped waiting. The core gives back what a forwarder grants to
//! them. Until it has, later calls of the same owner on the file wait: else they would lose the
//! locks that they were granted.

use super::Core;
use super::locks::{LockKey, key_of};
use super::requests::{Id, Pending, Place, Purpose, Target};
use crate::wire::{Handle, Lock, Op};
use std::collections::BTreeSet;

/// Holds back the lock calls of one owner on one file.
#[derive(Default)]
pub(super) struct Gate {
    /// Number of abandoned requests, and repairs of them, that have no answer yet.
    busy: usize,
    pub(super) waiting: BTreeSet<Id>,
}

impl Core {
    /// Routes a lock call; where abandoned lock calls of its owner are not over yet, it waits for
    /// them.
    pub(super) fn route_lock(&mut self, id: Id, key: LockKey) {
        match self.gates.get_mut(&key) {
            Some(gate) => {
                gate.waiting.insert(id);
                self.put(id, Place::Gate(key));
            }
            None => self.route(id),
        }
    }

    /// Abandons a lock call whose caller waits no longer. If the request was sent, the forwarder
    /// may have granted the lock.
    pub(super) fn abandon_lock(&mut self, id: Id, key: LockKey, in_flight: Option<usize>) {
        let Some(pending) = self.requests.get(&id) else {
            return;
        };
        let gated = matches!(pending.place, Place::Gate(_));
        if pending.releases() {
            // It goes on; behind a gate it closes that itself when its turn comes.
            if !gated {
                self.hold_gate(key);
            }
            return;
        }
        if !pending.sent {
            return self.discard(id);
        }
        let waits = matches!(pending.op, Op::SetLock { wait: true, .. }) && !pending.polled;
        let seat = pending.seat;
        self.hold_gate(key);
        match in_flight {
            // Its reply says whether it was granted.
            Some(forwarder) if waits => {
                let target = Target::Forwarder(forwarder);
                let cancel = Op::CancelLock { request: id };
                self.submit(Pending::new(cancel, seat, target, Purpose::Background));
            }
            Some(_) => {}
            None => self.discard(id),
        }
    }

    fn hold_gate(&mut self, key: LockKey) {
        self.gates.entry(key).or_default().busy += 1;
    }

    /// Ends one abandoned request, or its repair. The last one opens the gate.
    pub(super) fn release_gate(&mut self, key: LockKey) {
        let Some(gate) = self.gates.get_mut(&key) else {
            return;
        };
        gate.busy = gate.busy.saturating_sub(1);
        while let Some(gate) = self.gates.get_mut(&key)
            && gate.busy == 0
        {
            let Some(id) = gate.waiting.pop_first() else {
                self.gates.remove(&key);
                return;
            };
            let left = self.requests.get(&id);
            gate.busy = usize::from(left.is_some_and(|pending| pending.abandoned));
            self.put(id, Place::Nowhere);
            self.route(id);
        }
    }

    /// Takes back a lock request that was sent and whose reply cannot arrive any more. The caller
    /// holds the owner's gate.
    pub(super) fn take_back(&mut self, request: Id, handle: Handle, lock: Lock, seat: u16) {
        let purpose = Purpose::TakeBack { handle, lock };
        let cancel = Op::CancelLock { request };
        self.submit(Pending::new(cancel, seat, Target::Seat, purpose));
    }

    /// Sets the range of a lock that no caller wants any more back to the state that the client has
    /// recorded. The caller holds the owner's gate.
    pub(super) fn restore(&mut self, handle: Handle, lock: Lock, seat: u16) {
        let key = key_of(handle, &lock);
        for lock in self.locks.restoring(handle, &lock) {
            self.hold_gate(key);
            let set = Op::SetLock {
                handle,
                lock,
                wait: false,
                reclaim: false,
            };
            let purpose = Purpose::Restore { key };
            self.submit(Pending::new(set, seat, Target::Seat, purpose));
        }
        self.release_gate(key);
    }

    /// Takes in the answer to an abandoned lock call.
    pub(super) fn lock_abandoned(&mut self, pending: &Pending, granted: bool) {
        let Some(key) = pending.lock_key() else {
            return;
        };
        match &pending.op {
            Op::SetLock { handle, lock, .. } if granted && !pending.releases() => {
                self.restore(*handle, *lock, pending.seat);
            }
            _ => self.release_gate(key),
        }
    }
}
