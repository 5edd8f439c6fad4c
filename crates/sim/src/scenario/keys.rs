//! The keys and tables at the top of a scenario. The error for an unknown key names all known ones.

use super::source::{ScenarioError, Source};

/// What describes the scenario as a whole.
const HEAD: &[&str] = &["title", "paper", "protocol", "repetitions", "seed", "notes"];

/// What a run is made of, and may vary from point to point.
pub(super) const MACHINE: &[&str] = &[
    "network",
    "forwarders",
    "servers",
    "device",
    "cost",
    "application",
    "group",
    "fault",
    "clock_skew",
    "time_limit",
];

/// What is run and measured of it, and what must come of that.
const RUNS: &[&str] = &[
    "policies", "policy", "series", "point", "vary", "figure", "claim",
];

/// Refuses a key at the top that means nothing.
pub(super) fn check(source: &Source) -> Result<(), ScenarioError> {
    let known = || [HEAD, RUNS, MACHINE].into_iter().flatten();
    for key in source.table.keys() {
        if !known().any(|name| name == key) {
            let names: Vec<String> = known().map(|name| format!("`{name}`")).collect();
            let names = names.join(", ");
            let reason = format!("unknown field `{key}`, expected one of {names}");
            return Err(source.wrong(key, reason));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Head, Scenario};
    use super::*;
    use crate::library;

    #[test]
    fn an_unknown_key_is_told_with_all_that_are_known() {
        let (_, text) = library::SCENARIOS[0];
        let wrong = format!("{text}\n[devcie]\nmodel = \"ideal\"\n");
        let error = Scenario::parse(&wrong, "x.toml", "x").expect_err("no such table");
        let line = text.lines().count() + 2;
        assert_eq!(error.place, format!("x.toml:{line}"));
        for known in [
            "title",
            "policies",
            "policy",
            "device",
            "application",
            "claim",
        ] {
            assert!(error.reason.contains(&format!("`{known}`")), "{error}");
        }
    }

    #[test]
    fn every_key_of_the_head_is_known() {
        let table = toml::Table::from_iter([("mistake".to_string(), toml::Value::Integer(1))]);
        let error: toml::de::Error = toml::Value::Table(table)
            .try_into::<Head>()
            .expect_err("no such key");
        let names: Vec<_> = error.message().split('`').skip(3).step_by(2).collect();
        assert_eq!(names, HEAD);
    }
}
