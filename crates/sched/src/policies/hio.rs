//! Hierarchical I/O scheduling (HIO, after Liu, Chen and Zhuang): of collective reads, the parts
//! with the longest shuffle go first.
//!
//! A collective read is done when the last of its aggregators has read its part and sent it to the
//! other processes (the *shuffle*). Clients predict how long the shuffle of each request takes, and
//! the longest shuffle of the operation. The base order is that of `window`, alike on all
//! forwarders. Inside one operation the longest shuffle goes first (Jackson's rule). And a part
//! whose shuffle is shorter than the operation's longest has *slack*, the paper's acceptable delay:
//! it may end so much later than in the base order without ending its operation later. So a part of
//! a later operation goes before it if all that are overtaken have slack for it, and more left than
//! it has itself. Slack that was used is subtracted. Where every operation has equal parts on all
//! forwarders, and all of them are there from the beginning, nobody ends later than in the base
//! order; elsewhere slack is a guess, and one may. `slack_percent` is the share of the slack that
//! may be used.
//!
//! All requests of one application with one stamp are one operation, from however many processes
//! they come, if they carry shuffles. Requests without shuffles are one operation for each
//! application and window, in order of place, as in `window`; without any shuffles the policy is
//! `window`.
//!
//! With `paper_exact` the order is the paper's algorithm 1, see `paper_exact`.

mod operations;
mod paper_exact;

use super::window::Ranking;
use crate::cause::Cause;
use crate::cost::CostModel;
use crate::epochs::{Epochs, ORDER, ROTATION_SEED, WINDOW_MS};
use crate::merge::{Beside, Merge};
use crate::options::Options;
use crate::policy::{Bound, Pick, Policy, PolicySpec};
use crate::policy_options::{OptionKind, OptionSpec};
use crate::requests::{Index, Requests};
use crate::share::Shares;
use crate::types::{Direction, Request, Time};
use alloc::boxed::Box;
use alloc::vec::Vec;
use operations::{Key, Operations};
use paper_exact::PaperExact;

/// So many operations are examined for one that may go before the others.
const LOOK_MAX: usize = 64;

/// Shuffle costs within so many seek penalties are treated as equal. Separating them costs a seek,
/// which delays all requests behind, and gains one operation at most the difference.
const SEEKS_ALIKE: u64 = 64;

/// Algorithm 1 of the paper.
const PAPER_EXACT: OptionSpec = OptionSpec::new(
    "paper_exact",
    OptionKind::Bool,
    "the paper's algorithm 1 instead; it can be 1.5 times as slow as `window`",
);

/// Of the slack of an operation.
pub(super) const SLACK_PERCENT: OptionSpec = OptionSpec::integer(
    "slack_percent",
    100,
    [0, 100],
    "how much of its slack others may use; 0: operations keep the base order",
);

pub(super) const SPEC: PolicySpec = PolicySpec {
    name: "hio",
    options: &[ORDER, PAPER_EXACT, ROTATION_SEED, SLACK_PERCENT, WINDOW_MS],
    merges: false,
    keeps_shares: false,
    make: |options| {
        let paper_exact = options.table.truth(&PAPER_EXACT).then(PaperExact::new);
        Ok(Box::new(Hio {
            paper_exact,
            ..Hio::new(options, Epochs::new(options))
        }))
    },
};

/// Operations in the order of a [`Ranking`], which is the base order; shuffles change it.
pub(super) struct Hio<R> {
    ranking: R,
    slack_percent: u64,
    paper_exact: Option<PaperExact>,
    merge: Merge,
    cost: CostModel,
    /// Shuffles that differ by less are alike: see `SEEKS_ALIKE`.
    alike_ns: u64,
    operations: Operations,
    /// Those before the chosen operation in the base order.
    overtaken: Vec<u32>,
    /// Those behind them that were looked at.
    looked: Vec<u32>,
}

impl<R: Ranking> Hio<R> {
    pub(super) fn new(options: &Options, ranking: R) -> Hio<R> {
        let base = |sequential| options.cost.access(Direction::Read, sequential).base_ns;
        let mut merge = Merge::new(options);
        if R::MERGES_BY_COST {
            merge.limit(&options.cost, Beside::Smaller);
        }
        Hio {
            ranking,
            slack_percent: options.table.integer(&SLACK_PERCENT),
            paper_exact: None,
            merge,
            cost: options.cost,
            alike_ns: (base(false).saturating_sub(base(true)) * SEEKS_ALIKE).max(1),
            operations: Operations::new(),
            overtaken: Vec::with_capacity(LOOK_MAX),
            looked: Vec::with_capacity(LOOK_MAX),
        }
    }

    fn key(&mut self, request: &Request, arrived: Time) -> Key {
        let (epoch, rank, app) = self.ranking.key(request, arrived);
        let has_shuffles = request.shuffle_us.max(request.shuffle_max_us) > 0;
        Key {
            epoch,
            rank,
            app,
            stamp: if has_shuffles { request.stamp_ns } else { 0 },
        }
    }

    /// Chooses the operation of the first window that goes next. `overtaken` gets those before it.
    fn choose(&mut self) -> u32 {
        let operations = &self.operations;
        let mut looked = operations.of_first_window();
        let first = looked.next().expect("pick on an empty policy");
        let slack_ns = |number| operations.slack_ns(number, self.slack_percent);
        let mut chosen = (slack_ns(first), first);
        // The least slack of all that would be overtaken.
        let mut room_ns = chosen.0;
        self.overtaken.clear();
        self.looked.clear();
        self.looked.push(first);
        for number in looked.take(LOOK_MAX - 1) {
            if room_ns == 0 {
                break;
            }
            let own_ns = slack_ns(number);
            let needs_ns = || operations.next_work_ns(number).saturating_add(own_ns);
            if own_ns < chosen.0 && needs_ns() <= room_ns {
                chosen = (own_ns, number);
                self.overtaken.append(&mut self.looked);
            }
            self.looked.push(number);
            room_ns = room_ns.min(own_ns);
        }
        chosen.1
    }
}

impl<R: Ranking> Policy for Hio<R> {
    fn arrived(&mut self, requests: &mut Requests, index: Index) {
        let entry = &requests[index];
        let (request, arrived) = (entry.request, entry.arrived);
        let key = self.key(&request, arrived);
        let cost_ns = self.cost.request_ns(&request);
        // The paper's aggregators are never one, however alike their shuffles are.
        let class = match self.paper_exact {
            Some(_) => u64::from(u16::MAX - request.shuffle_rank),
            None => u64::from(request.shuffle_us) * 1000 / self.alike_ns,
        };
        let part = self.operations.arrived(key, &request, class, cost_ns);
        self.operations.push(part, requests, index);
        self.merge.arrived(requests, part, index);
        if let Some(paper_exact) = &mut self.paper_exact {
            paper_exact.forget();
        }
    }

    fn pick(&mut self, requests: &mut Requests, now: Time, into: &mut Vec<Index>) -> Pick {
        let part = match &mut self.paper_exact {
            Some(paper_exact) => paper_exact.next(&self.operations),
            None => {
                let chosen = self.choose();
                self.operations.next_part(chosen)
            }
        };
        let index = self.operations.pop(part, requests);
        let operations = &mut self.operations;
        self.merge
            .take_one(requests, index, into, |requests, index| {
                operations.remove(part, requests, index);
            });
        if R::COUNTS {
            let left = into.iter().map(|&index| &requests[index].request);
            left.for_each(|request| self.ranking.left(request, now));
        }
        let costs = into
            .iter()
            .map(|&index| self.cost.request_ns(&requests[index].request));
        let work_ns = costs.fold(0, u64::saturating_add);
        self.operations.served(part, work_ns);
        // The overtaken operations wait for the time of this batch. With `paper_exact` none is.
        for &operation in &self.overtaken {
            self.operations.uses_slack(operation, work_ns);
        }
        self.operations.release_if_empty(part);
        Pick::Run
    }

    fn cancelled(&mut self, requests: &mut Requests, index: Index) {
        let part = requests[index].tag;
        let cost_ns = self.cost.request_ns(&requests[index].request);
        self.operations.remove(part, requests, index);
        let rank = requests[index].request.shuffle_rank;
        self.operations.withdrawn(part, rank, cost_ns);
        self.merge.cancelled(requests, index);
        if R::COUNTS {
            let entry = &requests[index];
            self.ranking.left(&entry.request, entry.arrived);
        }
        self.operations.release_if_empty(part);
        if let Some(paper_exact) = &mut self.paper_exact {
            paper_exact.forget();
        }
    }

    fn uses_cost_model(&self) -> bool {
        true
    }

    fn set_cost_model(&mut self, cost: &CostModel) {
        self.cost = *cost;
        if R::MERGES_BY_COST {
            self.merge.limit(cost, Beside::Smaller);
        }
    }

    fn turns(&self) -> Cause {
        Cause::Window
    }

    fn epoch(&self, now: Time) -> u64 {
        self.ranking.epochs().at(now)
    }

    fn can_keep(&self, shares: &Shares) -> bool {
        !R::KEEPS_SHARES || shares.promise_nothing()
    }

    /// Only operations of one window are exchanged.
    fn bound(&self) -> Bound {
        self.ranking.bound()
    }
}

#[cfg(test)]
mod tests;
