//! A seat, and its gate: generation and reply slot of each request to a seat that this forwarder
//! serves are checked here. Every reply leaves through this file.
//!
//! A seat as this forwarder sees it has a state, a reply table, and the clients that have reply
//! slots there. Before a request passes on, its client must have the right to the file
//! ([`super::permissions`]).

use super::Forwarder;
use super::ill::is_away;
use super::receive::{Dispatch, Key, Pending};
use crate::back_end_files::Errno;
use crate::host::{ConnId, Output};
use crate::reply_table::{self, ALL_VACANT, CLIENTS_MAX, ReplySlotState, SeatTable};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use tidegate_sched::Time;
use tidegate_wire::{LockKind, Op, OpKind, Outcome, Reply, ReplyKind, Status};

const EPROTO: u16 = 71;
/// How long requests wait for the lock of this forwarder's own seat.
const OWN_WAIT_NS: u64 = 100_000_000;
/// How long requests wait for the lock of another forwarder's seat. The host answers sooner, unless
/// the back end hangs.
pub(super) const TAKING_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Another forwarder holds it, or none does.
    Released,
    /// The host was asked for the lock, at that time.
    Taking(Time),
    /// The lock is held; intents in the table are being looked up.
    Resolving,
    /// The lock is held, and requests are served.
    Held,
    /// Its owner wants it, or the forwarder stops: what was accepted is finished.
    Draining,
    /// Another forwarder may hold it by now: its outstanding requests end.
    Lost,
}

/// One seat of the layout, held or not.
pub(super) struct Seat {
    pub(super) state: State,
    pub(super) generation: u64,
    pub(super) table: Option<Arc<dyn SeatTable>>,
    pub(super) clients: BTreeMap<u64, Seated>,
    /// Which blocks of the table are taken; those behind the last are free, and it is taken.
    pub(super) blocks: Vec<bool>,
    /// No block before this one is free.
    pub(super) free_from: usize,
    /// Reply slots of blocks from here on have been given back, or were never used.
    pub(super) used_end: usize,
    /// Requests that wait for the seat.
    pub(super) waiting: VecDeque<Key>,
    /// Until when clients may reclaim locks; None outside of grace.
    pub(super) grace_until: Option<Time>,
    /// Grace lasts for its whole time, because the table does not say which clients may reclaim.
    pub(super) whole_grace: bool,
    /// When the clients lose their reply slots that the last holder knew and that have sent no
    /// request to this holder.
    pub(super) unseen_clients_expire_at: Option<Time>,
    /// Reply slots whose intents could not be looked up so far.
    pub(super) unresolved: Vec<u32>,
    pub(super) resolving: u32,
    /// Requests and jobs that must end before the seat is released.
    pub(super) active: u32,
    /// The table marks clients as holders, and these marks do not yet outlive the node.
    pub(super) marks_changed: bool,
    /// A job is persisting the marks.
    pub(super) persisting: bool,
    /// Requests that the forwarder answers when the marks are next persisted.
    pub(super) answers: Vec<(Key, Result<Outcome, Status>)>,
}

/// The seats that are not released. They are few, however many the layout has.
pub(super) struct Seats {
    seats: BTreeMap<u16, Seat>,
    released: Seat,
    /// How many of them are lost.
    lost: usize,
}

impl Seats {
    /// All are released.
    pub(super) fn new() -> Seats {
        Seats {
            seats: BTreeMap::new(),
            released: Seat::released(),
            lost: 0,
        }
    }

    /// A seat, unless it is released and so has nothing to change.
    pub(super) fn get_mut(&mut self, seat: u16) -> Option<&mut Seat> {
        self.seats.get_mut(&seat)
    }

    /// A seat that is taken or held, or will be.
    pub(super) fn entry(&mut self, seat: u16) -> &mut Seat {
        self.seats.entry(seat).or_insert_with(Seat::released)
    }

    /// The seat is released again.
    pub(super) fn remove(&mut self, seat: u16) {
        let seat = self.seats.remove(&seat);
        self.lost -= usize::from(seat.is_some_and(|seat| seat.state == State::Lost));
    }

    /// Marks a seat as lost, which it stays until it is released.
    pub(super) fn lose(&mut self, seat: u16) {
        self.entry(seat).state = State::Lost;
        self.lost += 1;
    }

    /// Whether any seat is lost. Every request looks here first, because it costs least.
    pub(super) fn any_lost(&self) -> bool {
        self.lost > 0
    }

    /// The seats that are not released, by number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u16, &Seat)> {
        self.seats.iter().map(|(number, seat)| (*number, seat))
    }

    /// The same, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Seat> {
        self.seats.values_mut()
    }

    /// Their numbers.
    pub(super) fn numbers(&self) -> Vec<u16> {
        self.seats.keys().copied().collect()
    }

    pub(super) fn all_released(&self) -> bool {
        self.seats.is_empty()
    }
}

impl core::ops::Index<u16> for Seats {
    type Output = Seat;

    fn index(&self, seat: u16) -> &Seat {
        self.seats.get(&seat).unwrap_or(&self.released)
    }
}

/// A client with a block in the seat's table.
pub(super) struct Seated {
    pub(super) block: u16,
    /// Pages of its reply slots that are not in use, as in the table.
    pub(super) vacant: u16,
    pub(super) reply_slots_busy: u64,
    /// Reply slots whose last request ended at this holder of the seat.
    pub(super) reply_slots_ended: u64,
    /// Opens, and files with locks, of the client at this seat.
    pub(super) holdings: u32,
    /// The table marks the client as a holder of opens or locks.
    pub(super) marked: bool,
    /// The last holder knew the client, and the client has not shown this generation yet.
    pub(super) inherited: bool,
    /// Grace waits for this client to reclaim.
    pub(super) reclaiming: bool,
}

impl Seat {
    pub(super) fn released() -> Seat {
        Seat {
            state: State::Released,
            generation: 0,
            table: None,
            clients: BTreeMap::new(),
            blocks: Vec::new(),
            free_from: 0,
            used_end: 0,
            waiting: VecDeque::new(),
            grace_until: None,
            whole_grace: false,
            unseen_clients_expire_at: None,
            unresolved: Vec::new(),
            resolving: 0,
            active: 0,
            marks_changed: false,
            persisting: false,
            answers: Vec::new(),
        }
    }

    pub(super) fn is_released(&self) -> bool {
        self.state == State::Released
    }

    /// Whether the host holds the seat's lock.
    pub(super) fn has_lock(&self) -> bool {
        !matches!(self.state, State::Released | State::Taking(_))
    }

    /// When the forwarder asked the host for the seat's lock; None if the host has answered.
    pub(super) fn asked_at(&self) -> Option<Time> {
        if let State::Taking(since) = self.state {
            Some(since)
        } else {
            None
        }
    }

    pub(super) fn in_grace(&self) -> bool {
        self.grace_until.is_some()
    }

    /// Table and number of the reply slot of a client that has a block.
    pub(super) fn reply_slot(&self, client: u64, index: u16) -> (&dyn SeatTable, u32) {
        let table = self.table.as_deref().expect("a held seat has a table");
        let number = reply_table::reply_slot_number(self.clients[&client].block, index);
        (table, number)
    }

    /// Whether the client knows an older generation of the seat, or none. It must then re-open its
    /// files and reclaim its locks before anything else.
    pub(super) fn client_is_stale(&mut self, client: u64, generation: u64) -> bool {
        let seated = self.clients.get_mut(&client);
        if generation == self.generation {
            if let Some(seated) = seated {
                seated.inherited = false;
            }
            return false;
        }
        generation != 0 || seated.is_some_and(|seated| seated.inherited)
    }

    /// Gives the client a block if it has none; false if the table or its file system is full.
    pub(super) fn seat_client(&mut self, client: u64) -> bool {
        if self.clients.contains_key(&client) {
            return true;
        }
        let behind = self.blocks.get(self.free_from..).unwrap_or_default();
        let free = behind.iter().position(|taken| !taken);
        let block = free.map_or(self.blocks.len(), |free| self.free_from + free);
        let table = self.table.as_ref().expect("a held seat has a table");
        if block >= CLIENTS_MAX || !reply_table::enter(&**table, block as u16, client) {
            return false;
        }
        self.take_block(block as u16);
        self.free_from = block + 1;
        self.clients.insert(client, Seated::new(block as u16));
        true
    }

    /// Puts a reply slot into use for a client that has a block; false if there is no room for it.
    pub(super) fn open_reply_slot(&mut self, client: u64, index: u16) -> bool {
        let seated = self.clients.get_mut(&client);
        let seated = seated.expect("the client has a block");
        let table = self.table.as_deref().expect("a held seat has a table");
        seated.vacant & reply_table::page_bit(index) == 0
            || reply_table::open_page(table, seated.block, index, &mut seated.vacant)
    }

    /// Notes that a client has this block of the table.
    pub(super) fn take_block(&mut self, block: u16) {
        let block = usize::from(block);
        if block >= self.blocks.len() {
            self.blocks.resize(block + 1, false);
        }
        self.blocks[block] = true;
        self.used_end = self.used_end.max(self.blocks.len());
    }

    /// Marks a reply slot as busy; false if it is busy already.
    pub(super) fn use_reply_slot(&mut self, client: u64, index: u16, number: u32) -> bool {
        let seated = self
            .clients
            .get_mut(&client)
            .expect("the client has a block");
        let bit = 1 << index;
        if seated.reply_slots_busy & bit != 0 {
            return false;
        }
        seated.reply_slots_busy |= bit;
        if !self.unresolved.is_empty() {
            self.unresolved.retain(|reply_slot| *reply_slot != number);
        }
        true
    }

    /// A reply slot's request is done. If the slot still holds an intent, that must be looked up.
    pub(super) fn reply_slot_done(&mut self, pending: &Pending) {
        let (Some(reply_slot), Some(number)) = (pending.reply_slot, pending.reply_slot_number)
        else {
            return;
        };
        let Some(seated) = self.clients.get_mut(&pending.client) else {
            return;
        };
        seated.reply_slots_busy &= !(1 << reply_slot.index);
        seated.reply_slots_ended |= 1 << reply_slot.index;
        let table = self.table.as_ref().expect("a held seat has a table");
        if pending.failure == Some(Status::UnknownHandle)
            && reply_table::peek(&**table, number).0 == ReplySlotState::Intent
        {
            self.unresolved.push(number);
        }
    }

    /// Whether this holder of the seat, not an earlier one, wrote the reply slot's record.
    pub(super) fn ended_here(&self, client: u64, index: u16) -> bool {
        self.clients[&client].reply_slots_ended & (1 << index) != 0
    }

    /// Counts one request or job more or less that must end before the seat is released.
    pub(super) fn count_active(&mut self, more: bool) {
        match more {
            true => self.active += 1,
            false => self.active -= 1,
        }
    }
}

impl Seated {
    pub(super) fn new(block: u16) -> Seated {
        Seated {
            block,
            vacant: ALL_VACANT,
            reply_slots_busy: 0,
            reply_slots_ended: 0,
            holdings: 0,
            marked: false,
            inherited: false,
            reclaiming: false,
        }
    }
}

impl Forwarder {
    /// Passes a request to its seat: to the gate if the forwarder serves the seat; otherwise the
    /// request waits, or is sent elsewhere.
    pub(super) fn enter_seat(&mut self, key: Key) {
        let seat = self.requests[key].seat;
        let own = seat == self.config.forwarder;
        match self.seats[seat].state {
            State::Held => return self.enter_seat_gate(key),
            State::Draining | State::Lost => return self.answer(key, Err(Status::NotMySeat)),
            _ if self.aside => return self.answer(key, Err(Status::NotMySeat)),
            State::Released if !own && !self.config.fail_over => {
                return self.answer(key, Err(Status::NotMySeat));
            }
            // The host takes one seat after another.
            State::Released if self.hanging_take().is_some() => {
                return self.answer(key, Err(Status::NotMySeat));
            }
            State::Released => self.take_seat(seat),
            // For the own seat the host may wait for a stand-in, and each request waits a little.
            State::Taking(since) => {
                let late = match own {
                    true => self.has_lapsed(),
                    false => since + TAKING_NS <= self.now,
                };
                if late {
                    return self.answer(key, Err(Status::NotMySeat));
                }
            }
            State::Resolving => {}
        }
        if let Some(since) = self.seats[seat].asked_at() {
            let until = match own {
                true => self.now + OWN_WAIT_NS,
                false => since + TAKING_NS,
            };
            self.requests[key].wait_until = Some(until);
            self.wake_by(until);
        }
        self.seats.entry(seat).waiting.push_back(key);
    }

    /// Checks generation and reply slot of a request to a seat that this forwarder serves, then
    /// executes or answers it.
    pub(super) fn enter_seat_gate(&mut self, key: Key) {
        let pending = &self.requests[key];
        let (client, generation) = (pending.client, pending.generation);
        let has_reply_slot = pending.reply_slot.is_some();
        let seat = self.seats.entry(pending.seat);
        if seat.client_is_stale(client, generation) {
            return self.answer(key, Err(Status::NewGeneration));
        }
        let leaves_state = has_reply_slot
            || matches!(pending.op(), Op::Open { .. })
            || matches!(pending.op(), Op::SetLock { lock, .. } if lock.kind != LockKind::None);
        let has_room = !leaves_state
            || seat.seat_client(client)
                && pending
                    .reply_slot
                    .is_none_or(|reply_slot| seat.open_reply_slot(client, reply_slot.index));
        if !has_room {
            return self.answer(key, Err(Status::TryLater));
        }
        if has_reply_slot && (self.resolve_first(key) || !self.enter_reply_slot(key)) {
            return;
        }
        let pending = &mut self.requests[key];
        pending.active = true;
        self.seats.entry(pending.seat).count_active(true);
        match pending.dispatch {
            Dispatch::Local => self.run_local(key),
            Dispatch::Data(_) | Dispatch::WholeFile | Dispatch::Names => self.permit(key),
            Dispatch::Open | Dispatch::ResolvePath | Dispatch::BackEnd => self.permit(key),
        }
    }

    /// Whether the request is the next one of its reply slot. If not, answers it.
    fn enter_reply_slot(&mut self, key: Key) -> bool {
        let pending = &mut self.requests[key];
        let reply_slot = pending.reply_slot.expect("asked for reply slots only");
        let seat = self.seats.entry(pending.seat);
        let (table, number) = seat.reply_slot(pending.client, reply_slot.index);
        let (mut state, stored) = reply_table::peek(table, number);
        let again = state == ReplySlotState::Done && stored == reply_slot.sequence;
        if again && table.must_persist() && !seat.ended_here(pending.client, reply_slot.index) {
            // The last holder's node may be gone, with the bytes that this result speaks of.
            match pending.kind.spec().reply {
                ReplyKind::Appended => reply_table::doubt(table, number),
                ReplyKind::Written => reply_table::clear(table, number),
                ReplyKind::Done | ReplyKind::Attr | ReplyKind::Removed => {}
                ReplyKind::Recalled => {}
                ReplyKind::Hello | ReplyKind::Text | ReplyKind::Entries | ReplyKind::Data => {}
                ReplyKind::Offset | ReplyKind::Statfs | ReplyKind::Lock => {}
            }
            state = reply_table::peek(table, number).0;
        }
        if state == ReplySlotState::Done && stored == reply_slot.sequence {
            if let Some(result) = reply_table::read(table, number).result {
                let kind = pending.kind.spec().reply;
                if result.as_ref().is_ok_and(|outcome| outcome.kind() != kind) {
                    let conn = self.clients[&pending.client].conn;
                    self.answer(key, Err(Status::Errno(EPROTO)));
                    if let Some(conn) = conn {
                        self.close(conn, "a reply slot's sequence with another operation");
                    }
                    return false;
                }
                self.counters.replays += 1;
                self.note_replay(key);
                self.answer(key, result);
                return false;
            }
        } else if state != ReplySlotState::Empty
            && stored > reply_slot.sequence
            && reply_table::read(table, number).state != ReplySlotState::Empty
        {
            let conn = self.clients[&pending.client].conn;
            self.answer(key, Err(Status::Errno(EPROTO)));
            if let Some(conn) = conn {
                self.close(conn, "a reply slot's sequence went back");
            }
            return false;
        }
        if !seat.use_reply_slot(pending.client, reply_slot.index, number) {
            let conn = self.clients[&pending.client].conn;
            if let Some(conn) = conn {
                self.close(conn, "two requests in one reply slot");
            }
            self.answer(key, Err(Status::Errno(EPROTO)));
            return false;
        }
        pending.reply_slot_number = Some(number);
        true
    }

    /// Executes a request if its client may.
    pub(super) fn permit(&mut self, key: Key) {
        match self.requests[key].checked {
            false => self.begin(key),
            true => self.check_rights(key),
        }
    }

    /// Executes a request that waits for nobody's loan.
    pub(super) fn begin_unlent(&mut self, key: Key) {
        match self.requests[key].dispatch {
            Dispatch::Data(_) => self.begin_data(key),
            Dispatch::WholeFile => self.begin_whole(key),
            Dispatch::Names => self.begin_names(key),
            Dispatch::Open => self.begin_open(key),
            Dispatch::BackEnd | Dispatch::ResolvePath | Dispatch::Local => {
                self.begin_operation(key)
            }
        }
    }

    /// Replies to a request and forgets it. The reply goes to the connection on which the request,
    /// or its last repetition, arrived.
    pub(super) fn answer(&mut self, key: Key, mut result: Result<Outcome, Status>) {
        let mut pending = self
            .requests
            .remove(key)
            .expect("a request is answered once");
        if pending.wait.is_queued() {
            self.give_up_wait(&pending.wait);
        }
        self.end_change(key, &mut pending);
        if pending.kind == OpKind::Fsync {
            result = self.synced(&pending, result);
        }
        if pending.answered_early {
            return self.end_early(&pending);
        }
        if self.must_not_tell(&pending, &result) {
            result = Err(Status::NotMySeat);
        }
        if let Err(status) = &result {
            pending.failure = Some(*status);
        }
        let client = self
            .clients
            .get_mut(&pending.client)
            .expect("its client has state");
        let place = client.place_of(pending.id).expect("it is outstanding");
        client.outstanding.remove(place);
        let (conn, ended) = (client.replies_on(pending.conn), client.ended);
        let payload_len = result.as_ref().map_or(0, Outcome::payload_len);
        let payload_len = u32::try_from(payload_len).unwrap_or(u32::MAX);
        let lent = self.lend(&mut pending, &mut result);
        let seat = &self.seats[pending.seat];
        let ours = seat.has_lock() && seat.state != State::Lost;
        let held = ours && !matches!(result, Err(Status::NotMySeat));
        let reply = Reply {
            id: pending.id,
            seat: pending.seat,
            generation: if held { seat.generation } else { 0 },
            epoch: self.scheduler.epoch(self.now),
            charged_ns: pending.charged_ns,
            result,
            payload_len,
            lent,
        };
        self.count_answer(&pending, &reply);
        if self.config.record {
            self.tell_served(key, &pending, &reply);
        }
        self.send(conn, &pending, reply);
        self.leave_seat_gate(&pending);
        if pending.chunk_runs {
            self.end_chunk(&pending);
        }
        if ended {
            self.forget_if_ended(pending.client);
        }
    }

    fn send(&mut self, conn: Option<ConnId>, pending: &Pending, reply: Reply) {
        let Some(conn) = conn else {
            return self.free(pending.slot);
        };
        let pool = &mut self.pool;
        let slot = pending.slot.filter(|slot| match reply.payload_len {
            0 => pool.done(*slot),
            _ => pool.sending(*slot),
        });
        let op = pending.kind as u8;
        self.outputs.push_back(Output::Send {
            conn,
            op,
            reply,
            slot,
        });
    }

    /// Takes an answered request out of its seat.
    pub(super) fn leave_seat_gate(&mut self, pending: &Pending) {
        if pending.reply_slot_number.is_none() && !pending.active {
            return;
        }
        let seat = self.seats.entry(pending.seat);
        seat.reply_slot_done(pending);
        if pending.active {
            seat.count_active(false);
            if matches!(seat.state, State::Draining | State::Lost) {
                self.release_if_idle(pending.seat);
            }
        }
    }

    /// Whether the forwarder must not pass a result on, because its seat is lost, or because the
    /// result says nothing of the file.
    fn must_not_tell(&self, pending: &Pending, result: &Result<Outcome, Status>) -> bool {
        // Where the back end is out of reach, its error is not the file's.
        let away = matches!(result, Err(Status::Errno(errno)) if is_away(Errno(*errno)));
        self.is_of_lost(pending) || (away && self.has_lapsed() && pending.is_of_no_seat())
    }

    /// Whether the forwarder has lost the seat of a request since the request passed its gate.
    pub(super) fn is_lost(&self, key: Key) -> bool {
        self.seats.any_lost() && self.is_of_lost(&self.requests[key])
    }

    fn is_of_lost(&self, pending: &Pending) -> bool {
        let lost = |seat: u16| self.seats[seat].state == State::Lost;
        self.seats.any_lost() && pending.active && lost(pending.seat)
    }
}
