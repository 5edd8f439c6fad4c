//! Receives requests: ends the session of a client that breaks the protocol's rules, recognises
//! repetitions of outstanding requests, and passes all others on to where they are executed.

use super::Forwarder;
use super::data_requests::is_serial_chunk;
use super::pending_request::{Dispatch, Key, Pending};
use crate::back_end_files::Errno;
use crate::host::{Config, ConnId, Output, SlotId};
use alloc::boxed::Box;
use alloc::format;
use tidegate_wire::frame::{self, NOTICE};
use tidegate_wire::{
    EXTENTS_MAX, Extents, Handle, Layout, NAME_MAX, Named, Op, Outcome, Request, Status,
};

/// The largest offset that Linux knows.
const OFFSET_MAX: u64 = i64::MAX as u64;

impl Forwarder {
    pub(super) fn received(&mut self, conn: ConnId, request: Request, slot: Option<SlotId>) {
        let slot = slot.filter(|slot| self.pool.received(conn, *slot));
        let connection = self.connections.get_mut(&conn).map(|it| {
            it.admitted -= u32::from(slot.is_some());
            &*it
        });
        let Some(connection) = connection.filter(|it| !it.closing) else {
            return self.free(slot);
        };
        let client = match (connection.client, &request.op) {
            (Some(_), Op::Hello(_)) => return self.refuse_request(conn, slot, "a second hello"),
            (Some(client), _) => client,
            (None, Op::Hello(hello)) => {
                self.free(slot);
                return self.hello(conn, &request, hello);
            }
            (None, _) => return self.refuse_request(conn, slot, "a request before the hello"),
        };
        let state = self
            .clients
            .get_mut(&client)
            .expect("a connected client has state");
        state.seen = self.now;
        let id = request.id;
        let place = match state.place_of(id) {
            Err(place) => place,
            // It is outstanding.
            Ok(place) => {
                let (_, key) = state.outstanding[place];
                self.requests[key].conn = conn;
                return self.free(slot);
            }
        };
        let credits = self.config.credits;
        if state.outstanding.len() >= credits as usize {
            let reason = format!("more than {credits} unanswered requests");
            return self.refuse_request(conn, slot, reason);
        }
        if let Err(reason) = check(&self.config, &request, slot) {
            return self.refuse_request(conn, slot, reason);
        }
        let mut pending = Pending::new(client, state.trusted, conn, request, slot);
        pending.hints.app = state.app_of(pending.hints.app);
        pending.serial_chunk = is_serial_chunk(&pending, state.pipelining);
        let key = self.requests.insert(pending);
        state.outstanding.insert(place, (id, key));
        if self.config.record {
            self.note_arrival(key);
        }
        self.route(key);
    }

    /// Ends a connection because of a request that breaks the protocol's rules.
    fn refuse_request(&mut self, conn: ConnId, slot: Option<SlotId>, reason: impl Into<Box<str>>) {
        self.free(slot);
        self.close(conn, reason);
    }

    pub(super) fn free(&mut self, slot: Option<SlotId>) {
        if let Some(slot) = slot
            && self.pool.done(slot)
        {
            self.outputs.push_back(Output::Free { slot });
        }
    }

    /// Answers operations on the session at once, and passes the others to their seat or the back
    /// end.
    fn route(&mut self, key: Key) {
        match self.requests[key].op() {
            Op::Hello(_) => unreachable!("a second hello is refused"),
            Op::Bye => self.bye(key),
            Op::Ping => self.answer(key, Ok(Outcome::Done)),
            Op::Status => {
                let text = self.status(self.is_trusted(key));
                self.answer(key, Ok(Outcome::Text(text)));
            }
            Op::SetPolicy { .. } => self.set_policy(key),
            Op::SetShares { .. } => self.set_shares(key),
            Op::Drain { undo } => {
                let undo = *undo;
                self.set_aside(key, !undo);
            }
            Op::Application { .. } => self.introduced(key),
            // The host answers these where it can reach memory.
            Op::ShareMemory { .. } | Op::RegisterMemory { .. } => {
                self.answer(key, Err(Status::Errno(Errno::EOPNOTSUPP.0)));
            }
            Op::CancelLock { request } => {
                let request = *request;
                self.cancel_lock(key, request);
            }
            // Any forwarder can make its node's pages stable, whatever seat it holds.
            path_ops!() | Op::Fsync { .. } => self.ask_back_end(key),
            look_ops!()
            | name_ops!()
            | attribute_ops!()
            | open_ops!()
            | lock_ops!()
            | content_ops!()
            | data_ops!() => self.route_to_seat(key),
        }
    }

    fn route_to_seat(&mut self, key: Key) {
        if self.draining {
            return self.answer(key, Err(Status::NotMySeat));
        }
        if out_of_range(self.requests[key].op()) {
            return self.answer(key, Err(Status::Errno(Errno::EINVAL.0)));
        }
        self.enter_seat(key);
    }

    /// Ends the waiting of a request that has not begun; false if it has.
    pub(super) fn stop_waiting(&mut self, key: Key) -> bool {
        let pending = &self.requests[key];
        if let Some(seat) = self.seats.get_mut(pending.seat)
            && let Some(at) = seat.waiting.iter().position(|waits| *waits == key)
        {
            seat.waiting.remove(at);
            return true;
        }
        if let Some(at) = self.parked.iter().position(|waits| *waits == key) {
            self.parked.remove(at);
            return true;
        }
        if pending.serial_chunk && self.serial_transfers.cancel(pending) {
            return true;
        }
        pending.dispatch == Dispatch::Local && self.locks.cancel(key)
    }
}

/// Checks a request for what a client that follows the protocol never sends.
fn check(config: &Config, request: &Request, slot: Option<SlotId>) -> Result<(), &'static str> {
    let layout = &config.layout;
    if request.id == NOTICE {
        return Err("the id of notices");
    }
    if request.seat >= layout.seats {
        return Err("a seat that does not exist");
    }
    if let Some(seat) = layout.seat_of_op(&request.op, config.root.handle)
        && seat != request.seat
    {
        return Err("a seat that is not in charge");
    }
    if request.op.mutates() != request.reply_slot.is_some() {
        return Err("a reply slot where none belongs, or none where one does");
    }
    if let Some(reply_slot) = request.reply_slot
        && (usize::from(reply_slot.index) >= crate::reply_table::REPLY_SLOTS
            || reply_slot.sequence == 0)
    {
        return Err("a reply slot that does not exist");
    }
    let mut payload = u64::from(request.payload_len);
    if let Some((handle, extents)) = request.op.data() {
        check_extents(extents)?;
        check_stripes(layout, request.seat, handle, extents)?;
        if !request.op.mutates() {
            payload = extents.bytes();
        }
    }
    if (payload != 0) != slot.is_some() {
        return Err("a payload without room for it");
    }
    check_names(&request.op)
}

/// Checks that the request's seat is in charge of all bytes of a data request.
fn check_stripes(
    layout: &Layout,
    seat: u16,
    handle: Handle,
    extents: &Extents,
) -> Result<(), &'static str> {
    for extent in extents
        .iter()
        .filter(|extent| extent.len > 0 && layout.seats > 1)
    {
        let last = extent.offset.saturating_add(extent.len - 1);
        // The next stripe belongs to the next seat.
        let one_stripe = extent.offset / layout.stripe == last / layout.stripe;
        if !one_stripe || layout.seat_of_byte(handle, extent.offset) != seat {
            return Err("bytes of which the seat is not in charge");
        }
    }
    Ok(())
}

fn check_extents(extents: &Extents) -> Result<(), &'static str> {
    if extents.rest.len() >= EXTENTS_MAX {
        return Err("too many extents");
    }
    let mut end = 0;
    for extent in extents.iter() {
        if extent.offset < end {
            return Err("extents that do not ascend");
        }
        end = extent.offset.saturating_add(extent.len);
    }
    Ok(())
}

fn check_names(op: &Op) -> Result<(), &'static str> {
    let sound = |name: Named<'_>| match name {
        Named::Entry(name) => frame::name_is_valid(name),
        Named::Xattr(name) => (1..=NAME_MAX).contains(&name.len()),
    };
    let all_sound = op.names().into_iter().flatten().all(sound);
    all_sound.then_some(()).ok_or("a name that is none")
}

/// Whether an operation has offsets that no file can have. That is an error of the application, not
/// of its client.
fn out_of_range(op: &Op) -> bool {
    let past = |offset: u64, len: u64| offset.checked_add(len).is_none_or(|end| end > OFFSET_MAX);
    match op {
        Op::Read { extents, .. } | Op::Write { extents, .. } => {
            extents.iter().any(|extent| past(extent.offset, extent.len))
        }
        Op::Fallocate { offset, len, .. } => past(*offset, *len),
        Op::CopyRange {
            source_offset,
            offset,
            len,
            ..
        } => past(*source_offset, *len) || past(*offset, *len),
        Op::Setattr { set, .. } => set.size.is_some_and(|size| past(size, 0)),
        Op::Setxattr { .. } | Op::Removexattr { .. } => false,
        Op::Append { .. } | Op::Fsync { .. } => false,
        session_ops!() | path_ops!() | look_ops!() | name_ops!() => false,
        open_ops!() | lock_ops!() => false,
    }
}
