//! Judges the claims of a scenario: whether each holds, over the seeds; whether it holds as well
//! when the policy is replaced by its baseline, so that it is none of the policy; and what it says
//! of the paper's number.
//!
//! A replaced policy need not be run: with the same seeds its results are those of its baseline,
//! which is one of the scenario's policies.

use super::{Grid, Metric, number};
use crate::scenario::{Claim, Scenario, Tests};
use crate::statistics::interval_95;
use serde::{Deserialize, Serialize};

/// A claim at one place, judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// What was claimed, in words.
    pub text: String,
    /// What is measured.
    pub metric: Metric,
    /// Under which policy.
    pub policy: String,
    /// The policy to which the value is compared, as a change in percent.
    pub against: Option<String>,
    /// The series to which the value is compared, as a change in percent.
    #[serde(default)]
    pub against_series: Option<String>,
    /// In which series.
    pub series: String,
    /// At which point; None: over several of them.
    pub x: Option<f64>,
    /// What the paper says.
    pub paper: Option<f64>,
    /// The value from the runs.
    #[serde(with = "number")]
    pub ours: f64,
    /// The claimed band.
    pub min: Option<f64>,
    /// The claimed band.
    pub max: Option<f64>,
    /// Whether the value lies in the band.
    pub holds: bool,
    /// Why the paper's number differs.
    pub why: Option<String>,
    /// What the claim is of; results of earlier versions do not say it.
    #[serde(default = "describes")]
    pub tests: Tests,
    /// The 95 % interval of the value over the seeds; None: there is one seed only.
    #[serde(default)]
    pub interval: Option<(f64, f64)>,
    /// The value with the policy replaced by its baseline; None: the claim describes.
    #[serde(default)]
    pub replaced: Option<f64>,
    /// Whether the claim tests the policy, and holds without it too.
    #[serde(default)]
    pub survives: bool,
    /// What the runs say of the paper's number, if there is one.
    #[serde(default)]
    pub reproduction: Option<Reproduction>,
}

fn describes() -> Tests {
    Tests::Describes
}

impl Verdict {
    /// Whether the claim tests a policy, and the baseline has no value to compare with.
    pub fn is_untested(&self) -> bool {
        self.tests == Tests::Policy && self.replaced.is_none()
    }
}

/// What the runs say of a paper's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reproduction {
    /// The claim holds, and its band has two sides with the paper's number in between.
    Reproduced,
    /// The claim does not hold, or its band is another one.
    Differs,
    /// The paper measured something else.
    NotComparable,
}

/// Judges all claims of a scenario: by the means over the seeds, and by each seed.
pub(super) fn judge(scenario: &Scenario, means: &Grid, seeds: &[Grid]) -> Vec<Verdict> {
    let mut verdicts = values(scenario, means, false);
    let replaced = values(scenario, means, true);
    let by_seed: Vec<Vec<Verdict>> = seeds
        .iter()
        .map(|grid| values(scenario, grid, false))
        .collect();
    for (number, verdict) in verdicts.iter_mut().enumerate() {
        let seeds: Vec<f64> = by_seed.iter().map(|all| all[number].ours).collect();
        let half = interval_95(&seeds);
        verdict.interval = half.map(|half| (verdict.ours - half, verdict.ours + half));
        if verdict.tests == Tests::Policy {
            verdict.replaced = Some(replaced[number].ours).filter(|value| value.is_finite());
            verdict.survives = replaced[number].holds;
        }
    }
    verdicts
}

/// The values of all claims, the policies of those that test one replaced or not.
fn values(scenario: &Scenario, outcome: &Grid, replaced: bool) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for claim in &scenario.claims {
        if !claim.over.is_empty() {
            verdicts.push(over(scenario, outcome, claim, replaced));
            continue;
        }
        for series in 0..scenario.series.len() {
            let name = &scenario.series[series].name;
            if claim.series.as_ref().is_none_or(|wanted| wanted == name) {
                let judge = Judge::new(scenario, outcome, claim, series, replaced);
                verdicts.extend(judge.verdicts());
            }
        }
    }
    verdicts
}

/// The mean over several series.
fn over(scenario: &Scenario, outcome: &Grid, claim: &Claim, replaced: bool) -> Verdict {
    let series = scenario.series.iter().enumerate();
    let named = series.filter(|(_, it)| claim.over.contains(&it.name));
    let (mut sum, mut count) = (0.0, 0);
    for (number, series) in named {
        let judge = Judge::new(scenario, outcome, claim, number, replaced);
        let points = series.points.iter().enumerate();
        for (point, _) in points.filter(|(_, it)| claim.x.is_none_or(|x| x == it.x)) {
            sum += judge.change(point);
            count += 1;
        }
    }
    let judge = Judge::new(scenario, outcome, claim, 0, replaced);
    let names = claim.over.join("\", \"");
    let at = match claim.x {
        Some(x) => format!(" at {x}"),
        None => String::new(),
    };
    let text = format!("{}, mean over \"{names}\"{at}", judge.measured());
    let verdict = judge.verdict(text, None, sum / f64::from(count));
    Verdict {
        series: String::new(),
        ..verdict
    }
}

/// Of policies whose windows within the target differ by less than this, in percentage points, the
/// one that moves most is the best.
const AS_GOOD: f64 = 1.0;

/// A claim and one series.
struct Judge<'a> {
    scenario: &'a Scenario,
    outcome: &'a Grid,
    claim: &'a Claim,
    series: usize,
    policy: usize,
    /// Series and policy of the other value.
    against: Option<(usize, usize)>,
}

impl Judge<'_> {
    fn new<'a>(
        scenario: &'a Scenario,
        outcome: &'a Grid,
        claim: &'a Claim,
        series: usize,
        replaced: bool,
    ) -> Judge<'a> {
        let number = |label: &String| scenario.policy(label);
        let policy = number(&claim.policy).expect("it was checked");
        let policy = match replaced {
            true => scenario.baseline(claim),
            false => policy,
        };
        let named = |name: &String| scenario.series.iter().position(|it| it.name == *name);
        let other_series = claim.against_series.as_ref().and_then(named);
        let other_policy = claim.against.as_ref().and_then(number);
        let is_compared = other_series.is_some() || other_policy.is_some();
        let against = (
            other_series.unwrap_or(series),
            other_policy.unwrap_or(policy),
        );
        Judge {
            scenario,
            outcome,
            claim,
            series,
            policy,
            against: is_compared.then_some(against),
        }
    }

    fn at(&self, point: usize, (series, policy): (usize, usize)) -> f64 {
        let metric = self.claim.metric;
        self.outcome[series][point][policy].get(metric)
    }

    fn own(&self) -> (usize, usize) {
        (self.series, self.policy)
    }

    /// Of the policies that the claim compares with, the best one at this point.
    fn best(&self, point: usize) -> Option<usize> {
        let of = |policy: usize, metric| self.outcome[self.series][point][policy].get(metric);
        let kept = |policy: &usize| of(*policy, Metric::TargetKept500ms);
        let named = self.claim.against_best.iter();
        let named = named.filter_map(|label| self.scenario.policy(label));
        let most = named
            .clone()
            .map(|policy| kept(&policy))
            .fold(0.0, f64::max);
        let good = named.filter(|policy| kept(policy) >= most - AS_GOOD);
        good.max_by(|a, b| {
            let moved = |policy| of(policy, Metric::DeviceBandwidth);
            moved(*a).total_cmp(&moved(*b))
        })
    }

    fn change(&self, point: usize) -> f64 {
        let best = self.best(point).map(|policy| (self.series, policy));
        match self.against.or(best) {
            Some(other) => 100.0 * (self.at(point, self.own()) / self.at(point, other) - 1.0),
            // None of them has a target to keep: then the claim says nothing, and does not hold.
            None if !self.claim.against_best.is_empty() => f64::NAN,
            None => self.at(point, self.own()),
        }
    }

    fn spread(&self, of: (usize, usize)) -> f64 {
        let points = 0..self.scenario.series[of.0].points.len();
        spread(points.map(|point| self.at(point, of)))
    }

    fn verdicts(&self) -> Vec<Verdict> {
        let claim = self.claim;
        let points = &self.scenario.series[self.series].points;
        let of = self.words();
        if claim.spread {
            let (text, ours) = match self.against {
                Some(other) => (
                    format!(
                        "{of}: growth over the points, as a share of {}'s",
                        self.other()
                    ),
                    self.spread(self.own()) / self.spread(other).max(f64::MIN_POSITIVE),
                ),
                None => (
                    format!("{of}: largest above smallest over the points, in %"),
                    self.spread(self.own()),
                ),
            };
            return vec![self.verdict(text, None, ours)];
        }
        if claim.mean {
            let sum: f64 = (0..points.len()).map(|point| self.change(point)).sum();
            let text = format!("{of}, mean over the points");
            return vec![self.verdict(text, None, sum / points.len() as f64)];
        }
        let here = points.iter().enumerate();
        let here = here.filter(|(_, point)| claim.x.is_none_or(|wanted| wanted == point.x));
        let judged = here.map(|(number, point)| {
            let text = match points.len() {
                1 => of.clone(),
                _ => format!("{of}, at {}", point.x),
            };
            self.verdict(text, Some(point.x), self.change(number))
        });
        judged.collect()
    }

    fn words(&self) -> String {
        let words = self.measured();
        match self.scenario.series[self.series].name.as_str() {
            "" => words,
            name => format!("{name}: {words}"),
        }
    }

    fn measured(&self) -> String {
        let (words, policy) = (self.claim.metric.words(), &self.claim.policy);
        if let [first, .., last] = self.claim.against_best.as_slice() {
            let among = format!("the best of {first} to {last}");
            return format!("{words} under {policy}, change against {among} in %");
        }
        match (self.against, self.claim.spread) {
            (Some(_), false) => {
                format!(
                    "{words} under {policy}, change against {} in %",
                    self.other()
                )
            }
            _ => format!("{words} under {policy}"),
        }
    }

    /// What it is compared with.
    fn other(&self) -> String {
        let claim = self.claim;
        match (&claim.against, &claim.against_series) {
            (Some(policy), Some(series)) => format!("{policy} in \"{series}\""),
            (None, Some(series)) => format!("\"{series}\""),
            (policy, None) => policy.clone().unwrap_or_default(),
        }
    }

    fn verdict(&self, text: String, x: Option<f64>, ours: f64) -> Verdict {
        let claim = self.claim;
        Verdict {
            text,
            metric: claim.metric,
            policy: claim.policy.clone(),
            against: claim.against.clone(),
            against_series: claim.against_series.clone(),
            series: self.scenario.series[self.series].name.clone(),
            x,
            paper: claim.paper,
            ours,
            min: claim.min,
            max: claim.max,
            holds: claim.has(ours),
            why: claim.not_comparable.clone().or(claim.why.clone()),
            tests: claim.tests,
            interval: None,
            replaced: None,
            survives: false,
            reproduction: claim.paper.map(|paper| match &claim.not_comparable {
                Some(_) => Reproduction::NotComparable,
                None if claim.has(ours) && claim.reproduces(paper) => Reproduction::Reproduced,
                None => Reproduction::Differs,
            }),
        }
    }
}

/// How far the largest lies above the smallest, in percent.
fn spread(values: impl Iterator<Item = f64>) -> f64 {
    let (mut smallest, mut largest) = (f64::INFINITY, 0.0f64);
    for value in values {
        smallest = smallest.min(value);
        largest = largest.max(value);
    }
    100.0 * (largest / smallest - 1.0)
}
