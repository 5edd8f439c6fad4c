//! `tidegate policy`: which scheduling policy the forwarders follow.

use crate::fail::Fail;
use crate::stat::states;
use crate::target::Target;
use serde_json::{Value, json};
use std::process::ExitCode;
use tidegate_server::config::scheduler_options;

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
    /// Show the policy of each forwarder (what is done when nothing is said)
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
        let (found, client) = self.target.connect()?;
        let policies: Vec<Value> = states(&client, &found.forwarders)
            .iter()
            .map(|state| {
                let error = state.get("error").cloned().unwrap_or_default();
                json!({
                    "forwarder": state["forwarder"], "policy": state["policy"], "error": error,
                })
            })
            .collect();
        if self.json {
            println!("{}", Value::Array(policies));
            return Ok(ExitCode::SUCCESS);
        }
        for one in policies {
            let policy = one["policy"]
                .as_str()
                .or(one["error"].as_str())
                .unwrap_or("unknown");
            println!("forwarder {}: {policy}", one["forwarder"]);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn set(&self, name: &str, options: &[String]) -> Result<ExitCode, Fail> {
        let text = table_of(name, options)?;
        // What is wrong is told here, in words; forwarders answer with an errno only.
        scheduler_options(&text, &tidegate_sched::Options::default())?;
        let (found, client) = self.target.connect()?;
        for (index, address) in found.forwarders.iter().enumerate() {
            client.set_policy(index, &text).map_err(|errno| {
                Fail::runtime(format!(
                    "forwarder {index} ({address}) keeps its policy: {errno}"
                ))
            })?;
        }
        self.get()
    }
}

/// The `[scheduler]` table of a policy and its options.
fn table_of(name: &str, options: &[String]) -> Result<String, Fail> {
    let mut table = toml::Table::new();
    table.insert("policy".to_string(), name.into());
    for option in options {
        let Some((key, value)) = option.split_once('=') else {
            return Err(Fail::usage(format!(
                "option \"{option}\" must be KEY=VALUE"
            )));
        };
        let value = match (value.parse::<i64>(), value.parse::<bool>()) {
            (Ok(number), _) => toml::Value::Integer(number),
            (_, Ok(flag)) => toml::Value::Boolean(flag),
            _ => toml::Value::String(value.to_string()),
        };
        table.insert(key.to_string(), value);
    }
    Ok(table.to_string())
}
