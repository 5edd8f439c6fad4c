//! Splits the time that each data request spends at the forwarder by cause, for the status.
//!
//! A request has a `Wait`: in which state it is, and since when. At each step the time since then
//! goes to a cause, so that the causes of a request sum up to its time here. What the scheduler's
//! queue cost it is divided when it goes to the device, see `device_time`. A status divides what
//! requests have waited until then, so that those which hang are in it.
//!
//! A request that goes to the device as soon as it comes costs a few instructions: nobody's device
//! time is counted unless a request waits.
//!
//! Only requests that pass the scheduler count: reads, writes, and operations on a whole file.

use super::Forwarder;
use super::data_requests::{key_of, request_id};
use super::device_time::{Counts, DeviceTime};
use super::receive::{Dispatch, Key, Pending};
use super::wait::{State, Wait};
use super::wait_sums::WaitSums;
use alloc::vec::Vec;
use tidegate_sched::{AppId, Cause, RequestId, Time};

/// What was so when the wait of a request began.
#[derive(Default)]
struct Begin {
    counts: Counts,
    /// For how long limits had held its application back.
    limited_ns: u64,
    /// Overlap since it came that is in the sums, without the neighbour.
    unnamed_ns: u64,
}

/// Who had the device, and since when the requests wait that do.
#[derive(Default)]
pub(super) struct Waits {
    device: DeviceTime,
    /// By the request's number.
    begins: Vec<Begin>,
    /// Requests whose wait begins now, unless they go to the device at once.
    fresh: Vec<Key>,
    freed: Vec<RequestId>,
}

impl Waits {
    /// The policy leaves the device idle beside requests from now on, or does not.
    #[inline]
    pub(super) fn hold(&mut self, now: Time, holds: bool) {
        self.device.hold(now, holds);
    }

    fn begin(&mut self, key: Key) -> &mut Begin {
        let place = key as usize;
        if self.begins.len() <= place {
            self.begins.resize_with(place + 1, Begin::default);
        }
        &mut self.begins[place]
    }
}

impl Forwarder {
    /// A request enters the scheduler's queue, or waits until there is room, with so many parts.
    #[inline(always)]
    pub(super) fn enter_queue(&mut self, key: Key, parts: u32) {
        let Pending { wait, hints, .. } = &mut self.requests[key];
        if wait.state == State::BehindChunk {
            return self.leave_chunks(key, parts);
        }
        if wait.since < self.now {
            wait.checks_ns += wait.take_ns(self.now);
        }
        wait.state = State::Queued;
        wait.waiting = parts;
        wait.place = self.waits.device.came(hints.app, parts);
        self.waits.fresh.push(key);
    }

    #[cold]
    fn leave_chunks(&mut self, key: Key, parts: u32) {
        self.charge_chunk(key);
        self.requests[key].wait.state = State::Checked;
        self.enter_queue(key, parts);
    }

    /// A part of a request goes to the back end.
    #[inline(always)]
    pub(super) fn leave_queue(&mut self, key: Key) {
        let mut wait = &mut self.requests[key].wait;
        if wait.since < self.now {
            self.charge_queue(key);
            wait = &mut self.requests[key].wait;
        }
        self.waits.device.dispatched(self.now, wait.place);
        wait.waiting = wait.waiting.wrapping_sub(1);
        wait.state = match wait.waiting {
            0 => State::Running,
            _ => State::Queued,
        };
        if wait.compares || wait.waiting > 0 {
            self.waits_on(key);
        }
    }

    /// What is left of a request waits, since now; or nothing is.
    #[cold]
    fn waits_on(&mut self, key: Key) {
        if self.requests[key].wait.compares {
            self.compares_no_longer(key);
        }
        if self.requests[key].wait.waiting > 0 {
            self.waits.fresh.push(key);
        }
    }

    /// A request is answered that is not done: it waits no longer.
    #[cold]
    pub(super) fn give_up_wait(&mut self, wait: &Wait) {
        self.waits.device.dropped(wait.place, wait.waiting);
        if wait.compares {
            self.waits.device.looked_at_no_longer();
        }
    }

    fn compares_no_longer(&mut self, key: Key) {
        self.requests[key].wait.compares = false;
        self.waits.device.looked_at_no_longer();
    }

    /// The back end is done with a part of a request, which the scheduler knows by now.
    #[inline]
    pub(super) fn part_done(&mut self, key: Key, place: u8) {
        self.waits.device.finished(self.now, place);
        if self.scheduler.has_freed() {
            self.free_overlapping(key);
        }
    }

    /// What waited for one request alone is held back no longer.
    #[cold]
    fn free_overlapping(&mut self, key: Key) {
        let neighbour = self.requests[key].hints.app;
        let mut freed = core::mem::take(&mut self.waits.freed);
        freed.extend(self.scheduler.freed());
        for id in freed.drain(..) {
            let key = key_of(id);
            match self.requests[key].wait.is_held() {
                true => self.charge_overlap(key, Some(neighbour)),
                false => self.charge_queue(key),
            }
            let wait = &mut self.requests[key].wait;
            wait.held = wait.held.saturating_sub(1);
            self.waits_on(key);
        }
        self.waits.freed = freed;
    }

    /// The scheduler has nothing more to dispatch now: what came lately waits.
    #[inline]
    pub(super) fn begin_waits(&mut self) {
        match self.scheduler.queued() == 0 && self.parked.is_empty() {
            true => self.waits.fresh.clear(),
            false => self.begin_fresh_waits(),
        }
    }

    fn begin_fresh_waits(&mut self) {
        while let Some(key) = self.waits.fresh.pop() {
            let wait = self.requests.get(key).map(|pending| &pending.wait);
            if wait.is_none_or(|wait| wait.state != State::Queued || wait.compares) {
                continue;
            }
            let held = match self.scheduler.held() {
                0 => 0,
                _ => self.held_parts(key),
            };
            let wait = &mut self.requests[key].wait;
            wait.held = held;
            if !wait.is_held() {
                self.compare_from_now(key);
            }
        }
    }

    /// How many parts of a request an overlapping one holds back.
    fn held_parts(&self, key: Key) -> u32 {
        let (extents_len, _) = self.extents_of(key);
        let ids = (0..extents_len.max(1)).map(|index| request_id(key, index));
        ids.filter(|id| self.scheduler.is_held(*id)).count() as u32
    }

    /// A request that waited until the scheduler has room gets into its queue.
    #[cold]
    pub(super) fn leave_parked(&mut self, key: Key) {
        self.charge_queue(key);
        self.waits_on(key);
    }

    fn compare_from_now(&mut self, key: Key) {
        let Pending { wait, hints, .. } = &mut self.requests[key];
        wait.compares = true;
        let again = core::mem::replace(&mut wait.looked, true);
        let limited_ns = self.scheduler.limited_ns(AppId(hints.app), self.now);
        let mut counts = self.waits.device.look(self.now);
        let begin = self.waits.begin(key);
        if again {
            counts.came_as_in(&begin.counts);
        }
        (begin.counts, begin.limited_ns) = (counts, limited_ns);
    }

    /// Divides what requests have waited until now, before somebody looks at the sums.
    pub(super) fn charge_waits(&mut self) {
        self.begin_waits();
        for key in self.requests.numbers() {
            let pending = &mut self.requests[key];
            if !matches!(pending.dispatch, Dispatch::Data(_) | Dispatch::WholeFile) {
                continue;
            }
            let (app, user) = (pending.hints.app, pending.user);
            let sums = self.counters.applications.waits(app, user);
            pending.wait.charge_checks(self.now, sums);
            let wait = &mut pending.wait;
            match wait.state {
                State::Checked => {}
                State::BehindChunk => self.charge_chunk(key),
                State::Queued if wait.is_held() => self.charge_overlap(key, None),
                State::Queued if !wait.compares => {}
                State::Queued => {
                    self.charge_queue(key);
                    self.compares_no_longer(key);
                    self.compare_from_now(key);
                }
                State::Running => {
                    let ns = wait.take_ns(self.now);
                    self.sums_of(key).add(Cause::Service, ns);
                }
            }
        }
    }

    /// Where the waits of a request count.
    fn sums_of(&mut self, key: Key) -> &mut WaitSums {
        let Pending { hints, user, .. } = &self.requests[key];
        self.counters.applications.waits(hints.app, *user)
    }

    /// The chunk before it is of the same application.
    #[cold]
    fn charge_chunk(&mut self, key: Key) {
        let own = self.requests[key].hints.app;
        self.charge_overlap(key, Some(own));
    }

    #[cold]
    fn charge_overlap(&mut self, key: Key, neighbour: Option<u64>) {
        let ns = self.requests[key].wait.take_ns(self.now);
        let unnamed_ns = &mut self.waits.begin(key).unnamed_ns;
        let all_ns = core::mem::take(unnamed_ns) + ns;
        if neighbour.is_none() {
            *unnamed_ns = all_ns;
        }
        let sums = self.sums_of(key);
        sums.add(Cause::Overlap, ns);
        if let Some(app) = neighbour {
            sums.add_neighbour(app, Cause::Overlap, all_ns);
        }
    }

    /// Divides the time that a request has waited in the queue until now.
    #[cold]
    fn charge_queue(&mut self, key: Key) {
        let now = self.now;
        let Pending {
            wait, hints, user, ..
        } = &mut self.requests[key];
        let ns = wait.take_ns(now);
        if !wait.compares {
            // It goes on as soon as the forwarder's loop comes to it.
            wait.checks_ns += ns;
            return;
        }
        let (app, user, place) = (hints.app, *user, wait.place);
        self.waits.device.pass(now);
        let (device, scheduler) = (&self.waits.device, &self.scheduler);
        let begin = &self.waits.begins[key as usize];
        let held_ns = device.held_ns(&begin.counts);
        let limited_ns = scheduler.limited_ns(AppId(app), now);
        let limited_ns = limited_ns.saturating_sub(begin.limited_ns);
        let (limited_ns, expecting_ns) = match held_ns > 0 && scheduler.has_limits() {
            true => (limited_ns.max(held_ns), 0),
            false => (limited_ns, held_ns),
        };
        let limited_ns = limited_ns.min(ns);
        let expecting_ns = expecting_ns.min(ns - limited_ns);
        let left_ns = ns - limited_ns - expecting_ns;
        let sums = self.counters.applications.waits(app, user);
        sums.add(Cause::Limit, limited_ns);
        sums.add(Cause::Prediction, expecting_ns);
        let mut turns = Cause::Device;
        let had_ns = device.had(&begin.counts, place, left_ns, |had| {
            if had.overtook_ns > 0 && turns == Cause::Device {
                turns = scheduler.turns();
            }
            for (cause, ns) in [(Cause::Device, had.before_ns), (turns, had.overtook_ns)] {
                sums.add(cause, ns);
                if let Some(app) = had.app {
                    sums.add_neighbour(app, cause, ns);
                }
            }
        });
        // Nothing ran: the loop had not come to it.
        sums.add(Cause::Checks, left_ns - had_ns);
    }
}

#[cfg(test)]
impl Forwarder {
    /// Requests that wait for the device, and places of applications that have requests.
    pub(crate) fn waits_in_use(&self) -> (u32, usize) {
        self.waits.device.in_use()
    }

    /// What the requests of an application waited for by now, ns: by cause, and what neighbours
    /// caused of it.
    pub(crate) fn waits_of(&mut self, app: u64) -> ([u64; Cause::COUNT], Vec<(u64, Cause, u64)>) {
        self.charge_waits();
        let Some(account) = self.counters.applications.get(app) else {
            return Default::default();
        };
        let caused = account.waits.neighbours().flat_map(|one| {
            let pairs = super::wait_sums::OF_NEIGHBOURS.into_iter().zip(one.ns);
            pairs.map(|(cause, ns)| (one.app, cause, ns))
        });
        let caused = caused.filter(|(_, _, ns)| *ns > 0);
        (account.waits.ns, caused.collect())
    }
}
