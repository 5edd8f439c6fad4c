//! The model that the suite compares a scheduler with: all pending requests in a plain list, and
//! every rule as the plain question that it is.

use super::Subject;
use crate::types::{Direction, FileId, Input, Output, Rejected, Request, RequestId, Time};
use crate::{AppId, AppShare, Bound, OptionValue, Options, Scheduler};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::format;
use std::string::String;
use std::vec::Vec;

type Turn = (FileId, Direction);

struct Item {
    request: Request,
    arrived: Time,
    /// The number of its batch, once it runs.
    batch: Option<u64>,
    /// Set when the policy got it.
    ready: Option<Ready>,
}

#[derive(Clone, Copy)]
struct Ready {
    /// Requests that the policy had already, and batches dispatched until then.
    ahead: u64,
    batches: u64,
    at: Time,
}

/// What a nanosecond of device time counts at weight 1.
const SCALE: u128 = 1 << 16;

/// Who has shares by weight: applications or queues, all alike unless the policy has weights of its
/// own.
struct Flows {
    by_queue: bool,
    weights: BTreeMap<u64, u64>,
    /// Whether applications without a share of their own are one flow, [`CROWD`].
    has_crowd: bool,
}

/// No application's id.
const CROWD: u64 = u64::MAX;

impl Flows {
    fn new(options: &Options, has_crowd: bool) -> Flows {
        if has_crowd {
            let weight = |(app, it): (&AppId, &AppShare)| (app.0, it.share.weight.into());
            return Flows {
                by_queue: false,
                weights: options.shares.apps.iter().map(weight).collect(),
                has_crowd,
            };
        }
        let by_queue = options.table.get("by") == Some(&"queue".into());
        let text = match options.table.get("weights") {
            Some(OptionValue::Text(text)) => text.as_str(),
            _ => "",
        };
        let pairs = text.split(", ").filter_map(|pair| pair.split_once('='));
        let weights = pairs.map(|(name, weight)| {
            let flow = match by_queue {
                true => name.parse().expect("queues are numbers"),
                false => AppId::from_name(name).0,
            };
            (flow, weight.parse().expect("weights are numbers"))
        });
        Flows {
            by_queue,
            weights: weights.collect(),
            has_crowd,
        }
    }

    fn of(&self, request: &Request) -> u64 {
        match self.by_queue {
            true => request.queue.into(),
            false if self.has_crowd && !self.weights.contains_key(&request.app.0) => CROWD,
            false => request.app.0,
        }
    }

    fn weight(&self, flow: u64) -> u64 {
        self.weights.get(&flow).copied().unwrap_or(1)
    }
}

/// See the file's first sentence.
pub(super) struct Model {
    options: Options,
    exact: bool,
    /// Accepted and neither finished nor cancelled, in order of arrival.
    items: Vec<Item>,
    /// What the policy has, in the order in which it got it.
    ready: Vec<RequestId>,
    /// For each file and direction that waits: turns of each other one since its own.
    turns: BTreeMap<Turn, BTreeMap<Turn, u64>>,
    batches: u64,
    /// Device time of each application or queue since it waits, divided by its weight.
    served: BTreeMap<u64, u128>,
    /// The most device time of a batch.
    cost_max: u64,
    /// The longest turn.
    turn_max: u64,
    running_max: usize,
    batch: Vec<Request>,
    /// Everything that came out, as text.
    pub(super) outputs: String,
}

impl Model {
    pub(super) fn new(options: &Options, exact: bool) -> Model {
        Model {
            options: options.clone(),
            exact,
            items: Vec::new(),
            ready: Vec::new(),
            turns: BTreeMap::new(),
            batches: 0,
            served: BTreeMap::new(),
            cost_max: 0,
            turn_max: 0,
            running_max: 0,
            batch: Vec::new(),
            outputs: String::new(),
        }
    }

    /// After a change of shares they count from now, and so does the order of arrival of those
    /// who had another order before.
    pub(super) fn forget_shares(&mut self, had_another: impl Fn(AppId) -> bool) {
        self.served.clear();
        let moved = |item: &&Item| {
            let waits = item.ready.is_some() && item.batch.is_none();
            waits && had_another(item.request.app)
        };
        let moved: Vec<RequestId> = (self.items.iter().filter(moved))
            .map(|item| item.request.id)
            .collect();
        let mut in_order = moved.iter();
        for id in self.ready.iter_mut().filter(|id| moved.contains(id)) {
            *id = *in_order.next().expect("they are as many");
        }
    }

    /// After a change of policy promises count from now.
    pub(super) fn forget_bounds(&mut self) {
        self.turns.clear();
        self.served.clear();
        let waiting = |item: &&Item| item.ready.is_some() && item.batch.is_none();
        self.ready = self
            .items
            .iter()
            .filter(waiting)
            .map(|item| item.request.id)
            .collect();
        for (ahead, id) in (0..).zip(self.ready.clone()) {
            let batches = self.batches;
            let item = self.item(id).expect("it is ready");
            let at = item.ready.expect("it is ready").at;
            item.ready = Some(Ready { ahead, batches, at });
        }
    }

    pub(super) fn arrived(
        &mut self,
        now: Time,
        request: Request,
        subject: &mut dyn Subject,
    ) -> Result<(), String> {
        let full = self.waiting() >= self.options.queued_max as usize;
        let expected = if full {
            Err(Rejected::QueueFull)
        } else {
            Ok(())
        };
        let answer = subject.handle(now, Input::Arrived(request));
        if answer != expected {
            return Err(format!(
                "memory: {answer:?} although {} wait",
                self.waiting()
            ));
        }
        if full {
            return Ok(());
        }
        self.items.push(Item {
            request,
            arrived: now,
            batch: None,
            ready: None,
        });
        if subject.handle(now, Input::Arrived(request)).is_ok() {
            return Err(format!("exactly once: id {} was taken twice", request.id.0));
        }
        self.note_ready(now, subject);
        Ok(())
    }

    pub(super) fn cancelled(
        &mut self,
        now: Time,
        id: RequestId,
        subject: &mut dyn Subject,
    ) -> Result<(), String> {
        let position = self.items.iter().position(|item| item.request.id == id);
        let expected = position.map(|_| ()).ok_or(Rejected::UnknownId(id));
        let answer = subject.handle(now, Input::Cancelled(id));
        if answer != expected {
            return Err(format!("exactly once: cancelling {} gave {answer:?}", id.0));
        }
        if let Some(position) = position.filter(|&at| self.items[at].batch.is_none()) {
            self.items.remove(position);
            self.leave(id);
        }
        self.note_ready(now, subject);
        Ok(())
    }

    /// Finishes one of the running requests.
    pub(super) fn finished(
        &mut self,
        now: Time,
        choice: u64,
        subject: &mut dyn Subject,
    ) -> Result<(), String> {
        let running: Vec<usize> = (0..self.items.len())
            .filter(|&at| self.items[at].batch.is_some())
            .collect();
        if let Some(waiting) = self.items.iter().find(|item| item.batch.is_none()) {
            let answer = subject.handle(now, Input::Finished(waiting.request.id));
            if answer != Err(Rejected::NotRunning(waiting.request.id)) {
                return Err(format!("exactly once: {answer:?} for one that never ran"));
            }
        }
        if running.is_empty() {
            return Ok(());
        }
        let id = self
            .items
            .remove(running[choice as usize % running.len()])
            .request
            .id;
        let answer = subject.handle(now, Input::Finished(id));
        self.note_ready(now, subject);
        answer.map_err(|error| format!("exactly once: finishing: {error}"))
    }

    /// Polls until nothing more is dispatched.
    pub(super) fn poll(&mut self, now: Time, subject: &mut dyn Subject) -> Result<(), String> {
        loop {
            let mut batch = std::mem::take(&mut self.batch);
            let output = subject.poll(now, &mut batch);
            let ids: Vec<u64> = batch.iter().map(|request| request.id.0).collect();
            writeln!(self.outputs, "{output:?} {ids:?}").expect("a string takes all");
            self.batch = batch;
            match output {
                Output::Dispatch => self.dispatched(subject)?,
                Output::Broadcast(_) => {}
                Output::Idle => return self.check_idle(subject.inner().depth()),
                Output::WaitUntil(until) => {
                    let wait_ns_max = subject.inner().wait_ns_max();
                    if until <= now || until.since(now) > wait_ns_max {
                        return Err(format!("work conserving: waits from {now:?} to {until:?}"));
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Runs all that is left. Time stands still but for waits, which must come to an end.
    pub(super) fn drain(&mut self, now: Time, subject: &mut dyn Subject) -> Result<(), String> {
        let mut now = now;
        let polls_max = 10 * self.items.len() + 10;
        for _ in 0..polls_max {
            self.poll(now, subject)?;
            while self.items.iter().any(|item| item.batch.is_some()) {
                self.finished(now, 0, subject)?;
            }
            now = now + 1_000_000_000;
        }
        if !self.items.is_empty() {
            return Err(format!(
                "exactly once: {} requests never ran",
                self.items.len()
            ));
        }
        let entries_max = self.options.queued_max as usize + self.running_max;
        if subject.inner().entries_made() > entries_max {
            return Err(format!(
                "memory: {} entries were made",
                subject.inner().entries_made()
            ));
        }
        Ok(())
    }

    fn waiting(&self) -> usize {
        self.items
            .iter()
            .filter(|item| item.batch.is_none())
            .count()
    }

    fn item(&mut self, id: RequestId) -> Option<&mut Item> {
        self.items.iter_mut().find(|item| item.request.id == id)
    }

    /// Notes which requests the policy has got.
    fn note_ready(&mut self, now: Time, subject: &dyn Subject) {
        for item in &mut self.items {
            let id = item.request.id;
            if item.ready.is_none() && item.batch.is_none() && subject.inner().is_ready(id) {
                let ahead = self.ready.len() as u64;
                item.ready = Some(Ready {
                    ahead,
                    batches: self.batches,
                    at: now,
                });
                self.ready.push(id);
                self.turns
                    .entry((item.request.file, item.request.direction))
                    .or_default();
            }
        }
    }

    /// Takes a request out of what the policy has.
    fn leave(&mut self, id: RequestId) {
        self.ready.retain(|&other| other != id);
        let waiting: Vec<Turn> = self
            .items
            .iter()
            .filter(|item| item.batch.is_none() && item.ready.is_some())
            .map(|item| (item.request.file, item.request.direction))
            .collect();
        self.turns.retain(|turn, _| waiting.contains(turn));
    }

    fn dispatched(&mut self, subject: &dyn Subject) -> Result<(), String> {
        let batch = std::mem::take(&mut self.batch);
        self.check_batch(&batch)?;
        let turn = (batch[0].file, batch[0].direction);
        let first_of_turn = self.ready.iter().copied().find(|&id| {
            let item = self.items.iter().find(|item| item.request.id == id);
            item.is_some_and(|item| (item.request.file, item.request.direction) == turn)
        });
        for request in &batch {
            self.check_one(request, subject)?;
        }
        self.check_order(&batch, subject.inner())?;
        if let Bound::Turns(most) = subject.inner().bound() {
            if !first_of_turn.is_some_and(|id| batch.iter().any(|request| request.id == id)) {
                return Err(format!("bound: {turn:?} runs out of its order of arrival"));
            }
            for (waiting, turns) in self.turns.iter_mut().filter(|(other, _)| **other != turn) {
                let count = turns.entry(turn).or_default();
                *count += 1;
                if *count > most {
                    return Err(format!(
                        "bound: {count} turns of {turn:?} before {waiting:?}"
                    ));
                }
            }
            self.turns.entry(turn).or_default().clear();
        }
        for request in &batch {
            let number = self.batches;
            self.item(request.id).expect("checked above").batch = Some(number);
            self.leave(request.id);
        }
        self.batches += 1;
        let running: Vec<u64> = self.items.iter().filter_map(|item| item.batch).collect();
        self.running_max = self.running_max.max(running.len());
        let distinct: std::collections::BTreeSet<_> = running.iter().collect();
        self.batch = batch;
        if distinct.len() > self.options.depth as usize {
            return Err(format!("depth: {} batches run", distinct.len()));
        }
        Ok(())
    }

    /// A batch is one call: one file, one direction, extents apart and sorted, within the limits.
    fn check_batch(&self, batch: &[Request]) -> Result<(), String> {
        let Some(first) = batch.first() else {
            return Err("batch: it is empty".into());
        };
        if batch.len() == 1 {
            return Ok(());
        }
        let bytes: u64 = batch.iter().map(|request| request.len).sum();
        let like = |request: &Request| {
            (request.file, request.direction) == (first.file, first.direction) && request.mergeable
        };
        if !batch.iter().all(like) || batch.windows(2).any(|pair| pair[0].end() > pair[1].offset) {
            return Err(format!("batch: {batch:?} is not one list call"));
        }
        let requests_max = self.options.batch_requests_max as usize;
        if bytes > self.options.batch_bytes_max || batch.len() > requests_max {
            return Err(format!("batch: {} requests, {bytes} bytes", batch.len()));
        }
        Ok(())
    }

    fn check_one(&self, request: &Request, subject: &dyn Subject) -> Result<(), String> {
        let id = request.id.0;
        let position = self
            .items
            .iter()
            .position(|item| item.request.id == request.id);
        let Some(position) = position.filter(|&at| self.items[at].batch.is_none()) else {
            return Err(format!("exactly once: {id} is not waiting"));
        };
        let item = &self.items[position];
        if let Some(before) = self.conflict(position) {
            return Err(format!("overlap: {id} runs before {} finished", before.0));
        }
        let Some(ready) = item.ready else {
            return Err(format!("overlap: {id} was held"));
        };
        match subject.inner().bound() {
            Bound::Ahead if self.batches - ready.batches > ready.ahead => Err(format!(
                "bound: {id} waited for {} batches",
                self.batches - ready.batches
            )),
            Bound::Windows(most) => self.check_windows(item, most, subject.inner(), |_| true),
            Bound::WeightedBesideWindows { windows, .. } => {
                let flows = Flows::new(subject.inner().options(), true);
                let is_crowd = |item: &Item| flows.of(&item.request) == CROWD;
                match is_crowd(item) {
                    true => self.check_windows(item, windows, subject.inner(), is_crowd),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Of those that are alike, none of a window so much earlier waits.
    fn check_windows(
        &self,
        item: &Item,
        most: u64,
        inner: &Scheduler,
        alike: impl Fn(&Item) -> bool,
    ) -> Result<(), String> {
        let window = |item: &Item| inner.epoch(item.arrived);
        let waits = |other: &&Item| other.batch.is_none() && other.ready.is_some();
        let passed = self.items.iter().filter(waits).filter(|other| alike(other));
        match passed.map(window).min() {
            Some(oldest) if window(item) > oldest + most => {
                let id = item.request.id.0;
                Err(format!("bound: {id} passed one of window {oldest}"))
            }
            _ => Ok(()),
        }
    }

    /// What holds of a batch as a whole: its earliest request leads it.
    fn check_order(&mut self, batch: &[Request], inner: &Scheduler) -> Result<(), String> {
        match inner.bound() {
            Bound::Overtaking(most_ns) => {
                let ids: Vec<RequestId> = batch.iter().map(|request| request.id).collect();
                let led = |item: &&Item| ids.contains(&item.request.id);
                let arrived = self.items.iter().filter(led).map(|item| item.arrived).min();
                let arrived = arrived.expect("checked before");
                let waiting = self.items.iter().filter(|item| item.batch.is_none());
                let passed = waiting
                    .filter(|item| !ids.contains(&item.request.id))
                    .filter_map(|item| item.ready.map(|ready| (item.request.id, ready.at)))
                    .find(|(_, ready)| arrived.since(*ready) > most_ns);
                match passed {
                    Some((id, ready)) => Err(format!(
                        "bound: one of {arrived:?} passes {}, free since {ready:?}",
                        id.0
                    )),
                    None => Ok(()),
                }
            }
            Bound::Weighted { turn_ns } => self.check_shares(batch, inner, turn_ns, false),
            Bound::WeightedBesideWindows { turn_ns, .. } => {
                self.check_shares(batch, inner, turn_ns, true)
            }
            _ => Ok(()),
        }
    }

    /// The device time of applications or queues while they wait, and the order of each one's own.
    fn check_shares(
        &mut self,
        batch: &[Request],
        inner: &Scheduler,
        turn_ns: u64,
        has_crowd: bool,
    ) -> Result<(), String> {
        let mut flows = Flows::new(inner.options(), has_crowd);
        let flow = flows.of(&batch[0]);
        let first = self.ready.iter().find(|&&id| {
            let item = self.items.iter().find(|item| item.request.id == id);
            item.is_some_and(|item| flows.of(&item.request) == flow)
        });
        if flow != CROWD && !batch.iter().any(|request| Some(&request.id) == first) {
            return Err(format!("bound: {} passes its own", batch[0].id.0));
        }
        let shares = &inner.options().shares;
        if !shares.groups.is_empty() || shares.all().any(|share| share.min.is_some()) {
            // Not by weights alone.
            return Ok(());
        }
        if has_crowd {
            let waiting = self
                .items
                .iter()
                .filter(|item| self.ready.contains(&item.request.id));
            let crowd = waiting.filter(|item| flows.of(&item.request) == CROWD);
            let apps: std::collections::BTreeSet<u64> =
                crowd.map(|item| item.request.app.0).collect();
            flows.weights.insert(CROWD, apps.len().max(1) as u64);
        }
        let model = inner.cost();
        let cost = |request: &Request| model.request_ns(request);
        let charged: u64 = batch.iter().map(cost).fold(0, u64::saturating_add);
        self.cost_max = self.cost_max.max(charged);
        self.turn_max = self.turn_max.max(turn_ns);
        let ids: Vec<RequestId> = batch.iter().map(|request| request.id).collect();
        let mut waiting: Vec<u64> = Vec::new();
        for id in self.ready.iter().filter(|id| !ids.contains(id)) {
            let item = self.items.iter().find(|item| item.request.id == *id);
            waiting.extend(item.map(|item| flows.of(&item.request)));
        }
        // Whoever waits now is compared since the last time that it did not.
        self.served
            .retain(|other, _| waiting.contains(other) || *other == flow);
        let low = self.served.values().min().copied().unwrap_or(0);
        for other in waiting {
            self.served.entry(other).or_insert(low);
        }
        let by_weight = u128::from(charged) * SCALE / u128::from(flows.weight(flow));
        *self.served.entry(flow).or_insert(low) += by_weight;
        let (low, high) = (self.served.values().min(), self.served.values().max());
        let spread = high.expect("just added") - low.expect("just added");
        // Two may differ by the largest cost, each way. Who joins begins here with what the last
        // was served, where the policy goes by tags: up to a cost off, for each that has joined,
        // and more where prices rise. With turns both are a turn more.
        let joined = self.served.len() as u128;
        let most = 4 + joined + if self.options.estimate { 2 } else { 0 };
        let most_ns = most * u128::from(self.cost_max) + 4 * u128::from(self.turn_max);
        if spread > most_ns * SCALE {
            return Err(format!("bound: served {:?}", self.served));
        }
        Ok(())
    }

    /// An earlier request that the one at `position` must wait for.
    fn conflict(&self, position: usize) -> Option<RequestId> {
        let request = &self.items[position].request;
        let earlier = self.items[..position].iter().map(|item| &item.request);
        earlier
            .filter(|other| request.conflicts_with(other))
            .map(|other| other.id)
            .next()
    }

    fn check_idle(&self, depth: u32) -> Result<(), String> {
        let running: std::collections::BTreeSet<u64> =
            self.items.iter().filter_map(|item| item.batch).collect();
        let mut waiting = (0..self.items.len()).filter(|&at| self.items[at].batch.is_none());
        let depth_free = running.len() < depth as usize;
        // Where the overlap rule is exact, any place that is free must be used; else at least one.
        let idle = if self.exact {
            depth_free && waiting.any(|at| self.conflict(at).is_none())
        } else {
            running.is_empty() && waiting.next().is_some() || depth_free && !self.ready.is_empty()
        };
        if idle {
            Err("work conserving: idle beside a request that could run".into())
        } else {
            Ok(())
        }
    }
}
