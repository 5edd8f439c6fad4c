//! The bytes of the FUSE kernel protocol, versions 7.31 to 7.45, in the machine's own byte order.
//!
//! Names follow `linux/fuse.h` without its prefix. Every structure has its padding spelled out, so
//! that it can be copied from and to the device as it lies in memory.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The only major version there is in use.
pub(super) const MAJOR: u32 = 7;
/// The newest minor version this code knows.
pub(super) const MINOR_MAX: u32 = 45;
/// The oldest minor version this code works with (Linux 5.9).
pub(super) const MINOR_MIN: u32 = 31;

/// Requests, by `fuse_opcode`.
pub(super) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const GETLK: u32 = 31;
    pub(crate) const SETLK: u32 = 32;
    pub(crate) const SETLKW: u32 = 33;
    pub(crate) const ACCESS: u32 = 34;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const COPY_FILE_RANGE_64: u32 = 53;
}

/// Capabilities of the INIT exchange; bits from 32 on travel in `flags2`.
pub(super) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const POSIX_LOCKS: u64 = 1 << 1;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const FLOCK_LOCKS: u64 = 1 << 10;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
}

/// `fuse_setattr_in.valid`.
pub(super) mod valid {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const FH: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
}

pub(super) const GETATTR_FH: u32 = 1 << 0;
pub(super) const FSYNC_FDATASYNC: u32 = 1 << 0;
pub(super) const LK_FLOCK: u32 = 1 << 0;
pub(super) const RELEASE_FLUSH: u32 = 1 << 0;
pub(super) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
pub(super) const WRITE_CACHE: u32 = 1 << 0;
pub(super) const WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// Declares structures that lie in memory as they travel.
macro_rules! records {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        pub(super) struct $name { $(pub(super) $field: $kind,)* }
    )*};
}

/// What a message without a request says, in the place of the error.
pub(super) mod notice {
    pub(in crate::fuse) const INVALID_INODE: i32 = 2;
}

records! {
    /// Before every request.
    InHeader {
        len: u32, opcode: u32, unique: u64, node: u64,
        uid: u32, gid: u32, pid: u32, extensions_len: u16, padding: u16,
    }
    /// Before every reply; `error` is 0 or a negated errno.
    OutHeader { len: u32, error: i32, unique: u64, }

    /// The part of INIT that every kernel sends.
    InitIn { major: u32, minor: u32, readahead_max: u32, flags: u32, }
    InitOut {
        major: u32, minor: u32, readahead_max: u32, flags: u32,
        background_max: u16, congestion_threshold: u16, write_max: u32,
        time_granularity: u32, pages_max: u16, map_alignment: u16, flags2: u32,
        unused: [u32; 7],
    }
    InterruptIn { unique: u64, }
    ForgetIn { lookups: u64, }
    ForgetOne { node: u64, lookups: u64, }
    BatchForgetIn { count: u32, padding: u32, }

    Attr {
        inode: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64,
        atime_ns: u32, mtime_ns: u32, ctime_ns: u32, mode: u32, nlink: u32,
        uid: u32, gid: u32, rdev: u32, block_size: u32, flags: u32,
    }
    EntryOut {
        node: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_ns: u32, attr_valid_ns: u32, attr: Attr,
    }
    AttrOut { attr_valid: u64, attr_valid_ns: u32, padding: u32, attr: Attr, }
    GetattrIn { flags: u32, padding: u32, handle: u64, }
    SetattrIn {
        valid: u32, padding: u32, handle: u64, size: u64, lock_owner: u64,
        atime: i64, mtime: i64, ctime: i64, atime_ns: u32, mtime_ns: u32, ctime_ns: u32,
        mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }

    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, }
    MkdirIn { mode: u32, umask: u32, }
    RenameIn { new_parent: u64, }
    Rename2In { new_parent: u64, flags: u32, padding: u32, }
    LinkIn { node: u64, }
    OpenIn { flags: u32, open_flags: u32, }
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    OpenOut { handle: u64, open_flags: u32, padding: u32, }
    ReleaseIn { handle: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    FlushIn { handle: u64, unused: u32, padding: u32, lock_owner: u64, }
    ReadIn {
        handle: u64, offset: u64, len: u32, read_flags: u32, lock_owner: u64,
        flags: u32, padding: u32,
    }
    WriteIn {
        handle: u64, offset: u64, len: u32, write_flags: u32, lock_owner: u64,
        flags: u32, padding: u32,
    }
    WriteOut { len: u32, padding: u32, }
    FsyncIn { handle: u64, flags: u32, padding: u32, }
    StatfsOut {
        blocks: u64, blocks_free: u64, blocks_available: u64, files: u64, files_free: u64,
        block_size: u32, name_max: u32, fragment_size: u32, padding: u32, spare: [u32; 6],
    }
    /// Without SETXATTR_EXT, which is never negotiated here.
    SetxattrIn { len: u32, flags: u32, }
    GetxattrIn { len: u32, padding: u32, }
    GetxattrOut { len: u32, padding: u32, }
    AccessIn { mask: u32, padding: u32, }
    FileLock { start: u64, end: u64, kind: u32, pid: u32, }
    LkIn { handle: u64, owner: u64, lock: FileLock, flags: u32, padding: u32, }
    IoctlIn {
        handle: u64, flags: u32, command: u32, argument: u64, in_len: u32, out_len: u32,
    }
    IoctlOut { result: i32, flags: u32, in_vectors: u32, out_vectors: u32, }
    FallocateIn { handle: u64, offset: u64, len: u64, mode: u32, padding: u32, }
    LseekIn { handle: u64, offset: u64, whence: u32, padding: u32, }
    LseekOut { offset: u64, }
    CopyIn {
        handle_in: u64, offset_in: u64, node_out: u64, handle_out: u64, offset_out: u64,
        len: u64, flags: u64,
    }
    CopyOut { len: u64, }
    InvalidInodeOut { node: u64, offset: i64, len: i64, }
    /// Before the name of a directory entry, which is padded to eight bytes.
    Dirent { inode: u64, next: u64, name_len: u32, kind: u32, }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::size_of;

    #[test]
    fn sizes_are_those_of_the_kernel_header() {
        assert_eq!(size_of::<InHeader>(), 40);
        assert_eq!(size_of::<OutHeader>(), 16);
        assert_eq!(size_of::<InitOut>(), 64);
        assert_eq!(size_of::<Attr>(), 88);
        assert_eq!(size_of::<EntryOut>(), 128);
        assert_eq!(size_of::<AttrOut>(), 104);
        assert_eq!(size_of::<SetattrIn>(), 88);
        assert_eq!(size_of::<ReadIn>(), 40);
        assert_eq!(size_of::<WriteIn>(), 40);
        assert_eq!(size_of::<LkIn>(), 48);
        assert_eq!(size_of::<StatfsOut>(), 80);
        assert_eq!(size_of::<InvalidInodeOut>(), 24);
        assert_eq!(size_of::<CopyIn>(), 56);
        assert_eq!(size_of::<Dirent>(), 24);
    }
}
