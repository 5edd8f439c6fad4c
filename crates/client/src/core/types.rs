//! What the host and the core say to each other.

use crate::collective::Collective;
use crate::core::{Answer, Errno};
use crate::wire::{Caller, ExportId, Op, Pipeline, Reply, Request};
use bytes::Bytes;

/// A call, numbered by the host and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// Who the client is, and its bounds.
#[derive(Clone, Debug)]
pub struct CoreOptions {
    /// Random id of the client, never 0 and never used by another client.
    pub client: u64,
    /// User whom the client serves.
    pub uid: u32,
    /// Group of that user.
    pub gid: u32,
    /// Name for the forwarders' logs, at most 255 bytes.
    pub name: Box<[u8]>,
    /// Number of forwarders, at least 1; forwarder `i` owns the seats `i` modulo this number.
    pub forwarders: usize,
    /// Which export they serve; None: that of the first one which grants a session.
    pub export: Option<ExportId>,
    /// Only asks all forwarders who they are ([`Core::roll`](super::Core::roll)), and opens no
    /// session.
    pub asks: bool,
    /// Largest payload of one frame that the client wants, 4096 to
    /// [`PAYLOAD_LIMIT`](crate::wire::PAYLOAD_LIMIT).
    pub payload_max: u32,
    /// Connections of each session at most.
    pub connections: u16,
    /// How calls move that are longer than a chunk; a forwarder may agree to less.
    pub pipeline: Pipeline,
    /// Blocks of one operation that lie on the same seat travel in one request (list I/O), as far
    /// as they fit a chunk. Otherwise each stripe block is a request of its own.
    pub merge_blocks: bool,
    /// Names of files remembered at most; the oldest without children and opens are forgotten
    /// first. A file whose name is not remembered is ESTALE when a forwarder does not find it.
    pub names_max: usize,
}

/// What a call asks.
///
/// The host bounds how many calls, and how many bytes in them, there are at once: the core keeps
/// each until it is done.
#[derive(Clone, Debug)]
pub struct Call {
    /// The operation. A read or write may have extents of any length, also none: they are split
    /// over the seats. [`Op::Readdir`] is cut to what fits a reply. Session operations other than
    /// [`Op::Status`], [`Op::SetPolicy`], [`Op::SetShares`] and [`Op::Drain`], as well as
    /// [`Op::Reach`], [`Op::Application`], [`Op::CancelLock`] and [`Op::ReclaimDone`], are the
    /// core's own and answered EINVAL.
    pub op: Op,
    /// On whose behalf; None: the peer itself.
    pub caller: Option<Caller>,
    /// Application that it belongs to.
    pub app: u64,
    /// Bytes to write or append; exactly the sum of a write's extents. An append longer than
    /// [`Core::payload_max`](super::Core::payload_max) is EMSGSIZE.
    pub payload: Bytes,
    /// When it ends in ETIMEDOUT, on the clock of `now_ns`; None: never.
    pub deadline_ns: Option<u64>,
    /// Which forwarder to ask; only for [`Op::Status`], [`Op::SetPolicy`], [`Op::SetShares`] and
    /// [`Op::Drain`], which end in ECONNREFUSED if it cannot be reached.
    pub forwarder: usize,
    /// What it is a part of; None: an operation of its own.
    pub operation: Option<Operation>,
    /// What the operation is a part of, over many clients; not asked where `operation` is given.
    pub collective: Option<Collective>,
}

/// What several calls are to schedulers: one operation. From [`Core::operation`].
///
/// [`Core::operation`]: super::Core::operation
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub(super) number: u64,
    pub(super) stamp_ns: u64,
    pub(super) bytes: u64,
    pub(super) bytes_max: u64,
    pub(super) shuffle_us: u32,
    pub(super) shuffle_max_us: u32,
    pub(super) shuffle_rank: u16,
}

/// Why a connection ended or did not come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Nobody listens there.
    Refused,
    /// It was closed, or cut.
    Reset,
    /// The peer broke the protocol.
    Broken,
}

/// Who an application is, for the forwarders' rules and reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Application {
    /// Its name, whose hash is its id. Forwarders are not told one of more than 255 bytes.
    pub name: String,
    /// The batch system's job, empty if there is none; cut to 255 bytes.
    pub job: String,
    /// The project or account that the job counts for, empty if there is none; cut to 255 bytes.
    pub project: String,
    /// The user whose it is; None: the one whom the client serves.
    pub caller: Option<Caller>,
}

/// What happened outside.
#[derive(Clone, Debug)]
pub enum Input {
    /// Somebody calls; answered by one [`Output::Done`].
    Call {
        /// The call's number.
        id: CallId,
        /// What is asked.
        call: Call,
    },
    /// The caller wants to wait no longer: the call ends with EINTR, unless it has ended.
    Cancel {
        /// Which.
        id: CallId,
    },
    /// An [`Output::Connect`] has succeeded.
    Connected {
        /// Where.
        forwarder: usize,
        /// What the hello shall carry: HMAC over the challenge, or nothing.
        proof: Box<[u8]>,
    },
    /// An [`Output::Connect`] has failed, or the connection ended by itself. Not said after
    /// [`Output::Disconnect`].
    ConnectionLost {
        /// Where.
        forwarder: usize,
        /// Why.
        why: Lost,
    },
    /// A whole reply has come on the present connection.
    Received {
        /// From where.
        forwarder: usize,
        /// The reply.
        reply: Reply,
        /// Its payload.
        payload: Bytes,
    },
    /// An application's name: forwarders hear of it before the application's next request.
    Application {
        /// Its id, as calls carry it.
        app: u64,
        /// Who it is.
        application: Application,
    },
    /// The host knows the file no longer: its name need not be remembered.
    Forget {
        /// The file.
        handle: crate::wire::Handle,
    },
    /// End: calls end with EIO, sessions with goodbye.
    Shutdown,
}

/// What the host should do.
#[derive(Debug)]
pub enum Output {
    /// Open a connection; answered by one [`Input::Connected`] or [`Input::ConnectionLost`].
    Connect {
        /// Where to.
        forwarder: usize,
    },
    /// Close the connection, or give up opening it; nothing of it may be told afterwards.
    Disconnect {
        /// Where.
        forwarder: usize,
    },
    /// Several requests are under way: further connections of the session are of use. Said once of
    /// each session; see [`Core::join`](super::Core::join).
    Join {
        /// Where to.
        forwarder: usize,
        /// How many connections are of use, with the first one.
        connections: u16,
    },
    /// Send a request on the session's connection, in the order given.
    Send {
        /// Where to.
        forwarder: usize,
        /// Which of several connections, modulo their number; 0, the first one, wherever the order
        /// matters.
        connection: u64,
        /// The request.
        request: Request,
        /// Its payload: pieces of the caller's bytes, not copied.
        payload: Vec<Bytes>,
    },
    /// A call has ended.
    Done {
        /// Which.
        id: CallId,
        /// What came of it.
        result: Result<Answer, Errno>,
    },
    /// A forwarder has granted a session.
    Opened {
        /// Which.
        forwarder: usize,
    },
    /// A forwarder has refused the session; its connection is closed.
    Refused {
        /// Which.
        forwarder: usize,
        /// EACCES (secret or user), EPROTO (version, or not the forwarder that belongs to this
        /// place of the list), EUSERS (too many sessions).
        errno: Errno,
        /// What is wrong, and what to do.
        why: String,
    },
    /// A fact for the log.
    Log {
        /// The fact.
        text: String,
    },
    /// After [`Input::Shutdown`]: nothing more will come.
    Ended,
}

/// A forwarder's last answer to a part of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Which.
    pub forwarder: usize,
    /// When, on the clock of `now_ns`.
    pub at_ns: u64,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Calls accepted.
    pub calls: u64,
    /// Requests sent, repetitions included.
    pub sent: u64,
    /// Requests sent again.
    pub repeated: u64,
    /// Sessions granted.
    pub sessions: u64,
    /// Seats whose opens and locks were told again.
    pub recoveries: u64,
    /// Paths told to forwarders.
    pub reaches: u64,
    /// Locks that could not be reclaimed.
    pub locks_lost: u64,
    /// Names remembered now.
    pub names: u64,
    /// Requests that wait for an answer or to be sent now.
    pub pending: u64,
}
