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

/// Medians of both policies.
pub struct Report {
    fifo: Medians,
    window: Medians,
    starts_ms: (f64, f64),
    late: u32,
}

struct Medians {
    ratio: f64,
    first_ms: f64,
    completion_ms: f64,
    makespan_ms: f64,
}

impl Medians {
    fn of(rounds: &[Round]) -> Medians {
        let middle = |value: fn(&Round) -> f64| median(rounds.iter().map(value));
        Medians {
            ratio: middle(Round::ratio),
            first_ms: middle(Round::first_ms),
            completion_ms: middle(Round::completion_ms),
            makespan_ms: middle(Round::makespan_ms),
        }
    }

    fn json(&self) -> Value {
        json!({
            "ratio": self.ratio,
            "first_ms": self.first_ms,
            "completion_ms": self.completion_ms,
            "makespan_ms": self.makespan_ms,
        })
    }
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
            fifo: Medians::of(&rounds[0]),
            window: Medians::of(&rounds[1]),
            starts_ms: (median(starts.iter().copied()), largest(&starts)),
            late,
        }
    }

    fn completion_percent(&self) -> f64 {
        change_percent(self.window.completion_ms, self.fifo.completion_ms)
    }

    fn makespan_percent(&self) -> f64 {
        change_percent(self.window.makespan_ms, self.fifo.makespan_ms)
    }

    /// Mean completion and makespan under a policy, ms: what the simulator is compared in.
    pub fn compared(&self, policy: &str) -> [(&'static str, f64); 2] {
        let medians = match policy {
            "fifo" => &self.fifo,
            _ => &self.window,
        };
        [
            ("completion of an application, ms", medians.completion_ms),
            ("all done (makespan), ms", medians.makespan_ms),
        ]
    }

    /// What must hold.
    pub fn claims(&self) -> Vec<Claim> {
        let (ratio, completion) = (self.window.ratio, self.completion_percent());
        let makespan = self.makespan_percent();
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
        json!({
            "fifo": self.fifo.json(),
            "window": self.window.json(),
            "completion_percent": self.completion_percent(),
            "makespan_percent": self.makespan_percent(),
            "starts_ms": { "median": self.starts_ms.0, "largest": self.starts_ms.1 },
            "repeated": self.late,
        })
    }

    /// The table, with what it means.
    pub fn text(&self, medium: &Medium) -> String {
        let (fifo, window) = (&self.fifo, &self.window);
        let ms = |value: f64| format!("{value:.1}");
        let percent = |value: f64| format!("{value:+.1} %");
        let (before, after) = medium.ratio;
        let rows = [
            [
                "last/first forwarder of an application".to_string(),
                format!("{before} -> {after}"),
                format!("{:.2}", fifo.ratio),
                format!("{:.2}", window.ratio),
                percent(change_percent(window.ratio, fifo.ratio)),
            ],
            [
                "first forwarder done, ms".to_string(),
                String::new(),
                ms(fifo.first_ms),
                ms(window.first_ms),
                percent(change_percent(window.first_ms, fifo.first_ms)),
            ],
            [
                "completion of an application, ms".to_string(),
                percent(medium.completion_percent),
                ms(fifo.completion_ms),
                ms(window.completion_ms),
                percent(self.completion_percent()),
            ],
            [
                "all done (makespan), ms".to_string(),
                String::new(),
                ms(fifo.makespan_ms),
                ms(window.makespan_ms),
                percent(self.makespan_percent()),
            ],
        ];
        let heading = [
            "medians; means over applications",
            "paper",
            "fifo",
            "window",
            "change",
        ];
        let table = lay_out(&heading, &rows.map(Vec::from));
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
        Medians {
            ratio,
            first_ms: 1.0,
            completion_ms,
            makespan_ms,
        }
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
