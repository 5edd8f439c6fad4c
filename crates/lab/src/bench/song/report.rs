//! The table of the figure: the paper's numbers beside the measured ones, and the claims.

use super::{Medium, Round};
use crate::bench::Claim;
use crate::bench::statistics::{change_percent, largest, median};
use serde_json::{Value, json};
use tidegate_cli::table::lay_out;

const RATIO_MAX: f64 = 1.15;
const COMPLETION_PERCENT_MAX: f64 = -30.0;
const MAKESPAN_PERCENT_MAX: f64 = 3.0;

const WHY: &str = "\
Why fifo's ratio is below the paper's: PVFS2 serves each file's requests from a queue of their own,
and its servers differ in their order by far more than a message's jitter. Here a forwarder has one
queue in order of arrival, so forwarders differ by the jitter alone: every application gets on
equally slowly everywhere. What coordination can save, the mean completion, is the same.
";

/// What a round is measured by, as JSON and as text have it.
const METRICS: [(&str, &str); 4] = [
    ("ratio", "last/first forwarder of an application"),
    ("first_ms", "first forwarder done, ms"),
    ("completion_ms", "completion of an application, ms"),
    ("makespan_ms", "all done (makespan), ms"),
];
const RATIO: usize = 0;
const COMPLETION: usize = 2;
const MAKESPAN: usize = 3;

/// The median of each metric.
type Medians = [f64; 4];

/// Medians of both policies.
pub struct Report {
    fifo: Medians,
    window: Medians,
    starts_ms: (f64, f64),
    late: u32,
}

fn medians(rounds: &[Round]) -> Medians {
    let metrics: [fn(&Round) -> f64; 4] = [
        Round::ratio,
        Round::first_ms,
        Round::completion_ms,
        Round::makespan_ms,
    ];
    metrics.map(|metric| median(rounds.iter().map(metric)))
}

impl Report {
    /// Sums up the rounds of fifo and window; `late` more were repeated because of their starts.
    pub fn of(rounds: &[Vec<Round>; 2], late: u32) -> Report {
        let starts: Vec<f64> = rounds
            .iter()
            .flatten()
            .map(|round| round.starts_ms)
            .collect();
        Report {
            fifo: medians(&rounds[0]),
            window: medians(&rounds[1]),
            starts_ms: (median(starts.iter().copied()), largest(&starts)),
            late,
        }
    }

    /// Window against fifo.
    fn change(&self, metric: usize) -> f64 {
        change_percent(self.window[metric], self.fifo[metric])
    }

    /// Mean completion and makespan under a policy, ms: what the simulator is compared in.
    pub fn compared(&self, policy: &str) -> [(&'static str, f64); 2] {
        let medians = match policy {
            "fifo" => &self.fifo,
            _ => &self.window,
        };
        [COMPLETION, MAKESPAN].map(|metric| (METRICS[metric].1, medians[metric]))
    }

    /// What must hold.
    pub fn claims(&self) -> Vec<Claim> {
        let (ratio, completion) = (self.window[RATIO], self.change(COMPLETION));
        let makespan = self.change(MAKESPAN);
        vec![
            Claim::new(
                format!("last/first forwarder under window {ratio:.3}, at most {RATIO_MAX}"),
                ratio <= RATIO_MAX,
            ),
            Claim::new(
                format!("mean completion {completion:+.1} %, at most {COMPLETION_PERCENT_MAX} %"),
                completion <= COMPLETION_PERCENT_MAX,
            ),
            Claim::new(
                format!("makespan {makespan:+.1} %, at most +{MAKESPAN_PERCENT_MAX} %"),
                makespan <= MAKESPAN_PERCENT_MAX,
            ),
        ]
    }

    /// For `--json`.
    pub fn json(&self) -> Value {
        let json = |medians: &Medians| -> Value {
            let pairs = METRICS.iter().zip(medians);
            Value::Object(
                pairs
                    .map(|((key, _), value)| (key.to_string(), json!(value)))
                    .collect(),
            )
        };
        json!({
            "fifo": json(&self.fifo),
            "window": json(&self.window),
            "completion_percent": self.change(COMPLETION),
            "makespan_percent": self.change(MAKESPAN),
            "starts_ms": { "median": self.starts_ms.0, "largest": self.starts_ms.1 },
            "repeated": self.late,
        })
    }

    /// The table, with what it means.
    pub fn text(&self, medium: &Medium) -> String {
        let percent = |value: f64| format!("{value:+.1} %");
        let (before, after) = medium.ratio;
        let row = |metric: usize| {
            let digits = if metric == RATIO { 2 } else { 1 };
            let paper = match metric {
                RATIO => format!("{before} -> {after}"),
                COMPLETION => percent(medium.completion_percent),
                _ => String::new(),
            };
            vec![
                METRICS[metric].1.to_string(),
                paper,
                format!("{:.digits$}", self.fifo[metric]),
                format!("{:.digits$}", self.window[metric]),
                percent(self.change(metric)),
            ]
        };
        let rows: Vec<_> = (0..METRICS.len()).map(row).collect();
        let heading = [
            "medians; means over applications",
            "paper",
            "fifo",
            "window",
            "change",
        ];
        let table = lay_out(&heading, &rows);
        let (middle, most) = self.starts_ms;
        format!(
            "{table}Applications started within {middle:.2} ms (median; at most {most:.2} ms; \
             {} rounds with late starts were repeated).\n{WHY}",
            self.late
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::DISK;
    use super::*;

    fn medians(ratio: f64, completion_ms: f64, makespan_ms: f64) -> Medians {
        [ratio, 1.0, completion_ms, makespan_ms]
    }

    #[test]
    fn claims_are_judged_at_their_borders() {
        let holds = |window| {
            let report = Report {
                fifo: medians(2.0, 100.0, 100.0),
                window,
                starts_ms: (0.1, 0.2),
                late: 0,
            };
            assert!(report.text(&DISK).contains("4.4 -> 1.3"));
            report
                .claims()
                .iter()
                .map(|claim| claim.holds)
                .collect::<Vec<_>>()
        };
        assert_eq!(holds(medians(1.15, 69.9, 102.9)), [true, true, true]);
        assert_eq!(holds(medians(1.16, 70.2, 103.2)), [false, false, false]);
    }
}
