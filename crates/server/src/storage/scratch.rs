//! For tests: a directory that is removed with its last user, and a small file system.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A fresh directory below the system's temporary directory.
pub(crate) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes the directory; `name` tells whoever finds it after a crash which test made it.
    pub(crate) fn new(name: &str) -> Scratch {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let unique = format!("tidegate-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(unique);
        std::fs::create_dir(&path).expect("a fresh directory in the temporary one");
        Scratch { path }
    }

    /// The path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A test that fails half-way may leave modes behind that forbid this; never mind.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A small tmpfs that is unmounted when dropped.
pub(crate) struct Tmpfs(PathBuf);

impl Tmpfs {
    /// Mounts it. None, with a printed line, where mounting is not allowed, as in a container.
    pub(crate) fn mount(at: &Path, size: &str) -> Option<Tmpfs> {
        let options = format!("size={size}");
        let args = ["-t", "tmpfs", "-o", &options, "tmpfs"];
        let mounted = std::process::Command::new("mount")
            .args(args)
            .arg(at)
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Tmpfs(at.to_owned())),
            _ => {
                println!("skipped, a tmpfs cannot be mounted here");
                None
            }
        }
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // Lazily, as the export may still be open.
        let _ = std::process::Command::new("umount")
            .arg("-l")
            .arg(&self.0)
            .status();
    }
}
