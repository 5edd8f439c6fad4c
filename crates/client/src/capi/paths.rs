//! Paths and directories in C.

use super::error::{Failure, run};
use super::files::tidegate_attr;
use super::registry::{self, OpenedDir, Owner, Position};
use super::{text, tidegate_client, tidegate_dir, with_client};
use crate::wire::{Handle, NAME_MAX, Name, READDIR_MAX, RenameMode, SetAttr};
use crate::{Context, Errno};
use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex, PoisonError};

/// One entry of a directory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tidegate_entry {
    /// Inode number.
    pub inode: u64,
    /// Type, as d_type: 4 directory, 8 regular file, 10 symbolic link ...
    pub kind: u8,
    /// Name, ended by NUL.
    pub name: [c_char; 256],
}

const _: () = assert!(
    NAME_MAX < 256,
    "an entry's name has room for the longest name and NUL"
);

/// Fills `*attr` with the attributes of the file that a path leads to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_stat(
    client: *mut tidegate_client,
    path: *const c_char,
    attr: *mut tidegate_attr,
) -> c_int {
    // SAFETY: the caller's word, passed on.
    unsafe { stat("stat", client, path, attr, true) }
}

/// The same, of a symbolic link itself if the path ends in one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_lstat(
    client: *mut tidegate_client,
    path: *const c_char,
    attr: *mut tidegate_attr,
) -> c_int {
    // SAFETY: the caller's word, passed on.
    unsafe { stat("lstat", client, path, attr, false) }
}

/// Creates a directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_mkdir(
    client: *mut tidegate_client,
    path: *const c_char,
    mode: u32,
) -> c_int {
    // SAFETY: `path` is NULL or a string.
    let path = unsafe { text(path) };
    with_place("mkdir", client, path, |owner, ctx, (parent, name)| {
        owner
            .client
            .mkdir(ctx, parent, &name, mode & 0o7777)
            .map(|_| ())
    })
}

/// Removes an empty directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_rmdir(
    client: *mut tidegate_client,
    path: *const c_char,
) -> c_int {
    // SAFETY: `path` is NULL or a string.
    let path = unsafe { text(path) };
    with_place("rmdir", client, path, |owner, ctx, (parent, name)| {
        owner.client.rmdir(ctx, parent, &name)
    })
}

/// Removes a name of a file that is no directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_unlink(
    client: *mut tidegate_client,
    path: *const c_char,
) -> c_int {
    // SAFETY: `path` is NULL or a string.
    let path = unsafe { text(path) };
    with_place("unlink", client, path, |owner, ctx, (parent, name)| {
        owner.client.unlink(ctx, parent, &name)
    })
}

/// Moves a file to another path, replacing what is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_rename(
    client: *mut tidegate_client,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    // SAFETY: both are NULL or strings.
    let (from, to) = unsafe { (text(from), text(to)) };
    with_place("rename", client, from, |owner, ctx, (parent, name)| {
        let to = to.map_err(|_| Errno::INVAL)?;
        let (new_parent, new_name) = owner.client.resolve_parent(ctx, to)?;
        let (from, to) = ((parent, &*name), (new_parent, &*new_name));
        owner.client.rename(ctx, from, to, RenameMode::Replace)
    })
}

/// Cuts or extends the file at a path to `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_truncate(
    client: *mut tidegate_client,
    path: *const c_char,
    size: u64,
) -> c_int {
    // SAFETY: `path` is NULL or a string.
    let path = unsafe { text(path) };
    with_client("truncate", client, |owner, ctx| {
        let attr = owner.client.resolve(ctx, path?)?;
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        owner.client.setattr(ctx, attr.handle, set)?;
        Ok(0)
    }) as c_int
}

/// Opens the directory at a path and sets `*dir`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_opendir(
    client: *mut tidegate_client,
    path: *const c_char,
    dir: *mut *mut tidegate_dir,
) -> c_int {
    // SAFETY: `path` is NULL or a string.
    let path = unsafe { text(path) };
    with_client("opendir", client, |owner, ctx| {
        if dir.is_null() {
            return Err(Failure::invalid("dir is NULL"));
        }
        let attr = owner.client.resolve(ctx, path?)?;
        if !crate::fs::is_directory(&attr) {
            return Err(Errno::NOTDIR.into());
        }
        let position = Mutex::default();
        let owner = Arc::clone(owner);
        let id = registry::add(OpenedDir {
            handle: attr.handle,
            owner,
            position,
        });
        // SAFETY: not NULL, so it is a place for a pointer.
        unsafe { dir.write(id as *mut tidegate_dir) };
        Ok(0)
    }) as c_int
}

/// Fills `*entry` with the next entry, without "." and "..". Returns 1, or 0 at the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_readdir(
    dir: *mut tidegate_dir,
    entry: *mut tidegate_entry,
) -> c_int {
    run("readdir", || {
        if entry.is_null() {
            return Err(Failure::invalid("entry is NULL"));
        }
        let opened = registry::find::<OpenedDir>(dir as usize)?;
        opened.owner.guard(|| {
            // A position is whole after each of its steps.
            let mut position = opened
                .position
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let Some(next) = position.next(&opened.owner, opened.handle)? else {
                return Ok(0);
            };
            // SAFETY: not NULL, so it is a place for an entry.
            unsafe { entry.write(next) };
            Ok(1)
        })
    }) as c_int
}

/// Closes a directory.
#[unsafe(no_mangle)]
pub extern "C" fn tidegate_closedir(dir: *mut tidegate_dir) -> c_int {
    run("closedir", || {
        registry::remove::<OpenedDir>(dir as usize).map(|_| 0)
    }) as c_int
}

impl Position {
    fn next(&mut self, owner: &Owner, handle: Handle) -> Result<Option<tidegate_entry>, Errno> {
        if self.entries.is_empty() && !self.ended {
            let (client, ctx) = (&owner.client, owner.context());
            let listing = client.readdir(&ctx, handle, self.cookie, READDIR_MAX, false)?;
            self.ended = listing.ended || listing.entries.is_empty();
            self.entries = listing.entries.into();
        }
        let Some(next) = self.entries.pop_front() else {
            return Ok(None);
        };
        self.cookie = next.cookie;
        let mut entry = tidegate_entry {
            inode: next.inode,
            kind: next.kind,
            name: [0; 256],
        };
        for (to, from) in entry
            .name
            .iter_mut()
            .zip(&next.name[..next.name.len().min(NAME_MAX)])
        {
            *to = *from as c_char;
        }
        Ok(Some(entry))
    }
}

/// # Safety
/// `path` is NULL or a string, `attr` NULL or a place for attributes.
unsafe fn stat(
    what: &str,
    client: *mut tidegate_client,
    path: *const c_char,
    attr: *mut tidegate_attr,
    follow: bool,
) -> c_int {
    // SAFETY: `path` is NULL or a string.
    let path = unsafe { text(path) };
    with_client(what, client, |owner, ctx| {
        if attr.is_null() {
            return Err(Failure::invalid("attr is NULL"));
        }
        let found = match follow {
            true => owner.client.resolve(ctx, path?)?,
            false => owner.client.resolve_link(ctx, path?)?,
        };
        // SAFETY: not NULL, so it is a place for attributes.
        unsafe { attr.write(found.into()) };
        Ok(0)
    }) as c_int
}

/// Runs `call` on the directory and name that a path ends in.
fn with_place(
    what: &str,
    client: *mut tidegate_client,
    path: Result<&[u8], Failure>,
    call: impl FnOnce(&Owner, &Context, (Handle, Name)) -> Result<(), Errno>,
) -> c_int {
    with_client(what, client, |owner, ctx| {
        let place = owner.client.resolve_parent(ctx, path?)?;
        call(owner, ctx, place)?;
        Ok(0)
    }) as c_int
}
