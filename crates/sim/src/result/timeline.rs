//! The course of a run over time, as reports show it.

use super::Given;
use crate::world;
use serde::{Deserialize, Serialize};

/// What happened in slices of equal length, from the start of the programs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Length of a slice, ms.
    pub slice_ms: f64,
    /// The applications, those that are not measured too.
    pub applications: Vec<ApplicationTimeline>,
    /// By slice: calls that forwarders let run at once, mean over time and forwarders.
    pub depth: Vec<f64>,
}

/// What an application got, by slice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApplicationTimeline {
    /// Its name.
    pub name: String,
    /// Bytes of accesses that ended, MB/s.
    pub bandwidth: Vec<f64>,
    /// 95th percentile of their times, ms; None: none ended.
    pub completion_p95: Vec<Option<f64>>,
}

impl Timeline {
    /// A run's timeline, if it has one.
    pub(super) fn of(outcome: &world::Outcome, given: &Given) -> Option<Timeline> {
        let of = outcome.timeline.as_ref()?;
        let slice_ns = of.slice_ns as f64;
        let applications = given.applications.iter().zip(&of.applications);
        let application = |(app, slices): (&super::GivenApplication, &world::Slices)| {
            let bytes = slices.bytes.iter();
            let p95_ns = slices.p95_ns.iter();
            ApplicationTimeline {
                name: app.name.clone(),
                bandwidth: bytes
                    .map(|bytes| *bytes as f64 * 1000.0 / slice_ns)
                    .collect(),
                completion_p95: p95_ns.map(|ns| ns.map(|ns| ns as f64 / 1e6)).collect(),
            }
        };
        Some(Timeline {
            slice_ms: slice_ns / 1e6,
            applications: applications.map(application).collect(),
            depth: of.depth.clone(),
        })
    }
}
