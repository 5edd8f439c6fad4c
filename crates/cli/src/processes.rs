//! Processes that a state directory knows of. The command starts them as processes of their own,
//! and finds them again by pid files.

use crate::fail::Fail;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Between two looks at whether something has happened.
const LOOK: Duration = Duration::from_millis(20);

/// Starts a program in a process group of its own, so that a Ctrl-C for this command does not reach
/// it, with its output in a log.
pub fn start(program: &Path, arguments: &[String], log: &Path) -> Result<Child, Fail> {
    let failed = |what: &Path, error| Fail::runtime(format!("{}: {error}", what.display()));
    let output = File::options().create(true).append(true).open(log);
    let output = output.map_err(|error| failed(log, error))?;
    let errors = output.try_clone().map_err(|error| failed(log, error))?;
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .process_group(0)
        .spawn()
        .map_err(|error| failed(program, error))
}

/// The live process of a pid file, if its command line mentions `mark`: a pid file may be older
/// than the process that has its number now.
pub fn find(pid_file: &Path, mark: &str) -> Option<Pid> {
    let text = std::fs::read_to_string(pid_file).ok()?;
    let pid = Pid::from_raw(text.trim().parse().ok()?)?;
    is_ours(pid, mark).then_some(pid)
}

fn is_ours(pid: Pid, mark: &str) -> bool {
    let path = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    let Ok(line) = std::fs::read(path.join("cmdline")) else {
        return false;
    };
    !has_ended(&path) && String::from_utf8_lossy(&line).contains(mark)
}

/// Whether a process has ended and its parent has not waited for it yet, by its state in `stat`.
fn has_ended(process: &Path) -> bool {
    let stat = std::fs::read(process.join("stat")).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    state.starts_with(['Z', 'X'])
}

/// Asks a process to end, waits, and kills it if it does not end. True if it ended by itself.
pub fn end(pid: Pid, mark: &str, patience: Duration) -> bool {
    // It may be stopped, or gone already; both are fine.
    let _ = kill_process(pid, Signal::TERM);
    let _ = kill_process(pid, Signal::CONT);
    if wait_until(patience, || !is_ours(pid, mark)) {
        return true;
    }
    let _ = kill_process(pid, Signal::KILL);
    wait_until(Duration::from_secs(5), || !is_ours(pid, mark));
    false
}

/// Calls `holds` again and again until it returns true; false if time ran out.
pub fn wait_until(patience: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + patience;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(LOOK);
    }
}

/// The last line of a log that is not empty.
pub fn last_line(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or_default();
    line.strip_prefix("tidegate: ").unwrap_or(line).to_string()
}

/// Whether a directory is the mount point of a FUSE file system.
pub fn is_mounted(path: &Path) -> bool {
    let Ok(mounts) = std::fs::read("/proc/self/mounts") else {
        return false;
    };
    let wanted = escaped(path);
    String::from_utf8_lossy(&mounts).lines().any(|line| {
        let mut fields = line.split(' ').skip(1);
        fields.next() == Some(wanted.as_str())
            && fields.next().is_some_and(|kind| kind.starts_with("fuse"))
    })
}

/// Unmounts a mount whose process is gone.
pub fn detach(point: &Path) -> bool {
    let commands: [(&str, &[&str]); 3] = [
        ("fusermount3", &["-uz"]),
        ("fusermount", &["-uz"]),
        ("umount", &["-l"]),
    ];
    commands.iter().any(|(program, flags)| {
        let quiet = Command::new(program)
            .args(*flags)
            .arg(point)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        quiet.is_ok_and(|status| status.success())
    })
}

/// A path as /proc/self/mounts spells it.
fn escaped(path: &Path) -> String {
    let mut text = String::new();
    for c in path.to_string_lossy().chars() {
        match c {
            ' ' => text.push_str("\\040"),
            '\t' => text.push_str("\\011"),
            '\n' => text.push_str("\\012"),
            '\\' => text.push_str("\\134"),
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_nobody_has_waited_for_has_ended() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("it starts");
        let path = PathBuf::from(format!("/proc/{}", child.id()));
        assert!(!has_ended(&path) && is_ours(Pid::from_child(&child), ""));
        child.kill().expect("it is ours");
        assert!(wait_until(Duration::from_secs(20), || has_ended(&path)));
        assert!(!is_ours(Pid::from_child(&child), ""));
        child.wait().expect("it is ours");
    }
}
