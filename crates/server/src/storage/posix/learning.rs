//! Finds files without a descriptor that were renamed, by the notes of renames (`orphans/moved.rs`)
//! and by what is remembered of directories (`place.rs`).
//!
//! A note tells where a file was put, and which directories were above it then. Each of these may
//! have been renamed since. Then it has a note itself, or this forwarder has read that one and
//! remembers where the directory is.

use super::export::Export;
use super::place::{Place, Trail};
use super::sys::{self, Done, handle_of, no};
use crate::lock::lock;
use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use tidegate_forward::Access;
use tidegate_wire::{Handle, WALK_MAX};

/// What says that a file is not where it was.
const ELSEWHERE: [i32; 6] = [
    libc::ENOENT,
    libc::ENOTDIR,
    libc::ESTALE,
    libc::ELOOP,
    libc::EXDEV,
    libc::ENAMETOOLONG,
];

impl Export {
    /// Reads the notes of what forwarders have renamed, if there may be new ones, so that open
    /// files without a descriptor are found when the notes are gone. What is not found stays for
    /// the next time. Ends early where `goes_on`, asked before each note, says so.
    pub(super) fn learn_of_moves(&self, goes_on: &mut dyn FnMut() -> bool) -> Done<()> {
        if self.table.parked() == 0 {
            lock(&self.unlearned).clear();
            return Ok(());
        }
        self.own.act_as_itself()?;
        let before: Vec<Handle> = lock(&self.unlearned).keys().copied().collect();
        let mut all = Ok(());
        if let Some(mark) = self.opens.unread_moves(self.asks())? {
            let notes = self.with_room(|| self.opens.list_moves())?;
            for note in notes {
                if !goes_on() {
                    return all;
                }
                let handle = super::orphans::noted(&note.map_err(no)?);
                let Some(handle) = handle.filter(|it| self.needs(*it)) else {
                    continue;
                };
                if let Some(trail) = self.opens.moved_to(handle) {
                    all = all.and(self.learn(handle, trail));
                }
            }
            self.opens.moves_are_read(mark);
        }
        for handle in before {
            if !goes_on() {
                break;
            }
            let trail = lock(&self.unlearned).get(&handle).cloned();
            if let Some(trail) = trail {
                all = all.and(self.learn(handle, trail));
            }
        }
        all
    }

    /// Notes that a file or directory was renamed to this path. False if it is not there.
    pub(super) fn moved(&self, handle: Handle, path: &[u8]) -> bool {
        let ask = |path: &[u8]| self.handle_at(path);
        let directory = self.places.moved(handle, path, ask);
        if self.table.place(handle).is_none() {
            return directory;
        }
        let is_there = ask(path) == Some(handle);
        let place = is_there.then(|| self.places.of(path, ask)).flatten();
        let is_there = place.map(|place| self.table.moved(handle, place)).is_some();
        directory && is_there
    }

    /// The path below the root of a file that was renamed, as far as the notes lead to it.
    pub(super) fn renamed_to(&self, handle: Handle) -> Done<Option<Vec<u8>>> {
        let Some(trail) = self.trail_of(handle) else {
            return Ok(None);
        };
        self.own.act_as_itself()?;
        let found = self.follow(handle, trail)?;
        Ok(found.and_then(|found| self.path_of(&found)))
    }

    /// Opens a file whose place is known, there or where it is now.
    pub(super) fn reach_place(&self, handle: Handle, place: &Place) -> Done<Option<OwnedFd>> {
        let found = self.file_at(handle, &self.root.path, &place.path())?;
        if found.is_some() {
            return Ok(found);
        }
        let name = super::orphans::hidden_name(handle);
        let hidden = self.file_at(handle, self.opens.orphans(), name.as_bytes())?;
        if hidden.is_some() {
            return Ok(hidden);
        }
        if let Some(trail) = self.trail_of(handle)
            && let Some(found) = self.follow(handle, trail)?
        {
            return Ok(Some(found));
        }
        self.follow(handle, place.trail())
    }

    /// The file to which a trail leads, or led before directories on it were renamed.
    pub(super) fn follow(&self, handle: Handle, mut trail: Trail) -> Done<Option<OwnedFd>> {
        // The path from the directory to which the trail leads by now, after a slash.
        let mut below = Vec::new();
        // Notes that are written just now may lead in a circle.
        let mut asked = HashSet::new();
        loop {
            let path = [trail.path.as_slice(), &below].concat();
            if let Some(found) = self.file_at(handle, &self.root.path, &path)? {
                return Ok(Some(found));
            }
            trail = loop {
                let Some((dir, name)) = trail.up().filter(|_| below.len() <= WALK_MAX) else {
                    return Ok(None);
                };
                below.splice(0..0, [b"/", name.as_slice()].concat());
                if let Some(known) = self.table.look(dir)
                    && let Some(found) = self.file_at(handle, &known.path, &below[1..])?
                {
                    return Ok(Some(found));
                }
                if let Some(newer) = self.trail_of(dir).filter(|it| !it.is_of(&trail))
                    && asked.insert(dir)
                {
                    break newer;
                }
            };
        }
    }

    /// Where a file or directory was put when it was last renamed, or last known to be.
    fn trail_of(&self, handle: Handle) -> Option<Trail> {
        let kept = || lock(&self.unlearned).get(&handle).cloned();
        let noted = self.opens.moved_to(handle).or_else(kept);
        noted.or_else(|| self.places.trail_of(handle))
    }

    /// Whether a place is of this file, or has this directory above it.
    fn needs(&self, handle: Handle) -> bool {
        self.places.has(handle) || self.table.place(handle).is_some()
    }

    /// Takes over where a file or directory was put, and remembers the note if it is not found.
    fn learn(&self, handle: Handle, trail: Trail) -> Done<()> {
        let found = self.take_over(handle, &trail);
        let mut unlearned = lock(&self.unlearned);
        match found {
            Ok(true) => drop(unlearned.remove(&handle)),
            _ => drop(unlearned.insert(handle, trail)),
        }
        found.map(drop)
    }

    fn take_over(&self, handle: Handle, trail: &Trail) -> Done<bool> {
        let place = self.table.place(handle).map(|place| place.trail());
        let mut known = [place, self.places.trail_of(handle)].into_iter().flatten();
        if known.all(|known| known.is_of(trail)) {
            return Ok(true);
        }
        let Some(found) = self.follow(handle, trail.clone())? else {
            // One that was removed since is reached by its hidden name.
            return Ok(self.opens.has_hidden_name(handle));
        };
        let path = self.path_of(&found);
        Ok(path.is_some_and(|path| self.moved(handle, &path)))
    }

    /// The file at a path below the root. Links on it are not followed.
    pub(super) fn handle_at(&self, path: &[u8]) -> Option<Handle> {
        let found = self.open_below(&self.root.path, path).ok()?;
        let stat = sys::stat(&found).ok()?;
        self.is_ours(&stat).then(|| handle_of(&stat))
    }

    /// The file at a path, if it is that one. Links on the path are not followed.
    fn file_at(&self, handle: Handle, dir: impl AsFd, path: &[u8]) -> Done<Option<OwnedFd>> {
        match self.open_below(dir, path) {
            Ok(fd) => {
                let stat = sys::stat(&fd).map_err(no)?;
                Ok((handle_of(&stat) == handle).then_some(fd))
            }
            Err(Access::Errno(errno)) if ELSEWHERE.contains(&i32::from(errno.0)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
