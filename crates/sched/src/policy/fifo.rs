//! First in, first out: the order of a server that does not schedule, and the base of comparisons.

use super::{Bound, Pick, Policy};
use crate::options::{Options, OptionsError};
use crate::requests::{List, Requests, Slot};
use crate::types::Time;
use alloc::vec::Vec;

pub(super) struct Fifo {
    queue: List,
}

impl Fifo {
    pub(super) fn new(options: &Options) -> Result<Fifo, OptionsError> {
        options.table.only("fifo", &[])?;
        Ok(Fifo { queue: List::new() })
    }
}

impl Policy for Fifo {
    fn arrived(&mut self, requests: &mut Requests, slot: Slot) {
        requests.push_back(&mut self.queue, slot);
    }

    fn pick(&mut self, requests: &mut Requests, _now: Time, into: &mut Vec<Slot>) -> Pick {
        into.push(
            requests
                .pop_front(&mut self.queue)
                .expect("pick on an empty policy"),
        );
        Pick::Run
    }

    fn cancelled(&mut self, requests: &mut Requests, slot: Slot) {
        requests.unlink(&mut self.queue, slot);
    }

    fn bound(&self) -> Bound {
        Bound::Ahead
    }
}
