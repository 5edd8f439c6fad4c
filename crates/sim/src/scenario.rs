//! Scenarios: TOML files that say what to simulate, what to measure, and what is claimed of it.
//!
//! A scenario is a machine and a load (`machine`), which `[[series]]` and `[[point]]` vary. The
//! simulator runs it under several policies with several seeds. Each `[[claim]]` compares the
//! result with what a paper says, and with a band of our own.

mod check;
mod keys;
mod load;
mod machine;
mod policies;
mod servers;
mod shares;
mod source;

pub use machine::Machine;
pub use policies::{Policy, Training};
pub use source::ScenarioError;

use crate::metrics::Metric;
use crate::units::Duration;
use keys::MACHINE as MACHINE_KEYS;
use machine::section;
use policies::policies;
use serde::{Deserialize, Serialize};
use source::{Source, tables};
use std::path::Path;

/// Most seeds of a point.
pub const REPETITIONS_MAX: u32 = 10_000;
/// The largest first seed: what a whole number of TOML can be.
pub const SEED_MAX: u64 = i64::MAX as u64;

/// A scenario, checked.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The file's name without its end.
    pub name: String,
    /// One line.
    pub title: String,
    /// The source of the numbers, if there is one.
    pub paper: Option<String>,
    /// How the load is offered: one-shot, closed loop, think time.
    pub protocol: String,
    /// Seeds of each point; results are means over them.
    pub repetitions: u32,
    /// The first seed.
    pub seed: u64,
    /// What reports measure.
    pub figure: FigureOptions,
    /// By series, then by point.
    pub series: Vec<Series>,
    /// The policies.
    pub policies: Vec<Policy>,
    /// What must hold.
    pub claims: Vec<Claim>,
    /// What a reader should know of the result.
    pub notes: Option<String>,
    /// What is missing in the traces that are replayed.
    pub warnings: Vec<String>,
}

/// Points that are drawn as one line for each policy.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name; empty if there is only one.
    pub name: String,
    /// Its points.
    pub points: Vec<Point>,
}

/// A place on the x axis.
#[derive(Clone, Debug)]
pub struct Point {
    /// Where on the axis.
    pub x: f64,
    /// What is run there.
    pub machine: Machine,
}

/// `[figure]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FigureOptions {
    /// What is drawn.
    pub metric: Metric,
    /// Further metrics of the table.
    #[serde(default)]
    pub also: Vec<Metric>,
    /// What x means.
    #[serde(default)]
    pub x_label: String,
    /// The x axis doubles with each step.
    #[serde(default)]
    pub log_x: bool,
    /// What counts as an operation.
    #[serde(default)]
    pub operations: Operations,
    /// Every application is run alone too, for stretch.
    #[serde(default)]
    pub alone: bool,
    /// Requests are measured too, for latency, wait and lag.
    #[serde(default)]
    pub requests: bool,
    /// Promises are followed: latency targets, shares, depths.
    #[serde(default)]
    pub promises: bool,
    /// What happened when is drawn too.
    #[serde(default)]
    pub timeline: Option<TimelineOptions>,
    /// The lower bound of the applications' mean completion is found, and each policy's distance.
    #[serde(default)]
    pub optimum: bool,
}

/// `timeline` of `[figure]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TimelineOptions {
    /// What is drawn.
    pub show: Vec<Shown>,
    /// Length of a slice of time.
    pub every: Duration,
}

/// What a timeline can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shown {
    /// Of each application, MB/s.
    Bandwidth,
    /// 95th percentile of each application's accesses, ms.
    CompletionP95,
    /// How many calls a forwarder lets run at once.
    Depth,
}

/// What counts as an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operations {
    /// Each process's call.
    #[default]
    Accesses,
    /// What all processes of an application do together, as the workload marks it.
    Marked,
    /// Each application as a whole.
    Applications,
}

/// `[[claim]]`: a value that the runs must have.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// What is measured.
    pub metric: Metric,
    /// Under which policy.
    pub policy: String,
    /// The policy that it is compared with: the change against it in percent.
    pub against: Option<String>,
    /// The series of the other value, point by point: the change against it in percent.
    pub against_series: Option<String>,
    /// Of these policies the best one at the same point: the change against it in percent. The best
    /// is the one that moves most, of those whose windows within their targets are as many as any
    /// of them has, to within a percentage point.
    #[serde(default)]
    pub against_best: Vec<String>,
    /// The policy that takes the place of `policy`, instead of that policy's own baseline.
    pub baseline: Option<String>,
    /// In which series; all.
    pub series: Option<String>,
    /// Of the values in these series, at `x` or at all x, their mean.
    #[serde(default)]
    pub over: Vec<String>,
    /// At which x; at all of them, each by itself.
    pub x: Option<f64>,
    /// Of the values at all x, how far the largest is above the smallest, in percent.
    #[serde(default)]
    pub spread: bool,
    /// With `spread` and `against`: the policy's growth from first to last x over the other's.
    /// Otherwise: of the values at all x, their mean.
    #[serde(default)]
    pub mean: bool,
    /// What the paper says.
    pub paper: Option<f64>,
    /// The band that is claimed.
    pub min: Option<f64>,
    /// The band that is claimed.
    pub max: Option<f64>,
    /// Why the paper's number is another one, if it is.
    pub why: Option<String>,
    /// Why the paper's number cannot be compared with ours, if it cannot.
    pub not_comparable: Option<String>,
    /// What the claim is of.
    #[serde(default)]
    pub tests: Tests,
}

/// What a claim is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tests {
    /// Of the policy: it must not hold when the policy is replaced by its baseline.
    #[default]
    Policy,
    /// Of the load, the machine or the baseline.
    Describes,
}

/// `[[series]]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SeriesEntry {
    name: String,
    #[serde(default)]
    set: toml::Table,
}

/// `[[point]]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PointEntry {
    x: f64,
    #[serde(default)]
    set: toml::Table,
}

/// `[vary]`: points that differ in one key.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Vary {
    key: String,
    values: Vec<i64>,
}

/// The keys at the top that are neither machine nor variation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    title: String,
    paper: Option<String>,
    protocol: String,
    #[serde(default = "repetitions")]
    repetitions: u32,
    #[serde(default = "seed")]
    seed: u64,
    notes: Option<String>,
}

fn repetitions() -> u32 {
    1
}
fn seed() -> u64 {
    1
}

impl Shown {
    /// For reports: words and unit.
    pub fn words(self) -> &'static str {
        match self {
            Shown::Bandwidth => "bandwidth, MB/s",
            Shown::CompletionP95 => "p95 completion, ms",
            Shown::Depth => "depth",
        }
    }
}

impl Scenario {
    /// Reads a scenario from a file.
    pub fn read(path: &Path) -> Result<Scenario, ScenarioError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| ScenarioError {
            place: file.clone(),
            reason: format!("cannot be read: {error}"),
        })?;
        let name = path
            .file_stem()
            .map_or("scenario".into(), |stem| stem.to_string_lossy());
        Scenario::parse(&text, &file, &name)
    }

    /// Reads a scenario from text; `file` stands in messages.
    pub fn parse(text: &str, file: &str, name: &str) -> Result<Scenario, ScenarioError> {
        let source = Source::parse(text, file)?;
        keys::check(&source)?;
        let mut table = source.table.clone();
        let policies = policies(&source, &mut table)?;
        check::labels(&source, &policies)?;
        check::baselines(&source, &policies)?;
        let claims = entries::<Claim>(&source, &mut table, "claim")?;
        let series = entries::<SeriesEntry>(&source, &mut table, "series")?;
        let mut points = entries::<PointEntry>(&source, &mut table, "point")?;
        if let Some(vary) = table.remove("vary") {
            if !points.is_empty() {
                return Err(source.wrong("vary", "there are [[point]]s too; one of both"));
            }
            points = varied(&source, vary)?;
        }
        check::places(&source, &series, &points)?;
        let variations = variations(&source, &table, &series, &points)?;
        check::training(&source, &policies, &variations)?;
        let figure = match table.contains_key("figure") {
            true => section(&source, &mut table, "figure")?,
            false => return Err(source.wrong("", check::NO_FIGURE)),
        };
        let warnings = warnings(&variations);
        // Once as it stands, to find out what is left.
        let mut first = table.clone();
        if let (None, None) = (series.first(), points.first()) {
            Machine::read(&source, &mut first)?;
        } else {
            for key in MACHINE_KEYS {
                first.remove(*key);
            }
        }
        let head: Head = source.shape("", first)?;
        if !(1..=REPETITIONS_MAX).contains(&head.repetitions) {
            let reason = format!("1 to {REPETITIONS_MAX} are possible");
            return Err(source.wrong("repetitions", reason));
        }
        let scenario = Scenario {
            name: name.to_string(),
            title: head.title,
            paper: head.paper,
            protocol: head.protocol,
            repetitions: head.repetitions,
            seed: head.seed,
            figure,
            series: variations,
            policies,
            claims,
            notes: head.notes,
            warnings,
        };
        check::figure(&source, &scenario.figure)?;
        check::servers(&source, &scenario)?;
        check::claims(&source, &scenario)?;
        Ok(scenario)
    }

    /// Takes these policies, with their defaults, instead of its own. The claims are about its own
    /// policies, so they go.
    pub fn compare(&mut self, policies: &[String]) -> Result<(), ScenarioError> {
        let source = Source::parse("", "--policies")?;
        self.policies = policies::named(&source, policies)?;
        self.claims.clear();
        check::labels(&source, &self.policies)
    }

    /// The number of the policy with this label.
    pub(crate) fn policy(&self, label: &str) -> Option<usize> {
        self.policies.iter().position(|it| it.label == label)
    }

    /// The number of the policy that takes the place of a claim's, to see whether the claim is of
    /// that one.
    pub(crate) fn baseline(&self, claim: &Claim) -> usize {
        let own = self.policy(&claim.policy).map(|it| &self.policies[it]);
        let own = own.and_then(|policy| policy.baseline.as_deref());
        let label = claim.baseline.as_deref().or(own);
        label.and_then(|label| self.policy(label)).unwrap_or(0)
    }
}

impl Claim {
    /// Whether the claim, as far as it holds, says that the paper's number is ours: its band has
    /// two sides, and that number is between them.
    pub(crate) fn reproduces(&self, paper: f64) -> bool {
        self.min.is_some() && self.max.is_some() && self.has(paper)
    }

    /// Whether a value lies in the band. What is not a number lies in none.
    pub(crate) fn has(&self, value: f64) -> bool {
        self.min.is_none_or(|min| value >= min)
            && self.max.is_none_or(|max| value <= max)
            && !value.is_nan()
    }
}

fn entries<T: for<'de> Deserialize<'de>>(
    source: &Source,
    table: &mut toml::Table,
    key: &str,
) -> Result<Vec<T>, ScenarioError> {
    let entries = tables(source, table, key)?.into_iter().enumerate();
    entries
        .map(|(number, entry)| source.shape(&format!("{key}[{number}]"), entry))
        .collect()
}

/// What is missing in the traces of any machine, each once.
fn warnings(series: &[Series]) -> Vec<String> {
    let mut warnings = Vec::new();
    for point in series.iter().flat_map(|series| &series.points) {
        for warning in point.machine.warnings() {
            if !warnings.contains(warning) {
                warnings.push(warning.clone());
            }
        }
    }
    warnings
}

fn varied(source: &Source, vary: toml::Value) -> Result<Vec<PointEntry>, ScenarioError> {
    let vary: Vary = source.shape("vary", vary)?;
    let point = |value: &i64| PointEntry {
        x: *value as f64,
        set: toml::Table::from_iter([(vary.key.clone(), toml::Value::Integer(*value))]),
    };
    if vary.values.is_empty() {
        return Err(source.wrong("vary.values", "there is no value: nothing would be run"));
    }
    Ok(vary.values.iter().map(point).collect())
}

/// The machines of all series and points.
fn variations(
    source: &Source,
    table: &toml::Table,
    series: &[SeriesEntry],
    points: &[PointEntry],
) -> Result<Vec<Series>, ScenarioError> {
    let (only_series, only_point) = ([SeriesEntry::default()], [PointEntry::default()]);
    let series = if series.is_empty() {
        &only_series[..]
    } else {
        series
    };
    let points = if points.is_empty() {
        &only_point[..]
    } else {
        points
    };
    let mut made = Vec::new();
    for (number, entry) in series.iter().enumerate() {
        let mut of_series = table.clone();
        let place = format!("series[{number}].set");
        apply(source, &mut of_series, &entry.set, &place)?;
        let mut machines = Vec::new();
        for (number, point) in points.iter().enumerate() {
            let mut of_point = of_series.clone();
            let place = format!("point[{number}].set");
            apply(source, &mut of_point, &point.set, &place)?;
            machines.push(Point {
                x: point.x,
                machine: Machine::read(source, &mut of_point)
                    .map_err(|error| varied_too(error, entry, point))?,
            });
        }
        made.push(Series {
            name: entry.name.clone(),
            points: machines,
        });
    }
    Ok(made)
}

/// Says at which series and point something is wrong, if they set a part of what is.
fn varied_too(error: ScenarioError, series: &SeriesEntry, point: &PointEntry) -> ScenarioError {
    let top = |text: &str| text.split(['.', '[', ':']).next().map(str::to_string);
    let wrong = top(&error.reason);
    let mut set = series.set.keys().chain(point.set.keys());
    if !set.any(|key| top(key) == wrong) {
        return error;
    }
    let series = match series.name.as_str() {
        "" => String::new(),
        name => format!("series {name:?}, "),
    };
    ScenarioError {
        reason: format!("{} ({series}x = {})", error.reason, point.x),
        ..error
    }
}

fn apply(
    source: &Source,
    table: &mut toml::Table,
    set: &toml::Table,
    place: &str,
) -> Result<(), ScenarioError> {
    for (key, value) in set {
        source::set(table, key, value)
            .map_err(|reason| source.wrong(&format!("{place}.{key}"), reason))?;
        let top = key.split(['.', '[']).next().unwrap_or_default();
        if !MACHINE_KEYS.contains(&top) {
            let reason = format!("only these can vary: {}", MACHINE_KEYS.join(", "));
            return Err(source.wrong(&format!("{place}.{key}"), reason));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
