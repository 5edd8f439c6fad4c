//! What the host and the forwarder say to each other.

use crate::back_end_files::{Access, Errno};
use crate::reply_table::SeatTable;
use crate::share_rules::Rules;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use tidegate_sched::{Direction, Time};
use tidegate_wire::{
    Attr, Caller, ExportId, Handle, Keep, Layout, Listed, Op, Outcome, Pipelining, Reply, Request,
};

/// A connection, numbered by the host and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// A payload buffer of the pool, accounted here and kept by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// A question about a text ([`Output::ParsePolicy`], [`Output::ParseShares`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyId(pub u64);

/// A job that the host carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// Who is at the other end, as the transport found out.
#[derive(Clone, Debug)]
pub struct Peer {
    /// User and group from the socket's credentials; None over TCP, where the hello says it.
    pub credentials: Option<(u32, u32)>,
    /// For logs: "unix:pid 17" or "tcp:10.0.0.7:4000".
    pub address: String,
    /// The hello must prove the secret over this challenge (checked by the host: see
    /// `Input::Received`).
    pub challenged: bool,
}

/// A forwarder's fixed facts and limits.
#[derive(Clone, Debug)]
pub struct Config {
    /// This forwarder's index; it owns that seat.
    pub forwarder: u16,
    /// The layout that all share.
    pub layout: Layout,
    /// Whether this forwarder may stand in for others.
    pub fail_over: bool,
    /// Largest payload of one frame.
    pub payload_max: u32,
    /// The most that sessions may have under way at once of a transfer.
    pub pipelining: Pipelining,
    /// Bytes of payload that all sessions may have here together.
    pub pool_bytes_max: u64,
    /// Requests that one session may have unanswered.
    pub credits: u32,
    /// Sessions at once.
    pub sessions_max: u32,
    /// Connections that are of use to one session: as many as the host has threads for them.
    pub connections: u16,
    /// Further connections at once, beside the first one of each session.
    pub joined_max: u32,
    /// How long a client's opens and locks outlive its last connection, ns.
    pub lease_ns: u64,
    /// How long a seat that changed hands waits for reclaims, ns.
    pub grace_ns: u64,
    /// User that the forwarder runs as: root acts for any caller, another serves itself only.
    pub uid: u32,
    /// Identity of the node.
    pub host: u64,
    /// Identity of its boot.
    pub boot: u64,
    /// Which export it is.
    pub export: ExportId,
    /// A random number of this process.
    pub process: u64,
    /// The root's attributes.
    pub root: Attr,
    /// The scheduler's options.
    pub scheduler: tidegate_sched::Options,
    /// Who is promised what, until it is changed ([`Output::ParseShares`]).
    pub shares: Rules,
    /// Whether to say what was served ([`Output::Served`]).
    pub record: bool,
}

/// One access of one file that was answered: with bytes, or with an error. An answer that sends the
/// client elsewhere, or asks it to try again, is none; neither is the repetition of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// The client's id.
    pub client: u64,
    /// The application.
    pub app: u64,
    /// Number of the operation within the client.
    pub operation: u64,
    /// The client's wall clock at the operation's start, ns since 1970; 0 if it did not say.
    pub stamp_ns: u64,
    /// The work that follows it, in microseconds, the longest that follows any request of its
    /// operation, and how many of those have a longer one. All 0: the client did not say.
    pub shuffle: (u32, u32, u16),
    /// Inode of the file.
    pub file: u64,
    /// Read or write.
    pub direction: Direction,
    /// The bytes were appended: `offset` is where the file ended.
    pub append: bool,
    /// It is a further extent of the request whose extent was told before.
    pub listed: bool,
    /// First byte.
    pub offset: u64,
    /// Bytes asked for.
    pub len: u64,
    /// Bytes done.
    pub done: u64,
    /// Why it failed; 0 if it did not.
    pub errno: u16,
    /// When it had come.
    pub arrived: Time,
    /// When the back end was asked; None if it was not.
    pub dispatched: Option<Time>,
    /// When the back end was done.
    pub finished: Option<Time>,
}

/// How the host keeps the seats apart from those of other forwarders, in the words of the
/// configuration; as it is in force, not as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnershipFacts {
    /// `files` or `etcd`.
    pub keeper: &'static str,
    /// How long a lease lives; None where seats are held by locks alone.
    pub ttl_ms: Option<u32>,
    /// What a seat's reply table outlives: `process` or `node`.
    pub durability: &'static str,
    /// No forwarder of the export is on another node.
    pub one_node: bool,
}

/// How the host's storage works, in its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageFacts {
    /// `buffered` or `direct`.
    pub io: &'static str,
    /// `threads` or `uring`.
    pub engine: &'static str,
    /// Why it is that one.
    pub why: Box<str>,
}

/// How much the host has recorded of what it was told as [`Output::Served`], for the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Requests in the trace.
    pub recorded: u64,
    /// Requests on their way there.
    pub buffered: u64,
    /// Requests that will not be in it.
    pub dropped: u64,
}

/// What the host has asked the system for since its start, and copied itself, for the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounts {
    /// Calls that wait for sockets and storage.
    pub waits: u64,
    /// Of them, those that other threads ended.
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
    /// Bytes of them sent as pages of a file.
    pub spliced_bytes: u64,
    /// Bytes of payload copied from one buffer of the process to another.
    pub copied_bytes: u64,
    /// Calls that read from files.
    pub storage_reads: u64,
    /// Calls that write to files.
    pub storage_writes: u64,
    /// Jobs of storage that move no data.
    pub storage_operations: u64,
    /// How long the oldest job of storage has been running, in ms, as of a second ago at most.
    pub oldest_job_ms: u64,
}

/// What happened outside.
pub enum Input {
    /// A connection was accepted.
    Connected {
        /// Its number.
        conn: ConnId,
        /// The other end.
        peer: Peer,
    },
    /// A whole request has come, its payload (if any) in the slot that [`crate::Forwarder::admit`]
    /// gave. The host has checked a hello's proof before.
    Received {
        /// From where.
        conn: ConnId,
        /// The request.
        request: Request,
        /// Its payload, or room for the reply's.
        slot: Option<SlotId>,
    },
    /// The host has handed the reply's last byte to the transport (or dropped it): its slot is
    /// free.
    Sent {
        /// The slot.
        slot: SlotId,
    },
    /// Answer to [`Output::ParsePolicy`].
    PolicyParsed {
        /// Which.
        policy: PolicyId,
        /// The scheduler's new options, or why there are none: an errno for the client, and words
        /// for the log.
        options: Result<tidegate_sched::Options, (Errno, Box<str>)>,
    },
    /// Where the export's forwarders listen, in the order of their indices.
    Forwarders(Box<[Listed]>),
    /// The policy that is kept for the export has changed, and not by a request to this forwarder:
    /// the scheduler's options.
    PolicyFound(tidegate_sched::Options),
    /// The same of the rules of shares.
    SharesFound(Rules),
    /// Another forwarder reports what it served an application ([`Output::Broadcast`]).
    PeerService(tidegate_sched::ServiceReport),
    /// Answer to [`Output::ParseShares`].
    SharesParsed {
        /// Which.
        policy: PolicyId,
        /// The rules that are in force now, or why they are not: an errno for the client, and words
        /// for the log.
        rules: Result<Rules, (Errno, Box<str>)>,
    },
    /// A connection is gone. Slots that [`crate::Forwarder::admit`] gave it for requests that were
    /// not received are freed here ([`Output::Free`]); slots of replies on their way still end in
    /// `Sent`.
    Closed {
        /// Which.
        conn: ConnId,
    },
    /// A job is done.
    Finished {
        /// Which.
        job: JobId,
        /// What came of it.
        result: JobResult,
    },
    /// Answer to [`Output::TakeSeat`]: the lock is held, the generation has been raised, the table
    /// is mapped.
    SeatTaken {
        /// Which.
        seat: u16,
        /// Its new generation.
        generation: u64,
        /// Its table.
        table: Arc<dyn SeatTable>,
    },
    /// All seats held here, and those taken from now on, may be served until then; told again and
    /// again. Never told where seats are held by locks that cannot be lost. When the time has come,
    /// all seats are lost.
    LeaseRenewed {
        /// By the clock of `now`.
        until: Time,
    },
    /// A seat is held here no longer: somebody else took it, or the back end dropped its lock.
    /// Nothing of it may be answered any more. [`Output::ReleaseSeat`] follows when its jobs have
    /// ended.
    SeatLost {
        /// Which.
        seat: u16,
    },
    /// Answer to [`Output::TakeSeat`]: somebody else holds the lock. (For the own seat the host
    /// goes on waiting for the lock, and says `SeatTaken` when it has it.)
    SeatRefused {
        /// Which.
        seat: u16,
    },
    /// The owner of a seat that we hold is back and waits: drain and release.
    SeatWanted {
        /// Which.
        seat: u16,
    },
    /// How the host keeps the seats apart, for the status.
    Ownership(OwnershipFacts),
    /// Another process tells clients that it is the forwarder of this index, and listens there;
    /// None: no longer.
    Doubled(Option<Box<str>>),
    /// How the host's storage works, for the status.
    Storage(StorageFacts),
    /// What is wrong with the back end, in words; None: nothing any more. For the status.
    BackEnd(Option<Box<str>>),
    /// How much was recorded by now; None so far: nothing is.
    Recorded(Recorded),
    /// What the host has done by now; told before each request for the status.
    Counted(HostCounts),
    /// Stop: take no new sessions or requests, finish what was accepted, release the seats.
    Drain,
}

/// One access of a batch.
#[derive(Clone, Debug)]
pub struct IoPart {
    /// First byte of the file.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// The buffer.
    pub slot: SlotId,
    /// Where in the buffer.
    pub slot_offset: u32,
    /// The seat that must be held when it is written.
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
    },
    /// [`crate::effect::perform`] with these arguments.
    Op {
        /// On whose behalf; None: the forwarder's own rights.
        caller: Option<Caller>,
        /// What.
        op: Op,
        /// The reply slot that records it.
        reply_slot: Option<ReplySlotAddress>,
        /// Append: the bytes.
        payload: Option<(SlotId, u32)>,
    },
    /// [`crate::effect::resolve`] of an intent that the seat's last holder left.
    Resolve {
        /// The reply slot.
        reply_slot: ReplySlotAddress,
    },
    /// `Files::closed`: the last open of a file ended here.
    Closed {
        /// The file.
        handle: Handle,
    },
    /// [`SeatTable::persist_holders`]: whose opens and locks the seat knows outlives the node.
    Persist {
        /// The seat's table.
        table: Arc<dyn SeatTable>,
    },
    /// A job that must not take effect any more, because its seat was lost while it waited: report
    /// it as refused.
    Refused(RefusedJob),
}

/// What was refused, which is what the result looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedJob {
    /// A call with so many parts.
    Io(usize),
    /// An operation.
    Op,
    /// A job whose result says nothing.
    Other,
}

impl RefusedJob {
    /// The result with this error.
    pub fn result(self, refusal: impl Into<Access>) -> JobResult {
        let refusal = refusal.into();
        match self {
            RefusedJob::Io(parts) => JobResult::Io {
                parts: alloc::vec![Err(refusal); parts],
                device_ns: 0,
            },
            RefusedJob::Op => JobResult::Op(Err(refusal)),
            RefusedJob::Other => JobResult::Done,
        }
    }
}

impl Job {
    /// How this job is refused.
    pub fn refused(&self) -> RefusedJob {
        match self {
            Job::Io { parts, .. } => RefusedJob::Io(parts.len()),
            Job::Op { .. } | Job::Persist { .. } => RefusedJob::Op,
            Job::Resolve { .. } | Job::Closed { .. } => RefusedJob::Other,
            Job::Refused(refused) => *refused,
        }
    }
}

/// A reply slot in a seat's table.
#[derive(Clone)]
pub struct ReplySlotAddress {
    /// The seat.
    pub seat: u16,
    /// The table.
    pub table: Arc<dyn SeatTable>,
    /// ReplySlot number over all clients.
    pub reply_slot: u32,
    /// Sequence of the request.
    pub sequence: u64,
    /// Other reply slots of the seat whose intents could not be looked up yet. Those that concern
    /// the same files are looked up before the operation takes effect.
    pub unresolved: Vec<u32>,
}

/// What came of a job.
pub enum JobResult {
    /// Of `Job::Io`: bytes done of each part (short only at the end of the file), or why not, and
    /// the device time charged in ns.
    Io {
        /// Per part.
        parts: Vec<Result<u32, Access>>,
        /// Device time in ns (measured or emulated).
        device_ns: u64,
    },
    /// Of `Job::Op`; of `Job::Persist` with [`Outcome::Done`].
    Op(Result<Outcome, Access>),
    /// Of `Job::Resolve` and `Job::Closed`.
    Done,
}

impl JobResult {
    /// Whether the job, or a part of it, was not done.
    pub(crate) fn has_failed(&self) -> bool {
        match self {
            JobResult::Io { parts, .. } => parts.iter().any(Result::is_err),
            JobResult::Op(result) => result.is_err(),
            JobResult::Done => false,
        }
    }
}

/// Why a connection is closed that its client has ended in order.
pub const GOODBYE: &str = "the client said goodbye";
/// Why a further connection is closed that its session may not have.
pub const NOT_JOINED: &str = "there is no room for it, or no such session";
/// Why a connection is closed that has done nothing wrong either.
pub const SESSION_OVER: &str = "another connection of its session has ended";

/// What the host should do.
pub enum Output {
    /// Send a reply. With a slot and a payload, that is the first `reply.payload_len` bytes of the
    /// slot, and the host says [`Input::Sent`] afterwards. Without a payload the slot was the
    /// request's, and its buffer may be reused as after [`Output::Free`].
    Send {
        /// Where to.
        conn: ConnId,
        /// Op code of the request, for the frame's header.
        op: u8,
        /// The reply.
        reply: Reply,
        /// The reply's payload, or the request's slot.
        slot: Option<SlotId>,
    },
    /// Send this report to all other forwarders, whose hosts hand it in as [`Input::PeerService`].
    /// It may be lost. Only under a policy that was told to tell.
    Broadcast(tidegate_sched::ServiceReport),
    /// The slot's buffer may be reused.
    Free {
        /// Which.
        slot: SlotId,
    },
    /// Carry out a job and report it with [`crate::Forwarder::finished`].
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
    /// Let a seat go: nothing of it runs any more. Files of this seat that are open here are so no
    /// longer, without [`Job::Closed`]: their clients open them again at the next holder.
    ReleaseSeat {
        /// Which.
        seat: u16,
    },
    /// Close the connection after what is queued on it has been sent.
    Close {
        /// Which.
        conn: ConnId,
        /// For the log; [`GOODBYE`] if all is in order.
        reason: Box<str>,
    },
    /// Log a fact (a refused request, a dead client).
    Log {
        /// The fact.
        text: Box<str>,
    },
    /// A data request was answered, if [`Config::record`] asks for it.
    Served(Served),
    /// Read a `[scheduler]` table and answer with [`Input::PolicyParsed`]; also write it down, or
    /// read that of the configuration instead, as `keep` says.
    ParsePolicy {
        /// Which.
        policy: PolicyId,
        /// The table's text as the client sent it.
        text: Box<[u8]>,
        /// How long it holds.
        keep: Keep,
    },
    /// Read rules and answer with [`Input::SharesParsed`]; also write them down, or read those of
    /// the configuration instead, as `keep` says.
    ParseShares {
        /// Which.
        policy: PolicyId,
        /// The tables' text as the client sent it.
        text: Box<[u8]>,
        /// How long they hold.
        keep: Keep,
    },
    /// The clients of a seat that was taken have told their open files again, or had time to: files
    /// of this seat that are kept under hidden names and were not opened here since may go.
    Reclaimed {
        /// Which.
        seat: u16,
    },
    /// After [`Input::Drain`]: nothing is left to do.
    Drained,
}

/// Whether a request whose header and body have come may send its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// No payload either way: hand the request in.
    NoPayload,
    /// Read the payload into this slot (or keep it for the reply's payload), then hand the request
    /// in.
    Slot {
        /// The slot.
        slot: SlotId,
        /// Bytes it must have room for.
        len: u32,
    },
    /// The pool is full: stop reading from this connection, ask again after [`Input::Sent`] or
    /// [`Output::Free`].
    Wait,
    /// The peer broke the rules: close the connection.
    Refuse(Box<str>),
}

/// Where the payload of a request, or of its reply, is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadMemory {
    /// In a buffer of the pool.
    Pool,
    /// In memory of the client's, for a read or a write: a slot without bytes of the pool, for
    /// which no request waits.
    Client,
}

/// What became of a request that was handed in at once.
#[derive(Debug, PartialEq)]
pub enum Arrival {
    /// The forwarder has it; its payload, or that of its reply, has this slot, with room for so
    /// many bytes. The host gives the slot its memory before it calls [`crate::Forwarder::poll`].
    Received(Option<(SlotId, u32)>),
    /// The pool is full: stop reading from this connection, hand the request in again after
    /// [`Input::Sent`], [`Output::Free`] or a reply that had a slot.
    Wait(Box<Request>),
    /// The peer broke the rules: close the connection.
    Refuse(Box<str>),
}
