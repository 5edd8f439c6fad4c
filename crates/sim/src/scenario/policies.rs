//! The policies of a scenario, by name or as tables with options.

use super::machine::tables;
use super::source::{ScenarioError, Source};
use tidegate_sched::{Options, Scheduler};

/// A policy of a scenario.
#[derive(Clone, Debug)]
pub struct Policy {
    /// What reports call it.
    pub label: String,
    /// The scheduler's options.
    pub options: Options,
}

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
        for name in names {
            let options = Options::for_policy(&name);
            policies.push(policy(source, "policies", name, options)?);
        }
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
    let mut options = Options::for_policy(&name);
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
    policy(source, place, label, options)
}

fn policy(
    source: &Source,
    place: &str,
    label: String,
    options: Options,
) -> Result<Policy, ScenarioError> {
    Scheduler::new(&options).map_err(|e| source.wrong(place, e.to_string()))?;
    Ok(Policy { label, options })
}
