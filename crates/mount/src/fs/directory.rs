//! Listing a directory: the forwarder's cookies as the kernel's offsets, behind `.` and `..`.

use super::call::Call;
use crate::fuse::{Errno, Names, Read};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use tidegate_client::wire::{Entry, Handle, Op, Outcome, READDIR_MAX};

/// Type bits of a directory's mode.
const DIRECTORY: u32 = 0o040_000;
/// Where to go on behind `.` and behind `..`; the latter is also the cookie 0.
const BEHIND_SELF: u64 = 1;
const BEHIND_PARENT: u64 = 2;
/// The largest offset that the kernel hands to programs, by which file systems mark the end.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// An open directory.
pub(super) struct OpenDirectory {
    handle: Handle,
    parent_inode: u64,
    ahead: Mutex<Ahead>,
}

/// Entries that came from the forwarder but had no room in the answer to the kernel.
#[derive(Default)]
struct Ahead {
    offset: u64,
    entries: VecDeque<Entry>,
    /// Whether the directory ends behind them.
    ended: bool,
}

impl OpenDirectory {
    pub(super) fn new(handle: Handle, parent_inode: u64) -> Self {
        Self {
            handle,
            parent_inode,
            ahead: Mutex::default(),
        }
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    /// Lists as many entries after `read.offset` as the kernel has room for; none at the end.
    pub(super) fn list(&self, call: &Call<'_>, read: Read) -> Result<Names, Errno> {
        let mut names = Names::new(read.len);
        let mut offset = read.offset;
        if offset == 0 && names.push(self.handle.inode, BEHIND_SELF, DIRECTORY, b".") {
            offset = BEHIND_SELF;
        }
        if offset == BEHIND_SELF && names.push(self.parent_inode, BEHIND_PARENT, DIRECTORY, b"..") {
            offset = BEHIND_PARENT;
        }
        if offset < BEHIND_PARENT {
            return Ok(names);
        }
        // Taken out, not locked, while the forwarder is asked: the lock could not be interrupted.
        let ahead = std::mem::take(&mut *self.ahead.lock().unwrap_or_else(PoisonError::into_inner));
        // The program goes on, and has not gone back to another place or to the start.
        let goes_on = read.offset >= BEHIND_PARENT && ahead.offset == offset;
        let (mut entries, mut ended) = match goes_on {
            true => (ahead.entries, ahead.ended),
            false => (VecDeque::new(), false),
        };
        match entries.is_empty() {
            // The end is told once: whoever reads on looks for what was added behind it.
            true if ended => ended = false,
            true => (entries, ended) = self.fetch(call, offset)?,
            false => {}
        }
        while let Some(entry) = entries.front() {
            let next = offset_of(entry.cookie);
            // The type bits of a mode are those of `d_type`, further left.
            let mode = u32::from(entry.kind) << 12;
            if !names.push(entry.inode, next, mode, &entry.name) {
                break;
            }
            offset = next;
            entries.pop_front();
        }
        *self.ahead.lock().unwrap_or_else(PoisonError::into_inner) = Ahead {
            offset,
            entries,
            ended,
        };
        Ok(names)
    }

    fn fetch(&self, call: &Call<'_>, offset: u64) -> Result<(VecDeque<Entry>, bool), Errno> {
        let cookie = cookie_of(offset);
        let op = Op::Readdir {
            handle: self.handle,
            cookie,
            bytes_max: READDIR_MAX,
            plus: false,
            xattrs: Vec::new(),
        };
        match call.outcome(op)? {
            Outcome::Entries(listing) => Ok((listing.entries.into(), listing.ended)),
            _ => Err(Errno::IO),
        }
    }
}

/// Room for two offsets before those of the forwarder is made at the upper end, where only the mark
/// of the end is found in practice.
fn offset_of(cookie: u64) -> u64 {
    match cookie {
        0..=OFFSET_MAX => (cookie + BEHIND_PARENT).min(OFFSET_MAX),
        // No file system of Linux has these.
        _ => cookie,
    }
}

fn cookie_of(offset: u64) -> u64 {
    match offset {
        0..OFFSET_MAX => offset.saturating_sub(BEHIND_PARENT),
        _ => offset,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_survive_the_way_to_the_kernel_and_back() {
        for cookie in [0, 1, 2, 77, 1 << 40, OFFSET_MAX - 3, OFFSET_MAX] {
            let offset = offset_of(cookie);
            assert!((BEHIND_PARENT..=OFFSET_MAX).contains(&offset));
            assert_eq!(cookie_of(offset), cookie);
        }
    }
}
