//! `tidegate share`: who is promised what of the forwarders, read and changed at run time.

mod document;
mod feasible;
mod list;

pub use document::{Document, Key};

use crate::fail::Fail;
use crate::not_set;
use crate::plain;
use crate::stat::{ANSWER_MAX, ask_all, states};
use crate::state::ClientFile;
use crate::target::Target;
use crate::{errln, out, outln};
use serde_json::Value;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_client::wire::Keep;
use tidegate_client::{Client, Errno};
use tidegate_server::config::rule::Rules;
use tidegate_server::config::rules;

/// How often a change is made again because others were made meanwhile: each time one of them is.
const TRIES_MAX: u32 = 100;

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
    /// Change it in each forwarder until that ends, and keep nothing for the export
    #[arg(long, global = true, conflicts_with = "save")]
    temporary: bool,
    /// Keep what is changed for the export, over restarts of the forwarders: the default
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
    fn keep(&self) -> Keep {
        // What --save says holds without it.
        if self.temporary {
            Keep::Run
        } else {
            Keep::Saved
        }
    }

    /// Does it.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let forwarders = Forwarders::find(&self.target)?;
        let text = |value: &Option<String>| value.clone();
        let change = |what: &str, change: &dyn Fn(&mut Document) -> Result<(), Fail>| {
            forwarders.change(self.keep(), what, change)
        };
        match &self.action {
            None | Some(Action::List) => {}
            Some(Action::Reset) => forwarders.reset()?,
            Some(Action::Set {
                name,
                user,
                job,
                group,
                shares,
            }) => {
                let key = Key::app(name, text(user), text(job));
                let more = [("group", group.as_deref())];
                change(&format!("share set {name}"), &|document| {
                    document.set(&key, &more, shares)
                })?;
            }
            Some(Action::Group {
                name,
                user,
                project,
                shares,
            }) => {
                let more = [("user", user.as_deref()), ("project", project.as_deref())];
                change(&format!("share group {name}"), &|document| {
                    document.set(&Key::group(name), &more, shares)
                })?;
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
                change(&format!("share remove {name}"), &|document| {
                    document.remove(&key)
                })?;
            }
        }
        forwarders.show(self.json)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The forwarders whose rules a command reads or changes.
pub struct Forwarders {
    /// Their addresses, and what else the command knows of them.
    pub found: ClientFile,
    /// The client that asks them.
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

    /// The effective rules.
    pub fn rules(&self) -> Result<Rules, Fail> {
        Ok(latest(&self.states())?.0)
    }

    /// Changes the rules and makes them effective at all forwarders; `what` names the command in
    /// messages. Calls `change` again if somebody else's change came first.
    pub fn change(
        &self,
        keep: Keep,
        what: &str,
        change: &dyn Fn(&mut Document) -> Result<(), Fail>,
    ) -> Result<(), Fail> {
        self.agree(|rules| {
            let mut document = Document::of(rules);
            change(&mut document)?;
            // What is wrong is told here, in words; forwarders answer with an errno only.
            Ok((document.check(what)?.to_string(), keep))
        })
    }

    /// Makes the rules of the configurations effective.
    fn reset(&self) -> Result<(), Fail> {
        self.agree(|_| Ok((String::new(), Keep::Configured)))
    }

    /// Makes new rules from the effective ones until the first forwarder that answers finds that
    /// these are still the effective ones; then sends the rules to the others.
    fn agree(&self, make: impl Fn(&Rules) -> Result<(String, Keep), Fail>) -> Result<(), Fail> {
        for tried in 1..=TRIES_MAX {
            let states = self.states();
            let (rules, after) = latest(&states)?;
            let (text, keep) = make(&rules)?;
            let set = (after, after.saturating_add(1).max(now_ns()));
            let send = |index: usize| self.send(index, &text, keep, set);
            let first = states.iter().position(|state| state["shares"].is_string());
            let first = first.expect("the rules are some forwarder's");
            match send(first) {
                Some(Errno::STALE) => {
                    // Not all again at the same time.
                    let ms = u64::from(std::process::id()) % 16 + u64::from(tried);
                    std::thread::sleep(Duration::from_millis(ms));
                    continue;
                }
                Some(errno) => return Err(self.not_set(&[(first, errno)])),
                None => {}
            }
            let others = ask_all(self.found.forwarders.len(), |index| match index == first {
                true => None,
                false => send(index).filter(|errno| *errno != Errno::STALE),
            });
            let failed = others.into_iter().enumerate();
            let failed: Vec<_> = failed
                .filter_map(|(index, errno)| Some((index, errno?)))
                .collect();
            return match failed.is_empty() {
                true => Ok(()),
                false => Err(self.not_set(&failed)),
            };
        }
        Err(Fail::runtime(format!(
            "others changed the shares {TRIES_MAX} times meanwhile; try again later"
        )))
    }

    /// Sends the rules to a forwarder; returns why it did not take them. Gives a forwarder that is
    /// writing other rules to disk time to finish.
    fn send(&self, index: usize, text: &str, keep: Keep, set: (u64, u64)) -> Option<Errno> {
        let mut refused = None;
        for _ in 0..TRIES_MAX {
            refused = self.client.set_shares(index, text, keep, set).err();
            if refused != Some(Errno::BUSY) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        refused
    }

    fn not_set(&self, failed: &[(usize, Errno)]) -> Fail {
        let away = "its log says why; set them again";
        let addresses = &self.found.forwarders;
        Fail::runtime(not_set::line("the shares", failed, addresses, away))
    }

    /// Prints the effective rules, and warns of those that cannot be met.
    pub fn show(&self, json: bool) -> Result<(), Fail> {
        let shown = shown(&self.states())?;
        match json {
            true => outln!("{}", shown.json),
            false => out!("{}", shown.page),
        }
        for warning in &shown.warnings {
            errln!("tidegate: warning: {warning}");
        }
        Ok(())
    }
}

/// What is shown of the rules of forwarders with certain states.
pub struct Shown {
    /// For programs.
    pub json: Value,
    /// For people.
    pub page: String,
    /// A line each.
    pub warnings: Vec<String>,
}

/// The effective rules, and warnings of those that cannot be met.
pub fn shown(states: &[Value]) -> Result<Shown, Fail> {
    let (rules, _) = latest(states)?;
    let mut warnings = feasible::warnings(&rules, states);
    let text = rules.to_string();
    let differs = |state: &&Value| state["shares"].as_str().is_some_and(|own| own != text);
    for state in states.iter().filter(differs) {
        let index = &state["forwarder"];
        warnings.push(format!(
            "forwarder {index} has other rules; if it still has in some seconds, set or reset them \
             once more"
        ));
    }
    for state in states.iter().filter(|state| state["error"].is_string()) {
        let (index, address) = (&state["forwarder"], state["address"].as_str());
        warnings.push(format!(
            "forwarder {index} ({}) does not tell its rules: {}; when it is back it takes those \
             that are kept for the export",
            address.unwrap_or_default(),
            state["error"].as_str().unwrap_or_default()
        ));
    }
    Ok(Shown {
        json: list::json(&rules, states, &warnings),
        page: plain::page(&list::lay_out(&rules, states)),
        warnings: warnings.iter().map(|one| plain::line(one)).collect(),
    })
}

/// The rules that were set last, and when. A forwarder that was away or has started again has older
/// ones, and a change must not make the others forget theirs.
fn latest(states: &[Value]) -> Result<(Rules, u64), Fail> {
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
    let rules = rules(text, "the forwarder's rules")?;
    Ok((rules, latest.as_ref().map_or(0, set_at)))
}

/// Nanoseconds since 1970; 0 before.
fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
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
            let (rules, _) = latest(states).unwrap_or_else(|fail| panic!("{}", fail.message));
            rules.apps[0].name.clone()
        };
        let away = json!({"error": "no answer"});
        assert_eq!(first(&[away.clone(), state("a", 0), state("b", 7)]), "b");
        assert_eq!(first(&[state("a", 9), state("b", 7), away]), "a");
        assert_eq!(first(&[state("a", 0), state("b", 0)]), "a");
        assert!(latest(&[]).is_err());
    }
}
