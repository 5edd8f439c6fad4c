//! `tidegate policy`: which scheduling policy the forwarders follow.

use crate::fail::Fail;
use crate::keys::key_value;
use crate::not_set;
use crate::out;
use crate::plain;
use crate::stat::{ANSWER_MAX, ask_all, states};
use crate::target::Target;
use crate::{errln, outln};
use serde_json::json;
use std::process::ExitCode;
use tidegate_client::Errno;
use tidegate_client::wire::Keep;
use tidegate_sched::OptionValue;
use tidegate_sched::policies::{NAMES, read_option};
use tidegate_server::config::{Source, Value, check_scheduler, keys, rules};

/// The section of the configuration in which a policy's options stand.
const SECTION: &str = "[scheduler]";

/// Show or change the forwarders' scheduling policy.
#[derive(clap::Args)]
pub struct Policy {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    target: Target,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    /// Change it in each forwarder until that ends, and keep nothing for the export
    #[arg(long, global = true)]
    temporary: bool,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Show the policy of each forwarder and its options (what is done when nothing is said)
    Get,
    /// Change it at all forwarders, and keep it for the export; no request is lost
    Set {
        /// The policy's name
        #[arg(value_name = "NAME")]
        name: String,
        /// Its options, as in the configuration's `[scheduler]` section
        #[arg(value_name = "KEY=VALUE")]
        options: Vec<String>,
    },
    /// Go back to the policy of the forwarders' configurations, and forget what was kept
    Reset,
    /// List the policies there are
    List,
}

impl Policy {
    /// Does it.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        match &self.action {
            None | Some(Action::Get) => self.get(),
            Some(Action::Set { name, options }) => self.set(name, options),
            Some(Action::Reset) => self.send("", Keep::Configured, "", ""),
            Some(Action::List) => {
                match self.json {
                    true => outln!("{}", json!(NAMES)),
                    false => outln!("{}", NAMES.join("\n")),
                }
                Ok(ExitCode::SUCCESS)
            }
        }
    }

    fn get(&self) -> Result<ExitCode, Fail> {
        let (found, client) = self.target.connect(Some(ANSWER_MAX))?;
        self.show(&states(&client, &found.forwarders))
    }

    fn show(&self, states: &[serde_json::Value]) -> Result<ExitCode, Fail> {
        let policies: Vec<serde_json::Value> = states
            .iter()
            .map(|state| {
                let error = state.get("error").cloned().unwrap_or_default();
                json!({
                    "forwarder": state["forwarder"], "policy": state["policy"],
                    "asked_policy": state["asked_policy"], "options": state["options"],
                    "error": error,
                })
            })
            .collect();
        if self.json {
            outln!("{}", serde_json::Value::Array(policies));
            return Ok(ExitCode::SUCCESS);
        }
        out!("{}", lines(&policies));
        Ok(ExitCode::SUCCESS)
    }

    fn set(&self, name: &str, options: &[String]) -> Result<ExitCode, Fail> {
        let (table, elsewhere) = checked(name, options)?;
        let keep = if self.temporary {
            Keep::Run
        } else {
            Keep::Saved
        };
        self.send(&table.to_string(), keep, name, &elsewhere)
    }

    /// Makes a policy effective at all forwarders: that of the text, named `name`, or those of the
    /// configurations. `elsewhere` is added to the message where a forwarder refuses it.
    fn send(&self, text: &str, keep: Keep, name: &str, elsewhere: &str) -> Result<ExitCode, Fail> {
        let (found, client) = self.target.connect(Some(ANSWER_MAX))?;
        let one = |index: usize| {
            let errno = client.set_policy(index, text, keep).err()?;
            Some((index, errno))
        };
        let failed = ask_all(found.forwarders.len(), one);
        let failed: Vec<(usize, Errno)> = failed.into_iter().flatten().collect();
        let states = states(&client, &found.forwarders);
        let shown = self.show(&states)?;
        for warning in beside_rules(name, &states) {
            errln!("tidegate: warning: {}", plain::line(&warning));
        }
        if failed.is_empty() {
            return Ok(shown);
        }
        let away = "one that was away takes those that are kept for the export when it is back, \
                    otherwise set them again";
        let line = not_set::line("policy and options", &failed, &found.forwarders, away);
        Err(Fail::runtime(line + elsewhere))
    }
}

/// The policy with its options as forwarders take it, after checks, and what to add to the message
/// where a forwarder refuses it.
fn checked(name: &str, options: &[String]) -> Result<(toml::Table, String), Fail> {
    let mut table = toml::Table::new();
    // What is wrong is told here, in words; forwarders answer with an errno only.
    let mut source = Source::empty("policy");
    let mut set = |key: &str, value: Value, place: &str, checks: bool| {
        table.insert(key.to_string(), value.clone());
        if checks {
            source.set(SECTION, key, value, place);
        }
    };
    set(
        "policy",
        Value::String(name.to_string()),
        "policy set",
        true,
    );
    let mut elsewhere = String::new();
    for option in options {
        let Some((key, value)) = option.split_once('=') else {
            return Err(Fail::usage(format!(
                "option \"{option}\" must be KEY=VALUE"
            )));
        };
        match (key, value_of(name, key, value)) {
            ("cost_file", Value::String(path)) if path.is_empty() => {
                return Err(Fail::usage("cost_file= needs the name of a file"));
            }
            ("cost_file", Value::String(path)) => {
                // Forwarders have another working directory, and perhaps another node's disk.
                let path = std::path::absolute(&path).unwrap_or(path.into());
                let value = Value::String(path.display().to_string());
                let exists = path.exists();
                set(key, value, option, exists);
                if !exists {
                    elsewhere = format!(
                        " (there is no {} on this node: is it on the forwarders'?)",
                        path.display()
                    );
                }
            }
            (key, value) => set(key, value, option, true),
        }
    }
    check_scheduler(source, 1)?;
    Ok((table, elsewhere))
}

/// The value that a text states for a key of `[scheduler]`, by the type of the key or of the
/// policy's option.
fn value_of(policy: &str, key: &str, text: &str) -> Value {
    let rows = keys().into_iter();
    let mut general = rows.filter(|row| row.section == SECTION && row.name == key);
    if let Some(row) = general.next() {
        return key_value(row.kind, text);
    }
    match read_option(policy, key, text) {
        OptionValue::Integer(number) => {
            let number = i64::try_from(number).map(Value::Integer);
            number.unwrap_or_else(|_| Value::String(text.to_string()))
        }
        OptionValue::Bool(value) => Value::Boolean(value),
        OptionValue::Text(text) => Value::String(text),
    }
}

/// A line for each forwarder's policy, of states or of their parts that say it.
pub fn lines(policies: &[serde_json::Value]) -> String {
    let line = |one: &serde_json::Value| {
        let policy = one["policy"].as_str().or(one["error"].as_str());
        let policy = policy.unwrap_or("unknown");
        let options = options(&one["options"]);
        let asked = one["asked_policy"].as_str();
        let instead = match asked.filter(|asked| *asked != policy) {
            Some(asked) if one["policy"].is_string() => {
                format!(" (in the place of {asked} while there are rules of shares)")
            }
            _ => String::new(),
        };
        let line = format!("forwarder {}: {policy}{options}{instead}", one["forwarder"]);
        plain::line(&line) + "\n"
    };
    policies.iter().map(line).collect()
}

/// What a policy that was just set does not do because there are rules of shares, or what the rules
/// do not do because of the policy.
fn beside_rules(name: &str, states: &[serde_json::Value]) -> Vec<String> {
    let mut warnings = Vec::new();
    let other = states.iter().find(|state| {
        let (policy, asked) = (state["policy"].as_str(), state["asked_policy"].as_str());
        asked == Some(name) && policy.is_some() && policy != asked
    });
    if let Some(policy) = other.and_then(|state| state["policy"].as_str()) {
        warnings.push(format!(
            "{name} keeps no shares, so {policy} stays effective while there are rules of shares; \
             {name} begins when the last one is removed (`tidegate share` shows them)"
        ));
    }
    let texts = states.iter().filter_map(|state| state["shares"].as_str());
    let keeps_more = |text: &str| {
        let found = rules(text, "the forwarder's rules").unwrap_or_default();
        let groups = found.groups.iter().map(|group| group.share);
        let mut shares = groups.chain(found.apps.iter().map(|app| app.share));
        shares.any(|share| share.weight != 1 || share.min.is_some() || share.max.is_some())
    };
    if name == "edf" && texts.into_iter().any(keeps_more) {
        warnings.push(
            "edf keeps latencies only: weights, reservations and limits of the rules do nothing \
             under it; two-level keeps both"
                .to_string(),
        );
    }
    warnings
}

/// Options as `policy set` takes them, each after a space.
fn options(table: &serde_json::Value) -> String {
    let table = table.as_object().into_iter().flatten();
    let word = |value: &serde_json::Value| match value.as_str() {
        Some(text) => text.to_string(),
        None => value.to_string(),
    };
    table
        .map(|(key, value)| format!(" {key}={}", word(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_by_their_types() {
        let given = |name: &str, option: &str| match checked(name, &[option.to_string()]) {
            Ok((table, _)) => table.to_string(),
            Err(fail) => fail.message,
        };
        for (name, option, expected) in [
            ("window", "window_ms=250", "window_ms = 250"),
            ("window", "merge=true", "merge = true"),
            ("wfq", "weights=7=3", "weights = \"7=3\""),
            (
                "aioli",
                "quantum_bytes=64 KiB",
                "quantum_bytes = \"64 KiB\"",
            ),
            (
                "wfq",
                "weights=5",
                "weights: \"5\" is not of the form APPLICATION=WEIGHT",
            ),
            (
                "window",
                "order=1",
                "order cannot be \"1\"; known: rotated, id",
            ),
            (
                "window",
                "window_ms=soon",
                "window_ms must be a whole number, not \"soon\"",
            ),
            (
                "window",
                "window_ms=-1",
                "window_ms must be a whole number, not \"-1\"",
            ),
            ("hio", "spread=5", "known"),
            ("window", "depth=true", "depth = \"true\" must be a number"),
        ] {
            let given = given(name, option);
            assert!(given.contains(expected), "{name} {option}: {given}");
        }
    }

    #[test]
    fn what_rules_and_policy_take_from_each_other_is_told() {
        let state = |policy: &str, asked: &str, rule: &str| {
            let shares = format!("[[app]]\nname = \"a\"\n{rule}\n");
            json!({"policy": policy, "asked_policy": asked, "shares": shares})
        };
        let away = json!({"error": "no answer"});
        let told =
            |name: &str, state: serde_json::Value| beside_rules(name, &[away.clone(), state]);
        let window = told("window", state("two-level", "window", "weight = 3"));
        assert_eq!(window.len(), 1, "{window:?}");
        assert!(
            window[0].contains("two-level stays effective"),
            "{window:?}"
        );
        let edf = told("edf", state("edf", "edf", "weight = 3"));
        assert_eq!(edf.len(), 1, "{edf:?}");
        assert!(edf[0].contains("edf keeps latencies only"), "{edf:?}");
        let none: [&str; 0] = [];
        assert_eq!(told("edf", state("edf", "edf", "latency = \"9 ms\"")), none);
        assert_eq!(told("dsfq", state("dsfq", "dsfq", "weight = 3")), none);
    }
}
