//! Traces as a load: the simulated clients make the recorded requests again, at the recorded times
//! or as fast as answers arrive.

mod reading;

use crate::rng::Rng;
use crate::units::Bytes;
use crate::world::{Access, CALL_BYTES_MAX, Program, Step};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The keys of an application whose workload is `trace`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplayOptions {
    /// Traces of one application's run; those of several forwarders belong together.
    pub files: Vec<PathBuf>,
    /// When accesses are made.
    #[serde(default)]
    pub pace: ReplayPace,
    /// Factor by which recorded times pass faster.
    #[serde(default = "one")]
    pub speed: f64,
    /// With `pace = "closed"`: number of accesses that a client keeps unanswered.
    #[serde(default = "one_access")]
    pub in_flight: u32,
    /// Largest access; the clients make larger ones in pieces.
    #[serde(default = "piece")]
    pub request_max: Bytes,
}

fn one() -> f64 {
    1.0
}
fn one_access() -> u32 {
    1
}
fn piece() -> Bytes {
    Bytes(CALL_BYTES_MAX)
}

/// When a replay's accesses are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplayPace {
    /// At the recorded times, whatever the answers do (open loop).
    #[default]
    Recorded,
    /// When an earlier one of the same client is answered (closed loop).
    Closed,
}

/// A trace in memory: an application's clients, each with its accesses.
#[derive(Clone, Debug)]
pub struct Replay {
    options: ReplayOptions,
    /// By application, in order of their ids: name, and clients.
    apps: Vec<(String, Vec<Arc<[Timed]>>)>,
    warnings: Vec<String>,
}

/// An access and when it was made, ns after the trace's first.
#[derive(Clone, Debug)]
struct Timed {
    at_ns: u64,
    access: Access,
}

impl Replay {
    /// Reads traces. `folder`: where relative names begin. The error names the key and the reason.
    pub fn read(mut options: ReplayOptions, folder: &Path) -> Result<Replay, (String, String)> {
        let wrong = |key: &str, reason: String| Err((key.to_string(), reason));
        if options.files.is_empty() {
            return wrong("files", "name at least one trace".into());
        }
        if !(options.speed.is_finite() && options.speed > 0.0) {
            return wrong("speed", format!("{} is no positive number", options.speed));
        }
        if options.in_flight == 0 {
            return wrong("in_flight", "must be positive".into());
        }
        if !(1..=CALL_BYTES_MAX).contains(&options.request_max.0) {
            return wrong(
                "request_max",
                format!("must be 1 to {CALL_BYTES_MAX} bytes"),
            );
        }
        for file in &mut options.files {
            *file = folder.join(&*file);
        }
        let read = reading::read(&options).map_err(|reason| ("files".to_string(), reason))?;
        Ok(Replay { options, ..read })
    }

    /// What a reader of the results should know of the traces.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Names of the applications.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.apps.iter().map(|(name, _)| name.as_str())
    }

    /// How many clients each application has.
    pub fn clients(&self) -> impl Iterator<Item = u32> {
        self.apps.iter().map(|(_, clients)| clients.len() as u32)
    }

    /// The programs of an application's clients, each started `start_ns` after the run. Files are
    /// numbered as recorded.
    pub fn programs(&self, app: usize, start_ns: u64) -> Vec<Box<dyn Program>> {
        let program = |accesses: &Arc<[Timed]>| -> Box<dyn Program> {
            Box::new(Replayed {
                accesses: accesses.clone(),
                next: 0,
                start_ns,
                in_flight: match self.options.pace {
                    ReplayPace::Recorded => None,
                    ReplayPace::Closed => Some(self.options.in_flight),
                },
                turn: false,
            })
        };
        self.apps[app].1.iter().map(program).collect()
    }
}

/// One client's accesses.
struct Replayed {
    accesses: Arc<[Timed]>,
    next: usize,
    start_ns: u64,
    /// None: at the recorded times.
    in_flight: Option<u32>,
    /// The waiting before the next access is over.
    turn: bool,
}

impl Program for Replayed {
    fn next(&mut self, _: &mut Rng) -> Step {
        let Some(timed) = self.accesses.get(self.next) else {
            return Step::Exit;
        };
        if !std::mem::replace(&mut self.turn, true) {
            return match self.in_flight {
                // Both are at most a few years.
                None => Step::Until(self.start_ns.saturating_add(timed.at_ns)),
                Some(in_flight) => Step::Drain(in_flight - 1),
            };
        }
        self.turn = false;
        self.next += 1;
        Step::Issue(timed.access.clone())
    }
}

#[cfg(test)]
mod tests;
