//! Calls: how the core divides them into requests, how they end, and what happens when a caller
//! stops waiting.

use super::replies::Settled;
use super::requests::{Id, Pending, Purpose, Target};
use super::split::{Block, Part, assemble, bytes_max, chain, split, written};
use super::types::{Call, CallId, Operation, Output, Served};
use super::unstable::Dirt;
use super::{Core, Wake};
use crate::collective::Collective;
use crate::core::{Answer, Data, Errno};
use crate::payload::Payload;
use crate::wire::frame::name_is_valid;
use crate::wire::{
    Extent, Extents, GROUPS_MAX, Handle, Hints, LISTED_XATTRS_MAX, Lens, Lock, NAME_MAX, Named, Op,
    Outcome, PATH_MAX, POLICY_MAX, Pipelining, READDIR_MAX, XATTR_MAX,
};
use crate::wire::{
    attribute_ops, content_ops, lock_ops, look_ops, name_ops, open_ops, path_ops, session_ops,
};
use std::collections::BTreeSet;

/// How the parts of a call become one answer.
pub(super) enum Kind {
    /// The call has one part, whose answer is the call's.
    Single,
    Read,
    Write,
    Fsync(Fsync),
    /// Goes on when the client has looked ahead.
    LookAhead(Box<Call>),
}

/// An fsync of a file.
pub(super) struct Fsync {
    pub(super) handle: Handle,
    /// The open file by which it is made, if it is known.
    pub(super) open: Option<u64>,
    /// What is asked of nodes with unstable writes. Empty if there are none: then the forwarder in
    /// charge of the file is asked.
    pub(super) parts: Vec<FsyncPart>,
}

/// The part of an fsync that goes to one forwarder.
pub(super) struct FsyncPart {
    /// What its node has written.
    pub(super) dirt: Dirt,
    /// The forwarder that should answer. Any other one of the node does where it cannot.
    pub(super) wanted: Option<usize>,
    /// Forwarders of the node that did not answer in this round.
    pub(super) tried: BTreeSet<usize>,
    /// Whether the forwarder has said that all is stable.
    pub(super) stable: bool,
}

/// A call that has no answer yet.
pub(super) struct Active {
    pub(super) kind: Kind,
    parts: Vec<Part>,
    /// Parts without a result.
    left: usize,
    deadline_ns: Option<u64>,
    /// How long the caller may keep the attributes in the answer, ns.
    pub(super) lasts_ns: u64,
    /// When each forwarder answered last; empty unless recorded.
    served: Vec<Served>,
}

impl Core {
    pub(super) fn call(&mut self, id: CallId, mut call: Call) {
        if self.ending.is_some() {
            return self.done(id, Err(Errno::IO));
        }
        if call.deadline_ns.is_some_and(|at| at <= self.now) {
            return self.done(id, Err(Errno::TIMEDOUT));
        }
        fit(&mut call);
        if let Err(errno) = check(&call, self.sessions.len()) {
            return self.done(id, Err(errno));
        }
        if let Some(at) = call.deadline_ns {
            self.wakes.insert((at, Wake::Call(id)));
        }
        if self.layout.is_some() {
            self.begin(id, call);
        } else {
            self.unrouted.insert(id, call);
        }
    }

    /// Makes the requests of a call.
    pub(super) fn begin(&mut self, id: CallId, mut call: Call) {
        let (Some(layout), Some(root)) = (self.layout, self.root) else {
            return;
        };
        if self.answer_from_loans(id, &call) {
            return;
        }
        let nothing = Extents::from(Extent { offset: 0, len: 0 });
        match &mut call.op {
            Op::Read { handle, extents } | Op::Write { handle, extents } => {
                let (handle, extents) = (*handle, std::mem::replace(extents, nothing));
                let merge = self.options.merge_blocks;
                let blocks = split(&layout, handle, &extents, self.chunk_bytes, merge);
                self.begin_data(id, call, handle, blocks);
            }
            Op::Fsync { handle, data_only } => {
                let (handle, data_only) = (*handle, *data_only);
                self.begin_fsync(id, &call, handle, data_only);
            }
            Op::Append { .. } if call.payload.len() > self.payload_max as usize => {
                self.end_call(id, call.deadline_ns, Err(Errno::MSGSIZE));
            }
            // Nothing that is in it could be found.
            Op::Mkdir { parent, .. } if self.names.is_too_deep(root.handle, *parent) => {
                self.end_call(id, call.deadline_ns, Err(Errno::NAMETOOLONG));
            }
            op => {
                if let Some(ahead) = self.due(op) {
                    return self.look_ahead(id, call, ahead);
                }
                let seat = layout.seat_of_op(op, root.handle);
                let target = match seat {
                    Some(_) => Target::Seat,
                    None => Target::Forwarder(call.forwarder),
                };
                self.begin_single(id, call, seat.unwrap_or(0), target);
            }
        }
    }

    pub(super) fn begin_single(&mut self, id: CallId, call: Call, seat: u16, target: Target) {
        let bytes = call.payload.len() as u64;
        let hints = call
            .op
            .moves_data()
            .then(|| self.hints(&call, bytes, bytes));
        if let Op::Close { handle, open } = call.op
            && self.opens.remove(&(handle, open)).is_some()
        {
            self.names.closed(handle);
            self.untold.forget(handle, open);
        }
        let mut pending = Pending::new(call.op, seat, target, Purpose::Part { call: id, part: 0 });
        pending.caller = call.caller;
        pending.caches = call.caches;
        pending.hints = hints;
        if !call.payload.is_empty() {
            pending.payload = vec![call.payload];
        }
        let key = pending.lock_key();
        let request = self.insert(pending);
        let parts = vec![Part::new(request, None)];
        self.activate(id, Kind::Single, parts, call.deadline_ns);
        match key {
            Some(key) => self.route_lock(request, key),
            None => self.route(request),
        }
    }

    fn begin_data(&mut self, id: CallId, call: Call, handle: Handle, blocks: Vec<Block>) {
        let bytes = blocks.iter().map(|block| block.bytes).sum();
        let hints = self.hints(&call, bytes, bytes_max(&blocks));
        let reads = matches!(call.op, Op::Read { .. });
        // The requests get consecutive ids.
        let first = self.request_ids + 1;
        let mut links = chain(&blocks, self.sessions.len()).into_iter();
        let mut parts = Vec::with_capacity(blocks.len());
        for (part, block) in blocks.into_iter().enumerate() {
            let extents = block.extents.clone();
            let op = match reads {
                true => Op::Read { handle, extents },
                false => Op::Write { handle, extents },
            };
            let purpose = Purpose::Part { call: id, part };
            let mut pending = Pending::new(op, block.seat, Target::Seat, purpose);
            pending.caller = call.caller.clone();
            pending.hints = Some(hints);
            let link = links.next().unwrap_or_default();
            pending.behind = link.behind;
            pending.next = link.next.map(|part| first + part as Id);
            if !reads {
                pending.payload = block.payload(&call.payload);
            }
            parts.push(Part::new(self.insert(pending), Some(block)));
        }
        let kind = match reads {
            true => Kind::Read,
            false => Kind::Write,
        };
        let requests = first..first + parts.len() as Id;
        self.activate(id, kind, parts, call.deadline_ns);
        if requests.is_empty() {
            return self.complete(id);
        }
        for request in requests {
            self.route(request);
        }
    }

    pub(super) fn activate(
        &mut self,
        id: CallId,
        kind: Kind,
        parts: Vec<Part>,
        deadline_ns: Option<u64>,
    ) {
        let active = Active {
            kind,
            left: parts.len(),
            parts,
            deadline_ns,
            lasts_ns: 0,
            served: Vec::new(),
        };
        self.calls.insert(id, active);
    }

    /// Begins an operation of several reads, or several writes, of parts of the extent; `wall_ns`
    /// is the time in ns since 1970. None where its parts must wait for each other, or the client
    /// has no session yet: then the caller makes it one call.
    pub fn begin_operation(
        &mut self,
        wall_ns: u64,
        handle: Handle,
        extent: Extent,
        collective: Option<Collective>,
    ) -> Option<Operation> {
        let layout = self.layout?;
        if self.options.pipeline.mode == Pipelining::None {
            return None;
        }
        let blocks = split(&layout, handle, &extent.into(), self.chunk_bytes, true);
        self.wall = wall_ns;
        Some(self.next_operation(extent.len, bytes_max(&blocks), collective))
    }

    fn next_operation(
        &mut self,
        bytes: u64,
        bytes_max: u64,
        collective: Option<Collective>,
    ) -> Operation {
        if let Some(it) = collective {
            // Striping spreads the bytes of all ranks evenly over the forwarders.
            let even = it.bytes.div_ceil(self.sessions.len().max(1) as u64);
            return Operation {
                number: it.operation,
                stamp_ns: it.stamp_ns,
                bytes: it.bytes.max(bytes),
                bytes_max: even.max(bytes_max),
                shuffle_us: it.shuffle_us,
                shuffle_max_us: it.shuffle_max_us,
                shuffle_rank: it.shuffle_rank,
            };
        }
        self.operations += 1;
        Operation {
            number: self.operations,
            stamp_ns: self.clocks.corrected(self.wall),
            bytes,
            bytes_max,
            shuffle_us: 0,
            shuffle_max_us: 0,
            shuffle_rank: 0,
        }
    }

    /// The hints of a call for the schedulers; all its requests carry the same.
    fn hints(&mut self, call: &Call, bytes: u64, bytes_max: u64) -> Hints {
        let operation = call.operation;
        let operation =
            operation.unwrap_or_else(|| self.next_operation(bytes, bytes_max, call.collective));
        let common_ns = self.clocks.corrected(self.wall);
        let left = |at: u64| common_ns.saturating_add(at.saturating_sub(self.now));
        Hints {
            app: call.app,
            operation: operation.number,
            operation_bytes: operation.bytes,
            operation_bytes_max: operation.bytes_max,
            stamp_ns: operation.stamp_ns,
            deadline_ns: call.deadline_ns.map_or(0, left),
            shuffle_us: operation.shuffle_us,
            shuffle_max_us: operation.shuffle_max_us,
            shuffle_rank: operation.shuffle_rank,
            // What others gave is filled in when a request is sent.
            ..Hints::default()
        }
    }

    /// Records that a forwarder has answered a part of a call.
    pub(super) fn note(&mut self, id: CallId, forwarder: usize) {
        let at_ns = self.now;
        let Some(active) = self.calls.get_mut(&id).filter(|_| self.notes_served) else {
            return;
        };
        let mut served = active.served.iter_mut();
        match served.find(|served| served.forwarder == forwarder) {
            Some(served) => served.at_ns = at_ns,
            None => active.served.push(Served { forwarder, at_ns }),
        }
    }

    /// Stores the answer of a part of a call; the last part ends the call.
    pub(super) fn part_done(&mut self, id: CallId, part: usize, result: Settled) {
        let Some(active) = self.calls.get_mut(&id) else {
            return;
        };
        let part = &mut active.parts[part];
        debug_assert!(part.result.is_none(), "a part is answered once");
        part.result = Some(result);
        active.left -= 1;
        if active.left == 0 {
            self.complete(id);
        }
    }

    fn complete(&mut self, id: CallId) {
        let Some(active) = self.calls.remove(&id) else {
            return;
        };
        if !active.served.is_empty() {
            self.served.insert(id, active.served);
        }
        let result = match active.kind {
            Kind::Single | Kind::LookAhead(_) => single_answer(active.parts, active.lasts_ns),
            Kind::Read => assemble(active.parts).map(read_answer),
            Kind::Write => written(active.parts).map(|len| answer(Outcome::Written { len })),
            Kind::Fsync(fsync) => {
                let mut results = active.parts.into_iter().filter_map(|part| part.result);
                let failed = results.find_map(Result::err);
                let failed = self.told(&fsync, failed);
                failed.map_or(Ok(answer(Outcome::Done)), Err)
            }
        };
        self.end_call(id, active.deadline_ns, result);
    }

    /// Ends a call that needed no request.
    pub(super) fn end_answered(
        &mut self,
        id: CallId,
        deadline_ns: Option<u64>,
        result: Result<Outcome, Errno>,
        lasts_ns: u64,
    ) {
        let answered = result.map(|outcome| Answer {
            lasts_ns,
            ..answer(outcome)
        });
        self.end_call(id, deadline_ns, answered);
    }

    fn end_call(&mut self, id: CallId, deadline_ns: Option<u64>, result: Result<Answer, Errno>) {
        if let Some(at) = deadline_ns {
            self.wakes.remove(&(at, Wake::Call(id)));
        }
        self.done(id, result);
    }

    /// Ends a call whose caller waits no longer. Requests of it that were sent go on without it.
    pub(super) fn give_up(&mut self, id: CallId, errno: Errno) {
        if let Some(call) = self.unrouted.remove(&id) {
            return self.end_call(id, call.deadline_ns, Err(errno));
        }
        let Some(active) = self.calls.remove(&id) else {
            return;
        };
        self.end_call(id, active.deadline_ns, Err(errno));
        if let Kind::Fsync(fsync) = &active.kind {
            let answers = active.parts.iter().filter_map(|part| part.result.as_ref());
            for answer in answers {
                self.unheard(
                    fsync.handle,
                    answer.as_ref().map(|_| ()).map_err(|errno| *errno),
                );
            }
        }
        // From the last part on, so that the end of a part lets none after it be sent.
        for part in active.parts.into_iter().rev() {
            self.abandon(part.request);
        }
    }

    pub(super) fn done(&mut self, id: CallId, result: Result<Answer, Errno>) {
        self.outputs.push_back(Output::Done { id, result });
    }
}

fn answer(outcome: Outcome) -> Answer {
    Answer {
        outcome,
        data: Data::default(),
        lasts_ns: 0,
    }
}

fn data_of(payload: Payload) -> Data {
    let len = payload.len();
    let pieces = match len {
        0 => Vec::new(),
        _ => vec![payload],
    };
    Data { pieces, len }
}

fn single_answer(mut parts: Vec<Part>, lasts_ns: u64) -> Result<Answer, Errno> {
    let result = parts.pop().and_then(|part| part.result);
    let (outcome, payload) = result.unwrap_or(Err(Errno::PROTO))?;
    let data = data_of(payload);
    Ok(Answer {
        outcome,
        data,
        lasts_ns,
    })
}

fn read_answer(data: Data) -> Answer {
    let lens = Lens {
        first: u32::try_from(data.len).unwrap_or(u32::MAX),
        rest: Vec::new(),
    };
    Answer {
        data,
        ..answer(Outcome::Data { lens })
    }
}

/// Makes a call fit the protocol's bounds where that changes nothing for the caller.
fn fit(call: &mut Call) {
    if let Op::Readdir { bytes_max, .. } = &mut call.op {
        *bytes_max = (*bytes_max).min(READDIR_MAX);
    }
}

/// Whether the core can make a call; if not, the error that its caller gets.
fn check(call: &Call, forwarders: usize) -> Result<(), Errno> {
    let carries = matches!(call.op, Op::Write { .. } | Op::Append { .. });
    if !carries && !call.payload.is_empty() {
        return Err(Errno::INVAL);
    }
    // Without some of its groups it could do what those are forbidden.
    if call
        .caller
        .as_ref()
        .is_some_and(|it| it.groups.len() > GROUPS_MAX)
    {
        return Err(Errno::INVAL);
    }
    for name in call.op.names().into_iter().flatten() {
        match name {
            Named::Entry(name) => check_name(name)?,
            Named::Xattr(name) => check_xattr_name(name)?,
        }
    }
    match &call.op {
        Op::Read { extents, .. } => check_extents(extents, Errno::INVAL),
        Op::Write { extents, .. } => {
            check_extents(extents, Errno::FBIG)?;
            or(extents.bytes() == call.payload.len() as u64, Errno::INVAL)
        }
        Op::Symlink { target, .. } => check_target(target),
        Op::Setxattr { value, .. } => or(value.len() <= XATTR_MAX, Errno::TOOBIG),
        Op::SetLock { lock, reclaim, .. } => {
            or(!reclaim, Errno::INVAL)?;
            check_lock(lock)
        }
        Op::TestLock { lock, .. } => check_lock(lock),
        Op::Readdir { plus, xattrs, .. } => {
            or(*plus || xattrs.is_empty(), Errno::INVAL)?;
            or(xattrs.len() <= LISTED_XATTRS_MAX, Errno::INVAL)?;
            xattrs.iter().try_for_each(|name| check_xattr_name(name))
        }
        Op::Access { mask, .. } => or(*mask <= 7, Errno::INVAL),
        Op::Seek { whence, .. } => or((3..=4).contains(whence), Errno::INVAL),
        Op::Status | Op::Drain { .. } => or(call.forwarder < forwarders, Errno::INVAL),
        Op::SetPolicy { text, .. } | Op::SetShares { text, .. } => {
            or(call.forwarder < forwarders, Errno::INVAL)?;
            or(text.len() <= POLICY_MAX, Errno::TOOBIG)
        }
        // Only the core itself asks for these.
        session_ops!() | path_ops!() | Op::CancelLock { .. } | Op::ReclaimDone => Err(Errno::INVAL),
        look_ops!() | name_ops!() | attribute_ops!() | content_ops!() => Ok(()),
        open_ops!() | lock_ops!() => Ok(()),
    }
}

fn or(holds: bool, errno: Errno) -> Result<(), Errno> {
    if holds { Ok(()) } else { Err(errno) }
}

fn check_name(name: &[u8]) -> Result<(), Errno> {
    or(!name.is_empty(), Errno::NOENT)?;
    or(name.len() <= NAME_MAX, Errno::NAMETOOLONG)?;
    or(name_is_valid(name), Errno::INVAL)
}

fn check_target(target: &[u8]) -> Result<(), Errno> {
    or(!target.is_empty(), Errno::NOENT)?;
    or(target.len() < PATH_MAX, Errno::NAMETOOLONG)?;
    or(!target.contains(&0), Errno::INVAL)
}

fn check_xattr_name(name: &[u8]) -> Result<(), Errno> {
    or((1..=NAME_MAX).contains(&name.len()), Errno::RANGE)?;
    or(!name.contains(&0), Errno::INVAL)
}

fn check_lock(lock: &Lock) -> Result<(), Errno> {
    or(lock.start <= lock.end, Errno::INVAL)
}

/// Checks that extents ascend, are disjoint, and end where files can end, and that none is empty
/// unless it is the only one.
fn check_extents(extents: &Extents, beyond: Errno) -> Result<(), Errno> {
    let mut from = 0;
    for extent in extents.iter() {
        let end = extent.offset.checked_add(extent.len).ok_or(beyond)?;
        or(end <= i64::MAX as u64, beyond)?;
        or(extent.offset >= from, Errno::INVAL)?;
        or(extent.len > 0 || extents.rest.is_empty(), Errno::INVAL)?;
        from = end;
    }
    Ok(())
}
