//! The results of a scenario with everything that a report says about it, without its machines.
//! `tidegate sim --json` prints them and `tidegate report` shows them, as text, Markdown, or
//! figures.

mod counts;
mod figures;
pub mod markdown;
mod tables;
mod timelines;

pub use counts::counts;

use crate::chart::Figure;
use crate::page::Section;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidegate_cli::table::Table;
use tidegate_sim::result::{Metric, Outcome, PointResult, Timeline, Verdict};
use tidegate_sim::scenario::{FigureOptions, Scenario};

/// The results of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// The scenario's name.
    pub scenario: String,
    /// One line.
    pub title: String,
    /// The source of the numbers, if there is one.
    pub paper: Option<String>,
    /// How the load is offered.
    pub protocol: String,
    /// What a reader should know of the result.
    pub notes: Option<String>,
    /// What is missing in the traces that were replayed.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Seeds of each point; results are means over them.
    pub repetitions: u32,
    /// The first seed.
    pub seed: u64,
    /// What is measured.
    pub figure: FigureOptions,
    /// Labels of the policies, in order.
    pub policies: Vec<String>,
    /// The results, by series.
    pub series: Vec<SeriesFindings>,
    /// The claims, judged.
    pub claims: Vec<Verdict>,
    /// Whether all claims hold.
    pub holds: bool,
}

/// The points of a series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeriesFindings {
    /// Its name; empty if there is only one.
    pub name: String,
    /// Its points.
    pub points: Vec<PointFindings>,
}

/// What was measured at a point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointFindings {
    /// Where on the x axis.
    pub x: f64,
    /// By the label of the policy.
    pub policies: BTreeMap<String, PointResult>,
    /// By the label of the policy: its timeline under the first seed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub timelines: BTreeMap<String, Timeline>,
}

impl Findings {
    /// The findings of a scenario's runs.
    pub fn of(scenario: &Scenario, outcome: &Outcome) -> Findings {
        let labels = scenario.policies.iter().map(|policy| policy.label.clone());
        let policies: Vec<String> = labels.collect();
        let series = scenario.series.iter().enumerate().map(|(number, series)| {
            let points = series.points.iter().enumerate().map(|(at, point)| {
                let labels = policies.iter().cloned().enumerate();
                let of = |(policy, label)| (label, outcome.at(number, at, policy).clone());
                let of_point: BTreeMap<_, PointResult> = labels.map(of).collect();
                let timed = of_point.iter();
                let timed = timed.filter_map(|(label, it)| Some((label, it.timeline()?)));
                PointFindings {
                    x: point.x,
                    timelines: timed
                        .map(|(label, it)| (label.clone(), it.clone()))
                        .collect(),
                    policies: of_point,
                }
            });
            SeriesFindings {
                name: series.name.clone(),
                points: points.collect(),
            }
        });
        Findings {
            scenario: scenario.name.clone(),
            title: scenario.title.clone(),
            paper: scenario.paper.clone(),
            protocol: scenario.protocol.clone(),
            notes: scenario.notes.clone(),
            warnings: scenario.warnings.clone(),
            repetitions: scenario.repetitions,
            seed: scenario.seed,
            figure: scenario.figure.clone(),
            series: series.collect(),
            policies,
            claims: outcome.verdicts.clone(),
            holds: outcome.holds(),
        }
    }

    /// As a part of a page: what was simulated, figures, tables, claims, notes.
    pub fn section(&self) -> Section {
        let mut text = self.facts();
        text.extend(self.reasons());
        text.extend(self.notes());
        let mut tables = self.tables();
        tables.extend(self.claims_table());
        Section {
            heading: format!("{}: {}", self.scenario, self.title),
            text,
            figures: self.all_figures(),
            tables,
        }
    }

    /// Figures, timelines last.
    pub fn all_figures(&self) -> Vec<Figure> {
        let mut figures = self.figures();
        figures.extend(self.timeline_figures());
        figures
    }

    /// Paper, protocol, seeds and what is missing in traces, a line each.
    pub fn facts(&self) -> Vec<String> {
        let paper = self.paper.iter().map(|paper| format!("Paper: {paper}."));
        let mut facts: Vec<String> = paper.collect();
        facts.push(format!("Protocol: {}.", self.protocol));
        facts.push(match self.repetitions {
            1 => format!("One run of each point, seed {}.", self.seed),
            count => format!(
                "Means over {count} seeds, {} to {}.",
                self.seed,
                self.seed.saturating_add(u64::from(count).saturating_sub(1))
            ),
        });
        let warnings = self.warnings.iter();
        facts.extend(warnings.map(|text| format!("Warning: {text}.")));
        facts
    }

    /// Why numbers of the paper differ, one line for each claim that says it.
    pub fn reasons(&self) -> Vec<String> {
        let why = |claim: &Verdict| {
            let why = claim.why.as_ref()?;
            Some(format!("{}: {}", claim.text, flowing(why)))
        };
        self.claims.iter().filter_map(why).collect()
    }

    /// The notes, by paragraphs.
    pub fn notes(&self) -> Vec<String> {
        let notes = self.notes.as_deref().unwrap_or_default();
        let paragraphs = notes.split("\n\n").map(flowing);
        paragraphs.filter(|text| !text.is_empty()).collect()
    }

    /// A metric at a point; not a number if there is none.
    fn get(&self, point: &PointFindings, policy: &str, metric: Metric) -> f64 {
        let result = point.policies.get(policy);
        result.map_or(f64::NAN, |result| result.get(metric))
    }

    /// The metrics that are measured, the drawn one first.
    fn metrics(&self) -> Vec<Metric> {
        let mut metrics = vec![self.figure.metric];
        metrics.extend(&self.figure.also);
        metrics
    }
}

/// Text whose lines follow each other.
fn flowing(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
