//! One outstanding request, from its arrival until its reply, and the table of all of them.

use crate::host::{ConnId, SlotId};
use alloc::vec::Vec;
use tidegate_sched::{Direction, Time};
use tidegate_wire::{
    Caller, Extent, FileUse, Handle, Hints, Op, OpKind, ReplySlot, Request, Status,
};

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

/// See the file's first line.
pub(super) struct Pending {
    pub(super) client: u64,
    /// Whether the client is trusted.
    pub(super) trusted: bool,
    /// The connection on which the request, or its last repetition, arrived.
    pub(super) conn: ConnId,
    pub(super) id: u64,
    pub(super) seat: u16,
    pub(super) kind: OpKind,
    pub(super) generation: u64,
    pub(super) epoch: u64,
    pub(super) reply_slot: Option<ReplySlot>,
    pub(super) caller: Option<Caller>,
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
}

impl Pending {
    pub(super) fn new(
        client: u64,
        trusted: bool,
        conn: ConnId,
        request: Request,
        slot: Option<SlotId>,
    ) -> Pending {
        Pending {
            client,
            trusted,
            conn,
            id: request.id,
            seat: request.seat,
            kind: request.op.kind(),
            generation: request.generation,
            epoch: request.epoch,
            reply_slot: request.reply_slot,
            caller: request.caller,
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
        }
    }

    pub(super) fn op(&self) -> &Op {
        self.op.as_ref().expect("no job has the operation")
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
    fn of(op: &Op) -> Dispatch {
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

/// The file that a whole-file operation writes, as the scheduler counts it.
pub(super) fn whole_file(op: &Op) -> Option<Handle> {
    let [file, _] = op.files();
    file.filter(|_| Dispatch::of(op) == Dispatch::WholeFile)
        .map(|(handle, _)| handle)
}

/// The directories whose names an operation changes.
pub(super) fn directories(op: &Op) -> Option<(Handle, Option<Handle>)> {
    let names = |file: &(Handle, FileUse)| file.1 == FileUse::Names;
    let [one, other] = op.files().map(|file| file.filter(names));
    let (one, _) = one?;
    let other = other.map(|(handle, _)| handle);
    Some((one, other.filter(|other| *other != one)))
}

/// Values by number. A number that was freed is given again first, without an allocation.
pub(super) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Slab<T> {
        Slab {
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.places[at as usize] = Some(value);
                at
            }
            None => {
                let at = u32::try_from(self.places.len()).expect("bounded by credits and sessions");
                self.places.push(Some(value));
                at
            }
        }
    }

    /// The numbers of the values that are there.
    pub(super) fn numbers(&self) -> Vec<u32> {
        let places = self.places.iter().enumerate();
        let taken = places.filter_map(|(at, place)| place.is_some().then_some(at as u32));
        taken.collect()
    }

    pub(super) fn get(&self, at: u32) -> Option<&T> {
        self.places.get(at as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.places.get_mut(at as usize)?.as_mut()
    }

    pub(super) fn remove(&mut self, at: u32) -> Option<T> {
        let value = self.places.get_mut(at as usize)?.take()?;
        self.free.push(at);
        Some(value)
    }
}

impl<T> core::ops::Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, at: u32) -> &T {
        self.get(at).expect("the place is taken")
    }
}

impl<T> core::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        self.get_mut(at).expect("the place is taken")
    }
}
