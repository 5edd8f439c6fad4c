//! docs/policies.md has a row and a section for each policy, and in that section the policy's own
//! options as its table says them.
//!
//! `TIDEGATE_WRITE_DOCS=1 cargo test -p tidegate-sched --test documented` writes the tables of
//! options anew; the rest of a section is written by people.

use std::path::PathBuf;
use tidegate_sched::{OptionKind, OptionSpec, OptionValue, PolicySpec, policies};

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/policies.md")
}

const HEADER: &str = "| option | default | takes | meaning |\n|---|---|---|---|\n";

/// Default and allowed values of a kind, as two cells.
fn cells(kind: OptionKind) -> [String; 2] {
    let default = match kind.default() {
        OptionValue::Integer(number) => number.to_string(),
        OptionValue::Bool(truth) => truth.to_string(),
        OptionValue::Text(text) => format!("`\"{text}\"`"),
    };
    let takes = match kind {
        OptionKind::Integer { min, max, .. } => match max {
            u64::MAX if min == 0 => "a number".to_string(),
            _ => format!("{min} to {max}"),
        },
        OptionKind::Below(bound) => format!("a number below `{bound}`"),
        OptionKind::Bool => "true or false".to_string(),
        OptionKind::Word(words) => quoted(words),
        OptionKind::Text(_) => "text".to_string(),
    };
    [default, takes]
}

fn quoted(words: &[&str]) -> String {
    let quoted: Vec<_> = words.iter().map(|word| format!("`\"{word}\"`")).collect();
    quoted.join(", ")
}

fn row(spec: &OptionSpec) -> String {
    let [mut default, mut takes] = cells(spec.kind);
    if let Some((option, word, kind)) = spec.except {
        let [other, other_takes] = cells(kind);
        default += &format!("; {other} with `{option} = \"{word}\"`");
        takes += &format!("; {other_takes} with `{option} = \"{word}\"`");
    }
    format!(
        "| `{}` | {default} | {takes} | {} |\n",
        spec.name, spec.help
    )
}

fn table(policy: &PolicySpec) -> String {
    match policy.options.is_empty() {
        true => String::new(),
        false => HEADER.to_string() + &policy.options.iter().map(row).collect::<String>(),
    }
}

/// A section with another table of options in the place of the one that it has, or at its end.
fn with_table(section: &str, table: &str) -> String {
    let Some(start) = section.find(HEADER) else {
        return match table {
            "" => section.to_string(),
            _ => format!("{}\n\n{table}\n", section.trim_end()),
        };
    };
    let rows = section[start..].split_inclusive('\n');
    let old: usize = rows
        .take_while(|line| line.starts_with('|'))
        .map(str::len)
        .sum();
    format!("{}{table}{}", &section[..start], &section[start + old..])
}

#[test]
fn every_policy_and_option_is_documented() {
    let mut text = std::fs::read_to_string(path()).expect("docs/policies.md is there");
    let before = text.clone();
    for policy in policies::ALL {
        let name = policy.name;
        assert!(
            text.contains(&format!("\n| `{name}` | ")),
            "docs/policies.md: add {name} to the first table"
        );
        let heading = format!("\n## {name}\n");
        let start = text.find(&heading);
        let start =
            start.unwrap_or_else(|| panic!("docs/policies.md: add a section \"## {name}\""));
        let start = start + heading.len();
        let end = text[start..]
            .find("\n## ")
            .map_or(text.len(), |at| start + at + 1);
        let section = with_table(&text[start..end], &table(policy));
        text.replace_range(start..end, &section);
    }
    if std::env::var_os("TIDEGATE_WRITE_DOCS").is_some() {
        return std::fs::write(path(), text).expect("docs/policies.md can be written");
    }
    let differs = before
        .lines()
        .zip(text.lines())
        .find(|(is, must)| is != must);
    assert!(
        before == text,
        "docs/policies.md differs from the policies' options, first in {differs:?}; \
         see the head of crates/sched/tests/documented.rs"
    );
}
