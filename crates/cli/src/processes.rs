//! Processes that a state directory knows of. The command starts them as processes of their own,
//! and finds them again by pid files.

use crate::errln;
use crate::fail::Fail;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tidegate_server::PidFile;

/// What mounts of forwarders are called (`df`), unless mount(8) has a name for them.
pub const MOUNT_SOURCE: &str = "tidegate";

/// Between two looks at whether something has happened.
const LOOK: Duration = Duration::from_millis(20);

/// For a look at one process, and at all of them.
const LOOK_AT_ONE_MAX: Duration = Duration::from_secs(2);
const LOOK_AT_ALL_MAX: Duration = Duration::from_secs(10);

/// Starts a program in a process group of its own, so that a Ctrl-C for this command does not reach
/// it, with its output in a log.
pub fn start(program: &Path, arguments: &[impl AsRef<OsStr>], log: &Path) -> Result<Child, Fail> {
    start_with(program, arguments, log, Stdio::null())
}

/// The same, with this as its standard input.
pub fn start_with(
    program: &Path,
    arguments: &[impl AsRef<OsStr>],
    log: &Path,
    input: Stdio,
) -> Result<Child, Fail> {
    let mut command = logging(program, arguments, log)?;
    command.stdin(input).process_group(0);
    spawned(&mut command, program)
}

/// The same in this process's group, which it leaves by itself, and under the name of `tidegate`,
/// whatever the name of its file.
pub fn start_beside(
    program: &Path,
    arguments: &[impl AsRef<OsStr>],
    log: &Path,
) -> Result<Child, Fail> {
    let mut command = logging(program, arguments, log)?;
    let group = rustix::process::getpgrp().as_raw_nonzero().get();
    command.stdin(Stdio::null()).process_group(group);
    spawned(command.arg0("tidegate"), program)
}

/// A command whose output goes to the end of a log.
fn logging(program: &Path, arguments: &[impl AsRef<OsStr>], log: &Path) -> Result<Command, Fail> {
    let output = open_log(log).map_err(|error| failed(log, error))?;
    let errors = output.try_clone().map_err(|error| failed(log, error))?;
    let mut command = Command::new(program);
    command.args(arguments).stdout(output).stderr(errors);
    Ok(command)
}

fn spawned(command: &mut Command, program: &Path) -> Result<Child, Fail> {
    command.spawn().map_err(|error| failed(program, error))
}

fn failed(what: &Path, error: std::io::Error) -> Fail {
    Fail::runtime(format!("{}: {error}", what.display()))
}

/// Opens a log at its end, for this user only. Refuses a link, and a file of another user.
fn open_log(log: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    options.create(true).append(true).mode(0o600);
    let file = options.custom_flags(flags.bits() as i32).open(log)?;
    let found = file.metadata()?;
    if !found.is_file() || found.uid() != rustix::process::geteuid().as_raw() {
        return Err(std::io::Error::other("is no log of this user; remove it"));
    }
    Ok(file)
}

/// A process that this one may signal. A descriptor stands for it, so no other process that gets
/// its number later is meant.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    handle: OwnedFd,
}

impl Process {
    /// The live process that wrote a pid file and keeps it locked.
    pub fn find(pid_file: &Path) -> Option<Process> {
        let pid = PidFile::holder(pid_file)?;
        let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // If it holds the lock still, the descriptor is of no process that came after it.
        (PidFile::holder(pid_file) == Some(pid)).then_some(Process { pid, handle })
    }

    /// The process that has this number now. What is known of it must be looked at afterwards.
    pub fn of_pid(pid: Pid) -> Option<Process> {
        let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        Some(Process { pid, handle })
    }

    /// A child that was not waited for.
    pub fn of_child(child: &Child) -> Option<Process> {
        Process::of_pid(Pid::from_child(child))
    }

    /// Its number.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Asks the process to end, waits, and kills it if it does not end. True if it ended by itself.
    pub fn end(&self, patience: Duration) -> bool {
        self.end_or(patience, || {})
    }

    /// The same; calls `meanwhile` again and again while it waits.
    pub fn end_or(&self, patience: Duration, mut meanwhile: impl FnMut()) -> bool {
        self.ask_to_end();
        let ended = wait_until(patience, || {
            self.has_ended() || {
                meanwhile();
                false
            }
        });
        if ended {
            return true;
        }
        self.signal(Signal::KILL);
        wait_until(Duration::from_secs(5), || self.has_ended());
        false
    }

    /// Asks the process to end. It may be stopped, or gone already; both are fine.
    pub fn ask_to_end(&self) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.handle, signal);
    }

    /// Whether it has ended; its parent need not have waited for it.
    pub fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(&self.handle, PollFlags::IN)];
        matches!(poll(&mut polled, Some(&Timespec::default())), Ok(1))
    }
}

/// The signals that this process ignores, as bits: that of signal 1 first.
pub fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .unwrap_or(0)
}

/// What `look` finds at each process but this one, given its number and its folder in /proc. That
/// can block on a process that is stuck itself: then what was found before is returned. On a busy
/// node the look takes its time, as long as it goes on.
pub fn at_each<T: Send + 'static>(
    mut look: impl FnMut(u32, &Path) -> Option<T> + Send + 'static,
) -> Vec<T> {
    let own = std::process::id();
    in_time(move || {
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = all.filter_map(|it| Some((it.file_name().to_str()?.parse().ok()?, it)));
        let others = numbers.filter(move |(pid, _)| *pid != own);
        others.map(move |(pid, process)| look(pid, &process.path()))
    })
}

/// What an iterator finds, until it is stuck.
fn in_time<T: Send + 'static, I: Iterator<Item = Option<T>>>(
    finds: impl FnOnce() -> I + Send + 'static,
) -> Vec<T> {
    let (tell, told) = mpsc::channel();
    // On its own, so that it may be left behind: then nobody hears what it finds.
    std::thread::spawn(move || finds().try_for_each(|found| tell.send(found)));
    let until = Instant::now() + LOOK_AT_ALL_MAX;
    let rest = || until.saturating_duration_since(Instant::now());
    let next = || told.recv_timeout(rest().min(LOOK_AT_ONE_MAX)).ok();
    std::iter::from_fn(next).flatten().collect()
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

/// Unmounts a mount whose process is gone. Prints why it stays, if it does.
pub fn detach(point: &Path) -> bool {
    let detached = try_detach(point);
    if let Err(why) = &detached {
        errln!("tidegate: the mount {} stays: {why}", point.display());
    }
    detached.is_ok()
}

/// The same. The error is what the first of the programs said that can do so.
pub fn try_detach(point: &Path) -> Result<(), String> {
    let commands: [(&str, &[&str]); 3] = [
        ("fusermount3", &["-uz"]),
        ("fusermount", &["-uz"]),
        ("umount", &["-l"]),
    ];
    let mut said: Option<String> = None;
    for (program, flags) in commands {
        let mut command = Command::new(program);
        command.args(flags).arg(point).stdin(Stdio::null());
        let Ok(output) = command.output() else {
            // It is not installed.
            continue;
        };
        if output.status.success() {
            return Ok(());
        }
        said.get_or_insert_with(|| complaint(program, &output));
    }
    Err(said.unwrap_or_else(|| "neither fusermount3 nor umount is there".to_owned()))
}

/// What a program that failed said, in one line that begins with its name.
fn complaint(program: &str, output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim().replace('\n', "; ");
    match said.strip_prefix(&format!("{program}: ")) {
        Some(rest) => format!("{program}: {rest}"),
        None if said.is_empty() => format!("{program}: {}", output.status),
        None => format!("{program}: {said}"),
    }
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
        let process = Process::of_child(&child).expect("it lives");
        assert!(!process.has_ended());
        child.kill().expect("it is ours");
        assert!(wait_until(Duration::from_secs(20), || process.has_ended()));
        child.wait().expect("it is ours");
        assert!(process.has_ended() && process.end(Duration::ZERO));
    }

    #[test]
    fn a_look_at_all_processes_takes_its_time() {
        // On a busy node each costs some, and all of them more than is given to one.
        let slow = |number: u32| {
            std::thread::sleep(LOOK_AT_ONE_MAX * 2 / 5);
            (number > 0).then_some(number)
        };
        assert_eq!(in_time(move || (0..4).map(slow)), [1, 2, 3]);
        // Of one that is stuck, and of those behind it, nothing is known.
        let stuck = |number: u32| {
            if number == 2 {
                std::thread::sleep(LOOK_AT_ONE_MAX * 2);
            }
            Some(number)
        };
        assert_eq!(in_time(move || (0..4).map(stuck)), [0, 1]);
    }

    #[test]
    fn what_a_program_said_begins_with_its_name_once() {
        let said = |script: &str| {
            let output = Command::new("sh").args(["-c", script]).output();
            complaint("sh", &output.expect("it starts"))
        };
        assert_eq!(said("echo 'sh: no; really' >&2; exit 1"), "sh: no; really");
        assert_eq!(said("printf 'one\ntwo\n' >&2; exit 1"), "sh: one; two");
        assert_eq!(said("exit 3"), "sh: exit status: 3");
    }

    #[test]
    fn a_pid_file_that_nobody_holds_names_nobody() {
        let name = format!("tidegate-processes-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).expect("fresh");
        let pid_file = folder.join("up.pid");
        let mut child = Command::new("sleep")
            .args(["60", "up"])
            .spawn()
            .expect("it starts");
        std::fs::write(&pid_file, format!("{}\n", child.id())).expect("room");
        assert!(Process::find(&pid_file).is_none());
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
        let (link, aim) = (folder.join("log"), folder.join("aim"));
        std::os::unix::fs::symlink(&aim, &link).expect("room");
        open_log(&link).expect_err("a link");
        assert!(!aim.exists());
        std::fs::remove_dir_all(&folder).expect("ours");
    }
}
