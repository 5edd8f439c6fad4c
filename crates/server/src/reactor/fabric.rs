//! Payload in memory that a client has registered with libfabric: fetched from there once the pool
//! has a slot for it, and put there before the reply.
//!
//! Nothing here waits: a move is begun, and what follows from it is done when the link tells that
//! it is over. A client whose memory does not answer is cut off like one that stops amid a frame.

use super::Core;
use super::conn::Conn;
use super::output::Outbox;
use super::sockets::{Desk, Sockets};
use crate::storage::SlotBuffer;
use crate::storage::slots::{Memory, lock_buffer};
use std::collections::BTreeMap;
use std::time::Duration;
use tidegate_fabric::{Link, Local, Remote, Wait};
use tidegate_forward::{Admission, SlotId};
use tidegate_sched::Time;
use tidegate_wire::frame::encode_reply_shared;
use tidegate_wire::{Op, Outcome, Reply, Request, Status};

/// Reads that may be unanswered; far more than there are credits.
const PLACES_MAX: usize = 1 << 16;
/// How long a connection that is to end stays, so that its last words are read.
pub const LAST_WORDS_NS: u64 = 1_000_000_000;

/// What a client has registered, and what is on its way from and to there.
pub struct ClientMemory {
    bytes: u64,
    start: Remote,
    /// Where the payload of unanswered reads shall lie, by request.
    places: BTreeMap<u64, u64>,
    /// The same of the request that waits for a slot.
    waiting: Option<u64>,
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
            waiting: None,
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

/// Takes an offer of memory; the reply to it.
pub(super) fn memory_registered(conn: &mut Conn, op: &Op) -> Option<Result<Outcome, Status>> {
    let Op::RegisterMemory {
        bytes,
        address,
        key,
    } = *op
    else {
        return None;
    };
    let fits = bytes > 0 && address.checked_add(bytes).is_some();
    if conn.stream.link().is_none() || conn.remote.is_some() || !fits {
        return Some(Err(Status::Errno(tidegate_forward::Errno::EOPNOTSUPP.0)));
    }
    conn.remote = Some(Box::new(ClientMemory::new(bytes, Remote { address, key })));
    Some(Ok(Outcome::Done))
}

impl Core {
    /// Takes a request whose payload lies in registered memory: it is fetched when there is a slot.
    pub(super) fn admit_remote(
        &mut self,
        conn: &mut Conn,
        request: Box<Request>,
        place: u64,
    ) -> Result<(), String> {
        let (Some(link), Some(memory)) = (conn.stream.link(), &mut conn.remote) else {
            return Err("payload in memory that was not offered".to_string());
        };
        let (Op::Read { extents, .. } | Op::Write { extents, .. }) = &request.op else {
            return Err("registered memory with an operation that has none".to_string());
        };
        if !memory.holds(place, extents.bytes()) {
            return Err("payload outside its memory".to_string());
        }
        match self.forwarder.admit(self.now, conn.id, &request) {
            Admission::NoPayload => self.received(conn.id, request, None),
            Admission::Slot { slot, len } => {
                self.note_stale(slot);
                let buffer = self.slots.open(slot, len);
                if request.payload_len > 0 {
                    let part = (place, request.payload_len as usize);
                    let moving = Moving::In(request, slot);
                    memory.begin(link, &buffer, part, self.now, moving)?;
                } else {
                    if memory.places.len() >= PLACES_MAX {
                        return Err("too many unanswered reads".to_string());
                    }
                    memory.places.insert(request.id, place);
                    self.received(conn.id, request, Some(slot));
                }
            }
            Admission::Wait => {
                memory.waiting = Some(place);
                self.waits(conn, request);
            }
            Admission::Refuse(reason) => return Err(reason.into()),
        }
        Ok(())
    }

    /// Does what follows from moves that are over. An error is the reason why the session ends.
    pub(super) fn take_moved(&mut self, conn: &mut Conn) -> Result<(), String> {
        while let Some((number, result)) = conn.stream.link().and_then(Link::moved) {
            let Some(memory) = &mut conn.remote else {
                return Ok(());
            };
            result.map_err(|why| format!("its memory cannot be reached: {why}"))?;
            match memory.moves.remove(&number) {
                Some((_, Moving::In(request, slot))) => {
                    self.received(conn.id, request, Some(slot));
                }
                Some((_, Moving::Out(op, reply, slot))) => {
                    push_shared(&mut conn.outbox, op, &reply);
                    self.sent(slot);
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Puts a reply's payload where the client wants it. False: it is to be sent with the reply.
    pub(super) fn put_remote(
        &mut self,
        conn: &mut Conn,
        op: u8,
        reply: &Reply,
        slot: Option<SlotId>,
    ) -> Result<bool, String> {
        let (Some(link), Some(memory)) = (conn.stream.link(), &mut conn.remote) else {
            return Ok(false);
        };
        let (Some(place), Some(slot)) = (memory.places.remove(&reply.id), slot) else {
            return Ok(false);
        };
        let len = reply.payload_len as usize;
        if len == 0 {
            push_shared(&mut conn.outbox, op, reply);
            self.sent(slot);
            return Ok(true);
        }
        let buffer = self
            .slots
            .buffer(slot)
            .expect("an admitted slot has memory");
        if lock_buffer(&buffer).pages().is_some() {
            // It came by another connection of this client's.
            return Ok(false);
        }
        let moving = Moving::Out(op, reply.clone(), slot);
        memory.begin(link, &buffer, (place, len), self.now, moving)?;
        Ok(true)
    }
}

fn push_shared(outbox: &mut Outbox, op: u8, reply: &Reply) {
    outbox.push(|into| encode_reply_shared(op, reply, into), None);
}

impl Conn {
    /// Where the payload of the request that waited for a slot lies in registered memory.
    pub(super) fn take_waiting_place(&mut self) -> Option<u64> {
        self.remote.as_mut()?.waiting.take()
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

impl Sockets {
    /// Looks at the connections through libfabric before a wait: those with news are served next.
    /// How long the wait may be, if they bound it.
    pub(super) fn look_at_links(&mut self) -> Option<Duration> {
        let (mut bound, mut news) = (None, Vec::new());
        for id in &self.links {
            let Some(conn) = self.conns.get_mut(id) else {
                continue;
            };
            let link = conn.stream.link();
            match link.map_or(Wait::Any, |link| link.wait(false, conn.is_read())) {
                Wait::Not => {
                    conn.drained = false;
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
