//! One connection: what it has sent so far, what it is still to be sent, and when it last moved.
//! From bytes that came to requests that the forwarder's loop is told of.

use super::outbox::{Body, Outbox};
use super::rdma::{ClientMemory, Moving};
use super::{Came, HANDED_MAX, RequestSink, ToLoop};
use crate::storage::slots::lock_buffer;
use crate::storage::{SharedMemory, SlotBuffer};
use std::io::{self, ErrorKind, IoSliceMut};
use std::sync::Arc;
use tidegate_forward::{ConnId, Errno, SlotId};
use tidegate_net::{Beside, FrameReader, Step, Stream};
use tidegate_sched::Time;
use tidegate_wire::frame::{FrameError, decode_request_shared, op_code};
use tidegate_wire::frame::{encode_reply, encode_reply_shared};
use tidegate_wire::{Challenge, Op, Outcome, Reply, Request, Status};
use tracing::info;

/// Bytes that one connection may bring in one pass, so that others have their turn.
const PASS_BYTES_MAX: usize = 1 << 20;

const ENOSYS: Errno = Errno(38);
/// How long a connection that is to end stays, so that its last words are read.
const LAST_WORDS_NS: u64 = 1_000_000_000;

/// How far the request that is coming in has come.
enum Stage {
    /// Header and body are due.
    Head,
    /// Its payload follows, and there is no buffer for it yet; nothing is read until there is.
    NoBuffer,
    /// Its payload goes to a buffer.
    Receiving {
        request: Box<Request>,
        slot: SlotId,
        buffer: SlotBuffer,
    },
}

/// What the bytes so far amount to.
enum Next {
    /// More are needed.
    Nothing,
    /// A request, and where in shared memory its payload lies. If it has payload and that lies
    /// nowhere, it follows.
    Request(Box<Request>, Option<u64>),
    /// A sound frame of an unknown operation.
    UnknownOp { id: u64, op: u8 },
    /// The payload of the last request is complete.
    Payload,
}

/// What one read from the socket gave.
enum Fill {
    /// So many bytes.
    Some(usize),
    /// So many bytes, and there are no others now.
    Last(usize),
    /// None now.
    Blocked,
    /// The peer is gone.
    End,
}

/// What reading a connection came to.
pub enum Turn {
    /// It may have more.
    Again,
    /// Nothing until the socket or the forwarder's loop says so.
    Later,
    /// The peer is gone.
    End,
}

/// One connection.
pub struct Session {
    /// Its number.
    pub id: ConnId,
    /// The other end, for logs.
    pub peer: String,
    /// The socket.
    pub stream: Stream,
    /// Descriptors that came on it.
    beside: Beside,
    /// Where the incoming request is.
    stage: Stage,
    /// Requests that the forwarder's loop was told of and has not said it has taken.
    pub(super) handed: u32,
    /// Bytes that it has brought in this pass.
    turn_bytes: usize,
    /// The frames that come in.
    pub(super) reader: FrameReader,
    /// The client's memory, if it has offered some.
    memory: Option<Arc<SharedMemory>>,
    /// The same through libfabric.
    pub(super) rdma: Option<Box<ClientMemory>>,
    /// Replies on their way out.
    pub outbox: Outbox,
    /// What the hello must prove the secret over; None when it need not.
    pub challenge: Option<Challenge>,
    /// Its first frame, the hello, has come.
    greeted: bool,
    /// Nothing more is read; it ends when the outbox is empty. The reason, for the log.
    pub(super) closing: Option<Box<str>>,
    /// Since when its last words are out, where only the peer knows that they came.
    pub(super) last_words: Option<Time>,
    /// It was not read because it does not read; it is when it has taken some replies.
    pub(super) unheard: bool,
    /// Everything that the socket had was read; there will be an event when it has more.
    pub(super) drained: bool,
    /// The peer sends nothing more; the end is still to be read.
    pub(super) hung_up: bool,
    /// In the shard's list of those with something to read.
    pub(super) in_ready: bool,
    /// In the shard's list of those with something to send.
    pub(super) in_dirty: bool,
    /// When bytes last came.
    heard: Time,
    /// When bytes last went out, or the outbox was empty.
    spoke: Time,
}

impl Session {
    /// A connection that has said nothing yet.
    pub fn new(id: ConnId, peer: String, stream: Stream, payload_max: u32, now: Time) -> Session {
        Session {
            id,
            peer,
            stream,
            beside: Beside::default(),
            stage: Stage::Head,
            handed: 0,
            turn_bytes: 0,
            reader: FrameReader::of_requests(payload_max),
            memory: None,
            rdma: None,
            outbox: Outbox::default(),
            challenge: None,
            greeted: false,
            closing: None,
            last_words: None,
            unheard: false,
            drained: false,
            hung_up: false,
            in_ready: false,
            in_dirty: false,
            heard: now,
            spoke: now,
        }
    }

    /// Its shard has it from now on.
    pub(super) fn begin(&mut self, now: Time) {
        (self.heard, self.spoke) = (now, now);
    }

    /// A new pass: it may bring as much as any.
    pub(super) fn begin_turn(&mut self) {
        self.turn_bytes = 0;
    }

    /// Whether it has brought in this pass what it may.
    pub(super) fn has_had_its_turn(&self) -> bool {
        self.turn_bytes >= PASS_BYTES_MAX
    }

    /// Uses what the connection sends. An error is the reason why its session ends.
    pub(super) fn receive(&mut self, sink: &mut RequestSink) -> Result<Turn, String> {
        loop {
            if self.closing.is_some() || self.waits_for_us() {
                return Ok(Turn::Later);
            }
            if self.outbox.is_full() {
                self.unheard = true;
                return Ok(Turn::Later);
            }
            match self.step().map_err(|error| error.to_string())? {
                Next::Nothing if self.drained => return Ok(Turn::Later),
                Next::Nothing if self.has_had_its_turn() => return Ok(Turn::Again),
                Next::Nothing => match self.fill(sink.now).map_err(|error| error.to_string())? {
                    fill @ (Fill::Some(count) | Fill::Last(count)) => {
                        sink.traffic.receives += 1;
                        sink.traffic.received_bytes += count as u64;
                        self.turn_bytes += count;
                        self.drained = matches!(fill, Fill::Last(_));
                    }
                    Fill::Blocked => {
                        sink.traffic.receives_empty += 1;
                        self.drained = true;
                        return Ok(Turn::Later);
                    }
                    Fill::End if self.reader.is_amid_frame() => {
                        return Err("the connection ended amid a frame".to_string());
                    }
                    Fill::End => return Ok(Turn::End),
                },
                Next::Request(request, place) => self.request_came(sink, request, place)?,
                Next::Payload => self.payload_came(sink),
                Next::UnknownOp { id, op } => {
                    if !self.greeted {
                        return Err("the first frame is no hello".to_string());
                    }
                    info!(peer = self.peer, op, "unknown operation answered ENOSYS");
                    self.refuse(id, op, ENOSYS);
                }
            }
        }
    }

    /// Uses the bytes that have come.
    fn step(&mut self) -> Result<Next, FrameError> {
        let step = match &self.stage {
            Stage::Receiving {
                request, buffer, ..
            } => {
                let len = request.payload_len as usize;
                self.reader.next(&mut lock_buffer(buffer)[..len])
            }
            Stage::NoBuffer => return Ok(Next::Nothing),
            Stage::Head => self.reader.next(&mut []),
        };
        match step? {
            Step::More => Ok(Next::Nothing),
            Step::Payload => Ok(Next::Payload),
            Step::Challenge(_) => unreachable!("the reader is of requests"),
            Step::Frame(header, body) => match decode_request_shared(&header, body) {
                Ok((request, place)) => Ok(Next::Request(Box::new(request), place)),
                Err(FrameError::UnknownOp { id, op }) => {
                    self.reader.skip_payload();
                    Ok(Next::UnknownOp { id, op })
                }
                Err(error) => Err(error),
            },
        }
    }

    /// Reads once from the socket.
    fn fill(&mut self, now: Time) -> io::Result<Fill> {
        let (stream, beside) = (&self.stream, &mut self.beside);
        let receive = |pieces: &mut [IoSliceMut<'_>]| stream.receive_beside(pieces, beside);
        let result = match &self.stage {
            Stage::Receiving {
                request, buffer, ..
            } => {
                let len = request.payload_len as usize;
                let target = &mut lock_buffer(buffer)[..len];
                self.reader.fill(receive, target)
            }
            Stage::NoBuffer | Stage::Head => self.reader.fill(receive, &mut []),
        };
        match result {
            Ok(None) => Ok(Fill::End),
            Ok(Some((count, room))) => {
                self.heard = now;
                // A read stops at descriptors, and behind the last bytes comes the end.
                let more = count == room || self.hung_up || self.beside.ended;
                Ok(if more {
                    Fill::Some(count)
                } else {
                    Fill::Last(count)
                })
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => Ok(Fill::Blocked),
                ErrorKind::Interrupted => Ok(Fill::Some(0)),
                ErrorKind::ConnectionReset => Ok(Fill::End),
                _ => Err(error),
            },
        }
    }

    fn request_came(
        &mut self,
        sink: &mut RequestSink,
        request: Box<Request>,
        place: Option<u64>,
    ) -> Result<(), String> {
        if !self.greeted {
            let Op::Hello(hello) = &request.op else {
                return Err("the first frame is no hello".to_string());
            };
            self.greeted = true;
            if let (Some(challenge), Some(secret)) = (self.challenge.take(), &sink.policy.secret)
                && !secret.is_proved(&challenge, hello.client, &hello.proof)
            {
                info!(peer = self.peer, "hello refused: wrong secret");
                self.refuse(request.id, op_code(&request.op), Errno::EACCES);
                self.closing = Some("wrong secret".into());
                return Ok(());
            }
        }
        let own = match request.op {
            Op::ShareMemory { bytes } => {
                Some(self.memory_offered(bytes, sink.policy.shared_memory))
            }
            Op::RegisterMemory { .. } => Some(self.memory_registered(&request.op)),
            _ => None,
        };
        if let Some(result) = own {
            self.answer_here(request.id, op_code(&request.op), result);
            return Ok(());
        }
        if let Some(memory) = &mut self.rdma {
            memory.note_place(&request, place)?;
        }
        let shared = match place.filter(|_| self.rdma.is_none()) {
            Some(place) => Some((self.memory_of(&request, place)?, place)),
            None => None,
        };
        if place.is_none() && request.payload_len > 0 {
            self.stage = Stage::NoBuffer;
        }
        self.handed += 1;
        let came = Came { request, shared };
        sink.messages.push(ToLoop::Request(self.id, came));
        Ok(())
    }

    /// The memory that the client has offered, where a request's payload lies.
    fn memory_of(&self, request: &Request, place: u64) -> Result<Arc<SharedMemory>, &'static str> {
        let Some(memory) = &self.memory else {
            return Err("payload in memory that was not offered");
        };
        let Some((_, extents)) = request.op.data() else {
            return Err("shared memory with an operation that has none");
        };
        if !u32::try_from(extents.bytes()).is_ok_and(|len| memory.holds(place, len)) {
            return Err("payload outside its memory");
        }
        Ok(Arc::clone(memory))
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
            && let Some(place) = memory.take_place(request.id)
        {
            return memory.fetch(link, (request, place), (slot, buffer), now);
        }
        self.heard = now;
        self.reader.keep_payload();
        self.stage = Stage::Receiving {
            request,
            slot,
            buffer,
        };
        Ok(())
    }

    fn payload_came(&mut self, sink: &mut RequestSink) {
        let stage = std::mem::replace(&mut self.stage, Stage::Head);
        let Stage::Receiving { request, slot, .. } = stage else {
            unreachable!("payload is read into a buffer");
        };
        sink.messages.push(ToLoop::PayloadReceived {
            conn: self.id,
            request,
            slot,
        });
    }

    /// Maps what a client offers.
    fn memory_offered(&mut self, bytes: u64, wanted: bool) -> Result<Outcome, Status> {
        let mapped = match self.beside.descriptor.take() {
            Some(fd) if wanted && self.memory.is_none() => SharedMemory::map(&fd, bytes),
            _ => Err(ErrorKind::Unsupported.into()),
        };
        match mapped {
            Ok(memory) => {
                self.memory = Some(Arc::new(memory));
                Ok(Outcome::Done)
            }
            Err(error) => {
                info!(peer = self.peer, %error, "shared memory refused");
                Err(Status::Errno(Errno::EOPNOTSUPP.0))
            }
        }
    }

    /// Takes an offer of memory through libfabric.
    fn memory_registered(&mut self, op: &Op) -> Result<Outcome, Status> {
        let offered = ClientMemory::offered(op);
        let may = self.stream.link().is_some() && self.rdma.is_none();
        match offered.filter(|_| may) {
            Some(memory) => {
                self.rdma = Some(Box::new(memory));
                Ok(Outcome::Done)
            }
            None => Err(Status::Errno(Errno::EOPNOTSUPP.0)),
        }
    }

    /// Does what follows from moves of payload that are over. An error is the reason why the
    /// session ends.
    pub(super) fn take_moved(&mut self, sink: &mut RequestSink) -> Result<(), String> {
        let (Some(link), Some(memory)) = (self.stream.link(), &mut self.rdma) else {
            return Ok(());
        };
        while let Some(moving) = memory.moved(link)? {
            let message = match moving {
                Moving::In(request, slot) => ToLoop::PayloadReceived {
                    conn: self.id,
                    request,
                    slot,
                },
                Moving::Out(op, reply, slot) => {
                    self.outbox
                        .push(|into| encode_reply_shared(op, &reply, into), None);
                    ToLoop::Sent(slot)
                }
            };
            sink.messages.push(message);
        }
        Ok(())
    }

    /// Refuses a request that the forwarder does not see.
    fn refuse(&mut self, id: u64, op: u8, errno: Errno) {
        self.answer_here(id, op, Err(Status::Errno(errno.0)));
    }

    fn answer_here(&mut self, id: u64, op: u8, result: Result<Outcome, Status>) {
        let reply = Reply {
            id,
            seat: 0,
            generation: 0,
            epoch: 0,
            charged_ns: 0,
            result,
            payload_len: 0,
        };
        self.outbox
            .push(|into| encode_reply(op, &reply, into), None);
    }

    /// Puts a reply's payload into registered memory if the client wants it there; the reply
    /// follows. False: it is to be queued. An error is the reason why the session ends.
    pub(super) fn put(
        &mut self,
        now: Time,
        op: u8,
        reply: &Reply,
        body: &Body,
    ) -> Result<bool, String> {
        match (self.stream.link(), &mut self.rdma) {
            (Some(link), Some(memory)) => memory.put(link, (op, reply), body, now),
            _ => Ok(false),
        }
    }

    /// Queues a reply.
    pub(super) fn answer(&mut self, now: Time, op: u8, reply: &Reply, body: Body) {
        if self.outbox.is_empty() {
            self.spoke = now;
        }
        let own = self.memory.as_ref();
        match body {
            Body::Nothing => self.outbox.push(|into| encode_reply(op, reply, into), None),
            Body::Payload(payload) => self
                .outbox
                .push(|into| encode_reply(op, reply, into), Some(payload)),
            Body::Shared(memory) if own.is_some_and(|own| Arc::ptr_eq(own, &memory)) => self
                .outbox
                .push(|into| encode_reply_shared(op, reply, into), None),
            Body::Shared(_) => {
                // The client has come back since, and looks for the bytes at another place.
                let again = Reply {
                    result: Err(Status::TryLater),
                    payload_len: 0,
                    ..*reply
                };
                self.outbox
                    .push(|into| encode_reply(op, &again, into), None);
            }
        }
    }

    /// Sends what the socket takes; buffers that are done go to `sent`.
    pub(super) fn flush(
        &mut self,
        sink: &mut RequestSink,
        sent: &mut Vec<SlotId>,
    ) -> io::Result<()> {
        let traffic = &mut sink.traffic;
        let count = self.outbox.flush(&self.stream, sent, traffic)?;
        if count > 0 || self.outbox.is_empty() {
            self.spoke = sink.now;
        }
        Ok(())
    }

    /// Whether nothing is read because of this side.
    fn waits_for_us(&self) -> bool {
        matches!(self.stage, Stage::NoBuffer) || self.handed >= HANDED_MAX
    }

    /// Whether it would be read if something came.
    pub(super) fn is_read(&self) -> bool {
        !self.waits_for_us() && self.closing.is_none() && !self.outbox.is_full()
    }

    /// Whether the peer has read everything, or has had the time to. Sockets see to that alone.
    pub(super) fn is_heard(&mut self, now: Time) -> bool {
        let Some(link) = self.stream.link() else {
            return true;
        };
        let since = *self.last_words.get_or_insert(now);
        link.is_delivered() || now.since(since) > LAST_WORDS_NS
    }

    /// Whether every reply is on its way.
    pub(super) fn is_flushed(&self) -> bool {
        self.outbox.is_empty() && self.stream.is_delivered()
    }

    /// Why this connection should end now, if it keeps others waiting: it takes no replies, it
    /// stopped amid a frame, or it never said hello.
    pub(super) fn stalled(&self, now: Time, limit_ns: u64) -> Option<&'static str> {
        if self
            .last_words
            .is_some_and(|since| now.since(since) > LAST_WORDS_NS)
        {
            return Some("it was to end");
        }
        if !self.outbox.is_empty() && now.since(self.spoke) > limit_ns {
            return Some("it does not read its replies");
        }
        let moving = self.rdma.as_ref().and_then(|memory| memory.since());
        if moving.is_some_and(|since| now.since(since) > limit_ns) {
            return Some("its memory does not answer");
        }
        if self.waits_for_us() || now.since(self.heard) <= limit_ns {
            return None;
        }
        if self.reader.is_amid_frame() {
            return Some("it stopped amid a frame");
        }
        (!self.greeted).then_some("it never said hello")
    }
}
