//! The requests of the kernel to a mounted file system, with every field named and checked.

use super::buffer::Payload;
use super::cancel::CancelToken;
use std::ffi::OsString;

/// The node id of the mount's root directory.
pub const ROOT: u64 = 1;

/// One request of the kernel. It is answered through the [`super::Reply`] that comes with it.
#[derive(Debug)]
pub struct Request {
    /// The kernel's number of the request.
    pub unique: u64,
    /// The node of the request, by the id that the file system gave it in an entry; [`ROOT`] from
    /// the start.
    pub node: u64,
    /// The thread that made the call.
    pub caller: Caller,
    /// Cancelled when the caller no longer waits for the answer.
    pub cancel: CancelToken,
    /// The operation.
    pub operation: Operation,
    /// The bytes of a write, empty for everything else.
    pub payload: Payload,
}

/// The thread on whose behalf the kernel asks. For what the kernel does by itself (writing dirty
/// pages back, closing), these are zero or those of the last user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// User id for file system access.
    pub uid: u32,
    /// Group id for file system access.
    pub gid: u32,
    /// Thread id, or 0 when it is not visible from the process id namespace of the mount.
    pub tid: u32,
}

/// A point in time as the kernel counts it: seconds since 1970 and nanoseconds below 10^9.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timestamp {
    /// Seconds, negative before 1970.
    pub seconds: i64,
    /// Nanoseconds that follow them.
    pub nanoseconds: u32,
}

/// The value to which to set a timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The time at which it is set.
    Now,
    /// This time.
    At(Timestamp),
}

/// The attributes to change, each if present.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// The open file through which the program asks, for `ftruncate` and its like.
    pub handle: Option<u64>,
    /// Permission bits (and the file's type, unchanged).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Time of the last access.
    pub accessed: Option<SetTime>,
    /// Time of the last write.
    pub modified: Option<SetTime>,
}

/// A byte range lock or, with `whole_file`, one of `flock`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lock {
    /// The open file.
    pub handle: u64,
    /// Who holds it: a number that stands for a process (range) or an open file (`flock`).
    pub owner: u64,
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `i64::MAX` is the end of the file wherever that may be.
    pub end: u64,
    /// The kind of lock that the program asks for, or holds.
    pub kind: LockKind,
    /// Process id for F_GETLK.
    pub pid: u32,
    /// Asked by `flock`: locks of the two sorts do not see each other.
    pub whole_file: bool,
}

/// How much a lock excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// Other shared ones may be held too.
    Shared,
    /// No other.
    Exclusive,
    /// No lock: releases what the owner holds.
    Unlock,
}

/// One read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// The open file or directory.
    pub handle: u64,
    /// First byte, or for directories where the last reply ended.
    pub offset: u64,
    /// At most this many bytes.
    pub len: u32,
    /// Flags of the open file, as of now.
    pub flags: u32,
}

/// One write. Its bytes are the request's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    /// The open file.
    pub handle: u64,
    /// First byte, as the kernel believes it to be when the file is open for appending.
    pub offset: u64,
    /// Flags of the open file, as of now.
    pub flags: u32,
    /// It comes from the page cache: the offset counts even for a file open for appending.
    pub from_cache: bool,
    /// Set-user-id and set-group-id bits go, as the writer has no right to keep them.
    pub kill_suidgid: bool,
}

/// One copy inside the mount; the source is the request's node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copy {
    /// The open file to read.
    pub handle_in: u64,
    /// Its first byte.
    pub offset_in: u64,
    /// The node to write.
    pub node_out: u64,
    /// The open file to write.
    pub handle_out: u64,
    /// Its first byte.
    pub offset_out: u64,
    /// At most this many bytes.
    pub len: u64,
    /// Flags of `copy_file_range(2)`.
    pub flags: u64,
    /// The answer is a 64-bit length.
    pub(super) wide: bool,
}

/// One device control call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ioctl {
    /// The open file.
    pub handle: u64,
    /// Its command number.
    pub command: u32,
    /// The bytes that the command says are passed in.
    pub input: Vec<u8>,
    /// At most this many bytes may be passed out.
    pub output_max: u32,
}

/// What is asked of the request's node.
#[derive(Debug)]
#[expect(
    missing_docs,
    reason = "the fields of each are the arguments of the call it is named for"
)]
pub enum Operation {
    /// Finds an entry of a directory. Answered with an entry that the kernel remembers.
    Lookup { name: OsString },
    /// Attributes, of an open file if there is a handle.
    Getattr { handle: Option<u64> },
    /// Changes attributes, and answers with all of them.
    Setattr(SetAttributes),
    /// The target of a symbolic link.
    Readlink,
    /// Makes a file, pipe, socket or device; like all that create, the umask is already applied.
    Mknod {
        name: OsString,
        mode: u32,
        rdev: u32,
    },
    /// Makes a directory.
    Mkdir { name: OsString, mode: u32 },
    /// Removes anything but a directory.
    Unlink { name: OsString },
    /// Removes a directory.
    Rmdir { name: OsString },
    /// Makes a symbolic link.
    Symlink { name: OsString, target: OsString },
    /// Moves an entry; `flags` are those of `renameat2(2)`.
    Rename {
        name: OsString,
        new_parent: u64,
        new_name: OsString,
        flags: u32,
    },
    /// Makes a further name, in the request's node, of `node`.
    Link { node: u64, name: OsString },
    /// Opens a file that exists. O_CREAT, O_EXCL and O_TRUNC never arrive.
    Open { flags: u32 },
    /// Makes and opens a file; O_EXCL may be among the flags.
    Create {
        name: OsString,
        mode: u32,
        flags: u32,
    },
    /// Reads bytes.
    Read(Read),
    /// Writes the payload.
    Write(Write),
    /// A descriptor is closed, of perhaps several for the same open file.
    Flush { handle: u64, lock_owner: u64 },
    /// The open file is gone. The kernel does not wait for the answer.
    Release {
        handle: u64,
        flags: u32,
        lock_owner: u64,
        flush: bool,
        unlock: bool,
    },
    /// Makes what was written stable.
    Fsync { handle: u64, data_only: bool },
    /// Opens a directory.
    Opendir { flags: u32 },
    /// Names of a directory.
    Readdir(Read),
    /// Names and attributes of a directory. Counts as a lookup of each entry but `.` and `..`.
    Readdirplus(Read),
    /// The open directory is gone.
    Releasedir { handle: u64 },
    /// Makes a directory's entries stable.
    Fsyncdir { handle: u64, data_only: bool },
    /// Space and limits.
    Statfs,
    /// Sets an extended attribute; `flags` are those of `setxattr(2)`.
    Setxattr {
        name: OsString,
        value: Vec<u8>,
        flags: u32,
    },
    /// An extended attribute's value, or its length if `len` is 0.
    Getxattr { name: OsString, len: u32 },
    /// Names of extended attributes, each with a NUL, or their length if `len` is 0.
    Listxattr { len: u32 },
    /// Removes an extended attribute.
    Removexattr { name: OsString },
    /// Checks the caller's access rights; not sent when the kernel checks them by itself.
    Access { mask: u32 },
    /// A lock that conflicts with this one, if there is any.
    Getlk(Lock),
    /// Takes or releases a lock, if that is possible now.
    Setlk(Lock),
    /// Takes a lock, and waits until that is possible.
    Setlkw(Lock),
    /// Reserves or frees space; `mode` is that of `fallocate(2)`.
    Fallocate {
        handle: u64,
        offset: u64,
        len: u64,
        mode: u32,
    },
    /// SEEK_DATA or SEEK_HOLE.
    Lseek {
        handle: u64,
        offset: u64,
        whence: u32,
    },
    /// Copies without the bytes passing through here.
    CopyFileRange(Copy),
    /// A device control call.
    Ioctl(Ioctl),
}

impl Operation {
    /// Whether a file system must answer the operation without waiting for anything outside this
    /// process: the kernel may be making a dying process wait for it, come what may.
    pub fn is_prompt(&self) -> bool {
        matches!(
            self,
            Self::Flush { .. } | Self::Release { .. } | Self::Releasedir { .. }
        )
    }

    /// Whether any signal ends the operation, as the manual pages of the calls behind it say.
    pub(super) fn ends_with_any_signal(&self) -> bool {
        matches!(self, Self::Setlkw(_))
    }

    /// Whether the kernel may have sent the operation without a thread that waits in the call: then
    /// it sends no interrupt for it.
    pub(super) fn may_be_asynchronous(&self) -> bool {
        match self {
            Self::Read(_) => true,
            Self::Write(write) => !write.from_cache,
            _ => false,
        }
    }
}
