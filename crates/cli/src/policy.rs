//! `tidegate policy`: which scheduling policy the forwarders follow.

use crate::fail::Fail;
use crate::stat::{ANSWER_MAX, ask_all, states, why};
use crate::target::Target;
use serde_json::json;
use std::process::ExitCode;
use tidegate_server::config::{Source, Value, check_scheduler};

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
}

#[derive(clap::Subcommand)]
enum Action {
    /// Show the policy of each forwarder and its options (what is done when nothing is said)
    Get,
    /// Change it at all forwarders; no request is lost
    Set {
        /// The policy's name
        #[arg(value_name = "NAME")]
        name: String,
        /// Its options, as in the configuration's [scheduler] section
        #[arg(value_name = "KEY=VALUE")]
        options: Vec<String>,
    },
    /// List the policies there are
    List,
}

impl Policy {
    /// Does it.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        match &self.action {
            None | Some(Action::Get) => self.get(),
            Some(Action::Set { name, options }) => self.set(name, options),
            Some(Action::List) => {
                match self.json {
                    true => println!("{}", json!(tidegate_sched::policy::NAMES)),
                    false => println!("{}", tidegate_sched::policy::NAMES.join("\n")),
                }
                Ok(ExitCode::SUCCESS)
            }
        }
    }

    fn get(&self) -> Result<ExitCode, Fail> {
        let (found, client) = self.target.connect(Some(ANSWER_MAX))?;
        let policies: Vec<serde_json::Value> = states(&client, &found.forwarders)
            .iter()
            .map(|state| {
                let error = state.get("error").cloned().unwrap_or_default();
                json!({
                    "forwarder": state["forwarder"], "policy": state["policy"],
                    "options": state["options"], "error": error,
                })
            })
            .collect();
        if self.json {
            println!("{}", serde_json::Value::Array(policies));
            return Ok(ExitCode::SUCCESS);
        }
        for one in policies {
            let policy = one["policy"]
                .as_str()
                .or(one["error"].as_str())
                .unwrap_or("unknown");
            let options = options(&one["options"]);
            println!("forwarder {}: {policy}{options}", one["forwarder"]);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn set(&self, name: &str, options: &[String]) -> Result<ExitCode, Fail> {
        let mut table = toml::Table::new();
        // What is wrong is told here, in words; forwarders answer with an errno only.
        let mut source = Source::empty("policy");
        let mut set = |key: &str, value: Value, place: &str, checks: bool| {
            table.insert(key.to_string(), plain(&value));
            if checks {
                source.set("scheduler", key, value, place);
            }
        };
        set("policy", Value::Text(name.to_string()), "policy set", true);
        let mut elsewhere = String::new();
        for option in options {
            let Some((key, value)) = option.split_once('=') else {
                return Err(Fail::usage(format!(
                    "option \"{option}\" must be KEY=VALUE"
                )));
            };
            let value = match (value.parse(), value.parse()) {
                (Ok(number), _) => Value::Integer(number),
                (_, Ok(flag)) => Value::Bool(flag),
                _ => Value::Text(value.to_string()),
            };
            match (key, value) {
                ("cost_file", Value::Text(path)) if path.is_empty() => {
                    return Err(Fail::usage("cost_file= needs the name of a file"));
                }
                ("cost_file", Value::Text(path)) => {
                    // Forwarders have another working directory, and perhaps another node's disk.
                    let path = std::path::absolute(&path).unwrap_or(path.into());
                    let value = Value::Text(path.display().to_string());
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
        let text = table.to_string();
        let (found, client) = self.target.connect(Some(ANSWER_MAX))?;
        let one = |index: usize| {
            let why = why(client.set_policy(index, &text).err()?);
            let address = &found.forwarders[index];
            Some(format!("forwarder {index} ({address}): {why}"))
        };
        let failed = ask_all(found.forwarders.len(), one);
        let failed: Vec<String> = failed.into_iter().flatten().collect();
        let shown = self.get()?;
        if failed.is_empty() {
            return Ok(shown);
        }
        let failed = failed.join("; ");
        Err(Fail::runtime(format!(
            "the policy may be the old one at {failed}; set it again{elsewhere}"
        )))
    }
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

fn plain(value: &Value) -> toml::Value {
    match value {
        Value::Integer(number) => toml::Value::Integer(*number),
        Value::Bool(flag) => toml::Value::Boolean(*flag),
        Value::Text(text) => toml::Value::String(text.clone()),
        Value::List(_) | Value::Other(_) => unreachable!("an argument is a number, flag or word"),
    }
}
