//! How calling threads of one client share its poller: one leads and takes in what comes for all,
//! the others sleep until they have their result or shall lead.

/// What the product's modules are called from within.
mod core {
    pub type Answer = u32;
    #[derive(Debug)]
    pub struct Errno;

    impl Errno {
        pub const INTR: Errno = Errno;
        pub const IO: Errno = Errno;
        pub const TIMEDOUT: Errno = Errno;
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub struct CallId(pub u32);
    #[derive(Debug)]
    pub struct Served;
}
#[allow(dead_code)]
mod waiter {
    include!(concat!(env!("OUT_DIR"), "/waiter.rs"));
}
mod leader {
    include!(concat!(env!("OUT_DIR"), "/leader.rs"));
}

/// What the connections' owner has: here answers are numbers of calls, and end them.
mod sockets {
    use super::shared::Shared;
    use crate::time::Duration;

    #[derive(PartialEq, Eq)]
    pub enum Cycle {
        Over,
        Connect,
        Done,
    }

    #[derive(Debug)]
    pub struct Sockets;

    impl Sockets {
        pub fn thread_begins(&self) {}

        pub fn thread_ends(&self) {}

        pub fn cycle(&mut self, shared: &Shared, wait_max: Option<Duration>) -> Cycle {
            if wait_max.is_some() {
                return Cycle::Done;
            }
            self.cycle_of_caller(shared, Duration::ZERO)
        }

        pub fn cycle_of_caller(&mut self, shared: &Shared, _wait_max: Duration) -> Cycle {
            for id in shared.waker.poll() {
                shared.answered(id);
            }
            Cycle::Over
        }
    }
}
mod shared {
    use super::waiter::Waiter;
    use crate::sync::atomic::{AtomicBool, Ordering};
    use crate::sync::{Arc, Waker};

    pub struct Shared {
        pub waker: Arc<Waker>,
        pub waiters: [Arc<Waiter>; 3],
        closed: AtomicBool,
    }

    impl Shared {
        pub fn new() -> Shared {
            Shared {
                waker: Arc::new(Waker::new()),
                waiters: std::array::from_fn(|_| Arc::default()),
                closed: AtomicBool::new(false),
            }
        }

        pub fn answered(&self, id: u32) {
            self.waiters[id as usize].finish(Ok(id));
        }

        pub fn is_closed(&self) -> bool {
            self.closed.load(Ordering::Acquire)
        }

        pub fn close(&self) {
            self.closed.store(true, Ordering::Release);
            self.waker.wake().expect("it cannot fail here");
        }

        pub fn now_ns(&self) -> u64 {
            0
        }

        pub fn abandon(&self) {
            unreachable!("nothing panics");
        }
    }
}

use crate::sync::{Arc, Waker};
use crate::under_every_order;
use core::CallId;
use leader::LeaderFollower;
use loom::thread;
use shared::Shared;
use sockets::Sockets;
use waiter::{Waiter, Woken};

pub struct SignalGuard;

impl SignalGuard {
    fn let_signals_in<T>(&self, part: impl FnOnce() -> T) -> T {
        part()
    }
}

fn wake(waker: &Waker) {
    waker.wake().expect("it cannot fail here");
}

/// A client with calls 0 to 2 under way, which answers of these numbers end.
struct Client {
    leader: LeaderFollower,
    shared: Shared,
}

impl Client {
    fn new() -> Arc<Client> {
        Arc::new(Client {
            leader: LeaderFollower::new(Sockets),
            shared: Shared::new(),
        })
    }

    fn wait(&self, id: u32) -> Woken {
        let waiter = &self.shared.waiters[id as usize];
        self.leader
            .wait(&SignalGuard, &self.shared, CallId(id), waiter)
    }
}

fn is_result(woken: &Woken, of: u32) -> bool {
    matches!(woken, Woken::Finished(Ok(id)) if *id == of)
}

#[test]
fn a_waiter_tells_its_thread_of_all_that_happens() {
    under_every_order(|| {
        let waiter = Arc::new(Waiter::default());
        let others = [
            thread::spawn({
                let waiter = waiter.clone();
                move || waiter.interrupt()
            }),
            thread::spawn({
                let waiter = waiter.clone();
                move || waiter.finish(Ok(1))
            }),
        ];
        let woken = waiter.wait(&SignalGuard, None);
        // A result goes before everything else; after an interruption it is still to come.
        match woken {
            Woken::Interrupted => assert!(is_result(&waiter.wait(&SignalGuard, None), 1)),
            woken => assert!(is_result(&woken, 1)),
        }
        for other in others {
            other.join().expect("it does not panic");
        }
    });
}

#[test]
fn each_call_has_its_result_whichever_leads() {
    under_every_order(|| {
        let client = Client::new();
        let other = thread::spawn({
            let client = client.clone();
            move || assert!(is_result(&client.wait(1), 1))
        });
        let network = thread::spawn({
            let client = client.clone();
            move || (0..2).for_each(|id| client.shared.waker.arrives(id))
        });
        assert!(is_result(&client.wait(0), 0));
        other.join().expect("it does not panic");
        network.join().expect("it does not panic");
    });
}

#[test]
fn a_call_that_is_interrupted_takes_no_lead_with_it() {
    under_every_order(|| {
        let client = Client::new();
        let calls = [0, 1, 2].map(|id| {
            let client = client.clone();
            thread::spawn(move || match client.wait(id) {
                Woken::Interrupted => assert_eq!(id, 2),
                woken => assert!(is_result(&woken, id)),
            })
        });
        client.shared.waker.arrives(0);
        client.shared.waiters[2].interrupt();
        client.shared.waker.arrives(1);
        for call in calls {
            call.join().expect("it does not panic");
        }
    });
}

#[test]
fn the_clients_own_thread_leads_beside_a_call() {
    under_every_order(|| {
        let client = Client::new();
        let own = thread::spawn({
            let client = client.clone();
            move || {
                client.leader.thread_begins();
                client.leader.run(&client.shared);
                client.leader.thread_ends();
            }
        });
        client.shared.waker.arrives(0);
        assert!(is_result(&client.wait(0), 0));
        client.shared.close();
        client.leader.wake_io_thread();
        own.join().expect("it does not panic");
    });
}
