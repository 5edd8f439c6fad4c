//! CHANGELOG.md has the form of Keep a Changelog, and its versions fit the manifest's.

use super::{report, root};
use std::fs;

const KINDS: &[&str] = &[
    "Added",
    "Changed",
    "Deprecated",
    "Removed",
    "Fixed",
    "Security",
];

/// The number of a release as three numbers.
fn version(text: &str) -> Option<[u32; 3]> {
    let numbers: Vec<u32> = text
        .split('.')
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    numbers.try_into().ok()
}

/// Whether it is a date as 2026-01-31.
fn is_date(text: &str) -> bool {
    let parts: Vec<_> = text.split('-').collect();
    let digits = parts
        .iter()
        .all(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
    digits && parts.iter().map(|part| part.len()).eq([4, 2, 2])
}

/// The version of a heading such as `[1.2.3] - 2026-01-31`.
fn released(heading: &str) -> Option<[u32; 3]> {
    let (name, date) = heading.strip_prefix('[')?.split_once("] - ")?;
    version(name).filter(|_| is_date(date))
}

/// What is wrong with the headings of the releases, newest first. `built` is what is built now.
fn wrong_headings(headings: &[&str], built: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if headings.first() != Some(&"[Unreleased]") {
        wrong.push("the first part is [Unreleased]".to_owned());
    }
    let mut newest = version(built);
    for (index, heading) in headings.iter().enumerate().skip(1) {
        let number = released(heading);
        if number.is_none() {
            wrong.push(format!("{heading}: a release is [1.2.3] - 2026-01-31"));
        } else if number > newest || index > 1 && number == newest {
            wrong.push(format!(
                "{heading} stands below an older version, or Cargo.toml's {built}"
            ));
        }
        newest = number.or(newest);
    }
    wrong
}

/// What is wrong with the parts of one release.
fn wrong_parts(heading: &str, body: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let parts: Vec<_> = body.split("\n### ").skip(1).collect();
    if heading != "[Unreleased]" && parts.is_empty() {
        wrong.push(format!("{heading} has no parts"));
    }
    for part in parts {
        let (kind, items) = part.split_once('\n').unwrap_or((part, ""));
        if !KINDS.contains(&kind) {
            wrong.push(format!("{heading}: {kind} is none of {}", KINDS.join(", ")));
        }
        if !items.contains("\n- ") {
            wrong.push(format!("{heading}: {kind} lists nothing"));
        }
    }
    wrong
}

/// What is wrong with a changelog, in words. `built` is the version that is built now.
fn problems(text: &str, built: &str) -> Vec<String> {
    let mut releases = text.split("\n## ");
    let mut wrong = Vec::new();
    if !releases
        .next()
        .is_some_and(|head| head.starts_with("# Changelog\n"))
    {
        wrong.push("it begins with # Changelog".to_owned());
    }
    let releases: Vec<_> = releases
        .map(|release| release.split_once('\n').unwrap_or((release, "")))
        .collect();
    let headings: Vec<_> = releases.iter().map(|(heading, _)| *heading).collect();
    wrong.extend(wrong_headings(&headings, built));
    for (heading, body) in releases {
        wrong.extend(wrong_parts(heading, body));
    }
    for (number, line) in text.lines().enumerate() {
        if line.chars().count() > super::COLUMNS_MAX {
            wrong.push(format!(
                "line {} is over {} columns",
                number + 1,
                super::COLUMNS_MAX
            ));
        }
        if line.contains("crates/") {
            wrong.push(format!("line {}: users do not know crates", number + 1));
        }
    }
    wrong
}

#[test]
fn the_changelog_has_its_form() {
    let read = |name| fs::read_to_string(root().join(name)).expect("it is there");
    let manifest = read("Cargo.toml");
    let built = manifest
        .lines()
        .find_map(|line| line.strip_prefix("version = \""));
    let built = built
        .expect("the workspace has a version")
        .trim_end_matches('"');
    report(problems(&read("CHANGELOG.md"), built), "CHANGELOG.md");
}

#[test]
fn a_changelog_that_is_wrong_is_refused() {
    let good = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n\n### Fixed\n\n- A.\n\n\
        ## [0.1.0] - 2026-11-01\n\nFirst.\n\n### Added\n\n- B.\n";
    assert_eq!(problems(good, "0.2.0"), [""; 0]);
    let bad = [
        ("# Changelog", "# Changes"),
        ("[Unreleased]", "[Soon]"),
        ("[0.2.0]", "[0.1.0]"),
        ("[0.2.0]", "[0.2.1]"),
        ("[0.1.0]", "[0.1]"),
        ("2026-12-01", "December"),
        ("Fixed", "Inside"),
        ("- A.", "A."),
        ("- B.", "- B in crates/b."),
    ];
    for (from, to) in bad {
        let text = good.replace(from, to);
        assert!(!problems(&text, "0.2.0").is_empty(), "{text}");
    }
}
