//! Calls: their parts, their ends, and callers who leave early.

use super::Core;
use super::check::{check, fit};
use super::errno::{EIO, EMSGSIZE, EPROTO, ETIMEDOUT};
use super::fsync::FsyncPart;
use super::replies::Settled;
use super::requests::{Id, Pending, Purpose, Target};
use super::split::{Block, assemble, bytes_max, split, written};
use super::types::{Call, CallId, Output, Served};
use crate::wire::{Extents, Handle, Hints, Lens, Op, Outcome};
use crate::{Answer, Data, Errno};
use bytes::Bytes;

/// How the parts of a call become one answer.
pub(super) enum Kind {
    /// There is one, and it is the answer.
    Single,
    Read(Vec<Block>),
    Write(Vec<Block>),
    Fsync(Handle, Vec<FsyncPart>),
}

/// A call without an answer.
pub(super) struct Active {
    pub(super) kind: Kind,
    /// The request of each part.
    pub(super) requests: Vec<Id>,
    results: Vec<Option<Settled>>,
    left: usize,
    deadline_ns: Option<u64>,
    /// By forwarder; empty unless noted.
    served: Vec<Served>,
}

impl Core {
    pub(super) fn call(&mut self, id: CallId, mut call: Call) {
        self.stats.calls += 1;
        if self.ending.is_some() {
            return self.done(id, Err(EIO));
        }
        if call.deadline_ns.is_some_and(|at| at <= self.now) {
            return self.done(id, Err(ETIMEDOUT));
        }
        fit(&mut call);
        if let Err(errno) = check(&call, self.sessions.len()) {
            return self.done(id, Err(errno));
        }
        if let Some(at) = call.deadline_ns {
            self.deadlines.insert((at, id));
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
        let nothing = Extents::from(crate::wire::Extent { offset: 0, len: 0 });
        match &mut call.op {
            Op::Read { handle, extents } | Op::Write { handle, extents } => {
                let (handle, extents) = (*handle, std::mem::replace(extents, nothing));
                let merge = self.options.merge_blocks;
                let blocks = split(&layout, handle, &extents, self.payload_max, merge);
                self.begin_data(id, call, handle, blocks);
            }
            Op::Fsync { handle, data_only } => {
                let (handle, data_only) = (*handle, *data_only);
                self.begin_fsync(id, call, handle, data_only);
            }
            Op::Append { .. } if call.payload.len() > self.payload_max as usize => {
                self.end_call(id, call.deadline_ns, Err(EMSGSIZE));
            }
            op => {
                let seat = op.seat(&layout, root.handle);
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
        }
        let mut pending = Pending::new(call.op, seat, target, Purpose::Part { call: id, part: 0 });
        pending.caller = call.caller;
        pending.hints = hints;
        if !call.payload.is_empty() {
            pending.payload = vec![call.payload];
        }
        let key = pending.lock_key();
        let request = self.insert(pending);
        self.activate(id, Kind::Single, vec![request], call.deadline_ns);
        match key {
            Some(key) => self.route_lock(request, key),
            None => self.route(request),
        }
    }

    fn begin_data(&mut self, id: CallId, call: Call, handle: Handle, blocks: Vec<Block>) {
        let bytes = blocks.iter().map(|block| block.bytes).sum();
        let hints = self.hints(&call, bytes, bytes_max(&blocks));
        let reads = matches!(call.op, Op::Read { .. });
        let mut requests = Vec::with_capacity(blocks.len());
        for (part, block) in blocks.iter().enumerate() {
            let extents = block.extents.clone();
            let op = match reads {
                true => Op::Read { handle, extents },
                false => Op::Write { handle, extents },
            };
            let purpose = Purpose::Part { call: id, part };
            let mut pending = Pending::new(op, block.seat, Target::Seat, purpose);
            pending.caller = call.caller.clone();
            pending.hints = Some(hints);
            if !reads {
                pending.payload = block.payload(&call.payload);
            }
            requests.push(self.insert(pending));
        }
        let kind = match reads {
            true => Kind::Read(blocks),
            false => Kind::Write(blocks),
        };
        self.activate(id, kind, requests.clone(), call.deadline_ns);
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
        requests: Vec<Id>,
        deadline_ns: Option<u64>,
    ) {
        let active = Active {
            kind,
            left: requests.len(),
            results: requests.iter().map(|_| None).collect(),
            requests,
            deadline_ns,
            served: Vec::new(),
        };
        self.calls.insert(id, active);
    }

    /// What a call tells the schedulers; all its requests say the same.
    fn hints(&mut self, call: &Call, bytes: u64, bytes_max: u64) -> Hints {
        self.operations += 1;
        let stamp_ns = self.clocks.corrected(self.wall);
        let left = |at: u64| stamp_ns.saturating_add(at.saturating_sub(self.now));
        Hints {
            app: call.app,
            operation: self.operations,
            operation_bytes: bytes,
            operation_bytes_max: bytes_max,
            stamp_ns,
            deadline_ns: call.deadline_ns.map_or(0, left),
            charged_elsewhere_ns: 0,
            tail_us: 0,
        }
    }

    /// A forwarder has answered a part of a call.
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

    /// A part has its answer; the last one ends the call.
    pub(super) fn part_done(&mut self, id: CallId, part: usize, result: Settled) {
        let Some(active) = self.calls.get_mut(&id) else {
            return;
        };
        debug_assert!(active.results[part].is_none(), "a part is answered once");
        active.results[part] = Some(result);
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
        let mut results: Vec<Settled> = active.results.into_iter().flatten().collect();
        let result = match active.kind {
            Kind::Single => results.swap_remove(0).map(|(outcome, payload)| Answer {
                outcome,
                data: data_of(payload),
            }),
            Kind::Read(blocks) => read_answer(&blocks, results),
            Kind::Write(blocks) => write_answer(&blocks, results),
            Kind::Fsync(..) => {
                let failed = results.into_iter().find_map(Result::err);
                failed.map_or(Ok(answer(Outcome::Done)), Err)
            }
        };
        self.end_call(id, active.deadline_ns, result);
    }

    fn end_call(&mut self, id: CallId, deadline_ns: Option<u64>, result: Result<Answer, Errno>) {
        if let Some(at) = deadline_ns {
            self.deadlines.remove(&(at, id));
        }
        self.done(id, result);
    }

    /// A caller waits no longer: the call ends, and what was sent of it goes on alone.
    pub(super) fn give_up(&mut self, id: CallId, errno: Errno) {
        if let Some(call) = self.unrouted.remove(&id) {
            return self.end_call(id, call.deadline_ns, Err(errno));
        }
        let Some(active) = self.calls.remove(&id) else {
            return;
        };
        self.end_call(id, active.deadline_ns, Err(errno));
        for request in active.requests {
            self.abandon(request);
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
    }
}

fn data_of(payload: Bytes) -> Data {
    Data {
        len: payload.len(),
        pieces: match payload.is_empty() {
            true => Vec::new(),
            false => vec![payload],
        },
    }
}

fn read_answer(blocks: &[Block], results: Vec<Settled>) -> Result<Answer, Errno> {
    let read = |settled: Settled| match settled? {
        (Outcome::Data { lens }, payload) => Ok((lens, payload)),
        _ => Err(EPROTO),
    };
    let results: Vec<_> = results.into_iter().map(read).collect();
    let data = assemble(blocks.iter().zip(&results))?;
    let lens = Lens {
        first: u32::try_from(data.len).unwrap_or(u32::MAX),
        rest: Vec::new(),
    };
    let outcome = Outcome::Data { lens };
    Ok(Answer { outcome, data })
}

fn write_answer(blocks: &[Block], results: Vec<Settled>) -> Result<Answer, Errno> {
    let wrote = |settled: Settled| match settled? {
        (Outcome::Written { len }, _) => Ok(len),
        _ => Err(EPROTO),
    };
    let results: Vec<_> = results.into_iter().map(wrote).collect();
    let len = written(blocks.iter().zip(&results))?;
    Ok(answer(Outcome::Written { len }))
}
