//! Does what is left to do when this process ends, however it ends, and also if another program has
//! taken its place: by a process that is no child of it, and that no signal reaches which is for
//! this process, its group or its terminal.

use super::forked::{block, block_all, keep_only};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use std::io::{Error, Read, Result, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::ptr::{null, null_mut};
use std::time::Duration;

/// For the process to begin. It is only late if somebody has stopped it.
const PATIENCE: Duration = Duration::from_secs(10);

/// See the head of the file.
pub struct Watcher {
    /// The process.
    pub pid: Pid,
    channel: UnixStream,
}

impl Watcher {
    /// Starts the process, which keeps standard error and `kept` open and nothing else, and works
    /// in the root directory. Where this process has other threads, `at_end` may make system calls
    /// alone.
    pub fn start(kept: Option<BorrowedFd<'_>>, at_end: impl FnOnce()) -> Result<Watcher> {
        let watched = pidfd_open(getpid(), PidfdFlags::empty())?;
        let (mut own, its) = UnixStream::pair()?;
        own.set_read_timeout(Some(PATIENCE))?;
        let mut fds = vec![libc::STDERR_FILENO, watched.as_raw_fd(), its.as_raw_fd()];
        fds.extend(kept.map(|fd| fd.as_raw_fd()));
        fds.sort_unstable();
        let before = block_all();
        // SAFETY: the new process makes system calls, and then what the caller answers for.
        let between = unsafe { libc::fork() };
        if between == 0 {
            // SAFETY: this is a process of its own.
            unsafe {
                libc::setsid();
                match libc::fork() {
                    0 => {
                        keep_only(&fds);
                        if wait(watched.as_raw_fd(), its.as_raw_fd()) {
                            at_end();
                        }
                    }
                    -1 => {
                        tell(its.as_raw_fd(), -*libc::__errno_location());
                    }
                    _ => {}
                }
                libc::_exit(0);
            }
        }
        let error = Error::last_os_error();
        if between > 0 {
            reap(between);
        }
        block(&before);
        if between < 0 {
            return Err(error);
        }
        drop(its);
        let mut told = [0; 4];
        own.read_exact(&mut told)?;
        let told = i32::from_le_bytes(told);
        match Pid::from_raw(told.max(0)) {
            Some(pid) => Ok(Watcher { pid, channel: own }),
            None => Err(Error::from_raw_os_error(-told)),
        }
    }

    /// Says that nothing is left to do.
    pub fn dismiss(mut self) {
        // If it has been killed, it does nothing either.
        let _ = self.channel.write_all(&[0]);
    }
}

/// Whether orphans become children of this process, and so the watcher would. A program that takes
/// the place of this process and waits for all its children would wait for the watcher, which waits
/// for the program.
pub fn is_adopter() -> bool {
    let mut adopts: libc::c_int = 0;
    // SAFETY: room for the answer.
    unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut adopts) };
    adopts != 0 || getpid().as_raw_nonzero().get() == 1
}

/// Waits for a child that ends at once, and takes the signal of its end: one that is blocked would
/// wait for the program that takes the place of this process.
fn reap(child: libc::pid_t) {
    let mut ends = MaybeUninit::uninit();
    let now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a child of ours, and room for a set.
    unsafe {
        while libc::waitpid(child, null_mut(), 0) < 0 && *libc::__errno_location() == libc::EINTR {}
        libc::sigemptyset(ends.as_mut_ptr());
        libc::sigaddset(ends.as_mut_ptr(), libc::SIGCHLD);
        libc::sigtimedwait(ends.as_ptr(), null_mut(), &raw const now);
    }
}

/// Says the process's number, or that of the error for which there is none, as a negative one.
/// Returns whether that is said.
///
/// # Safety
/// `channel` is open.
unsafe fn tell(channel: RawFd, number: i32) -> bool {
    let number = number.to_le_bytes();
    // SAFETY: the bytes are there.
    unsafe { libc::write(channel, number.as_ptr().cast(), number.len()) >= 0 }
}

/// In the new process: says its number, and waits until the other has ended. Returns whether
/// something is left to do.
///
/// # Safety
/// Only in a process of its own.
unsafe fn wait(watched: RawFd, channel: RawFd) -> bool {
    let mut end = libc::pollfd {
        fd: watched,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: room for what is read, and a string.
    unsafe {
        // It must not keep a mount in use.
        libc::chdir(c"/".as_ptr());
        if !tell(channel, libc::getpid()) {
            return false;
        }
        // All signals are blocked, but a debugger can interrupt it.
        while libc::ppoll(&raw mut end, 1, null(), null()) < 0 {
            if *libc::__errno_location() != libc::EINTR {
                return false;
            }
        }
        let mut byte = 0u8;
        libc::recv(channel, (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) != 1
    }
}
