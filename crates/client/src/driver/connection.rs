//! The sending side of one connection: frames in order, which any thread may write.
//!
//! The thread that makes a call writes its frames itself while the socket takes them. Frames that
//! do not fit stay in the queue until the leader learns that the socket is writable again.

use super::arena::{Arena, Piece};
use crate::wire::{Op, Request, frame};
use bytes::Bytes;
use rustix::fd::AsFd;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, IoSlice};
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_net::{Outbox, Stream};

/// Largest number of pieces that one system call writes; the kernel allows 1024.
const PIECES_MAX: usize = 64;
/// Number of buffers for headers that are kept for reuse.
const SPARE_MAX: usize = 64;
/// Id of the request that offers the arena to the forwarder. The core counts its own from 1.
pub(crate) const OFFER: u64 = u64::MAX;
/// Id of the request with which a further connection joins its session.
pub(crate) const JOIN: u64 = u64::MAX - 1;

/// A connected socket and the frames that wait to be sent on it. The session's credits bound their
/// number, the budget their bytes.
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
    Sent(Bytes),
    /// The forwarder writes into this piece.
    Awaited(Piece),
}

#[derive(Default)]
struct Queue {
    frames: Outbox<Payload>,
    spare: Vec<Vec<u8>>,
    /// A thread writes; other threads only add frames.
    flushing: bool,
    /// Whether the socket became writable while a thread was writing.
    kicked: bool,
    broken: bool,
}

/// What follows the header and body of a request.
struct Payload {
    pieces: Vec<Bytes>,
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

    /// The forwarder has accepted the offer: from now on payload need not go through the socket.
    pub(crate) fn accepted(&self) {
        self.shares.store(true, Ordering::Release);
    }

    /// Queues a request. Call [`Connection::flush`] afterwards, without holding a lock.
    pub(crate) fn enqueue_request(&self, request: &Request, payload: Vec<Bytes>) {
        match self.keep(request, &payload) {
            Some(place) => {
                let encode = |out: &mut _| frame::encode_request_shared(request, place, out);
                self.push(encode, Vec::new(), false);
            }
            None => self.push(|out| frame::encode_request(request, out), payload, false),
        }
    }

    /// The place in the arena where a request's payload lies or shall lie, if it can lie there.
    fn keep(&self, request: &Request, payload: &[Bytes]) -> Option<u64> {
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
            (Op::Write { .. }, [bytes]) => (arena.place_of(bytes)?, Kept::Sent(bytes.clone())),
            _ => return None,
        };
        self.kept().insert(request.id, kept);
        Some(place)
    }

    /// Takes what the forwarder wrote into the arena for a request whose reply has arrived; `len`
    /// bytes of it count. None if the forwarder was not to write there.
    pub(crate) fn replied(&self, id: u64, len: Option<usize>) -> Option<Bytes> {
        if !self.shares.load(Ordering::Acquire) {
            return None;
        }
        match (self.kept().remove(&id)?, len) {
            (Kept::Awaited(piece), Some(len)) => piece.into_bytes(len),
            (Kept::Sent(bytes), Some(0)) => Some(bytes.slice(..0)),
            _ => None,
        }
    }

    /// Adds a frame; `encode` appends header and body.
    fn push(&self, encode: impl FnOnce(&mut Vec<u8>), pieces: Vec<Bytes>, offers: bool) {
        let mut queue = self.queue();
        if queue.broken {
            return;
        }
        let mut head = queue.spare.pop().unwrap_or_default();
        encode(&mut head);
        let len = pieces.iter().map(Bytes::len).sum();
        queue.frames.push(head, Payload { pieces, offers }, len);
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
            drop(queue);
            let wrote = self.write(&mut batch);
            queue = self.queue();
            match wrote {
                Ok(mut heads) => {
                    heads.truncate(SPARE_MAX.saturating_sub(queue.spare.len()));
                    queue.spare.append(&mut heads);
                }
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
        self.stream.link().is_some_and(|link| link.wants_look())
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
                Kept::Sent(bytes) => arena
                    .place_of(bytes)
                    .into_iter()
                    .for_each(|place| arena.retire(place)),
            }
        }
    }

    /// Writes frames from the front once; returns the buffers of those that are written whole.
    fn write(&self, batch: &mut Outbox<Payload>) -> io::Result<Vec<Vec<u8>>> {
        let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
        // A descriptor goes with the first byte of its frame.
        let offers = batch.payloads().next().is_some_and(|it| it.offers) && !batch.has_begun();
        let payloads = batch.payloads().enumerate();
        let together = payloads.take_while(|(at, it)| *at == 0 || !(offers || it.offers));
        let together = together.map(|(_, it)| it.pieces.iter().map(|piece| &piece[..]));
        let count = batch.gather(together, &mut pieces);
        let arena = self.arena.as_ref().filter(|_| offers);
        let descriptor = arena.map(|arena| arena.fd().as_fd());
        let sent = self.stream.send(&pieces[..count], false, descriptor)?;
        let mut heads = Vec::new();
        batch.advance(sent, |head, _| heads.push(head));
        Ok(heads)
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::thread;

    fn pair() -> (Arc<Connection>, UnixStream) {
        let (ours, theirs) = net::socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .expect("a pair of sockets");
        let ours = UnixStream::from(ours);
        ours.set_nonblocking(true)
            .expect("a socket can be non-blocking");
        (
            Arc::new(Connection::new(Stream::new(ours.into(), None), None)),
            UnixStream::from(theirs),
        )
    }

    #[test]
    fn frames_of_many_threads_arrive_whole() {
        const THREADS: u8 = 8;
        const FRAMES: usize = 200;
        let (connection, mut peer) = pair();
        let reader = thread::spawn(move || {
            let mut bytes = Vec::new();
            peer.read_to_end(&mut bytes)
                .expect("the peer reads to the end");
            bytes
        });
        thread::scope(|scope| {
            for number in 1..=THREADS {
                let connection = &connection;
                scope.spawn(move || {
                    for _ in 0..FRAMES {
                        let head = |out: &mut Vec<u8>| out.extend_from_slice(&[number; 10]);
                        connection.push(head, vec![Bytes::from(vec![number; 1500]); 2], false);
                        connection.flush();
                    }
                });
            }
        });
        // Here the test stands in for the I/O thread.
        while !connection.is_flushed() {
            connection.flush();
            thread::yield_now();
        }
        drop(connection);
        let bytes = reader.join().expect("the reader ends");
        assert_eq!(bytes.len(), usize::from(THREADS) * FRAMES * 3010);
        for frame in bytes.chunks(3010) {
            assert!(
                frame.iter().all(|byte| *byte == frame[0]),
                "two frames were mixed"
            );
        }
    }

    #[test]
    fn what_a_lost_forwarder_may_work_on_is_not_used_again_and_not_kept_for_ever() {
        let arena = Arena::new(3 * 4096, None).expect("memory");
        let (plain, _peer) = pair();
        let socket = plain.stream.as_fd().try_clone_to_owned();
        let socket = socket.expect("descriptors are left");
        let connection = Connection::new(Stream::new(socket, None), Some(Arc::clone(&arena)));
        connection.accepted();
        let handle = crate::wire::Handle { inode: 1, birth: 2 };
        let request = |id, op: Op, payload_len| Request {
            id,
            seat: 0,
            reply_slot: op.mutates().then_some(crate::wire::ReplySlot {
                index: 0,
                sequence: 1,
            }),
            generation: 0,
            epoch: 0,
            replay: false,
            caller: None,
            hints: Some(crate::wire::Hints::default()),
            op,
            payload_len,
        };
        let extents = |len| crate::wire::Extent { offset: 0, len }.into();
        let read = |len| Op::Read {
            handle,
            extents: extents(len),
        };
        let write = Op::Write {
            handle,
            extents: extents(50),
        };
        connection.enqueue_request(&request(1, read(4096), 0), Vec::new());
        let piece = arena.take(100).expect("there is room");
        let bytes = piece.into_bytes(100).expect("it has them");
        connection.enqueue_request(&request(2, write, 50), vec![bytes.slice(50..)]);
        connection.enqueue_request(&request(3, read(10), 0), Vec::new());
        assert_eq!(connection.replied(3, Some(5)).map(|it| it.len()), Some(5));
        connection.close();
        drop((connection, bytes));
        let left = arena.take(4096).expect("the one that was answered");
        assert_eq!(left.place(), 2 * 4096);
        assert!(arena.take(1).is_none(), "the others may be worked on");
        drop(left);
        assert_eq!(Arc::strong_count(&arena), 1, "the memory is never freed");
    }

    #[test]
    fn a_gone_peer_breaks_the_connection_without_a_signal() {
        let (connection, peer) = pair();
        drop(peer);
        connection.push(|out| out.push(1), Vec::new(), false);
        connection.flush();
        assert!(connection.is_flushed());
        connection.push(|out| out.push(1), Vec::new(), false);
        assert!(connection.queue().frames.is_empty());
    }
}
