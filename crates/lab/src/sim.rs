//! `tidegate sim`: runs scenarios in virtual time, and shows how the policies compare.

pub mod record;
mod replay;
pub mod text;
mod versus;

use crate::findings::Findings;
use serde_json::json;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidegate_cli::fail::Fail;
use tidegate_cli::output;
use tidegate_cli::{err, errln, out, outln};
use tidegate_sim::runner::Recorded;
use tidegate_sim::scenario::{REPETITIONS_MAX, SEED_MAX, Scenario};
use tidegate_sim::{library, runner};
use versus::Versus;

/// Run a scenario in virtual time and compare policies.
///
/// A scenario is a TOML file, or the name of one that comes with tidegate (`--list`). The simulator
/// runs the forwarders' and clients' own code; network and devices are models. Same scenario, same
/// seed: same output.
///
///   tidegate sim --list
///   tidegate sim song-2011-fig5
///   tidegate sim my-site.toml --repetitions 5 --json
///   tidegate sim sizes-log-normal --policies fifo,window,dsfq
///   tidegate sim song-2011-fig5 --record traces/
///   tidegate sim --trace traces/ --policies fifo,window --device ssd-pcie
///   tidegate sim --trace climate.trace --trace render.trace --pace closed
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Sim {
    /// Files, or names of the scenarios that come with tidegate
    #[arg(value_name = "SCENARIO")]
    scenarios: Vec<String>,
    /// List the scenarios that come with tidegate
    #[arg(long)]
    list: bool,
    /// All scenarios that come with tidegate
    #[arg(long, conflicts_with = "scenarios")]
    all: bool,
    /// Print one table, in Markdown, of how far this one of --policies is from the best of them at
    /// each point of the scenarios
    #[arg(
        long,
        value_name = "POLICY",
        requires = "policies",
        conflicts_with_all = ["json", "traces", "record"]
    )]
    versus: Option<String>,
    /// Print a scenario's text instead of running it, to begin one of your own
    #[arg(long)]
    show: bool,
    #[command(flatten)]
    replay: replay::Replay,
    /// Write the requests of each series, point and policy under the first seed into a trace
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Threads; all cores otherwise. The output does not depend on it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Seeds of each point, instead of the scenario's own number
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(REPETITIONS_MAX)))]
    repetitions: Option<u32>,
    /// First seed, instead of the scenario's own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=SEED_MAX))]
    seed: Option<u64>,
    /// Exit with 1 if a claim does not hold
    #[arg(long)]
    check: bool,
    /// Print JSON, one line for each scenario
    #[arg(long)]
    json: bool,
    /// Say on standard error how many events were simulated, how long that took, and how many
    /// those are for each second and thread
    #[arg(long)]
    timing: bool,
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
        if self.scenarios.is_empty() && !self.all && !self.replay.is_wanted() {
            return Err(Fail::usage(
                "name a scenario (`tidegate sim --list` lists those that come with tidegate, a \
                 file's name ends with .toml), or a trace with --trace",
            ));
        }
        if self.show {
            return self.print_texts();
        }
        let mut scenarios = Vec::new();
        let all = library::SCENARIOS.iter().filter(|_| self.all);
        let names = self.scenarios.iter().map(String::as_str);
        for name in names.chain(all.map(|(name, _)| *name)) {
            let mut scenario = find(name)?;
            if !self.replay.policies.is_empty() {
                scenario
                    .compare(&self.replay.policies)
                    .map_err(Fail::usage)?;
            }
            scenarios.push(scenario);
        }
        if self.replay.is_wanted() {
            let text = self.replay.scenario()?;
            let replay = Scenario::parse(&text, "--trace", "replay");
            scenarios.push(replay.map_err(Fail::usage)?);
        }
        if let Some(folder) = &self.record {
            record::folder(folder)?;
        }
        let mut versus = self.versus()?;
        let mut holds = true;
        for mut scenario in scenarios {
            scenario.repetitions = self.repetitions.unwrap_or(scenario.repetitions);
            scenario.seed = self.seed.unwrap_or(scenario.seed);
            let start = Instant::now();
            let (findings, effort) = run(&scenario, self.threads, self.record.as_deref())?;
            if self.timing {
                errln!("{}: {}", scenario.name, effort.over(start.elapsed()));
            }
            holds &= findings.holds;
            if let Some(versus) = &mut versus {
                versus.add(&findings);
                continue;
            }
            let text = match self.json {
                true => json_line(&findings)?,
                false => text::page(&findings),
            };
            out!("{text}");
            if !output::flush() && !self.check {
                break;
            }
        }
        if let Some(versus) = versus {
            out!("{}", versus.markdown(&self.command()));
        }
        Ok(match self.check && !holds {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        })
    }

    /// The table that is asked for, without rows.
    fn versus(&self) -> Result<Option<Versus>, Fail> {
        let Some(policy) = &self.versus else {
            return Ok(None);
        };
        let policies = &self.replay.policies;
        // The first one is what all are measured by.
        if !policies.iter().skip(1).any(|other| other == policy) {
            return Err(Fail::usage(format!(
                "--versus {policy}: name it in --policies too, after the one that all are measured \
                 by: --policies fifo,{policy}"
            )));
        }
        Ok(Some(Versus::new(policy, policies)))
    }

    /// What makes the same table again.
    fn command(&self) -> String {
        let mut words = vec!["tidegate sim".to_string()];
        words.extend(self.all.then(|| "--all".into()));
        words.extend(self.scenarios.iter().cloned());
        words.push(format!("--policies {}", self.replay.policies.join(",")));
        words.extend(
            self.versus
                .iter()
                .map(|policy| format!("--versus {policy}")),
        );
        words.extend(
            self.repetitions
                .map(|count| format!("--repetitions {count}")),
        );
        words.extend(self.seed.map(|seed| format!("--seed {seed}")));
        words.join(" ")
    }

    fn print_list(&self) -> Result<ExitCode, Fail> {
        let mut rows = Vec::new();
        for (name, _) in library::SCENARIOS {
            rows.push((name, find(name)?.title));
        }
        for (name, title) in rows {
            match self.json {
                true => outln!("{}", json!({ "name": name, "title": title })),
                false => outln!("{name:<20} {title}"),
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn print_texts(&self) -> Result<ExitCode, Fail> {
        for name in &self.scenarios {
            let known = library::SCENARIOS.iter().find(|(known, _)| known == name);
            match known {
                Some((_, text)) => out!("{text}"),
                None => {
                    return Err(Fail::usage(format!(
                        "there is no scenario {name:?}; `tidegate sim --list` lists them"
                    )));
                }
            }
        }
        if self.replay.is_wanted() {
            out!("{}", self.replay.scenario()?);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What running a scenario took.
pub struct Effort {
    /// Simulated events of all its runs.
    events: u64,
    /// Threads that had a run.
    threads: usize,
}

impl Effort {
    /// One line of it, with the time that has passed.
    fn over(&self, time: Duration) -> String {
        let Effort { events, threads } = self;
        let seconds = time.as_secs_f64();
        let speed = *events as f64 / seconds.max(1e-9) / *threads as f64 / 1e6;
        let threads = match threads {
            1 => "1 thread".to_string(),
            many => format!("{many} threads"),
        };
        format!(
            "{events} events in {seconds:.2} s on {threads}: {speed:.2} million each second and \
             thread"
        )
    }
}

/// Runs a scenario, with a progress bar if standard error is a terminal. `record`: the folder for
/// traces.
pub fn run(
    scenario: &Scenario,
    threads: Option<u32>,
    record: Option<&Path>,
) -> Result<(Findings, Effort), Fail> {
    for warning in &scenario.warnings {
        errln!("tidegate: {}: {warning}", scenario.name);
    }
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let threads = threads.map_or(cores, |threads| threads as usize);
    let shows = std::io::stderr().is_terminal();
    let progress = |done: usize, of: usize| {
        if shows {
            const WIDTH: usize = 30;
            let bar = "#".repeat(done * WIDTH / of);
            let end = if done == of { "\r\x1b[K" } else { "" };
            err!(
                "\r{} [{bar:<WIDTH$}] {done} of {of} runs{end}",
                scenario.name
            );
            // A terminal that is gone sees no progress.
            let _ = std::io::stderr().flush();
        }
    };
    let sink = record
        .map(|folder| move |recorded: &Recorded<'_>| record::write(folder, scenario, recorded));
    let sink = sink.as_ref().map(|sink| sink as runner::Sink<'_>);
    let outcome = runner::run_recorded(scenario, threads, &progress, sink);
    let outcome = outcome.map_err(Fail::runtime)?;
    let effort = Effort {
        events: outcome.events,
        threads: threads.min(outcome.runs),
    };
    Ok((Findings::of(scenario, &outcome), effort))
}

/// Findings for other programs, and for `tidegate report --from`.
fn json_line(findings: &Findings) -> Result<String, Fail> {
    let text = serde_json::to_string(findings).map_err(Fail::runtime)?;
    Ok(format!("{text}\n"))
}
