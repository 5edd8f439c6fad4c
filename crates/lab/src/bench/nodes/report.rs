//! The results of `bench cluster`'s turns, as text and as JSON.

use super::{Nodes, Run, Turn, Way, median};
use crate::bench::statistics::{change_percent, largest, mean, smallest};
use crate::bench::{Access, Claim, claims_json};
use serde_json::{Value, json};
use tidegate_cli::table::{self, lay_out};

/// Columns of the table of programs.
pub const PROGRAMS: [&str; 6] = [
    "program",
    "node",
    "bytes",
    "none, s",
    "fifo, s",
    "window, s",
];

/// What a turn is measured by.
const METRICS: [(&str, &str); 7] = [
    ("completion_mean_s", "mean completion, s"),
    ("completion_small_s", "mean completion of the small, s"),
    ("completion_large_s", "mean completion of the large, s"),
    ("makespan_s", "all done, s"),
    ("mb_s", "throughput, MB/s"),
    ("slowdown", "mean slowdown"),
    ("fairness", "fairness (Jain)"),
];

/// Values of all turns.
pub struct Report {
    pub nodes: Nodes,
    /// The node of each program.
    pub places: Vec<String>,
    pub forwarders: usize,
    /// By way and metric, the values of the runs.
    pub values: Vec<Vec<Vec<f64>>>,
    /// By program and way, the median completion.
    pub programs: Vec<[f64; 3]>,
    /// What a small and a large program take alone on the back end, medians.
    pub alone: [f64; 2],
    /// The longest lag of all turns, s.
    pub lag: f64,
    /// Whether the runs were valid.
    pub claims: Vec<Claim>,
    runs: Vec<Run>,
}

impl Report {
    /// Sums up the runs.
    pub fn of(nodes: Nodes, runs: Vec<Run>, places: Vec<String>, forwarders: usize) -> Report {
        let alone = [0, 1].map(|size| median(runs.iter().map(|run| run.alone[size])));
        let turns = |way: Way| {
            let all = runs.iter().flat_map(|run| &run.turns);
            all.filter(move |turn| turn.way == way)
        };
        let values = Way::ALL.map(|way| {
            let by_turn: Vec<Vec<f64>> =
                turns(way).map(|turn| values(&nodes, turn, alone)).collect();
            let column = |metric: usize| by_turn.iter().map(|values| values[metric]).collect();
            (0..METRICS.len()).map(column).collect()
        });
        let program = |number: usize| {
            Way::ALL.map(|way| median(turns(way).map(|turn| turn.completions[number])))
        };
        let lags = Way::ALL.into_iter().flat_map(turns).map(|turn| turn.lag);
        Report {
            places,
            forwarders,
            values: values.into(),
            programs: (0..nodes.programs as usize).map(program).collect(),
            alone,
            lag: lags.fold(0.0, f64::max),
            claims: nodes.claims(&runs),
            nodes,
            runs,
        }
    }

    /// A row for each metric: each way's median with least and most, and window against fifo.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let row = |metric: usize| {
            let values = |way: usize| &self.values[way][metric];
            let middle = |way: usize| median(values(way).iter().copied());
            let cell = |way: usize| {
                let (least, most) = (smallest(values(way)), largest(values(way)));
                format!("{:.2} ({least:.2} to {most:.2})", middle(way))
            };
            let against =
                |base: usize| format!("{:+.1} %", change_percent(middle(2), middle(base)));
            let mut cells = vec![METRICS[metric].1.to_string()];
            cells.extend((0..Way::ALL.len()).map(cell));
            cells.extend([against(1), against(0)]);
            cells
        };
        let shown = |metric: &usize| {
            let of_a_half = METRICS[*metric].0.ends_with("_small_s")
                || METRICS[*metric].0.ends_with("_large_s");
            !of_a_half || self.nodes.small != self.nodes.large
        };
        (0..METRICS.len()).filter(shown).map(row).collect()
    }

    /// The heading of `rows`.
    pub fn heading() -> [&'static str; 6] {
        ["", "none", "fifo", "window", "window/fifo", "window/none"]
    }

    /// A row for each program.
    pub fn program_rows(&self) -> Vec<Vec<String>> {
        let nodes = self.node_names();
        let row = |(number, medians): (usize, &[f64; 3])| {
            let mut cells = vec![
                number.to_string(),
                nodes[number].clone(),
                table::bytes(self.nodes.bytes(number)),
            ];
            cells.extend(medians.iter().map(|seconds| format!("{seconds:.2}")));
            cells
        };
        self.programs.iter().enumerate().map(row).collect()
    }

    /// Nodes by number: their commands may be long, and another one each time.
    fn node_names(&self) -> Vec<String> {
        let number = |place: &String| {
            let found = self.nodes.node.iter().position(|node| node == place);
            format!("{}", found.unwrap_or_default())
        };
        self.places.iter().map(number).collect()
    }

    /// What was done, in words.
    pub fn words(&self) -> String {
        let Nodes {
            programs,
            request,
            runs,
            window_ms,
            depth,
            ..
        } = &self.nodes;
        let access = match self.nodes.access {
            Access::Read => "read",
            Access::Write => "write and sync",
        };
        let nodes = self.nodes.node.len();
        format!(
            "{programs} programs on {nodes} compute node{}, {} forwarders. They {access} files \
             ({}) in requests of {} past page caches, one\nafter another without a pause; all \
             start at once, and each ends when its file is done. fifo and window: depth {depth},\n\
             windows of {window_ms} ms, no merging. Medians of {runs} interleaved turns of each \
             way, with the least and the most.",
            if nodes == 1 { "" } else { "s" },
            self.forwarders,
            self.nodes.load_words(),
            table::bytes(*request),
        )
    }

    /// The times to which slowdowns refer, and how exact the clock is.
    pub fn notes(&self) -> String {
        let which = match self.nodes.small == self.nodes.large {
            true => ["the first program", "the last"],
            false => ["a small program", "a large one"],
        };
        format!(
            "Alone on the back end {} takes {:.2} s and {} {:.2} s \
             (medians). At most {:.1} ms of a completion\nwere spent on starting a program and \
             on telling its \
             end.",
            which[0],
            self.alone[0],
            which[1],
            self.alone[1],
            self.lag * 1000.0
        )
    }

    /// The tables.
    pub fn text(&self) -> String {
        format!(
            "{}\n\n{}\n{}\n{}\n",
            self.words(),
            lay_out(&Report::heading(), &self.rows()),
            lay_out(&PROGRAMS, &self.program_rows()),
            self.notes()
        )
    }

    /// The tables and each turn as JSON.
    pub fn json(&self) -> Value {
        let turn = |turn: &Turn| {
            let values = values(&self.nodes, turn, self.alone);
            let mut one = json!({
                "way": turn.way.name(), "completions_s": turn.completions,
                "lag_s": turn.lag, "wrong_bytes": turn.wrong, "moved_bytes": turn.moved,
            });
            for ((name, _), value) in METRICS.iter().zip(values) {
                one[name] = value.into();
            }
            one
        };
        let run = |run: &Run| {
            let turns: Vec<Value> = run.turns.iter().map(turn).collect();
            json!({ "alone_s": run.alone, "turns": turns })
        };
        let nodes = &self.nodes;
        let bytes: Vec<u64> = (0..self.programs.len())
            .map(|one| nodes.bytes(one))
            .collect();
        json!({
            "forwarders": self.forwarders,
            "program_bytes": bytes,
            "program_nodes": self.places,
            "request": nodes.request,
            "access": nodes.access.name(),
            "depth": nodes.depth,
            "window_ms": nodes.window_ms,
            "alone_s": self.alone,
            "runs": self.runs.iter().map(run).collect::<Vec<_>>(),
            "claims": claims_json(&self.claims),
        })
    }
}

/// What one turn is, in the order of `METRICS`.
fn values(nodes: &Nodes, turn: &Turn, alone: [f64; 2]) -> Vec<f64> {
    let all = &turn.completions;
    let numbered = || all.iter().copied().enumerate();
    let of = |small: bool| {
        let some = numbered().filter(move |(number, _)| nodes.is_small(*number) == small);
        mean(some.map(|(_, seconds)| seconds))
    };
    let bytes: u64 = (0..all.len()).map(|number| nodes.bytes(number)).sum();
    let slowdown =
        |(number, seconds): (usize, f64)| seconds / alone[usize::from(!nodes.is_small(number))];
    let speeds: Vec<f64> = numbered().map(|one| 1.0 / slowdown(one)).collect();
    vec![
        mean(all.iter().copied()),
        of(true),
        of(false),
        largest(all),
        bytes as f64 / 1e6 / largest(all),
        mean(numbered().map(slowdown)),
        jain(&speeds),
    ]
}

/// Jain's index: 1 where all are alike, 1/n where one has everything.
fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    sum * sum / (values.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        nodes: Nodes,
    }

    /// Four programs of 4, 4, 8 and 8 MB that have the back end alone for 1 and 2 s.
    fn report(completions: [[f64; 4]; 3]) -> Report {
        let words = "x --bare /b --tide /t --programs 4 --small 4000KiB --large 8000KiB \
                     --request 400KiB --node a --node b";
        let nodes = Command::parse_from(words.split(' ').filter(|word| !word.is_empty())).nodes;
        let turn = |(way, completions): (Way, [f64; 4])| Turn {
            way,
            completions: completions.into(),
            lag: 0.001,
            wrong: 0,
            moved: vec![vec![0, 0]; 4],
        };
        let run = Run {
            turns: Way::ALL.into_iter().zip(completions).map(turn).collect(),
            alone: [1.0, 2.0],
        };
        let places = ["a", "b", "a", "b"].map(String::from);
        Report::of(nodes, vec![run], places.into(), 2)
    }

    #[test]
    fn turns_are_summed_up() {
        let report = report([
            [4.0, 4.0, 8.0, 8.0],
            [2.0, 4.0, 6.0, 8.0],
            [1.0, 2.0, 4.0, 8.0],
        ]);
        let of = |way: usize| -> Vec<f64> { report.values[way].iter().map(|one| one[0]).collect() };
        let mb_s = 24.576 / 8.0;
        assert_eq!(of(0), [6.0, 4.0, 8.0, 8.0, mb_s, 4.0, 1.0]);
        assert_eq!(of(1)[..6], [5.0, 3.0, 7.0, 8.0, mb_s, 3.25]);
        assert!(of(2)[6] < of(1)[6] && of(1)[6] < 1.0);
        let rows = report.rows();
        assert_eq!(
            rows[0][1..4],
            [
                "6.00 (6.00 to 6.00)",
                "5.00 (5.00 to 5.00)",
                "3.75 (3.75 to 3.75)"
            ]
        );
        assert_eq!(rows[0][4..], ["-25.0 %", "-37.5 %"]);
        assert_eq!(
            report.program_rows()[3],
            ["3", "1", "7.8M", "8.00", "8.00", "8.00"]
        );
        assert!(
            report
                .text()
                .contains("4 programs on 2 compute nodes, 2 forwarders")
        );
    }

    #[test]
    fn what_went_astray_makes_a_run_invalid() {
        let report = report([[1.0; 4]; 3]);
        let turn = |way, moved: [u64; 2]| Turn {
            way,
            completions: vec![1.0; 4],
            lag: 0.0,
            wrong: 0,
            moved: (0..4)
                .map(|one| {
                    moved
                        .map(|half| half * report.nodes.bytes(one) / 2)
                        .to_vec()
                })
                .collect(),
        };
        let holds = |turns: Vec<Turn>| {
            let run = Run {
                turns,
                alone: [1.0; 2],
            };
            let claims = report.nodes.claims(&[run]);
            claims.iter().map(|claim| claim.holds).collect::<Vec<_>>()
        };
        assert_eq!(
            holds(vec![turn(Way::Fifo, [1, 1]), turn(Way::None, [0, 0])]),
            [true, true]
        );
        assert_eq!(
            holds(vec![turn(Way::None, [1, 1])]),
            [true, false],
            "not past the forwarders"
        );
        assert_eq!(
            holds(vec![turn(Way::Window, [2, 0])]),
            [true, false],
            "not spread over all"
        );
        assert_eq!(
            holds(vec![turn(Way::Window, [2, 2])]),
            [true, false],
            "too much"
        );
        let mut wrong = turn(Way::None, [0, 0]);
        wrong.wrong = 1;
        assert_eq!(holds(vec![wrong]), [false, true]);
    }

    #[test]
    fn jain_s_index_is_1_where_all_are_alike() {
        assert_eq!(jain(&[3.0, 3.0, 3.0]), 1.0);
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), 0.25);
    }
}
