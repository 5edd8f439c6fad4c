//! Mailboxes from one thread to another. The writer collects messages and hands them over together,
//! with one lock and at most one wake, whatever their number.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Ends a thread's sleep, if it sleeps.
///
/// `asleep` is only swapped, never stored: each swap sees what was done before the one before it.
/// So where `wake` comes too early for a sleep, `park` sees what was handed over before `wake`.
pub struct Waker {
    waker: Arc<mio::Waker>,
    asleep: AtomicBool,
}

impl Waker {
    /// Wakes the thread whose poll has this `mio::Waker`.
    pub fn new(waker: Arc<mio::Waker>) -> Arc<Waker> {
        Arc::new(Waker {
            waker,
            asleep: AtomicBool::new(false),
        })
    }

    /// Wakes the thread if it sleeps. A writer calls this after it has handed messages over.
    pub fn wake(&self) {
        if self.asleep.swap(false, Ordering::AcqRel) {
            // This fails only if the thread has ended.
            let _ = self.waker.wake();
        }
    }

    /// Announces that the thread is about to sleep. The thread must look at its mailboxes once more
    /// before it does: a writer that handed over before this call did not wake it.
    pub fn park(&self) {
        self.asleep.swap(true, Ordering::AcqRel);
    }

    /// Announces that the thread no longer sleeps.
    pub fn unpark(&self) {
        self.asleep.swap(false, Ordering::AcqRel);
    }
}

/// Messages that the writer has handed over and the reader has not taken. Their number is bounded
/// by what the writer may have outstanding.
struct Messages<T> {
    messages: Mutex<Vec<T>>,
    /// Whether there are messages, or the writer has dropped its end.
    any: AtomicBool,
    ended: AtomicBool,
}

impl<T> Messages<T> {
    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        // Nothing panics while it is locked.
        self.messages
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The writer's end: collects messages until [`Outgoing::hand_over`]. Dropping it hands over the
/// rest and ends the reader's wait.
pub struct Outgoing<T> {
    collected: Vec<T>,
    shared: Arc<Messages<T>>,
    waker: Arc<Waker>,
}

/// The reader's end.
pub struct Incoming<T> {
    shared: Arc<Messages<T>>,
}

/// Makes a mailbox and returns both ends; `waker` wakes the reader.
pub fn mailbox<T>(waker: Arc<Waker>) -> (Outgoing<T>, Incoming<T>) {
    let shared = Arc::new(Messages {
        messages: Mutex::new(Vec::new()),
        any: AtomicBool::new(false),
        ended: AtomicBool::new(false),
    });
    let outgoing = Outgoing {
        collected: Vec::new(),
        shared: shared.clone(),
        waker,
    };
    (outgoing, Incoming { shared })
}

impl<T> Outgoing<T> {
    /// Collects a message for the next hand-over.
    pub fn push(&mut self, message: T) {
        self.collected.push(message);
    }

    /// Hands the collected messages to the reader and wakes it. Does nothing if there are none.
    pub fn hand_over(&mut self) {
        if self.collected.is_empty() {
            return;
        }
        let mut messages = self.shared.lock();
        messages.append(&mut self.collected);
        self.shared.any.store(true, Ordering::Release);
        drop(messages);
        self.waker.wake();
    }
}

impl<T> Drop for Outgoing<T> {
    fn drop(&mut self) {
        self.hand_over();
        let messages = self.shared.lock();
        self.shared.ended.store(true, Ordering::Release);
        self.shared.any.store(true, Ordering::Release);
        drop(messages);
        self.waker.wake();
    }
}

impl<T> Incoming<T> {
    /// Whether [`Incoming::take`] would find messages, or the writer has dropped its end.
    pub fn is_any(&self) -> bool {
        self.shared.any.load(Ordering::Acquire)
    }

    /// Whether the writer has dropped its end.
    pub fn is_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }

    /// Moves the messages that were handed over into `into`, which must be empty. The mailbox keeps
    /// the memory of `into` for the next messages.
    pub fn take(&self, into: &mut Vec<T>) {
        if !self.is_any() {
            return;
        }
        assert!(into.is_empty(), "the messages before were read");
        let mut messages = self.shared.lock();
        // What an ended writer has left is all there will be: `any` stays, so that nobody sleeps
        // before that is noticed.
        self.shared.any.store(self.is_ended(), Ordering::Release);
        std::mem::swap(&mut *messages, into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::{Events, Poll, Token};
    use std::time::Duration;

    #[test]
    fn messages_come_in_order_and_wake_who_sleeps() {
        const MESSAGES: u64 = 100_000;
        let mut poll = Poll::new().expect("epoll");
        let waker = Arc::new(mio::Waker::new(poll.registry(), Token(0)).expect("eventfd"));
        let waker = Waker::new(waker);
        let (mut outgoing, incoming) = mailbox(waker.clone());
        let writer = std::thread::spawn(move || {
            for number in 0..MESSAGES {
                outgoing.push(number);
                if number % 7 == 0 {
                    outgoing.hand_over();
                }
            }
        });
        let (mut events, mut messages, mut next) = (Events::with_capacity(4), Vec::new(), 0);
        while !incoming.is_ended() || next < MESSAGES {
            waker.park();
            if !incoming.is_any() {
                // A wake that is lost would show: nothing else ends this.
                poll.poll(&mut events, Some(Duration::from_secs(20)))
                    .expect("epoll");
                assert!(incoming.is_any() || !events.is_empty(), "a lost wake");
            }
            waker.unpark();
            incoming.take(&mut messages);
            for number in messages.drain(..) {
                assert_eq!(number, next);
                next += 1;
            }
        }
        writer.join().expect("it does not panic");
        assert!(incoming.is_any(), "the end is still to be seen");
    }
}
