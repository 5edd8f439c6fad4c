//! One connection to a forwarder: any thread writes requests to it, and the leader reads replies.
//!
//! The thread that makes a call writes its frames itself while the socket takes them. Frames that
//! do not fit stay in the queue until the leader learns that the socket is writable again.

use super::reply_memory::{Memory, ReplyMemory};
use crate::arena::{Arena, Piece};
use crate::payload::Payload;
use crate::wire::frame::{self, FrameError};
use crate::wire::{Op, Reply, Request};
use mio::{Registry, Token};
use rustix::fd::AsFd;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_net::{FrameReader, Greeting, Outbox, RawBytes, Step, Stream};

/// Largest number of pieces that one system call writes; the kernel allows 1024.
const PIECES_MAX: usize = 64;
/// Number of buffers for headers that are kept for reuse.
const SPARE_MAX: usize = 64;
/// Id of the request that offers the arena to the forwarder.
const OFFER: u64 = u64::MAX;
/// Id of the request with which a further connection joins its session. The core counts its own
/// requests from 1.
pub(crate) const JOIN: u64 = u64::MAX - 1;

/// A stream and the frames that wait to be sent on it. The session's credits bound their number,
/// the budget their bytes.
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    queue: Mutex<Queue>,
    /// The memory to offer the forwarder, if the forwarder can reach it.
    arena: Option<Arc<Arena>>,
    /// Whether the forwarder has accepted the offer.
    shares: AtomicBool,
    /// Payload in the arena that the forwarder may be working on, by request.
    kept: Mutex<BTreeMap<u64, Kept>>,
}

/// Payload in the arena.
enum Kept {
    /// The forwarder reads these bytes.
    Sent(Payload),
    /// The forwarder writes into this piece.
    Awaited(Piece),
}

#[derive(Default)]
struct Queue {
    frames: Outbox<Carried>,
    spare: Vec<Vec<u8>>,
    /// A thread writes; other threads only add frames.
    flushing: bool,
    /// Whether the socket became writable while a thread was writing.
    kicked: bool,
    broken: bool,
}

/// What follows the header and body of a request.
struct Carried {
    pieces: Vec<Payload>,
    /// The arena's descriptor goes with the request's first byte.
    offers: bool,
}

impl Connection {
    /// The sending side of this stream. `arena` is the memory that the client offers the forwarder.
    pub(crate) fn new(stream: Stream, arena: Option<Arc<Arena>>) -> Connection {
        Connection {
            stream,
            queue: Mutex::default(),
            arena,
            shares: AtomicBool::new(false),
            kept: Mutex::default(),
        }
    }

    /// Adds the frame that offers the arena, if there is one.
    pub(crate) fn offer(&self) {
        let offered = self
            .arena
            .as_ref()
            .and_then(|arena| offer(&self.stream, arena));
        let Some((op, with_descriptor)) = offered else {
            return;
        };
        let request = Request {
            id: OFFER,
            seat: 0,
            reply_slot: None,
            generation: 0,
            epoch: 0,
            replay: false,
            caller: None,
            hints: None,
            op,
            payload_len: 0,
        };
        let encode = |out: &mut Vec<u8>| frame::encode_request(&request, out);
        self.push(encode, Vec::new(), with_descriptor);
    }

    /// Sends the client's greeting, which is the first that is sent.
    pub(crate) fn greet(&self, greeting: &Greeting) {
        let bytes = greeting.to_bytes();
        self.push(|out| out.extend_from_slice(&bytes), Vec::new(), false);
        self.flush();
    }

    /// The forwarder has accepted the offer: from now on payload need not go through the socket.
    pub(crate) fn accepted(&self) {
        self.shares.store(true, Ordering::Release);
        if let Some(arena) = &self.arena {
            arena.accept();
        }
    }

    /// Queues a request. Call [`Connection::flush`] afterwards, without holding a lock.
    pub(crate) fn enqueue_request(&self, request: &Request, payload: Vec<Payload>) {
        match self.keep(request, &payload) {
            Some(place) => {
                let encode = |out: &mut _| frame::encode_request_shared(request, place, out);
                self.push(encode, Vec::new(), false);
            }
            None => self.push(|out| frame::encode_request(request, out), payload, false),
        }
    }

    /// The place in the arena where a request's payload lies or shall lie, if it can lie there.
    fn keep(&self, request: &Request, payload: &[Payload]) -> Option<u64> {
        let arena = self.arena.as_ref()?;
        if !self.shares.load(Ordering::Acquire) {
            return None;
        }
        let (place, kept) = match (&request.op, payload) {
            (Op::Read { extents, .. }, _) => {
                let len = usize::try_from(extents.bytes()).ok()?;
                let piece = arena.take(len).filter(|_| len > 0)?;
                (piece.place(), Kept::Awaited(piece))
            }
            (Op::Write { .. }, [bytes]) => (bytes.place_in(arena)?, Kept::Sent(bytes.clone())),
            _ => return None,
        };
        self.kept().insert(request.id, kept);
        Some(place)
    }

    /// Takes what the forwarder wrote into the arena for a request whose reply has arrived; `len`
    /// bytes of it count. None if the forwarder was not to write there.
    pub(crate) fn replied(&self, id: u64, len: Option<usize>) -> Option<Payload> {
        if !self.shares.load(Ordering::Acquire) {
            return None;
        }
        match (self.kept().remove(&id)?, len) {
            (Kept::Awaited(piece), Some(len)) => Payload::of_piece(piece, len),
            (Kept::Sent(_), Some(0)) => Some(Payload::new()),
            _ => None,
        }
    }

    /// Adds a frame; `encode` appends header and body.
    fn push(&self, encode: impl FnOnce(&mut Vec<u8>), pieces: Vec<Payload>, offers: bool) {
        let mut queue = self.queue();
        if queue.broken {
            return;
        }
        let mut head = queue.spare.pop().unwrap_or_default();
        encode(&mut head);
        let len = pieces.iter().map(Payload::len).sum();
        queue.frames.push(head, Carried { pieces, offers }, len);
    }

    /// Writes what the socket takes. Drops the frames if the socket is broken; the I/O thread
    /// learns that from the socket itself.
    pub(crate) fn flush(&self) {
        let mut queue = self.queue();
        if queue.flushing {
            queue.kicked = true;
            return;
        }
        queue.flushing = true;
        let mut batch = Outbox::default();
        loop {
            if batch.is_empty() {
                mem::swap(&mut batch, &mut queue.frames);
            }
            if batch.is_empty() || queue.broken {
                queue.flushing = false;
                queue.kicked = false;
                return;
            }
            let mut spare = mem::take(&mut queue.spare);
            drop(queue);
            let wrote = self.write(&mut batch, &mut spare);
            queue = self.queue();
            queue.spare = spare;
            match wrote {
                Ok(()) => {}
                Err(error)
                    if error.kind() == ErrorKind::WouldBlock && mem::take(&mut queue.kicked) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // In front of what was added meanwhile.
                    batch.append(&mut queue.frames);
                    queue.frames = batch;
                    queue.flushing = false;
                    return;
                }
                Err(_) => {
                    queue.broken = true;
                    queue.frames = Outbox::default();
                    self.stream.shutdown();
                }
            }
        }
    }

    /// Whether all frames are written, or can never be.
    pub(crate) fn is_flushed(&self) -> bool {
        let queue = self.queue();
        let out = queue.frames.is_empty() && !queue.flushing;
        queue.broken || (out && self.stream.is_delivered())
    }

    /// Whether the thread in epoll must look at this connection, although no descriptor wakes it.
    pub(crate) fn wants_look(&self) -> bool {
        let link = self.stream.link();
        link.is_some_and(|link| link.wants_look()) || self.stream.wants_room()
    }

    /// The poller has reported room for bytes on the stream, which it watches as `token`.
    pub(crate) fn note_room(&self, registry: &Registry, token: Token) {
        let queue = self.queue();
        if !queue.flushing && queue.frames.is_empty() {
            // Under the lock: a thread that sends from now on learns whether room is watched.
            return self.stream.had_room(registry, token);
        }
        drop(queue);
        self.flush();
    }

    /// Whether the forwarder may be working on the arena.
    pub(crate) fn awaits(&self) -> bool {
        !self.kept().is_empty()
    }

    /// Drops the queued frames and shuts the socket down, so that no thread writes to it any more.
    pub(crate) fn close(&self) {
        let mut queue = self.queue();
        queue.broken = true;
        queue.frames = Outbox::default();
        drop(queue);
        self.stream.shutdown();
        self.retire();
    }

    /// Retires the pieces that the forwarder may still work on: they are never used again.
    fn retire(&self) {
        let retired = mem::take(&mut *self.kept());
        let Some(arena) = self.arena.as_ref().filter(|_| !retired.is_empty()) else {
            return;
        };
        tracing::debug!(pieces = retired.len(), "shared memory given up");
        for kept in retired.values() {
            match kept {
                Kept::Awaited(piece) => arena.retire(piece.place()),
                Kept::Sent(bytes) => bytes
                    .place_in(arena)
                    .into_iter()
                    .for_each(|place| arena.retire(place)),
            }
        }
    }

    /// Writes frames from the front once. Adds to `spare` the buffers of those that are written
    /// whole.
    fn write(&self, batch: &mut Outbox<Carried>, spare: &mut Vec<Vec<u8>>) -> io::Result<()> {
        let mut pieces = [RawBytes::default(); PIECES_MAX];
        // A descriptor goes with the first byte of its frame.
        let offers = batch.payloads().next().is_some_and(|it| it.offers) && !batch.has_begun();
        let payloads = batch.payloads().enumerate();
        let together = payloads.take_while(|(at, it)| *at == 0 || !(offers || it.offers));
        let together = together.map(|(_, it)| it.pieces.iter().map(Payload::raw));
        let count = batch.gather(together, &mut pieces);
        let arena = self.arena.as_ref().filter(|_| offers);
        let descriptor = arena.map(|arena| arena.fd().as_fd());
        let sent = self.stream.send(&pieces[..count], false, descriptor)?;
        batch.advance(sent, |head, _| {
            if spare.len() < SPARE_MAX {
                spare.push(head);
            }
        });
        Ok(())
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<u64, Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // A panic while encoding leaves the queue without the frame, which is a lost frame on a
        // connection whose owner is about to end.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The operation that offers the arena, and whether the arena's descriptor goes with it.
fn offer(stream: &Stream, arena: &Arc<Arena>) -> Option<(Op, bool)> {
    let bytes = arena.bytes();
    let Some(link) = stream.link() else {
        return (!stream.is_linked()).then_some((Op::ShareMemory { bytes }, true));
    };
    // SAFETY: the link keeps the arena, whose mapping does not move. Pieces that the forwarder
    // works on are nobody else's until it has replied, or for ever if it does not.
    let made = unsafe { link.offer(arena.start(), bytes as usize, Box::new(Arc::clone(arena))) };
    match made {
        Ok(place) => {
            let (address, key) = (place.address, place.key);
            let op = Op::RegisterMemory {
                bytes,
                address,
                key,
            };
            Some((op, false))
        }
        Err(error) => {
            tracing::info!(%error, "payload goes in messages");
            None
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.retire();
    }
}

/// Something whole that has arrived.
#[derive(Debug)]
pub(crate) enum Received {
    /// The forwarder's answer to the client's greeting, or what it says to a client that has not
    /// greeted.
    Greeting(Greeting),
    /// A reply and its payload; None where the payload is in shared memory.
    Reply(Reply, Option<Payload>),
}

/// Why a connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    /// The peer closed it.
    #[error("closed by the forwarder")]
    Closed,
    /// The network broke it.
    #[error("{0}")]
    Socket(io::Error),
    /// The bytes are no reply.
    #[error("not a reply: {0}")]
    Frame(#[from] FrameError),
    /// A reply names a payload that is not in shared memory.
    #[error("a reply's payload is in memory that was not meant for it")]
    Memory,
}

/// How one receive from the socket ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// There may be more bytes.
    More,
    /// There are no more bytes; the end of the stream may follow.
    Drained,
    /// There is nothing to receive, not even the end of the stream.
    Empty,
}

/// The receiving side of a connection. It puts a payload into memory of its exact size, which no
/// forwarder reaches.
pub(crate) struct Receiver {
    frames: FrameReader,
    /// A reply whose payload is still coming.
    payload: Option<(Reply, Memory)>,
    memory: Arc<ReplyMemory>,
}

impl Receiver {
    /// A receiver for a new connection; `greets` says whether the stream may begin with a greeting.
    pub(crate) fn new(payload_max: u32, greets: bool, memory: Arc<ReplyMemory>) -> Receiver {
        Receiver {
            frames: FrameReader::of_replies(payload_max, greets),
            payload: None,
            memory,
        }
    }

    /// Receives once, and appends to `into` every greeting and reply that is now complete.
    pub(crate) fn receive(
        &mut self,
        stream: &Stream,
        into: &mut Vec<Received>,
    ) -> Result<Progress, ReceiveError> {
        let target = match &mut self.payload {
            Some((_, memory)) => memory.bytes_mut(),
            None => &mut [],
        };
        let filled = self.frames.fill(|pieces| stream.receive(pieces), target);
        let (received, room) = match filled {
            Ok(Some(filled)) => filled,
            Ok(None) => return Err(ReceiveError::Closed),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Progress::Empty),
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(Progress::More),
            Err(error) => return Err(ReceiveError::Socket(error)),
        };
        while self.next(into)? {}
        Ok(match stream.may_have_more(received, room) {
            true => Progress::More,
            false => Progress::Drained,
        })
    }

    /// Takes one greeting or reply out of what has arrived; false if none is complete.
    fn next(&mut self, into: &mut Vec<Received>) -> Result<bool, ReceiveError> {
        let target = match &mut self.payload {
            Some((_, memory)) => memory.bytes_mut(),
            None => &mut [],
        };
        match self.frames.next(target)? {
            Step::More => return Ok(false),
            Step::Greeting(greeting) => into.push(Received::Greeting(greeting)),
            Step::Frame(header, body) => {
                let reply = frame::decode_reply(&header, body)?;
                match header.payload_len {
                    _ if header.shared => into.push(Received::Reply(reply, None)),
                    0 => into.push(Received::Reply(reply, Some(Payload::new()))),
                    len => {
                        self.frames.keep_payload();
                        self.payload = Some((reply, self.memory.take(len as usize)));
                    }
                }
            }
            Step::Payload => {
                let (reply, memory) = self.payload.take().expect("its end has come");
                let bytes = self.memory.filled(memory);
                into.push(Received::Reply(reply, Some(bytes.into())));
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
