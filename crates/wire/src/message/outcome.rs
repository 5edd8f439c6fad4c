//! What a served request yields.

use super::{Attr, FileKind, Handle, HelloReply, Lock, Name, ReplyKind};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// What a served request yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The operation is done and yields nothing.
    Done,
    /// Hello.
    Hello(Box<HelloReply>),
    /// Lookup, create, mkdir, mknod, symlink, link, getattr, setattr, open, reach.
    Attr(Attr),
    /// Unlink, rmdir, rename: the file that lost its name, for a rename the one that the target
    /// name led to; None if there was none.
    Removed(Option<Handle>),
    /// In a notice: the file of which the forwarder recalls what it has lent. None in the reply to
    /// what a client gives back.
    Recalled(Option<Handle>),
    /// Readlink, getxattr, listxattr, status.
    Text(Box<[u8]>),
    /// Readdir.
    Entries(Listing),
    /// Read: for each extent the number of bytes that exist. The payload has exactly their sum.
    Data {
        /// Bytes per extent.
        lens: Lens,
    },
    /// Write, copy: bytes written.
    Written {
        /// Bytes.
        len: u64,
    },
    /// Append: where the bytes are.
    Appended {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Seek: the offset found.
    Offset(u64),
    /// Statfs.
    Statfs(Statfs),
    /// TestLock: the lock that conflicts, if any.
    Lock(Option<Lock>),
}

impl Outcome {
    /// The outcome's kind.
    pub fn kind(&self) -> ReplyKind {
        match self {
            Outcome::Done => ReplyKind::Done,
            Outcome::Hello(_) => ReplyKind::Hello,
            Outcome::Attr(_) => ReplyKind::Attr,
            Outcome::Removed(_) => ReplyKind::Removed,
            Outcome::Recalled(_) => ReplyKind::Recalled,
            Outcome::Text(_) => ReplyKind::Text,
            Outcome::Entries(_) => ReplyKind::Entries,
            Outcome::Data { .. } => ReplyKind::Data,
            Outcome::Written { .. } => ReplyKind::Written,
            Outcome::Appended { .. } => ReplyKind::Appended,
            Outcome::Offset(_) => ReplyKind::Offset,
            Outcome::Statfs(_) => ReplyKind::Statfs,
            Outcome::Lock(_) => ReplyKind::Lock,
        }
    }

    /// Bytes of payload that follow the reply; 0 for all but reads.
    #[inline]
    pub fn payload_len(&self) -> u64 {
        if let Outcome::Data { lens } = self {
            lens.bytes()
        } else {
            0
        }
    }
}

/// The number of bytes read for each extent of a read. A single extent costs no allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lens {
    /// Of the first extent.
    pub first: u32,
    /// Of the others.
    pub rest: Vec<u32>,
}

impl Lens {
    /// All lengths in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        core::iter::once(self.first).chain(self.rest.iter().copied())
    }

    /// Bytes of all extents.
    pub fn bytes(&self) -> u64 {
        self.iter().map(u64::from).sum()
    }
}

/// Some entries of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// In the directory's order; none at its end.
    pub entries: Vec<Entry>,
    /// Whether there are none behind them.
    pub ended: bool,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name; `.` and `..` are not listed.
    pub name: Name,
    /// Inode number.
    pub inode: u64,
    /// `d_type`.
    pub kind: FileKind,
    /// What the next Readdir names to continue after this entry.
    pub cookie: u64,
    /// Attributes, if the client asked for them, the file still exists and the caller may look it
    /// up.
    pub attr: Option<Attr>,
    /// The extended attributes that the file lacks, of those that were asked for: the first one is
    /// bit 0.
    pub lacks: u8,
    /// Whether the forwarder lends the client what `attr` and `lacks` say ([`Lent`](super::Lent)).
    pub lent: bool,
}

/// State of the file system, as statvfs(3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statfs {
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for users.
    pub blocks_available: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Longest name.
    pub name_max: u32,
}
