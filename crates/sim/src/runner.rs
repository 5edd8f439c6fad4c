//! Runs all points of a scenario, over several threads, and puts the results in order.

use crate::result::{Outcome, PointResult, measure};
use crate::scenario::{Scenario, ScenarioError};
use crate::world::{self, Setup};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// One run of a scenario: where it belongs.
#[derive(Clone, Copy, Debug)]
struct Place {
    series: usize,
    point: usize,
    policy: usize,
    repetition: u32,
}

/// Runs a scenario. `progress` is told how many of how many runs have ended. Results do not depend
/// on the number of threads.
pub fn run(
    scenario: &Scenario,
    threads: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Outcome, ScenarioError> {
    let places = places(scenario);
    let next = AtomicUsize::new(0);
    let ended = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let results: Vec<Mutex<Option<Result<PointResult, String>>>> =
        places.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(place) = places.get(number) else {
                return;
            };
            let result = one(scenario, *place);
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            if let Ok(mut slot) = results[number].lock() {
                *slot = Some(result);
            }
            progress(1 + ended.fetch_add(1, Ordering::Relaxed), places.len());
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.max(1) {
            scope.spawn(work);
        }
        work();
    });
    let mut done = Vec::with_capacity(places.len());
    for (slot, place) in results.into_iter().zip(&places) {
        match slot.into_inner().ok().flatten() {
            Some(Ok(result)) => done.push(result),
            Some(Err(reason)) => return Err(wrong(scenario, *place, reason)),
            // Another run failed before this one began.
            None => {}
        }
    }
    Ok(Outcome::of(scenario, &done))
}

fn wrong(scenario: &Scenario, place: Place, reason: String) -> ScenarioError {
    let series = &scenario.series[place.series];
    ScenarioError {
        place: format!(
            "{} (series {:?}, x = {}, policy {}, seed {})",
            scenario.name,
            series.name,
            series.points[place.point].x,
            scenario.policies[place.policy].label,
            scenario.seed + u64::from(place.repetition),
        ),
        reason,
    }
}

/// All runs; those of one series, point and policy follow each other.
fn places(scenario: &Scenario) -> Vec<Place> {
    let mut places = Vec::new();
    for (series, its) in scenario.series.iter().enumerate() {
        for point in 0..its.points.len() {
            for policy in 0..scenario.policies.len() {
                places.extend((0..scenario.repetitions).map(|repetition| Place {
                    series,
                    point,
                    policy,
                    repetition,
                }));
            }
        }
    }
    places
}

fn one(scenario: &Scenario, place: Place) -> Result<PointResult, String> {
    let machine = &scenario.series[place.series].points[place.point].machine;
    let policy = &scenario.policies[place.policy];
    let seed = scenario.seed + u64::from(place.repetition);
    let setup = |alone| machine.setup(policy, seed, alone);
    let outcome = run_one(setup(None))?;
    let mut alone_ns = Vec::new();
    if scenario.figure.alone {
        for number in 0..outcome.ends_ns.len() as u32 {
            alone_ns.push(run_one(setup(Some(number)))?.end_ns);
        }
    }
    Ok(measure(&outcome, scenario.figure.operations, &alone_ns))
}

fn run_one(setup: Setup) -> Result<world::Outcome, String> {
    let outcome = world::run(setup).map_err(|error| error.0)?;
    match &outcome.failures {
        (0, _) => Ok(outcome),
        (count, reason) => {
            let reason = reason.as_deref().unwrap_or("unknown");
            Err(format!("{count} accesses failed; the first: {reason}"))
        }
    }
}
