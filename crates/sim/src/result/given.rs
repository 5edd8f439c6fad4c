//! What the metrics must know of a run: its applications, and what to measure.

use crate::scenario::Operations;
use crate::world::{self, Setup};
use tidegate_sched::AppId;

/// What the metrics must know of a run.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// The applications, in the run's order.
    pub applications: Vec<GivenApplication>,
    /// What counts as an operation.
    pub operations: Operations,
    /// Measure requests; the run records them.
    pub requests: bool,
    /// Find the lower bound of completion; the run records requests.
    pub bound: bool,
}

/// An application that a run was given.
#[derive(Clone, Debug)]
pub struct GivenApplication {
    /// The hash of its name.
    pub id: AppId,
    /// Its name.
    pub name: String,
    /// Its processes.
    pub processes: u32,
    /// When its first process starts, ns after the run.
    pub starts_ns: u64,
    /// How long it takes by itself, ns, if that is known.
    pub alone_ns: Option<u64>,
    /// Whether it counts.
    pub measured: bool,
}

impl Given {
    /// What a setup gives.
    pub fn of(setup: &Setup) -> Given {
        let application = |it: &world::Application| GivenApplication {
            id: AppId::from_name(&it.name),
            name: it.name.clone(),
            processes: it.processes.len() as u32,
            starts_ns: it
                .processes
                .iter()
                .map(|one| one.starts_ns)
                .min()
                .unwrap_or(0),
            alone_ns: None,
            measured: !it.background,
        };
        Given {
            applications: setup.applications.iter().map(application).collect(),
            ..Given::default()
        }
    }
}
