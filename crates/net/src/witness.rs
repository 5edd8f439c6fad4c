//! A process apart that tells whether a peer with uid 0 is root, so that the forwarder itself needs
//! no right over other processes.
//!
//! The kernel tells in which user namespace a process is only to who could trace that process. So
//! this one process keeps that right, and takes no order but "look at the process of this number".
//! It ends with the process that started it. That one cannot start another, when it has threads and
//! is confined: if this one ends first, it must end too, for its supervisor to start both.

use crate::power;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::process::{Pid, WaitOptions, waitpid};
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The process that this process asks, if it started one.
static WITNESS: OnceLock<Witness> = OnceLock::new();

struct Witness {
    process: Pid,
    /// How it ended, once that is known.
    ended: Mutex<Option<String>>,
    /// Nobody waits at it: who asks has other work until the answer is there, or never comes.
    socket: OwnedFd,
    /// Questions so far, which tells the answers from each other.
    asked: AtomicU32,
}

/// What it says of the process that the question of this number was about.
pub struct Answer {
    /// The question's number.
    pub number: u32,
    /// Whether that process is root; else why not.
    pub found: Result<(), &'static str>,
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
                ended: Mutex::new(None),
                socket: ours,
                asked: AtomicU32::new(0),
            };
            match WITNESS.set(witness) {
                Ok(()) => Ok(()),
                Err(_) => Err(io::Error::other("there is one already")),
            }
        }
    }
}

/// How that process ended, in words; None while it runs, and if there is none. Does not wait for
/// it. SIGCHLD tells when to ask again.
pub fn ended() -> Option<String> {
    let witness = WITNESS.get()?;
    let ended = witness.ended.lock();
    let mut ended = ended.unwrap_or_else(PoisonError::into_inner);
    if ended.is_none() {
        let found = waitpid(Some(witness.process), WaitOptions::NOHANG);
        *ended = match found {
            Ok(None) | Err(Errno::INTR) => None,
            Ok(Some((_, status))) => Some(match status.terminating_signal() {
                Some(signal) => format!("by signal {signal}"),
                None => format!("with exit code {}", status.exit_status().unwrap_or(-1)),
            }),
            Err(error) => Some(error.to_string()),
        };
    }
    ended.clone()
}

/// What becomes readable when there are answers; None if this process looks itself.
pub fn socket() -> Option<BorrowedFd<'static>> {
    Some(WITNESS.get()?.socket.as_fd())
}

/// Asks about the process of this number, and returns the question's; None if this process looks
/// itself. Fails if that process is gone or has many questions before it, but does not wait.
pub(crate) fn ask(pid: i32) -> Option<io::Result<u32>> {
    let witness = WITNESS.get()?;
    let number = witness.asked.fetch_add(1, Ordering::Relaxed);
    let question = [number.to_le_bytes(), pid.to_le_bytes()].concat();
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = net::send(&witness.socket, &question, flags);
    Some(sent.map(|_| number).map_err(io::Error::from))
}

/// The next answer, which may be to a question that nobody waits for any longer; None if there is
/// none now. An error says that there will be none.
pub fn answer() -> io::Result<Option<Answer>> {
    let Some(witness) = WITNESS.get() else {
        return Ok(None);
    };
    let mut answer = [0; 5];
    let received = retry_on_intr(|| net::recv(&witness.socket, &mut answer, RecvFlags::DONTWAIT));
    match received {
        Ok((5, _)) => {
            let [a, b, c, d, why] = answer;
            Ok(Some(Answer {
                number: u32::from_le_bytes([a, b, c, d]),
                found: match why {
                    0 => Ok(()),
                    why => {
                        let why = power::REASONS.get(usize::from(why) - 1);
                        Err(*why.unwrap_or(&power::UNKNOWN))
                    }
                },
            }))
        }
        Ok(_) => Err(ErrorKind::UnexpectedEof.into()),
        Err(Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
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
            Err(Errno::INTR) => continue,
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
