//! Runs a program as a child, as if it had taken the place of this process: signals go on to the
//! program unless the program has got them, the terminal stops and continues both, and the end of
//! the one is that of the other.

use super::witness::Witness;
use crate::fail::Fail;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process, setrlimit,
    waitid,
};
use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGSTOP, SIGTERM, SIGTSTP, SIGUSR1,
    SIGUSR2, SIGWINCH, SIGXCPU,
};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus};

/// Signals that go on to the program.
const PASSED: [i32; 11] = [
    SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP, SIGWINCH, SIGALRM,
    SIGXCPU,
];

/// Runs the program to its end. `cannot` makes a failure of the error with which it cannot be run.
pub fn supervise(
    command: &mut Command,
    cannot: impl FnOnce(&std::io::Error) -> Fail,
) -> Result<ExitStatus, Fail> {
    let ignored = ignored();
    let caught = PASSED.into_iter().filter(|it| ignored >> (it - 1) & 1 == 0);
    let mut signals = Signals::new(caught.chain([SIGCHLD])).map_err(Fail::runtime)?;
    let mut witness = Witness::start().map_err(Fail::runtime)?;
    die_with_this_process(command);
    let mut child = command.spawn().map_err(|error| cannot(&error))?;
    let terminal = rustix::termios::isatty(rustix::stdio::stdin());
    let pid = Pid::from_child(&child);
    for signal in signals.forever() {
        if let Some(status) = child.try_wait().map_err(Fail::runtime)? {
            return Ok(status);
        }
        if signal == SIGCHLD {
            if terminal && is_stopped(&child) {
                stop();
            }
            continue;
        }
        // What a terminal, a shell or `timeout` sends to the process group, the program has got.
        if !witness.has_seen(signal) {
            // It may have ended meanwhile; SIGCHLD says so next.
            let _ = Signal::from_named_raw(signal).map(|signal| kill_process(pid, signal));
        }
        if signal == SIGTSTP {
            stop();
        }
    }
    child.wait().map_err(Fail::runtime)
}

/// Ends this process as the program has ended: the exit code for those that exit, the same signal
/// for those that died of one.
pub fn end_as(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        // The program's own core is enough.
        let _ = setrlimit(
            Resource::Core,
            Rlimit {
                current: Some(0),
                maximum: Some(0),
            },
        );
        let _ = emulate_default_handler(signal);
        // Of SIGKILL and what else has no default handler that ends.
        let _ = Signal::from_named_raw(signal).map(|signal| kill_process(getpid(), signal));
    }
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// The signals that this process ignores, as bits: that of signal 1 first. The program is to ignore
/// them as well, as under `nohup`; it would not if this process caught them.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .unwrap_or(0)
}

/// Has the kernel kill the program when this process is killed.
fn die_with_this_process(command: &mut Command) {
    let parent = getpid();
    // SAFETY: the closure makes system calls alone.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // It may be gone already.
            match getppid() == Some(parent) {
                true => Ok(()),
                false => Err(std::io::Error::other("its parent has ended")),
            }
        });
    }
}

fn is_stopped(child: &Child) -> bool {
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let found = waitid(WaitId::Pid(Pid::from_child(child)), options);
    matches!(found, Ok(Some(status)) if status.stopped())
}

/// Stops this process until it is continued.
fn stop() {
    let _ = emulate_default_handler(SIGSTOP);
}
