//! Advisory locks in memory, as a forwarder keeps them.

use rustix::io::Errno as Linux;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidegate_client::Context;
use tidegate_client::wire::{Handle, Lock, LockFamily, LockKind};

#[derive(Default)]
pub struct LockTable {
    held: Mutex<HashMap<Handle, Vec<Lock>>>,
    /// Who waits for a lock, counted.
    pub waiting: AtomicUsize,
}

impl LockTable {
    pub fn set(&self, handle: Handle, lock: Lock, wait: bool, ctx: &Context) -> Result<(), Linux> {
        self.waiting.fetch_add(usize::from(wait), Ordering::SeqCst);
        let result = self.set_when_free(handle, lock, wait, ctx);
        self.waiting.fetch_sub(usize::from(wait), Ordering::SeqCst);
        result
    }

    fn set_when_free(
        &self,
        handle: Handle,
        lock: Lock,
        wait: bool,
        ctx: &Context,
    ) -> Result<(), Linux> {
        loop {
            {
                let mut held = self.held.lock().unwrap();
                let held = held.entry(handle).or_default();
                if lock.kind == LockKind::None || conflict(held, &lock).is_none() {
                    replace(held, lock);
                    return Ok(());
                }
            }
            if !wait {
                return Err(Linux::AGAIN);
            }
            if ctx
                .cancel
                .as_ref()
                .is_some_and(|cancel| cancel.is_cancelled())
            {
                return Err(Linux::INTR);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn test(&self, handle: Handle, lock: &Lock) -> Option<Lock> {
        let held = self.held.lock().unwrap();
        conflict(held.get(&handle)?, lock)
    }

    pub fn drop_owner(&self, handle: Handle, family: LockFamily, owner: u64) {
        if let Some(held) = self.held.lock().unwrap().get_mut(&handle) {
            held.retain(|lock| lock.family != family || lock.owner != owner);
        }
    }
}

fn overlap(one: &Lock, other: &Lock) -> bool {
    one.family == other.family && one.start <= other.end && other.start <= one.end
}

fn conflict(held: &[Lock], lock: &Lock) -> Option<Lock> {
    let excludes = |other: &&Lock| {
        other.owner != lock.owner
            && overlap(other, lock)
            && (other.kind == LockKind::Exclusive || lock.kind == LockKind::Exclusive)
    };
    held.iter().find(excludes).copied()
}

/// Puts the lock in the place of what its owner held of the range.
fn replace(held: &mut Vec<Lock>, lock: Lock) {
    let (mine, mut kept): (Vec<Lock>, Vec<Lock>) = held
        .iter()
        .partition(|other| other.owner == lock.owner && overlap(other, &lock));
    for other in mine {
        if other.start < lock.start {
            kept.push(Lock {
                end: lock.start - 1,
                ..other
            });
        }
        if other.end > lock.end {
            kept.push(Lock {
                start: lock.end + 1,
                ..other
            });
        }
    }
    if lock.kind != LockKind::None {
        kept.push(lock);
    }
    *held = kept;
}
