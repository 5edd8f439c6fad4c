//! Tests of all workloads: what they access, how their messages and barriers match, what they
//! refuse, and that they come to an end in the simulated world.

mod benchmarks;
mod collective;
mod documented;
mod refused;
mod timing;

use super::*;
use crate::world::{self, Access, Application, ForwarderOptions, NetworkOptions, Process, Setup};
use crate::world::{Outcome, Step};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_device::DeviceOptions;
use tidegate_sched::Options;
use tidegate_wire::Layout;

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

/// One process a node.
fn place() -> Place {
    Place {
        per_node: 1,
        memory_mb_s: 4000,
        network: NetworkOptions::preset("gigabit-ethernet").expect("it is one"),
        layout: Layout {
            seats: 4,
            stripe: 65_536,
        },
        copy: 0,
    }
}

fn all_steps(workload: &Workload, processes: u32, seed: u64) -> Vec<Vec<Step>> {
    let programs = workload.programs(processes, 10, place(), &mut Rng::new(seed));
    assert_eq!(programs.len() as u32, processes);
    programs
        .into_iter()
        .enumerate()
        .map(|(rank, program)| steps(program, seed + rank as u64))
        .collect()
}

/// Bytes of all accesses of all processes. In collective calls each byte is accessed once, even if
/// several processes need it.
fn total_bytes(workload: &Workload, processes: u32) -> u64 {
    let pattern = workload.benchmark().pattern(processes, 0, 0);
    let bytes = match workload.benchmark().way().collective {
        Some(_) => pattern.cover(0).bytes(),
        None => (0..processes).map(|rank| bytes(&*pattern, rank, 0)).sum(),
    };
    bytes * pattern.operations()
}

/// Accesses of all processes; of the aggregators in collective calls.
fn total_calls(workload: &Workload, processes: u32) -> u64 {
    let pattern = workload.benchmark().pattern(processes, 0, 0);
    let operations = pattern.operations();
    let Some(collective) = workload.benchmark().way().collective else {
        let calls = (0..processes).map(|rank| pattern.calls(rank, 0));
        return calls.sum::<u64>() * operations;
    };
    let rounds = (0..operations).map(|operation| {
        let cover = pattern.cover(operation);
        let aggregators = 0..collective.aggregators;
        let rounds = aggregators.map(|aggregator| collective.rounds_of(&cover, aggregator));
        rounds.sum::<u64>()
    });
    rounds.sum()
}

/// How many bytes a process accesses in an operation.
fn bytes(pattern: &dyn Pattern, rank: u32, operation: u64) -> u64 {
    let parts = 0..pattern.parts(rank, operation);
    parts
        .map(|part| pattern.part(rank, operation, part).bytes())
        .sum()
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
    assert_eq!(bytes, total_bytes(workload, processes));
    let calls = accesses(steps).count() as u64;
    assert_eq!(calls, total_calls(workload, processes));
}

fn run(workload: &Workload, processes: u32, starts_ns: u64) -> Outcome {
    let mut rng = Rng::new(5);
    let programs = workload
        .programs(processes, 10, place(), &mut rng)
        .into_iter();
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
            copy_mb_s: None,
            contention_percent: 0,
            memory_mb_s: 3000,
            mb_s: None,
            depth: None,
            device: DeviceOptions::preset("ideal").expect("it is one"),
            scheduler: Options::for_policy("fifo"),
        },
        servers: None,
        direct: false,
        turns_disks: false,
        open_sessions: true,
        note_served: false,
        promises: false,
        timeline_ns: None,
        keep_accesses: true,
        record: false,
        records_max: 0,
        predictions: Vec::new(),
        rehearsals: Vec::new(),
        applications: vec![Application {
            name: "app".into(),
            processes: programs.enumerate().map(process).collect(),
            background: false,
            within: None,
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
    assert_eq!(outcome.totals.shuffled_ns, shuffled_ns(&outcome));
    (steps, outcome)
}

/// The time of all operations without an access under way, and all of it, from what was kept.
fn shuffled_ns(outcome: &Outcome) -> (u64, u64) {
    let mut accesses: Vec<_> = outcome.accesses.iter().collect();
    accesses.sort_by_key(|access| access.issued_ns);
    outcome.operations.iter().fold((0, 0), |sums, operation| {
        let (mut idle_ns, mut at_ns) = (0, operation.issued_ns);
        for access in &accesses {
            let from_ns = access.issued_ns.min(operation.completed_ns);
            idle_ns += from_ns.saturating_sub(at_ns);
            at_ns = at_ns.max(access.completed_ns);
        }
        idle_ns += operation.completed_ns.saturating_sub(at_ns);
        let all_ns = operation.completed_ns - operation.issued_ns;
        (sums.0 + idle_ns, sums.1 + all_ns)
    })
}
