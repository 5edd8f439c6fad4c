//! Tables of a scenario's metrics and claims.

use super::{Findings, PointFindings, SeriesFindings, Table};
use tidegate_sim::result::{Metric, Reproduction, Verdict};
use tidegate_sim::scenario::Tests;

impl Findings {
    /// For a series of one point a table of all metrics, for others one of each.
    pub fn tables(&self) -> Vec<Table> {
        let of_series = |series: &SeriesFindings| match series.points.as_slice() {
            [point] => vec![self.by_metric(series, point)],
            _ => self.by_point(series),
        };
        self.series.iter().flat_map(of_series).collect()
    }

    /// The claims beside the paper's numbers; None: there are no claims.
    pub fn claims_table(&self) -> Option<Table> {
        let columns = [
            "claim", "tests", "paper", "ours", "95 %", "replaced", "band", "verdict",
        ];
        let rows: Vec<_> = self.claims.iter().map(claim_row).collect();
        (!rows.is_empty()).then(|| Table {
            caption: "Claims".to_string(),
            columns: columns.map(str::to_string).to_vec(),
            rows,
        })
    }

    fn by_metric(&self, series: &SeriesFindings, point: &PointFindings) -> Table {
        let metrics = self.metrics().into_iter();
        let row = |metric: Metric| self.row(metric.words().to_string(), point, metric);
        Table {
            caption: series.name.clone(),
            columns: self.columns("metric"),
            rows: metrics.map(row).collect(),
        }
    }

    fn by_point(&self, series: &SeriesFindings) -> Vec<Table> {
        let table = |metric: Metric| {
            let points = series.points.iter();
            let row = |point: &PointFindings| self.row(number(point.x), point, metric);
            let words = metric.words();
            Table {
                caption: match series.name.as_str() {
                    "" => words.to_string(),
                    name => format!("{name}: {words}"),
                },
                columns: self.columns(match self.figure.x_label.as_str() {
                    "" => "x",
                    label => label,
                }),
                rows: points.map(row).collect(),
            }
        };
        self.metrics().into_iter().map(table).collect()
    }

    /// What stands in the first column, the policies, and the change of each against the first.
    fn columns(&self, first: &str) -> Vec<String> {
        let mut columns = vec![first.to_string()];
        columns.extend(self.policies.iter().cloned());
        let others = self.policies.iter().skip(1);
        columns.extend(others.map(|policy| format!("{policy} vs {}", self.policies[0])));
        columns
    }

    fn row(&self, first: String, point: &PointFindings, metric: Metric) -> Vec<String> {
        let values = self.policies.iter();
        let values: Vec<f64> = values
            .map(|policy| self.get(point, policy, metric))
            .collect();
        let mut row = vec![first];
        row.extend(values.iter().map(|value| number(*value)));
        row.extend(values.iter().skip(1).map(|value| {
            let change = 100.0 * (value / values[0] - 1.0);
            // No sign where nothing is left of it.
            let change = if change.abs() < 0.05 { 0.0 } else { change };
            match change.is_finite() {
                true => format!("{change:+.1} %"),
                false => "-".to_string(),
            }
        }));
        row
    }
}

fn claim_row(claim: &Verdict) -> Vec<String> {
    let or_none = |value: Option<f64>| value.map_or(String::new(), number);
    let band = match (claim.min, claim.max) {
        (Some(min), Some(max)) => format!("{} to {}", number(min), number(max)),
        (Some(min), None) => format!("at least {}", number(min)),
        (None, Some(max)) => format!("at most {}", number(max)),
        (None, None) => String::new(),
    };
    let interval = claim.interval.map(|(_, high)| high - claim.ours);
    vec![
        claim.text.clone(),
        match claim.tests {
            Tests::Policy => "policy".to_string(),
            Tests::Describes => "describes".to_string(),
        },
        or_none(claim.paper),
        number(claim.ours),
        interval.map_or(String::new(), |half| format!("± {}", number(half))),
        or_none(claim.replaced),
        band,
        verdict(claim).to_string(),
    ]
}

fn verdict(claim: &Verdict) -> &'static str {
    match (claim.holds, claim.survives, claim.reproduction) {
        (false, ..) => "DOES NOT HOLD",
        (true, ..) if claim.is_untested() => "THE BASELINE HAS NO SUCH NUMBER",
        (true, true, _) => "HOLDS WITHOUT THE POLICY",
        (true, false, Some(Reproduction::Reproduced)) => "reproduced",
        (true, false, Some(Reproduction::Differs)) => "differs",
        (true, false, Some(Reproduction::NotComparable)) => "not comparable",
        (true, false, None) => "holds",
    }
}

/// A number with three to four digits that mean something; a dash for what is none.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        "-".to_string()
    } else if (value == value.trunc() && size < 1e15) || size >= 1000.0 {
        format!("{value:.0}")
    } else if size >= 100.0 {
        format!("{value:.1}")
    } else if size >= 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.4}")
    }
}
