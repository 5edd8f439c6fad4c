//! Open files in C.

use super::error::{Failure, run};
use super::registry::{self, OpenedFile, Owner};
use super::{check_buffer, text, tidegate_client, tidegate_file, with_client};
use crate::fs::{File, OpenHow};
use crate::wire::{Attr, Handle};
use crate::{Client, Context, Errno, Payload, RawBytes};
use rustix::fs::OFlags;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

/// Most bytes that one call reads or writes, as Linux; longer calls are cut to it.
pub(super) const CALL_BYTES_MAX: usize = 0x7fff_f000;

/// Attributes of a file. Times are ns since 1970.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct tidegate_attr {
    /// Inode number on the exported file system.
    pub inode: u64,
    /// Time of birth, which tells a reused inode number apart; 0 if unknown.
    pub birth: u64,
    /// Bytes.
    pub size: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime_ns: i64,
    /// Last change of data.
    pub mtime_ns: i64,
    /// Last change of attributes.
    pub ctime_ns: i64,
    /// Type and permission bits, as st_mode.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file.
    pub rdev: u32,
    /// Preferred I/O size.
    pub block_size: u32,
}

impl From<Attr> for tidegate_attr {
    fn from(attr: Attr) -> tidegate_attr {
        tidegate_attr {
            inode: attr.handle.inode,
            birth: attr.handle.birth,
            size: attr.size,
            blocks: attr.blocks,
            atime_ns: attr.atime_ns,
            mtime_ns: attr.mtime_ns,
            ctime_ns: attr.ctime_ns,
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            block_size: attr.block_size,
        }
    }
}

/// Opens a regular file by its path from the root of the export and sets `*file`. `flags` are those
/// of open(2): O_RDONLY, O_WRONLY or O_RDWR, with O_CREAT, O_EXCL, O_TRUNC, O_NOFOLLOW, O_CLOEXEC,
/// O_LARGEFILE; others are -EINVAL. To append, use tidegate_append.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_open(
    client: *mut tidegate_client,
    path: *const c_char,
    flags: c_int,
    mode: u32,
    file: *mut *mut tidegate_file,
) -> c_int {
    with_client("open", client, |owner, ctx| {
        // SAFETY: `path` is NULL or a string.
        let path = unsafe { text(path) }?;
        let how = how(flags, mode)?;
        let opened = || owner.client.open_path(ctx, path, &how);
        // SAFETY: `file` is NULL or a place for a pointer.
        unsafe { hand_over(owner, file, opened) }
    }) as c_int
}

/// Opens a regular file by inode number and birth, as tidegate_stat reports them. `flags` are
/// O_RDONLY, O_WRONLY or O_RDWR.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_open_inode(
    client: *mut tidegate_client,
    inode: u64,
    birth: u64,
    flags: c_int,
    file: *mut *mut tidegate_file,
) -> c_int {
    with_client("open_inode", client, |owner, ctx| {
        let how = how(flags, 0)?;
        if how.create.is_some() || how.truncate {
            return Err(Failure::invalid(
                "an inode is neither created nor truncated",
            ));
        }
        let handle = Handle { inode, birth };
        let opened = || File::from_handle(&owner.client, ctx, handle, &how);
        // SAFETY: `file` is NULL or a place for a pointer.
        unsafe { hand_over(owner, file, opened) }
    }) as c_int
}

/// Closes a file. Its bytes are with the forwarders, but stable only after tidegate_fsync; a
/// negative errno tells that some are not that were held back (`coalesce_bytes`). Closed it is in
/// any case.
#[unsafe(no_mangle)]
pub extern "C" fn tidegate_close(file: *mut tidegate_file) -> c_int {
    run("close", || {
        let opened = registry::remove::<OpenedFile>(file as usize)?;
        opened.file.flush(&opened.owner.context())?;
        Ok(0)
    }) as c_int
}

/// Reads up to `len` bytes at `offset`; returns how many, fewer only at the end of the file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_pread(
    file: *mut tidegate_file,
    buffer: *mut c_void,
    len: usize,
    offset: u64,
) -> i64 {
    with_file("pread", file, |opened, ctx| {
        check_buffer(buffer, len)?;
        let buffer = buffer.cast::<u8>();
        // SAFETY: `buffer` has room for `len` bytes, and those taken are within them.
        let take = |at: usize, bytes: RawBytes<'_>| unsafe {
            bytes.copy_to_address(buffer.add(at));
        };
        let read = opened
            .file
            .pread_parts(ctx, offset, len.min(CALL_BYTES_MAX), take)?;
        Ok(read as i64)
    })
}

/// Writes `len` bytes at `offset`; returns how many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_pwrite(
    file: *mut tidegate_file,
    buffer: *const c_void,
    len: usize,
    offset: u64,
) -> i64 {
    with_file("pwrite", file, |opened, ctx| {
        check_buffer(buffer, len)?;
        // SAFETY: `buffer` is NULL or holds at least that much.
        let bytes = unsafe { bytes_of(buffer, len.min(CALL_BYTES_MAX)) };
        Ok(opened.file.pwrite_from(ctx, offset, bytes)? as i64)
    })
}

/// Writes at the end of the file in one piece; returns how many bytes, which may be fewer than
/// `len`, and sets `*offset`, unless it is NULL, to where they are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_append(
    file: *mut tidegate_file,
    buffer: *const c_void,
    len: usize,
    offset: *mut u64,
) -> i64 {
    with_file("append", file, |opened, ctx| {
        check_buffer(buffer, len)?;
        let len = len.min(opened.file.client().payload_max() as usize);
        // SAFETY: `buffer` is NULL or holds at least `len` bytes.
        let bytes = unsafe { copy(opened.file.client(), buffer, len) };
        let taken = opened.file.append(ctx, bytes)?;
        if !offset.is_null() {
            // SAFETY: not NULL, so it is a place for a number.
            unsafe { offset.write(taken.offset) };
        }
        Ok(taken.len as i64)
    })
}

/// Returns when all that was written to the file is stable; without the attributes that reading
/// does not need if `data_only` is not 0.
#[unsafe(no_mangle)]
pub extern "C" fn tidegate_fsync(file: *mut tidegate_file, data_only: c_int) -> c_int {
    with_file("fsync", file, |opened, ctx| {
        opened.file.fsync(ctx, data_only != 0)?;
        Ok(0)
    }) as c_int
}

/// Cuts or extends the file to `size` bytes.
#[unsafe(no_mangle)]
pub extern "C" fn tidegate_ftruncate(file: *mut tidegate_file, size: u64) -> c_int {
    with_file("ftruncate", file, |opened, ctx| {
        opened.file.truncate(ctx, size)?;
        Ok(0)
    }) as c_int
}

/// Fills `*attr` with the attributes of the file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_fstat(
    file: *mut tidegate_file,
    attr: *mut tidegate_attr,
) -> c_int {
    with_file("fstat", file, |opened, ctx| {
        if attr.is_null() {
            return Err(Failure::invalid("attr is NULL"));
        }
        let found = opened.file.attr(ctx)?;
        // SAFETY: not NULL, so it is a place for attributes.
        unsafe { attr.write(found.into()) };
        Ok(0)
    }) as c_int
}

pub(super) fn with_file(
    what: &str,
    file: *mut tidegate_file,
    call: impl FnOnce(&OpenedFile, &Context) -> Result<i64, Failure>,
) -> i64 {
    run(what, || {
        let opened = registry::find::<OpenedFile>(file as usize)?;
        opened
            .owner
            .guard(|| call(&opened, &opened.owner.context()))
    })
}

fn how(flags: c_int, mode: u32) -> Result<OpenHow, Failure> {
    let flags = OFlags::from_bits_retain(flags as u32);
    let ignored = OFlags::CLOEXEC | OFlags::LARGEFILE;
    let known = OFlags::RWMODE | OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC | OFlags::NOFOLLOW;
    if !(known | ignored).contains(flags) {
        return Err(Failure::invalid("flags that tidegate_open does not know"));
    }
    let access = flags & OFlags::RWMODE;
    if access == OFlags::RWMODE {
        return Err(Failure::invalid("flags name no access mode"));
    }
    Ok(OpenHow {
        read: access != OFlags::WRONLY,
        write: access != OFlags::RDONLY,
        create: flags.contains(OFlags::CREATE).then_some(mode & 0o7777),
        exclusive: flags.contains(OFlags::EXCL),
        truncate: flags.contains(OFlags::TRUNC),
        no_follow: flags.contains(OFlags::NOFOLLOW),
    })
}

/// Opens a file and makes it a handle.
///
/// # Safety
/// `place` is NULL or a place for a pointer.
unsafe fn hand_over(
    owner: &Arc<Owner>,
    place: *mut *mut tidegate_file,
    open: impl FnOnce() -> Result<File, Errno>,
) -> Result<i64, Failure> {
    if place.is_null() {
        return Err(Failure::invalid("file is NULL"));
    }
    let id = registry::add(OpenedFile {
        file: open()?,
        owner: Arc::clone(owner),
    });
    // SAFETY: not NULL, so it is a place for a pointer.
    unsafe { place.write(id as *mut tidegate_file) };
    Ok(0)
}

/// Copies a buffer: the client keeps what it writes until every forwarder has answered, which may
/// be after an interrupted or timed-out call has returned.
///
/// # Safety
/// `buffer` holds `len` bytes, and `len` fits an isize; or `len` is 0.
unsafe fn copy(client: &Client, buffer: *const c_void, len: usize) -> Payload {
    if len == 0 {
        return Payload::new();
    }
    // SAFETY: as above.
    let bytes = unsafe { bytes_of(buffer, len) };
    match client.room(len) {
        Some(mut room) => {
            room.raw().put(0, bytes);
            room.into()
        }
        None => bytes.to_vec().into(),
    }
}

/// # Safety
/// As [`copy`]'s.
pub(super) unsafe fn bytes_of<'a>(buffer: *const c_void, len: usize) -> &'a [u8] {
    match len {
        0 => &[],
        // SAFETY: as above.
        _ => unsafe { std::slice::from_raw_parts(buffer.cast(), len) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_those_of_open() {
        let bits = |flags: OFlags| flags.bits() as c_int;
        let plain = how(bits(OFlags::RDONLY | OFlags::CLOEXEC), 0o644).expect("known flags");
        assert_eq!(plain, OpenHow::read());
        let created = how(bits(OFlags::RDWR | OFlags::CREATE), 0o644).expect("known flags");
        assert_eq!(created, OpenHow::create());
        for wrong in [
            OFlags::APPEND,
            OFlags::DIRECTORY,
            OFlags::RWMODE,
            OFlags::DSYNC,
        ] {
            assert!(how(bits(wrong), 0).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn wild_handles_and_buffers_are_invalid() {
        let invalid = i64::from(-Errno::INVAL.0);
        for wild in [0usize, 1, 16 << 40, usize::MAX] {
            let file = wild as *mut tidegate_file;
            let mut byte = 0u8;
            let place = (&raw mut byte).cast();
            // SAFETY: the buffer holds one byte.
            unsafe {
                assert_eq!(tidegate_pread(file, place, 1, 0), invalid);
                assert_eq!(tidegate_pwrite(file, place, 1, 0), invalid);
            }
            assert_eq!(i64::from(tidegate_close(file)), invalid);
            let mut opened = std::ptr::null_mut();
            let client = wild as *mut tidegate_client;
            // SAFETY: the path is a string and the place holds a pointer.
            let rc = unsafe { tidegate_open(client, c"/x".as_ptr(), 0, 0, &raw mut opened) };
            assert_eq!(i64::from(rc), invalid);
        }
        assert!(check_buffer(std::ptr::null(), 1).is_err());
        assert!(check_buffer(std::ptr::null(), 0).is_ok());
    }
}
