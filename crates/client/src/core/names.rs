//! Under which names the client last saw each file. Forwarders that do not know a file's handle get
//! its path.

use crate::wire::{Handle, NAME_MAX, WALK_MAX};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A directory and a name in it.
pub(super) type Key = (Handle, Arc<[u8]>);

/// Largest number of names of one file; further hard links replace the oldest.
const LINKS_MAX: usize = 8;
/// Largest number of paths of one file that the client tries.
const PATHS_MAX: usize = LINKS_MAX;
/// Largest number of directories above a file.
const DEPTH_MAX: usize = 2048;

#[derive(Default)]
struct Node {
    /// Directory and name, the latest last. Empty for a directory that is known only as a parent.
    names: Vec<Key>,
    /// The last name was removed; it stays as the last place where the file was.
    gone: bool,
    children: usize,
    opens: usize,
    forgotten: bool,
    age: u64,
}

/// The names of the files that the client has seen.
pub(super) struct Names {
    nodes: BTreeMap<Handle, Node>,
    by_name: BTreeMap<Key, Handle>,
    by_age: BTreeMap<u64, Handle>,
    ages: u64,
    nodes_max: usize,
    evicted: bool,
}

/// A search for the paths of a file.
struct Search<'a> {
    root: Handle,
    moving: &'a [(Key, Key)],
    /// The names below where the search is, the deepest first.
    suffix: Vec<Arc<[u8]>>,
    /// From where no path was found, and what the search is on its way up from. Names that other
    /// clients have moved may lead in circles, and there are more ways up than time to go them.
    barren: BTreeSet<Handle>,
    found: Vec<Box<[u8]>>,
}

impl Search<'_> {
    fn is_at_root(&mut self) {
        let names: Vec<&[u8]> = self.suffix.iter().rev().map(|name| &**name).collect();
        let path = names.join(&b'/');
        if path.len() <= WALK_MAX {
            self.found.push(path.into());
        }
    }
}

impl Names {
    pub(super) fn new(nodes_max: usize) -> Names {
        Names {
            nodes: BTreeMap::new(),
            by_name: BTreeMap::new(),
            by_age: BTreeMap::new(),
            ages: 0,
            nodes_max,
            evicted: false,
        }
    }

    /// Records that the file has this name.
    pub(super) fn seen(&mut self, parent: Handle, name: &[u8], handle: Handle) {
        let key: Key = (parent, Arc::from(name));
        match self.by_name.insert(key.clone(), handle) {
            Some(old) if old == handle => {
                self.node(handle).forgotten = false;
                return;
            }
            Some(old) => self.lose_name(old, &key),
            None => {}
        }
        self.node(parent).children += 1;
        let node = self.node(handle);
        node.forgotten = false;
        let mut lost = Vec::new();
        if node.gone || node.names.len() >= LINKS_MAX {
            let lost_count = if node.gone { node.names.len() } else { 1 };
            lost = node.names.drain(..lost_count).collect();
            node.gone = false;
        }
        node.names.push(key);
        for key in lost {
            if self.by_name.get(&key) == Some(&handle) {
                self.by_name.remove(&key);
            }
            self.child_left(key.0);
        }
        self.evict();
    }

    /// The file that the client last saw under a name.
    pub(super) fn file_of(&self, parent: Handle, name: &[u8]) -> Option<Handle> {
        self.by_name.get(&(parent, Arc::from(name))).copied()
    }

    /// The directory in which the client last saw a file.
    pub(super) fn parent_of(&self, handle: Handle) -> Option<Handle> {
        let node = self.nodes.get(&handle)?;
        node.names.last().map(|(parent, _)| *parent)
    }

    /// Directory and name under which the client last saw a file.
    pub(super) fn name_of(&self, handle: Handle) -> Option<(Handle, &[u8])> {
        let node = self.nodes.get(&handle)?;
        node.names.last().map(|(parent, name)| (*parent, &**name))
    }

    /// Whether files were forgotten for want of room since this was asked last.
    pub(super) fn take_evicted(&mut self) -> bool {
        std::mem::take(&mut self.evicted)
    }

    /// Records that the name is gone. A file's last name stays recorded as the place where the file
    /// was.
    pub(super) fn removed(&mut self, parent: Handle, name: &[u8]) {
        let key: Key = (parent, Arc::from(name));
        if let Some(handle) = self.by_name.remove(&key) {
            self.lose_name(handle, &key);
        }
    }

    /// Records that a name has moved, and has replaced another name or changed places with it.
    pub(super) fn moved(&mut self, from: (Handle, &[u8]), to: (Handle, &[u8]), exchange: bool) {
        let file = |names: &Names, (parent, name): (Handle, &[u8])| {
            names.by_name.get(&(parent, Arc::from(name))).copied()
        };
        let (source, target) = (file(self, from), file(self, to));
        if source.is_some() && source == target {
            return;
        }
        self.removed(from.0, from.1);
        self.removed(to.0, to.1);
        if let Some(handle) = source {
            self.seen(to.0, to.1, handle);
        }
        if let Some(handle) = target.filter(|_| exchange) {
            self.seen(from.0, from.1, handle);
        }
    }

    /// Removes one name of a file that has others; marks a file's only name as gone.
    fn lose_name(&mut self, handle: Handle, key: &Key) {
        let Some(node) = self.nodes.get_mut(&handle) else {
            return;
        };
        if node.names.len() > 1 {
            node.names.retain(|known| known != key);
            self.child_left(key.0);
        } else {
            node.gone = true;
            self.drop_unused(handle);
        }
    }

    /// Forgets a file that the host no longer knows.
    pub(super) fn forget(&mut self, handle: Handle) {
        if let Some(node) = self.nodes.get_mut(&handle) {
            node.forgotten = true;
            self.drop_unused(handle);
        }
    }

    /// Counts an open of the file. While the file is open, its name stays recorded.
    pub(super) fn opened(&mut self, handle: Handle) {
        self.node(handle).opens += 1;
    }

    /// Counts a close of the file.
    pub(super) fn closed(&mut self, handle: Handle) {
        if let Some(node) = self.nodes.get_mut(&handle) {
            node.opens = node.opens.saturating_sub(1);
            self.drop_unused(handle);
        }
    }

    /// Paths below the root at which the file may be, the likeliest first. `moving` are the renames
    /// that have no answer yet: from where, and to where.
    pub(super) fn paths(
        &self,
        root: Handle,
        handle: Handle,
        moving: &[(Key, Key)],
    ) -> Vec<Box<[u8]>> {
        let mut search = Search {
            root,
            moving,
            suffix: Vec::new(),
            barren: BTreeSet::new(),
            found: Vec::new(),
        };
        self.extend_path(&mut search, handle);
        search.found
    }

    /// Whether the directory lies so deep that a path could be too long for forwarders which leads
    /// to a file in a directory in it.
    pub(super) fn is_too_deep(&self, root: Handle, directory: Handle) -> bool {
        let (mut at, mut depth, mut len) = (directory, 2, 2 * (NAME_MAX + 1));
        while at != root {
            let Some((parent, name)) = self.nodes.get(&at).and_then(|node| node.names.last())
            else {
                return false;
            };
            (at, depth, len) = (*parent, depth + 1, len + name.len() + 1);
            if depth > DEPTH_MAX || len > WALK_MAX {
                return true;
            }
        }
        false
    }

    /// Follows every name up to the root.
    fn extend_path(&self, search: &mut Search<'_>, at: Handle) {
        if at == search.root {
            return search.is_at_root();
        }
        let node = self.nodes.get(&at);
        let Some(node) = node.filter(|_| search.suffix.len() < DEPTH_MAX) else {
            return;
        };
        if !search.barren.insert(at) {
            return;
        }
        let found = search.found.len();
        let known = node.names.iter().rev();
        let moving = search.moving;
        let moved = known.clone().flat_map(|name| {
            let its = moving.iter().filter(move |(from, _)| from == name);
            its.map(|(_, to)| to)
        });
        for (parent, name) in known.chain(moved) {
            if search.found.len() >= PATHS_MAX {
                break;
            }
            search.suffix.push(name.clone());
            self.extend_path(search, *parent);
            search.suffix.pop();
        }
        if search.found.len() > found {
            search.barren.remove(&at);
        }
    }

    fn node(&mut self, handle: Handle) -> &mut Node {
        self.nodes.entry(handle).or_insert_with(|| {
            self.ages += 1;
            self.by_age.insert(self.ages, handle);
            Node {
                age: self.ages,
                ..Node::default()
            }
        })
    }

    fn child_left(&mut self, parent: Handle) {
        if let Some(node) = self.nodes.get_mut(&parent) {
            node.children = node.children.saturating_sub(1);
            self.drop_unused(parent);
        }
    }

    /// Drops a node that nothing refers to, then its directories if they were kept only for it.
    fn drop_unused(&mut self, handle: Handle) {
        let mut check = vec![handle];
        while let Some(handle) = check.pop() {
            let Some(node) = self.nodes.get(&handle) else {
                continue;
            };
            let wanted = !(node.forgotten || node.gone || node.names.is_empty());
            if wanted || node.children > 0 || node.opens > 0 {
                continue;
            }
            check.extend(self.drop_node(handle));
        }
    }

    /// Drops a node; returns the directories that have lost a child.
    fn drop_node(&mut self, handle: Handle) -> Vec<Handle> {
        let Some(node) = self.nodes.remove(&handle) else {
            return Vec::new();
        };
        self.by_age.remove(&node.age);
        let mut parents = Vec::new();
        for key in node.names {
            if self.by_name.get(&key) == Some(&handle) {
                self.by_name.remove(&key);
            }
            if let Some(parent) = self.nodes.get_mut(&key.0) {
                parent.children = parent.children.saturating_sub(1);
                parents.push(key.0);
            }
        }
        parents
    }

    /// Keeps the number of files within its bound: drops the oldest that is neither open nor a
    /// directory in use. A file that cannot be dropped counts as new, so that the search stays
    /// short.
    fn evict(&mut self) {
        let mut looks = 64;
        while self.nodes.len() > self.nodes_max && looks > 0 {
            looks -= 1;
            let Some((age, handle)) = self.by_age.pop_first() else {
                return;
            };
            let node = self.nodes.get_mut(&handle);
            let node = node.expect("each age belongs to a node");
            debug_assert_eq!(node.age, age);
            if node.children > 0 || node.opens > 0 {
                self.ages += 1;
                node.age = self.ages;
                self.by_age.insert(self.ages, handle);
            } else {
                self.evicted = true;
                for parent in self.drop_node(handle) {
                    self.drop_unused(parent);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Handle = Handle { inode: 1, birth: 0 };

    fn file(inode: u64) -> Handle {
        Handle { inode, birth: 7 }
    }

    fn path(names: &Names, handle: Handle) -> Option<String> {
        paths(names, handle, &[]).into_iter().next()
    }

    fn paths(names: &Names, handle: Handle, moving: &[(Key, Key)]) -> Vec<String> {
        let paths = names.paths(ROOT, handle, moving).into_iter();
        let text = |path: Box<[u8]>| String::from_utf8(path.into());
        paths
            .map(|path| text(path).expect("the test's names are text"))
            .collect()
    }

    fn tree() -> Names {
        let mut names = Names::new(100);
        names.seen(ROOT, b"a", file(2));
        names.seen(file(2), b"b", file(3));
        names.seen(file(3), b"c", file(4));
        names
    }

    #[test]
    fn a_renamed_directory_takes_its_children_along() {
        let mut names = tree();
        assert_eq!(path(&names, file(4)).as_deref(), Some("a/b/c"));
        names.moved((file(2), b"b"), (ROOT, b"z"), false);
        assert_eq!(path(&names, file(4)).as_deref(), Some("z/c"));
        assert_eq!(path(&names, ROOT).as_deref(), Some(""));
    }

    #[test]
    fn an_exchange_moves_both() {
        let mut names = tree();
        names.seen(ROOT, b"x", file(9));
        names.moved((ROOT, b"x"), (file(2), b"b"), true);
        assert_eq!(path(&names, file(9)).as_deref(), Some("a/b"));
        assert_eq!(path(&names, file(4)).as_deref(), Some("x/c"));
    }

    #[test]
    fn a_forgotten_directory_stays_until_its_children_go() {
        let mut names = tree();
        names.forget(file(2));
        names.forget(file(3));
        assert_eq!(path(&names, file(4)).as_deref(), Some("a/b/c"));
        names.forget(file(4));
        assert_eq!(names.nodes.len(), 0);
        assert!(names.by_name.is_empty());
    }

    #[test]
    fn an_open_file_keeps_its_last_path_after_unlink() {
        let mut names = tree();
        names.opened(file(4));
        names.removed(file(3), b"c");
        assert_eq!(path(&names, file(4)).as_deref(), Some("a/b/c"));
        names.closed(file(4));
        assert_eq!(path(&names, file(4)), None);
        assert_eq!(path(&names, file(3)).as_deref(), Some("a/b"));
    }

    #[test]
    fn another_hard_link_serves_when_the_latest_is_removed() {
        let mut names = tree();
        names.seen(ROOT, b"link", file(4));
        assert_eq!(path(&names, file(4)).as_deref(), Some("link"));
        names.removed(ROOT, b"link");
        assert_eq!(path(&names, file(4)).as_deref(), Some("a/b/c"));
    }

    #[test]
    fn every_hard_link_is_a_path_and_so_is_where_a_rename_without_an_answer_goes() {
        let mut names = tree();
        names.seen(ROOT, b"link", file(4));
        let key = |parent, name: &[u8]| (parent, Arc::from(name));
        let moving = [
            (key(file(3), b"c"), key(file(2), b"d")),
            (key(ROOT, b"a"), key(ROOT, b"z")),
        ];
        let expected = ["link", "a/b/c", "z/b/c", "a/d", "z/d"];
        assert_eq!(paths(&names, file(4), &moving), expected);
        for number in 0..20 {
            names.seen(file(2), format!("{number}").as_bytes(), file(4));
        }
        assert_eq!(paths(&names, file(4), &moving).len(), PATHS_MAX);
    }

    #[test]
    fn paths_may_be_longer_than_a_kernel_takes_them_and_have_a_bound() {
        for (name, deepest) in [(&[b'x'; 200][..], 323), (b"x", DEPTH_MAX - 2)] {
            let mut names = Names::new(10_000);
            let mut at = ROOT;
            let mut depth = 0;
            while !names.is_too_deep(ROOT, at) {
                let below = file(10 + depth as u64);
                names.seen(at, name, below);
                (at, depth) = (below, depth + 1);
            }
            assert_eq!(depth - 1, deepest);
            // So a directory whose parent was not too deep, and a file in it, have paths.
            names.seen(at, &[b'f'; NAME_MAX], file(5));
            let paths = names.paths(ROOT, file(5), &[]);
            assert_eq!(paths[0].len(), (name.len() + 1) * depth + NAME_MAX);
        }
    }

    #[test]
    fn a_search_ends_however_many_ways_lead_nowhere_or_in_circles() {
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut names = Names::new(1000);
            // Forty directories, each under eight names in the one above and in the one below. Of
            // the topmost no name is known, but one of the thirtieth in the root.
            for depth in 10..50 {
                for name in 0..4 {
                    names.seen(file(depth), &[b'a' + name], file(depth + 1));
                    names.seen(file(depth + 2), &[b'k' + name], file(depth + 1));
                }
            }
            assert_eq!(path(&names, file(50)), None);
            names.seen(ROOT, b"r", file(30));
            let found = paths(&names, file(50), &[]);
            assert!(found.iter().all(|path| path.starts_with("r/")), "{found:?}");
            assert_eq!(found.len(), PATHS_MAX);
            done.send(()).expect("the test waits");
        });
        let wait = std::time::Duration::from_secs(60);
        assert_eq!(ended.recv_timeout(wait), Ok(()), "the search has no end");
    }

    #[test]
    fn the_number_of_names_is_bounded() {
        let mut names = Names::new(50);
        for inode in 10..1000 {
            names.seen(ROOT, format!("f{inode}").as_bytes(), file(inode));
        }
        assert!(names.nodes.len() <= 50);
        assert_eq!(path(&names, file(999)).as_deref(), Some("f999"));
        assert_eq!(path(&names, file(10)), None);
        assert_eq!(names.by_age.len(), names.nodes.len());
    }
}
