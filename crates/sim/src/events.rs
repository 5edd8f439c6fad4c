//! A queue of events in virtual time. Events at the same time come out in the order in which they
//! were added.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events of kind `E`, each at a time in ns.
pub struct Events<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    made: u64,
    now: u64,
}

struct Entry<E> {
    at: u64,
    number: u64,
    event: E,
}

impl<E> Entry<E> {
    /// Time, then number: one comparison instead of two.
    fn key(&self) -> u128 {
        u128::from(self.at) << 64 | u128::from(self.number)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl<E> Eq for Entry<E> {}
impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
    // The heap asks these, for each event a dozen times.
    fn lt(&self, other: &Self) -> bool {
        self.key() < other.key()
    }
    fn le(&self, other: &Self) -> bool {
        self.key() <= other.key()
    }
    fn gt(&self, other: &Self) -> bool {
        self.key() > other.key()
    }
    fn ge(&self, other: &Self) -> bool {
        self.key() >= other.key()
    }
}
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Events {
            heap: BinaryHeap::new(),
            made: 0,
            now: 0,
        }
    }
}

impl<E> Events<E> {
    /// The present time in ns: that of the last event popped.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Makes an event happen at a time, not before the present.
    pub fn push(&mut self, at: u64, event: E) {
        self.made += 1;
        self.heap.push(Reverse(Entry {
            at: at.max(self.now),
            number: self.made,
            event,
        }));
    }

    /// The next event; the present becomes its time.
    pub fn pop(&mut self) -> Option<E> {
        let Reverse(entry) = self.heap.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order_of_time_then_of_making() {
        let mut events = Events::default();
        events.push(20, 'c');
        events.push(10, 'a');
        events.push(10, 'b');
        let mut seen = String::new();
        while let Some(event) = events.pop() {
            seen.push(event);
        }
        assert_eq!(seen, "abc");
        assert_eq!(events.now(), 20);
    }
}
