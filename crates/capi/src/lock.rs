//! A lock and a condition of POSIX threads, for what threads share.
//!
//! Not those of `std`: they are made of bare futexes, which helgrind, drd and a ThreadSanitizer
//! around a compiled `std` take for races. POSIX threads they know, so a host can run such a tool
//! over its own program with this library in it, and so do our tests.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

/// A value for one thread at a time. It must not move once it is in use, so it is for statics.
pub(crate) struct Lock<T> {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a `Guard`, of which there is one at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The right to use the value of a lock.
pub(crate) struct Guard<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Lock<T> {
        Lock {
            mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the value. A panic of an earlier holder is not noticed: those are caught, and
    /// remembered, by who made the call.
    #[inline(always)]
    pub(crate) fn lock(&'static self) -> Guard<'static, T> {
        // SAFETY: the mutex is initialised and never moves.
        let code = unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
        assert!(code == 0, "a lock of the default kind is always to be had");
        Guard(self)
    }

    /// Where the value lies, for who has a right to it without a guard.
    #[inline(always)]
    pub(crate) fn place(&'static self) -> *mut T {
        self.value.get()
    }

    /// Ends what a guard that was forgotten began.
    ///
    /// # Safety
    /// This thread holds the lock, and has no guard of it.
    #[inline(always)]
    pub(crate) unsafe fn unlock(&'static self) {
        // SAFETY: the caller's word.
        unsafe { libc::pthread_mutex_unlock(self.mutex.get()) };
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this is the one guard.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the one guard.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: this thread holds the mutex.
        unsafe { libc::pthread_mutex_unlock(self.0.mutex.get()) };
    }
}

/// Something to wait for under a lock. It must not move either.
pub(crate) struct Condition(UnsafeCell<libc::pthread_cond_t>);

// SAFETY: POSIX conditions are for many threads.
unsafe impl Sync for Condition {}

impl Condition {
    pub(crate) const fn new() -> Condition {
        Condition(UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER))
    }

    /// Makes times of waits those of CLOCK_MONOTONIC, which a constant cannot. Called once, before
    /// anybody waits.
    pub(crate) fn use_monotonic_clock(&'static self) {
        // SAFETY: the attributes are ours, and nobody uses the condition yet.
        unsafe {
            let mut attributes = std::mem::zeroed::<libc::pthread_condattr_t>();
            libc::pthread_condattr_init(&mut attributes);
            libc::pthread_condattr_setclock(&mut attributes, libc::CLOCK_MONOTONIC);
            libc::pthread_cond_init(self.0.get(), &attributes);
            libc::pthread_condattr_destroy(&mut attributes);
        }
    }

    /// Waits until it is told or, if there is one, until that time of CLOCK_MONOTONIC, or less.
    pub(crate) fn wait<T>(&'static self, guard: &mut Guard<'static, T>, until_ns: Option<u64>) {
        let (condition, mutex) = (self.0.get(), guard.0.mutex.get());
        let Some(until_ns) = until_ns else {
            // SAFETY: this thread holds the mutex; both are initialised.
            unsafe { libc::pthread_cond_wait(condition, mutex) };
            return;
        };
        let until = libc::timespec {
            // Times beyond the range of the clock are never reached; nor is this one.
            tv_sec: (until_ns / 1_000_000_000).min(1 << 32) as libc::time_t,
            tv_nsec: (until_ns % 1_000_000_000) as libc::c_long,
        };
        // SAFETY: as above.
        unsafe { libc::pthread_cond_timedwait(condition, mutex, &until) };
    }

    pub(crate) fn tell_one(&'static self) {
        // SAFETY: it is initialised.
        unsafe { libc::pthread_cond_signal(self.0.get()) };
    }

    pub(crate) fn tell_all(&'static self) {
        // SAFETY: it is initialised.
        unsafe { libc::pthread_cond_broadcast(self.0.get()) };
    }
}
