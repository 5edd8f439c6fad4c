//! The interface between the host and the forwarder: what the host reports, and what the forwarder
//! asks for.

mod refused;

pub use refused::RefusedJob;

use crate::back_end_files::{Access, Errno};
use crate::peer::Peer;
use crate::reply_table::SeatTable;
use crate::share_rules::Rules;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use tidegate_sched::{Direction, Time};
use tidegate_wire::{
    Attr, Caller, ExportId, Grant, Handle, Keep, Layout, Listed, Op, Outcome, Pipelining, Reply,
    Request,
};

/// A connection. The host numbers connections, and never uses a number again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// A payload buffer of the pool. The forwarder accounts for it, and the host keeps its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// The forwarder asks the host to read a text ([`Output::ParsePolicy`], [`Output::ParseShares`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyId(pub u64);

/// A job that the host executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// What a forwarder knows from its start on, and its limits.
#[derive(Clone, Debug)]
pub struct Config {
    /// This forwarder's index. It owns the seat of that number.
    pub forwarder: u16,
    /// The export's layout.
    pub layout: Layout,
    /// Whether this forwarder may stand in for others.
    pub fail_over: bool,
    /// Largest payload of one frame, bytes.
    pub payload_max: u32,
    /// The least restricted mode in which sessions may move the chunks of a transfer.
    pub pipelining: Pipelining,
    /// Bytes of payload that the pool has for all sessions together.
    pub pool_bytes_max: u64,
    /// Requests that one session may have outstanding.
    pub credits: u32,
    /// Sessions that there may be at once.
    pub sessions_max: u32,
    /// Sessions that one user may have who is not trusted; 0: a quarter of all.
    pub sessions_of_user_max: u32,
    /// Connections that are of use to one session: as many as the host has threads for connections.
    pub connections: u16,
    /// Connections that all sessions together may have beside the first one of each session.
    pub joined_max: u32,
    /// How long a client's opens and locks outlive its last connection, ns.
    pub lease_ns: u64,
    /// How long names and attributes are lent, ns, by a forwarder of one seat; 0: not at all.
    pub loan_ns: u64,
    /// How long a seat that changed hands waits for clients to reclaim their locks, ns.
    pub grace_ns: u64,
    /// User id that the forwarder runs as.
    pub uid: u32,
    /// Whether it takes on the ids of any caller, as root can. Others serve their own user only.
    pub acts_for_callers: bool,
    /// Identity of the node, as in a hello's reply.
    pub host: u64,
    /// Identity of the node's boot, as in a hello's reply.
    pub boot: u64,
    /// Which export it is.
    pub export: ExportId,
    /// A random number of this process.
    pub process: u64,
    /// The root's attributes.
    pub root: Attr,
    /// The scheduler's options.
    pub scheduler: tidegate_sched::Options,
    /// The rules of shares, until a client changes them ([`Output::ParseShares`]).
    pub shares: Rules,
    /// Whether the forwarder reports what it served ([`Output::Served`]).
    pub record: bool,
}

/// One access of one file that the forwarder answered, with bytes or with an error. A reply that
/// sends the client to another forwarder or asks it to try again does not count, nor does a reply
/// that repeats an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// The client's id.
    pub client: u64,
    /// The application.
    pub app: u64,
    /// Number of the operation within the client.
    pub operation: u64,
    /// The client's wall clock at the operation's start, ns since 1970; 0 if the client did not
    /// state it.
    pub stamp_ns: u64,
    /// The request's shuffle and the longest one of its operation, in microseconds, and how many
    /// aggregators have a longer one. All are 0 if the client did not state them.
    pub shuffle: (u32, u32, u16),
    /// Inode of the file.
    pub file: u64,
    /// Read or write.
    pub direction: Direction,
    /// Whether the client appended the bytes; `offset` is then where the file ended.
    pub append: bool,
    /// Whether this is a further extent of the request that the fact before this one is of.
    pub listed: bool,
    /// First byte.
    pub offset: u64,
    /// Bytes that the client asked for.
    pub len: u64,
    /// Bytes that the back end read or wrote.
    pub done: u64,
    /// Errno of a failure, else 0.
    pub errno: u16,
    /// When the request arrived.
    pub arrived: Time,
    /// When the access went to the back end; None if it did not.
    pub dispatched: Option<Time>,
    /// When the back end had done the access; None if it did not.
    pub finished: Option<Time>,
}

/// How the host makes sure that one forwarder at a time holds a seat: effective values, in the
/// words of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnershipFacts {
    /// `files` or `etcd`.
    pub keeper: &'static str,
    /// Time to live of a lease, ms; None where locks alone hold seats.
    pub ttl_ms: Option<u32>,
    /// What a seat's reply table outlives: `process` or `node`.
    pub durability: &'static str,
    /// Whether all forwarders of the export run on one node.
    pub one_node: bool,
}

/// How the host's storage moves data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageFacts {
    /// `buffered` or `direct`.
    pub io: &'static str,
    /// `threads` or `uring`.
    pub engine: &'static str,
    /// Why the host chose this engine.
    pub why: Box<str>,
}

/// How many requests of [`Output::Served`] the host has recorded, for the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Requests in the trace.
    pub recorded: u64,
    /// Requests that the host has not written to the trace yet.
    pub buffered: u64,
    /// Requests that are not in the trace, because the host could not write them in time or at all.
    pub dropped: u64,
}

/// System calls that the host has made since its start, and bytes that it has copied: for status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounts {
    /// Calls that wait for sockets and storage.
    pub waits: u64,
    /// How many of these calls another thread ended.
    pub wakes: u64,
    /// Calls that received something.
    pub receives: u64,
    /// Calls that found nothing to receive.
    pub receives_empty: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Calls that sent something.
    pub sends: u64,
    /// Calls that found no room to send.
    pub sends_blocked: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// How many of these bytes the host sent as pages of a file.
    pub spliced_bytes: u64,
    /// Bytes of payload copied from one buffer of the process to another.
    pub copied_bytes: u64,
    /// Calls that read from files.
    pub storage_reads: u64,
    /// Calls that write to files.
    pub storage_writes: u64,
    /// Jobs of storage that move no data.
    pub storage_operations: u64,
    /// Descriptors of files that are open now.
    pub file_descriptors: u64,
    /// Files that clients have open and that have no descriptor now.
    pub files_parked: u64,
    /// How long the oldest job of storage has been running, ms, at most a second ago.
    pub oldest_job_ms: u64,
}

/// What the host reports to the forwarder.
pub enum Input {
    /// The host has accepted a connection.
    Connected {
        /// The connection's number.
        conn: ConnId,
        /// The other end.
        peer: Peer,
    },
    /// The peer of a connection, which has said no hello yet, has proved what it may do.
    Proved {
        /// The connection.
        conn: ConnId,
        /// What was proved.
        grant: Grant,
    },
    /// A whole request has arrived. Its payload, if any, is in the slot that
    /// [`crate::Forwarder::admit`] returned. Where the forwarder has a secret, a peer that may come
    /// from another node has proved a grant before.
    Received {
        /// The connection that the request arrived on.
        conn: ConnId,
        /// The request.
        request: Request,
        /// The slot with the request's payload, or for the reply's payload.
        slot: Option<SlotId>,
    },
    /// The host has sent a reply's last byte, or dropped the reply. Its slot is free.
    Sent {
        /// The slot.
        slot: SlotId,
    },
    /// Answer to [`Output::ParsePolicy`].
    PolicyParsed {
        /// Which.
        policy: PolicyId,
        /// The scheduler's new options, or an errno for the client and the reason for the log.
        options: Result<tidegate_sched::Options, (Errno, Box<str>)>,
    },
    /// Where the export's forwarders listen, in order of index.
    Forwarders(Box<[Listed]>),
    /// Another forwarder has changed the policy that the export stores. These are the scheduler's
    /// new options.
    PolicyFound(tidegate_sched::Options),
    /// Another forwarder has changed the rules of shares that the export stores.
    SharesFound(Rules),
    /// Another forwarder reports what it served an application ([`Output::Broadcast`]).
    PeerService(tidegate_sched::ServiceReport),
    /// Answer to [`Output::ParseShares`].
    SharesParsed {
        /// Which.
        policy: PolicyId,
        /// The new rules, or an errno for the client and the reason for the log.
        rules: Result<Rules, (Errno, Box<str>)>,
    },
    /// A connection has ended. The forwarder frees the slots of requests that it admitted and has
    /// not received. For those of replies on their way the host still reports [`Input::Sent`].
    Closed {
        /// Which.
        conn: ConnId,
    },
    /// The host has done a job.
    Finished {
        /// Which.
        job: JobId,
        /// Its result.
        result: JobResult,
    },
    /// Answer to [`Output::TakeSeat`]: the host holds the seat's lock, has raised the generation
    /// and has mapped the reply table.
    SeatTaken {
        /// Which.
        seat: u16,
        /// Its new generation.
        generation: u64,
        /// Its reply table.
        table: Arc<dyn SeatTable>,
    },
    /// The host has renewed its lease: the forwarder may serve all its seats, and those that it
    /// takes from now on, until this time. Without a further renewal it then loses all seats. A
    /// host whose locks cannot be lost never reports this.
    LeaseRenewed {
        /// The time, by the clock of `now`.
        until: Time,
    },
    /// The host no longer holds a seat, because another forwarder took it or the back end dropped
    /// its lock. The forwarder may not answer for it any more. It asks for [`Output::ReleaseSeat`]
    /// when the seat's jobs have ended.
    SeatLost {
        /// Which.
        seat: u16,
    },
    /// Answer to [`Output::TakeSeat`]: another forwarder holds the seat's lock. If the seat is this
    /// forwarder's own, the host goes on waiting for the lock, and reports [`Input::SeatTaken`]
    /// when it has it.
    SeatRefused {
        /// Which.
        seat: u16,
    },
    /// The owner of a seat that this forwarder holds as a stand-in is back and waits for it. The
    /// forwarder finishes the seat's requests and releases it.
    SeatWanted {
        /// Which.
        seat: u16,
    },
    /// How the host makes sure that one forwarder at a time holds a seat, for the status.
    Ownership(OwnershipFacts),
    /// Another process tells clients that it is the forwarder of this index. The text is its
    /// address; None: it does so no longer.
    Doubled(Option<Box<str>>),
    /// How the host's storage works, for the status.
    Storage(StorageFacts),
    /// What is wrong with the back end, for the status; None: nothing is any more.
    BackEnd(Option<Box<str>>),
    /// How many requests the host has recorded by now. A host that records none never reports this.
    Recorded(Recorded),
    /// The host's counts by now. The host reports them before each request for the status.
    Counted(HostCounts),
    /// The process stops: the forwarder takes no new sessions or requests, finishes the requests
    /// that it has accepted, and releases its seats.
    Drain,
}

/// One access of a batch: a range of the file, and the bytes' place in a slot.
#[derive(Clone, Debug)]
pub struct IoPart {
    /// First byte in the file.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// The slot.
    pub slot: SlotId,
    /// First byte in the slot.
    pub slot_offset: u32,
    /// The seat that the host must hold when it writes the bytes.
    pub seat: u16,
}

/// Work for the host's storage threads.
pub enum Job {
    /// One back-end call (list I/O): parts of one file in one direction, ascending and disjoint.
    Io {
        /// The file.
        handle: Handle,
        /// Read or write.
        direction: Direction,
        /// The accesses.
        parts: Vec<IoPart>,
        /// The user whose room a write takes; None: the forwarder's own. None for reads.
        writer: Option<Caller>,
    },
    /// One operation: [`crate::effect::perform`] with these arguments.
    Op {
        /// On whose behalf the host asks the back end; None: with the forwarder's own rights.
        caller: Option<Caller>,
        /// The operation.
        op: Op,
        /// The reply slot that records the operation.
        reply_slot: Option<ReplySlotAddress>,
        /// For an append the slot with its bytes, and their number.
        payload: Option<(SlotId, u32)>,
        /// The directory in which it changes names, if the forwarder could lend its attributes:
        /// the host asks for them afterwards ([`crate::effect::job_result`]).
        directory: Option<Handle>,
    },
    /// [`crate::effect::resolve`] for an intent that the seat's last holder left.
    Resolve {
        /// The reply slot.
        reply_slot: ReplySlotAddress,
    },
    /// [`crate::Files::closed`]: the last open of a file at this forwarder has ended.
    Closed {
        /// The file.
        handle: Handle,
    },
    /// [`SeatTable::persist_holders`]: the seat's record of the clients that hold opens or locks
    /// must outlive the node.
    Persist {
        /// The seat's table.
        table: Arc<dyn SeatTable>,
    },
    /// A job whose seat was lost while the job waited. The host reports it as refused.
    Refused(RefusedJob),
}

/// A reply slot in a seat's table.
#[derive(Clone)]
pub struct ReplySlotAddress {
    /// The seat.
    pub seat: u16,
    /// The table.
    pub table: Arc<dyn SeatTable>,
    /// The reply slot's number in the table, over all clients.
    pub reply_slot: u32,
    /// Sequence of the request.
    pub sequence: u64,
    /// Other reply slots of the seat whose intents nobody could look up yet. The host looks up
    /// those that concern the same files before the operation takes effect.
    pub unresolved: Vec<u32>,
}

/// The result of a job.
pub enum JobResult {
    /// Of [`Job::Io`].
    Io {
        /// For each part the bytes done, fewer than asked for only at the end of the file, or the
        /// error.
        parts: Vec<Result<u32, Access>>,
        /// Device time of the call, ns, measured or emulated.
        device_ns: u64,
    },
    /// Of [`Job::Op`]; also of [`Job::Persist`], then with [`Outcome::Done`].
    Op(Result<Outcome, Access>),
    /// Of [`Job::Op`] with a directory: its attributes after the operation, if they were had.
    Change {
        /// Of the operation.
        result: Result<Outcome, Access>,
        /// See above.
        directory: Option<Box<Attr>>,
    },
    /// Of [`Job::Resolve`] and [`Job::Closed`].
    Done,
}

/// Reason of [`Output::Close`] for a client that has ended its session in order.
pub const GOODBYE: &str = "the client said goodbye";
/// Reason of [`Output::Close`] for a further connection that its session may not have.
pub const NOT_JOINED: &str = "there is no room for it, or no such session";
/// Reason of [`Output::Close`] for a connection of a session whose other connection has ended.
pub const SESSION_OVER: &str = "another connection of its session has ended";

/// What the forwarder asks the host to do.
pub enum Output {
    /// Send a reply. If it has a payload, that is the first `reply.payload_len` bytes of the slot,
    /// and the host reports [`Input::Sent`] afterwards. If it has a slot but no payload, the slot
    /// was the request's, and the host may reuse its buffer as after [`Output::Free`].
    Send {
        /// The connection.
        conn: ConnId,
        /// Op code of the request, for the frame's header.
        op: u8,
        /// The reply.
        reply: Reply,
        /// The reply's payload, or the request's slot.
        slot: Option<SlotId>,
    },
    /// Send this report to all other forwarders, whose hosts hand it in as [`Input::PeerService`].
    /// The report may get lost. Only policies whose options ask for reports make them.
    Broadcast(tidegate_sched::ServiceReport),
    /// Take a slot's buffer back; the host may reuse it.
    Free {
        /// Which.
        slot: SlotId,
    },
    /// Execute a job, and report its result with [`crate::Forwarder::finished`].
    Start {
        /// Its number.
        job: JobId,
        /// What to do.
        work: Job,
    },
    /// Try to get a seat's lock.
    TakeSeat {
        /// Which.
        seat: u16,
    },
    /// Release a seat, of which no request runs any more. The host also forgets that files of this
    /// seat are open here, without [`Job::Closed`]: their clients open them again at the seat's
    /// next holder.
    ReleaseSeat {
        /// Which.
        seat: u16,
    },
    /// Close a connection, after the host has sent what is queued on it.
    Close {
        /// Which.
        conn: ConnId,
        /// The reason, for the log; [`GOODBYE`] if all is in order.
        reason: Box<str>,
    },
    /// Log a fact (a refused request, a dead client).
    Log {
        /// The fact.
        text: Box<str>,
    },
    /// Record an access that the forwarder answered. Only if [`Config::record`] asks for it.
    Served(Served),
    /// Read a `[scheduler]` table and answer with [`Input::PolicyParsed`]. As `keep` says, also
    /// store it in the export, or read the table of the configuration instead.
    ParsePolicy {
        /// Which.
        policy: PolicyId,
        /// The table's text as the client sent it.
        text: Box<[u8]>,
        /// How long the policy stays in effect.
        keep: Keep,
    },
    /// Read rules of shares and answer with [`Input::SharesParsed`]. As `keep` says, also store
    /// them in the export, or read those of the configuration instead.
    ParseShares {
        /// Which.
        policy: PolicyId,
        /// The tables' text as the client sent it.
        text: Box<[u8]>,
        /// How long the rules stay in effect.
        keep: Keep,
    },
    /// Remove files of a seat that only a hidden name keeps and that no client has opened here
    /// since the forwarder took the seat. The seat's clients have re-opened their files by now, or
    /// their time for that is over.
    Reclaimed {
        /// Which.
        seat: u16,
    },
    /// End the process: after [`Input::Drain`] the forwarder has nothing left to do.
    Drained,
}

/// Whether the host may read the payload of a request whose header and body have arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Neither the request nor its reply has a payload: the host hands the request in.
    NoPayload,
    /// The host reads the payload into this slot, or keeps the slot for the reply's payload. Then
    /// it hands the request in.
    Slot {
        /// The slot.
        slot: SlotId,
        /// Bytes that the slot must have room for.
        len: u32,
    },
    /// The pool is full: the host stops reading from this connection, and asks again after
    /// [`Input::Sent`] or [`Output::Free`].
    Wait,
    /// The peer broke the protocol's rules, as the text says: the host closes the connection.
    Refuse(Box<str>),
}

/// Whose memory holds the payload of a request or of its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadMemory {
    /// A buffer of the forwarder's pool.
    Pool,
    /// Memory of the client, for a read or a write. Its slot takes no bytes of the pool, so the
    /// request never waits for one.
    Client,
}

/// What the forwarder did with a request that the host handed in at once
/// ([`crate::Forwarder::request`]).
#[derive(Debug, PartialEq)]
pub enum Arrival {
    /// The forwarder has the request. If the request or its reply has a payload, this is its slot,
    /// and the bytes that the slot must have room for. The host gives the slot its memory before it
    /// calls [`crate::Forwarder::poll`].
    Received(Option<(SlotId, u32)>),
    /// The pool is full: the host stops reading from this connection, and hands the request in
    /// again after [`Input::Sent`], [`Output::Free`] or a reply that had a slot.
    Wait(Box<Request>),
    /// The peer broke the protocol's rules, as the text says: the host closes the connection.
    Refuse(Box<str>),
}
