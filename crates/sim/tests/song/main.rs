//! Song's formulas against the simulated machine, on a device whose every call takes the same time
//! and a network that costs nothing.

mod model;

use model::Model;
use tidegate_sim::library;
use tidegate_sim::result::Metric;
use tidegate_sim::runner;
use tidegate_sim::scenario::Scenario;

/// Service time of a request, ms.
const SERVICE_MS: f64 = 10.0;
const APPLICATIONS: u32 = 10;

/// Ten applications read a block from each of some servers, which see them in orders of their own.
/// Until all have come, the servers are busy with another one: otherwise the first to come would be
/// served before there is an order.
fn scenario(servers: u32) -> Scenario {
    let text = format!(
        r#"
        title = "Formulas"
        protocol = "one-shot"
        policies = ["fifo", "window"]
        repetitions = 40
        network = {{ preset = "ideal", jitter = "4 ms", overtaking = true }}
        forwarders = {{ count = {servers}, stripe = "4 KiB", request_time = 0 }}
        device = {{ model = "ideal", service_us = 10000 }}
        figure = {{ metric = "completion_mean" }}
        [[application]]
        name = "first"
        workload = "ior"
        request = {bytes}
        [[application]]
        workload = "ior"
        copies = {APPLICATIONS}
        request = {bytes}
        start = "5 ms"
        "#,
        bytes = servers * 4096
    );
    Scenario::parse(&text, "formulas.toml", "formulas").expect("it is right")
}

#[test]
fn completions_are_what_the_formulas_say() {
    for servers in [2, 4, 8, 16] {
        let outcome = runner::run(&scenario(servers), 2, &|_, _| {}).expect("it ends");
        let model = Model::new(servers, APPLICATIONS, SERVICE_MS).expect("it is one");
        let count = f64::from(APPLICATIONS);
        let sum = |policy| (count + 1.0) * outcome.get(0, 0, policy, Metric::CompletionMean);
        // The first application's completion is the same under both policies: 10 to 14 ms.
        let saved = (sum(0) - sum(1)) / count;
        let whole = count * SERVICE_MS;
        assert!(
            (saved - model.saving()).abs() < 0.03 * whole,
            "{servers} servers save {saved:.1} ms, {:.1} ms by the formula",
            model.saving()
        );
        // The others come 5 ms after it and wait for it: 5 to 9 ms more than the
        // formulas' times, and the last of several messages and servers is later still.
        for (policy, formula) in [(0, model.uncoordinated()), (1, model.coordinated())] {
            let mean = (sum(policy) - 12.0) / count;
            let range = formula + 3.0..=formula + 13.0;
            assert!(
                range.contains(&mean),
                "{servers} servers: {mean:.1} ms, {range:?}"
            );
        }
    }
}

#[test]
fn a_scenario_with_a_mistake_says_where() {
    let (_, text) = library::SCENARIOS
        .iter()
        .find(|(name, _)| *name == "song-2011-fig5")
        .expect("it is there");
    let mistakes = [
        ("count = 8", "cuont = 8", "unknown field `cuont`"),
        ("count = 8", "count = 0", "must be positive"),
        (
            "[\"fifo\", \"window\"]",
            "[\"fifo\", \"windows\"]",
            "windows",
        ),
        ("model = \"hdd-7200\"", "model = \"hdd-7201\"", "hdd-7200"),
        (
            "unit_bytes = \"64 KiB\"",
            "unit_bytes = \"64 XiB\"",
            "whole number",
        ),
        ("workload = \"ior\"", "workload = \"iorr\"", "ior"),
        ("request = \"4 MiB\"", "request = \"4 GiB\"", "67108864"),
        ("jitter = \"13.84 ms\"", "jitter = 13", "no unit"),
        (
            "preset = \"gigabit-ethernet\"",
            "preset = \"wlan\"",
            "myrinet-10g",
        ),
        (
            "policy = \"window\"",
            "policy = \"windy\"",
            "there are fifo, window",
        ),
    ];
    for (right, wrong, says) in mistakes {
        let line = 1 + text
            .find(right)
            .map_or(0, |at| text[..at].matches('\n').count());
        let text = text.replacen(right, wrong, 1);
        let error = Scenario::parse(&text, "x.toml", "x")
            .expect_err(wrong)
            .to_string();
        assert!(error.contains(says), "{wrong}: {error}");
        let place = error.split(": ").next().unwrap_or_default();
        let told: usize = place.trim_start_matches("x.toml:").parse().expect("a line");
        assert!(
            told.abs_diff(line) <= 1,
            "{wrong} is on line {line}: {error}"
        );
    }
}
