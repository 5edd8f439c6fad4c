//! Requests in order of place: upwards through files and offsets, and then from the lowest again.
//!
//! A shared block of the policies that order by what requests say of themselves. Places are the
//! same on every forwarder, arrival is not; and neighbours cost a disk no seek.

use crate::requests::{Index, List, Requests};
use alloc::vec::Vec;

/// How many requests are kept in order of place, so that a long queue does not make
/// arrivals expensive. What comes beyond waits in order of arrival until there is room.
const SWEEP_MAX: usize = 256;

/// Room for so many is filled at once: it takes one pass over the sweep, and what is looked at
/// for the first time since it came is fetched while others are.
const REFILL: usize = 64;

/// File, offset, index of the request.
type Place = (u64, u64, Index);

/// Requests that are taken one after the other.
pub(crate) struct ElevatorQueue {
    /// The last one is next: upwards from where the sweep is, then from the lowest again.
    sweep: Vec<Place>,
    /// Where the sweep is: the place of the last one that was picked.
    at: Place,
    /// In order of arrival; empty unless the sweep is full.
    rest: List,
}

impl ElevatorQueue {
    /// Nothing, with room for a few.
    pub(crate) fn new() -> ElevatorQueue {
        ElevatorQueue {
            sweep: Vec::with_capacity(REFILL),
            at: (0, 0, 0),
            rest: List::new(),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.sweep.is_empty()
    }

    /// Begins with the lowest.
    #[inline]
    pub(crate) fn restart(&mut self) {
        self.at = (0, 0, 0);
    }

    /// Adds a request that is in no queue.
    pub(crate) fn push(&mut self, requests: &mut Requests, index: Index) {
        if self.rest.is_empty() && self.sweep.len() < SWEEP_MAX {
            let place = place(requests, index);
            self.sweep.insert(self.rank(&place), place);
        } else {
            requests.push_back(&mut self.rest, index);
        }
    }

    /// Takes the next upwards, or the lowest again.
    pub(crate) fn pop(&mut self, requests: &mut Requests) -> Index {
        self.at = self.sweep.pop().expect("it is not asked when empty");
        self.refill(requests);
        self.at.2
    }

    /// Takes a request out that is in it.
    pub(crate) fn remove(&mut self, requests: &mut Requests, index: Index) {
        let place = place(requests, index);
        let rank = self.rank(&place);
        if self.sweep.get(rank) != Some(&place) {
            requests.unlink(&mut self.rest, index);
            return;
        }
        self.sweep.remove(rank);
        self.refill(requests);
    }

    /// How many of the sweep come after a place.
    fn rank(&self, place: &Place) -> usize {
        let at = &self.at;
        let order = (place < at, place);
        self.sweep.partition_point(|one| (one < at, one) > order)
    }

    fn refill(&mut self, requests: &mut Requests) {
        if self.rest.is_empty() || self.sweep.len() > SWEEP_MAX - REFILL {
            return;
        }
        let mut indices = [0; REFILL];
        let count = requests.pop_fronts(&mut self.rest, &mut indices);
        let mut places = [Place::default(); REFILL];
        for (to, &index) in places.iter_mut().zip(&indices[..count]) {
            *to = place(requests, index);
            requests.prefetch_id(index);
        }
        let at = self.at;
        let order = |one: &Place| (*one < at, *one);
        let new = &mut places[..count];
        new.sort_unstable_by_key(|one| core::cmp::Reverse(order(one)));
        // Both are in order: from the back each place gets the one that is next of them.
        let (mut old, mut left) = (self.sweep.len(), count);
        self.sweep.resize(old + count, at);
        while left > 0 {
            let to = old + left - 1;
            if old > 0 && order(&self.sweep[old - 1]) < order(&new[left - 1]) {
                self.sweep[to] = self.sweep[old - 1];
                old -= 1;
            } else {
                self.sweep[to] = new[left - 1];
                left -= 1;
            }
        }
    }
}

fn place(requests: &Requests, index: Index) -> Place {
    let request = &requests[index].request;
    (request.file.0, request.offset, index)
}
