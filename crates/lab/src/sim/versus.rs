//! `tidegate sim --versus`: one table over many scenarios of how far a policy is from the best of
//! others, which is another one from load to load.

use crate::findings::{Findings, PointFindings};
use std::fmt::Write as _;
use tidegate_sim::result::Metric;

/// One point of a scenario.
struct Row {
    /// Scenario, series and x.
    place: String,
    /// The best of the others by mean completion of applications, and its mean by that of the
    /// first policy.
    best: (String, f64),
    /// Mean completion and makespan of the policy that is compared, by those of the first.
    mean: f64,
    makespan: f64,
    /// The least makespan of all policies, by that of the first.
    makespan_best: f64,
}

/// The comparison of one policy with others.
pub struct Versus {
    policy: String,
    first: String,
    rows: Vec<Row>,
}

impl Versus {
    /// Of this policy with the others, the first of which is what all are measured by.
    pub fn new(policy: &str, policies: &[String]) -> Versus {
        Versus {
            policy: policy.into(),
            first: policies[0].clone(),
            rows: Vec::new(),
        }
    }

    /// Adds the points of a scenario.
    pub fn add(&mut self, findings: &Findings) {
        for series in &findings.series {
            for point in &series.points {
                let mut place = findings.scenario.clone();
                if !series.name.is_empty() {
                    let _ = write!(place, ", {}", series.name);
                }
                if series.points.len() > 1 {
                    let _ = write!(place, ", {}", point.x);
                }
                self.rows.extend(self.row(place, point));
            }
        }
    }

    /// None where nothing completed.
    fn row(&self, place: String, point: &PointFindings) -> Option<Row> {
        let first = point.policies.get(&self.first)?;
        let (mean, makespan) = (
            first.get(Metric::ApplicationCompletionMean),
            first.get(Metric::Makespan),
        );
        if mean <= 0.0 || makespan <= 0.0 {
            return None;
        }
        let of = point.policies.get(&self.policy)?;
        let others = point
            .policies
            .iter()
            .filter(|(name, _)| **name != self.policy);
        let means = others.map(|(name, it)| {
            (
                name.clone(),
                it.get(Metric::ApplicationCompletionMean) / mean,
            )
        });
        let makespans = point
            .policies
            .values()
            .map(|it| it.get(Metric::Makespan) / makespan);
        Some(Row {
            place,
            best: means.min_by(|one, other| one.1.total_cmp(&other.1))?,
            mean: of.get(Metric::ApplicationCompletionMean) / mean,
            makespan: of.get(Metric::Makespan) / makespan,
            makespan_best: makespans.fold(f64::INFINITY, f64::min),
        })
    }

    /// As a Markdown document, after the command that makes it.
    pub fn markdown(&self, command: &str) -> String {
        let Versus { policy, first, .. } = self;
        let beyond = |limit: f64| {
            let rows = self.rows.iter();
            rows.filter(|row| row.mean > row.best.1 * limit).count()
        };
        let later = |limit: f64| {
            let rows = self.rows.iter();
            rows.filter(|row| row.makespan > limit).count()
        };
        let mut text = format!(
            "# `{policy}` beside the best of the other policies\n\nThe output of `{command}`. For \
             each point of each scenario: the mean completion of its applications, and the \
             makespan, by those under `{first}`; 1 is the same, less is sooner. The best other \
             policy by mean completion is another one from load to load.\n\n\
             Of {} points `{policy}` is more than 2 % later than the best in {}, and more than \
             10 % in {}; it is later than `{first}` by more than 1 % in {}. Its makespan is more \
             than 1 % beyond that of `{first}` in {}, and more than 10 % in {}.\n\n\
             | scenario | best other | its mean | `{policy}`, mean | by the best | `{policy}`, \
             makespan | least makespan |\n|---|---|---|---|---|---|---|\n",
            self.rows.len(),
            beyond(1.02),
            beyond(1.1),
            self.rows.iter().filter(|row| row.mean > 1.01).count(),
            later(1.01),
            later(1.1),
        );
        for row in &self.rows {
            let (name, best) = &row.best;
            let ratio = row.mean / best;
            let mark = if ratio > 1.02 { "**" } else { "" };
            let _ = writeln!(
                text,
                "| {} | `{name}` | {best:.3} | {:.3} | {mark}{ratio:.3}{mark} | {:.3} | {:.3} |",
                row.place, row.mean, row.makespan, row.makespan_best
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{find, run};

    fn table(policy: &str, policies: &[&str]) -> String {
        let policies: Vec<String> = policies.iter().map(|name| name.to_string()).collect();
        let mut versus = Versus::new(policy, &policies);
        let mut scenario = find("song-2011-fig3").expect("it comes with tidegate");
        scenario
            .compare(&policies)
            .expect("there are such policies");
        scenario.repetitions = 1;
        let (findings, _) = run(&scenario, Some(1), None).expect("it runs");
        assert!(findings.claims.is_empty(), "they are of other policies");
        versus.add(&findings);
        versus.markdown("the command")
    }

    #[test]
    fn a_policy_is_compared_with_the_best_of_the_others() {
        // Ten programs that read at once end sooner one after the other.
        let window = table("window", &["fifo", "window"]);
        assert!(window.contains("The output of `the command`."), "{window}");
        assert!(
            window.contains("more than 2 % later than the best in 0"),
            "{window}"
        );
        let sjf = table("sjf", &["fifo", "sjf", "window", "time-order"]);
        assert!(sjf.contains("| `time-order` | 0."), "{sjf}");
        assert!(sjf.contains("more than 10 % in 4"), "{sjf}");
    }
}
