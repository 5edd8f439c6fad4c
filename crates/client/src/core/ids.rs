//! A set of request ids in ascending order. New ids are nearly always the largest and old ones
//! leave first, so a queue is cheaper than a tree.

use super::requests::Id;
use std::collections::VecDeque;

#[derive(Default)]
pub(super) struct Ids(VecDeque<Id>);

impl Ids {
    pub(super) fn insert(&mut self, id: Id) {
        if self.0.back().is_none_or(|last| *last < id) {
            return self.0.push_back(id);
        }
        if let Err(at) = self.0.binary_search(&id) {
            self.0.insert(at, id);
        }
    }

    /// Removes an id; false if the set did not have it.
    pub(super) fn remove(&mut self, id: Id) -> bool {
        if self.0.front() == Some(&id) {
            self.0.pop_front();
            return true;
        }
        match self.0.binary_search(&id) {
            Ok(at) => self.0.remove(at).is_some(),
            Err(_) => false,
        }
    }

    pub(super) fn pop_first(&mut self) -> Option<Id> {
        self.0.pop_front()
    }

    pub(super) fn retain(&mut self, stays: impl FnMut(&Id) -> bool) {
        self.0.retain(stays);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Id> {
        self.0.iter().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_stay_in_order_whatever_comes_and_goes() {
        let mut ids = Ids::default();
        for id in [3, 5, 9, 4, 5, 1] {
            ids.insert(id);
        }
        assert_eq!(ids.iter().collect::<Vec<_>>(), [1, 3, 4, 5, 9]);
        assert!(ids.remove(1) && ids.remove(4) && !ids.remove(4) && !ids.remove(7));
        assert_eq!(ids.pop_first(), Some(3));
        ids.retain(|id| *id != 5);
        assert_eq!((ids.len(), ids.pop_first()), (1, Some(9)));
        assert!(ids.is_empty() && ids.pop_first().is_none());
    }
}
