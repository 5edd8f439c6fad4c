//! Which processes use a mount: by open files, maps, working directory and root, as far as /proc
//! tells this user.

use crate::processes::at_each;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Holders that are named; the others are counted.
const NAMED_MAX: usize = 5;

/// Ways in which a process uses a file of a mount.
const OPEN: &str = "open file";
const MAPPED: &str = "mapped file";

/// A process that uses a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pid: u32,
    /// As in /proc/PID/comm.
    name: String,
    /// One of the ways in which it uses it.
    how: &'static str,
    path: PathBuf,
}

impl Holder {
    /// Whether it has a file there open or mapped, and not merely a directory as its own.
    pub fn has_file(&self) -> bool {
        [OPEN, MAPPED].contains(&self.how)
    }

    /// Whether the process is still there.
    pub fn is_there(&self) -> bool {
        let process = PathBuf::from(format!("/proc/{}", self.pid));
        fs::read_to_string(process.join("comm")).is_ok_and(|name| name.trim_end() == self.name)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Holder { pid, name, how, .. } = self;
        write!(f, "{name} (pid {pid}, {how} {})", self.path.display())
    }
}

/// Several of them in words.
pub fn list(holders: &[Holder]) -> String {
    let named = holders.iter().take(NAMED_MAX).map(Holder::to_string);
    let mut text = named.collect::<Vec<_>>().join(", ");
    if holders.len() > NAMED_MAX {
        text.push_str(&format!(" and {} more", holders.len() - NAMED_MAX));
    }
    text
}

/// The processes, except this one, that use the mount at a place. Opens no file of the mount, since
/// its forwarders may hang.
pub fn find(point: &Path) -> Vec<Holder> {
    let point = spelled(point);
    at_each(move |pid, process| {
        let (how, path) = way(process, &point)?;
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
        let name = name.trim_end().to_string();
        Some(Holder {
            pid,
            name,
            how,
            path,
        })
    })
}

/// The path of a mount point without links, as /proc shows it. Does not access the mount point
/// itself.
pub fn spelled(point: &Path) -> PathBuf {
    let parent = point.parent().and_then(|parent| parent.canonicalize().ok());
    match (parent, point.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => point.to_path_buf(),
    }
}

/// How a process uses the mount, and which file; a use that would lose data comes first.
fn way(process: &Path, point: &Path) -> Option<(&'static str, PathBuf)> {
    let inside = |link: PathBuf| {
        let path = fs::read_link(link).ok()?;
        path.starts_with(point).then_some(path)
    };
    let opened = || {
        let files = fs::read_dir(process.join("fd")).ok()?;
        files.flatten().find_map(|file| inside(file.path()))
    };
    let mapped = || {
        let maps = fs::read(process.join("maps")).ok()?;
        let maps = String::from_utf8_lossy(&maps);
        // Range, rights, offset, device and inode come before the path, which may hold spaces.
        let paths = maps
            .lines()
            .filter_map(|line| line.find('/').map(|at| &line[at..]));
        let mut inside = paths.map(Path::new).filter(|path| path.starts_with(point));
        inside.next().map(Path::to_path_buf)
    };
    (opened().map(|path| (OPEN, path)))
        .or_else(|| mapped().map(|path| (MAPPED, path)))
        .or_else(|| inside(process.join("cwd")).map(|path| ("working directory", path)))
        .or_else(|| inside(process.join("root")).map(|path| ("root directory", path)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::wait_until;
    use std::fs::File;
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    fn ended(mut child: Child) {
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
    }

    #[test]
    fn those_that_use_a_folder_are_found_and_say_how() {
        let name = format!("tidegate-holders-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(folder.join("in side")).expect("the temporary directory is ours");
        fs::write(folder.join("file"), "bytes").expect("ours");
        // Not by this process: another test's child could inherit the descriptor for writing, and
        // then the kernel refuses to run the copy.
        let mut copy = Command::new("cp");
        let copied = copy
            .arg("/bin/sleep")
            .arg(folder.join("a program"))
            .status();
        assert!(copied.expect("there is cp").success());
        let sleep = |program: &Path| {
            let mut command = Command::new(program);
            command.arg("60").stdin(Stdio::null());
            command
        };
        let plain = || sleep(Path::new("sleep"));
        let works = plain().current_dir(folder.join("in side")).spawn();
        let file = File::open(folder.join("file")).expect("it is there");
        let opens = plain().stdin(file).spawn();
        let maps = sleep(&folder.join("a program")).spawn();
        let children = [works, opens, maps].map(|child| child.expect("it starts"));
        let expected = [
            ("working directory", "in side"),
            ("open file", "file"),
            ("mapped file", "a program"),
        ];
        // A child runs another program only a moment later.
        let all_found = wait_until(Duration::from_secs(20), || {
            let holders = find(&folder);
            let mut pairs = children.iter().zip(expected);
            pairs.all(|(child, (how, name))| {
                holders.iter().any(|holder| {
                    let path = spelled(&folder).join(name);
                    (holder.pid, holder.how, &holder.path) == (child.id(), how, &path)
                })
            })
        });
        let holders = find(&folder);
        assert!(all_found, "{holders:?}");
        assert!(holders.iter().all(Holder::is_there), "{holders:?}");
        children.into_iter().for_each(ended);
        assert_eq!(find(&folder), []);
        assert!(!holders.iter().any(Holder::is_there));
        fs::remove_dir_all(&folder).expect("ours");
    }

    #[test]
    fn many_are_counted() {
        let holder = |pid| Holder {
            pid,
            name: "dd".into(),
            how: "open file",
            path: "/mnt/a".into(),
        };
        let few: Vec<_> = (1..3).map(holder).collect();
        let text = "dd (pid 1, open file /mnt/a), dd (pid 2, open file /mnt/a)";
        assert_eq!(list(&few), text);
        let many: Vec<_> = (1..20).map(holder).collect();
        assert!(
            list(&many).ends_with("/mnt/a) and 14 more"),
            "{}",
            list(&many)
        );
    }
}
