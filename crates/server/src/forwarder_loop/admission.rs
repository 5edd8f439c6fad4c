//! Where requests wait for payload memory. This is the only such place, for connections of every
//! kind.
//!
//! A payload occupies a buffer of the pool from before it is read until it is written or sent,
//! unless it lies in memory that the client shares. If the pool has no buffer for a request, the
//! request waits here, and so do the requests behind it on its connection ([`AdmissionQueues`] has
//! the order). The shard stops reading the connection once [`HANDED_MAX`] of its requests are
//! waiting.
//!
//! A request whose payload has arrived is counted here, for a fault that tests inject, and delayed
//! where delays are emulated.
//!
//! [`HANDED_MAX`]: crate::connections::HANDED_MAX

use super::ForwarderLoop;
use crate::adapters::jitter::{Held, Jitter};
use crate::clock::Zero;
use crate::connections::outbox::{Body, Payload};
use crate::connections::{Came, ReplyWay, ToShard};
use crate::storage::{SharedMemory, SlotBuffer, Slots, die};
use std::io;
use std::sync::Arc;
use tidegate_forward::{
    Admission as Admitted, AdmissionQueues, Admits, Arrival, ArrivalNumber, ConnId, Forwarder,
    Input, PayloadMemory, SlotId,
};
use tidegate_sched::Time;
use tidegate_wire::{Op, Request, session_ops};

/// The payload buffers, the connections that wait for one, and the requests that are delayed.
pub(super) struct Admission {
    buffers: Slots,
    /// Buffers that the forwarder has given out again before this side learned that it had freed
    /// them.
    stale_frees: Vec<SlotId>,
    /// Requests that have no buffer.
    waiting: AdmissionQueues<Came>,
    /// Whether buffers were freed since the waiting connections were last served.
    freed: bool,
    /// Requests that have arrived so far, without operations on sessions.
    arrived: u64,
    kill_at_request: Option<u64>,
    jitter: Option<Jitter>,
}

impl Admission {
    /// `jitter` delays each request. The process kills itself when `kill_at_request` requests have
    /// arrived.
    pub(super) fn new(
        buffers: Slots,
        jitter: Option<Jitter>,
        kill_at_request: Option<u64>,
    ) -> Admission {
        Admission {
            buffers,
            stale_frees: Vec::new(),
            waiting: AdmissionQueues::default(),
            freed: false,
            arrived: 0,
            kill_at_request,
            jitter,
        }
    }

    /// Counts a request that has arrived. Returns the request unless it has to be delayed.
    fn pass(&mut self, now: Time, held: Held) -> Option<Held> {
        if matches!(held.came.request.op, session_ops!()) {
            return Some(held);
        }
        self.arrived += 1;
        if self.kill_at_request == Some(self.arrived) {
            die();
        }
        let Some(jitter) = &mut self.jitter else {
            return Some(held);
        };
        jitter.hold(now, held);
        None
    }

    /// Sets the timer to the time when the next delayed request is due.
    pub(super) fn arm(&mut self, zero: Zero) -> io::Result<()> {
        match &mut self.jitter {
            Some(jitter) => jitter.arm(zero.time()),
            None => Ok(()),
        }
    }

    /// Forgets a connection that has ended.
    pub(super) fn closed(&mut self, conn: ConnId) {
        self.waiting.closed(conn);
        self.freed = true;
        if let Some(jitter) = &mut self.jitter {
            jitter.forget(conn);
        }
    }

    /// Frees the buffer of a reply that was sent.
    pub(super) fn sent(&mut self, slot: SlotId) {
        self.buffers.free(slot);
        self.freed = true;
    }

    /// Frees a buffer that the forwarder does not need any more.
    pub(super) fn free(&mut self, slot: SlotId) {
        match self.stale_frees.iter().position(|stale| *stale == slot) {
            Some(at) => drop(self.stale_frees.swap_remove(at)),
            None => self.buffers.free(slot),
        }
        self.freed = true;
    }

    /// Takes a buffer that the forwarder has given out. The forwarder's message that it had freed
    /// the same buffer before may still be on its way.
    fn open(&mut self, slot: SlotId, len: u32) -> SlotBuffer {
        self.note_stale(slot);
        self.buffers.open(slot, len)
    }

    fn open_shared(&mut self, slot: SlotId, memory: Arc<SharedMemory>, place: u64, len: u32) {
        self.note_stale(slot);
        self.buffers.open_shared(slot, memory, place, len);
    }

    fn note_stale(&mut self, slot: SlotId) {
        if self.buffers.buffer(slot).is_some() {
            self.stale_frees.push(slot);
        }
    }

    /// The payload that follows a reply: the bytes of this buffer.
    pub(super) fn body(&self, slot: SlotId, payload_len: u32) -> Body {
        if let Some(memory) = self.buffers.memory_of(slot) {
            return Body::Shared(memory);
        }
        let buffer = self.buffers.buffer(slot);
        Body::Payload(Payload {
            slot,
            buffer: buffer.expect("an admitted slot has memory"),
            len: payload_len as usize,
        })
    }
}

impl ForwarderLoop {
    /// Takes a request that a shard has received. If its payload follows, or no delay is emulated,
    /// the forwarder gets it at once.
    pub(super) fn request_came(&mut self, conn: ConnId, came: Came) {
        match came.payload_follows() {
            true => self.admit_or_wait(conn, came),
            false => self.complete(conn, came, None),
        }
    }

    /// Takes a request whose payload has arrived in a buffer.
    pub(super) fn payload_came(&mut self, conn: ConnId, request: Box<Request>, slot: SlotId) {
        let shared = None;
        self.complete(conn, Came { request, shared }, Some(slot));
    }

    /// Passes a complete request on, now or, where delays are emulated, when its delay is over.
    fn complete(&mut self, conn: ConnId, came: Came, slot: Option<SlotId>) {
        if let Some(held) = self.admission.pass(self.now, Held { conn, came, slot }) {
            self.arrived(held);
        }
    }

    /// Passes on the delayed requests that are due.
    pub(super) fn take_delayed(&mut self) {
        while let Some(jitter) = &mut self.admission.jitter
            && let Some(held) = jitter.take(self.now)
        {
            self.arrived(held);
        }
    }

    fn arrived(&mut self, Held { conn, came, slot }: Held) {
        match slot {
            Some(_) => self.tell(Input::Received {
                conn,
                request: *came.request,
                slot,
            }),
            None => self.admit_or_wait(conn, came),
        }
    }

    /// Admits a request, or lets it wait for memory.
    fn admit_or_wait(&mut self, conn: ConnId, came: Came) {
        let number = self.admission.waiting.arrived(self.now);
        let Some(came) = self.admission.waiting.behind(conn, number, came) else {
            return;
        };
        if let Some(came) = self.admit(conn, number, came) {
            let queue = self.forwarder.queue_of(conn);
            self.admission.waiting.wait(conn, number, came, queue);
        }
    }

    /// Serves the waiting connections in order, if buffers were freed. True if it did.
    pub(super) fn admit_waiting(&mut self) -> bool {
        if !std::mem::take(&mut self.admission.freed) || self.admission.waiting.is_empty() {
            return false;
        }
        let mut waiting = std::mem::take(&mut self.admission.waiting);
        let any = waiting.retry(self);
        self.admission.waiting = waiting;
        any
    }

    /// Takes a request whose payload is still to be read, and gives its shard a buffer, if the pool
    /// has one; otherwise returns it.
    fn admit_payload(&mut self, conn: ConnId, number: ArrivalNumber, came: Came) -> Option<Came> {
        let asked = &came.request;
        match self.forwarder.admit(self.now, conn, number, asked) {
            Admitted::Slot { slot, len } => {
                let buffer = self.admission.open(slot, len);
                self.ports.taken(conn);
                let message = ToShard::Payload {
                    conn,
                    request: came.request,
                    slot,
                    buffer,
                };
                self.ports.tell(conn, message);
                None
            }
            Admitted::Wait => Some(came),
            Admitted::NoPayload => unreachable!("its payload follows"),
            Admitted::Refuse(reason) => {
                self.ports.cut(conn, reason);
                None
            }
        }
    }
}

impl Admits<Came> for ForwarderLoop {
    fn admit(&mut self, conn: ConnId, number: ArrivalNumber, came: Came) -> Option<Came> {
        let way = self.ports.hears(conn)?;
        if came.payload_follows() {
            return self.admit_payload(conn, number, came);
        }
        let Came { request, shared } = came;
        let is_read_of_one = is_of_one_extent(&request.op);
        let memory = match &shared {
            Some(_) => PayloadMemory::Client,
            None => PayloadMemory::Pool,
        };
        match self
            .forwarder
            .request(self.now, conn, number, request, memory)
        {
            Arrival::Received(room) => {
                self.ports.taken(conn);
                match (room, shared) {
                    (Some((slot, len)), Some((memory, place))) => {
                        self.admission.open_shared(slot, memory, place, len);
                    }
                    (Some((slot, len)), None) => {
                        self.admission.open(slot, len);
                        let buffers = &self.admission.buffers;
                        match way {
                            ReplyWay::Pages if is_read_of_one => buffers.set_to_send(slot, len),
                            ReplyWay::EncryptedHere => buffers.set_to_encrypt(slot),
                            ReplyWay::Pages | ReplyWay::Copied => {}
                        }
                    }
                    (None, _) => {}
                }
                None
            }
            Arrival::Wait(request) => Some(Came { request, shared }),
            Arrival::Refuse(reason) => {
                self.ports.cut(conn, reason);
                None
            }
        }
    }

    fn app_of(came: &Came) -> Option<u64> {
        match came.shared {
            Some(_) => None,
            None => Forwarder::app_of(&came.request),
        }
    }

    fn forwarder(&mut self) -> &mut Forwarder {
        &mut self.forwarder
    }
}

/// Whether a request reads, and reads one contiguous range.
fn is_of_one_extent(op: &Op) -> bool {
    matches!(op, Op::Read { extents, .. } if extents.rest.is_empty())
}
