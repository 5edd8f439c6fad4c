//! The table: the paper's numbers beside the measured ones, and the claims.

use crate::bench::Claim;
use crate::bench::statistics::{change_percent, largest, mean, median, smallest};
use serde_json::{Value, json};
use tidegate_cli::table::lay_out;

/// The paper's figure 4: its order's mean execution time against the other two, percent.
const PAPER: [(&str, f64); 2] = [("fifo", -34.1), ("window", -15.2)];
/// Live, `hio` may be behind `window` by what a busy machine blurs, percent.
const WORSE_PERCENT_MAX: f64 = 5.0;

const WHY: &str = "\
Why hio gains little over window here: in stock ROMIO the ranks tell each other after each read
how much they will send (MPI_Alltoall), so every shuffle begins when the slowest aggregator has
read, and it does not matter which part of an operation is read first. In the paper's model a
shuffle begins when its own part is read.
";

const NO_HIO: &str = "This build has no policy hio.\n";

/// What was measured of the policies, turn by turn.
pub struct Report {
    names: Vec<&'static str>,
    turns: Vec<Vec<Turn>>,
}

/// A turn of a policy.
struct Turn {
    /// Mean time of an operation, ms.
    operation_ms: f64,
    /// Mean time until all jobs had theirs, ms.
    all_ms: f64,
}

impl Report {
    /// Of these policies, without turns.
    pub fn new(policies: &[(&'static str, &str)]) -> Report {
        Report {
            names: policies.iter().map(|(name, _)| *name).collect(),
            turns: policies.iter().map(|_| Vec::new()).collect(),
        }
    }

    /// Adds a turn of policy `index`: of each query the jobs' times, ms.
    pub fn turn(&mut self, index: usize, queries: &[Vec<f64>]) {
        let longest = |query: &Vec<f64>| largest(query);
        self.turns[index].push(Turn {
            operation_ms: mean(queries.iter().flatten().copied()),
            all_ms: mean(queries.iter().map(longest)),
        });
    }

    fn operation_ms(&self, index: usize) -> f64 {
        median(self.turns[index].iter().map(|turn| turn.operation_ms))
    }

    fn all_ms(&self, index: usize) -> f64 {
        median(self.turns[index].iter().map(|turn| turn.all_ms))
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| *known == name)
    }

    /// How far the mean operation under one policy is from that under another, percent.
    fn change(&self, of: &str, against: &str) -> Option<f64> {
        let (of, against) = (self.index(of)?, self.index(against)?);
        Some(change_percent(
            self.operation_ms(of),
            self.operation_ms(against),
        ))
    }

    /// What must hold.
    pub fn claims(&self) -> Vec<Claim> {
        let mut claims = Vec::new();
        if let Some(change) = self.change("window", "fifo") {
            claims.push(Claim::new(
                format!("window against fifo {change:+.1} %, below 0"),
                change < 0.0,
            ));
        }
        if let Some(change) = self.change("hio", "window") {
            claims.push(Claim::new(
                format!("hio against window {change:+.1} %, at most +{WORSE_PERCENT_MAX} %"),
                change <= WORSE_PERCENT_MAX,
            ));
        }
        claims
    }

    /// The table, and what the paper has.
    pub fn text(&self) -> String {
        let row = |index: usize| {
            let times: Vec<f64> = self.turns[index].iter().map(|t| t.operation_ms).collect();
            let against = |name: &str| match self.change(self.names[index], name) {
                Some(change) if self.names[index] != name => format!("{change:+.1} %"),
                _ => String::new(),
            };
            vec![
                self.names[index].to_string(),
                format!("{:.1}", self.operation_ms(index)),
                format!("{:.1} to {:.1}", smallest(&times), largest(&times)),
                format!("{:.1}", self.all_ms(index)),
                against("fifo"),
                against("window"),
            ]
        };
        let heading = [
            "policy",
            "operation, ms",
            "of turns",
            "all jobs, ms",
            "against fifo",
            "against window",
        ];
        let rows: Vec<_> = (0..self.names.len()).map(row).collect();
        let paper: Vec<String> = PAPER
            .iter()
            .map(|(name, percent)| format!("{percent} % against {name}"))
            .collect();
        format!(
            "{}The paper, 6 to 48 jobs of 50 processes on 6 servers: its order {}; fifo stands for \
             its uncoordinated case.\n{}",
            lay_out(&heading, &rows),
            paper.join(" and "),
            if self.index("hio").is_some() {
                WHY
            } else {
                NO_HIO
            },
        )
    }

    /// For `--json`.
    pub fn json(&self) -> Value {
        let one = |index: usize| {
            let turns: Vec<f64> = self.turns[index].iter().map(|t| t.operation_ms).collect();
            json!({
                "policy": self.names[index],
                "operation_ms": self.operation_ms(index),
                "all_jobs_ms": self.all_ms(index),
                "turns_ms": turns,
            })
        };
        let policies: Vec<Value> = (0..self.names.len()).map(one).collect();
        json!({
            "policies": policies,
            "window_against_fifo_percent": self.change("window", "fifo"),
            "hio_against_fifo_percent": self.change("hio", "fifo"),
            "hio_against_window_percent": self.change("hio", "window"),
            "paper_percent": { PAPER[0].0: PAPER[0].1, PAPER[1].0: PAPER[1].1 },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_become_medians_and_claims() {
        let policies = [("fifo", ""), ("window", ""), ("hio", "")];
        let mut report = Report::new(&policies);
        for (index, times) in [[30.0, 34.0], [20.0, 30.0], [20.0, 22.0]]
            .iter()
            .enumerate()
        {
            report.turn(index, &[times.to_vec()]);
            report.turn(index, &[vec![1000.0, 1000.0]]);
            report.turn(index, &[times.to_vec()]);
        }
        assert_eq!(report.operation_ms(0), 32.0);
        assert_eq!(report.all_ms(1), 30.0);
        let holds = |report: &Report| report.claims().iter().all(|claim| claim.holds);
        assert!(holds(&report));
        assert!(report.text().contains("-16.0 %"), "{}", report.text());
        for _ in 0..9 {
            report.turn(2, &[vec![27.0, 27.0]]);
        }
        assert!(!holds(&report));
    }

    #[test]
    fn without_hio_there_is_no_claim_of_it() {
        let mut report = Report::new(&[("fifo", ""), ("window", "")]);
        report.turn(0, &[vec![2.0]]);
        report.turn(1, &[vec![1.0]]);
        assert_eq!(report.claims().len(), 1);
        assert!(report.json()["hio_against_window_percent"].is_null());
    }
}
