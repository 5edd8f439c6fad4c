//! TWINS (Bez et al., PDP'17): one data server at a time, so that those in front of the same
//! servers do not all ask each of them at once.
//!
//! Time is cut into windows of `window_us`, and the servers take turns: in the window w it is the
//! turn of server w mod `servers`. Only the clock decides, so forwarders with equal clocks go
//! round together; each begins with another server, its `start`. The paper sleeps through a window
//! for which it has no requests; here the next server that has some goes on, and the device is
//! never idle beside requests.
//!
//! The data server is `queue` of the request, or, with `stripe_bytes`, follows from file and
//! offset as files are striped round robin. Requests of one server run in order of arrival.

use crate::aging::{AGE_MS_MAX, Aging};
use crate::cause::Cause;
use crate::flat_btree::FlatBTree;
use crate::merge::Merge;
use crate::options::Options;
use crate::policy::{Bound, Pick, Policy, PolicySpec};
use crate::policy_options::{OptionKind, OptionSpec};
use crate::requests::{Index, List, Requests};
use crate::types::{Request, Time};
use alloc::boxed::Box;
use alloc::vec::Vec;

const SERVERS: OptionSpec =
    OptionSpec::integer("servers", 4, [1, 65_536], "data servers of the back end");

const START: OptionSpec = OptionSpec::new(
    "start",
    OptionKind::Below(SERVERS.name),
    "the server of the first window; give each forwarder another one",
);

const STRIPE_BYTES: OptionSpec = OptionSpec::integer(
    "stripe_bytes",
    0,
    [0, u64::MAX],
    "bytes of a file's stripe on a data server: the server of a request is (file + offset / \
     `stripe_bytes`) mod `servers`; 0: it is the queue that the host names (the C library)",
);

/// The paper's window.
const WINDOW_US: OptionSpec = OptionSpec::integer(
    "window_us",
    2000,
    [1, 60_000_000],
    "how long it is one server's turn, in microseconds",
);

pub(super) const SPEC: PolicySpec = PolicySpec {
    name: "twins",
    options: &[AGE_MS_MAX, SERVERS, START, STRIPE_BYTES, WINDOW_US],
    merges: true,
    keeps_shares: false,
    make: |options| Ok(Box::new(Twins::new(options))),
};

struct Twins {
    window_ns: u64,
    wall_offset_ns: u64,
    servers: u32,
    start: u64,
    stripe_bytes: u64,
    aging: Aging,
    merge: Merge,
    queues: Vec<List>,
    /// The servers that have requests.
    busy: FlatBTree<u32, ()>,
}

impl Twins {
    fn new(options: &Options) -> Twins {
        let table = &options.table;
        let servers = table.integer(&SERVERS) as u32;
        Twins {
            window_ns: table.integer(&WINDOW_US) * 1000,
            wall_offset_ns: options.wall_offset_ns,
            servers,
            start: table.integer(&START),
            stripe_bytes: table.integer(&STRIPE_BYTES),
            aging: Aging::new(options),
            merge: Merge::new(options),
            queues: (0..servers).map(|_| List::new()).collect(),
            busy: FlatBTree::new(),
        }
    }

    /// The data server of a request. A number beyond the last one counts round.
    fn server(&self, request: &Request) -> u32 {
        let stripe = match self.stripe_bytes {
            0 => u64::from(request.queue),
            bytes => request.file.0.wrapping_add(request.offset / bytes),
        };
        (stripe % u64::from(self.servers)) as u32
    }

    /// Whose turn it is.
    fn turn(&self, now: Time) -> u32 {
        let window = now.0.saturating_add(self.wall_offset_ns) / self.window_ns;
        (window.wrapping_add(self.start) % u64::from(self.servers)) as u32
    }

    fn left(&mut self, requests: &mut Requests, server: u32, index: Index) {
        let queue = &mut self.queues[server as usize];
        requests.unlink(queue, index);
        requests.prefetch_front(queue);
        if queue.is_empty() {
            self.busy.remove(&server);
        }
        self.aging.gone(index);
    }
}

impl Policy for Twins {
    fn arrived(&mut self, requests: &mut Requests, index: Index) {
        let server = self.server(&requests[index].request);
        let queue = &mut self.queues[server as usize];
        if queue.is_empty() {
            self.busy.insert(server, ());
        }
        requests.push_back(queue, index);
        self.aging.arrived(index);
        self.merge.arrived(requests, server, index);
    }

    fn pick(&mut self, requests: &mut Requests, now: Time, into: &mut Vec<Index>) -> Pick {
        let index = self.aging.overdue(requests, now).unwrap_or_else(|| {
            let turn = self.busy.at_or_after(&self.turn(now));
            let (server, ()) = turn
                .or_else(|| self.busy.first())
                .expect("pick on an empty policy");
            let front = requests.front(&self.queues[server as usize]);
            front.expect("a server without requests is not busy")
        });
        let server = requests[index].tag;
        self.merge.take_one(requests, index, into, |_, _| {});
        for &index in into.iter() {
            self.left(requests, server, index);
        }
        Pick::Run
    }

    fn cancelled(&mut self, requests: &mut Requests, index: Index) {
        let server = requests[index].tag;
        self.left(requests, server, index);
        self.merge.cancelled(requests, index);
    }

    fn turns(&self) -> Cause {
        Cause::Window
    }

    fn bound(&self) -> Bound {
        self.aging.bound()
    }
}

#[cfg(test)]
mod tests {
    use crate::test::read;
    use crate::{Input, Options, Output, PolicyOptions, Request, RequestId, Scheduler, Time};
    use std::vec::Vec;

    fn scheduler(table: PolicyOptions) -> Scheduler {
        Scheduler::new(&Options {
            table: table.with("servers", 4).with("window_us", 1000),
            ..Options::for_policy("twins")
        })
        .unwrap()
    }

    /// The ids that run, one at each of the given microseconds.
    fn order(scheduler: &mut Scheduler, input: &[Request], at_us: &[u64]) -> Vec<u64> {
        for (id, request) in (0..).zip(input) {
            let id = RequestId(id);
            scheduler
                .handle(Time(0), Input::Arrived(Request { id, ..*request }))
                .unwrap();
        }
        let mut batch = Vec::new();
        let mut order = Vec::new();
        for us in at_us {
            let now = Time(us * 1000);
            assert_eq!(scheduler.poll(now, &mut batch), Output::Dispatch);
            order.push(batch[0].id.0);
            scheduler.handle(now, Input::Finished(batch[0].id)).unwrap();
        }
        order
    }

    #[test]
    fn servers_take_turns_by_the_clock_and_an_empty_turn_is_passed_on() {
        let to = |queue: u32, offset| Request {
            queue,
            ..read(1, offset, 4096)
        };
        let input = [
            to(2, 0),
            to(0, 1 << 20),
            to(2, 2 << 20),
            to(3, 3 << 20),
            to(6, 4 << 20),
        ];
        let mut first = scheduler(PolicyOptions::default());
        // In the turns of 0, 1 (nothing there: goes on to 2), 3, 2 (where 6 is one of 2), 1.
        let times = [100, 1100, 3100, 6100, 9100];
        assert_eq!(order(&mut first, &input, &times), [1, 0, 3, 2, 4]);
        let mut second = scheduler(PolicyOptions::default().with("start", 2));
        assert_eq!(order(&mut second, &input, &times)[0], 0);
    }

    #[test]
    fn stripes_tell_the_server() {
        let mut scheduler = scheduler(PolicyOptions::default().with("stripe_bytes", 65_536));
        let input = [
            read(1, 0, 4096),
            read(1, 65_536, 4096),
            read(2, 131_072, 4096),
        ];
        // File 1 begins at server 1, file 2 at 2: servers 1, 2 and 0.
        assert_eq!(order(&mut scheduler, &input, &[0, 1000, 2000]), [2, 0, 1]);
    }
}
