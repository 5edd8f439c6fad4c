//! The forwarders that a command would talk to: each by itself at its address, and then all of them
//! as `stat --check` sees them.

mod address;

use super::finding::Finding;
use crate::stat::health::Wrong;
use crate::stat::{self, ANSWER_MAX, ask_all};
use crate::state::{ClientFile, StateDir};
use crate::target::{self, Search, Target};
use address::Asked;
use serde_json::Value;
use tidegate_client::{Client, list};

const CHECK: &str = "forwarders";

/// What was seen of them.
#[derive(Default)]
pub struct Seen {
    /// What is to be said.
    pub findings: Vec<Finding>,
    /// The states of those that answered.
    pub states: Vec<Value>,
    /// The settings by which they were found.
    pub found: Option<ClientFile>,
}

impl Seen {
    /// That there is nothing to ask.
    fn only(finding: Finding) -> Seen {
        Seen {
            findings: vec![finding],
            ..Seen::default()
        }
    }
}

/// Asks them.
pub fn look(target: &Target) -> Seen {
    let found = match target.search() {
        Ok(Search::Found(found)) => *found,
        Ok(Search::Nothing { fail, is_amiss }) => {
            let text = fail.message;
            return Seen::only(match is_amiss {
                false => Finding::ok(CHECK, format!("none is asked: {text}")),
                true => Finding::warning(CHECK, text, "start or name them, as it says"),
            });
        }
        Err(fail) => return Seen::only(wrong(fail.message)),
    };
    let options = match target::options(&found) {
        Ok(options) => options,
        Err(fail) => return Seen::only(wrong(fail.message)),
    };
    let addresses = match list::read(&options.forwarders) {
        Ok(addresses) => addresses,
        Err(error) => return Seen::only(wrong(error.to_string())),
    };
    let set = target.set();
    let asked = ask_all(addresses.len(), |index| {
        Asked::ask(&options, &addresses[index])
    });
    let mut seen = Seen {
        findings: address::findings(&asked, set.as_ref()),
        ..Seen::default()
    };
    if asked.iter().any(|one| one.told.is_ok()) {
        let mut options = options;
        options.timeout = ANSWER_MAX;
        match Client::connect(options) {
            Ok(client) => seen.take_states(&client, &asked, set.as_ref()),
            Err(error) => seen.findings.push(wrong(error.to_string())),
        }
    } else if let Some(set) = &set {
        let wrong = stat::of_set(set);
        seen.findings.extend(wrong.iter().map(of_wrong));
    }
    seen.found = Some(found);
    seen
}

/// What is wrong with the settings; the text says what to do.
fn wrong(text: String) -> Finding {
    Finding::fails(CHECK, text, "correct the list, or the settings, as it says")
}

impl Seen {
    /// What forwarders say of themselves, and of each other.
    fn take_states(&mut self, client: &Client, asked: &[Asked], set: Option<&StateDir>) {
        let left_out = client.left_out().iter();
        self.findings.extend(left_out.map(|line| {
            Finding::warning(CHECK, line, "correct the list of forwarders that was named")
        }));
        let states = stat::states(client, client.addresses());
        let others = set.map(stat::of_set).unwrap_or_default();
        let is_told = |wrong: &Wrong| {
            let mut failed = asked.iter().filter(|one| one.told.is_err());
            let is_its = |one: &Asked| wrong.text.contains(&format!("({})", one.address));
            wrong.kind() == "silent" && failed.any(is_its)
        };
        let wrong = stat::wrong(&states, others);
        let wrong: Vec<&Wrong> = wrong.iter().filter(|wrong| !is_told(wrong)).collect();
        if wrong.is_empty() && asked.iter().all(|one| one.told.is_ok()) {
            let text = match states.len() {
                1 => "1, which serves its own seat".to_string(),
                count => format!("{count}, each serves its own seat"),
            };
            self.findings.push(Finding::ok(CHECK, text));
        }
        self.findings.extend(wrong.into_iter().map(of_wrong));
        self.states = states;
        self.states.retain(|state| state["error"].is_null());
        client.shutdown();
    }
}

/// A finding of `stat --check`, with what to do.
fn of_wrong(wrong: &Wrong) -> Finding {
    let text = &wrong.text;
    let said = |finding: Finding| Finding {
        advice: None,
        ..finding
    };
    match wrong.kind() {
        "silent" => Finding::fails(
            CHECK,
            text,
            "see on its node whether its process is there, stopped, or waits for the file system; \
             its log says what it did last",
        ),
        "back-end" => Finding::fails(
            CHECK,
            text,
            "the file system of the export refuses calls: see that it is mounted, has room and \
             answers on that node; the forwarder's log names the first error",
        ),
        "slow" => Finding::warning(
            CHECK,
            text,
            "the file system of the export does not answer: see its servers and the network \
             between",
        ),
        // Somebody tries, as another one's words say.
        "nobody" if text.contains(';') => Finding::fails(
            CHECK,
            text,
            "start the forwarder of that index; the log of one that waits says for what",
        ),
        "nobody" => Finding::warning(
            CHECK,
            text,
            "the next request for it makes another one stand in (fail_over); start the forwarder \
             of that index, or undo its drain",
        ),
        "stand-in" => Finding::warning(
            CHECK,
            text,
            "start the forwarder of that index again: it takes its seat back",
        ),
        // These say it themselves.
        "double" | "number" => said(Finding::fails(CHECK, text, "")),
        _ => said(Finding::warning(CHECK, text, "")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;
    use serde_json::json;

    #[test]
    fn troubles_of_forwarders_have_verdicts() {
        let states = [
            json!({
                "forwarder": 0, "address": "unix:0", "trouble": "No space left on device",
                "seats": [{"seat": 0, "state": "serving"}, {"seat": 1, "state": "serving"}],
            }),
            json!({"forwarder": 1, "address": "unix:1", "draining": true, "seats": []}),
            json!({"forwarder": 2, "address": "unix:2", "error": "no answer within 2 s"}),
        ];
        let found: Vec<Finding> = stat::wrong(&states, Vec::new())
            .iter()
            .map(of_wrong)
            .collect();
        let told: Vec<_> = found
            .iter()
            .map(|one| (one.verdict, one.text.as_str()))
            .collect();
        let has = |verdict, text: &str| {
            assert!(
                told.iter()
                    .any(|(it, all)| *it == verdict && all.contains(text)),
                "{text}: {told:?}"
            );
        };
        has(Verdict::Fails, "forwarder 0 (unix:0): back end: No space");
        has(Verdict::Warning, "forwarder 1 (unix:1) is draining");
        has(Verdict::Fails, "forwarder 2 (unix:2) does not answer");
        has(Verdict::Warning, "seat 1 is served by forwarder 0");
        has(Verdict::Warning, "seat 2 is served by nobody");
        let waits = [json!({
            "forwarder": 0, "address": "unix:0", "seats": [{"seat": 0, "state": "taking"}],
        })];
        let [nobody] = &stat::wrong(&waits, Vec::new())[..] else {
            panic!("one thing is wrong")
        };
        assert_eq!(of_wrong(nobody).verdict, Verdict::Fails);
    }
}
