//! Shows the rules of shares as a table and as JSON.

use crate::{plain, table};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_sched::Share;
use tidegate_server::config::rule::{LatencyText, Rules};

/// Applications that are shown of one rule; the JSON has all.
const SHOWN_MAX: usize = 3;

/// Names of the applications to which a rule or a group applies now.
fn applications(states: &[Value], key: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let lists = states
        .iter()
        .filter_map(|state| state["applications"].as_array());
    for application in lists.flatten() {
        let name = application["name"].as_str();
        let name = name.filter(|name| !name.is_empty());
        if let (Some(of), Some(name)) = (application[key].as_str(), name) {
            found
                .entry(of.to_string())
                .or_default()
                .insert(name.to_string());
        }
    }
    found
}

fn policy(states: &[Value]) -> (String, String) {
    let word = |key: &str| {
        let found = states.iter().find_map(|state| state[key].as_str());
        found.unwrap_or("?").to_string()
    };
    (word("policy"), word("asked_policy"))
}

/// The effective policy; one line for each if forwarders differ.
fn policies(states: &[Value]) -> String {
    let one = |state: &Value| {
        let (policy, asked) = policy(std::slice::from_ref(state));
        let line = match policy == asked {
            true => format!("policy {policy}"),
            false => format!("policy {policy}, in the place of {asked} while there are rules"),
        };
        plain::line(&line) + "\n"
    };
    let tells = states.iter().filter(|state| state["policy"].is_string());
    let lines: Vec<(String, String)> = tells
        .map(|state| (state["forwarder"].to_string(), one(state)))
        .collect();
    let first = lines.first().map_or("", |(_, line)| line.as_str());
    match lines.iter().all(|(_, line)| line == first) {
        true => first.to_string(),
        false => lines
            .iter()
            .map(|(forwarder, line)| format!("forwarder {forwarder}: {line}"))
            .collect(),
    }
}

/// The rules as text.
pub fn lay_out(rules: &Rules, states: &[Value]) -> String {
    let mut text = policies(states);
    if rules.is_empty() && rules.views.is_empty() {
        text.push_str("no rules: nobody is promised anything\n");
        return text;
    }
    let (of_rules, of_groups) = (applications(states, "rule"), applications(states, "group"));
    let mut rows = Vec::new();
    for group in &rules.groups {
        let mut whom = Vec::new();
        whom.extend(
            group
                .user
                .as_ref()
                .map(|user| format!("user {}", user.name)),
        );
        whom.extend(
            group
                .project
                .as_ref()
                .map(|project| format!("project {project}")),
        );
        rows.push(row(
            "group",
            &group.name,
            &whom,
            &group.share,
            of_groups.get(&group.name),
        ));
    }
    for app in &rules.apps {
        let mut whom = Vec::new();
        whom.extend(app.user.as_ref().map(|user| format!("user {}", user.name)));
        whom.extend(app.job.as_ref().map(|job| format!("job {job}")));
        whom.extend(app.group.as_ref().map(|group| format!("in {group}")));
        rows.push(row(
            "app",
            &app.name,
            &whom,
            &app.share,
            of_rules.get(&app.name),
        ));
    }
    let heading = [
        "rule",
        "name",
        "of",
        "weight",
        "min",
        "max",
        "latency",
        "applications",
    ];
    if !rows.is_empty() {
        text.push_str(&table::lay_out(&heading, &rows));
    }
    for view in &rules.views {
        let line = format!("view {}: directory {}", view.name, view.directory);
        text.push_str(&(plain::line(&line) + "\n"));
    }
    text
}

fn row(
    kind: &str,
    name: &str,
    whom: &[String],
    share: &Share,
    applications: Option<&BTreeSet<String>>,
) -> Vec<String> {
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_string());
    let names = applications.into_iter().flatten();
    let mut names: Vec<String> = names.cloned().collect();
    if names.len() > SHOWN_MAX {
        let more = names.len() - SHOWN_MAX;
        names.truncate(SHOWN_MAX);
        names.push(format!("and {more} more"));
    }
    let list = |list: &[String]| match list.is_empty() {
        true => "-".to_string(),
        false => list.join(", "),
    };
    vec![
        kind.to_string(),
        name.to_string(),
        list(whom),
        share.weight.to_string(),
        or_none(share.min.map(|rate| rate.to_string())),
        or_none(share.max.map(|rate| rate.to_string())),
        or_none(share.latency.map(|latency| {
            let time = LatencyText(latency.ns);
            format!("{time} p{}", latency.percentile)
        })),
        list(&names),
    ]
}

/// The rules as JSON.
pub fn json(rules: &Rules, states: &[Value], warnings: &[String]) -> Value {
    let (policy, asked) = policy(states);
    let (of_rules, of_groups) = (applications(states, "rule"), applications(states, "group"));
    let user = |user: &Option<tidegate_server::config::rule::User>| {
        user.as_ref()
            .map(|user| json!({ "name": user.name, "uid": user.uid }))
    };
    let share = |share: &Share| {
        json!({
            "weight": share.weight,
            "min": share.min.map(|rate| rate.to_string()),
            "max": share.max.map(|rate| rate.to_string()),
            "latency_ns": share.latency.map(|latency| latency.ns),
            "percentile": share.latency.map(|latency| latency.percentile),
        })
    };
    let groups = rules.groups.iter().map(|group| {
        json!({
            "name": group.name, "user": user(&group.user), "project": group.project,
            "share": share(&group.share), "applications": of_groups.get(&group.name),
        })
    });
    let apps = rules.apps.iter().map(|app| {
        json!({
            "name": app.name, "user": user(&app.user), "job": app.job, "group": app.group,
            "share": share(&app.share), "applications": of_rules.get(&app.name),
        })
    });
    let views = rules.views.iter();
    let views = views.map(|view| json!({ "name": view.name, "directory": view.directory }));
    let forwarders = states.iter().map(|state| {
        json!({
            "forwarder": state["forwarder"], "policy": state["policy"],
            "asked_policy": state["asked_policy"], "error": state["error"],
        })
    });
    json!({
        "policy": policy, "asked_policy": asked, "forwarders": forwarders.collect::<Vec<_>>(),
        "groups": groups.collect::<Vec<_>>(), "apps": apps.collect::<Vec<_>>(),
        "views": views.collect::<Vec<_>>(), "warnings": warnings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwarders_of_other_policies_are_shown_one_by_one() {
        let state = |forwarder: u32, policy: &str| {
            let asked = "fifo";
            json!({ "forwarder": forwarder, "policy": policy, "asked_policy": asked })
        };
        let away = json!({"forwarder": 2, "error": "no answer"});
        let same = [state(0, "fifo"), state(1, "fifo"), away.clone()];
        assert_eq!(policies(&same), "policy fifo\n");
        let others = [state(0, "fifo"), state(1, "two-level"), away];
        assert_eq!(
            policies(&others),
            "forwarder 0: policy fifo\n\
             forwarder 1: policy two-level, in the place of fifo while there are rules\n"
        );
        let forged = [state(0, "fifo\nno rules: nobody is promised anything")];
        assert_eq!(policies(&forged).lines().count(), 1);
    }
}
