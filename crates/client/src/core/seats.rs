//! Who serves each seat, as far as the client knows, and the rows of its reply table.

use super::recovery::Recovery;
use super::requests::{Id, Place, Target};
use super::{BACKOFF_MAX, BACKOFF_MIN, Core, Wake};
use crate::wire::Row;
use std::collections::BTreeSet;

/// One seat as the client sees it.
#[derive(Default)]
pub(super) struct Seat {
    /// Generation whose holder knows our opens and locks; 0: none.
    pub(super) generation: u64,
    owner: usize,
    /// Where a round begins: the forwarder that served last, else the owner.
    start: usize,
    /// Forwarders of the round that did not serve.
    step: usize,
    /// Forwarder that served last.
    pub(super) server: Option<usize>,
    /// A full round found nobody.
    pub(super) paused_until: Option<u64>,
    backoff: u64,
    /// Requests that wait for the pause or the recovery to end.
    pub(super) waiting: BTreeSet<Id>,
    pub(super) recovery: Option<Recovery>,
    pub(super) probe: Option<Id>,
    /// Requests that wait for a row.
    pub(super) row_waiters: BTreeSet<Id>,
    rows_free: BTreeSet<u16>,
    /// Last sequence of each row.
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

    /// The forwarder to ask now: the last server, then the owner and those after it.
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

    /// The candidate does not serve: on to the next, after a full round with a pause.
    fn advance(&mut self, forwarders: usize, now: u64) {
        self.step += 1;
        if self.step >= forwarders {
            self.step = 0;
            self.start = self.owner;
            self.paused_until = Some(now + self.backoff);
            self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// A forwarder says that it holds the seat.
    pub(super) fn found(&mut self, forwarder: usize) {
        self.start = forwarder;
        self.step = 0;
        self.server = Some(forwarder);
        self.backoff = BACKOFF_MIN;
    }
}

impl Core {
    /// A forwarder has answered a request of the seat as its holder.
    pub(super) fn served(&mut self, seat: u16, forwarder: usize) {
        let forwarders = self.sessions.len();
        let seat = &mut self.seats[usize::from(seat)];
        // One that drains may still answer after the client has gone on to the next.
        if seat.paused_until.is_none() && seat.candidate(forwarders) == forwarder {
            seat.found(forwarder);
        }
    }

    /// A forwarder does not serve the seat, or no longer: its requests go to the next, together
    /// with the one that it has just refused.
    pub(super) fn leave(&mut self, seat: u16, forwarder: usize, refused: Option<Id>) {
        let mut again: BTreeSet<Id> = refused.into_iter().collect();
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

    /// Takes back the requests of the seat that were not sent to the forwarder yet.
    pub(super) fn unqueue(&mut self, seat: u16, forwarder: usize) -> Vec<Id> {
        let of_seat = |id: &Id| {
            let pending = self.requests.get(id);
            pending.is_some_and(|p| p.seat == seat && p.target == Target::Seat)
        };
        let queue = &self.sessions[forwarder].queue;
        let ids: Vec<Id> = queue.iter().copied().filter(of_seat).collect();
        for id in &ids {
            self.sessions[forwarder].queue.remove(id);
            self.put(*id, Place::Nowhere);
        }
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

    /// Routes what has waited for the seat.
    pub(super) fn release_waiting(&mut self, seat: u16) {
        let waiting = std::mem::take(&mut self.seats[usize::from(seat)].waiting);
        for id in waiting {
            self.put(id, Place::Nowhere);
            self.route(id);
        }
    }

    /// Gives a request a row of its seat, if one is free.
    pub(super) fn take_row(&mut self, seat: u16, id: Id) -> bool {
        let rows = self.rows;
        let seat = &mut self.seats[usize::from(seat)];
        let known = seat.sequences.len();
        let index = match seat.rows_free.first() {
            Some(index) if *index < rows => *index,
            _ if known < usize::from(rows) => {
                seat.sequences.push(0);
                known as u16
            }
            _ => return false,
        };
        seat.rows_free.remove(&index);
        let sequence = &mut seat.sequences[usize::from(index)];
        *sequence += 1;
        let row = Row {
            index,
            sequence: *sequence,
        };
        if let Some(pending) = self.requests.get_mut(&id) {
            pending.row = Some(row);
        }
        true
    }

    /// A row's request is over; the next that waits may have it. Nobody has seen the sequence of
    /// a request that was never sent.
    pub(super) fn free_row(&mut self, seat: u16, row: Row, sent: bool) {
        let number = seat;
        let seat = &mut self.seats[usize::from(seat)];
        if !sent {
            seat.sequences[usize::from(row.index)] -= 1;
        }
        seat.rows_free.insert(row.index);
        if let Some(id) = seat.row_waiters.pop_first() {
            debug_assert_eq!(self.requests.get(&id).map(|p| p.seat), Some(number));
            self.put(id, Place::Nowhere);
            self.route(id);
        }
    }
}
