//! Mutexes whose value is whole whatever panicked while it was locked.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks such a mutex.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
