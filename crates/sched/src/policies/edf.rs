//! Earliest deadline first, with a depth that follows from latency targets.
//!
//! The lower level of the two-level scheduler (SARC/AVATAR: Zhang et al., TOS'06; in vPFS's
//! position paper over DSFQ). A request's deadline is its arrival and its application's latency
//! target. How many run at once is decided by feedback, see `depth`, up to the scheduler's own
//! depth.
//!
//! A sooner deadline that a client asks for is the client's word. It counts among the requests of
//! its own application: the most urgent one takes the place of the one that would be next, which
//! takes its place. So the places that an application has among the others are those of its target,
//! whatever it asks for.

use crate::cost::CostModel;
use crate::depth::Feedback;
use crate::flat_btree::FlatBTree;
use crate::merge::Merge;
use crate::options::Options;
use crate::policy::{Bound, Pick, Policy, PolicySpec};
use crate::policy_options::{OptionKind, OptionSpec};
use crate::requests::{Index, Requests};
use crate::share::{Latency, Shares};
use crate::types::{AppId, Request, Time};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Whether the depth follows from the targets.
pub(super) const FEEDBACK: OptionSpec = OptionSpec::new(
    "feedback",
    OptionKind::Word(&["on", "off"]),
    "whether the number of batches that run at once follows from the latency targets; `off`: the \
     scheduler's `depth`",
);

/// The target of an application without one.
pub(super) const LATENCY_MS: OptionSpec = OptionSpec::integer(
    "latency_ms",
    1000,
    [1, 60_000],
    "target, in milliseconds, of an application that no rule gives another one",
);

pub(super) const SPEC: PolicySpec = PolicySpec {
    name: "edf",
    options: &[FEEDBACK, LATENCY_MS],
    merges: false,
    keeps_shares: true,
    make: |options| Ok(Box::new(Edf::new(options))),
};

/// The most that depends on the percentile of a target that was not said.
const PERCENTILE: u8 = 95;

struct Edf {
    shares: Shares,
    default: Latency,
    cost: CostModel,
    merge: Merge,
    feedback: Option<Feedback>,
    /// By deadline and arrival.
    by_deadline: FlatBTree<(u64, u64, Index), ()>,
    /// Requests whose clients asked for a sooner deadline, by application, that deadline and
    /// arrival.
    by_urgency: FlatBTree<(u64, u64, u64, Index), ()>,
    /// By request.
    deadlines: Vec<Deadline>,
}

/// When a request should be done.
#[derive(Clone, Copy, Default)]
struct Deadline {
    /// By its place among all requests.
    place: u64,
    /// By its own target.
    own: u64,
    /// By its client's word, if that is sooner; else the same.
    asked: u64,
}

/// The option `latency_ms`.
pub(super) fn default_latency(options: &Options) -> Latency {
    Latency {
        ns: options.table.integer(&LATENCY_MS) * 1_000_000,
        percentile: PERCENTILE,
    }
}

/// The option `feedback`.
pub(super) fn feedback(options: &Options, default: Latency) -> Option<Feedback> {
    let on = options.table.is(&FEEDBACK, "on");
    on.then(|| Feedback::new(&options.shares, default, options.depth))
}

impl Edf {
    fn new(options: &Options) -> Edf {
        let default = default_latency(options);
        Edf {
            shares: options.shares.clone(),
            default,
            cost: options.cost,
            merge: Merge::new(options),
            feedback: feedback(options, default),
            by_deadline: FlatBTree::new(),
            by_urgency: FlatBTree::new(),
            deadlines: Vec::new(),
        }
    }

    fn target(&self, request: &Request) -> Latency {
        target(&self.shares, request, self.default)
    }

    fn place(&self, requests: &Requests, index: Index) -> (u64, u64, Index) {
        let deadline = self.deadlines[index as usize].place;
        (deadline, requests[index].arrival, index)
    }

    fn urgency(&self, requests: &Requests, index: Index) -> (u64, u64, u64, Index) {
        let (entry, asked) = (&requests[index], self.deadlines[index as usize].asked);
        (entry.request.app.0, asked, entry.arrival, index)
    }

    fn remove(&mut self, requests: &Requests, index: Index) {
        self.by_deadline.remove(&self.place(requests, index));
        let deadline = self.deadlines[index as usize];
        if deadline.asked < deadline.own {
            self.by_urgency.remove(&self.urgency(requests, index));
        }
    }

    /// The request that runs at a place: its own, or a more urgent one of the same application,
    /// with which it then changes places.
    fn most_urgent(&mut self, requests: &Requests, placed: Index) -> Index {
        if self.by_urgency.is_empty() {
            return placed;
        }
        let app = requests[placed].request.app.0;
        let urgent = self.by_urgency.at_or_after(&(app, 0, 0, 0));
        let urgent = urgent.filter(|((of, ..), ())| *of == app);
        let Some(((_, asked, _, urgent), ())) = urgent else {
            return placed;
        };
        // No request that came after this one's own deadline takes its place.
        if urgent == placed || asked >= self.deadlines[placed as usize].asked {
            return placed;
        }
        for index in [placed, urgent] {
            self.by_deadline.remove(&self.place(requests, index));
        }
        let place = self.deadlines[placed as usize].place;
        self.deadlines[placed as usize].place = self.deadlines[urgent as usize].place;
        self.deadlines[urgent as usize].place = place;
        for index in [placed, urgent] {
            self.by_deadline.insert(self.place(requests, index), ());
        }
        urgent
    }
}

/// The latency target of a request: of its application, or its group, or the default.
pub(super) fn target(shares: &Shares, request: &Request, default: Latency) -> Latency {
    own_target(shares, request.app).unwrap_or(default)
}

/// The latency target of an application, or its group, if it has one.
pub(super) fn own_target(shares: &Shares, app: AppId) -> Option<Latency> {
    let app = shares.of(app);
    let group = app
        .group
        .and_then(|group| shares.groups[group as usize].latency);
    app.share.latency.or(group)
}

/// When a request should be done. What its client asks for counts, but not before now.
fn deadline(request: &Request, ready: Time, target: Latency) -> u64 {
    let own = ready.0.saturating_add(target.ns);
    let asked = request.deadline.map_or(own, |asked| asked.0.max(ready.0));
    own.min(asked)
}

impl Policy for Edf {
    fn arrived(&mut self, requests: &mut Requests, index: Index) {
        let entry = &requests[index];
        let target = self.target(&entry.request);
        if index as usize >= self.deadlines.len() {
            let len = index as usize + 1;
            self.deadlines.resize(len, Deadline::default());
        }
        let own = entry.ready.0.saturating_add(target.ns);
        let asked = deadline(&entry.request, entry.ready, target);
        self.deadlines[index as usize] = Deadline {
            place: own,
            own,
            asked,
        };
        self.by_deadline.insert(self.place(requests, index), ());
        if asked < own {
            self.by_urgency.insert(self.urgency(requests, index), ());
        }
        self.merge.arrived(requests, 0, index);
        if let Some(feedback) = &mut self.feedback {
            let cost_ns = self.cost.request_ns(&requests[index].request);
            feedback.arrived(index, target, cost_ns, requests[index].ready);
        }
    }

    fn has_room(&mut self, now: Time, calls: u32) -> bool {
        let feedback = self.feedback.as_mut();
        feedback.is_none_or(|feedback| feedback.has_room(now, calls))
    }

    fn pick(&mut self, requests: &mut Requests, now: Time, into: &mut Vec<Index>) -> Pick {
        let ((_, _, placed), ()) = self.by_deadline.first().expect("pick on an empty policy");
        let index = self.most_urgent(requests, placed);
        self.merge.take_one(requests, index, into, |_, _| {});
        for &index in into.iter() {
            self.remove(requests, index);
            if let Some(feedback) = &mut self.feedback {
                feedback.dispatched(index, now);
            }
        }
        Pick::Run
    }

    fn cancelled(&mut self, requests: &mut Requests, index: Index) {
        self.remove(requests, index);
        self.merge.cancelled(requests, index);
        if let Some(feedback) = &mut self.feedback {
            feedback.cancelled(index);
        }
    }

    fn finished(&mut self, _requests: &Requests, index: Index, now: Time) {
        if let Some(feedback) = &mut self.feedback {
            feedback.finished(index, now);
        }
    }

    fn shares(&mut self, shares: &Shares, _requests: &mut Requests, _now: Time) {
        // Requests that wait keep their deadlines.
        self.shares = shares.clone();
    }

    fn depth(&self) -> Option<u32> {
        self.feedback.as_ref().map(Feedback::depth)
    }

    /// A request that arrives later by more than the longest target cannot have an earlier
    /// deadline. One that changed places with a more urgent one, which came before its own
    /// deadline, has that one's deadline.
    fn bound(&self) -> Bound {
        let targets = self.shares.all().filter_map(|share| share.latency);
        let longest = targets.map(|target| target.ns).max().unwrap_or(0);
        Bound::Overtaking(longest.max(self.default.ns).saturating_mul(2))
    }
}

#[cfg(test)]
mod tests {
    use crate::test::{drain, read};
    use crate::{AppId, Input, Options, Request, RequestId, Scheduler, Time};
    use std::vec::Vec;

    /// A request of an application, and the deadline that it asks for, in ms.
    fn asks(app: u64, id: u64, deadline_ms: Option<u64>) -> Request {
        Request {
            id: RequestId(id),
            app: AppId(app),
            deadline: deadline_ms.map(|ms| Time(ms * 1_000_000)),
            ..read(id, 0, 4096)
        }
    }

    /// The order in which requests run that arrive 1 ms after each other.
    fn order(requests: &[Request]) -> Vec<u64> {
        let mut options = Options::for_policy("edf");
        options.table.set("feedback", "off");
        options.depth = 1;
        let mut scheduler = Scheduler::new(&options).expect("sound options");
        for (at, request) in requests.iter().enumerate() {
            let now = Time(1_000_000 * at as u64);
            let taken = scheduler.handle(now, Input::Arrived(*request));
            taken.expect("there is room");
        }
        drain(&mut scheduler, &[]).concat()
    }

    #[test]
    fn who_asks_for_the_past_wins_nothing_from_others() {
        let requests: Vec<Request> = (0..12)
            .map(|id| asks(id % 2, id, (id % 2 == 1).then_some(0)))
            .collect();
        assert_eq!(order(&requests), (0..12).collect::<Vec<_>>());
    }

    #[test]
    fn an_urgent_request_takes_the_next_place_of_its_application() {
        let requests = [
            asks(1, 0, None),
            asks(2, 1, None),
            asks(1, 2, None),
            asks(2, 3, None),
            asks(1, 4, Some(500)),
            asks(1, 5, Some(400)),
        ];
        assert_eq!(order(&requests), [5, 1, 4, 3, 2, 0]);
    }
}
