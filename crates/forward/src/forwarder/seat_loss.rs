//! Seats that the forwarder loses while it serves them, and results that must outlive the node
//! before the forwarder may answer them.
//!
//! The forwarder loses a seat when the host did not renew the lease in time, when another forwarder
//! took the seat, or when the back end dropped its lock. From then on the forwarder answers all
//! requests of the seat with "not my seat", and none that still waits takes effect. Clients send
//! them again to the next holder, which finds in the reply table what was begun. The forwarder
//! releases the seat when the seat's jobs have ended.

use super::receive::{Dispatch, Key, Pending};
use super::seat_gate::State;
use super::seat_gate::TAKING_NS;
use super::{Forwarder, Running};
use crate::host::{Job, Output};
use alloc::format;
use alloc::vec::Vec;
use tidegate_sched::Time;
use tidegate_wire::{Lent, Outcome, Reply, Status};

/// Until when the forwarder may serve its seats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lease {
    /// For ever, because their locks cannot be lost.
    NotNeeded,
    Until(Time),
    /// Not since this time.
    Lapsed(Time),
}

impl Forwarder {
    pub(super) fn lease_renewed(&mut self, until: Time) {
        if self.now >= until {
            // It came too late. A first one says all the same that seats can be lost here.
            if self.lease == Lease::NotNeeded {
                self.lease = Lease::Lapsed(self.now);
            }
            return;
        }
        self.lease = Lease::Until(until);
        self.renewed_at = Some(self.now);
        self.wake_by(until);
    }

    /// Until when the forwarder may serve its seats; None where they cannot be lost.
    pub(super) fn leased_until(&self) -> Option<Time> {
        match self.lease {
            Lease::NotNeeded => None,
            Lease::Until(until) => Some(until),
            Lease::Lapsed(_) => Some(self.now),
        }
    }

    /// Since when a renewal is late. A host renews several times in a lease. So if less than half
    /// of the lease is left, the keeper of the seats (the back end or etcd) does not answer.
    pub(super) fn late_since(&self) -> Option<Time> {
        let renewed = self.renewed_at?;
        let late = match self.lease {
            Lease::Until(until) => until.since(self.now) < self.now.since(renewed),
            Lease::NotNeeded | Lease::Lapsed(_) => false,
        };
        late.then_some(renewed)
    }

    /// When the host last renewed the lease; None if it never did, or while all seats are released.
    pub(super) fn last_renewal(&self) -> Option<Time> {
        self.renewed_at.filter(|_| !self.seats.all_released())
    }

    /// Whether the forwarder may serve no seat until the host renews the lease.
    pub(super) fn has_lapsed(&self) -> bool {
        self.lapsed_at().is_some()
    }

    /// Since when the lease has lapsed; None if it has not.
    pub(super) fn lapsed_at(&self) -> Option<Time> {
        match self.lease {
            Lease::Lapsed(since) => Some(since),
            Lease::NotNeeded | Lease::Until(_) => None,
        }
    }

    /// Loses all seats.
    #[cold]
    pub(super) fn lease_ran_out(&mut self) {
        self.lease = Lease::Lapsed(self.now);
        for key in self.requests.numbers() {
            if self.requests[key].is_of_no_seat() {
                // Another forwarder may reach what this one cannot.
                self.answer_early(key);
            }
        }
        for number in self.seats.numbers() {
            if self.seats[number].has_lock() {
                self.log(format!(
                    "seat {number} is lost: its lease could not be renewed in time"
                ));
            }
            self.seat_lost(number);
        }
    }

    pub(super) fn seat_lost(&mut self, number: u16) {
        let state = self.seats[number].state;
        if !matches!(state, State::Held | State::Resolving | State::Draining) {
            return;
        }
        self.seats.lose(number);
        self.turn_away(number);
        self.turn_locks_away(number);
        self.lose_loans();
        for key in self.requests.numbers() {
            let pending = &self.requests[key];
            if pending.seat == number && pending.active {
                self.answer_early(key);
            }
        }
        self.release_if_idle(number);
    }

    /// Sends the client elsewhere at once, though the host is executing a job of its request,
    /// because the back end may not answer for a long time. Not if the job uses the client's own
    /// memory: after a reply the client would use that for something else.
    fn answer_early(&mut self, key: Key) {
        let pending = &mut self.requests[key];
        let shared = pending.slot.is_some_and(|slot| self.pool.is_shared(slot));
        if shared || core::mem::replace(&mut pending.answered_early, true) {
            return;
        }
        let client = self.clients.get_mut(&pending.client);
        let client = client.expect("its client has state");
        let place = client.place_of(pending.id).expect("it is outstanding");
        client.outstanding.remove(place);
        client.answered_early += 1;
        self.answered_early += 1;
        let reply = Reply {
            id: pending.id,
            seat: pending.seat,
            generation: 0,
            epoch: self.scheduler.epoch(self.now),
            charged_ns: 0,
            result: Err(Status::NotMySeat),
            payload_len: 0,
            lent: Lent::default(),
        };
        if let Some(conn) = client.replies_on(pending.conn) {
            self.outputs.push_back(Output::Send {
                conn,
                op: pending.kind as u8,
                reply,
                slot: None,
            });
        }
    }

    /// The job of a request that was answered early has ended.
    pub(super) fn end_early(&mut self, pending: &Pending) {
        self.free(pending.slot);
        self.leave_seat_gate(pending);
        if pending.chunk_runs {
            self.end_chunk(pending);
        }
        let client = self.clients.get_mut(&pending.client);
        let client = client.expect("its client has state");
        client.answered_early -= 1;
        self.answered_early -= 1;
        if client.ended {
            self.forget_if_ended(pending.client);
        }
    }

    /// Whether the back end is out of reach, as far as this forwarder knows: the lease has lapsed,
    /// and the host reports trouble, or a call or the taking of a seat does not return.
    pub(super) fn is_cut_off(&self) -> bool {
        let silent = || self.answered_early > 0 || self.hanging_take().is_some();
        self.has_lapsed() && (self.back_end.trouble().is_some() || silent())
    }

    /// Executes a request that asks the back end but no seat. While the lease has lapsed, the
    /// client waits for the back end only a bounded time before the forwarder sends it elsewhere.
    pub(super) fn ask_back_end(&mut self, key: Key) {
        if self.is_cut_off() {
            return self.answer(key, Err(Status::NotMySeat));
        }
        if self.has_lapsed() {
            let until = self.now + TAKING_NS;
            self.requests[key].wait_until = Some(until);
            self.wake_by(until);
        }
        if self.requests[key].dispatch == Dispatch::ResolvePath {
            self.begin(key);
        } else {
            self.permit(key);
        }
    }

    /// Sends clients elsewhere whose requests have waited too long for the back end.
    pub(super) fn expire_back_end(&mut self) {
        if !self.has_lapsed() {
            return;
        }
        for key in self.requests.numbers() {
            let pending = &self.requests[key];
            let waits = pending.is_of_no_seat() && !pending.answered_early;
            match pending.wait_until.filter(|_| waits) {
                Some(until) if until <= self.now => self.answer_early(key),
                Some(until) => self.wake_by(until),
                None => {}
            }
        }
    }

    /// Whether a job must not take effect, because the forwarder has lost its seat.
    fn is_too_late(&self, running: &Running) -> bool {
        let lost = |seat: u16| self.seats[seat].state == State::Lost;
        match running {
            // A call may serve requests of several seats: they are lost all or none.
            Running::Io(ids) => ids
                .first()
                .is_some_and(|id| self.is_lost((id >> 16) as Key)),
            Running::Op(key) => self.is_lost(*key),
            // It changes nothing.
            Running::Check { .. } | Running::Reach { .. } => false,
            Running::Resolve { seat } | Running::Persist { seat, .. } => lost(*seat),
            Running::Closed { handle } => lost(self.config.layout.seat_of_file(*handle)),
        }
    }

    /// Replaces a job that must not take effect any more by a refused one.
    #[cold]
    pub(super) fn refuse_if_late(&self, running: &Running, work: &mut Job) {
        if self.is_too_late(running) {
            *work = Job::Refused(work.refused());
        }
    }

    /// Answers an open or a lock once the table's mark of the client outlives the node. The mark
    /// tells the next holder to wait for the client before it grants locks to others.
    pub(super) fn answer_holding(&mut self, key: Key, result: Result<Outcome, Status>) {
        let pending = &mut self.requests[key];
        let number = pending.seat;
        let seat = self.seats.entry(number);
        // What is on its way may be the mark that this answer relies on.
        let told = !seat.marks_changed && !seat.persisting && seat.answers.is_empty();
        if result.is_err() || told {
            return self.answer(key, result);
        }
        if !core::mem::replace(&mut pending.active, true) {
            seat.count_active(true);
        }
        seat.answers.push((key, result));
        self.persist_marks(number);
    }

    /// Has the host persist the table's marks for the answers that wait, unless it is doing so.
    fn persist_marks(&mut self, number: u16) {
        let seat = self.seats.entry(number);
        if seat.persisting || seat.answers.is_empty() {
            return;
        }
        let Some(table) = seat.table.clone() else {
            return;
        };
        seat.persisting = true;
        seat.marks_changed = false;
        let answers = core::mem::take(&mut seat.answers);
        let running = Running::Persist {
            seat: number,
            answers,
        };
        self.start(running, Job::Persist { table });
    }

    /// The host has persisted the marks: answers the requests that wait. If it has failed, their
    /// clients try again.
    pub(super) fn persisted(
        &mut self,
        number: u16,
        answers: Vec<(Key, Result<Outcome, Status>)>,
        done: bool,
    ) {
        let seat = self.seats.entry(number);
        seat.persisting = false;
        seat.marks_changed |= !done;
        // The seat is not let go between two answers.
        seat.count_active(true);
        for (key, result) in answers {
            self.answer(key, if done { result } else { Err(Status::TryLater) });
        }
        self.persist_marks(number);
        self.seats.entry(number).count_active(false);
        self.release_if_idle(number);
    }
}
