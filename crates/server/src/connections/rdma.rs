//! Payload in memory that a client has registered with libfabric: fetched from there once the pool
//! has a slot for it, and put there before the reply.
//!
//! Nothing here waits: a move is begun, and what follows from it is done when the link tells that
//! it is over. A client whose memory does not answer is cut off like one that stops amid a frame.

use super::outbox::{Body, Outbox};
use super::session::Session;
use super::shard::Shard;
use super::{RequestSink, ToLoop};
use crate::storage::SlotBuffer;
use crate::storage::slots::{Memory, lock_buffer};
use std::collections::BTreeMap;
use std::time::Duration;
use tidegate_fabric::{Link, Local, Remote, Wait};
use tidegate_forward::{Errno, SlotId};
use tidegate_sched::Time;
use tidegate_wire::frame::encode_reply_shared;
use tidegate_wire::{Op, Outcome, Reply, Request, Status};

/// Requests with a place that may be unanswered; far more than there are credits.
const PLACES_MAX: usize = 1 << 16;
/// How long a connection that is to end stays, so that its last words are read.
pub const LAST_WORDS_NS: u64 = 1_000_000_000;

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
enum Moving {
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

impl Session {
    /// Takes an offer of memory; the reply to it. None: the operation is another.
    pub(super) fn memory_registered(&mut self, op: &Op) -> Option<Result<Outcome, Status>> {
        let Op::RegisterMemory {
            bytes,
            address,
            key,
        } = *op
        else {
            return None;
        };
        let fits = bytes > 0 && address.checked_add(bytes).is_some();
        if self.stream.link().is_none() || self.rdma.is_some() || !fits {
            return Some(Err(Status::Errno(Errno::EOPNOTSUPP.0)));
        }
        self.rdma = Some(Box::new(ClientMemory::new(bytes, Remote { address, key })));
        Some(Ok(Outcome::Done))
    }

    /// Notes where the payload of a request lies, or that of its reply shall lie, if that is in
    /// registered memory. An error is the reason why the session ends.
    pub(super) fn note_place(
        &mut self,
        request: &Request,
        place: Option<u64>,
    ) -> Result<(), &'static str> {
        let Some(memory) = &mut self.rdma else {
            return Ok(());
        };
        if memory.places.contains_key(&request.id) {
            return Err("two requests of one number");
        }
        let Some(place) = place else {
            return Ok(());
        };
        let (Op::Read { extents, .. } | Op::Write { extents, .. }) = &request.op else {
            return Err("registered memory with an operation that has none");
        };
        if !memory.holds(place, extents.bytes()) {
            return Err("payload outside its memory");
        }
        if memory.places.len() >= PLACES_MAX {
            return Err("too many unanswered requests");
        }
        memory.places.insert(request.id, place);
        Ok(())
    }

    /// There is a buffer for the payload of a request: fetches it from registered memory, or reads
    /// it from the socket. An error is the reason why the session ends.
    pub(super) fn buffer_came(
        &mut self,
        request: Box<Request>,
        slot: SlotId,
        buffer: SlotBuffer,
        now: Time,
    ) -> Result<(), String> {
        if let (Some(link), Some(memory)) = (self.stream.link(), &mut self.rdma)
            && let Some(place) = memory.places.remove(&request.id)
        {
            let part = (place, request.payload_len as usize);
            return memory.begin(link, &buffer, part, now, Moving::In(request, slot));
        }
        self.payload_due(request, slot, buffer, now);
        Ok(())
    }

    /// Does what follows from moves that are over. An error is the reason why the session ends.
    pub(super) fn take_moved(&mut self, sink: &mut RequestSink) -> Result<(), String> {
        while let Some((number, result)) = self.stream.link().and_then(Link::moved) {
            let Some(memory) = &mut self.rdma else {
                return Ok(());
            };
            result.map_err(|why| format!("its memory cannot be reached: {why}"))?;
            match memory.moves.remove(&number) {
                Some((_, Moving::In(request, slot))) => {
                    sink.messages.push(ToLoop::PayloadReceived {
                        conn: self.id,
                        request,
                        slot,
                    });
                }
                Some((_, Moving::Out(op, reply, slot))) => {
                    push_shared(&mut self.outbox, op, &reply);
                    sink.messages.push(ToLoop::Sent(slot));
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Puts a reply's payload where the client wants it. False: it is to be sent with the reply. An
    /// error is the reason why the session ends.
    pub(super) fn put(
        &mut self,
        now: Time,
        op: u8,
        reply: &Reply,
        body: &Body,
    ) -> Result<bool, String> {
        let (Some(link), Some(memory)) = (self.stream.link(), &mut self.rdma) else {
            return Ok(false);
        };
        let (Some(place), Body::Payload(payload)) = (memory.places.remove(&reply.id), body) else {
            return Ok(false);
        };
        if lock_buffer(&payload.buffer).pages().is_some() {
            // It came by another connection of this client's.
            return Ok(false);
        }
        let moving = Moving::Out(op, reply.clone(), payload.slot);
        memory.begin(link, &payload.buffer, (place, payload.len), now, moving)?;
        Ok(true)
    }

    /// Whether the peer has read everything, or has had the time to. Sockets see to that alone.
    pub(super) fn is_heard(&mut self, now: Time) -> bool {
        let Some(link) = self.stream.link() else {
            return true;
        };
        let since = *self.last_words.get_or_insert(now);
        link.is_delivered() || now.since(since) > LAST_WORDS_NS
    }
}

fn push_shared(outbox: &mut Outbox, op: u8, reply: &Reply) {
    outbox.push(|into| encode_reply_shared(op, reply, into), None);
}

impl Shard {
    /// Looks at the connections through libfabric before a wait: those with news are served next.
    /// How long the wait may be, if they bound it.
    pub(super) fn look_at_links(&mut self) -> Option<Duration> {
        let (mut bound, mut news) = (None, Vec::new());
        for id in &self.links {
            let Some(session) = self.sessions.get_mut(id) else {
                continue;
            };
            let link = session.stream.link();
            match link.map_or(Wait::Any, |link| link.wait(false, session.is_read())) {
                Wait::Not => {
                    session.drained = false;
                    news.push(*id);
                }
                Wait::AtMost(wait) => bound = Some(bound.map_or(wait, |least| wait.min(least))),
                Wait::Any => {}
            }
        }
        news.into_iter().for_each(|id| self.mark_ready(id));
        bound
    }
}
