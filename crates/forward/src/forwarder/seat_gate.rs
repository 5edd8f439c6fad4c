//! The gate of a seat: checks generation and reply slot of each request to a seat that this
//! forwarder serves. Every reply leaves through this file.

use super::Forwarder;
use super::pending_request::{Dispatch, Key, Pending};
use super::seat_state::State;
use crate::host::Output;
use crate::reply_table::{self, ReplySlotState};
use tidegate_wire::{LockKind, Op, OpKind, Outcome, Reply, ReplyKind, Status};

const EPROTO: u16 = 71;

impl Forwarder {
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
            Dispatch::Open | Dispatch::Reach | Dispatch::BackEnd => self.permit(key),
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

    /// Executes a request that has passed all checks.
    pub(super) fn begin(&mut self, key: Key) {
        match self.requests[key].dispatch {
            Dispatch::Data(_) => self.begin_data(key),
            Dispatch::WholeFile => self.begin_whole(key),
            Dispatch::Names => self.begin_names(key),
            Dispatch::Open => self.begin_open(key),
            Dispatch::BackEnd | Dispatch::Reach | Dispatch::Local => self.begin_operation(key),
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

    fn send(&mut self, conn: Option<crate::host::ConnId>, pending: &Pending, reply: Reply) {
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
}
