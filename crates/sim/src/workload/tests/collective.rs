//! Tests of collective calls: what processes need is what they get by access or message.

use super::*;

/// What collective calls move between processes is what processes need: an aggregator's accesses
/// and the messages agree.
pub(super) fn assert_shuffles(workload: &Workload, processes: u32, steps: &[Vec<Step>]) {
    let pattern = workload.benchmark().pattern(processes, 10, 0);
    for (rank, own) in steps.iter().enumerate() {
        let needed: u64 = (0..pattern.operations())
            .map(|operation| bytes(&*pattern, rank as u32, operation))
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
    let bytes = (0..processes).map(|rank| bytes(pattern, rank, 0));
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
                    "pattern = '{pattern}'\ndirection = '{direction}'\nrequest = 100\n\
                     requests = 3\n\
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
fn bytes_between_offsets_are_counted_right() {
    for (name, text, processes) in [
        ("btio", "class = 'S'\nsteps = 2", 25),
        ("noncontig", "block = 40\nblocks = 30\nrequests = 2", 5),
        (
            "mpi-tile-io",
            "tiles_x = 2\ntiles_y = 2\ntile_x = 9\ntile_y = 7\nelement = 40\nrequests = 2",
            4,
        ),
    ] {
        let load = workload(name, text, processes);
        let pattern = load.benchmark().pattern(processes, 0, 0);
        let cover = pattern.cover(1);
        let mut rng = Rng::new(11);
        for rank in 0..processes {
            let grids = (0..pattern.parts(rank, 1)).map(|part| pattern.part(rank, 1, part));
            let extents: Vec<_> = grids
                .flat_map(|grid| (0..grid.count()).map(move |index| grid.extent(index)))
                .collect();
            for _ in 0..50 {
                let from = rng.between(cover.start, cover.end() - 1);
                let to = rng.between(from, cover.end());
                let inside = extents.iter().map(|extent| {
                    let end = (extent.offset + extent.len).min(to);
                    end.saturating_sub(extent.offset.max(from))
                });
                let expected: u64 = inside.sum();
                let found = pattern::bytes_between(&*pattern, rank, 1, (from, to));
                assert_eq!(found, expected, "{name} rank {rank} {from} to {to}");
            }
        }
    }
}

#[test]
fn an_aggregator_asks_for_needed_bytes_only() {
    // Parts of 300 bytes; in the second call of 100 each, gaps of 200 lie between.
    let text = "request = 100\nrequests = 3\ncollective = true\naggregators = 1";
    let steps = all_steps(&workload("ior", text, 3), 3, 3);
    let access = accesses(&steps[..1]).nth(1).expect("there are three calls");
    let extents = access
        .extents
        .iter()
        .map(|extent| (extent.offset, extent.len));
    assert!(extents.eq([(100, 100), (400, 100), (700, 100)]));
}
