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

/// What collective calls move between processes is what processes need: an aggregator's accesses
/// and the messages agree.
fn assert_shuffles(workload: &Workload, processes: u32, steps: &[Vec<Step>]) {
    let pattern = workload.benchmark().pattern(processes, 10, 0);
    for (rank, own) in steps.iter().enumerate() {
        let needed: u64 = (0..pattern.operations())
            .map(|operation| pattern::bytes(&*pattern, rank as u32, operation))
            .sum();
        let accessed: u64 = accesses(std::slice::from_ref(own))
            .map(|access| access.extents.bytes())
            .sum();
        let moved = |steps: &[Step], to: Option<u32>| -> u64 {
            steps
                .iter()
                .map(|step| match step {
                    Step::Send { rank, bytes } if to.is_none_or(|to| to == *rank) => *bytes,
                    _ => 0,
                })
                .sum()
        };
        let sent = moved(own, None);
        let received: u64 = steps
            .iter()
            .map(|steps| moved(steps, Some(rank as u32)))
            .sum();
        // What it accesses for others, or others for it, is sent.
        match pattern.direction(0) {
            Direction::Read if overlaps(&*pattern, processes) => assert!(received <= needed),
            Direction::Read => assert_eq!(accessed + received, needed + sent, "rank {rank}"),
            Direction::Write => assert_eq!(accessed + sent, needed + received, "rank {rank}"),
        }
    }
}

/// Whether several processes need the same bytes.
fn overlaps(pattern: &dyn Pattern, processes: u32) -> bool {
    let bytes = (0..processes).map(|rank| pattern::bytes(pattern, rank, 0));
    bytes.sum::<u64>() > pattern.cover(0).bytes()
}

#[test]
fn collective_calls_move_what_processes_need() {
    for (processes, aggregators) in [(1, 1), (2, 1), (5, 2), (6, 6), (7, 3)] {
        for pattern in ["contiguous", "strided"] {
            for (direction, more) in [
                ("read", ""),
                ("write", "align = 64"),
                ("read", "align = 999"),
            ] {
                let text = format!(
                    "pattern = '{pattern}'\ndirection = '{direction}'\nrequest = 100\nrequests = 3\n\
                     collective = true\naggregators = {aggregators}\nbuffer = 130\n{more}"
                );
                let ior = workload("ior", &text, processes);
                let (steps, _) = assert_sound(&ior, processes);
                let way = match direction {
                    "read" => Direction::Read,
                    _ => Direction::Write,
                };
                assert_covers(&steps, way, 1, 300 * u64::from(processes));
                assert_shuffles(&ior, processes, &steps);
                let by: Vec<usize> = (0..steps.len())
                    .filter(|rank| accesses(&steps[*rank..=*rank]).next().is_some())
                    .collect();
                assert!(by.len() <= aggregators as usize && by[0] == 0);
                assert!(more == "align = 999" || by.len() == aggregators as usize);
            }
        }
    }
}

#[test]
fn pio_bench_covers_its_file_in_every_pattern() {
    for processes in [1, 2, 6] {
        for pattern in [
            "'sequential'",
            "'simple-strided'",
            "'random-strided'",
            "'segmented'\nsegments = 3",
            "'nested-strided'\ngroups = 1\ninner = 2",
            "'nested-strided'\ngroups = 2\ninner = 3",
        ] {
            if pattern.contains("groups = 2") && processes == 1 {
                continue;
            }
            for (direction, more) in [("both", "barrier = true"), ("write", "think = '1 us'")] {
                let text = format!(
                    "pattern = {pattern}\ndirection = '{direction}'\nrequest = 10\nrequests = 6\n{more}"
                );
                let pio = workload("pio-bench", &text, processes);
                let (steps, _) = assert_sound(&pio, processes);
                let bytes = 60 * u64::from(processes);
                assert_covers(&steps, Direction::Write, 1, bytes);
                match direction {
                    "both" => assert_covers(&steps, Direction::Read, 1, bytes),
                    _ => assert!(touched(&steps, Direction::Read).is_empty()),
                }
            }
        }
    }
}

#[test]
fn pio_bench_patterns_are_what_their_names_say() {
    let offsets = |text: &str, rank: usize| -> Vec<u64> {
        let pio = workload(
            "pio-bench",
            &format!("request = 1\nrequests = 4\n{text}"),
            4,
        );
        let steps = all_steps(&pio, 4, 3);
        accesses(&steps[rank..=rank])
            .map(|access| access.extents.first.offset)
            .collect()
    };
    assert_eq!(offsets("", 1), [4, 5, 6, 7]);
    assert_eq!(offsets("pattern = 'simple-strided'", 1), [1, 5, 9, 13]);
    assert_eq!(
        offsets("pattern = 'segmented'\nsegments = 2", 1),
        [2, 3, 10, 11]
    );
    // Two groups of two; the second process of the second group.
    let nested = "pattern = 'nested-strided'\ngroups = 2\ninner = 2";
    assert_eq!(offsets(nested, 3), [5, 7, 13, 15]);
    let text = "request = 1000\nrequests = 9\npattern = 'random-strided'";
    let steps = all_steps(&workload("pio-bench", text, 3), 3, 3);
    let lens: BTreeSet<u64> = accesses(&steps)
        .map(|access| access.extents.bytes())
        .collect();
    assert!(lens.len() > 20 && lens.iter().all(|len| (500..=1500).contains(len)));
}

#[test]
fn noncontig_interleaves_its_vectors() {
    for (processes, more) in [
        (1, ""),
        (3, "barrier = true"),
        (4, "collective = true\naggregators = 3\nbuffer = 77"),
        (4, "collective = true\naggregators = 4"),
    ] {
        for (direction, way) in [("read", Direction::Read), ("write", Direction::Write)] {
            let text =
                format!("direction = '{direction}'\nblock = 8\nblocks = 16\nrequests = 3\n{more}");
            let noncontig = workload("noncontig", &text, processes);
            let (steps, _) = assert_sound(&noncontig, processes);
            assert_covers(&steps, way, 1, 384 * u64::from(processes));
            if more.contains("collective") {
                assert_shuffles(&noncontig, processes, &steps);
            }
        }
    }
    let steps = all_steps(&workload("noncontig", "block = 8\nblocks = 16", 3), 3, 3);
    let Step::Call(access) = &steps[1][0] else {
        panic!("{:?}", steps[1]);
    };
    let offsets = access.extents.iter().map(|extent| extent.offset);
    assert!(offsets.eq((0..16).map(|block| 8 + 24 * block)));
}

#[test]
fn mpi_tile_io_covers_its_picture() {
    let sizes = "tiles_x = 3\ntiles_y = 2\ntile_x = 5\ntile_y = 4\nelement = 2\nrequests = 2";
    for more in ["", "collective = true\naggregators = 4\nbuffer = 13"] {
        for (direction, way) in [("read", Direction::Read), ("write", Direction::Write)] {
            let text = format!("direction = '{direction}'\n{sizes}\n{more}");
            let tiles = workload("mpi-tile-io", &text, 6);
            let (steps, _) = assert_sound(&tiles, 6);
            assert_covers(&steps, way, 1, 2 * 3 * 5 * 2 * 4 * 2);
            if !more.is_empty() {
                assert_shuffles(&tiles, 6, &steps);
            } else {
                assert_eq!(accesses(&steps).next().unwrap().extents.iter().count(), 4);
            }
        }
        // 13 x 7 elements, some of several tiles.
        let text = format!("{sizes}\noverlap_x = 1\noverlap_y = 1\n{more}");
        let tiles = workload("mpi-tile-io", &text, 6);
        let (steps, _) = assert_sound(&tiles, 6);
        let touched = touched(&steps, Direction::Read);
        assert!(
            touched
                .keys()
                .copied()
                .eq((0..2 * 13 * 7 * 2).map(|byte| (10, byte)))
        );
        assert_eq!(touched.values().any(|count| *count > 1), more.is_empty());
        if !more.is_empty() {
            assert_shuffles(&tiles, 6, &steps);
        }
    }
}

#[test]
fn mpi_io_test_covers_its_file() {
    for pattern in ["contiguous", "strided"] {
        for more in ["", "barrier = true", "collective = true\naggregators = 2"] {
            let text = format!("pattern = '{pattern}'\nrequest = 256\nrequests = 8\n{more}");
            let test = workload("mpi-io-test", &text, 5);
            let (steps, _) = assert_sound(&test, 5);
            assert_covers(&steps, Direction::Read, 1, 256 * 8 * 5);
        }
    }
}

#[test]
fn btio_covers_its_cube_each_step() {
    let bytes = 2 * 12 * 12 * 12 * 40;
    for processes in [1, 4, 25] {
        for more in ["", "collective = true\naggregators = 1\nbuffer = 5000"] {
            let text = format!("class = 'S'\nsteps = 2\nthink = '1 ms'\nread_back = true\n{more}");
            let btio = workload("btio", &text, processes);
            let (steps, outcome) = assert_sound(&btio, processes);
            assert_covers(&steps, Direction::Write, 1, bytes);
            assert_covers(&steps, Direction::Read, 1, bytes);
            assert_eq!(outcome.operations.len(), 4);
            let thinks = steps[0]
                .iter()
                .filter(|step| **step == Step::Think(1_000_000));
            assert_eq!(thinks.count(), 2);
        }
    }
    // Each process has one block in each slab along each edge.
    let btio = workload("btio", "class = 'S'\nsteps = 1", 9);
    let pattern = btio.benchmark().pattern(9, 0, 0);
    for rank in 0..9 {
        let places = (0..3).map(|slab| pattern.part(rank, 0, slab).start / 40);
        let places: Vec<(u64, u64)> = places.map(|at| (at % 12, at / 12 % 12)).collect();
        for block in [0, 4, 8] {
            assert!(places.iter().any(|(x, _)| *x == block));
            assert!(places.iter().any(|(_, y)| *y == block));
        }
    }
    assert_eq!(
        workload("btio", "class = 'C'", 1).total_bytes(1),
        162 * 162 * 162 * 40 * 40
    );
}

#[test]
fn phases_compute_then_move() {
    for file in ["shared", "each"] {
        for in_flight in [1, 3] {
            let text = format!(
                "direction = 'write'\nbytes = 1000\nrequest = 70\nrepeats = 3\nthink = '1 s'\n\
                 file = '{file}'\nin_flight = {in_flight}"
            );
            let (steps, outcome) = assert_sound(&workload("phases", &text, 4), 4);
            match file {
                "shared" => assert_covers(&steps, Direction::Write, 1, 3000),
                _ => assert_covers(&steps, Direction::Write, 4, 750),
            }
            assert_eq!(outcome.operations.len(), 3);
            assert!(
                outcome.operations[0].issued_ns == 1_000_000_000 && outcome.end_ns > 3_000_000_000
            );
            assert!(
                outcome
                    .operations
                    .iter()
                    .all(|operation| operation.bytes == 1000)
            );
        }
    }
}

#[test]
fn impossible_sizes_are_refused() {
    for (name, text, processes, key) in [
        ("pio-bench", "request = 1\ngroups = 2", 4, "groups"),
        (
            "pio-bench",
            "request = 1\npattern = 'segmented'",
            4,
            "segments",
        ),
        (
            "pio-bench",
            "request = 1\nrequests = 5\npattern = 'segmented'\nsegments = 2",
            4,
            "segments",
        ),
        (
            "pio-bench",
            "request = 1\npattern = 'nested-strided'\ngroups = 3\ninner = 1",
            4,
            "groups",
        ),
        (
            "pio-bench",
            "request = 1\npattern = 'nested-strided'\ngroups = 2\ninner = 0",
            4,
            "inner",
        ),
        (
            "pio-bench",
            "request = '50 MiB'\npattern = 'random-strided'",
            4,
            "request",
        ),
        (
            "pio-bench",
            "request = 1\ncollective = true",
            4,
            "collective is no key",
        ),
        ("noncontig", "block = 1\nblocks = 0", 4, "blocks"),
        ("noncontig", "block = 1\nblocks = 65537", 4, "blocks"),
        ("noncontig", "block = '1 MiB'\nblocks = 65", 4, "blocks"),
        (
            "noncontig",
            "block = '1 TiB'\nblocks = 4294967296",
            4,
            "blocks",
        ),
        (
            "mpi-tile-io",
            "tiles_x = 2\ntiles_y = 3\ntile_x = 1\ntile_y = 1\nelement = 1",
            4,
            "tiles_x",
        ),
        (
            "mpi-tile-io",
            "tiles_x = 2\ntiles_y = 2\ntile_x = 1\ntile_y = 1\nelement = 1\noverlap_y = 1",
            4,
            "overlap_y",
        ),
        ("mpi-tile-io", "tiles_x = 2", 4, "tiles_y is missing"),
        (
            "mpi-io-test",
            "request = 1\npattern = 'random'",
            4,
            "pattern",
        ),
        ("btio", "class = 'S'", 5, "processes"),
        ("btio", "class = 'S'", 169, "processes"),
        ("btio", "class = 'Z'", 4, "class: "),
        ("btio", "class = 'S'\nsteps = 0", 4, "steps"),
        ("phases", "bytes = 3\nrequest = 1", 4, "bytes"),
        ("phases", "bytes = 9\nrequest = 0", 4, "request"),
        (
            "phases",
            "bytes = 9\nrequest = 1\nrepeats = 0",
            4,
            "repeats",
        ),
        (
            "phases",
            "bytes = '1 TiB'\nrequest = 1\nrepeats = 4294967296",
            4,
            "repeats",
        ),
        (
            "phases",
            "bytes = 9\nrequest = 1\nthink = '9999 h'",
            4,
            "think",
        ),
    ] {
        assert_refused(name, text, processes, key);
    }
}

#[test]
fn many_processes_cost_little() {
    let text = "direction = 'write'\nrequest = '1 MiB'\nrequests = 100\nbarrier = true";
    let ior = workload("ior", text, 10_000);
    let programs = ior.programs(10_000, 10, &mut Rng::new(1));
    let bytes = programs.iter().map(|program| size_of_val(&**program));
    assert!(bytes.sum::<usize>() < 10_000 * 128);
    let text = "class = 'B'\nsteps = 1\ncollective = true\naggregators = 64";
    let btio = workload("btio", text, 10_000);
    let programs = btio.programs(10_000, 10, &mut Rng::new(1));
    let bytes = programs.iter().map(|program| size_of_val(&**program));
    assert!(bytes.sum::<usize>() < 10_000 * 128);
}
