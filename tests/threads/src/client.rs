//! How calling threads of one client share its poller: one leads and takes in what comes for all,
//! the others sleep until they have their result or shall lead.

/// What the product's modules are called from within.
mod api {
    pub type Answer = u32;
    #[derive(Debug)]
    pub struct Errno;
}
mod core {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub struct CallId(pub u32);
    #[derive(Debug)]
    pub struct Served;
}
mod undisturbed {
    use crate::sync::Waker;

    pub struct Calm;

    impl Calm {
        pub(super) fn let_signals_in<T>(&self, part: impl FnOnce() -> T) -> T {
            part()
        }
    }

    pub(super) fn wake(waker: &Waker) {
        waker.wake().expect("it cannot fail here");
    }
}
#[allow(dead_code)]
mod slot {
    include!(concat!(env!("OUT_DIR"), "/slot.rs"));
}
mod lead {
    include!(concat!(env!("OUT_DIR"), "/lead.rs"));
}

/// What the connections' owner has: here answers are numbers of calls, and end them.
mod reactor {
    use super::shared::Shared;
    use crate::time::Duration;

    #[derive(PartialEq, Eq)]
    pub enum Cycle {
        Over,
        Connect,
        Done,
    }

    #[derive(Debug)]
    pub struct Reactor;

    impl Reactor {
        pub fn thread_begins(&self) {}

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
    use super::slot::Slot;
    use crate::sync::atomic::{AtomicBool, Ordering};
    use crate::sync::{Arc, Waker};

    pub struct Shared {
        pub waker: Arc<Waker>,
        pub slots: [Arc<Slot>; 3],
        closed: AtomicBool,
    }

    impl Shared {
        pub fn new() -> Shared {
            Shared {
                waker: Arc::new(Waker::new()),
                slots: std::array::from_fn(|_| Arc::default()),
                closed: AtomicBool::new(false),
            }
        }

        pub fn answered(&self, id: u32) {
            self.slots[id as usize].finish(Ok(id));
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

use crate::sync::Arc;
use crate::under_every_order;
use core::CallId;
use lead::Lead;
use loom::thread;
use reactor::Reactor;
use shared::Shared;
use slot::{Slot, Woken};
use undisturbed::Calm;

/// A client with calls 0 to 2 under way, which answers of these numbers end.
struct Client {
    lead: Lead,
    shared: Shared,
}

impl Client {
    fn new() -> Arc<Client> {
        Arc::new(Client {
            lead: Lead::new(Reactor),
            shared: Shared::new(),
        })
    }

    fn wait(&self, id: u32) -> Woken {
        let slot = &self.shared.slots[id as usize];
        self.lead.wait(&Calm, &self.shared, CallId(id), slot)
    }
}

fn is_result(woken: &Woken, of: u32) -> bool {
    matches!(woken, Woken::Finished(Ok(id)) if *id == of)
}

#[test]
fn a_slot_tells_its_thread_of_all_that_happens() {
    under_every_order(|| {
        let slot = Arc::new(Slot::default());
        let others = [
            thread::spawn({
                let slot = slot.clone();
                move || slot.interrupt()
            }),
            thread::spawn({
                let slot = slot.clone();
                move || slot.finish(Ok(1))
            }),
        ];
        let woken = slot.wait(&Calm, None);
        // A result goes before everything else; after an interruption it is still to come.
        match woken {
            Woken::Interrupted => assert!(is_result(&slot.wait(&Calm, None), 1)),
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
        client.shared.slots[2].interrupt();
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
                client.lead.thread_begins();
                client.lead.run(&client.shared);
            }
        });
        client.shared.waker.arrives(0);
        assert!(is_result(&client.wait(0), 0));
        client.shared.close();
        client.lead.recall();
        own.join().expect("it does not panic");
    });
}
