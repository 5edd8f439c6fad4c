//! A request comes in: what the peer must not do, and what is already outstanding.

use super::Forwarder;
use super::pending_request::{Dispatch, Key, Pending, whole_file};
use super::serial_transfers::is_serial_chunk;
use crate::back_end_files::Errno;
use crate::host::{Config, ConnId, Output, SlotId};
use alloc::boxed::Box;
use alloc::format;
use tidegate_wire::frame::NOTICE;
use tidegate_wire::{EXTENTS_MAX, Extents, Handle, Layout, NAME_MAX, Op, Outcome, Request, Status};

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

    /// Ends a connection because of what came on it.
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

    /// Session operations are answered at once; the others ask for their seat.
    fn route(&mut self, key: Key) {
        match self.requests[key].op() {
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
            Op::Reach { .. } | Op::Fsync { .. } => self.ask_back_end(key),
            _ if self.draining => self.answer(key, Err(Status::NotMySeat)),
            op if out_of_range(op) => self.answer(key, Err(Status::Errno(Errno::EINVAL.0))),
            _ => self.enter_seat(key),
        }
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

/// What a client that follows the protocol never sends.
fn check(config: &Config, request: &Request, slot: Option<SlotId>) -> Result<(), &'static str> {
    let layout = &config.layout;
    if request.id == NOTICE {
        return Err("the id of notices");
    }
    if request.seat >= layout.seats {
        return Err("a seat that does not exist");
    }
    if let Some(seat) = request.op.seat(layout, config.root.handle)
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
    let payload = match &request.op {
        Op::Read { extents, .. } => {
            check_extents(extents)?;
            extents.bytes()
        }
        Op::Write { extents, .. } => {
            check_extents(extents)?;
            u64::from(request.payload_len)
        }
        _ => u64::from(request.payload_len),
    };
    if let Op::Read { handle, extents } | Op::Write { handle, extents } = &request.op {
        check_stripes(layout, request.seat, *handle, extents)?;
    }
    if (payload != 0) != slot.is_some() {
        return Err("a payload without room for it");
    }
    check_names(&request.op)
}

/// All bytes of a data request belong to its seat.
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
    let sound = |name: &[u8]| {
        (1..=NAME_MAX).contains(&name.len())
            && name != b"."
            && name != b".."
            && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
    };
    let name_sound = match op {
        Op::Lookup { name, .. }
        | Op::Create { name, .. }
        | Op::Mkdir { name, .. }
        | Op::Mknod { name, .. }
        | Op::Symlink { name, .. }
        | Op::Link { name, .. }
        | Op::Unlink { name, .. }
        | Op::Rmdir { name, .. } => sound(name),
        Op::Rename { name, new_name, .. } => sound(name) && sound(new_name),
        Op::Getxattr { name, .. } | Op::Setxattr { name, .. } | Op::Removexattr { name, .. } => {
            (1..=NAME_MAX).contains(&name.len())
        }
        _ => true,
    };
    name_sound.then_some(()).ok_or("a name that is none")
}

/// Offsets that no file has: an error of the application, not of its client.
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
        Op::Setattr { set, .. } => whole_file(op).is_some() && past(set.size.unwrap_or(0), 0),
        _ => false,
    }
}
