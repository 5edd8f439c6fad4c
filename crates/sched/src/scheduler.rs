//! The scheduler: takes inputs, enforces the rules of every policy, and asks the policy for order.
//!
//! Here, once, and not in each policy: bounded memory, no second dispatch of a request, the order
//! of overlapping requests, the number of batches that run at once.

use crate::cause::Cause;
use crate::cost::CostModel;
use crate::estimate::Estimate;
use crate::hash_table::NONE;
use crate::options::Options;
use crate::options_error::OptionsError;
use crate::overlap::Overlap;
use crate::policies;
use crate::policy::{Bound, Pick, Policy};
use crate::requests::{Index, Requests, Stage};
use crate::share::Shares;
use crate::types::{AppId, Input, Output, Rejected, Request, RequestId, Time};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Decides which request goes next. See the crate's first page for an example.
pub struct Scheduler {
    /// The effective ones: what was given, and defaults.
    options: Options,
    policy: Box<dyn Policy>,
    requests: Requests,
    pub(crate) overlap: Overlap,
    estimate: Estimate,
    /// By batch number: its requests that have not finished; 0 when the number is free.
    batches: Vec<u32>,
    batches_free: Vec<u32>,
    batches_running: u32,
    /// With the policy; the rest of `stats.queued` is held back by the overlap rule.
    ready: u32,
    picked: Vec<Index>,
    /// Those that waited for the request which left last, and for nothing else.
    freed: Vec<Index>,
    stats: Stats,
    /// The latest time that the host gave.
    now: Time,
}

/// Counts since the start, and what is there now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests accepted.
    pub arrived: u64,
    /// Inputs refused.
    pub rejected: u64,
    /// Batches dispatched.
    pub batches: u64,
    /// Requests dispatched.
    pub dispatched: u64,
    /// Requests finished.
    pub finished: u64,
    /// Requests cancelled before they ran.
    pub cancelled: u64,
    /// Requests that had to wait for an overlapping one.
    pub held: u64,
    /// Requests that wait now, held ones included.
    pub queued: u32,
    /// The most requests that ever waited.
    pub queued_peak: u32,
    /// Requests held by the overlap rule now.
    pub held_now: u32,
    /// Requests that run now.
    pub running: u32,
}

impl Scheduler {
    /// A scheduler with nothing queued.
    pub fn new(options: &Options) -> Result<Scheduler, OptionsError> {
        options.check()?;
        let (options, policy) = policies::build(options)?;
        Ok(Scheduler::with_policy(options, policy))
    }

    pub(crate) fn with_policy(options: Options, policy: Box<dyn Policy>) -> Scheduler {
        Scheduler {
            estimate: Estimate::new(&options, policy.uses_cost_model()),
            options,
            policy,
            requests: Requests::new(),
            overlap: Overlap::new(),
            batches: Vec::new(),
            batches_free: Vec::new(),
            batches_running: 0,
            ready: 0,
            picked: Vec::new(),
            freed: Vec::new(),
            stats: Stats::default(),
            now: Time(0),
        }
    }

    /// Whether a request waits at the policy, and not behind an overlapping request.
    #[cfg(test)]
    pub(crate) fn is_ready(&self, id: RequestId) -> bool {
        self.known(id)
            .is_ok_and(|index| self.requests[index].stage == Stage::Queued)
    }

    /// Whether the policy goes on as it is with these shares.
    #[cfg(test)]
    pub(crate) fn can_keep(&self, shares: &Shares) -> bool {
        self.policy.can_keep(shares)
    }

    /// Entries of the table, in use or free.
    #[cfg(test)]
    pub(crate) fn entries_made(&self) -> usize {
        self.requests.entries_made()
    }

    /// Takes note of what happened. A `now` earlier than a previous one counts as the previous one.
    pub fn handle(&mut self, now: Time, input: Input) -> Result<(), Rejected> {
        let now = self.latest(now);
        let result = match input {
            Input::Arrived(ref request) => self.arrived(now, request),
            Input::Finished(id) => self.finished(now, id),
            Input::Cancelled(id) => self.cancelled(now, id),
            Input::PeerService(report) => {
                self.policy.on_peer_service(&report, now);
                Ok(())
            }
        };
        if result.is_err() {
            self.stats.rejected += 1;
        }
        result
    }

    /// Asks what to do next. Call it until it answers neither [`Output::Dispatch`] nor
    /// [`Output::Broadcast`]. `into` is cleared, and filled with the requests of one batch when the
    /// answer is [`Output::Dispatch`].
    pub fn poll(&mut self, now: Time, into: &mut Vec<Request>) -> Output {
        into.clear();
        let now = self.latest(now);
        if let Some(report) = self.policy.broadcast() {
            return Output::Broadcast(report);
        }
        if self.ready == 0 || self.batches_running == self.options.depth {
            return Output::Idle;
        }
        if !self.policy.has_room(now, self.batches_running) {
            assert!(self.batches_running > 0, "policy leaves the device idle");
            return Output::Idle;
        }
        self.picked.clear();
        match self.policy.pick(&mut self.requests, now, &mut self.picked) {
            Pick::Run => {
                self.dispatch(now, into);
                Output::Dispatch
            }
            Pick::Anticipate(until) => {
                // A policy may idle on purpose, but only up to a time it can name.
                assert!(until > now, "policy holds work without a future wake-up");
                let wait_ns_max = self.policy.wait_ns_max();
                assert!(
                    until.since(now) <= wait_ns_max,
                    "policy holds work beyond its bound"
                );
                Output::WaitUntil(until)
            }
        }
    }

    /// Changes policy and options. Waiting requests move over in order of arrival; running ones are
    /// not affected. The accounts of shares are kept if both policies have shares. When the options
    /// are refused nothing changes.
    pub fn set_policy(&mut self, now: Time, options: &Options) -> Result<(), OptionsError> {
        options.check()?;
        let now = self.latest(now);
        let (options, mut policy) = policies::build(options)?;
        self.estimate.configure(&options, policy.uses_cost_model());
        policy.set_cost_model(self.estimate.effective());
        let waiting = self.requests.at_stage(Stage::Queued);
        let tags = self.policy.take_fair_state();
        policy.adopt(tags, &mut self.requests, &waiting, now);
        self.options = options;
        self.policy = policy;
        Ok(())
    }

    /// Changes the shares of applications and groups, and nothing else. When they are refused
    /// nothing changes.
    pub fn set_shares(&mut self, now: Time, shares: &Shares) -> Result<(), OptionsError> {
        shares.check()?;
        let now = self.latest(now);
        if !self.policy.can_keep(shares) {
            let options = Options {
                shares: shares.clone(),
                ..self.options.clone()
            };
            return self.set_policy(now, &options);
        }
        self.policy.shares(shares, &mut self.requests, now);
        self.options.shares = shares.clone();
        Ok(())
    }

    /// How many batches may run at once now: the policy's own choice, if it makes one.
    pub fn depth(&self) -> u32 {
        let own = self.policy.depth();
        own.map_or(self.options.depth, |depth| depth.min(self.options.depth))
    }

    /// The name of the current policy.
    pub fn policy(&self) -> &str {
        &self.options.policy
    }

    /// The effective options: those that were given, and the defaults of the others.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The effective cost model: [`Options::cost`], corrected by the times of batches under
    /// policies that use it, unless [`Options::estimate`] is off.
    pub fn cost(&self) -> CostModel {
        *self.estimate.effective()
    }

    /// What the current policy promises.
    pub fn bound(&self) -> Bound {
        self.policy.bound()
    }

    /// The longest the current policy leaves the device idle although requests wait.
    pub fn wait_ns_max(&self) -> u64 {
        self.policy.wait_ns_max()
    }

    /// The number of the current window, which goes into replies; 0 without windows.
    pub fn epoch(&self, now: Time) -> u64 {
        self.policy.epoch(now)
    }

    /// Requests that wait, whether the policy has them or the overlap rule holds them.
    #[inline]
    pub fn queued(&self) -> u32 {
        self.stats.queued
    }

    /// Requests that run.
    pub fn running(&self) -> u32 {
        self.stats.running
    }

    /// Requests that an overlapping request holds back now.
    #[inline]
    pub fn held(&self) -> u32 {
        self.stats.held_now
    }

    /// Whether an overlapping request holds this one back.
    pub fn is_held(&self, id: RequestId) -> bool {
        self.known(id)
            .is_ok_and(|index| self.requests[index].stage == Stage::Held)
    }

    /// The requests that an overlapping request held back until the one that finished last, or was
    /// cancelled last, was gone.
    pub fn freed(&self) -> impl Iterator<Item = RequestId> {
        self.freed
            .iter()
            .map(|&index| self.requests[index].request.id)
    }

    /// Whether [`Scheduler::freed`] names any.
    #[inline]
    pub fn has_freed(&self) -> bool {
        !self.freed.is_empty()
    }

    /// Why the policy lets a request of one application run before an earlier one of another.
    pub fn turns(&self) -> Cause {
        self.policy.turns()
    }

    /// Whether limits may hold requests back. Then it is for them that the device idles beside
    /// requests ([`Output::WaitUntil`]), and otherwise for what is expected.
    pub fn has_limits(&self) -> bool {
        self.policy.has_limits()
    }

    /// For how long limits have held an application's requests back by now, while it has any, in
    /// nanoseconds. Only the difference of two looks means something, while the application has
    /// requests and policy and shares stay the same.
    pub fn limited_ns(&self, app: AppId, now: Time) -> u64 {
        self.policy.limited_ns(app, now)
    }

    /// The requests that wait, in order of arrival. Looks at the whole table, so not for the data
    /// path.
    pub fn waiting(&self) -> Vec<Request> {
        let mut indices = self.requests.at_stage(Stage::Queued);
        indices.extend(self.requests.at_stage(Stage::Held));
        indices.sort_unstable_by_key(|&index| self.requests[index].arrival);
        let request = |index| self.requests[index].request;
        indices.into_iter().map(request).collect()
    }

    /// Counts since the start.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Time never goes back, whatever the host's clock does.
    fn latest(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        self.now
    }

    fn arrived(&mut self, now: Time, request: &Request) -> Result<(), Rejected> {
        if self.stats.queued >= self.options.queued_max {
            return Err(Rejected::QueueFull);
        }
        if self.requests.find(request.id) != NONE {
            return Err(Rejected::IdInUse(request.id));
        }
        let index = self.requests.insert(now, request);
        self.stats.arrived += 1;
        self.stats.queued += 1;
        self.stats.queued_peak = self.stats.queued_peak.max(self.stats.queued);
        if self.overlap.arrived(&mut self.requests, index) {
            self.make_ready(now, index);
        } else {
            self.stats.held += 1;
            self.stats.held_now += 1;
        }
        Ok(())
    }

    /// Gives a request that conflicts with nothing before it to the policy.
    fn make_ready(&mut self, now: Time, index: Index) {
        self.requests[index].ready = now;
        self.requests[index].stage = Stage::Queued;
        self.ready += 1;
        self.policy.arrived(&mut self.requests, index);
    }

    fn dispatch(&mut self, now: Time, into: &mut Vec<Request>) {
        let count = self.picked.len() as u32;
        assert!(
            count > 0 && count <= self.ready,
            "policy picked requests it does not hold"
        );
        let batch = self.batches_free.pop().unwrap_or_else(|| {
            self.batches.push(0);
            self.batches.len() as u32 - 1
        });
        self.batches[batch as usize] = count;
        for &index in &self.picked {
            let entry = &mut self.requests[index];
            assert!(
                entry.stage == Stage::Queued,
                "policy picked a request it does not hold"
            );
            entry.stage = Stage::Running;
            entry.batch = batch as u16;
            into.push(entry.request);
        }
        // A list call wants its ranges in order of place.
        if count > 1 && !into.is_sorted_by_key(|request| request.offset) {
            into.sort_unstable_by_key(|request| request.offset);
        }
        if self.estimate.on {
            self.estimate.dispatched(batch, now, into);
        }
        self.batches_running += 1;
        self.ready -= count;
        self.stats.queued -= count;
        self.stats.running += count;
        self.stats.batches += 1;
        self.stats.dispatched += u64::from(count);
    }

    fn finished(&mut self, now: Time, id: RequestId) -> Result<(), Rejected> {
        let index = self.known(id)?;
        if self.requests[index].stage != Stage::Running {
            return Err(Rejected::NotRunning(id));
        }
        let batch = u32::from(self.requests[index].batch);
        let left = &mut self.batches[batch as usize];
        *left -= 1;
        if *left == 0 {
            self.batches_free.push(batch);
            self.batches_running -= 1;
            if self.estimate.on
                && let Some(cost) = self.estimate.finished(batch, now)
            {
                self.policy.set_cost_model(cost);
            }
        }
        self.policy.finished(&self.requests, index, now);
        self.stats.running -= 1;
        self.stats.finished += 1;
        self.forget(now, index);
        Ok(())
    }

    fn cancelled(&mut self, now: Time, id: RequestId) -> Result<(), Rejected> {
        let index = self.known(id)?;
        match self.requests[index].stage {
            Stage::Running => return Ok(()),
            Stage::Queued => {
                self.policy.cancelled(&mut self.requests, index);
                self.ready -= 1;
            }
            Stage::Held => self.stats.held_now -= 1,
            Stage::Free => unreachable!("a free entry has no id"),
        }
        self.stats.queued -= 1;
        self.stats.cancelled += 1;
        self.forget(now, index);
        Ok(())
    }

    /// Frees the entry of a request that is done, and those that were held back for it alone.
    fn forget(&mut self, now: Time, index: Index) {
        let mut freed = core::mem::take(&mut self.freed);
        freed.clear();
        self.overlap.gone(&mut self.requests, index, &mut freed);
        self.requests.release(index);
        for &index in &freed {
            self.stats.held_now -= 1;
            self.make_ready(now, index);
        }
        self.freed = freed;
    }

    fn known(&self, id: RequestId) -> Result<Index, Rejected> {
        match self.requests.find(id) {
            NONE => Err(Rejected::UnknownId(id)),
            index => Ok(index),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::read;

    #[test]
    fn a_scheduler_can_move_to_another_thread() {
        fn assert_send<T: Send>() {}
        assert_send::<Scheduler>();
    }

    #[test]
    fn the_effective_options_are_all_there_and_make_the_same_policy() {
        for name in policies::NAMES {
            let mut scheduler = Scheduler::new(&Options::for_policy(name)).unwrap();
            let told = scheduler.options().clone();
            // The policy's names of its own, by a mistake that it answers with them.
            let mut wrong = Options::for_policy(name);
            wrong.table.set("mistake", 1);
            let Err(OptionsError::UnknownOption { known, .. }) = Scheduler::new(&wrong) else {
                panic!("{name} takes anything");
            };
            let mut known = known.to_vec();
            known.sort_unstable();
            let names: Vec<&str> = told.table.iter().map(|(name, _)| name).collect();
            assert_eq!(names, known, "{name}");
            assert!(told.merge.is_some(), "{name}");
            scheduler.set_policy(Time(0), &told).unwrap();
            assert_eq!(scheduler.options(), &told, "{name}");
        }
        let mut given = Options::for_policy("window");
        given.merge = Some(true);
        given.table.set("window_ms", 250);
        given.table.set("order", "id");
        let scheduler = Scheduler::new(&given).unwrap();
        let told = scheduler.options();
        given.table.set("inside", "place");
        given.table.set("rotation_seed", 0);
        assert_eq!(told, &given);
    }

    #[test]
    fn a_batch_keeps_its_place_until_all_its_requests_finished() {
        let options = Options {
            merge: Some(true),
            ..Options::for_policy("fifo")
        };
        let mut scheduler = Scheduler::new(&options).unwrap();
        let mut batch = Vec::new();
        for (id, offset) in [(0, 0), (1, 4096), (2, 90_000)] {
            let request = Request {
                id: RequestId(id),
                ..read(1, offset, 4096)
            };
            scheduler.handle(Time(0), Input::Arrived(request)).unwrap();
        }
        assert_eq!(scheduler.poll(Time(0), &mut batch), Output::Dispatch);
        assert_eq!(
            (batch.len(), scheduler.queued(), scheduler.running()),
            (2, 1, 2)
        );
        scheduler
            .handle(Time(1), Input::Finished(RequestId(1)))
            .unwrap();
        assert_eq!(scheduler.poll(Time(1), &mut batch), Output::Idle);
        scheduler
            .handle(Time(2), Input::Finished(RequestId(0)))
            .unwrap();
        assert_eq!(scheduler.poll(Time(2), &mut batch), Output::Dispatch);
        assert_eq!(batch[0].id, RequestId(2));
    }
}
