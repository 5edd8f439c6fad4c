//! What a forwarder needs of a file system, as primitive calls that each take effect at once.

use alloc::boxed::Box;
use alloc::vec::Vec;
use tidegate_wire::{Attr, Caller, Entry, Handle, RenameMode, SetAttr, Statfs, Status};

/// A Linux errno, x86-64 numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Errno(pub u16);

#[allow(missing_docs)]
impl Errno {
    pub const EPERM: Errno = Errno(1);
    pub const ENOENT: Errno = Errno(2);
    pub const EINTR: Errno = Errno(4);
    pub const EIO: Errno = Errno(5);
    pub const EAGAIN: Errno = Errno(11);
    pub const EACCES: Errno = Errno(13);
    pub const EBUSY: Errno = Errno(16);
    pub const EEXIST: Errno = Errno(17);
    pub const ENOTDIR: Errno = Errno(20);
    pub const EISDIR: Errno = Errno(21);
    pub const EINVAL: Errno = Errno(22);
    pub const ENOSPC: Errno = Errno(28);
    pub const EROFS: Errno = Errno(30);
    pub const EDEADLK: Errno = Errno(35);
    pub const ENAMETOOLONG: Errno = Errno(36);
    pub const ENOLCK: Errno = Errno(37);
    pub const ENOTEMPTY: Errno = Errno(39);
    pub const ENODATA: Errno = Errno(61);
    pub const EOPNOTSUPP: Errno = Errno(95);
    pub const ECONNABORTED: Errno = Errno(103);
    pub const ENOTCONN: Errno = Errno(107);
    pub const ESHUTDOWN: Errno = Errno(108);
    pub const ETIMEDOUT: Errno = Errno(110);
    pub const ESTALE: Errno = Errno(116);
    pub const EDQUOT: Errno = Errno(122);
}

/// Why a primitive call did not do what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The file system said no.
    Errno(Errno),
    /// The handle is not known here: a path must be told first (`Op::Reach`).
    UnknownHandle,
    /// Nothing was tried, or not all: the seat that the call was for is not held here any more.
    NotHeld,
}

impl From<Access> for Status {
    fn from(access: Access) -> Self {
        match access {
            Access::Errno(errno) => Status::Errno(errno.0),
            Access::UnknownHandle => Status::UnknownHandle,
            Access::NotHeld => Status::NotMySeat,
        }
    }
}

impl From<Errno> for Access {
    fn from(errno: Errno) -> Self {
        Access::Errno(errno)
    }
}

type Done<T> = Result<T, Access>;

/// The back end. `caller` None means the forwarder's own rights. Names are single components. The
/// hidden folder `.tidegate` of the root is invisible: looking it up is ENOENT, creating it EPERM.
pub trait Files {
    /// The root of the export.
    fn root(&mut self) -> Done<Attr>;
    /// Makes a handle known by a path below the root; ESTALE if the path leads to another file.
    fn reach(&mut self, handle: Handle, path: &[u8]) -> Done<Attr>;
    /// lstat of a name.
    fn lookup(&mut self, caller: Option<&Caller>, parent: Handle, name: &[u8]) -> Done<Attr>;
    /// fstat. A file kept only under its hidden name counts that name out of `nlink`.
    fn attr(&mut self, handle: Handle) -> Done<Attr>;
    /// The size that [`Files::attr`] tells, as fresh, and nothing else is asked for.
    fn size(&mut self, handle: Handle) -> Done<u64> {
        Ok(self.attr(handle)?.size)
    }
    /// Creates a regular file; EEXIST if the name exists.
    fn create(
        &mut self,
        caller: Option<&Caller>,
        parent: Handle,
        name: &[u8],
        mode: u32,
    ) -> Done<Attr>;
    /// mkdir.
    fn mkdir(
        &mut self,
        caller: Option<&Caller>,
        parent: Handle,
        name: &[u8],
        mode: u32,
    ) -> Done<Attr>;
    /// mknod.
    fn mknod(
        &mut self,
        caller: Option<&Caller>,
        parent: Handle,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Done<Attr>;
    /// symlink.
    fn symlink(
        &mut self,
        caller: Option<&Caller>,
        parent: Handle,
        name: &[u8],
        target: &[u8],
    ) -> Done<Attr>;
    /// link; follows nothing.
    fn link(
        &mut self,
        caller: Option<&Caller>,
        handle: Handle,
        parent: Handle,
        name: &[u8],
    ) -> Done<Attr>;
    /// unlink. A file that is open anywhere keeps a hidden name until its last close.
    fn unlink(&mut self, caller: Option<&Caller>, parent: Handle, name: &[u8]) -> Done<()>;
    /// rmdir.
    fn rmdir(&mut self, caller: Option<&Caller>, parent: Handle, name: &[u8]) -> Done<()>;
    /// rename; an open target that is replaced keeps a hidden name.
    fn rename(
        &mut self,
        caller: Option<&Caller>,
        from: (Handle, &[u8]),
        to: (Handle, &[u8]),
        mode: RenameMode,
    ) -> Done<()>;
    /// Entries after `cookie` (0: from the start), at most `bytes_max` bytes of names plus 32 each.
    /// Empty at the end.
    fn readdir(
        &mut self,
        caller: Option<&Caller>,
        handle: Handle,
        cookie: u64,
        bytes_max: u32,
        plus: bool,
    ) -> Done<Vec<Entry>>;
    /// chmod, chown, truncate, utimens in one.
    fn set_attr(&mut self, caller: Option<&Caller>, handle: Handle, set: &SetAttr) -> Done<Attr>;
    /// Checks that the caller may open so (owner always may), and remembers that the file is open
    /// somewhere, so that removing its last name keeps it. `open_count` 0 -> 1 is told once.
    fn opened(
        &mut self,
        caller: Option<&Caller>,
        handle: Handle,
        read: bool,
        write: bool,
    ) -> Done<Attr>;
    /// The last open of the file at this forwarder ended: lets go of a hidden name.
    fn closed(&mut self, handle: Handle) -> Done<()>;
    /// readlink.
    fn readlink(&mut self, caller: Option<&Caller>, handle: Handle) -> Done<Box<[u8]>>;
    /// access(2) as the caller.
    fn access(&mut self, caller: Option<&Caller>, handle: Handle, mask: u32) -> Done<()>;
    /// fsync or fdatasync.
    fn fsync(&mut self, handle: Handle, data_only: bool) -> Done<()>;
    /// statvfs.
    fn statfs(&mut self) -> Done<Statfs>;
    /// fallocate; EOPNOTSUPP for modes that move bytes (collapse, insert).
    fn fallocate(&mut self, handle: Handle, mode: u32, offset: u64, len: u64) -> Done<()>;
    /// copy_file_range.
    fn copy_range(&mut self, from: (Handle, u64), to: (Handle, u64), len: u64) -> Done<u64>;
    /// lseek for data (3) or hole (4).
    fn seek(&mut self, handle: Handle, offset: u64, whence: u32) -> Done<u64>;
    /// getxattr.
    fn getxattr(&mut self, caller: Option<&Caller>, handle: Handle, name: &[u8])
    -> Done<Box<[u8]>>;
    /// setxattr.
    fn setxattr(
        &mut self,
        caller: Option<&Caller>,
        handle: Handle,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Done<()>;
    /// listxattr.
    fn listxattr(&mut self, caller: Option<&Caller>, handle: Handle) -> Done<Box<[u8]>>;
    /// removexattr.
    fn removexattr(&mut self, caller: Option<&Caller>, handle: Handle, name: &[u8]) -> Done<()>;
    /// pread, short only at the end of the file; `len` is at most a payload's.
    fn read_at(&mut self, handle: Handle, offset: u64, len: u64) -> Done<Vec<u8>>;
    /// pwrite of all bytes at one offset (append); returns how many were written, fewer where some
    /// were before an error. [`Access::NotHeld`] is told whatever was written: the seat's next
    /// holder finds out.
    fn write_at(&mut self, handle: Handle, offset: u64, bytes: &[u8]) -> Done<u64>;
    /// Whether clients write each of the copies that the back end keeps of a file (GlusterFS). Then
    /// a change that failed may be in some of them: that of a node that was cut off, or one for
    /// which too few copies had room.
    fn copies_may_differ(&self) -> bool {
        false
    }
    /// An append at `offset` of `len` bytes failed, and what the copies of the file hold of it
    /// could not be looked up: they are made alike before [`Files::size`] tells the end again.
    fn doubt_end(&mut self, handle: Handle, (offset, len): (u64, u64)) {
        let _ = (handle, offset, len);
    }
    /// Has all copies that the back end keeps of a file be as one of them was found: with these
    /// bytes at this offset, or without any, with its end there. Does nothing unless
    /// [`Files::copies_may_differ`].
    fn align_copies(&mut self, _handle: Handle, _offset: u64, _found: &[u8]) -> Done<()> {
        Ok(())
    }
    /// Wall clock, ns since 1970, as file times are stamped (for telling our own creates).
    fn wall_ns(&mut self) -> i64;
}
