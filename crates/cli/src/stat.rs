//! `tidegate stat`: shows what the forwarders do now.

mod alike;
mod applications;
pub mod health;

pub use applications::{COUNTS, name as name_applications};

use crate::dead_mount;
use crate::fail::Fail;
use crate::names;
use crate::out;
use crate::output;
use crate::plain;
use crate::processes::Process;
use crate::restarts::Restarts;
use crate::state::StateDir;
use crate::table;
use crate::target::Target;
use health::Wrong;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;
use tidegate_client::{Client, Errno, Options};

/// How long a forwarder may take to answer.
pub const ANSWER_MAX: Duration = Duration::from_secs(2);

/// How the words begin that stand for the state of a forwarder that says nothing.
const SILENT: &str = "no answer";

/// Forwarders that are asked at once.
const ASKED_MAX: usize = 256;

/// Show what each forwarder does now, and what each application did since the forwarders started.
#[derive(clap::Args)]
pub struct Stat {
    #[command(flatten)]
    target: Target,
    /// Print the forwarders' whole state as JSON, one line each time
    #[arg(long)]
    json: bool,
    /// Print again every second, until interrupted
    #[arg(long, conflicts_with = "check")]
    watch: bool,
    /// Say what is wrong, and end with 1 unless every forwarder serves its seat without trouble
    #[arg(long)]
    check: bool,
}

impl Stat {
    /// Prints once, or again and again.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let (found, client) = self.target.connect(Some(ANSWER_MAX))?;
        // Of a local set; others have many mounts, on other nodes.
        let mount = found.mount.filter(|point| dead_mount::is_dead(point));
        let dead = mount.map(|point| Wrong::of_all("mount", dead_mount::advice(&point)));
        let state_dir = self.target.set();
        let restarts = || state_dir.as_ref().map(Restarts::read).unwrap_or_default();
        let alone = || state_dir.as_ref().and_then(supervisor_gone);
        if self.check {
            let of_set = state_dir.as_ref().map(of_set).unwrap_or_default();
            let others = dead.into_iter().chain(of_set).collect();
            return Ok(self.check(&states(&client, &found.forwarders), others));
        }
        loop {
            let restarts = restarts();
            let mut states = states(&client, &found.forwarders);
            if let Some(file) = self.target.names_file() {
                applications::name(&mut states, &names::read(&file));
            }
            let text = match self.json {
                true => {
                    note(&mut states, &restarts);
                    format!("{}\n", Value::Array(states))
                }
                false => {
                    let told = restarts.lines().into_iter().map(|line| line + "\n");
                    let told: String = told.collect();
                    let alone = alone();
                    let wrong: Vec<&Wrong> = dead.iter().chain(&alone).collect();
                    page_of(&states, &wrong, &told)
                }
            };
            out!("{text}");
            if !output::flush() || !self.watch {
                return Ok(ExitCode::SUCCESS);
            }
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    fn check(&self, states: &[Value], others: Vec<Wrong>) -> ExitCode {
        let wrong = wrong(states, others);
        let healthy = wrong.is_empty();
        let list: Vec<Value> = wrong.iter().map(health::Wrong::json).collect();
        let report = json!({"healthy": healthy, "forwarders": states.len(), "wrong": list});
        let mut text = lines(&wrong);
        if self.json {
            text = format!("{report}\n");
        } else if healthy {
            text = match states.len() {
                1 => "1 forwarder, which serves its own seat\n".to_string(),
                count => format!("{count} forwarders, each serves its own seat\n"),
            };
        }
        out!("{text}");
        match healthy {
            true => ExitCode::SUCCESS,
            false => ExitCode::from(1),
        }
    }
}

/// What is wrong with these states, and what else is known to be.
pub fn wrong(states: &[Value], others: Vec<Wrong>) -> Vec<Wrong> {
    let mut wrong = health::of_forwarders(states);
    wrong.extend(others);
    wrong.extend(health::of_seats(states));
    wrong.extend(health::of_number(states));
    wrong.extend(alike::differences(states));
    wrong
}

/// A line for each thing that is wrong.
pub fn lines<'w>(wrong: impl IntoIterator<Item = &'w Wrong>) -> String {
    let line = |one: &Wrong| plain::line(&one.text) + "\n";
    wrong.into_iter().map(line).collect()
}

/// What is wrong with a local set beside its forwarders' states.
pub fn of_set(state: &StateDir) -> Vec<Wrong> {
    let restarts = Restarts::read(state);
    let gone = restarts.gone().map(|line| Wrong::of_all("given-up", line));
    supervisor_gone(state).into_iter().chain(gone).collect()
}

/// A finding if nobody would start a forwarder of this local set again.
fn supervisor_gone(state: &StateDir) -> Option<Wrong> {
    if Process::find(&state.inside(&state.file("up.pid"))).is_some() {
        return None;
    }
    let dir = state.path().display();
    Some(Wrong::of_all(
        "unattended",
        format!(
            "`tidegate up` of {dir} is gone: forwarders and mount go on, and are not started again \
             if they die; `tidegate down --state-dir {dir}` and `tidegate up` begin anew"
        ),
    ))
}

fn page_of(states: &[Value], wrong: &[&Wrong], told: &str) -> String {
    lay_out(states, wrong) + told + &applications::lay_out(states)
}

/// What people are shown of these states.
pub fn page(states: &[Value]) -> String {
    plain::page(&page_of(states, &[], ""))
}

/// What people are told that is wrong with these states.
pub fn complaints(states: &[Value]) -> String {
    lines(&wrong(states, Vec::new()))
}

/// The state that a forwarder has told: an object, and if what it told is none, one that says so.
pub fn state(told: &str) -> Value {
    match serde_json::from_str(told) {
        Ok(state @ Value::Object(_)) => state,
        Ok(_) => json!({ "error": "status: not an object" }),
        Err(error) => json!({ "error": format!("status: {error}") }),
    }
}

/// Adds to each state how often the forwarder was started again.
fn note(states: &mut [Value], restarts: &Restarts) {
    for one in &restarts.forwarder {
        let fields = states.get_mut(one.index).and_then(Value::as_object_mut);
        if let Some(fields) = fields {
            fields.insert("restarts".to_string(), one.count.into());
            if one.waits || one.given_up {
                fields.insert("died".to_string(), one.how.as_str().into());
            }
        }
    }
}

/// The state of each forwarder; of one that does not answer, why. The session of who asks is left
/// out.
pub fn states(client: &Client, addresses: &[String]) -> Vec<Value> {
    let own = Options::default().name;
    let one = |index: usize| {
        let mut state = match client.status(index) {
            Ok(text) => self::state(&text),
            Err(errno) => json!({ "error": why(errno) }),
        };
        if let Some(fields) = state.as_object_mut() {
            fields.insert("forwarder".to_string(), index.into());
            fields.insert("address".to_string(), addresses[index].clone().into());
            if let Some(sessions) = fields.get_mut("sessions").and_then(Value::as_array_mut) {
                sessions.retain(|session| session["name"] != own);
            }
        }
        state
    };
    ask_all(addresses.len(), one)
}

/// Asks `count` forwarders in parallel, so that one which does not answer delays no other.
pub fn ask_all<T: Send>(count: usize, ask: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let ask = &ask;
    let mut answers = Vec::new();
    for first in (0..count).step_by(ASKED_MAX) {
        std::thread::scope(|scope| {
            let some = first..count.min(first + ASKED_MAX);
            let threads: Vec<_> = some.map(|index| scope.spawn(move || ask(index))).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            answers.extend(joined.map(|answer| answer.expect("asking does not panic")));
        });
    }
    answers
}

/// Why a forwarder did not answer, in words.
pub fn why(errno: Errno) -> String {
    let seconds = ANSWER_MAX.as_secs();
    match errno {
        Errno::TIMEDOUT => format!("{SILENT} within {seconds} s; it may be stopped, hung or gone"),
        errno => errno.to_string(),
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// How many requests the forwarder has recorded (including those that are not in the file yet), and
/// how many it has dropped.
fn recorded(state: &Value) -> [String; 2] {
    let trace = &state["trace"];
    let recorded = number(&trace["recorded"]).saturating_add(number(&trace["buffered"]));
    [recorded, number(&trace["dropped"])].map(|count| count.to_string())
}

fn lay_out(states: &[Value], wrong: &[&Wrong]) -> String {
    let mut heading = vec![
        "forwarder",
        "policy",
        "seats",
        "sessions",
        "queued",
        "running",
        "requests",
        "batches",
        "read",
        "written",
        "errors",
    ];
    let recording = states.iter().any(|state| state["trace"].is_object());
    if recording {
        heading.extend(["recorded", "dropped"]);
    }
    let leased = states.iter().any(|state| state["lease_ms"].is_u64());
    if leased {
        heading.push("lease");
    }
    let told = health::of_forwarders(states).into_iter();
    let told = told.chain(alike::differences(states));
    let told: Vec<Wrong> = told.collect();
    let failures = lines(told.iter().chain(wrong.iter().copied()));
    let rows = states.iter().map(|state| {
        let mut row = row(state);
        if state["error"].is_null() && recording {
            row.extend(recorded(state));
        }
        if state["error"].is_null() && leased {
            let left = state["lease_ms"].as_u64();
            row.push(left.map_or("-".to_string(), table::ms));
        }
        row
    });
    let rows: Vec<Vec<String>> = rows.collect();
    table::lay_out(&heading, &rows) + &alike::ownership(states) + &failures
}

/// The columns that a forwarder's line always has.
fn row(state: &Value) -> Vec<String> {
    let address = state["address"].as_str().unwrap_or("");
    let name = format!("{} {address}", state["forwarder"]);
    if let Some(error) = state["error"].as_str() {
        let silent = error.starts_with(SILENT);
        return vec![name, if silent { SILENT } else { "-" }.to_string()];
    }
    let list = |value: &Value, key: &str| -> Vec<Value> {
        let items = value.as_array().cloned().unwrap_or_default();
        items.iter().map(|item| item[key].clone()).collect()
    };
    let known = state["seats"].as_array().into_iter().flatten();
    let served = known.filter(|one| health::is_served(one));
    let seats: Vec<_> = served.map(|one| one["seat"].to_string()).collect();
    let connected = list(&state["sessions"], "connected");
    let connected = connected
        .iter()
        .filter(|one| **one == Value::Bool(true))
        .count();
    vec![
        name,
        state["policy"].as_str().unwrap_or("?").to_string(),
        match seats.is_empty() {
            true => "-".to_string(),
            false => seats.join(","),
        },
        connected.to_string(),
        number(&state["scheduler"]["queued"]).to_string(),
        number(&state["scheduler"]["running"]).to_string(),
        number(&state["requests"]["answered"]).to_string(),
        number(&state["batches"]).to_string(),
        table::bytes(number(&state["bytes"]["read"])),
        table::bytes(number(&state["bytes"]["write"])),
        number(&state["requests"]["errors"]).to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_column_of_seats_names_those_that_are_served() {
        let seats = ["taking", "serving", "lost", "grace"]
            .into_iter()
            .enumerate();
        let seats: Vec<Value> = seats
            .map(|(seat, state)| json!({"seat": seat, "state": state}))
            .collect();
        let shown = |seats: &[Value]| row(&json!({"forwarder": 0, "seats": seats})).swap_remove(2);
        assert_eq!(shown(&seats), "1,3");
        assert_eq!(shown(&seats[..1]), "-");
    }
}
