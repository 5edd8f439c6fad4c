//! Refuses arguments that no frame can carry: a forwarder would cut the session for them.

use crate::errno::Errno;
use crate::wire::{
    Caller, EXTENTS_MAX, Extents, GROUPS_MAX, Lock, NAME_MAX, Op, PATH_MAX, POLICY_MAX,
    READDIR_MAX, XATTR_MAX,
};

/// Largest offset of a file on Linux.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// Checks the number of groups.
pub(super) fn caller(caller: Option<&Caller>) -> Result<(), Errno> {
    let groups = caller.map_or(0, |caller| caller.groups.len());
    hold(groups <= GROUPS_MAX, Errno::INVAL)
}

/// Checks an operation's arguments, with the errno that Linux gives for such.
pub(super) fn op(op: &Op, payload_len: usize) -> Result<(), Errno> {
    let has_payload = matches!(op, Op::Write { .. } | Op::Append { .. });
    hold(has_payload || payload_len == 0, Errno::INVAL)?;
    match op {
        Op::Hello(_) | Op::Bye | Op::Ping | Op::Reach { .. } => Err(Errno::INVAL),
        Op::CancelLock { .. } | Op::ReclaimDone => Err(Errno::INVAL),
        Op::Open { .. } | Op::Close { .. } => Err(Errno::INVAL),
        Op::SetPolicy { text } => hold(text.len() <= POLICY_MAX, Errno::TOOBIG),
        Op::Lookup { name: n, .. }
        | Op::Create { name: n, .. }
        | Op::Mkdir { name: n, .. }
        | Op::Mknod { name: n, .. }
        | Op::Link { name: n, .. }
        | Op::Unlink { name: n, .. }
        | Op::Rmdir { name: n, .. } => name(n),
        Op::Symlink {
            name: n, target, ..
        } => {
            name(n)?;
            hold(!target.is_empty(), Errno::NOENT)?;
            hold(target.len() < PATH_MAX, Errno::NAMETOOLONG)?;
            hold(!target.contains(&0), Errno::INVAL)
        }
        Op::Rename {
            name: n, new_name, ..
        } => {
            name(n)?;
            name(new_name)
        }
        Op::Readdir { bytes_max, .. } => hold(*bytes_max <= READDIR_MAX, Errno::INVAL),
        Op::Access { mask, .. } => hold(*mask <= 7, Errno::INVAL),
        Op::Seek { whence, .. } => hold((3..=4).contains(whence), Errno::INVAL),
        Op::Getxattr { name, .. } | Op::Removexattr { name, .. } => xattr_name(name),
        Op::Setxattr { name, value, .. } => {
            xattr_name(name)?;
            hold(value.len() <= XATTR_MAX, Errno::TOOBIG)
        }
        Op::SetLock {
            lock: l, reclaim, ..
        } => {
            hold(!reclaim, Errno::INVAL)?;
            lock(l)
        }
        Op::TestLock { lock: l, .. } => lock(l),
        Op::Read { extents: e, .. } => extents(e, Errno::INVAL),
        Op::Write { extents: e, .. } => {
            extents(e, Errno::FBIG)?;
            hold(e.bytes() == payload_len as u64, Errno::INVAL)
        }
        Op::Append { .. } => hold(payload_len > 0, Errno::INVAL),
        Op::Status | Op::Getattr { .. } | Op::Setattr { .. } | Op::Readlink { .. } => Ok(()),
        Op::Fsync { .. } | Op::Statfs | Op::Fallocate { .. } | Op::CopyRange { .. } => Ok(()),
        Op::Listxattr { .. } | Op::DropLocks { .. } => Ok(()),
    }
}

fn hold(condition: bool, otherwise: Errno) -> Result<(), Errno> {
    if condition { Ok(()) } else { Err(otherwise) }
}

fn name(name: &[u8]) -> Result<(), Errno> {
    hold(!name.is_empty(), Errno::NOENT)?;
    hold(name.len() <= NAME_MAX, Errno::NAMETOOLONG)?;
    hold(crate::wire::frame::name_is_valid(name), Errno::INVAL)
}

fn xattr_name(name: &[u8]) -> Result<(), Errno> {
    hold(!name.is_empty() && name.len() <= NAME_MAX, RANGE)?;
    hold(!name.contains(&0), Errno::INVAL)
}

/// What setxattr(2) says of a name that is too long or empty.
const RANGE: Errno = Errno(rustix::io::Errno::RANGE.raw_os_error());

fn lock(lock: &Lock) -> Result<(), Errno> {
    hold(lock.start <= lock.end, Errno::INVAL)
}

fn extents(extents: &Extents, beyond: Errno) -> Result<(), Errno> {
    hold(extents.rest.len() < EXTENTS_MAX, Errno::INVAL)?;
    let mut from = 0;
    for extent in extents.iter() {
        hold(extent.len > 0 && extent.offset >= from, Errno::INVAL)?;
        from = extent.offset.saturating_add(extent.len);
        hold(from <= OFFSET_MAX, beyond)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Extent, Handle, LockFamily, LockKind};

    const FILE: Handle = Handle { inode: 1, birth: 1 };

    #[test]
    fn names_get_the_errno_of_linux() {
        let lookup = |name: &[u8]| {
            op(
                &Op::Lookup {
                    parent: FILE,
                    name: name.into(),
                },
                0,
            )
        };
        assert_eq!(lookup(b"file"), Ok(()));
        assert_eq!(lookup(b""), Err(Errno::NOENT));
        assert_eq!(lookup(&[b'x'; 256]), Err(Errno::NAMETOOLONG));
        for wrong in [&b"."[..], b"..", b"a/b", b"a\0b"] {
            assert_eq!(lookup(wrong), Err(Errno::INVAL));
        }
    }

    #[test]
    fn extents_ascend_and_end_within_the_largest_file() {
        let write = |extents: &[(u64, u64)]| {
            let mut extents = extents.iter().map(|&(offset, len)| Extent { offset, len });
            let first = extents.next().expect("at least one");
            let extents = Extents {
                first,
                rest: extents.collect(),
            };
            let len = extents.bytes() as usize;
            op(
                &Op::Write {
                    handle: FILE,
                    extents,
                },
                len,
            )
        };
        assert_eq!(write(&[(0, 10), (10, 5)]), Ok(()));
        assert_eq!(write(&[(0, 10), (9, 5)]), Err(Errno::INVAL));
        assert_eq!(write(&[(0, 0)]), Err(Errno::INVAL));
        assert_eq!(write(&[(OFFSET_MAX, 1)]), Err(Errno::FBIG));
        assert_eq!(write(&[(u64::MAX, 5)]), Err(Errno::FBIG));
    }

    #[test]
    fn sessions_are_the_client_s_business() {
        for wrong in [
            Op::Bye,
            Op::Ping,
            Op::ReclaimDone,
            Op::CancelLock { request: 1 },
        ] {
            assert_eq!(op(&wrong, 0), Err(Errno::INVAL));
        }
        let lock = Lock {
            family: LockFamily::Range,
            kind: LockKind::Shared,
            owner: 1,
            pid: 1,
            start: 5,
            end: 4,
        };
        assert_eq!(
            op(&Op::TestLock { handle: FILE, lock }, 0),
            Err(Errno::INVAL)
        );
        assert_eq!(op(&Op::Getattr { handle: FILE }, 1), Err(Errno::INVAL));
    }
}
