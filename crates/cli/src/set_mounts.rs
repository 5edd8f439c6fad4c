//! The mounts of a local set: `tidegate mount` says in the set's state directory where its mount is
//! and which one it is, and keeps that said with a lock as long as it lives. So `tidegate down`
//! finds the mount wherever it is, and takes nothing else away that is at its place.

use crate::errln;
use crate::holders;
use crate::processes::Process;
use crate::state::StateDir;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tidegate_client::FuseMount;
use tidegate_server::PidFile;

/// Mounts of one set that are looked at.
const LOOKED_MAX: usize = 1024;

/// A mount of a set.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub struct SetMount {
    /// Where it is.
    pub point: PathBuf,
    /// The minor number of its device, which no other mount has while this one is there.
    pub device: u64,
}

/// What this process has said of its mount.
pub struct Told {
    state: StateDir,
    mount: SetMount,
    pid_file: PidFile,
}

impl Told {
    /// Says in a state directory that this process serves the mount at a place. Prints why it
    /// cannot.
    pub fn tell(state: StateDir, point: &Path) -> Option<Told> {
        let mount = SetMount {
            point: point.to_path_buf(),
            device: at(point)?.device,
        };
        let written = mount.write(&state);
        let pid_file = written.and_then(|()| PidFile::write(&mount.file(&state, "pid")));
        match pid_file {
            Ok(pid_file) => Some(Told {
                state,
                mount,
                pid_file,
            }),
            Err(error) => {
                let dir = state.path().display();
                errln!("tidegate: `tidegate down` of {dir} will not find this mount: {error}");
                mount.forget(&state);
                None
            }
        }
    }

    /// The mount is gone.
    pub fn end(self) {
        self.mount.forget(&self.state);
        self.pid_file.remove();
    }
}

impl SetMount {
    /// All of which the state directory says so, each with the process that serves it, if that
    /// still lives.
    pub fn all(state: &StateDir) -> Vec<(SetMount, Option<Process>)> {
        let read = |name: String| {
            let device = name.strip_prefix("mount.")?.strip_suffix(".toml")?;
            let device: u64 = device.parse().ok()?;
            let text = std::fs::read_to_string(state.inside(&state.file(&name))).ok()?;
            let mount: SetMount = toml::from_str(&text).ok()?;
            (mount.device == device).then_some(mount)
        };
        let mounts = state.names().into_iter().filter_map(read).take(LOOKED_MAX);
        let found = mounts.map(|mount| {
            let process = Process::find(&mount.file(state, "pid"));
            (mount, process)
        });
        found.collect()
    }

    /// Whether it still is what is at its place.
    pub fn is_there(&self) -> bool {
        let own = rustix::process::getuid().as_raw();
        at(&self.point).is_some_and(|found| {
            found.device == self.device && found.owner == own && found.is_tidegates()
        })
    }

    /// Removes what its process has said of it.
    pub fn forget(&self, state: &StateDir) {
        for what in ["toml", "pid"] {
            // Perhaps its process was quicker.
            let _ = std::fs::remove_file(self.file(state, what));
        }
    }

    fn write(&self, state: &StateDir) -> std::io::Result<()> {
        let text = toml::to_string(self).map_err(std::io::Error::other)?;
        std::fs::write(self.file(state, "toml"), text)
    }

    fn file(&self, state: &StateDir, what: &str) -> PathBuf {
        state.inside(&state.file(&format!("mount.{}.{what}", self.device)))
    }
}

/// The FUSE mount at a place, which hides those mounted there before. Does not access it.
pub fn at(point: &Path) -> Option<FuseMount> {
    let point = holders::spelled(point);
    let mounts = tidegate_client::fuse_mounts();
    mounts.into_iter().rfind(|mount| mount.point == point)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_that_is_said_is_found_until_it_ends() {
        let folder = format!("tidegate-set-mounts-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        let state = StateDir::choose(Some(&folder));
        state.create().expect("fresh");
        let mount = SetMount {
            point: folder.clone(),
            device: 70_000_000,
        };
        mount.write(&state).expect("room");
        std::fs::write(state.file("mount.7.toml"), "of an earlier version").expect("room");
        let [(found, None)] = &SetMount::all(&state)[..] else {
            panic!("one, without a process")
        };
        assert_eq!(*found, mount);
        assert!(!found.is_there(), "no mount has this number");
        found.forget(&state);
        assert!(SetMount::all(&state).is_empty());
        assert!(
            Told::tell(state, &folder).is_none(),
            "nothing is mounted there"
        );
        std::fs::remove_dir_all(&folder).expect("ours");
    }
}
