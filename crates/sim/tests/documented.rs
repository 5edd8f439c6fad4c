//! docs/scenarios.md has every key and metric of a scenario. The code is asked for its lists, by
//! mistakes that it answers with what it knows.

use std::path::Path;
use tidegate_sim::result::Metric;
use tidegate_sim::scenario::Scenario;

/// The keys that a scenario's parser names when it does not know one, here.
fn scenario_keys(settings: &str) -> Vec<String> {
    let good = "policies = [\"fifo\"]\nnetwork = { preset = \"ideal\" }\n\
        forwarders = { count = 1 }\ndevice = { model = \"ideal\" }\n\
        application = [{ workload = \"ior\", request = 4096, requests = 1 }]\n";
    let mut table: toml::Table = good.parse().expect("it is TOML");
    // The mistake goes where the settings have it, the rest stands for itself.
    for (key, value) in settings.parse::<toml::Table>().expect("it is TOML") {
        table.insert(key, value);
    }
    let error = Scenario::parse(&table.to_string(), "x.toml", "x").expect_err(settings);
    let reason = error.reason;
    let (_, list) = reason
        .split_once("expected one of ")
        .unwrap_or_else(|| panic!("{reason} does not say what is known"));
    list.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_string)
        .collect()
}

#[test]
fn every_key_and_metric_of_a_scenario_is_documented() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scenarios.md");
    let document = std::fs::read_to_string(path).expect("docs/scenarios.md is there");
    let parts = [
        "no_such_thing = 1",
        "figure = { no_such_thing = 1 }",
        "network = { no_such_thing = 1 }",
        "forwarders = { no_such_thing = 1 }",
        "servers = { no_such_thing = 1 }",
        "fault = [{ no_such_thing = 1 }]",
        "claim = [{ no_such_thing = 1 }]",
    ];
    let metrics = Metric::ALL.iter().map(|metric| metric.name());
    let keys = parts.iter().flat_map(|part| scenario_keys(part));
    let names: Vec<String> = keys.chain(metrics).collect();
    assert!(names.len() > 50, "{names:?}");
    let mut missing: Vec<_> = names
        .into_iter()
        .filter(|name| {
            let mentions =
                ["`{}`", "`{} = ", "`[{}]`", "`[[{}]]`"].map(|mention| mention.replace("{}", name));
            !mentions.iter().any(|text| document.contains(text))
        })
        .collect();
    missing.dedup();
    assert!(
        missing.is_empty(),
        "docs/scenarios.md: add {}",
        missing.join(", ")
    );
}
