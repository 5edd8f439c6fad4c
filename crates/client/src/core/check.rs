//! Refuses calls before they reach a forwarder: those whose arguments cannot be sent or make no
//! sense.

use super::errno::*;
use super::types::Call;
use crate::core::Errno;
use crate::wire::frame::name_is_valid;
use crate::wire::{
    Extents, GROUPS_MAX, Lock, NAME_MAX, Op, PATH_MAX, POLICY_MAX, READDIR_MAX, XATTR_MAX,
};

/// Makes a call fit the protocol's bounds where that changes nothing for the caller.
pub(super) fn fit(call: &mut Call) {
    if let Op::Readdir { bytes_max, .. } = &mut call.op {
        *bytes_max = (*bytes_max).min(READDIR_MAX);
    }
    if let Some(caller) = &mut call.caller
        && caller.groups.len() > GROUPS_MAX
    {
        // NFS does the same with 16: access through the groups left out is refused.
        caller.groups = Box::from(&caller.groups[..GROUPS_MAX]);
    }
}

/// Whether the core can make a call; if not, the error that its caller gets.
pub(super) fn check(call: &Call, forwarders: usize) -> Result<(), Errno> {
    let carries = matches!(call.op, Op::Write { .. } | Op::Append { .. });
    if !carries && !call.payload.is_empty() {
        return Err(EINVAL);
    }
    match &call.op {
        Op::Lookup { name, .. }
        | Op::Create { name, .. }
        | Op::Mkdir { name, .. }
        | Op::Mknod { name, .. }
        | Op::Link { name, .. }
        | Op::Unlink { name, .. }
        | Op::Rmdir { name, .. } => check_name(name),
        Op::Symlink { name, target, .. } => {
            check_name(name)?;
            check_target(target)
        }
        Op::Rename { name, new_name, .. } => {
            check_name(name)?;
            check_name(new_name)
        }
        Op::Getxattr { name, .. } | Op::Removexattr { name, .. } => check_xattr_name(name),
        Op::Setxattr { name, value, .. } => {
            check_xattr_name(name)?;
            or(value.len() <= XATTR_MAX, E2BIG)
        }
        Op::SetLock { lock, reclaim, .. } => {
            or(!reclaim, EINVAL)?;
            check_lock(lock)
        }
        Op::TestLock { lock, .. } => check_lock(lock),
        Op::Access { mask, .. } => or(*mask <= 7, EINVAL),
        Op::Seek { whence, .. } => or((3..=4).contains(whence), EINVAL),
        Op::Status | Op::Drain { .. } => or(call.forwarder < forwarders, EINVAL),
        Op::SetPolicy { text, .. } | Op::SetShares { text, .. } => {
            or(call.forwarder < forwarders, EINVAL)?;
            or(text.len() <= POLICY_MAX, E2BIG)
        }
        Op::Read { extents, .. } => check_extents(extents, EINVAL),
        Op::Write { extents, .. } => {
            check_extents(extents, EFBIG)?;
            or(extents.bytes() == call.payload.len() as u64, EINVAL)
        }
        Op::Hello(_) | Op::Bye | Op::Ping | Op::Reach { .. } => Err(EINVAL),
        Op::ShareMemory { .. } | Op::RegisterMemory { .. } => Err(EINVAL),
        Op::CancelLock { .. } | Op::ReclaimDone | Op::Application { .. } => Err(EINVAL),
        _ => Ok(()),
    }
}

fn or(holds: bool, errno: Errno) -> Result<(), Errno> {
    if holds { Ok(()) } else { Err(errno) }
}

fn check_name(name: &[u8]) -> Result<(), Errno> {
    or(!name.is_empty(), ENOENT)?;
    or(name.len() <= NAME_MAX, ENAMETOOLONG)?;
    or(name_is_valid(name), EINVAL)
}

fn check_target(target: &[u8]) -> Result<(), Errno> {
    or(!target.is_empty(), ENOENT)?;
    or(target.len() < PATH_MAX, ENAMETOOLONG)?;
    or(!target.contains(&0), EINVAL)
}

fn check_xattr_name(name: &[u8]) -> Result<(), Errno> {
    or((1..=NAME_MAX).contains(&name.len()), ERANGE)?;
    or(!name.contains(&0), EINVAL)
}

fn check_lock(lock: &Lock) -> Result<(), Errno> {
    or(lock.start <= lock.end, EINVAL)
}

/// Checks that extents ascend, are disjoint, and end where files can end, and that none is empty
/// unless it is the only one.
fn check_extents(extents: &Extents, beyond: Errno) -> Result<(), Errno> {
    let mut from = 0;
    for extent in extents.iter() {
        let end = extent.offset.checked_add(extent.len).ok_or(beyond)?;
        or(end <= i64::MAX as u64, beyond)?;
        or(extent.offset >= from, EINVAL)?;
        or(extent.len > 0 || extents.rest.is_empty(), EINVAL)?;
        from = end;
    }
    Ok(())
}
