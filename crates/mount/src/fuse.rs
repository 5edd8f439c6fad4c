//! The FUSE session: talks to the kernel over `/dev/fuse` and lets a [`FileSystem`] answer.
//!
//! This session exists because the available crates do not pass FUSE_INTERRUPT on. A process that
//! is killed while no forwarder answers must end within a second. So each request carries a
//! [`CancelToken`], and one thread always reads from the kernel (`workers`). Operations block, each
//! on one of a bounded number of threads. The session caches nothing; the kernel may cache what an
//! answer says for as long as that says, and forgets it when [`Kernel`] tells it to.

mod abi;
mod buffer;
mod cancel;
mod connection;
mod decode;
mod fusermount;
mod init;
mod interrupts;
mod kernel;
mod messages;
mod mountpoint;
mod names;
mod reply;
mod request;
mod signals;
mod workers;

pub use buffer::Payload;
pub use cancel::{CancelToken, Registration};
pub use init::Negotiated;
pub use kernel::Kernel;
pub use messages::Messages;
pub use names::Names;
pub use reply::{Attributes, Entry, Opened, Reply, Space};
pub use request::{
    Caller, Copy, Ioctl, Lock, LockKind, Operation, ROOT, Read, Request, SetAttributes, SetTime,
    Timestamp, Write,
};
pub use rustix::io::Errno;

use connection::Connection;
use mountpoint::MountPoint;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use workers::Workers;

/// Answers the requests of a mount.
pub trait FileSystem: Send + Sync + 'static {
    /// Serves one request and answers it through `reply`. May block, on a thread of its own, as
    /// long as it ends soon after the request's token is cancelled; an operation that
    /// [is prompt](Operation::is_prompt) must not block.
    fn handle(&self, request: Request, reply: Reply);

    /// The kernel forgets `lookups` of the lookups that made it know `node`. Must not block.
    fn forget(&self, node: u64, lookups: u64);
}

/// How to make a mount.
#[derive(Debug, Clone)]
pub struct MountSettings {
    /// The directory to mount on.
    pub path: PathBuf,
    /// What `df` and `mount` show as the source.
    pub name: String,
    /// Whether every user may use it, not only the one who mounted.
    pub allow_other: bool,
    /// Whether the kernel checks modes and owners itself. It asks for the attributes of every
    /// directory on a path, and of each file that is opened, to do so.
    pub kernel_checks: bool,
    /// Bytes of the longest read or write. A value above 1 MiB, or above what the kernel allows, is
    /// reduced.
    pub write_max: u32,
    /// Whether directory listings contain attributes: a waste unless the kernel may cache these for
    /// a time.
    pub readdirplus: bool,
}

impl MountSettings {
    /// Settings for a mount on `path` for the user who mounts.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            name: "tidegate".into(),
            allow_other: false,
            kernel_checks: true,
            write_max: init::WRITE_MAX,
            readdirplus: false,
        }
    }
}

/// Why there is no mount. Each message says what to do, where something can be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The path is a mount whose process has died.
    #[error(
        "{path} is a mount whose process is gone; run `fusermount3 -u {path}`",
        path = .0.display()
    )]
    Stale(PathBuf),
    /// The mount point does not exist or cannot be reached.
    #[error("mount point {}: {errno}", path.display())]
    Path {
        /// As it was given.
        path: PathBuf,
        /// What the system said.
        errno: Errno,
    },
    /// The directory of the export cannot be mounted.
    #[error("directory {} of the export: {error}", directory.display())]
    Root {
        /// The directory.
        directory: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The mount point is no directory.
    #[error("mount point {} is not a directory", .0.display())]
    NotADirectory(PathBuf),
    /// Several users would use a mount where forwarders alone check modes and owners.
    #[error(
        "forwarders alone can check modes and owners only where one ordinary user has the mount to \
         himself: not on a mount by root, nor on one that lets other users in"
    )]
    Checks,
    /// The device is not there or not for this user.
    #[error(
        "/dev/fuse: {0}; is the fuse kernel module loaded, and the device passed to this container?"
    )]
    NoDevice(Errno),
    /// The system refused the mount.
    #[error("mount on {}: {errno}", path.display())]
    Refused {
        /// The mount point.
        path: PathBuf,
        /// What the system said.
        errno: Errno,
    },
    /// An ordinary user needs `fusermount3`, and it cannot be run.
    #[error("cannot run fusermount3, which mounts for users other than root: {0}; install fuse3")]
    NoFusermount(std::io::Error),
    /// `fusermount3` refused.
    #[error("fusermount3: {0}")]
    Fusermount(String),
    /// This code and the kernel find no common version or capabilities.
    #[error("FUSE protocol: {0}")]
    Protocol(String),
    /// The device failed.
    #[error("reading /dev/fuse: {0}")]
    Device(Errno),
    /// It was unmounted before it was used.
    #[error("the mount was taken off at once")]
    Ended,
    /// No thread could be started.
    #[error("starting a thread: {0}")]
    Thread(std::io::Error),
}

/// Bounds of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest number of threads, and so of requests that are served at the same time.
    pub threads_max: usize,
    /// Largest number of threads that wait for a request; further ones end when they have nothing
    /// to do.
    pub idle_max: usize,
    /// Largest number of requests that wait for a thread; more fail with ENOMEM.
    pub queued_max: usize,
    /// Largest number of bytes of writes that wait for a thread; further writes fail with ENOMEM.
    pub queued_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            threads_max: 512,
            idle_max: 10,
            queued_max: 16_384,
            queued_bytes_max: 1 << 30,
        }
    }
}

/// A mounted file system whose requests are not served yet: programs that use it wait.
/// Dropping it unmounts.
pub struct Session {
    mounted: MountPoint,
    connection: Arc<Connection>,
    negotiated: Negotiated,
}

impl Session {
    /// Mounts, and agrees with the kernel on version and capabilities.
    pub fn mount(settings: &MountSettings) -> Result<Self, MountError> {
        let (mounted, device) = MountPoint::mount(settings)?;
        let connection = Connection::new(device);
        match init::negotiate(&connection, settings) {
            Ok(negotiated) => Ok(Self {
                connection,
                mounted,
                negotiated,
            }),
            Err(error) => {
                // The first error is the one to tell.
                _ = mounted.unmount();
                Err(error)
            }
        }
    }

    /// What the kernel agreed to.
    pub fn negotiated(&self) -> Negotiated {
        self.negotiated
    }

    /// The kernel, to tell it something that it has not asked for.
    pub fn kernel(&self) -> Kernel {
        Kernel::of(&self.connection)
    }

    /// Whether a file open past the page cache can be mapped shared.
    pub fn direct_mmap(&self) -> bool {
        self.negotiated.direct_mmap
    }

    /// Begins to serve requests.
    pub fn start(
        self,
        file_system: Arc<dyn FileSystem>,
        limits: Limits,
    ) -> Result<Serving, MountError> {
        let len = init::WRITE_MAX as usize + 4096;
        let workers = Workers::start(self.connection, file_system, limits, len)
            .map_err(MountError::Thread)?;
        Ok(Serving {
            mounted: self.mounted,
            workers,
        })
    }
}

/// A mounted file system that is being served. Dropping it unmounts.
pub struct Serving {
    mounted: MountPoint,
    workers: Arc<Workers>,
}

impl Serving {
    /// The absolute path of the mount point.
    pub fn path(&self) -> &Path {
        self.mounted.path()
    }

    /// Whether another program, `fusermount3`, takes the mount off.
    pub fn needs_program(&self) -> bool {
        self.mounted.needs_program()
    }

    /// Waits until it is unmounted and every request has been served.
    pub fn wait(&self) {
        self.workers.wait();
    }

    /// Unmounts. If files are still open, only the name goes; the session serves them until they
    /// are closed.
    pub fn unmount(&self) -> Result<(), MountError> {
        if self.workers.has_ended() {
            self.mounted.abandon();
        }
        self.mounted.unmount()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if self.workers.has_ended() {
            self.mounted.abandon();
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session(on {})", self.mounted.path().display())
    }
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Serving({})", self.path().display())
    }
}
