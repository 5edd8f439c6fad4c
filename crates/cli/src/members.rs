//! The processes of a local set, by its state directory: those that hold pid files, also mounts
//! that `tidegate mount` made, and those that no pid file names, because `tidegate up` was killed
//! before they had come so far, or somebody has removed the files, or the whole directory.
//!
//! The latter are known by what they run: this program, by this user, with a file of the state
//! directory as its configuration, and that is the same directory where they look, or none is there
//! for them either. Processes in containers may have another one by the same name. A descriptor of
//! the process is opened first, so that what is read is of the process which is ended.

use crate::installed;
use crate::processes::Process;
use crate::set_mounts::SetMount;
use crate::state::{FORWARDERS_MAX, StateDir};
use rustix::process::Pid;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A process of a mount and where that is; None: where `client.toml` says.
pub type RunningMount = (Option<PathBuf>, Process);

/// The mounts and the forwarders that run, the latter with their indices.
pub fn running(state: &StateDir) -> (Vec<RunningMount>, Vec<(usize, Process)>) {
    let find = |file: PathBuf| Process::find(&state.inside(&file));
    let told = SetMount::all(state).into_iter();
    let told = told.filter_map(|(mount, process)| Some((Some(mount.point), process?)));
    let mut mounts: Vec<RunningMount> = told.collect();
    if let Some(process) = find(state.file("mount.pid"))
        && mounts.iter().all(|(_, one)| one.pid() != process.pid())
    {
        mounts.push((None, process));
    }
    let by_file = |index| Some((index, find(state.forwarder(index, "pid"))?));
    let mut forwarders: Vec<_> = (0..FORWARDERS_MAX).filter_map(by_file).collect();
    for (role, process) in unnamed(state) {
        let known = mounts.iter().map(|(_, one)| one.pid());
        let mut known = known.chain(forwarders.iter().map(|(_, one)| one.pid()));
        if known.any(|pid| pid == process.pid()) {
            continue;
        }
        match role {
            Role::Mount(point) => mounts.push((Some(point), process)),
            Role::Forwarder(index) => forwarders.push((index, process)),
            Role::Supervisor => {}
        }
    }
    (mounts, forwarders)
}

/// The `tidegate up` that keeps the set.
pub fn supervisor(state: &StateDir) -> Option<Process> {
    let by_file = Process::find(&state.inside(&state.file("up.pid")));
    by_file.or_else(|| {
        let mut unnamed = unnamed(state).into_iter();
        let found = unnamed.find(|(role, _)| *role == Role::Supervisor);
        found.map(|(_, process)| process)
    })
}

/// The state directories of other sets of this user that serve something, as a list in words; None
/// if there are none.
pub fn other_sets(state: &StateDir) -> Option<String> {
    let programs = programs().into_iter();
    let mut all: Vec<PathBuf> = programs.filter_map(|words| set_of(&words)).collect();
    all.retain(|one| one != state.path());
    all.sort();
    all.dedup();
    let all: Vec<_> = all.iter().map(|one| one.display().to_string()).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// The state directory of the set to which a forwarder with these arguments belongs; None if it was
/// started by hand.
pub fn set_of(arguments: &[PathBuf]) -> Option<PathBuf> {
    let file = configuration(arguments).filter(|file| file.is_absolute())?;
    let folder = file.parent()?;
    (index_of(file).is_some() && folder.join("client.toml").exists()).then(|| folder.to_path_buf())
}

/// The index of the forwarder of a set that has this configuration file.
fn index_of(file: &Path) -> Option<usize> {
    let name = file.file_name()?.to_str()?;
    let index = name.strip_prefix("forwarder.")?.strip_suffix(".toml")?;
    index.parse().ok()
}

/// Whether forwarders or a mount run.
pub fn runs(state: &StateDir) -> bool {
    let (mounts, forwarders) = running(state);
    !mounts.is_empty() || !forwarders.is_empty()
}

/// What a process does for a state directory.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Role {
    /// A forwarder, by its index.
    Forwarder(usize),
    /// The mount, at this place.
    Mount(PathBuf),
    /// The `tidegate up` that keeps them.
    Supervisor,
}

/// Before the state directory, in the arguments of an `up` in the background.
pub const KEEPS: &str = "--keeps";

/// The arguments of this program's processes that this user runs, without this one.
pub fn programs() -> Vec<Vec<PathBuf>> {
    pids().filter_map(arguments).collect()
}

/// The configuration that a forwarder of a set, with these arguments, was started with.
pub fn configuration(arguments: &[PathBuf]) -> Option<&Path> {
    match arguments {
        [command, flag, file, ..]
            if command == Path::new("serve") && flag == Path::new("--config") =>
        {
            Some(file)
        }
        _ => None,
    }
}

/// The processes of this user that serve a state directory, except this one.
fn unnamed(state: &StateDir) -> Vec<(Role, Process)> {
    let place = state.path();
    let place = place.canonicalize().unwrap_or_else(|_| place.to_path_buf());
    let found = pids().filter_map(|pid| {
        let does = |pid| {
            let role = role(&arguments(pid)?, &place)?;
            sees(pid, &place).then_some(role)
        };
        // Most are other programs, which need no descriptor.
        does(pid)?;
        let process = Process::of_pid(pid)?;
        let role = does(pid)?;
        // A forwarder's own helper ends with it.
        let is_helper = parent(pid).and_then(does).as_ref() == Some(&role);
        (!is_helper && !process.has_ended()).then_some((role, process))
    });
    found.collect()
}

/// The numbers of all processes but this one.
fn pids() -> impl Iterator<Item = Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let own = rustix::process::getpid();
    pids.filter_map(Pid::from_raw)
        .filter(move |pid| *pid != own)
}

/// The process that made another one.
fn parent(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name of the program stands in brackets, and may hold any.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Pid::from_raw(fields.nth(1)?.parse().ok()?)
}

/// Whether a process finds the same directory at this path, or like this one none. No, if that
/// cannot be known.
fn sees(pid: Pid, place: &Path) -> bool {
    let root = PathBuf::from(format!("/proc/{}/root", pid.as_raw_nonzero()));
    let inside = place.strip_prefix("/").unwrap_or(place);
    let id = |path: &Path| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    };
    let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/mnt")).ok();
    let pid = pid.as_raw_nonzero().to_string();
    match id(place) {
        Some(here) => id(&root.join(inside)) == Some(here),
        // Elsewhere it may be another one that is gone.
        None => {
            let namespace = [pid.as_str(), "self"].map(namespace);
            let same_root = id(&root).is_some() && id(&root) == id(Path::new("/"));
            same_root && namespace[0].is_some() && namespace[0] == namespace[1]
        }
    }
}

/// The arguments of a process of this user that runs this program.
fn arguments(pid: Pid) -> Option<Vec<PathBuf>> {
    let process = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    let owner = std::fs::metadata(&process).ok()?.uid();
    let own = installed::own().ok()?;
    let runs = std::fs::read_link(process.join("exe")).ok()?;
    // A new version may have replaced the file that an old process runs.
    let runs = runs.as_os_str().as_bytes();
    let runs = runs.strip_suffix(b" (deleted)").unwrap_or(runs);
    let name = Path::new(std::ffi::OsStr::from_bytes(runs)).file_name();
    if owner != rustix::process::geteuid().as_raw() || name != own.file_name() {
        return None;
    }
    let text = std::fs::read(process.join("cmdline")).ok()?;
    let text = text.strip_suffix(&[0]).unwrap_or(&text);
    let words = text.split(|byte| *byte == 0).skip(1);
    Some(
        words
            .map(|word| std::ffi::OsStr::from_bytes(word).into())
            .collect(),
    )
}

/// What a process with these arguments does for the state directory, if anything.
fn role(arguments: &[PathBuf], place: &Path) -> Option<Role> {
    let is_place = |folder: &Path| match folder.canonicalize() {
        Ok(found) => found == place,
        // It is gone, and known by its name.
        Err(_) => folder == place,
    };
    let is_in = |file: &Path| file.parent().is_some_and(is_place);
    if let Some(file) = configuration(arguments).filter(|file| is_in(file)) {
        return index_of(file).map(Role::Forwarder);
    }
    let words: Vec<&Path> = arguments.iter().map(PathBuf::as_path).collect();
    match words.as_slice() {
        [command, point, flag, file, ..]
            if *command == Path::new("mount")
                && *flag == Path::new("--client")
                && is_in(file)
                && file.file_name()? == "client.toml" =>
        {
            Some(Role::Mount(point.to_path_buf()))
        }
        [command, flag, folder, ..]
            if *command == Path::new("up") && *flag == Path::new(KEEPS) && is_place(folder) =>
        {
            Some(Role::Supervisor)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_sees_the_directories_of_its_own_root() {
        let own = rustix::process::getpid();
        assert!(sees(own, &std::env::temp_dir()));
        assert!(sees(own, Path::new("/nowhere")), "it is gone for both");
    }

    #[test]
    fn a_forwarder_that_was_started_by_hand_is_of_no_set() {
        let folder = std::env::temp_dir().join(format!("set-of-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("room");
        let of = |file: &Path| {
            set_of(
                &["serve", "--config"]
                    .map(PathBuf::from)
                    .into_iter()
                    .chain([file.to_path_buf()])
                    .collect::<Vec<_>>(),
            )
        };
        let file = folder.join("forwarder.0.toml");
        assert_eq!(of(&file), None);
        std::fs::write(folder.join("client.toml"), "").expect("room");
        assert_eq!(of(&file), Some(folder.clone()));
        assert_eq!(of(&folder.join("site.toml")), None);
        assert_eq!(of(Path::new("forwarder.0.toml")), None);
        std::fs::remove_dir_all(&folder).expect("it is there");
    }

    #[test]
    fn a_process_is_known_by_the_file_that_it_serves() {
        let place = std::env::temp_dir().canonicalize().expect("it is there");
        let of = |words: &[&str]| {
            let words: Vec<PathBuf> = words.iter().map(PathBuf::from).collect();
            role(&words, &place)
        };
        let inside = |name: &str| place.join(name).to_string_lossy().into_owned();
        let serves = ["serve", "--config", &inside("forwarder.3.toml")];
        assert_eq!(of(&serves), Some(Role::Forwarder(3)));
        let mounts = [
            "mount",
            "/mnt/x",
            "--client",
            &inside("client.toml"),
            "--foreground",
        ];
        assert_eq!(of(&mounts), Some(Role::Mount("/mnt/x".into())));
        assert_eq!(
            of(&["serve", "--config", "/nowhere/forwarder.3.toml"]),
            None
        );
        assert_eq!(of(&["serve", "--config", &inside("other.toml")]), None);
        assert_eq!(of(&["stat", "--client", &inside("client.toml")]), None);
        assert_eq!(of(&["serve"]), None);
        let keeps = ["up", KEEPS, &inside(""), "--foreground", "data"];
        assert_eq!(of(&keeps), Some(Role::Supervisor));
        assert_eq!(of(&["up", KEEPS, "/x", "--foreground", "data"]), None);
        let gone = Path::new("/nowhere/run");
        let words = ["serve", "--config", "/nowhere/run/forwarder.3.toml"].map(PathBuf::from);
        assert_eq!(role(&words, gone), Some(Role::Forwarder(3)));
    }
}
