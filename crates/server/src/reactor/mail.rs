//! What one thread has for another: handed over once a pass, with one lock and at most one wake,
//! whatever its number.

use mio::Waker;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Ends a thread's sleep, if it sleeps.
///
/// `asleep` is only swapped, never stored: each swap sees what was done before the one before it.
/// So where `ring` comes too early for a sleep, `doze` sees what was handed over before `ring`.
pub struct Bell {
    waker: Arc<Waker>,
    asleep: AtomicBool,
}

impl Bell {
    /// Of the thread whose poll has this waker.
    pub fn new(waker: Arc<Waker>) -> Arc<Bell> {
        Arc::new(Bell {
            waker,
            asleep: AtomicBool::new(false),
        })
    }

    /// Called after a hand-over.
    pub fn ring(&self) {
        if self.asleep.swap(false, Ordering::AcqRel) {
            // The thread has ended when this fails.
            let _ = self.waker.wake();
        }
    }

    /// The thread is about to sleep. It looks at its boxes once more before it does: what was
    /// handed over before this did not ring.
    pub fn doze(&self) {
        self.asleep.swap(true, Ordering::AcqRel);
    }

    /// The thread sleeps no longer.
    pub fn woke(&self) {
        self.asleep.swap(false, Ordering::AcqRel);
    }
}

/// What has been handed over and not been taken. Bounded by what its writers may have under way.
struct Letters<T> {
    letters: Mutex<Vec<T>>,
    /// There are some, or the writer has ended.
    any: AtomicBool,
    ended: AtomicBool,
}

impl<T> Letters<T> {
    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        // Nothing panics while it is locked.
        self.letters
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The writer's end: collects until it is told to hand over. Dropping it ends the reader's wait.
pub struct Outgoing<T> {
    collected: Vec<T>,
    shared: Arc<Letters<T>>,
    bell: Arc<Bell>,
}

/// The reader's end.
pub struct Incoming<T> {
    shared: Arc<Letters<T>>,
}

/// Both ends of a box; `bell` is the reader's.
pub fn letter_box<T>(bell: Arc<Bell>) -> (Outgoing<T>, Incoming<T>) {
    let shared = Arc::new(Letters {
        letters: Mutex::new(Vec::new()),
        any: AtomicBool::new(false),
        ended: AtomicBool::new(false),
    });
    let outgoing = Outgoing {
        collected: Vec::new(),
        shared: shared.clone(),
        bell,
    };
    (outgoing, Incoming { shared })
}

impl<T> Outgoing<T> {
    /// Adds a letter to those that are handed over next.
    pub fn push(&mut self, letter: T) {
        self.collected.push(letter);
    }

    /// Hands over what was collected.
    pub fn hand_over(&mut self) {
        if self.collected.is_empty() {
            return;
        }
        let mut letters = self.shared.lock();
        letters.append(&mut self.collected);
        self.shared.any.store(true, Ordering::Release);
        drop(letters);
        self.bell.ring();
    }
}

impl<T> Drop for Outgoing<T> {
    fn drop(&mut self) {
        self.hand_over();
        let letters = self.shared.lock();
        self.shared.ended.store(true, Ordering::Release);
        self.shared.any.store(true, Ordering::Release);
        drop(letters);
        self.bell.ring();
    }
}

impl<T> Incoming<T> {
    /// Whether [`Incoming::take`] would find something, or the writer has ended.
    pub fn is_any(&self) -> bool {
        self.shared.any.load(Ordering::Acquire)
    }

    /// Whether the writer has ended.
    pub fn is_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }

    /// Takes what was handed over. `into`, which must be empty, is the room of the next letters.
    pub fn take(&self, into: &mut Vec<T>) {
        if !self.is_any() {
            return;
        }
        assert!(into.is_empty(), "the letters before were read");
        let mut letters = self.shared.lock();
        // What an ended writer has left is all there will be: `any` stays, so that nobody sleeps
        // before that is noticed.
        self.shared.any.store(self.is_ended(), Ordering::Release);
        std::mem::swap(&mut *letters, into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::{Events, Poll, Token};
    use std::time::Duration;

    #[test]
    fn letters_come_in_order_and_wake_who_sleeps() {
        const LETTERS: u64 = 100_000;
        let mut poll = Poll::new().expect("epoll");
        let waker = Arc::new(Waker::new(poll.registry(), Token(0)).expect("eventfd"));
        let bell = Bell::new(waker);
        let (mut outgoing, incoming) = letter_box(bell.clone());
        let writer = std::thread::spawn(move || {
            for number in 0..LETTERS {
                outgoing.push(number);
                if number % 7 == 0 {
                    outgoing.hand_over();
                }
            }
        });
        let (mut events, mut letters, mut next) = (Events::with_capacity(4), Vec::new(), 0);
        while !incoming.is_ended() || next < LETTERS {
            bell.doze();
            if !incoming.is_any() {
                // A wake that is lost would show: nothing else ends this.
                poll.poll(&mut events, Some(Duration::from_secs(20)))
                    .expect("epoll");
                assert!(incoming.is_any() || !events.is_empty(), "a lost wake");
            }
            bell.woke();
            incoming.take(&mut letters);
            for number in letters.drain(..) {
                assert_eq!(number, next);
                next += 1;
            }
        }
        writer.join().expect("it does not panic");
        assert!(incoming.is_any(), "the end is still to be seen");
    }
}
