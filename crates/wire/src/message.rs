//! The messages between client and forwarder as types, and the bounds of what they hold.

use alloc::boxed::Box;
use alloc::vec::Vec;

mod op;
#[macro_use]
mod operations;
mod outcome;
mod pipeline;

pub use op::Op;
pub use operations::{AskedSeat, FileUse, Named, OpKind, OpSpec, ReplyKind};
pub use outcome::{Entry, Lens, Listing, Outcome, Statfs};
pub use pipeline::{CHUNK_MIN, Pipeline, Pipelining};

/// Identity of a file on the back end. A rename does not change it. `birth` tells two files apart
/// that had the same inode number one after the other.
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

/// The user on whose behalf a client asks for an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups, in a request at most [`GROUPS_MAX`].
    pub groups: Box<[u32]>,
}

impl Caller {
    /// A user without supplementary groups.
    pub fn alone(uid: u32, gid: u32) -> Caller {
        let groups = Box::default();
        Caller { uid, gid, groups }
    }
}

/// What a data request tells the forwarder's scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Application id: a 64-bit hash of the application's name.
    pub app: u64,
    /// Number of the operation within the client.
    pub operation: u64,
    /// Bytes of the whole operation.
    pub operation_bytes: u64,
    /// Of the operation's bytes, the largest number that goes to one forwarder.
    pub operation_bytes_max: u64,
    /// The client's wall clock, ns since 1970, corrected by the offset that the hello measured. All
    /// requests of an operation carry the same value.
    pub stamp_ns: u64,
    /// Wall-clock deadline in ns since 1970, 0 for none.
    pub deadline_ns: u64,
    /// Device time that other forwarders charged to the application since the client's last request
    /// of this application to this forwarder, ns. 0 in the first such request.
    pub charged_elsewhere_ns: u64,
    /// Device time that this forwarder charged to the application in the same span, ns, as far as
    /// the client has the replies.
    pub charged_here_ns: u64,
    /// Bytes that other forwarders served to the application in the same span.
    pub bytes_elsewhere: u64,
    /// Accesses that other forwarders served to the application in the same span. An access has one
    /// extent.
    pub operations_elsewhere: u32,
    /// Length of that span, ms, at most 65,535.
    pub away_ms: u16,
    /// How long the shuffle that follows the request takes, in microseconds. The operation is done
    /// when all its shuffles are.
    pub shuffle_us: u32,
    /// The longest shuffle of all requests of the operation, whichever client sends them, in
    /// microseconds.
    pub shuffle_max_us: u32,
    /// How many aggregators of the operation have a longer shuffle than this request's.
    pub shuffle_rank: u16,
}

/// A reply slot of a seat's reply table, which the client chooses. The client has at most one
/// outstanding request for each reply slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplySlot {
    /// Index within the client's reply slots of that seat, below [`HelloReply::reply_slots`].
    pub index: u16,
    /// Number of the request among those of the reply slot, from 1.
    pub sequence: u64,
}

/// A request from a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Grows from request to request of the client. A request that the client sends again keeps its
    /// id.
    pub id: u64,
    /// The seat that the client asks; 0 for session operations.
    pub seat: u16,
    /// Present exactly for operations that change something ([`Op::mutates`]). The forwarder
    /// records the operation there.
    pub reply_slot: Option<ReplySlot>,
    /// The seat's generation that the client has seen last; 0 if it has seen none.
    pub generation: u64,
    /// Highest epoch that the client has seen.
    pub epoch: u64,
    /// Whether the client may have sent the request before.
    pub replay: bool,
    /// On whose behalf the client asks; None for the user of the session.
    pub caller: Option<Caller>,
    /// Present for data operations.
    pub hints: Option<Hints>,
    /// What the client asks for.
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
    /// Generation of the seat; 0 if the forwarder does not hold the seat.
    pub generation: u64,
    /// The forwarder's current epoch.
    pub epoch: u64,
    /// Device time that the forwarder charges to the application for the request, ns.
    pub charged_ns: u64,
    /// What the request yields, or why it yields nothing.
    pub result: Result<Outcome, Status>,
    /// Bytes of payload that follow the body (read).
    pub payload_len: u32,
    /// What of the answer stays true for a while.
    pub lent: Lent,
}

/// What a forwarder lends with a reply: for [`HelloReply::loan_ms`] from when the client sent the
/// request, what the reply says stays true, unless the forwarder recalls it before, the client
/// changes it itself, or the session ends. Of a directory it lends the attributes and names, of
/// other files the attributes, but for the time of the last access.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lent {
    /// What the reply says of the first file of the request, also that a name is not there.
    pub asked: bool,
    /// What the reply says of the file in its [`Outcome::Attr`], where the request named it by a
    /// directory.
    pub found: bool,
    /// The attributes of the directory in which the request has changed names, after the change.
    pub directory: Option<Box<Attr>>,
}

/// Why a forwarder did not serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The operation's errno (1..4096), as Linux on x86-64 numbers it.
    Errno(u16),
    /// The forwarder does not hold the seat. The client asks another one.
    NotMySeat,
    /// The forwarder cannot find the file by its handle. The client sends [`Op::ResolvePath`] with
    /// a path, then the request again.
    UnknownHandle,
    /// The seat has changed hands; the reply has its generation. The client re-opens its files and
    /// reclaims its locks, then sends the request again.
    NewGeneration,
    /// Clients are reclaiming locks, or a table or buffer is full. The client sends the request
    /// again later.
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
    /// Preferred size of an access, bytes.
    pub block_size: u32,
}

/// A point in time that a client sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// ns since 1970.
    At(i64),
    /// The time of the back end's clock when it sets the attribute.
    Now,
}

/// Attributes that a client sets. Those that are None stay as they are.
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

/// The two families of advisory locks. Locks of one family never conflict with those of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockFamily {
    /// POSIX byte-range locks (fcntl).
    Range,
    /// Whole-file locks (flock).
    Whole,
}

/// Which locks of others a lock allows on the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockKind {
    /// Other shared locks.
    Shared,
    /// Nothing.
    Exclusive,
    /// No lock: releases the range.
    None,
}

/// An advisory lock that a client asks for or holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Which family.
    pub family: LockFamily,
    /// Shared, exclusive or release.
    pub kind: LockKind,
    /// Owner of the lock within the client (the kernel's lock owner).
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
    /// RENAME_WHITEOUT: an existing target is replaced, and a character device 0/0 takes the old
    /// name, by which the layers of an overlay know that it is gone.
    Whiteout = 3,
}

/// How long a policy, or rules of shares, stay in effect that an operator sets at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Until the forwarder ends.
    Run = 0,
    /// Until they are set again: the forwarder stores them in the export, and forwarders read them
    /// from there at their next start.
    Saved = 1,
    /// Those of the configuration come into effect again, and the forwarder removes what the export
    /// has stored. The request carries no text.
    Configured = 2,
}

/// The first request on a connection: who the client is, and what it would like to agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Highest protocol version that the client speaks.
    pub version: u8,
    /// Random id of the client, the same for all its connections and reconnects, never 0.
    pub client: u64,
    /// Number of the session, which grows with each new session of this client at this forwarder.
    /// The forwarder closes the connections of the client's older sessions.
    pub incarnation: u64,
    /// Whether this is a further connection of the session that has this incarnation already.
    pub joins: bool,
    /// Whether the client only asks who the forwarder is, and which others it knows. The forwarder
    /// then opens no session, and closes the connection after its reply.
    pub asks: bool,
    /// Whether the client takes what forwarders lend ([`Lent`]), and gives it back when they recall
    /// it.
    pub borrows: bool,
    /// Client's wall clock when this was sent, ns since 1970.
    pub wall_ns: u64,
    /// Largest payload that the client wants to send or receive in one frame, bytes.
    pub payload_max: u32,
    /// How the client wants to move transfers that are longer than a chunk.
    pub pipeline: Pipeline,
    /// User id of the user whom the client serves.
    pub uid: u32,
    /// Group id of that user.
    pub gid: u32,
    /// Name for logs and `tidegate stat`, for example host:pid.
    pub name: Box<[u8]>,
}

/// The forwarder's answer to a [`Hello`]: who it is, and what it grants to the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloReply {
    /// The protocol version of the session: the highest that both know.
    pub version: u8,
    /// This forwarder's index in the layout.
    pub forwarder: u16,
    /// Number of seats of the layout.
    pub seats: u16,
    /// Bytes of one stripe of the layout.
    pub stripe: u64,
    /// Largest payload of one frame, bytes.
    pub payload_max: u32,
    /// How transfers of this session move; at most what the client wants.
    pub pipeline: Pipeline,
    /// Requests that the session may have outstanding, on all its connections together.
    pub credits: u32,
    /// How many connections are of use to the session. The forwarder may still refuse to open one.
    pub connections: u16,
    /// Reply slots that the client may use on each seat.
    pub reply_slots: u16,
    /// Whether the forwarder had no state of this client. The client must then re-open its files
    /// and reclaim its locks.
    pub fresh: bool,
    /// How long the client's locks and opens outlive its connection, ms.
    pub lease_ms: u32,
    /// How long what a reply lends stays true, ms; 0 if the forwarder lends nothing.
    pub loan_ms: u32,
    /// Forwarder's wall clock, ns since 1970.
    pub wall_ns: u64,
    /// Identity of the place where acknowledged bytes lie until they are synced. The place is a
    /// node's page cache of one file system, or the back end itself, which then is one place for
    /// all forwarders.
    pub host: u64,
    /// Identity of one life of that place, such as the boot of a node. Unsynced bytes of an
    /// earlier life are lost.
    pub boot: u64,
    /// Which export it serves.
    pub export: ExportId,
    /// A random number of the forwarder's process. Two addresses with the same number lead to the
    /// same forwarder.
    pub process: u64,
    /// Where the forwarders of the export listen, as far as this one knows, in order of index; only
    /// for a hello that [`asks`](Hello::asks). The forwarder leaves out what exceeds
    /// [`LISTED_BYTES_MAX`].
    pub forwarders: Box<[Listed]>,
    /// Seats that the forwarder holds now, each with its generation.
    pub held: Box<[(u16, u64)]>,
    /// The root directory of the export.
    pub root: Attr,
}

/// A random number that identifies an export; 0 if the export has none. The export's first
/// forwarder stores it there, and all forwarders of the export report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExportId(pub u128);

impl core::fmt::Display for ExportId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Where a forwarder of the export listens, as it has told the other forwarders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// The forwarder's index in the layout.
    pub index: u16,
    /// Its addresses, as clients write them, the best first.
    pub addresses: Vec<Box<str>>,
}

/// The extents of one data request. A single one, which is the usual case, costs no allocation.
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
pub const GROUPS_MAX: usize = 1024;
/// Most extents of one request.
pub const EXTENTS_MAX: usize = 256;
/// Longest file name, bytes.
pub const NAME_MAX: usize = 255;
/// Longest symbolic link, and longest path of one call to a kernel, bytes.
pub const PATH_MAX: usize = 4096;
/// Longest path by which a client tells a forwarder where a file is, bytes.
pub const WALK_MAX: usize = 65_536;
/// Largest value of an extended attribute, bytes.
pub const XATTR_MAX: usize = 65536;
/// Longest text of a policy change, or of a change of shares, bytes.
pub const POLICY_MAX: usize = 65536;
/// Most addresses in one [`Listed`].
pub const ADDRESSES_MAX: usize = 16;
/// Longest address in a [`Listed`], bytes.
pub const ADDRESS_MAX: usize = 512;
/// Bytes that the list of forwarders may take in a reply to a hello.
pub const LISTED_BYTES_MAX: usize = 64 * 1024;
/// Largest `bytes_max` of [`Op::Readdir`]. So many bytes of names, with attributes, fit a body.
pub const READDIR_MAX: u32 = 32 * 1024;
/// Most extended attributes that an [`Op::Readdir`] asks for.
pub const LISTED_XATTRS_MAX: usize = 4;
/// Largest body of a frame, bytes.
pub const BODY_MAX: usize = 128 * 1024;
/// Largest payload of a frame that any configuration may allow, bytes.
pub const PAYLOAD_LIMIT: u32 = 16 << 20;
