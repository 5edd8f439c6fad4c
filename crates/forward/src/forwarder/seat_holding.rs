//! Holding a seat, from one end to the other: the forwarder takes the seat, looks up the intents
//! that the last holder left, gives clients a time of grace, serves, drains and releases. An
//! operator may set the whole forwarder aside, which then holds no seat.

use super::receive::Key;
use super::seat_gate::{Seat, Seated, State, TAKING_NS};
use super::{Forwarder, Running};
use crate::back_end_files::Errno;
use crate::host::{Job, Output, ReplySlotAddress};
use crate::reply_table::{self, REPLY_SLOTS, ReplySlotState, SeatTable};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use tidegate_sched::Time;
use tidegate_wire::{Lent, Op, Outcome, Reply, Status, frame};

/// Blocks whose reply slots are given back together: clients that come and go all the time use the
/// same reply slots again.
const GIVEN_BACK_MIN: usize = 256;

impl Seat {
    /// Begins with a table, as if no block of it were taken.
    pub(super) fn begin_table(&mut self, table: &dyn SeatTable) {
        self.blocks.clear();
        self.free_from = 0;
        // Whoever held the seat before may have left reply slots anywhere.
        self.used_end = reply_table::room(table);
    }

    /// Notes that a block is free. When many blocks behind the last one in use are free, gives the
    /// room of their reply slots back.
    pub(super) fn free_block(&mut self, block: u16) {
        let block = usize::from(block);
        self.blocks[block] = false;
        self.free_from = self.free_from.min(block);
        while self.blocks.last() == Some(&false) {
            self.blocks.pop();
        }
        if self.used_end - self.blocks.len() >= GIVEN_BACK_MIN {
            let table = self.table.as_deref().expect("a held seat has a table");
            reply_table::give_back(table, self.blocks.len()..self.used_end);
            self.used_end = self.blocks.len();
        }
    }

    /// Notes that the client has one open, or one file with locks, more or less.
    pub(super) fn hold(&mut self, client: u64, more: bool) {
        let Some(seated) = self.clients.get_mut(&client) else {
            return;
        };
        match more {
            true => seated.holdings += 1,
            false => seated.holdings -= 1,
        }
        let held = seated.holdings > 0 || seated.reclaiming;
        if held != seated.marked {
            seated.marked = held;
            let table = self.table.as_ref().expect("a held seat has a table");
            reply_table::set_held(&**table, seated.block, held);
            self.marks_changed |= held && table.must_persist();
        }
    }

    /// For the status: a word for the state, and the clients with reply slots.
    pub(super) fn describe(&self) -> (&'static str, usize) {
        let word = match self.state {
            State::Released => "away",
            State::Taking(_) => "taking",
            State::Resolving => "resolving",
            State::Held if self.in_grace() => "grace",
            State::Held => "serving",
            State::Draining => "draining",
            State::Lost => "lost",
        };
        (word, self.clients.len())
    }

    /// This process was stopped for `gap` ns: clients get so much longer to reclaim.
    pub(super) fn pause(&mut self, gap: u64) {
        for until in [&mut self.grace_until, &mut self.unseen_clients_expire_at] {
            *until = until.map(|until| until + gap);
        }
    }
}

impl Forwarder {
    fn seat_mut(&mut self, seat: u16) -> &mut Seat {
        self.seats.entry(seat)
    }

    /// Asks the host for a seat's lock.
    pub(super) fn take_seat(&mut self, seat: u16) {
        self.seat_mut(seat).state = State::Taking(self.now);
        self.outputs.push_back(Output::TakeSeat { seat });
    }

    /// The seat of another forwarder for which the host has waited longest, if that is too long,
    /// and since when: the back end does not answer the host. (For the own seat the host may be
    /// waiting for a stand-in.)
    pub(super) fn hanging_take(&self) -> Option<(u16, Time)> {
        let others = self.seats.iter();
        let others = others.filter(|(number, _)| *number != self.config.forwarder);
        let asked = others.filter_map(|(number, seat)| Some((number, seat.asked_at()?)));
        let late = asked.filter(|(_, since)| *since + TAKING_NS <= self.now);
        late.min_by_key(|(_, since)| *since)
    }

    pub(super) fn seat_refused(&mut self, seat: u16) {
        // For the own seat the host goes on waiting, and so do its requests for their while.
        if seat == self.config.forwarder || self.seats[seat].asked_at().is_none() {
            return;
        }
        self.seat_mut(seat).state = State::Released;
        self.turn_away(seat);
    }

    /// Sends the requests that wait for a seat elsewhere, and forgets the seat if it is released.
    pub(super) fn turn_away(&mut self, seat: u16) {
        while let Some(key) = self
            .seats
            .get_mut(seat)
            .and_then(|it| it.waiting.pop_front())
        {
            self.answer(key, Err(Status::NotMySeat));
        }
        if self.seats[seat].is_released() {
            self.seats.remove(seat);
        }
    }

    pub(super) fn seat_taken(&mut self, number: u16, generation: u64, table: Arc<dyn SeatTable>) {
        let (now, lease, grace) = (self.now, self.config.lease_ns, self.config.grace_ns);
        let late = self.has_lapsed();
        let leaves = self.draining || self.aside;
        let seat = self.seat_mut(number);
        assert!(!seat.has_lock(), "a seat is taken while it is held");
        if late || leaves || seat.asked_at().is_none() {
            seat.state = State::Released;
            self.outputs.push_back(Output::ReleaseSeat { seat: number });
            self.turn_away(number);
            if late && number == self.config.forwarder && !leaves {
                self.take_seat(number);
            }
            return;
        }
        let (entries, damaged) = reply_table::clients(&*table);
        seat.generation = generation;
        seat.begin_table(&*table);
        let mut reply_slots = Vec::new();
        for entry in entries {
            if seat.clients.contains_key(&entry.client) {
                reply_table::leave(&*table, entry.block);
                continue;
            }
            seat.take_block(entry.block);
            let seated = Seated {
                marked: entry.held,
                inherited: true,
                reclaiming: entry.held,
                vacant: entry.vacant,
                ..Seated::new(entry.block)
            };
            seat.clients.insert(entry.client, seated);
            let used = |index: &u16| entry.vacant & reply_table::page_bit(*index) == 0;
            let all = (0..REPLY_SLOTS as u16).filter(used);
            let all = all.map(|index| reply_table::reply_slot_number(entry.block, index));
            reply_slots.extend(all.filter(|reply_slot| {
                reply_table::peek(&*table, *reply_slot).0 == ReplySlotState::Intent
            }));
        }
        let reclaiming = seat.clients.values().any(|seated| seated.reclaiming);
        seat.whole_grace = table.may_lack_holders();
        let reclaiming = reclaiming || seat.whole_grace;
        seat.grace_until = reclaiming.then_some(now + grace);
        seat.unseen_clients_expire_at = (!seat.clients.is_empty()).then_some(now + lease);
        seat.table = Some(table);
        for until in [seat.grace_until, seat.unseen_clients_expire_at] {
            until.into_iter().for_each(|until| self.wake_by(until));
        }
        if damaged > 0 {
            self.log(format!(
                "{damaged} clients of seat {number}'s table are unreadable"
            ));
        }
        if !reclaiming {
            self.outputs.push_back(Output::Reclaimed { seat: number });
        }
        self.inherit_loans(number, damaged > 0);
        self.resolve(number, reply_slots);
    }

    /// Has the host look up intents. Requests of the seat wait meanwhile.
    fn resolve(&mut self, number: u16, reply_slots: Vec<u32>) {
        let seat = self.seat_mut(number);
        seat.state = State::Resolving;
        seat.resolving = reply_slots.len() as u32;
        let table = seat.table.clone().expect("a held seat has a table");
        for reply_slot in &reply_slots {
            let address = ReplySlotAddress {
                unresolved: Vec::new(),
                seat: number,
                table: table.clone(),
                reply_slot: *reply_slot,
                sequence: reply_table::peek(&*table, *reply_slot).1,
            };
            let job = Job::Resolve {
                reply_slot: address,
            };
            self.start(Running::Resolve { seat: number }, job);
        }
        self.seat_mut(number).unresolved = reply_slots;
        if self.seat_mut(number).resolving == 0 {
            self.serve(number);
        }
    }

    pub(super) fn intent_resolved(&mut self, number: u16) {
        let seat = self.seat_mut(number);
        seat.resolving -= 1;
        if seat.resolving > 0 {
            return;
        }
        let table = seat.table.clone().expect("a held seat has a table");
        seat.unresolved.retain(|reply_slot| {
            reply_table::peek(&*table, *reply_slot).0 == ReplySlotState::Intent
        });
        match seat.state {
            State::Draining | State::Lost => self.release_if_idle(number),
            State::Released | State::Taking(_) | State::Resolving | State::Held => {
                self.serve(number);
            }
        }
    }

    fn serve(&mut self, number: u16) {
        self.seat_mut(number).state = State::Held;
        while self.seats[number].state == State::Held {
            let Some(key) = self.seat_mut(number).waiting.pop_front() else {
                return;
            };
            self.enter_seat_gate(key);
        }
    }

    /// Has the host look up, before the first change at this seat, the intents that it could not
    /// look up when the forwarder took the seat. This must come before other clients change the
    /// same files. True if the request must wait for it.
    pub(super) fn resolve_first(&mut self, key: Key) -> bool {
        let number = self.requests[key].seat;
        if self.requests[key].resolved || self.seats[number].unresolved.is_empty() {
            return false;
        }
        self.requests[key].resolved = true;
        let seat = self.seat_mut(number);
        seat.waiting.push_front(key);
        let reply_slots = core::mem::take(&mut seat.unresolved);
        self.resolve(number, reply_slots);
        true
    }

    /// The seat's owner is back and waits for the seat: drains it.
    pub(super) fn seat_wanted(&mut self, number: u16) {
        let state = self.seats[number].state;
        if !matches!(state, State::Held | State::Resolving) {
            return;
        }
        self.seat_mut(number).state = State::Draining;
        self.turn_away(number);
        self.turn_locks_away(number);
        self.release_if_idle(number);
    }

    pub(super) fn drain(&mut self) {
        self.draining = true;
        for number in self.seats.numbers() {
            if self.seats[number].asked_at().is_some() {
                self.seat_mut(number).state = State::Released;
                self.turn_away(number);
            }
            self.seat_wanted(number);
        }
    }

    pub(super) fn release_if_idle(&mut self, number: u16) {
        let seat = &self.seats[number];
        let ends = matches!(seat.state, State::Draining | State::Lost);
        if !ends || seat.active > 0 || seat.resolving > 0 {
            return;
        }
        self.tell_holders(number);
        self.seats.remove(number);
        self.drop_seat_locks(number);
        self.drop_seat_opens(number);
        self.outputs.push_back(Output::ReleaseSeat { seat: number });
        if number == self.config.forwarder && !self.draining && !self.aside {
            // It was lost, or is wanted again.
            self.take_seat(number);
        }
    }

    /// Tells clients with opens or locks that the seat goes to another forwarder, because an idle
    /// client would not notice. That forwarder grants no new locks until these clients have
    /// reclaimed theirs, or its grace ends.
    fn tell_holders(&mut self, number: u16) {
        let epoch = self.scheduler.epoch(self.now);
        let seated = self.seats[number].clients.iter();
        let holders = seated.filter(|(_, seated)| seated.holdings > 0);
        let conns = holders.filter_map(|(client, _)| self.clients.get(client)?.conn);
        for conn in conns {
            let reply = Reply {
                id: frame::NOTICE,
                seat: number,
                generation: 0,
                epoch,
                charged_ns: 0,
                result: Err(Status::NotMySeat),
                payload_len: 0,
                lent: Lent::default(),
            };
            let op = frame::op_code(&Op::ReclaimDone);
            let slot = None;
            self.outputs.push_back(Output::Send {
                conn,
                op,
                reply,
                slot,
            });
        }
    }

    /// The client has re-opened its files and reclaimed its locks.
    pub(super) fn reclaim_done(&mut self, number: u16, client: u64) {
        let seat = self.seats.get_mut(number);
        if let Some(seated) = seat.and_then(|it| it.clients.get_mut(&client)) {
            seated.reclaiming = false;
        }
        self.end_grace_if_all_came(number);
    }

    fn end_grace_if_all_came(&mut self, number: u16) {
        let seat = &self.seats[number];
        let wait = seat.whole_grace || seat.clients.values().any(|seated| seated.reclaiming);
        if seat.in_grace() && !wait {
            self.end_grace(number);
        }
    }

    fn end_grace(&mut self, number: u16) {
        let seat = self.seat_mut(number);
        seat.grace_until = None;
        seat.whole_grace = false;
        let table = seat.table.clone().expect("a held seat has a table");
        for seated in seat.clients.values_mut() {
            seated.reclaiming = false;
            if seated.marked && seated.holdings == 0 {
                seated.marked = false;
                reply_table::set_held(&*table, seated.block, false);
            }
        }
        self.outputs.push_back(Output::Reclaimed { seat: number });
        self.wake_seat_locks(number);
    }

    /// A client's state at the seat ends.
    pub(super) fn leave_seat(&mut self, number: u16, client: u64) {
        let Some(seat) = self.seats.get_mut(number) else {
            return;
        };
        let Some(seated) = seat.clients.remove(&client) else {
            return;
        };
        let table = seat.table.as_ref().expect("a held seat has a table");
        reply_table::leave(&**table, seated.block);
        seat.free_block(seated.block);
        let first = reply_table::reply_slot_number(seated.block, 0);
        seat.unresolved
            .retain(|reply_slot| !(first..first + REPLY_SLOTS as u32).contains(reply_slot));
        self.end_grace_if_all_came(number);
    }

    /// Does what is due at a seat.
    pub(super) fn expire_seat(&mut self, number: u16) {
        let now = self.now;
        let due = |until: Option<Time>| until.is_some_and(|until| until <= now);
        let requests = &self.requests;
        let waiting = &self.seats[number].waiting;
        let late = waiting
            .iter()
            .copied()
            .filter(|key| due(requests[*key].wait_until));
        let taking = self.seats[number].asked_at().is_some();
        let late: Vec<Key> = late.filter(|_| taking).collect();
        for key in late {
            self.seat_mut(number).waiting.retain(|waits| *waits != key);
            self.answer(key, Err(Status::NotMySeat));
        }
        if due(self.seats[number].grace_until) {
            self.end_grace(number);
        }
        if due(self.seats[number].unseen_clients_expire_at) {
            self.seat_mut(number).unseen_clients_expire_at = None;
            let seat = &self.seats[number];
            let all = seat.clients.keys().copied();
            let unseen: Vec<u64> = all.filter(|it| !self.clients.contains_key(it)).collect();
            for client in unseen {
                self.leave_seat(number, client);
            }
        }
        let seat = &self.seats[number];
        let waits = seat
            .waiting
            .iter()
            .filter_map(|key| self.requests[*key].wait_until);
        let next = waits.filter(|_| taking).min();
        for until in [next, seat.grace_until, seat.unseen_clients_expire_at]
            .into_iter()
            .flatten()
        {
            self.wake_by(until);
        }
    }

    /// A request to take this forwarder out of service, so that an operator can work on its node
    /// (`tidegate drain`), or to take it back. The order holds until the process ends.
    ///
    /// Other forwarders take its seats, while this one keeps its sessions and shows its status. It
    /// finishes the requests that it has accepted, and answers later ones with "not my seat". If
    /// the host gets a seat that was asked for earlier, the forwarder releases it at once.
    pub(super) fn set_aside(&mut self, key: Key, aside: bool) {
        let alone = self.config.layout.seats < 2 || !self.config.fail_over;
        let refused = match (self.administers(key), aside && alone) {
            (false, _) => Some(Errno::EPERM),
            (true, true) => Some(Errno::EOPNOTSUPP),
            (true, false) => None,
        };
        if let Some(errno) = refused {
            return self.answer(key, Err(Status::Errno(errno.0)));
        }
        if aside != self.aside && !self.draining {
            self.aside = aside;
            match aside {
                true => self.leave_seats(),
                false => self.come_back(),
            }
        }
        self.answer(key, Ok(Outcome::Done));
    }

    fn leave_seats(&mut self) {
        self.log("an operator has set this forwarder aside: others take its seats");
        for number in self.seats.numbers() {
            if self.seats[number].asked_at().is_some() {
                // It stays asked for: should the order end before the answer, that is as good.
                self.turn_away(number);
            }
            self.seat_wanted(number);
        }
    }

    fn come_back(&mut self) {
        self.log("this forwarder is set aside no longer: it takes its own seat again");
        let own = self.config.forwarder;
        // One that still drains is asked for when it has been released.
        if self.seats[own].is_released() {
            self.take_seat(own);
        }
    }
}
