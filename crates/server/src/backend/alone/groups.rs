//! Tries whether a back end judges each call by the groups that its caller has now.
//!
//! Daemons of FUSE file systems look up the groups of the calling thread, and may cache them. The
//! threads of a forwarder act for many users, one after the other, so cached groups may be those of
//! another user.

use crate::acting::{Acting, Ids, unused};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A group and a user that nobody has. Where the user namespace lacks them, its last ones serve.
const GROUP: libc::gid_t = 2_147_000_003;
const USER: libc::uid_t = 2_147_000_004;

/// Makes the trial. An outer error says why it cannot be made.
pub(super) fn trial(folder: BorrowedFd<'_>, name: &str) -> Result<Result<(), String>, String> {
    match Acting::of_process() {
        Acting::ForCallers(_) => {}
        Acting::ForItself => return Err("only root acts for other users".to_owned()),
        Acting::Alone(why) => return Err(format!("forwarders serve their own user only: {why}")),
        Acting::Refused(why) => {
            // A thread that has given its rights up cannot tell of the process.
            let rights = rustix::thread::capabilities(None);
            let may = rights.is_ok_and(|sets| sets.effective.contains(CapabilitySet::SETGID));
            return match may {
                true => Ok(Err(why.into())),
                false => Err(why.into()),
            };
        }
    }
    let (Some(group), Some(user)) = (unused(Ids::Groups, GROUP), unused(Ids::Users, USER)) else {
        return Err("this user namespace has no user but root".to_owned());
    };
    let made = make(folder, name, group).map_err(|error| error.to_string())?;
    let thread = |members: [bool; 2]| thread(&made, (group, user), &members);
    let result = std::thread::scope(|scope| {
        // Use two threads: whether groups are cached shows only when a thread's groups change.
        let first = scope.spawn(|| thread([false, true]));
        let first = first.join().map_err(|_| "its thread ended".to_owned())?;
        let second = scope.spawn(|| thread([true, false]));
        let second = second.join().map_err(|_| "its thread ended".to_owned())?;
        Ok(first.and_then(|one| second.map(|two| one.and(two))))
    });
    let _ = rustix::fs::unlinkat(&made, "f", AtFlags::empty());
    let _ = rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR);
    match result {
        Err(why) | Ok(Err(why)) => Err(why),
        Ok(Ok(seen)) => Ok(seen),
    }
}

/// Makes a directory in which only members of the group may write.
fn make(folder: BorrowedFd<'_>, name: &str, group: u32) -> rustix::io::Result<OwnedFd> {
    rustix::fs::mkdirat(folder, name, Mode::RWXU)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let opened = rustix::fs::openat(folder, name, flags, Mode::empty());
    let ready = opened.and_then(|fd| {
        let group = rustix::fs::Gid::from_raw(group);
        rustix::fs::fchown(&fd, None, Some(group))?;
        rustix::fs::fchmod(&fd, Mode::RWXU | Mode::RWXG)?;
        Ok(fd)
    });
    if ready.is_err() {
        let _ = rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR);
    }
    ready
}

/// As the user, makes a file in the directory, once for each of `members`: with the group or
/// without it.
fn thread(
    made: &OwnedFd,
    (group, user): (u32, u32),
    members: &[bool],
) -> Result<Result<(), String>, String> {
    for member in members {
        let groups = [group];
        let groups = if *member { &groups[..] } else { &[] };
        let tried = as_user(groups, user, || {
            // Use a new name each time: a known name is found without asking the server.
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            rustix::fs::openat(made.as_fd(), "f", flags, Mode::RUSR).map(drop)
        })?;
        if tried.is_ok() {
            let _ = rustix::fs::unlinkat(made, "f", AtFlags::empty());
        }
        match (member, tried) {
            (true, Ok(())) | (false, Err(Errno::ACCESS)) => {}
            (true, Err(Errno::ACCESS)) => {
                return Ok(Err(
                    "a member of a group is refused: the groups that its thread had \
                               before are remembered"
                        .to_owned(),
                ));
            }
            (false, Ok(())) => {
                return Ok(Err(
                    "a group that the thread had before still opens the door".into(),
                ));
            }
            (_, Err(error)) => return Err(error.to_string()),
        }
    }
    Ok(Ok(()))
}

/// Runs `act` with the user and the groups, in this thread only. Then becomes root again.
fn as_user<T>(groups: &[u32], user: u32, act: impl FnOnce() -> T) -> Result<T, String> {
    let error = |what: &str| format!("{what}: {}", std::io::Error::last_os_error());
    let keep = libc::uid_t::MAX;
    // The C library would set these for all threads of the process; the kernel has them by thread.
    // SAFETY: the pointer and the count are those of the slice, which the kernel only reads.
    let set = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    if set != 0 {
        return Err(error("setgroups"));
    }
    // SAFETY: takes three numbers; the real and the saved user stay root, so that this ends.
    if unsafe { libc::syscall(libc::SYS_setresuid, keep, user, keep) } != 0 {
        return Err(error("setresuid"));
    }
    let result = act();
    // SAFETY: as above.
    let back = unsafe { libc::syscall(libc::SYS_setresuid, keep, 0, keep) };
    assert_eq!(back, 0, "root by its saved user may be root again");
    Ok(result)
}
