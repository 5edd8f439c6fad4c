//! Song's formulas against the simulated machine, on a device whose every call takes the same time
//! and a network that costs nothing.

use tidegate_sim::library;
use tidegate_sim::result::{Metric, Outcome};
use tidegate_sim::runner;
use tidegate_sim::scenario::Scenario;
use tidegate_sim::song::Model;

/// Service time of a request, ms.
const SERVICE_MS: f64 = 10.0;
const APPLICATIONS: u32 = 10;

/// Ten applications read a block from each of some servers, which see them in orders of their own.
fn scenario(servers: u32) -> Scenario {
    let text = format!(
        r#"
        title = "Formulas"
        protocol = "one-shot"
        policies = ["fifo", "window"]
        repetitions = 40
        network = {{ preset = "ideal", jitter = "10 ms", overtaking = true }}
        forwarders = {{ count = {servers}, stripe = "4 KiB", request_time = 0 }}
        device = {{ model = "ideal", service_us = 10000 }}
        figure = {{ metric = "completion_mean" }}
        [[application]]
        workload = "ior"
        copies = {APPLICATIONS}
        request = {}
        "#,
        servers * 4096
    );
    Scenario::parse(&text, "formulas.toml", "formulas").expect("it is right")
}

fn completion(outcome: &Outcome, policy: usize) -> f64 {
    outcome.get(0, 0, policy, Metric::CompletionMean)
}

#[test]
fn completions_are_what_the_formulas_say() {
    for servers in [2, 4, 8, 16] {
        let outcome = runner::run(&scenario(servers), 2, &|_, _| {}).expect("it ends");
        let model = Model::new(servers, APPLICATIONS, SERVICE_MS).expect("it is one");
        // A request waits for its message, which is late by 5 ms on the mean, and the last of
        // several is later; and the first to come is served before the others are there.
        let late = 10.0;
        let within = |ours: f64, formula: f64| {
            let low = 0.96 * formula;
            assert!(
                (low..=1.04 * formula + late).contains(&ours),
                "{servers} servers: {ours:.1} ms, {formula:.1} ms by the formula"
            );
        };
        within(completion(&outcome, 0), model.uncoordinated());
        within(completion(&outcome, 1), model.coordinated());
        let saved = 1.0 - completion(&outcome, 1) / completion(&outcome, 0);
        let share = model.saving_share();
        assert!(
            (saved - share).abs() < 0.06,
            "{servers}: {saved:.3}, {share:.3}"
        );
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
        ("count = 8", "count = 0", "positive"),
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
        ("request = \"4 MiB\"", "request = \"4 GiB\"", "64 MiB"),
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
