//! A process apart that tells whether a peer with uid 0 is root, so that the forwarder itself needs
//! no right over other processes.
//!
//! The kernel tells in which user namespace a process is only to who could trace that process. So
//! this one process keeps that right, and takes no order but "look at the process of this number".
//! It ends with the process that started it. That one cannot start another, when it has threads and
//! is confined: if this one ends first, it must end too, for its supervisor to start both.

use crate::power;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::process::{Pid, WaitOptions, waitpid};
use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// How long an answer may take, in seconds.
const ANSWER_MAX_S: i64 = 5;

/// The process that this process asks, if it started one.
static WITNESS: OnceLock<Mutex<Witness>> = OnceLock::new();

struct Witness {
    process: Pid,
    /// How it ended, once that is known.
    ended: Option<String>,
    socket: OwnedFd,
    /// Questions so far, which tells the answer to one from a late answer to another.
    asked: u32,
}

/// Starts the process that looks at peers from now on. `confine` is called in it, and gives up all
/// but `CAP_SYS_PTRACE`. Fails if this process has other threads already, which a child would not
/// have, or if the system has no room for another process.
pub fn start(confine: fn()) -> io::Result<()> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("there are threads already"));
    }
    let kind = SocketType::SEQPACKET;
    let (ours, its) = net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    // SAFETY: this process has one thread, so the child has all of it.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => serve(its, confine),
        child => {
            let witness = Witness {
                process: Pid::from_raw(child).expect("0 and -1 are taken above"),
                ended: None,
                socket: ours,
                asked: 0,
            };
            match WITNESS.set(Mutex::new(witness)) {
                Ok(()) => Ok(()),
                Err(_) => Err(io::Error::other("there is one already")),
            }
        }
    }
}

/// How that process ended, in words; None while it runs, and if there is none. Does not wait for
/// it, and may wait for the answer to a question. SIGCHLD tells when to ask again.
pub fn ended() -> Option<String> {
    let mut witness = witness()?;
    if witness.ended.is_none() {
        let found = waitpid(Some(witness.process), WaitOptions::NOHANG);
        witness.ended = match found {
            Ok(None) | Err(rustix::io::Errno::INTR) => None,
            Ok(Some((_, status))) => Some(match status.terminating_signal() {
                Some(signal) => format!("by signal {signal}"),
                None => format!("with exit code {}", status.exit_status().unwrap_or(-1)),
            }),
            Err(error) => Some(error.to_string()),
        };
    }
    witness.ended.clone()
}

fn witness() -> Option<MutexGuard<'static, Witness>> {
    let witness = WITNESS.get()?.lock();
    Some(witness.unwrap_or_else(PoisonError::into_inner))
}

/// Asks about the process of this number; None if this process looks itself.
pub(crate) fn ask(pid: i32) -> Option<Result<(), &'static str>> {
    Some(witness()?.ask(pid).unwrap_or_else(|error| {
        tracing::error!(%error, "the process that looks at peers with uid 0 does not answer");
        Err(power::UNKNOWN)
    }))
}

impl Witness {
    fn ask(&mut self, pid: i32) -> io::Result<Result<(), &'static str>> {
        self.asked = self.asked.wrapping_add(1);
        let number = self.asked.to_le_bytes();
        let question = [number, pid.to_le_bytes()].concat();
        net::send(&self.socket, &question, SendFlags::NOSIGNAL)?;
        loop {
            let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
            let limit = Timespec {
                tv_sec: ANSWER_MAX_S,
                tv_nsec: 0,
            };
            match poll(&mut polled, Some(&limit)) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Err(rustix::io::Errno::INTR) => continue,
                other => other?,
            };
            let mut answer = [0; 5];
            let (len, _) = net::recv(&self.socket, &mut answer, RecvFlags::empty())?;
            match answer {
                _ if len == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                [a, b, c, d, why] if len == 5 && [a, b, c, d] == number => {
                    return Ok(match why {
                        0 => Ok(()),
                        why => Err(*power::REASONS
                            .get(usize::from(why) - 1)
                            .unwrap_or(&power::UNKNOWN)),
                    });
                }
                _ => {}
            }
        }
    }
}

/// The work of the process apart: it answers until the other end is closed.
fn serve(socket: OwnedFd, confine: fn()) -> ! {
    // SAFETY: calls of a process with one thread, whose other descriptors nobody uses any more.
    // Signals to the whole group are for the forwarder, which goes on answering until it is done.
    unsafe {
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::prctl(libc::PR_SET_NAME, c"tidegate-peers".as_ptr());
        libc::chdir(c"/".as_ptr());
        if libc::dup2(socket.as_raw_fd(), 0) != 0 {
            libc::_exit(1);
        }
        libc::close_range(1, libc::c_uint::MAX, 0);
    }
    std::mem::forget(socket);
    confine();
    // SAFETY: it was just put there, and stays open.
    let socket = unsafe { rustix::fd::BorrowedFd::borrow_raw(0) };
    loop {
        let mut question = [0; 8];
        match net::recv(socket, &mut question, RecvFlags::empty()) {
            Ok((8, _)) => {}
            Err(rustix::io::Errno::INTR) => continue,
            // SAFETY: it ends this process, which has nothing to tidy up.
            _ => unsafe { libc::_exit(0) },
        }
        let [a, b, c, d, rest @ ..] = question;
        let why = match power::look(i32::from_le_bytes(rest)) {
            Ok(()) => 0,
            Err(why) => {
                let known = power::REASONS.iter().position(|reason| *reason == why);
                known.map_or(u8::MAX, |at| at as u8 + 1)
            }
        };
        let _ = net::send(socket, &[a, b, c, d, why], SendFlags::NOSIGNAL);
    }
}
