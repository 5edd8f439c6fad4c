//! Which crate may use which: the table of ARCHITECTURE.md, compared with the manifests.

use super::{report, root};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Crates by the crates that they use.
type Arrows = BTreeMap<String, BTreeSet<String>>;

/// The table under "Crates and arrows".
fn written(architecture: &str) -> Arrows {
    let (_, part) = architecture
        .split_once("## Crates and arrows")
        .expect("ARCHITECTURE.md has the heading");
    let part = part.split("\n## ").next().unwrap_or_default();
    let names = |cell: &str| {
        let names = cell.split('`').skip(1).step_by(2);
        names.map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let mut arrows = Arrows::new();
    for row in part.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = row.split('|').collect();
        for name in names(cells[1]) {
            let before = arrows.insert(name.clone(), names(cells[2]));
            assert!(before.is_none(), "ARCHITECTURE.md has two rows of {name}");
        }
    }
    arrows
}

/// What the manifests say, dev-dependencies left out.
fn used() -> Arrows {
    let mut arrows = Arrows::new();
    for entry in fs::read_dir(root().join("crates")).expect("crates/ is there") {
        let folder = entry.expect("crates/ is readable").path();
        let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml")) else {
            continue;
        };
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        assert!(
            manifest.contains(&format!("name = \"tidegate-{name}\"")),
            "crates/{name} is not named tidegate-{name}"
        );
        let used = own_dependencies(&manifest).into_iter().collect();
        arrows.insert(name.into_owned(), used);
    }
    arrows
}

/// The names of our own crates in the dependency tables of a manifest, dev-dependencies left out.
fn own_dependencies(manifest: &str) -> Vec<String> {
    let mut counts = false;
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if let Some(table) = line.strip_prefix('[') {
            let table = table.trim_end_matches(']');
            counts = table.contains("dependencies") && !table.contains("dev-dependencies");
            if counts && let Some((_, name)) = table.split_once("dependencies.tidegate-") {
                found.push(name.to_owned());
            }
        } else if counts && let Some(rest) = line.strip_prefix("tidegate-") {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_');
            found.push(rest[..end.unwrap_or(rest.len())].to_owned());
        }
    }
    found
}

#[test]
fn dependencies_are_found_in_every_form_of_table() {
    let manifest = "[dependencies]\ntidegate-wire = { path = \"../wire\" }\nlibc = \"0.2\"\n\
        [dependencies.tidegate-sched]\npath = \"../sched\"\n[dev-dependencies]\n\
        tidegate-sim = \"1\"\n[target.'cfg(unix)'.dependencies]\ntidegate-mount.path = \"m\"\n";
    assert_eq!(own_dependencies(manifest), ["wire", "sched", "mount"]);
}

#[test]
fn crates_use_what_the_architecture_says() {
    let architecture = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("it is there");
    let (written, used) = (written(&architecture), used());
    let mut problems = Vec::new();
    for name in written.keys().chain(used.keys()).collect::<BTreeSet<_>>() {
        match (written.get(name), used.get(name)) {
            (Some(written), Some(used)) if written != used => problems.push(format!(
                "{name} uses {used:?}, and ARCHITECTURE.md says {written:?}"
            )),
            (None, _) => problems.push(format!("{name} has no row in ARCHITECTURE.md")),
            (_, None) => problems.push(format!("there is no crate {name}")),
            _ => {}
        }
    }
    report(
        problems,
        "move the code to where it may stand, or argue for another arrow in the table \"Crates and \
         arrows\" of ARCHITECTURE.md",
    );
}

#[test]
fn the_scheduler_has_no_dependencies() {
    let manifest = fs::read_to_string(root().join("crates/sched/Cargo.toml")).expect("it exists");
    let mut tables = manifest
        .split("\n[")
        .filter(|table| table.starts_with("dependencies]"));
    let entries = tables.next().map_or(0, |table| {
        table
            .lines()
            .skip(1)
            .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
            .count()
    });
    assert_eq!(
        entries, 0,
        "crates/sched/Cargo.toml names a dependency; sched has none, ever"
    );
}
