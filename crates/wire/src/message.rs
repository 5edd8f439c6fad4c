//! What client and forwarder say to each other, as types.

use alloc::boxed::Box;
use alloc::vec::Vec;

mod op;
#[macro_use]
mod operations;
mod outcome;
mod pipeline;

pub use op::Op;
pub use operations::{AskedSeat, FileUse, Named, OpKind, OpSpec, ReplyKind};
pub use outcome::{Entry, Lens, Outcome, Statfs};
pub use pipeline::{CHUNK_MIN, Pipeline, Pipelining};

/// Identity of a file on the back end. It survives rename; `birth` tells a reused inode apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    /// Inode number on the exported file system.
    pub inode: u64,
    /// Birth time in ns since 1970, 0 where the back end does not keep it.
    pub birth: u64,
}

/// A range of bytes of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// On whose behalf an operation on names or attributes is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups, at most [`GROUPS_MAX`].
    pub groups: Box<[u32]>,
}

/// What a data request tells the scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Application id: 64-bit hash of the application's name.
    pub app: u64,
    /// Number of the operation within the client.
    pub operation: u64,
    /// Bytes of the whole operation.
    pub operation_bytes: u64,
    /// Largest number of the operation's bytes on one forwarder.
    pub operation_bytes_max: u64,
    /// Client's wall clock, corrected by the offset measured in the hello, ns since 1970. One per
    /// operation.
    pub stamp_ns: u64,
    /// Wall-clock deadline in ns since 1970, 0 for none.
    pub deadline_ns: u64,
    /// Device time that other forwarders charged this application since its last request here, ns.
    /// An application's first request to a forwarder tells nothing.
    pub charged_elsewhere_ns: u64,
    /// Device time that this forwarder charged it in the same time, as far as replies told it, ns.
    pub charged_here_ns: u64,
    /// Bytes that the others served it since then.
    pub bytes_elsewhere: u64,
    /// Accesses that they served it since then; an access has one extent.
    pub operations_elsewhere: u32,
    /// Time since the client's last request of this application here, ms; larger ones are 65,535.
    pub away_ms: u16,
    /// Work that follows the request before the operation is done, in microseconds.
    pub shuffle_us: u32,
    /// The longest shuffle of the operation's requests, whoever sends them, in microseconds.
    pub shuffle_max_us: u32,
    /// How many aggregators of the operation have a longer shuffle.
    pub shuffle_rank: u16,
}

/// A reply slot of a seat's reply table, named by the client: one mutating request at a time per
/// reply slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplySlot {
    /// Index within the client's reply slots of that seat, below [`HelloReply::reply_slots`].
    pub index: u16,
    /// Grows by one with each new request of the reply slot, starting at 1.
    pub sequence: u64,
}

/// A request from a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Unique among all requests of the client, growing; a replay keeps the id.
    pub id: u64,
    /// The seat that the client asks. 0 for session operations.
    pub seat: u16,
    /// Present exactly for operations that change something ([`Op::mutates`]).
    pub reply_slot: Option<ReplySlot>,
    /// Generation of the seat that the client has last seen (0: none).
    pub generation: u64,
    /// Highest epoch that the client has seen.
    pub epoch: u64,
    /// The request may have been sent before.
    pub replay: bool,
    /// Absent: the peer itself.
    pub caller: Option<Caller>,
    /// Present for data operations.
    pub hints: Option<Hints>,
    /// What is asked.
    pub op: Op,
    /// Bytes of payload that follow the body (write, append).
    pub payload_len: u32,
}

/// The answer to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The request's id.
    pub id: u64,
    /// The request's seat.
    pub seat: u16,
    /// Generation of the seat at the forwarder, 0 if it does not hold it.
    pub generation: u64,
    /// The forwarder's current epoch.
    pub epoch: u64,
    /// Device time charged to the application for this request, ns.
    pub charged_ns: u64,
    /// What became of the request.
    pub result: Result<Outcome, Status>,
    /// Bytes of payload that follow the body (read).
    pub payload_len: u32,
}

/// Why a request was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The operation's errno (1..4096), as Linux on x86-64 numbers it.
    Errno(u16),
    /// This forwarder does not hold the seat: ask another.
    NotMySeat,
    /// The forwarder cannot find the file by its handle: send [`Op::Reach`] with a path, then
    /// again.
    UnknownHandle,
    /// The seat has changed hands (its generation is in the reply): re-open and reclaim, then
    /// again.
    NewGeneration,
    /// Locks are being reclaimed, or something is full for a moment: send again later.
    TryLater,
}

/// The kind of a directory entry, as `d_type` counts.
pub type FileKind = u8;

/// Attributes of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// The file.
    pub handle: Handle,
    /// Size in bytes.
    pub size: u64,
    /// Allocated 512-byte blocks.
    pub blocks: u64,
    /// Last access, ns since 1970 (negative before).
    pub atime_ns: i64,
    /// Last change of data.
    pub mtime_ns: i64,
    /// Last change of attributes.
    pub ctime_ns: i64,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file.
    pub rdev: u32,
    /// Preferred I/O size.
    pub block_size: u32,
}

/// A point in time to set: a given one, or the back end's now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// ns since 1970.
    At(i64),
    /// The back end's clock.
    Now,
}

/// Attributes to set; absent ones stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size: truncate or extend.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of data.
    pub mtime: Option<SetTime>,
}

/// The two families of advisory locks; they do not see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockFamily {
    /// POSIX byte-range locks (fcntl).
    Range,
    /// Whole-file locks (flock).
    Whole,
}

/// What a lock allows others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockKind {
    /// Other shared locks.
    Shared,
    /// Nothing.
    Exclusive,
    /// No lock: releases the range.
    None,
}

/// An advisory lock asked for, held or found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Which family.
    pub family: LockFamily,
    /// Shared, exclusive or release.
    pub kind: LockKind,
    /// Owner within the client (the kernel's lock owner).
    pub owner: u64,
    /// Process that asked, for F_GETLK.
    pub pid: u32,
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `u64::MAX` to the end of the file.
    pub end: u64,
}

/// How a name may replace another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// An existing target is replaced.
    Replace = 0,
    /// RENAME_NOREPLACE.
    NoReplace = 1,
    /// RENAME_EXCHANGE.
    Exchange = 2,
}

/// How long a policy, or rules of shares, hold that came at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Until the forwarder ends.
    Run = 0,
    /// They are written down for the export: forwarders read them again at their next start.
    Saved = 1,
    /// They are those of the configuration; what was written down is removed. No text comes with
    /// it.
    Configured = 2,
}

/// Who opens a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Highest protocol version that the client speaks.
    pub version: u8,
    /// Random id of the client, the same for all its connections and reconnects, never 0.
    pub client: u64,
    /// Grows with each session's first connection of this client to this forwarder; older
    /// connections are closed.
    pub incarnation: u64,
    /// This is a further connection of the session whose first one had this incarnation.
    pub joins: bool,
    /// Only asks who the forwarder is, and which others it knows: no session is opened, and the
    /// forwarder closes the connection behind its reply.
    pub asks: bool,
    /// Client's wall clock when this was sent, ns since 1970.
    pub wall_ns: u64,
    /// Largest payload the client wants to send or receive in one frame.
    pub payload_max: u32,
    /// How it wants to move what is longer than a chunk.
    pub pipeline: Pipeline,
    /// User whom the client serves.
    pub uid: u32,
    /// Group of that user.
    pub gid: u32,
    /// Name for logs and `tidegate stat`, for example host:pid.
    pub name: Box<[u8]>,
    /// Proof of the shared secret; empty on Unix sockets.
    pub proof: Box<[u8]>,
}

/// What the forwarder grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloReply {
    /// The protocol version to speak: the highest both know.
    pub version: u8,
    /// This forwarder's index in the layout.
    pub forwarder: u16,
    /// The layout.
    pub seats: u16,
    /// Bytes of one stripe.
    pub stripe: u64,
    /// Largest payload of one frame.
    pub payload_max: u32,
    /// How transfers of this session move: at most what the client wants.
    pub pipeline: Pipeline,
    /// Requests that the session may have unanswered, on all its connections together.
    pub credits: u32,
    /// Connections that are of use to the session; one more may be refused all the same.
    pub connections: u16,
    /// Reply slots that the client may use on each seat.
    pub reply_slots: u16,
    /// The forwarder had no state of this client: open files and locks must be told again.
    pub fresh: bool,
    /// How long the client's locks and opens outlive its connection, ms.
    pub lease_ms: u32,
    /// Forwarder's wall clock, ns since 1970.
    pub wall_ns: u64,
    /// Where acknowledged bytes lie until they are synced: a node's page cache of one file system,
    /// or the back end itself, which then is one place for all forwarders.
    pub host: u64,
    /// One life of that place.
    pub boot: u64,
    /// Which export it serves.
    pub export: ExportId,
    /// A random number of the forwarder's process: two addresses of one forwarder tell the same.
    pub process: u64,
    /// Where the forwarders of the export listen, as far as this one knows, in the order of their
    /// indices; only for a hello that asks. What is beyond [`LISTED_BYTES_MAX`] is left out.
    pub forwarders: Box<[Listed]>,
    /// Seats held now and their generations.
    pub held: Box<[(u16, u64)]>,
    /// The root directory of the export.
    pub root: Attr,
}

/// A random number that the first forwarder of an export has recorded in it: the same at all its
/// forwarders, and another for any other export. 0: it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExportId(pub u128);

impl core::fmt::Display for ExportId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Where a forwarder of the export listens, as it has told the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Its index in the layout.
    pub index: u16,
    /// Its addresses, as clients write them; the first is the best.
    pub addresses: Vec<Box<str>>,
}

/// First frame of the forwarder on a connection that needs a shared secret: what to prove it over.
pub type Challenge = [u8; 32];

/// The extents of one data request: nearly always one, so one costs no allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extents {
    /// The first.
    pub first: Extent,
    /// The others (list I/O), ascending and disjoint.
    pub rest: Vec<Extent>,
}

impl From<Extent> for Extents {
    fn from(first: Extent) -> Self {
        Extents {
            first,
            rest: Vec::new(),
        }
    }
}

impl Extents {
    /// All extents in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        core::iter::once(self.first).chain(self.rest.iter().copied())
    }

    /// Bytes of all extents.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.iter().fold(0u64, |sum, e| sum.saturating_add(e.len))
    }
}

/// A file name: one path component, 1 to 255 bytes, without `/` or NUL, neither `.` nor `..`.
pub type Name = Box<[u8]>;

/// Most supplementary groups of a caller.
pub const GROUPS_MAX: usize = 64;
/// Most extents of one request.
pub const EXTENTS_MAX: usize = 256;
/// Longest file name.
pub const NAME_MAX: usize = 255;
/// Longest path or symbolic link.
pub const PATH_MAX: usize = 4096;
/// Largest value of an extended attribute.
pub const XATTR_MAX: usize = 65536;
/// Longest text of a policy change, or of a change of shares.
pub const POLICY_MAX: usize = 65536;
/// Most addresses that a forwarder is listed with.
pub const ADDRESSES_MAX: usize = 16;
/// Longest of them.
pub const ADDRESS_MAX: usize = 512;
/// Bytes that the list of forwarders may take in a reply to a hello.
pub const LISTED_BYTES_MAX: usize = 64 * 1024;
/// Longest proof of a shared secret.
pub const PROOF_MAX: usize = 64;
/// Largest `bytes_max` of [`Op::Readdir`]: entries with attributes then still fit a body.
pub const READDIR_MAX: u32 = 32 * 1024;
/// Largest body of a frame.
pub const BODY_MAX: usize = 128 * 1024;
/// Largest payload that any configuration may allow.
pub const PAYLOAD_LIMIT: u32 = 16 << 20;
