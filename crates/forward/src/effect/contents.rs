//! Operations whose evidence is a size or a value: append, setattr, extended attributes.

use super::intent::{HEAD_MAX, Intent, hash};
use super::{Log, found, remains};
use crate::files::{Access, Errno, Files};
use tidegate_wire::frame::checksum;
use tidegate_wire::{Attr, Caller, Handle, Outcome, SetAttr, SetTime};

const PERMISSIONS: u32 = 0o7777;
const XATTR_CREATE: u32 = 1;

/// Writes at the end. A write that fails half way counts for what it wrote, as write(2) does: file
/// systems that have no room for all take whole pages of it. How much that was is what the write
/// itself says; the size does not tell, for others may have made the file longer meanwhile. It is
/// not cut off again, because what others wrote behind it since would go with it.
pub(super) fn append(
    files: &mut dyn Files,
    handle: Handle,
    payload: &[u8],
    log: &mut Log<'_>,
) -> Result<Outcome, Access> {
    let (offset, len) = (files.size(handle)?, payload.len() as u64);
    if len == 0 {
        return Ok(Outcome::Appended { offset, len });
    }
    log.begin(&Intent::Append {
        handle,
        offset,
        len,
        checksum: checksum(payload),
        head: head(payload),
    })?;
    let len = files.write_at(handle, offset, payload)?;
    Ok(Outcome::Appended { offset, len })
}

fn head(payload: &[u8]) -> &[u8] {
    &payload[..payload.len().min(HEAD_MAX)]
}

/// All bytes are there, ours by their checksum; a part of them is cut off again, if it is ours as
/// far as can be told: by `known`, which is the payload, or its head where the request is not
/// there. A file that has grown past the place through others' writes keeps what it has.
pub(super) fn was_appended(
    files: &mut dyn Files,
    handle: Handle,
    (offset, len): (u64, u64),
    sum: u32,
    known: &[u8],
) -> Result<Option<Outcome>, Access> {
    let Some(size) = remains(files.size(handle), Errno::ENOENT)? else {
        return Ok(None);
    };
    if size >= offset.saturating_add(len) {
        let there = files.read_at(handle, offset, len)?;
        if there.len() as u64 != len || checksum(&there) != sum {
            return Ok(None);
        }
        files.align_copies(handle, offset, &there)?;
        return Ok(Some(Outcome::Appended { offset, len }));
    }
    if size > offset {
        let there = files.read_at(handle, offset, size - offset)?;
        let both = there.len().min(known.len());
        if there[..both] != known[..both] {
            // Ours was lost with its node, and somebody else's is there.
            return Ok(None);
        }
        files.set_attr(
            None,
            handle,
            &SetAttr {
                size: Some(offset),
                ..SetAttr::default()
            },
        )?;
    } else if size == offset {
        // Another copy may hold bytes behind this end: a later, shorter append would leave some.
        files.align_copies(handle, offset, &[])?;
    }
    Ok(None)
}

/// Attributes. Only a change of size needs evidence; the others may be set again.
pub(super) fn set_attr(
    files: &mut dyn Files,
    caller: Option<&Caller>,
    handle: Handle,
    set: &SetAttr,
    log: &mut Log<'_>,
) -> Result<Outcome, Access> {
    if set.size.is_some() {
        let size = files.size(handle)?;
        log.begin(&Intent::SetAttr {
            handle,
            set: *set,
            size,
        })?;
    }
    Ok(Outcome::Attr(files.set_attr(caller, handle, set)?))
}

/// The size has changed to what was asked, and all else that was asked shows too; otherwise it is
/// done again, which is harmless as long as it was not answered.
pub(super) fn was_set(
    files: &mut dyn Files,
    handle: Handle,
    set: &SetAttr,
    size: u64,
) -> Result<Option<Outcome>, Access> {
    let attr = remains(files.attr(handle), Errno::ENOENT)?;
    let Some(wanted) = set.size.filter(|wanted| *wanted != size) else {
        return Ok(None);
    };
    let Some(attr) = attr.filter(|attr| shows(attr, set)) else {
        return Ok(None);
    };
    files.align_copies(handle, wanted, &[])?;
    if set.atime.is_none() && set.mtime.is_none() {
        return Ok(Some(Outcome::Attr(attr)));
    }
    // Aligning the copies stamps times of its own.
    let times = SetAttr {
        atime: set.atime,
        mtime: set.mtime,
        ..SetAttr::default()
    };
    files
        .set_attr(None, handle, &times)
        .map(Outcome::Attr)
        .map(Some)
}

fn shows(attr: &Attr, set: &SetAttr) -> bool {
    let time = |wanted: Option<SetTime>, is: i64| match wanted {
        None => true,
        Some(SetTime::At(ns)) => ns == is,
        Some(SetTime::Now) => false,
    };
    set.size.is_none_or(|size| size == attr.size)
        && set
            .mode
            .is_none_or(|mode| mode & PERMISSIONS == attr.mode & PERMISSIONS)
        && set.uid.is_none_or(|uid| uid == attr.uid)
        && set.gid.is_none_or(|gid| gid == attr.gid)
        && time(set.atime, attr.atime_ns)
        && time(set.mtime, attr.mtime_ns)
}

/// setxattr. Only an exclusive one needs evidence: its replay would find its own value in the way.
pub(super) fn setxattr(
    files: &mut dyn Files,
    caller: Option<&Caller>,
    (handle, name): (Handle, &[u8]),
    value: &[u8],
    flags: u32,
    log: &mut Log<'_>,
) -> Result<Outcome, Access> {
    if flags & XATTR_CREATE != 0
        && found(files.getxattr(None, handle, name), Errno::ENODATA)?.is_none()
    {
        let (len, hash) = (value.len() as u32, hash(value));
        log.begin(&Intent::SetXattr {
            handle,
            name,
            len,
            hash,
        })?;
    }
    files.setxattr(caller, handle, name, value, flags)?;
    Ok(Outcome::Done)
}

/// The attribute has the value.
pub(super) fn was_xattr_set(
    files: &mut dyn Files,
    handle: Handle,
    name: &[u8],
    len: u32,
    wanted: u64,
) -> Result<Option<Outcome>, Access> {
    let Some(value) = remains(files.getxattr(None, handle, name), Errno::ENODATA)? else {
        return Ok(None);
    };
    Ok(((value.len() as u32, hash(&value)) == (len, wanted)).then_some(Outcome::Done))
}

/// removexattr; one that is not there is an error without evidence.
pub(super) fn removexattr(
    files: &mut dyn Files,
    caller: Option<&Caller>,
    (handle, name): (Handle, &[u8]),
    log: &mut Log<'_>,
) -> Result<Outcome, Access> {
    if found(files.getxattr(None, handle, name), Errno::ENODATA)?.is_some() {
        log.begin(&Intent::RemoveXattr { handle, name })?;
    }
    files.removexattr(caller, handle, name)?;
    Ok(Outcome::Done)
}

/// The attribute is gone.
pub(super) fn was_xattr_removed(
    files: &mut dyn Files,
    handle: Handle,
    name: &[u8],
) -> Result<Option<Outcome>, Access> {
    let value = remains(files.getxattr(None, handle, name), Errno::ENODATA)?;
    Ok(value.is_none().then_some(Outcome::Done))
}

#[cfg(all(test, feature = "model"))]
mod tests;
