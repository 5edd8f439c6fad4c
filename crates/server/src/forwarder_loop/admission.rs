//! Where a request waits for memory: the one place for connections of all kinds.
//!
//! A payload has a buffer of the pool from before it is read until it is written or sent, unless it
//! lies in memory that the client shares. A connection for whose request there is none waits with
//! it, and with what comes behind it; its shard reads no further once [`HANDED_MAX`] requests are
//! on their way. Connections wait in order of arrival, and the first for which there is still none
//! ends the round: the forwarder lets nobody pass where that takes from those before. A connection
//! has its place for one request, and the next one that finds no memory takes the last place.
//!
//! [`HANDED_MAX`]: crate::connections::HANDED_MAX

use super::ForwarderLoop;
use crate::connections::outbox::{Body, Payload};
use crate::connections::{Came, ToShard};
use crate::storage::{SharedMemory, SlotBuffer, Slots};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tidegate_forward::{Admission as Admitted, Arrival, ConnId, PayloadMemory, SlotId};
use tidegate_wire::Op;

/// Buffers of payload, and who waits for one.
pub(super) struct Admission {
    buffers: Slots,
    /// Buffers that were given anew before the forwarder's word was heard that they are free.
    stale_frees: Vec<SlotId>,
    /// Connections that wait, in order; some have ended since.
    order: VecDeque<ConnId>,
    /// What they wait with: a request without memory, and those behind it.
    waiting: BTreeMap<ConnId, VecDeque<Came>>,
    /// There is more room than when those that wait were last asked for.
    freed: bool,
}

impl Admission {
    pub(super) fn new(buffers: Slots) -> Admission {
        Admission {
            buffers,
            stale_frees: Vec::new(),
            order: VecDeque::new(),
            waiting: BTreeMap::new(),
            freed: false,
        }
    }

    /// A connection waits with these requests, behind all others.
    fn waits(&mut self, conn: ConnId, requests: VecDeque<Came>) {
        self.waiting.insert(conn, requests);
        self.order.push_back(conn);
    }

    /// A connection has ended.
    pub(super) fn closed(&mut self, conn: ConnId) {
        self.waiting.remove(&conn);
        self.freed = true;
    }

    /// A reply is out: its buffer is free.
    pub(super) fn sent(&mut self, slot: SlotId) {
        self.buffers.free(slot);
        self.freed = true;
    }

    /// The forwarder needs a buffer no longer.
    pub(super) fn free(&mut self, slot: SlotId) {
        match self.stale_frees.iter().position(|stale| *stale == slot) {
            Some(at) => drop(self.stale_frees.swap_remove(at)),
            None => self.buffers.free(slot),
        }
        self.freed = true;
    }

    /// The forwarder has given a buffer. Its word that the same one was free may be still to come.
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

    /// What follows a reply that carries a buffer's bytes.
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
    /// A request has come on a connection: it is taken, or waits.
    pub(super) fn request_came(&mut self, conn: ConnId, came: Came) {
        if let Some(behind) = self.admission.waiting.get_mut(&conn) {
            return behind.push_back(came);
        }
        if let Some(came) = self.admit(conn, came) {
            self.admission.waits(conn, VecDeque::from([came]));
        }
    }

    /// Asks again for those that wait, in order, if there is more room than before. True if it did.
    pub(super) fn admit_waiting(&mut self) -> bool {
        if !std::mem::take(&mut self.admission.freed) || self.admission.order.is_empty() {
            return false;
        }
        for _ in 0..self.admission.order.len() {
            let conn = self.admission.order.pop_front();
            let conn = conn.expect("its length was counted");
            let Some(mut requests) = self.admission.waiting.remove(&conn) else {
                continue;
            };
            let mut is_first = true;
            while let Some(came) = requests.pop_front() {
                let Some(came) = self.admit(conn, came) else {
                    is_first = false;
                    continue;
                };
                requests.push_front(came);
                self.admission.waits(conn, requests);
                if is_first {
                    // It stays the first, and there is nothing for those behind: thousands may
                    // wait.
                    self.admission.order.rotate_right(1);
                    return true;
                }
                break;
            }
        }
        true
    }

    /// Takes a request if there is memory for its payload; otherwise gives it back. What comes on a
    /// connection that was told to end is dropped.
    fn admit(&mut self, conn: ConnId, came: Came) -> Option<Came> {
        let takes_pages = self.ports.hears(conn)?;
        if came.payload_follows() {
            return self.admit_payload(conn, came);
        }
        let Came { request, shared } = came;
        let to_send = takes_pages && is_of_one_extent(&request.op);
        let memory = match &shared {
            Some(_) => PayloadMemory::Client,
            None => PayloadMemory::Pool,
        };
        match self.forwarder.request(self.now, conn, request, memory) {
            Arrival::Received(room) => {
                self.ports.taken(conn);
                match (room, shared) {
                    (Some((slot, len)), Some((memory, place))) => {
                        self.admission.open_shared(slot, memory, place, len);
                    }
                    (Some((slot, len)), None) => {
                        self.admission.open(slot, len);
                        if to_send {
                            self.admission.buffers.set_to_send(slot, len);
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

    /// The same for a request whose payload is still to be read: into a buffer, if there is one.
    fn admit_payload(&mut self, conn: ConnId, came: Came) -> Option<Came> {
        match self.forwarder.admit(self.now, conn, &came.request) {
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

/// Whether a request reads, and all in one piece.
fn is_of_one_extent(op: &Op) -> bool {
    matches!(op, Op::Read { extents, .. } if extents.rest.is_empty())
}
