//! Who is at the other end of a Unix socket: user, groups, and whether a peer with uid 0 is root.
//!
//! All but the last is what the kernel noted when the peer connected, so it holds whatever becomes
//! of the process. Capabilities the kernel does not note; they are read from `/proc`, and the
//! process that they are read of must be the one that connected.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;
use std::io::{self, Read};
use tidegate_wire::Caller;

/// The capabilities that a peer with uid 0 must have to count as root: those by which root uses
/// files against their modes, and becomes another user.
const ROOT: u64 = bit(0) | bit(1) | bit(3) | bit(6) | bit(7);
/// `CAP_SYS_ADMIN`, which tells the root of a node from the root of a container. It is asked for
/// where the forwarder itself could have it: in a container without it there is no other root.
const NODE_ROOT: u64 = bit(21);
/// Groups that a peer may have.
const GROUPS_MAX: usize = 1024;
/// Since Linux 6.5.
const PEER_PIDFD: libc::c_int = 77;
/// Since Linux 4.13. The libc crate has neither for every machine.
const PEER_GROUPS: libc::c_int = 59;

const fn bit(capability: u32) -> u64 {
    1 << capability
}

/// Who connected to a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The process's effective user and group and its supplementary groups when it connected.
    pub caller: Caller,
    /// Why a peer with uid 0 cannot do what root can; None for root and for every other user.
    pub powerless: Option<&'static str>,
}

/// Asks the kernel who connected. Also returns the process id, or 0 if the process is in no
/// namespace that this one sees. An error concerns this connection alone.
pub(crate) fn credentials(socket: BorrowedFd<'_>) -> io::Result<(Credentials, i32)> {
    let mut who = [0u32; 3];
    ask(socket, libc::SO_PEERCRED, &mut who)?;
    let [pid, uid, gid] = who;
    let pid = pid.cast_signed();
    let caller = Caller {
        uid,
        gid,
        groups: groups(socket)?,
    };
    let powerless = match uid {
        0 => look_for_power(socket, pid).err(),
        _ => None,
    };
    Ok((Credentials { caller, powerless }, pid))
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

/// Whether the process that connected has root's capabilities in this process's user namespace. An
/// error says why not, or that it cannot be known.
fn look_for_power(socket: BorrowedFd<'_>, pid: i32) -> Result<(), &'static str> {
    const UNKNOWN: &str = "uid 0, whose capabilities cannot be read";
    const GONE: &str = "uid 0, whose process has ended";
    if pid <= 0 {
        return Err("uid 0 of another namespace of processes");
    }
    let unknown = |_| UNKNOWN;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // The directory stays that of this process: when the process is gone, nothing in it opens.
    let process = openat(CWD, format!("/proc/{pid}"), flags, Mode::empty()).map_err(|_| GONE)?;
    if let Some(connected) = pidfd(socket).map_err(|_| GONE)?
        && has_ended(&connected).map_err(unknown)?
    {
        return Err(GONE);
    }
    // Kernels before 6.5 do not name the process. There the number may be another process's by
    // now, if the peer connected and ended, and the number came round before it was accepted.
    let theirs = readlinkat(&process, "ns/user", Vec::new()).map_err(unknown)?;
    let own = readlinkat(CWD, "/proc/self/ns/user", Vec::new()).map_err(unknown)?;
    if theirs != own {
        return Err("uid 0 of another user namespace");
    }
    // Permitted, not effective: what is permitted a process can make effective at any time.
    let permitted = capabilities(&process, "CapPrm:").ok_or(UNKNOWN)?;
    let own = openat(CWD, "/proc/self", flags, Mode::empty()).map_err(unknown)?;
    let bounding = capabilities(&own, "CapBnd:").ok_or(UNKNOWN)?;
    let needed = ROOT | (NODE_ROOT & bounding);
    match permitted & needed == needed {
        true => Ok(()),
        false => Err("uid 0 without the capabilities of root"),
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

/// A set of capabilities from a process's status.
fn capabilities(process: impl AsFd, field: &str) -> Option<u64> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = openat(process, "status", flags, Mode::empty()).ok()?;
    let mut text = String::new();
    std::fs::File::from(file)
        .take(1 << 16)
        .read_to_string(&mut text)
        .ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    u64::from_str_radix(line.trim(), 16).ok()
}
