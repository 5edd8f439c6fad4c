//! The calls that a forwarder makes to a file system. Each takes effect at once, in one step.

use alloc::boxed::Box;
use alloc::vec::Vec;
use tidegate_wire::{Attr, Caller, Handle, Listing, Name, RenameMode, SetAttr, Statfs, Status};

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

/// Why a call to the back end failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The file system refused with this errno.
    Errno(Errno),
    /// The host does not know the handle. The client must first state a path (`Op::ResolvePath`).
    UnknownHandle,
    /// This forwarder does not hold the call's seat any more. The host tried nothing, or a part.
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

/// The back end. `caller` None means that the call uses the forwarder's own rights. Names are
/// single components. The hidden folder `.tidegate` of the root is invisible: to look it up is
/// ENOENT, to create it EPERM.
pub trait Files {
    /// The root of the export.
    fn root(&mut self) -> Done<Attr>;
    /// Finds the file of a handle by its path below the root, and remembers it. ESTALE if the path
    /// leads to another file.
    fn resolve_path(&mut self, handle: Handle, path: &[u8]) -> Done<Attr>;
    /// Does the same for a caller who must be able to reach the file himself: the path is walked
    /// with the caller's ids. An empty path stands for one that the back end knows of a file which
    /// it has met, and then the caller must be allowed to list each directory of it.
    fn reach(&mut self, caller: &Caller, handle: Handle, path: &[u8]) -> Done<Attr>;
    /// lstat of a name.
    fn lookup(&mut self, caller: Option<&Caller>, parent: Handle, name: &[u8]) -> Done<Attr>;
    /// fstat. `nlink` does not count a file's hidden name.
    fn attr(&mut self, handle: Handle) -> Done<Attr>;
    /// The size that [`Files::attr`] would return, as fresh as there, without other attributes.
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
    /// Entries after `cookie` (0: from the start), at most `bytes_max` bytes, where an entry counts
    /// its name and 32 bytes. Where `xattrs` is given, those that the caller may look up have their
    /// attributes, and say which of these extended ones the file lacks; its handle is known then.
    fn readdir(
        &mut self,
        caller: Option<&Caller>,
        handle: Handle,
        cookie: u64,
        bytes_max: u32,
        xattrs: Option<&[Name]>,
    ) -> Done<Listing>;
    /// chmod, chown, truncate, utimens in one.
    fn set_attr(&mut self, caller: Option<&Caller>, handle: Handle, set: &SetAttr) -> Done<Attr>;
    /// Checks that the caller may open the file so; its owner always may. Remembers that the file
    /// is open, so that removing its last name keeps the file.
    fn opened(
        &mut self,
        caller: Option<&Caller>,
        handle: Handle,
        read: bool,
        write: bool,
    ) -> Done<Attr>;
    /// The last open of the file at this forwarder has ended. Removes the file's hidden name, if it
    /// has one.
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
    /// pread. Returns fewer bytes only at the end of the file. `len` is at most a payload's.
    fn read_at(&mut self, handle: Handle, offset: u64, len: u64) -> Done<Vec<u8>>;
    /// pwrite of all bytes at one offset, for an append. Returns how many bytes it wrote: fewer
    /// than all if an error came after some. [`Access::NotHeld`] says nothing about what was
    /// written; the seat's next holder finds out.
    fn write_at(&mut self, handle: Handle, offset: u64, bytes: &[u8]) -> Done<u64>;
    /// Whether the back end keeps several copies of a file and its clients write each of them
    /// (GlusterFS). A change that failed may then be in some copies, because the network cut the
    /// node off, or because too few copies had room.
    fn copies_may_differ(&self) -> bool {
        false
    }
    /// An append of `len` bytes at `offset` failed, and it could not be looked up what the file's
    /// copies hold of it. The back end makes the copies alike before [`Files::size`] next returns.
    fn doubt_end(&mut self, handle: Handle, (offset, len): (u64, u64)) {
        let _ = (handle, offset, len);
    }
    /// Makes all copies of a file like the one that the caller has read: with the bytes `found` at
    /// this offset or, if there are none, with the file's end there. Does nothing unless
    /// [`Files::copies_may_differ`].
    fn align_copies(&mut self, _handle: Handle, _offset: u64, _found: &[u8]) -> Done<()> {
        Ok(())
    }
    /// The wall clock that stamps file times, ns since 1970. By it the forwarder recognises files
    /// that it has created itself.
    fn wall_ns(&mut self) -> i64;
}
