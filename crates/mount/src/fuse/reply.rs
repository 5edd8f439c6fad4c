//! The answer to one request: sent exactly once, with EIO if it is dropped unsent.

use super::abi;
use super::connection::Connection;
use super::request::{Lock, LockKind, Timestamp};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;
use tidegate_client::RawBytes;
use zerocopy::IntoBytes;

/// The attributes of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number shown to programs.
    pub inode: u64,
    /// Length in bytes.
    pub size: u64,
    /// Space used, in units of 512 bytes.
    pub blocks: u64,
    /// Time of the last access.
    pub accessed: Timestamp,
    /// Time of the last write.
    pub modified: Timestamp,
    /// Time of the last change of attributes.
    pub changed: Timestamp,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device.
    pub rdev: u32,
    /// Best length of an access.
    pub block_size: u32,
}

impl Attributes {
    fn record(&self) -> abi::Attr {
        abi::Attr {
            inode: self.inode,
            size: self.size,
            blocks: self.blocks,
            atime: self.accessed.seconds,
            mtime: self.modified.seconds,
            ctime: self.changed.seconds,
            atime_ns: self.accessed.nanoseconds,
            mtime_ns: self.modified.nanoseconds,
            ctime_ns: self.changed.nanoseconds,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            block_size: self.block_size,
            flags: 0,
        }
    }
}

/// An entry of a directory as the kernel is to remember it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Entry {
    /// The node's id. 0: there is no such entry, and the kernel may cache that for `entry_valid`.
    pub node: u64,
    /// Together with the id never used for another node in the life of the mount.
    pub generation: u64,
    /// How long the kernel may cache the name.
    pub entry_valid: Duration,
    /// How long the kernel may cache the attributes.
    pub attributes_valid: Duration,
    /// The node's attributes.
    pub attributes: Attributes,
}

impl Entry {
    pub(super) fn record(&self) -> abi::EntryOut {
        abi::EntryOut {
            node: self.node,
            generation: self.generation,
            entry_valid: self.entry_valid.as_secs(),
            attr_valid: self.attributes_valid.as_secs(),
            entry_valid_ns: self.entry_valid.subsec_nanos(),
            attr_valid_ns: self.attributes_valid.subsec_nanos(),
            attr: self.attributes.record(),
        }
    }
}

/// An open file or directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Opened {
    /// A number that the kernel sends back with every request on the open file.
    pub handle: u64,
    /// Reads and writes pass by the page cache.
    pub direct_io: bool,
    /// Writes inside the file, passing by the page cache, may run side by side.
    pub parallel_direct_writes: bool,
    /// What the page cache holds of the file stays valid.
    pub keep_cache: bool,
}

impl Opened {
    fn record(&self) -> abi::OpenOut {
        let flag = |set: bool, bit: u32| if set { 1 << bit } else { 0 };
        let open_flags = flag(self.direct_io, 0)
            | flag(self.keep_cache, 1)
            | flag(self.parallel_direct_writes, 6);
        abi::OpenOut {
            handle: self.handle,
            open_flags,
            padding: 0,
        }
    }
}

/// Space and limits of the file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Space {
    /// Size, in units of `fragment_size`.
    pub blocks: u64,
    /// Free.
    pub blocks_free: u64,
    /// Free to ordinary users.
    pub blocks_available: u64,
    /// Number of inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Best length of an access.
    pub block_size: u32,
    /// Unit of the counts above.
    pub fragment_size: u32,
    /// Longest name.
    pub name_max: u32,
}

/// Answers one request. Each method sends the answer; those that return a value say whether the
/// kernel took it.
#[must_use = "the kernel waits for an answer"]
pub struct Reply {
    connection: Arc<Connection>,
    unique: u64,
    sent: bool,
}

impl Reply {
    pub(super) fn new(connection: Arc<Connection>, unique: u64) -> Self {
        Self {
            connection,
            unique,
            sent: false,
        }
    }

    /// The call fails. EINTR is for a request whose token is cancelled; ENOSYS makes the kernel
    /// never ask for this operation again, for `fsync` and others with silent success.
    pub fn error(mut self, errno: Errno) {
        self.begin();
        self.connection.reply_error(self.unique, errno);
    }

    /// The call succeeded and has no result.
    pub fn done(self) {
        self.send(&[]);
    }

    /// An entry found or made. False: the kernel will not remember it, so its lookup does not
    /// count.
    #[must_use = "a lookup that the kernel did not get must be forgotten"]
    pub fn entry(self, entry: &Entry) -> bool {
        self.send(&[entry.record().as_bytes()])
    }

    /// A file made and opened. False: neither the lookup nor the open file counts.
    #[must_use = "an open file that the kernel did not get must be closed"]
    pub fn created(self, entry: &Entry, opened: &Opened) -> bool {
        self.send(&[entry.record().as_bytes(), opened.record().as_bytes()])
    }

    /// A file or directory opened. False: the kernel will never release it.
    #[must_use = "an open file that the kernel did not get must be closed"]
    pub fn opened(self, opened: &Opened) -> bool {
        self.send(&[opened.record().as_bytes()])
    }

    /// Attributes, and how long the kernel may cache them.
    pub fn attributes(self, attributes: &Attributes, valid: Duration) {
        let record = abi::AttrOut {
            attr_valid: valid.as_secs(),
            attr_valid_ns: valid.subsec_nanos(),
            padding: 0,
            attr: attributes.record(),
        };
        self.send(&[record.as_bytes()]);
    }

    /// Bytes: read, of a link's target, of extended attributes or of [`super::Names`].
    pub fn bytes(self, bytes: &[u8]) {
        self.send(&[bytes]);
    }

    /// Like [`Reply::bytes`], in pieces.
    pub fn pieces(self, pieces: &[RawBytes<'_>]) {
        self.send_raw(pieces);
    }

    /// How many bytes were written or copied.
    pub fn written(self, len: u32) {
        self.send(&[abi::WriteOut { len, padding: 0 }.as_bytes()]);
    }

    /// How many bytes `copy` has copied.
    pub fn copied(self, copy: &super::Copy, len: u64) {
        if copy.wide {
            self.send(&[abi::CopyOut { len }.as_bytes()]);
        } else {
            // The kernel asks for less than 4 GiB in this form.
            self.written(u32::try_from(len).unwrap_or(u32::MAX));
        }
    }

    /// How long an extended attribute, or the list of their names, is.
    pub fn xattr_len(self, len: u32) {
        self.send(&[abi::GetxattrOut { len, padding: 0 }.as_bytes()]);
    }

    /// Space and limits.
    pub fn space(self, space: &Space) {
        let record = abi::StatfsOut {
            blocks: space.blocks,
            blocks_free: space.blocks_free,
            blocks_available: space.blocks_available,
            files: space.files,
            files_free: space.files_free,
            block_size: space.block_size,
            name_max: space.name_max,
            fragment_size: space.fragment_size,
            padding: 0,
            spare: [0; 6],
        };
        self.send(&[record.as_bytes()]);
    }

    /// The lock that stands against the one asked for, or [`LockKind::Unlock`] if none does.
    pub fn lock(self, lock: &Lock) {
        let kind = match lock.kind {
            LockKind::Shared => 0,
            LockKind::Exclusive => 1,
            LockKind::Unlock => 2,
        };
        let record = abi::FileLock {
            start: lock.start,
            end: lock.end,
            kind,
            pid: lock.pid,
        };
        self.send(&[record.as_bytes()]);
    }

    /// Where the data or hole asked for begins.
    pub fn offset(self, offset: u64) {
        self.send(&[abi::LseekOut { offset }.as_bytes()]);
    }

    /// The result of a device control call and the bytes that it passes out.
    pub fn ioctl(self, result: i32, output: &[u8]) {
        let record = abi::IoctlOut {
            result,
            ..Default::default()
        };
        self.send(&[record.as_bytes(), output]);
    }

    fn send<const PIECES: usize>(self, pieces: &[&[u8]; PIECES]) -> bool {
        self.send_raw(&pieces.map(RawBytes::from))
    }

    fn send_raw(mut self, pieces: &[RawBytes<'_>]) -> bool {
        self.begin();
        self.connection.reply(self.unique, pieces)
    }

    fn begin(&mut self) {
        self.sent = true;
        // Before the kernel may use the number again.
        self.connection.interrupts.end(self.unique);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.sent {
            self.begin();
            self.connection.reply_error(self.unique, Errno::IO);
        }
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reply(to {})", self.unique)
    }
}
