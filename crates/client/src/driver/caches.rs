//! Clears the caches of those who make calls, as the core demands: on the thread of the call that
//! is the reason, else on a thread of its own. The threads that take in replies do not clear them:
//! that can wait for a reply.

use crate::signals::SignalGuard;
use crate::wire::Handle;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// A cache of attributes, such as that of the kernel of a mount's node.
pub trait Invalidates: Send + Sync {
    /// Clears the cache of the attributes of these files, also of those in answers that are on
    /// their way into it. Returns the files of which it may still take in an answer: this is called
    /// for them again. May be called by several threads at once; must not wait for long, nor panic.
    fn invalidate(&self, files: &[Handle]) -> Vec<Handle>;
}

/// First and longest pause before the cache is cleared again of what it may still take in.
const PAUSES: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(20));

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
    pub(super) fn is_started(&self) -> bool {
        self.cache.get().is_some()
    }

    /// Starts the thread, which ends with the client. It calls `cleared` with the core's number of
    /// what it has cleared. Fails if there is a cache already, or no thread can be started.
    pub(super) fn start(
        &self,
        cache: Arc<dyn Invalidates>,
        cleared: impl Fn(u64) + Send + 'static,
    ) -> std::io::Result<()> {
        if self.is_started() {
            return Err(std::io::ErrorKind::AlreadyExists.into());
        }
        let (queue, own) = (Arc::clone(&self.queue), Arc::clone(&cache));
        // The thread takes no signals of the program.
        let _guard = SignalGuard::begin();
        let thread = std::thread::Builder::new().name("tidegate-cache".into());
        thread.spawn(move || queue.clear_until_end(&*own, &cleared))?;
        let set = self.cache.set(cache);
        set.map_err(|_| std::io::ErrorKind::AlreadyExists.into())
    }

    /// Lets the thread clear the cache.
    pub(super) fn clear_later(&self, mut invalid: Vec<Invalid>) {
        if !invalid.is_empty() {
            self.queue.tasks().invalid.append(&mut invalid);
            self.queue.changed.notify_one();
        }
    }

    /// Clears the cache now. Returns what is left of it.
    pub(super) fn clear(&self, invalid: Invalid) -> Option<Invalid> {
        let cache = self.cache.get()?;
        clear(&**cache, invalid)
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
        let (mut left, mut pause) = (Vec::new(), PAUSES.0);
        while let Some(new) = self.wait(left.is_empty(), pause) {
            pause = match new.is_empty() {
                true => (pause * 2).min(PAUSES.1),
                false => PAUSES.0,
            };
            let mut all: Vec<Invalid> = left;
            all.extend(new);
            left = Vec::new();
            for invalid in all {
                let number = invalid.number;
                match clear(cache, invalid) {
                    None => cleared(number),
                    some => left.extend(some),
                }
            }
        }
    }

    /// Waits for something to do, or for the end of the pause where something is left. None: the
    /// client is gone.
    fn wait(&self, nothing_left: bool, pause: Duration) -> Option<Vec<Invalid>> {
        let mut tasks = self.tasks();
        while tasks.invalid.is_empty() && !tasks.ended {
            if !nothing_left {
                let waited = self.changed.wait_timeout(tasks, pause);
                tasks = waited.unwrap_or_else(PoisonError::into_inner).0;
                break;
            }
            let woken = self.changed.wait(tasks);
            tasks = woken.unwrap_or_else(PoisonError::into_inner);
        }
        (!tasks.ended).then(|| mem::take(&mut tasks.invalid))
    }
}

/// Clears the cache. Returns what is left.
fn clear(cache: &dyn Invalidates, mut invalid: Invalid) -> Option<Invalid> {
    invalid.files = cache.invalidate(&invalid.files);
    (!invalid.files.is_empty()).then_some(invalid)
}
