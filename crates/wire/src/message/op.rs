//! The operations that a client can ask for, with their arguments.

use super::{Extents, Handle, Hello, Keep, Lock, LockFamily, Name, RenameMode, SetAttr};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// An operation that a client asks for. Its comment names the seat that the client asks: *parent*
/// is the seat of the parent directory's inode, *file* that of the file's inode, and *byte* that of
/// the first byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Opens a session. Always the first request on a connection.
    Hello(Hello),
    /// Ends the session. The forwarder drops all that the client holds.
    Bye,
    /// Renews the client's lease.
    Ping,
    /// State of the forwarder as JSON ([`Outcome::Text`](super::Outcome::Text)).
    Status,
    /// Sets the scheduling policy at run time, as TOML text, as under `[scheduler]` in the
    /// configuration.
    SetPolicy {
        /// The table's text.
        text: Box<[u8]>,
        /// How long the policy stays in effect.
        keep: Keep,
    },

    /// Replaces all rules of shares at run time, as TOML text with `[[app]]`, `[[group]]` and
    /// `[[view]]` tables as in the configuration.
    SetShares {
        /// All rules. An empty text means that there are none.
        text: Box<[u8]>,
        /// How long the rules stay in effect.
        keep: Keep,
        /// When the rules were set from which the change was made: `shares_set_ns` of the status,
        /// ns since 1970. The forwarder refuses with ESTALE if its effective rules were set later.
        /// [`u64::MAX`]: it never refuses for this reason.
        after: u64,
        /// When these rules were set, ns since 1970; the same at all forwarders.
        at: u64,
    },
    /// Takes the forwarder out of service: it finishes the requests that it has accepted, releases
    /// its seats and takes no others, so that other forwarders take them. EOPNOTSUPP if no other
    /// forwarder could.
    Drain {
        /// Puts the forwarder back into service: it takes its own seat again, and stands in for
        /// others as before.
        undo: bool,
    },
    /// Gives back what a forwarder has lent of a file and recalls ([`Lent`](super::Lent)). A notice
    /// with this operation is the recall. It needs no credit, since others wait for it, and the
    /// forwarder answers it at once.
    GiveBack {
        /// The file.
        handle: Handle,
    },
    /// Describes the application whose id later data requests of this session carry. Its user is
    /// the request's caller, or else the user of the session.
    Application {
        /// The hash of `name`.
        app: u64,
        /// Its name.
        name: Box<[u8]>,
        /// The batch system's job, empty if there is none.
        job: Box<[u8]>,
        /// The project or account that the job counts for, empty if there is none.
        project: Box<[u8]>,
    },

    /// Offers memory for the payload of later reads and writes of this connection, which must be a
    /// Unix socket. The client passes a descriptor of the memory with the frame (SCM_RIGHTS): a
    /// memfd that is sealed against shrinking. EOPNOTSUPP if the forwarder does not take it.
    ShareMemory {
        /// Length of the memory.
        bytes: u64,
    },

    /// Offers memory for the payload of later reads and writes of this connection, which must go
    /// through libfabric. The client has registered the memory there, and the forwarder reads and
    /// writes it by remote access. EOPNOTSUPP if the forwarder does not take it.
    RegisterMemory {
        /// Length of the memory.
        bytes: u64,
        /// Where the memory begins for remote access: an address of the client's process with some
        /// providers, 0 with others.
        address: u64,
        /// The key of the memory's registration.
        key: u64,
    },

    /// Tells the forwarder a path, relative to the export, of a file whose handle it does not know.
    /// Any seat.
    ResolvePath {
        /// The file.
        handle: Handle,
        /// Components joined by `/`, no symbolic links, empty for the root.
        path: Box<[u8]>,
    },

    /// Gets the attributes of the file that a name leads to. Seat: parent.
    Lookup {
        /// Directory.
        parent: Handle,
        /// Name in it.
        name: Name,
    },
    /// Creates a regular file. Seat: parent.
    Create {
        /// Directory.
        parent: Handle,
        /// New name.
        name: Name,
        /// Permission bits.
        mode: u32,
        /// Fails with EEXIST if the name exists. Without it an existing file is the result.
        exclusive: bool,
    },
    /// Creates a directory. Seat: parent.
    Mkdir {
        /// Directory.
        parent: Handle,
        /// New name.
        name: Name,
        /// Permission bits.
        mode: u32,
    },
    /// Creates a fifo, socket, device or regular file. Seat: parent.
    Mknod {
        /// Directory.
        parent: Handle,
        /// New name.
        name: Name,
        /// Type and permission bits.
        mode: u32,
        /// Device number.
        rdev: u32,
    },
    /// Creates a symbolic link. Seat: parent.
    Symlink {
        /// Directory.
        parent: Handle,
        /// New name.
        name: Name,
        /// What the link leads to.
        target: Box<[u8]>,
    },
    /// Gives a file another name. Seat: (new) parent.
    Link {
        /// The file.
        handle: Handle,
        /// Directory of the new name.
        parent: Handle,
        /// New name.
        name: Name,
    },
    /// Removes a name of a file that is no directory. Seat: parent.
    Unlink {
        /// Directory.
        parent: Handle,
        /// Name in it.
        name: Name,
    },
    /// Removes an empty directory. Seat: parent.
    Rmdir {
        /// Directory.
        parent: Handle,
        /// Name in it.
        name: Name,
    },
    /// Moves a name. Seat: (old) parent.
    Rename {
        /// Old directory.
        parent: Handle,
        /// Old name.
        name: Name,
        /// New directory.
        new_parent: Handle,
        /// New name.
        new_name: Name,
        /// What may happen to an existing target.
        mode: RenameMode,
    },
    /// Lists a directory. Seat: file (the directory's own inode).
    Readdir {
        /// Directory.
        handle: Handle,
        /// 0, or the cookie of the last entry that the client has.
        cookie: u64,
        /// Most bytes of names that the client wants.
        bytes_max: u32,
        /// Whether entries have attributes.
        plus: bool,
        /// Extended attributes of which the client wants to know which entries lack them; none
        /// where entries have no attributes.
        xattrs: Vec<Name>,
    },

    /// Gets attributes. Seat: file.
    Getattr {
        /// The file.
        handle: Handle,
    },
    /// Sets attributes. Setting the size counts as a write of the whole file. Seat: file.
    Setattr {
        /// The file.
        handle: Handle,
        /// What to set.
        set: SetAttr,
    },
    /// Registers an open file, so that the file outlives its last name. Idempotent. Seat: file.
    Open {
        /// The file.
        handle: Handle,
        /// The client's number of this open.
        open: u64,
        /// The client will read the file.
        read: bool,
        /// The client will write the file.
        write: bool,
    },
    /// Ends an open. Idempotent. Seat: file.
    Close {
        /// The file.
        handle: Handle,
        /// The client's number of the open.
        open: u64,
    },
    /// Reads what a symbolic link leads to. Seat: file.
    Readlink {
        /// The link.
        handle: Handle,
    },
    /// Asks whether the caller may access the file, as access(2). Seat: file.
    Access {
        /// The file.
        handle: Handle,
        /// R_OK 4, W_OK 2, X_OK 1.
        mask: u32,
    },
    /// Makes bytes and attributes durable that were written through this forwarder's node. Any
    /// seat.
    Fsync {
        /// The file.
        handle: Handle,
        /// Leaves out attributes that reading does not need, as fdatasync(2).
        data_only: bool,
    },
    /// Gets the state of the file system, as statvfs(3). Seat: file (the export's root).
    Statfs,
    /// fallocate(2). Seat: file.
    Fallocate {
        /// The file.
        handle: Handle,
        /// Flags of fallocate(2).
        mode: u32,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// copy_file_range(2). Seat: file (the target).
    CopyRange {
        /// Source file.
        source: Handle,
        /// First byte read.
        source_offset: u64,
        /// Target file.
        handle: Handle,
        /// First byte written.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Finds the next data or hole, as lseek(2). Seat: file.
    Seek {
        /// The file.
        handle: Handle,
        /// Where to start.
        offset: u64,
        /// SEEK_DATA 3 or SEEK_HOLE 4.
        whence: u32,
    },
    /// Reads an extended attribute. Seat: file.
    Getxattr {
        /// The file.
        handle: Handle,
        /// Attribute's name, with its prefix.
        name: Name,
    },
    /// Sets an extended attribute. Seat: file.
    Setxattr {
        /// The file.
        handle: Handle,
        /// Attribute's name.
        name: Name,
        /// Its value.
        value: Box<[u8]>,
        /// XATTR_CREATE 1, XATTR_REPLACE 2, or 0.
        flags: u32,
    },
    /// Lists the names of extended attributes, each ended by NUL. Seat: file.
    Listxattr {
        /// The file.
        handle: Handle,
    },
    /// Removes an extended attribute. Seat: file.
    Removexattr {
        /// The file.
        handle: Handle,
        /// Attribute's name.
        name: Name,
    },

    /// Sets, changes or releases an advisory lock. Seat: file. It needs no reply slot, because a
    /// lock that is set twice is the same as set once.
    SetLock {
        /// The file.
        handle: Handle,
        /// The lock.
        lock: Lock,
        /// The forwarder replies when it has granted the lock. Without it a lock that conflicts
        /// is an error.
        wait: bool,
        /// The client held the lock before the seat changed hands.
        reclaim: bool,
    },
    /// Finds a lock that conflicts with this one ([`Outcome::Lock`](super::Outcome::Lock)). Seat:
    /// file.
    TestLock {
        /// The file.
        handle: Handle,
        /// The lock that the client would like to set.
        lock: Lock,
    },
    /// Releases every lock of an owner on a file. Seat: file.
    DropLocks {
        /// The file.
        handle: Handle,
        /// Which family.
        family: LockFamily,
        /// The owner.
        owner: u64,
    },
    /// Cancels an [`Op::SetLock`] that waits. The forwarder answers that request with EINTR, unless
    /// it has granted the lock before.
    CancelLock {
        /// Id of the request that waits.
        request: u64,
    },
    /// Says that the client has re-opened all its files and reclaimed all its locks at this seat.
    ReclaimDone,

    /// Reads extents. The reply's payload holds their bytes in order, fewer where the file ends.
    /// Seat: byte.
    Read {
        /// The file.
        handle: Handle,
        /// What to read; one seat must be in charge of all of it.
        extents: Extents,
    },
    /// Writes the payload to the extents in order. Seat: byte.
    Write {
        /// The file.
        handle: Handle,
        /// Where to write; one seat must be in charge of all of it.
        extents: Extents,
    },
    /// Writes the payload at the end of the file, in one piece. Seat: file.
    Append {
        /// The file.
        handle: Handle,
    },
}
