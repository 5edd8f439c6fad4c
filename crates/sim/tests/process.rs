//! What a forwarder's own process costs (copies, threads that want the same cores), and claims that
//! compare series.

use tidegate_sim::result::Metric;
use tidegate_sim::runner;
use tidegate_sim::scenario::Scenario;

/// Sixteen processes read 1 MiB blocks from one forwarder whose device costs nothing much.
const TEXT: &str = r#"
title = "A process"
protocol = "closed loop"
policies = ["fifo", "window"]
network = { preset = "ethernet-100g" }
forwarders = { count = 1, request_time = 0 }
device = { model = "ideal", service_us = 1, depth = 8 }
application = [{ workload = "ior", processes = 16, processes_per_node = 1, request = "1 MiB",
    requests = 32 }]
figure = { metric = "bandwidth" }
series = [
    { name = "free" },
    { name = "copies", set = { "forwarders.copy_mb_s" = 1000 } },
    { name = "contention", set = { "forwarders.copy_mb_s" = 1000,
        "forwarders.contention_percent" = 25 } },
    { name = "four", set = { "forwarders.copy_mb_s" = 1000, "forwarders.contention_percent" = 25,
        "device.depth" = 4 } },
]
[[claim]]
series = "copies"
against_series = "contention"
metric = "bandwidth"
policy = "fifo"
min = 190.0
max = 205.0
tests = "describes"
[[claim]]
series = "copies"
against = "window"
against_series = "copies"
metric = "bandwidth"
policy = "fifo"
min = -1.0
max = 1.0
tests = "describes"
"#;

#[test]
fn copies_bound_the_bandwidth_and_waiting_threads_slow_them() {
    let scenario = Scenario::parse(TEXT, "t.toml", "t").expect("it is right");
    let outcome = runner::run(&scenario, 2, &|_, _| {}).expect("it ends");
    let bandwidth = |series| outcome.get(series, 0, 0, Metric::Bandwidth);
    // 1000 MB/s of copies; eight that wait make them three times as long, four twice.
    assert!(bandwidth(0) > 5000.0, "{}", bandwidth(0));
    let near = |series, mb_s: f64| (bandwidth(series) / mb_s - 1.0).abs() < 0.02;
    for (series, mb_s) in [(1, 1000.0), (2, 1000.0 / 3.0), (3, 500.0)] {
        assert!(near(series, mb_s), "series {series}: {}", bandwidth(series));
    }
}

#[test]
fn a_claim_can_compare_series() {
    let scenario = Scenario::parse(TEXT, "t.toml", "t").expect("it is right");
    let outcome = runner::run(&scenario, 2, &|_, _| {}).expect("it ends");
    let verdicts = &outcome.verdicts;
    assert!(outcome.holds(), "{verdicts:?}");
    let texts: Vec<&str> = verdicts.iter().map(|it| it.text.as_str()).collect();
    assert_eq!(
        texts,
        [
            "copies: bandwidth, MB/s under fifo, change against \"contention\" in %",
            "copies: bandwidth, MB/s under fifo, change against window in \"copies\" in %",
        ]
    );
    let wrong = TEXT.replace("against_series = \"contention\"", "against_series = \"no\"");
    let error = Scenario::parse(&wrong, "t.toml", "t").expect_err("there is no such series");
    assert_eq!(
        error.to_string(),
        "t.toml:21: claim[0].against_series: there is no series \"no\""
    );
    let wrong = TEXT.replace("copy_mb_s\" = 1000 ", "copy_mb_s\" = 0 ");
    let error = Scenario::parse(&wrong, "t.toml", "t").expect_err("it must be positive");
    assert!(error.to_string().contains("copy_mb_s must be positive"));
}
