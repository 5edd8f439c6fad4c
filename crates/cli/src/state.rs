//! The state directory of `tidegate up`: sockets, configurations, process ids, logs, `client.toml`.

use crate::errln;
use crate::fail::Fail;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Names the state directory for all commands.
pub const STATE_DIR: &str = "TIDEGATE_STATE_DIR";

/// Says where temporary files go.
const TEMPORARY: &str = "TMPDIR";

/// Most forwarders of one state directory.
pub const FORWARDERS_MAX: usize = 64;

/// The folder of the state directory where to mount, if nothing else is said.
pub const MOUNT: &str = "mnt";

/// The file that commands lock.
pub const LOCK: &str = "lock";

/// Files that commands make in a state directory, and what the names of others begin and end with;
/// a number may stand between.
const OWN_NAMES: [&str; 6] = [
    "applications",
    "killed",
    LOCK,
    "restarts",
    "restarts.new",
    "secret",
];
const OWN_KINDS: [&str; 4] = ["client", "forwarder", "mount", "up"];
const OWN_ENDS: [&str; 5] = ["log", "pid", "room", "sock", "toml"];

/// Whether commands make files of this name. Others may lie there: by `..` of the mount, a program
/// gets to the state directory.
pub fn is_own(name: &str) -> bool {
    let parts: Vec<&str> = name.split('.').collect();
    let is_of_kind = match parts.as_slice() {
        [kind, middle @ .., end] => {
            let is_number = |part: &&str| part.parse::<u64>().is_ok();
            OWN_KINDS.contains(kind)
                && OWN_ENDS.contains(end)
                && middle.len() < 2
                && middle.iter().all(is_number)
        }
        _ => false,
    };
    is_of_kind || OWN_NAMES.contains(&name)
}

/// `client.toml`: what the other commands need to know of a set of forwarders.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct ClientFile {
    /// Addresses, and @FILE for a file with one a line; some of them are enough. Or one @_NAME, a
    /// name of DNS with SRV records.
    pub forwarders: Vec<String>,
    /// File with a secret, for TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
    /// Where a mount of root is that gives its users tickets, for TCP without a secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tickets: Option<PathBuf>,
    /// Whether munge vouches for the user, for TCP without a secret: `on`, `off`, or the socket of
    /// this node's munged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub munge: Option<String>,
    /// With `munge`, the user as whom the forwarders run, by number. Default: root, 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub munge_uid: Option<u32>,
    /// The least protection of what clients and forwarders send each other over TCP: `on`,
    /// `integrity` or `off`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption: Option<String>,
    /// How many pieces of a transfer may be under way at once: `none`, `serial` or `parallel`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipelining: Option<String>,
    /// Bytes of each piece of a transfer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline_bytes: Option<u32>,
    /// The exported directory, if it is on this node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub export: Option<PathBuf>,
    /// Where the files are mounted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mount: Option<PathBuf>,
    /// The mount of root that has told all this, where no file has.
    #[serde(skip)]
    pub told_by: Option<PathBuf>,
}

impl ClientFile {
    /// Reads a `client.toml`.
    pub fn read(path: &Path) -> Result<ClientFile, Fail> {
        ClientFile::read_as(path, path)
    }

    /// Reads a `client.toml` that messages call `path`.
    fn read_as(place: &Path, path: &Path) -> Result<ClientFile, Fail> {
        let wrong = |what: String| Fail::usage(format!("{}: {what}", path.display()));
        let text = std::fs::read_to_string(place)
            .map_err(|error| wrong(format!("cannot be read: {error}")))?;
        ClientFile::of_text(&text, path)
    }

    /// The settings in the text of a `client.toml`, which messages call `path`.
    pub fn of_text(text: &str, path: &Path) -> Result<ClientFile, Fail> {
        toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            let line = text[..start].matches('\n').count() + 1;
            Fail::usage(format!("{}:{line}: {}", path.display(), error.message()))
        })
    }
}

/// A state directory. Its files tell which processes to end, and where to write: so it must be this
/// user's alone.
#[derive(Clone, Debug)]
pub struct StateDir {
    path: PathBuf,
    is_named: bool,
    /// The variable that says where it is.
    by: Option<&'static str>,
    /// The one outside of jobs, if it is another.
    of_no_job: Option<PathBuf>,
    /// The directory, once it was found to be this user's.
    opened: OnceLock<Arc<OwnedFd>>,
}

impl StateDir {
    /// The given directory, else the environment's, else the user's own, of which each job of a
    /// batch system has one. XDG_RUNTIME_DIR counts only if it belongs to this user: root may have
    /// kept that of somebody else.
    pub fn choose(given: Option<&Path>) -> StateDir {
        let job = tidegate_client::job_name_from_env(|name| std::env::var(name).ok());
        let mut chosen = StateDir::choose_in(given, job.as_deref());
        // Now: the working directory may be another one later.
        let other = StateDir::choose_in(None, None);
        chosen.of_no_job = (!chosen.is_named && other.path != chosen.path).then_some(other.path);
        chosen
    }

    /// The directory that is chosen outside of jobs, if this process belongs to one and the user
    /// has named none.
    pub fn outside_of_jobs(&self) -> Option<&Path> {
        self.of_no_job.as_deref()
    }

    fn choose_in(given: Option<&Path>, job: Option<&str>) -> StateDir {
        let of_job = |name: String| match job {
            Some(job) => format!("{name}-{}", file_name(job)),
            None => name,
        };
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let uid = rustix::process::geteuid();
        let is_own = |path: &OsString| {
            std::fs::symlink_metadata(path).is_ok_and(|found| found.uid() == uid.as_raw())
        };
        let mut by = None;
        let path = if let Some(path) = given {
            path.to_path_buf()
        } else if let Some(path) = variable(STATE_DIR) {
            by = Some(STATE_DIR);
            path.into()
        } else if let Some(path) = variable("XDG_RUNTIME_DIR").filter(is_own) {
            Path::new(&path).join(of_job("tidegate".to_string()))
        } else if uid.is_root() {
            Path::new("/run").join(of_job("tidegate".to_string()))
        } else {
            by = variable(TEMPORARY).map(|_| TEMPORARY);
            temporary_folder().join(of_job(format!("tidegate-{}", uid.as_raw())))
        };
        StateDir {
            is_named: given.is_some() || by == Some(STATE_DIR),
            path: std::path::absolute(&path).unwrap_or(path),
            by,
            of_no_job: None,
            opened: OnceLock::new(),
        }
    }

    /// Whether the user has named it.
    pub fn is_named(&self) -> bool {
        self.is_named
    }

    /// Makes the directory, for this user only. Fails if it is there and not this user's alone.
    pub fn create(&self) -> Result<(), Fail> {
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.path);
        made.map_err(|error| self.wrong(&error))?;
        match self.enter()? {
            true => Ok(()),
            false => Err(self.wrong(&"it is gone again")),
        }
    }

    /// Opens the directory if it exists; false if not. Fails if it is not this user's alone.
    pub fn enter(&self) -> Result<bool, Fail> {
        if self.opened.get().is_some() {
            return Ok(true);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match rustix::fs::open(&self.path, flags, Mode::empty()) {
            Ok(opened) => opened,
            Err(Errno::NOENT) => return Ok(false),
            Err(Errno::LOOP | Errno::NOTDIR) => {
                return Err(self.wrong(&"it is no directory, or a symbolic link"));
            }
            Err(error) => return Err(self.wrong(&error)),
        };
        let found = rustix::fs::fstat(&opened).map_err(|error| self.wrong(&error))?;
        let (owner, own) = (found.st_uid, rustix::process::geteuid().as_raw());
        if owner != own {
            let what = format!("it belongs to user {owner}, and you are user {own}");
            return Err(self.wrong(&what));
        }
        if found.st_mode & 0o077 != 0 {
            let what = format!("others may use it; `chmod 700 {}`", self.path.display());
            return Err(self.wrong(&what));
        }
        let _ = self.opened.set(Arc::new(opened));
        Ok(true)
    }

    /// The names in it that are text.
    pub fn names(&self) -> Vec<String> {
        let opened = self.opened.get();
        let opened = opened.map(|opened| format!("/proc/self/fd/{}", opened.as_raw_fd()));
        let folder = opened.map_or_else(|| self.path.clone(), PathBuf::from);
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().into_string());
        names.filter_map(Result::ok).collect()
    }

    /// Removes the directory that a job of a batch system had, since the job's name does not come
    /// again: all that `up` and other commands have put there, and the directory if nothing else is
    /// in it. The caller has its lock. Others' directories stay. Says what keeps the directory.
    pub fn remove_of_job(&self) {
        // A directory that has the name now may be another's.
        if self.outside_of_jobs().is_none() || self.is_gone() {
            return;
        }
        let mut names = self.names();
        // The lock last: whoever waits for it, or comes anew, sees all of the rest or nothing.
        names.sort_by_key(|name| name == LOCK);
        // Whatever cannot be removed keeps the directory.
        for name in names.iter().filter(|name| is_own(name)) {
            let _ = std::fs::remove_file(self.inside(&self.file(name)));
        }
        let _ = std::fs::remove_dir(self.inside(&self.file(MOUNT)));
        let _ = std::fs::remove_dir(&self.path);
        names.retain(|name| !is_own(name) && name != MOUNT);
        if !names.is_empty() {
            let path = self.path.display();
            names.sort();
            let names = names.join(", ");
            errln!("tidegate: {path} stays, for what is in it is not of forwarders: {names}");
        }
    }

    /// Whether the directory that was opened has been removed.
    pub fn is_gone(&self) -> bool {
        let found = self.opened.get().map(rustix::fs::fstat);
        found.is_some_and(|found| found.is_ok_and(|found| found.st_nlink == 0))
    }

    /// That it has been removed, as a message.
    pub fn removed(&self) -> String {
        let path = self.path.display();
        format!("a `tidegate down` has just removed the state directory {path}; try again")
    }

    fn wrong(&self, what: &dyn std::fmt::Display) -> Fail {
        let place = self.told();
        Fail::usage(format!(
            "state directory {place}: {what}; or choose another with --state-dir"
        ))
    }

    /// The directory in a message, with the variable that says where it is: it may be of long ago,
    /// or mean another one in another working directory.
    pub fn told(&self) -> String {
        let path = self.path.display();
        match self.by {
            Some(name) => format!("{path} (as the variable {name} says)"),
            None => path.to_string(),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `client.toml`, which the other commands read.
    pub fn client_file(&self) -> PathBuf {
        self.path.join("client.toml")
    }

    /// What `client.toml` says.
    pub fn read_client_file(&self) -> Result<ClientFile, Fail> {
        let path = self.client_file();
        ClientFile::read_as(&self.inside(&path), &path)
    }

    /// `forwarder.INDEX.WHAT`.
    pub fn forwarder(&self, index: usize, what: &str) -> PathBuf {
        self.path.join(format!("forwarder.{index}.{what}"))
    }

    /// Any other file.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The same file, for this process alone: in the directory that was opened, whatever has its
    /// name now.
    pub fn inside(&self, file: &Path) -> PathBuf {
        match (self.opened.get(), file.file_name()) {
            (Some(opened), Some(name)) => {
                let number = opened.as_raw_fd();
                PathBuf::from(format!("/proc/self/fd/{number}")).join(name)
            }
            _ => file.to_path_buf(),
        }
    }
}

/// Where temporary files go. An empty variable says nothing, and not the working directory.
pub fn temporary_folder() -> PathBuf {
    let set = std::env::var_os(TEMPORARY).filter(|folder| !folder.is_empty());
    set.map_or_else(|| PathBuf::from("/tmp"), PathBuf::from)
}

/// A job's name as a part of a file's name. Names of sockets have 107 bytes, so a long one is
/// replaced by a number.
fn file_name(job: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if job.len() <= JOB_BYTES_MAX && job.chars().all(is_plain) {
        return job.to_string();
    }
    format!("job-{:016x}", tidegate_client::app_id(job))
}

/// Longest name of a job that becomes part of the state directory's.
const JOB_BYTES_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    #[test]
    fn a_state_directory_is_the_users_alone() {
        let folder = format!("tidegate-state-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir(&folder).expect("fresh");
        let of = |name: &str| StateDir::choose(Some(&folder.join(name)));
        assert!(!of("new").enter().expect("none is there"));
        of("new").create().expect("it is made");
        assert!(of("new").enter().expect("it is ours"));
        let refused = |name: &str| of(name).enter().expect_err(name).message;
        symlink(folder.join("new"), folder.join("link")).expect("room");
        assert!(refused("link").contains("symbolic link"));
        let open = PermissionsExt::from_mode(0o750);
        std::fs::set_permissions(folder.join("new"), open).expect("ours");
        assert!(refused("new").contains("chmod 700"));
        of("new").create().expect_err("it stays as it is");
        if rustix::process::geteuid().is_root() {
            of("theirs").create().expect("it is made");
            chown(folder.join("theirs"), Some(12_345), None).expect("it is root");
            assert!(refused("theirs").contains("belongs to user 12345"));
        }
        std::fs::remove_dir_all(&folder).expect("ours");
    }

    #[test]
    fn each_job_has_a_state_directory_of_its_own() {
        let of = |job| StateDir::choose_in(None, job).path;
        if StateDir::choose_in(None, None).is_named {
            // The environment of this test says it.
            return;
        }
        let mut all = vec![of(None), of(Some("slurm-5")), of(Some("slurm-6"))];
        assert!(shown(&all[1]).ends_with("-slurm-5"), "{all:?}");
        // Neither a folder of another user's nor more than a socket's name can hold.
        all.push(of(Some("pbs-5/../../x")));
        all.push(of(Some(&format!("pbs-5.{}", "x".repeat(500)))));
        for path in &all {
            assert_eq!(path.parent(), all[0].parent(), "{all:?}");
            assert!(shown(path).len() < 70 + shown(&all[0]).len(), "{all:?}");
        }
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 5, "{all:?}");
        let named = StateDir::choose_in(Some(Path::new("/x/run")), Some("slurm-5"));
        assert_eq!(named.path, Path::new("/x/run"));
    }

    fn shown(path: &Path) -> String {
        path.display().to_string()
    }

    #[test]
    fn files_of_users_are_told_from_those_of_commands() {
        for own in [
            "applications",
            "client.toml",
            "forwarder.63.sock",
            "lock",
            "mount.log",
            "mount.57.toml",
            "restarts.new",
            "up.room",
        ] {
            assert!(is_own(own), "{own}");
        }
        for other in [
            "client.csv",
            "forwarder.x.log",
            "lock.txt",
            "mount.1.2.pid",
            "result.log",
            "up",
            "",
            ".pid",
        ] {
            assert!(!is_own(other), "{other}");
        }
    }
}
