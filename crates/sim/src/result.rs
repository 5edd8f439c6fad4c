//! The results of a scenario's runs: the metrics of each point, and whether the claims hold.

mod claims;
mod given;
mod measure;
mod number;
mod point;
mod requests;
mod timeline;

pub use crate::metrics::Metric;
pub use claims::{Reproduction, Verdict};
pub use given::{Given, GivenApplication};
pub use measure::measure;
pub use point::PointResult;
pub use timeline::{ApplicationTimeline, Timeline};

use crate::scenario::Scenario;

/// Results by series, point and policy.
type Grid = Vec<Vec<Vec<PointResult>>>;

/// The results of a scenario.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Means over the repetitions.
    means: Grid,
    /// The claims, judged.
    pub verdicts: Vec<Verdict>,
    /// Number of runs.
    pub runs: usize,
    /// Events that were simulated for it, over all runs and those of applications alone.
    pub events: u64,
}

impl Outcome {
    /// Puts runs together: by series, point, policy, repetition, as the runner makes them; `events`
    /// were simulated for them.
    pub fn of(scenario: &Scenario, runs: &[PointResult], events: u64) -> Outcome {
        let repetitions = scenario.repetitions as usize;
        let means = grid(scenario, runs, &PointResult::mean);
        let seeds: Vec<Grid> = (0..repetitions)
            .map(|seed| {
                grid(scenario, runs, &|runs| {
                    PointResult::mean(&runs[seed..=seed])
                })
            })
            .collect();
        Outcome {
            verdicts: claims::judge(scenario, &means, &seeds),
            means,
            runs: runs.len(),
            events,
        }
    }

    /// All metrics at a series, point and policy, by their numbers.
    pub fn at(&self, series: usize, point: usize, policy: usize) -> &PointResult {
        &self.means[series][point][policy]
    }

    /// A metric at a series, point and policy, by their numbers.
    pub fn get(&self, series: usize, point: usize, policy: usize, metric: Metric) -> f64 {
        self.at(series, point, policy).get(metric)
    }

    /// Whether all claims hold, and of those that test a policy it is known that they do not hold
    /// without it.
    pub fn holds(&self) -> bool {
        let mut verdicts = self.verdicts.iter();
        verdicts.all(|it| it.holds && !it.survives && !it.is_untested())
    }
}

/// What is made of the runs of each series, point and policy, which differ by seed.
fn grid(
    scenario: &Scenario,
    runs: &[PointResult],
    of: &dyn Fn(&[PointResult]) -> PointResult,
) -> Grid {
    let mut groups = runs.chunks(scenario.repetitions as usize).map(of);
    let mut next = || groups.next().expect("every run is there");
    let series = scenario.series.iter().map(|series| {
        let points = series.points.iter().map(|_| {
            let mut policies: Vec<_> = scenario.policies.iter().map(|_| next()).collect();
            relate(&mut policies);
            policies
        });
        points.collect()
    });
    series.collect()
}

/// Fills in the metrics that compare a policy with the first one: efficiency, and the distance to
/// the bound of the load, which is measured under the first policy only.
fn relate(policies: &mut [PointResult]) {
    let Some(first) = policies.first() else {
        return;
    };
    let bandwidth = first.get(Metric::Bandwidth);
    let bound = first.get(Metric::OptimumBoundMs);
    // 0 over 0 is not a number with another sign than ours.
    let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { f64::NAN };
    for policy in policies {
        let efficiency = ratio(policy.get(Metric::Bandwidth), bandwidth);
        policy.set(Metric::Efficiency, efficiency);
        let completion = policy.get(Metric::ApplicationCompletionMean);
        let distance = 100.0 * (ratio(completion, bound) - 1.0);
        policy.set(Metric::OptimumBoundMs, bound);
        policy.set(
            Metric::OptimumDistance,
            if distance.is_nan() {
                f64::NAN
            } else {
                distance
            },
        );
    }
}
