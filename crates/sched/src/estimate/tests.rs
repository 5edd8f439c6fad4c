//! The estimate on devices whose true costs are known.

use crate::test::{Random, read, write};
use crate::{AccessCost, CostModel, Input, Options, Output, Request, RequestId, Scheduler, Time};
use std::vec::Vec;

/// A device with some noise behind a scheduler.
struct Device {
    scheduler: Scheduler,
    truth: CostModel,
    random: Random,
    now: u64,
    count: u64,
    /// Where the device's last access ended.
    end: (u64, u64),
}

impl Device {
    fn new(options: &Options, truth: CostModel) -> Device {
        Device {
            scheduler: Scheduler::new(options).unwrap(),
            truth,
            random: Random::new(7),
            now: 1_000_000,
            count: 0,
            end: (0, u64::MAX),
        }
    }

    /// Runs a request alone; `times` longer than usual.
    fn run(&mut self, request: Request, times: u64) {
        let id = RequestId(self.count);
        self.count += 1;
        let request = Request { id, ..request };
        let goes_on = self.end == (request.file.0, request.offset);
        self.end = (request.file.0, request.end());
        let cost = self.truth.access(request.direction, goes_on);
        let noise = 80 + self.random.below(41);
        let took_ns = cost.ns(request.len) * noise / 100 * times;
        let mut batch = Vec::new();
        let now = Time(self.now);
        self.scheduler.handle(now, Input::Arrived(request)).unwrap();
        assert_eq!(self.scheduler.poll(now, &mut batch), Output::Dispatch);
        self.now += took_ns;
        let finished = Input::Finished(id);
        self.scheduler.handle(Time(self.now), finished).unwrap();
        self.now += self.random.below(1000);
    }

    /// Random and sequential reads and writes from 4 KiB to 1 MiB.
    fn mix(&mut self, batches: u64) {
        for _ in 0..batches {
            let len = 4096 << (2 * self.random.below(5));
            let offset = match self.random.chance(50) {
                true => self.end.1,
                false => self.random.below(1 << 40),
            };
            let offset = if offset > 1 << 50 { 0 } else { offset };
            let request = match self.random.chance(50) {
                true => read(self.end.0, offset, len),
                false => write(self.end.0, offset, len),
            };
            self.run(request, 1);
        }
    }
}

fn scaled(model: &CostModel, by: impl Fn(u64) -> u64) -> CostModel {
    let mut model = *model;
    for (direction, sequential) in super::KINDS {
        let cost = model.access_mut(direction, sequential);
        *cost = AccessCost {
            base_ns: by(cost.base_ns),
            ns_per_mib: by(cost.ns_per_mib),
        };
    }
    model
}

/// By how many percent the costs of lengths from 4 KiB to 1 MiB differ at most.
fn error_percent(model: &CostModel, truth: &CostModel) -> u64 {
    let mut worst = 0;
    for (direction, sequential) in super::KINDS {
        for shift in [0, 2, 4, 6, 8] {
            let len = 4096 << shift;
            let truth_ns = truth.access(direction, sequential).ns(len);
            let ns = model.access(direction, sequential).ns(len);
            worst = worst.max(ns.abs_diff(truth_ns) * 100 / truth_ns);
        }
    }
    worst
}

#[test]
fn a_model_wrong_by_ten_times_is_right_after_512_batches() {
    let truth = CostModel::default();
    for wrong in [scaled(&truth, |ns| ns * 10), scaled(&truth, |ns| ns / 10)] {
        let options = Options {
            cost: wrong,
            ..Options::for_policy("wfq")
        };
        let mut device = Device::new(&options, truth);
        device.mix(512);
        let error = error_percent(&device.scheduler.cost(), &truth);
        assert!(error <= 20, "{error} %: {}", device.scheduler.cost());
        // And it stays.
        for _ in 0..20 {
            device.mix(256);
            let error = error_percent(&device.scheduler.cost(), &truth);
            assert!(error <= 20, "{error} %: {}", device.scheduler.cost());
        }
    }
}

#[test]
fn a_device_that_changes_is_followed_and_off_is_off() {
    let truth = CostModel::default();
    for estimate in [true, false] {
        let options = Options {
            estimate,
            ..Options::for_policy("sjf")
        };
        let mut device = Device::new(&options, truth);
        device.mix(1000);
        device.truth = scaled(&truth, |ns| ns * 4);
        device.mix(3000);
        let error = error_percent(&device.scheduler.cost(), &device.truth);
        match estimate {
            true => assert!(error <= 20, "{error} %"),
            false => assert_eq!(device.scheduler.cost(), truth),
        }
        assert_eq!(device.scheduler.options().cost, truth);
    }
}

#[test]
fn bounds_hold() {
    let prior = CostModel::default();
    for (factor, bound) in [
        (scaled(&prior, |ns| ns * 1000), scaled(&prior, |ns| ns * 16)),
        (scaled(&prior, |ns| ns / 1000), scaled(&prior, |ns| ns / 16)),
    ] {
        let mut device = Device::new(&Options::for_policy("wfq"), factor);
        device.mix(8000);
        assert_eq!(error_percent(&device.scheduler.cost(), &bound), 0);
    }
    let free = scaled(&prior, |_| 0);
    let options = Options {
        cost: free,
        ..Options::for_policy("wfq")
    };
    let mut device = Device::new(&options, prior);
    device.mix(1000);
    assert_eq!(device.scheduler.cost(), free);
}

#[test]
fn stalls_do_not_ruin_it() {
    let truth = CostModel::default();
    let mut device = Device::new(&Options::for_policy("wfq"), truth);
    device.mix(512);
    for round in 0..50 {
        // Ten seconds and more, about once a hundred batches.
        device.run(read(3, round << 30, 4096), 1000);
        device.mix(100);
        let error = error_percent(&device.scheduler.cost(), &truth);
        assert!(error <= 25, "{error} %: {}", device.scheduler.cost());
    }
}

#[test]
fn random_and_sequential_are_told_apart_and_reads_from_writes() {
    let mut truth = CostModel::default();
    truth.read_sequential.base_ns *= 5;
    truth.write_random.base_ns /= 5;
    let mut device = Device::new(&Options::for_policy("wfq"), truth);
    device.mix(2000);
    let error = error_percent(&device.scheduler.cost(), &truth);
    assert!(error <= 20, "{error} %: {}", device.scheduler.cost());
}

#[test]
fn one_length_tells_its_cost() {
    let truth = scaled(&CostModel::default(), |ns| ns / 5);
    let mut device = Device::new(&Options::for_policy("wfq"), truth);
    for at in 0..1000 {
        device.run(read(1, (at * 7919 % 1000) << 20, 65_536), 1);
    }
    let (cost, truth) = (device.scheduler.cost().read_random, truth.read_random);
    let error = cost.ns(65_536).abs_diff(truth.ns(65_536)) * 100 / truth.ns(65_536);
    assert!(error <= 20, "{error} %: {cost:?}");
}

#[test]
fn batches_that_run_together_share_the_device_s_time() {
    let prior = CostModel::default();
    let options = Options {
        depth: 8,
        ..Options::for_policy("wfq")
    };
    let mut scheduler = Scheduler::new(&options).unwrap();
    let (mut now, mut batch) = (0, Vec::new());
    // Eight beside each other take what one took: each has an eighth.
    for round in 0..200 {
        for id in 0..8 {
            let request = read(1, (round * 8 + id) * 7919 % 10_000 * 65_536, 4096);
            let request = Request {
                id: RequestId(id),
                ..request
            };
            scheduler
                .handle(Time(now), Input::Arrived(request))
                .unwrap();
            assert_eq!(scheduler.poll(Time(now), &mut batch), Output::Dispatch);
        }
        now += prior.read_random.ns(4096);
        for id in 0..8 {
            let finished = Input::Finished(RequestId(id));
            scheduler.handle(Time(now), finished).unwrap();
        }
    }
    let (ns, expected) = (
        scheduler.cost().read_random.ns(4096),
        prior.read_random.ns(4096) / 8,
    );
    assert!(ns.abs_diff(expected) * 5 < expected, "{ns} for {expected}");
}

#[test]
fn what_was_learned_outlives_a_change_of_policy_but_not_of_the_model() {
    let truth = scaled(&CostModel::default(), |ns| ns * 5);
    let mut device = Device::new(&Options::for_policy("wfq"), truth);
    device.mix(1000);
    let learned = device.scheduler.cost();
    assert_ne!(learned, CostModel::default());
    for name in crate::policies::NAMES {
        let options = Options::for_policy(name);
        device.scheduler.set_policy(Time(0), &options).unwrap();
        assert_eq!(device.scheduler.cost(), learned, "{name}");
    }
    let other = Options {
        cost: scaled(&truth, |ns| ns * 2),
        ..Options::for_policy("wfq")
    };
    device.scheduler.set_policy(Time(0), &other).unwrap();
    assert_eq!(device.scheduler.cost(), other.cost);
}

#[test]
fn queued_requests_keep_their_places_when_costs_change() {
    // Writes become cheap; those that wait at the old price stay behind the reads.
    let prior = CostModel::default();
    let truth = CostModel {
        write_random: AccessCost {
            base_ns: prior.write_random.base_ns / 10,
            ..prior.write_random
        },
        ..prior
    };
    let mut options = Options::for_policy("sjf");
    options.table.set("age_ms_max", 3_600_000);
    let mut device = Device::new(&options, truth);
    let old = Request {
        id: RequestId(1 << 40),
        ..write(8, 0, 1 << 20)
    };
    let arrived = Input::Arrived(old);
    device.scheduler.handle(Time(0), arrived).unwrap();
    for at in 0..300 {
        device.run(write(9, at * 7919 % 1000 * 65_536, 4096), 1);
    }
    let cost = device.scheduler.cost().write_random;
    assert!(cost.base_ns * 5 < prior.write_random.base_ns);
    let new = Request {
        id: RequestId(1 << 41),
        ..write(7, 0, 1 << 20)
    };
    let now = Time(device.now);
    device.scheduler.handle(now, Input::Arrived(new)).unwrap();
    let mut batch = Vec::new();
    for expected in [new.id, old.id] {
        device.scheduler.poll(now, &mut batch);
        assert_eq!(batch[0].id, expected);
        let finished = Input::Finished(expected);
        device.scheduler.handle(now, finished).unwrap();
    }
}
