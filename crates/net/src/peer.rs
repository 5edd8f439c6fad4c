//! Who is at the other end of a Unix socket: user, groups, and whether a peer with uid 0 is root.
//!
//! All but the last is what the kernel noted when the peer connected, so it holds whatever becomes
//! of the process. Capabilities the kernel does not note; they are read from `/proc`, and the
//! process that they are read of must be the one that connected.

use crate::power::{self, GONE, UNKNOWN};
use crate::witness;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use tidegate_wire::Caller;

/// Groups that a peer may have.
const GROUPS_MAX: usize = 1024;
/// Since Linux 6.5.
const PEER_PIDFD: libc::c_int = 77;
/// Since Linux 4.13. The libc crate has neither for every machine.
const PEER_GROUPS: libc::c_int = 59;

/// Who connected to a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The process's effective user and group and its supplementary groups when it connected.
    pub caller: Caller,
    /// Why a peer with uid 0 cannot do what root can; None for root and for every other user.
    pub powerless: Option<&'static str>,
}

/// What the process that looks at peers was asked about one with uid 0. Until it has answered, the
/// peer's credentials say that it cannot do what root can.
#[derive(Debug)]
pub struct Question {
    /// The number that the answer has.
    pub number: u32,
    /// The process that connected; None before Linux 6.5.
    process: Option<OwnedFd>,
}

impl Question {
    /// Why the peer cannot do what root can, now that this was found of the process of its number.
    pub fn powerless(&self, found: Result<(), &'static str>) -> Option<&'static str> {
        still(self.process.as_ref(), found).err()
    }
}

/// Asks the kernel who connected. Also returns the process id, or 0 if the process is in no
/// namespace that this one sees, and what another process was asked about a peer with uid 0. An
/// error concerns this connection alone.
pub(crate) fn credentials(
    socket: BorrowedFd<'_>,
) -> io::Result<(Credentials, i32, Option<Question>)> {
    let mut who = [0u32; 3];
    ask(socket, libc::SO_PEERCRED, &mut who)?;
    let [pid, uid, gid] = who;
    let pid = pid.cast_signed();
    let caller = Caller {
        uid,
        gid,
        groups: groups(socket)?,
    };
    let (powerless, question) = match uid {
        0 => match power_of(socket, pid) {
            Ok(question) => (Some(UNKNOWN), Some(question)),
            Err(found) => (found.err(), None),
        },
        _ => (None, None),
    };
    Ok((Credentials { caller, powerless }, pid, question))
}

/// The supplementary groups. A peer with more than [`GROUPS_MAX`] is an error: without some of them
/// it could do what its groups are forbidden.
fn groups(socket: BorrowedFd<'_>) -> io::Result<Box<[u32]>> {
    let mut groups = [0; GROUPS_MAX];
    match ask(socket, PEER_GROUPS, &mut groups) {
        Ok(count) => Ok(groups[..count].into()),
        Err(error) if error.raw_os_error() == Some(libc::ERANGE) => {
            let text = format!("a peer with more than {GROUPS_MAX} supplementary groups");
            Err(io::Error::other(text))
        }
        Err(error) => Err(error),
    }
}

/// Reads a socket option into numbers of 32 bits; returns how many the kernel wrote.
fn ask(socket: BorrowedFd<'_>, option: libc::c_int, into: &mut [u32]) -> io::Result<usize> {
    let mut len = libc::socklen_t::try_from(size_of_val(into)).expect("the callers' are short");
    // SAFETY: the kernel writes at most `len` bytes to `into`, which has so many, and any bytes
    // make numbers.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            into.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    match done {
        0 => Ok(len as usize / size_of::<u32>()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Asks whether the process that connected has root's capabilities in this process's user
/// namespace. The error is the answer, where no other process has to be asked: that it has, or why
/// not, or that it cannot be known.
fn power_of(socket: BorrowedFd<'_>, pid: i32) -> Result<Question, Result<(), &'static str>> {
    let process = pidfd(socket).map_err(|_| Err(GONE))?;
    match witness::ask(pid) {
        Some(Ok(number)) => Ok(Question { number, process }),
        Some(Err(error)) => {
            tracing::debug!(%error, "the process that looks at peers with uid 0 takes no question");
            Err(Err(UNKNOWN))
        }
        None => Err(still(process.as_ref(), power::look(pid))),
    }
}

/// What was found of the process that connected, if it was that process.
fn still(process: Option<&OwnedFd>, found: Result<(), &'static str>) -> Result<(), &'static str> {
    // What was looked at had its number. If the process that connected has it still, it was that
    // process. Kernels before 6.5 do not name the process. There the number may be another
    // process's by now, if the peer connected and ended, and the number came round before it was
    // accepted.
    match process.map(has_ended).transpose() {
        Ok(None | Some(false)) => found,
        Ok(Some(true)) => Err(GONE),
        Err(_) => Err(UNKNOWN),
    }
}

/// The process that connected; None before Linux 6.5.
fn pidfd(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let mut fd = [u32::MAX];
    match ask(socket, PEER_PIDFD, &mut fd) {
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(_) => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd[0].cast_signed()) })),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the process of a pidfd has ended.
fn has_ended(process: &OwnedFd) -> Result<bool, Errno> {
    let mut polled = [PollFd::new(process, PollFlags::IN)];
    let now = Timespec::default();
    Ok(poll(&mut polled, Some(&now))? > 0)
}
