//! One seat of the layout as this forwarder sees it: its state, its reply table, and the clients
//! that have reply slots there.

use super::pending_request::{Key, Pending};
use crate::reply_table::{self, ALL_VACANT, CLIENTS_MAX, ReplySlotState, SeatTable};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use tidegate_sched::Time;
use tidegate_wire::{Outcome, Status};

/// Blocks whose reply slots are given back together: clients that come and go all the time use the
/// same reply slots again.
const GIVEN_BACK_MIN: usize = 256;

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
    blocks: Vec<bool>,
    /// No block before this one is free.
    free_from: usize,
    /// Reply slots of blocks from here on have been given back, or were never used.
    used_end: usize,
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

    /// Begins with a table, as if no block of it were taken.
    pub(super) fn begin_table(&mut self, table: &dyn SeatTable) {
        self.blocks.clear();
        self.free_from = 0;
        // Whoever held the seat before may have left reply slots anywhere.
        self.used_end = reply_table::room(table);
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
