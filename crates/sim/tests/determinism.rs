//! Same scenario, same seed: the same numbers to the last bit, whatever the number of threads, and
//! the same as on every other machine, in debug and in release.

use tidegate_sim::result::{Metric, Outcome};
use tidegate_sim::scenario::Scenario;
use tidegate_sim::{library, runner};

/// Hash of all results of this scenario, as computed when it was written down. If a change of the
/// models or of the forwarder's code changes results on purpose, write the new one here.
const EXPECTED: u64 = 14_933_387_991_080_066_457;

const SCENARIO: &str = r#"
title = "A bit of everything"
protocol = "closed loop"
policies = ["fifo", "window", "round-robin"]
repetitions = 2
clock_skew = "3 ms"
network = { preset = "gigabit-ethernet", jitter = "200 us" }
forwarders = { count = 4, stripe = "64 KiB" }
device = { model = "hdd-7200" }
application = [
    { workload = "ior", copies = 2, processes = 4, pattern = "strided", request = "256 KiB",
      requests = 4, barrier = true },
    { workload = "noncontig", processes = 4, block = "4 KiB", blocks = 16, requests = 3,
      direction = "write" },
    { workload = "mpi-tile-io", processes = 4, tiles_x = 2, tiles_y = 2, tile_x = 256, tile_y = 8,
      element = 32, collective = true, aggregators = 2 },
]
fault = [
    { at = "20 ms", forwarder = 1, kind = "slow", percent = 300 },
    { at = "50 ms", forwarder = 2, kind = "dead" },
    { at = "400 ms", forwarder = 2, kind = "back" },
]
series = [{ name = "disk" }, { name = "ssd", set = { "device.model" = "ssd-pcie" } },
    { name = "queue", set = { "device.model" = "hdd-ncq", "device.depth" = 16 } }]
vary = { key = "forwarders.count", values = [3, 4] }
figure = { metric = "completion_mean", alone = true }
"#;

fn bits(scenario: &Scenario, outcome: &Outcome) -> Vec<u64> {
    let mut bits = Vec::new();
    for (series, its) in scenario.series.iter().enumerate() {
        for point in 0..its.points.len() {
            for policy in 0..scenario.policies.len() {
                let value = |metric: &Metric| outcome.get(series, point, policy, *metric).to_bits();
                bits.extend(Metric::ALL.iter().map(value));
            }
        }
    }
    bits
}

fn run(scenario: &Scenario, threads: usize) -> Vec<u64> {
    let outcome = runner::run(scenario, threads, &|_, _| {});
    bits(scenario, &outcome.unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn results_do_not_depend_on_threads_and_are_the_same_everywhere() {
    let scenario = Scenario::parse(SCENARIO, "test.toml", "test").expect("it is right");
    let one = run(&scenario, 1);
    assert_eq!(one, run(&scenario, 2));
    assert_eq!(one, run(&scenario, 5));
    let hash = one.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, bits| {
        (hash ^ bits).wrapping_mul(0x100_0000_01b3)
    });
    assert_eq!(hash, EXPECTED, "results changed");
}

#[test]
fn another_seed_gives_other_numbers() {
    let mut scenario = Scenario::parse(SCENARIO, "test.toml", "test").expect("it is right");
    scenario.repetitions = 1;
    let one = run(&scenario, 2);
    scenario.seed += 1;
    assert_ne!(one, run(&scenario, 2));
}

#[test]
fn built_in_scenarios_of_one_point_run() {
    for name in ["song-2011-fig5", "song-2011-fig3"] {
        let mut scenario = library::find(name).expect("known").expect("right");
        scenario.repetitions = 2;
        let outcome = runner::run(&scenario, 2, &|_, _| {}).expect("it ends");
        assert!(outcome.holds(), "{name}: {:?}", outcome.verdicts);
    }
}
