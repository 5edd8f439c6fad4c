//! Where files are that have no descriptor: the name of each, and the directories above it.
//!
//! All places share what is known of a directory, so a directory that is renamed takes the places
//! below it along: at once where this forwarder renames it, else when the forwarder reads the note
//! of who did (`orphans/moved.rs`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use tidegate_wire::Handle;

/// Below this number of remembered directories none are swept.
const SWEEP_MIN: usize = 256;

/// The most directories above one another; deeper ones are not made (`WALK_MAX`).
const DEPTH_MAX: usize = 4096;

/// The most directories of a trail, each of which takes room in a note.
pub(super) const TRAIL_MAX: usize = 128;

/// Where a file or directory was put.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Trail {
    /// The path below the root.
    pub(super) path: Vec<u8>,
    /// The directories on it, the nearest last. Those near the root may be missing.
    pub(super) dirs: Vec<Handle>,
}

impl Trail {
    /// Whether both lead to one name in one directory.
    pub(super) fn is_of(&self, other: &Trail) -> bool {
        self.path == other.path && self.dirs.last() == other.dirs.last()
    }

    /// Goes up to the directory that the file is in. Returns that directory and the name in it;
    /// None if that is the root, or not known.
    pub(super) fn up(&mut self) -> Option<(Handle, Vec<u8>)> {
        let slash = self.path.iter().rposition(|byte| *byte == b'/')?;
        let dir = self.dirs.pop()?;
        let name = self.path.split_off(slash + 1);
        self.path.truncate(slash);
        Some((dir, name))
    }
}

/// A directory below the root.
#[derive(Debug)]
pub(super) struct Dir {
    pub(super) handle: Handle,
    named: Mutex<Named>,
}

/// Where a directory was when it was last looked for.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) name: Box<[u8]>,
    /// The directory that it is in; None: the root.
    pub(super) parent: Option<Arc<Dir>>,
}

/// The place of a file.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The directory that it is in; None: the root.
    pub(super) dir: Option<Arc<Dir>>,
    pub(super) name: Box<[u8]>,
}

/// The directories of all places, each once.
#[derive(Default)]
pub(super) struct Places {
    dirs: Mutex<Dirs>,
}

#[derive(Default)]
struct Dirs {
    by_handle: HashMap<Handle, Weak<Dir>>,
    /// At this number those that no place needs any more are swept.
    sweep_at: usize,
}

impl Dir {
    /// Its name and the directory above it.
    pub(super) fn named(&self) -> Named {
        crate::lock::lock(&self.named).clone()
    }

    fn trail(&self) -> Trail {
        let Named { name, parent } = self.named();
        Place { dir: parent, name }.trail()
    }

    /// Those above it, the nearest first.
    fn above(&self) -> impl Iterator<Item = Arc<Dir>> {
        let parent = |dir: &Arc<Dir>| dir.named().parent;
        std::iter::successors(self.named().parent, parent).take(DEPTH_MAX)
    }
}

impl Place {
    /// The path below the root.
    pub(super) fn path(&self) -> Vec<u8> {
        self.trail().path
    }

    /// The same with the directories on it.
    pub(super) fn trail(&self) -> Trail {
        let (mut names, mut dirs) = (vec![self.name.clone()], Vec::new());
        let nearest = self.dir.iter().cloned();
        for dir in nearest.chain(self.dir.iter().flat_map(|dir| dir.above())) {
            names.push(dir.named().name);
            dirs.push(dir.handle);
        }
        names.reverse();
        dirs.reverse();
        let path = names.join(&b'/');
        Trail { path, dirs }
    }
}

impl Places {
    /// The place of a file by its path below the root, which must not be empty. `ask` says which
    /// directory a path leads to. None if it does not know one of them.
    ///
    /// What is remembered of the directories above is believed if it fits the directory that the
    /// file is in.
    pub(super) fn of(&self, path: &[u8], ask: impl Fn(&[u8]) -> Option<Handle>) -> Option<Place> {
        let (above, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&path[..0], path),
        };
        let dir = match above {
            b"" => None,
            above => Some(self.directory(above, ask)?),
        };
        (!name.is_empty()).then(|| Place {
            dir,
            name: name.into(),
        })
    }

    /// Whether a place has this directory above it.
    pub(super) fn has(&self, handle: Handle) -> bool {
        self.lock().remembered(handle).is_some()
    }

    /// Where a directory is that a place has above it.
    pub(super) fn trail_of(&self, handle: Handle) -> Option<Trail> {
        let dir = self.lock().remembered(handle);
        dir.map(|dir| dir.trail())
    }

    /// Notes that a directory was renamed to this path, if a place needs it. False if it is not
    /// there.
    pub(super) fn moved(
        &self,
        handle: Handle,
        path: &[u8],
        ask: impl Fn(&[u8]) -> Option<Handle>,
    ) -> bool {
        if !self.has(handle) {
            return true;
        }
        // What is remembered may be of other directories that had these names.
        ask(path) == Some(handle) && self.put_all(handle, path, ask).is_some()
    }

    fn directory(&self, path: &[u8], ask: impl Fn(&[u8]) -> Option<Handle>) -> Option<Arc<Dir>> {
        let handle = ask(path)?;
        let remembered = self.lock().remembered(handle);
        let is_there = |dir: &Arc<Dir>| dir.trail().path == path;
        let remembered = remembered.filter(is_there);
        remembered.or_else(|| self.put_all(handle, path, ask))
    }

    /// Notes where this directory and all above it are.
    fn put_all(
        &self,
        handle: Handle,
        path: &[u8],
        ask: impl Fn(&[u8]) -> Option<Handle>,
    ) -> Option<Arc<Dir>> {
        let mut at = None;
        let mut begin = 0;
        while begin < path.len() {
            let rest = &path[begin..];
            let len = rest.iter().position(|byte| *byte == b'/');
            let end = begin + len.unwrap_or(rest.len());
            let handle = match end == path.len() {
                true => handle,
                false => ask(&path[..end])?,
            };
            let named = Named {
                name: path[begin..end].into(),
                parent: at.take(),
            };
            (at, begin) = (Some(self.lock().put(handle, named)?), end + 1);
        }
        at
    }

    fn lock(&self) -> MutexGuard<'_, Dirs> {
        crate::lock::lock(&self.dirs)
    }
}

impl Dirs {
    fn remembered(&self, handle: Handle) -> Option<Arc<Dir>> {
        self.by_handle.get(&handle)?.upgrade()
    }

    /// Notes where a directory is. None if it would be below itself, since it was renamed while its
    /// path was looked at.
    fn put(&mut self, handle: Handle, named: Named) -> Option<Arc<Dir>> {
        let Some(dir) = self.remembered(handle) else {
            return Some(self.remember(handle, named));
        };
        let is_it = |other: &Arc<Dir>| Arc::ptr_eq(other, &dir);
        let parent = named.parent.as_ref();
        if parent.is_some_and(|it| is_it(it) || it.above().any(|other| is_it(&other))) {
            return None;
        }
        let before = std::mem::replace(&mut *crate::lock::lock(&dir.named), named);
        drop(before);
        Some(dir)
    }

    fn remember(&mut self, handle: Handle, named: Named) -> Arc<Dir> {
        if self.by_handle.len() >= self.sweep_at.max(SWEEP_MIN) {
            self.by_handle.retain(|_, dir| dir.strong_count() > 0);
            self.sweep_at = self.by_handle.len() * 2;
        }
        let named = Mutex::new(named);
        let dir = Arc::new(Dir { handle, named });
        self.by_handle.insert(handle, Arc::downgrade(&dir));
        dir
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(path: &[u8]) -> Option<Handle> {
        let inode = path.iter().fold(1, |sum, byte| sum * 31 + u64::from(*byte));
        Some(Handle { inode, birth: 0 })
    }

    fn dir(place: &Place) -> Arc<Dir> {
        place.dir.clone().expect("not in the root")
    }

    #[test]
    fn files_of_one_directory_share_it_until_another_one_has_its_name() {
        let places = Places::default();
        let one = places.of(b"a/b/one", handle).expect("a path");
        let two = places.of(b"a/b/two", handle).expect("a path");
        assert_eq!(
            (one.path(), two.path()),
            (b"a/b/one".into(), b"a/b/two".into())
        );
        assert!(Arc::ptr_eq(&dir(&one), &dir(&two)));
        let other = |path: &[u8]| handle(path).map(|it| Handle { birth: 7, ..it });
        let three = places.of(b"a/b/three", other).expect("a path");
        assert_eq!(three.path(), b"a/b/three");
        assert_eq!(dir(&three).handle.birth, 7);
        let top = places.of(b"top", |_| None).expect("it is in the root");
        assert!(top.dir.is_none() && top.path() == b"top");
        assert!(places.of(b"gone/file", |_| None).is_none());
    }

    #[test]
    fn a_directory_that_is_renamed_takes_the_places_below_it_along() {
        let places = Places::default();
        let file = places.of(b"a/b/file", handle).expect("a path");
        let moved = |path: &[u8]| match path {
            b"new/a" => handle(b"a"),
            _ => handle(path),
        };
        places.moved(handle(b"a").expect("one"), b"new/a", moved);
        assert_eq!(file.path(), b"new/a/b/file");
        // Of one that is not there, or that no place needs, nothing is noted.
        places.moved(handle(b"a").expect("one"), b"nowhere", handle);
        places.moved(handle(b"other").expect("one"), b"other", handle);
        assert_eq!(file.path(), b"new/a/b/file");
        assert!(!places.has(handle(b"other").expect("one")));
    }

    #[test]
    fn directories_that_change_places_are_never_below_themselves() {
        let places = Places::default();
        let [a, b] = [b"a".as_slice(), b"a/b"].map(|path| handle(path).expect("one"));
        let file = places.of(b"a/b/file", handle).expect("a path");
        // Now `b` is on top, and `a` in it.
        let turned = |path: &[u8]| match path {
            b"b" => Some(b),
            b"b/a" => Some(a),
            _ => None,
        };
        places.moved(a, b"b/a", turned);
        assert_eq!(file.path(), b"b/file");
        // One that is renamed while it is looked for is found in itself.
        assert!(places.of(b"b/b/b/file", |_| Some(b)).is_none());
        assert_eq!(file.path(), b"b/file");
    }

    #[test]
    fn directories_that_no_file_needs_are_forgotten() {
        let places = Places::default();
        for number in 0..SWEEP_MIN * 4 {
            let path = format!("d{number}/file");
            places.of(path.as_bytes(), handle).expect("a path");
        }
        assert!(places.lock().by_handle.len() <= SWEEP_MIN);
    }
}
