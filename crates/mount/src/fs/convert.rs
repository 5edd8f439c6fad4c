//! Converts between the types of the protocol and those of the kernel.

use crate::fuse::{self, Attributes, Errno, SetAttributes, Space, Timestamp};
use tidegate_client::wire;

const NS: i64 = 1_000_000_000;

/// The kernel's number of a forwarder's errno.
pub(super) fn errno(errno: tidegate_client::Errno) -> Errno {
    match Errno::from_raw_os_error(errno.0) {
        // To the kernel it means "never ask again", for some operations with silent success.
        Errno::NOSYS => Errno::OPNOTSUPP,
        errno => errno,
    }
}

pub(super) fn attributes(attr: &wire::Attr) -> Attributes {
    Attributes {
        inode: attr.handle.inode,
        size: attr.size,
        blocks: attr.blocks,
        accessed: timestamp(attr.atime_ns),
        modified: timestamp(attr.mtime_ns),
        changed: timestamp(attr.ctime_ns),
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        block_size: attr.block_size,
    }
}

pub(super) fn set_attr(set: &SetAttributes) -> wire::SetAttr {
    wire::SetAttr {
        // The kernel sends the type along.
        mode: set.mode.map(|mode| mode & 0o7777),
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set.accessed.map(set_time),
        mtime: set.modified.map(set_time),
    }
}

pub(super) fn space(statfs: &wire::Statfs) -> Space {
    Space {
        blocks: statfs.blocks,
        blocks_free: statfs.blocks_free,
        blocks_available: statfs.blocks_available,
        files: statfs.files,
        files_free: statfs.files_free,
        block_size: statfs.block_size,
        fragment_size: statfs.block_size,
        name_max: statfs.name_max,
    }
}

/// The end of a lock that reaches to the end of the file, for the kernel and on the wire.
const KERNEL_END: u64 = i64::MAX as u64;
const WIRE_END: u64 = u64::MAX;

pub(super) fn wire_lock(lock: &fuse::Lock) -> wire::Lock {
    wire::Lock {
        family: if lock.whole_file {
            wire::LockFamily::Whole
        } else {
            wire::LockFamily::Range
        },
        kind: match lock.kind {
            fuse::LockKind::Shared => wire::LockKind::Shared,
            fuse::LockKind::Exclusive => wire::LockKind::Exclusive,
            fuse::LockKind::Unlock => wire::LockKind::None,
        },
        owner: lock.owner,
        pid: lock.pid,
        start: lock.start,
        end: if lock.end >= KERNEL_END {
            WIRE_END
        } else {
            lock.end
        },
    }
}

/// The lock that conflicts with `asked`, in the kernel's form.
pub(super) fn kernel_lock(asked: &fuse::Lock, found: Option<wire::Lock>) -> fuse::Lock {
    let Some(found) = found else {
        return fuse::Lock {
            kind: fuse::LockKind::Unlock,
            ..*asked
        };
    };
    fuse::Lock {
        kind: match found.kind {
            wire::LockKind::Shared => fuse::LockKind::Shared,
            wire::LockKind::Exclusive => fuse::LockKind::Exclusive,
            wire::LockKind::None => fuse::LockKind::Unlock,
        },
        pid: found.pid,
        start: found.start.min(KERNEL_END),
        end: found.end.min(KERNEL_END),
        ..*asked
    }
}

fn timestamp(ns: i64) -> Timestamp {
    let nanoseconds = u32::try_from(ns.rem_euclid(NS)).expect("a remainder below 10^9");
    Timestamp {
        seconds: ns.div_euclid(NS),
        nanoseconds,
    }
}

fn set_time(time: fuse::SetTime) -> wire::SetTime {
    match time {
        fuse::SetTime::Now => wire::SetTime::Now,
        // Times beyond the year 2262 end there, as they do on the wire.
        fuse::SetTime::At(at) => {
            let ns = at
                .seconds
                .saturating_mul(NS)
                .saturating_add(i64::from(at.nanoseconds));
            wire::SetTime::At(ns)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_nanoseconds_positive() {
        assert_eq!(
            timestamp(-1),
            Timestamp {
                seconds: -1,
                nanoseconds: 999_999_999
            }
        );
        for ns in [0, 1, -1, NS, -NS - 1, i64::MAX, i64::MIN + NS] {
            let back = set_time(fuse::SetTime::At(timestamp(ns)));
            assert_eq!(back, wire::SetTime::At(ns));
        }
    }

    #[test]
    fn a_lock_to_the_end_of_the_file_comes_back_as_one() {
        let asked = fuse::Lock {
            handle: 1,
            owner: 2,
            start: 3,
            end: KERNEL_END,
            kind: fuse::LockKind::Exclusive,
            pid: 4,
            whole_file: false,
        };
        let wire = wire_lock(&asked);
        assert_eq!(wire.end, u64::MAX);
        assert_eq!(kernel_lock(&asked, Some(wire)), asked);
        assert_eq!(kernel_lock(&asked, None).kind, fuse::LockKind::Unlock);
    }

    #[test]
    fn nothing_makes_the_kernel_stop_asking() {
        assert_eq!(errno(tidegate_client::Errno(38)), Errno::OPNOTSUPP);
        assert_eq!(errno(tidegate_client::Errno(2)), Errno::NOENT);
    }
}
