//! Copies of a mount: other mount namespaces, as those of containers, keep what was mounted when
//! they were made. A FUSE file system lives as long as one of them.

use crate::processes::at_each;
use crate::set_mounts;
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// A mount namespace with a copy of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// A process that is in it.
    pid: u32,
    /// As in /proc/PID/comm.
    name: String,
}

impl fmt::Display for Copy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.name, self.pid)
    }
}

/// The mount namespaces, beside this process's own, that have a copy of the mount at a place, as
/// far as /proc shows them to this user.
pub fn find(point: &Path) -> Vec<Copy> {
    let Some(mount) = set_mounts::at(point) else {
        return Vec::new();
    };
    let space = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let own = space(Path::new("/proc/self"));
    let mut looked: BTreeSet<PathBuf> = own.into_iter().collect();
    let wanted = format!("0:{}", mount.device);
    at_each(move |pid, process| {
        let space = space(process).filter(|space| !looked.contains(space))?;
        let mounts = fs::read_to_string(process.join("mountinfo")).ok()?;
        looked.insert(space);
        let mut devices = mounts.lines().filter_map(|line| line.split(' ').nth(2));
        if !devices.any(|one| one == wanted) {
            return None;
        }
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
        let name = name.trim_end().to_string();
        Some(Copy { pid, name })
    })
}
