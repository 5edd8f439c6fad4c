//! Which file the kernel means by a node id, for as long as the kernel remembers it.

use crate::fuse::{Errno, ROOT};
use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tidegate_client::wire::Handle;

/// Every node that the kernel knows. One file has one node, whatever its names. Ids are never used
/// twice, so no generation is needed to tell them apart.
pub(super) struct Nodes {
    table: RwLock<Table>,
}

struct Table {
    nodes: HashMap<u64, Node>,
    ids: HashMap<Handle, u64>,
    id_next: u64,
    /// How often the kernel's cache was cleared of something.
    clears: u64,
}

struct Node {
    handle: Handle,
    /// Inode of the directory that it was last found in, for `..`.
    parent_inode: u64,
    /// How many lookups of it the kernel has not forgotten.
    lookups: u64,
}

impl Table {
    fn found(&mut self, handle: Handle, parent_inode: u64) -> u64 {
        let id = match self.ids.get(&handle) {
            Some(id) => *id,
            None => {
                let id = self.id_next;
                self.id_next += 1;
                self.ids.insert(handle, id);
                id
            }
        };
        let node = self.nodes.entry(id).or_insert(Node {
            handle,
            parent_inode,
            lookups: 0,
        });
        node.lookups += 1;
        if id != ROOT {
            node.parent_inode = parent_inode;
        }
        id
    }
}

impl Nodes {
    pub(super) fn new(root: Handle) -> Self {
        let node = Node {
            handle: root,
            parent_inode: root.inode,
            lookups: 1,
        };
        let (nodes, ids) = (HashMap::from([(ROOT, node)]), HashMap::from([(root, ROOT)]));
        Self {
            table: RwLock::new(Table {
                nodes,
                ids,
                id_next: ROOT + 1,
                clears: 0,
            }),
        }
    }

    /// The file of a node.
    pub(super) fn handle(&self, node: u64) -> Result<Handle, Errno> {
        self.read()
            .nodes
            .get(&node)
            .map(|node| node.handle)
            .ok_or(Errno::STALE)
    }

    /// Inode of the directory that a node was last found in.
    pub(super) fn parent_inode(&self, node: u64) -> Option<u64> {
        self.read().nodes.get(&node).map(|node| node.parent_inode)
    }

    /// The node of a file that the mount is about to name to the kernel. Counts one lookup. Also
    /// whether the kernel may cache its attributes, which were asked for at `clears`: whoever
    /// clears the cache later finds the node.
    pub(super) fn found_since(
        &self,
        handle: Handle,
        parent_inode: u64,
        clears: u64,
    ) -> (u64, bool) {
        let mut table = self.write();
        (table.found(handle, parent_inode), table.clears == clears)
    }

    /// The same where the kernel caches nothing.
    pub(super) fn found(&self, handle: Handle, parent_inode: u64) -> u64 {
        self.write().found(handle, parent_inode)
    }

    /// How often the kernel's cache was cleared so far. Asked for before attributes are.
    pub(super) fn clears(&self) -> u64 {
        self.read().clears
    }

    /// The nodes of files of which the kernel's cache is to be cleared. From now on nothing may be
    /// cached that was asked for before.
    pub(super) fn cleared(&self, files: &[Handle]) -> Vec<(Handle, u64)> {
        let mut table = self.write();
        table.clears += 1;
        let known = |file: &Handle| table.ids.get(file).map(|id| (*file, *id));
        files.iter().filter_map(known).collect()
    }

    /// Takes lookups off a node. Returns the file if those were the last.
    pub(super) fn forget(&self, id: u64, lookups: u64) -> Option<Handle> {
        let mut table = self.write();
        let node = table.nodes.get_mut(&id)?;
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups > 0 || id == ROOT {
            return None;
        }
        let handle = node.handle;
        table.nodes.remove(&id);
        if table.ids.get(&handle) != Some(&id) {
            // A later node of the same handle is still known.
            return None;
        }
        table.ids.remove(&handle);
        Some(handle)
    }

    /// Removes a file that is gone. Where the back end keeps no birth times, its inode may come
    /// back as another file, which must not be taken for this one: the kernel knows a removed
    /// directory as dead.
    pub(super) fn removed(&self, handle: Handle) {
        let mut table = self.write();
        if table.ids.get(&handle) != Some(&ROOT) {
            table.ids.remove(&handle);
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.read().nodes.len()
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(inode: u64) -> Handle {
        Handle { inode, birth: 1 }
    }

    #[test]
    fn a_file_has_one_node_until_all_lookups_are_forgotten() {
        let nodes = Nodes::new(file(1));
        let id = nodes.found(file(5), 1);
        assert_eq!(nodes.found(file(5), 2), id);
        assert_eq!(nodes.parent_inode(id), Some(2));
        assert_eq!(nodes.handle(id), Ok(file(5)));
        assert_eq!(nodes.forget(id, 1), None);
        assert_eq!(nodes.forget(id, 1), Some(file(5)));
        assert_eq!(nodes.handle(id), Err(Errno::STALE));
        assert_ne!(nodes.found(file(5), 1), id, "ids are not used twice");
    }

    #[test]
    fn the_root_is_never_forgotten() {
        let nodes = Nodes::new(file(1));
        assert_eq!(nodes.forget(ROOT, u64::MAX), None);
        assert_eq!(nodes.handle(ROOT), Ok(file(1)));
        nodes.removed(file(1));
        assert_eq!(nodes.found(file(1), 1), ROOT);
    }

    #[test]
    fn what_was_asked_for_before_something_was_cleared_is_not_cached() {
        let nodes = Nodes::new(file(1));
        let clears = nodes.clears();
        let (id, current) = nodes.found_since(file(5), 1, clears);
        assert!(current);
        assert_eq!(nodes.cleared(&[file(5), file(6)]), [(file(5), id)]);
        let (_, current) = nodes.found_since(file(7), 1, clears);
        assert!(!current, "it was asked for before something was cleared");
    }

    #[test]
    fn an_inode_that_comes_back_is_another_node() {
        let nodes = Nodes::new(file(1));
        let old = nodes.found(file(5), 1);
        nodes.removed(file(5));
        let new = nodes.found(file(5), 1);
        assert_ne!(old, new);
        assert_eq!(nodes.handle(old), Ok(file(5)));
        assert_eq!(nodes.forget(old, 1), None, "the new one is still known");
        assert_eq!(nodes.forget(new, 1), Some(file(5)));
        assert_eq!(nodes.len(), 1);
    }
}
