//! Compares what all forwarders of one export must have in common: the policy, because they decide
//! in one order without messages; the rules of shares; and how they keep seats apart.

use super::Value;
use super::health::Wrong;
use crate::{plain, table};
use std::collections::BTreeMap;

/// Options that a forwarder may have for itself: they say what its own device can do.
const OF_ONE: [&str; 5] = [
    "batch_bytes_max",
    "batch_requests_max",
    "cost_estimate",
    "depth",
    "queued_max",
];

/// What differs, one line each.
pub fn differences(states: &[Value]) -> Vec<Wrong> {
    let policy = (
        "policies",
        "`tidegate policy set` gives all one, `tidegate policy reset` those of their \
         configurations",
    );
    let shares = (
        "rules of shares",
        "`tidegate share` shows and sets them at all forwarders",
    );
    let ownership = (
        "settings of [ownership]",
        "give all configurations the same and start them again",
    );
    let all = [
        difference(states, policy, policy_of),
        difference(states, shares, shares_of),
        difference(states, ownership, ownership_of),
    ];
    all.into_iter().flatten().collect()
}

/// How the forwarders keep seats apart: one line, or one for each way if they differ.
pub fn ownership(states: &[Value]) -> String {
    let groups = groups(states, ownership_of);
    let one = groups.len() == 1;
    let line = |(text, forwarders): (&String, &Vec<String>)| match one {
        true => format!("seats: {}\n", plain::line(text)),
        false => {
            let text = plain::line(text);
            format!("seats: {text} (forwarder {})\n", forwarders.join(", "))
        }
    };
    groups.iter().map(line).collect()
}

/// Groups of forwarders that give the same answer, by that answer.
fn groups(states: &[Value], of: fn(&Value) -> Option<String>) -> BTreeMap<String, Vec<String>> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for state in states.iter().filter(|state| state["error"].is_null()) {
        if let Some(text) = of(state) {
            let forwarder = state["forwarder"].to_string();
            groups.entry(text).or_default().push(forwarder);
        }
    }
    groups
}

fn difference(
    states: &[Value],
    (what, cure): (&str, &str),
    of: fn(&Value) -> Option<String>,
) -> Option<Wrong> {
    let groups = groups(states, of);
    if groups.len() < 2 {
        return None;
    }
    let each = groups
        .iter()
        .map(|(text, forwarders)| format!("forwarder {}: {text}", forwarders.join(", ")));
    let each: Vec<String> = each.collect();
    let text = format!(
        "forwarders have different {what}: {}; {cure}",
        each.join("; ")
    );
    Some(Wrong::of_all("differ", text))
}

/// The effective policy and the configured one, with its own options.
fn policy_of(state: &Value) -> Option<String> {
    let policy = state["policy"].as_str()?;
    let asked = state["asked_policy"].as_str().unwrap_or(policy);
    let mut text = policy.to_string();
    let options = state["options"].as_object().into_iter().flatten();
    for (name, value) in options.filter(|(name, _)| !OF_ONE.contains(&name.as_str())) {
        text.push_str(&format!(" {name}={value}"));
    }
    if asked != policy {
        text.push_str(&format!(" in the place of {asked}"));
    }
    Some(text)
}

fn shares_of(state: &Value) -> Option<String> {
    let text = state["shares"].as_str()?.trim();
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    Some(match lines.is_empty() {
        true => "none".to_string(),
        false => lines.join(" "),
    })
}

fn ownership_of(state: &Value) -> Option<String> {
    let facts = &state["ownership"];
    let keeper = facts["keeper"].as_str()?;
    let (durability, one_node) = (facts["durability"].as_str()?, &facts["one_node"]);
    let lease = match facts["ttl_ms"].as_u64() {
        Some(ms) => format!("by leases of {}", table::ms(ms)),
        None => "by locks".to_string(),
    };
    Some(format!(
        "keeper {keeper}, {lease}, durability {durability}, one_node {one_node}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn state(forwarder: u64) -> Value {
        json!({
            "forwarder": forwarder, "address": format!("unix:{forwarder}"),
            "policy": "window", "asked_policy": "window",
            "options": {"depth": forwarder + 1, "merge": false, "window_ms": 250},
            "shares": "",
            "ownership": {"keeper": "etcd", "ttl_ms": 8000, "durability": "node",
                          "one_node": false},
        })
    }

    fn told(states: &[Value]) -> Vec<String> {
        let differences = differences(states).into_iter();
        differences.map(|wrong| wrong.text).collect()
    }

    #[test]
    fn what_is_alike_is_nothing_to_tell_whatever_their_devices() {
        let silent = json!({"forwarder": 2, "address": "unix:2", "error": "no answer"});
        let states = [state(0), state(1), silent];
        assert_eq!(told(&states), [""; 0]);
        let line = "seats: keeper etcd, by leases of 8.0s, durability node, one_node false\n";
        assert_eq!(ownership(&states), line);
    }

    #[test]
    fn policies_rules_and_ownership_that_differ_are_a_line_each() {
        let mut other = state(1);
        other["policy"] = "fifo".into();
        other["asked_policy"] = "fifo".into();
        other["options"] = json!({"depth": 8, "merge": false});
        assert_eq!(
            told(&[state(0), other.clone(), state(2)]),
            [
                "forwarders have different policies: forwarder 1: fifo merge=false; forwarder 0, \
                 2: window merge=false window_ms=250; `tidegate policy set` gives all one, \
                 `tidegate policy reset` those of their configurations"
            ]
        );
        let mut width = state(1);
        width["options"]["window_ms"] = 333.into();
        assert_eq!(told(&[state(0), width]).len(), 1);
        let mut rules = state(1);
        rules["shares"] = "[[app]]\nname = \"a\"\nweight = 3\n".into();
        let said = told(&[state(0), rules]);
        assert!(
            said[0].contains("rules of shares: forwarder 1: [[app]] name"),
            "{said:?}"
        );
        let mut kept = state(1);
        kept["ownership"] = json!({"keeper": "files", "ttl_ms": null, "durability": "process",
                                   "one_node": true});
        let states = [state(0), kept];
        let said = told(&states);
        assert!(
            said[0].contains("different settings of [ownership]"),
            "{said:?}"
        );
        let lines = ownership(&states);
        assert!(lines.contains("one_node true (forwarder 1)\n"), "{lines}");
        assert!(lines.contains("keeper files, by locks,"), "{lines}");
    }
}
