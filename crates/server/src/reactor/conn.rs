//! One connection: what it has sent so far, what it is still to be sent, and when it last moved.

use super::input::{FrameReader, Step};
use super::output::Outbox;
use super::fabric::{ClientMemory, LAST_WORDS_NS};
use super::traffic::Traffic;
use super::transport::Stream;
use crate::storage::slots::lock_buffer;
use crate::storage::{SharedMemory, SlotBuffer};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use tidegate_forward::{ConnId, SlotId};
use tidegate_sched::Time;
use tidegate_wire::frame::FrameError;
use tidegate_wire::{Challenge, Request};

/// How far the request that is coming in has come.
pub enum Stage {
    /// Header and body are due.
    Head,
    /// The pool has no slot for it; nothing is read until it has.
    Waiting(Box<Request>),
    /// Its payload goes to a slot.
    Receiving {
        /// The request.
        request: Box<Request>,
        /// The slot.
        slot: SlotId,
        /// Its memory.
        buffer: SlotBuffer,
    },
    /// Its payload is of no use.
    Discarding(Box<Request>),
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
            reader: FrameReader::new(payload_max),
            memory: None,
            remote: None,
            outbox: Outbox::default(),
            challenge: None,
            greeted: false,
            closing: None,
            last_words: None,
            unheard: false,
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
            Stage::Receiving {
                request, buffer, ..
            } => {
                let len = request.payload_len as usize;
                self.reader.next(&mut lock_buffer(buffer)[..len])
            }
            Stage::Waiting(_) => Ok(Step::More),
            Stage::Head | Stage::Discarding(_) => self.reader.next(&mut []),
        }
    }

    /// Reads once from the socket.
    pub fn fill(&mut self, now: Time) -> io::Result<Fill> {
        let result = match &self.stage {
            Stage::Receiving {
                request, buffer, ..
            } => {
                let len = request.payload_len as usize;
                self.reader
                    .fill(&mut self.stream, &mut lock_buffer(buffer)[..len])
            }
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
        let waits = matches!(self.stage, Stage::Waiting(_));
        !waits && self.closing.is_none() && !self.outbox.is_full()
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
        let waits_for_us = matches!(self.stage, Stage::Waiting(_));
        if waits_for_us || now.since(self.heard) <= limit_ns {
            return None;
        }
        if self.reader.is_amid_frame() {
            return Some("it stopped amid a frame");
        }
        (!self.greeted).then_some("it never said hello")
    }
}
