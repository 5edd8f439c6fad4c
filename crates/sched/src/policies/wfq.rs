//! Weighted fair queueing: each application, or queue of the host, gets its share of device time.
//!
//! Requests of one flow run in order of arrival; between flows `fair` decides. The cost of a
//! request comes from the cost model, so a share is one of the device's time, not of requests or
//! bytes. Adjacent requests of a flow are merged only on demand, and charged one by one.
//!
//! Options: `by` (`app` or `queue`), and `weights`, such as `render=3, climate=1` with names of
//! applications or `1=3, 2=1` with numbers of queues. Flows that are not listed have weight 1.

use crate::cost::CostModel;
use crate::fair::{Fair, WEIGHT_MAX};
use crate::merge::Merge;
use crate::options::Options;
use crate::options_error::OptionsError;
use crate::policy::{Bound, Pick, Policy, PolicySpec};
use crate::policy_options::{OptionKind, OptionSpec};
use crate::requests::{Index, List, Requests};
use crate::turn::{TURN_SEEKS, Turn};
use crate::types::{AppId, Request, Time};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::ToString;
use alloc::vec::Vec;

/// What a share belongs to.
const BY: OptionSpec = OptionSpec::new(
    "by",
    OptionKind::Word(&["app", "queue"]),
    "who has a share: an application, or a queue of the host (in the C library)",
);

const WEIGHTS: OptionSpec = OptionSpec::new(
    "weights",
    OptionKind::Text(&["", "1=3", "1=3, 2=5"]),
    "such as `\"render=3, climate=1\"`; with `by = \"queue\"` numbers, `\"1=3, 2=1\"`. Weights are \
     from 1 to 65536; who is not listed has 1",
);

pub(super) const SPEC: PolicySpec = PolicySpec {
    name: "wfq",
    options: &[BY, TURN_SEEKS, WEIGHTS],
    merges: false,
    keeps_shares: false,
    make: |options| Ok(Box::new(Wfq::new(options)?)),
};

struct Wfq {
    by_queue: bool,
    weights: BTreeMap<u64, u64>,
    cost: CostModel,
    merge: Merge,
    fair: Fair,
    turn: Turn,
    /// By number of a flow: its requests.
    queues: Vec<List>,
}

impl Wfq {
    fn new(options: &Options) -> Result<Wfq, OptionsError> {
        let by_queue = options.table.is(&BY, "queue");
        Ok(Wfq {
            by_queue,
            weights: weights(&options.table.text(&WEIGHTS), by_queue)?,
            cost: options.cost,
            merge: Merge::new(options),
            fair: Fair::new(),
            turn: Turn::new(options),
            queues: Vec::new(),
        })
    }

    fn flow_of(&self, request: &Request) -> u64 {
        match self.by_queue {
            true => request.queue.into(),
            false => request.app.0,
        }
    }

    /// Takes a request out of its flow's queue and charges it.
    fn runs(&mut self, requests: &mut Requests, number: u32, index: Index) {
        let queue = &mut self.queues[number as usize];
        requests.unlink(queue, index);
        requests.prefetch_front(queue);
        requests.prefetch_id(index);
        let request = &requests[index].request;
        let cost_ns = self.cost.request_ns(request);
        self.fair.charge(number, cost_ns);
        self.turn.runs(number, request, cost_ns);
    }
}

/// Reads `name=weight, ...`.
fn weights(text: &str, by_queue: bool) -> Result<BTreeMap<u64, u64>, OptionsError> {
    let mut weights = BTreeMap::new();
    for part in text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let malformed = || OptionsError::Malformed {
            option: WEIGHTS.name,
            part: part.to_string(),
            expected: match by_queue {
                true => "of the form QUEUE=WEIGHT, a number and a weight from 1 to 65536",
                false => "of the form APPLICATION=WEIGHT with a weight from 1 to 65536",
            },
        };
        let (name, weight) = part.rsplit_once('=').ok_or_else(malformed)?;
        let (name, weight) = (name.trim(), weight.trim());
        let flow = match by_queue {
            true => name.parse::<u32>().ok().map(u64::from),
            false => (!name.is_empty()).then(|| AppId::from_name(name).0),
        };
        let flow = flow.ok_or_else(malformed)?;
        let weight = weight.parse().ok();
        let weight = weight
            .filter(|weight| (1..=WEIGHT_MAX).contains(weight))
            .ok_or_else(malformed)?;
        if weights.insert(flow, weight).is_some() {
            return Err(malformed());
        }
    }
    Ok(weights)
}

impl Policy for Wfq {
    fn arrived(&mut self, requests: &mut Requests, index: Index) {
        let flow = self.flow_of(&requests[index].request);
        let weight = self.weights.get(&flow).copied().unwrap_or(1);
        let number = self.fair.arrived(flow, weight);
        if number as usize >= self.queues.len() {
            self.queues.resize(number as usize + 1, List::new());
        }
        requests.push_back(&mut self.queues[number as usize], index);
        self.merge.arrived(requests, number, index);
    }

    fn pick(&mut self, requests: &mut Requests, _now: Time, into: &mut Vec<Index>) -> Pick {
        let first = self.fair.next().expect("pick on an empty policy");
        let number = self.turn.next(|one| self.fair.has_requests(one), first);
        let front = requests.front(&self.queues[number as usize]);
        let index = front.expect("a flow without requests is not active");
        self.merge.take_one(requests, index, into, |_, _| {});
        for &index in into.iter() {
            self.runs(requests, number, index);
        }
        Pick::Run
    }

    fn cancelled(&mut self, requests: &mut Requests, index: Index) {
        let number = requests[index].tag;
        requests.unlink(&mut self.queues[number as usize], index);
        self.fair.cancelled(number);
        self.merge.cancelled(requests, index);
    }

    fn uses_cost_model(&self) -> bool {
        true
    }

    fn set_cost_model(&mut self, cost: &CostModel) {
        self.cost = *cost;
        self.turn.set_cost_model(cost);
    }

    fn bound(&self) -> Bound {
        Bound::Weighted {
            turn_ns: self.turn.most_ns(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::test::{drain, read};
    use crate::{AppId, Options, PolicyOptions, Request, Scheduler};
    use std::string::ToString;
    use std::vec::Vec;

    fn scheduler(by: &str, weights: &str) -> Result<Scheduler, crate::OptionsError> {
        let table = PolicyOptions::default()
            .with("by", by)
            .with("weights", weights)
            .with("turn_seeks", 0);
        Scheduler::new(&Options {
            table,
            ..Options::for_policy("wfq")
        })
    }

    #[test]
    fn the_weights_of_applications_and_queues_decide() {
        for (by, weights) in [("app", "small=1, large = 3"), ("queue", "4=1,9=3")] {
            let input: Vec<Request> = (0..400)
                .map(|i| Request {
                    app: AppId::from_name(["small", "large"][i as usize % 2]),
                    queue: [4, 9][i as usize % 2],
                    ..read(1, i * 65_536, 4096)
                })
                .collect();
            let order: Vec<u64> = drain(&mut scheduler(by, weights).unwrap(), &input).concat();
            // While both wait, three of four are of the second.
            let large = order[..200].iter().filter(|&&id| id % 2 == 1).count();
            assert!((149..=151).contains(&large), "{large} of 200");
        }
    }

    #[test]
    fn malformed_weights_are_refused() {
        let error = |by, weights: &str| scheduler(by, weights).err().unwrap().to_string();
        let form = "of the form APPLICATION=WEIGHT with a weight from 1 to 65536";
        for part in ["a", "a=0", "a=x", "=1", "a=65537", "a=-1"] {
            let text = error("app", part);
            assert_eq!(text, std::format!("weights: \"{part}\" is not {form}"));
        }
        assert!(error("app", "a=1, a=2").contains("\"a=2\""));
        assert!(error("queue", "a=1").contains("QUEUE=WEIGHT"));
    }
}
