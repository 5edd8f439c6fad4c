//! A set in order of which one after the other is taken upwards, and from the lowest again at the
//! end.
//!
//! Only what comes next is kept sorted. The rest lies in chunks, each a range of the order and in
//! no order itself, that are sorted when the sweep reaches them. So what is added to a long set is
//! written to the end of a chunk and looks at nothing else, and what is taken was sorted with its
//! neighbours at once.

use alloc::vec::Vec;

/// What is swept: the least first.
pub(crate) type Place = u128;

/// Places of a chunk.
const CHUNK: usize = 128;

/// Sorted ones are kept up to so many, the others go into a chunk.
const SORTED_MAX: usize = 2 * CHUNK;

/// The chunks of several sweeps.
pub(crate) struct Chunks {
    places: Vec<[Place; CHUNK]>,
    free: Vec<u32>,
}

/// A chunk of a sweep.
#[derive(Clone, Copy)]
struct Chunk {
    number: u32,
    len: u32,
}

/// See the head of the file. No two places are equal.
pub(crate) struct CScan {
    /// The last one that was taken.
    at: Place,
    /// Those up to the next chunk in the order of the sweep, the last is next. Empty unless `open`.
    sorted: Vec<Place>,
    /// Lower bounds of the chunks, ascending. The first chunk takes what is below as well.
    lows: Vec<Place>,
    chunks: Vec<Chunk>,
    /// When open: the chunk that follows `sorted`. What lies below `at` is in chunks before it.
    ahead: usize,
    /// Whether `sorted` reaches over the end: no chunk lies above `at`, and `sorted` has what is
    /// below all chunks.
    wrapped: bool,
    /// Otherwise everything is in chunks.
    open: bool,
}

impl Chunks {
    /// None yet; they are made as they are needed and kept.
    pub(crate) fn new() -> Chunks {
        Chunks {
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.places.push([0; CHUNK]);
            self.places.len() as u32 - 1
        })
    }
}

impl CScan {
    /// An empty set.
    pub(crate) fn new() -> CScan {
        CScan {
            at: 0,
            sorted: Vec::new(),
            lows: Vec::new(),
            chunks: Vec::new(),
            ahead: 0,
            wrapped: true,
            open: true,
        }
    }

    /// Begins at the lowest again. The set must be empty.
    pub(crate) fn restart(&mut self) {
        assert!(self.sorted.is_empty() && self.chunks.is_empty());
        (self.at, self.ahead, self.wrapped, self.open) = (0, 0, true, true);
    }

    /// What comes next, and after it, if that is known already.
    #[inline]
    pub(crate) fn next(&mut self, chunks: &mut Chunks) -> (Option<Place>, Option<Place>) {
        if self.sorted.is_empty() {
            self.open(chunks);
        }
        let second = self.sorted.len().checked_sub(2);
        (self.sorted.last().copied(), second.map(|i| self.sorted[i]))
    }

    /// Whether `one` comes before `other`.
    #[inline]
    pub(crate) fn is_before(&self, one: Place, other: Place) -> bool {
        one.wrapping_sub(self.at) < other.wrapping_sub(self.at)
    }

    /// Adds a place.
    pub(crate) fn insert(&mut self, chunks: &mut Chunks, place: Place) {
        if !self.is_in_sorted(place) {
            self.insert_in_chunk(chunks, place);
            return;
        }
        let rank = self.rank(place);
        self.sorted.insert(rank, place);
        if self.sorted.len() > SORTED_MAX {
            self.spill(chunks);
        }
    }

    /// Removes a place that is there. The sweep stays where it is.
    pub(crate) fn remove(&mut self, chunks: &mut Chunks, place: Place) {
        if self.is_in_sorted(place) {
            let rank = self.rank(place);
            assert!(self.sorted.get(rank) == Some(&place), "no such place");
            self.sorted.remove(rank);
            return;
        }
        let after = self.lows.partition_point(|low| *low <= place);
        let index = after.checked_sub(1).expect("a place is in a chunk");
        let Chunk { number, len } = &mut self.chunks[index];
        let places = &mut chunks.places[*number as usize][..*len as usize];
        let found = places.iter().position(|one| *one == place);
        places.swap(found.expect("no such place"), *len as usize - 1);
        *len -= 1;
        if *len == 0 {
            self.remove_chunk(chunks, index);
        }
    }

    /// Removes what `next` said; the sweep goes on from there.
    #[inline]
    pub(crate) fn take_next(&mut self) {
        let place = self.sorted.pop().expect("it was asked for");
        if self.wrapped && place < self.at {
            (self.wrapped, self.ahead) = (self.chunks.is_empty(), 0);
        }
        self.at = place;
    }

    /// The sweep goes on from somewhere else. Nothing is sorted before `next` asks.
    pub(crate) fn jump(&mut self, chunks: &mut Chunks, at: Place) {
        let mut sorted = core::mem::take(&mut self.sorted);
        (self.at, self.open) = (at, false);
        for place in sorted.drain(..) {
            self.insert_in_chunk(chunks, place);
        }
        self.sorted = sorted;
        if self.chunks.is_empty() {
            self.open(chunks);
        }
    }

    /// How many of `sorted` come after a place.
    #[inline]
    fn rank(&self, place: Place) -> usize {
        let distance = place.wrapping_sub(self.at);
        let comes_after = |one: &Place| one.wrapping_sub(self.at) > distance;
        self.sorted.partition_point(comes_after)
    }

    #[inline]
    fn is_in_sorted(&self, place: Place) -> bool {
        let is_below = |index: usize| self.lows.get(index).is_none_or(|low| place < *low);
        match self.wrapped {
            true => self.open && (place >= self.at || is_below(0)),
            false => self.open && place >= self.at && is_below(self.ahead),
        }
    }

    fn insert_in_chunk(&mut self, chunks: &mut Chunks, place: Place) {
        let after = self.lows.partition_point(|low| *low <= place);
        // Chunks from `ahead` on have nothing that lies below `at`.
        let is_first = self.open && !self.wrapped && self.ahead == 0;
        if after == 0 && (is_first || self.chunks.is_empty()) {
            self.add_chunk(chunks, 0, &[place]);
            self.ahead += usize::from(self.open);
            return;
        }
        let mut index = after.saturating_sub(1);
        self.lows[index] = self.lows[index].min(place);
        let Chunk { number, len } = self.chunks[index];
        if len as usize == CHUNK {
            let mut half = [0; CHUNK / 2];
            let places = &mut chunks.places[number as usize];
            places.select_nth_unstable(CHUNK / 2);
            half.copy_from_slice(&places[CHUNK / 2..]);
            self.chunks[index].len = CHUNK as u32 / 2;
            self.add_chunk(chunks, index + 1, &half);
            self.ahead += usize::from(self.open && index < self.ahead);
            index += usize::from(place >= self.lows[index + 1]);
        }
        let Chunk { number, len } = &mut self.chunks[index];
        chunks.places[*number as usize][*len as usize] = place;
        *len += 1;
    }

    /// Puts those of `sorted` that come last into a chunk.
    fn spill(&mut self, chunks: &mut Chunks) {
        let wrapped = self.sorted.partition_point(|one| *one < self.at);
        let (index, count) = match self.wrapped {
            true if wrapped > 0 => (0, wrapped.min(CHUNK)),
            // Nothing is over the end: what spills is the first chunk above `at`.
            true => (self.chunks.len(), CHUNK),
            false => (self.ahead, CHUNK),
        };
        if wrapped == 0 {
            (self.wrapped, self.ahead) = (false, index);
        }
        let sorted = core::mem::take(&mut self.sorted);
        self.add_chunk(chunks, index, &sorted[..count]);
        self.sorted = sorted;
        self.sorted.drain(..count);
    }

    /// Adds a chunk of places, of which the least is its lower bound.
    fn add_chunk(&mut self, chunks: &mut Chunks, index: usize, places: &[Place]) {
        let number = chunks.take();
        chunks.places[number as usize][..places.len()].copy_from_slice(places);
        let low = places.iter().min().expect("a chunk is not empty");
        self.lows.insert(index, *low);
        let len = places.len() as u32;
        self.chunks.insert(index, Chunk { number, len });
    }

    fn remove_chunk(&mut self, chunks: &mut Chunks, index: usize) {
        chunks.free.push(self.chunks[index].number);
        self.lows.remove(index);
        self.chunks.remove(index);
        self.ahead -= usize::from(self.open && index < self.ahead);
        if self.chunks.is_empty() && self.open {
            (self.wrapped, self.ahead) = (true, 0);
        }
    }

    /// Sorts the next chunk, if there is one.
    #[cold]
    fn open(&mut self, chunks: &mut Chunks) {
        if !self.open {
            (self.open, self.wrapped) = (true, false);
            self.ahead = self.lows.partition_point(|low| *low <= self.at);
            if let Some(index) = self.ahead.checked_sub(1) {
                self.open_chunk(chunks, index, self.at);
            }
        }
        if self.chunks.is_empty() {
            (self.wrapped, self.ahead) = (true, 0);
        } else if self.sorted.is_empty() {
            self.wrapped |= self.ahead == self.chunks.len();
            let next = if self.wrapped { 0 } else { self.ahead };
            self.open_chunk(chunks, next, 0);
        }
    }

    /// Moves the places of a chunk that are not below `from` to `sorted`, which is empty.
    fn open_chunk(&mut self, chunks: &mut Chunks, index: usize, from: Place) {
        let Chunk { number, len } = &mut self.chunks[index];
        let places = &mut chunks.places[*number as usize];
        let mut kept = 0;
        for i in 0..*len as usize {
            let place = places[i];
            match place < from {
                true => {
                    places[kept] = place;
                    kept += 1;
                }
                false => self.sorted.push(place),
            }
        }
        *len = kept as u32;
        self.sorted.sort_unstable_by(|one, other| other.cmp(one));
        if kept == 0 {
            self.remove_chunk(chunks, index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::Random;
    use std::collections::BTreeSet;

    /// What the sweep of a tree would say.
    fn next_of(tree: &BTreeSet<Place>, at: Place) -> Option<Place> {
        tree.range(at..).next().or(tree.first()).copied()
    }

    #[test]
    fn agrees_with_a_tree() {
        let mut chunks = Chunks::new();
        for seed in 0..40 {
            let mut random = Random::new(seed);
            let (mut sweep, mut tree, mut at) = (CScan::new(), BTreeSet::new(), 0);
            let most = random.pick(&[3, 40, 300, 3000]);
            let range = random.pick(&[100, 10_000, 1 << 40]);
            let (mut jumps, mut grows) = (0, true);
            for _ in 0..20_000 {
                let choice = random.below(100);
                grows = if tree.len() > most {
                    false
                } else {
                    grows || tree.is_empty()
                };
                if choice < if grows { 60 } else { 35 } {
                    let place = Place::from(random.below(range)) << 64;
                    if tree.insert(place) {
                        sweep.insert(&mut chunks, place);
                    }
                } else if choice < 95 {
                    let next = next_of(&tree, at);
                    assert_eq!(sweep.next(&mut chunks).0, next, "seed {seed}");
                    if let Some(next) = next {
                        sweep.take_next();
                        tree.remove(&next);
                        at = next;
                    }
                } else if let Some(place) = next_of(&tree, Place::from(random.below(range)) << 64) {
                    sweep.remove(&mut chunks, place);
                    tree.remove(&place);
                    jumps += 1;
                    if random.chance(30) {
                        sweep.jump(&mut chunks, place);
                        at = place;
                    }
                }
            }
            assert!(jumps > 0);
            while let Some(next) = next_of(&tree, at) {
                assert_eq!(sweep.next(&mut chunks).0, Some(next), "seed {seed}");
                sweep.take_next();
                tree.remove(&next);
                at = next;
            }
            assert_eq!(sweep.next(&mut chunks), (None, None));
            sweep.restart();
            assert_eq!(chunks.free.len(), chunks.places.len());
        }
    }
}
