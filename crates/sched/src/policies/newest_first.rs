//! Last in, first out: under overload, requests that came lately are done soon, and old ones, whose
//! programs have perhaps given up, wait. A request that has waited `age_ms_max` goes first.

use crate::aging::{AGE_MS_MAX, Aging};
use crate::merge::Merge;
use crate::options::Options;
use crate::policy::{Bound, Pick, Policy, PolicySpec};
use crate::requests::{List, Requests, Slot};
use crate::types::Time;
use alloc::boxed::Box;
use alloc::vec::Vec;

pub(super) const SPEC: PolicySpec = PolicySpec {
    name: "newest-first",
    options: &[AGE_MS_MAX],
    merges: false,
    keeps_shares: false,
    make: |options| Ok(Box::new(NewestFirst::new(options))),
};

struct NewestFirst {
    aging: Aging,
    merge: Merge,
    /// In order of arrival.
    queue: List,
}

impl NewestFirst {
    fn new(options: &Options) -> NewestFirst {
        NewestFirst {
            aging: Aging::new(options),
            merge: Merge::new(options),
            queue: List::new(),
        }
    }
}

impl Policy for NewestFirst {
    fn arrived(&mut self, requests: &mut Requests, slot: Slot) {
        requests.push_back(&mut self.queue, slot);
        self.aging.arrived(slot);
        self.merge.arrived(requests, 0, slot);
    }

    fn pick(&mut self, requests: &mut Requests, now: Time, into: &mut Vec<Slot>) -> Pick {
        let overdue = self.aging.overdue(requests, now);
        let newest = requests.back(&self.queue);
        let slot = overdue.or(newest).expect("pick on an empty policy");
        if !self.merge.take_alone(slot, into) {
            self.merge.begin();
            self.merge.take(requests, slot, into, |_, _| {});
        }
        for &slot in into.iter() {
            requests.unlink(&mut self.queue, slot);
            self.aging.gone(slot);
        }
        self.merge.end(requests, into);
        Pick::Run
    }

    fn cancelled(&mut self, requests: &mut Requests, slot: Slot) {
        requests.unlink(&mut self.queue, slot);
        self.aging.gone(slot);
        self.merge.cancelled(requests, slot);
    }

    fn bound(&self) -> Bound {
        self.aging.bound()
    }
}
