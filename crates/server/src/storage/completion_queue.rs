//! Completions on their way from the storage threads to the forwarder's loop.

use super::{Completion, Wake};
use crate::lock::lock;
use std::sync::{Arc, Mutex};

/// Takes completions from the storage threads.
pub(super) type Sink = Arc<dyn Fn(Completion) + Send + Sync>;

/// Those that the loop has not taken yet.
pub(super) struct CompletionQueue {
    list: Mutex<Vec<Completion>>,
    wake: Wake,
}

impl CompletionQueue {
    pub(super) fn new(wake: Wake) -> Arc<CompletionQueue> {
        Arc::new(CompletionQueue {
            list: Mutex::default(),
            wake,
        })
    }

    /// Appends a completion, and wakes the loop's thread if it has taken all earlier ones.
    pub(super) fn push(&self, completion: Completion) {
        let mut list = lock(&self.list);
        let first = list.is_empty();
        list.push(completion);
        drop(list);
        if first {
            (self.wake)();
        }
    }

    /// Appends a completion from the loop's own thread, which looks for completions after it has
    /// submitted jobs.
    pub(super) fn push_quietly(&self, completion: Completion) {
        lock(&self.list).push(completion);
    }

    /// Moves all completions into the list of the forwarder's loop.
    pub(super) fn take(&self, into: &mut Vec<Completion>) {
        into.append(&mut lock(&self.list));
    }
}
