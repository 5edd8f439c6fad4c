//! Tells a signal that was sent to this process alone from one that its process group got, and so
//! the program, too: by a child that does nothing but get the group's signals.

use super::forked::{block, block_all, keep_only};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io::{Error, Read, Result, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::ptr::null_mut;
use std::time::Duration;

/// Who sends to one process after the other (as Slurm does) needs some time for all.
static LATER_MAX: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// For the child's answer. It is only late if somebody has stopped it.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks for all signals that wait to be taken, in place of a signal's number.
static ALL: u8 = 0;

/// See the head of the file. It ends with this value, or with this process.
pub struct Witness {
    pid: Pid,
    channel: Option<UnixStream>,
}

impl Witness {
    /// Starts the child. It sees signals that come from now on.
    pub fn start() -> Result<Witness> {
        let (own, its) = UnixStream::pair()?;
        own.set_read_timeout(Some(PATIENCE))?;
        let before = block_all();
        // SAFETY: the child makes system calls alone, as it must where this process has other
        // threads.
        let (pid, error) = unsafe {
            let pid = libc::fork();
            if pid == 0 {
                keep_only(&[its.as_raw_fd()]);
                answer(its.as_raw_fd());
            }
            (pid, Error::last_os_error())
        };
        block(&before);
        let pid = Pid::from_raw(pid.max(0)).ok_or(error)?;
        let channel = Some(own);
        Ok(Witness { pid, channel })
    }

    /// Whether the process group has got the signal that this process has got.
    pub fn has_seen(&mut self, signal: i32) -> bool {
        let seen = self.channel.as_mut().map(|channel| -> Result<bool> {
            let mut answer = [0];
            channel.write_all(&[u8::try_from(signal).unwrap_or(u8::MAX)])?;
            channel.read_exact(&mut answer)?;
            Ok(answer == [1])
        });
        match seen {
            Some(Ok(seen)) => seen,
            // Rather twice than never.
            _ => {
                self.channel = None;
                false
            }
        }
    }

    /// What [`catch_up`] needs, in a process that this one forks.
    pub fn channel(&self) -> Option<RawFd> {
        self.channel.as_ref().map(AsRawFd::as_raw_fd)
    }
}

/// In a process that was forked after the witness, and has all signals blocked: sends itself those
/// that the process group got before there was this process. By system calls alone.
pub fn catch_up(witness: RawFd) {
    let (mut seen, mut own) = (0u64, MaybeUninit::uninit());
    // SAFETY: room for what is read, and for a set.
    unsafe {
        if libc::write(witness, (&raw const ALL).cast(), 1) != 1
            || libc::read(witness, (&raw mut seen).cast(), 8) != 8
            || libc::sigpending(own.as_mut_ptr()) != 0
        {
            return;
        }
        for signal in 1..=libc::SIGRTMAX() {
            let is_seen = seen >> (signal - 1) & 1 == 1;
            if is_seen && libc::sigismember(own.as_ptr(), signal) == 0 {
                libc::kill(libc::getpid(), signal);
            }
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        // It may have been killed with the group.
        let _ = kill_process(self.pid, Signal::KILL);
        let _ = waitpid(Some(self.pid), WaitOptions::empty());
    }
}

/// The child, which has all signals blocked: takes each signal that it is asked for, and says
/// whether there was one.
///
/// # Safety
/// Only in a process of its own.
unsafe fn answer(channel: RawFd) -> ! {
    // SAFETY: room for what is read, and for a set.
    unsafe {
        loop {
            let mut byte = 0u8;
            if libc::read(channel, (&raw mut byte).cast(), 1) != 1 {
                libc::_exit(0);
            }
            let written = if byte == ALL {
                let waiting = waiting();
                libc::write(channel, (&raw const waiting).cast(), 8)
            } else {
                let seen = u8::from(take(i32::from(byte)));
                libc::write(channel, (&raw const seen).cast(), 1)
            };
            if written < 1 {
                libc::_exit(0);
            }
        }
    }
}

/// Takes a signal that is blocked. Returns whether there was one.
fn take(signal: i32) -> bool {
    let mut asked = MaybeUninit::uninit();
    // SAFETY: room for a set.
    unsafe {
        libc::sigemptyset(asked.as_mut_ptr());
        libc::sigaddset(asked.as_mut_ptr(), signal);
        loop {
            let taken = libc::sigtimedwait(asked.as_ptr(), null_mut(), &raw const LATER_MAX);
            if taken >= 0 || *libc::__errno_location() != libc::EINTR {
                return taken >= 0;
            }
        }
    }
}

/// The signals that wait to be taken, as bits: that of signal 1 first.
fn waiting() -> u64 {
    let mut waiting = MaybeUninit::uninit();
    // SAFETY: room for a set.
    unsafe {
        if libc::sigpending(waiting.as_mut_ptr()) != 0 {
            return 0;
        }
        let is_in = |signal: &i32| libc::sigismember(waiting.as_ptr(), *signal) == 1;
        let signals = (1..=libc::SIGRTMAX()).filter(is_in);
        signals.fold(0, |bits, signal| bits | 1 << (signal - 1))
    }
}
