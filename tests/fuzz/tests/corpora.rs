//! Replays the inputs that `fuzz/corpus` keeps.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use tidegate_fuzzed::ALL;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// The inputs of a file: a line of hexadecimal digits each. A line that begins with `#` says what
/// the next ones are.
fn inputs(text: &str) -> Vec<Vec<u8>> {
    let digits = |line: &str| {
        let pairs = line.as_bytes().chunks(2);
        let pairs = pairs.map(|pair| {
            let pair = std::str::from_utf8(pair).expect("digits");
            u8::from_str_radix(pair, 16).expect("digits")
        });
        pairs.collect()
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(digits).collect()
}

#[test]
fn what_was_found_once_stays_mended() {
    for target in ALL {
        let path = folder().join(format!("corpus/{}.hex", target.name));
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let inputs = inputs(&text);
        assert!(!inputs.is_empty(), "{} has no input", path.display());
        for (number, input) in inputs.iter().enumerate() {
            let failed = catch_unwind(|| target.check(input)).is_err();
            assert!(!failed, "input {number} of {}", path.display());
        }
    }
}

#[test]
fn overflows_and_assertions_are_looked_for() {
    let sum = || black_box(u8::MAX) + black_box(1);
    assert!(catch_unwind(sum).is_err(), "sums overflow in silence");
    let asserts = || debug_assert!(black_box(false), "it is meant to");
    assert!(catch_unwind(asserts).is_err(), "assertions are left out");
}

#[test]
fn each_target_has_a_fuzzer_and_a_corpus_and_they_are_small() {
    let names = |folder: PathBuf| -> BTreeSet<String> {
        let entries = std::fs::read_dir(&folder).expect("it is there");
        let names = entries.map(|entry| entry.expect("it is readable").path());
        let stems = names.map(|path| path.file_stem().map(|it| it.to_string_lossy().into_owned()));
        stems.flatten().collect()
    };
    let all: BTreeSet<String> = ALL.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(names(folder().join("fuzz_targets")), all);
    assert_eq!(names(folder().join("corpus")), all);
    let text = |path: &str| std::fs::read_to_string(folder().join(path)).expect("it is there");
    let (manifest, table) = (text("Cargo.toml"), text("../CONTRIBUTING.md"));
    for name in all {
        let path = format!("path = \"fuzz_targets/{name}.rs\"");
        assert!(manifest.contains(&path), "fuzz/Cargo.toml lacks {path}");
        let row = format!("\n| `{name}` |");
        assert!(
            table.contains(&row),
            "CONTRIBUTING.md does not say what {name} is for"
        );
    }
    let files = std::fs::read_dir(folder().join("corpus")).expect("it is there");
    let bytes: u64 = files
        .map(|file| {
            file.and_then(|file| file.metadata())
                .map_or(0, |it| it.len())
        })
        .sum();
    assert!(bytes < 1 << 20, "fuzz/corpus has {bytes} bytes");
}
