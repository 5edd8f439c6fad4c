//! Data requests for which the scheduler has no room, by turns of users.

use super::receive::Key;
use alloc::collections::{BTreeMap, VecDeque};

/// The requests that wait for room. A user is None if the requests are the forwarder's own.
#[derive(Default)]
pub(super) struct Parked {
    /// Those of each user that has some, in order of arrival.
    of_users: BTreeMap<Option<u32>, VecDeque<Key>>,
    /// These users. The first has the next turn.
    turns: VecDeque<Option<u32>>,
}

impl Parked {
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Lets a request of a user wait.
    pub(super) fn push(&mut self, user: Option<u32>, key: Key) {
        let requests = self.of_users.entry(user).or_default();
        if requests.is_empty() {
            self.turns.push_back(user);
        }
        requests.push_back(key);
    }

    /// The request whose turn it is.
    pub(super) fn front(&self) -> Option<Key> {
        let requests = self.of_users.get(self.turns.front()?)?;
        requests.front().copied()
    }

    /// Takes the request whose turn it is. The next turn is another user's.
    pub(super) fn pop(&mut self) -> Option<Key> {
        let user = self.turns.pop_front()?;
        let requests = self.of_users.get_mut(&user)?;
        let key = requests.pop_front();
        match requests.is_empty() {
            true => drop(self.of_users.remove(&user)),
            false => self.turns.push_back(user),
        }
        key
    }

    /// Takes a request out; false if it does not wait here.
    pub(super) fn remove(&mut self, user: Option<u32>, key: Key) -> bool {
        let Some(requests) = self.of_users.get_mut(&user) else {
            return false;
        };
        let Some(at) = requests.iter().position(|waits| *waits == key) else {
            return false;
        };
        requests.remove(at);
        if requests.is_empty() {
            self.of_users.remove(&user);
            self.turns.retain(|waits| *waits != user);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_behind_thousands_of_another_user_has_the_second_turn() {
        let mut parked = Parked::default();
        (0..10_000).for_each(|key| parked.push(Some(7), key));
        parked.push(Some(8), 20_000);
        parked.push(None, 30_000);
        parked.push(Some(8), 20_001);
        let mut taken = core::iter::from_fn(|| parked.pop());
        let begin: [Key; 6] = core::array::from_fn(|_| taken.next().expect("they wait"));
        assert_eq!(begin, [0, 20_000, 30_000, 1, 20_001, 2]);
        assert!(taken.eq(3..10_000), "one user's in order of arrival");
        assert!(parked.is_empty() && parked.of_users.is_empty());
    }

    #[test]
    fn what_is_taken_out_has_no_turn() {
        let mut parked = Parked::default();
        (0..3).for_each(|key| parked.push(Some(u32::from(key == 1)), key));
        assert!(!parked.remove(Some(0), 1) && !parked.remove(None, 1));
        assert!(parked.remove(Some(1), 1));
        assert!(parked.remove(Some(0), 0));
        assert_eq!((parked.front(), parked.pop()), (Some(2), Some(2)));
        assert!(parked.is_empty() && parked.front().is_none());
    }
}
