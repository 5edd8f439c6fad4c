//! Tests of all workloads: what they access, how their messages and barriers match, what they
//! refuse, and that they come to an end in the simulated world.

use super::*;
use crate::world::{self, Access, Application, ForwarderOptions, NetworkOptions, Process, Setup};
use crate::world::{Outcome, Step};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_device::DeviceOptions;
use tidegate_sched::Options;

fn read(name: &str, text: &str) -> Result<Workload, String> {
    Workload::read(name, text.parse().expect("the test writes TOML"))
}

/// A workload that must be possible.
fn workload(name: &str, text: &str, processes: u32) -> Workload {
    let workload = read(name, text).unwrap_or_else(|error| panic!("{name} {text}: {error}"));
    if let Err((key, reason)) = workload.check(processes) {
        panic!("{name} {text}: {key}: {reason}");
    }
    workload
}

/// All steps of a program.
fn steps(mut program: Box<dyn Program>, seed: u64) -> Vec<Step> {
    let mut rng = Rng::new(seed);
    let mut steps = Vec::new();
    loop {
        assert!(steps.len() < 1_000_000, "a program does not end");
        let step = program.next(&mut rng);
        if step == Step::Exit {
            return steps;
        }
        steps.push(step);
    }
}

fn all_steps(workload: &Workload, processes: u32, seed: u64) -> Vec<Vec<Step>> {
    let programs = workload.programs(processes, 10, &mut Rng::new(seed));
    assert_eq!(programs.len() as u32, processes);
    programs
        .into_iter()
        .enumerate()
        .map(|(rank, program)| steps(program, seed + rank as u64))
        .collect()
}

fn accesses(steps: &[Vec<Step>]) -> impl Iterator<Item = &Access> {
    steps.iter().flatten().filter_map(|step| match step {
        Step::Call(access) | Step::Issue(access) => Some(access),
        _ => None,
    })
}

/// How often each byte of each file is accessed.
fn touched(steps: &[Vec<Step>], direction: Direction) -> BTreeMap<(u64, u64), u32> {
    let mut touched = BTreeMap::new();
    for access in accesses(steps).filter(|access| access.direction == direction) {
        let mut end = None;
        for extent in access.extents.iter() {
            assert!(extent.len > 0, "an empty extent");
            assert!(end.is_none_or(|end| end < extent.offset), "{access:?}");
            end = Some(extent.offset + extent.len);
            for byte in extent.offset..extent.offset + extent.len {
                *touched.entry((access.file, byte)).or_insert(0) += 1;
            }
        }
        assert!(access.extents.bytes() <= CALL_BYTES_MAX);
    }
    touched
}

/// The accesses are the first `bytes` bytes of `files` files, each once.
fn assert_covers(steps: &[Vec<Step>], direction: Direction, files: u64, bytes: u64) {
    let touched = touched(steps, direction);
    assert_eq!(touched.len() as u64, files * bytes);
    for ((file, byte), count) in touched {
        assert!((10..10 + files).contains(&file) && byte < bytes);
        assert_eq!(count, 1, "byte {byte} of file {file}");
    }
}

/// Barriers, messages and marks of all processes match, and the totals are right.
fn assert_matches(workload: &Workload, processes: u32, steps: &[Vec<Step>]) {
    let count =
        |rank: usize, is: &dyn Fn(&Step) -> bool| steps[rank].iter().filter(|s| is(s)).count();
    let mut sent = vec![0u64; steps.len()];
    for (own, steps) in steps.iter().enumerate() {
        for step in steps {
            if let Step::Send { rank, bytes } = step {
                assert!(*bytes > 0 && *rank as usize != own);
                sent[*rank as usize] += 1;
            }
        }
    }
    for rank in 0..steps.len() {
        let received = steps[rank].iter().map(|step| match step {
            Step::Receive(count) => u64::from(*count),
            _ => 0,
        });
        assert_eq!(received.sum::<u64>(), sent[rank], "messages to {rank}");
        for is in [
            &(|step: &Step| *step == Step::Barrier) as &dyn Fn(&Step) -> bool,
            &|step| matches!(step, Step::Begin(_)),
            &|step| matches!(step, Step::End(_)),
        ] {
            assert_eq!(count(rank, is), count(0, is));
        }
    }
    let bytes: u64 = accesses(steps).map(|access| access.extents.bytes()).sum();
    assert_eq!(bytes, workload.total_bytes(processes));
    let calls = accesses(steps).count() as u64;
    assert_eq!(calls, workload.total_calls(processes));
}

fn run(workload: &Workload, processes: u32, starts_ns: u64) -> Outcome {
    let mut rng = Rng::new(5);
    let programs = workload.programs(processes, 10, &mut rng).into_iter();
    let process = |(rank, program)| Process {
        node: rank as u32 % 3,
        starts_ns,
        program,
    };
    let setup = Setup {
        seed: 1,
        nodes: 3,
        clock_skew_ns: 0,
        network: NetworkOptions::preset("gigabit-ethernet").expect("it is one"),
        forwarders: ForwarderOptions {
            count: 2,
            stripe: 4096,
            payload_max: 1 << 20,
            pool_bytes: 64 << 20,
            credits: 64,
            merge_blocks: true,
            request_ns: 1000,
            memory_mb_s: 3000,
            device: DeviceOptions::preset("ideal").expect("it is one"),
            scheduler: Options::for_policy("fifo"),
        },
        turns_disks: false,
        open_sessions: true,
        note_served: false,
        applications: vec![Application {
            name: "app".into(),
            processes: programs.enumerate().map(process).collect(),
        }],
        faults: Vec::new(),
        limit_ns: 3_600_000_000_000,
    };
    let outcome = world::run(setup).expect("it ends");
    assert_eq!(outcome.failures, (0, None));
    outcome
}

/// Everything that holds for every workload.
fn assert_sound(workload: &Workload, processes: u32) -> (Vec<Vec<Step>>, Outcome) {
    let steps = all_steps(workload, processes, 3);
    assert_eq!(steps, all_steps(workload, processes, 3));
    assert_matches(workload, processes, &steps);
    let outcome = run(workload, processes, 0);
    assert_eq!(outcome.accesses.len(), accesses(&steps).count());
    let operations: BTreeSet<u64> = steps
        .iter()
        .flatten()
        .filter_map(|step| match step {
            Step::Begin(operation) => Some(*operation),
            _ => None,
        })
        .collect();
    assert_eq!(outcome.operations.len(), operations.len());
    (steps, outcome)
}

/// That a workload is refused, and the message names the key.
fn assert_refused(name: &str, text: &str, processes: u32, key: &str) {
    match read(name, text) {
        Err(error) => assert!(error.starts_with(key), "{name} {text}: {error}"),
        Ok(workload) => match workload.check(processes) {
            Ok(()) => panic!("{name} {text} is not refused"),
            Err((found, reason)) => assert_eq!(found, key, "{name} {text}: {reason}"),
        },
    }
}

#[test]
fn ior_covers_its_files() {
    for processes in [1, 2, 5] {
        for pattern in ["contiguous", "strided", "random"] {
            for more in ["", "barrier = true", "in_flight = 3", "interval = '1 ms'"] {
                let text = format!(
                    "pattern = '{pattern}'\ndirection = 'write'\nrequest = 100\nrequests = 7\n{more}"
                );
                let ior = workload("ior", &text, processes);
                let (steps, _) = assert_sound(&ior, processes);
                assert_covers(&steps, Direction::Write, 1, 700 * u64::from(processes));
            }
        }
    }
    for pattern in ["contiguous", "random"] {
        let text = format!("pattern = '{pattern}'\nrequest = 100\nrequests = 7\nfile = 'each'");
        let (steps, _) = assert_sound(&workload("ior", &text, 4), 4);
        assert_covers(&steps, Direction::Read, 4, 700);
    }
    let one_shot = workload("ior", "request = '4 MiB'", 1);
    assert_eq!(
        (one_shot.total_bytes(1), one_shot.total_calls(1)),
        (4 << 20, 1)
    );
}

#[test]
fn ior_refuses_what_is_impossible() {
    for (text, key) in [
        ("", "request is missing"),
        ("request = 0", "request"),
        ("request = '1 XB'", "request: "),
        ("request = '65 MiB'", "request"),
        ("request = 1\nrequests = 0", "requests"),
        ("request = 1\nrequests = 4611686018427387904", "requests"),
        ("request = 1\npattern = 'diagonal'", "pattern: "),
        ("request = 1\npattern = 'strided'\nfile = 'each'", "pattern"),
        ("request = 1\ndirection = 'both'", "direction: "),
        ("request = 1\ntink = '1 s'", "tink is no key"),
        ("request = 1\nin_flight = 0", "in_flight"),
        ("request = 1\nthink = '2 s'\nthink_max = '1 s'", "think_max"),
        ("request = 1\njitter = '1 s'", "jitter"),
        ("request = 1\ninterval = '1 s'\nrate = 5", "rate"),
        ("request = 1\ninterval = '1 s'\nrate_end = 5", "rate_end"),
        ("request = 1\ninterval = 0", "interval"),
        ("request = 1\nrate = 1\nbarrier = true", "barrier"),
        ("request = 1\nrate = 1\nthink = '1 s'", "think"),
        ("request = 1\nrate = 1\nin_flight = 2", "in_flight"),
        ("request = 1\nrate = 1\non = '1 s'", "on"),
        ("request = 1\naggregators = 1", "aggregators: "),
        ("request = 1\ncollective = true", "aggregators is missing"),
        (
            "request = 1\ncollective = true\naggregators = 5",
            "aggregators",
        ),
        (
            "request = 1\ncollective = true\naggregators = 1\nbuffer = 0",
            "buffer",
        ),
        (
            "request = 1\ncollective = true\naggregators = 1\nrate = 9",
            "rate",
        ),
        (
            "request = 1\ncollective = true\naggregators = 1\nfile = 'each'",
            "file",
        ),
        (
            "request = 1\ncollective = true\naggregators = 1\npattern = 'random'",
            "pattern",
        ),
    ] {
        assert_refused("ior", text, 4, key);
    }
    assert_refused("ior", "request = 1", 0, "processes");
    assert_refused(
        "oir",
        "request = 1",
        1,
        "\"oir\" is no workload; possible are ior",
    );
}

#[test]
fn think_time_is_between_calls() {
    let text = "request = 1\nrequests = 3\nthink = '1 ms'\nthink_max = '2 ms'";
    let steps = all_steps(&workload("ior", text, 1), 1, 3);
    let [
        Step::Call(_),
        Step::Think(a),
        Step::Call(_),
        Step::Think(b),
        Step::Call(_),
    ] = steps[0][..]
    else {
        panic!("{:?}", steps[0]);
    };
    assert!(a != b && (1_000_000..=2_000_000).contains(&a) && (1_000_000..=2_000_000).contains(&b));
}

#[test]
fn calls_come_at_their_times_whatever_the_answers_do() {
    // 4 processes ask for 8 calls of 1 MB: one each 0.5 ms, faster than the network carries them.
    let text = "request = '1 MB'\nrequests = 2\nrate = '2 GB'\non = '2 ms'\noff = '10 ms'";
    let outcome = run(&workload("ior", text, 4), 4, 50_000_000);
    let mut times: Vec<u64> = outcome.accesses.iter().map(|call| call.issued_ns).collect();
    times.sort_unstable();
    let expected: Vec<u64> = (0..8u64)
        .map(|call| 50_000_000 + call * 500_000 + call / 4 * 10_000_000)
        .collect();
    assert_eq!(times, expected);
    let text = "request = 1\nrequests = 20\ninterval = '1 ms'\njitter = '300 us'";
    let outcome = run(&workload("ior", text, 1), 1, 0);
    let mut late: Vec<u64> = outcome.accesses.iter().map(|call| call.issued_ns).collect();
    late.sort_unstable();
    let late = (0..).zip(late).map(|(call, at)| at - call * 1_000_000);
    assert!(late.clone().all(|late| late <= 300_000) && late.collect::<BTreeSet<_>>().len() > 10);
}
