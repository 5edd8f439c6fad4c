//! Runs a program as a child, as if it had taken the place of this process: signals go on to the
//! program unless the program has got them, what stops and continues the one does so to the other,
//! and the end of the one is that of the other.

use super::forked::{block, block_all};
use super::witness::{Witness, catch_up};
use crate::processes;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, getpgid, getpgrp, getpid, getppid,
    setrlimit, waitid,
};
use signal_hook::consts::{
    SIGBUS, SIGCHLD, SIGFPE, SIGILL, SIGKILL, SIGPIPE, SIGSEGV, SIGSTOP, SIGSYS, SIGTRAP, SIGTTIN,
    SIGTTOU, SIGURG,
};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::ptr::null_mut;

/// Signals that do not go on to the program: those that cannot be caught, and those that tell this
/// process of itself.
const KEPT: [i32; 13] = [
    SIGKILL, SIGSTOP, SIGILL, SIGFPE, SIGSEGV, SIGBUS, SIGTRAP, SIGSYS, SIGCHLD, SIGTTIN, SIGTTOU,
    SIGPIPE, SIGURG,
];

/// The first number behind the signals that have names.
const NAMED_END: i32 = 32;

/// Why a program was not run.
pub enum NotRun {
    /// It cannot be run.
    Program(std::io::Error),
    /// What has to be beside it cannot be started.
    Beside(std::io::Error),
}

impl NotRun {
    /// Whether this user may start no more processes, or there is no memory for one. Then the
    /// program can still take the place of this process.
    pub fn is_for_want_of_processes(&self) -> bool {
        let (NotRun::Program(error) | NotRun::Beside(error)) = self;
        matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM))
    }

    /// What the system says.
    pub fn error(&self) -> &std::io::Error {
        let (NotRun::Program(error) | NotRun::Beside(error)) = self;
        error
    }
}

/// Runs the program to its end. Where it was not run, this process takes its signals again as it
/// did before.
pub fn supervise(command: &mut Command) -> Result<ExitStatus, NotRun> {
    // As under `nohup`, the program is to ignore them as well. It would not if they were caught.
    let ignored = processes::ignored_signals();
    let is_ignored = |signal: &i32| ignored >> (signal - 1) & 1 == 1;
    let all = (1..NAMED_END).chain(libc::SIGRTMIN()..=libc::SIGRTMAX());
    let passed = all.filter(|it| !KEPT.contains(it) && !is_ignored(it));
    let caught: Vec<i32> = passed.chain([SIGCHLD]).collect();
    // What comes before the program can take it waits.
    let before = block_all();
    let is_chld_ignored = is_ignored(&SIGCHLD);
    let not_run = |why: NotRun| {
        if is_chld_ignored {
            // SAFETY: nothing of this process waits for children any more.
            unsafe { libc::signal(SIGCHLD, libc::SIG_IGN) };
        }
        block(&before);
        why
    };
    let beside = |error| not_run(NotRun::Beside(error));
    let mut signals = Signals::new(&caught).map_err(beside)?;
    let mut witness = Witness::start().map_err(beside)?;
    begin_as_started(command, &caught, is_chld_ignored, before, &witness);
    let spawned = command.spawn();
    let mut child = spawned.map_err(|error| not_run(NotRun::Program(error)))?;
    block(&without(before, &caught));
    let terminal = rustix::termios::isatty(rustix::stdio::stdin());
    for signal in signals.forever() {
        if let Some(status) = child.try_wait().map_err(NotRun::Beside)? {
            return Ok(status);
        }
        if signal == SIGCHLD {
            // Of a stop that no terminal and no shell has made, nobody may tell this process the
            // end.
            if stopped(&child).is_some_and(|by| terminal || by != SIGSTOP) {
                let _ = emulate_default_handler(SIGSTOP);
            }
            continue;
        }
        pass(signal, &child, &mut witness);
    }
    child.wait().map_err(NotRun::Beside)
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
        let mut only = MaybeUninit::uninit();
        // SAFETY: room for a set, and what a signal does without a handler.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::sigemptyset(only.as_mut_ptr());
            libc::sigaddset(only.as_mut_ptr(), signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, only.as_ptr(), null_mut());
            libc::raise(signal);
        }
    }
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn without(mut blocked: libc::sigset_t, these: &[i32]) -> libc::sigset_t {
    for signal in these {
        // SAFETY: a set.
        unsafe { libc::sigdelset(&raw mut blocked, *signal) };
    }
    blocked
}

/// Has the program begin with the signals as this process was started with, those that have come
/// meanwhile, and to be killed when this process is.
fn begin_as_started(
    command: &mut Command,
    caught: &[i32],
    ends_are_ignored: bool,
    before: libc::sigset_t,
    witness: &Witness,
) {
    let (parent, caught, witness) = (getpid(), caught.to_vec(), witness.channel());
    // SAFETY: the closure makes system calls alone.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // It may be gone already.
            if getppid() != Some(parent) {
                return Err(std::io::Error::other("its parent has ended"));
            }
            if let Some(witness) = witness {
                catch_up(witness);
            }
            for signal in &caught {
                let is_ignored = *signal == SIGCHLD && ends_are_ignored;
                let how = [libc::SIG_DFL, libc::SIG_IGN][usize::from(is_ignored)];
                libc::signal(*signal, how);
            }
            block(&before);
            Ok(())
        });
    }
}

/// The signal that has stopped the program, if it has been stopped since the last call.
fn stopped(child: &Child) -> Option<i32> {
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
    let found = waitid(WaitId::Pid(Pid::from_child(child)), options).ok()??;
    found.stopping_signal()
}

/// Passes a signal on. What a terminal, a shell or `timeout` sends to the process group, the
/// program has got, unless it is in a group of its own: then that gets it.
fn pass(signal: i32, child: &Child, witness: &mut Witness) {
    let pid = Pid::from_child(child);
    let group = getpgid(Some(pid)).unwrap_or(pid);
    let to_group = witness.has_seen(signal);
    if to_group && group == getpgrp() {
        return;
    }
    let pid = pid.as_raw_nonzero().get();
    let is_leader = group.as_raw_nonzero().get() == pid;
    let whom = if to_group && is_leader { -pid } else { pid };
    // SAFETY: a child that has not been waited for. If it has ended, SIGCHLD says so next.
    unsafe { libc::kill(whom, signal) };
}
