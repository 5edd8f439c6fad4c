//! What came of a scenario, for people: tables of the metrics, and the claims beside the paper.

use crate::table::lay_out;
use tidegate_sim::result::{Metric, Outcome, Verdict};
use tidegate_sim::scenario::{Scenario, Series};

/// The whole page.
pub fn page(scenario: &Scenario, outcome: &Outcome) -> String {
    let mut page = format!("{}: {}\n", scenario.name, scenario.title);
    if let Some(paper) = &scenario.paper {
        page.push_str(&format!("paper: {paper}\n"));
    }
    page.push_str(&format!("protocol: {}\n", scenario.protocol));
    page.push_str(&format!("means over {} seeds\n", scenario.repetitions));
    for (number, series) in scenario.series.iter().enumerate() {
        page.push('\n');
        if !series.name.is_empty() {
            page.push_str(&format!("{}\n", series.name));
        }
        page.push_str(&match series.points.len() {
            1 => by_metric(scenario, outcome, number),
            _ => by_point(scenario, outcome, number, series),
        });
    }
    if !outcome.verdicts.is_empty() {
        page.push('\n');
        page.push_str(&claims(&outcome.verdicts));
    }
    if let Some(notes) = &scenario.notes {
        page.push('\n');
        page.push_str(notes.trim());
        page.push('\n');
    }
    page
}

fn metrics(scenario: &Scenario) -> Vec<Metric> {
    let mut metrics = vec![scenario.figure.metric];
    metrics.extend(&scenario.figure.also);
    metrics
}

/// The heading: what stands in the first column, the policies, and the change of each against the
/// first.
fn heading(scenario: &Scenario, first: &str) -> Vec<String> {
    let mut heading = vec![first.to_string()];
    heading.extend(scenario.policies.iter().map(|policy| policy.label.clone()));
    let others = scenario.policies.iter().skip(1);
    heading
        .extend(others.map(|policy| format!("{} vs {}", policy.label, scenario.policies[0].label)));
    heading
}

fn row(scenario: &Scenario, first: String, value: impl Fn(usize) -> f64) -> Vec<String> {
    let mut row = vec![first];
    let policies = 0..scenario.policies.len();
    row.extend(policies.clone().map(|policy| number(value(policy))));
    row.extend(policies.skip(1).map(|policy| match value(0) == 0.0 {
        true => String::new(),
        false => format!("{:+.1} %", 100.0 * (value(policy) / value(0) - 1.0)),
    }));
    row
}

fn by_metric(scenario: &Scenario, outcome: &Outcome, series: usize) -> String {
    let rows: Vec<Vec<String>> = metrics(scenario)
        .into_iter()
        .map(|metric| {
            row(scenario, metric.words().to_string(), |policy| {
                outcome.get(series, 0, policy, metric)
            })
        })
        .collect();
    lay(heading(scenario, ""), &rows)
}

fn by_point(scenario: &Scenario, outcome: &Outcome, number: usize, series: &Series) -> String {
    let mut text = String::new();
    for metric in metrics(scenario) {
        let rows: Vec<Vec<String>> = series
            .points
            .iter()
            .enumerate()
            .map(|(at, point)| {
                row(scenario, self::number(point.x), |policy| {
                    outcome.get(number, at, policy, metric)
                })
            })
            .collect();
        text.push_str(&format!("{}\n", metric.words()));
        text.push_str(&lay(heading(scenario, &scenario.figure.x_label), &rows));
    }
    text
}

fn claims(verdicts: &[Verdict]) -> String {
    let rows: Vec<Vec<String>> = verdicts
        .iter()
        .map(|verdict| {
            let paper = verdict.paper.map_or(String::new(), number);
            let difference = verdict.paper.map(|paper| verdict.ours - paper);
            let band = match (verdict.min, verdict.max) {
                (Some(min), Some(max)) => format!("{} to {}", number(min), number(max)),
                (Some(min), None) => format!("at least {}", number(min)),
                (None, Some(max)) => format!("at most {}", number(max)),
                (None, None) => String::new(),
            };
            let holds = match verdict.holds {
                true => "holds",
                false => "DOES NOT HOLD",
            };
            vec![
                verdict.text.clone(),
                paper,
                number(verdict.ours),
                difference.map_or(String::new(), number),
                band,
                holds.to_string(),
            ]
        })
        .collect();
    let heading = ["claim", "paper", "ours", "difference", "band", ""];
    let mut text = lay_out(&heading, &rows);
    for verdict in verdicts {
        if let Some(why) = &verdict.why {
            text.push_str(&format!("{}: {}\n", verdict.text, why.trim()));
        }
    }
    text
}

fn lay(heading: Vec<String>, rows: &[Vec<String>]) -> String {
    let heading: Vec<&str> = heading.iter().map(String::as_str).collect();
    lay_out(&heading, rows)
}

/// A number with three to four digits that mean something.
fn number(value: f64) -> String {
    let size = value.abs();
    if value == value.trunc() && size < 1e15 {
        format!("{value:.0}")
    } else if size >= 1000.0 {
        format!("{value:.0}")
    } else if size >= 100.0 {
        format!("{value:.1}")
    } else if size >= 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.4}")
    }
}
