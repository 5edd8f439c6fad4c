//! The documents say what there is: docs/configuration.md every key of a forwarder's configuration
//! and every flag of the commands, ARCHITECTURE.md every dependency and only paths that exist. The
//! code is asked for its lists, by mistakes that it answers with what it knows.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use tidegate_sched::policies;
use tidegate_server::config::{Config, Source};

const MISTAKE: &str = "no_such_thing";
const BASE: &str = "export = \"/tmp\"\nlisten = [\"unix:/tmp/x.sock\"]\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn document() -> String {
    read("docs/configuration.md")
}

/// The part of the document below the heading that begins so.
fn part<'a>(document: &'a str, heading: &str) -> &'a str {
    let begin = format!("\n{heading}");
    let (_, after) = document
        .split_once(begin.as_str())
        .unwrap_or_else(|| panic!("docs/configuration.md has no heading {heading:?}"));
    after.split("\n#").next().unwrap_or(after)
}

/// What a refusal of these settings says is known instead.
fn known(settings: &str) -> Vec<String> {
    let text = format!("{BASE}{settings}");
    let source = Source::parse(&text, "x").expect("it is TOML");
    let error = Config::from_source(source).expect_err(settings).to_string();
    let (_, list) = error
        .split_once("known: ")
        .unwrap_or_else(|| panic!("{error} does not say what is known"));
    list.split(", ").map(str::to_string).collect()
}

/// The keys of `[scheduler]` that every policy has.
fn known_of_all_policies() -> BTreeSet<String> {
    let keys = |policy: &&str| -> BTreeSet<String> {
        let settings = format!("[scheduler]\npolicy = \"{policy}\"\n{MISTAKE} = 1\n");
        known(&settings).into_iter().collect()
    };
    let all = policies::NAMES.iter().map(keys);
    all.reduce(|one, other| &one & &other)
        .expect("there are policies")
}

/// The keys of a section, whatever the value of the key that decides which there are.
fn keys(section: &str) -> BTreeSet<String> {
    let choose = match section {
        // What policies have of their own is in docs/policies.md, which a test of `sched` compares.
        "[scheduler]" => return known_of_all_policies(),
        "[device]" => "model",
        "[[app]]" | "[[group]]" | "[[view]]" => {
            let given = "name = \"a\"\n";
            let given = match section {
                "[[view]]" => format!("{given}directory = \"a\"\n"),
                _ => given.to_string(),
            };
            return known(&format!("{section}\n{given}{MISTAKE} = 1\n"))
                .into_iter()
                .collect();
        }
        _ => {
            return known(&format!("{section}\n{MISTAKE} = 1\n"))
                .into_iter()
                .collect();
        }
    };
    known(&format!("{section}\n{choose} = \"{MISTAKE}\"\n"))
        .into_iter()
        .flat_map(|choice| {
            known(&format!(
                "{section}\n{choose} = \"{choice}\"\n{MISTAKE} = 1\n"
            ))
        })
        .collect()
}

#[test]
fn every_key_is_documented() {
    let document = document();
    let top = known(&format!("{MISTAKE} = 1\n"));
    let (sections, first): (Vec<_>, Vec<_>) = top.iter().partition(|key| key.starts_with('['));
    assert!(first.len() > 10 && sections.len() > 3, "{top:?}");
    let mut all = vec![(
        "## The first section".to_string(),
        first.into_iter().cloned().collect(),
    )];
    all.extend(
        sections
            .iter()
            .map(|name| (format!("## `{name}`"), keys(name))),
    );
    let mut missing = Vec::new();
    for (heading, keys) in all {
        let part = part(&document, &heading);
        let absent = keys
            .into_iter()
            .filter(|key| !part.contains(&format!("\n| `{key}` |")));
        missing.extend(absent.map(|key| format!("{key} under {heading:?}")));
    }
    assert!(
        missing.is_empty(),
        "docs/configuration.md: add a line for {}",
        missing.join(", ")
    );
}

fn help(command: &str) -> String {
    let help = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(command.split(' '))
        .arg("--help")
        .output()
        .expect("the command is built");
    String::from_utf8(help.stdout).expect("help is text")
}

/// The long flags that a command's help lists.
fn flags(command: &str) -> Vec<String> {
    let help = help(command);
    let found = help.lines().filter_map(|line| {
        let line = line.trim_start();
        let flag = line.strip_prefix("-h, ").unwrap_or(line);
        let flag = flag.split_whitespace().next()?;
        flag.starts_with("--").then(|| flag.to_string())
    });
    found.filter(|flag| flag != "--help").collect()
}

#[test]
fn every_flag_is_documented() {
    let document = document();
    let commands = [
        "up",
        "down",
        "serve",
        "mount",
        "umount",
        "run",
        "stat",
        "drain",
        "policy",
        "share",
        "share set",
        "share group",
        "share remove",
        "view",
        "calibrate",
        "check",
        "trace summarise",
        "trace import",
    ];
    let mut missing = Vec::new();
    for command in commands {
        assert!(
            document.contains(&format!("tidegate {command}")),
            "{command}"
        );
        let flags = flags(command);
        assert!(command == "umount" || !flags.is_empty(), "{command}");
        let absent = flags.into_iter().filter(|flag| {
            let mentions = [format!("`{flag}`"), format!("`{flag} ")];
            !mentions.iter().any(|text| document.contains(text))
        });
        missing.extend(absent.map(|flag| format!("{flag} of {command}")));
    }
    assert!(
        missing.is_empty(),
        "docs/configuration.md: add {}",
        missing.join(", ")
    );
}

#[test]
fn every_option_of_up_says_its_default() {
    let help = help("up");
    let (_, options) = help.split_once("Options:").expect("it has some");
    let told = options.split("\n      --").skip(1);
    let with_value = told.filter(|one| one.lines().next().is_some_and(|line| line.contains('<')));
    let silent: Vec<_> = with_value
        .filter(|one| !one.contains("[default: ") && !one.contains("For tests: "))
        .collect();
    assert!(silent.is_empty(), "{silent:?}");
    assert!(options.matches("[default: ").count() > 7, "{options}");
}

#[test]
fn the_example_is_valid() {
    let document = document();
    let example = document.split("```toml\n").nth(1).expect("an example");
    let example = example.split("```").next().expect("its end");
    let source = Source::parse(example, "docs/configuration.md").expect("it is TOML");
    Config::from_source(source).expect("it is accepted");
}

/// The names in the dependency tables of a manifest, our own crates left out.
fn dependencies(manifest: &str) -> Vec<String> {
    let table: toml::Table = manifest.parse().expect("a manifest is TOML");
    let names = ["dependencies", "dev-dependencies", "build-dependencies"];
    let tables = names.iter().filter_map(|name| table.get(*name)?.as_table());
    let all = tables.flat_map(|table| table.keys().cloned());
    all.filter(|name| !name.starts_with("tidegate-")).collect()
}

#[test]
fn every_dependency_is_accounted_for() {
    let text = read("ARCHITECTURE.md");
    let (_, table) = text.split_once("## Dependencies").expect("the heading");
    let first_cells = table
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split('|').next());
    let told: BTreeSet<_> = first_cells
        .flat_map(|cell| cell.split(','))
        .map(str::trim)
        .collect();
    let mut used = dependencies(&read("fuzz/Cargo.toml"));
    used.extend(dependencies(&read("tests/threads/Cargo.toml")));
    for entry in std::fs::read_dir(root().join("crates")).expect("crates/ is there") {
        let manifest = entry
            .expect("crates/ is readable")
            .path()
            .join("Cargo.toml");
        if let Ok(manifest) = std::fs::read_to_string(manifest) {
            used.extend(dependencies(&manifest));
        }
    }
    let used: BTreeSet<_> = used.iter().map(String::as_str).collect();
    let told: BTreeSet<_> = told.into_iter().filter(|name| *name != "crate").collect();
    assert_eq!(
        told, used,
        "ARCHITECTURE.md, left, and the manifests, right, name these"
    );
}

#[test]
fn the_paths_of_the_documents_exist() {
    let mut missing = Vec::new();
    for document in [
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "README.md",
        "docs/protocol.md",
        "docs/traces.md",
    ] {
        for quoted in read(document).split('`').skip(1).step_by(2) {
            let ours = ["crates/", "docs/", "tests/", "tools/", "fuzz/"];
            let path = quoted.split([' ', '<']).next().unwrap_or_default();
            if ours.iter().any(|start| path.starts_with(start)) && !root().join(path).exists() {
                missing.push(format!("{path} in {document}"));
            }
        }
    }
    assert!(missing.is_empty(), "no such files: {}", missing.join(", "));
}
