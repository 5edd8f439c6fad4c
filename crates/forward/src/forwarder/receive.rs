//! Receives requests: ends the session of a client that breaks the protocol's rules, recognises
//! repetitions of outstanding requests, and passes all others on to where they are executed.
//!
//! A request is kept as [`Pending`] from its arrival until its reply.

use super::Forwarder;
use super::wait::Wait;
use crate::back_end_files::Errno;
use crate::host::{Config, ConnId, Output, SlotId};
use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use tidegate_sched::{Direction, Time};
use tidegate_wire::frame::{self, NOTICE};
use tidegate_wire::{
    Attr, Caller, EXTENTS_MAX, Extent, Extents, Handle, Hints, Layout, NAME_MAX, Name, Named, Op,
    OpKind, Pipelining, ReplySlot, Request, Status,
};

/// The largest offset that Linux knows.
const OFFSET_MAX: u64 = i64::MAX as u64;

impl Forwarder {
    /// Takes a request that has waited so long for memory, or behind others that did.
    pub(super) fn received(
        &mut self,
        conn: ConnId,
        mut request: Request,
        slot: Option<SlotId>,
        waited_ns: u64,
    ) {
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
        if state.outstanding.len() >= credits as usize && !request.op.needs_no_credit() {
            let reason = format!("more than {credits} unanswered requests");
            return self.refuse_request(conn, slot, reason);
        }
        if let Err(reason) = check(&self.config, &request, slot) {
            return self.refuse_request(conn, slot, reason);
        }
        let taken = state.standing.take_caller(&mut request.caller);
        let checked = state.standing.is_checked();
        let wait = Wait::new(self.now, waited_ns);
        let mut pending = Pending::new(client, checked, conn, request, slot, wait);
        pending.serial_chunk = pending.is_serial_chunk(state.pipelining);
        let barred = !state.standing.reaches_files;
        let user = state.counts_for(self.config.uid, &pending);
        let key = self.requests.insert(pending);
        state.outstanding.insert(place, (id, key));
        if let Some(uid) = user {
            self.count_for_user(key, uid);
        }
        if self.config.record {
            self.note_arrival(key);
        }
        if let Err(uid) = taken {
            self.caller_refused(client, uid);
        }
        match taken.is_err() || barred && !matches!(self.requests[key].op(), session_ops!()) {
            true => self.answer(key, Err(Status::Errno(Errno::EACCES.0))),
            false => self.route(key),
        }
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

    /// Passes a request on to where it is executed.
    fn route(&mut self, key: Key) {
        match self.requests[key].op() {
            session_ops!() => self.session_operation(key),
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

/// Number of an outstanding request.
pub(super) type Key = u32;

/// How the forwarder executes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dispatch {
    /// The scheduler orders its extents.
    Data(Direction),
    /// The scheduler orders it as a write of the whole file.
    WholeFile,
    /// It waits until it is the first in the queues of one or two directories.
    Names,
    /// It opens a file. The host checks the client's right to do so.
    Open,
    /// It makes a file known to this forwarder, whichever seats that holds. The host executes it at
    /// once.
    ResolvePath,
    /// The host executes it at once.
    BackEnd,
    /// The forwarder answers it from its own state.
    Local,
}

/// One outstanding request, from its arrival until its reply.
pub(super) struct Pending {
    pub(super) client: u64,
    /// Whether the client's rights to files are checked.
    pub(super) checked: bool,
    /// The connection on which the request, or its last repetition, arrived.
    pub(super) conn: ConnId,
    pub(super) id: u64,
    pub(super) seat: u16,
    pub(super) kind: OpKind,
    pub(super) generation: u64,
    pub(super) epoch: u64,
    pub(super) reply_slot: Option<ReplySlot>,
    pub(super) caller: Option<Caller>,
    /// The user as whose application it counts; None if it is the forwarder's own.
    pub(super) user: Option<u32>,
    /// With the id of the application under which it counts.
    pub(super) hints: Hints,
    /// None while a job has it.
    pub(super) op: Option<Op>,
    pub(super) dispatch: Dispatch,
    /// It looks up a name or an attribute, for which "there is none" is an ordinary answer.
    pub(super) looks_up: bool,
    pub(super) slot: Option<SlotId>,
    pub(super) payload_len: u32,
    /// Until when it waits for its seat's lock or, if it asks no seat and the lease has lapsed, for
    /// the back end.
    pub(super) wait_until: Option<Time>,
    /// It has passed the gate of its seat. The forwarder releases the seat only after it.
    pub(super) active: bool,
    /// The forwarder answered it when it lost the seat, and keeps it until its job has ended.
    pub(super) answered_early: bool,
    /// The number of its reply slot in the seat's table. That slot is marked busy.
    pub(super) reply_slot_number: Option<u32>,
    /// Intents of the seat's last holder have been looked up for this request.
    pub(super) resolved: bool,
    /// How many of its extents the scheduler has not finished.
    pub(super) parts_left: u32,
    /// Bytes read or written of the first extent, and of the others.
    pub(super) done_first: u32,
    pub(super) done_rest: Vec<u32>,
    pub(super) failure: Option<Status>,
    /// It is a chunk of a transfer whose chunks the forwarder executes one after another.
    pub(super) serial_chunk: bool,
    /// Of these chunks it is the one that the forwarder is executing.
    pub(super) chunk_runs: bool,
    pub(super) charged_ns: u64,
    /// What it waits for.
    pub(super) wait: Wait,
    /// The file that it writes, of which nothing is lent meanwhile, if its client has opened it.
    pub(super) writes: Option<Handle>,
    /// What it looks at, if its answer can be lent.
    pub(super) look: Option<Look>,
    /// The directory in which it changes names, if the answer can lend its attributes, and when the
    /// host began, on the loans' clock.
    pub(super) changes_in: Option<(Handle, u64)>,
    /// The directory's attributes after the change; dropped at its end if another request has
    /// changed it meanwhile.
    pub(super) directory: Option<Box<Attr>>,
}

/// What a request looks at whose answer can be lent.
pub(super) struct Look {
    /// When the host began, on the loans' clock.
    pub(super) mark: u64,
    pub(super) file: Handle,
    /// The name that it looks up, if the file is a directory in which it does.
    pub(super) name: Option<Name>,
}

impl Pending {
    pub(super) fn new(
        client: u64,
        checked: bool,
        conn: ConnId,
        request: Request,
        slot: Option<SlotId>,
        wait: Wait,
    ) -> Pending {
        Pending {
            client,
            checked,
            conn,
            id: request.id,
            seat: request.seat,
            kind: request.op.kind(),
            generation: request.generation,
            epoch: request.epoch,
            reply_slot: request.reply_slot,
            caller: request.caller,
            user: None,
            hints: request.hints.unwrap_or_default(),
            dispatch: Dispatch::of(&request.op),
            looks_up: matches!(request.op, Op::Lookup { .. } | Op::Getxattr { .. }),
            op: Some(request.op),
            slot,
            payload_len: request.payload_len,
            wait_until: None,
            active: false,
            answered_early: false,
            reply_slot_number: None,
            resolved: false,
            parts_left: 0,
            done_first: 0,
            done_rest: Vec::new(),
            failure: None,
            serial_chunk: false,
            chunk_runs: false,
            charged_ns: 0,
            wait,
            writes: None,
            look: None,
            changes_in: None,
            directory: None,
        }
    }

    pub(super) fn op(&self) -> &Op {
        self.op.as_ref().expect("no job has the operation")
    }

    /// Whether it is a chunk of a transfer whose chunks the forwarder executes one at a time.
    fn is_serial_chunk(&self, mode: Pipelining) -> bool {
        let Some((_, extents)) = self.op().data() else {
            return false;
        };
        mode == Pipelining::Serial && self.hints.operation_bytes > extents.bytes()
    }

    /// Whether the request asks the back end but no seat.
    pub(super) fn is_of_no_seat(&self) -> bool {
        let asks = self.kind == OpKind::Fsync || self.dispatch == Dispatch::ResolvePath;
        asks && !self.active
    }

    /// Whether a data request reads or writes.
    pub(super) fn direction(&self) -> Direction {
        let Dispatch::Data(direction) = self.dispatch else {
            unreachable!("only data requests have a direction");
        };
        direction
    }

    /// File and extent number `index` of a data request.
    pub(super) fn extent(&self, index: usize) -> (Handle, Extent) {
        let (handle, extents) = self.op().data().expect("only data requests have extents");
        match index {
            0 => (handle, extents.first),
            _ => (handle, extents.rest[index - 1]),
        }
    }

    /// Where in the slot the bytes of extent number `index` lie.
    pub(super) fn slot_offset(&self, index: usize) -> u32 {
        let Some((_, extents)) = self.op().data() else {
            return 0;
        };
        let before = extents.iter().take(index).map(|extent| extent.len);
        // The sum of all lengths was checked against the largest payload.
        before.sum::<u64>() as u32
    }
}

impl Dispatch {
    pub(super) fn of(op: &Op) -> Dispatch {
        match op {
            Op::Read { .. } => Dispatch::Data(Direction::Read),
            Op::Write { .. } => Dispatch::Data(Direction::Write),
            Op::Setattr { set, .. } if set.size.is_some() => Dispatch::WholeFile,
            content_ops!() => Dispatch::WholeFile,
            name_ops!() => Dispatch::Names,
            Op::Open { .. } => Dispatch::Open,
            path_ops!() => Dispatch::ResolvePath,
            look_ops!() | attribute_ops!() => Dispatch::BackEnd,
            Op::Close { .. } | lock_ops!() | session_ops!() => Dispatch::Local,
        }
    }
}

/// Whether operations of this kind run when the scheduler says so, and not as they come.
pub fn is_scheduled(op: &Op) -> bool {
    matches!(Dispatch::of(op), Dispatch::Data(_) | Dispatch::WholeFile)
}
