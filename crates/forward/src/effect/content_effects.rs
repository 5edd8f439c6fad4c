//! Operations whose evidence is a size or a value: append, setattr, extended attributes.

use super::intent::{HEAD_MAX, Intent, hash};
use super::{Log, found, is_full, remains, unknown};
use crate::back_end_files::{Access, Errno, Files};
use alloc::vec::Vec;
use tidegate_wire::frame::checksum;
use tidegate_wire::{Attr, Caller, Handle, Outcome, SetAttr, SetTime};

const PERMISSIONS: u32 = 0o7777;
const XATTR_CREATE: u32 = 1;

/// Appends bytes to a file. Where each store to the table outlives the process, an append that
/// fails half way returns what it wrote, as write(2) does; a file system with too little room takes
/// some pages. On several nodes a node could fail after the client was told a short count, and the
/// count be lost with it. The next holder would then take the written bytes for a part of the
/// whole. So there this function returns the error, and cuts the written part off again, unless
/// others have written behind it since.
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
    let (sum, head) = (checksum(payload), head(payload));
    log.begin(&Intent::Append {
        handle,
        offset,
        len,
        checksum: sum,
        head,
    })?;
    let counts_parts = !log.reply_slot.table.must_persist() && !files.copies_may_differ();
    let mut done = 0;
    let error = loop {
        match files.write_at(handle, offset + done, &payload[done as usize..]) {
            Ok(0) => break Errno::EIO,
            Ok(written) => done += written,
            Err(Access::Errno(errno)) => break errno,
            Err(access) => return Err(access),
        }
        if done == len || counts_parts {
            return Ok(Outcome::Appended { offset, len: done });
        }
    };
    if done == 0 && !files.copies_may_differ() {
        return Err(error.into());
    }
    match look_for_append(files, handle, (offset, len), sum, payload) {
        Ok(Found::Whole) => Ok(Outcome::Appended { offset, len }),
        // What others wrote behind it would go with it.
        Ok(Found::Others) if done > 0 => Ok(Outcome::Appended { offset, len: done }),
        Ok(Found::Others | Found::Nothing) => Err(error.into()),
        Err(access) => {
            if matches!(access, Access::Errno(_)) {
                files.doubt_end(handle, (offset, len));
            }
            Err(unknown(access))
        }
    }
}

fn head(payload: &[u8]) -> &[u8] {
    &payload[..payload.len().min(HEAD_MAX)]
}

/// Looks up whether an append took effect: the file has all its bytes, as their checksum shows. If
/// the file has only a part of them, cuts that off again. `known` decides whether a part is the
/// append's; it is the payload, or its head where the request is not there. If the writes of others
/// have made the file longer, it keeps what it has.
pub(super) fn was_appended(
    files: &mut dyn Files,
    handle: Handle,
    (offset, len): (u64, u64),
    sum: u32,
    known: &[u8],
) -> Result<Option<Outcome>, Access> {
    let found = look_for_append(files, handle, (offset, len), sum, known)?;
    Ok((found == Found::Whole).then_some(Outcome::Appended { offset, len }))
}

/// What a file holds of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// All bytes.
    Whole,
    /// No bytes, in any copy of the file.
    Nothing,
    /// Bytes of others in the append's place, the same in all copies.
    Others,
}

/// Looks up what a file holds of an append. Afterwards all copies of the file have the whole
/// append, or none has any of it.
fn look_for_append(
    files: &mut dyn Files,
    handle: Handle,
    (offset, len): (u64, u64),
    sum: u32,
    known: &[u8],
) -> Result<Found, Access> {
    let size = files.size(handle);
    let Some(size) = remains(files, size, Errno::ENOENT)? else {
        return Ok(Found::Nothing);
    };
    let end = offset.saturating_add(len);
    let Some(part) = size.min(end).checked_sub(offset) else {
        // Others have made it shorter since.
        return Ok(Found::Nothing);
    };
    let there = match part {
        0 => Vec::new(),
        part => files.read_at(handle, offset, part)?,
    };
    if there.len() as u64 != part {
        // It ends elsewhere by now, or in the copy that was read.
        return Err(Errno::EIO.into());
    }
    if part == len && checksum(&there) == sum {
        return match files.align_copies(handle, offset, &there) {
            Err(access) if is_full(access) && size == end => {
                end_at(files, handle, size, offset)?;
                Ok(Found::Nothing)
            }
            aligned => aligned.map(|()| Found::Whole),
        };
    }
    let both = there.len().min(known.len());
    if part < len && there[..both] == known[..both] {
        end_at(files, handle, size, offset)?;
        return Ok(Found::Nothing);
    }
    // Ours was lost with its node, and somebody else's is there.
    files.align_copies(handle, offset, &there)?;
    if size < end {
        files.align_copies(handle, size, &[])?;
    }
    Ok(Found::Others)
}

/// Cuts all copies of a file to `end`. The copy that was seen has `size` bytes. Another one may be
/// longer, and a later, shorter append would leave some of those bytes.
fn end_at(files: &mut dyn Files, handle: Handle, size: u64, end: u64) -> Result<(), Access> {
    if size == end {
        return files.align_copies(handle, end, &[]);
    }
    let set = SetAttr {
        size: Some(end),
        ..SetAttr::default()
    };
    files.set_attr(None, handle, &set).map(drop)
}

/// Sets attributes. Only a change of size needs an intent; other attributes may be set again.
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

/// Looks up whether attributes were set: the size has become the one that the client asked for, and
/// all other attributes are as it asked. Otherwise they are set again, which does no harm as long
/// as the request has no reply.
pub(super) fn was_set(
    files: &mut dyn Files,
    handle: Handle,
    set: &SetAttr,
    size: u64,
) -> Result<Option<Outcome>, Access> {
    let attr = files.attr(handle);
    let attr = remains(files, attr, Errno::ENOENT)?;
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

/// Sets an extended attribute. Only an exclusive one needs an intent, because its replay would find
/// its own value there and fail.
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

/// Looks up whether an extended attribute was set: it has the value.
pub(super) fn was_xattr_set(
    files: &mut dyn Files,
    handle: Handle,
    name: &[u8],
    len: u32,
    wanted: u64,
) -> Result<Option<Outcome>, Access> {
    let value = files.getxattr(None, handle, name);
    let Some(value) = remains(files, value, Errno::ENODATA)? else {
        return Ok(None);
    };
    Ok(((value.len() as u32, hash(&value)) == (len, wanted)).then_some(Outcome::Done))
}

/// Removes an extended attribute. If there is none, that is an error, and needs no intent.
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

/// Looks up whether an extended attribute was removed: there is none.
pub(super) fn was_xattr_removed(
    files: &mut dyn Files,
    handle: Handle,
    name: &[u8],
) -> Result<Option<Outcome>, Access> {
    let value = files.getxattr(None, handle, name);
    let value = remains(files, value, Errno::ENODATA)?;
    Ok(value.is_none().then_some(Outcome::Done))
}

#[cfg(all(test, feature = "model"))]
mod tests;
