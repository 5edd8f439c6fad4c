//! Which forwarder serves each seat, as far as the client knows, and the reply slots in the seat's
//! reply table.

use super::recovery::Recovery;
use super::requests::{Id, Pending, Place, Purpose, Target};
use super::{BACKOFF_MAX, BACKOFF_MIN, Core, Wake, set_of};
use crate::wire::ReplySlot;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// One seat as the client sees it.
#[derive(Default)]
pub(super) struct Seat {
    /// Generation whose holder knows this client's opens and locks; 0: none.
    pub(super) generation: u64,
    owner: usize,
    /// The forwarder at which a round begins: the one that served last, else the owner.
    start: usize,
    /// Number of forwarders of the round that did not serve.
    step: usize,
    /// Forwarder that served the seat last.
    pub(super) server: Option<usize>,
    /// The client has asked all forwarders, none serves the seat, and it waits until this time, in
    /// ns.
    pub(super) paused_until: Option<u64>,
    backoff: u64,
    /// Requests that wait for the pause or the recovery to end.
    pub(super) waiting: BTreeSet<Id>,
    pub(super) recovery: Option<Recovery>,
    pub(super) probe: Option<Id>,
    /// Requests that wait for a reply slot.
    pub(super) reply_slot_waiters: BTreeSet<Id>,
    /// The lowest is used first.
    reply_slots_free: BinaryHeap<Reverse<u16>>,
    /// Last sequence of each reply slot.
    sequences: Vec<u64>,
}

impl Seat {
    pub(super) fn new(owner: usize) -> Seat {
        Seat {
            owner,
            start: owner,
            backoff: BACKOFF_MIN,
            ..Seat::default()
        }
    }

    /// The forwarder to ask now: first the last server, then the owner and the forwarders after it.
    pub(super) fn candidate(&self, forwarders: usize) -> usize {
        if self.step == 0 {
            return self.start;
        }
        (0..forwarders)
            .map(|n| (self.owner + n) % forwarders)
            .filter(|forwarder| *forwarder != self.start)
            .nth(self.step - 1)
            .expect("a round has a step for each forwarder")
    }

    /// Goes on to the next forwarder because the candidate does not serve the seat; pauses after a
    /// full round.
    fn advance(&mut self, forwarders: usize, now: u64) {
        self.step += 1;
        if self.step >= forwarders {
            self.step = 0;
            self.start = self.owner;
            self.paused_until = Some(now + self.backoff);
            self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// The generation that a request of the seat carries: during a recovery, the new one.
    pub(super) fn generation_for(&self, pending: &Pending) -> u64 {
        match (pending.purpose, pending.target, &self.recovery) {
            (Purpose::Recover, _, Some(recovery)) => recovery.generation,
            (_, Target::Seat, _) | (Purpose::Background, ..) => self.generation,
            _ => 0,
        }
    }

    /// Takes a free reply slot below `reply_slots`, with its next sequence number.
    pub(super) fn take_reply_slot(&mut self, reply_slots: u16) -> Option<ReplySlot> {
        let known = self.sequences.len();
        let index = match self.reply_slots_free.peek() {
            Some(Reverse(index)) if *index < reply_slots => self.reply_slots_free.pop()?.0,
            _ if known < usize::from(reply_slots) => {
                self.sequences.push(0);
                known as u16
            }
            _ => return None,
        };
        let sequence = &mut self.sequences[usize::from(index)];
        *sequence += 1;
        Some(ReplySlot {
            index,
            sequence: *sequence,
        })
    }

    /// Records that a forwarder says it holds the seat.
    pub(super) fn found(&mut self, forwarder: usize) {
        self.start = forwarder;
        self.step = 0;
        self.server = Some(forwarder);
        self.backoff = BACKOFF_MIN;
    }
}

impl Core {
    /// Records that a forwarder has answered a request as holder of the seat.
    pub(super) fn served(&mut self, seat: u16, forwarder: usize) {
        let forwarders = self.sessions.len();
        let seat = &mut self.seats[usize::from(seat)];
        // One that drains may still answer after the client has gone on to the next.
        if seat.paused_until.is_none() && seat.candidate(forwarders) == forwarder {
            seat.found(forwarder);
        }
    }

    /// Handles that a forwarder does not serve the seat, or no longer. Its requests of the seat go
    /// to the next forwarder, together with the one that it has just refused.
    pub(super) fn leave(&mut self, seat: u16, forwarder: usize, refused: Option<Id>) {
        let mut again = set_of(refused.into_iter());
        for id in &again {
            self.put(*id, Place::Nowhere);
        }
        if self.serves(seat, forwarder) {
            again.extend(self.quit(seat));
            again.extend(self.unqueue(seat, forwarder));
        }
        for id in again {
            self.route(id);
        }
        self.probe_if_needed(seat);
    }

    /// Whether the client would ask this forwarder for the seat now.
    pub(super) fn serves(&self, seat: u16, forwarder: usize) -> bool {
        let seat = &self.seats[usize::from(seat)];
        let recovering = |recovery: &Recovery| recovery.forwarder == forwarder;
        let asked = seat.paused_until.is_none() && seat.candidate(self.sessions.len()) == forwarder;
        asked || seat.recovery.as_ref().is_some_and(recovering)
    }

    /// Ends a recovery and goes on to the next forwarder. Returns the requests that have waited,
    /// to be routed again.
    pub(super) fn quit(&mut self, seat: u16) -> BTreeSet<Id> {
        self.abort_recovery(seat);
        let forwarders = self.sessions.len();
        let number = seat;
        let seat = &mut self.seats[usize::from(seat)];
        seat.advance(forwarders, self.now);
        if let Some(until) = seat.paused_until {
            self.wakes.insert((until, Wake::Seat(number)));
        }
        let waiting = std::mem::take(&mut seat.waiting);
        for id in &waiting {
            self.put(*id, Place::Nowhere);
        }
        waiting
    }

    /// Takes the requests of the seat that were not sent yet out of the forwarder's queue.
    pub(super) fn unqueue(&mut self, seat: u16, forwarder: usize) -> Vec<Id> {
        let requests = &mut self.requests;
        let mut ids = Vec::new();
        self.sessions[forwarder].queue.retain(|id| {
            let pending = requests.get_mut(id);
            match pending.filter(|p| p.seat == seat && p.target == Target::Seat) {
                Some(pending) => {
                    pending.place = Place::Nowhere;
                    ids.push(*id);
                    false
                }
                None => true,
            }
        });
        ids
    }

    /// Ends the pause of a seat when its time has come.
    pub(super) fn end_pause(&mut self, seat: u16) {
        let paused_until = &mut self.seats[usize::from(seat)].paused_until;
        if paused_until.is_some_and(|at| at <= self.now) {
            *paused_until = None;
            self.release_waiting(seat);
        }
    }

    /// Routes the requests that have waited for the seat.
    pub(super) fn release_waiting(&mut self, seat: u16) {
        let waiting = std::mem::take(&mut self.seats[usize::from(seat)].waiting);
        for id in waiting {
            self.put(id, Place::Nowhere);
            self.route(id);
        }
    }

    /// Frees the reply slot of a request that is over, for the next that waits. If the request was
    /// never sent, its sequence number is used again, since no forwarder has seen it.
    pub(super) fn free_reply_slot(&mut self, seat: u16, reply_slot: ReplySlot, sent: bool) {
        let number = seat;
        let seat = &mut self.seats[usize::from(seat)];
        if !sent {
            seat.sequences[usize::from(reply_slot.index)] -= 1;
        }
        seat.reply_slots_free.push(Reverse(reply_slot.index));
        if let Some(id) = seat.reply_slot_waiters.pop_first() {
            debug_assert_eq!(self.requests.get(&id).map(|p| p.seat), Some(number));
            self.put(id, Place::Nowhere);
            self.route(id);
        }
    }
}
