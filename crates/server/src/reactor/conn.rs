//! One connection: what it has sent so far, what it is still to be sent, and when it last moved.

use super::admit::Due;
use super::fabric::{ClientMemory, LAST_WORDS_NS};
use super::input::{FrameReader, Step};
use super::output::{Body, Outbox};
use super::traffic::Traffic;
use super::transport::Stream;
use crate::storage::slots::lock_buffer;
use crate::storage::{SharedMemory, SlotBuffer};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use tidegate_forward::{ConnId, SlotId};
use tidegate_sched::Time;
use tidegate_wire::frame::FrameError;
use tidegate_wire::frame::{encode_reply, encode_reply_shared};
use tidegate_wire::{Challenge, Reply, Status};

/// Requests of a connection of a network thread that the core's thread may not have taken yet. A
/// connection with so many is not read: the pool has no slot for one of them, most likely.
pub const HANDED_MAX: u32 = 64;

/// How far the request that is coming in has come.
pub enum Stage {
    /// Header and body are due.
    Head,
    /// There is no slot for it, or none yet; nothing is read until there is.
    Waiting {
        /// Length of the payload that follows.
        payload_len: u32,
    },
    /// Its payload goes to a slot.
    Receiving {
        /// The slot's memory.
        buffer: SlotBuffer,
        /// Length of the payload.
        len: usize,
    },
    /// Its payload is of no use.
    Discarding,
}

/// What one read from the socket gave.
pub enum Fill {
    /// So many bytes.
    Some(usize),
    /// So many bytes, and there are no others now.
    Last(usize),
    /// None now.
    Blocked,
    /// The peer is gone.
    End,
}

/// One connection.
pub struct Conn {
    /// Its number.
    pub id: ConnId,
    /// The other end, for logs.
    pub peer: String,
    /// The socket.
    pub stream: Stream,
    /// Where the incoming request is.
    pub stage: Stage,
    /// The request of which something is due, on the core's own thread.
    pub due: Option<Due>,
    /// Requests that a network thread has handed to the core's and not heard of yet.
    pub handed: u32,
    /// The frames that come in.
    pub reader: FrameReader,
    /// The client's memory, if it has offered some.
    pub memory: Option<Arc<SharedMemory>>,
    /// The same through libfabric.
    pub remote: Option<Box<ClientMemory>>,
    /// Replies on their way out.
    pub outbox: Outbox,
    /// What the hello must prove the secret over; None when it need not.
    pub challenge: Option<Challenge>,
    /// Its first frame, the hello, has come.
    pub greeted: bool,
    /// Nothing more is read; it ends when the outbox is empty. The reason, for the log.
    pub closing: Option<Box<str>>,
    /// Since when its last words are out, where only the peer knows that they came.
    pub last_words: Option<Time>,
    /// It was not read because it does not read; it is when it has taken some replies.
    pub unheard: bool,
    /// Everything that the socket had was read; there will be an event when it has more.
    pub drained: bool,
    /// The peer sends nothing more; the end is still to be read.
    pub hung_up: bool,
    /// In the reactor's list of those with something to read.
    pub in_ready: bool,
    /// In the reactor's list of those with something to send.
    pub in_dirty: bool,
    /// When bytes last came.
    pub heard: Time,
    /// When bytes last went out, or the outbox was empty.
    pub spoke: Time,
}

impl Conn {
    /// A connection that has said nothing yet.
    pub fn new(id: ConnId, peer: String, stream: Stream, payload_max: u32, now: Time) -> Conn {
        Conn {
            id,
            peer,
            stream,
            stage: Stage::Head,
            due: None,
            handed: 0,
            reader: FrameReader::new(payload_max),
            memory: None,
            remote: None,
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

    /// Uses the bytes that have come.
    pub fn step(&mut self) -> Result<Step, FrameError> {
        match &self.stage {
            Stage::Receiving { buffer, len } => self.reader.next(&mut lock_buffer(buffer)[..*len]),
            Stage::Waiting { .. } => Ok(Step::More),
            Stage::Head | Stage::Discarding => self.reader.next(&mut []),
        }
    }

    /// The payload of the request that came last goes to a buffer, or nowhere.
    pub fn payload_due(&mut self, payload_len: u32, buffer: Option<SlotBuffer>) {
        match buffer {
            Some(buffer) => {
                self.reader.keep_payload(payload_len);
                let len = payload_len as usize;
                self.stage = Stage::Receiving { buffer, len };
            }
            None => {
                self.reader.discard_payload(payload_len);
                self.stage = Stage::Discarding;
            }
        }
    }

    /// Whether nothing is read because of this side.
    pub fn waits_for_us(&self) -> bool {
        matches!(self.stage, Stage::Waiting { .. }) || self.handed >= HANDED_MAX
    }

    /// Queues a reply.
    pub fn answer(&mut self, now: Time, op: u8, reply: &Reply, body: Body) {
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

    /// Reads once from the socket.
    pub fn fill(&mut self, now: Time) -> io::Result<Fill> {
        let result = match &self.stage {
            Stage::Receiving { buffer, len } => self
                .reader
                .fill(&mut self.stream, &mut lock_buffer(buffer)[..*len]),
            _ => self.reader.fill(&mut self.stream, &mut []),
        };
        match result {
            Ok(None) => Ok(Fill::End),
            Ok(Some((count, room))) => {
                self.heard = now;
                // A read stops at descriptors, and behind the last bytes comes the end.
                let more = count == room || self.hung_up || self.stream.ended_early();
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

    /// Sends what the socket takes; slots that are done go to `sent`.
    pub fn flush(
        &mut self,
        now: Time,
        sent: &mut Vec<SlotId>,
        traffic: &mut Traffic,
    ) -> io::Result<()> {
        let count = self.outbox.flush(&mut self.stream, sent, traffic)?;
        if count > 0 || self.outbox.is_empty() {
            self.spoke = now;
        }
        Ok(())
    }

    /// Whether it would be read if something came.
    pub fn is_read(&self) -> bool {
        !self.waits_for_us() && self.closing.is_none() && !self.outbox.is_full()
    }

    /// Whether every reply is on its way.
    pub fn is_flushed(&self) -> bool {
        self.outbox.is_empty() && self.stream.link().is_none_or(|link| link.is_delivered())
    }

    /// Why this connection should end now, if it keeps others waiting: it takes no replies, it
    /// stopped amid a frame, or it never said hello.
    pub fn stalled(&self, now: Time, limit_ns: u64) -> Option<&'static str> {
        if self
            .last_words
            .is_some_and(|since| now.since(since) > LAST_WORDS_NS)
        {
            return Some("it was to end");
        }
        if !self.outbox.is_empty() && now.since(self.spoke) > limit_ns {
            return Some("it does not read its replies");
        }
        let moving = self.remote.as_ref().and_then(|memory| memory.since());
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
