//! Training of policies before they are measured: traces of other runs of the load, from which the
//! policy predicts the requests of the measured run.

use crate::scenario::{Policy, Scenario};
use crate::world::{Outcome, Setup};
use std::sync::{Arc, OnceLock};
use tidegate_sched::{FileId, Observed, Prediction};
use tidegate_trace::Record;

/// By forwarder.
type Predictions = Vec<Arc<Prediction>>;

/// The predictions of a scenario, each made once: all repetitions of a point share it.
pub struct Predicted {
    /// By series, point and policy.
    made: Vec<Vec<Vec<Made>>>,
}

/// Not made yet; or made, or why it could not be.
type Made = OnceLock<Result<Predictions, String>>;

impl Predicted {
    /// Of a scenario; none made yet.
    pub fn new(scenario: &Scenario) -> Predicted {
        let point = || scenario.policies.iter().map(|_| OnceLock::new()).collect();
        let series = scenario.series.iter();
        Predicted {
            made: series
                .map(|series| series.points.iter().map(|_| point()).collect())
                .collect(),
        }
    }

    /// The predictions for the policy of this number at a series and point; empty if the policy
    /// asks for none. `run` carries out a training run.
    pub fn of(
        &self,
        scenario: &Scenario,
        (series, point, policy): (usize, usize, usize),
        run: &dyn Fn(Setup) -> Result<Outcome, String>,
    ) -> Result<Predictions, String> {
        let made = &self.made[series][point][policy];
        let make = || train(scenario, (series, point, policy), run);
        made.get_or_init(make).clone()
    }
}

/// Runs the load, or another series's, without prediction and with seeds that no measured run has.
fn train(
    scenario: &Scenario,
    (series, point, policy): (usize, usize, usize),
    run: &dyn Fn(Setup) -> Result<Outcome, String>,
) -> Result<Predictions, String> {
    let policy = &scenario.policies[policy];
    let of = policy.training.traces_of.as_ref();
    let of = of.and_then(|name| scenario.series.iter().position(|it| it.name == *name));
    let machine = &scenario.series[of.unwrap_or(series)].points[point].machine;
    let untrained = untrained(policy);
    let forwarders = usize::from(machine.forwarders());
    let mut traces = vec![Vec::new(); forwarders];
    for number in 0..policy.training.traces {
        let seed = scenario.seed + u64::from(scenario.repetitions + number);
        let mut setup = machine.setup(&untrained, seed, None);
        setup.record = true;
        let records = run(setup)?.records;
        for (forwarder, traces) in traces.iter_mut().enumerate() {
            traces.push(trace(&records, forwarder));
        }
    }
    let foretold = traces
        .iter()
        .filter(|traces| !traces.is_empty())
        .map(|traces| Arc::new(Prediction::new(traces, machine.cost())));
    Ok(foretold.collect())
}

/// The same policy without prediction.
fn untrained(policy: &Policy) -> Policy {
    let mut untrained = policy.clone();
    untrained.training = Default::default();
    if policy.training.traces > 0 {
        untrained.options.table.set("prediction", "off");
        untrained.options.prediction = None;
    }
    untrained
}

/// The requests that arrived at one forwarder; time zero is the first arrival.
fn trace(records: &[Record], forwarder: usize) -> Vec<Observed> {
    let own = |record: &&Record| record.forwarder.map(usize::from) == Some(forwarder);
    let first = records.iter().filter(own).map(|it| it.arrival_ns).min();
    let first_ns = first.unwrap_or(0);
    let observed = |record: &Record| Observed {
        file: FileId(record.file.0),
        direction: record.direction,
        offset: record.offset,
        len: record.len,
        at_ns: record.arrival_ns - first_ns,
    };
    records.iter().filter(own).map(observed).collect()
}
