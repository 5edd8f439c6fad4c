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

/// A small ext4 in a file, a fifth of which is kept for root. It is unmounted when dropped.
pub(crate) struct Ext4 {
    mounted: Tmpfs,
    image: PathBuf,
}

impl Ext4 {
    /// Makes and mounts it; `quota` bounds users' bytes too. None, with a printed line, where that
    /// is not possible, as in a container, or in a kernel without quotas.
    pub(crate) fn mount(at: &Path, mebibytes: u64, quota: bool) -> Option<Ext4> {
        let image = at.with_extension("image");
        let file = std::fs::File::create(&image).expect("a file beside the mount point");
        file.set_len(mebibytes << 20).expect("a sparse file");
        let run = |program: &str, arguments: &[&str]| {
            let ran = std::process::Command::new(program).args(arguments).output();
            ran.is_ok_and(|output| output.status.success())
        };
        let paths = [&image, at].map(|path| path.to_str().expect("of ASCII"));
        let features = match quota {
            true => ["-O", "quota", "-E", "quotatype=usrquota"],
            false => ["-q", "-q", "-q", "-q"],
        };
        let make = [&["-q", "-m", "20"], &features[..], &paths[..1]].concat();
        let options = if quota { "loop,usrquota" } else { "loop" };
        let mount = [&["-o", options], &paths[..]].concat();
        if !run("mkfs.ext4", &make) || !run("mount", &mount) {
            let what = if quota {
                "an ext4 with quotas"
            } else {
                "an ext4"
            };
            println!("skipped, {what} cannot be mounted here");
            let _ = std::fs::remove_file(&image);
            return None;
        }
        let mounted = Tmpfs(at.to_owned());
        Some(Ext4 { mounted, image })
    }

    /// The device that is mounted.
    pub(crate) fn device(&self) -> std::ffi::CString {
        let mounts = std::fs::read_to_string("/proc/self/mounts").expect("it is there");
        let at = self.mounted.0.to_str().expect("of ASCII");
        let line = mounts
            .lines()
            .find(|line| line.split(' ').nth(1) == Some(at));
        let device = line.and_then(|line| line.split(' ').next());
        std::ffi::CString::new(device.expect("mounted")).expect("of ASCII")
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.image);
    }
}
