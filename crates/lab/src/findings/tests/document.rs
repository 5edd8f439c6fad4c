//! docs/figures.md is what the scenarios of this version came to: their titles, protocols, notes,
//! series and claims stand in it, all claims hold there, and none without the policy that it tests.

use crate::findings::tables::number;
use std::path::Path;
use tidegate_sim::library;
use tidegate_sim::scenario::{Claim, Scenario, Tests};

/// The part of each scenario, without what Markdown escapes.
fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/figures.md");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.replace('\\', "")
}

fn flowing(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The last cells of a row of a claim that holds: band and verdict.
fn band(claim: &Claim) -> String {
    let band = match (claim.min, claim.max) {
        (Some(min), Some(max)) => format!("{} to {}", number(min), number(max)),
        (Some(min), None) => format!("at least {}", number(min)),
        (None, Some(max)) => format!("at most {}", number(max)),
        (None, None) => String::new(),
    };
    let is_inside = |paper: f64| {
        let (min, max) = (claim.min, claim.max);
        min.is_some_and(|min| paper >= min) && max.is_some_and(|max| paper <= max)
    };
    let verdict = match (claim.paper, &claim.not_comparable) {
        (None, _) => "holds",
        (Some(_), Some(_)) => "not comparable",
        (Some(paper), None) if is_inside(paper) => "reproduced",
        (Some(_), None) => "differs",
    };
    format!("| {band} | {verdict} |")
}

/// A cell of a claim's row: what it tests.
fn tests(claim: &Claim) -> &'static str {
    match claim.tests {
        Tests::Policy => "| policy |",
        Tests::Describes => "| describes |",
    }
}

/// What the rows of a claim say, and how many there are.
fn rows(scenario: &Scenario, claim: &Claim) -> Vec<(String, usize)> {
    let of = format!("{} under {}", claim.metric.words(), claim.policy);
    if !claim.over.is_empty() {
        return vec![(format!("| {of}"), 1)];
    }
    let series = scenario.series.iter();
    let series = series.filter(|it| claim.series.as_ref().is_none_or(|name| *name == it.name));
    let row = |it: &tidegate_sim::scenario::Series| {
        let text = match it.name.as_str() {
            "" => format!("| {of}"),
            name => format!("| {name}: {of}"),
        };
        let count = match claim.spread || claim.mean || claim.x.is_some() {
            true => 1,
            false => it.points.len(),
        };
        (text, count)
    };
    series.map(row).collect()
}

/// What of a scenario the document lacks.
fn missing(scenario: &Scenario, part: &str) -> Vec<String> {
    let mut texts = vec![
        flowing(&scenario.title),
        format!("Protocol: {}.", scenario.protocol),
    ];
    let notes = scenario.notes.as_deref().unwrap_or_default();
    texts.extend(notes.split("\n\n").map(flowing));
    texts.extend(scenario.series.iter().map(|it| it.name.clone()));
    let why = |it: &Claim| it.not_comparable.clone().or(it.why.clone());
    texts.extend(scenario.claims.iter().filter_map(why));
    texts.retain(|text| !part.contains(text.as_str()));
    let is_claim = |line: &&str| line.contains("| policy |") || line.contains("| describes |");
    let claimed: Vec<&str> = part.lines().filter(is_claim).collect();
    let mut expected = 0;
    for claim in &scenario.claims {
        for (text, count) in rows(scenario, claim) {
            expected += count;
            let its = |line: &&&str| {
                line.starts_with(&text)
                    && line.contains(tests(claim))
                    && line.ends_with(&band(claim))
            };
            if claimed.iter().filter(its).count() < count {
                texts.push(format!("{count} rows {text} ... {}", band(claim)));
            }
        }
    }
    if claimed.len() != expected {
        texts.push(format!("{expected} claims; it has {}", claimed.len()));
    }
    texts
}

#[test]
fn the_figures_are_those_of_the_scenarios() {
    let document = document();
    for verdict in ["DOES NOT HOLD", "HOLDS WITHOUT THE POLICY"] {
        assert!(!document.contains(verdict), "docs/figures.md: {verdict}");
    }
    for (name, _) in library::SCENARIOS {
        let scenario = library::find(name).expect("known").expect("right");
        let part = document.split_once(&format!("\n## {name}: "));
        let part = part.map_or("", |(_, part)| part);
        let part = part.split("\n## ").next().unwrap_or_default();
        let missing = missing(&scenario, part);
        assert!(
            missing.is_empty(),
            "docs/figures.md lacks of {name}: {missing:#?}; `make figures` writes it"
        );
    }
}
