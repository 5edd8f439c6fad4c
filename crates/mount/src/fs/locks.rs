//! Locks of this mount's processes: set at the forwarders, released with their owner.
//!
//! The kernel sends a flush when a process closes a descriptor, and a release when an open file is
//! gone. A dying process waits for the answer to a flush. The mount waits until the forwarder has
//! released the locks, because the next process may expect the lock to be free, but it waits only
//! for [`PATIENCE`]. After that the client releases them in the background, and so it does with the
//! following ones for [`SULK`].

use super::convert;
use super::forwarders::Forwarders;
use super::opens::OpenFile;
use crate::fuse::{self, Errno};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_client::wire::{Handle, Lock, LockFamily, LockKind, Op};
use tidegate_client::{Bytes, Context};

/// How long a close may take because of its locks.
const PATIENCE: Duration = Duration::from_millis(400);
/// A whole-file lock of this mount that refuses somebody else on the mount may belong to an open
/// file that is already closed. The kernel does not wait for a release, and the thread that
/// received the release may be slower than the one that received the lock request. The mount waits
/// this long to find out.
const OVERTAKEN: Duration = Duration::from_millis(20);
/// After a close has waited in vain, no close waits for this time.
const SULK: Duration = Duration::from_secs(5);

pub(super) struct Locks {
    forwarders: Arc<dyn Forwarders>,
    state: Mutex<State>,
    released: Condvar,
}

#[derive(Default)]
struct State {
    /// Who may hold ranges of a file, each with the number of the open file through which it last
    /// asked.
    ranges: HashMap<Handle, HashMap<u64, u64>>,
    /// Who holds whole files.
    wholes: HashMap<Handle, HashSet<u64>>,
    /// Number of releases that are done.
    releases: u64,
    /// Files on which releases are under way.
    releasing: HashMap<Handle, usize>,
    sulking_until: Option<Instant>,
}

impl State {
    /// Forgets an owner of ranges; true if there was one.
    fn forget(&mut self, handle: Handle, owner: u64) -> bool {
        let Some(owners) = self.ranges.get_mut(&handle) else {
            return false;
        };
        let held = owners.remove(&owner).is_some();
        if owners.is_empty() {
            self.ranges.remove(&handle);
        }
        held
    }

    /// Records whether an owner holds a whole file.
    fn hold_whole(&mut self, handle: Handle, owner: u64, holds: bool) {
        let owners = self.wholes.entry(handle).or_default();
        match holds {
            true => owners.insert(owner),
            false => owners.remove(&owner),
        };
        if owners.is_empty() {
            self.wholes.remove(&handle);
        }
    }

    /// The owners that last asked through this open file.
    fn owners_through(&self, file: &OpenFile) -> Vec<u64> {
        let owners = self.ranges.get(&file.handle).into_iter().flatten();
        owners
            .filter(|(_, number)| **number == file.number)
            .map(|(owner, _)| *owner)
            .collect()
    }
}

impl Locks {
    pub(super) fn new(forwarders: Arc<dyn Forwarders>) -> Self {
        Self {
            forwarders,
            state: Mutex::default(),
            released: Condvar::new(),
        }
    }

    /// Sets or releases a lock. With `wait`, only the cancellation of the request ends the waiting.
    pub(super) fn set(
        &self,
        context: &Context,
        file: &OpenFile,
        asked: &fuse::Lock,
        wait: bool,
    ) -> Result<(), Errno> {
        self.await_releases(file.handle);
        let lock = convert::wire_lock(asked);
        if lock.family == LockFamily::Range && lock.kind != LockKind::None {
            // Before asking: a lock that is granted while its owner is killed is released, too.
            let mut state = self.state();
            state
                .ranges
                .entry(file.handle)
                .or_default()
                .insert(lock.owner, file.number);
        }
        // Zero: for ever.
        let timeout = if wait {
            Some(Duration::ZERO)
        } else {
            context.timeout
        };
        let context = Context {
            timeout,
            ..context.clone()
        };
        let before = self.state().releases;
        let mut asked = self.ask(&context, file.handle, lock, wait);
        let is_whole = lock.family == LockFamily::Whole;
        let refused = is_whole && asked == Err(Errno::AGAIN);
        if refused && self.was_overtaken(file.handle, lock.owner, before) {
            self.await_releases(file.handle);
            asked = self.ask(&context, file.handle, lock, wait);
        }
        asked?;
        if is_whole {
            let holds = lock.kind != LockKind::None;
            self.state().hold_whole(file.handle, lock.owner, holds);
        }
        let everything = lock.start == 0 && lock.end == u64::MAX;
        if lock.family == LockFamily::Range && lock.kind == LockKind::None && everything {
            self.state().forget(file.handle, lock.owner);
        }
        Ok(())
    }

    /// Releases the byte ranges of a process that has closed a descriptor of the file, whichever
    /// descriptor it used to lock them.
    pub(super) fn flushed(&self, file: &OpenFile, owner: u64) {
        // Not in the condition: the lock on the state would be held throughout.
        let held = self.state().forget(file.handle, owner);
        if held {
            self.release(file, LockFamily::Range, owner);
        }
    }

    /// Releases the locks of an open file that is gone: its whole-file lock, of `whole` if it may
    /// have had one, and the byte ranges that belong to it rather than to a process (F_OFD_SETLK).
    pub(super) fn closed(&self, file: &OpenFile, whole: Option<u64>) {
        let owners = self.state().owners_through(file);
        for owner in owners {
            self.flushed(file, owner);
        }
        if let Some(owner) = whole {
            self.release(file, LockFamily::Whole, owner);
        }
    }

    fn release(&self, file: &OpenFile, family: LockFamily, owner: u64) {
        let sulking = {
            let mut state = self.state();
            *state.releasing.entry(file.handle).or_default() += 1;
            if family == LockFamily::Whole {
                state.hold_whole(file.handle, owner, false);
            }
            state
                .sulking_until
                .is_some_and(|until| Instant::now() < until)
        };
        let lock = Lock {
            family,
            kind: LockKind::None,
            owner,
            pid: 0,
            start: 0,
            end: u64::MAX,
        };
        let context = Context {
            caller: file.caller.clone(),
            app: file.app(),
            timeout: Some(PATIENCE),
            ..Context::default()
        };
        if sulking || self.ask(&context, file.handle, lock, false).is_err() {
            self.forwarders.drop_locks(file.handle, family, owner);
            if !sulking {
                self.state().sulking_until = Some(Instant::now() + SULK);
            }
        }
        let mut state = self.state();
        state.releases += 1;
        if let Some(count) = state.releasing.get_mut(&file.handle) {
            *count -= 1;
            if *count == 0 {
                state.releasing.remove(&file.handle);
            }
        }
        self.released.notify_all();
    }

    /// Whether a release came after the lock request that was refused because of it: more than
    /// `before` releases are done, or one is under way. Waits for one only if somebody else on this
    /// mount holds the file.
    fn was_overtaken(&self, handle: Handle, owner: u64, before: u64) -> bool {
        let until = Instant::now() + OVERTAKEN;
        let mut state = self.state();
        loop {
            if state.releases != before || state.releasing.contains_key(&handle) {
                return true;
            }
            let others = state.wholes.get(&handle);
            let is_held = others.is_some_and(|owners| owners.iter().any(|other| *other != owner));
            let left = until.checked_duration_since(Instant::now());
            let Some(left) = left.filter(|_| is_held) else {
                return false;
            };
            let waited = self.released.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for releases of a file that are under way. The kernel does not wait for them, so a
    /// process that comes later must: else a lock that is already given up would refuse it.
    fn await_releases(&self, handle: Handle) {
        let until = Instant::now() + PATIENCE;
        let mut state = self.state();
        while state.releasing.contains_key(&handle) {
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                return;
            };
            let waited = self.released.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn ask(&self, context: &Context, handle: Handle, lock: Lock, wait: bool) -> Result<(), Errno> {
        let op = Op::SetLock {
            handle,
            lock,
            wait,
            reclaim: false,
        };
        let answer = self.forwarders.call(context, op, Bytes::new());
        answer.map(drop).map_err(convert::errno)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
