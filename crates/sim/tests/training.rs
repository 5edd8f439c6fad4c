//! Policies that are shown the load before they are measured, in small scenarios.

use tidegate_sched::CostModel;
use tidegate_sim::result::{Metric, Outcome};
use tidegate_sim::runner;
use tidegate_sim::scenario::Scenario;

/// Four programs of which each call is several requests, on disks that take all at once: only who
/// waits finds something to join.
const TEXT: &str = r#"
title = "t"
protocol = "closed loop"
policies = ["aioli"]
network = { preset = "gigabit-ethernet" }
forwarders = { count = 2, stripe = "32 KiB", payload_max = "8 KiB", merge_blocks = false }
device = { model = "hdd-7200", depth = 4096 }
figure = { metric = "makespan" }
application = [{ workload = "ior", pattern = "strided", copies = 4, processes = 4,
    request = "16 KiB", requests = 16, barrier = true, start_spread = "10 ms" }]
policy = [
    { policy = "aioli", label = "recorded", prediction = "recorded", traces = 2 },
    { policy = "aioli", label = "other", prediction = "recorded", traces = 2, traces_of = "reads" },
    { policy = "aioli", label = "online", prediction = "online", rehearsals = 1 },
]
series = [
    { name = "writes", set = { "application.direction" = "write" } },
    { name = "reads" },
]
[[claim]]
over = ["writes", "reads"]
metric = "aggregation_requests"
policy = "recorded"
min = 3
tests = "describes"
"#;

fn parsed(text: &str) -> Result<Scenario, String> {
    Scenario::parse(text, "t.toml", "t").map_err(|error| error.to_string())
}

fn outcome() -> Outcome {
    let scenario = parsed(TEXT).expect("it is right");
    runner::run(&scenario, 2, &|_, _| {}).expect("it runs")
}

#[test]
fn a_policy_that_has_seen_the_load_joins_more_of_it() {
    let outcome = outcome();
    let joined = |series, policy| outcome.get(series, 0, policy, Metric::AggregationRequests);
    assert_eq!(joined(0, 0), 1.0, "without prediction nothing is joined");
    assert!(joined(0, 1) > 3.5, "recorded: {}", joined(0, 1));
    assert_eq!(joined(0, 2), 1.0, "no write is in a trace of reads");
    assert!(joined(1, 2) > 3.0, "the same series: {}", joined(1, 2));
    assert!(joined(0, 3) > 2.0, "online: {}", joined(0, 3));
    let mean = (joined(0, 1) + joined(1, 1)) / 2.0;
    let verdict = &outcome.verdicts[0];
    assert!(verdict.holds && verdict.ours == mean, "{verdict:?}");
    assert!(verdict.text.ends_with("mean over \"writes\", \"reads\""));
}

#[test]
fn rehearsals_are_not_measured() {
    let outcome = outcome();
    let makespan = |policy| outcome.get(0, 0, policy, Metric::Makespan);
    assert!(makespan(3) < 1.1 * makespan(0), "one pass is measured");
}

#[test]
fn two_runs_are_the_same() {
    // As text: what was not measured equals nothing.
    let all = |outcome: &Outcome| -> Vec<String> {
        (0..4)
            .map(|policy| format!("{:?}", outcome.at(0, 0, policy)))
            .collect()
    };
    assert_eq!(all(&outcome()), all(&outcome()));
}

#[test]
fn what_cannot_be_is_refused() {
    for (from, to, said) in [
        (
            "traces_of = \"reads\"",
            "traces_of = \"no\"",
            "there is no series \"no\"",
        ),
        ("traces = 2,", "traces = 0,", "traces: takes 1 to 64"),
        (
            "rehearsals = 1",
            "rehearsals = 65",
            "rehearsals: takes 0 to 64",
        ),
        (
            "rehearsals = 1",
            "traces = 1",
            "traces: is for prediction = \"recorded\"",
        ),
        (
            "\"writes\", \"reads\"]",
            "\"no\"]",
            "claim[0].over: there is no series \"no\"",
        ),
    ] {
        let error = parsed(&TEXT.replace(from, to)).expect_err(to);
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn costs_are_those_of_the_device_unless_told() {
    let told = |cost: &str| format!("cost = {{ {cost} }}\n{TEXT}");
    let base = |text: &str| {
        let scenario = parsed(text).expect("it is right");
        scenario.series[0].points[0]
            .machine
            .cost()
            .write_random
            .base_ns
    };
    assert!((12_000_000..13_500_000).contains(&base(TEXT)));
    assert_eq!(base(&told("write_random_base_ns = 7")), 7);
    for (cost, said) in [
        ("write_base_ns = 7", "cost.write_base_ns: "),
        ("write_random_base_ns = -1", "takes a whole number"),
        (
            "read_random_base_ns = 9223372036854775807",
            "cost.read_random_base_ns: ",
        ),
    ] {
        let error = parsed(&told(cost)).expect_err(cost);
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn costs_can_be_those_of_a_file() {
    let name = format!("tidegate-sim-{}.cost", std::process::id());
    let path = std::env::temp_dir().join(name);
    let mut model = CostModel::default();
    model.write_random.base_ns = 70;
    std::fs::write(&path, format!("# measured\n{model}")).expect("a temporary file");
    let told = |cost: &str| parsed(&format!("cost = {{ {cost} }}\n{TEXT}"));
    let cost = |cost: &str| {
        let scenario = told(cost).expect("it is right");
        *scenario.series[0].points[0].machine.cost()
    };
    let file = format!("file = {:?}", path.display().to_string());
    assert_eq!(cost(&file), model);
    // Numbers beside it are others than those of the file.
    let both = cost(&format!("{file}, write_random_base_ns = 7"));
    assert_eq!(both.write_random.base_ns, 7);
    assert_eq!(both.read_random, model.read_random);
    std::fs::write(&path, "read_random_base_ns = 1\n").expect("a temporary file");
    for (cost, said) in [
        (
            &*file,
            "read_random_ns_per_mib is missing; `tidegate calibrate",
        ),
        (
            "file = \"/nowhere/a.cost\"",
            "/nowhere/a.cost: No such file",
        ),
        ("file = \"/dev/null\"", "/dev/null: is not a file"),
        ("file = 3", "cost.file: takes the name of a file"),
    ] {
        let error = told(cost).expect_err(cost);
        assert!(error.contains(said), "{error}");
    }
    let _ = std::fs::remove_file(&path);
}
