//! What a served request yields.

use super::{Attr, FileKind, Handle, HelloReply, Lock, Name, ReplyKind};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// What a served request yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done, nothing to say.
    Done,
    /// Session granted.
    Hello(Box<HelloReply>),
    /// Lookup, create, mkdir, mknod, symlink, link, getattr, setattr, open, reach.
    Attr(Attr),
    /// Unlink, rmdir, rename: the file that lost its (target) name, if any.
    Removed(Option<Handle>),
    /// Readlink, getxattr, listxattr, status.
    Text(Box<[u8]>),
    /// Readdir. Empty at the end.
    Entries(Vec<Entry>),
    /// Read: number of bytes of each extent that exist; payload is exactly their sum.
    Data {
        /// Bytes per extent.
        lens: Lens,
    },
    /// Write, copy: bytes written.
    Written {
        /// Bytes.
        len: u64,
    },
    /// Append: where the bytes went, and the new size.
    Appended {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Seek.
    Offset(u64),
    /// Statfs.
    Statfs(Statfs),
    /// TestLock: the lock in the way, if any.
    Lock(Option<Lock>),
}

impl Outcome {
    /// Which outcome it is.
    pub fn kind(&self) -> ReplyKind {
        match self {
            Outcome::Done => ReplyKind::Done,
            Outcome::Hello(_) => ReplyKind::Hello,
            Outcome::Attr(_) => ReplyKind::Attr,
            Outcome::Removed(_) => ReplyKind::Removed,
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

    /// Bytes of payload that follow the reply: those of a read.
    #[inline]
    pub fn payload_len(&self) -> u64 {
        if let Outcome::Data { lens } = self {
            lens.bytes()
        } else {
            0
        }
    }
}

/// Bytes read for each extent of a read; one costs no allocation.
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

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name; `.` and `..` are not listed.
    pub name: Name,
    /// Inode number.
    pub inode: u64,
    /// `d_type`.
    pub kind: FileKind,
    /// Where to go on after this entry.
    pub cookie: u64,
    /// Attributes, if asked for and the file still exists.
    pub attr: Option<Attr>,
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
