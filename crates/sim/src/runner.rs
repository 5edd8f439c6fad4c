//! Runs all points of a scenario, over several threads, and puts the results in order.

use crate::result::{Given, Outcome, PointResult, measure};
use crate::scenario::{REPETITIONS_MAX, SEED_MAX, Scenario, ScenarioError};
use crate::training::Predicted;
use crate::world::{self, Setup};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use tidegate_trace::{Header, Origin, Record};

/// One run of a scenario: where it belongs.
#[derive(Clone, Copy, Debug)]
struct Place {
    series: usize,
    point: usize,
    policy: usize,
    repetition: u32,
}

/// The requests of one run.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<'a> {
    /// Number of the series.
    pub series: usize,
    /// Number of the point.
    pub point: usize,
    /// Number of the policy.
    pub policy: usize,
    /// What holds for all of them.
    pub header: &'a Header,
    /// Names of the applications.
    pub names: &'a [&'a str],
    /// As forwarders served them.
    pub records: &'a [Record],
}

/// Takes the requests of a run; an error ends the scenario with these words.
pub type Sink<'a> = &'a (dyn Fn(&Recorded<'_>) -> Result<(), String> + Sync);

/// Runs a scenario. Calls `progress` with the number of runs that have ended, and of all runs.
/// Results do not depend on the number of threads.
pub fn run(
    scenario: &Scenario,
    threads: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Outcome, ScenarioError> {
    run_recorded(scenario, threads, progress, None)
}

/// Like [`run`]; `sink` also takes the requests of each series, point and policy under the first
/// seed.
pub fn run_recorded(
    scenario: &Scenario,
    threads: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
    sink: Option<Sink<'_>>,
) -> Result<Outcome, ScenarioError> {
    check(scenario)?;
    let places = places(scenario);
    let predicted = Predicted::new(scenario);
    let next = AtomicUsize::new(0);
    let ended = AtomicUsize::new(0);
    let events = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let results: Vec<Mutex<Option<Result<PointResult, String>>>> =
        places.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(place) = places.get(number) else {
                return;
            };
            let sink = sink.filter(|_| place.repetition == 0);
            let result = one(scenario, *place, &predicted, sink, &events);
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            if let Ok(mut kept) = results[number].lock() {
                *kept = Some(result);
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
    for (result, place) in results.into_iter().zip(&places) {
        match result.into_inner().ok().flatten() {
            Some(Ok(result)) => done.push(result),
            Some(Err(reason)) => return Err(wrong(scenario, *place, reason)),
            // Another run failed before this one began.
            None => {}
        }
    }
    Ok(Outcome::of(scenario, &done, events.into_inner()))
}

/// What a caller can have changed since the scenario was read.
fn check(scenario: &Scenario) -> Result<(), ScenarioError> {
    let reason = if !(1..=REPETITIONS_MAX).contains(&scenario.repetitions) {
        format!("repetitions: 1 to {REPETITIONS_MAX} are possible")
    } else if scenario.seed > SEED_MAX {
        format!("seed: 0 to {SEED_MAX} are possible")
    } else {
        return Ok(());
    };
    let place = scenario.name.clone();
    Err(ScenarioError { place, reason })
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

fn one(
    scenario: &Scenario,
    place: Place,
    predicted: &Predicted,
    sink: Option<Sink<'_>>,
    events: &AtomicU64,
) -> Result<PointResult, String> {
    let figure = &scenario.figure;
    let machine = &scenario.series[place.series].points[place.point].machine;
    let policy = &scenario.policies[place.policy];
    let seed = scenario.seed + u64::from(place.repetition);
    let where_at = (place.series, place.point, place.policy);
    let predictions = predicted.of(scenario, where_at, &|setup| run_one(setup, events))?;
    let setup_of = |alone| Setup {
        predictions: predictions.clone(),
        ..machine.setup(policy, seed, alone)
    };
    let mut setup = setup_of(None);
    let mut given = Given {
        operations: figure.operations,
        requests: figure.requests,
        bound: figure.optimum && place.policy == 0,
        ..Given::of(&setup)
    };
    setup.promises = figure.promises;
    let timeline = figure.timeline.as_ref().filter(|_| place.repetition == 0);
    setup.timeline_ns = timeline.map(|it| it.every.0);
    setup.record = given.requests || given.bound || sink.is_some();
    let header = Header {
        forwarders: setup.forwarders.count,
        stripe: setup.forwarders.stripe,
        origin: Origin::Simulation,
        ..Header::default()
    };
    let outcome = run_one(setup, events)?;
    if figure.alone {
        for (number, app) in (0..)
            .zip(&mut given.applications)
            .filter(|(_, app)| app.measured)
        {
            let end_ns = run_one(setup_of(Some(number)), events)?.end_ns;
            app.alone_ns = Some(end_ns.saturating_sub(app.starts_ns));
        }
    }
    if let Some(sink) = sink {
        let names = given.applications.iter().map(|app| app.name.as_str());
        sink(&Recorded {
            series: place.series,
            point: place.point,
            policy: place.policy,
            header: &header,
            names: &names.collect::<Vec<_>>(),
            records: &outcome.records,
        })?;
    }
    Ok(measure(&outcome, &given))
}

/// Runs once, and adds what it simulated to `events`.
fn run_one(setup: Setup, events: &AtomicU64) -> Result<world::Outcome, String> {
    let outcome = world::run(setup).map_err(|error| error.0)?;
    events.fetch_add(outcome.events, Ordering::Relaxed);
    match &outcome.failures {
        (0, _) => Ok(outcome),
        (count, reason) => {
            let reason = reason.as_deref().unwrap_or("unknown");
            Err(format!("{count} accesses failed; the first: {reason}"))
        }
    }
}
