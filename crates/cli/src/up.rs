//! `tidegate up`: a local set of forwarders over one directory, mounted.

mod keeper;
mod layout;
mod nested;
mod plan;
mod seats;
mod stop;

pub use stop::{Busy, cut_off, is_left, stop, take_killed};

use crate::fail::Fail;
use crate::installed;
use crate::keys::KeyFlags;
use crate::lock::StateLock;
use crate::members::{self, KEEPS};
use crate::output;
use crate::processes::{self, Process};
use crate::restarts::Restarts;
use crate::state::StateDir;
use crate::{errln, out, outln};
use keeper::Kept;
use plan::Plan;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// How long forwarders and the mount may take to come up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longest time between two looks at the processes, should a signal get lost.
const LOOK_MAX: Duration = Duration::from_secs(60);

/// How long to wait for a command that starts or stops what is in the state directory.
pub const LOCK_PATIENCE: Duration = Duration::from_secs(60);

/// The message of an `up` that another command or a signal ended while it began.
const TOLD_TO_STOP: &str = "told to stop before all was up";

/// Start forwarders over a directory on this node, and mount them.
#[derive(clap::Args, Clone)]
pub struct Up {
    /// Directory to export
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// How many forwarders [default: as many as the directory had before, else 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    forwarders: Option<u16>,
    /// Where to mount [default: mnt in the state directory]
    #[arg(long, value_name = "MNT")]
    mount: Option<PathBuf>,
    /// Where sockets, configurations, process ids and logs go [default: $TIDEGATE_STATE_DIR, else
    /// $XDG_RUNTIME_DIR/tidegate, else /run/tidegate for root, else tidegate-UID in the temporary
    /// directory; in a job of a batch system with its name added, such as -slurm-17]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    #[command(flatten)]
    keys: KeyFlags<true>,
    /// File with rules of shares, `[[app]]` and `[[group]]`, for all forwarders [default: none]
    #[arg(long, value_name = "FILE")]
    shares: Option<PathBuf>,
    /// Record each request: every forwarder into a file of this folder [default: do not record]
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,
    /// How clients reach the forwarders: unix (sockets in the state directory), tcp (of this
    /// machine, with a secret in the state directory) or, where this was built with libfabric,
    /// fabric:shm (memory of this machine)
    #[arg(long, value_name = "TRANSPORT", default_value = "unix",
          value_parser = ["unix", "tcp", "fabric:shm", "fabric:tcp"])]
    transport: String,
    /// Do not mount
    #[arg(long)]
    no_mount: bool,
    /// Leave forwarders that die as they are, instead of starting them again
    #[arg(long)]
    no_restart: bool,
    /// Stay in the foreground until SIGTERM or SIGINT
    #[arg(long)]
    foreground: bool,
    /// The state directory, for those who look at this process
    #[arg(long, value_name = "DIR", hide = true)]
    keeps: Option<PathBuf>,
    /// For tests: forwarder I dies as by kill -9 when its K-th request has come
    #[arg(long, value_name = "I:K", hide_short_help = true, value_parser = plan::indexed)]
    kill_at_request: Vec<(usize, String)>,
    /// For tests: forwarder I dies as by kill -9 after the K-th effect of an operation
    #[arg(long, value_name = "I:OP:K", hide_short_help = true, value_parser = plan::indexed)]
    kill_after_effect: Vec<(usize, String)>,
    /// For tests: the K-th call of an operation by forwarder I to the back end fails
    #[arg(long, value_name = "I:OP:K:ERRNO", hide_short_help = true, value_parser = plan::indexed)]
    fail_call: Vec<(usize, String)>,
}

impl Up {
    /// Starts everything; in the foreground also stops it.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let plan = Plan::make(&self)?;
        plan.state.create()?;
        let what = format!("up {}", plan.export.display());
        // Until all is up: of several at once the first does it, and the others find it done.
        let lock = StateLock::take(&plan.state, &what, LOCK_PATIENCE)?;
        if let Some(pid) = plan.running() {
            let dir = plan.state.path().display();
            return Err(Fail::usage(format!(
                "process {} is up in {dir} already; `tidegate down --state-dir {dir}` stops it",
                pid.as_raw_nonzero()
            )));
        }
        plan.check_layout()?;
        plan.check_room()?;
        plan.check_traces()?;
        nested::check(&plan.export)?;
        if let Some(point) = &plan.mount
            && (processes::is_mounted(point) || point.exists())
        {
            crate::mount::check_point(point)?;
        }
        nested::refuse_own(&plan.export, plan.state.path())?;
        if self.foreground {
            foreground(&plan, lock)
        } else {
            background(&plan, lock)
        }
    }
}

/// Starts a background process that does the work, and waits until it is ready.
fn background(plan: &Plan, lock: StateLock) -> Result<ExitCode, Fail> {
    let log = plan.state.file("up.log");
    // What an earlier run said would be taken for this one's.
    let _ = std::fs::remove_file(plan.state.inside(&log));
    let arguments = arguments_of_child(std::env::args_os().skip(1), plan.state.path());
    let lock = Stdio::from(lock.into_input());
    // Before there is something that a signal would leave behind. Under `nohup` one is ignored.
    let ignored = processes::ignored_signals();
    let heeded = [SIGTERM, SIGINT, SIGHUP].into_iter();
    let heeded = heeded.filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let mut signals = Signals::new(heeded).map_err(Fail::runtime)?;
    let mut child = processes::start_with(&installed::own()?, &arguments, &log, lock)?;
    let (mut ended, mut told) = (None, None);
    let ready = processes::wait_until(2 * PATIENCE, || {
        ended = child.try_wait().ok().flatten();
        told = signals.pending().next();
        ended.is_some() || told.is_some() || is_ready(&log)
    });
    if let Some(signal) = told.filter(|_| ended.is_none()) {
        let process = Process::of_child(&child);
        let message = match process.is_none_or(|process| process.end(2 * PATIENCE)) {
            true => "stopped by a signal: nothing is up",
            false => "stopped by a signal and then killed: `tidegate down` ends what is left",
        };
        return Err(Fail {
            code: u8::try_from(128 + signal).unwrap_or(1),
            message: message.to_string(),
        });
    }
    if let Some(status) = ended {
        return Err(why_ended(status, &processes::last_line(&log), &log));
    }
    if !ready {
        if let Some(process) = Process::of_child(&child) {
            process.end(PATIENCE);
        }
        let (seconds, log) = (2 * PATIENCE.as_secs(), log.display());
        return Err(Fail::runtime(format!(
            "not ready after {seconds} s, so stopped again; the log is {log}"
        )));
    }
    out!("{}", plan.usage());
    outln!(
        "Stop:      tidegate down --state-dir {}",
        plan.state.path().display()
    );
    outln!("ready");
    Ok(ExitCode::SUCCESS)
}

/// The arguments of the process in the background: those of this one, in which flags may not be
/// the last, and where it keeps the set.
fn arguments_of_child(own: impl Iterator<Item = OsString>, state: &Path) -> Vec<OsString> {
    let mut own = own;
    // The name of the command.
    let mut arguments: Vec<OsString> = own.next().into_iter().collect();
    arguments.extend([KEEPS.into(), state.into(), "--foreground".into()]);
    arguments.extend(own);
    arguments
}

/// Why the process in the background ended before all was up; `said` is its last line.
fn why_ended(status: ExitStatus, said: &str, log: &Path) -> Fail {
    let asked = [SIGTERM, SIGINT, SIGHUP];
    let is_asked = status.signal().is_some_and(|one| asked.contains(&one));
    let message = match (said, status.signal()) {
        // It heeds no signal yet when another command finds it.
        ("", Some(_)) if is_asked => TOLD_TO_STOP.to_string(),
        ("", Some(_)) => format!("ended by a signal ({status}) before all was up"),
        ("", None) => {
            let log = log.display();
            format!("ended ({status}), and there was no room to say why in {log}")
        }
        _ => said.to_string(),
    };
    let code = code_of(status);
    Fail { code, message }
}

/// The exit code of a process that says why it ended.
fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.unwrap_or(1)
}

fn is_ready(log: &std::path::Path) -> bool {
    std::fs::read_to_string(log).is_ok_and(|text| text.lines().any(|line| line == "ready"))
}

/// Everything that was started, so that it is stopped however this ends.
struct Started<'a> {
    state: &'a StateDir,
    forwarders: Vec<Kept>,
    mount: Option<Child>,
    stopped: bool,
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        if self.stopped {
            return;
        }
        stop(self.state);
        // Those that had not come far enough to write their pid file.
        let forwarders = self.forwarders.iter_mut();
        let forwarders = forwarders.filter_map(|one| one.child.as_mut());
        for child in self.mount.iter_mut().chain(forwarders) {
            if matches!(child.try_wait(), Ok(None))
                && let Some(process) = Process::of_child(child)
            {
                process.end(PATIENCE);
            }
        }
    }
}

fn foreground(plan: &Plan, lock: StateLock) -> Result<ExitCode, Fail> {
    // Before anything is started, so that a signal never leaves something behind.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGCHLD]).map_err(Fail::runtime)?;
    // Says as long as this process lives which one to end.
    let _pid_file = plan.take()?;
    let mut started = Started {
        state: &plan.state,
        forwarders: Vec::new(),
        mount: None,
        stopped: false,
    };
    plan.write()?;
    start(plan, &mut started, &mut signals)?;
    drop(lock);
    out!("{}", plan.usage());
    outln!("ready");
    // Without its reader there is nobody to tell.
    output::flush();
    keep(plan, &mut started, signals)?;
    // So that no `up` takes what is being stopped for its own. It waits for nobody who waits for
    // this; and what was told to stop stops, whoever has the lock.
    let _lock = StateLock::take(&plan.state, "up, ending", PATIENCE);
    started.stopped = true;
    let any_died = Restarts::read(&plan.state).any();
    let killed = stop(&plan.state);
    match killed.is_empty() {
        true => {
            // Else somebody wants to read the logs.
            if !any_died {
                plan.state.remove_of_job();
            }
            Ok(ExitCode::SUCCESS)
        }
        false => Err(Fail::runtime(cut_off(&killed))),
    }
}

/// Starts forwarders and mount, and waits until both serve.
fn start(plan: &Plan, started: &mut Started<'_>, signals: &mut Signals) -> Result<(), Fail> {
    for index in 0..plan.forwarders {
        let log = plan.state.forwarder(index, "log");
        let arguments = plan.serve_arguments(index);
        let child = processes::start(&installed::own()?, &arguments, &log)?;
        started.forwarders.push(Kept::new(child));
    }
    for index in 0..plan.forwarders {
        let child = started.forwarders[index].child.as_mut();
        let child = child.expect("only the keeper takes it away");
        wait_for_forwarder(plan, index, child, signals)?;
    }
    seats::wait(plan)?;
    let Some(point) = &plan.mount else {
        return told_to_stop(signals);
    };
    let log = plan.state.file("mount.log");
    let mut child = processes::start(&installed::own()?, &plan.mount_arguments(point), &log)?;
    let mut ended = None;
    let mut told = Ok(());
    let up = processes::wait_until(PATIENCE, || {
        ended = child.try_wait().ok().flatten();
        told = told_to_stop(signals);
        ended.is_some() || told.is_err() || processes::is_mounted(point)
    });
    started.mount = Some(child);
    told?;
    if !up || ended.is_some() {
        let line = processes::last_line(&log);
        return Err(Fail::runtime(format!(
            "mounting {}: {line}",
            point.display()
        )));
    }
    Ok(())
}

/// Fails if a signal has come that ends this process.
fn told_to_stop(signals: &mut Signals) -> Result<(), Fail> {
    match signals.pending().all(|signal| signal == SIGCHLD) {
        true => Ok(()),
        false => Err(Fail::runtime(TOLD_TO_STOP)),
    }
}

fn wait_for_forwarder(
    plan: &Plan,
    index: usize,
    child: &mut Child,
    signals: &mut Signals,
) -> Result<(), Fail> {
    // Written when it listens.
    let pid_file = plan.state.inside(&plan.state.forwarder(index, "pid"));
    let pid = child.id().to_string();
    let log = plan.state.forwarder(index, "log");
    let mut ended = None;
    let mut told = Ok(());
    let up = processes::wait_until(PATIENCE, || {
        ended = child.try_wait().ok().flatten();
        told = told_to_stop(signals);
        ended.is_some()
            || told.is_err()
            || std::fs::read_to_string(&pid_file).is_ok_and(|text| text.trim() == pid)
    });
    told?;
    match ended {
        Some(status) => {
            let line = processes::last_line(&log);
            Err(Fail {
                code: code_of(status),
                message: format!("forwarder {index}: {line}"),
            })
        }
        None if up => Ok(()),
        None => {
            let log = log.display();
            Err(Fail::runtime(format!(
                "forwarder {index} does not answer; its log is {log}"
            )))
        }
    }
}

/// Keeps the set until a signal comes that ends it, or nothing is left of it: starts forwarders
/// that die again, and prints what has ended. Meanwhile others stand in for a forwarder.
fn keep(plan: &Plan, started: &mut Started<'_>, mut signals: Signals) -> Result<(), Fail> {
    let (tell, told) = mpsc::channel();
    let tells = std::thread::Builder::new().spawn(move || {
        for signal in signals.forever() {
            if tell.send(signal).is_err() {
                return;
            }
        }
    });
    tells.map_err(Fail::runtime)?;
    let mut restarts = Restarts::default();
    loop {
        let forwarders = &mut started.forwarders;
        keeper::look(plan, forwarders, &mut restarts, plan.restarts);
        keeper::start_due(plan, forwarders, &mut restarts);
        let pause = keeper::pause(forwarders).unwrap_or(LOOK_MAX);
        report_mount(plan, started);
        if is_nothing_left(plan, started) {
            let dir = plan.state.path().display();
            errln!("tidegate: nothing of the set in {dir} is left, nor its files: this ends, too");
            return Ok(());
        }
        match told.recv_timeout(pause) {
            Ok(SIGCHLD) | Err(RecvTimeoutError::Timeout) => {}
            Ok(_) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Whether no process of the set runs or is to be started again, and the file is gone that tells
/// others of this process: with the state directory, or alone. Then nobody can ask it to end.
fn is_nothing_left(plan: &Plan, started: &Started<'_>) -> bool {
    let pid_file = plan.state.inside(&plan.state.file("up.pid"));
    let is_kept = started.mount.is_some() || started.forwarders.iter().any(Kept::is_kept);
    !is_kept && !pid_file.exists() && !members::runs(&plan.state)
}

impl keeper::Set for Plan {
    fn start_again(&self, index: usize) -> Result<Option<Child>, Fail> {
        let pid_file = self.state.inside(&self.state.forwarder(index, "pid"));
        if Process::find(&pid_file).is_some() {
            return Ok(None);
        }
        // Without the faults of tests, which have happened.
        let arguments = self.serve_again_arguments(index);
        let log = self.state.forwarder(index, "log");
        processes::start(&installed::own()?, &arguments, &log).map(Some)
    }

    fn log(&self, index: usize) -> String {
        self.state.forwarder(index, "log").display().to_string()
    }

    fn last_words(&self, index: usize) -> String {
        let log = self.state.forwarder(index, "log");
        processes::last_line(&self.state.inside(&log))
    }

    fn write(&self, restarts: &Restarts) {
        if let Err(error) = restarts.write(&self.state) {
            errln!("tidegate: `stat` will not tell of restarts: {error}");
        }
    }
}

/// Prints that the mount's process has ended or is stopped, if it is.
fn report_mount(plan: &Plan, started: &mut Started<'_>) {
    let Some(child) = &mut started.mount else {
        return;
    };
    if let Ok(Some(status)) = child.try_wait() {
        let log = plan.state.file("mount.log");
        let log = log.display();
        errln!("tidegate: the mount ended ({status}); its log is {log}");
        started.mount = None;
    } else {
        keeper::look_for_stop("the mount", child);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_child_knows_its_flags_whatever_is_behind_two_dashes() {
        let own = ["up", "--forwarders", "2", "--", "--data"].map(OsString::from);
        let words = arguments_of_child(own.into_iter(), Path::new("/run/7"));
        let flags = ["up", KEEPS, "/run/7", "--foreground"];
        assert_eq!(
            words,
            [&flags[..], &["--forwarders", "2", "--", "--data"]].concat()
        );
    }

    #[test]
    fn who_is_told_to_stop_before_it_says_anything_has_had_room_to() {
        let log = Path::new("/run/7/up.log");
        let why = |raw, said| why_ended(ExitStatus::from_raw(raw), said, log).message;
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            assert_eq!(why(signal, ""), TOLD_TO_STOP);
        }
        assert_eq!(
            why(9, ""),
            "ended by a signal (signal: 9 (SIGKILL)) before all was up"
        );
        assert!(why(1 << 8, "").contains("no room to say why in /run/7/up.log"));
        assert_eq!(why(1 << 8, "forwarder 0: why"), "forwarder 0: why");
    }
}
