//! A set in order of which one after the other is taken upwards, and from the lowest again at the
//! end.
//!
//! Only what comes next is kept sorted. The rest lies in bags, each a range of the order and in no
//! order itself, that are sorted when the sweep reaches them. So what is added to a long set is
//! written to the end of a bag and looks at nothing else, and what is taken was sorted with its
//! neighbours at once.

use alloc::vec::Vec;

/// What is swept: the least first.
pub(crate) type Place = u128;

/// Places of a bag.
const BAG: usize = 128;

/// Sorted ones are kept up to so many, the others go into a bag.
const NEAR_MAX: usize = 2 * BAG;

/// The bags of several sweeps.
pub(crate) struct Bags {
    places: Vec<[Place; BAG]>,
    free: Vec<u32>,
}

/// A bag of a sweep.
#[derive(Clone, Copy)]
struct Bag {
    number: u32,
    len: u32,
}

/// See the head of the file. No two places are equal.
pub(crate) struct Sweep {
    /// The last one that was taken.
    at: Place,
    /// Those up to the next bag in the order of the sweep, the last is next. Empty unless `open`.
    near: Vec<Place>,
    /// Lower bounds of the bags, ascending. The first bag takes what is below as well.
    lows: Vec<Place>,
    bags: Vec<Bag>,
    /// When open: the bag that follows `near`. What lies below `at` is in bags before it.
    ahead: usize,
    /// Whether `near` reaches over the end: no bag lies above `at`, and `near` has what is below
    /// all bags.
    wrapped: bool,
    /// Otherwise everything is in bags.
    open: bool,
}

impl Bags {
    /// None yet; they are made as they are needed and kept.
    pub(crate) fn new() -> Bags {
        Bags {
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.places.push([0; BAG]);
            self.places.len() as u32 - 1
        })
    }
}

impl Sweep {
    /// An empty set.
    pub(crate) fn new() -> Sweep {
        Sweep {
            at: 0,
            near: Vec::new(),
            lows: Vec::new(),
            bags: Vec::new(),
            ahead: 0,
            wrapped: true,
            open: true,
        }
    }

    /// Begins at the lowest again. The set must be empty.
    pub(crate) fn restart(&mut self) {
        assert!(self.near.is_empty() && self.bags.is_empty());
        (self.at, self.ahead, self.wrapped, self.open) = (0, 0, true, true);
    }

    /// What comes next, and after it, if that is known already.
    #[inline]
    pub(crate) fn next(&mut self, bags: &mut Bags) -> (Option<Place>, Option<Place>) {
        if self.near.is_empty() {
            self.open(bags);
        }
        let second = self.near.len().checked_sub(2);
        (self.near.last().copied(), second.map(|i| self.near[i]))
    }

    /// Whether `one` comes before `other`.
    #[inline]
    pub(crate) fn is_before(&self, one: Place, other: Place) -> bool {
        one.wrapping_sub(self.at) < other.wrapping_sub(self.at)
    }

    /// Adds a place.
    pub(crate) fn insert(&mut self, bags: &mut Bags, place: Place) {
        if !self.is_near(place) {
            self.insert_far(bags, place);
            return;
        }
        let rank = self.rank(place);
        self.near.insert(rank, place);
        if self.near.len() > NEAR_MAX {
            self.spill(bags);
        }
    }

    /// Removes a place that is there. The sweep stays where it is.
    pub(crate) fn remove(&mut self, bags: &mut Bags, place: Place) {
        if self.is_near(place) {
            let rank = self.rank(place);
            assert!(self.near.get(rank) == Some(&place), "no such place");
            self.near.remove(rank);
            return;
        }
        let after = self.lows.partition_point(|low| *low <= place);
        let index = after.checked_sub(1).expect("a place is in a bag");
        let Bag { number, len } = &mut self.bags[index];
        let places = &mut bags.places[*number as usize][..*len as usize];
        let found = places.iter().position(|one| *one == place);
        places.swap(found.expect("no such place"), *len as usize - 1);
        *len -= 1;
        if *len == 0 {
            self.drop_bag(bags, index);
        }
    }

    /// Removes what `next` said; the sweep goes on from there.
    #[inline]
    pub(crate) fn take_next(&mut self) {
        let place = self.near.pop().expect("it was asked for");
        if self.wrapped && place < self.at {
            (self.wrapped, self.ahead) = (self.bags.is_empty(), 0);
        }
        self.at = place;
    }

    /// The sweep goes on from somewhere else. Nothing is sorted before `next` asks.
    pub(crate) fn jump(&mut self, bags: &mut Bags, at: Place) {
        let mut near = core::mem::take(&mut self.near);
        (self.at, self.open) = (at, false);
        for place in near.drain(..) {
            self.insert_far(bags, place);
        }
        self.near = near;
        if self.bags.is_empty() {
            self.open(bags);
        }
    }

    /// How many of `near` come after a place.
    #[inline]
    fn rank(&self, place: Place) -> usize {
        let way = place.wrapping_sub(self.at);
        let comes_after = |one: &Place| one.wrapping_sub(self.at) > way;
        self.near.partition_point(comes_after)
    }

    #[inline]
    fn is_near(&self, place: Place) -> bool {
        let is_below = |index: usize| self.lows.get(index).is_none_or(|low| place < *low);
        match self.wrapped {
            true => self.open && (place >= self.at || is_below(0)),
            false => self.open && place >= self.at && is_below(self.ahead),
        }
    }

    fn insert_far(&mut self, bags: &mut Bags, place: Place) {
        let after = self.lows.partition_point(|low| *low <= place);
        // Bags from `ahead` on have nothing that lies below `at`.
        let is_first = self.open && !self.wrapped && self.ahead == 0;
        if after == 0 && (is_first || self.bags.is_empty()) {
            self.add_bag(bags, 0, &[place]);
            self.ahead += usize::from(self.open);
            return;
        }
        let mut index = after.saturating_sub(1);
        self.lows[index] = self.lows[index].min(place);
        let Bag { number, len } = self.bags[index];
        if len as usize == BAG {
            let mut half = [0; BAG / 2];
            let places = &mut bags.places[number as usize];
            places.select_nth_unstable(BAG / 2);
            half.copy_from_slice(&places[BAG / 2..]);
            self.bags[index].len = BAG as u32 / 2;
            self.add_bag(bags, index + 1, &half);
            self.ahead += usize::from(self.open && index < self.ahead);
            index += usize::from(place >= self.lows[index + 1]);
        }
        let Bag { number, len } = &mut self.bags[index];
        bags.places[*number as usize][*len as usize] = place;
        *len += 1;
    }

    /// Puts those of `near` that come last into a bag.
    fn spill(&mut self, bags: &mut Bags) {
        let wrapped = self.near.partition_point(|one| *one < self.at);
        let (index, count) = match self.wrapped {
            true if wrapped > 0 => (0, wrapped.min(BAG)),
            // Nothing is over the end: what spills is the first bag above `at`.
            true => (self.bags.len(), BAG),
            false => (self.ahead, BAG),
        };
        if wrapped == 0 {
            (self.wrapped, self.ahead) = (false, index);
        }
        let near = core::mem::take(&mut self.near);
        self.add_bag(bags, index, &near[..count]);
        self.near = near;
        self.near.drain(..count);
    }

    /// Adds a bag of places, of which the least is its lower bound.
    fn add_bag(&mut self, bags: &mut Bags, index: usize, places: &[Place]) {
        let number = bags.take();
        bags.places[number as usize][..places.len()].copy_from_slice(places);
        let low = places.iter().min().expect("a bag is not empty");
        self.lows.insert(index, *low);
        let len = places.len() as u32;
        self.bags.insert(index, Bag { number, len });
    }

    fn drop_bag(&mut self, bags: &mut Bags, index: usize) {
        bags.free.push(self.bags[index].number);
        self.lows.remove(index);
        self.bags.remove(index);
        self.ahead -= usize::from(self.open && index < self.ahead);
        if self.bags.is_empty() && self.open {
            (self.wrapped, self.ahead) = (true, 0);
        }
    }

    /// Sorts the next bag, if there is one.
    #[cold]
    fn open(&mut self, bags: &mut Bags) {
        if !self.open {
            (self.open, self.wrapped) = (true, false);
            self.ahead = self.lows.partition_point(|low| *low <= self.at);
            if let Some(index) = self.ahead.checked_sub(1) {
                self.open_bag(bags, index, self.at);
            }
        }
        if self.bags.is_empty() {
            (self.wrapped, self.ahead) = (true, 0);
        } else if self.near.is_empty() {
            self.wrapped |= self.ahead == self.bags.len();
            let next = if self.wrapped { 0 } else { self.ahead };
            self.open_bag(bags, next, 0);
        }
    }

    /// Moves the places of a bag that are not below `from` to `near`, which is empty.
    fn open_bag(&mut self, bags: &mut Bags, index: usize, from: Place) {
        let Bag { number, len } = &mut self.bags[index];
        let places = &mut bags.places[*number as usize];
        let mut kept = 0;
        for i in 0..*len as usize {
            let place = places[i];
            match place < from {
                true => {
                    places[kept] = place;
                    kept += 1;
                }
                false => self.near.push(place),
            }
        }
        *len = kept as u32;
        self.near.sort_unstable_by(|one, other| other.cmp(one));
        if kept == 0 {
            self.drop_bag(bags, index);
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
        let mut bags = Bags::new();
        for seed in 0..40 {
            let mut random = Random::new(seed);
            let (mut sweep, mut tree, mut at) = (Sweep::new(), BTreeSet::new(), 0);
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
                        sweep.insert(&mut bags, place);
                    }
                } else if choice < 95 {
                    let next = next_of(&tree, at);
                    assert_eq!(sweep.next(&mut bags).0, next, "seed {seed}");
                    if let Some(next) = next {
                        sweep.take_next();
                        tree.remove(&next);
                        at = next;
                    }
                } else if let Some(place) = next_of(&tree, Place::from(random.below(range)) << 64) {
                    sweep.remove(&mut bags, place);
                    tree.remove(&place);
                    jumps += 1;
                    if random.chance(30) {
                        sweep.jump(&mut bags, place);
                        at = place;
                    }
                }
            }
            assert!(jumps > 0);
            while let Some(next) = next_of(&tree, at) {
                assert_eq!(sweep.next(&mut bags).0, Some(next), "seed {seed}");
                sweep.take_next();
                tree.remove(&next);
                at = next;
            }
            assert_eq!(sweep.next(&mut bags), (None, None));
            sweep.restart();
            assert_eq!(bags.free.len(), bags.places.len());
        }
    }
}
