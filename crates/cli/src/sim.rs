//! `tidegate sim`: scenarios in virtual time, and what they say of the policies.

mod text;

use crate::fail::Fail;
use serde_json::{Value, json};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use tidegate_sim::result::{Metric, Outcome};
use tidegate_sim::scenario::Scenario;
use tidegate_sim::{library, runner};

/// Run a scenario in virtual time and compare policies.
///
/// A scenario is a TOML file, or the name of one that comes with tidegate (`--list`). The simulator
/// runs the forwarders' and clients' own code; network and devices are models. Same scenario, same
/// seed: same output.
///
///   tidegate sim --list
///   tidegate sim song-2011-fig5
///   tidegate sim my-site.toml --repetitions 5 --json
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Sim {
    /// Files, or names of the scenarios that come with tidegate
    #[arg(value_name = "SCENARIO", required_unless_present = "list")]
    scenarios: Vec<String>,
    /// List the scenarios that come with tidegate
    #[arg(long)]
    list: bool,
    /// Print a scenario's text instead of running it, to begin one of your own
    #[arg(long)]
    show: bool,
    /// Threads; all cores otherwise. The output does not depend on it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Seeds of each point, instead of the scenario's own number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repetitions: Option<u32>,
    /// First seed, instead of the scenario's own
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Exit with 1 if a claim does not hold
    #[arg(long)]
    check: bool,
    /// Print JSON, one line for each scenario
    #[arg(long)]
    json: bool,
}

/// A scenario by name, or from a file.
pub fn find(name: &str) -> Result<Scenario, Fail> {
    let path = PathBuf::from(name);
    let is_file = path.components().count() > 1 || name.ends_with(".toml");
    if is_file {
        return Scenario::read(&path).map_err(Fail::usage);
    }
    match library::find(name) {
        Some(scenario) => scenario.map_err(Fail::runtime),
        None => Err(Fail::usage(format!(
            "there is no scenario {name:?}; `tidegate sim --list` lists them, a file's name ends \
             with .toml"
        ))),
    }
}

impl Sim {
    /// Runs the scenarios, one after the other.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        if self.list {
            return self.print_list();
        }
        if self.show {
            return self.print_texts();
        }
        let mut scenarios = Vec::new();
        for name in &self.scenarios {
            let mut scenario = find(name)?;
            scenario.repetitions = self.repetitions.unwrap_or(scenario.repetitions);
            scenario.seed = self.seed.unwrap_or(scenario.seed);
            scenarios.push(scenario);
        }
        let mut holds = true;
        for scenario in &scenarios {
            let outcome = run(scenario, self.threads)?;
            holds &= outcome.holds();
            match self.json {
                true => println!("{}", document(scenario, &outcome)),
                false => print!("{}", text::page(scenario, &outcome)),
            }
        }
        Ok(match self.check && !holds {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        })
    }

    fn print_list(&self) -> Result<ExitCode, Fail> {
        let mut rows = Vec::new();
        for (name, _) in library::SCENARIOS {
            rows.push((name, find(name)?.title));
        }
        for (name, title) in rows {
            match self.json {
                true => println!("{}", json!({ "name": name, "title": title })),
                false => println!("{name:<20} {title}"),
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn print_texts(&self) -> Result<ExitCode, Fail> {
        for name in &self.scenarios {
            let known = library::SCENARIOS.iter().find(|(known, _)| known == name);
            match known {
                Some((_, text)) => print!("{text}"),
                None => {
                    return Err(Fail::usage(format!(
                        "there is no scenario {name:?}; `tidegate sim --list` lists them"
                    )));
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Runs a scenario, with a progress bar where somebody looks.
pub fn run(scenario: &Scenario, threads: Option<u32>) -> Result<Outcome, Fail> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let threads = threads.map_or(cores, |threads| threads as usize);
    let shows = std::io::stderr().is_terminal();
    let progress = |done: usize, of: usize| {
        if shows {
            const WIDTH: usize = 30;
            let bar = "#".repeat(done * WIDTH / of);
            let end = if done == of { "\r\x1b[K" } else { "" };
            eprint!(
                "\r{} [{bar:<WIDTH$}] {done} of {of} runs{end}",
                scenario.name
            );
            // A terminal that is gone sees no progress.
            let _ = std::io::stderr().flush();
        }
    };
    runner::run(scenario, threads, &progress).map_err(Fail::runtime)
}

/// What came of a scenario, for other programs.
pub fn document(scenario: &Scenario, outcome: &Outcome) -> Value {
    let metrics = |series: usize, point: usize, policy: usize| -> Value {
        let pairs = Metric::ALL.iter().map(|metric| {
            let value = outcome.get(series, point, policy, *metric);
            (metric.name(), json!(value))
        });
        Value::Object(pairs.collect())
    };
    let series = scenario.series.iter().enumerate().map(|(at, series)| {
        let points = series.points.iter().enumerate().map(|(number, point)| {
            let policies = scenario.policies.iter().enumerate();
            let policies =
                policies.map(|(which, policy)| (policy.label.clone(), metrics(at, number, which)));
            json!({ "x": point.x, "policies": Value::Object(policies.collect()) })
        });
        json!({ "name": series.name, "points": points.collect::<Vec<_>>() })
    });
    json!({
        "scenario": scenario.name,
        "title": scenario.title,
        "paper": scenario.paper,
        "protocol": scenario.protocol,
        "repetitions": scenario.repetitions,
        "seed": scenario.seed,
        "series": series.collect::<Vec<_>>(),
        "claims": outcome.verdicts,
        "holds": outcome.holds(),
    })
}
