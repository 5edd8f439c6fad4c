//! Operations as bytes: their codes, their arguments, and what a reply to each holds.

mod decode;
mod encode;

pub(super) use decode::decode_op;
pub(super) use encode::encode_op;

use crate::message::Op;

/// What the body of a reply without error holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Yields {
    Done,
    Hello,
    Attr,
    Removed,
    Text,
    Entries,
    Data,
    Written,
    Appended,
    Offset,
    Statfs,
    Lock,
}

const HELLO: u8 = 1;
const BYE: u8 = 2;
const PING: u8 = 3;
const STATUS: u8 = 4;
const SET_POLICY: u8 = 5;
const REACH: u8 = 6;
const SET_SHARES: u8 = 7;
const APPLICATION: u8 = 8;
const SHARE_MEMORY: u8 = 9;
const REGISTER_MEMORY: u8 = 10;
const DRAIN: u8 = 11;
const LOOKUP: u8 = 16;
const CREATE: u8 = 17;
const MKDIR: u8 = 18;
const MKNOD: u8 = 19;
const SYMLINK: u8 = 20;
const LINK: u8 = 21;
const UNLINK: u8 = 22;
const RMDIR: u8 = 23;
const RENAME: u8 = 24;
const READDIR: u8 = 25;
const GETATTR: u8 = 32;
const SETATTR: u8 = 33;
const OPEN: u8 = 34;
const CLOSE: u8 = 35;
const READLINK: u8 = 36;
const ACCESS: u8 = 37;
/// The code of fsync, which asks no seat.
pub const FSYNC: u8 = 38;
const STATFS: u8 = 39;
const FALLOCATE: u8 = 40;
const COPY_RANGE: u8 = 41;
const SEEK: u8 = 42;
const GETXATTR: u8 = 43;
const SETXATTR: u8 = 44;
const LISTXATTR: u8 = 45;
const REMOVEXATTR: u8 = 46;
const SET_LOCK: u8 = 64;
const TEST_LOCK: u8 = 65;
const DROP_LOCKS: u8 = 66;
const CANCEL_LOCK: u8 = 67;
const RECLAIM_DONE: u8 = 68;
const READ: u8 = 80;
const WRITE: u8 = 81;
const APPEND: u8 = 82;

/// The op code of an operation.
pub fn op_code(op: &Op) -> u8 {
    match op {
        Op::Hello(_) => HELLO,
        Op::Bye => BYE,
        Op::Ping => PING,
        Op::Status => STATUS,
        Op::SetPolicy { .. } => SET_POLICY,
        Op::Drain { .. } => DRAIN,
        Op::Reach { .. } => REACH,
        Op::SetShares { .. } => SET_SHARES,
        Op::Application { .. } => APPLICATION,
        Op::ShareMemory { .. } => SHARE_MEMORY,
        Op::RegisterMemory { .. } => REGISTER_MEMORY,
        Op::Lookup { .. } => LOOKUP,
        Op::Create { .. } => CREATE,
        Op::Mkdir { .. } => MKDIR,
        Op::Mknod { .. } => MKNOD,
        Op::Symlink { .. } => SYMLINK,
        Op::Link { .. } => LINK,
        Op::Unlink { .. } => UNLINK,
        Op::Rmdir { .. } => RMDIR,
        Op::Rename { .. } => RENAME,
        Op::Readdir { .. } => READDIR,
        Op::Getattr { .. } => GETATTR,
        Op::Setattr { .. } => SETATTR,
        Op::Open { .. } => OPEN,
        Op::Close { .. } => CLOSE,
        Op::Readlink { .. } => READLINK,
        Op::Access { .. } => ACCESS,
        Op::Fsync { .. } => FSYNC,
        Op::Statfs => STATFS,
        Op::Fallocate { .. } => FALLOCATE,
        Op::CopyRange { .. } => COPY_RANGE,
        Op::Seek { .. } => SEEK,
        Op::Getxattr { .. } => GETXATTR,
        Op::Setxattr { .. } => SETXATTR,
        Op::Listxattr { .. } => LISTXATTR,
        Op::Removexattr { .. } => REMOVEXATTR,
        Op::SetLock { .. } => SET_LOCK,
        Op::TestLock { .. } => TEST_LOCK,
        Op::DropLocks { .. } => DROP_LOCKS,
        Op::CancelLock { .. } => CANCEL_LOCK,
        Op::ReclaimDone => RECLAIM_DONE,
        Op::Read { .. } => READ,
        Op::Write { .. } => WRITE,
        Op::Append { .. } => APPEND,
    }
}

/// What an operation's reply holds; None for an unknown code.
pub(super) fn yields(code: u8) -> Option<Yields> {
    Some(match code {
        HELLO => Yields::Hello,
        BYE | PING | SET_POLICY | SET_SHARES | DRAIN | APPLICATION | SHARE_MEMORY
        | REGISTER_MEMORY | CLOSE | ACCESS | FSYNC | FALLOCATE | SETXATTR | REMOVEXATTR
        | SET_LOCK | DROP_LOCKS | CANCEL_LOCK | RECLAIM_DONE => Yields::Done,
        STATUS | READLINK | GETXATTR | LISTXATTR => Yields::Text,
        REACH | LOOKUP | CREATE | MKDIR | MKNOD | SYMLINK | LINK | GETATTR | SETATTR | OPEN => {
            Yields::Attr
        }
        UNLINK | RMDIR | RENAME => Yields::Removed,
        READDIR => Yields::Entries,
        STATFS => Yields::Statfs,
        COPY_RANGE | WRITE => Yields::Written,
        SEEK => Yields::Offset,
        TEST_LOCK => Yields::Lock,
        READ => Yields::Data,
        APPEND => Yields::Appended,
        _ => return None,
    })
}

/// Whether the code is an operation's.
pub(super) fn op_is_known(code: u8) -> bool {
    yields(code).is_some()
}
