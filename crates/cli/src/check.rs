//! `tidegate check`: whether a directory's file system can carry forwarders, on one node and on
//! several.

use crate::fail::Fail;
use crate::table;
use crate::{errln, out};
use serde_json::json;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_server::backend::check::{CheckError, Checked, Plan, check};
use tidegate_server::backend::property::Found;

const EXAMPLES: &str = "\
Examples:
  tidegate check /scratch                 # what one node can find out alone
  tidegate check /scratch --nodes 2       # on two nodes at once; they find each other there
docs/backends.md explains what is tried, and has the settings of known file systems.";

/// Beyond its time, a directory that does not answer gets so long.
const PATIENCE: Duration = Duration::from_secs(15);

/// Try whether a directory's file system can carry forwarders, on one node and on several.
///
/// Start it on each node, with the directory as forwarders would have it mounted (not a mount of
/// Tidegate). Makes a folder `.tidegate-check` there and removes it. Exit code 0 if it is fit for
/// several nodes (for one, if one took part), 1 if not or if all used one mount, 2 for wrong use.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Check {
    /// The directory, on the back end's own mount
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// How many nodes take part, this one too
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=16))]
    nodes: u16,
    /// Seconds that it may take, waiting for the others included
    #[arg(long, value_name = "S", default_value_t = 120,
          value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds_max: u64,
    /// This node will be killed at the end, when it says so: the others measure how long its locks
    /// live. Give it at one of them, and more seconds to all
    #[arg(long)]
    dead_node: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Check {
    /// Tries, prints, judges.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        if self.dead_node && self.nodes < 2 {
            return Err(Fail::usage(
                "--dead-node needs --nodes 2 or more: others measure",
            ));
        }
        let ends = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // The second one ends it at once.
            let now = signal_hook::flag::register_conditional_default(signal, ends.clone());
            let asked = signal_hook::flag::register(signal, ends.clone());
            now.and(asked).map_err(Fail::runtime)?;
        }
        self.watch(ends.clone());
        let plan = Plan {
            dir: self.dir.clone(),
            nodes: self.nodes,
            time: Duration::from_secs(self.seconds_max),
            dies: self.dead_node,
            ends,
        };
        let shows = std::io::stderr().is_terminal() || self.dead_node || self.nodes > 1;
        let tell = |line: &str| {
            if shows {
                errln!("tidegate check: {line}");
            }
        };
        let checked = check(&plan, &tell).map_err(|error| match error {
            CheckError::Directory(_) => Fail::usage(error),
            error => Fail::runtime(error),
        })?;
        let shown = match self.json {
            true => format!("{}\n", page_of_json(&checked)),
            false => page(&checked),
        };
        out!("{shown}");
        let fit = match self.nodes {
            1 => checked.fit_one(),
            _ => checked.fit_several() == Some(true),
        };
        Ok(ExitCode::from(u8::from(!fit)))
    }

    /// Ends the check when its time is over: in order, or by force where the back end does not
    /// answer.
    fn watch(&self, ends: Arc<AtomicBool>) {
        let time = Duration::from_secs(self.seconds_max);
        let dir = self.dir.display().to_string();
        std::thread::spawn(move || {
            std::thread::sleep(time + Duration::from_secs(2));
            ends.store(true, Ordering::Release);
            std::thread::sleep(PATIENCE);
            errln!("tidegate: {dir}: a call has not come back; the file system does not answer");
            std::process::exit(1);
        });
    }
}

fn found(found: Found) -> &'static str {
    match found {
        Found::Yes => "yes",
        Found::No => "no",
        Found::Unknown => "not tried",
    }
}

fn page(checked: &Checked) -> String {
    let reach = checked.backend.reach;
    let heading = ["property", "found", "one node", "several"];
    let rows: Vec<Vec<String>> = checked
        .findings
        .iter()
        .map(|one| {
            vec![
                one.property.name.to_owned(),
                found(one.found).to_owned(),
                one.property.need(false, reach).word().to_owned(),
                one.property.need(true, reach).word().to_owned(),
            ]
        })
        .collect();
    let table = table::lay_out(&heading, &rows);
    let seen = checked.findings.iter().map(|one| one.seen.as_str());
    let mut text = String::new();
    for (line, seen) in table.lines().zip(std::iter::once("seen").chain(seen)) {
        // Columns other than the first lie to the right; this one is text.
        let line = format!("{line}  {seen}");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.push('\n');
    let backend = &checked.backend;
    let kind = format!(
        "{} on {} ({})\n",
        backend.kind,
        backend.mount_point.display(),
        backend.source
    );
    text.push_str(&kind);
    text.push_str(&verdict(
        "one node",
        Some(checked.fit_one()),
        checked,
        false,
    ));
    text.push_str(&verdict(
        "several nodes",
        checked.fit_several(),
        checked,
        true,
    ));
    if checked.fit_with_etcd() {
        text.push_str(
            "several nodes: run with etcd: fit with keeper = \"etcd\" in [ownership], for only \
             locks are missing\n",
        );
    }
    if checked.same_mount && checked.fit_several().is_some() {
        text.push_str(
            "Some instances work on one mount of one node: what they see of each other says \
             nothing of several nodes.\n",
        );
    }
    let turns = checked.findings.of("writes by turns");
    if let Some(one) = turns.filter(|one| one.found == Found::No) {
        let advice = checked.backend.advice(one);
        text.push_str(&format!("several nodes: slow: {}; {advice}\n", one.seen));
    }
    text.push_str(&format!("settings: {}\n", backend.settings().line()));
    if let Some(line) = backend.settings().dead_node() {
        text.push_str(&format!("a dead node: {line}\n"));
    }
    text
}

fn verdict(name: &str, fit: Option<bool>, checked: &Checked, several: bool) -> String {
    let missing = checked.missing(several);
    match (fit, missing) {
        (Some(true), _) => format!("{name}: fit\n"),
        (None, _) if checked.one_mount => format!(
            "{name}: not tried: all instances used one mount of one node, and saw its memory of \
             files; start one on each node, on its own mount\n"
        ),
        (None, _) => format!("{name}: not tried; start it on them with --nodes\n"),
        (Some(false), Some(one)) => format!(
            "{name}: not fit, for {}: {}; {}\n",
            one.property.name,
            one.seen,
            checked.backend.advice(one)
        ),
        (Some(false), None) => format!("{name}: not fit; the instance that led says why\n"),
    }
}

fn page_of_json(checked: &Checked) -> serde_json::Value {
    let reach = checked.backend.reach;
    let rows = checked.findings.iter().map(|one| {
        json!({
            "property": one.property.name,
            "found": found(one.found),
            "one_node": one.property.need(false, reach).word(),
            "several_nodes": one.property.need(true, reach).word(),
            "seen": one.seen,
        })
    });
    let rows: Vec<_> = rows.collect();
    json!({
        "type": checked.backend.kind,
        "source": checked.backend.source,
        "mount_point": checked.backend.mount_point.display().to_string(),
        "nodes": checked.nodes,
        "same_mount": checked.same_mount,
        "one_mount": checked.one_mount,
        "led": checked.led,
        "fit_one_node": checked.fit_one(),
        "fit_several_nodes": checked.fit_several(),
        "fit_several_nodes_with_etcd":
            checked.fit_several() == Some(true) || checked.fit_with_etcd(),
        "settings": checked.backend.settings().line(),
        "dead_node": checked.backend.settings().dead_node(),
        "properties": rows,
    })
}
