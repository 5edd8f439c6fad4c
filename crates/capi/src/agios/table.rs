//! The requests of an AGIOS program, found again by what it says of them: file, type, length and
//! offset, which need not be unique. Those that are alike are found in order of arrival.
//!
//! A hash table whose chains run through the requests themselves: one place in memory to touch for
//! each, and nothing to allocate once it has grown.

use super::program::Own;
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

impl Key {
    #[inline]
    fn mixed(&self) -> u64 {
        let place = self.offset as u64 ^ (self.len as u64).rotate_left(40);
        mix64(place ^ u64::from(self.write)) ^ self.file
    }
}

const NONE: u32 = u32::MAX;

struct Entry {
    key: Key,
    user_id: i64,
    own: Own,
    /// The next of its chain, or the next free place.
    next: u32,
    dispatched: bool,
}

/// The first and the last of those whose keys come to the same number.
#[derive(Clone, Copy)]
struct Chain {
    first: u32,
    last: u32,
}

const EMPTY: Chain = Chain {
    first: NONE,
    last: NONE,
};

/// Where a request was found; good until the table changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) number: u32,
    before: u32,
}

/// All requests between `agios_add_request` and `agios_release_request`.
pub(super) struct Table {
    entries: Vec<Entry>,
    free: u32,
    /// A power of two of them, and at least as many as entries.
    chains: Vec<Chain>,
}

impl Table {
    pub(super) fn new() -> Table {
        Table {
            entries: Vec::new(),
            free: NONE,
            chains: vec![EMPTY; 1024],
        }
    }

    /// Adds a request; returns its number here.
    pub(super) fn add(&mut self, key: Key, user_id: i64, own: Own) -> u32 {
        let entry = Entry {
            key,
            user_id,
            own,
            next: NONE,
            dispatched: false,
        };
        let number = match self.free {
            NONE => {
                if self.entries.len() == self.chains.len() {
                    self.grow();
                }
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
            number => {
                let place = &mut self.entries[number as usize];
                self.free = place.next;
                *place = entry;
                number
            }
        };
        self.append(number);
        number
    }

    /// The request goes to the program, which knows it as the number returned.
    pub(super) fn dispatched(&mut self, number: u32) -> (i64, Own) {
        let entry = &mut self.entries[number as usize];
        entry.dispatched = true;
        (entry.user_id, entry.own)
    }

    /// The first request of a key that was, or was not, dispatched.
    pub(super) fn find(&self, key: Key, dispatched: bool) -> Option<Found> {
        self.search(&key, |_, entry| {
            entry.dispatched == dispatched && entry.key == key
        })
    }

    /// Forgets a request that was just found.
    pub(super) fn remove(&mut self, found: Found) {
        let Found { number, before } = found;
        let Entry { key, next, .. } = self.entries[number as usize];
        let chain = self.chain(&key);
        match before {
            NONE => self.chains[chain].first = next,
            before => self.entries[before as usize].next = next,
        }
        if next == NONE {
            self.chains[chain].last = before;
        }
        self.entries[number as usize].next = self.free;
        self.free = number;
    }

    /// Forgets a request by its number.
    pub(super) fn remove_number(&mut self, number: u32) {
        let key = self.entries[number as usize].key;
        let found = self.search(&key, |at, _| at == number);
        self.remove(found.expect("each request is in its chain"));
    }

    fn chain(&self, key: &Key) -> usize {
        key.mixed() as usize & (self.chains.len() - 1)
    }

    fn search(&self, key: &Key, is: impl Fn(u32, &Entry) -> bool) -> Option<Found> {
        let (mut before, mut at) = (NONE, self.chains[self.chain(key)].first);
        while at != NONE {
            let entry = &self.entries[at as usize];
            if is(at, entry) {
                return Some(Found { number: at, before });
            }
            (before, at) = (at, entry.next);
        }
        None
    }

    fn append(&mut self, number: u32) {
        let chain = self.chain(&self.entries[number as usize].key);
        let chain = &mut self.chains[chain];
        match chain.last {
            NONE => chain.first = number,
            last => self.entries[last as usize].next = number,
        }
        chain.last = number;
    }

    /// Doubles the chains. Called when no place is free, so that every entry is in one.
    fn grow(&mut self) {
        let chains = vec![EMPTY; self.chains.len() * 2];
        let before = std::mem::replace(&mut self.chains, chains);
        for Chain { first, .. } in before {
            // In the order of the old chain, so that those that are alike keep theirs.
            let mut at = first;
            while at != NONE {
                let next = std::mem::replace(&mut self.entries[at as usize].next, NONE);
                self.append(at);
                at = next;
            }
        }
    }
}

/// The number of a file by its name: eight bytes at a time, because every call does it.
#[inline]
pub(crate) fn file_number(name: &[u8]) -> u64 {
    fn step(number: u64, bytes: u64) -> u64 {
        let product = u128::from(number ^ bytes) * 0xff51_afd7_ed55_8ccd_u128;
        product as u64 ^ (product >> 64) as u64
    }
    let mut number = 0x9e37_79b9_7f4a_7c15u64 ^ name.len() as u64;
    let (words, rest) = name.as_chunks::<8>();
    for word in words {
        number = step(number, u64::from_le_bytes(*word));
    }
    // The last eight bytes once more, or what is there of a short name.
    let last = match name.last_chunk::<8>() {
        Some(last) => u64::from_le_bytes(*last),
        None => rest
            .iter()
            .fold(0, |last, &byte| last << 8 | u64::from(byte)),
    };
    mix64(step(number, last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const KEY: Key = Key {
        file: 1,
        offset: 0,
        len: 10,
        write: false,
    };

    fn number(found: Option<Found>) -> Option<u32> {
        found.map(|found| found.number)
    }

    #[test]
    fn requests_that_are_alike_come_and_go_one_by_one() {
        let mut table = Table::new();
        let [a, b, c] = [1, 2, 3].map(|id| table.add(KEY, id, Own::default()));
        let write = Key { write: true, ..KEY };
        assert_eq!(number(table.find(write, false)), None);
        assert_eq!(number(table.find(KEY, true)), None);
        assert_eq!(table.dispatched(b).0, 2);
        assert_eq!(number(table.find(KEY, true)), Some(b));
        assert_eq!(number(table.find(KEY, false)), Some(a));
        table.remove_number(b);
        table.remove_number(c);
        assert_eq!(number(table.find(KEY, true)), None);
        let d = table.add(KEY, 4, Own::default());
        assert_eq!(d, c);
        table.remove(table.find(KEY, false).unwrap());
        assert_eq!(number(table.find(KEY, false)), Some(d));
        table.remove_number(d);
        assert_eq!(number(table.find(KEY, false)), None);
        assert_ne!(table.add(KEY, a.into(), Own::default()), NONE);
    }

    #[test]
    fn growing_loses_nothing_and_keeps_the_order() {
        let mut table = Table::new();
        let key = |number: i64| Key {
            offset: number % 3000 * 10,
            ..KEY
        };
        for number in 0..6000 {
            table.add(key(number), number, Own::default());
        }
        for number in 0..6000 {
            let found = table.find(key(number), false).unwrap();
            assert_eq!(table.dispatched(found.number).0, number);
            table.remove(table.find(key(number), true).unwrap());
        }
        assert!((0..3000).all(|number| table.find(key(number), true).is_none()));
        assert_eq!(table.entries.len(), 6000);
    }

    #[test]
    fn names_that_differ_anywhere_have_different_numbers() {
        let long = *b"/scratch/job/file.00";
        let mut numbers = BTreeSet::new();
        for len in 0..=long.len() {
            numbers.insert(file_number(&long[..len]));
        }
        for at in 0..long.len() {
            for bit in 0..8 {
                let mut other = long;
                other[at] ^= 1 << bit;
                numbers.insert(file_number(&other));
                numbers.insert(file_number(&other[..7.min(at + 1)]));
            }
        }
        // Short names with the same beginning are the same name.
        let short: BTreeSet<Vec<u8>> = (0..long.len())
            .flat_map(|at| (0..8).map(move |bit| (at, bit)))
            .map(|(at, bit)| {
                let mut other = long;
                other[at] ^= 1 << bit;
                other[..7.min(at + 1)].to_vec()
            })
            .filter(|name| !long.starts_with(name))
            .collect();
        assert_eq!(numbers.len(), 21 + 160 + short.len());
    }
}
