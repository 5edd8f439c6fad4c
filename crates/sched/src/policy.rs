//! The trait that every policy implements, what it promises, and what is said of it in the list of
//! policies.

use crate::cause::Cause;
use crate::cost::CostModel;
use crate::options::Options;
use crate::options_error::OptionsError;
use crate::policy_options::OptionSpec;
use crate::requests::{Index, Requests};
use crate::share::Shares;
use crate::tags::Tags;
use crate::types::{AppId, ServiceReport, Time};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// A policy as it stands in the list of all.
pub struct PolicySpec {
    /// What configurations call it.
    pub name: &'static str,
    /// The options that it has of its own, in order of their names.
    pub options: &'static [OptionSpec],
    /// Whether it merges adjacent requests by default.
    pub merges: bool,
    /// Whether it keeps [`Shares`].
    pub keeps_shares: bool,
    /// Makes it from complete options.
    pub(crate) make: fn(&Options) -> Result<Box<dyn Policy>, OptionsError>,
}

/// Chooses the order of the requests it was given. Holds them until it picks them.
///
/// No two requests in a policy conflict: the scheduler keeps overlapping ones back until their
/// turn, so a policy is free to take them in any order and to put any of them in one batch.
pub(crate) trait Policy: Send {
    /// Takes a request.
    fn arrived(&mut self, requests: &mut Requests, index: Index);

    /// Moves the next batch to `into`, which is empty: requests of one file and one direction, in
    /// any order. Called only while the policy holds at least one request.
    fn pick(&mut self, requests: &mut Requests, now: Time, into: &mut Vec<Index>) -> Pick;

    /// Gives a request back that will not run.
    fn cancelled(&mut self, requests: &mut Requests, index: Index);

    /// Feedback for policies that adapt; the others need not write it.
    fn finished(&mut self, _requests: &Requests, _index: Index, _now: Time) {}

    /// Whether it uses the cost model. For other policies the scheduler does not measure batches.
    fn uses_cost_model(&self) -> bool {
        false
    }

    /// Sets what accesses cost from now on. Requests that it holds keep the places they have.
    fn set_cost_model(&mut self, _cost: &CostModel) {}

    /// Whether one batch more may run beside `calls`; asked before `pick`, besides the own depth. A
    /// policy that says no has requests running, whose end makes room.
    fn has_room(&mut self, _now: Time, _calls: u32) -> bool {
        true
    }

    /// How many it lets run at once now, if it decides that itself.
    fn depth(&self) -> Option<u32> {
        None
    }

    /// Whether it can go on as it is with these shares. Otherwise it is made anew.
    fn can_keep(&self, _shares: &Shares) -> bool {
        true
    }

    /// Replaces the shares, for policies that keep them.
    fn shares(&mut self, _shares: &Shares, _requests: &mut Requests, _now: Time) {}

    /// Hands its fair-queueing state to the policy that takes its place; it is dropped afterwards.
    fn take_fair_state(&mut self) -> Option<Tags> {
        None
    }

    /// Adopts the requests that wait, in order of arrival, and the fair-queueing state of the
    /// policy before, if that had any.
    fn adopt(
        &mut self,
        _tags: Option<Tags>,
        requests: &mut Requests,
        waiting: &[Index],
        _now: Time,
    ) {
        for &index in waiting {
            self.arrived(requests, index);
        }
    }

    /// The next report to the other forwarders of what this one served, for policies that send any.
    fn broadcast(&mut self) -> Option<ServiceReport> {
        None
    }

    /// Takes a report of what another forwarder served.
    fn on_peer_service(&mut self, _served: &ServiceReport, _now: Time) {}

    /// The number of the current window, for policies that have windows.
    fn epoch(&self, _now: Time) -> u64 {
        0
    }

    /// Why a request of one application runs before an earlier one of another.
    fn turns(&self) -> Cause {
        Cause::Share
    }

    /// Whether it leaves the device idle for limits, and not for predictions.
    fn has_limits(&self) -> bool {
        false
    }

    /// For how long limits have held an application's requests back by now, while it has any, in
    /// nanoseconds. Only differences mean something.
    fn limited_ns(&self, _app: AppId, _now: Time) -> u64 {
        0
    }

    /// How long a request can wait at most.
    fn bound(&self) -> Bound;

    /// The longest time for which it leaves the device idle beside a request that waits; 0 for
    /// policies that never answer [`Pick::Anticipate`].
    fn wait_ns_max(&self) -> u64 {
        0
    }
}

/// A policy's answer to "what next".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pick {
    /// Run what was put in `into`.
    Run,
    /// Leave the device idle until this time, which is later than `now`, or until an input: a
    /// larger batch is expected, or limits forbid all that waits.
    Anticipate(Time),
}

/// What a policy promises to every request, counted from when it is free to run. The suite of
/// invariants measures it for every policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// It runs after at most as many batches as requests were ahead of it when it became free.
    Ahead,
    /// Between two turns of its own file and direction, every other file and direction has at
    /// most this many turns; and requests of one file and direction start in order of arrival,
    /// at least one each turn.
    Turns(u64),
    /// Only requests that arrive at most this many windows after it can run before it.
    Windows(u64),
    /// Only requests that arrive at most this many nanoseconds after it became free, and those
    /// that share a batch with one of them, can run before it.
    Overtaking(u64),
    /// Requests of one application, or queue, start in order of arrival; and of two that both wait
    /// all the time, neither is served more than the other, in device time divided by weight,
    /// beyond one request of each for every batch that may run at once, a turn of each, what other
    /// forwarders served, and what reservations and limits ask for.
    Weighted {
        /// Device time of a turn, in nanoseconds, beyond its last request.
        turn_ns: u64,
    },
    /// [`Bound::Weighted`] holds of applications with a share of their own, and of all others
    /// together, who have the weights of those that wait; among these others only requests that
    /// arrive at most this many windows after one can run before it.
    WeightedBesideWindows {
        /// As in [`Bound::Weighted`].
        turn_ns: u64,
        /// As in [`Bound::Windows`].
        windows: u64,
    },
}
