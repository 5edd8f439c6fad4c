//! The loads of a run, one after the other: first those from which the forwarders only learn, then
//! the one that is measured.

use super::World;
use super::process::{self, App, Running};
use super::setup::Application;
use crate::rng::Rng;
use std::collections::VecDeque;

/// Loads that have not begun.
pub(super) struct Passes {
    left: VecDeque<Vec<Application>>,
    rng: Rng,
}

impl Passes {
    pub(super) fn new(
        rehearsals: Vec<Vec<Application>>,
        applications: Vec<Application>,
        rng: Rng,
    ) -> Passes {
        let mut left = VecDeque::from(rehearsals);
        left.push_back(applications);
        Passes { left, rng }
    }

    /// Makes the next load ready.
    pub(super) fn next(&mut self) -> (Vec<App>, Vec<Running>) {
        let load = self.left.pop_front().unwrap_or_default();
        process::launch(load, &mut self.rng)
    }

    /// Whether the load that runs is the one that is measured.
    pub(super) fn is_last(&self) -> bool {
        self.left.is_empty()
    }
}

impl World {
    /// Whether something is left to do. Begins the next load when one has ended.
    pub(super) fn goes_on(&mut self) -> bool {
        if self.running > 0 || self.opening > 0 {
            return true;
        }
        while !self.passes.is_last() {
            (self.apps, self.processes) = self.passes.next();
            self.running = self.awaited();
            if self.running > 0 {
                self.start_programs();
                return true;
            }
        }
        false
    }

    /// When the load is given up.
    pub(super) fn ends_by(&self) -> u64 {
        self.recorder.begun_ns().saturating_add(self.limit_ns)
    }

    /// Starts a forwarder, with what is foretold for it.
    pub(super) fn start_host(&mut self, forwarder: usize) {
        if let Some(prediction) = self.predictions.get(forwarder) {
            self.config.scheduler.prediction = Some(prediction.clone());
        }
        self.hosts[forwarder].start(&self.config, forwarder as u16);
    }
}
