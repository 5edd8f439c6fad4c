//! Connections of clients. Each connection belongs to one *shard*: an epoll instance with its
//! connections, which one thread serves.
//!
//! A shard receives and decodes requests, moves their payload, and sends replies. The forwarder's
//! loop decides what happens to a request. Shard and loop talk by two message types: [`ToLoop`] and
//! [`ToShard`]. Shard 0 runs in the loop's own thread, so its messages lie in plain vectors. The
//! messages of every other shard go through a locked mailbox, which each side empties once a pass.

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

/// How many requests of one connection may lie in the loop before it has taken them. At this count
/// the shard stops reading the connection: most likely the pool has no buffer for one of the
/// requests.
pub const HANDED_MAX: u32 = 64;

/// What the forwarder demands of a connection, what the client may offer on it, and how long the
/// connection may keep others waiting.
pub struct ConnectionPolicy {
    /// The secret that TCP clients must prove they know; None accepts every client.
    pub secret: Option<Secret>,
    /// Whether the forwarder maps memory that clients offer to share.
    pub shared_memory: bool,
    /// How long a connection may keep others waiting, in ns, before the forwarder closes it.
    pub stall_ns_max: u64,
}

/// A request whose header and body have arrived. Its payload may still have to be read.
pub struct Came {
    /// The decoded request.
    pub request: Box<Request>,
    /// The client's shared memory and the offset in it, if the payload of the request or of its
    /// reply goes through that memory.
    pub shared: Option<(Arc<SharedMemory>, u64)>,
}

impl Came {
    /// Whether the client sends payload on the socket, which the shard reads once it has a buffer.
    pub fn payload_follows(&self) -> bool {
        self.request.payload_len > 0 && self.shared.is_none()
    }
}

/// What a shard tells the forwarder's loop.
pub enum ToLoop {
    /// Header and body of a request have arrived. If payload follows, the shard reads it after the
    /// loop has given it a buffer by [`ToShard::Payload`].
    Request(ConnId, Came),
    /// The shard has received the payload of a request into its payload buffer.
    PayloadReceived {
        /// The connection of the request.
        conn: ConnId,
        /// The request that the loop sent with the buffer.
        request: Box<Request>,
        /// The payload buffer that was filled.
        slot: SlotId,
    },
    /// The shard needs this payload buffer no longer: the reply was sent, or its connection has
    /// ended.
    Sent(SlotId),
    /// The connection has ended. Its shard holds none of its requests or payload buffers any more.
    Closed(ConnId),
    /// The shard has sent everything that was queued: its reply to [`ToShard::Flush`].
    Flushed,
}

/// What the forwarder's loop tells a shard.
pub enum ToShard {
    /// Serve this new connection from now on.
    Serve(Box<Session>),
    /// The loop has taken this many more requests of the connection, so the shard may read on.
    Taken(ConnId, u32),
    /// Read the payload of a request into this buffer, then send [`ToLoop::PayloadReceived`].
    Payload {
        /// The connection of the request.
        conn: ConnId,
        /// The request that waits for its payload.
        request: Box<Request>,
        /// The number of the payload buffer.
        slot: SlotId,
        /// The memory of the payload buffer.
        buffer: SlotBuffer,
    },
    /// Send a reply.
    Answer {
        /// The connection on which the request came.
        conn: ConnId,
        /// The operation code of the request, which says how the reply is encoded.
        op: u8,
        /// The reply.
        reply: Reply,
        /// The payload that follows the reply, if any.
        body: Body,
    },
    /// End the connection, for this reason, once its queued replies are sent.
    Close(ConnId, Box<str>),
    /// End the connection at once, for this reason.
    Cut(ConnId, Box<str>),
    /// Send [`ToLoop::Flushed`] once no connection has anything left to send.
    Flush,
    /// End the shard's thread.
    End,
}

/// What the connections of a shard share: the time, the counts, and the messages that the
/// forwarder's loop has not taken yet.
pub struct RequestSink {
    /// The time at which this pass began.
    pub now: Time,
    /// Counts of the shard's system calls and copies.
    pub traffic: Traffic,
    /// The rules for all connections.
    pub policy: Arc<ConnectionPolicy>,
    /// Messages for the loop, oldest first.
    pub messages: Vec<ToLoop>,
}
