//! Whether a process with uid 0 can do what root of this node can: its capabilities, and its
//! namespace of users.

use rustix::fd::AsFd;
use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
use std::io::Read;

/// The capabilities that a peer with uid 0 must have to count as root: those by which root uses
/// files against their modes, and becomes another user.
const ROOT: u64 = bit(0) | bit(1) | bit(3) | bit(6) | bit(7);
/// `CAP_SYS_ADMIN`, which tells the root of a node from the root of a container. It is asked for
/// where the forwarder itself could have it: in a container without it there is no other root.
const NODE_ROOT: u64 = bit(21);
pub(crate) const UNKNOWN: &str = "uid 0, whose capabilities cannot be read";
pub(crate) const GONE: &str = "uid 0, whose process has ended";
const ELSEWHERE: &str = "uid 0 of another namespace of processes";
const OTHER_USERS: &str = "uid 0 of another user namespace";
const WITHOUT: &str = "uid 0 without the capabilities of root";
/// All that can be said of a peer with uid 0 that is not root.
pub(crate) const REASONS: &[&str] = &[UNKNOWN, GONE, ELSEWHERE, OTHER_USERS, WITHOUT];

const fn bit(capability: u32) -> u64 {
    1 << capability
}

/// Whether a process has root's capabilities in this process's user namespace. An error says why
/// not, or that it cannot be known: one of [`REASONS`].
pub(crate) fn look(pid: i32) -> Result<(), &'static str> {
    if pid <= 0 {
        return Err(ELSEWHERE);
    }
    let unknown = |_| UNKNOWN;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // The directory stays that of this process: when the process is gone, nothing in it opens.
    let process = openat(CWD, format!("/proc/{pid}"), flags, Mode::empty()).map_err(|_| GONE)?;
    let theirs = readlinkat(&process, "ns/user", Vec::new()).map_err(unknown)?;
    let own = readlinkat(CWD, "/proc/self/ns/user", Vec::new()).map_err(unknown)?;
    if theirs != own {
        return Err(OTHER_USERS);
    }
    // Permitted, not effective: what is permitted a process can make effective at any time.
    let permitted = capabilities(&process, "CapPrm:").ok_or(UNKNOWN)?;
    let own = openat(CWD, "/proc/self", flags, Mode::empty()).map_err(unknown)?;
    let bounding = capabilities(&own, "CapBnd:").ok_or(UNKNOWN)?;
    let needed = ROOT | (NODE_ROOT & bounding);
    match permitted & needed == needed {
        true => Ok(()),
        false => Err(WITHOUT),
    }
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
