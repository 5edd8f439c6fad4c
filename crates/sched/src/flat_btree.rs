//! A sorted map in one block of memory: what the standard tree does, without an allocation for
//! each node that comes and goes.
//!
//! A B+ tree whose nodes lie in a vector and are used again. A node that becomes empty is freed;
//! nodes are not joined before that, because queues fill and drain at their ends, where nodes run
//! empty by themselves. A leaf that is full at the end of the map is left full, for keys that count
//! up.

use crate::hash_table::{NONE, put};
use alloc::vec::Vec;
use core::cell::Cell;
use core::hint::black_box;

/// Entries of a node.
const WIDTH: usize = 24;

/// Levels of the largest tree. A level more needs nodes that were full: 12 times the inserts.
const HEIGHT_MAX: usize = 16;

#[derive(Clone, Copy)]
struct Inner<K> {
    len: u32,
    /// Lower bounds of the children; the first child takes what is below as well.
    keys: [K; WIDTH],
    children: [u32; WIDTH],
}

struct Leaf<K, V> {
    len: u32,
    next: u32,
    prev: u32,
    keys: [K; WIDTH],
    values: [V; WIDTH],
}

/// A key and its value, if there is one.
type Found<K, V> = Option<(K, V)>;

/// Values by unique keys, in order.
pub(crate) struct FlatBTree<K, V> {
    leaves: Vec<Leaf<K, V>>,
    leaves_free: Vec<u32>,
    inner: Vec<Inner<K>>,
    inner_free: Vec<u32>,
    /// An inner node, or the only leaf when `height` is 0.
    root: u32,
    height: usize,
    len: usize,
    first: u32,
    /// The leaf of the last search: the next one is often beside it.
    recent: Cell<u32>,
}

/// A place in the map: the path from the root, and the position in the leaf.
struct Path {
    /// By level from the root: inner node, and which child.
    steps: [(u32, u32); HEIGHT_MAX],
    leaf: u32,
    at: usize,
}

impl<K: Ord + Copy + Default, V: Copy + Default> FlatBTree<K, V> {
    /// An empty map.
    pub(crate) fn new() -> FlatBTree<K, V> {
        let mut map = FlatBTree {
            leaves: Vec::new(),
            leaves_free: Vec::new(),
            inner: Vec::new(),
            inner_free: Vec::new(),
            root: 0,
            height: 0,
            len: 0,
            first: 0,
            recent: Cell::new(0),
        };
        map.root = map.new_leaf();
        map
    }

    /// Keys present.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Removes all keys, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.leaves_free.clear();
        self.leaves_free.extend(0..self.leaves.len() as u32);
        self.inner_free.clear();
        self.inner_free.extend(0..self.inner.len() as u32);
        (self.height, self.len) = (0, 0);
        self.root = self.new_leaf();
        self.first = self.root;
        self.recent.set(self.root);
    }

    /// Adds a key; if it is present its value is replaced.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        if let Some((number, at)) = self.place_in_recent(&key) {
            let leaf = &mut self.leaves[number as usize];
            let len = leaf.len as usize;
            if at < len && leaf.keys[at] == key {
                leaf.values[at] = value;
                return;
            }
            if len < WIDTH {
                leaf.insert(at, key, value);
                self.len += 1;
                return;
            }
        }
        let path = self.path(&key);
        let leaf = &mut self.leaves[path.leaf as usize];
        let len = leaf.len as usize;
        if path.at < len && leaf.keys[path.at] == key {
            leaf.values[path.at] = value;
            return;
        }
        self.len += 1;
        if len < WIDTH {
            leaf.insert(path.at, key, value);
            return;
        }
        let right = self.new_leaf();
        let [left_leaf, right_leaf] = self
            .leaves
            .get_disjoint_mut([path.leaf as usize, right as usize])
            .expect("a new leaf is another one");
        let next = left_leaf.next;
        (right_leaf.prev, right_leaf.next, left_leaf.next) = (path.leaf, next, right);
        // At the very end keys count up: the full leaf stays full.
        let split = if next == NONE && path.at == WIDTH {
            WIDTH
        } else {
            WIDTH / 2
        };
        let moved = WIDTH - split;
        right_leaf.keys[..moved].copy_from_slice(&left_leaf.keys[split..]);
        right_leaf.values[..moved].copy_from_slice(&left_leaf.values[split..]);
        (left_leaf.len, right_leaf.len) = (split as u32, moved as u32);
        match path.at <= split && split < WIDTH {
            true => left_leaf.insert(path.at, key, value),
            false => right_leaf.insert(path.at - split, key, value),
        }
        let bound = right_leaf.keys[0];
        if next != NONE {
            self.leaves[next as usize].prev = right;
        }
        self.add_child(&path, bound, right);
    }

    /// Removes a key; its value if it was there.
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        // Queues are mostly emptied at their front.
        let leaf = &mut self.leaves[self.first as usize];
        if leaf.len > 1 && leaf.keys[0] == *key {
            let value = leaf.values[0];
            leaf.remove(0);
            self.len -= 1;
            return Some(value);
        }
        if let Some((number, at)) = self.place_in_recent(key) {
            let leaf = &mut self.leaves[number as usize];
            if at >= leaf.len as usize || leaf.keys[at] != *key {
                return None;
            }
            if leaf.len > 1 || self.height == 0 {
                let value = leaf.values[at];
                leaf.remove(at);
                self.len -= 1;
                return Some(value);
            }
        }
        let path = self.path(key);
        let leaf = &self.leaves[path.leaf as usize];
        if path.at >= leaf.len as usize || leaf.keys[path.at] != *key {
            return None;
        }
        let value = leaf.values[path.at];
        self.remove_at(&path);
        Some(value)
    }

    /// The least key.
    #[inline]
    pub(crate) fn first(&self) -> Option<(K, V)> {
        let leaf = &self.leaves[self.first as usize];
        (leaf.len > 0).then(|| (leaf.keys[0], leaf.values[0]))
    }

    /// All, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, V)> {
        let leaf = |number: u32| self.leaves.get(number as usize);
        let leaves = core::iter::successors(leaf(self.first), move |last| leaf(last.next));
        leaves.flat_map(|leaf| {
            let keys = leaf.keys[..leaf.len as usize].iter();
            keys.copied().zip(leaf.values.iter().copied())
        })
    }

    /// The greatest key.
    pub(crate) fn last(&self) -> Option<(K, V)> {
        let mut number = self.root;
        for _ in 0..self.height {
            let inner = &self.inner[number as usize];
            number = inner.children[inner.len as usize - 1];
        }
        self.entry_until(number, self.leaves[number as usize].len as usize)
    }

    /// The least key that is not below `key`.
    #[inline]
    pub(crate) fn at_or_after(&self, key: &K) -> Option<(K, V)> {
        let (leaf, at) = self.place(key);
        self.entry_from(leaf, at)
    }

    /// Both neighbours of a place, for the price of one search: the greatest key below it, and the
    /// least that is not.
    #[inline]
    pub(crate) fn around(&self, key: &K) -> (Found<K, V>, Found<K, V>) {
        let (leaf, at) = self.place(key);
        (self.entry_until(leaf, at), self.entry_from(leaf, at))
    }

    /// Visits the values of the keys from `from` to below `below`, in order.
    pub(crate) fn walk(&mut self, from: &K, below: &K, mut visit: impl FnMut(&mut V)) {
        let (mut number, mut at) = self.place(from);
        while let Some(leaf) = self.leaves.get_mut(number as usize) {
            let len = leaf.len as usize;
            for (key, value) in leaf.keys[at..len].iter().zip(&mut leaf.values[at..len]) {
                if key >= below {
                    return;
                }
                visit(value);
            }
            (number, at) = (leaf.next, 0);
        }
    }

    /// Whether more than `count` keys lie from `from` to below `below`.
    pub(crate) fn has_more_than(&self, count: usize, from: &K, below: &K) -> bool {
        let (number, at) = self.place(from);
        let (mut number, mut at) = (number, at + count);
        while let Some(leaf) = self.leaves.get(number as usize) {
            match leaf.keys[..leaf.len as usize].get(at) {
                Some(key) => return key < below,
                None => (number, at) = (leaf.next, at - leaf.len as usize),
            }
        }
        false
    }

    #[inline]
    fn entry_from(&self, leaf: u32, at: usize) -> Option<(K, V)> {
        let leaf = &self.leaves[leaf as usize];
        if at < leaf.len as usize {
            return Some((leaf.keys[at], leaf.values[at]));
        }
        // No leaf is empty but the only one.
        let next = self.leaves.get(leaf.next as usize)?;
        Some((next.keys[0], next.values[0]))
    }

    #[inline]
    fn entry_until(&self, leaf: u32, at: usize) -> Option<(K, V)> {
        let leaf = &self.leaves[leaf as usize];
        if at > 0 {
            return Some((leaf.keys[at - 1], leaf.values[at - 1]));
        }
        let before = self.leaves.get(leaf.prev as usize)?;
        let last = before.len as usize - 1;
        Some((before.keys[last], before.values[last]))
    }

    /// The leaf where a key belongs, and the position of the first key that is not below it.
    #[inline]
    fn place(&self, key: &K) -> (u32, usize) {
        if let Some(place) = self.place_in_recent(key) {
            return place;
        }
        let mut number = self.root;
        for _ in 0..self.height {
            let inner = &self.inner[number as usize];
            prefetch(&inner.keys);
            number = inner.children[inner.child(key)];
        }
        self.recent.set(number);
        let leaf = &self.leaves[number as usize];
        prefetch(&leaf.keys);
        (
            number,
            rank(&leaf.keys[..leaf.len as usize], |other| other < key),
        )
    }

    /// As `place`, if the key lies between two of the leaf of the last search, or behind it at the
    /// end of the map, or there is one leaf. The leaf of the last search may have been freed since,
    /// or have another place; then it is empty, or holds what it says.
    #[inline]
    fn place_in_recent(&self, key: &K) -> Option<(u32, usize)> {
        let number = self.recent.get();
        let leaf = &self.leaves[number as usize];
        let keys = &leaf.keys[..leaf.len as usize];
        if self.height > 0 {
            let is_inside = keys.first()? <= key && (leaf.next == NONE || key <= keys.last()?);
            if !is_inside {
                return None;
            }
        }
        Some((number, rank(keys, |other| other < key)))
    }

    /// As `place`, with the path from the root.
    #[inline]
    fn path(&self, key: &K) -> Path {
        let mut steps = [(0, 0); HEIGHT_MAX];
        let mut number = self.root;
        for step in &mut steps[..self.height] {
            let inner = &self.inner[number as usize];
            let child = inner.child(key);
            *step = (number, child as u32);
            number = inner.children[child];
        }
        self.recent.set(number);
        let leaf = &self.leaves[number as usize];
        let at = rank(&leaf.keys[..leaf.len as usize], |other| other < key);
        Path {
            steps,
            leaf: number,
            at,
        }
    }

    /// Adds a child behind the last one of a path, and splits full nodes on the way up.
    fn add_child(&mut self, path: &Path, bound: K, child: u32) {
        let (mut bound, mut child) = (bound, child);
        for level in (0..self.height).rev() {
            let (number, position) = path.steps[level];
            let at = position as usize + 1;
            let inner = &mut self.inner[number as usize];
            if (inner.len as usize) < WIDTH {
                inner.insert(at, bound, child);
                return;
            }
            let split = if at == WIDTH { WIDTH - 1 } else { WIDTH / 2 };
            let mut right = Inner {
                len: (WIDTH - split) as u32,
                ..Inner::default()
            };
            right.keys[..WIDTH - split].copy_from_slice(&inner.keys[split..]);
            right.children[..WIDTH - split].copy_from_slice(&inner.children[split..]);
            inner.len = split as u32;
            match at <= split {
                true => inner.insert(at, bound, child),
                false => right.insert(at - split, bound, child),
            }
            bound = right.keys[0];
            child = self.new_inner(right);
        }
        let mut root = Inner::default();
        root.insert(0, bound, self.root);
        root.insert(1, bound, child);
        self.root = self.new_inner(root);
        self.height += 1;
        assert!(
            self.height <= HEIGHT_MAX,
            "a tree of more inserts than anybody makes"
        );
    }

    /// Removes the entry at a place, and the nodes that become empty.
    fn remove_at(&mut self, path: &Path) {
        self.len -= 1;
        let leaf = &mut self.leaves[path.leaf as usize];
        leaf.remove(path.at);
        if leaf.len > 0 || self.height == 0 {
            return;
        }
        let (next, prev) = (leaf.next, leaf.prev);
        match prev {
            NONE => self.first = next,
            _ => self.leaves[prev as usize].next = next,
        }
        if next != NONE {
            self.leaves[next as usize].prev = prev;
        }
        self.leaves_free.push(path.leaf);
        for level in (0..self.height).rev() {
            let (number, position) = path.steps[level];
            let inner = &mut self.inner[number as usize];
            inner.remove(position as usize);
            if inner.len > 0 {
                break;
            }
            self.inner_free.push(number);
        }
        // A root with one child is no root.
        while self.height > 0 && self.inner[self.root as usize].len == 1 {
            self.inner_free.push(self.root);
            self.root = self.inner[self.root as usize].children[0];
            self.height -= 1;
        }
        if self.height == 0 {
            self.recent.set(self.root);
        }
    }

    /// An empty leaf.
    fn new_leaf(&mut self) -> u32 {
        if let Some(number) = self.leaves_free.pop() {
            let old = &mut self.leaves[number as usize];
            (old.len, old.next, old.prev) = (0, NONE, NONE);
            return number;
        }
        self.leaves.push(Leaf {
            len: 0,
            next: NONE,
            prev: NONE,
            keys: [K::default(); WIDTH],
            values: [V::default(); WIDTH],
        });
        self.leaves.len() as u32 - 1
    }

    fn new_inner(&mut self, node: Inner<K>) -> u32 {
        put(&mut self.inner, &mut self.inner_free, node)
    }
}

/// Fetches all lines of the keys of a node at once: a search by halves would wait for one after
/// the other.
#[inline]
fn prefetch<K: Copy>(keys: &[K; WIDTH]) {
    let line = (64 / size_of::<K>()).clamp(1, WIDTH - 1);
    for key in keys.iter().step_by(line) {
        black_box(*key);
    }
}

/// How many keys at the front satisfy `below`, of keys of which all that do are at the front.
#[inline]
fn rank<K>(keys: &[K], below: impl Fn(&K) -> bool) -> usize {
    keys.partition_point(below)
}

impl<K: Copy + Default> Default for Inner<K> {
    fn default() -> Inner<K> {
        Inner {
            len: 0,
            keys: [K::default(); WIDTH],
            children: [0; WIDTH],
        }
    }
}

impl<K: Ord + Copy> Inner<K> {
    /// The position of the child in whose part a key lies.
    #[inline]
    fn child(&self, key: &K) -> usize {
        rank(&self.keys[1..self.len as usize], |bound| bound <= key)
    }

    fn insert(&mut self, at: usize, key: K, child: u32) {
        let len = self.len as usize;
        self.keys.copy_within(at..len, at + 1);
        self.children.copy_within(at..len, at + 1);
        (self.keys[at], self.children[at]) = (key, child);
        self.len += 1;
    }

    fn remove(&mut self, at: usize) {
        let len = self.len as usize;
        self.keys.copy_within(at + 1..len, at);
        self.children.copy_within(at + 1..len, at);
        self.len -= 1;
    }
}

impl<K: Copy, V: Copy> Leaf<K, V> {
    #[inline]
    fn insert(&mut self, at: usize, key: K, value: V) {
        let len = self.len as usize;
        self.keys.copy_within(at..len, at + 1);
        self.values.copy_within(at..len, at + 1);
        (self.keys[at], self.values[at]) = (key, value);
        self.len += 1;
    }

    #[inline]
    fn remove(&mut self, at: usize) {
        let len = self.len as usize;
        self.keys.copy_within(at + 1..len, at);
        self.values.copy_within(at + 1..len, at);
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::Random;
    use std::collections::BTreeMap;

    /// Compares with the standard map after each of many steps.
    fn agrees(seed: u64, steps: u64, mut key: impl FnMut(&mut Random, u64) -> u64, grow: u64) {
        let mut random = Random::new(seed);
        let mut map = BTreeMap::new();
        let mut sorted: FlatBTree<u64, u64> = FlatBTree::new();
        for step in 0..steps {
            let at = key(&mut random, step);
            match random.below(100) {
                chance if chance < grow => {
                    map.insert(at, step);
                    sorted.insert(at, step);
                }
                chance if chance < grow + (100 - grow) / 2 => {
                    let first = map.pop_first();
                    assert_eq!(sorted.first(), first, "seed {seed}, step {step}");
                    if let Some((first, value)) = first {
                        assert_eq!(sorted.remove(&first), Some(value));
                    }
                }
                _ => {
                    let nearest = map.range(at..).next().map_or(at, |(&nearest, _)| nearest);
                    assert_eq!(sorted.remove(&nearest), map.remove(&nearest));
                }
            }
            let pair = |(&key, &value)| (key, value);
            let (mut before, mut after) = (map.range(..at), map.range(at..));
            let around = (before.next_back().map(pair), after.next().map(pair));
            assert_eq!(sorted.around(&at), around, "seed {seed}, step {step}");
            assert_eq!(sorted.len(), map.len());
            if step % 16 == 0 {
                assert!(
                    sorted.iter().eq(map.iter().map(pair)),
                    "seed {seed}, step {step}"
                );
            }
        }
        while let Some((first, value)) = map.pop_first() {
            assert_eq!(sorted.first(), Some((first, value)));
            assert_eq!(sorted.remove(&first), Some(value));
        }
        assert!(sorted.is_empty() && sorted.first().is_none());
        assert_eq!(sorted.leaves.len(), sorted.leaves_free.len() + 1);
        assert_eq!(sorted.inner.len(), sorted.inner_free.len());
    }

    #[test]
    fn agrees_with_the_standard_map() {
        for seed in 0..20 {
            for grow in [30, 50, 52, 70] {
                agrees(seed, 4000, |random, _| random.below(1 << 40), grow);
                agrees(seed, 4000, |random, _| random.below(300), grow);
                agrees(seed, 4000, |_, step| step, grow);
                agrees(seed, 4000, |_, step| u64::MAX - step, grow);
            }
        }
    }

    #[test]
    fn memory_is_used_again() {
        let mut sorted: FlatBTree<u64, ()> = FlatBTree::new();
        for key in 0..100_000 {
            sorted.insert(key, ());
            if key >= 1000 {
                assert_eq!(sorted.remove(&(key - 1000)), Some(()));
            }
        }
        assert!(
            sorted.leaves.len() < 1000 / WIDTH + 10,
            "{}",
            sorted.leaves.len()
        );
        sorted.clear();
        assert!(sorted.is_empty());
        sorted.insert(7, ());
        assert_eq!(sorted.first(), Some((7, ())));
    }
}
