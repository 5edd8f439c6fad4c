//! Lists a directory of the shared disk.

use super::disk::{Inodes, KIND, R, X, directory, may};
use crate::back_end_files::Errno;
use std::vec::Vec;
use tidegate_wire::{Caller, Entry, Handle, Listing, Name};

/// As [`Files::readdir`](crate::Files::readdir).
pub(super) fn list(
    inodes: &mut Inodes,
    caller: Option<&Caller>,
    handle: Handle,
    cookie: u64,
    bytes_max: u32,
    xattrs: Option<&[Name]>,
) -> Result<Listing, Errno> {
    directory(inodes, caller, handle, R)?;
    let looks = directory(inodes, caller, handle, X).is_ok();
    let xattrs = xattrs.filter(|_| looks);
    let names = inodes.of(handle)?.entries.clone();
    let count = names.len();
    let mut left = u64::from(bytes_max);
    let mut entries = Vec::new();
    for (at, (name, inode)) in names.into_iter().enumerate().skip(cookie as usize) {
        let bytes = name.len() as u64 + 32;
        if bytes > left && !entries.is_empty() {
            break;
        }
        left = left.saturating_sub(bytes);
        let attr = inodes.attr(inode);
        let file = &inodes.inodes[&inode];
        let lacks =
            |xattr: &Name| may(caller, &file.attr, R).is_ok() && !file.xattrs.contains_key(xattr);
        let lacks = xattrs.unwrap_or_default().iter().map(lacks);
        let lacks = lacks
            .enumerate()
            .fold(0, |bits, (at, it)| bits | u8::from(it) << at);
        entries.push(Entry {
            name,
            inode,
            kind: ((attr.mode & KIND) >> 12) as u8,
            cookie: at as u64 + 1,
            attr: xattrs.map(|_| attr),
            lacks,
            lent: false,
        });
    }
    let last = entries.last().map_or(cookie, |entry| entry.cookie);
    let ended = last >= count as u64;
    Ok(Listing { entries, ended })
}
