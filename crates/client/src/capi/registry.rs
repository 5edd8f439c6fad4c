//! Live handles by number, so that a C program's pointers are never followed.

use super::error::{Failure, text_of};
use crate::fs::File;
use crate::wire::{Entry, Handle};
use crate::{Client, Context};
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// A client and what its calls have in common.
pub(super) struct Owner {
    pub(super) client: Arc<Client>,
    app: AtomicU64,
    spoilt: AtomicBool,
}

/// An open file and its client.
pub(super) struct OpenedFile {
    pub(super) file: File,
    pub(super) owner: Arc<Owner>,
}

/// An open directory, its client and its position.
pub(super) struct OpenedDir {
    pub(super) handle: Handle,
    pub(super) owner: Arc<Owner>,
    pub(super) position: Mutex<Position>,
}

/// Entries that were fetched and not yet handed out, and where to go on after them.
#[derive(Default)]
pub(super) struct Position {
    pub(super) entries: VecDeque<Entry>,
    pub(super) cookie: u64,
    pub(super) ended: bool,
}

impl Owner {
    pub(super) fn new(client: Arc<Client>) -> Owner {
        Owner {
            client,
            app: AtomicU64::new(0),
            spoilt: AtomicBool::new(false),
        }
    }

    pub(super) fn set_app(&self, app: u64) {
        self.app.store(app, Ordering::Relaxed);
    }

    pub(super) fn context(&self) -> Context {
        Context {
            app: self.app.load(Ordering::Relaxed),
            ..Context::default()
        }
    }

    /// Runs a call, unless an earlier one has panicked; if this one does, it is the last.
    pub(super) fn guard(
        &self,
        call: impl FnOnce() -> Result<i64, Failure>,
    ) -> Result<i64, Failure> {
        if self.spoilt.load(Ordering::Acquire) {
            let text = "the client is unusable after an internal error";
            return Err(Failure::broken(text.to_string()));
        }
        // What a panic may leave half done is never looked at again.
        catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
            self.spoilt.store(true, Ordering::Release);
            Err(Failure::broken(text_of(&*panic)))
        })
    }
}

/// What a handle stands for: an [`Owner`], an [`OpenedFile`] or an [`OpenedDir`].
type Live = Arc<dyn Any + Send + Sync>;

static LIVE: RwLock<BTreeMap<usize, Live>> = RwLock::new(BTreeMap::new());
/// Ids are never used twice, so a stale handle cannot name something else.
static ID_NEXT: AtomicUsize = AtomicUsize::new(1);

/// Makes something live; returns its handle, a multiple of 16 as a pointer would be.
pub(super) fn add(kind: impl Any + Send + Sync) -> usize {
    let id = ID_NEXT.fetch_add(1, Ordering::Relaxed) << 4;
    LIVE.write()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(id, Arc::new(kind));
    id
}

/// What a handle stands for.
pub(super) fn find<K: Any + Send + Sync>(id: usize) -> Result<Arc<K>, Failure> {
    let live = LIVE.read().unwrap_or_else(PoisonError::into_inner);
    let found = live.get(&id).cloned().ok_or_else(unknown)?;
    found.downcast().map_err(|_| unknown())
}

/// Ends a handle. Calls that run with it go on to their end.
pub(super) fn remove<K: Any + Send + Sync>(id: usize) -> Result<Arc<K>, Failure> {
    let found = find(id)?;
    let mut live = LIVE.write().unwrap_or_else(PoisonError::into_inner);
    let removed = live.remove(&id).ok_or_else(unknown);
    // Dropping the last reference may call into the client.
    drop(live);
    removed.map(|_| found)
}

fn unknown() -> Failure {
    Failure::invalid("not a live handle")
}
