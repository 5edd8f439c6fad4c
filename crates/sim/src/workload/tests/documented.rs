//! Tests that `docs/workloads.md` has exactly the keys that workloads accept.

use super::*;

/// The keys in the tables of a section.
fn keys(text: &str, section: &str) -> BTreeSet<String> {
    let heading = format!("\n## {section}\n");
    let (_, rest) = text
        .split_once(&heading)
        .unwrap_or_else(|| panic!("docs/workloads.md has no section {section}"));
    let body = rest.split("\n## ").next().unwrap_or_default();
    let rows = body.lines().filter(|line| line.starts_with("| `"));
    rows.flat_map(|row| row.split('|').nth(1).unwrap_or_default().split(','))
        .map(|key| key.trim().trim_matches('`').to_owned())
        .collect()
}

#[test]
fn every_key_is_documented_and_every_documented_key_is_accepted() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/workloads.md");
    let text = std::fs::read_to_string(path).expect("docs/workloads.md is there");
    let shared = |section, anchor| (keys(&text, section), format!("]({anchor})"));
    let parts = [
        shared("Pace", "#pace"),
        shared("Collective calls", "#collective-calls"),
    ];
    for name in Workload::NAMES {
        let error = read(name, "no_such_key = 1").unwrap_err();
        let (_, accepted) = error.split_once("possible are ").expect("it lists keys");
        let accepted: BTreeSet<String> = accepted.split(", ").map(str::to_owned).collect();
        let mut documented = keys(&text, name);
        let (_, section) = text
            .split_once(&format!("\n## {name}\n"))
            .expect("it was found");
        let section = section.split("\n## ").next().unwrap_or_default();
        // "Besides: pace" outside of the table.
        let prose = section.lines().filter(|line| !line.starts_with('|'));
        let prose: String = prose.collect::<Vec<_>>().join("\n");
        for (keys, link) in &parts {
            if prose.contains(link) {
                documented.extend(keys.iter().cloned());
            }
        }
        assert_eq!(accepted, documented, "docs/workloads.md, section {name}");
    }
}
