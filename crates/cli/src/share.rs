//! `tidegate share`: who is promised what of the forwarders, read and changed at run time.

mod document;
mod feasible;
mod list;

pub use document::{Document, Key};

use crate::fail::Fail;
use crate::stat::{ANSWER_MAX, ask_all, states, why};
use crate::state::ClientFile;
use crate::target::Target;
use serde_json::Value;
use std::process::ExitCode;
use std::sync::Arc;
use tidegate_client::Client;
use tidegate_client::wire::Keep;
use tidegate_server::config::rule::Rules;
use tidegate_server::config::rules;

/// Show or change what applications and groups are promised.
#[derive(clap::Args)]
pub struct Share {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    target: Target,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    /// Keep what is changed over restarts of the forwarders
    #[arg(long, global = true)]
    save: bool,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Show all rules, and the applications they speak of (what is done when nothing is said)
    List,
    /// Promise something to applications of a name; no request is lost
    Set {
        /// The name, in which * stands for any characters and ? for one
        #[arg(value_name = "NAME")]
        name: String,
        /// Only applications of this user
        #[arg(long, value_name = "USER")]
        user: Option<String>,
        /// Only those of this job of the batch system
        #[arg(long, value_name = "JOB")]
        job: Option<String>,
        /// The group in which they count; none takes them out of it
        #[arg(long, value_name = "GROUP")]
        group: Option<String>,
        /// weight, min, max, latency and percentile, such as weight=3 min=25MB/s latency=100ms;
        /// none takes one away
        #[arg(value_name = "KEY=VALUE")]
        shares: Vec<String>,
    },
    /// Promise something to a group of applications together
    Group {
        /// Its name
        #[arg(value_name = "NAME")]
        name: String,
        /// Applications of this user belong to it
        #[arg(long, value_name = "USER")]
        user: Option<String>,
        /// Applications of projects of this name belong to it
        #[arg(long, value_name = "PROJECT")]
        project: Option<String>,
        /// As for `set`
        #[arg(value_name = "KEY=VALUE")]
        shares: Vec<String>,
    },
    /// Take a rule away
    Remove {
        /// The name as the list shows it
        #[arg(value_name = "NAME")]
        name: String,
        /// The rule of this user
        #[arg(long, value_name = "USER")]
        user: Option<String>,
        /// The rule of this job
        #[arg(long, value_name = "JOB")]
        job: Option<String>,
        /// The group of that name, and not a rule for applications
        #[arg(long)]
        group: bool,
    },
    /// Go back to the rules of the forwarders' configurations, and forget what was saved
    Reset,
}

impl Share {
    /// Does it.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let forwarders = Forwarders::find(&self.target)?;
        let text = |value: &Option<String>| value.clone();
        match &self.action {
            None | Some(Action::List) => {}
            Some(Action::Reset) => forwarders.send("", Keep::Configured)?,
            Some(Action::Set {
                name,
                user,
                job,
                group,
                shares,
            }) => {
                let key = Key::app(name, text(user), text(job));
                let mut document = forwarders.document()?;
                document.set(&key, &[("group", group.as_deref())], shares)?;
                forwarders.change(&document, self.save, &format!("share set {name}"))?;
            }
            Some(Action::Group {
                name,
                user,
                project,
                shares,
            }) => {
                let more = [("user", user.as_deref()), ("project", project.as_deref())];
                let mut document = forwarders.document()?;
                document.set(&Key::group(name), &more, shares)?;
                forwarders.change(&document, self.save, &format!("share group {name}"))?;
            }
            Some(Action::Remove {
                name,
                user,
                job,
                group,
            }) => {
                let key = match group {
                    true => Key::group(name),
                    false => Key::app(name, text(user), text(job)),
                };
                let mut document = forwarders.document()?;
                document.remove(&key)?;
                forwarders.change(&document, self.save, &format!("share remove {name}"))?;
            }
        }
        forwarders.show(self.json)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The forwarders whose rules are looked at.
pub struct Forwarders {
    /// Where they are.
    pub found: ClientFile,
    /// To ask them.
    pub client: Arc<Client>,
}

impl Forwarders {
    /// Those of the command line.
    pub fn find(target: &Target) -> Result<Forwarders, Fail> {
        let (found, client) = target.connect(Some(ANSWER_MAX))?;
        Ok(Forwarders { found, client })
    }

    fn states(&self) -> Vec<Value> {
        states(&self.client, &self.found.forwarders)
    }

    /// The rules that are in force.
    pub fn rules(&self) -> Result<Rules, Fail> {
        rules_of(&self.states())
    }

    /// The rules, to be changed.
    pub fn document(&self) -> Result<Document, Fail> {
        Ok(Document::of(&self.rules()?))
    }

    /// Puts the changed rules in force everywhere; `what` names the command in messages.
    pub fn change(&self, document: &Document, save: bool, what: &str) -> Result<(), Fail> {
        // What is wrong is told here, in words; forwarders answer with an errno only.
        let rules = document.check(what)?;
        let keep = if save { Keep::Saved } else { Keep::Run };
        self.send(&rules.to_string(), keep)
    }

    fn send(&self, text: &str, keep: Keep) -> Result<(), Fail> {
        let one = |index: usize| {
            let why = why(self.client.set_shares(index, text, keep).err()?);
            let address = &self.found.forwarders[index];
            Some(format!("forwarder {index} ({address}): {why}"))
        };
        let failed = ask_all(self.found.forwarders.len(), one);
        let failed: Vec<String> = failed.into_iter().flatten().collect();
        if failed.is_empty() {
            return Ok(());
        }
        let failed = failed.join("; ");
        Err(Fail::runtime(format!(
            "the shares may be the old ones at {failed}; its log says why; set them again"
        )))
    }

    /// Prints what is in force, and warns of what cannot be met.
    pub fn show(&self, json: bool) -> Result<(), Fail> {
        let states = self.states();
        let rules = rules_of(&states)?;
        let mut warnings = feasible::warnings(&rules, &states);
        let text = rules.to_string();
        let differs = |state: &&Value| state["shares"].as_str().is_some_and(|own| own != text);
        for state in states.iter().filter(differs) {
            let index = &state["forwarder"];
            warnings.push(format!(
                "forwarder {index} has other rules; set or reset them once more"
            ));
        }
        match json {
            true => println!("{}", list::json(&rules, &states, &warnings)),
            false => print!("{}", list::lay_out(&rules, &states)),
        }
        for warning in &warnings {
            eprintln!("tidegate: warning: {warning}");
        }
        Ok(())
    }
}

/// The rules that were set last: a forwarder that was away or has started again has older ones, and
/// a change must not make the others forget theirs.
fn rules_of(states: &[Value]) -> Result<Rules, Fail> {
    let tells = states.iter().filter(|state| state["shares"].is_string());
    let set_at = |state: &&Value| state["shares_set_ns"].as_u64().unwrap_or(0);
    // Of equals the first.
    let latest = tells.rev().max_by_key(set_at);
    let text = latest.and_then(|state| state["shares"].as_str());
    let Some(text) = text else {
        let why = states.iter().find_map(|state| state["error"].as_str());
        let why = why.unwrap_or("they are of an older version");
        return Err(Fail::runtime(format!(
            "no forwarder tells its rules: {why}"
        )));
    };
    Ok(rules(text, "the forwarder's rules")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn of_different_rules_those_count_that_were_set_last() {
        let state = |name: &str, at: u64| {
            let shares = format!("[[app]]\nname = \"{name}\"\n");
            json!({"shares": shares, "shares_set_ns": at})
        };
        let first = |states: &[Value]| {
            let rules = rules_of(states).unwrap_or_else(|fail| panic!("{}", fail.message));
            rules.apps[0].name.clone()
        };
        let away = json!({"error": "no answer"});
        assert_eq!(first(&[away.clone(), state("a", 0), state("b", 7)]), "b");
        assert_eq!(first(&[state("a", 9), state("b", 7), away]), "a");
        assert_eq!(first(&[state("a", 0), state("b", 0)]), "a");
        assert!(rules_of(&[]).is_err());
    }
}
