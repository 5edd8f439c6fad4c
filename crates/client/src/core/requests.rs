//! Requests from their start to their end: what each waits for, and how the core sends it.

use super::locks::{LockKey, key_of};
use super::types::{CallId, Output, whose};
use super::{Core, Wake};
use crate::core::Errno;
use crate::payload::Payload;
use crate::wire::{Caller, Handle, Hints, Lock, LockKind, Op, Pipelining, ReplySlot, Request};
use std::collections::VecDeque;

/// Id of a request on the wire.
pub(super) type Id = u64;

/// A set of ids in ascending order. New ids are nearly always the largest and old ones leave first,
/// so a queue is cheaper than a tree.
#[derive(Default)]
pub(super) struct Ids(VecDeque<Id>);

impl Ids {
    pub(super) fn insert(&mut self, id: Id) {
        if self.0.back().is_none_or(|last| *last < id) {
            return self.0.push_back(id);
        }
        if let Err(at) = self.0.binary_search(&id) {
            self.0.insert(at, id);
        }
    }

    /// Removes an id; false if the set did not have it.
    pub(super) fn remove(&mut self, id: Id) -> bool {
        if self.0.front() == Some(&id) {
            self.0.pop_front();
            return true;
        }
        match self.0.binary_search(&id) {
            Ok(at) => self.0.remove(at).is_some(),
            Err(_) => false,
        }
    }

    pub(super) fn pop_first(&mut self) -> Option<Id> {
        self.0.pop_front()
    }

    pub(super) fn retain(&mut self, stays: impl FnMut(&Id) -> bool) {
        self.0.retain(stays);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Id> {
        self.0.iter().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Pause before a request is sent again after `TryLater`, in ns.
pub(super) const LATER: u64 = 50 * super::MS;

/// Which forwarder must answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The forwarder that serves the request's seat.
    Seat,
    /// This forwarder.
    Forwarder(usize),
}

/// What the core does with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A part of a call.
    Part { call: CallId, part: usize },
    /// Looks ahead before the call goes on.
    LookAhead { call: CallId },
    /// A part of an fsync, for one node.
    Fsync { call: CallId, part: usize },
    /// No caller waits for the answer.
    Background,
    /// Renewal of the lease, or goodbye.
    Session,
    /// Sends the path of a file whose handle the forwarder did not know.
    ResolvePath { handle: Handle },
    /// Reclaims an open or a lock at the seat's new holder, or ends the recovery.
    Recover,
    /// Finds out who serves the seat, so that the client reclaims its opens and locks in time.
    Probe,
    /// Takes back a lock that the forwarder may have granted after the caller stopped waiting.
    TakeBack { handle: Handle, lock: Lock },
    /// Sets the locks of a range at the forwarder to those that the client has recorded.
    Restore { key: LockKey },
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// On its way from one place to another.
    Nowhere,
    /// Waits until abandoned lock calls of the same owner are over.
    Gate(LockKey),
    /// Waits for an earlier chunk of its transfer.
    Chunk,
    /// Waits for a free reply slot of its seat.
    ReplySlot,
    /// Waits for its seat to be found or recovered.
    Seat,
    /// Waits for the session with this forwarder.
    Queue(usize),
    /// Waits for the reply of this forwarder.
    Sent(usize),
    /// Waits for a time.
    Later(u64),
    /// Waits for the path of a file to be resolved.
    Resolving,
    /// Waits until the host caches nothing of what it changes.
    Host,
}

/// A request that has no final answer yet.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) op: Op,
    pub(super) caller: Option<Caller>,
    pub(super) hints: Option<Hints>,
    pub(super) payload: Vec<Payload>,
    pub(super) seat: u16,
    pub(super) target: Target,
    pub(super) purpose: Purpose,
    pub(super) reply_slot: Option<ReplySlot>,
    /// An earlier chunk of the same transfer is not done.
    pub(super) behind: bool,
    /// The next chunk of the transfer.
    pub(super) next: Option<Id>,
    pub(super) place: Place,
    /// The request may have reached a forwarder.
    pub(super) sent: bool,
    /// The caller waits no longer.
    pub(super) abandoned: bool,
    /// The caller wants to wait for the lock, but the client sent the request as one that does not
    /// wait.
    pub(super) polled: bool,
    /// How many times the client has resolved files for the request on one connection.
    pub(super) resolves: u8,
    /// Forwarder and number of that connection.
    pub(super) resolved_on: (usize, u64),
    /// Number of files that the client is resolving for the request.
    pub(super) resolving_left: u8,
    /// The error of a file that cannot be resolved.
    pub(super) unreachable: Option<Errno>,
    /// Whether its caller can cache attributes.
    pub(super) caches: bool,
    /// Whether the host may still cache something of what it changes.
    pub(super) held_by_host: bool,
    /// When it was sent last, in ns.
    pub(super) sent_at: u64,
    /// The files that it changes, as far as the client knows.
    pub(super) changes: Vec<Handle>,
    /// Whether it changed a name of which the client did not know the file: the first, the second.
    pub(super) unknown: [bool; 2],
}

impl Pending {
    pub(super) fn new(op: Op, seat: u16, target: Target, purpose: Purpose) -> Pending {
        Pending {
            op,
            caller: None,
            hints: None,
            payload: Vec::new(),
            seat,
            target,
            purpose,
            reply_slot: None,
            behind: false,
            next: None,
            place: Place::Nowhere,
            sent: false,
            abandoned: false,
            polled: false,
            resolves: 0,
            resolved_on: (0, 0),
            resolving_left: 0,
            unreachable: None,
            caches: false,
            held_by_host: false,
            sent_at: 0,
            changes: Vec::new(),
            unknown: [false; 2],
        }
    }

    /// Whether the request needs an answer even if no caller waits: a change, because its reply
    /// slot is free only then; a release, because others wait for it.
    pub(super) fn owed(&self) -> bool {
        !self.abandoned || self.releases() || (self.op.mutates() && self.sent)
    }

    /// The call of a change that a forwarder may have made, and that would not be the same made
    /// twice.
    pub(super) fn doubted(&self) -> Option<CallId> {
        match (self.purpose, &self.op) {
            (_, Op::Write { .. }) => None,
            (Purpose::Part { call, .. }, op) if self.sent && op.mutates() => Some(call),
            _ => None,
        }
    }

    /// Whether the request only gives something back.
    pub(super) fn releases(&self) -> bool {
        match &self.op {
            Op::Close { .. } | Op::DropLocks { .. } => true,
            Op::SetLock { lock, .. } => lock.kind == LockKind::None,
            _ => false,
        }
    }

    /// The key of the locks that the request changes.
    pub(super) fn lock_key(&self) -> Option<LockKey> {
        match &self.op {
            Op::SetLock { handle, lock, .. } => Some(key_of(*handle, lock)),
            Op::DropLocks {
                handle,
                family,
                owner,
            } => Some((*handle, *family, *owner)),
            _ => None,
        }
    }

    fn request(&self, id: Id, generation: u64, epoch: u64) -> Request {
        let mut op = self.op.clone();
        if let Op::SetLock { wait, .. } = &mut op {
            *wait = *wait && !self.polled;
        }
        Request {
            id,
            seat: self.seat,
            reply_slot: self.reply_slot,
            generation,
            epoch,
            replay: self.sent,
            caller: self.caller.clone(),
            hints: self.hints,
            op,
            payload_len: self.payload.iter().map(|piece| piece.len() as u32).sum(),
        }
    }
}

impl Core {
    /// Adds a request and routes it.
    pub(super) fn submit(&mut self, pending: Pending) -> Id {
        let id = self.insert(pending);
        self.route(id);
        id
    }

    /// Adds a request without routing it.
    pub(super) fn insert(&mut self, mut pending: Pending) -> Id {
        let id = self.next_id();
        self.begin_change(id, &mut pending);
        self.requests.insert(id, Box::new(pending));
        id
    }

    pub(super) fn next_id(&mut self) -> Id {
        self.request_ids += 1;
        self.request_ids
    }

    /// Routes a request, new or again: to its seat or forwarder, or to what it must wait for. Drops
    /// it if nobody needs it.
    pub(super) fn route(&mut self, id: Id) {
        let Some(pending) = self.requests.get_mut(&id) else {
            return;
        };
        debug_assert_eq!(pending.place, Place::Nowhere, "request {id} is elsewhere");
        if !pending.owed() {
            return self.discard(id);
        }
        if pending.held_by_host {
            pending.place = Place::Host;
            return;
        }
        if let Target::Forwarder(forwarder) = pending.target {
            return self.enqueue(forwarder, id);
        }
        let seat = &mut self.seats[usize::from(pending.seat)];
        if pending.behind {
            let session = &self.sessions[seat.candidate(self.sessions.len())];
            if session.pipelining(self.options.pipeline.mode) == Pipelining::None {
                pending.place = Place::Chunk;
                return;
            }
        }
        if pending.op.mutates() && pending.reply_slot.is_none() {
            pending.reply_slot = seat.take_reply_slot(self.reply_slots);
            if pending.reply_slot.is_none() {
                pending.place = Place::ReplySlot;
                seat.reply_slot_waiters.insert(id);
                return;
            }
        }
        if seat.recovery.is_some() || seat.paused_until.is_some() {
            pending.place = Place::Seat;
            seat.waiting.insert(id);
            return;
        }
        let forwarder = seat.candidate(self.sessions.len());
        self.enqueue(forwarder, id);
    }

    fn enqueue(&mut self, forwarder: usize, id: Id) {
        let session = &mut self.sessions[forwarder];
        if session.queue.is_empty() && session.has_credit() {
            return self.transmit(forwarder, id);
        }
        session.queue.insert(id);
        self.put(id, Place::Queue(forwarder));
        self.connect(forwarder);
        self.flush(forwarder);
    }

    pub(super) fn put(&mut self, id: Id, place: Place) {
        if let Some(pending) = self.requests.get_mut(&id) {
            pending.place = place;
        }
    }

    /// Sends a request for which the session has a credit.
    pub(super) fn transmit(&mut self, forwarder: usize, id: Id) {
        if !self.introduce(forwarder, id) {
            return;
        }
        let Some(pending) = self.requests.get_mut(&id) else {
            return;
        };
        // Requests to a forwarder need no seat, and the layout may not be known yet.
        let seat = self.seats.get(usize::from(pending.seat));
        let generation = seat.map_or(0, |seat| seat.generation_for(pending));
        let session = &mut self.sessions[forwarder];
        if let Op::SetLock { wait: true, .. } = pending.op {
            pending.polled = session.waits.len() >= session.waits_max();
            if !pending.polled {
                session.waits.insert(id);
            }
        }
        if let Some(hints) = &mut pending.hints {
            let app = whose(hints, pending.caller.as_ref());
            let delta = self.charges.take_delta(app, forwarder, self.now);
            delta.put_into(hints);
        }
        let request = pending.request(id, generation, self.epoch);
        let payload = pending.payload.clone();
        pending.sent = true;
        pending.sent_at = self.now;
        pending.place = Place::Sent(forwarder);
        session.sent.insert(id);
        session.last_sent = self.now;
        let connection = self.connection_for(forwarder, &request.op);
        self.outputs.push_back(Output::Send {
            forwarder,
            connection,
            request,
            payload,
        });
    }

    /// Sends a request again after a pause, in ns.
    pub(super) fn later(&mut self, id: Id, pause: u64) {
        let at = self.now + pause;
        self.wakes.insert((at, Wake::Request(id)));
        self.put(id, Place::Later(at));
    }

    /// Routes a request whose pause is over.
    pub(super) fn resume(&mut self, id: Id) {
        self.put(id, Place::Nowhere);
        match self.requests.get(&id).map(|pending| pending.purpose) {
            Some(Purpose::Fsync { .. }) => self.fsync_step(id),
            Some(_) => self.route(id),
            None => {}
        }
    }

    /// Whether the core asks again for a refused lock: its caller wanted to wait.
    pub(super) fn polls_again(&self, id: Id, errno: Errno) -> bool {
        let pending = self.requests.get(&id);
        errno == Errno::AGAIN && pending.is_some_and(|it| it.polled && !it.abandoned)
    }

    /// Removes a request from wherever it waits, and frees its reply slot for the next.
    pub(super) fn remove(&mut self, id: Id) -> Option<Box<Pending>> {
        let mut pending = self.requests.remove(&id)?;
        self.end_change(&mut pending);
        match pending.place {
            // The session's credit comes back with the reply.
            Place::Nowhere | Place::Chunk | Place::Sent(_) | Place::Resolving | Place::Host => {}
            Place::Gate(key) => {
                if let Some(gate) = self.gates.get_mut(&key) {
                    gate.waiting.remove(&id);
                }
            }
            Place::ReplySlot => {
                self.seats[usize::from(pending.seat)]
                    .reply_slot_waiters
                    .remove(&id);
            }
            Place::Seat => {
                self.seats[usize::from(pending.seat)].waiting.remove(&id);
            }
            Place::Queue(forwarder) => {
                self.sessions[forwarder].queue.remove(id);
            }
            Place::Later(at) => {
                self.wakes.remove(&(at, Wake::Request(id)));
            }
        }
        if let Some(reply_slot) = pending.reply_slot {
            self.free_reply_slot(pending.seat, reply_slot, pending.sent);
        }
        if let Some(next) = pending.next {
            self.pass_on(next);
        }
        Some(pending)
    }

    /// Routes the chunk after this one, which is done.
    fn pass_on(&mut self, id: Id) {
        let Some(pending) = self.requests.get_mut(&id) else {
            return;
        };
        pending.behind = false;
        if pending.place == Place::Chunk {
            pending.place = Place::Nowhere;
            self.route(id);
        }
    }

    /// Drops a request that nobody needs, and takes back what a forwarder may have done for it.
    pub(super) fn discard(&mut self, id: Id) {
        let Some(pending) = self.remove(id) else {
            return;
        };
        if !pending.sent {
            return;
        }
        match pending.op {
            Op::SetLock { handle, lock, .. } => self.take_back(id, handle, lock, pending.seat),
            Op::Open { handle, open, .. } => self.close_unwanted(handle, open, pending.seat),
            _ => {}
        }
    }

    /// Closes a file that was opened for a caller who no longer waited.
    pub(super) fn close_unwanted(&mut self, handle: Handle, open: u64, seat: u16) {
        let close = Op::Close { handle, open };
        self.submit(Pending::new(close, seat, Target::Seat, Purpose::Background));
    }

    /// Marks a request whose caller waits no longer.
    pub(super) fn abandon(&mut self, id: Id) {
        let Some(pending) = self.requests.get_mut(&id) else {
            return;
        };
        pending.abandoned = true;
        let in_flight = match pending.place {
            Place::Sent(forwarder) => Some(forwarder),
            _ => None,
        };
        if let Some(key) = pending.lock_key() {
            return self.abandon_lock(id, key, in_flight);
        }
        if in_flight.is_none() && !pending.owed() {
            self.discard(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_stay_in_order_whatever_comes_and_goes() {
        let mut ids = Ids::default();
        for id in [3, 5, 9, 4, 5, 1] {
            ids.insert(id);
        }
        assert_eq!(ids.iter().collect::<Vec<_>>(), [1, 3, 4, 5, 9]);
        assert!(ids.remove(1) && ids.remove(4) && !ids.remove(4) && !ids.remove(7));
        assert_eq!(ids.pop_first(), Some(3));
        ids.retain(|id| *id != 5);
        assert_eq!((ids.len(), ids.pop_first()), (1, Some(9)));
        assert!(ids.is_empty() && ids.pop_first().is_none());
    }
}
