//! Clears the caches of those who make calls, as the core demands: on the thread of the call that
//! is the reason, else on a thread of its own. The threads that take in replies do not clear them:
//! that can wait for a reply.

use crate::wire::Handle;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// A cache of attributes, such as that of the kernel of a mount's node.
pub trait Invalidates: Send + Sync {
    /// Clears the cache of the attributes of these files, also of those in answers that are on
    /// their way into it. Returns when nobody sees them there any more. May be called by several
    /// threads at once.
    fn invalidate(&self, files: &[Handle]);
}

/// What callers must not cache any more.
pub(super) struct Invalid {
    /// The core's number.
    pub(super) number: u64,
    pub(super) files: Vec<Handle>,
}

/// The cache, if there is one, and what the thread shall clear it of.
#[derive(Default)]
pub(super) struct Caches {
    cache: OnceLock<Arc<dyn Invalidates>>,
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue {
    tasks: Mutex<Tasks>,
    changed: Condvar,
}

#[derive(Default)]
struct Tasks {
    invalid: Vec<Invalid>,
    /// The client is gone.
    ended: bool,
}

impl Caches {
    /// Starts the thread, which ends with the client. It calls `cleared` with the core's number of
    /// what it has cleared.
    pub(super) fn start(
        &self,
        cache: Arc<dyn Invalidates>,
        cleared: impl Fn(u64) + Send + 'static,
    ) -> std::io::Result<()> {
        let (queue, own) = (Arc::clone(&self.queue), Arc::clone(&cache));
        let thread = std::thread::Builder::new().name("tidegate-cache".into());
        thread.spawn(move || queue.clear_until_end(&*own, &cleared))?;
        if self.cache.set(cache).is_err() {
            tracing::warn!("a client has one cache; the second one is not used");
        }
        Ok(())
    }

    /// Lets the thread clear the cache.
    pub(super) fn clear_later(&self, invalid: Vec<Invalid>) {
        if !invalid.is_empty() {
            self.queue.tasks().invalid.extend(invalid);
            self.queue.changed.notify_one();
        }
    }

    /// Clears the cache now.
    pub(super) fn clear(&self, invalid: &Invalid) {
        if let Some(cache) = self.cache.get() {
            cache.invalidate(&invalid.files);
        }
    }
}

impl Drop for Caches {
    fn drop(&mut self) {
        self.queue.tasks().ended = true;
        self.queue.changed.notify_all();
    }
}

impl Queue {
    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clear_until_end(&self, cache: &dyn Invalidates, cleared: &dyn Fn(u64)) {
        loop {
            let mut tasks = self.tasks();
            while tasks.invalid.is_empty() {
                if tasks.ended {
                    return;
                }
                let woken = self.changed.wait(tasks);
                tasks = woken.unwrap_or_else(PoisonError::into_inner);
            }
            let invalid = mem::take(&mut tasks.invalid);
            drop(tasks);
            for invalid in invalid {
                cache.invalidate(&invalid.files);
                cleared(invalid.number);
            }
        }
    }
}
