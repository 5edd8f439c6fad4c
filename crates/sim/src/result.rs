//! What the runs of a scenario came to: metrics of each point, and whether the claims hold.

use crate::metrics::{Quantiles, jain};
use crate::scenario::{Claim, Operations, Scenario};
use crate::world;
use serde::{Deserialize, Serialize};

/// What can be measured of a run, under the field's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Mean time from issue to completion of an operation, ms.
    CompletionMean,
    /// The longest of them, ms.
    CompletionMax,
    /// Median of them, ms.
    CompletionP50,
    /// 95th percentile, ms.
    CompletionP95,
    /// 99th percentile, ms.
    CompletionP99,
    /// Mean end of an application, counted from the start of the run, ms.
    ApplicationCompletionMean,
    /// Time until everything is done, ms.
    Makespan,
    /// Bytes of all applications over the makespan, MB/s.
    Bandwidth,
    /// Time until an access's last forwarder is done over that of its first one; mean.
    LastToFirst,
    /// Mean time until an access's first forwarder is done, ms.
    FirstForwarder,
    /// Share of the makespan in which devices are busy; mean over forwarders, percent.
    Utilisation,
    /// Calls to the back ends.
    BackEndCalls,
    /// Requests in a call.
    AggregationRequests,
    /// KiB in a call.
    AggregationKib,
    /// Jain's index over the bandwidths of the applications.
    Jain,
    /// Time with contention over time alone; mean over applications.
    StretchMean,
    /// The largest of them.
    StretchMax,
    /// Processes times wait, summed up, hours.
    WeightedIoTime,
    /// Events simulated.
    Events,
}

impl Metric {
    /// All of them.
    pub const ALL: &[Metric] = &[
        Metric::CompletionMean,
        Metric::CompletionMax,
        Metric::CompletionP50,
        Metric::CompletionP95,
        Metric::CompletionP99,
        Metric::ApplicationCompletionMean,
        Metric::Makespan,
        Metric::Bandwidth,
        Metric::LastToFirst,
        Metric::FirstForwarder,
        Metric::Utilisation,
        Metric::BackEndCalls,
        Metric::AggregationRequests,
        Metric::AggregationKib,
        Metric::Jain,
        Metric::StretchMean,
        Metric::StretchMax,
        Metric::WeightedIoTime,
        Metric::Events,
    ];

    /// For reports: words and unit.
    pub fn words(self) -> &'static str {
        match self {
            Metric::CompletionMean => "mean completion, ms",
            Metric::CompletionMax => "max completion, ms",
            Metric::CompletionP50 => "p50 completion, ms",
            Metric::CompletionP95 => "p95 completion, ms",
            Metric::CompletionP99 => "p99 completion, ms",
            Metric::ApplicationCompletionMean => "mean completion of applications, ms",
            Metric::Makespan => "makespan, ms",
            Metric::Bandwidth => "bandwidth, MB/s",
            Metric::LastToFirst => "last/first forwarder",
            Metric::FirstForwarder => "first forwarder done, ms",
            Metric::Utilisation => "utilisation, %",
            Metric::BackEndCalls => "back-end calls",
            Metric::AggregationRequests => "aggregation, requests",
            Metric::AggregationKib => "aggregation, KiB",
            Metric::Jain => "Jain's index",
            Metric::StretchMean => "mean stretch",
            Metric::StretchMax => "max stretch",
            Metric::WeightedIoTime => "weighted I/O time, h",
            Metric::Events => "events",
        }
    }

    /// The name in scenarios and in JSON.
    pub fn name(self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(name)) => name,
            _ => unreachable!("a metric is written as its name"),
        }
    }
}

/// The metrics of one run or, as means, of several: in the order of [`Metric::ALL`].
#[derive(Clone, Debug, PartialEq)]
pub struct PointResult(Vec<f64>);

impl PointResult {
    /// The value of a metric; not a number where it was not measured.
    pub fn get(&self, metric: Metric) -> f64 {
        let at = Metric::ALL.iter().position(|it| *it == metric);
        at.map_or(f64::NAN, |at| self.0[at])
    }
}

const MS: f64 = 1e6;

/// A finished operation: application, issue, completion, processes that waited.
type Done = (u32, u64, u64, u32);

fn operations(outcome: &world::Outcome, kind: Operations) -> Vec<Done> {
    let one = |op: &world::Operation| (op.app, op.issued_ns, op.completed_ns, 1);
    match kind {
        Operations::Accesses => outcome.accesses.iter().map(one).collect(),
        Operations::Marked => outcome.operations.iter().map(one).collect(),
        Operations::Applications => {
            let ends = outcome.ends_ns.iter().enumerate();
            ends.map(|(app, end)| (app as u32, 0, *end, 1)).collect()
        }
    }
}

/// Measures a run. `alone_ns`: how long each application takes by itself, if that is known.
pub fn measure(outcome: &world::Outcome, kind: Operations, alone_ns: &[u64]) -> PointResult {
    let mut flow = Quantiles::new();
    for (_, issued, completed, _) in operations(outcome, kind) {
        flow.add(completed - issued);
    }
    let makespan = outcome.end_ns as f64;
    let over = |value: f64, by: f64| if by > 0.0 { value / by } else { 0.0 };
    let bytes: u64 = outcome.accesses.iter().map(|access| access.bytes).sum();
    let work = &outcome.work;
    let calls: u64 = work.iter().map(|work| work.calls).sum();
    let requests: u64 = work.iter().map(|work| work.requests).sum();
    let moved: u64 = work.iter().map(|work| work.bytes).sum();
    let busy: u64 = work.iter().map(|work| work.busy_ns).sum();
    let ends: f64 = outcome.ends_ns.iter().map(|end| *end as f64).sum();
    let (last_to_first, first) = spreads(outcome);
    let waits: f64 = outcome
        .accesses
        .iter()
        .map(|it| (it.completed_ns - it.issued_ns) as f64)
        .sum();
    let stretches: Vec<f64> = outcome
        .ends_ns
        .iter()
        .zip(alone_ns)
        .map(|(end, alone)| over(*end as f64, *alone as f64))
        .collect();
    let stretch_sum: f64 = stretches.iter().sum();
    let value = |metric: &Metric| match metric {
        Metric::CompletionMean => flow.mean() / MS,
        Metric::CompletionMax => flow.max() as f64 / MS,
        Metric::CompletionP50 => flow.quantile(500) as f64 / MS,
        Metric::CompletionP95 => flow.quantile(950) as f64 / MS,
        Metric::CompletionP99 => flow.quantile(990) as f64 / MS,
        Metric::ApplicationCompletionMean => over(ends, outcome.ends_ns.len() as f64) / MS,
        Metric::Makespan => makespan / MS,
        Metric::Bandwidth => over(bytes as f64 * 1000.0, makespan),
        Metric::LastToFirst => last_to_first,
        Metric::FirstForwarder => first / MS,
        Metric::Utilisation => over(busy as f64 * 100.0, makespan * work.len() as f64),
        Metric::BackEndCalls => calls as f64,
        Metric::AggregationRequests => over(requests as f64, calls as f64),
        Metric::AggregationKib => over(moved as f64 / 1024.0, calls as f64),
        Metric::Jain => jain(bandwidths(outcome)),
        Metric::StretchMean => over(stretch_sum, stretches.len() as f64),
        Metric::StretchMax => stretches.iter().copied().fold(0.0, f64::max),
        Metric::WeightedIoTime => waits / 3.6e12,
        Metric::Events => outcome.events as f64,
    };
    PointResult(Metric::ALL.iter().map(value).collect())
}

/// Means over accesses: last forwarder's time over the first one's, and the first one's time.
fn spreads(outcome: &world::Outcome) -> (f64, f64) {
    let (mut ratios, mut firsts, mut count) = (0.0, 0.0, 0.0);
    for (access, served) in outcome.accesses.iter().zip(&outcome.served_ns) {
        let since = |at: &u64| at.saturating_sub(access.issued_ns);
        let (Some(first), Some(last)) = (
            served.iter().map(since).min(),
            served.iter().map(since).max(),
        ) else {
            continue;
        };
        if first > 0 {
            ratios += last as f64 / first as f64;
            firsts += first as f64;
            count += 1.0;
        }
    }
    match count {
        0.0 => (0.0, 0.0),
        count => (ratios / count, firsts / count),
    }
}

/// Bytes over time of each application.
fn bandwidths(outcome: &world::Outcome) -> Vec<f64> {
    let mut bytes = vec![0u64; outcome.ends_ns.len()];
    for access in &outcome.accesses {
        bytes[access.app as usize] += access.bytes;
    }
    let each = bytes.iter().zip(&outcome.ends_ns);
    each.map(|(bytes, end)| *bytes as f64 / (*end).max(1) as f64)
        .collect()
}

/// What a scenario came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// By series, point and policy: means over the repetitions.
    means: Vec<Vec<Vec<PointResult>>>,
    /// The claims, judged.
    pub verdicts: Vec<Verdict>,
}

/// A claim at one place, judged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// What was claimed, in words.
    pub text: String,
    /// What the paper says.
    pub paper: Option<f64>,
    /// What came of the runs.
    pub ours: f64,
    /// The claimed band.
    pub min: Option<f64>,
    /// The claimed band.
    pub max: Option<f64>,
    /// Whether the value lies in the band.
    pub holds: bool,
    /// Why the paper's number is another one.
    pub why: Option<String>,
}

impl Outcome {
    /// Puts runs together: by series, point, policy, repetition, as the runner makes them.
    pub fn of(scenario: &Scenario, runs: &[PointResult]) -> Outcome {
        let repetitions = scenario.repetitions as usize;
        let mut groups = runs.chunks(repetitions).map(mean);
        let mut next = || groups.next().expect("every run is there");
        let means = scenario.series.iter().map(|series| {
            let points = series.points.iter().map(|_| {
                let policies = scenario.policies.iter().map(|_| next());
                policies.collect::<Vec<_>>()
            });
            points.collect::<Vec<_>>()
        });
        let mut outcome = Outcome {
            means: means.collect(),
            verdicts: Vec::new(),
        };
        let judged = scenario.claims.iter();
        outcome.verdicts = judged
            .flat_map(|claim| outcome.judge(scenario, claim))
            .collect();
        outcome
    }

    /// A metric at a series, point and policy, by their numbers.
    pub fn get(&self, series: usize, point: usize, policy: usize, metric: Metric) -> f64 {
        self.means[series][point][policy].get(metric)
    }

    /// Whether all claims hold.
    pub fn holds(&self) -> bool {
        self.verdicts.iter().all(|verdict| verdict.holds)
    }

    fn judge(&self, scenario: &Scenario, claim: &Claim) -> Vec<Verdict> {
        let number = |label: &String| {
            let mut labels = scenario.policies.iter();
            labels.position(|policy| policy.label == *label)
        };
        let policy = number(&claim.policy).expect("it was checked");
        let against = claim.against.as_ref().and_then(number);
        let mut verdicts = Vec::new();
        for (index, series) in scenario.series.iter().enumerate() {
            if claim
                .series
                .as_ref()
                .is_some_and(|name| *name != series.name)
            {
                continue;
            }
            let at = |point: usize, policy| self.get(index, point, policy, claim.metric);
            let change = |point: usize| match against {
                Some(other) => 100.0 * (at(point, policy) / at(point, other) - 1.0),
                None => at(point, policy),
            };
            let points = 0..series.points.len();
            let here = |text: String| match series.name.as_str() {
                "" => text,
                name => format!("{name}: {text}"),
            };
            let words = claim.metric.words();
            let of = match (&claim.against, claim.spread) {
                (Some(other), false) => {
                    format!(
                        "{words} under {}, change against {other} in %",
                        claim.policy
                    )
                }
                _ => format!("{words} under {}", claim.policy),
            };
            if claim.spread {
                let spread = |policy| spread(points.clone().map(|point| at(point, policy)));
                let (text, ours) = match (&claim.against, against) {
                    (Some(label), Some(other)) => (
                        format!("{of}: growth over the points, as a share of {label}'s"),
                        spread(policy) / spread(other).max(f64::MIN_POSITIVE),
                    ),
                    _ => (
                        format!("{of}: largest above smallest over the points, in %"),
                        spread(policy),
                    ),
                };
                verdicts.push(claim.verdict(here(text), ours));
            } else if claim.mean {
                let sum: f64 = points.clone().map(change).sum();
                let text = format!("{of}, mean over the points");
                verdicts.push(claim.verdict(here(text), sum / points.len() as f64));
            } else {
                for point in points {
                    let x = series.points[point].x;
                    if claim.x.is_none_or(|wanted| wanted == x) {
                        let place = match series.points.len() {
                            1 => of.clone(),
                            _ => format!("{of}, at {x}"),
                        };
                        verdicts.push(claim.verdict(here(place), change(point)));
                    }
                }
            }
        }
        verdicts
    }
}

impl Claim {
    fn verdict(&self, text: String, ours: f64) -> Verdict {
        Verdict {
            text,
            paper: self.paper,
            ours,
            min: self.min,
            max: self.max,
            // Not a number lies in no band.
            holds: self.min.is_none_or(|min| ours >= min)
                && self.max.is_none_or(|max| ours <= max)
                && !ours.is_nan(),
            why: self.why.clone(),
        }
    }
}

/// How far the largest is above the smallest, in percent.
fn spread(values: impl Iterator<Item = f64>) -> f64 {
    let (mut smallest, mut largest) = (f64::INFINITY, 0.0f64);
    for value in values {
        smallest = smallest.min(value);
        largest = largest.max(value);
    }
    100.0 * (largest / smallest - 1.0)
}

fn mean(runs: &[PointResult]) -> PointResult {
    let sum = |at: usize| runs.iter().map(|run| run.0[at]).sum::<f64>() / runs.len() as f64;
    PointResult((0..Metric::ALL.len()).map(sum).collect())
}
