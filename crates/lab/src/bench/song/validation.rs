//! Compares the measured figure with the simulator's, to show how far one can trust the models.

use super::{POLICIES, Report};
use crate::bench::cluster::at;
use crate::bench::statistics::change_percent;
use crate::bench::{Claim, markdown};
use serde_json::{Value, json};
use std::path::Path;
use tidegate_cli::fail::Fail;
use tidegate_cli::table::lay_out;
use tidegate_sim::result::Metric;
use tidegate_sim::{library, runner};

/// The scenario of this benchmark, and its series that is compared.
const SCENARIO: &str = "song-2011-fig5";
const SERIES: &str = "HDD";
/// How far live and simulated numbers may be apart, percent.
const APART_MAX: f64 = 10.0;

const HEADING: [&str; 4] = ["", "live", "simulated", "difference"];

/// A number, measured and simulated.
struct Pair {
    policy: &'static str,
    what: &'static str,
    live: f64,
    simulated: f64,
}

impl Pair {
    fn difference_percent(&self) -> f64 {
        change_percent(self.simulated, self.live)
    }
}

/// The comparison.
pub struct Validation {
    pairs: Vec<Pair>,
    repetitions: u32,
}

impl Validation {
    /// Runs the scenario and compares it with the measurement.
    pub fn of(report: &Report) -> Result<Validation, Fail> {
        let scenario = library::find(SCENARIO).expect("it comes with tidegate");
        let mut scenario = scenario.map_err(Fail::runtime)?;
        scenario.series.retain(|series| series.name == SERIES);
        scenario.claims.clear();
        let outcome = runner::run(&scenario, 1, &|_, _| {}).map_err(Fail::runtime)?;
        let metrics = [Metric::CompletionMean, Metric::Makespan];
        let mut pairs = Vec::new();
        for policy in POLICIES {
            let index = scenario.policies.iter().position(|it| it.label == policy);
            let index = index.expect("the scenario has both policies");
            for ((what, live), metric) in report.compared(policy).into_iter().zip(metrics) {
                let simulated = outcome.get(0, 0, index, metric);
                pairs.push(Pair {
                    policy,
                    what,
                    live,
                    simulated,
                });
            }
        }
        Ok(Validation {
            pairs,
            repetitions: scenario.repetitions,
        })
    }

    /// What must hold.
    pub fn claims(&self) -> Vec<Claim> {
        let claim = |pair: &Pair| {
            let percent = pair.difference_percent();
            let text = format!(
                "simulated {} under {} is {percent:+.1} % off, at most {APART_MAX} %",
                pair.what, pair.policy
            );
            Claim::new(text, percent.abs() <= APART_MAX)
        };
        self.pairs.iter().map(claim).collect()
    }

    /// For `--json`.
    pub fn json(&self) -> Value {
        let pair = |pair: &Pair| {
            json!({
                "policy": pair.policy,
                "metric": pair.what,
                "live": pair.live,
                "simulated": pair.simulated,
                "difference_percent": pair.difference_percent(),
            })
        };
        self.pairs.iter().map(pair).collect()
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let row = |pair: &Pair| {
            vec![
                format!("{}: {}", pair.policy, pair.what),
                format!("{:.1}", pair.live),
                format!("{:.1}", pair.simulated),
                format!("{:+.1} %", pair.difference_percent()),
            ]
        };
        self.pairs.iter().map(row).collect()
    }

    /// The table.
    pub fn text(&self) -> String {
        lay_out(&HEADING, &self.rows())
    }

    /// Writes the document.
    pub fn write(&self, path: &Path, repetitions: u32) -> Result<(), Fail> {
        let mut text = format!(
            "# The simulator beside real forwarders\n\nWritten by `tidegate bench {SCENARIO} \
             --simulate --write {}`: ten applications read 4 MiB each, at once, from eight \
             forwarders on emulated 7200 rpm disks; then the scenario `{SCENARIO}` (series \
             {SERIES}) in virtual time. Live: medians of {repetitions} rounds on this machine; \
             simulated: means over {} seeds. The policies are those that the live benchmark runs, \
             fifo and window: the paper's two sides.\n\n",
            path.display(),
            self.repetitions,
        );
        text += &markdown(&HEADING, &self.rows());
        text.push_str(
            "\nBoth run the same forwarder, client and device code. What differs: a live machine's \
             processes wake each other and share its cores, its sockets have their own delays, and \
             its emulated disks sleep.\n",
        );
        std::fs::write(path, text).map_err(at(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_judged_by_their_size() {
        let pair = |simulated| Pair {
            policy: "fifo",
            what: "completion",
            live: 100.0,
            simulated,
        };
        let validation = Validation {
            pairs: [91.0, 109.9, 89.0, 111.0].map(pair).into(),
            repetitions: 1,
        };
        let holds: Vec<bool> = validation
            .claims()
            .iter()
            .map(|claim| claim.holds)
            .collect();
        assert_eq!(holds, [true, true, false, false]);
        assert!(validation.text().contains("-9.0 %"));
    }
}
