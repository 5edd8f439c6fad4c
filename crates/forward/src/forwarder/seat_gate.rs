//! The gate of a seat: checks generation and reply slot of each request to a seat that this
//! forwarder serves, and whether its client may read or write the file. Every reply leaves through
//! this file.
//!
//! A forwarder of root reads and writes data with its own rights, so it must check those of the
//! client. A client is trusted to check its callers itself if it runs as root or as the forwarder's
//! user, or if it has proved the secret. Any other client must have opened the file here as its own
//! user, or access(2) must allow the access to that user; the forwarder asks this once for each
//! file and direction. The owner of a file may always read and write it, as open(2) allows the
//! creator of a file.

use super::ill::is_away;
use super::pending_request::{Dispatch, Key, Pending};
use super::seat_holding::TAKING_NS;
use super::seat_state::State;
use super::{Forwarder, Running};
use crate::back_end_files::{Access, Errno};
use crate::host::{ConnId, Job, Output};
use crate::reply_table::{self, ReplySlotState};
use alloc::collections::BTreeSet;
use tidegate_wire::{FileUse, Handle, LockKind, Op, OpKind, Outcome, Reply, ReplyKind, Status};

const EPROTO: u16 = 71;
/// How long requests wait for the lock of this forwarder's own seat.
const OWN_WAIT_NS: u64 = 100_000_000;
/// Files and directions that the forwarder remembers for one client.
const ALLOWED_MAX: usize = 4096;
const R_OK: u32 = 4;
const W_OK: u32 = 2;

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
                ReplyKind::Hello | ReplyKind::Text | ReplyKind::Entries | ReplyKind::Data => {}
                ReplyKind::Offset | ReplyKind::Statfs | ReplyKind::Lock => {}
            }
            state = reply_table::peek(table, number).0;
        }
        if state == ReplySlotState::Done && stored == reply_slot.sequence {
            if let Some(result) = reply_table::read(table, number).result {
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

    /// Executes an operation on the forwarder's own tables.
    fn run_local(&mut self, key: Key) {
        match self.requests[key].op() {
            Op::Close { handle, open } => {
                let (handle, open) = (*handle, *open);
                self.close_file(key, handle, open);
            }
            Op::ReclaimDone => {
                let pending = &self.requests[key];
                let (seat, client) = (pending.seat, pending.client);
                self.answer(key, Ok(Outcome::Done));
                self.reclaim_done(seat, client);
            }
            Op::Open { .. } | lock_ops!() => self.lock_operation(key),
            session_ops!()
            | path_ops!()
            | look_ops!()
            | name_ops!()
            | attribute_ops!()
            | content_ops!()
            | data_ops!() => unreachable!("its dispatch is another"),
        }
    }

    /// Executes a request if its client may. If that is unknown, first asks the host.
    pub(super) fn permit(&mut self, key: Key) {
        let pending = &self.requests[key];
        if pending.trusted {
            return self.begin(key);
        }
        let client = &self.clients[&pending.client];
        match missing(pending.op(), &client.allowed) {
            None => self.begin(key),
            Some((handle, write)) => self.ask_permission(key, (handle, write), false),
        }
    }

    fn ask_permission(&mut self, key: Key, (handle, write): (Handle, bool), owner: bool) {
        let client = self.requests[key].client;
        let op = match owner {
            true => Op::Getattr { handle },
            false => Op::Access {
                handle,
                mask: if write { W_OK } else { R_OK },
            },
        };
        let work = Job::Op {
            caller: self.acting(client, None),
            op,
            reply_slot: None,
            payload: None,
        };
        let running = Running::Check {
            key,
            handle,
            write,
            owner,
        };
        self.start(running, work);
    }

    pub(super) fn permission_checked(
        &mut self,
        key: Key,
        need: (Handle, bool),
        owner: bool,
        result: Result<Outcome, Access>,
    ) {
        let uid = self.clients[&self.requests[key].client].uid;
        let reads = matches!(self.requests[key].op(), Op::Fsync { .. }) && need.1;
        match result {
            Ok(Outcome::Attr(attr)) if owner && attr.uid != uid && reads => {
                self.ask_permission(key, (need.0, false), false);
            }
            Ok(Outcome::Attr(attr)) if owner && attr.uid != uid => {
                self.answer(key, Err(Status::Errno(Errno::EACCES.0)));
            }
            Ok(_) => {
                let client = self.requests[key].client;
                self.allow(client, need);
                self.permit(key);
            }
            Err(Access::Errno(Errno::EACCES)) if !owner => self.ask_permission(key, need, true),
            Err(access) => self.answer(key, Err(access.into())),
        }
    }

    /// Remembers what a client may do.
    pub(super) fn allow(&mut self, client: u64, need: (Handle, bool)) {
        if let Some(client) = self.clients.get_mut(&client)
            && !client.trusted
        {
            if client.allowed.len() >= ALLOWED_MAX {
                client.allowed.clear();
            }
            client.allowed.insert(need);
        }
    }

    /// Executes a request that has passed all checks.
    pub(super) fn begin(&mut self, key: Key) {
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

/// The first file whose data an operation reads (false) or writes (true) without a known right of
/// the client to do so.
fn missing(op: &Op, allowed: &BTreeSet<(Handle, bool)>) -> Option<(Handle, bool)> {
    let lacks = |(handle, file_use): (Handle, FileUse)| {
        let needs = |write: bool| (!allowed.contains(&(handle, write))).then_some((handle, write));
        match file_use {
            FileUse::Read => needs(false),
            FileUse::Write => needs(true),
            // Whoever may use the file in any way may make it stable; writers are the usual ones.
            FileUse::Sync => needs(false).and(needs(true)),
            FileUse::Look | FileUse::Names | FileUse::Set => None,
        }
    };
    op.files().into_iter().flatten().find_map(lacks)
}
