//! Attaches the FUSE device to a directory and takes it off again: directly with the right to
//! mount, else through the setuid program `fusermount3`.

use super::{MountError, MountSettings, fusermount};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// A directory on which this file system is mounted. Dropping it unmounts.
#[derive(Debug)]
pub(super) struct MountPoint {
    path: PathBuf,
    by_fusermount: bool,
    attached: AtomicBool,
}

impl MountPoint {
    /// Mounts, and returns the open device on which the kernel asks.
    pub(super) fn mount(settings: &MountSettings) -> Result<(Self, OwnedFd), MountError> {
        let path = checked(&settings.path)?;
        if rustix::process::geteuid().is_root() {
            match mount_directly(&path, settings) {
                Ok(device) => {
                    return Ok((Self::new(path, false), device));
                }
                // Root without the right to mount (in a container): the other way may work.
                Err(MountError::Refused {
                    errno: Errno::PERM, ..
                }) if fusermount::is_there() => {}
                Err(error) => return Err(error),
            }
        }
        let device = fusermount::mount(&path, &options(settings, None))?;
        Ok((Self::new(path, true), device))
    }

    fn new(path: PathBuf, by_fusermount: bool) -> Self {
        Self {
            path,
            by_fusermount,
            attached: AtomicBool::new(true),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether another program takes the mount off.
    pub(super) fn needs_program(&self) -> bool {
        self.by_fusermount
    }

    /// Takes the mount off. While files are open on it, only its name goes: the kernel keeps
    /// asking until they are closed.
    pub(super) fn unmount(&self) -> Result<(), MountError> {
        if !self.attached.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        let result = self.detach();
        if result.is_err() {
            self.attached.store(true, Ordering::SeqCst);
        }
        result
    }

    /// Gives the mount point up, because another program has unmounted: what is mounted there now
    /// is not this mount.
    pub(super) fn abandon(&self) {
        self.attached.store(false, Ordering::SeqCst);
    }

    fn detach(&self) -> Result<(), MountError> {
        if self.by_fusermount {
            return fusermount::unmount(&self.path, false)
                .or_else(|_| fusermount::unmount(&self.path, true));
        }
        // INVAL: it is no mount point any more.
        let refused = |errno| MountError::Refused {
            path: self.path.clone(),
            errno,
        };
        match rustix::mount::unmount(&self.path, UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(_) => {
                let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
                rustix::mount::unmount(&self.path, flags).map_err(refused)
            }
        }
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            tracing::warn!(%error, path = %self.path.display(), "still mounted");
        }
    }
}

/// The absolute path of a directory that can be mounted on.
fn checked(path: &Path) -> Result<PathBuf, MountError> {
    let refused = |error: std::io::Error| match Errno::from_io_error(&error).unwrap_or(Errno::IO) {
        Errno::NOTCONN => MountError::Stale(path.to_owned()),
        errno => MountError::Path {
            path: path.to_owned(),
            errno,
        },
    };
    let absolute = path.canonicalize().map_err(refused)?;
    let metadata = absolute.metadata().map_err(refused)?;
    if !metadata.is_dir() {
        return Err(MountError::NotADirectory(path.to_owned()));
    }
    Ok(absolute)
}

fn mount_directly(path: &Path, settings: &MountSettings) -> Result<OwnedFd, MountError> {
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(MountError::NoDevice)?;
    let data = CString::new(options(settings, Some(&device))).map_err(|_| MountError::Refused {
        path: path.to_owned(),
        errno: Errno::INVAL,
    })?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount(&*settings.name, path, "fuse.tidegate", flags, &*data).map_err(
        |errno| MountError::Refused {
            path: path.to_owned(),
            errno,
        },
    )?;
    Ok(device)
}

/// Options of the kernel with a device, else those that `fusermount3` turns into them.
fn options(settings: &MountSettings, device: Option<&OwnedFd>) -> String {
    let mut options = match device {
        Some(device) => format!(
            "fd={},rootmode=40000,user_id={},group_id={}",
            device.as_raw_fd(),
            rustix::process::getuid().as_raw(),
            rustix::process::getgid().as_raw(),
        ),
        None => {
            // A comma or backslash in a name would end the option.
            let name = settings.name.replace('\\', "\\\\").replace(',', "\\,");
            format!("fsname={name},subtype=tidegate,nosuid,nodev")
        }
    };
    // What the kernel lets through, the forwarder checks again.
    if settings.kernel_checks {
        options.push_str(",default_permissions");
    }
    if settings.allow_other {
        options.push_str(",allow_other");
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(path: &Path) -> MountSettings {
        MountSettings {
            name: "a,b".into(),
            allow_other: true,
            ..MountSettings::new(path)
        }
    }

    #[test]
    fn a_mount_point_must_be_a_directory_that_exists() {
        let missing = MountPoint::mount(&settings(Path::new("/nowhere/at/all"))).unwrap_err();
        assert_eq!(
            missing.to_string(),
            "mount point /nowhere/at/all: No such file or directory (os error 2)"
        );
        let file = MountPoint::mount(&settings(Path::new("/proc/self/status"))).unwrap_err();
        assert!(matches!(file, MountError::NotADirectory(_)));
    }

    #[test]
    fn a_stale_mount_says_how_to_remove_it() {
        let message = MountError::Stale("/mnt/x".into()).to_string();
        assert!(message.contains("fusermount3 -u /mnt/x"), "{message}");
    }

    #[test]
    fn a_comma_in_the_name_does_not_end_the_option() {
        let options = options(&settings(Path::new("/")), None);
        assert!(options.starts_with("fsname=a\\,b,"), "{options}");
        assert!(
            options.ends_with("default_permissions,allow_other"),
            "{options}"
        );
    }
}
