//! Tells a signal that was sent to this process alone from one that its process group got, and so
//! the program, too: by a child that does nothing but get the group's signals.

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
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: room for both sets; the child makes system calls alone, as it must where this
        // process has other threads.
        let (pid, error) = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            let pid = libc::fork();
            if pid == 0 {
                libc::close(own.as_raw_fd());
                answer(its.as_raw_fd());
            }
            let error = Error::last_os_error();
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut());
            (pid, error)
        };
        let pid = Pid::from_raw(pid.max(0)).ok_or(error)?;
        let channel = Some(own);
        Ok(Witness { pid, channel })
    }

    /// Whether the process group has got the signal that this process has got.
    pub fn has_seen(&mut self, signal: i32) -> bool {
        let seen = self.channel.as_mut().map(|channel| -> Result<bool> {
            let mut answer = [0];
            channel.write_all(&[u8::try_from(signal).unwrap_or(0)])?;
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
    // SAFETY: room for one byte, and for a set.
    unsafe {
        loop {
            let mut byte = 0u8;
            if libc::read(channel, (&raw mut byte).cast(), 1) != 1 {
                libc::_exit(0);
            }
            let mut asked = MaybeUninit::uninit();
            libc::sigemptyset(asked.as_mut_ptr());
            libc::sigaddset(asked.as_mut_ptr(), i32::from(byte));
            let seen = loop {
                let taken = libc::sigtimedwait(asked.as_ptr(), null_mut(), &raw const LATER_MAX);
                if taken >= 0 || *libc::__errno_location() != libc::EINTR {
                    break taken >= 0;
                }
            };
            byte = u8::from(seen);
            if libc::write(channel, (&raw const byte).cast(), 1) != 1 {
                libc::_exit(0);
            }
        }
    }
}
