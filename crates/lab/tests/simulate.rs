//! The commands around the simulator: `sim` records and replays, `report` writes what came of it
//! and nothing in the place of other files.

mod programs;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering};

/// A folder with a scenario in it.
struct Scratch(PathBuf);

const SCENARIO: &str = r#"
title = "Two programs"
paper = "A paper, figure 1"
protocol = "closed loop"
policies = ["fifo", "window"]
network = { preset = "gigabit-ethernet" }
forwarders = { count = 2, stripe = "64 KiB" }
device = { model = "hdd-7200", rotation_seed = 1 }
application = [
    { name = "reader", workload = "ior", processes = 2, processes_per_node = 1, request = "1 MiB",
      requests = 8 },
    { name = "writer", workload = "ior", request = "256 KiB", requests = 8, direction = "write" },
]
notes = "A note."
[figure]
metric = "application_completion_mean"
also = ["makespan", "bandwidth", "stretch_max"]
alone = true
[[claim]]
metric = "makespan"
policy = "window"
against = "fifo"
paper = -5.0
min = 1000.0
why = "It is not so."
"#;

impl Scratch {
    fn new() -> Scratch {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-simulate-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("the temporary directory is ours");
        let scratch = Scratch(path);
        scratch.write("two.toml", SCENARIO);
        scratch
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).expect("the directory is ours");
    }

    fn read(&self, name: &str) -> String {
        let path = self.0.join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    fn tidegate(&self, arguments: &[&str]) -> Output {
        let program = match arguments[0] {
            "trace" => programs::tidegate(),
            _ => programs::lab(),
        };
        Command::new(program)
            .args(arguments)
            .current_dir(&self.0)
            .output()
            .expect("the command is built")
    }

    fn run(&self, arguments: &[&str]) -> String {
        let output = self.tidegate(arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).expect("it prints text")
    }

    /// The exit code and the one line of a command that does not work.
    fn refusal(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.tidegate(arguments);
        let errors = String::from_utf8(output.stderr).expect("it prints text");
        assert_eq!(errors.lines().count(), 1, "{arguments:?}: {errors}");
        assert!(errors.starts_with("tidegate: "), "{errors}");
        (output.status.code().expect("it ends by itself"), errors)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn parsed(json: &str) -> Value {
    serde_json::from_str(json).expect("it is JSON")
}

fn metric(findings: &Value, policy: &str, metric: &str) -> f64 {
    let values = &findings["series"][0]["points"][0]["policies"][policy];
    values[metric].as_f64().expect("it was measured")
}

#[test]
fn a_replay_has_the_shuffles_of_collective_reads() {
    let scratch = Scratch::new();
    scratch.run(&["sim", "liu-2013-fig4", "--record", "traces"]);
    // Whatever order they were recorded in, `hio` gains what it gains in the scenario.
    let trace = "traces/liu-2013-fig4-6-fifo.trace";
    let compared = "window,hio";
    let replay = ["sim", "--trace", trace, "--policies", compared, "--json"];
    let replayed = parsed(&scratch.run(&replay));
    let of = |policy| metric(&replayed, policy, "application_completion_mean");
    let (window, hio) = (of("window"), of("hio"));
    assert!(hio < window * 0.9, "{hio} against {window} ms");
}

#[test]
fn a_recorded_run_can_be_replayed() {
    let scratch = Scratch::new();
    let recorded = parsed(&scratch.run(&["sim", "two.toml", "--record", "traces", "--json"]));
    let summary = ["trace", "summarise", "traces/two-fifo.trace", "--json"];
    let summary = parsed(&scratch.run(&summary));
    assert_eq!(summary["total"]["read_bytes"], 16 << 20);
    assert_eq!(summary["total"]["write_bytes"], 2 << 20);
    let applications = summary["applications"].as_array().expect("a list").iter();
    let mut names: Vec<_> = applications.map(|app| app["name"].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, [Some("reader"), Some("writer")]);

    for policy in ["fifo", "window"] {
        let (head, rest) = SCENARIO.split_once("application = [").expect("it is there");
        let (_, rest) = rest.split_once("]\nnotes").expect("it is there");
        let (rest, _) = rest.split_once("[[claim]]").expect("it is there");
        let replay = format!(
            "{head}application = [{{ workload = \"trace\", processes_per_node = 1, \
             files = [\"traces/two-{policy}.trace\"] }}]\nnotes{rest}"
        );
        scratch.write("replay.toml", &replay);
        let replayed = parsed(&scratch.run(&["sim", "replay.toml", "--json"]));
        let bytes = |findings: &Value| {
            metric(findings, policy, "bandwidth") * metric(findings, policy, "makespan") / 1000.0
        };
        assert!(
            (bytes(&recorded) - 18.874368).abs() < 1e-6,
            "{}",
            bytes(&recorded)
        );
        assert!((bytes(&recorded) - bytes(&replayed)).abs() < 1e-6);
        let completion = |findings: &Value| metric(findings, policy, "application_completion_mean");
        let ratio = completion(&replayed) / completion(&recorded);
        assert!((0.97..1.03).contains(&ratio), "{policy}: {ratio}");
    }
}

#[test]
fn traces_are_replayed_without_a_scenario() {
    let scratch = Scratch::new();
    scratch.run(&["sim", "two.toml", "--record", "traces"]);
    let trace = "traces/two-fifo.trace";
    let text = scratch.run(&["sim", "--trace", trace, "--pace", "closed"]);
    for policy in tidegate_sched::policies::NAMES {
        assert!(text.contains(policy), "{text}");
    }
    let other = "traces/two-window.trace";
    let beside = [
        "sim",
        "--trace",
        trace,
        "--trace",
        other,
        "--policies",
        "fifo",
        "--speed",
        "2",
        "--json",
        "--forwarders",
        "3",
        "--device",
        "ssd-pcie",
        "--network",
        "ideal",
    ];
    let both = parsed(&scratch.run(&beside));
    assert_eq!(both["policies"].as_array().map(Vec::len), Some(1));
    let moved = metric(&both, "fifo", "bandwidth") * metric(&both, "fifo", "makespan") / 1000.0;
    assert!((moved - 2.0 * 18.874368).abs() < 1e-6, "{moved}");

    // The text is a scenario of its own.
    let shown = scratch.run(&["sim", "--show", "--trace", trace]);
    scratch.write("shown.toml", &shown);
    assert_eq!(
        scratch.run(&["sim", "--trace", trace]).split_once(": "),
        scratch
            .run(&["sim", "shown.toml"])
            .replacen("shown", "replay", 1)
            .split_once(": ")
    );
    let (code, line) = scratch.refusal(&["sim", "--trace", "absent.trace"]);
    assert!(code == 2 && line.contains("absent.trace"), "{line}");
    let (code, line) = scratch.refusal(&["sim", "--trace", trace, "--policies", "best"]);
    assert!(code == 2 && line.contains("best"), "{line}");
    let (code, line) = scratch.refusal(&["sim", "two.toml", "--speed", "2"]);
    assert!(code == 2 && line.contains("--trace"), "{line}");
}

#[test]
fn the_speed_of_a_run_is_said_apart_from_its_output() {
    let scratch = Scratch::new();
    let plain = scratch.run(&["sim", "two.toml", "--json"]);
    let timed = scratch.tidegate(&["sim", "two.toml", "--json", "--timing", "--threads", "1"]);
    assert!(timed.status.success());
    assert_eq!(String::from_utf8_lossy(&timed.stdout), plain);
    let said = String::from_utf8(timed.stderr).expect("it prints text");
    assert_eq!(said.lines().count(), 1, "{said}");
    let events = said.strip_prefix("two: ").and_then(|it| it.split_once(' '));
    let events: u64 = events.expect(&said).0.parse().expect(&said);
    assert!(events > 1000, "{said}");
    assert!(
        said.contains(" s on 1 thread: ") && said.contains("million each second and thread"),
        "{said}"
    );
}

#[test]
fn without_a_scenario_one_is_told_how_to_find_them() {
    let scratch = Scratch::new();
    for arguments in [&["sim"][..], &["sim", "--show"], &["sim", "--json"]] {
        let (code, line) = scratch.refusal(arguments);
        assert!(
            code == 2 && line.contains("`tidegate sim --list`"),
            "{line}"
        );
    }
}

#[test]
fn a_report_shows_what_came_of_a_scenario() {
    let scratch = Scratch::new();
    let said = scratch.run(&["report", "two.toml"]);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(
        lines,
        [
            "wrote report.html",
            "Numbers of papers: 1 (0 reproduced, 1 differ, 0 not comparable).",
            "Claims: 1 (1 test a policy, 0 describe); 1 do not hold; 0 that test a policy hold as \
             well when it is replaced by its baseline.",
            "two: makespan, ms under window, change against fifo in %: does not hold.",
        ]
    );
    let checked = scratch.tidegate(&["report", "two.toml", "--check"]);
    assert_eq!(checked.status.code(), Some(1));
    let page = scratch.read("report.html");
    for part in [
        "two: Two programs",
        "A paper, figure 1",
        "DOES NOT HOLD",
        "It is not so.",
        "<svg",
    ] {
        assert!(page.contains(part), "{part}");
    }
    // Again, of results that were printed before.
    let json = scratch.run(&["sim", "two.toml", "--json"]);
    scratch.write("two.json", &json);
    let from = [
        "report",
        "--from",
        "two.json",
        "--markdown",
        "a.md",
        "--svg",
        "figures",
    ];
    scratch.run(&from);
    scratch.run(&["report", "two.toml", "--markdown", "b.md", "--threads", "1"]);
    let without = |name: &str| {
        let text = scratch.read(name);
        text.split_once("\n## ").expect("a section").1.to_string()
    };
    assert_eq!(without("a.md"), without("b.md"));
    let figures = std::fs::read_dir(scratch.0.join("figures")).expect("it was made");
    assert_eq!(figures.count(), 2);
    let text = without("a.md");
    assert!(text.contains("| -5 |"), "{text}");
}

#[test]
fn a_cut_trace_is_replayed_with_a_warning_that_a_report_shows() {
    let scratch = Scratch::new();
    scratch.run(&["sim", "two.toml", "--record", "traces"]);
    let path = scratch.0.join("traces/two-fifo.trace");
    let bytes = std::fs::read(&path).expect("it was recorded");
    std::fs::write(&path, &bytes[..bytes.len() / 2 - 3]).expect("it is ours");
    let arguments = ["sim", "--trace", "traces/two-fifo.trace", "--json"];
    let output = scratch.tidegate(&arguments);
    assert!(output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let warning = "traces/two-fifo.trace: the trace is cut short amid a record";
    assert!(
        said.starts_with("tidegate: replay: ") && said.contains(warning),
        "{said}"
    );
    let json = String::from_utf8(output.stdout).expect("it prints text");
    let said = parsed(&json)["warnings"][0].to_string();
    assert!(said.contains(warning), "{said}");
    scratch.write("cut.json", &json);
    scratch.run(&["report", "--from", "cut.json", "--markdown", "cut.md"]);
    let text = scratch.read("cut.md");
    assert!(
        text.contains("- Warning: traces/two-fifo.trace: "),
        "{text}"
    );
}

#[test]
fn a_report_of_traces_shows_their_summary() {
    let scratch = Scratch::new();
    scratch.run(&["sim", "two.toml", "--record", "traces"]);
    let said = scratch.run(&[
        "report",
        "traces/two-fifo.trace",
        "--output",
        "t.html",
        "--json",
    ]);
    assert_eq!(parsed(&said)["written"][0], "t.html");
    let page = scratch.read("t.html");
    for part in ["reader", "writer", "service mean", "288 requests"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    scratch.run(&["report", "traces/", "--markdown", "folder.md"]);
    let page = scratch.read("folder.md");
    assert!(page.contains("576 requests in 2 traces"), "{page}");
}

#[test]
fn other_files_and_full_disks_are_safe() {
    let scratch = Scratch::new();
    scratch.write("thesis.html", "years of work");
    let json = scratch.run(&["sim", "two.toml", "--json"]);
    scratch.write("two.json", &json);
    let report =
        |output: &str| ["report", "--from", "two.json", "--output", output].map(str::to_string);
    let refusal = |output: &str| {
        let arguments = report(output);
        scratch.refusal(&arguments.each_ref().map(String::as_str))
    };
    let (code, line) = refusal("thesis.html");
    assert!(
        code == 2 && line.contains("thesis.html") && line.contains("--force"),
        "{line}"
    );
    assert_eq!(scratch.read("thesis.html"), "years of work");
    let (code, line) = refusal("no/such/folder.html");
    assert!(code == 2 && line.contains("no/such"), "{line}");
    let (code, line) = refusal(".");
    assert!(code == 2 && line.contains("folder"), "{line}");
    if Path::new("/dev/full").exists() {
        let (code, line) = refusal("/dev/full");
        assert!(
            code == 1 && line.contains("/dev/full") && line.contains("room"),
            "{line}"
        );
    }
    scratch.run(&[
        "report",
        "--from",
        "two.json",
        "--output",
        "thesis.html",
        "--force",
    ]);
    // It is a report now.
    scratch.run(&["report", "--from", "two.json", "--output", "thesis.html"]);
    let (code, line) = scratch.refusal(&["report", "--from", "two.toml"]);
    assert!(code == 2 && line.contains("two.toml:"), "{line}");
    let (code, line) = scratch.refusal(&["report", "absent.trace"]);
    assert!(code == 2 && line.contains("absent.trace"), "{line}");
    let (code, line) = scratch.refusal(&["report"]);
    assert!(code == 2 && line.contains("SCENARIO"), "{line}");
}

#[test]
fn a_list_that_nobody_reads_to_its_end_is_no_error() {
    let (reader, writer) = std::io::pipe().expect("room");
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate-lab"));
    let done = command.args(["sim", "--list"]).stdout(writer).output();
    let done = done.expect("the command is built");
    let errors = String::from_utf8_lossy(&done.stderr);
    assert_eq!((done.status.code(), &*errors), (Some(0), ""));
}
