//! Finds the slot of a 64-bit key: a chained table over slot numbers that its owner hands out.
//!
//! The standard hash map is seeded by chance and iterates in no order. This table is never
//! iterated, its hash is fixed, and a steady load allocates nothing: chains run through an array
//! that is as long as the highest slot.

use alloc::vec;
use alloc::vec::Vec;

/// No slot.
pub(crate) const NONE: u32 = u32::MAX;

const HEADS_MIN: usize = 16;

/// Maps keys to slots. A key is inserted once and removed before it comes again.
pub(crate) struct Index {
    /// First slot of each chain.
    heads: Vec<u32>,
    /// By slot: its key and the next slot of its chain.
    links: Vec<(u64, u32)>,
    /// Keys present.
    len: usize,
}

impl Index {
    /// An empty index.
    pub(crate) fn new() -> Index {
        Index {
            heads: vec![NONE; HEADS_MIN],
            links: Vec::new(),
            len: 0,
        }
    }

    /// The slot of `key`, or `NONE`.
    #[inline]
    pub(crate) fn find(&self, key: u64) -> u32 {
        let mut slot = self.heads[self.chain(key)];
        while slot != NONE {
            let (other, next) = self.links[slot as usize];
            if other == key {
                return slot;
            }
            slot = next;
        }
        NONE
    }

    /// Adds a key that is not present, under a slot that is not in use.
    #[inline]
    pub(crate) fn insert(&mut self, key: u64, slot: u32) {
        if self.len == self.heads.len() {
            self.grow();
        }
        if slot as usize >= self.links.len() {
            self.links.resize(slot as usize + 1, (0, NONE));
        }
        let chain = self.chain(key);
        self.links[slot as usize] = (key, self.heads[chain]);
        self.heads[chain] = slot;
        self.len += 1;
    }

    /// Removes a key that is present under `slot`.
    #[inline]
    pub(crate) fn remove(&mut self, key: u64, slot: u32) {
        let chain = self.chain(key);
        let next = self.links[slot as usize].1;
        let mut at = self.heads[chain];
        if at == slot {
            self.heads[chain] = next;
        } else {
            while self.links[at as usize].1 != slot {
                at = self.links[at as usize].1;
            }
            self.links[at as usize].1 = next;
        }
        self.len -= 1;
    }

    /// Keys that count up stay next to each other, which the cache rewards; keys that count in
    /// higher bits are spread by the odd factor.
    #[inline]
    fn chain(&self, key: u64) -> usize {
        let folded = key ^ (key >> 32);
        let hash = folded.wrapping_add((folded >> 16).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        hash as usize & (self.heads.len() - 1)
    }

    #[cold]
    fn grow(&mut self) {
        let longer = vec![NONE; self.heads.len() * 2];
        let heads = core::mem::replace(&mut self.heads, longer);
        for mut slot in heads {
            while slot != NONE {
                let (key, next) = self.links[slot as usize];
                let chain = self.chain(key);
                self.links[slot as usize].1 = self.heads[chain];
                self.heads[chain] = slot;
                slot = next;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn agrees_with_a_map() {
        let mut index = Index::new();
        let mut map = BTreeMap::new();
        let mut free: Vec<u32> = (0..500).rev().collect();
        let mut x = 1u64;
        for _ in 0..20_000 {
            x = crate::mix64(x + 1);
            // Keys that count in their low, middle or high bits.
            let key = (x % 700) << ((x >> 60) * 3);
            match map.remove(&key) {
                Some(slot) => {
                    assert_eq!(index.find(key), slot);
                    index.remove(key, slot);
                    free.push(slot);
                }
                None => {
                    assert_eq!(index.find(key), NONE);
                    if let Some(slot) = free.pop() {
                        index.insert(key, slot);
                        map.insert(key, slot);
                    }
                }
            }
        }
    }
    #[test]
    fn chains_stay_short_however_keys_count() {
        for shift in [0, 4, 8, 12, 16, 20, 24, 32, 40, 47] {
            let mut index = Index::new();
            (0..65_536).for_each(|i| index.insert(u64::from(i) << shift, i));
            let longest = |head: &u32| {
                let mut count = 0;
                let mut slot = *head;
                while slot != NONE {
                    count += 1;
                    slot = index.links[slot as usize].1;
                }
                count
            };
            let longest = index.heads.iter().map(longest).max().unwrap();
            assert!(
                longest <= 8,
                "{longest} keys in a chain when they count by 2^{shift}"
            );
        }
    }
}
