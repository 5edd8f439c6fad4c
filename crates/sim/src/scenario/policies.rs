//! The policies of a scenario, by name or as tables with options.

use super::source::{ScenarioError, Source, tables};
use std::sync::Arc;
use tidegate_sched::{OptionValue, Options, Prediction, Scheduler};

/// A policy of a scenario.
#[derive(Clone, Debug)]
pub struct Policy {
    /// What reports call it.
    pub label: String,
    /// The scheduler's options.
    pub options: Options,
    /// How many calls a forwarder has running at once under this policy; None: as the device says.
    pub depth: Option<u32>,
    /// What the policy learns before it is measured.
    pub training: Training,
    /// The label of the policy that takes its place to see whether a claim is of it; None: the
    /// first policy.
    pub baseline: Option<String>,
    /// There are no forwarders: clients reach the servers by themselves.
    pub direct: bool,
}

/// What a policy learns of the load before it is measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Training {
    /// Number of runs whose requests are recorded for the prediction, with other seeds and without
    /// prediction; 0: the policy gets no prediction.
    pub traces: u32,
    /// The series whose load they run; None: the same.
    pub traces_of: Option<String>,
    /// How many times the load runs before, in the same run.
    pub rehearsals: u32,
}

/// Default number of traces: the paper of AGIOS averages this number.
const TRACES: u32 = 6;

/// Most runs and repetitions of a training.
const TRAINING_MAX: u32 = 64;

/// Most calls at once: as many as a device takes.
const DEPTH_MAX: u32 = 4096;

/// The keys of a policy's training.
const TRAINING: [&str; 3] = ["traces", "traces_of", "rehearsals"];

/// The policies: names in `policies`, or tables `[[policy]]` with options and a label.
pub(super) fn policies(
    source: &Source,
    table: &mut toml::Table,
) -> Result<Vec<Policy>, ScenarioError> {
    let mut policies = Vec::new();
    if let Some(names) = table.remove("policies") {
        let names: Vec<String> = names
            .try_into()
            .map_err(|e: toml::de::Error| source.wrong("policies", e.message()))?;
        policies.extend(named(source, &names)?);
    }
    for (number, entry) in tables(source, table, "policy")?.into_iter().enumerate() {
        let place = format!("policy[{number}]");
        policies.push(read_policy(source, &place, entry)?);
    }
    if policies.is_empty() {
        return Err(source.wrong("", "no policies: write policies = [\"fifo\", \"window\"]"));
    }
    Ok(policies)
}

/// The policies of these names, with their defaults.
pub(super) fn named(source: &Source, names: &[String]) -> Result<Vec<Policy>, ScenarioError> {
    let of = |name: &String| {
        policy(
            source,
            "policies",
            name.clone(),
            Options::for_policy(name),
            &[],
        )
    };
    names.iter().map(of).collect()
}

fn read_policy(
    source: &Source,
    place: &str,
    mut entry: toml::Table,
) -> Result<Policy, ScenarioError> {
    let text = |entry: &mut toml::Table, key: &str| match entry.remove(key) {
        None => Ok(None),
        Some(toml::Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(source.wrong(&format!("{place}.{key}"), "takes text")),
    };
    let Some(name) = text(&mut entry, "policy")? else {
        return Err(source.wrong(place, "its policy is missing"));
    };
    let label = text(&mut entry, "label")?.unwrap_or_else(|| name.clone());
    let baseline = text(&mut entry, "baseline")?;
    if let Some(direct) = entry.remove("direct") {
        let key = format!("{place}.direct");
        return direct_policy(source, &key, direct, (name, label, baseline), &entry);
    }
    let depth = read_depth(source, place, &mut entry)?;
    let mut options = Options::for_policy(&name);
    let mut training = Vec::new();
    for key in TRAINING {
        training.extend(entry.remove(key).map(|value| (key, value)));
    }
    for (key, value) in entry {
        let wrong = |reason: &str| source.wrong(&format!("{place}.{key}"), reason);
        let number = value
            .as_integer()
            .and_then(|value| u64::try_from(value).ok());
        match (key.as_str(), &value, number) {
            ("merge", toml::Value::Boolean(merge), _) => options.merge = Some(*merge),
            ("batch_bytes_max", _, Some(bytes)) => options.batch_bytes_max = bytes,
            ("batch_requests_max", _, Some(count)) => {
                options.batch_requests_max =
                    u32::try_from(count).map_err(|_| wrong("is too large"))?;
            }
            ("queued_max", _, Some(count)) => {
                options.queued_max = u32::try_from(count).map_err(|_| wrong("is too large"))?;
            }
            ("merge" | "batch_bytes_max" | "batch_requests_max" | "queued_max", ..) => {
                return Err(wrong("has a value of the wrong type"));
            }
            (_, _, Some(number)) => options.table.set(&key, number),
            (_, toml::Value::Boolean(value), _) => options.table.set(&key, *value),
            (_, toml::Value::String(word), _) => options.table.set(&key, word.as_str()),
            _ => return Err(wrong("takes a whole number, true or false, or a word")),
        }
    }
    Ok(Policy {
        baseline,
        depth,
        ..policy(source, place, label, options, &training)?
    })
}

/// The depth of a policy, if it has one of its own.
fn read_depth(
    source: &Source,
    place: &str,
    entry: &mut toml::Table,
) -> Result<Option<u32>, ScenarioError> {
    let Some(value) = entry.remove("depth") else {
        return Ok(None);
    };
    let depth = value.as_integer().and_then(|it| u32::try_from(it).ok());
    match depth {
        Some(1..=DEPTH_MAX) => Ok(depth),
        _ => Err(source.wrong(&format!("{place}.depth"), format!("takes 1 to {DEPTH_MAX}"))),
    }
}

/// Access without forwarders, where nothing is scheduled.
fn direct_policy(
    source: &Source,
    key: &str,
    direct: toml::Value,
    (name, label, baseline): (String, String, Option<String>),
    options: &toml::Table,
) -> Result<Policy, ScenarioError> {
    if direct != toml::Value::Boolean(true) {
        return Err(source.wrong(key, "takes true, or is left out"));
    }
    if name != "fifo" || !options.is_empty() {
        let reason = "nothing is scheduled without forwarders: policy = \"fifo\" without options";
        return Err(source.wrong(key, reason));
    }
    Ok(Policy {
        label,
        options: Options::for_policy(&name),
        training: Training::default(),
        depth: None,
        baseline,
        direct: true,
    })
}

fn policy(
    source: &Source,
    place: &str,
    label: String,
    mut options: Options,
    training: &[(&str, toml::Value)],
) -> Result<Policy, ScenarioError> {
    let records = is_recorded(&options);
    if records {
        options.prediction = Some(Arc::new(Prediction::new(&[], &options.cost)));
    }
    let training = read_training(training, records)
        .map_err(|(key, reason)| source.wrong(&format!("{place}.{key}"), reason))?;
    Scheduler::new(&options).map_err(|e| source.wrong(place, e.to_string()))?;
    Ok(Policy {
        label,
        options,
        training,
        depth: None,
        baseline: None,
        direct: false,
    })
}

/// Whether the policy predicts from traces.
fn is_recorded(options: &Options) -> bool {
    let mut table = options.table.iter();
    table.any(|(key, value)| {
        key == "prediction" && matches!(value, OptionValue::Text(word) if word == "recorded")
    })
}

/// The training of a policy, or the key that is wrong and why.
fn read_training<'a>(
    entries: &[(&'a str, toml::Value)],
    records: bool,
) -> Result<Training, (&'a str, String)> {
    let mut training = Training {
        traces: if records { TRACES } else { 0 },
        ..Training::default()
    };
    for (key, value) in entries {
        if !records && *key != "rehearsals" {
            let reason = "is for prediction = \"recorded\"".to_string();
            return Err((key, reason));
        }
        let count = value.as_integer().and_then(|it| u32::try_from(it).ok());
        match (*key, count, value) {
            ("traces_of", _, toml::Value::String(name)) => training.traces_of = Some(name.clone()),
            ("traces_of", ..) => return Err((key, "takes the name of a series".to_string())),
            ("traces", Some(count @ 1..=TRAINING_MAX), _) => training.traces = count,
            ("rehearsals", Some(count @ 0..=TRAINING_MAX), _) => training.rehearsals = count,
            ("traces", ..) => return Err((key, format!("takes 1 to {TRAINING_MAX}"))),
            _ => return Err((key, format!("takes 0 to {TRAINING_MAX}"))),
        }
    }
    Ok(training)
}
