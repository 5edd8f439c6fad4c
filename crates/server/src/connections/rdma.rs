//! Payload in memory that a client has registered with libfabric: fetched from there once the pool
//! has a slot for it, and put there before the reply.
//!
//! Nothing here waits: a move is begun, and what follows from it is done when the link tells that
//! it is over. A client whose memory does not answer is cut off like one that stops amid a frame.

use super::outbox::Body;
use crate::storage::SlotBuffer;
use crate::storage::slots::{Memory, lock_buffer};
use std::collections::BTreeMap;
use tidegate_fabric::{Link, Local, Remote};
use tidegate_forward::SlotId;
use tidegate_sched::Time;
use tidegate_wire::{Op, Reply, Request};

/// Requests with a place that may be unanswered; far more than there are credits.
const PLACES_MAX: usize = 1 << 16;

/// What a client has registered, and what is on its way from and to there.
pub struct ClientMemory {
    bytes: u64,
    start: Remote,
    /// Where the payload of unanswered requests lies or shall lie, by their numbers.
    places: BTreeMap<u64, u64>,
    moves: BTreeMap<u64, (Time, Moving)>,
    moves_begun: u64,
}

/// A move, and what comes after it.
pub enum Moving {
    /// The payload of a request.
    In(Box<Request>, SlotId),
    /// That of a reply to an operation of this code.
    Out(u8, Reply, SlotId),
}

impl ClientMemory {
    fn new(bytes: u64, start: Remote) -> ClientMemory {
        ClientMemory {
            bytes,
            start,
            places: BTreeMap::new(),
            moves: BTreeMap::new(),
            moves_begun: 0,
        }
    }

    fn holds(&self, place: u64, len: u64) -> bool {
        place.checked_add(len).is_some_and(|end| end <= self.bytes)
    }

    /// Since when the oldest move is on its way.
    pub fn since(&self) -> Option<Time> {
        self.moves.values().next().map(|(since, _)| *since)
    }

    /// Begins to move the first `len` bytes of a slot.
    fn begin(
        &mut self,
        link: &Link,
        buffer: &SlotBuffer,
        (place, len): (u64, usize),
        now: Time,
        moving: Moving,
    ) -> Result<(), String> {
        let (start, registration) = match &mut *lock_buffer(buffer) {
            Memory::Own(bytes) => {
                let registration = bytes.registration(link.domain());
                (
                    bytes.start(),
                    registration.map_err(|error| error.to_string())?,
                )
            }
            Memory::Shared { .. } => return Err("memory shared in two ways".to_string()),
        };
        let local = Local {
            start,
            len,
            registration,
            keep: Box::new(SlotBuffer::clone(buffer)),
        };
        let remote = Remote {
            address: self.start.address.wrapping_add(place),
            key: self.start.key,
        };
        let number = self.moves_begun;
        // SAFETY: the slot belongs to the reactor from here until `moved` hands it on, and nothing
        // in between looks at its bytes. A session that ends drops its link; the buffer of a slot
        // that is freed before is not given away while the link keeps it.
        let begun = unsafe {
            match moving {
                Moving::In(..) => link.get(local, remote, number),
                Moving::Out(..) => link.put(local, remote, number),
            }
        };
        begun.map_err(|error| error.to_string())?;
        self.moves_begun += 1;
        self.moves.insert(number, (now, moving));
        Ok(())
    }

    /// The connection is over: slots whose replies will not be sent go to `sent`.
    pub fn drop_all(&mut self, sent: &mut Vec<SlotId>) {
        let out = |(_, moving)| match moving {
            Moving::Out(_, _, slot) => Some(slot),
            // The core frees what a closed connection was admitted.
            Moving::In(..) => None,
        };
        sent.extend(
            std::mem::take(&mut self.moves)
                .into_values()
                .filter_map(out),
        );
    }
}

impl ClientMemory {
    /// What a client has registered, if an operation offers memory that can be used.
    pub fn offered(op: &Op) -> Option<ClientMemory> {
        match *op {
            Op::RegisterMemory {
                bytes,
                address,
                key,
            } if bytes > 0 && address.checked_add(bytes).is_some() => {
                Some(ClientMemory::new(bytes, Remote { address, key }))
            }
            _ => None,
        }
    }

    /// Notes where the payload of a request lies, or that of its reply shall lie, if that is here.
    /// An error is the reason why the session ends.
    pub fn note_place(
        &mut self,
        request: &Request,
        place: Option<u64>,
    ) -> Result<(), &'static str> {
        if self.places.contains_key(&request.id) {
            return Err("two requests of one number");
        }
        let Some(place) = place else {
            return Ok(());
        };
        let Some((_, extents)) = request.op.data() else {
            return Err("registered memory with an operation that has none");
        };
        if !self.holds(place, extents.bytes()) {
            return Err("payload outside its memory");
        }
        if self.places.len() >= PLACES_MAX {
            return Err("too many unanswered requests");
        }
        self.places.insert(request.id, place);
        Ok(())
    }

    /// Where the payload of a request lies, if that is here. It is told once.
    pub fn take_place(&mut self, request: u64) -> Option<u64> {
        self.places.remove(&request)
    }

    /// Fetches the payload of a request. An error is the reason why the session ends.
    pub fn fetch(
        &mut self,
        link: &Link,
        (request, place): (Box<Request>, u64),
        (slot, buffer): (SlotId, SlotBuffer),
        now: Time,
    ) -> Result<(), String> {
        let part = (place, request.payload_len as usize);
        self.begin(link, &buffer, part, now, Moving::In(request, slot))
    }

    /// Puts a reply's payload where the client wants it. False: it is to be sent with the reply. An
    /// error is the reason why the session ends.
    pub fn put(
        &mut self,
        link: &Link,
        (op, reply): (u8, &Reply),
        body: &Body,
        now: Time,
    ) -> Result<bool, String> {
        let (Some(place), Body::Payload(payload)) = (self.take_place(reply.id), body) else {
            return Ok(false);
        };
        if lock_buffer(&payload.buffer).pages().is_some() {
            // It came by another connection of this client's.
            return Ok(false);
        }
        let moving = Moving::Out(op, reply.clone(), payload.slot);
        self.begin(link, &payload.buffer, (place, payload.len), now, moving)?;
        Ok(true)
    }

    /// The next move that is over. An error is the reason why the session ends.
    pub fn moved(&mut self, link: &Link) -> Result<Option<Moving>, String> {
        while let Some((number, result)) = link.moved() {
            result.map_err(|why| format!("its memory cannot be reached: {why}"))?;
            if let Some((_, moving)) = self.moves.remove(&number) {
                return Ok(Some(moving));
            }
        }
        Ok(None)
    }
}
