//! `tidegate check`: alone, two over one directory, and one that waits in vain.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A directory that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a fresh directory in the temporary one");
        Scratch(path)
    }

    fn assert_empty(&self) {
        let left: Vec<_> = std::fs::read_dir(&self.0).expect("it is there").collect();
        assert!(left.is_empty(), "left over: {left:?}");
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn start(dir: &Path, options: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("check")
        .arg(dir)
        .args(options)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command is built")
}

fn end(child: Child) -> (Output, String) {
    let output = child.wait_with_output().expect("it ends");
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    (output, String::from_utf8(all).expect("it is text"))
}

#[test]
fn alone_it_judges_one_node_and_leaves_nothing() {
    let scratch = Scratch::new("check-alone");
    let (output, text) = end(start(&scratch.0, &[]));
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("\none node: fit\n"), "{text}");
    assert!(text.contains("\nseveral nodes: not tried; start"), "{text}");
    assert!(text.contains("\nsettings: "), "{text}");
    scratch.assert_empty();
}

#[test]
fn two_over_one_mount_say_nothing_of_several_nodes() {
    let scratch = Scratch::new("check-two");
    let options = ["--nodes", "2", "--seconds-max", "60"];
    let json = [&options[..], &["--json"]].concat();
    let mut led = 0;
    for options in [&options[..], &json] {
        let (one, two) = (start(&scratch.0, options), start(&scratch.0, options));
        for child in [one, two] {
            let (output, text) = end(child);
            assert_eq!(output.status.code(), Some(1), "{text}");
            let told = String::from_utf8(output.stdout).expect("it is text");
            if !options.contains(&"--json") {
                let says = "\nseveral nodes: not tried: all instances used one mount of one node";
                assert!(told.contains(says), "{text}");
                assert!(told.contains("\none node: fit\n"), "{text}");
                continue;
            }
            let told: serde_json::Value = serde_json::from_str(&told).expect("it is JSON");
            assert_eq!(told["fit_several_nodes"], serde_json::Value::Null, "{text}");
            assert_eq!(told["fit_several_nodes_with_etcd"], false, "{text}");
            assert_eq!(told["one_mount"], true, "{text}");
            if told["led"] == true {
                led += 1;
                assert_eq!(told["nodes"].as_array().map(Vec::len), Some(2));
                let rows = told["properties"].as_array().expect("a list");
                let sizes = rows.iter().find(|row| row["property"] == "sizes");
                assert_eq!(sizes.expect("it was tried")["found"], "yes", "{text}");
            }
        }
    }
    assert_eq!(led, 1);
    scratch.assert_empty();
}

#[test]
fn who_does_not_come_and_who_dies_is_told_in_time() {
    let scratch = Scratch::new("check-lost");
    let began = Instant::now();
    let (output, text) = end(start(&scratch.0, &["--nodes", "2", "--seconds-max", "5"]));
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("1 of 2 instances came"), "{text}");
    assert!(began.elapsed() < Duration::from_secs(20));
    scratch.assert_empty();
    // One is killed as by SIGKILL while it waits: what it leaves behind stops nobody.
    let mut killed = start(&scratch.0, &["--nodes", "2"]);
    let claim = scratch.0.join(".tidegate-check/claim.0");
    while !claim.exists() {
        assert!(began.elapsed() < Duration::from_secs(40), "no claim");
        std::thread::sleep(Duration::from_millis(10));
    }
    killed.kill().expect("it runs");
    killed.wait().expect("it ends");
    let options = ["--nodes", "2", "--seconds-max", "60"];
    let (one, two) = (start(&scratch.0, &options), start(&scratch.0, &options));
    for child in [one, two] {
        let (_, text) = end(child);
        assert!(text.contains("\nseveral nodes: not tried: all"), "{text}");
    }
    scratch.assert_empty();
}

#[test]
fn wrong_use_is_two() {
    for options in [
        &["--nodes", "0"][..],
        &["--dead-node"],
        &["--seconds-max", "1"],
    ] {
        let (output, text) = end(start(Path::new("/tmp"), options));
        assert_eq!(output.status.code(), Some(2), "{text}");
    }
    let (output, text) = end(start(Path::new("/nonexistent"), &[]));
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("/nonexistent: "), "{text}");
}
