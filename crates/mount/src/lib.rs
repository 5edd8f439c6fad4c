//! The Tidegate mount: a FUSE file system whose files live behind the forwarders.
//!
//! [`fuse`] talks to the kernel and knows nothing of forwarders. `fs` answers the kernel's requests
//! through the client. A process that is killed ends within a second, even while no forwarder
//! answers: the mount cancels the process's requests, and a close waits for a forwarder only
//! briefly, to release locks.
//!
//! Two limits come from the kernel. Files can be mapped shared from Linux 6.6 on; before, `mmap`
//! with MAP_SHARED says ENODEV. And dirty pages of such a mapping belong to no process: one that
//! waits for them, in `msync` or at its end, waits until they are written or out of time.

pub mod fuse;

mod fs;

pub use fs::{Forwarders, Held, Shown};
pub use fuse::MountError;

use fs::{ClientForwarders, RemoteFiles, Tickets};
use fuse::{FileSystem, Limits, MountSettings, Serving, Session};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidegate_client::wire::Attr;
use tidegate_client::{Client, Context, Errno};

/// What to mount, and where.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// The mount point: a directory.
    pub path: PathBuf,
    /// Whether other users may use the mount, not only the one who mounts. An ordinary user needs
    /// `user_allow_other` in /etc/fuse.conf for that.
    pub allow_other: bool,
    /// Who checks modes and owners.
    pub checks: Checks,
    /// What `df` and `mount` show as the source.
    pub name: String,
    /// Directory of the export that is the root of the mount; empty: the export's own.
    pub directory: PathBuf,
    /// The application for which everything on this mount counts; None: each program's own.
    pub application: Option<String>,
    /// How long the tickets are good by which users of root's mount reach forwarders of other nodes
    /// past it; zero: there are none. A mount of a user for whom munge vouches hands on his own
    /// ticket, for what is left of it.
    pub ticket_life: Duration,
}

/// Who says whether a caller may do what the mode and the owner of a file may forbid.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Checks {
    /// This node's kernel, before it asks the mount; what it lets through, forwarders check too.
    #[default]
    Kernel,
    /// The forwarders alone, each with the call that it does. That takes fewer requests, for the
    /// kernel does not ask for attributes, and leaves out what Linux refuses in sticky directories.
    /// Only where all who use the mount are one ordinary user.
    Forwarders,
}

/// Mounts the client's files. A mount started by root passes on each caller's user and groups; any
/// other acts as the user who started it.
///
/// Answers requests on threads of its own until it is unmounted.
pub fn mount(client: Arc<Client>, options: MountOptions) -> Result<Mounted, MountError> {
    let root = root_of(&client, &options.directory).map_err(|error| MountError::Root {
        directory: options.directory.clone(),
        error: error.into(),
    })?;
    let is_root = rustix::process::geteuid().is_root();
    let gives = (is_root || client.is_vouched()) && !options.ticket_life.is_zero();
    let point = std::path::absolute(&options.path).ok();
    let reached = point.filter(|_| gives);
    let reached = reached.and_then(|point| client.reached_by_tickets(&point));
    let tickets = reached.map(|reached| Tickets {
        reached,
        life: options.ticket_life,
    });
    let forwarders = ClientForwarders {
        client,
        root,
        tickets,
    };
    mount_over(Arc::new(forwarders), options)
}

/// The directory of the export that is mounted.
fn root_of(client: &Client, directory: &Path) -> Result<Attr, Errno> {
    let ctx = Context::default();
    let mut root = client.root();
    for part in directory.components() {
        match part {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => {
                root = client.lookup(&ctx, root.handle, name.as_encoded_bytes())?;
            }
            _ => return Err(Errno::INVAL),
        }
        if root.mode & 0o170_000 != 0o040_000 {
            return Err(Errno::NOTDIR);
        }
    }
    Ok(root)
}

/// Mounts files that something other than a [`Client`] provides, in tests.
pub fn mount_over(
    forwarders: Arc<dyn Forwarders>,
    options: MountOptions,
) -> Result<Mounted, MountError> {
    let MountOptions {
        path,
        allow_other,
        checks,
        name,
        application,
        directory: _,
        ticket_life: _,
    } = options;
    // A longer write than the forwarders take in one piece could not be appended in one piece.
    let write_max = forwarders.payload_max();
    let pass_callers = rustix::process::geteuid().is_root();
    // Root's processes may lack capabilities, which only the kernel here knows of.
    if checks == Checks::Forwarders && (allow_other || pass_callers) {
        return Err(MountError::Checks);
    }
    let settings = MountSettings {
        name,
        allow_other,
        kernel_checks: checks == Checks::Kernel,
        write_max,
        ..MountSettings::new(path)
    };
    let session = Session::mount(&settings)?;
    // The kernel knows the root: where it takes no such notice it must not cache anything.
    let kernel = Some(session.kernel()).filter(|kernel| kernel.forget_attributes(fuse::ROOT));
    let files = RemoteFiles::new(forwarders, pass_callers, checks, application, kernel);
    let files = Arc::new(files);
    let direct_mmap = session.direct_mmap();
    let serving = session.start(Arc::clone(&files) as _, Limits::default())?;
    Ok(Mounted {
        serving,
        files,
        direct_mmap,
    })
}

/// The file system of a mount, for programs that serve it otherwise than by [`mount_over`]. It acts
/// as the user of this process, and counts everything for one application.
pub fn file_system(forwarders: Arc<dyn Forwarders>, application: &str) -> Arc<dyn FileSystem> {
    let application = Some(application.to_owned());
    let checks = Checks::Forwarders;
    Arc::new(RemoteFiles::new(
        forwarders,
        false,
        checks,
        application,
        None,
    ))
}

/// A mount. Dropping it unmounts.
pub struct Mounted {
    serving: Serving,
    files: Arc<RemoteFiles>,
    direct_mmap: bool,
}

impl Mounted {
    /// The mount point, absolute.
    pub fn path(&self) -> &Path {
        self.serving.path()
    }

    /// Whether another program, `fusermount3`, takes the mount off, so that this process must be
    /// able to start one.
    pub fn needs_program(&self) -> bool {
        self.serving.needs_program()
    }

    /// Whether files can be mapped shared (`MAP_SHARED`): from Linux 6.6 on.
    pub fn maps_shared(&self) -> bool {
        self.direct_mmap
    }

    /// Whether a file or directory is open on the mount or a file mapped, here or where a copy of
    /// the mount is, in another mount namespace. If none is, nobody loses data with the mount.
    pub fn has_open_files(&self) -> bool {
        self.files.has_open_files()
    }

    /// Waits until the mount is unmounted, by [`Self::unmount`] or anybody else, and nothing on it
    /// is open any more.
    pub fn wait(&self) {
        self.serving.wait();
        self.files.close_all();
    }

    /// Unmounts. While files are open, only the name goes; this process serves them as long as it
    /// lives. False if it is still mounted, which the log explains.
    pub fn unmount(&self) -> bool {
        let unmounted = self.serving.unmount();
        if let Err(error) = &unmounted {
            tracing::warn!(%error, path = %self.path().display(), "still mounted");
        }
        unmounted.is_ok()
    }
}

impl std::fmt::Debug for Mounted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mounted({})", self.path().display())
    }
}
