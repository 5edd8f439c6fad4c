//! Policies that are each broken in one way, so that the suite shows that it can fail.

use super::Subject;
use crate::policy::{Bound, Pick, Policy};
use crate::requests::{Index, Requests};
use crate::types::{FileId, Input, Output, Rejected, Request, RequestId, Time};
use crate::{Options, Scheduler};
use std::boxed::Box;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::vec::Vec;

/// One way to be broken, and the word under which the suite finds it.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) found_as: &'static str,
    pub(super) make: fn(&Options) -> Box<dyn Subject>,
}

pub(super) const CASES: &[Case] = &[
    Case {
        name: "last first",
        found_as: "bound",
        make: |options| policy(options, Fault::Last),
    },
    Case {
        name: "loses some",
        found_as: "never ran",
        make: |o| policy(o, Fault::Loses),
    },
    Case {
        name: "twice",
        found_as: "does not hold",
        make: |o| policy(o, Fault::Twice),
    },
    Case {
        name: "ignores cancel",
        found_as: "not hold",
        make: |o| policy(o, Fault::Cancelled),
    },
    Case {
        name: "waits for ever",
        found_as: "beyond its bound",
        make: |o| policy(o, Fault::Waits),
    },
    Case {
        name: "mixed batch",
        found_as: "batch",
        make: |o| policy(o, Fault::Mixes),
    },
    Case {
        name: "not the same",
        found_as: "same inputs",
        make: |o| policy(o, Fault::Differs),
    },
    Case {
        name: "false windows",
        found_as: "bound",
        make: |o| policy(o, Fault::Windows),
    },
    Case {
        name: "false turns",
        found_as: "bound",
        make: |o| policy(o, Fault::Turns),
    },
    Case {
        name: "no overlap rule",
        found_as: "overlap",
        make: |o| Box::new(NoOverlap::new(o)),
    },
    Case {
        name: "takes all",
        found_as: "memory",
        make: |o| Box::new(TakesAll::new(o)),
    },
    Case {
        name: "lazy",
        found_as: "work conserving",
        make: |o| Box::new(Lazy::new(o)),
    },
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    Last,
    Loses,
    Twice,
    Cancelled,
    Waits,
    Mixes,
    Differs,
    Windows,
    Turns,
}

fn policy(options: &Options, fault: Fault) -> Box<dyn Subject> {
    let broken = Broken {
        queue: Vec::new(),
        arrivals: 0,
        fault,
    };
    Box::new(Scheduler::with_policy(options.clone(), Box::new(broken)))
}

/// First in, first out, but for the fault.
struct Broken {
    queue: Vec<Index>,
    arrivals: u64,
    fault: Fault,
}

std::thread_local! {
    /// What a policy must not have: state outside of itself.
    static OUTSIDE: Cell<u64> = const { Cell::new(0) };
}

impl Policy for Broken {
    fn arrived(&mut self, _requests: &mut Requests, index: Index) {
        self.arrivals += 1;
        if self.fault != Fault::Loses || !self.arrivals.is_multiple_of(7) {
            self.queue.push(index);
        }
    }

    fn pick(&mut self, _requests: &mut Requests, now: Time, into: &mut Vec<Index>) -> Pick {
        if self.fault == Fault::Waits || self.queue.is_empty() {
            return Pick::Anticipate(now + 1);
        }
        let last = match self.fault {
            Fault::Last | Fault::Windows => true,
            Fault::Differs => OUTSIDE.with(|outside| {
                outside.set(outside.get() + 1);
                crate::mix64(outside.get()).is_multiple_of(2)
            }),
            _ => false,
        };
        let index = if last {
            self.queue.pop().expect("checked")
        } else {
            self.queue.remove(0)
        };
        into.push(index);
        if self.fault == Fault::Twice {
            self.queue.insert(0, index);
        }
        if self.fault == Fault::Mixes && !self.queue.is_empty() {
            into.push(self.queue.remove(0));
        }
        Pick::Run
    }

    fn cancelled(&mut self, _requests: &mut Requests, index: Index) {
        if self.fault != Fault::Cancelled {
            self.queue.retain(|&other| other != index);
        }
    }

    fn epoch(&self, now: Time) -> u64 {
        if self.fault == Fault::Windows {
            now.0 / 1_000_000
        } else {
            0
        }
    }

    /// The one that loses requests must be found for that, not for its answer when it has none.
    fn wait_ns_max(&self) -> u64 {
        u64::from(self.fault == Fault::Loses)
    }

    fn bound(&self) -> Bound {
        match self.fault {
            Fault::Differs => Bound::Windows(u64::MAX / 2),
            Fault::Windows => Bound::Windows(2),
            Fault::Turns => Bound::Turns(1),
            _ => Bound::Ahead,
        }
    }
}

/// Hides the file from the scheduler, so that nothing seems to overlap.
struct NoOverlap {
    inner: Scheduler,
    files: BTreeMap<RequestId, FileId>,
}

impl NoOverlap {
    fn new(options: &Options) -> NoOverlap {
        NoOverlap {
            inner: Scheduler::new(options).unwrap(),
            files: BTreeMap::new(),
        }
    }
}

impl Subject for NoOverlap {
    fn handle(&mut self, now: Time, input: Input) -> Result<(), Rejected> {
        let Input::Arrived(request) = input else {
            return self.inner.handle(now, input);
        };
        self.files.insert(request.id, request.file);
        let hidden = Request {
            file: FileId(request.id.0),
            ..request
        };
        self.inner.handle(now, Input::Arrived(hidden))
    }

    fn poll(&mut self, now: Time, into: &mut Vec<Request>) -> Output {
        let output = self.inner.poll(now, into);
        for request in into {
            request.file = self.files[&request.id];
        }
        output
    }

    fn inner(&self) -> &Scheduler {
        &self.inner
    }
}

/// Never says that the queue is full.
struct TakesAll(Scheduler);

impl TakesAll {
    fn new(options: &Options) -> TakesAll {
        let options = Options {
            queued_max: 1 << 20,
            ..options.clone()
        };
        TakesAll(Scheduler::new(&options).unwrap())
    }
}

impl Subject for TakesAll {
    fn handle(&mut self, now: Time, input: Input) -> Result<(), Rejected> {
        self.0.handle(now, input)
    }

    fn poll(&mut self, now: Time, into: &mut Vec<Request>) -> Output {
        self.0.poll(now, into)
    }

    fn inner(&self) -> &Scheduler {
        &self.0
    }
}

/// Says now and then that there is nothing to do.
struct Lazy {
    inner: Scheduler,
    polls: u64,
}

impl Lazy {
    fn new(options: &Options) -> Lazy {
        Lazy {
            inner: Scheduler::new(options).unwrap(),
            polls: 0,
        }
    }
}

impl Subject for Lazy {
    fn handle(&mut self, now: Time, input: Input) -> Result<(), Rejected> {
        self.inner.handle(now, input)
    }

    fn poll(&mut self, now: Time, into: &mut Vec<Request>) -> Output {
        self.polls += 1;
        if self.polls.is_multiple_of(5) {
            into.clear();
            return Output::Idle;
        }
        self.inner.poll(now, into)
    }

    fn inner(&self) -> &Scheduler {
        &self.inner
    }
}
