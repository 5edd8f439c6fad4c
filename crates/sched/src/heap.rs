//! A queue of numbers by rank, the least first, in which a rank can change.
//!
//! A binary heap that knows where each number lies. Equal ranks go by number, so the order never
//! depends on what was there before.

use crate::hash_table::NONE;
use alloc::vec::Vec;

/// Numbers from 0 up, each with a rank.
pub(crate) struct Heap<R> {
    entries: Vec<(R, u32)>,
    /// By number: its index in `entries`, or `NONE`.
    places: Vec<u32>,
}

impl<R: Ord + Copy> Heap<R> {
    /// Nothing.
    pub(crate) fn new() -> Heap<R> {
        Heap {
            entries: Vec::new(),
            places: Vec::new(),
        }
    }

    /// Whether nothing is in it.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The least rank and its number.
    #[inline]
    pub(crate) fn first(&self) -> Option<(R, u32)> {
        self.entries.first().copied()
    }

    /// Gives a number this rank, whether or not it is there.
    #[inline]
    pub(crate) fn set(&mut self, number: u32, rank: R) {
        if number as usize >= self.places.len() {
            self.places.resize(number as usize + 1, NONE);
        }
        let place = match self.places[number as usize] {
            NONE => {
                self.entries.push((rank, number));
                self.entries.len() - 1
            }
            place => place as usize,
        };
        self.settle(place, (rank, number));
    }

    /// Takes a number out, if it is there.
    #[inline]
    pub(crate) fn remove(&mut self, number: u32) {
        let Some(place) = self.places.get_mut(number as usize) else {
            return;
        };
        let place = core::mem::replace(place, NONE);
        if place == NONE {
            return;
        }
        let last = self.entries.pop().expect("the number is in it");
        if last.1 != number {
            self.settle(place as usize, last);
        }
    }

    /// Puts an entry at a place that is free, or where it belongs from there.
    #[inline]
    fn settle(&mut self, place: usize, entry: (R, u32)) {
        let mut at = place;
        while at > 0 {
            let above = (at - 1) / 2;
            if self.entries[above] <= entry {
                break;
            }
            self.put(at, self.entries[above]);
            at = above;
        }
        loop {
            let mut below = 2 * at + 1;
            if below >= self.entries.len() {
                break;
            }
            if below + 1 < self.entries.len() && self.entries[below + 1] < self.entries[below] {
                below += 1;
            }
            if entry <= self.entries[below] {
                break;
            }
            self.put(at, self.entries[below]);
            at = below;
        }
        self.put(at, entry);
    }

    #[inline]
    fn put(&mut self, at: usize, entry: (R, u32)) {
        self.entries[at] = entry;
        self.places[entry.1 as usize] = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::Random;
    use std::collections::BTreeMap;

    #[test]
    fn agrees_with_a_map() {
        let (mut heap, mut map) = (Heap::new(), BTreeMap::new());
        let mut random = Random::new(1);
        for _ in 0..50_000 {
            let number = random.below(40) as u32;
            match random.chance(60) {
                true => {
                    let rank = random.below(30);
                    heap.set(number, rank);
                    map.insert(number, rank);
                }
                false => {
                    heap.remove(number);
                    map.remove(&number);
                }
            }
            let first = map.iter().map(|(&number, &rank)| (rank, number)).min();
            assert_eq!((heap.first(), heap.is_empty()), (first, map.is_empty()));
        }
    }
}
