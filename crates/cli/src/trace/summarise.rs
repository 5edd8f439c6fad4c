//! `tidegate trace summarise`: what each application did, and how long it waited.

use crate::fail::Fail;
use crate::table::{self, Table};
use crate::{errln, out};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use tidegate_trace::{AppId, Merged, Part, Spread, Summary, summarise};

const EXAMPLES: &str = "\
Examples:
  tidegate trace summarise traces/
  tidegate trace summarise --app climate --app render --json traces/forwarder.0.trace
Traces of forwarders hold the hashes of applications' names only: --app tells the names to look for,
as TIDEGATE_APP or the batch system made them (such as slurm-1234).";

/// Summarise traces: requests, sizes, patterns and times of each application
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Summarise {
    /// The traces, such as those of all forwarders, or folders of them; they are taken as one
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Name of an application that the traces may know by its number only; may be repeated
    #[arg(long, value_name = "NAME")]
    app: Vec<String>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

impl Summarise {
    /// Reads the traces and prints.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let mut files = Vec::new();
        for named in &self.files {
            files.extend(super::files(named)?);
        }
        let (summary, warnings) = read(&files, &self.app)?;
        let text = match self.json {
            true => format!("{}\n", as_json(&summary, files.len(), &warnings)),
            false => as_text(&summary, files.len()),
        };
        out!("{text}");
        for warning in warnings {
            errln!("tidegate: {warning}");
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Reads several traces as one; `names` are the names to look for where traces have numbers only.
/// Also returns warnings about the traces.
pub fn read(files: &[PathBuf], names: &[String]) -> Result<(Summary, Vec<String>), Fail> {
    let mut traces = Merged::open(files).map_err(Fail::usage)?;
    let mut summary = summarise(&mut traces).map_err(Fail::runtime)?;
    for name in names {
        for (app, part) in &mut summary.applications {
            let app = AppId(*app);
            if app == AppId::from_name(name) {
                part.name.get_or_insert_with(|| name.clone());
            } else if let Some(uid) = app.user_of(name) {
                part.name
                    .get_or_insert_with(|| format!("{name} of user {uid}"));
            }
        }
    }
    Ok((summary, traces.warnings()))
}

/// The parts of a summary with the names to show, the busiest first, and the total if there are
/// several.
fn parts(summary: &Summary) -> Vec<(String, &Part)> {
    let mut parts: Vec<_> = summary.applications.iter().collect();
    parts.sort_by_key(|(_, part)| u64::MAX - part.requests);
    let name = |app: &u64, part: &Part| part.name.clone().unwrap_or(format!("{app:016x}"));
    let mut parts: Vec<_> = parts
        .into_iter()
        .map(|(app, part)| (name(app, part), part))
        .collect();
    if parts.len() > 1 {
        parts.push(("all".to_string(), &summary.total));
    }
    parts
}

/// The cells of a part's row, but for its name.
type Cells = fn(&Part) -> Vec<String>;

fn as_text(summary: &Summary, files: usize) -> String {
    let mut text = format!("{}\n", headline(summary, files));
    for table in tables(summary) {
        text.push('\n');
        text.push_str(&table.text());
    }
    text
}

/// How much there is.
pub fn headline(summary: &Summary, files: usize) -> String {
    format!(
        "{} requests in {files} {}, {} of I/O, {} missing",
        summary.total.requests,
        if files == 1 { "trace" } else { "traces" },
        table::time(summary.total.span_ns()),
        summary.dropped
    )
}

/// What each application did, how, and how long it waited.
pub fn tables(summary: &Summary) -> Vec<Table> {
    let parts = parts(summary);
    let tables: [(_, Cells); 3] = [(DID, did), (HOW, how), (TIMES, times)];
    let table = |(columns, row): (&[&str], Cells)| {
        let whole = |(name, part): &(String, &Part)| [vec![name.clone()], row(part)].concat();
        Table {
            caption: String::new(),
            columns: columns.iter().map(|column| column.to_string()).collect(),
            rows: parts.iter().map(whole).collect(),
        }
    };
    tables.into_iter().map(table).collect()
}

const DID: &[&str] = &[
    "application",
    "requests",
    "operations",
    "errors",
    "read",
    "written",
    "from",
    "for",
    "files",
    "clients",
    "forwarders",
];

fn did(part: &Part) -> Vec<String> {
    vec![
        part.requests.to_string(),
        part.operations.to_string(),
        part.errors.to_string(),
        table::bytes(part.bytes[0]),
        table::bytes(part.bytes[1]),
        table::time(part.first_ns),
        table::time(part.span_ns()),
        part.files.len().to_string(),
        part.clients.len().to_string(),
        part.forwarders.len().to_string(),
    ]
}

const HOW: &[&str] = &[
    "application",
    "size p50",
    "p95",
    "max",
    "reads",
    "sequential",
];

fn how(part: &Part) -> Vec<String> {
    vec![
        table::bytes(part.size.percentile(50)),
        table::bytes(part.size.percentile(95)),
        table::bytes(part.size.max()),
        percent(part.by_direction[0], part.requests),
        percent(part.sequential, part.requests),
    ]
}

const TIMES: &[&str] = &[
    "application",
    "wait mean",
    "p95",
    "p99",
    "service mean",
    "p95",
    "p99",
    "both mean",
    "p95",
    "p99",
];

fn times(part: &Part) -> Vec<String> {
    let spreads = [&part.wait, &part.service, &part.latency];
    spreads.into_iter().flat_map(three).collect()
}

/// Mean, p95 and p99; dashes where the trace has no values.
fn three(spread: &Spread) -> [String; 3] {
    let values = [spread.mean(), spread.percentile(95), spread.percentile(99)];
    values.map(|ns| match spread.count() {
        0 => "-".to_string(),
        _ => table::time(ns),
    })
}

fn percent(part: u64, whole: u64) -> String {
    let share = part as f64 * 100.0 / whole.max(1) as f64;
    format!("{share:.0}%")
}

fn as_json(summary: &Summary, files: usize, warnings: &[String]) -> Value {
    let applications: Vec<_> = summary
        .applications
        .iter()
        .map(|(app, part)| {
            let mut value = part_json(part);
            value["app"] = format!("{app:016x}").into();
            value["name"] = part.name.clone().into();
            value
        })
        .collect();
    json!({
        "traces": files,
        "recordings": summary.recordings,
        "zero_wall_ns": summary.zero_wall_ns,
        "dropped": summary.dropped,
        "warnings": warnings,
        "total": part_json(&summary.total),
        "applications": applications,
    })
}

fn part_json(part: &Part) -> Value {
    let spread = |spread: &Spread| match spread.count() {
        0 => Value::Null,
        count => json!({
            "requests": count,
            "mean": spread.mean(),
            "p50": spread.percentile(50),
            "p95": spread.percentile(95),
            "p99": spread.percentile(99),
            "max": spread.max(),
        }),
    };
    json!({
        "requests": part.requests,
        "operations": part.operations,
        "errors": part.errors,
        "read_requests": part.by_direction[0],
        "read_bytes": part.bytes[0],
        "write_requests": part.by_direction[1],
        "write_bytes": part.bytes[1],
        "first_ns": part.first_ns,
        "last_ns": part.last_ns,
        "size": spread(&part.size),
        "sequential": part.sequential as f64 / part.requests.max(1) as f64,
        "wait_ns": spread(&part.wait),
        "service_ns": spread(&part.service),
        "latency_ns": spread(&part.latency),
        "files": part.files.len(),
        "clients": part.clients.len(),
        "forwarders": part.forwarders.len(),
    })
}
