//! Judges the claims of a scenario.

use super::{Metric, Outcome, number};
use crate::scenario::{Claim, Scenario};
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
}

/// Judges all claims of a scenario.
pub(super) fn judge(scenario: &Scenario, outcome: &Outcome) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for claim in &scenario.claims {
        if !claim.over.is_empty() {
            verdicts.push(over(scenario, outcome, claim));
            continue;
        }
        for series in 0..scenario.series.len() {
            let name = &scenario.series[series].name;
            if claim.series.as_ref().is_none_or(|wanted| wanted == name) {
                let judge = Judge::new(scenario, outcome, claim, series);
                verdicts.extend(judge.verdicts());
            }
        }
    }
    verdicts
}

/// The mean over several series.
fn over(scenario: &Scenario, outcome: &Outcome, claim: &Claim) -> Verdict {
    let series = scenario.series.iter().enumerate();
    let named = series.filter(|(_, it)| claim.over.contains(&it.name));
    let (mut sum, mut count) = (0.0, 0);
    for (number, series) in named {
        let judge = Judge::new(scenario, outcome, claim, number);
        let points = series.points.iter().enumerate();
        for (point, _) in points.filter(|(_, it)| claim.x.is_none_or(|x| x == it.x)) {
            sum += judge.change(point);
            count += 1;
        }
    }
    let judge = Judge::new(scenario, outcome, claim, 0);
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

/// A claim and one series.
struct Judge<'a> {
    scenario: &'a Scenario,
    outcome: &'a Outcome,
    claim: &'a Claim,
    series: usize,
    policy: usize,
    /// Series and policy of the other value.
    against: Option<(usize, usize)>,
}

impl Judge<'_> {
    fn new<'a>(
        scenario: &'a Scenario,
        outcome: &'a Outcome,
        claim: &'a Claim,
        series: usize,
    ) -> Judge<'a> {
        let number = |label: &String| {
            let mut labels = scenario.policies.iter();
            labels.position(|policy| policy.label == *label)
        };
        let policy = number(&claim.policy).expect("it was checked");
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
        self.outcome.get(series, point, policy, metric)
    }

    fn own(&self) -> (usize, usize) {
        (self.series, self.policy)
    }

    fn change(&self, point: usize) -> f64 {
        match self.against {
            Some(other) => 100.0 * (self.at(point, self.own()) / self.at(point, other) - 1.0),
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
            // Not a number lies in no band.
            holds: claim.min.is_none_or(|min| ours >= min)
                && claim.max.is_none_or(|max| ours <= max)
                && !ours.is_nan(),
            why: claim.why.clone(),
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
