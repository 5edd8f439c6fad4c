//! Payload that libfabric moves between a payload buffer and memory that the client has registered.
//! A request's payload is fetched once the pool has a buffer for it. A reply's payload is put into
//! the client's memory before the reply is sent.
//!
//! Nothing here waits. A call begins a move, and the link reports later that the move has ended. A
//! client whose memory does not answer is cut off like a client that stops amid a frame.

use super::outbox::Body;
use crate::storage::SlotBuffer;
use crate::storage::slots::{Memory, lock_buffer};
use std::collections::BTreeMap;
use tidegate_fabric::{Link, Local, Remote};
use tidegate_forward::SlotId;
use tidegate_sched::Time;
use tidegate_wire::{Op, Reply, Request};

/// The most unanswered requests that name a place in the client's memory; far more than a session
/// has credits.
const PLACES_MAX: usize = 1 << 16;

/// The memory that a client has registered, and the moves that are under way from and to it.
pub struct ClientMemory {
    bytes: u64,
    start: Remote,
    /// For each unanswered request, by its number: where in the client's memory its payload lies,
    /// or where that of its reply goes.
    places: BTreeMap<u64, u64>,
    moves: BTreeMap<u64, (Time, Moving)>,
    moves_begun: u64,
}

/// A move of payload, and what follows when it has ended.
pub enum Moving {
    /// The payload of this request is fetched into this payload buffer.
    In(Box<Request>, SlotId),
    /// The payload of this reply is put into the client's memory. The number is the operation code
    /// of the request; the payload buffer is the source.
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

    /// When the oldest move that is still under way began.
    pub fn since(&self) -> Option<Time> {
        self.moves.values().next().map(|(since, _)| *since)
    }

    /// Begins to move the first `len` bytes of a payload buffer.
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
        // SAFETY: the buffer belongs to the thread of the connection from here until `moved` hands
        // it on, and nothing in between looks at its bytes. A session that ends drops its link. A
        // buffer that is freed before that is not given away while the link keeps it.
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

    /// Ends all moves, because the connection has ended. Adds to `sent` the payload buffers of
    /// replies that will not be sent.
    pub fn drop_all(&mut self, sent: &mut Vec<SlotId>) {
        let out = |(_, moving)| match moving {
            Moving::Out(_, _, slot) => Some(slot),
            // The forwarder frees the buffers of a closed connection itself.
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
    /// The client's memory, if an operation offers memory that libfabric can use here.
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

    /// Notes the place that a request names in registered memory, if it names one: where its
    /// payload lies, or where that of its reply goes. An error says why the session must end.
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

    /// Where in registered memory the payload of a request lies, if it lies there. Removes the
    /// note, so a second call returns None.
    pub fn take_place(&mut self, request: u64) -> Option<u64> {
        self.places.remove(&request)
    }

    /// Begins to fetch the payload of a request. An error says why the session must end.
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

    /// Begins to put a reply's payload into the client's memory. False if the client wants the
    /// payload sent with the reply. An error says why the session must end.
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
            // The request came by another connection of the same client.
            return Ok(false);
        }
        let moving = Moving::Out(op, reply.clone(), payload.slot);
        self.begin(link, &payload.buffer, (place, payload.len), now, moving)?;
        Ok(true)
    }

    /// The next move that has ended. An error says why the session must end.
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
