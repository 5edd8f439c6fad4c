//! The applications in the forwarders' states: by name where it is known, over all forwarders.

use super::number;
use crate::table;
use crate::waits::{Waits, is_told, percent};
use serde_json::Value;
use std::collections::BTreeMap;
use tidegate_server::user_of;

/// Applications that are shown; the JSON has all.
const SHOWN_MAX: usize = 20;

/// What is shown for what a user did without naming an application.
const UNNAMED: &str = "(no name)";
/// What is shown for all applications whose names the asker may not see.
const OTHERS: &str = "(others)";

/// The counts of an application that are added up: requests, bytes, requests, bytes, time.
pub const COUNTS: [&str; 5] = [
    "read_requests",
    "read_bytes",
    "write_requests",
    "write_bytes",
    "charged_ns",
];

/// The counts of an application, what it waited for, and whether some of that is not told.
type Sums = ([u64; 5], Waits, bool);

/// Puts the names that are known beside the hashes.
pub fn name(states: &mut [Value], names: &BTreeMap<String, String>) {
    let lists = states.iter_mut().map(|state| state.get_mut("applications"));
    let lists = lists.flatten().filter_map(Value::as_array_mut);
    for application in lists.flatten() {
        let name = application["app"].as_str().and_then(|app| names.get(app));
        if let Some(name) = name.cloned() {
            application["name"] = name.into();
        }
    }
}

/// What each application did, that with the most device time first; nothing if there is none.
pub fn lay_out(states: &[Value]) -> String {
    // Two users can have applications of one name.
    let mut sums: BTreeMap<(&str, Option<u64>), Sums> = BTreeMap::new();
    let lists = states
        .iter()
        .filter_map(|state| state["applications"].as_array());
    for application in lists.flatten() {
        let name = match application["name"].as_str() {
            Some("") => Some(UNNAMED),
            None if application["others"] == true => Some(OTHERS),
            name => name.or(application["app"].as_str()),
        };
        let Some(name) = name else {
            continue;
        };
        let (sum, waits, untold) = sums.entry((name, application["uid"].as_u64())).or_default();
        waits.add(&Waits::of(application));
        *untold |= !is_told(application);
        for (sum, key) in sum.iter_mut().zip(COUNTS) {
            *sum = sum.saturating_add(number(&application[key]));
        }
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    if sums.is_empty() {
        return String::new();
    }
    sums.sort_by_key(|(_, ([.., charged_ns], ..))| u64::MAX - charged_ns);
    let mut users: BTreeMap<u64, String> = BTreeMap::new();
    let mut user = |uid: u64| {
        let name = || {
            let known = u32::try_from(uid).ok().and_then(user_of);
            known.unwrap_or_else(|| uid.to_string())
        };
        users.entry(uid).or_insert_with(name).clone()
    };
    let rows = sums
        .iter()
        .take(SHOWN_MAX)
        .map(|((name, uid), (sum, waits, untold))| {
            let [reads, read, writes, written, charged_ns] = *sum;
            vec![
                name.to_string(),
                uid.map_or("-".to_string(), &mut user),
                reads.to_string(),
                table::bytes(read),
                writes.to_string(),
                table::bytes(written),
                table::time(charged_ns),
                most_waited_for(waits, *untold),
            ]
        });
    let rows: Vec<_> = rows.collect();
    let heading = [
        "application",
        "user",
        "reads",
        "read",
        "writes",
        "written",
        "device time",
        "waits for",
    ];
    let mut text = format!("\n{}", table::lay_out(&heading, &rows));
    text.push_str(&missing(states));
    if sums.len() > SHOWN_MAX {
        let more = sums.len() - SHOWN_MAX;
        text.push_str(&format!("and {more} more; --json shows all\n"));
    }
    text
}

/// The cause of most of what an application has waited, as far as it is told, and how much of the
/// wait it is.
fn most_waited_for(waits: &Waits, untold: bool) -> String {
    match waits.most() {
        Some((cause, ns)) => format!("{} {} %", cause.name(), percent(ns, waits.lost_ns())),
        None if untold => String::new(),
        None => "-".to_string(),
    }
}

/// Says whose counts are not in the sums.
fn missing(states: &[Value]) -> String {
    let silent = states.iter().filter(|state| state["error"].is_string());
    let silent: Vec<String> = silent.map(|state| state["forwarder"].to_string()).collect();
    match silent.is_empty() {
        true => String::new(),
        false => {
            let silent = silent.join(", ");
            format!("without what they did at forwarders that do not answer: {silent}\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn applications_are_named_and_added_up_over_forwarders() {
        let one = |app: &str, bytes: u64| {
            json!({
                "app": app, "uid": 4_000_000_007u32, "read_requests": 1, "read_bytes": bytes,
                "write_requests": 2, "write_bytes": 0, "charged_ns": bytes * 1000,
                "waits": { "ns": { "device": bytes * 3, "checks": bytes, "service": 99 } },
            })
        };
        let mut states = vec![
            json!({ "applications": [one("0a", 5), one("0b", 7)] }),
            json!({ "forwarder": 1, "error": "no answer" }),
            json!({ "applications": [one("0a", 6)] }),
        ];
        let names = BTreeMap::from([("0a".to_string(), "climate".to_string())]);
        name(&mut states, &names);
        assert_eq!(states[2]["applications"][0]["name"], "climate");
        assert_eq!(states[0]["applications"][1]["name"], Value::Null);
        assert_eq!(
            lay_out(&states),
            "\n\
             application        user  reads  read  writes  written  device time    waits for\n\
             climate      4000000007      2    11       4        0         11us  device 75 %\n\
             0b           4000000007      1     7       2        0        7.0us  device 75 %\n\
             without what they did at forwarders that do not answer: 1\n"
        );
        assert_eq!(lay_out(&[json!({ "applications": [] })]), "");
    }

    #[test]
    fn what_is_not_told_of_waits_is_not_none() {
        let one = |reads: u64, waits: Value| {
            let state = json!({ "applications": [
                { "app": "0a", "uid": 4_000_000_007u32, "read_requests": reads, "waits": waits }]});
            let text = lay_out(&[state]);
            let last = text.lines().last().expect("a row").to_string();
            last.ends_with(" -")
        };
        let none = json!({ "ns": { "service": 5 } });
        assert!(one(3, none) && one(0, Value::Null));
        assert!(!one(3, Value::Null));
    }

    #[test]
    fn applications_of_one_name_and_two_users_are_two() {
        let one = |uid: u32, reads: u64| {
            let app = uid.to_string();
            json!({ "app": app, "name": "a", "uid": uid, "read_requests": reads })
        };
        let text = lay_out(&[json!({ "applications": [one(0, 3), one(4_000_000_007, 5)] })]);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().take(3).collect())
            .collect();
        assert!(lines.contains(&vec!["a", "root", "3"]), "{text}");
        assert!(lines.contains(&vec!["a", "4000000007", "5"]), "{text}");
    }

    #[test]
    fn what_has_no_name_to_show_is_told_in_words() {
        let state = json!({ "applications": [
            { "app": "0a", "name": "", "uid": 4_000_000_007u32, "read_requests": 1 },
            { "others": true, "read_requests": 2 },
        ]});
        let text = lay_out(&[state]);
        assert!(text.contains("\n(no name)    4000000007      1"), "{text}");
        assert!(text.contains("\n(others)              -      2"), "{text}");
    }

    #[test]
    fn many_are_counted() {
        let many = (0..30).map(|app: u32| json!({ "app": format!("{app:016x}") }));
        let text = lay_out(&[json!({ "applications": many.collect::<Vec<_>>() })]);
        assert_eq!(text.lines().count(), 1 + 1 + SHOWN_MAX + 1, "{text}");
        assert!(text.ends_with("and 10 more; --json shows all\n"), "{text}");
    }
}
