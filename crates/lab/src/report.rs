//! `tidegate report`: writes a page of figures and tables of scenarios and traces.

mod output;

use crate::findings::{Findings, counts, markdown};
use crate::page::{Page, Section};
use crate::sim;
use output::Output;
use serde_json::json;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidegate_cli::fail::Fail;
use tidegate_cli::outln;
use tidegate_cli::trace::summarise;
use tidegate_sim::library;
use tidegate_sim::scenario::{REPETITIONS_MAX, SEED_MAX};

const EXAMPLES: &str = "\
Examples:
  tidegate report song-2011-fig5                       runs the scenario, writes report.html
  tidegate report my-site.toml --output my-site.html --svg figures/
  tidegate report --all --markdown docs/figures.md
  tidegate sim my-site.toml --json > my-site.json && tidegate report --from my-site.json
  tidegate report traces/*.trace --output traces.html";

/// The file that is written if none is named.
const DEFAULT: &str = "report.html";

/// Write a page of figures and tables: scenarios beside their papers, or what traces hold.
///
/// The page is one HTML file that needs nothing else. A file that is there is replaced only if it
/// is a report.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Report {
    /// Scenarios (names, or files ending in .toml), and traces (files ending in .trace, or folders
    /// of them)
    #[arg(value_name = "SCENARIO", required_unless_present_any = ["all", "from"])]
    subjects: Vec<String>,
    /// All scenarios that come with tidegate
    #[arg(long)]
    all: bool,
    /// Results to show without running anything, as `tidegate sim --json` printed them
    #[arg(long, value_name = "FILE")]
    from: Vec<PathBuf>,
    /// The HTML page to write; report.html if nothing else is to be written either
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write a Markdown document, without figures
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write each figure as SVG into this folder
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Replace files even if they are no reports
    #[arg(long)]
    force: bool,
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
    /// Exit with 1 if a claim does not hold, or holds as well when the policy that it tests is
    /// replaced by its baseline
    #[arg(long)]
    check: bool,
    /// Print what was written as JSON
    #[arg(long)]
    json: bool,
}

/// What a report is about.
enum Subject {
    Findings(Box<Findings>),
    Traces(Section),
}

/// The findings among the subjects.
fn findings(subjects: &[Subject]) -> impl Iterator<Item = &Findings> + Clone {
    subjects.iter().filter_map(|subject| match subject {
        Subject::Findings(findings) => Some(findings.as_ref()),
        Subject::Traces(_) => None,
    })
}

impl Report {
    /// Runs and writes.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let outputs = self.outputs();
        // Before anything runs for minutes.
        for output in &outputs {
            output.check(self.force)?;
        }
        let subjects = self.subjects()?;
        let mut written = Vec::new();
        for output in &outputs {
            for (path, text) in self.texts(output, &subjects) {
                output::write(&path, &text, self.force)?;
                written.push(path.display().to_string());
            }
        }
        let mut claims = findings(&subjects).map(|findings| findings.holds);
        let holds = claims.all(|holds| holds);
        match self.json {
            true => outln!("{}", json!({ "written": written, "holds": holds })),
            false => {
                outln!("wrote {}", written.join(", "));
                counts(findings(&subjects))
                    .iter()
                    .for_each(|line| outln!("{line}"));
            }
        }
        Ok(match self.check && !holds {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        })
    }

    fn outputs(&self) -> Vec<Output> {
        let mut outputs = Vec::new();
        outputs.extend(self.output.clone().map(Output::Html));
        outputs.extend(self.markdown.clone().map(Output::Markdown));
        outputs.extend(self.svg.clone().map(Output::Svg));
        if outputs.is_empty() {
            outputs.push(Output::Html(DEFAULT.into()));
        }
        outputs
    }

    fn subjects(&self) -> Result<Vec<Subject>, Fail> {
        let (traces, named): (Vec<_>, Vec<_>) = self
            .subjects
            .iter()
            .partition(|name| name.ends_with(".trace") || Path::new(name).is_dir());
        let builtin = library::SCENARIOS.iter().filter(|_| self.all);
        let builtin = builtin.map(|(name, _)| *name);
        let named = named.into_iter().map(String::as_str);
        let scenarios = builtin.chain(named).map(sim::find);
        // All are looked at before the first one runs.
        let scenarios = scenarios.collect::<Result<Vec<_>, Fail>>()?;
        let mut subjects = Vec::new();
        for file in &self.from {
            let read = read(file)?.into_iter().map(Box::new);
            subjects.extend(read.map(Subject::Findings));
        }
        if !traces.is_empty() {
            let named = traces
                .into_iter()
                .map(|name| tidegate_cli::trace::files(Path::new(name)));
            let files = named.collect::<Result<Vec<_>, Fail>>()?.concat();
            subjects.push(Subject::Traces(of_traces(&files)?));
        }
        for mut scenario in scenarios {
            scenario.repetitions = self.repetitions.unwrap_or(scenario.repetitions);
            scenario.seed = self.seed.unwrap_or(scenario.seed);
            let (findings, _) = sim::run(&scenario, self.threads, None)?;
            subjects.push(Subject::Findings(Box::new(findings)));
        }
        Ok(subjects)
    }

    /// What to write where.
    fn texts(&self, output: &Output, subjects: &[Subject]) -> Vec<(PathBuf, String)> {
        match output {
            Output::Html(path) => vec![(path.clone(), self.html(subjects))],
            Output::Markdown(path) => vec![(path.clone(), self.markdown(subjects))],
            Output::Svg(folder) => subjects
                .iter()
                .flat_map(|subject| figures(folder, subject))
                .collect(),
        }
    }

    fn html(&self, subjects: &[Subject]) -> String {
        let sections = subjects.iter().map(|subject| match subject {
            Subject::Findings(findings) => findings.section(),
            Subject::Traces(section) => section.clone(),
        });
        let page = Page {
            title: "Tidegate report".to_string(),
            intro: vec![format!("Made by: {}", self.command()), READING.to_string()],
            sections: sections.collect(),
        };
        page.html()
    }

    fn markdown(&self, subjects: &[Subject]) -> String {
        let (title, intro) = match self.all {
            true => ("Figures of the papers", INTRO),
            false => ("Report", MADE),
        };
        let mut text = format!(
            "{}\n\n# {title}\n\n{intro}\n\n```\n{}\n```\n\n",
            output::MARK,
            self.command()
        );
        markdown::list(&mut text, &counts(findings(subjects)));
        for subject in subjects {
            match subject {
                Subject::Findings(findings) => text += &findings.markdown(),
                Subject::Traces(section) => {
                    let _ = writeln!(
                        text,
                        "## {}\n\n{}\n",
                        section.heading,
                        section.text.join("\n\n")
                    );
                    let tables = section.tables.iter().map(markdown::table);
                    text.extend(tables);
                }
            }
        }
        format!("{}\n", text.trim_end())
    }

    /// The command that makes this again, with what decides the result.
    fn command(&self) -> String {
        let mut words = vec!["tidegate".to_string(), "report".to_string()];
        if self.all {
            words.push("--all".to_string());
        }
        words.extend(self.subjects.iter().map(|name| quoted(name)));
        let mut flag = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                words.extend([name.to_string(), quoted(&value)]);
            }
        };
        for file in &self.from {
            flag("--from", Some(file.display().to_string()));
        }
        flag(
            "--repetitions",
            self.repetitions.map(|number| number.to_string()),
        );
        flag("--seed", self.seed.map(|number| number.to_string()));
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        flag("--output", path(&self.output));
        flag("--markdown", path(&self.markdown));
        flag("--svg", path(&self.svg));
        words.join(" ")
    }
}

const READING: &str = "Hollow markers are numbers that a paper reports. Times are those of the \
    models; compare policies by their ratio.";

const INTRO: &str = "\
What the scenarios that come with Tidegate come to in virtual time, beside what the papers report.
[scenarios.md](scenarios.md) says what the metrics mean and how far the models can be trusted. The
same version gives the same text; it is made by this command, never by hand:";

const MADE: &str = "Made by:";

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain =
        |character: char| character.is_ascii_alphanumeric() || "-_./=,:".contains(character);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// Results that `tidegate sim --json` printed, one in a line.
fn read(file: &Path) -> Result<Vec<Findings>, Fail> {
    let place = file.display();
    let text = std::fs::read_to_string(file).map_err(|e| Fail::usage(format!("{place}: {e}")))?;
    let mut all = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let findings = serde_json::from_str(line).map_err(|error| {
            Fail::usage(format!(
                "{place}:{}: this is no result of `tidegate sim --json`: {error}",
                number + 1
            ))
        })?;
        all.push(findings);
    }
    match all.is_empty() {
        true => Err(Fail::usage(format!("{place}: there is no result in it"))),
        false => Ok(all),
    }
}

fn of_traces(files: &[PathBuf]) -> Result<Section, Fail> {
    let (summary, warnings) = summarise::read(files, &[])?;
    let names = files.iter().map(|file| file.display().to_string());
    let mut text = vec![
        names.collect::<Vec<_>>().join(", "),
        format!("{}.", summarise::headline(&summary, files.len())),
    ];
    text.extend(warnings);
    Ok(Section {
        heading: "Traces".to_string(),
        text,
        figures: Vec::new(),
        tables: summarise::tables(&summary),
    })
}

/// The figures of a scenario as files.
fn figures(folder: &Path, subject: &Subject) -> Vec<(PathBuf, String)> {
    let Subject::Findings(findings) = subject else {
        return Vec::new();
    };
    let all = findings.all_figures().into_iter().enumerate();
    // The name may come from a file of results: it must not lead out of the folder.
    let name = sim::record::safe(&findings.scenario);
    let file = |number: usize| format!("{name}-{}.svg", number + 1);
    all.map(|(number, figure)| (folder.join(file(number)), figure.svg()))
        .collect()
}
