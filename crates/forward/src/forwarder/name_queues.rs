//! The order of requests that change the names of one or two directories: one at a time in each
//! directory, by turns of users.
//!
//! A directory has a queue with the next request of each user that has some. The first of that
//! queue runs. The others of a user stand behind, in order of arrival, and enter the queue one
//! after another, each when the one before it has run. So a request that is the next of its user
//! waits for one request of each other user at most, however many these have sent.
//!
//! A request of two directories enters both queues at once, when it is its user's next in both, and
//! runs when it is the first in both. Of two requests in queues the one that entered later is the
//! later in all of them, and none of them waits for what stands behind. So nothing waits in a
//! circle.

use super::receive::Key;
use alloc::collections::{BTreeMap, VecDeque};
use tidegate_wire::Handle;

/// The directories whose names a request changes.
pub(super) type Directories = (Handle, Option<Handle>);

/// All directories of which requests wait to change names, or do it.
#[derive(Default)]
pub(super) struct NameQueues {
    directories: BTreeMap<Handle, Directory>,
}

/// A request. The user is None if it is the forwarder's own.
#[derive(Clone, Copy)]
struct Entry {
    key: Key,
    user: Option<u32>,
    directories: Directories,
}

#[derive(Default)]
struct Directory {
    /// The next request of each user, in the order in which they became that.
    next: VecDeque<Entry>,
    /// Further requests of users, and those that are not the next of another directory.
    behind: BTreeMap<Option<u32>, VecDeque<Entry>>,
}

impl Directory {
    fn has_next_of(&self, user: Option<u32>) -> bool {
        self.next.iter().any(|entry| entry.user == user)
    }

    fn is_empty(&self) -> bool {
        self.next.is_empty() && self.behind.is_empty()
    }
}

/// Each of the directories.
fn each((one, other): Directories) -> impl Iterator<Item = Handle> {
    [Some(one), other].into_iter().flatten()
}

impl NameQueues {
    /// Takes a request of a user; None is the forwarder's own. True if it may run now.
    pub(super) fn enter(&mut self, key: Key, user: Option<u32>, directories: Directories) -> bool {
        let entry = Entry {
            key,
            user,
            directories,
        };
        let free = each(entry.directories).all(|directory| {
            let directory = self.directories.entry(directory).or_default();
            !directory.has_next_of(user) && !directory.behind.contains_key(&user)
        });
        if free {
            return self.stand(entry);
        }
        for directory in each(entry.directories) {
            let directory = self.directories.entry(directory).or_default();
            let behind = directory.behind.entry(user).or_default();
            behind.push_back(entry);
        }
        false
    }

    /// Removes a request that has run. Returns the requests that may run now.
    pub(super) fn leave(&mut self, key: Key, directories: Directories) -> [Option<Key>; 2] {
        let mut user = None;
        for directory in each(directories) {
            let directory = self.directories.get_mut(&directory);
            let first = directory.and_then(|it| it.next.pop_front());
            let first = first.expect("its request has not left");
            assert!(first.key == key, "only the first of a directory runs");
            user = first.user;
        }
        for directory in each(directories) {
            self.advance(directory, user);
        }
        let (one, other) = directories;
        let may_run = |directory: Handle| {
            let entry = self.directories.get(&directory)?.next.front()?;
            self.is_first(entry).then_some(entry.key)
        };
        let first = may_run(one);
        let second = other.and_then(may_run).filter(|key| Some(*key) != first);
        for directory in each(directories) {
            if self
                .directories
                .get(&directory)
                .is_some_and(Directory::is_empty)
            {
                self.directories.remove(&directory);
            }
        }
        [first, second]
    }

    /// Lets a user's oldest request that is behind in a directory stand in the queues, if it is the
    /// next in all of its directories.
    fn advance(&mut self, directory: Handle, user: Option<u32>) {
        let behind = |directory: &Handle| self.directories.get(directory)?.behind.get(&user);
        let Some(entry) = behind(&directory).and_then(VecDeque::front).copied() else {
            return;
        };
        let is_next = each(entry.directories).all(|directory| {
            let oldest = behind(&directory).and_then(VecDeque::front);
            oldest.is_some_and(|oldest| oldest.key == entry.key)
                && !self.directories[&directory].has_next_of(user)
        });
        if !is_next {
            return;
        }
        for directory in each(entry.directories) {
            let directory = self.directories.get_mut(&directory);
            let directory = directory.expect("it is behind in it");
            let behind = directory.behind.get_mut(&user);
            let behind = behind.expect("it is behind in it");
            behind.pop_front();
            if behind.is_empty() {
                directory.behind.remove(&user);
            }
        }
        self.stand(entry);
    }

    /// Lets a request stand in the queues of its directories. True if it may run now.
    fn stand(&mut self, entry: Entry) -> bool {
        for directory in each(entry.directories) {
            let directory = self.directories.entry(directory).or_default();
            directory.next.push_back(entry);
        }
        self.is_first(&entry)
    }

    fn is_first(&self, entry: &Entry) -> bool {
        each(entry.directories).all(|directory| {
            let first = self.directories.get(&directory);
            let first = first.and_then(|directory| directory.next.front());
            first.is_some_and(|first| first.key == entry.key)
        })
    }
}

#[cfg(test)]
mod tests;
