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
use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tidegate_wire::{Handle, PATH_MAX};

/// How long the note of a directory is kept.
const DIRECTORY_KEPT: Duration = Duration::from_secs(3600);

/// The most notes of directories that one forwarder keeps. Then it removes the oldest.
const DIRECTORIES_MAX: usize = 1024;

/// The most notes of files that one forwarder keeps. Then it removes the oldest; the file is found
/// again only under the path that the client knows.
const FILES_MAX: usize = 16_384;

/// Files that a forwarder has noted, the oldest first, each once. The notes of some may be gone.
#[derive(Default)]
struct Noted {
    order: VecDeque<Handle>,
    all: HashSet<Handle>,
}

impl Noted {
    /// Adds a file. Returns the one whose note must go, if there are too many.
    fn add(&mut self, handle: Handle) -> Option<Handle> {
        if !self.all.insert(handle) {
            return None;
        }
        self.order.push_back(handle);
        if self.order.len() <= FILES_MAX {
            return None;
        }
        let oldest = self.order.pop_front()?;
        self.all.remove(&oldest);
        Some(oldest)
    }
}

/// The folder of notes.
pub(super) struct Notes {
    folder: OwnedFd,
    files: Mutex<Noted>,
    /// Directories that this forwarder has noted, the oldest first. A sweep removes the notes of
    /// forwarders that have ended.
    directories: Mutex<VecDeque<(Handle, Instant)>>,
}

impl Notes {
    /// Opens the folder of notes in the hidden folder.
    pub(super) fn open(hidden: BorrowedFd<'_>) -> std::io::Result<Notes> {
        Ok(Notes {
            folder: make_folder(hidden, "moved")?,
            files: Mutex::default(),
            directories: Mutex::default(),
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

    /// Remembers the note of a file, and removes the oldest if they are too many.
    fn count_file(&self, handle: Handle) {
        let gone = lock(&self.files).add(handle);
        if let Some(handle) = gone
            && let Err(error) = self.remove(hidden_name(handle))
        {
            tracing::debug!(inode = handle.inode, ?error, "old note stays");
        }
    }

    /// Remembers the note of a directory, and removes those that are too old or too many.
    fn count_directory(&self, handle: Handle) {
        let mut directories = lock(&self.directories);
        directories.retain(|(other, _)| *other != handle);
        directories.push_back((handle, Instant::now()));
        let mut gone = Vec::new();
        while let Some((oldest, since)) = directories.front()
            && (directories.len() > DIRECTORIES_MAX || since.elapsed() > DIRECTORY_KEPT)
        {
            gone.push(*oldest);
            directories.pop_front();
        }
        drop(directories);
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
            self.notes.count_directory(handle);
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
        self.notes.count_file(handle);
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
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_of_files_are_bounded_and_the_oldest_goes() {
        let file = |inode: usize| Handle {
            inode: inode as u64,
            birth: 1,
        };
        let mut noted = Noted::default();
        for inode in 0..FILES_MAX {
            assert_eq!(noted.add(file(inode)), None);
        }
        assert_eq!(noted.add(file(7)), None, "it is noted already");
        for inode in 0..10 {
            assert_eq!(noted.add(file(FILES_MAX + inode)), Some(file(inode)));
        }
        assert_eq!((noted.order.len(), noted.all.len()), (FILES_MAX, FILES_MAX));
    }
}
