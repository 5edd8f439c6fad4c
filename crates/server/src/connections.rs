//! Connections of clients. Each connection belongs to one *shard*: an epoll instance with its
//! connections, which one thread serves.
//!
//! A shard receives and decodes requests, moves their payload, and sends replies. The forwarder's
//! loop decides what happens to a request. Shard and loop talk by two message types: [`ToLoop`] and
//! [`ToShard`]. Shard 0 runs in the loop's own thread, so its messages lie in plain vectors. The
//! messages of every other shard go through a locked mailbox, which each side empties once a pass.
//! [`Ports`] is the loop's side of all connections.

pub mod acceptor;
pub mod doors;
mod log_limit;
pub mod outbox;
mod rdma;
pub mod session;
pub mod shard;
pub mod site_secrets;
pub mod ticket_desk;
mod turns;
mod unknown_peers;

use crate::clock::Zero;
use crate::lock::lock;
use crate::storage::{SharedMemory, SlotBuffer};
use crate::thread_rights::{Work, keep_for};
use log_limit::LogLimit;
use outbox::Body;
use session::Session;
use shard::{Shard, ShardThread, WAKER};
use site_secrets::SiteSecrets;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use ticket_desk::TicketDesk;
use tidegate_forward::{ConnId, HostCounts, SlotId};
use tidegate_net::{Encryption, Incoming, Outgoing, Poller, Waker, mailbox};
use tidegate_sched::Time;
use tidegate_wire::{Grant, Reply, Request};
use turns::Turns;

/// How many requests of one connection may lie in the loop before it has taken them. At this count
/// the shard stops reading the connection: most likely the pool has no buffer for one of the
/// requests.
pub const HANDED_MAX: u32 = 64;

/// What the forwarder demands of a connection, what the client may offer on it, and how long the
/// connection may keep others waiting.
pub struct ConnectionPolicy {
    /// The site's secrets, of which clients of other nodes must prove a grant; None accepts every
    /// client.
    pub secrets: Option<SiteSecrets>,
    /// Gives tickets to users for whom munge vouches, where that is wanted.
    pub desk: Option<TicketDesk>,
    /// The least protection of what such a client and the forwarder send each other.
    pub encryption: Encryption,
    /// Whether the forwarder maps memory that clients offer to share.
    pub shared_memory: bool,
    /// How long the connection may keep others waiting.
    pub patience: Patience,
}

/// How long a connection may keep others waiting before the forwarder closes it.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// How long a connection may stop amid a frame, or not read its replies, in ns.
    pub stall_ns_max: u64,
    /// How long a new connection may take until its hello has come, in ns.
    pub hello_ns_max: u64,
    /// The least rate at which payload has to come, in bytes a second; 0: any.
    pub payload_rate_min: u64,
}

impl Patience {
    /// How long payload of this length may take to come, in ns; None: as long as some of it comes.
    pub fn payload_ns_max(&self, len: u32) -> Option<u64> {
        let ns = (u64::from(len) * 1_000_000_000).checked_div(self.payload_rate_min)?;
        Some(self.stall_ns_max.saturating_add(ns))
    }
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
    /// The client has proved, before its hello, what it may do.
    Proved {
        /// The connection.
        conn: ConnId,
        /// What it may do.
        grant: Grant,
        /// Whether its bytes go through a channel from now on.
        protected: bool,
    },
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
    /// The user of this connection has brought as many requests as one may in a turn. The loop
    /// answers with [`ToShard::Turn`].
    TurnOver(ConnId),
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
    /// The loop has taken all that users have brought: they may bring more.
    Turn,
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
    pub counts: HostCounts,
    /// Bounds the lines of the log about one peer.
    pub lines: LogLimit,
    /// The same for who has proved what, so that those lines leave room for trouble.
    pub proofs: LogLimit,
    /// What each user has brought in this turn.
    pub turns: Turns,
    /// The rules for all connections.
    pub policy: Arc<ConnectionPolicy>,
    /// Messages for the loop, oldest first.
    pub messages: Vec<ToLoop>,
}

/// All connections, and the shards that serve them: the loop's side. It knows which shard serves
/// which connection, owns the threads of the shards, and carries the messages between loop and
/// shards.
#[derive(Default)]
pub struct Ports {
    ports: BTreeMap<ConnId, Port>,
    /// The number of connections of shard 0.
    own: usize,
    /// Messages for shard 0.
    to_own: Vec<ToShard>,
    /// The other shards, from number 1 on, each with a thread of its own.
    threads: Vec<Thread>,
    /// How many shards have sent everything since the loop asked them to flush.
    flushed: usize,
    /// The waker of the loop's thread; None if there are no other threads.
    waker: Option<Arc<Waker>>,
}

struct Thread {
    outgoing: Outgoing<ToShard>,
    incoming: Incoming<ToLoop>,
    /// The number of connections that it serves.
    conns: usize,
    /// The thread's counts as they were at the end of its last pass.
    counts: Arc<Mutex<HostCounts>>,
    handle: Option<JoinHandle<io::Result<()>>>,
}

/// How the bytes that a read found get into a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyWay {
    /// As pages of the file, if that is faster.
    Pages,
    /// By a copy that the loop's thread encrypts where it lies.
    EncryptedHere,
    /// By a copy.
    Copied,
}

/// One connection.
struct Port {
    shard: usize,
    way: ReplyWay,
    /// Requests that the loop has taken and has not told the shard of yet.
    taken: u32,
    /// Whether the loop has cut the connection. Messages of it that still arrive are dropped.
    cut: bool,
}

impl Ports {
    /// Begins without connections. Starts a thread for each shard but the first; `waker` wakes the
    /// loop's thread. Fails if the system gives no thread or descriptor.
    pub fn start(
        shards: usize,
        waker: &Arc<mio::Waker>,
        policy: &Arc<ConnectionPolicy>,
        zero: Zero,
    ) -> io::Result<Ports> {
        let mut ports = Ports::default();
        for number in 1..shards {
            let own = ports.waker.get_or_insert_with(|| Waker::new(waker.clone()));
            let poller = Poller::new()?;
            let waker = Waker::new(Arc::new(mio::Waker::new(poller.registry(), WAKER)?));
            let (outgoing, theirs) = mailbox(waker.clone());
            let (their_outgoing, incoming) = mailbox(own.clone());
            let counts = Arc::<Mutex<HostCounts>>::default();
            let shard = ShardThread {
                shard: Shard::new(poller, policy.clone()),
                waker,
                incoming: theirs,
                outgoing: their_outgoing,
                counts: counts.clone(),
                zero,
            };
            let thread = std::thread::Builder::new().name(format!("shard.{number}"));
            ports.threads.push(Thread {
                outgoing,
                incoming,
                conns: 0,
                counts,
                handle: Some(thread.spawn(move || {
                    keep_for(Work::Network);
                    shard.run()
                })?),
            });
        }
        Ok(ports)
    }

    /// The waker of the loop's thread; None if no other thread of this process has to wake it.
    pub fn waker(&self) -> Option<&Waker> {
        self.waker.as_deref()
    }

    /// Whether the thread of a shard has handed over messages.
    pub fn has_mail(&self) -> bool {
        self.threads.iter().any(|thread| thread.incoming.is_any())
    }

    /// The number of connections of all shards.
    pub fn len(&self) -> usize {
        self.ports.len()
    }

    /// Adds the counts of the other threads to those of shard 0.
    pub fn add_counts(&self, sum: &mut HostCounts) {
        for thread in &self.threads {
            let other = lock(&thread.counts);
            sum.waits += other.waits;
            sum.wakes += other.wakes;
            sum.receives += other.receives;
            sum.receives_empty += other.receives_empty;
            sum.received_bytes += other.received_bytes;
            sum.sends += other.sends;
            sum.sends_blocked += other.sends_blocked;
            sum.sent_bytes += other.sent_bytes;
            sum.spliced_bytes += other.spliced_bytes;
            sum.copied_bytes += other.copied_bytes;
        }
    }

    /// Gives a new connection to the shard that has the fewest. A connection through libfabric goes
    /// to shard 0, whose thread alone registers memory with libfabric.
    pub fn serve(&mut self, session: Box<Session>) {
        let is_socket = session.stream.link().is_none();
        let least = (0..self.threads.len()).min_by_key(|at| self.threads[*at].conns);
        let least = least.filter(|at| is_socket && self.threads[*at].conns < self.own);
        let shard = least.map_or(0, |at| at + 1);
        let port = Port {
            shard,
            way: match is_socket {
                true => ReplyWay::Pages,
                false => ReplyWay::Copied,
            },
            taken: 0,
            cut: false,
        };
        self.ports.insert(session.id, port);
        *self.conns_of(shard) += 1;
        self.push(shard, ToShard::Serve(session));
    }

    /// Notes that a connection has ended. False if that was known already.
    pub fn closed(&mut self, conn: ConnId) -> bool {
        let Some(port) = self.ports.remove(&conn) else {
            return false;
        };
        *self.conns_of(port.shard) -= 1;
        true
    }

    /// Notes that the bytes of a connection go through a channel, which copies them in any case.
    pub fn protected(&mut self, conn: ConnId) {
        if let Some(port) = self.ports.get_mut(&conn) {
            port.way = match port.shard {
                0 => ReplyWay::EncryptedHere,
                _ => ReplyWay::Copied,
            };
        }
    }

    /// How the bytes of reads get into a connection. None if the loop takes no more requests of the
    /// connection, because it has ended or was cut.
    pub fn hears(&self, conn: ConnId) -> Option<ReplyWay> {
        let port = self.ports.get(&conn).filter(|port| !port.cut)?;
        Some(port.way)
    }

    /// Notes that the loop has taken a request of a connection, so that its shard learns of it.
    pub fn taken(&mut self, conn: ConnId) {
        let Some(port) = self.ports.get_mut(&conn) else {
            return;
        };
        port.taken += 1;
        // Often enough that the shard hardly ever waits for this message, seldom enough to cost
        // nothing.
        if port.taken >= HANDED_MAX / 2 {
            let (taken, shard) = (std::mem::take(&mut port.taken), port.shard);
            self.push(shard, ToShard::Taken(conn, taken));
        }
    }

    /// Ends a connection at once; `reason` is for the log.
    pub fn cut(&mut self, conn: ConnId, reason: Box<str>) {
        if let Some(port) = self.ports.get_mut(&conn) {
            port.cut = true;
        }
        self.tell(conn, ToShard::Cut(conn, reason));
    }

    /// Sends a message to the shard of a connection. Returns the message if the connection is gone.
    pub fn tell(&mut self, conn: ConnId, message: ToShard) -> Option<ToShard> {
        match self.ports.get(&conn) {
            Some(port) => {
                self.push(port.shard, message);
                None
            }
            None => Some(message),
        }
    }

    /// Asks all shards to report when they have nothing left to send.
    pub fn flush(&mut self) {
        self.flushed = 0;
        (0..=self.threads.len()).for_each(|shard| self.push(shard, ToShard::Flush));
    }

    /// Notes that one shard has nothing left to send.
    pub fn flushed(&mut self) {
        self.flushed += 1;
    }

    /// Whether all shards have reported that they have nothing left to send.
    pub fn are_flushed(&self) -> bool {
        self.flushed > self.threads.len()
    }

    /// The messages for shard 0.
    pub fn for_own(&mut self) -> &mut Vec<ToShard> {
        &mut self.to_own
    }

    /// Hands the waiting messages over to the threads of the other shards.
    pub fn hand_over(&mut self) {
        for thread in &mut self.threads {
            thread.outgoing.hand_over();
        }
    }

    /// How many threads serve connections beside the loop's.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Takes what the thread of a shard has handed over; `into` must be empty. An error means that
    /// this thread has ended, and is the thread's own.
    pub fn take(&mut self, thread: usize, into: &mut Vec<ToLoop>) -> io::Result<()> {
        let thread = &mut self.threads[thread];
        let ended = thread.incoming.is_ended();
        thread.incoming.take(into);
        match ended {
            true => Err(thread.failed()),
            false => Ok(()),
        }
    }

    fn push(&mut self, shard: usize, message: ToShard) {
        match shard {
            0 => self.to_own.push(message),
            number => self.threads[number - 1].outgoing.push(message),
        }
    }

    fn conns_of(&mut self, shard: usize) -> &mut usize {
        match shard {
            0 => &mut self.own,
            number => &mut self.threads[number - 1].conns,
        }
    }
}

impl Thread {
    /// Why the thread has ended. A panic of the thread is raised again here.
    fn failed(&mut self) -> io::Error {
        let joined = self.handle.take().map(JoinHandle::join);
        match joined {
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            Some(Ok(Err(error))) => error,
            Some(Ok(Ok(()))) | None => io::Error::other("a thread of connections has ended"),
        }
    }
}

impl Drop for Ports {
    /// Ends the threads, which wait for nothing else than messages and sockets.
    fn drop(&mut self) {
        for thread in &mut self.threads {
            thread.outgoing.push(ToShard::End);
            thread.outgoing.hand_over();
        }
        for thread in &mut self.threads {
            // A panic of the thread has already been reported.
            let _ = thread.handle.take().map(JoinHandle::join);
        }
    }
}
