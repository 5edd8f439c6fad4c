//! Refuses names of files that do not exist, in sources and in documents.

use super::{Source, report, root, sources};
use std::collections::BTreeSet;
use std::fs;

/// Folders of this repository: a path that begins with one is a path of ours.
const FOLDERS: &[&str] = &[
    "crates/",
    "docs/",
    "examples/",
    "fuzz/",
    "mpi/",
    "tests/",
    "tools/",
];
const EXTENSIONS: &[&str] = &["rs", "md", "sh", "py", "c", "h", "toml"];

/// Sources, and the documents of the root and of `docs`.
fn texts() -> Vec<Source> {
    let mut texts = sources();
    for folder in [root(), root().join("docs")] {
        for entry in fs::read_dir(folder).expect("the folder is there") {
            let path = entry.expect("the folder is readable").path();
            if path.extension().is_some_and(|extension| extension == "md") {
                let text = fs::read_to_string(&path).expect("it is text");
                let path = path.strip_prefix(root()).expect("it lies below the root");
                texts.push(Source {
                    path: path.to_string_lossy().into_owned(),
                    text,
                });
            }
        }
    }
    texts
}

/// The words of a line that look like the name of a file.
fn names(line: &str) -> impl Iterator<Item = &str> {
    let of_name = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let words = line.split(move |c| !of_name(c));
    let words = words.map(|word| word.trim_end_matches('.').trim_start_matches("./"));
    words.filter(|word| {
        let extension = word
            .rsplit_once('.')
            .map(|(stem, extension)| (!stem.is_empty(), extension));
        extension.is_some_and(|(stem, it)| stem && EXTENSIONS.contains(&it))
    })
}

#[test]
fn files_that_are_named_exist() {
    let texts = texts();
    let files: BTreeSet<&str> = texts.iter().map(|it| it.path.as_str()).collect();
    let last = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let known: BTreeSet<String> = files.iter().map(|path| last(path)).collect();
    let mut problems = Vec::new();
    for text in &texts {
        for (number, line) in text.text.lines().enumerate() {
            let comment = !text.is("rs") || line.trim_start().starts_with("//");
            for name in names(line) {
                let folder = FOLDERS.iter().any(|folder| name.starts_with(folder));
                let document =
                    name.ends_with(".md") && name.starts_with(|c: char| c.is_uppercase());
                let source = comment && name.ends_with(".rs") && !name.contains('/');
                let exists = match folder {
                    // From the root, or from its own crate.
                    true => {
                        let below = format!("/{name}");
                        root().join(name).exists() || files.iter().any(|it| it.ends_with(&below))
                    }
                    false => known.contains(&last(name)),
                };
                if (folder || document || source) && !exists {
                    problems.push(format!("{}:{}: {name}", text.path, number + 1));
                }
            }
        }
    }
    report(
        problems,
        "no such file is here; name the one that is meant, or none",
    );
}

#[test]
fn names_of_files_are_seen() {
    let line =
        "see `crates/sched/src/cost.rs`, (./README.md). and a.b, x.rsync, 2.h; \"docs/\" .rs";
    let found: Vec<_> = names(line).collect();
    assert_eq!(found, ["crates/sched/src/cost.rs", "README.md", "2.h"]);
}

/// The files that ARCHITECTURE says a read and a write visit, as paths from the root.
fn visited() -> Vec<String> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("it is there");
    let (_, table) = text
        .split_once("### The files that they visit")
        .expect("ARCHITECTURE has the part");
    let table = table.split("\n## ").next().unwrap_or_default();
    let mut files = Vec::new();
    for row in table.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        for name in names(cells[2]) {
            files.push(format!("crates/{}/src/{name}", cells[1]));
        }
    }
    files
}

#[test]
fn a_request_visits_few_files() {
    let visited = visited();
    let once: BTreeSet<&String> = visited.iter().collect();
    let missing: Vec<&String> = visited
        .iter()
        .filter(|it| !root().join(it).exists())
        .collect();
    assert!(missing.is_empty(), "ARCHITECTURE names {missing:?}");
    assert_eq!(once.len(), visited.len(), "ARCHITECTURE names a file twice");
    assert!(
        (20..=45).contains(&once.len()),
        "a request visits {} files",
        once.len()
    );
}
