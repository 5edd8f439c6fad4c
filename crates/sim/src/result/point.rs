//! The metrics of a point, as numbers by their names.

use super::{Metric, Timeline, number};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The metrics of one run or, as means, of several; not a number where something was not measured.
#[derive(Clone, Debug, PartialEq)]
pub struct PointResult(Vec<f64>, Option<Arc<Timeline>>);

impl PointResult {
    /// A run of which nothing is measured yet.
    pub(super) fn new(timeline: Option<Timeline>) -> PointResult {
        PointResult(vec![f64::NAN; Metric::ALL.len()], timeline.map(Arc::new))
    }

    /// The value of a metric.
    pub fn get(&self, metric: Metric) -> f64 {
        place(metric).map_or(f64::NAN, |at| self.0[at])
    }

    /// What happened when, in the first of the runs.
    pub fn timeline(&self) -> Option<&Timeline> {
        self.1.as_deref()
    }

    pub(super) fn set(&mut self, metric: Metric, value: f64) {
        if let Some(at) = place(metric) {
            self.0[at] = value;
        }
    }

    /// The mean of several runs; what one of them did not measure has none.
    pub(super) fn mean(runs: &[PointResult]) -> PointResult {
        let mean = |at: usize| {
            let mean = runs.iter().map(|run| run.0[at]).sum::<f64>() / runs.len() as f64;
            // The bits of what is not a number differ between machines.
            if mean.is_nan() { f64::NAN } else { mean }
        };
        let timeline = runs.first().and_then(|run| run.1.clone());
        PointResult((0..Metric::ALL.len()).map(mean).collect(), timeline)
    }
}

fn place(metric: Metric) -> Option<usize> {
    Metric::ALL.iter().position(|it| *it == metric)
}

#[derive(Serialize, Deserialize)]
struct Value(#[serde(with = "number")] f64);

impl Serialize for PointResult {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let values = Metric::ALL.iter().zip(&self.0);
        to.collect_map(values.map(|(metric, value)| (metric, Value(*value))))
    }
}

impl<'de> Deserialize<'de> for PointResult {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<PointResult, D::Error> {
        let values: BTreeMap<String, Value> = Deserialize::deserialize(from)?;
        let value = |metric: &Metric| values.get(&metric.name()).map_or(f64::NAN, |it| it.0);
        Ok(PointResult(Metric::ALL.iter().map(value).collect(), None))
    }
}
