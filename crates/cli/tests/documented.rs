//! The documents say what there is: docs/configuration.md the keys of a forwarder's configuration
//! as the code's table has them and every flag of the commands, ARCHITECTURE.md every dependency
//! and only paths that exist. A scenario's parser is asked for its lists, by mistakes that it
//! answers with what it knows.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use tidegate_server::config::{Config, Source, keys};
use tidegate_server::device::{DeviceOptions, Number, PRESETS};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn document() -> String {
    read("docs/configuration.md")
}

/// The tables of keys as the code has them: for each section its heading and its lines.
fn tables() -> Vec<(String, Vec<String>)> {
    let mut tables: Vec<(String, Vec<String>)> = Vec::new();
    for key in keys() {
        let heading = match key.section {
            "" => "## The first section".to_string(),
            section => format!("## `{section}`"),
        };
        if tables.last().is_none_or(|(last, _)| *last != heading) {
            let head = ["| key | type | default | meaning |", "|---|---|---|---|"];
            tables.push((heading, head.map(String::from).to_vec()));
        }
        let (_, lines) = tables.last_mut().expect("there is one now");
        lines.push(format!(
            "| `{}` | {} | {} | {} |",
            key.name, key.takes, key.default, key.help
        ));
        if key.section == "[device]" {
            lines.extend(device_lines());
        }
    }
    tables
}

/// The numbers of all device models, each with its defaults.
fn device_lines() -> Vec<String> {
    let mut numbers: Vec<(Number, Vec<(&str, u64)>)> = Vec::new();
    for preset in PRESETS {
        let options = DeviceOptions::preset(preset).expect("a preset");
        for number in options.numbers() {
            let at = numbers.iter().position(|(one, _)| one.name == number.name);
            let at = at.unwrap_or_else(|| {
                numbers.push((number, Vec::new()));
                numbers.len() - 1
            });
            numbers[at].1.push((preset, number.value));
        }
    }
    let line = |(number, values): (Number, Vec<(&str, u64)>)| {
        let Number {
            name,
            min,
            max,
            help,
            ..
        } = number;
        let range = match max {
            u64::MAX => "number".to_string(),
            max => format!("number, {min} to {max}"),
        };
        let same = values.len() == PRESETS.len() && values.iter().all(|one| one.1 == values[0].1);
        let each = values.iter();
        let each = each.map(|(preset, value)| format!("`{preset}`: {value}"));
        let default = match same {
            true => values[0].1.to_string(),
            false => each.collect::<Vec<_>>().join("; "),
        };
        format!("| `{name}` | {range} | {default} | {help} |")
    };
    numbers.into_iter().map(line).collect()
}

/// The document with the tables that follow the headings replaced by those of the code.
fn with_tables(document: &str) -> String {
    let mut text = document.to_string();
    for (heading, lines) in tables() {
        let begin = format!("\n{heading}");
        let at = text
            .find(&begin)
            .unwrap_or_else(|| panic!("docs/configuration.md has no heading {heading:?}"));
        let head = "\n| key |";
        let from = at + text[at..].find(head).expect("a table follows") + 1;
        let length = text[from..].find("\n\n").expect("it ends") + 1;
        text.replace_range(from..from + length, &(lines.join("\n") + "\n"));
    }
    text
}

#[test]
fn the_keys_are_documented_as_the_code_has_them() {
    let document = document();
    let right = with_tables(&document);
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        std::fs::write(root().join("docs/configuration.md"), right).expect("it can be written");
        return;
    }
    for (old, new) in document.lines().zip(right.lines()) {
        assert_eq!(
            old, new,
            "docs/configuration.md differs from the table of keys; write it anew with \
             TIDEGATE_BLESS=1 cargo test -p tidegate-cli --test documented"
        );
    }
    assert_eq!(document.len(), right.len());
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
        "doctor",
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
    for tests in ["fuzz", "threads"] {
        used.extend(dependencies(&read(&format!("tests/{tests}/Cargo.toml"))));
    }
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

/// The most terms that a reader can keep in mind.
const TERMS_MAX: usize = 40;

#[test]
fn the_glossary_is_short_and_of_words_in_use() {
    let glossary = read("docs/glossary.md");
    let lines = glossary.lines().filter(|line| line.starts_with("| "));
    let terms: Vec<_> = lines
        .filter_map(|line| line.split('|').nth(1))
        .map(str::trim)
        .filter(|term| *term != "term")
        .collect();
    assert!(
        (1..=TERMS_MAX).contains(&terms.len()),
        "{} terms in docs/glossary.md, at most {TERMS_MAX} are wanted",
        terms.len()
    );
    let once: BTreeSet<_> = terms.iter().collect();
    assert_eq!(once.len(), terms.len(), "a term stands there twice");
    let text = texts(&root()).to_lowercase();
    let unused: Vec<_> = terms
        .iter()
        .filter(|term| !text.contains(&term.to_lowercase()))
        .collect();
    assert!(
        unused.is_empty(),
        "docs/glossary.md: neither code nor documents use {unused:?}"
    );
}

/// All documents but the glossary, and all code of the crates.
fn texts(root: &Path) -> String {
    let mut text = String::new();
    let mut folders = vec![root.join("crates"), root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the repository is readable") {
            let path = entry.expect("it is readable").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let kept = path
                .extension()
                .is_some_and(|kind| kind == "rs" || kind == "md");
            if kept && !path.ends_with("glossary.md") {
                text.push_str(&std::fs::read_to_string(&path).expect("it is text"));
            }
        }
    }
    text
}
