//! Copies of a mount: other mount namespaces, as those of containers, keep what was mounted when
//! they were made. A FUSE file system lives as long as one of them.

use crate::set_mounts;
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

/// For the look: /proc can block on a process that is stuck itself, and then some are not found.
const LOOK_MAX: Duration = Duration::from_secs(2);

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
    let (found, copies) = mpsc::channel();
    // On its own, so that it may be left behind.
    std::thread::spawn(move || look(mount.device, &found));
    let until = Instant::now() + LOOK_MAX;
    let rest = || until.saturating_duration_since(Instant::now());
    std::iter::from_fn(|| copies.recv_timeout(rest()).ok()).collect()
}

fn look(device: u64, found: &Sender<Copy>) {
    let space = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let own = space(Path::new("/proc/self"));
    let mut looked: BTreeSet<PathBuf> = own.into_iter().collect();
    let Ok(processes) = fs::read_dir("/proc") else {
        return;
    };
    for process in processes.flatten() {
        let Ok(pid) = process.file_name().to_string_lossy().parse() else {
            continue;
        };
        let process = process.path();
        let Some(space) = space(&process).filter(|space| !looked.contains(space)) else {
            continue;
        };
        let Ok(mounts) = fs::read_to_string(process.join("mountinfo")) else {
            continue;
        };
        looked.insert(space);
        let wanted = format!("0:{device}");
        let mut devices = mounts.lines().filter_map(|line| line.split(' ').nth(2));
        if devices.any(|one| one == wanted) {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            let name = name.trim_end().to_string();
            if found.send(Copy { pid, name }).is_err() {
                // Nobody waits any longer.
                return;
            }
        }
    }
}
