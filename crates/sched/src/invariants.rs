//! The suite that every policy passes: random inputs from a seed, and a model that knows only
//! what must hold (exactly once, overlap, bound, work conserving, same outputs, memory).
//!
//! A policy is tested as soon as it stands in `policies::NAMES`. A failure names policy and seed;
//! `TIDEGATE_SEED=17 cargo test -p tidegate-sched invariants` runs that seed alone. The suite is
//! tested as well: against policies that are each broken in one way.

mod broken;
mod model;

use crate::test::Random;
use crate::types::{AppId, Direction, FileId, Input, Output, Rejected, Request, RequestId, Time};
use crate::{
    AccessCost, AppShare, Bound, CostModel, Latency, Observed, OptionKind, OptionSpec, OptionValue,
    Options, PolicyOptions, PolicySpec, Prediction, Rate, Scheduler, Share, Shares, policies,
};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use model::Model;
use std::borrow::ToOwned;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::string::String;
use std::vec::Vec;

const SEEDS: u64 = 300;
const STEPS: u64 = 600;
/// Names of applications.
const APPS: [&str; 6] = ["0", "1", "2", "3", "4", "5"];

const WALL: u64 = 1_700_000_000_000_000_000;

/// What the suite drives: a scheduler, or something broken around one.
pub(super) trait Subject {
    fn handle(&mut self, now: Time, input: Input) -> Result<(), Rejected>;
    fn poll(&mut self, now: Time, into: &mut Vec<Request>) -> Output;
    fn inner(&self) -> &Scheduler;
}

impl Subject for Scheduler {
    fn handle(&mut self, now: Time, input: Input) -> Result<(), Rejected> {
        Scheduler::handle(self, now, input)
    }

    fn poll(&mut self, now: Time, into: &mut Vec<Request>) -> Output {
        Scheduler::poll(self, now, into)
    }

    fn inner(&self) -> &Scheduler {
        self
    }
}

type Make<'a> = &'a dyn Fn(&Options) -> std::boxed::Box<dyn Subject>;

/// The shape of one run, drawn from its seed.
struct Shape {
    options: Options,
    arrive_percent: u64,
    write_percent: u64,
    cancel_percent: u64,
    shuffles_percent: u64,
    files: u64,
    apps: u64,
    /// Ranges lie in this many blocks of 4 KiB.
    blocks: u64,
    blocks_len_max: u64,
    step_ns: u64,
}

impl Shape {
    /// Options of a policy: each at its default, at a limit, or anywhere between, mostly small.
    fn table(policy: &PolicySpec, random: &mut Random) -> PolicyOptions {
        let mut table = PolicyOptions::default();
        // What depends on other options comes after them.
        let depends =
            |spec: &&OptionSpec| spec.except.is_some() || matches!(spec.kind, OptionKind::Below(_));
        let (last, first): (Vec<&OptionSpec>, Vec<&OptionSpec>) =
            policy.options.iter().partition(depends);
        for spec in first.into_iter().chain(last) {
            let kind = spec.kind_beside(&table);
            if random.chance(25) {
                table.set(spec.name, kind.default());
                continue;
            }
            match kind {
                OptionKind::Integer { min, max, .. } => {
                    table.set(spec.name, number(min, max, random));
                }
                OptionKind::Below(bound) => {
                    let Some(&OptionValue::Integer(end)) = table.get(bound) else {
                        unreachable!("{bound} is drawn before {}", spec.name);
                    };
                    table.set(spec.name, random.below(end));
                }
                OptionKind::Bool => table.set(spec.name, random.chance(50)),
                OptionKind::Word(texts) | OptionKind::Text(texts) => {
                    table.set(spec.name, random.pick(texts));
                }
            }
        }
        table
    }

    fn new(name: &str, random: &mut Random) -> Shape {
        let policy = policies::find(name).expect("it is in the list");
        let table = Shape::table(policy, random);
        let options = Options {
            policy: name.to_owned(),
            queued_max: 4 + random.below(150) as u32,
            depth: 1 + random.below(4) as u32,
            wall_offset_ns: WALL,
            merge: random.pick(&[None, Some(false), Some(true)]),
            batch_bytes_max: random.pick(&[4096, 65_536, 8 << 20]),
            batch_requests_max: random.pick(&[1, 3, 256]),
            stripe_bytes: random.pick(&[0, 0, 4096, 65_536]),
            prediction: None,
            cost: match random.chance(50) {
                true => CostModel::default(),
                false => cheap(),
            },
            estimate: random.chance(50),
            shares: Shares {
                forwarders: random.pick(&[1, 3]),
                ..Shares::default()
            },
            table,
        };
        let mut shape = Shape {
            options: match policy.name {
                "auto" => with_weights(options, random),
                _ => options,
            },
            arrive_percent: 35 + random.below(35),
            write_percent: random.pick(&[0, 10, 50, 100]),
            cancel_percent: random.pick(&[0, 0, 10]),
            shuffles_percent: random.pick(&[0, 50, 90]),
            files: 1 + random.below(4),
            apps: 1 + random.below(6),
            blocks: random.pick(&[8, 64, 1024]),
            blocks_len_max: random.pick(&[1, 8, 64]),
            step_ns: random.pick(&[1000, 300_000, 20_000_000]),
        };
        if shape.options.table.get("prediction").is_some() {
            shape.options.prediction = Some(Arc::new(shape.foretold(random)));
        }
        shape
    }

    /// What earlier runs of the same kind foretell: some of it comes.
    fn foretold(&self, random: &mut Random) -> Prediction {
        let trace = |random: &mut Random| -> Vec<Observed> {
            let mut at_ns = 0;
            let requests = (0..STEPS / 2).map(|id| {
                at_ns += 2 * random.below(self.step_ns);
                let request = self.request(id, Time(1_000_000_000), random);
                Observed {
                    file: request.file,
                    direction: request.direction,
                    offset: request.offset,
                    len: request.len,
                    at_ns,
                }
            });
            requests.collect()
        };
        let traces = [trace(random), trace(random)];
        Prediction::new(&traces, &self.options.cost)
    }

    /// Whether the overlap rule holds back nothing but what conflicts: it may hold more after a
    /// held request was cancelled, and under reads of very many pieces.
    fn is_exact(&self) -> bool {
        self.cancel_percent == 0 && self.blocks_len_max <= 8
    }

    fn request(&self, id: u64, now: Time, random: &mut Random) -> Request {
        // Their names are numbers, as those of queues, so that one text of weights does for both.
        let app = AppId::from_name(APPS[random.below(self.apps) as usize]);
        let file = FileId(random.below(self.files));
        let write = random.chance(self.write_percent);
        let direction = if write {
            Direction::Write
        } else {
            Direction::Read
        };
        let offset = random.below(self.blocks) * 4096;
        let len = random.below(self.blocks_len_max + 1) * 4096;
        let mut request = Request::new(RequestId(id), app, file, direction, offset, len);
        request.stamp_ns = match random.below(10) {
            0 => 0,
            1 => u64::MAX,
            _ => WALL + now.0 - now.0.min(random.below(30_000_000)),
        };
        request.queue = random.below(7) as u32;
        if self.shuffles_percent > 0 && random.chance(self.shuffles_percent) {
            request.stamp_ns -= request.stamp_ns % 10_000_000;
            request.shuffle_us = random.pick(&[0u64, 1, 20, 5000, 90_000, u64::MAX]) as u32;
            request.shuffle_max_us = random.pick(&[0, 5000, 100_000, u32::MAX]);
            request.shuffle_rank = random.below(9) as u16;
        }
        request.epoch_seen = random.pick(&[0, 0, u64::MAX]);
        request.operation_bytes_max = random.pick(&[0, 4096, 1 << 20, 1 << 34, u64::MAX]);
        request.bytes_elsewhere = random.pick(&[0, 0, 0, 65_536, 1 << 30, u64::MAX]);
        if write && random.chance(5) {
            (request.offset, request.len, request.mergeable) = (0, u64::MAX, false);
        }
        request
    }
}

/// Half of the time some of the applications have weights of their own.
fn with_weights(mut options: Options, random: &mut Random) -> Options {
    if random.chance(50) {
        options.shares.apps = weights(random);
    }
    options
}

fn weights(random: &mut Random) -> BTreeMap<AppId, AppShare> {
    let mut apps = BTreeMap::new();
    for name in APPS {
        if random.chance(40) {
            let mut own = AppShare::default();
            own.share.weight = random.pick(&[1, 2, 5]);
            apps.insert(AppId::from_name(name), own);
        }
    }
    apps
}

/// Shares of all kinds that make nobody wait for a time, or none.
fn shares(random: &mut Random) -> Shares {
    if random.chance(25) {
        return Shares::default();
    }
    let mut shares = Shares {
        apps: weights(random),
        ..Shares::default()
    };
    for own in shares.apps.values_mut() {
        let latency = Latency {
            ns: 10_000_000,
            percentile: 95,
        };
        own.share.latency = random.pick(&[None, None, Some(latency)]);
        own.share.min = random.pick(&[None, Some(Rate::Device(300))]);
    }
    if random.chance(30) {
        shares.groups.push(Share::default());
        let mut any = shares.apps.values_mut().chain([&mut shares.others]);
        any.by_ref().step_by(2).for_each(|own| own.group = Some(0));
    }
    shares
}

/// A number within its limits: one of them, or one of any number of bits, mostly few.
fn number(min: u64, max: u64, random: &mut Random) -> u64 {
    let span = max - min;
    let bits = u64::from(u64::BITS - span.leading_zeros()).min(53);
    let most_bits = random.below(bits + 1);
    let up_to = 1 << random.below(most_bits + 1);
    match random.below(16) {
        0 => max,
        _ => min + random.below(up_to).min(span),
    }
}

/// A device whose accesses cost what they move and little else.
fn cheap() -> CostModel {
    let mut model = CostModel::default();
    for direction in [Direction::Read, Direction::Write] {
        for sequential in [false, true] {
            *model.access_mut(direction, sequential) = AccessCost {
                base_ns: 10,
                ns_per_mib: 1 << 20,
            };
        }
    }
    model
}

/// One run. Returns all that came out, or what was wrong.
fn run(name: &str, seed: u64, make: Make<'_>) -> Result<String, String> {
    let mut random = Random::new(seed);
    let shape = Shape::new(name, &mut random);
    let mut subject = make(&shape.options);
    let mut model = Model::new(&shape.options, shape.is_exact());
    let mut now = Time(1_000_000_000);
    let mut next_id = 0;
    for _ in 0..STEPS {
        now = now + random.below(shape.step_ns);
        if random.chance(shape.arrive_percent) {
            let request = shape.request(next_id, now, &mut random);
            next_id += 1;
            model.arrived(now, request, subject.as_mut())?;
        } else if random.chance(shape.cancel_percent) {
            model.cancelled(now, RequestId(random.below(next_id + 1)), subject.as_mut())?;
        } else {
            model.finished(now, random.below(1 << 32), subject.as_mut())?;
        }
        if random.chance(60) {
            model.poll(now, subject.as_mut())?;
        }
    }
    model.drain(now, subject.as_mut())?;
    Ok(model.outputs)
}

/// All checks of one seed, with panics as failures, and the same again for the same outputs.
fn check(name: &str, seed: u64, make: Make<'_>) -> Result<(), String> {
    let once = || {
        catch_unwind(AssertUnwindSafe(|| run(name, seed, make))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            Err(text
                .or(panic.downcast_ref().cloned())
                .unwrap_or_else(|| "panic".to_owned()))
        })
    };
    let (first, second) = (once()?, once()?);
    if first != second {
        return Err("same inputs: the outputs differ".to_owned());
    }
    Ok(())
}

fn seeds() -> std::ops::RangeInclusive<u64> {
    match std::env::var("TIDEGATE_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("TIDEGATE_SEED must be a whole number");
            seed..=seed
        }
        Err(_) => 1..=SEEDS,
    }
}

#[test]
fn every_policy_keeps_them() {
    let make = |options: &Options| -> std::boxed::Box<dyn Subject> {
        std::boxed::Box::new(Scheduler::new(options).unwrap())
    };
    for name in policies::NAMES {
        for seed in seeds() {
            if let Err(text) = check(name, seed, &make) {
                panic!(
                    "policy {name}, seed {seed}: {text}\n\
                     replay: TIDEGATE_SEED={seed} cargo test -p tidegate-sched invariants"
                );
            }
        }
    }
}

#[test]
fn the_suite_finds_each_broken_policy() {
    for case in broken::CASES {
        // The base policy decides the options; the case decides what is wrong.
        let mut found = (1..=SEEDS).filter_map(|seed| check("fifo", seed, &case.make).err());
        let (name, text) = (case.name, case.found_as);
        assert!(
            found.any(|found| found.contains(text)),
            "{name}: not found as {text}"
        );
    }
}

#[test]
fn a_change_of_policy_loses_nothing_and_keeps_the_order_of_arrival() {
    for seed in 1..=100 {
        let mut random = Random::new(seed);
        let mut shape = Shape::new("fifo", &mut random);
        // So that `hio` takes over requests with shuffles, and others take over its own.
        shape.shuffles_percent = 50;
        let mut scheduler = Scheduler::new(&shape.options).unwrap();
        let mut model = Model::new(&shape.options, false);
        let mut now = Time(1_000_000_000);
        for id in 0..400 {
            now = now + random.below(shape.step_ns);
            let request = shape.request(id, now, &mut random);
            model.arrived(now, request, &mut scheduler).unwrap();
            if random.chance(5) {
                let policy = random.pick(policies::NAMES).to_owned();
                let options = Options {
                    policy,
                    ..shape.options.clone()
                };
                let options = Options {
                    table: PolicyOptions::default(),
                    ..options
                };
                scheduler.set_policy(now, &options).unwrap();
                assert_eq!(scheduler.policy(), options.policy);
                model.forget_bounds();
            }
            if random.chance(5) {
                let shares = shares(&mut random);
                let (goes_on, before) = (scheduler.can_keep(&shares), scheduler.bound());
                let had = scheduler.options().shares.clone();
                scheduler.set_shares(now, &shares).unwrap();
                let had_crowd = matches!(before, Bound::WeightedBesideWindows { .. });
                match goes_on {
                    true => model.forget_shares(|app| had_crowd && !had.apps.contains_key(&app)),
                    false => model.forget_bounds(),
                }
            }
            if random.chance(60) {
                model
                    .finished(now, random.below(1 << 32), &mut scheduler)
                    .unwrap();
                model.poll(now, &mut scheduler).unwrap();
            }
        }
        let options = Options {
            table: PolicyOptions::default(),
            ..shape.options.clone()
        };
        scheduler
            .set_policy(
                now,
                &Options {
                    policy: "fifo".to_owned(),
                    ..options
                },
            )
            .unwrap();
        model.forget_bounds();
        assert_eq!(scheduler.bound(), Bound::Ahead);
        model.drain(now, &mut scheduler).unwrap();
    }
}

#[test]
fn refused_options_change_nothing() {
    let mut scheduler = Scheduler::new(&Options::for_policy("fifo")).unwrap();
    let text = |result: Result<(), crate::OptionsError>| {
        std::string::ToString::to_string(&result.unwrap_err())
    };
    let unknown = Options::for_policy("lifo");
    assert_eq!(
        text(scheduler.set_policy(Time(0), &unknown)),
        std::format!(
            "there is no policy \"lifo\"; known: {}",
            policies::NAMES.join(", ")
        )
    );
    let mut window = Options::for_policy("window");
    window.table.set("width", 5u64);
    assert_eq!(
        text(scheduler.set_policy(Time(0), &window)),
        "policy window has no option \"width\"; known: inside, order, rotation_seed, window_ms"
    );
    window.table = PolicyOptions::default().with("order", "name");
    assert_eq!(
        text(scheduler.set_policy(Time(0), &window)),
        "order cannot be \"name\"; known: rotated, id, id-15-bit"
    );
    window.table = PolicyOptions::default().with("window_ms", true);
    assert_eq!(
        text(scheduler.set_policy(Time(0), &window)),
        "window_ms must be a whole number, not true"
    );
    let none = Options {
        depth: 0,
        ..Options::for_policy("fifo")
    };
    assert_eq!(
        text(scheduler.set_policy(Time(0), &none)),
        "depth = 0 is outside of 1 to 65536"
    );
    assert_eq!(scheduler.policy(), "fifo");
}
