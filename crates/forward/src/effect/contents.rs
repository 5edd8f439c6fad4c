//! Operations whose evidence is a size or a value: append, setattr, extended attributes.

use super::intent::{Intent, hash};
use super::{Log, found, remains};
use crate::files::{Access, Errno, Files};
use tidegate_wire::frame::checksum;
use tidegate_wire::{Attr, Caller, Handle, Outcome, SetAttr, SetTime};

const PERMISSIONS: u32 = 0o7777;
const XATTR_CREATE: u32 = 1;

/// Writes at the end. A write that fails half way counts for what it wrote, as write(2) does.
pub(super) fn append(
    files: &mut dyn Files,
    handle: Handle,
    payload: &[u8],
    log: &mut Log<'_>,
) -> Result<Outcome, Access> {
    let (offset, len) = (files.attr(handle)?.size, payload.len() as u64);
    if len == 0 {
        return Ok(Outcome::Appended { offset, len });
    }
    log.begin(&Intent::Append {
        handle,
        offset,
        len,
        checksum: checksum(payload),
    })?;
    let Err(access) = files.write_at(handle, offset, payload) else {
        return Ok(Outcome::Appended { offset, len });
    };
    // What is there by now may be the next holder's, who also finds out what became of ours.
    if access == Access::NotHeld || !log.row.table.is_held() {
        return Err(Access::NotHeld);
    }
    let grown = files
        .attr(handle)
        .map_or(0, |attr| attr.size.saturating_sub(offset));
    match grown.min(len) {
        0 => Err(access),
        len => Ok(Outcome::Appended { offset, len }),
    }
}

/// All bytes are there, ours by their checksum; a part of them is cut off again, if it is ours as
/// far as can be told. A file that has grown past the place through others' writes keeps what it
/// has.
pub(super) fn was_appended(
    files: &mut dyn Files,
    handle: Handle,
    (offset, len): (u64, u64),
    sum: u32,
    payload: Option<&[u8]>,
) -> Result<Option<Outcome>, Access> {
    let Some(attr) = remains(files.attr(handle), Errno::ENOENT)? else {
        return Ok(None);
    };
    if attr.size >= offset.saturating_add(len) {
        let there = files.read_at(handle, offset, len)?;
        let ours = there.len() as u64 == len && checksum(&there) == sum;
        return Ok(ours.then_some(Outcome::Appended { offset, len }));
    }
    if attr.size > offset {
        let there = files.read_at(handle, offset, attr.size - offset)?;
        if payload.is_some_and(|payload| !payload.starts_with(&there)) {
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
        let size = files.attr(handle)?.size;
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
    let changed = set.size.is_some_and(|wanted| wanted != size);
    Ok(attr
        .filter(|attr| changed && shows(attr, set))
        .map(Outcome::Attr))
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
mod tests {
    use super::*;
    use crate::model::{Disk, Switch};

    /// A file of 10 bytes whose append of "record" at its end was begun by a process that died.
    fn after(effect: impl Fn(&mut dyn Files, Handle)) -> (Option<Outcome>, std::vec::Vec<u8>) {
        let disk = Disk::new();
        let mut files = disk.files(&Switch::new());
        let root = disk.root().handle;
        let file = files.create(None, root, b"f", 0o644).expect("made").handle;
        files.write_at(file, 0, b"0123456789").expect("written");
        effect(&mut files, file);
        let sum = checksum(b"record");
        let told = was_appended(&mut files, file, (10, 6), sum, Some(b"record")).expect("told");
        (told, disk.contents("f").expect("there"))
    }

    #[test]
    fn an_append_is_done_where_its_own_bytes_are() {
        let (told, bytes) = after(|files, file| {
            files.write_at(file, 10, b"record").expect("written");
            files.write_at(file, 30, b"others'").expect("written");
        });
        assert_eq!(told, Some(Outcome::Appended { offset: 10, len: 6 }));
        assert_eq!(bytes.len(), 37);
    }

    #[test]
    fn growth_by_others_is_no_append_and_stays() {
        let (told, bytes) = after(|files, file| {
            files.write_at(file, 30, b"others'").expect("written");
        });
        assert_eq!(told, None);
        assert_eq!(&bytes[30..], b"others'");
    }

    #[test]
    fn what_others_appended_after_a_loss_stays() {
        let (told, bytes) = after(|files, file| {
            files.write_at(file, 10, b"new").expect("written");
        });
        assert_eq!((told, &bytes[..]), (None, &b"0123456789new"[..]));
    }

    #[test]
    fn a_part_is_cut_off() {
        let (told, bytes) = after(|files, file| {
            files.write_at(file, 10, b"rec").expect("written");
        });
        assert_eq!((told, &bytes[..]), (None, &b"0123456789"[..]));
    }
}
