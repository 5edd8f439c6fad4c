//! Decides which thread waits for the sockets: the client's I/O thread, or a calling thread that
//! waits for a reply anyway. A calling thread takes in its own reply, so that no other thread has
//! to wake it.
//!
//! One thread at a time has the sockets: the leader. A call that finds the sockets free leads until
//! it has its result, and then makes another waiting call the leader. The I/O thread leads where no
//! call has led for a while, and it makes the connections. It sleeps while calls lead.

use super::SignalGuard;
use super::shared::Shared;
use super::sockets::{Cycle, Sockets};
use super::waiter::{Waiter, Woken};
use crate::core::CallId;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a call leads at most. Its thread lets no signals in meanwhile, because no other thread
/// could take in replies while a handler runs.
const LEAD_MAX: Duration = Duration::from_millis(50);
/// How long the I/O thread leaves the lead to calls after a call has led.
const STANDBY: Duration = Duration::from_millis(5);
/// Longest time that goodbyes may take.
const GOODBYE_MAX: Duration = Duration::from_secs(1);
/// How often to look for goodbyes, which cause few events.
const GOODBYE_LOOK: Duration = Duration::from_millis(10);

/// See the head of the file.
pub(crate) struct LeaderFollower {
    sockets: Mutex<Sockets>,
    /// Calls that wait for their result and would lead.
    followers: Mutex<BTreeMap<CallId, Arc<Waiter>>>,
    /// Whether a call wanted to lead and the sockets were not free.
    wanted: AtomicBool,
    /// When a call last led, on the clock of [`Shared::now_ns`].
    led_ns: AtomicU64,
    /// Whether the I/O thread is needed now.
    needed: Mutex<bool>,
    recalled: Condvar,
}

/// How leading ended.
enum Led {
    Woken(Woken),
    /// It takes long, or is the own thread's to do.
    Long,
    /// Another leads.
    Follows,
}

impl LeaderFollower {
    pub(crate) fn new(sockets: Sockets) -> LeaderFollower {
        LeaderFollower {
            sockets: Mutex::new(sockets),
            followers: Mutex::default(),
            wanted: AtomicBool::new(false),
            led_ns: AtomicU64::new(0),
            needed: Mutex::new(false),
            recalled: Condvar::new(),
        }
    }

    /// Sets the I/O thread up; it calls this first.
    pub(crate) fn thread_begins(&self) {
        // The sockets are free: no call comes before this thread has connected.
        if let Some(sockets) = self.take_sockets() {
            sockets.thread_begins();
        }
    }

    /// Ends what serves the sockets besides this thread, which is the I/O thread and has done its
    /// work.
    pub(crate) fn thread_ends(&self) {
        let sockets = self.sockets.lock();
        sockets
            .unwrap_or_else(PoisonError::into_inner)
            .thread_ends();
    }

    /// Runs the I/O thread until the client has ended.
    pub(crate) fn run(&self, shared: &Shared) {
        let mut goodbye_until = None;
        loop {
            if let Some(mut sockets) = self.take_sockets() {
                loop {
                    let closed = shared.is_closed();
                    let cycle = sockets.cycle(shared, closed.then_some(GOODBYE_LOOK));
                    if closed {
                        let now = Instant::now();
                        let until = *goodbye_until.get_or_insert_with(|| now + GOODBYE_MAX);
                        if cycle == Cycle::Done || now >= until {
                            return;
                        }
                    } else if self.wanted.swap(false, Ordering::Relaxed) {
                        break;
                    }
                }
                drop(sockets);
                self.pass_on();
            }
            self.stand_by(shared);
        }
    }

    /// Waits until a call has its result or is interrupted.
    pub(crate) fn wait(
        &self,
        guard: &SignalGuard,
        shared: &Shared,
        id: CallId,
        waiter: &Arc<Waiter>,
    ) -> Woken {
        let mut chosen = false;
        loop {
            if let Some(woken) = waiter.take() {
                if chosen {
                    // Another thread has made this call the leader, but the call ends now.
                    self.pass_on();
                }
                return woken;
            }
            let woken = match self.lead_or_follow(shared, id, waiter) {
                Led::Woken(woken) => return woken,
                Led::Long => {
                    self.wake_io_thread();
                    return waiter.wait(guard, None);
                }
                Led::Follows => self.follow(guard, id, waiter),
            };
            match woken {
                Woken::Lead => chosen = true,
                woken => return woken,
            }
        }
    }

    /// Wakes the I/O thread, because the client ends.
    pub(crate) fn wake_io_thread(&self) {
        *self.needed() = true;
        self.recalled.notify_one();
    }

    fn take_sockets(&self) -> Option<MutexGuard<'_, Sockets>> {
        // If it is poisoned, the I/O thread has panicked while it led, and ends all calls.
        self.sockets.try_lock().ok()
    }

    /// Makes the calling thread the leader if there is none, else enters it in the list of
    /// followers.
    fn lead_or_follow(&self, shared: &Shared, id: CallId, waiter: &Arc<Waiter>) -> Led {
        if let Some(sockets) = self.take_sockets() {
            return self.lead(sockets, shared, waiter);
        }
        self.followers().insert(id, Arc::clone(waiter));
        self.wanted.store(true, Ordering::Relaxed);
        // The last leader may have looked for followers just before the insertion.
        match self.take_sockets() {
            None => Led::Follows,
            Some(sockets) => {
                self.followers().remove(&id);
                self.lead(sockets, shared, waiter)
            }
        }
    }

    /// Takes in what arrives until the call has what it waits for, or until that takes long.
    fn lead(
        &self,
        mut sockets: MutexGuard<'_, Sockets>,
        shared: &Shared,
        waiter: &Arc<Waiter>,
    ) -> Led {
        waiter.leads(Some(Arc::clone(&shared.waker)));
        let until = Instant::now() + LEAD_MAX;
        let body = || {
            loop {
                match waiter.take() {
                    // This thread leads already.
                    None | Some(Woken::Lead) => {}
                    Some(woken) => return Led::Woken(woken),
                }
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() || shared.is_closed() {
                    return Led::Long;
                }
                if sockets.cycle_of_caller(shared, left) == Cycle::Connect {
                    return Led::Long;
                }
            }
        };
        let led = catch_unwind(AssertUnwindSafe(body));
        waiter.leads(None);
        self.led_ns.store(shared.now_ns(), Ordering::Relaxed);
        drop(sockets);
        self.pass_on();
        led.unwrap_or_else(|_| {
            shared.abandon();
            Led::Long
        })
    }

    /// Waits while another thread leads.
    fn follow(&self, guard: &SignalGuard, id: CallId, waiter: &Arc<Waiter>) -> Woken {
        let woken = waiter.wait(guard, None);
        let chosen = self.followers().remove(&id).is_none();
        if chosen && !matches!(woken, Woken::Lead) {
            waiter.refuse_lead();
            self.pass_on();
        }
        woken
    }

    /// Makes a follower the leader, because the sockets are free: the youngest call, which will
    /// wait longest.
    fn pass_on(&self) {
        let follower = self.followers().pop_last();
        if let Some((_, waiter)) = follower {
            waiter.lead();
        }
    }

    /// Keeps the I/O thread asleep until no call has led for a while.
    fn stand_by(&self, shared: &Shared) {
        let standby_ns = STANDBY.as_nanos() as u64;
        let mut needed = self.needed();
        loop {
            let waited = self.recalled.wait_timeout_while(needed, STANDBY, |it| !*it);
            needed = waited.unwrap_or_else(PoisonError::into_inner).0;
            let led_ns = self.led_ns.load(Ordering::Relaxed);
            let recent = shared.now_ns().saturating_sub(led_ns) < standby_ns;
            if std::mem::take(&mut *needed) || shared.is_closed() || !recent {
                return;
            }
        }
    }

    fn followers(&self) -> MutexGuard<'_, BTreeMap<CallId, Arc<Waiter>>> {
        self.followers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn needed(&self) -> MutexGuard<'_, bool> {
        self.needed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
