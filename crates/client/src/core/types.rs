//! The types that pass between the host and the core: calls, their results, inputs, outputs.

use crate::collective::Collective;
use crate::core::Errno;
use crate::payload::Payload;
use crate::wire::{Caller, ExportId, Extent, Hints, Op, Outcome, Pipeline, Reply, Request};
use bytes::Bytes;

/// The number of a call. The host chooses it and uses it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// Who the client is, and its bounds.
#[derive(Clone, Debug)]
pub struct CoreOptions {
    /// Random id of the client, never 0 and never used by another client.
    pub client: u64,
    /// User on whose behalf the client works.
    pub uid: u32,
    /// Group of that user.
    pub gid: u32,
    /// Name for the forwarders' logs, at most 255 bytes.
    pub name: Box<[u8]>,
    /// Number of forwarders, at least 1; forwarder `i` owns the seats `i` modulo this number.
    pub forwarders: usize,
    /// The export that the forwarders serve; None: that of the first forwarder which grants a
    /// session.
    pub export: Option<ExportId>,
    /// The core only asks all forwarders who they are ([`Core::members`](super::Core::members)),
    /// and opens no session.
    pub asks: bool,
    /// Whether forwarders may lend the client names and attributes.
    pub borrows: bool,
    /// Largest payload of one frame that the client wants, in bytes: 4096 to
    /// [`PAYLOAD_LIMIT`](crate::wire::PAYLOAD_LIMIT).
    pub payload_max: u32,
    /// Largest number of connections of a session.
    pub connections: u16,
    /// How the client transfers calls that are longer than a chunk; a forwarder may agree to less.
    pub pipeline: Pipeline,
    /// Whether the blocks of one operation on the same seat are sent in one request (list I/O), as
    /// far as they fit a chunk. Otherwise each stripe block is a request of its own.
    pub merge_blocks: bool,
    /// Largest number of file names that the client remembers. It forgets the oldest without
    /// children and opens first. A request ends in ESTALE if the forwarder does not know the handle
    /// of a file whose name the client has forgotten.
    pub names_max: usize,
}

/// A call of the host.
///
/// The host bounds the number of calls and their bytes: the core keeps each call until it is done.
#[derive(Clone, Debug)]
pub struct Call {
    /// The operation. A read or write may have extents of any length, also none: they are split
    /// over the seats. [`Op::Readdir`] is cut to what fits a reply. Session operations other than
    /// [`Op::Status`], [`Op::SetPolicy`], [`Op::SetShares`] and [`Op::Drain`], as well as
    /// [`Op::ResolvePath`], [`Op::Application`], [`Op::CancelLock`] and [`Op::ReclaimDone`], are
    /// the core's own and answered EINVAL.
    pub op: Op,
    /// User on whose behalf the call is made; None: the client's own.
    pub caller: Option<Caller>,
    /// Id of the application to which the call belongs.
    pub app: u64,
    /// Bytes to write or append; for a write, exactly as many as its extents have together. An
    /// append longer than [`Core::payload_max`](super::Core::payload_max) ends in EMSGSIZE.
    pub payload: Payload,
    /// When the call ends in ETIMEDOUT, on the clock of `now_ns`; None: never.
    pub deadline_ns: Option<u64>,
    /// The forwarder to ask; only for [`Op::Status`], [`Op::SetPolicy`], [`Op::SetShares`] and
    /// [`Op::Drain`], which end in ECONNREFUSED if the client cannot connect to it.
    pub forwarder: usize,
    /// The operation to which the call belongs; None: the call is an operation of its own.
    pub operation: Option<Operation>,
    /// The collective operation over many clients to which the call belongs; ignored where
    /// `operation` is given.
    pub collective: Option<Collective>,
    /// The number of the open file by which an fsync is made: each open file is told once of an
    /// error. None: the call tells only what forwarders say to it.
    pub open: Option<u64>,
    /// Whether the caller can keep attributes in a cache that the core does not see, which the host
    /// clears of them when the core asks for that ([`Output::Invalidate`]).
    pub caches: bool,
    /// For an fsync: where in the file the bytes are that must be stable. None: everywhere.
    pub range: Option<Extent>,
}

/// Makes several calls one operation for the schedulers. From [`Core::begin_operation`].
///
/// [`Core::begin_operation`]: super::Core::begin_operation
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

/// The bytes that a call has read: the parts of the file in order, without gaps.
#[derive(Clone, Debug, Default)]
pub struct Data {
    /// Consecutive pieces.
    pub pieces: Vec<Payload>,
    /// Number of bytes in all pieces; fewer than the caller asked for only at the end of the file.
    pub len: usize,
}

impl Data {
    /// Joins the bytes to one piece, in memory of this process alone. Copies them if there are
    /// several pieces, or if they lie in memory that forwarders share.
    pub fn into_bytes(mut self) -> Bytes {
        match self.pieces.len() {
            1 => self.pieces.swap_remove(0).into_bytes(),
            _ => self.to_vec().into(),
        }
    }

    /// A copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        let copied = self.copy_to(&mut bytes);
        bytes.truncate(copied);
        bytes
    }

    /// Copies the bytes to the front of `buffer`, as many as it holds; returns how many.
    pub fn copy_to(&self, buffer: &mut [u8]) -> usize {
        let mut at = 0;
        for piece in &self.pieces {
            at += piece.raw().copy_to(&mut buffer[at..]);
        }
        at
    }
}

/// The result of any call of the protocol.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The outcome.
    pub outcome: Outcome,
    /// Payload, for reads.
    pub data: Data,
    /// How long the caller may cache the attributes in the outcome, ns; 0: not at all, or he has no
    /// cache ([`Call::caches`]).
    pub lasts_ns: u64,
}

/// Who an application is, for the forwarders' rules and reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Application {
    /// Its name, whose hash is its id. The client sends forwarders no name of more than 255 bytes.
    pub name: String,
    /// The batch system's job, empty if there is none; cut to 255 bytes.
    pub job: String,
    /// The project or account that the job counts for, empty if there is none; cut to 255 bytes.
    pub project: String,
    /// The user whose application it is; None: the user whom the client serves.
    pub caller: Option<Caller>,
}

/// An event that the host reports to the core.
#[derive(Clone, Debug)]
pub enum Input {
    /// A caller makes a call; the core ends it with one [`Output::Done`].
    Call {
        /// The call's number.
        id: CallId,
        /// The call.
        call: Call,
    },
    /// The caller waits no longer: the call ends with EINTR, unless it has ended.
    Cancel {
        /// Number of the call.
        id: CallId,
    },
    /// An [`Output::Connect`] has succeeded.
    Connected {
        /// Index of the forwarder.
        forwarder: usize,
    },
    /// An [`Output::Connect`] has failed, or the connection ended by itself. The host does not
    /// report this after [`Output::Disconnect`].
    ConnectionLost {
        /// Index of the forwarder.
        forwarder: usize,
    },
    /// A whole reply has arrived on the present connection.
    Received {
        /// Index of the forwarder that sent it.
        forwarder: usize,
        /// The reply.
        reply: Reply,
        /// Its payload.
        payload: Payload,
    },
    /// The name of an application. The core sends it to a forwarder before the application's next
    /// request there.
    Application {
        /// Its id, which calls carry.
        app: u64,
        /// Who it is.
        application: Application,
    },
    /// The host has learned the path of a file otherwise than by a look-up.
    Told {
        /// The file.
        handle: crate::wire::Handle,
        /// Where it is, below the root of the export.
        path: Box<[u8]>,
    },
    /// The host no longer knows the file, so the core may forget its name.
    Forget {
        /// The file.
        handle: crate::wire::Handle,
    },
    /// The host has done what an [`Output::Invalidate`] asks for.
    Invalidated {
        /// Its number.
        number: u64,
    },
    /// The host ends the client: calls end with EIO, sessions with goodbye.
    Shutdown,
    /// Forwarders take the client no longer: calls end with EKEYEXPIRED, or with EIO where nobody
    /// knows whether they took effect; else as with `Shutdown`.
    Barred,
}

/// What the core asks the host to do.
#[derive(Debug)]
pub enum Output {
    /// Open a connection; the host answers with one [`Input::Connected`] or
    /// [`Input::ConnectionLost`].
    Connect {
        /// Index of the forwarder.
        forwarder: usize,
    },
    /// Close the connection, or stop opening it. The host must report nothing about it afterwards.
    Disconnect {
        /// Index of the forwarder.
        forwarder: usize,
    },
    /// Open further connections of the session, because several requests are under way at once. The
    /// core asks once for each session; see [`Core::join`](super::Core::join).
    Join {
        /// Index of the forwarder.
        forwarder: usize,
        /// How many connections the session can use, the first one included.
        connections: u16,
    },
    /// Send a request on the session's connection, in the order given.
    Send {
        /// Index of the forwarder.
        forwarder: usize,
        /// Which of several connections, modulo their number; 0, the first one, wherever the order
        /// matters.
        connection: u64,
        /// The request.
        request: Request,
        /// Its payload: pieces of the caller's bytes, not copied.
        payload: Vec<Payload>,
    },
    /// Clear the callers' caches of the attributes of these files. When nobody sees them there any
    /// more, the host answers with one [`Input::Invalidated`]. An answer to a call may be on its
    /// way to a cache; it must not be cached either.
    Invalidate {
        /// Number for the answer.
        number: u64,
        /// The files.
        files: Vec<crate::wire::Handle>,
        /// Whether a call waits for it.
        is_waited_for: bool,
    },
    /// A call has ended.
    Done {
        /// Number of the call.
        id: CallId,
        /// The result.
        result: Result<Answer, Errno>,
    },
    /// A forwarder has granted a session.
    Opened {
        /// Index of the forwarder.
        forwarder: usize,
    },
    /// A forwarder has refused the session; its connection is closed.
    Refused {
        /// Index of the forwarder.
        forwarder: usize,
        /// EACCES (secret or user), EPROTO (version, or not the forwarder that belongs to this
        /// place of the list), EUSERS (too many sessions).
        errno: Errno,
        /// What is wrong, and what to do.
        why: String,
    },
    /// Write a line to the log.
    Log {
        /// The line.
        text: String,
    },
    /// The core has ended after [`Input::Shutdown`] or [`Input::Barred`]; no output follows.
    Ended,
}

/// When a forwarder gave its last answer to a part of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Index of the forwarder.
    pub forwarder: usize,
    /// Time of the answer, on the clock of `now_ns`.
    pub at_ns: u64,
}

/// The id of an application, and the user whose it is if the client speaks for several: forwarders
/// tell applications of one name and several users apart.
pub(super) type Whose = (u64, Option<u32>);

/// The application of a request with these hints, and whose it is.
pub(super) fn whose(hints: &Hints, caller: Option<&Caller>) -> Whose {
    (hints.app, caller.map(|caller| caller.uid))
}
