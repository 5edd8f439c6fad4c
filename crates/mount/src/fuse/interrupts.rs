//! Keeps the outstanding requests of a session, and cancels those whose callers have ended.
//!
//! An interrupt names a request that a thread has read. If the caller is dying, or waits for a
//! lock, the session cancels the request's token. If the caller got a signal that it will survive,
//! the request goes on as it would on a local disk, and a thread watches the caller: the kernel
//! sends one interrupt a request, and would send none for a later kill.
//!
//! The kernel sends no interrupt for asynchronous reads and writes, though a killed process waits
//! for them. So the thread watches the callers of those that take long, too.

use super::cancel::CancelToken;
use super::request::Operation;
use super::signals;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often the watching thread looks at the callers of interrupted requests.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// One look in this number also covers the callers of slow reads and writes.
const SLOW_LOOKS: u32 = 3;
/// Age from which on a read or write is slow.
const SLOW: Duration = Duration::from_millis(200);
/// Number of looks without an outstanding request after which the watching thread ends.
const IDLE_LOOKS: u32 = 50;

/// Requests are spread over this many tables, so that threads seldom meet.
const SHARDS: usize = 16;

/// An outstanding request.
struct Pending {
    cancel: CancelToken,
    tid: u32,
    since: Instant,
    /// Whether any signal ends it.
    any_signal: bool,
    /// Whether the kernel may send no interrupt when its caller dies.
    asynchronous: bool,
    /// Whether its caller got a signal, so that the thread watches the caller.
    interrupted: bool,
    /// The process of its caller, once it was looked at.
    process: Option<u32>,
}

/// The outstanding requests of one session.
pub(super) struct Interrupts {
    shards: [Mutex<HashMap<u64, Pending>>; SHARDS],
    /// There is a thread that watches.
    watching: AtomicBool,
    ended: Mutex<bool>,
    end: Condvar,
}

impl Interrupts {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            watching: AtomicBool::new(false),
            ended: Mutex::new(false),
            end: Condvar::new(),
        })
    }

    /// Adds a request of thread `tid` that was read.
    pub(super) fn begin(
        self: &Arc<Self>,
        unique: u64,
        tid: u32,
        operation: &Operation,
    ) -> CancelToken {
        let cancel = CancelToken::new();
        let asynchronous = operation.may_be_asynchronous();
        let pending = Pending {
            cancel: cancel.clone(),
            tid,
            since: Instant::now(),
            any_signal: operation.ends_with_any_signal(),
            asynchronous,
            interrupted: false,
            process: None,
        };
        self.shard(unique).insert(unique, pending);
        if asynchronous {
            self.keep_watch();
        }
        cancel
    }

    /// Removes a request that is answered.
    pub(super) fn end(&self, unique: u64) {
        self.shard(unique).remove(&unique);
    }

    /// Handles an interrupt of a request. False if no such request is outstanding (yet).
    pub(super) fn interrupt(self: &Arc<Self>, unique: u64) -> bool {
        let (cancel, tid, any_signal) = match self.shard(unique).get(&unique) {
            Some(pending) => (pending.cancel.clone(), pending.tid, pending.any_signal),
            None => return false,
        };
        if any_signal || signals::is_dying(tid) {
            cancel.cancel();
        } else if let Some(pending) = self.shard(unique).get_mut(&unique) {
            pending.interrupted = true;
        }
        self.keep_watch();
        true
    }

    /// Cancels all outstanding requests and ends the watching thread, because the mount is gone.
    pub(super) fn cancel_all(&self) {
        for shard in &self.shards {
            let pending = std::mem::take(&mut *lock(shard));
            for pending in pending.into_values() {
                pending.cancel.cancel();
            }
        }
        *lock(&self.ended) = true;
        self.end.notify_all();
    }

    /// Starts the watching thread if there is none.
    fn keep_watch(self: &Arc<Self>) {
        if self.watching.load(Ordering::SeqCst) || self.watching.swap(true, Ordering::SeqCst) {
            return;
        }
        let interrupts = Arc::clone(self);
        let thread = std::thread::Builder::new().name("tidegate-watch".into());
        if let Err(error) = thread.spawn(move || interrupts.watch()) {
            // Tried again with the next request.
            tracing::warn!(%error, "cannot watch for killed processes");
            self.watching.store(false, Ordering::SeqCst);
        }
    }

    /// The loop of the watching thread.
    fn watch(&self) {
        let (mut looks, mut idle) = (0_u32, 0);
        let mut ended = lock(&self.ended);
        while !*ended {
            let waited = self.end.wait_timeout(ended, LOOK_INTERVAL);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            looks = looks.wrapping_add(1);
            idle = if self.look(looks.is_multiple_of(SLOW_LOOKS)) {
                0
            } else {
                idle + 1
            };
            if idle > IDLE_LOOKS {
                self.watching.store(false, Ordering::SeqCst);
                // A request that came before that may have relied on this thread.
                if !self.look(true) || self.watching.swap(true, Ordering::SeqCst) {
                    return;
                }
            }
            ended = lock(&self.ended);
        }
    }

    /// Cancels requests whose callers were killed. False if none is outstanding.
    fn look(&self, slow_ones: bool) -> bool {
        let (mut in_work, mut interrupted, mut slow) = (false, Vec::new(), Vec::new());
        for shard in &self.shards {
            for (unique, pending) in lock(shard).iter() {
                in_work = true;
                if pending.interrupted {
                    interrupted.push((pending.tid, pending.cancel.clone()));
                } else if slow_ones && pending.asynchronous && pending.since.elapsed() > SLOW {
                    slow.push((*unique, pending.tid, pending.process));
                }
            }
        }
        for (tid, cancel) in interrupted {
            if signals::is_dying(tid) {
                cancel.cancel();
            }
        }
        self.look_at_slow(slow);
        in_work
    }

    fn look_at_slow(&self, slow: Vec<(u64, u32, Option<u32>)>) {
        // Many requests of one process are one look at it.
        let mut killed: HashMap<u32, bool> = HashMap::new();
        for (unique, tid, process) in slow {
            // Found while the thread lives: it may end before the process does.
            let Some(process) = process.or_else(|| signals::process_of(tid)) else {
                continue;
            };
            let killed = *killed
                .entry(process)
                .or_insert_with(|| signals::is_killed(process));
            if let Some(pending) = self.shard(unique).get_mut(&unique) {
                pending.process = Some(process);
            }
            if killed {
                self.cancel(unique);
            }
        }
    }

    fn cancel(&self, unique: u64) {
        let cancel = self
            .shard(unique)
            .get(&unique)
            .map(|pending| pending.cancel.clone());
        if let Some(cancel) = cancel {
            // Without the lock of the shard, which its wakers may want.
            cancel.cancel();
        }
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
    use crate::fuse::request::{Lock, LockKind, Read};
    use std::process::Command;

    fn read() -> Operation {
        Operation::Read(Read {
            handle: 1,
            offset: 0,
            len: 1,
            flags: 0,
        })
    }

    fn wait_for_lock() -> Operation {
        let (kind, whole_file) = (LockKind::Shared, false);
        Operation::Setlkw(Lock {
            handle: 1,
            owner: 1,
            start: 0,
            end: 0,
            kind,
            pid: 1,
            whole_file,
        })
    }

    fn until_cancelled(cancel: &CancelToken) {
        let start = Instant::now();
        while !cancel.is_cancelled() {
            assert!(
                start.elapsed() < Duration::from_secs(5),
                "the death went unnoticed"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn an_interrupt_of_an_unknown_or_answered_request_is_not_taken() {
        let interrupts = Interrupts::new();
        assert!(!interrupts.interrupt(2));
        let cancel = interrupts.begin(2, std::process::id(), &read());
        interrupts.end(2);
        assert!(!interrupts.interrupt(2));
        assert!(!cancel.is_cancelled());
        interrupts.cancel_all();
    }

    #[test]
    fn a_caller_that_lives_on_waits_on_unless_for_a_lock() {
        let interrupts = Interrupts::new();
        let read = interrupts.begin(2, std::process::id(), &read());
        let lock = interrupts.begin(4, std::process::id(), &wait_for_lock());
        assert!(interrupts.interrupt(2) && interrupts.interrupt(4));
        assert!(lock.is_cancelled());
        std::thread::sleep(LOOK_INTERVAL * 6);
        assert!(!read.is_cancelled());
        interrupts.cancel_all();
        assert!(read.is_cancelled());
    }

    #[test]
    fn a_caller_killed_after_its_interrupt_is_noticed() {
        let interrupts = Interrupts::new();
        let mut caller = Command::new("sleep").arg("60").spawn().expect("sleep");
        let cancel = interrupts.begin(2, caller.id(), &Operation::Readlink);
        assert!(interrupts.interrupt(2));
        assert!(!cancel.is_cancelled());
        caller.kill().expect("a child of ours");
        until_cancelled(&cancel);
        caller.wait().expect("a child of ours");
        interrupts.cancel_all();
    }

    #[test]
    fn a_killed_caller_of_a_slow_read_is_noticed_without_an_interrupt() {
        let interrupts = Interrupts::new();
        let mut caller = Command::new("sleep").arg("60").spawn().expect("sleep");
        let cancel = interrupts.begin(2, caller.id(), &read());
        std::thread::sleep(SLOW + LOOK_INTERVAL * (SLOW_LOOKS + 1));
        assert!(!cancel.is_cancelled());
        // Not waited for: it stays as a zombie, which is how a process waits for its requests.
        caller.kill().expect("a child of ours");
        until_cancelled(&cancel);
        caller.wait().expect("a child of ours");
        interrupts.cancel_all();
    }
}
