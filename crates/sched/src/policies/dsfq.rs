//! Distributed start-time fair queueing (Wang and Merchant, FAST'07; vPFS, MSST'12), and over it
//! the two-level scheduler.
//!
//! An application gets its share of all forwarders together, without messages between them. Each
//! request reports what other forwarders served its application since the client's last request
//! here, and is delayed by that (`sync = "total"`). The delay is bounded: the application keeps
//! `local_min_percent` of its share on each forwarder (the paper's hybrid), whatever a wrong
//! counter says. The other values of `sync`: `local` shares each forwarder by itself. `layout`
//! computes the service elsewhere from how the operation is spread over forwarders. `threshold`
//! takes it from the reports that forwarders send each other, one after each `report_ms` of device
//! time (vPFS's layout-driven and threshold-driven synchronisation). With `total` and `report_ms`
//! both reports are known, and the larger one counts. Reservations and limits: see `tags`.
//!
//! `two-level` has shares above and deadlines below. Of the applications whose reservation is due,
//! the one whose first request has the earliest deadline goes first. When no reservation is due the
//! weights decide, so the device never idles for a promise (the original has credits, which come
//! back when it idles). The number of batches that run at once follows from latency targets, see
//! `depth`.

use super::edf;
use crate::cost::CostModel;
use crate::depth::Feedback;
use crate::hash_table::NONE;
use crate::merge::{Beside, Merge};
use crate::options::Options;
use crate::policy::{Bound, Pick, Policy, PolicySpec};
use crate::policy_options::{OptionKind, OptionSpec};
use crate::requests::{Index, List, Requests, Stage};
use crate::share::{Latency, Service, Shares};
use crate::tags::{Next, ServiceDelta, THROTTLE_NS_MAX, Tags};
use crate::turn::{TURN_SEEKS, Turn};
use crate::types::{AppId, Request, ServiceReport, Time};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The default is the interval of vPFS's figures.
pub(super) const CREDIT_MS: OptionSpec = OptionSpec::integer(
    "credit_ms",
    500,
    [1, 60_000],
    "for how many milliseconds of the past a reservation that was not asked for can be asked for",
);

/// By default an application that is served elsewhere keeps a hundredth of its share here.
pub(super) const LOCAL_MIN_PERCENT: OptionSpec = OptionSpec::integer(
    "local_min_percent",
    1,
    [1, 100],
    "so much of its share an application keeps on each forwarder, whatever others serve it",
);

pub(super) const SYNC: OptionSpec = OptionSpec::new(
    "sync",
    OptionKind::Word(&["total", "local", "layout", "threshold"]),
    "what counts of other forwarders' service: `total`, as clients report it; `local`, nothing; \
     `layout`, as operations are spread; `threshold`, as forwarders report it to each other",
);

pub(super) const REPORT_MS: OptionSpec = OptionSpec::integer(
    "report_ms",
    0,
    [0, REPORT_MS_MAX],
    "device time of an application, in milliseconds, after which a forwarder reports it to the \
     others, through the hidden folder, five times a second; 0: never. With `sync = \"total\"` it \
     checks what clients report: the larger one counts",
)
.except(
    SYNC.name,
    "threshold",
    OptionKind::Integer {
        default: 50,
        min: 1,
        max: REPORT_MS_MAX,
    },
);

const REPORT_MS_MAX: u64 = 60_000;

pub(super) const SPEC: PolicySpec = PolicySpec {
    name: "dsfq",
    options: &[CREDIT_MS, LOCAL_MIN_PERCENT, REPORT_MS, SYNC, TURN_SEEKS],
    merges: false,
    keeps_shares: true,
    make: |options| Ok(Box::new(Dsfq::new(options, None))),
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sync {
    Total,
    Local,
    Layout,
    Threshold,
}

pub(super) struct Dsfq {
    sync: Sync,
    local_min_percent: u64,
    /// Device time of an application after which the other forwarders get a report; 0: never.
    report_ms: u64,
    /// By number of an application: the service that no report has told of yet. Then the numbers of
    /// the applications whose report is due.
    unreported: Vec<ServiceReport>,
    to_report: Vec<u32>,
    cost: CostModel,
    merge: Merge,
    tags: Tags,
    turn: Turn,
    urgent: Urgent,
    /// By number of an application: its requests in order of arrival.
    queues: Vec<List>,
    /// For `two-level`: the deadlines below the shares.
    below: Option<Below>,
    /// For `auto`: the order of applications without a share of their own.
    crowd: Option<Box<dyn Policy>>,
    now: Time,
    /// True while this policy adopts the requests of its predecessor, which has counted their
    /// reports already.
    adopts: bool,
    /// By request: when it was dispatched, and its application's number; [`NONE`] if it does not
    /// run.
    running: Vec<(Time, u32)>,
    /// When a request last finished.
    finished_at: Time,
}

/// Under `two-level`, the applications that have a latency target of their own and requests
/// waiting.
#[derive(Default)]
struct Urgent {
    /// By number of an application, and how many there are.
    applications: Vec<bool>,
    count: u32,
    /// False once other shares were set.
    is_known: bool,
}

impl Urgent {
    fn set(&mut self, number: u32, is_urgent: bool) {
        if number as usize >= self.applications.len() {
            self.applications.resize(number as usize + 1, false);
        }
        let was = core::mem::replace(&mut self.applications[number as usize], is_urgent);
        self.count = self.count + u32::from(is_urgent) - u32::from(was);
    }

    /// Whether somebody other than this application is urgent.
    fn is_other_than(&self, number: u32) -> bool {
        let is_itself = self.applications.get(number as usize) == Some(&true);
        self.count > u32::from(is_itself)
    }
}

/// What only `two-level` has.
pub(super) struct Below {
    pub(super) default: Latency,
    pub(super) feedback: Option<Feedback>,
    /// What work is counted in: not what is learned of the device, see `climb.rs`.
    pub(super) work: CostModel,
}

impl Dsfq {
    /// Shares alone, or with deadlines below.
    pub(super) fn new(options: &Options, below: Option<Below>) -> Dsfq {
        let table = &options.table;
        let credit_ns = table.integer(&CREDIT_MS) * 1_000_000;
        Dsfq {
            sync: match table.text(&SYNC).as_str() {
                "total" => Sync::Total,
                "local" => Sync::Local,
                "layout" => Sync::Layout,
                _ => Sync::Threshold,
            },
            report_ms: table.integer(&REPORT_MS),
            unreported: Vec::new(),
            to_report: Vec::new(),
            local_min_percent: table.integer(&LOCAL_MIN_PERCENT),
            cost: options.cost,
            merge: Merge::new(options),
            tags: Tags::new(&options.shares, credit_ns, below.is_some()),
            turn: Turn::new(options),
            urgent: Urgent::default(),
            queues: Vec::new(),
            below,
            crowd: None,
            now: Time(0),
            adopts: false,
            running: Vec::new(),
            finished_at: Time(0),
        }
    }

    /// Shares for those who have one of their own, and beside them the crowd of all others in
    /// `order`.
    pub(super) fn beside(options: &Options, below: Option<Below>, order: Box<dyn Policy>) -> Dsfq {
        let by_deadline = below.is_some();
        let credit_ns = options.table.integer(&CREDIT_MS) * 1_000_000;
        let mut dsfq = Dsfq::new(options, below);
        dsfq.tags = Tags::beside_crowd(&options.shares, credit_ns, by_deadline);
        dsfq.limit_batches(&options.cost);
        dsfq.crowd = Some(order);
        dsfq
    }

    fn limit_batches(&mut self, cost: &CostModel) {
        let has_targets = self.below.is_some();
        let beside = if has_targets {
            Beside::Targets
        } else {
            Beside::Shares
        };
        self.merge.limit(cost, beside);
    }

    fn feedback(&mut self) -> Option<&mut Feedback> {
        self.below.as_mut()?.feedback.as_mut()
    }

    fn target(&self, request: &Request) -> Latency {
        let default = self.below.as_ref().map(|below| below.default);
        let default = default.unwrap_or(Latency {
            ns: 0,
            percentile: 1,
        });
        edf::target(self.tags.shares(), request, default)
    }

    /// The service that a request takes here.
    fn service(&self, request: &Request) -> Service {
        let whole = request.len == u64::MAX;
        Service {
            device_ns: self.cost.request_ns(request),
            bytes: if whole { 0 } else { request.len },
            operations: 1,
        }
    }

    /// What a request reports of service since the client's last request here, under this `sync`.
    fn reported_by(&self, request: &Request) -> ServiceDelta {
        let (device_ns, here_ns, away_ms) = match self.sync {
            Sync::Local | Sync::Threshold => (0, 0, 0),
            Sync::Total => (
                request.charged_elsewhere_ns,
                request.charged_here_ns,
                request.away_ms,
            ),
            Sync::Layout => {
                let here = request.operation_bytes_max.max(1);
                let others = request.operation_bytes.saturating_sub(here);
                let cost_ns = self.cost.request_ns(request);
                let ns = u128::from(cost_ns) * u128::from(others) / u128::from(here);
                (u64::try_from(ns).unwrap_or(u64::MAX), cost_ns, 0)
            }
        };
        let elsewhere = Service {
            device_ns,
            bytes: request.bytes_elsewhere,
            operations: request.operations_elsewhere.into(),
        };
        ServiceDelta {
            elsewhere,
            here_ns,
            away_ms,
        }
    }

    /// Describes a request as the first one of its application.
    fn first(&self, requests: &Requests, index: Index) -> Next {
        let entry = &requests[index];
        let request = &entry.request;
        let cost_ns = self.cost.request_ns(request);
        let parts = 100 - self.local_min_percent;
        Next {
            cost_ns,
            delay_ns_max: cost_ns.saturating_mul(parts) / self.local_min_percent,
            // What a client asks for is no reason to pass over somebody else's reservation.
            deadline: entry.ready.0.saturating_add(self.target(request).ns),
        }
    }

    /// Describes the first request of an application, if it has one.
    fn next_of(&self, requests: &Requests, number: u32) -> Option<Next> {
        let first = requests.front(&self.queues[number as usize])?;
        Some(self.first(requests, first))
    }

    /// Removes a request from its application's queue.
    fn unlink(&mut self, requests: &mut Requests, number: u32, index: Index) {
        let queue = &mut self.queues[number as usize];
        requests.unlink(queue, index);
        if self.below.is_some() && requests.front(queue).is_none() {
            self.urgent.set(number, false);
        }
    }

    /// After other shares were set, finds anew who has requests waiting and a target.
    fn know_urgent(&mut self, requests: &Requests) {
        if core::mem::replace(&mut self.urgent.is_known, true) || self.below.is_none() {
            return;
        }
        for (number, queue) in self.queues.iter().enumerate() {
            let front = requests
                .front(queue)
                .map(|index| requests[index].request.app);
            let target = front.and_then(|app| edf::own_target(self.tags.shares(), app));
            self.urgent.set(number as u32, target.is_some());
        }
    }

    /// Describes the first request of an application after one has left. For one of the crowd, who
    /// has no queue of its own, the one that left stands for it.
    fn next_after(&self, requests: &Requests, number: u32, left: Index) -> Option<Next> {
        match self.tags.is_in_crowd(number) {
            true => (self.tags.waiting_of(number) > 1).then(|| self.first(requests, left)),
            false => self.next_of(requests, number),
        }
    }

    /// Puts a request in its application's queue, or in the crowd.
    fn put_in(&mut self, requests: &mut Requests, index: Index) {
        let request = requests[index].request;
        let number = self.tags.number(request.app);
        if number as usize >= self.queues.len() {
            self.queues.resize(number as usize + 1, List::new());
        }
        let first = self.first(requests, index);
        let told = match self.adopts {
            true => ServiceDelta::default(),
            false => self.reported_by(&request),
        };
        self.tags.arrived(number, self.now, &told, first);
        match &mut self.crowd {
            Some(crowd) if self.tags.is_in_crowd(number) => crowd.arrived(requests, index),
            _ => {
                requests.push_back(&mut self.queues[number as usize], index);
                self.merge.arrived(requests, number, index);
            }
        }
        if self.below.is_some() {
            let target = edf::own_target(self.tags.shares(), request.app);
            self.urgent.set(number, target.is_some());
        }
    }

    /// Takes a request out that does not run.
    fn take_out(&mut self, requests: &mut Requests, index: Index) {
        let number = self.tags.number(requests[index].request.app);
        match &mut self.crowd {
            Some(crowd) if self.tags.is_in_crowd(number) => crowd.cancelled(requests, index),
            _ => {
                self.unlink(requests, number, index);
                self.merge.cancelled(requests, index);
            }
        }
        let next = self.next_after(requests, number, index);
        self.tags.cancelled(number, self.now, next);
    }

    /// The requests of those who enter or leave the crowd by these shares, in order of arrival.
    fn movers(&self, requests: &Requests, shares: &Shares) -> Vec<Index> {
        if self.crowd.is_none() || self.tags.keeps_crowd(shares) {
            return Vec::new();
        }
        let mut waiting = requests.at_stage(Stage::Queued);
        waiting.retain(|&index| self.tags.changes_crowd(requests[index].request.app, shares));
        waiting
    }

    /// Takes the next batch of the crowd.
    fn pick_of_crowd(&mut self, requests: &mut Requests, into: &mut Vec<Index>) -> Pick {
        let crowd = self.crowd.as_mut().expect("the tags have one");
        let pick = crowd.pick(requests, self.now, into);
        for &index in into.iter() {
            let number = self.tags.number(requests[index].request.app);
            self.tags.chose_of_crowd(number);
            self.run(requests, number, index, self.now);
        }
        pick
    }

    /// Removes a request from its application's queue, and charges the application for it.
    fn run(&mut self, requests: &mut Requests, number: u32, index: Index, now: Time) {
        if !self.tags.is_in_crowd(number) {
            self.unlink(requests, number, index);
        }
        let service = self.service(&requests[index].request);
        if index as usize >= self.running.len() {
            self.running.resize(index as usize + 1, (now, NONE));
        }
        self.running[index as usize] = (now, number);
        let next = self.next_after(requests, number, index);
        self.tags.charge(number, now, &service, next);
        let flow = self.tags.flow_of(number);
        self.turn
            .runs(flow, &requests[index].request, service.device_ns);
        if self.report_ms > 0 {
            self.note_unreported(number, requests[index].request.app, &service);
        }
        if let Some(feedback) = self.feedback() {
            feedback.dispatched(index, now);
        }
    }
}

impl Dsfq {
    /// Adds service that the other forwarders do not know of. Its report is due when it has become
    /// `report_ms` of device time.
    fn note_unreported(&mut self, number: u32, app: AppId, service: &Service) {
        if number as usize >= self.unreported.len() {
            self.unreported
                .resize(number as usize + 1, ServiceReport::default());
        }
        let unreported = &mut self.unreported[number as usize];
        if unreported.app != app {
            // The number belonged to another application, whose rest was below the threshold.
            *unreported = ServiceReport::default();
        }
        let was_much = unreported.device_ns >= self.report_ms * 1_000_000;
        unreported.app = app;
        unreported.device_ns = unreported.device_ns.saturating_add(service.device_ns);
        unreported.bytes = unreported.bytes.saturating_add(service.bytes);
        unreported.operations += service.operations;
        if !was_much && unreported.device_ns >= self.report_ms * 1_000_000 {
            self.to_report.push(number);
        }
    }
}

impl Policy for Dsfq {
    fn arrived(&mut self, requests: &mut Requests, index: Index) {
        let entry = &requests[index];
        let (request, now) = (entry.request, entry.ready.max(self.now));
        self.now = now;
        self.put_in(requests, index);
        let target = self.target(&request);
        let work = self.below.as_ref().map(|below| below.work);
        if let (Some(feedback), Some(work)) = (self.feedback(), work) {
            feedback.arrived(index, target, work.request_ns(&request), now);
        }
    }

    fn has_room(&mut self, now: Time, calls: u32) -> bool {
        let feedback = self.feedback();
        feedback.is_none_or(|feedback| feedback.has_room(now, calls))
    }

    fn pick(&mut self, requests: &mut Requests, now: Time, into: &mut Vec<Index>) -> Pick {
        self.now = now.max(self.now);
        let first = match self.tags.next(self.now) {
            Ok(number) => number,
            Err(until) => return Pick::Anticipate(until),
        };
        let first = self.tags.flow_of(first);
        // Reservations are due at times of their own, and nobody's turn.
        let number = match self.tags.is_by_weight() {
            true => {
                self.know_urgent(requests);
                let (tags, urgent) = (&self.tags, &self.urgent);
                let goes_on = |one| tags.may_go_on(one) && !urgent.is_other_than(one);
                self.turn.next(goes_on, first)
            }
            false => first,
        };
        if self.tags.is_crowd(number) {
            return self.pick_of_crowd(requests, into);
        }
        let front = requests.front(&self.queues[number as usize]);
        let index = front.expect("an application without requests is not next");
        self.merge.take_one(requests, index, into, |_, _| {});
        for &index in into.iter() {
            self.run(requests, number, index, self.now);
        }
        Pick::Run
    }

    fn cancelled(&mut self, requests: &mut Requests, index: Index) {
        self.take_out(requests, index);
        if let Some(feedback) = self.feedback() {
            feedback.cancelled(index);
        }
    }

    fn finished(&mut self, _requests: &Requests, index: Index, now: Time) {
        // As forwarders charge for their replies: requests that run at once share the time.
        if let Some((since, number)) = self.running.get_mut(index as usize)
            && *number != NONE
        {
            let since = self.finished_at.max(*since);
            self.tags.record_device_time(*number, now.since(since));
            *number = NONE;
        }
        self.finished_at = self.finished_at.max(now);
        if let Some(feedback) = self.feedback() {
            feedback.finished(index, now);
        }
    }

    fn broadcast(&mut self) -> Option<ServiceReport> {
        let number = self.to_report.pop()?;
        Some(core::mem::take(&mut self.unreported[number as usize]))
    }

    fn on_peer_service(&mut self, served: &ServiceReport, now: Time) {
        if matches!(self.sync, Sync::Total | Sync::Threshold) {
            self.now = now.max(self.now);
            let service = Service {
                device_ns: served.device_ns,
                bytes: served.bytes,
                operations: served.operations,
            };
            self.tags.on_peer_service(served.app, self.now, &service);
        }
    }

    fn uses_cost_model(&self) -> bool {
        true
    }

    fn set_cost_model(&mut self, cost: &CostModel) {
        self.cost = *cost;
        self.turn.set_cost_model(cost);
        if let Some(crowd) = &mut self.crowd {
            crowd.set_cost_model(cost);
            self.limit_batches(cost);
        }
    }

    fn has_limits(&self) -> bool {
        self.tags.has_limits()
    }

    fn limited_ns(&self, app: AppId, now: Time) -> u64 {
        self.tags.limited_ns(app, now)
    }

    fn epoch(&self, now: Time) -> u64 {
        self.crowd.as_ref().map_or(0, |crowd| crowd.epoch(now))
    }

    fn can_keep(&self, shares: &Shares) -> bool {
        let has_targets = self.below.is_some();
        let is_alike = has_targets == shares.have_targets() && !shares.promise_nothing();
        self.crowd.is_none() || is_alike
    }

    fn shares(&mut self, shares: &Shares, requests: &mut Requests, now: Time) {
        self.now = now.max(self.now);
        let moved = self.movers(requests, shares);
        for &index in &moved {
            self.take_out(requests, index);
            let number = self.tags.number(requests[index].request.app);
            self.tags.take_back_delay(number);
        }
        self.tags.set_shares(shares, self.now);
        self.adopts = true;
        for &index in &moved {
            self.put_in(requests, index);
        }
        self.adopts = false;
        self.urgent.is_known = false;
    }

    fn take_fair_state(&mut self) -> Option<Tags> {
        let none = Tags::new(&Shares::default(), 0, false);
        Some(core::mem::replace(&mut self.tags, none))
    }

    fn adopt(&mut self, tags: Option<Tags>, requests: &mut Requests, waiting: &[Index], now: Time) {
        self.now = now;
        if let Some(tags) = tags {
            self.tags.adopt(tags, now);
            self.adopts = true;
        }
        for &index in waiting {
            self.arrived(requests, index);
        }
        self.adopts = false;
    }

    fn depth(&self) -> Option<u32> {
        let feedback = self.below.as_ref()?.feedback.as_ref()?;
        Some(feedback.depth())
    }

    fn bound(&self) -> Bound {
        let turn_ns = self.turn.most_ns();
        let crowd = self.crowd.as_ref().filter(|_| self.tags.has_crowd());
        match crowd.map(|crowd| crowd.bound()) {
            Some(Bound::Windows(windows)) => Bound::WeightedBesideWindows { turn_ns, windows },
            _ => Bound::Weighted { turn_ns },
        }
    }

    fn wait_ns_max(&self) -> u64 {
        match self.tags.has_limits() {
            true => THROTTLE_NS_MAX,
            false => 0,
        }
    }
}
