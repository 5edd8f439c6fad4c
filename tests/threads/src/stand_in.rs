//! What the copies use in place of the standard library, mio, and the kernel.

/// Locks, atomics and the waker of a poll.
pub mod sync {
    pub use loom::sync::{Arc, Mutex, MutexGuard, atomic};
    pub use std::sync::{LockResult, PoisonError};

    /// Of which time limits never pass: who waits must be woken.
    #[derive(Debug)]
    pub struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub fn new() -> Condvar {
            Condvar(loom::sync::Condvar::new())
        }

        pub fn notify_one(&self) {
            self.0.notify_one();
        }

        pub fn wait_timeout_while<'a, T>(
            &self,
            mut guard: MutexGuard<'a, T>,
            _left: std::time::Duration,
            mut waits: impl FnMut(&mut T) -> bool,
        ) -> LockResult<(MutexGuard<'a, T>, ())> {
            while waits(&mut guard) {
                guard = self.0.wait(guard).expect("nothing panics");
            }
            Ok((guard, ()))
        }
    }

    /// A lock that nobody waits for while a client lives. That of loom has who tries it wait at
    /// times.
    #[derive(Debug)]
    pub struct TryMutex<T> {
        taken: atomic::AtomicBool,
        inner: Mutex<T>,
    }

    pub struct TryGuard<'a, T> {
        taken: &'a atomic::AtomicBool,
        inner: Option<MutexGuard<'a, T>>,
    }

    impl<T> TryMutex<T> {
        pub fn new(inner: T) -> TryMutex<T> {
            TryMutex {
                taken: atomic::AtomicBool::new(false),
                inner: Mutex::new(inner),
            }
        }

        pub fn try_lock(&self) -> Result<TryGuard<'_, T>, ()> {
            let (acquire, relaxed) = (atomic::Ordering::Acquire, atomic::Ordering::Relaxed);
            let taken = self.taken.compare_exchange(false, true, acquire, relaxed);
            taken.map_err(|_| ())?;
            Ok(TryGuard {
                taken: &self.taken,
                inner: Some(self.inner.lock().expect("nothing panics")),
            })
        }

        /// For the end of a client, when nobody takes it any more for long.
        pub fn lock(&self) -> LockResult<TryGuard<'_, T>> {
            loop {
                if let Ok(guard) = self.try_lock() {
                    return Ok(guard);
                }
                loom::thread::yield_now();
            }
        }
    }

    impl<T> std::ops::Deref for TryGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.inner.as_ref().expect("it is locked")
        }
    }

    impl<T> std::ops::DerefMut for TryGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.inner.as_mut().expect("it is locked")
        }
    }

    impl<T> Drop for TryGuard<'_, T> {
        fn drop(&mut self) {
            self.inner = None;
            self.taken.store(false, atomic::Ordering::Release);
        }
    }

    /// An eventfd in a thread's poll, with what else the poll would report.
    #[derive(Debug)]
    pub struct Waker {
        events: Mutex<Events>,
        changed: loom::sync::Condvar,
    }

    #[derive(Debug, Default)]
    struct Events {
        woken: bool,
        readable: Vec<u32>,
    }

    impl Waker {
        pub fn new() -> Waker {
            Waker {
                events: Mutex::default(),
                changed: loom::sync::Condvar::new(),
            }
        }

        pub fn wake(&self) -> std::io::Result<()> {
            self.events.lock().expect("nothing panics").woken = true;
            self.changed.notify_one();
            Ok(())
        }

        /// Something comes through the sockets.
        pub fn arrives(&self, what: u32) {
            let mut events = self.events.lock().expect("nothing panics");
            events.readable.push(what);
            self.changed.notify_one();
        }

        /// Sleeps until it is woken or something comes, and takes that.
        pub fn poll(&self) -> Vec<u32> {
            let mut events = self.events.lock().expect("nothing panics");
            while !events.woken && events.readable.is_empty() {
                events = self.changed.wait(events).expect("nothing panics");
            }
            events.woken = false;
            std::mem::take(&mut events.readable)
        }
    }
}

/// A clock that stands: no time limit passes.
pub mod time {
    pub use std::time::Duration;

    #[derive(Clone, Copy, Debug)]
    pub struct Instant;

    impl Instant {
        pub fn now() -> Instant {
            Instant
        }

        pub fn saturating_duration_since(&self, _before: Instant) -> Duration {
            Duration::from_millis(1)
        }
    }

    impl std::ops::Add<Duration> for Instant {
        type Output = Instant;

        fn add(self, _rhs: Duration) -> Instant {
            self
        }
    }

    impl PartialEq for Instant {
        fn eq(&self, _other: &Instant) -> bool {
            true
        }
    }

    impl PartialOrd for Instant {
        /// Nothing comes after anything else.
        fn partial_cmp(&self, _other: &Instant) -> Option<std::cmp::Ordering> {
            None
        }
    }
}

/// The kernel's futex: under one lock, a thread looks at the word and begins to sleep.
pub mod futex {
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::sync::{Condvar, Mutex};

    pub struct Flags;
    pub struct Timeout;

    impl TryFrom<std::time::Duration> for Timeout {
        type Error = ();

        fn try_from(_left: std::time::Duration) -> Result<Timeout, ()> {
            Ok(Timeout)
        }
    }

    impl Flags {
        pub const PRIVATE: Flags = Flags;
    }

    /// Those that sleep, by their words' addresses.
    struct Sleepers {
        at: Mutex<Vec<usize>>,
        changed: Condvar,
    }

    loom::lazy_static! {
        static ref SLEEPERS: Sleepers = Sleepers {
            at: Mutex::new(Vec::new()),
            changed: Condvar::new(),
        };
    }

    pub fn wait(
        word: &AtomicU32,
        _flags: Flags,
        seen: u32,
        left: Option<&Timeout>,
    ) -> Result<(), ()> {
        assert!(left.is_none(), "no call of the models waits by a clock");
        let here = std::ptr::from_ref(word).addr();
        let mut at = SLEEPERS.at.lock().expect("nothing panics");
        if word.load(Ordering::Relaxed) != seen {
            return Err(());
        }
        at.push(here);
        while at.contains(&here) {
            at = SLEEPERS.changed.wait(at).expect("nothing panics");
        }
        Ok(())
    }

    pub fn wake(word: &AtomicU32, _flags: Flags, count: u32) -> Result<usize, ()> {
        assert_eq!(count, 1, "one thread waits on a slot");
        let here = std::ptr::from_ref(word).addr();
        let mut at = SLEEPERS.at.lock().expect("nothing panics");
        let sleeper = at.iter().position(|sleeper| *sleeper == here);
        if let Some(index) = sleeper {
            at.remove(index);
            SLEEPERS.changed.notify_all();
        }
        Ok(usize::from(sleeper.is_some()))
    }
}
