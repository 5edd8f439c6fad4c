//! A table of values under small numbers, which it uses again without allocation.

use alloc::vec::Vec;

/// Values by number; the lowest numbers are reused last in, first out.
pub(super) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Slab<T> {
        Slab {
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.places[at as usize] = Some(value);
                at
            }
            None => {
                let at = u32::try_from(self.places.len()).expect("bounded by credits and sessions");
                self.places.push(Some(value));
                at
            }
        }
    }

    /// The numbers of the values that are there.
    pub(super) fn numbers(&self) -> Vec<u32> {
        let places = self.places.iter().enumerate();
        let taken = places.filter_map(|(at, place)| place.is_some().then_some(at as u32));
        taken.collect()
    }

    pub(super) fn get(&self, at: u32) -> Option<&T> {
        self.places.get(at as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.places.get_mut(at as usize)?.as_mut()
    }

    pub(super) fn remove(&mut self, at: u32) -> Option<T> {
        let value = self.places.get_mut(at as usize)?.take()?;
        self.free.push(at);
        Some(value)
    }
}

impl<T> core::ops::Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, at: u32) -> &T {
        self.get(at).expect("the place is taken")
    }
}

impl<T> core::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        self.get_mut(at).expect("the place is taken")
    }
}
