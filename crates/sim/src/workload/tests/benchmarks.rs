//! Tests of what each benchmark accesses: its files, each byte once.

use super::collective::assert_shuffles;
use super::*;

#[test]
fn ior_covers_its_files() {
    for processes in [1, 2, 5] {
        for pattern in ["contiguous", "strided", "random"] {
            for more in ["", "barrier = true", "in_flight = 3", "interval = '1 ms'"] {
                let text = format!(
                    "pattern = '{pattern}'\ndirection = 'write'\nrequest = 100\n\
                     requests = 7\n{more}"
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
        (total_bytes(&one_shot, 1), total_calls(&one_shot, 1)),
        (4 << 20, 1)
    );
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
                    "pattern = {pattern}\ndirection = '{direction}'\nrequest = 10\n\
                     requests = 6\n{more}"
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
            if more.contains("collective") {
                assert_shuffles(&test, 5, &steps);
            }
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
    let text = "class = 'S'\nsteps = 1\ncollective = true\naggregators = 5\nbuffer = 3001";
    let btio = workload("btio", text, 9);
    assert_shuffles(&btio, 9, &assert_sound(&btio, 9).0);
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
        total_bytes(&workload("btio", "class = 'C'", 1), 1),
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
