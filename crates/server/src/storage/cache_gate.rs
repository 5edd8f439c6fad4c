//! The gate of a file: it separates direct writes from calls through the page cache.
//!
//! A direct write drops the pages that it covers, before and after it writes. A buffered call that
//! runs at the same time may bring old bytes back into such a page, or keep the page from being
//! dropped. The kernel then gives the next reader old data, and the next fsync an error. Calls of
//! one kind run together; the two kinds exclude each other on one file. Direct reads need no pass,
//! because the kernel first writes dirty pages of their range to the device.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// The two kinds of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A write that bypasses the page cache.
    DirectWrite,
    /// A read or write through the page cache.
    Buffered,
}

/// Admits one kind of calls at a time. The kinds alternate while both wait.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How many calls of each kind are running.
    inside: [u32; 2],
    waiting: [u32; 2],
    /// The kind that is admitted next, as an index, while the other one waits.
    turn: usize,
}

/// The right to make calls of one kind, until it is dropped.
pub(crate) struct Pass {
    gate: Arc<Gate>,
    kind: Kind,
}

impl Gate {
    /// Waits until no call of the other kind runs. The wait is short, because those are system
    /// calls.
    pub(crate) fn enter(self: &Arc<Gate>, kind: Kind) -> Pass {
        let own = kind as usize;
        let mut state = self.lock();
        while !state.may_enter(own) {
            if state.inside[1 - own] > 0 {
                // This kind is admitted next, after the calls that keep it out.
                state.turn = own;
            }
            state.waiting[own] += 1;
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
            state.waiting[own] -= 1;
        }
        state.inside[own] += 1;
        drop(state);
        self.pass(kind)
    }

    /// A pass, if one can be had without waiting.
    pub(crate) fn try_enter(self: &Arc<Gate>, kind: Kind) -> Option<Pass> {
        let mut state = self.lock();
        if !state.may_enter(kind as usize) {
            return None;
        }
        state.inside[kind as usize] += 1;
        drop(state);
        Some(self.pass(kind))
    }

    /// Whether a call waits.
    #[cfg(test)]
    pub(crate) fn is_waited_for(&self) -> bool {
        self.lock().waiting != [0, 0]
    }

    fn pass(self: &Arc<Gate>, kind: Kind) -> Pass {
        let gate = self.clone();
        Pass { gate, kind }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Only numbers are changed under the lock.
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    fn may_enter(&self, own: usize) -> bool {
        let other = 1 - own;
        self.inside[other] == 0 && (self.waiting[other] == 0 || self.turn == own)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let own = self.kind as usize;
        let mut state = self.gate.lock();
        state.inside[own] -= 1;
        if state.inside[own] == 0 {
            state.turn = 1 - own;
            let waits = state.waiting != [0, 0];
            drop(state);
            if waits {
                self.gate.changed.notify_all();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

    #[test]
    fn one_kind_enters_together_and_the_other_waits() {
        let gate = Arc::new(Gate::default());
        let first = gate.enter(Kind::DirectWrite);
        let second = gate.try_enter(Kind::DirectWrite).expect("the same kind");
        assert!(gate.try_enter(Kind::Buffered).is_none());
        drop((first, second));
        assert!(gate.try_enter(Kind::Buffered).is_some());
    }

    #[test]
    fn both_kinds_get_through_and_never_meet() {
        let gate = Arc::new(Gate::default());
        // Direct writers count up, buffered ones down.
        let (inside, done) = (AtomicI64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for number in 0..6 {
                let (gate, inside, done) = (&gate, &inside, &done);
                scope.spawn(move || {
                    let (kind, sign) = match number % 2 {
                        0 => (Kind::DirectWrite, 1),
                        _ => (Kind::Buffered, -1),
                    };
                    for _ in 0..2000 {
                        let _pass = gate.enter(kind);
                        let before = inside.fetch_add(sign, Ordering::SeqCst);
                        assert!(before * sign >= 0, "the kinds met");
                        std::hint::spin_loop();
                        inside.fetch_sub(sign, Ordering::SeqCst);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(done.load(Ordering::Relaxed), 12_000);
    }
}
