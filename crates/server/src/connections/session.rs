//! One connection of a client. It decodes the bytes that arrive into requests for the forwarder's
//! loop, queues replies, and keeps the times by which a stalled connection is recognised.

mod handshake;
mod patience;

use super::doors::Whose;
use super::outbox::{Body, Outbox};
use super::rdma::{ClientMemory, Moving};
use super::{Came, HANDED_MAX, RequestSink, ToLoop};
use crate::storage::slots::lock_buffer;
use crate::storage::{SharedMemory, SlotBuffer};
use handshake::Proof;
pub(super) use handshake::TICKET_ENDED;
use std::io::{self, ErrorKind, IoSliceMut};
use std::sync::Arc;
use tidegate_forward::{ConnId, Errno, SlotId};
use tidegate_net::{Beside, Confirmation, FrameReader, Greeting, SiteId, Step, Stream};
use tidegate_sched::Time;
use tidegate_wire::frame::{FrameError, decode_request_shared, op_code};
use tidegate_wire::frame::{encode_reply, encode_reply_shared};
use tidegate_wire::{Grant, Lent, Op, Outcome, Reply, Request, Status};
use tracing::info;

/// How many bytes one connection may bring in one pass before the others have their turn.
const PASS_BYTES_MAX: usize = 1 << 20;

const ENOSYS: Errno = Errno(38);
/// How long a connection that ends stays open, in ns, so that the peer can read its last reply.
const LAST_WORDS_NS: u64 = 1_000_000_000;

/// How much of the incoming request has arrived.
enum Stage {
    /// Its header and body are not complete.
    Head,
    /// Its payload follows, and it has no payload buffer yet. The shard reads nothing until it has.
    NoBuffer,
    /// Its payload is being read into a payload buffer.
    Receiving {
        request: Box<Request>,
        slot: SlotId,
        buffer: SlotBuffer,
        /// When it began.
        since: Time,
    },
}

/// What the bytes that have arrived amount to.
enum Next {
    /// Nothing complete yet.
    Nothing,
    /// What a client of another node says first.
    Greeting(Greeting),
    /// A request, with the offset of its payload in shared memory, if it names one. Otherwise its
    /// payload follows on the socket, if it has any.
    Request(Box<Request>, Option<u64>),
    /// A well-formed frame of an unknown operation.
    UnknownOp { id: u64, op: u8 },
    /// The payload of the last request is complete.
    Payload,
}

/// The result of one read from the socket.
enum Fill {
    /// This many bytes.
    Some(usize),
    /// This many bytes, and the socket is empty now.
    Last(usize),
    /// The socket was empty.
    Blocked,
    /// The peer has closed the connection.
    End,
}

/// How reading a connection ended.
pub enum Turn {
    /// The connection may have more to read.
    Again,
    /// The same, but its user's turn is over.
    Over,
    /// There is nothing to read until the poller or the forwarder's loop says so.
    Later,
    /// The peer has closed the connection.
    End,
}

/// One connection of a client.
pub struct Session {
    /// The number of the connection.
    pub id: ConnId,
    /// The peer's name, for logs.
    pub peer: String,
    /// Whose connection it is, as far as that is known before its hello.
    pub whose: Whose,
    /// The socket.
    pub stream: Stream,
    /// Descriptors that the peer has sent on the socket.
    beside: Beside,
    /// How much of the incoming request has arrived.
    stage: Stage,
    /// Requests that the forwarder's loop has received and not yet taken.
    pub(super) handed: u32,
    /// Bytes that the connection has brought in this pass.
    turn_bytes: usize,
    /// The frames that arrive.
    pub(super) reader: FrameReader,
    /// The memory that the client shares, if it has offered any.
    memory: Option<Arc<SharedMemory>>,
    /// The memory that the client has registered with libfabric, if it has offered any.
    pub(super) rdma: Option<Box<ClientMemory>>,
    /// Replies that wait to be sent.
    pub outbox: Outbox,
    /// Whether the client must prove a grant before its hello, and has not.
    pub unproved: bool,
    /// What it has proved.
    proof: Option<Proof>,
    /// What the client must confirm before its first frame, and what it has proved then.
    unconfirmed: Option<Box<(Confirmation, SiteId, Grant)>>,
    /// Whether the first frame, the hello, has arrived.
    greeted: bool,
    /// The user with whose turns its requests count; None if it may speak for others.
    turns_of: Option<u32>,
    /// Set once the connection is to end: nothing more is read, and the connection ends when the
    /// outbox is empty. The text is the reason, for the log.
    pub(super) closing: Option<Box<str>>,
    /// When the last reply was sent on a connection that is to end, where this side cannot learn
    /// that the peer has read it.
    pub(super) last_words: Option<Time>,
    /// Set while the shard does not read the connection because its outbox is full. The shard reads
    /// on when the client has taken some replies.
    pub(super) unheard: bool,
    /// Whether the socket was read until it was empty. The poller reports when more has arrived.
    pub(super) drained: bool,
    /// Whether the peer has ended its sending side, and the shard has not read that end yet.
    pub(super) hung_up: bool,
    /// Whether the connection is in the shard's list of those with something to read.
    pub(super) in_ready: bool,
    /// Whether the connection is in the shard's list of those with something to send.
    pub(super) in_dirty: bool,
    /// When it was accepted.
    came: Time,
    /// When bytes were last received, or a record began to arrive, of whose bytes nothing is given
    /// on before it has arrived whole.
    heard: Time,
    /// Whether a record has begun to arrive.
    amid_record: bool,
    /// When bytes were last sent, or the outbox was last empty.
    spoke: Time,
}

impl Session {
    /// A connection from which nothing has been received yet.
    pub fn new(
        id: ConnId,
        (peer, whose): (String, Whose),
        stream: Stream,
        reader: FrameReader,
        now: Time,
    ) -> Session {
        Session {
            id,
            peer,
            whose,
            stream,
            beside: Beside::default(),
            stage: Stage::Head,
            handed: 0,
            turn_bytes: 0,
            reader,
            memory: None,
            rdma: None,
            outbox: Outbox::default(),
            unproved: false,
            proof: None,
            unconfirmed: None,
            greeted: false,
            turns_of: None,
            closing: None,
            last_words: None,
            unheard: false,
            drained: false,
            hung_up: false,
            in_ready: false,
            in_dirty: false,
            came: now,
            heard: now,
            amid_record: false,
            spoke: now,
        }
    }

    /// Notes that the shard serves the connection from `now` on.
    pub(super) fn begin(&mut self, now: Time) {
        (self.heard, self.spoke) = (now, now);
    }

    /// Begins a new pass, in which the connection may bring as much as any other.
    pub(super) fn begin_turn(&mut self) {
        self.turn_bytes = 0;
    }

    /// Whether the connection has brought in this pass as many bytes as it may.
    pub(super) fn has_had_its_turn(&self) -> bool {
        self.turn_bytes >= PASS_BYTES_MAX
    }

    /// Reads and decodes what the client sends. An error says why the session must end.
    pub(super) fn receive(&mut self, sink: &mut RequestSink) -> Result<Turn, String> {
        loop {
            if self.closing.is_some() || self.waits_for_us() {
                return Ok(Turn::Later);
            }
            if self.outbox.is_full() {
                self.unheard = true;
                return Ok(Turn::Later);
            }
            if sink.turns.is_over(self.turns_of) {
                return Ok(Turn::Over);
            }
            match self.step().map_err(|error| error.to_string())? {
                Next::Nothing if self.drained => return Ok(Turn::Later),
                Next::Nothing if self.has_had_its_turn() => return Ok(Turn::Again),
                Next::Nothing => match self.fill(sink.now).map_err(|error| error.to_string())? {
                    fill @ (Fill::Some(count) | Fill::Last(count)) => {
                        sink.counts.receives += 1;
                        sink.counts.received_bytes += count as u64;
                        self.turn_bytes += count;
                        self.drained = matches!(fill, Fill::Last(_));
                    }
                    Fill::Blocked => {
                        sink.counts.receives_empty += 1;
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
                Next::Greeting(greeting) => self.greeting_came(sink, &greeting)?,
                Next::UnknownOp { id, op } => {
                    if !self.greeted {
                        return Err("the first frame is no hello".to_string());
                    }
                    if sink.lines.has_room(&self.whose, sink.now) {
                        info!(peer = self.peer, op, "unknown operation answered ENOSYS");
                    }
                    sink.turns.count(self.turns_of);
                    self.refuse(id, op, ENOSYS);
                }
            }
        }
    }

    /// Decodes the bytes that have arrived.
    fn step(&mut self) -> Result<Next, FrameError> {
        let step = match &self.stage {
            Stage::Receiving {
                request, buffer, ..
            } => {
                let len = request.payload_len as usize;
                self.reader.next(&mut lock_buffer(buffer).bytes()[..len])
            }
            Stage::NoBuffer => return Ok(Next::Nothing),
            Stage::Head => self.reader.next(&mut []),
        };
        match step? {
            Step::More => Ok(Next::Nothing),
            Step::Payload => Ok(Next::Payload),
            Step::Greeting(greeting) => Ok(Next::Greeting(greeting)),
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
                let mut buffer = lock_buffer(buffer);
                self.reader.fill(receive, &mut buffer.bytes()[..len])
            }
            Stage::NoBuffer | Stage::Head => self.reader.fill(receive, &mut []),
        };
        let amid_record = self.stream.is_amid_record();
        if amid_record && !self.amid_record {
            self.heard = now;
        }
        self.amid_record = amid_record;
        match result {
            Ok(None) => Ok(Fill::End),
            Ok(Some((count, room))) => {
                self.heard = now;
                // A read ends where descriptors arrive, and the end of the stream follows the last
                // bytes.
                let more = self.stream.may_have_more(count, room);
                let more = more || self.hung_up || self.beside.ended;
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
        if !self.greeted && !self.hello_came(&request.op)? {
            return Ok(());
        }
        sink.turns.count(self.turns_of);
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

    /// The client's shared memory, if the request's payload fits into it at `place`.
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

    /// Takes the buffer that the loop gives for the payload of a request. Fetches the payload from
    /// registered memory, or reads it from the socket. An error says why the session must end.
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
            since: now,
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

    /// Maps the memory that a client offers to share.
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

    /// Takes a client's offer of memory that is registered with libfabric.
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

    /// Continues the requests and replies whose payload libfabric has moved. An error says why the
    /// session must end.
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

    /// Answers a request with an error without handing it to the forwarder.
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
            lent: Lent::default(),
        };
        self.outbox
            .push(|into| encode_reply(op, &reply, into), None);
    }

    /// Begins to put a reply's payload into registered memory if the client wants it there; the
    /// reply is sent after that. False if the caller has to queue the reply. An error says why the
    /// session must end.
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

    /// Queues a reply with its payload.
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
                // The client has connected again since, and expects the bytes at another place.
                let again = Reply {
                    result: Err(Status::TryLater),
                    payload_len: 0,
                    lent: Lent::default(),
                    ..*reply
                };
                self.outbox
                    .push(|into| encode_reply(op, &again, into), None);
            }
        }
    }

    /// Sends as much as the socket takes. Adds to `sent` the payload buffers that are not needed
    /// any more.
    pub(super) fn flush(
        &mut self,
        sink: &mut RequestSink,
        sent: &mut Vec<SlotId>,
    ) -> io::Result<()> {
        let counts = &mut sink.counts;
        let count = self.outbox.flush(&self.stream, sent, counts)?;
        if count > 0 || self.outbox.is_empty() {
            self.spoke = sink.now;
        }
        if !self.outbox.is_empty() {
            self.stream.found_no_room();
        }
        Ok(())
    }

    /// Whether this side is the reason that nothing is read from the connection.
    fn waits_for_us(&self) -> bool {
        matches!(self.stage, Stage::NoBuffer) || self.handed >= HANDED_MAX
    }

    /// Whether the shard would read the connection if bytes arrived.
    pub(super) fn is_read(&self) -> bool {
        !self.waits_for_us() && self.closing.is_none() && !self.outbox.is_full()
    }

    /// Whether the peer has read everything, or has had the time to. A socket delivers what was
    /// sent even after it is closed, so this is true for sockets at once.
    pub(super) fn is_heard(&mut self, now: Time) -> bool {
        let Some(link) = self.stream.link() else {
            return true;
        };
        let since = *self.last_words.get_or_insert(now);
        link.is_delivered() || now.since(since) > LAST_WORDS_NS
    }

    /// Whether every reply has been handed to the system.
    pub(super) fn is_flushed(&self) -> bool {
        self.outbox.is_empty() && self.stream.is_delivered()
    }
}
