//! Figures of a scenario: each series' lines over x, or bars where there is one point only, with
//! the paper's numbers beside them.

use super::{Findings, PointFindings, SeriesFindings};
use crate::chart::{Figure, Kind, Scale, Series};
use tidegate_sim::result::{Metric, Verdict};

/// Bars of series that differ by more than this factor do not share a figure.
const BARS_APART: f64 = 10.0;

/// What a figure shows: a metric, or its change against a policy in percent.
#[derive(Clone, PartialEq)]
struct Shown<'a> {
    metric: Metric,
    against: Option<&'a str>,
}

impl Findings {
    /// The figures of the metric that the scenario draws, and of those for which its paper has
    /// numbers: values, and changes against another policy.
    pub fn figures(&self) -> Vec<Figure> {
        let mut all = vec![Shown {
            metric: self.figure.metric,
            against: None,
        }];
        for claim in self.claims.iter().filter(|claim| is_point(claim)) {
            let shown = Shown {
                metric: claim.metric,
                against: claim.against.as_deref(),
            };
            if !all.contains(&shown) {
                all.push(shown);
            }
        }
        all.iter().flat_map(|shown| self.drawn(shown)).collect()
    }

    fn drawn(&self, shown: &Shown<'_>) -> Vec<Figure> {
        let wanted: Vec<&SeriesFindings> = self
            .series
            .iter()
            .filter(|series| self.is_wanted(series, shown))
            .collect();
        if wanted.iter().any(|series| series.points.len() > 1) {
            let lines = wanted.iter().map(|series| self.lines(series, shown));
            return lines.collect();
        }
        let values = wanted.iter().flat_map(|series| &series.points);
        let values = values.flat_map(|point| self.values(point, shown));
        let sizes = values.map(f64::abs).filter(|size| *size > 0.0);
        let (least, most) = sizes.fold((f64::INFINITY, 0.0f64), |(least, most), size| {
            (least.min(size), most.max(size))
        });
        match shown.against.is_none() && most > BARS_APART * least {
            true => wanted
                .iter()
                .map(|series| self.bars(&[series], shown))
                .collect(),
            false => vec![self.bars(&wanted, shown)],
        }
    }

    /// Whether a figure shows a series: the scenario's own metric is drawn of all series, others
    /// only where the paper has numbers.
    fn is_wanted(&self, series: &SeriesFindings, shown: &Shown<'_>) -> bool {
        let own = shown.metric == self.figure.metric && shown.against.is_none();
        own || self.papers(series, shown).next().is_some()
    }

    /// The claims for which the paper has a number.
    fn papers<'a>(
        &'a self,
        series: &'a SeriesFindings,
        shown: &'a Shown<'_>,
    ) -> impl Iterator<Item = &'a Verdict> {
        self.claims.iter().filter(|claim| {
            is_point(claim)
                && claim.series == series.name
                && claim.metric == shown.metric
                && claim.against.as_deref() == shown.against
        })
    }

    /// The policies that are drawn.
    fn drawn_policies(&self, shown: &Shown<'_>) -> impl Iterator<Item = &String> {
        let against = shown.against;
        let policies = self.policies.iter();
        policies.filter(move |policy| Some(policy.as_str()) != against)
    }

    fn value(&self, point: &PointFindings, policy: &str, shown: &Shown<'_>) -> f64 {
        let value = self.get(point, policy, shown.metric);
        match shown.against {
            None => value,
            Some(other) => 100.0 * (value / self.get(point, other, shown.metric) - 1.0),
        }
    }

    fn values(&self, point: &PointFindings, shown: &Shown<'_>) -> Vec<f64> {
        let policies = self.drawn_policies(shown);
        policies
            .map(|policy| self.value(point, policy, shown))
            .collect()
    }

    fn lines(&self, series: &SeriesFindings, shown: &Shown<'_>) -> Figure {
        let ours = |policy: &String| {
            let points = series.points.iter();
            let points = points.map(|point| (point.x, self.value(point, policy, shown)));
            measured(policy, points.collect())
        };
        let mut all: Vec<Series> = self.drawn_policies(shown).map(ours).collect();
        let mut published = Vec::new();
        for policy in self.drawn_policies(shown) {
            let claims = self.papers(series, shown);
            let claims = claims.filter(|claim| claim.policy == *policy);
            let points = claims.filter_map(|claim| Some((claim.x?, claim.paper?)));
            published.extend(of_paper(policy, points.collect()));
        }
        all.extend(published);
        let x_scale = match self.figure.log_x {
            true => Scale::Log2,
            false => Scale::Linear,
        };
        Figure {
            x_label: self.figure.x_label.clone(),
            kind: Kind::Lines { x_scale },
            series: all,
            ..self.labelled(&series.name, shown)
        }
    }

    /// A group of bars for each series.
    fn bars(&self, wanted: &[&SeriesFindings], shown: &Shown<'_>) -> Figure {
        let ours = |policy: &String| {
            let groups = wanted.iter().enumerate();
            let points = groups.filter_map(|(group, series)| {
                let point = series.points.first()?;
                Some((group as f64, self.value(point, policy, shown)))
            });
            measured(policy, points.collect())
        };
        let mut all: Vec<Series> = self.drawn_policies(shown).map(ours).collect();
        let mut published = Vec::new();
        for policy in self.drawn_policies(shown) {
            let mut points = Vec::new();
            for (group, series) in wanted.iter().enumerate() {
                let claims = self.papers(series, shown);
                let claims = claims.filter(|claim| claim.policy == *policy);
                points.extend(claims.filter_map(|claim| Some((group as f64, claim.paper?))));
            }
            published.extend(of_paper(policy, points));
        }
        all.extend(published);
        let groups = wanted.iter().map(|series| series.name.clone()).collect();
        Figure {
            kind: Kind::Bars { groups },
            series: all,
            ..self.labelled("", shown)
        }
    }

    fn labelled(&self, series: &str, shown: &Shown<'_>) -> Figure {
        let words = shown.metric.words();
        Figure {
            title: match series {
                "" => self.title.clone(),
                series => format!("{}: {series}", self.title),
            },
            y_label: match shown.against {
                None => words.to_string(),
                Some(other) => format!("{words}: change against {other}, %"),
            },
            note: self
                .facts()
                .split_off(usize::from(self.paper.is_some()))
                .join(" "),
            ..Figure::default()
        }
    }
}

/// Whether the paper has a number for one point of one series.
fn is_point(claim: &Verdict) -> bool {
    claim.paper.is_some() && claim.x.is_some() && claim.against_series.is_none()
}

pub(super) fn measured(policy: &str, points: Vec<(f64, f64)>) -> Series {
    Series {
        name: policy.to_string(),
        points,
        from_paper: false,
    }
}

fn of_paper(policy: &str, points: Vec<(f64, f64)>) -> Option<Series> {
    (!points.is_empty()).then(|| Series {
        name: policy.to_string(),
        points,
        from_paper: true,
    })
}
