//! Notes that tell where open files and directories were renamed to.
//!
//! When a forwarder does not know a file, the client sends it the path under which the client found
//! the file. That path leads nowhere if another client has renamed the file since. So a forwarder
//! that renames an open file, or any directory, leaves a note `.tidegate/moved/<inode>-<birth>`: a
//! symbolic link whose text is the new path below the root. The note is only a hint, because the
//! file at that path is compared with the handle. The note of a file is removed by the file's last
//! close or by the sweep of its seat, that of a directory after an hour at the latest.

use super::{Opens, hidden_name, ignore_absent, lock, parse_hidden_name};
use crate::storage::posix::hidden::{draft_name, make_folder};
use crate::storage::posix::sys::{self, Done, no};
use crate::storage::{Permit, ofd};
use rustix::fs::AtFlags;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tidegate_wire::{Handle, PATH_MAX};

/// How long the note of a directory is kept.
const DIRECTORY_KEPT: Duration = Duration::from_secs(3600);

/// So long no note goes because there are many: forwarders read the notes about once a second, and
/// know then where their open files are.
const READ_WITHIN: Duration = Duration::from_secs(60);

/// The most notes of directories that one forwarder keeps that are older than that, and in all.
/// Beyond either it removes the oldest.
const DIRECTORIES_MAX: (usize, usize) = (1024, 16_384);

/// The same for notes of files. A file whose note is gone is found again by the forwarders that
/// have read it, and by others only under the path that the client knows.
const FILES_MAX: (usize, usize) = (16_384, 131_072);

/// What a forwarder has noted, the oldest first, each once. The notes of some may be gone.
struct Noted {
    max: (usize, usize),
    kept: Duration,
    order: BTreeMap<u64, (Handle, Instant)>,
    numbers: HashMap<Handle, u64>,
    last: u64,
}

impl Noted {
    fn new(max: (usize, usize), kept: Duration) -> Noted {
        Noted {
            max,
            kept,
            order: BTreeMap::new(),
            numbers: HashMap::new(),
            last: 0,
        }
    }

    /// Adds one, as the newest. Returns those whose notes must go, because they are too old or too
    /// many.
    fn add(&mut self, handle: Handle, now: Instant) -> Vec<Handle> {
        self.forget(handle);
        self.last += 1;
        self.order.insert(self.last, (handle, now));
        self.numbers.insert(handle, self.last);
        let mut gone = Vec::new();
        while let Some((_, (oldest, since))) = self.order.first_key_value() {
            let (count, age) = (self.order.len(), now.saturating_duration_since(*since));
            let many = count > self.max.0 && age > READ_WITHIN || count > self.max.1;
            if !many && age <= self.kept {
                break;
            }
            let oldest = *oldest;
            gone.push(oldest);
            self.forget(oldest);
        }
        gone
    }

    fn forget(&mut self, handle: Handle) {
        if let Some(number) = self.numbers.remove(&handle) {
            self.order.remove(&number);
        }
    }
}

/// The folder of notes.
pub(super) struct Notes {
    folder: OwnedFd,
    files: Mutex<Noted>,
    /// Directories that this forwarder has noted. A sweep removes the notes of forwarders that have
    /// ended.
    directories: Mutex<Noted>,
    /// The change of the folder that was read last, and whether it was so twice: what is changed in
    /// the same tick of the clock shows no other time.
    read: Mutex<(Option<Changed>, bool)>,
}

/// The time of a change, in seconds and nanoseconds.
type Changed = (i64, u32);

impl Notes {
    /// Opens the folder of notes in the hidden folder.
    pub(super) fn open(hidden: BorrowedFd<'_>) -> std::io::Result<Notes> {
        Ok(Notes {
            folder: make_folder(hidden, "moved")?,
            files: Mutex::new(Noted::new(FILES_MAX, Duration::MAX)),
            directories: Mutex::new(Noted::new(DIRECTORIES_MAX, DIRECTORY_KEPT)),
            read: Mutex::default(),
        })
    }

    /// Writes a note, in place of an older one. If the file system cannot take it (it is full, or
    /// the path is too long), the older note stays.
    fn write(&self, handle: Handle, path: &[u8]) {
        let name = hidden_name(handle);
        let draft = draft_name(&name);
        let written = rustix::fs::symlinkat(path, &self.folder, &draft)
            .and_then(|()| rustix::fs::renameat(&self.folder, &draft, &self.folder, &name));
        if let Err(error) = written {
            let _ = rustix::fs::unlinkat(&self.folder, &draft, AtFlags::empty());
            tracing::debug!(inode = handle.inode, %error, "renamed file gets no note");
        }
    }

    fn remove(&self, name: impl rustix::path::Arg) -> Done<()> {
        let removed = rustix::fs::unlinkat(&self.folder, name, AtFlags::empty());
        removed.or_else(ignore_absent).map_err(no)
    }

    /// Remembers a note, and removes those that are too old or too many.
    fn count(&self, noted: &Mutex<Noted>, handle: Handle) {
        let gone = lock(noted).add(handle, Instant::now());
        for handle in gone {
            if let Err(error) = self.remove(hidden_name(handle)) {
                tracing::debug!(inode = handle.inode, ?error, "old note stays");
            }
        }
    }

    /// Whether a note is older than those of directories may become.
    fn is_old(&self, name: &std::ffi::CStr) -> bool {
        let Ok(stat) = sys::stat_at(&self.folder, name, AtFlags::empty()) else {
            return true;
        };
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
        let kept = DIRECTORY_KEPT.as_secs() as i64;
        now.saturating_sub(stat.stx_mtime.tv_sec) > kept
    }

    /// Whether there may be notes that were not read. From now on they count as read.
    fn are_new(&self, asks: AtFlags) -> Done<bool> {
        let stat = sys::stat_at(&self.folder, c"", AtFlags::EMPTY_PATH | asks).map_err(no)?;
        let changed = Some((stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec));
        let mut read = lock(&self.read);
        let before = *read;
        *read = (changed, before.0 == changed);
        Ok(before != (changed, true))
    }
}

impl Opens {
    /// Notes that a file or directory now has this path below the root. Of files, only those that
    /// may be open somewhere are noted.
    pub(in crate::storage::posix) fn moved(
        &self,
        handle: Handle,
        kind: u32,
        path: &[u8],
        permit: &Permit,
    ) {
        if path.len() >= PATH_MAX {
            return;
        }
        if kind == sys::DIRECTORY {
            self.notes.write(handle, path);
            self.notes.count(&self.notes.directories, handle);
            return;
        }
        if kind != sys::REGULAR {
            return;
        }
        let group = self.group(handle);
        if !self.may_be_open(&group, handle, permit) {
            return;
        }
        self.notes.write(handle, path);
        self.notes.count(&self.notes.files, handle);
        // The last close elsewhere may have come before the note was there to be removed.
        if let Err(error) = self.remove_if_unused(&group, handle, permit) {
            tracing::debug!(inode = handle.inode, ?error, "note stays");
        }
    }

    /// The path to which the file was last renamed while it was open.
    pub(in crate::storage::posix) fn moved_to(&self, handle: Handle) -> Option<Vec<u8>> {
        let name = hidden_name(handle);
        let path = rustix::fs::readlinkat(&self.notes.folder, name, Vec::new()).ok()?;
        Some(path.into_bytes())
    }

    /// What has been renamed, if anything has since this was last asked. `asks` says how the folder
    /// is looked at.
    pub(in crate::storage::posix) fn new_moves(&self, asks: AtFlags) -> Done<Vec<Handle>> {
        if !self.notes.are_new(asks)? {
            return Ok(Vec::new());
        }
        let names = rustix::fs::Dir::read_from(&self.notes.folder).map_err(no)?;
        let handles =
            names.map(|name| Ok(parse_hidden_name(name.map_err(no)?.file_name().to_bytes())));
        handles.filter_map(Result::transpose).collect()
    }

    /// Removes the note of a file whose last open here has ended, unless it is open elsewhere.
    pub(super) fn forget_move(
        &self,
        group: &HashSet<Handle>,
        handle: Handle,
        permit: &Permit,
    ) -> Done<()> {
        match sys::stat_at(&self.notes.folder, hidden_name(handle), AtFlags::empty()) {
            Ok(_) => self.remove_if_unused(group, handle, permit),
            Err(_) => Ok(()),
        }
    }

    /// Removes the notes of a seat's files that nobody has open, and old notes of directories.
    /// `leads` tells whether a path leads to the directory with this handle.
    pub(in crate::storage::posix) fn sweep_moved(
        &self,
        seat: u16,
        permit: &Permit,
        leads: impl Fn(Handle, &[u8]) -> bool,
    ) -> Done<()> {
        for entry in rustix::fs::Dir::read_from(&self.notes.folder).map_err(no)? {
            let entry = entry.map_err(no)?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let old = self.notes.is_old(name);
            let Some(handle) = parse_hidden_name(name.to_bytes()) else {
                // A draft of a forwarder that died.
                if old {
                    self.notes.remove(name)?;
                }
                continue;
            };
            if self.layout.seat_of_file(handle) != seat {
                continue;
            }
            let to = self.moved_to(handle).unwrap_or_default();
            if old || !leads(handle, &to) {
                self.remove_if_unused(&self.group(handle), handle, permit)?;
            }
        }
        Ok(())
    }

    fn may_be_open(&self, group: &HashSet<Handle>, handle: Handle, permit: &Permit) -> bool {
        if self.apart.is_some() {
            let settled = self.is_settled(self.layout.seat_of_file(handle));
            return group.contains(&handle) || !settled;
        }
        if group.contains(&handle) || !self.locks_work {
            return group.contains(&handle);
        }
        let seat = self.layout.seat_of_file(handle);
        let told = self.holds(seat, permit) || self.is_settled(seat);
        !told
            || !matches!(
                ofd::held_elsewhere(self.excluding.as_fd(), super::byte(handle)),
                Ok(None)
            )
    }

    fn remove_if_unused(
        &self,
        group: &HashSet<Handle>,
        handle: Handle,
        permit: &Permit,
    ) -> Done<()> {
        if !self.lock_if_unused(group, handle, permit)? {
            return Ok(());
        }
        let removed = self.notes.remove(hidden_name(handle));
        self.unlock(handle)?;
        lock(&self.notes.files).forget(handle);
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(inode: usize) -> Handle {
        Handle {
            inode: inode as u64,
            birth: 1,
        }
    }

    #[test]
    fn notes_are_bounded_and_the_oldest_goes() {
        let (max, most) = (100, 300);
        let mut noted = Noted::new((max, most), 3 * READ_WITHIN);
        let begin = Instant::now();
        // Within the time in which they are read, only the whole number counts.
        for inode in 0..most {
            assert_eq!(noted.add(file(inode), begin), []);
        }
        assert_eq!(noted.add(file(0), begin), [], "it is noted already");
        for inode in 1..10 {
            assert_eq!(noted.add(file(most + inode), begin), [file(inode)]);
        }
        let later = begin + 2 * READ_WITHIN;
        assert_eq!(noted.add(file(1), later).len(), most + 1 - max);
        assert_eq!(noted.add(file(2), later).len(), 1);
        assert_eq!((noted.order.len(), noted.numbers.len()), (max, max));
        // Whose note is gone counts no more.
        noted.forget(file(1));
        assert_eq!(noted.add(file(3), later), []);
        let gone = noted.add(file(4), begin + 4 * READ_WITHIN);
        assert_eq!((gone.len(), noted.order.len()), (max - 2, 3));
    }
}
