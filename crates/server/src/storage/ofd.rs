//! Locks on single bytes of a file. They belong to an open file description and end with it.
//!
//! `F_OFD_SETLK` and `F_OFD_GETLK` set the only locks that two descriptions in one process hold
//! against each other, and that no unrelated `close` in the process can drop.

use std::os::fd::{AsRawFd, BorrowedFd};

/// What a lock allows other descriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Further shared locks.
    Shared,
    /// No other lock.
    Exclusive,
}

/// Locks one byte. False if another description holds a lock that excludes it. Replaces an earlier
/// lock of the same description on this byte.
pub(crate) fn try_lock(fd: BorrowedFd<'_>, byte: u64, kind: Kind) -> std::io::Result<bool> {
    let kind = match kind {
        Kind::Shared => libc::F_RDLCK,
        Kind::Exclusive => libc::F_WRLCK,
    };
    let mut lock = flock(kind, byte);
    match command(fd, libc::F_OFD_SETLK, &mut lock) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Releases the description's lock on one byte, if it holds one.
pub(crate) fn unlock(fd: BorrowedFd<'_>, byte: u64) -> std::io::Result<()> {
    command(fd, libc::F_OFD_SETLK, &mut flock(libc::F_UNLCK, byte))
}

/// Releases the description's locks on all bytes before this one.
pub(crate) fn unlock_before(fd: BorrowedFd<'_>, byte: u64) -> std::io::Result<()> {
    let mut lock = flock(libc::F_UNLCK, 0);
    lock.l_len = byte as libc::off_t;
    command(fd, libc::F_OFD_SETLK, &mut lock)
}

/// The kind of lock that another description holds on the byte, if any.
pub(crate) fn held_elsewhere(fd: BorrowedFd<'_>, byte: u64) -> std::io::Result<Option<Kind>> {
    let mut lock = flock(libc::F_WRLCK, byte);
    command(fd, libc::F_OFD_GETLK, &mut lock)?;
    Ok(match libc::c_int::from(lock.l_type) {
        libc::F_UNLCK => None,
        libc::F_RDLCK => Some(Kind::Shared),
        _ => Some(Kind::Exclusive),
    })
}

fn flock(kind: libc::c_int, byte: u64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte as libc::off_t,
        l_len: 1,
        // The kernel demands 0 for locks of descriptions.
        l_pid: 0,
    }
}

fn command(
    fd: BorrowedFd<'_>,
    command: libc::c_int,
    lock: &mut libc::flock,
) -> std::io::Result<()> {
    loop {
        // SAFETY: the descriptor is open for the length of the borrow, and the kernel reads and
        // writes one `flock` at the pointer, which is exclusively ours.
        let done = unsafe { libc::fcntl(fd.as_raw_fd(), command, lock as *mut libc::flock) };
        if done == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::scratch::Scratch;
    use std::os::fd::AsFd;

    #[test]
    fn two_descriptions_of_one_process_exclude_each_other() {
        let scratch = Scratch::new("ofd");
        let open = || {
            std::fs::OpenOptions::new()
                .create(true)
                .truncate(false)
                .read(true)
                .write(true)
                .open(scratch.path().join("locks"))
                .expect("scratch file")
        };
        let (a, b) = (open(), open());
        let (a, b) = (a.as_fd(), b.as_fd());
        let far = (1 << 62) - 1;
        assert!(try_lock(a, far, Kind::Shared).expect("lock"));
        assert!(try_lock(b, far, Kind::Shared).expect("lock"));
        assert!(!try_lock(b, far, Kind::Exclusive).expect("lock"));
        assert!(try_lock(a, far - 9, Kind::Shared).expect("lock"));
        unlock_before(a, far).expect("unlock");
        assert_eq!(held_elsewhere(b, far - 9).expect("look"), None);
        assert!(!try_lock(b, far, Kind::Exclusive).expect("lock"));
        unlock(a, far).expect("unlock");
        assert!(try_lock(b, far, Kind::Exclusive).expect("lock"));
        assert_eq!(held_elsewhere(a, far).expect("look"), Some(Kind::Exclusive));
        assert_eq!(held_elsewhere(b, far).expect("look"), None);
        assert_eq!(held_elsewhere(a, 3).expect("look"), None);
        unlock(b, far).expect("unlock");
        assert_eq!(held_elsewhere(a, far).expect("look"), None);
    }
}
