//! The requests of an AGIOS program, found again by what it says of them: file, type, length and
//! offset, which need not be unique. Those that are alike stand in a chain in order of arrival.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use tidegate_sched::mix64;

/// What a program says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// The hash of the file's name.
    pub(super) file: u64,
    pub(super) offset: i64,
    pub(super) len: i64,
    pub(super) write: bool,
}

impl std::hash::Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let place = self.offset as u64 ^ (self.len as u64).rotate_left(40);
        state.write_u64(mix64(place ^ u64::from(self.write)) ^ self.file);
    }
}

/// The keys are mixed well before they come here.
#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = mix64(self.0 ^ u64::from(byte));
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

const NONE: u32 = u32::MAX;

struct Entry {
    key: Key,
    user_id: i64,
    dispatched: bool,
    /// The next of the same key, or the next free place.
    next: u32,
}

/// All requests between `agios_add_request` and `agios_release_request`.
pub(super) struct Table {
    entries: Vec<Entry>,
    free: u32,
    /// First and last of each key.
    chains: HashMap<Key, (u32, u32), BuildHasherDefault<Mixed>>,
}

impl Table {
    pub(super) fn new() -> Table {
        Table {
            entries: Vec::new(),
            free: NONE,
            chains: HashMap::default(),
        }
    }

    /// Adds a request; returns its number here.
    pub(super) fn add(&mut self, key: Key, user_id: i64) -> u32 {
        let entry = Entry {
            key,
            user_id,
            dispatched: false,
            next: NONE,
        };
        let number = match self.free {
            NONE => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
            number => {
                self.free = self.entries[number as usize].next;
                self.entries[number as usize] = entry;
                number
            }
        };
        let (_, last) = self.chains.entry(key).or_insert((number, NONE));
        if *last != NONE {
            self.entries[*last as usize].next = number;
        }
        *last = number;
        number
    }

    /// The request goes to the program, which knows it as the number returned.
    pub(super) fn dispatched(&mut self, number: u32) -> i64 {
        let entry = &mut self.entries[number as usize];
        entry.dispatched = true;
        entry.user_id
    }

    /// The first request of a key that was, or was not, dispatched.
    pub(super) fn find(&self, key: Key, dispatched: bool) -> Option<u32> {
        let (mut at, _) = *self.chains.get(&key)?;
        while at != NONE {
            let entry = &self.entries[at as usize];
            if entry.dispatched == dispatched {
                return Some(at);
            }
            at = entry.next;
        }
        None
    }

    /// Forgets a request.
    pub(super) fn remove(&mut self, number: u32) {
        let Entry { key, next, .. } = self.entries[number as usize];
        let (first, last) = self.chains.get_mut(&key).expect("each request has a chain");
        if *first == number {
            *first = next;
            if next == NONE {
                self.chains.remove(&key);
            }
        } else {
            let mut before = *first;
            while self.entries[before as usize].next != number {
                before = self.entries[before as usize].next;
            }
            self.entries[before as usize].next = next;
            if *last == number {
                *last = before;
            }
        }
        self.entries[number as usize].next = self.free;
        self.free = number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_are_alike_come_and_go_one_by_one() {
        let key = Key {
            file: 1,
            offset: 0,
            len: 10,
            write: false,
        };
        let mut table = Table::new();
        let [a, b, c] = [1, 2, 3].map(|id| table.add(key, id));
        let write = Key { write: true, ..key };
        assert_eq!(table.find(write, false), None);
        assert_eq!(table.find(key, true), None);
        assert_eq!(table.dispatched(b), 2);
        assert_eq!(table.find(key, true), Some(b));
        assert_eq!(table.find(key, false), Some(a));
        table.remove(b);
        table.remove(c);
        assert_eq!(table.find(key, true), None);
        let d = table.add(key, 4);
        assert_eq!(d, c);
        table.remove(a);
        assert_eq!(table.find(key, false), Some(d));
        table.remove(d);
        assert!(table.chains.is_empty());
    }
}
