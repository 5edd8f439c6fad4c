//! What a disk with a queue and a write cache of its own changes for a scenario.

use tidegate_sim::result::{Metric, Outcome};
use tidegate_sim::runner;
use tidegate_sim::scenario::Scenario;

/// Eight processes on scattered places of one disk. The scheduler has no order and merges nothing.
const TEXT: &str = r#"
title = "A disk that has a queue"
protocol = "closed loop"
network = { preset = "ethernet-100g" }
forwarders = { count = 1 }
device = { model = "hdd-ncq", unit_bytes = 4096, write_cache_bytes = 4194304 }
policy = [{ policy = "fifo", merge = false }]
application = [{ workload = "ior", processes = 32, request = "4 KiB", requests = 64 }]
figure = { metric = "makespan", also = ["utilisation"] }
vary = { key = "device.depth", values = [1, 8, 32] }
series = [
    { name = "reads" },
    { name = "writes", set = { "application.direction" = "write" } },
    { name = "synced", set = { "application.direction" = "write", "application.fsync" = true } },
    { name = "no queue", set = { "device.queue" = 1, "device.write_cache_bytes" = 0 } },
]
"#;

fn outcome(text: &str) -> Outcome {
    let scenario = Scenario::parse(text, "t.toml", "t").expect("it is right");
    runner::run(&scenario, 2, &|_, _| {}).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn depth_pays_where_the_disk_has_a_queue() {
    let outcome = outcome(TEXT);
    let makespan = |series, point| outcome.get(series, point, 0, Metric::Makespan);
    let [one, eight, many] = [0, 1, 2].map(|point| makespan(0, point));
    assert!(
        eight * 1.4 < one && many * 1.2 < eight,
        "{one} {eight} {many}"
    );
    // The order of arrival is the same at any depth.
    let [one, eight, many] = [0, 1, 2].map(|point| makespan(3, point));
    assert!((eight / one - 1.0).abs() < 0.02, "{one} {eight}");
    assert!((many / one - 1.0).abs() < 0.02, "{one} {many}");
    for series in 0..4 {
        let busy = outcome.get(series, 2, 0, Metric::Utilisation);
        assert!((0.0..=100.0).contains(&busy), "{series}: {busy}");
        assert!(series != 0 || busy > 95.0, "{busy}");
    }
}

/// Each of 8 processes of 4 programs writes a region of its own, 512 KiB apart on a disk whose
/// tracks have 648 KiB.
const SWEEP: &str = r#"
title = "A sweep that loses nearly a turn at each step"
protocol = "closed loop"
repetitions = 2
network = { preset = "gigabit-ethernet", jitter = "0.1 ms" }
forwarders = { count = 4, stripe = "32 KiB", payload_max = "8 KiB", merge_blocks = false }
device = { model = "hdd-7200", depth = 8 }
policies = ["fifo", "aioli"]
application = [{ workload = "mpi-io-test", copies = 4, start_spread = "100 ms", processes = 8,
    processes_per_node = 1, barrier = true, direction = "write", request = "16 KiB",
    requests = 128 }]
figure = { metric = "makespan" }
series = [{ name = "in order" }, { name = "queue", set = { "device.queue" = 32 } }]
"#;

#[test]
fn a_queue_in_the_disk_mends_an_order_that_its_platters_make_slow() {
    let outcome = outcome(SWEEP);
    let ratio = |series| {
        let [fifo, aioli] = [0, 1].map(|policy| outcome.get(series, 0, policy, Metric::Makespan));
        aioli / fifo
    };
    assert!(ratio(0) > 1.2, "{}", ratio(0));
    assert!(ratio(1) < 1.05, "{}", ratio(1));
}

#[test]
fn an_fsync_waits_for_the_write_cache() {
    let outcome = outcome(TEXT);
    for point in 0..3 {
        let makespan = |series| outcome.get(series, point, 0, Metric::Makespan);
        let (writes, synced) = (makespan(1), makespan(2));
        // The cache takes 8 MiB at most a half in no time; the disk needs seconds for all.
        assert!(
            synced > writes * 1.2 && synced > 2000.0,
            "{point}: {writes} {synced}"
        );
        let mean = |series| outcome.get(series, point, 0, Metric::CompletionMean);
        assert!(
            (mean(1) / mean(2) - 1.0).abs() < 0.01,
            "no access takes longer"
        );
        // Who waits for an fsync does not compute.
        let working = outcome.get(2, point, 0, Metric::SysEfficiency);
        assert!(working < 5.0, "{working}");
    }
}

#[test]
fn a_slow_disk_takes_longer_and_loses_nothing() {
    let slow = "[[fault]]\nat = \"100 ms\"\nforwarder = 0\nkind = \"slow\"\npercent = 300\n";
    let (usual, slow) = (outcome(TEXT), outcome(&format!("{TEXT}{slow}")));
    for series in 0..3 {
        let makespan = |outcome: &Outcome| outcome.get(series, 2, 0, Metric::Makespan);
        let ratio = makespan(&slow) / makespan(&usual);
        assert!((2.0..3.1).contains(&ratio), "series {series}: {ratio}");
    }
}
