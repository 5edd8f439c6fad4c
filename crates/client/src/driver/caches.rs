//! Clears the caches of those who make calls, as the core demands: on the thread of the call that
//! is the reason, else on a thread of its own. The threads that take in replies do not clear them:
//! that can wait for a reply.

use crate::wire::Handle;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};

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

/// The cache, if there is one, and the thread that clears it.
#[derive(Default)]
pub(super) struct Caches {
    started: OnceLock<Started>,
}

struct Started {
    cache: Arc<dyn Invalidates>,
    queue: Sender<Invalid>,
}

impl Caches {
    /// Starts the thread, which ends with the client. It calls `cleared` with the core's number of
    /// what it has cleared.
    pub(super) fn start(
        &self,
        cache: Arc<dyn Invalidates>,
        cleared: impl Fn(u64) + Send + 'static,
    ) -> std::io::Result<()> {
        let (queue, tasks) = channel();
        let own = Arc::clone(&cache);
        let thread = std::thread::Builder::new().name("tidegate-cache".into());
        thread.spawn(move || clear_until_end(&*own, &tasks, &cleared))?;
        if self.started.set(Started { cache, queue }).is_err() {
            tracing::warn!("a client has one cache; the second one is not used");
        }
        Ok(())
    }

    /// Lets the thread clear the cache.
    pub(super) fn clear_later(&self, invalid: Vec<Invalid>) {
        let Some(started) = self.started.get().filter(|_| !invalid.is_empty()) else {
            return;
        };
        for invalid in invalid {
            // The thread ends with the client only.
            _ = started.queue.send(invalid);
        }
    }

    /// Clears the cache now.
    pub(super) fn clear(&self, invalid: &Invalid) {
        if let Some(started) = self.started.get() {
            started.cache.invalidate(&invalid.files);
        }
    }
}

fn clear_until_end(cache: &dyn Invalidates, tasks: &Receiver<Invalid>, cleared: &dyn Fn(u64)) {
    while let Ok(invalid) = tasks.recv() {
        cache.invalidate(&invalid.files);
        cleared(invalid.number);
    }
}
