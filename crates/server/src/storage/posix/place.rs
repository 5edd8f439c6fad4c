//! Where files are that have no descriptor: the name of each, and the directories above it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use tidegate_wire::Handle;

/// Below this number of remembered directories none are swept.
const SWEEP_MIN: usize = 256;

/// A directory below the root, as it was when a file in it was noted.
#[derive(Debug)]
pub(super) struct Dir {
    pub(super) handle: Handle,
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

/// The directories of all places. Files of one directory share what is kept of it.
#[derive(Default)]
pub(super) struct Places {
    dirs: Mutex<Dirs>,
}

#[derive(Default)]
struct Dirs {
    by_path: HashMap<Box<[u8]>, Weak<Dir>>,
    /// At this number those that no place needs any more are swept.
    sweep_at: usize,
}

impl Place {
    /// The path below the root.
    pub(super) fn path(&self) -> Vec<u8> {
        let mut names = vec![&*self.name];
        let mut at = self.dir.as_ref();
        while let Some(dir) = at {
            names.push(&dir.name);
            at = dir.parent.as_ref();
        }
        names.reverse();
        names.join(&b'/')
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

    fn directory(&self, path: &[u8], ask: impl Fn(&[u8]) -> Option<Handle>) -> Option<Arc<Dir>> {
        let handle = ask(path)?;
        let remembered = self.lock().remembered(path);
        if let Some(dir) = remembered.filter(|dir| dir.handle == handle) {
            return Some(dir);
        }
        let mut at = None;
        let mut begin = 0;
        while begin < path.len() {
            let rest = &path[begin..];
            let len = rest.iter().position(|byte| *byte == b'/');
            let end = begin + len.unwrap_or(rest.len());
            let above = &path[..end];
            let handle = match end == path.len() {
                true => handle,
                false => ask(above)?,
            };
            let remembered = self.lock().remembered(above);
            let found = remembered.filter(|dir| dir.handle == handle);
            let dir = found.unwrap_or_else(|| {
                let dir = Arc::new(Dir {
                    handle,
                    name: path[begin..end].into(),
                    parent: at.take(),
                });
                self.lock().remember(above, &dir);
                dir
            });
            (at, begin) = (Some(dir), end + 1);
        }
        at
    }

    fn lock(&self) -> MutexGuard<'_, Dirs> {
        crate::lock::lock(&self.dirs)
    }
}

impl Dirs {
    fn remembered(&self, path: &[u8]) -> Option<Arc<Dir>> {
        self.by_path.get(path)?.upgrade()
    }

    fn remember(&mut self, path: &[u8], dir: &Arc<Dir>) {
        if self.by_path.len() >= self.sweep_at.max(SWEEP_MIN) {
            self.by_path.retain(|_, dir| dir.strong_count() > 0);
            self.sweep_at = self.by_path.len() * 2;
        }
        self.by_path.insert(path.into(), Arc::downgrade(dir));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(path: &[u8]) -> Option<Handle> {
        let inode = path.iter().fold(1, |sum, byte| sum * 31 + u64::from(*byte));
        Some(Handle { inode, birth: 0 })
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
        let dir = |place: &Place| place.dir.clone().expect("not in the root");
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
    fn directories_that_no_file_needs_are_forgotten() {
        let places = Places::default();
        for number in 0..SWEEP_MIN * 4 {
            let path = format!("d{number}/file");
            places.of(path.as_bytes(), handle).expect("a path");
        }
        assert!(places.lock().by_path.len() <= SWEEP_MIN);
    }
}
