//! Time windows (Song et al., SC'11): servers that never talk serve applications in
//! the same order, because they order by what every request carries.
//!
//! The key of a request is (epoch, rank). The epoch is the number of the window in which its
//! operation started, by the client's clock; the rank orders the applications of one window and
//! is the same on every forwarder. As printed the rank is the application's id (`order = "id"`),
//! which favours low ids for ever; the default hashes (application, epoch), so every application
//! is as often first as last. The policy never waits for a window to end.
//!
//! The paper leaves the order of an application's own requests to their arrival, which differs
//! from forwarder to forwarder: then disks take different ways over the same blocks, and end at
//! different times. Here they go by their place, sweeping upwards through files and offsets and
//! then from the lowest again; places are the same everywhere, and neighbours cost no seek.

use super::{Bound, Pick, Policy};
use crate::merge::Merge;
use crate::options::{Options, OptionsError};
use crate::requests::{List, Requests, Slot};
use crate::sorted::Sorted;
use crate::types::{AppId, Request, Time, mix64};
use alloc::vec::Vec;

/// The paper's width for disks; it recommends 250 for SSDs.
const WINDOW_MS: u64 = 1000;

/// How the applications of one window are ranked; the first is the default.
const ORDERS: &[&str] = &["rotated", "id"];

/// How far a client's clock may run ahead before its stamps are cut.
const AHEAD_NS_MAX: u64 = 5_000_000;

/// How many requests of a turn are kept in order of place, so that a long queue does not make
/// arrivals expensive. What comes beyond waits in order of arrival until there is room.
const SWEEP_MAX: usize = 256;

/// Room for so many is filled at once: it takes one pass over the sweep, and what is looked at
/// for the first time since it came is fetched while others are.
const REFILL: usize = 64;

/// Turns of the last arrivals that are found without a search.
const RECENT: usize = 16;

/// File, offset, slot.
type Place = (u64, u64, Slot);

/// Epoch, rank, application. The application decides where two ranks are equal.
type Key = (u64, u64, u64);

pub(super) struct Window {
    width_ns: u64,
    wall_offset_ns: u64,
    rotated: bool,
    rotation_seed: u64,
    merge: Merge,
    by_key: Sorted<Key, u32>,
    turns: Vec<Turn>,
    turns_free: Vec<u32>,
    /// By the last bits of the application: the turn of its last arrival. The next one is often
    /// of the same.
    recent: [u32; RECENT],
    /// The window of the last arrival.
    current: u64,
}

/// The requests of one application in one window.
struct Turn {
    key: Key,
    /// The last one is next: upwards from where the sweep is, then from the lowest again.
    sweep: Vec<Place>,
    /// Where the sweep is: the place of the last one that was picked.
    at: Place,
    /// In order of arrival; empty unless the sweep is full.
    rest: List,
}

impl Turn {
    fn push(&mut self, requests: &mut Requests, slot: Slot) {
        if self.rest.is_empty() && self.sweep.len() < SWEEP_MAX {
            let place = place(requests, slot);
            self.sweep.insert(self.rank(&place), place);
        } else {
            requests.push_back(&mut self.rest, slot);
        }
    }

    /// Takes the next upwards, or the lowest again.
    fn pop(&mut self, requests: &mut Requests) -> Slot {
        self.at = self.sweep.pop().expect("an empty turn is released at once");
        self.refill(requests);
        self.at.2
    }

    fn remove(&mut self, requests: &mut Requests, slot: Slot) {
        let place = place(requests, slot);
        let rank = self.rank(&place);
        if self.sweep.get(rank) != Some(&place) {
            requests.unlink(&mut self.rest, slot);
            return;
        }
        self.sweep.remove(rank);
        self.refill(requests);
    }

    /// How many of the sweep come after a place.
    fn rank(&self, place: &Place) -> usize {
        let at = &self.at;
        let order = (place < at, place);
        self.sweep.partition_point(|one| (one < at, one) > order)
    }

    fn refill(&mut self, requests: &mut Requests) {
        if self.rest.is_empty() || self.sweep.len() > SWEEP_MAX - REFILL {
            return;
        }
        let mut slots = [0; REFILL];
        let count = requests.pop_fronts(&mut self.rest, &mut slots);
        let mut places = [Place::default(); REFILL];
        for (to, &slot) in places.iter_mut().zip(&slots[..count]) {
            *to = place(requests, slot);
            requests.touch_id(slot);
        }
        let at = self.at;
        let order = |one: &Place| (*one < at, *one);
        let new = &mut places[..count];
        new.sort_unstable_by_key(|one| core::cmp::Reverse(order(one)));
        // Both are in order: from the back each place gets the one that is next of them.
        let (mut old, mut left) = (self.sweep.len(), count);
        self.sweep.resize(old + count, at);
        while left > 0 {
            let to = old + left - 1;
            if old > 0 && order(&self.sweep[old - 1]) < order(&new[left - 1]) {
                self.sweep[to] = self.sweep[old - 1];
                old -= 1;
            } else {
                self.sweep[to] = new[left - 1];
                left -= 1;
            }
        }
    }
}

fn place(requests: &Requests, slot: Slot) -> Place {
    let request = &requests[slot].request;
    (request.file.0, request.offset, slot)
}

impl Window {
    pub(super) fn new(options: &Options) -> Result<Window, OptionsError> {
        let table = &options.table;
        table.only("window", &["order", "rotation_seed", "window_ms"])?;
        Ok(Window {
            width_ns: table.integer("window_ms", WINDOW_MS, 1, 3_600_000)? * 1_000_000,
            wall_offset_ns: options.wall_offset_ns,
            rotated: table.word("order", ORDERS)? == 0,
            rotation_seed: table.integer("rotation_seed", 0, 0, u64::MAX)?,
            merge: Merge::new(options, false),
            by_key: Sorted::new(),
            turns: Vec::new(),
            turns_free: Vec::new(),
            recent: [0; RECENT],
            current: 0,
        })
    }

    fn wall_ns(&self, now: Time) -> u64 {
        now.0.saturating_add(self.wall_offset_ns)
    }

    /// The window of a request that arrived at `arrived`. A clock that is wrong, or lies, moves
    /// its owner by at most one window; an epoch heard from another forwarder counts up to the
    /// current one, so that the later requests of an operation do not fall behind.
    fn epoch_of(&mut self, request: &Request, arrived: Time) -> u64 {
        let wall_ns = self.wall_ns(arrived);
        let min = wall_ns.saturating_sub(self.width_ns);
        let max = wall_ns.saturating_add(AHEAD_NS_MAX);
        let epoch = self.window_of(request.stamp_ns.clamp(min, max));
        match request.epoch_seen > epoch {
            true => epoch.max(request.epoch_seen.min(wall_ns / self.width_ns)),
            false => epoch,
        }
    }

    /// The window of a time. It is mostly that of the last one, and divisions are slow.
    fn window_of(&mut self, wall_ns: u64) -> u64 {
        let into = wall_ns.wrapping_sub(self.current * self.width_ns);
        if into >= self.width_ns {
            self.current = wall_ns / self.width_ns;
        }
        self.current
    }

    fn rank(&self, app: AppId, epoch: u64) -> u64 {
        if self.rotated {
            mix64(app.0 ^ mix64(epoch ^ mix64(self.rotation_seed)))
        } else {
            app.0
        }
    }

    fn turn_for(&mut self, key: Key) -> u32 {
        let recent = self.recent[key.2 as usize % RECENT];
        let turn = self.turns.get(recent as usize);
        if turn.is_some_and(|turn| turn.key == key && !turn.sweep.is_empty()) {
            return recent;
        }
        if let Some((found, number)) = self.by_key.at_or_after(&key)
            && found == key
        {
            return number;
        }
        let number = match self.turns_free.pop() {
            Some(number) => {
                let turn = &mut self.turns[number as usize];
                (turn.key, turn.at) = (key, (0, 0, 0));
                number
            }
            None => {
                self.turns.push(Turn {
                    key,
                    sweep: Vec::with_capacity(REFILL),
                    at: (0, 0, 0),
                    rest: List::new(),
                });
                self.turns.len() as u32 - 1
            }
        };
        self.by_key.insert(key, number);
        number
    }

    /// Forgets a turn when nothing is left in it.
    fn release_if_empty(&mut self, number: u32) {
        let turn = &self.turns[number as usize];
        if turn.sweep.is_empty() {
            self.by_key.remove(&turn.key);
            self.turns_free.push(number);
        }
    }
}

impl Policy for Window {
    fn arrived(&mut self, requests: &mut Requests, slot: Slot) {
        let entry = &requests[slot];
        let epoch = self.epoch_of(&entry.request, entry.arrived);
        let app = entry.request.app;
        let number = self.turn_for((epoch, self.rank(app, epoch), app.0));
        self.recent[app.0 as usize % RECENT] = number;
        self.turns[number as usize].push(requests, slot);
        self.merge.arrived(requests, number, slot);
    }

    fn pick(&mut self, requests: &mut Requests, _now: Time, into: &mut Vec<Slot>) -> Pick {
        let (_, number) = self.by_key.first().expect("pick on an empty policy");
        let turn = &mut self.turns[number as usize];
        let slot = turn.pop(requests);
        if !self.merge.take_alone(slot, into) {
            self.merge.begin();
            self.merge.take(requests, slot, into, |requests, slot| {
                turn.remove(requests, slot);
            });
            self.merge.end(requests, into);
        }
        self.release_if_empty(number);
        Pick::Run
    }

    fn cancelled(&mut self, requests: &mut Requests, slot: Slot) {
        let number = requests[slot].tag;
        self.turns[number as usize].remove(requests, slot);
        self.merge.cancelled(requests, slot);
        self.release_if_empty(number);
    }

    fn epoch(&self, now: Time) -> u64 {
        self.wall_ns(now) / self.width_ns
    }

    fn in_force(&self, options: &mut Options) {
        options.merge = Some(self.merge.is_on());
        let table = &mut options.table;
        table.set("window_ms", self.width_ns / 1_000_000);
        table.set("order", ORDERS[usize::from(!self.rotated)]);
        table.set("rotation_seed", self.rotation_seed);
    }

    /// Arriving in window a, a request has an epoch of at most a + ahead (a fast clock), and one
    /// that arrives in window b has at least b - 1 (the oldest stamp allowed). What still runs
    /// before it has b - 1 <= a + ahead.
    fn bound(&self) -> Bound {
        Bound::Windows(1 + AHEAD_NS_MAX.div_ceil(self.width_ns))
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
