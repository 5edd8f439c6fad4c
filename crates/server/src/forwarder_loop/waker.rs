//! How other threads wake the forwarder's loop, and stop it.

use crate::connections::shard::WAKER;
use crate::storage::Wake;
use mio::Waker;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidegate_net::Poller;

/// Wakes the thread of a forwarder's loop.
#[derive(Clone)]
pub struct LoopWaker {
    pub(super) waker: Arc<Waker>,
    /// Whether the loop shall look at what happens seldom.
    notified: Arc<AtomicBool>,
}

impl LoopWaker {
    pub(super) fn new(poller: &Poller) -> io::Result<LoopWaker> {
        Ok(LoopWaker {
            waker: Arc::new(Waker::new(poller.registry(), WAKER)?),
            notified: Arc::default(),
        })
    }

    /// A function that wakes the loop, for those that each pass looks at.
    pub fn wake(&self) -> Wake {
        let waker = self.waker.clone();
        Arc::new(move || {
            // This fails once the loop has ended.
            let _ = waker.wake();
        })
    }

    /// A function that wakes the loop and has it look at what happens seldom.
    pub fn notify(&self) -> Wake {
        let (wake, notified) = (self.wake(), self.notified.clone());
        Arc::new(move || {
            notified.store(true, Ordering::Release);
            wake();
        })
    }

    /// Whether the loop was notified since the last call.
    pub(super) fn was_notified(&self) -> bool {
        // Every pass asks this, and a load costs least.
        self.notified.load(Ordering::Acquire) && self.notified.swap(false, Ordering::AcqRel)
    }
}

/// Stops a forwarder's loop from another thread.
#[derive(Clone)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    notify: Wake,
}

impl Stop {
    pub(super) fn new(waker: &LoopWaker) -> Stop {
        Stop {
            asked: Arc::default(),
            notify: waker.notify(),
        }
    }

    /// Asks the loop to finish the requests that it has accepted, and then to end. Does not wait.
    pub fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        (self.notify)();
    }

    pub(super) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}
