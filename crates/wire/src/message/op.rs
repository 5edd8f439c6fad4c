//! What a request asks, and which seat it must be asked of.

use super::{Extents, Handle, Hello, Keep, Lock, LockFamily, Name, RenameMode, SetAttr};
use alloc::boxed::Box;

/// What a request asks. The comment of each names the seat to ask: of the *parent* directory's
/// inode, of the *file*'s inode, or of the *byte*.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Opens the session; always the first frame.
    Hello(Hello),
    /// Ends the session and drops everything the client holds.
    Bye,
    /// Renews the lease.
    Ping,
    /// State of the forwarder as JSON ([`Outcome::Text`](super::Outcome::Text)).
    Status,
    /// Changes the policy at run time: TOML text as under `[scheduler]` in the configuration.
    SetPolicy {
        /// The table's text.
        text: Box<[u8]>,
        /// How long it holds.
        keep: Keep,
    },

    /// Changes the rules of who is promised what: TOML text of `[[app]]`, `[[group]]` and
    /// `[[view]]` tables as in the configuration. They replace all rules that are in force.
    SetShares {
        /// All rules, none for an empty text.
        text: Box<[u8]>,
        /// How long they hold.
        keep: Keep,
        /// The rules in force must not have been set later than that (`shares_set_ns` of the state,
        /// ns since 1970): those that the change was made from. [`u64::MAX`]: any.
        after: u64,
        /// When these are set, ns since 1970: the same at all forwarders.
        at: u64,
    },
    /// Sets the forwarder aside: it finishes what it has accepted, lets its seats go, and takes
    /// none, so that others do. EOPNOTSUPP if no other could.
    Drain {
        /// It takes its own seat again, and those of others as before.
        undo: bool,
    },
    /// Says who the application is whose id later data requests of this session carry. The user is
    /// the request's caller, else the session's.
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
    /// Unix socket. A descriptor of the memory comes with the frame (SCM_RIGHTS): a memfd that is
    /// sealed against shrinking. EOPNOTSUPP if the forwarder does not take it.
    ShareMemory {
        /// How much of it.
        bytes: u64,
    },

    /// The same on a connection through libfabric: memory that is registered there, which the
    /// forwarder reads and writes itself from now on. EOPNOTSUPP if it does not.
    RegisterMemory {
        /// How much of it.
        bytes: u64,
        /// Where it begins, in the sense of the registration: an address of the client's process
        /// with some providers, 0 with others.
        address: u64,
        /// The key of the registration.
        key: u64,
    },

    /// Tells the forwarder a path (relative to the export) of a handle it does not know. Any seat.
    Reach {
        /// The file.
        handle: Handle,
        /// Components joined by `/`, no symbolic links, empty for the root.
        path: Box<[u8]>,
    },

    /// Attributes of a name. Seat: parent.
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
        /// EEXIST if the name exists; otherwise an existing file is the result.
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
        /// What it says.
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
        /// 0, or the cookie of the last entry seen.
        cookie: u64,
        /// Most bytes of names wanted.
        bytes_max: u32,
        /// With attributes.
        plus: bool,
    },

    /// Attributes. Seat: file.
    Getattr {
        /// The file.
        handle: Handle,
    },
    /// Sets attributes; a size counts as a write of the whole file. Seat: file.
    Setattr {
        /// The file.
        handle: Handle,
        /// What to set.
        set: SetAttr,
    },
    /// Registers an open file, so that it outlives its last name. Idempotent. Seat: file.
    Open {
        /// The file.
        handle: Handle,
        /// Client's number of this open.
        open: u64,
        /// It will be read.
        read: bool,
        /// It will be written.
        write: bool,
    },
    /// Ends an open. Idempotent. Seat: file.
    Close {
        /// The file.
        handle: Handle,
        /// The open's number.
        open: u64,
    },
    /// What a symbolic link says. Seat: file.
    Readlink {
        /// The link.
        handle: Handle,
    },
    /// Asks whether the caller may; mask as access(2). Seat: file.
    Access {
        /// The file.
        handle: Handle,
        /// R_OK 4, W_OK 2, X_OK 1.
        mask: u32,
    },
    /// Makes written bytes and attributes stable, on this forwarder's node. Any seat.
    Fsync {
        /// The file.
        handle: Handle,
        /// Leave out attributes that reading does not need.
        data_only: bool,
    },
    /// The file system's state. Seat: file (of the root).
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
    /// Next data or hole: whence is SEEK_DATA 3 or SEEK_HOLE 4. Seat: file.
    Seek {
        /// The file.
        handle: Handle,
        /// Where to start.
        offset: u64,
        /// 3 or 4.
        whence: u32,
    },
    /// Reads an extended attribute. Seat: file.
    Getxattr {
        /// The file.
        handle: Handle,
        /// Attribute's name, with its prefix.
        name: Name,
    },
    /// Sets one. Seat: file.
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
    /// Lists names, each ended by NUL. Seat: file.
    Listxattr {
        /// The file.
        handle: Handle,
    },
    /// Removes one. Seat: file.
    Removexattr {
        /// The file.
        handle: Handle,
        /// Attribute's name.
        name: Name,
    },

    /// Sets, changes or releases an advisory lock. Seat: file. Not in the reply table: setting a
    /// lock twice is setting it once.
    SetLock {
        /// The file.
        handle: Handle,
        /// The lock.
        lock: Lock,
        /// Wait until it can be had (the reply comes then).
        wait: bool,
        /// Held before the seat changed hands.
        reclaim: bool,
    },
    /// Finds a lock in the way ([`Outcome::Lock`](super::Outcome::Lock)). Seat: file.
    TestLock {
        /// The file.
        handle: Handle,
        /// The lock one would like.
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
    /// Takes back a waiting [`Op::SetLock`]; its reply is EINTR unless it was granted before.
    CancelLock {
        /// Id of the request that waits.
        request: u64,
    },
    /// All opens and locks of this client on this seat have been told again.
    ReclaimDone,

    /// Reads; the reply's payload is the extents' bytes in order, short at the end of the file.
    /// Seat: byte.
    Read {
        /// The file.
        handle: Handle,
        /// What to read; all within one stripe's seat.
        extents: Extents,
    },
    /// Writes the payload to the extents in order. Seat: byte.
    Write {
        /// The file.
        handle: Handle,
        /// Where to.
        extents: Extents,
    },
    /// Writes the payload at the end of the file, in one piece. Seat: file.
    Append {
        /// The file.
        handle: Handle,
    },
}
