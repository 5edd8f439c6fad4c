//! Earliest deadline first, with a depth that follows from latency targets.
//!
//! The lower level of the two-level scheduler (SARC/AVATAR: Zhang et al., TOS'06; in vPFS's
//! position paper over DSFQ). A request's deadline is its arrival and its application's latency
//! target, or what its client asked for if that is sooner. How many run at once is decided by
//! feedback, see `depth`, up to the scheduler's own depth.

use crate::depth::Feedback;
use crate::flat_btree::FlatBTree;
use crate::merge::Merge;
use crate::options::Options;
use crate::policy::{Bound, Pick, Policy, PolicySpec};
use crate::policy_options::{OptionKind, OptionSpec};
use crate::requests::{Index, Requests};
use crate::share::{Latency, Shares};
use crate::types::{Request, Time};
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
    merge: Merge,
    feedback: Option<Feedback>,
    /// By deadline and arrival.
    by_deadline: FlatBTree<(u64, u64, Index), ()>,
    /// By request: its deadline.
    deadlines: Vec<u64>,
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
            merge: Merge::new(options),
            feedback: feedback(options, default),
            by_deadline: FlatBTree::new(),
            deadlines: Vec::new(),
        }
    }

    fn target(&self, request: &Request) -> Latency {
        target(&self.shares, request, self.default)
    }

    fn place(&self, requests: &Requests, index: Index) -> (u64, u64, Index) {
        let deadline = self.deadlines[index as usize];
        (deadline, requests[index].arrival, index)
    }
}

/// The latency target of a request: of its application, or its group, or the default.
pub(super) fn target(shares: &Shares, request: &Request, default: Latency) -> Latency {
    let app = shares.of(request.app);
    let group = app
        .group
        .and_then(|group| shares.groups[group as usize].latency);
    app.share.latency.or(group).unwrap_or(default)
}

/// When a request should be done. What its client asks for counts, but not before now.
pub(super) fn deadline(request: &Request, ready: Time, target: Latency) -> u64 {
    let own = ready.0.saturating_add(target.ns);
    let asked = request.deadline.map_or(own, |asked| asked.0.max(ready.0));
    own.min(asked)
}

impl Policy for Edf {
    fn arrived(&mut self, requests: &mut Requests, index: Index) {
        let entry = &requests[index];
        let target = self.target(&entry.request);
        if index as usize >= self.deadlines.len() {
            self.deadlines.resize(index as usize + 1, 0);
        }
        self.deadlines[index as usize] = deadline(&entry.request, entry.ready, target);
        self.by_deadline.insert(self.place(requests, index), ());
        self.merge.arrived(requests, 0, index);
        if let Some(feedback) = &mut self.feedback {
            feedback.arrived(index, target, requests[index].ready);
        }
    }

    fn has_room(&mut self, now: Time, calls: u32) -> bool {
        let feedback = self.feedback.as_mut();
        feedback.is_none_or(|feedback| feedback.has_room(now, calls))
    }

    fn pick(&mut self, requests: &mut Requests, now: Time, into: &mut Vec<Index>) -> Pick {
        let ((_, _, index), ()) = self.by_deadline.first().expect("pick on an empty policy");
        self.merge.take_one(requests, index, into, |_, _| {});
        for &index in into.iter() {
            self.by_deadline.remove(&self.place(requests, index));
            if let Some(feedback) = &mut self.feedback {
                feedback.dispatched(index, now);
            }
        }
        Pick::Run
    }

    fn cancelled(&mut self, requests: &mut Requests, index: Index) {
        self.by_deadline.remove(&self.place(requests, index));
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

    fn shares(&mut self, shares: &Shares, _now: Time) {
        // Requests that wait keep their deadlines.
        self.shares = shares.clone();
    }

    fn depth(&self) -> Option<u32> {
        self.feedback.as_ref().map(Feedback::depth)
    }

    /// A request that arrives later by more than the longest target cannot have an earlier
    /// deadline.
    fn bound(&self) -> Bound {
        let targets = self.shares.all().filter_map(|share| share.latency);
        let longest = targets.map(|target| target.ns).max().unwrap_or(0);
        Bound::Overtaking(longest.max(self.default.ns))
    }
}
