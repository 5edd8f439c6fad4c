//! Connections of clients. Each lives in a *shard*: an epoll and its connections, served by one
//! thread.
//!
//! A shard receives, decodes and sends, and has the payload of its connections in its own hands.
//! The forwarder's loop hears of it, and tells it what to do, by messages of one protocol,
//! [`ToLoop`] and [`ToShard`]. Shard 0 runs in the loop's own thread, where both lie in plain
//! vectors; to and from the others they go through a locked mailbox, once a pass.

pub mod acceptor;
pub mod outbox;
pub mod ports;
mod rdma;
pub mod session;
pub mod shard;
pub mod traffic;

use crate::storage::{SharedMemory, SlotBuffer};
use outbox::Body;
use session::Session;
use std::sync::Arc;
use tidegate_forward::{ConnId, SlotId};
use tidegate_net::Secret;
use tidegate_sched::Time;
use tidegate_wire::{Reply, Request};
use traffic::Traffic;

/// Requests of a connection that the loop may not have taken yet. A connection with so many is not
/// read: there is no memory for one of them, most likely.
pub const HANDED_MAX: u32 = 64;

/// What a connection must prove, what it may offer, and how long it may keep others waiting.
pub struct ConnectionPolicy {
    /// For TCP connections; None accepts any.
    pub secret: Option<Secret>,
    /// Memory that clients offer is taken.
    pub shared_memory: bool,
    /// A connection that keeps others waiting this long is closed.
    pub stall_ns_max: u64,
}

/// A request whose header and body have come.
pub struct Came {
    /// The request.
    pub request: Box<Request>,
    /// Its payload lies, or that of its reply shall lie, in this memory of the client's at this
    /// place.
    pub shared: Option<(Arc<SharedMemory>, u64)>,
}

impl Came {
    /// Whether it has payload, which is read once there is a buffer for it.
    pub fn payload_follows(&self) -> bool {
        self.request.payload_len > 0 && self.shared.is_none()
    }
}

/// From a shard to the forwarder's loop.
pub enum ToLoop {
    /// Header and body of a request have come. If its payload follows, the shard reads that once it
    /// is given a buffer ([`ToShard::Payload`]).
    Request(ConnId, Came),
    /// The payload of a request is in its buffer.
    PayloadReceived {
        /// On this connection.
        conn: ConnId,
        /// The request.
        request: Box<Request>,
        /// The buffer.
        slot: SlotId,
    },
    /// A reply's bytes are out, or will never be.
    Sent(SlotId),
    /// The connection has ended. Its shard holds nothing of it any more.
    Closed(ConnId),
    /// Everything is sent.
    Flushed,
}

/// From the forwarder's loop to a shard.
pub enum ToShard {
    /// A new connection.
    Serve(Box<Session>),
    /// The loop has taken so many more requests of the connection.
    Taken(ConnId, u32),
    /// The payload of a request goes into this buffer; say [`ToLoop::PayloadReceived`] then.
    Payload {
        /// On this connection.
        conn: ConnId,
        /// The request.
        request: Box<Request>,
        /// The buffer's number.
        slot: SlotId,
        /// Its memory.
        buffer: SlotBuffer,
    },
    /// A reply.
    Answer {
        /// Where to.
        conn: ConnId,
        /// Op code of the request.
        op: u8,
        /// The reply.
        reply: Reply,
        /// Its payload.
        body: Body,
    },
    /// The connection ends when what is queued on it is sent.
    Close(ConnId, Box<str>),
    /// The connection ends at once.
    Cut(ConnId, Box<str>),
    /// Say [`ToLoop::Flushed`] when nothing is left to send.
    Flush,
    /// End the thread.
    End,
}

/// What the connections of a shard have in common: the time, the counts, and the messages that the
/// forwarder's loop has not taken yet.
pub struct RequestSink {
    /// The time of this pass.
    pub now: Time,
    /// What is counted.
    pub traffic: Traffic,
    /// For all connections.
    pub policy: Arc<ConnectionPolicy>,
    /// For the loop, in order.
    pub messages: Vec<ToLoop>,
}
