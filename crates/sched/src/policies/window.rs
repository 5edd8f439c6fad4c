//! Time windows (Song et al., SC'11): servers that never talk serve applications in
//! the same order, because they order by what every request carries.
//!
//! The key of a request is (epoch, rank). The epoch is the number of the window in which its
//! operation started, by the client's clock; the rank orders the applications of one window and
//! is the same on every forwarder. In the paper the rank is the application's id (`order = "id"`),
//! which favours low ids for ever; the default hashes (application, epoch), so every application
//! is as often first as last. The policy never waits for a window to end. Clocks of clients should
//! agree to much less than a window; the forwarder cuts a stamp that is further off.
//!
//! The paper leaves the order of an application's own requests to their arrival. Arrival differs
//! from forwarder to forwarder, so the disks of two forwarders serve the parts of one operation in
//! different orders. This policy sorts them by file id and offset, upwards and then again from the
//! lowest (C-SCAN). That order is the same on every forwarder, and adjacent requests cost no seek.
//! `inside = "arrival"` leaves them as the paper does.

use crate::cause::Cause;
use crate::elevator_queue::ElevatorQueue;
use crate::epochs::{Epochs, ORDER, ROTATION_SEED, WINDOW_MS};
use crate::flat_btree::FlatBTree;
use crate::merge::Merge;
use crate::options::Options;
use crate::policy::{Bound, Pick, Policy, PolicySpec};
use crate::policy_options::{OptionKind, OptionSpec};
use crate::requests::{Index, List, Requests};
use crate::types::{Request, Time};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Queues of the last arrivals that are found without a search.
const RECENT: usize = 16;

/// How the requests of one application in one window are ordered.
const INSIDE: OptionSpec = OptionSpec::new(
    "inside",
    OptionKind::Word(&["place", "arrival"]),
    "order of an application's own requests in a window: by file and offset, the same on all \
     forwarders, or by arrival, as printed in the paper",
);

/// Window, and two numbers that order requests in it and tell apart those that do not share a
/// queue. For `window` these are rank and application, but for ranks of 15 bits, which stand in its
/// place: there applications of one rank share a queue.
pub(super) type Key = (u64, u64, u64);

pub(super) const SPEC: PolicySpec = PolicySpec {
    name: "window",
    options: &[INSIDE, ORDER, ROTATION_SEED, WINDOW_MS],
    merges: false,
    keeps_shares: false,
    make: |options| Ok(Box::new(Window::new(options, Epochs::new(options)))),
};

/// Says where requests stand, by what they carry and when they arrived, so that all forwarders come
/// to the same order, or nearly the same.
pub(super) trait Ranking: Send {
    /// Whether it is told what leaves the queue.
    const COUNTS: bool = false;

    /// Whether batches are only as long as the cost model says that they gain.
    const MERGES_BY_COST: bool = false;

    /// Whether shares are kept: where there are any, another policy has this order as a part.
    const KEEPS_SHARES: bool = false;

    /// The key of a request that arrived then; the least goes first. Requests with one key share a
    /// queue.
    fn key(&mut self, request: &Request, arrived: Time) -> Key;

    /// A request leaves the queue.
    fn left(&mut self, _request: &Request, _now: Time) {}

    /// The windows that it counts in.
    fn epochs(&self) -> &Epochs;

    /// How long a request can wait at most.
    fn bound(&self) -> Bound {
        self.epochs().bound(0)
    }
}

impl Ranking for Epochs {
    #[inline]
    fn key(&mut self, request: &Request, arrived: Time) -> Key {
        let epoch = self.of(request, arrived);
        self.rank_in(request.app, epoch)
    }

    fn epochs(&self) -> &Epochs {
        self
    }
}

/// Serves what a [`Ranking`] has first; requests of one key as [`INSIDE`] says.
pub(super) struct Window<R> {
    ranking: R,
    by_arrival: bool,
    merge: Merge,
    by_key: FlatBTree<Key, u32>,
    queues: Vec<Queue>,
    queues_free: Vec<u32>,
    /// By the last bits of the application: the queue of its last arrival. The next one is often
    /// of the same.
    recent: [u32; RECENT],
}

/// The requests of one application, or of one rank of 15 bits, in one window.
struct Queue {
    key: Key,
    line: Line,
}

/// Requests in the order of the option [`INSIDE`].
enum Line {
    ByPlace(ElevatorQueue),
    ByArrival(List),
}

impl Line {
    fn new(by_arrival: bool) -> Line {
        match by_arrival {
            true => Line::ByArrival(List::new()),
            false => Line::ByPlace(ElevatorQueue::new()),
        }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        match self {
            Line::ByPlace(sweep) => sweep.is_empty(),
            Line::ByArrival(list) => list.is_empty(),
        }
    }

    /// Begins anew; it is empty.
    fn restart(&mut self) {
        if let Line::ByPlace(sweep) = self {
            sweep.restart();
        }
    }

    fn push(&mut self, requests: &mut Requests, index: Index) {
        match self {
            Line::ByPlace(sweep) => sweep.push(requests, index),
            Line::ByArrival(list) => requests.push_back(list, index),
        }
    }

    fn pop(&mut self, requests: &mut Requests) -> Index {
        match self {
            Line::ByPlace(sweep) => sweep.pop(requests),
            Line::ByArrival(list) => requests.pop_front(list).expect("it is not empty"),
        }
    }

    fn remove(&mut self, requests: &mut Requests, index: Index) {
        match self {
            Line::ByPlace(sweep) => sweep.remove(requests, index),
            Line::ByArrival(list) => requests.unlink(list, index),
        }
    }
}

impl<R: Ranking> Window<R> {
    pub(super) fn new(options: &Options, ranking: R) -> Window<R> {
        let inside = options.table.get(INSIDE.name);
        Window {
            ranking,
            by_arrival: inside == Some(&"arrival".into()),
            merge: Merge::new(options),
            by_key: FlatBTree::new(),
            queues: Vec::new(),
            queues_free: Vec::new(),
            recent: [0; RECENT],
        }
    }

    fn queue_for(&mut self, key: Key) -> u32 {
        let recent = self.recent[key.2 as usize % RECENT];
        let queue = self.queues.get(recent as usize);
        if queue.is_some_and(|queue| queue.key == key && !queue.line.is_empty()) {
            return recent;
        }
        if let Some((found, number)) = self.by_key.at_or_after(&key)
            && found == key
        {
            return number;
        }
        let number = match self.queues_free.pop() {
            Some(number) => {
                let queue = &mut self.queues[number as usize];
                queue.key = key;
                queue.line.restart();
                number
            }
            None => {
                let line = Line::new(self.by_arrival);
                self.queues.push(Queue { key, line });
                self.queues.len() as u32 - 1
            }
        };
        self.by_key.insert(key, number);
        number
    }

    /// Forgets a queue when nothing is left in it.
    fn release_if_empty(&mut self, number: u32) {
        let queue = &self.queues[number as usize];
        if queue.line.is_empty() {
            self.by_key.remove(&queue.key);
            self.queues_free.push(number);
        }
    }
}

impl<R: Ranking> Policy for Window<R> {
    fn arrived(&mut self, requests: &mut Requests, index: Index) {
        let entry = &requests[index];
        let key = self.ranking.key(&entry.request, entry.arrived);
        let number = self.queue_for(key);
        self.recent[key.2 as usize % RECENT] = number;
        self.queues[number as usize].line.push(requests, index);
        self.merge.arrived(requests, number, index);
    }

    fn pick(&mut self, requests: &mut Requests, now: Time, into: &mut Vec<Index>) -> Pick {
        let (_, number) = self.by_key.first().expect("pick on an empty policy");
        let queue = &mut self.queues[number as usize];
        let index = queue.line.pop(requests);
        self.merge
            .take_one(requests, index, into, |requests, index| {
                queue.line.remove(requests, index);
            });
        if R::COUNTS {
            let left = into.iter().map(|&index| &requests[index].request);
            left.for_each(|request| self.ranking.left(request, now));
        }
        self.release_if_empty(number);
        Pick::Run
    }

    fn cancelled(&mut self, requests: &mut Requests, index: Index) {
        let number = requests[index].tag;
        self.queues[number as usize].line.remove(requests, index);
        self.merge.cancelled(requests, index);
        if R::COUNTS {
            let entry = &requests[index];
            self.ranking.left(&entry.request, entry.arrived);
        }
        self.release_if_empty(number);
    }

    fn turns(&self) -> Cause {
        Cause::Window
    }

    fn epoch(&self, now: Time) -> u64 {
        self.ranking.epochs().at(now)
    }

    fn bound(&self) -> Bound {
        self.ranking.bound()
    }
}

#[cfg(test)]
mod tests {
    use crate::test::{drain_at, read};
    use crate::{
        AppId, Input, Options, Output, PolicyOptions, Request, RequestId, Scheduler, Time,
    };
    use std::vec::Vec;

    const WALL: u64 = 1_700_000_000_000_000_000;

    fn options(order: &str) -> Options {
        let table = PolicyOptions::default().with("order", order);
        Options {
            wall_offset_ns: WALL,
            table,
            ..Options::for_policy("window")
        }
    }

    fn order(options: &Options, now: Time, input: &[Request]) -> Vec<u64> {
        let mut scheduler = Scheduler::new(options).unwrap();
        drain_at(&mut scheduler, now, input)
            .into_iter()
            .flatten()
            .collect()
    }

    /// A request of `app` whose operation started `stamp_ms` after the wall clock's offset.
    fn from(app: u64, stamp_ms: u64) -> Request {
        let stamp_ns = WALL + stamp_ms * 1_000_000;
        Request {
            app: AppId(app),
            stamp_ns,
            ..read(app, 0, 4096)
        }
    }

    #[test]
    fn two_servers_agree_although_requests_arrive_in_another_order() {
        // The paper's claim. Both servers get the same nine requests, the second backwards.
        let mut input: Vec<_> = (0..9).map(|i| from(i % 3, 1200 + i * 7)).collect();
        for order_by in ["id", "rotated"] {
            let apps = |input: &[Request]| -> Vec<u64> {
                let ids = order(&options(order_by), Time(1_300_000_000), input);
                ids.iter().map(|&id| input[id as usize].app.0).collect()
            };
            let first = apps(&input);
            input.reverse();
            assert_eq!(first, apps(&input), "{order_by}");
        }
    }

    #[test]
    fn windows_come_before_ids_and_ids_before_arrival() {
        let input = [
            from(2, 1999),
            from(1, 2001),
            from(1, 1001),
            from(2, 1000),
            from(1, 1900),
        ];
        assert_eq!(
            order(&options("id"), Time(2_004_000_000), &input),
            [2, 4, 0, 3, 1]
        );
    }

    #[test]
    fn stamps_are_clamped_and_a_seen_epoch_counts_up_to_the_current_one() {
        let now = Time(5_500_000_000);
        let liar = from(9, 0);
        let honest = from(1, 4700);
        let hasty = from(0, 900_000);
        let late = Request {
            epoch_seen: u64::MAX,
            ..from(2, 4700)
        };
        let current = from(3, 5400);
        // The liar gains one window and no more; the hasty one cannot hurt itself beyond the
        // current window; a seen epoch from the future counts as the current one.
        let input = [current, late, hasty, honest, liar];
        assert_eq!(order(&options("id"), now, &input), [3, 4, 2, 1, 0]);
    }

    #[test]
    fn rotation_gives_every_application_each_place() {
        let mut first = [0; 4];
        for window in 0..400 {
            let input: Vec<_> = (0..4).map(|app| from(app, window * 1000)).collect();
            first[order(&options("rotated"), Time(window * 1_000_000_000), &input)[0] as usize] +=
                1;
        }
        assert!(
            first.iter().all(|&count| (70..=130).contains(&count)),
            "{first:?}"
        );
    }

    #[test]
    fn an_application_s_requests_go_upwards_by_place_in_whatever_order_they_arrive() {
        let at = |file, offset| Request {
            app: AppId(1),
            stamp_ns: WALL,
            ..read(file, offset, 4096)
        };
        let mut input: Vec<_> = (0..40).map(|i| at(i / 20, i % 20 * 4096)).collect();
        for turn in 0..input.len() {
            input.rotate_left(turn * 7 % 40);
            input.swap(turn, 39 - turn);
            let picked = order(&options("id"), Time(0), &input);
            let places = picked.iter().map(|&id| &input[id as usize]);
            let places: Vec<_> = places.map(|one| (one.file, one.offset)).collect();
            assert!(places.is_sorted(), "{places:?}");
        }
    }

    #[test]
    fn as_printed_an_application_s_requests_go_by_arrival() {
        let mut options = options("id");
        options.table = options.table.with("inside", "arrival");
        let at = |app, offset, stamp_ms| Request {
            offset,
            ..from(app, stamp_ms)
        };
        let input = [
            at(2, 8192, 10),
            at(1, 8192, 10),
            at(1, 0, 10),
            at(2, 0, 10),
            at(1, 4096, 10),
        ];
        assert_eq!(order(&options, Time(0), &input), [1, 2, 4, 0, 3]);
    }

    #[test]
    fn as_printed_applications_whose_random_ids_are_equal_interleave() {
        let twins = [(1 << 15) + 7, (5 << 15) + 7].map(|app| from(app, 10));
        let input = [twins[0], twins[1], from(3, 10), twins[1], twins[0]];
        for (order_by, picked) in [("id-15-bit", [2, 0, 1, 3, 4]), ("id", [2, 0, 4, 1, 3])] {
            let mut options = options(order_by);
            options.table = options.table.with("inside", "arrival");
            assert_eq!(order(&options, Time(0), &input), picked, "{order_by}");
        }
    }

    #[test]
    fn the_sweep_goes_on_upwards_before_it_begins_again() {
        let mut scheduler = Scheduler::new(&options("id")).unwrap();
        let mut batch = Vec::new();
        let mut picked = Vec::new();
        let arrive = |scheduler: &mut Scheduler, id: u64| {
            let request = Request {
                id: RequestId(id),
                ..read(1, id * 4096, 4096)
            };
            scheduler.handle(Time(0), Input::Arrived(request)).unwrap();
        };
        (4..8).for_each(|id| arrive(&mut scheduler, id));
        for step in 0..8 {
            assert_eq!(scheduler.poll(Time(0), &mut batch), Output::Dispatch);
            picked.push(batch[0].id.0);
            let finished = Input::Finished(batch[0].id);
            scheduler.handle(Time(0), finished).unwrap();
            // The lower ones come while the sweep is above them.
            match step {
                0 => [3, 1].iter().for_each(|id| arrive(&mut scheduler, *id)),
                1 => [2, 0].iter().for_each(|id| arrive(&mut scheduler, *id)),
                _ => {}
            }
        }
        assert_eq!(picked, [4, 5, 6, 7, 0, 1, 2, 3]);
    }

    #[test]
    fn nothing_waits_for_a_window_to_end() {
        let input = [from(1, 2004)];
        assert_eq!(order(&options("id"), Time(2_000_000_000), &input), [0]);
    }
}
