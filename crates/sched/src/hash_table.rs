//! Finds the number of a 64-bit key: chains through whatever its owner keeps under numbers.
//!
//! The standard hash map is seeded by chance and iterates in no order. This table is never
//! iterated, its hash is fixed, and a steady load allocates nothing: the links of the chains lie
//! with what is found, which is looked at anyway.

use alloc::vec;
use alloc::vec::Vec;

/// No number.
pub(crate) const NONE: u32 = u32::MAX;

const BUCKETS_MIN: usize = 16;

/// Puts an item under a free number, or under a new one.
#[inline]
pub(crate) fn put<T>(items: &mut Vec<T>, free: &mut Vec<u32>, item: T) -> u32 {
    let Some(number) = free.pop() else {
        items.push(item);
        return items.len() as u32 - 1;
    };
    items[number as usize] = item;
    number
}

/// What can be found: it has room for the link of its chain.
pub(crate) trait Chained {
    /// Its key.
    fn key(&self) -> u64;

    /// The next of its chain.
    fn next(&self) -> u32;

    /// The next of its chain, to be changed.
    fn next_mut(&mut self) -> &mut u32;
}

/// Finds items of a slice by their key. A key is inserted once and removed before it comes again.
pub(crate) struct Buckets {
    /// First number of each chain. Twice as many as keys, so that most chains are empty.
    heads: Vec<u32>,
    /// The number of heads is two to this power.
    bits: u32,
    /// Keys present.
    len: usize,
}

impl Buckets {
    /// No keys.
    pub(crate) fn new() -> Buckets {
        Buckets {
            heads: vec![NONE; BUCKETS_MIN],
            bits: BUCKETS_MIN.trailing_zeros(),
            len: 0,
        }
    }

    /// The number of `key`, or `NONE`.
    #[inline]
    pub(crate) fn find<T: Chained>(&self, items: &[T], key: u64) -> u32 {
        let mut number = self.heads[self.chain(key)];
        while number != NONE {
            let item = &items[number as usize];
            if item.key() == key {
                break;
            }
            number = item.next();
        }
        number
    }

    /// Brings the bucket of a key that will soon be looked up into the cache.
    #[inline]
    pub(crate) fn prefetch(&self, key: u64) {
        core::hint::black_box(self.heads[self.chain(key)]);
    }

    /// Adds an item whose key is not present.
    #[inline]
    pub(crate) fn insert<T: Chained>(&mut self, items: &mut [T], number: u32) {
        if 2 * self.len >= self.heads.len() {
            self.grow(items);
        }
        let item = &mut items[number as usize];
        let chain = self.chain(item.key());
        let head = &mut self.heads[chain];
        *item.next_mut() = core::mem::replace(head, number);
        self.len += 1;
    }

    /// Removes an item that is present.
    #[inline]
    pub(crate) fn remove<T: Chained>(&mut self, items: &mut [T], number: u32) {
        let item = &items[number as usize];
        let (chain, next) = (self.chain(item.key()), item.next());
        let mut at = &mut self.heads[chain];
        if *at != number {
            let mut before = *at;
            while items[before as usize].next() != number {
                before = items[before as usize].next();
            }
            at = items[before as usize].next_mut();
        }
        *at = next;
        self.len -= 1;
    }

    /// Keys that count up stay next to each other, which the cache rewards, and do not meet
    /// those that came a round of the table ago; keys that count in higher bits are spread.
    #[inline]
    fn chain(&self, key: u64) -> usize {
        let folded = key ^ (key >> 32);
        let round = folded >> self.bits;
        let mixed = (round >> 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let hash = folded.wrapping_add(round.wrapping_mul(ROUND) ^ mixed);
        hash as usize & (self.heads.len() - 1)
    }

    #[cold]
    fn grow<T: Chained>(&mut self, items: &mut [T]) {
        let longer = vec![NONE; self.heads.len() * 2];
        let heads = core::mem::replace(&mut self.heads, longer);
        self.bits += 1;
        for mut number in heads {
            while number != NONE {
                let item = &mut items[number as usize];
                let chain = self.chain(item.key());
                let head = core::mem::replace(&mut self.heads[chain], number);
                number = core::mem::replace(item.next_mut(), head);
            }
        }
    }
}

/// How far keys of the next round of the table are moved. Odd, so that rounds go everywhere.
const ROUND: u64 = 1025;

/// Maps keys to numbers, where what is found has no room for a link.
pub(crate) struct HashTable {
    buckets: Buckets,
    links: Vec<Link>,
}

/// By number: its key and the next number of its chain.
#[derive(Clone, Copy)]
struct Link {
    key: u64,
    next: u32,
}

impl Chained for Link {
    #[inline]
    fn key(&self) -> u64 {
        self.key
    }

    #[inline]
    fn next(&self) -> u32 {
        self.next
    }

    #[inline]
    fn next_mut(&mut self) -> &mut u32 {
        &mut self.next
    }
}

impl HashTable {
    /// An empty table.
    pub(crate) fn new() -> HashTable {
        HashTable {
            buckets: Buckets::new(),
            links: Vec::new(),
        }
    }

    /// The number of `key`, or `NONE`.
    #[inline]
    pub(crate) fn find(&self, key: u64) -> u32 {
        self.buckets.find(&self.links, key)
    }

    /// Adds a key that is not present, under a number that is not in use.
    #[inline]
    pub(crate) fn insert(&mut self, key: u64, number: u32) {
        let link = Link { key, next: NONE };
        if number as usize >= self.links.len() {
            self.links.resize(number as usize + 1, link);
        }
        self.links[number as usize] = link;
        self.buckets.insert(&mut self.links, number);
    }

    /// Removes the key that is present under `number`.
    #[inline]
    pub(crate) fn remove(&mut self, number: u32) {
        self.buckets.remove(&mut self.links, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn agrees_with_a_map() {
        let mut table = HashTable::new();
        let mut map = BTreeMap::new();
        let mut free: Vec<u32> = (0..500).rev().collect();
        let mut x = 1u64;
        for _ in 0..20_000 {
            x = crate::mix64(x + 1);
            // Keys that count in their low, middle or high bits.
            let key = (x % 700) << ((x >> 60) * 3);
            match map.remove(&key) {
                Some(number) => {
                    assert_eq!(table.find(key), number);
                    table.remove(number);
                    free.push(number);
                }
                None => {
                    assert_eq!(table.find(key), NONE);
                    if let Some(number) = free.pop() {
                        table.insert(key, number);
                        map.insert(key, number);
                    }
                }
            }
        }
    }

    #[test]
    fn chains_stay_short_however_keys_count() {
        // As forwarders number them: a session, and one of its requests.
        let mut table = HashTable::new();
        (0..256).for_each(|i| table.insert(u64::from(i / 8) << 16 | u64::from(i % 8), i));
        let mut lengths = [0; 512];
        (0..256).for_each(|i| lengths[table.buckets.chain(table.links[i].key)] += 1);
        assert!(lengths.iter().all(|&length| length <= 5), "{lengths:?}");
        for shift in [0, 4, 8, 12, 16, 20, 24, 32, 40, 47] {
            let mut table = HashTable::new();
            (0..65_536).for_each(|i| table.insert(u64::from(i) << shift, i));
            let longest = |head: &u32| {
                let mut count = 0;
                let mut number = *head;
                while number != NONE {
                    count += 1;
                    number = table.links[number as usize].next;
                }
                count
            };
            let longest = table.buckets.heads.iter().map(longest).max().unwrap();
            assert!(
                longest <= 8,
                "{longest} keys in a chain when they count by 2^{shift}"
            );
        }
    }
}
