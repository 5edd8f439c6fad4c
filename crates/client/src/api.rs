//! Blocking calls for many threads: what the mount, the C ABI and programs use.

use crate::wire::{Attr, Caller, Entry, Handle, Lock, LockFamily, Op, Outcome, RenameMode, SetAttr, Statfs};
use bytes::Bytes;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A Linux errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// How to reach the forwarders.
#[derive(Clone, Debug)]
pub struct Options {
    /// Addresses in the order of the layout: `unix:/path/to.sock` or `tcp:host:port`.
    pub forwarders: Vec<String>,
    /// File that holds the shared secret, for TCP.
    pub secret_file: Option<PathBuf>,
    /// How long one operation may take before it ends in ETIMEDOUT; zero: for ever. Default 60 s, longer
    /// than a forwarder's restart.
    pub timeout: Duration,
    /// Largest payload of one frame, default 1 MiB.
    pub payload_max: u32,
    /// Name for logs and `tidegate stat`.
    pub name: String,
}

/// Why no session could be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// An address makes no sense.
    #[error("forwarder address {0:?} is neither unix:PATH nor tcp:HOST:PORT")]
    Address(String),
    /// Nobody answers.
    #[error("no forwarder answers ({0}); is it running? start one with `tidegate up DIR` or `tidegate serve`")]
    Unreachable(String),
    /// They refuse us.
    #[error("forwarder {0} refused the session: {1}")]
    Refused(String, String),
}

/// Ends a waiting call from another thread with EINTR.
#[derive(Clone, Default)]
pub struct CancelToken(Arc<CancelState>);

#[derive(Default)]
struct CancelState {}

impl CancelToken {
    /// A token that has not been cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Ends the call that uses this token, now or when it starts.
    pub fn cancel(&self) {
        let _ = &self.0;
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        false
    }
}

/// On whose behalf a call is made.
#[derive(Clone, Default)]
pub struct Context {
    /// User and groups; None: this process's own.
    pub caller: Option<Caller>,
    /// Application id (`app_id(name)`); 0: the client's own name.
    pub app: u64,
    /// Interrupts the call.
    pub cancel: Option<CancelToken>,
    /// Overrides [`Options::timeout`].
    pub timeout: Option<Duration>,
}

/// Bytes read: the parts of the file in order, without gaps.
#[derive(Clone, Debug, Default)]
pub struct Data {
    /// Consecutive pieces.
    pub pieces: Vec<Bytes>,
    /// Their bytes together; less than asked for only at the end of the file.
    pub len: usize,
}

/// What a generic call yields.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The outcome.
    pub outcome: Outcome,
    /// Payload, for reads.
    pub data: Data,
}

/// One client of a set of forwarders. Methods block the calling thread, may be called from any number of
/// threads, and end at the latest with the timeout.
pub struct Client {}

/// An open file: keeps the file alive after its last name is gone. Closed in the background on drop.
pub struct OpenFile {
    _handle: Handle,
}

#[allow(unused_variables, missing_docs)]
impl Client {
    /// Opens sessions; succeeds as soon as one forwarder has granted one.
    pub fn connect(options: Options) -> Result<Arc<Client>, ConnectError> {
        Err(ConnectError::Unreachable(options.forwarders.join(", ")))
    }
    /// Root directory of the export.
    pub fn root(&self) -> Attr { unimplemented!() }
    /// Any operation as the wire names it; splits, routes, retries and replays as needed.
    /// Used by every call below.
    pub fn call(&self, ctx: &Context, op: Op, payload: Bytes) -> Result<Answer, Errno> { unimplemented!() }

    pub fn lookup(&self, ctx: &Context, parent: Handle, name: &[u8]) -> Result<Attr, Errno> { unimplemented!() }
    pub fn create(&self, ctx: &Context, parent: Handle, name: &[u8], mode: u32, exclusive: bool) -> Result<Attr, Errno> { unimplemented!() }
    pub fn mkdir(&self, ctx: &Context, parent: Handle, name: &[u8], mode: u32) -> Result<Attr, Errno> { unimplemented!() }
    pub fn mknod(&self, ctx: &Context, parent: Handle, name: &[u8], mode: u32, rdev: u32) -> Result<Attr, Errno> { unimplemented!() }
    pub fn symlink(&self, ctx: &Context, parent: Handle, name: &[u8], target: &[u8]) -> Result<Attr, Errno> { unimplemented!() }
    pub fn link(&self, ctx: &Context, handle: Handle, parent: Handle, name: &[u8]) -> Result<Attr, Errno> { unimplemented!() }
    pub fn unlink(&self, ctx: &Context, parent: Handle, name: &[u8]) -> Result<(), Errno> { unimplemented!() }
    pub fn rmdir(&self, ctx: &Context, parent: Handle, name: &[u8]) -> Result<(), Errno> { unimplemented!() }
    pub fn rename(&self, ctx: &Context, from: (Handle, &[u8]), to: (Handle, &[u8]), mode: RenameMode) -> Result<(), Errno> { unimplemented!() }
    pub fn readdir(&self, ctx: &Context, handle: Handle, cookie: u64, bytes_max: u32, plus: bool) -> Result<Vec<Entry>, Errno> { unimplemented!() }
    pub fn getattr(&self, ctx: &Context, handle: Handle) -> Result<Attr, Errno> { unimplemented!() }
    pub fn setattr(&self, ctx: &Context, handle: Handle, set: SetAttr) -> Result<Attr, Errno> { unimplemented!() }
    /// Opens a file by handle. The number of the open is chosen by the client; re-opened after a forwarder changed.
    pub fn open(self: &Arc<Self>, ctx: &Context, handle: Handle, read: bool, write: bool) -> Result<OpenFile, Errno> { unimplemented!() }
    pub fn readlink(&self, ctx: &Context, handle: Handle) -> Result<Vec<u8>, Errno> { unimplemented!() }
    pub fn access(&self, ctx: &Context, handle: Handle, mask: u32) -> Result<(), Errno> { unimplemented!() }
    pub fn fsync(&self, ctx: &Context, handle: Handle, data_only: bool) -> Result<(), Errno> { unimplemented!() }
    pub fn statfs(&self, ctx: &Context) -> Result<Statfs, Errno> { unimplemented!() }
    pub fn fallocate(&self, ctx: &Context, handle: Handle, mode: u32, offset: u64, len: u64) -> Result<(), Errno> { unimplemented!() }
    pub fn copy_range(&self, ctx: &Context, from: (Handle, u64), to: (Handle, u64), len: u64) -> Result<u64, Errno> { unimplemented!() }
    /// whence: SEEK_DATA 3 or SEEK_HOLE 4.
    pub fn seek(&self, ctx: &Context, handle: Handle, offset: u64, whence: u32) -> Result<u64, Errno> { unimplemented!() }
    pub fn getxattr(&self, ctx: &Context, handle: Handle, name: &[u8]) -> Result<Vec<u8>, Errno> { unimplemented!() }
    pub fn setxattr(&self, ctx: &Context, handle: Handle, name: &[u8], value: &[u8], flags: u32) -> Result<(), Errno> { unimplemented!() }
    pub fn listxattr(&self, ctx: &Context, handle: Handle) -> Result<Vec<u8>, Errno> { unimplemented!() }
    pub fn removexattr(&self, ctx: &Context, handle: Handle, name: &[u8]) -> Result<(), Errno> { unimplemented!() }
    /// Sets or releases a lock; `wait` blocks until granted, cancelled (EINTR) - never timed out. The client remembers
    /// held locks and reclaims them after a seat changed hands.
    pub fn set_lock(&self, ctx: &Context, handle: Handle, lock: Lock, wait: bool) -> Result<(), Errno> { unimplemented!() }
    pub fn test_lock(&self, ctx: &Context, handle: Handle, lock: Lock) -> Result<Option<Lock>, Errno> { unimplemented!() }
    /// Releases all locks of an owner, in the background: never waits for a forwarder.
    pub fn drop_locks(&self, handle: Handle, family: LockFamily, owner: u64) { unimplemented!() }
    /// Reads; the parts of different seats in parallel.
    pub fn read(&self, ctx: &Context, handle: Handle, offset: u64, len: usize) -> Result<Data, Errno> { unimplemented!() }
    /// Writes all bytes; the parts of different seats in parallel. On error, how much was written is unknown.
    pub fn write(&self, ctx: &Context, handle: Handle, offset: u64, bytes: Bytes) -> Result<usize, Errno> { unimplemented!() }
    /// Appends in one piece (at most `payload_max`); returns where.
    pub fn append(&self, ctx: &Context, handle: Handle, bytes: Bytes) -> Result<u64, Errno> { unimplemented!() }
    /// Forgets what is known of a handle's path (the mount's nodes were forgotten).
    pub fn forget(&self, handle: Handle) { unimplemented!() }
    /// State of forwarder `index` as JSON text.
    pub fn status(&self, index: usize) -> Result<String, Errno> { unimplemented!() }
    /// Changes the policy of forwarder `index`: text of a `[scheduler]` table.
    pub fn set_policy(&self, index: usize, text: &str) -> Result<(), Errno> { unimplemented!() }
    /// Number of forwarders.
    pub fn forwarders(&self) -> usize { unimplemented!() }
    /// Says goodbye and ends the threads; waiting calls end with EIO. Also done on drop.
    pub fn shutdown(&self) { unimplemented!() }
}

impl Drop for OpenFile {
    fn drop(&mut self) {}
}

/// Id of an application by its name: the same 64-bit hash that the scheduler uses (`AppId::from_name`).
pub fn app_id(name: &str) -> u64 {
    let _ = name;
    0
}
