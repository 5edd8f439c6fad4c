//! Timelines of a scenario: lines over time for each point, and tables of some of their slices.

use super::figures::measured;
use super::tables::number;
use super::{Findings, PointFindings, SeriesFindings, Table};
use crate::chart::{Figure, Kind, Scale, Series};
use tidegate_sim::result::Timeline;
use tidegate_sim::scenario::Shown;

/// Most rows of a table; of a longer timeline the table leaves slices out at regular distances.
const ROWS_MAX: usize = 20;

/// A line over time: a name, and a value or none for each slice.
type Line = (String, Vec<Option<f64>>);

impl Findings {
    /// A figure for each point and each kind of timeline; for a timeline of applications, one for
    /// each policy.
    pub(super) fn timeline_figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        for (heading, point) in self.timed() {
            for (title, shown, lines) in self.shown(point) {
                let slice_s = self.slice_s(point);
                let series = lines.into_iter().map(|(name, values)| {
                    let points = values.into_iter().enumerate();
                    let points = points.filter_map(|(slice, value)| {
                        Some(((slice as f64 + 0.5) * slice_s, value?))
                    });
                    measured(&name, points.collect())
                });
                let series: Vec<Series> = series.collect();
                figures.push(Figure {
                    title: format!("{}{heading}{title}", self.title),
                    x_label: "time, s".to_string(),
                    y_label: shown.words().to_string(),
                    kind: Kind::Lines {
                        x_scale: Scale::Linear,
                    },
                    series,
                    ..Figure::default()
                });
            }
        }
        figures
    }

    /// The timelines as tables, with a bounded number of slices.
    pub(super) fn timeline_tables(&self) -> Vec<Table> {
        let mut tables = Vec::new();
        for (heading, point) in self.timed() {
            for shown in self.what() {
                let lines: Vec<Line> = self
                    .shown(point)
                    .into_iter()
                    .filter(|(_, its, _)| *its == shown)
                    .flat_map(|(title, _, lines)| {
                        let named = move |(name, values): Line| match title.as_str() {
                            "" => (name, values),
                            title => (format!("{name}{title}"), values),
                        };
                        lines.into_iter().map(named)
                    })
                    .collect();
                let caption = format!("Over time{heading}: {}", shown.words());
                tables.push(table(caption, &lines, self.slice_s(point)));
            }
        }
        tables
    }

    fn what(&self) -> Vec<Shown> {
        let timeline = self.figure.timeline.as_ref();
        timeline.map(|it| it.show.clone()).unwrap_or_default()
    }

    /// The points with timelines, and how to call them.
    fn timed(&self) -> impl Iterator<Item = (String, &PointFindings)> {
        let of_series = |series: &SeriesFindings, point: &PointFindings| {
            let mut heading = String::new();
            if !series.name.is_empty() {
                heading += &format!(", {}", series.name);
            }
            if series.points.len() > 1 {
                heading += &format!(", {} = {}", self.x_name(), number(point.x));
            }
            heading
        };
        self.series.iter().flat_map(move |series| {
            let points = series.points.iter().filter(|it| !it.timelines.is_empty());
            points.map(move |point| (of_series(series, point), point))
        })
    }

    fn x_name(&self) -> &str {
        match self.figure.x_label.as_str() {
            "" => "x",
            label => label,
        }
    }

    fn slice_s(&self, point: &PointFindings) -> f64 {
        let first = point.timelines.values().next();
        first.map_or(1.0, |timeline| timeline.slice_ms / 1000.0)
    }

    /// What is drawn of a point: how its title goes on, what is shown, and its lines.
    fn shown(&self, point: &PointFindings) -> Vec<(String, Shown, Vec<Line>)> {
        let mut all = Vec::new();
        for shown in self.what() {
            let policies = self.policies.iter();
            let timelines: Vec<_> = policies
                .filter_map(|policy| Some((policy, point.timelines.get(policy)?)))
                .collect();
            if shown == Shown::Depth {
                let line = |(policy, timeline): &(&String, &Timeline)| {
                    let depth = timeline.depth.iter().copied().map(Some);
                    ((*policy).clone(), depth.collect())
                };
                all.push((String::new(), shown, timelines.iter().map(line).collect()));
                continue;
            }
            for (policy, timeline) in timelines {
                let lines = timeline.applications.iter().map(|app| {
                    let values = match shown {
                        Shown::Bandwidth => app.bandwidth.iter().copied().map(Some).collect(),
                        _ => app.completion_p95.clone(),
                    };
                    (app.name.clone(), values)
                });
                all.push((format!(", {policy}"), shown, lines.collect()));
            }
        }
        all
    }
}

fn table(caption: String, lines: &[Line], slice_s: f64) -> Table {
    let slices = lines.iter().map(|(_, values)| values.len()).max();
    let slices = slices.unwrap_or(0);
    let step = slices.div_ceil(ROWS_MAX).max(1);
    let mut columns = vec!["time, s".to_string()];
    columns.extend(lines.iter().map(|(name, _)| name.clone()));
    let row = |slice: usize| {
        let mut row = vec![number((slice as f64 + 0.5) * slice_s)];
        let value = |values: &Vec<Option<f64>>| values.get(slice).copied().flatten();
        row.extend(
            lines
                .iter()
                .map(|(_, values)| number(value(values).unwrap_or(f64::NAN))),
        );
        row
    };
    Table {
        caption,
        columns,
        rows: (step / 2..slices).step_by(step).map(row).collect(),
    }
}
