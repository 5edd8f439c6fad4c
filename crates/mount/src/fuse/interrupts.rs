//! Which requests are in work, and which of them nobody waits for any more.
//!
//! An interrupt names a request that some thread has read. If the caller is dying, or waits for a
//! lock, the request's token is cancelled. If it has merely got a signal that it will survive, the
//! request goes on as it would on a local disk, and is watched: the kernel sends one interrupt a
//! request, so when the caller is killed afterwards nothing else would tell.

use super::cancel::CancelToken;
use super::signals;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often the callers of interrupted requests are looked at.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);

/// Requests are spread over this many tables, so that threads seldom meet.
const SHARDS: usize = 16;

/// A request in work.
#[derive(Clone)]
struct Pending {
    cancel: CancelToken,
    tid: u32,
    any_signal: bool,
}

/// The requests in work of one session.
pub(super) struct Interrupts {
    shards: [Mutex<HashMap<u64, Pending>>; SHARDS],
    watch: Mutex<Watch>,
    watch_changed: Condvar,
}

#[derive(Default)]
struct Watch {
    interrupted: Vec<u64>,
    running: bool,
    ended: bool,
}

impl Interrupts {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            watch: Mutex::default(),
            watch_changed: Condvar::new(),
        })
    }

    /// Enters a request that was read. `any_signal` says that it ends with a signal that the
    /// caller survives, too.
    pub(super) fn begin(&self, unique: u64, tid: u32, any_signal: bool) -> CancelToken {
        let cancel = CancelToken::new();
        let pending = Pending {
            cancel: cancel.clone(),
            tid,
            any_signal,
        };
        self.shard(unique).insert(unique, pending);
        cancel
    }

    /// The request is answered.
    pub(super) fn end(&self, unique: u64) {
        self.shard(unique).remove(&unique);
    }

    /// Somebody no longer waits for the request. False if no such request is in work (yet).
    pub(super) fn interrupt(self: &Arc<Self>, unique: u64) -> bool {
        let Some(pending) = self.shard(unique).get(&unique).cloned() else {
            return false;
        };
        if pending.any_signal || signals::is_dying(pending.tid) {
            pending.cancel.cancel();
        } else {
            self.keep_an_eye_on(unique);
        }
        true
    }

    /// The mount is gone: ends everything in work, and the watch.
    pub(super) fn cancel_all(&self) {
        for shard in &self.shards {
            let pending = std::mem::take(&mut *lock(shard));
            for pending in pending.into_values() {
                pending.cancel.cancel();
            }
        }
        lock(&self.watch).ended = true;
        self.watch_changed.notify_all();
    }

    fn keep_an_eye_on(self: &Arc<Self>, unique: u64) {
        let mut watch = lock(&self.watch);
        watch.interrupted.push(unique);
        if !watch.running {
            let interrupts = Arc::clone(self);
            let thread = std::thread::Builder::new().name("tidegate-watch".into());
            match thread.spawn(move || interrupts.watch()) {
                Ok(_) => watch.running = true,
                // Tried again with the next interrupt.
                Err(error) => tracing::warn!(%error, "cannot watch interrupted requests"),
            }
        }
        self.watch_changed.notify_all();
    }

    /// Looks at the callers of interrupted requests until there is none left.
    fn watch(&self) {
        let mut watch = lock(&self.watch);
        while !watch.ended && !watch.interrupted.is_empty() {
            let waited = self.watch_changed.wait_timeout(watch, WATCH_INTERVAL);
            watch = waited.unwrap_or_else(PoisonError::into_inner).0;
            let interrupted = std::mem::take(&mut watch.interrupted);
            drop(watch);
            let alive: Vec<u64> = interrupted
                .into_iter()
                .filter(|it| self.lives(*it))
                .collect();
            watch = lock(&self.watch);
            watch.interrupted.extend(alive);
        }
        watch.running = false;
    }

    /// Whether the request is still in work for somebody; cancels it when its caller is dying.
    fn lives(&self, unique: u64) -> bool {
        let Some(pending) = self.shard(unique).get(&unique).cloned() else {
            return false;
        };
        let dying = signals::is_dying(pending.tid);
        if dying {
            pending.cancel.cancel();
        }
        !dying
    }

    fn shard(&self, unique: u64) -> MutexGuard<'_, HashMap<u64, Pending>> {
        // The kernel counts requests in steps of two.
        lock(&self.shards[(unique >> 1) as usize % SHARDS])
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Instant;

    #[test]
    fn an_interrupt_of_an_unknown_or_answered_request_is_not_taken() {
        let interrupts = Interrupts::new();
        assert!(!interrupts.interrupt(2));
        let cancel = interrupts.begin(2, std::process::id(), false);
        interrupts.end(2);
        assert!(!interrupts.interrupt(2));
        assert!(!cancel.is_cancelled());
    }

    #[test]
    fn a_caller_that_lives_on_waits_on_unless_for_a_lock() {
        let interrupts = Interrupts::new();
        let read = interrupts.begin(2, std::process::id(), false);
        let lock = interrupts.begin(4, std::process::id(), true);
        assert!(interrupts.interrupt(2) && interrupts.interrupt(4));
        assert!(lock.is_cancelled());
        std::thread::sleep(WATCH_INTERVAL * 2);
        assert!(!read.is_cancelled());
        interrupts.cancel_all();
        assert!(read.is_cancelled());
    }

    #[test]
    fn a_caller_killed_after_its_interrupt_is_noticed() {
        let interrupts = Interrupts::new();
        let mut caller = Command::new("sleep").arg("60").spawn().expect("sleep");
        let read = interrupts.begin(2, caller.id(), false);
        assert!(interrupts.interrupt(2));
        assert!(!read.is_cancelled());
        caller.kill().expect("a child of ours");
        caller.wait().expect("a child of ours");
        let start = Instant::now();
        while !read.is_cancelled() {
            assert!(
                start.elapsed() < Duration::from_secs(5),
                "the death went unnoticed"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
