//! The benchmarks and the demo as commands: what is counted must hold; what is timed must only run,
//! because a busy machine proves nothing.

mod programs;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A directory for one test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
        std::fs::create_dir(&dir).expect("a directory of our own");
        Scratch(dir)
    }

    fn is_empty(&self) -> bool {
        std::fs::read_dir(&self.0)
            .expect("it is there")
            .next()
            .is_none()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn lab(arguments: &[&str], dir: &Path) -> Command {
    // Benchmarks start it.
    programs::tidegate();
    let mut command = Command::new(programs::lab());
    command
        .args(arguments)
        .arg("--dir")
        .arg(dir)
        .stdin(Stdio::null());
    command
}

/// Runs a command to its end, which must be good and leave nothing behind.
fn run(name: &str, arguments: &[&str]) -> Output {
    let scratch = Scratch::new(name);
    let output = lab(arguments, &scratch.0).output().expect("it can be run");
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{arguments:?}: {}\n{text}\n{errors}",
        output.status
    );
    assert!(scratch.is_empty(), "{arguments:?} left something behind");
    output
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).expect("one JSON value")
}

fn can_mount() -> bool {
    let fuse = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse");
    if let Err(error) = &fuse {
        println!("SKIP: /dev/fuse: {error}");
    }
    fuse.is_ok()
}

#[test]
fn round_robin_makes_at_most_a_quarter_of_the_calls() {
    let found = json(&run(
        "hbrr",
        &["bench", "hbrr", "--quick", "--check", "--json"],
    ));
    let claims = found["claims"].as_array().expect("a list");
    assert!(claims.len() == 2 && claims.iter().all(|claim| claim["holds"] == true));
    let rows = found["rows"].as_array().expect("a list");
    // Three loads, written and read, with one forwarder and with four.
    assert_eq!(rows.len(), 12);
    for row in rows {
        assert!(row["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0));
    }
    assert_eq!(rows[0]["fifo"]["calls"], 256.0);
}

#[test]
fn both_ways_to_know_what_overlaps_agree() {
    let scratch = Scratch::new("overlap-page");
    let page = scratch.0.join("overlap.md");
    let page = page.to_str().expect("made of plain text");
    let arguments = [
        "bench", "overlap", "--quick", "--check", "--json", "--write", page,
    ];
    let found = json(&run("overlap", &arguments));
    let rows = found["rows"].as_array().expect("a list");
    assert_eq!(rows.len(), 6);
    for row in rows {
        assert_eq!(row["same_answers"], true);
    }
    let text = std::fs::read_to_string(page).expect("the page was written");
    assert!(text.contains("| sequential | 512 | 0 % |"), "{text}");
}

#[test]
fn song_s_figure_runs_with_both_policies() {
    let arguments = ["bench", "song-2011-fig5", "--quick", "--json"];
    let found = json(&run("song", &arguments));
    // A device takes 1 ms for each of its 80 blocks, one at a time, and eight belong to each
    // application; a busy machine only makes it longer.
    for policy in ["fifo", "window"] {
        let ms = |what: &str| found["measured"][policy][what].as_f64().expect("a number");
        let (first, mean, all) = (ms("first_ms"), ms("completion_ms"), ms("makespan_ms"));
        assert!(all >= 80.0, "{policy}: {all}");
        assert!((44.0..=all).contains(&mean), "{policy}: {mean} of {all}");
        assert!((1.0..=mean).contains(&first), "{policy}: {first} of {mean}");
    }
    // The paper's other number names the same run.
    let text = run("song3", &["bench", "song-2011-fig3", "--quick", "--ssd"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("3.1 -> 1.2"), "{text}");
}

#[test]
fn the_cost_of_recording_is_measured() {
    let found = json(&run("tracing", &["bench", "tracing", "--quick", "--json"]));
    assert_eq!(found["comparisons"], 2);
    assert!(found["records"].as_u64().is_some_and(|records| records > 0));
    for side in ["off", "on"] {
        let rate = found[side]["requests_per_second"].as_f64();
        assert!(rate.is_some_and(|rate| rate > 0.0), "{side}: {rate:?}");
    }
    assert!(found["throughput_change_percent"].is_number());
}

#[test]
fn each_way_of_pipelining_moves_all_bytes() {
    let arguments = ["bench", "pipelining", "--quick", "--json"];
    let found = json(&run("pipelining", &arguments));
    for access in ["write", "read"] {
        for way in ["none", "serial", "parallel"] {
            let rate = found[access][way]["mb_per_second"].as_f64();
            // The device takes 4 ms for the 4 MiB.
            let possible = rate.is_some_and(|rate| rate > 0.0 && rate < 1024.0);
            assert!(possible, "{access} {way}: {rate:?}");
        }
    }
}

#[test]
fn three_loads_run_live_and_in_virtual_time() {
    let found = json(&run("models", &["bench", "models", "--quick", "--json"]));
    let pairs = found["pairs"].as_array().expect("it has a list");
    // Two devices, two policies and two metrics of each load.
    assert_eq!(pairs.len(), 3 * 8, "{found}");
    assert_eq!(found["repetitions"], 1);
    for pair in pairs {
        assert_eq!(
            pair["rounds_ms"].as_array().map(Vec::len),
            Some(1),
            "{pair}"
        );
        let ms = |side: &str| pair[side].as_f64().expect("a number");
        assert!(ms("live_ms") > 0.0 && ms("virtual_ms") > 0.0, "{pair}");
        // A busy machine only makes it longer; how long a disk takes once is chance.
        if pair["device"] == "slow ssd" {
            assert!(ms("live_ms") > 0.8 * ms("virtual_ms"), "{pair}");
        }
    }
}

#[test]
fn a_forwarder_s_memory_is_bounded() {
    let arguments = ["bench", "memory", "--quick", "--check", "--json"];
    let found = json(&run("memory", &arguments));
    let claims = found["claims"].as_array().expect("a list");
    assert!(claims.len() == 2 && claims.iter().all(|claim| claim["holds"] == true));
}

#[test]
fn the_page_of_performance_is_written() {
    let pages = Scratch::new("page");
    let page = pages.0.join("performance.md");
    let page_word = page.display().to_string();
    let mut arguments = vec!["bench", "performance", "--quick"];
    arguments.extend(["--write", &page_word, "--instructions", "/dev/null"]);
    run("performance", &arguments);
    let text = std::fs::read_to_string(&page).expect("it was written");
    for row in [
        "| 1 MiB write, 8 clients |",
        "| 4 KiB read, 32 in flight |",
        "| 1 MiB read, 8 in flight |",
        "| direct | client | in place | socket | TCP |",
    ] {
        assert!(text.contains(row), "{row} is not in {text}");
    }
    assert!(text.contains("make bench"), "{text}");
}

#[test]
fn names_are_measured_on_every_way_that_there_is() {
    let pages = Scratch::new("names-page");
    let page = pages.0.join("performance.md");
    std::fs::write(&page, "# Page\n\n## Scheduling\n").expect("a file");
    let page_word = page.display().to_string();
    let arguments = ["bench", "names", "--quick", "--json", "--write", &page_word];
    let found = json(&run("names", &arguments));
    let rows = found["rows"].as_array().expect("a list");
    assert_eq!(rows.len(), 15);
    let mut columns = vec!["plain"];
    if can_mount() {
        columns.extend(["mount", "mount, 4"]);
    }
    for column in columns {
        let us = rows[0]["us"][column].as_f64();
        assert!(us.is_some_and(|us| us > 0.0), "{column}: {us:?}");
    }
    let text = std::fs::read_to_string(&page).expect("it was written");
    assert!(text.contains("| readdir, an entry |"), "{text}");
}

#[test]
fn the_demo_runs_and_explains_itself() {
    if !can_mount() {
        return;
    }
    let output = run("demo", &["demo", "--quick", "--repetitions", "1"]);
    let text = String::from_utf8_lossy(&output.stdout);
    for word in ["small job", "large job", "What to expect", "cannot do"] {
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn a_benchmark_that_is_interrupted_cleans_up() {
    let scratch = Scratch::new("interrupted");
    let mut child = lab(&["bench", "song-2011-fig5"], &scratch.0)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it can be run");
    let until = Instant::now() + Duration::from_secs(30);
    let place = scratch.0.join(format!("tidegate-bench-{}", child.id()));
    while !place.join("song.data/file.9.0").exists() {
        assert!(Instant::now() < until, "it did not come up");
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it lives");
    let status = child.wait().expect("it is our child");
    assert_eq!(status.code(), Some(130));
    assert!(scratch.is_empty(), "something was left behind");
}

#[test]
fn shares_are_measured_beside_fifo_second_by_second() {
    let output = run("shares", &["bench", "shares", "--quick", "--json"]);
    let result = json(&output);
    let phases = result["phases"].as_array().expect("two phases");
    let policies: Vec<_> = phases.iter().map(|phase| &phase["policy"]).collect();
    assert_eq!(policies, ["fifo", "two-level"]);
    for phase in phases {
        assert_eq!(phase["depth"].as_array().map(Vec::len), Some(6));
        for job in phase["jobs"].as_array().expect("two jobs") {
            let seconds = job["seconds"].as_array().expect("six seconds");
            let got: f64 = seconds.iter().filter_map(|it| it["mb_s"].as_f64()).sum();
            // Long enough to say how often promises were kept.
            assert!(job["kept_percent"].is_number(), "{job}");
            assert!(seconds.len() == 6 && got > 0.0, "{job}");
        }
    }
}
