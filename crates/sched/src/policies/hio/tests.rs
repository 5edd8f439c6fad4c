//! Tests of `hio`: where it is `window`, what goes first, what is overtaken, and the printed form.

use super::operations::{Key, Operations, PARTS_MAX};
use crate::test::{Random, drain_at, read};
use crate::{AccessCost, AppId, CostModel, Direction, Options, Request, Scheduler, Time};
use crate::{Input, Output, RequestId};
use std::vec::Vec;

const WALL: u64 = 1_700_000_000_000_000_000;

/// A device on which a MiB takes a millisecond wherever it lies.
fn plain() -> CostModel {
    let mut model = CostModel::default();
    for direction in [Direction::Read, Direction::Write] {
        for sequential in [false, true] {
            *model.access_mut(direction, sequential) = AccessCost {
                base_ns: 0,
                ns_per_mib: 1_000_000,
            };
        }
    }
    model
}

fn options(policy: &str) -> Options {
    let mut options = Options {
        wall_offset_ns: WALL,
        cost: plain(),
        estimate: false,
        ..Options::for_policy(policy)
    };
    options.table.set("order", "id");
    options
}

fn order(options: &Options, input: &[Request]) -> Vec<u64> {
    let mut scheduler = Scheduler::new(options).unwrap();
    let batches = drain_at(&mut scheduler, Time(1_000_000), input);
    batches.into_iter().flatten().collect()
}

/// A part of the operation of `app`: so many ms of work, a shuffle, and the operation's longest
/// shuffle.
fn part(app: u64, work_ms: u64, shuffle_ms: u32, shuffle_max_ms: u32) -> Request {
    Request {
        app: AppId(app),
        stamp_ns: WALL + app,
        shuffle_us: shuffle_ms * 1000,
        shuffle_max_us: shuffle_max_ms * 1000,
        ..read(app, 0, work_ms << 20)
    }
}

#[test]
fn without_shuffles_it_is_window() {
    for seed in 0..50 {
        let mut random = Random::new(seed);
        let input: Vec<Request> = (0..200)
            .map(|_| Request {
                app: AppId(random.below(5)),
                stamp_ns: WALL + random.below(2_000_000),
                ..read(random.below(3), random.below(1 << 30), 4096)
            })
            .collect();
        let merge = random.pick(&[None, Some(true)]);
        let [hio, window] = ["hio", "window"].map(|policy| Options {
            merge,
            ..options(policy)
        });
        assert_eq!(order(&hio, &input), order(&window, &input), "seed {seed}");
    }
}

#[test]
fn inside_an_operation_the_longest_shuffle_goes_first() {
    // Three aggregators of one application on one forwarder, of figure 2: they share the stamp.
    let aggregator = |file: u64, shuffle_ms| Request {
        file: crate::FileId(file),
        ..part(1, 6, shuffle_ms, 6)
    };
    let input = [aggregator(0, 0), aggregator(1, 6), aggregator(2, 6)];
    assert_eq!(order(&options("hio"), &input), [1, 2, 0]);
    assert_eq!(order(&options("window"), &input), [0, 1, 2]);
    // Two operations of the application stay apart: the first stamp is first.
    let later = Request {
        stamp_ns: WALL + 500,
        ..aggregator(3, 100)
    };
    assert_eq!(
        order(&options("hio"), &[later, input[0], input[1]]),
        [2, 1, 0]
    );
}

#[test]
fn shuffles_that_differ_by_less_than_many_seeks_keep_the_order_of_place() {
    let options = Options {
        cost: CostModel::default(),
        ..options("hio")
    };
    let at = |offset, shuffle_us| Request {
        shuffle_us,
        offset,
        ..part(1, 1, 0, 60)
    };
    // An access elsewhere takes 7.9 ms more.
    let input = [at(0, 100), at(1 << 20, 500_000), at(2 << 20, 510_000)];
    assert_eq!(order(&options, &input), [2, 0, 1]);
}

#[test]
fn what_has_slack_is_passed_by_what_has_none_and_no_further() {
    // Application 1 can wait for 5 ms here; 2 has nothing to wait for; 3 and 4 neither.
    let input = [
        part(1, 2, 4, 9),
        part(2, 3, 7, 7),
        part(3, 3, 9, 9),
        part(4, 2, 1, 1),
    ];
    // 2 passes 1, which then has 2 ms left: enough for 4, not for 3; but 4 may not pass 3.
    assert_eq!(order(&options("hio"), &input), [1, 0, 2, 3]);
    let mut other = input;
    other[2].shuffle_max_us = 60_000;
    assert_eq!(order(&options("hio"), &other), [1, 3, 0, 2]);
    let mut none = options("hio");
    none.table.set("slack_percent", 0);
    assert_eq!(order(&none, &other), [0, 1, 2, 3]);
    none.table.set("slack_percent", 59);
    assert_eq!(order(&none, &other), [0, 1, 3, 2]);
}

#[test]
fn one_that_has_less_slack_afterwards_than_the_other_is_not_passed() {
    // 5 ms, of which 3 would be used by one that has 3 of its own.
    let input = [part(1, 2, 4, 9), part(2, 3, 4, 7)];
    assert_eq!(order(&options("hio"), &input), [0, 1]);
}

#[test]
fn what_all_parts_here_need_is_no_slack() {
    // The operation's longest shuffle is here as well, and goes first. The other part has slack
    // then: it ends at 2 + 4 at the soonest, and the operation at 2 + 9.
    let short = Request {
        file: crate::FileId(9),
        ..part(1, 4, 0, 9)
    };
    let input = [part(1, 2, 9, 9), short, part(2, 5, 7, 7)];
    assert_eq!(order(&options("hio"), &input), [0, 2, 1]);
    let input = [part(1, 2, 9, 9), short, part(2, 6, 7, 7)];
    assert_eq!(order(&options("hio"), &input), [0, 1, 2]);
    // Where it is not, the sum of both counts: 9 + 2 elsewhere, 4 + 2 here.
    let input = [part(1, 2, 3, 9), short, part(2, 5, 7, 7)];
    assert_eq!(order(&options("hio"), &input), [2, 0, 1]);
    let input = [part(1, 2, 3, 9), short, part(2, 6, 7, 7)];
    assert_eq!(order(&options("hio"), &input), [0, 1, 2]);
}

#[test]
fn an_operation_is_passed_for_its_slack_in_all_and_by_its_window_only() {
    // 40 ms of slack: ten of 4 ms pass, and no more although one after the other asks.
    let mut input = Vec::from([part(1, 1, 0, 40)]);
    input.extend((0..20).map(|app| part(2 + app, 4, 50, 50)));
    let mut expected: Vec<u64> = (1..=10).collect();
    expected.push(0);
    expected.extend(11..=20);
    assert_eq!(order(&options("hio"), &input), expected);
    let mut next_window = part(2, 1, 50, 50);
    next_window.stamp_ns = WALL + 4_000_000;
    let mut options = options("hio");
    options.table.set("window_ms", 1);
    assert_eq!(order(&options, &[next_window, input[0]]), [1, 0]);
}

#[test]
fn paper_exact_orders_by_rank_where_shuffles_are_long_and_changes_neighbours() {
    let mut options = options("hio");
    options.table.set("paper_exact", true);
    let with_rank = |rank, part: Request| Request {
        shuffle_rank: rank,
        ..part
    };
    let mut input = [
        with_rank(2, part(1, 5, 2, 5)),
        with_rank(0, part(2, 5, 9, 9)),
        with_rank(1, part(3, 5, 3, 4)),
    ];
    // No delay is more than a read: by rank.
    assert_eq!(order(&options, &input), [1, 2, 0]);
    // The second of these can wait for the third, and is then out of the first one's reach.
    input[2].shuffle_max_us = 9000;
    assert_eq!(order(&options, &input), [1, 0, 2]);
    // Shuffles of less than a fifth of all reads: in the base order, where the first two wait.
    for request in &mut input {
        request.shuffle_us /= 100;
    }
    input[0].shuffle_max_us = 0;
    assert_eq!(order(&options, &input), [0, 2, 1]);
    input[1].shuffle_max_us = 0;
    assert_eq!(order(&options, &input), [0, 1, 2]);
}

#[test]
fn the_delay_that_was_used_is_gone() {
    let mut options = options("hio");
    options.table.set("paper_exact", true);
    // 8 ms: the first waits for two of 3 ms, not for a third.
    let mut input = Vec::from([part(1, 5, 0, 8)]);
    input.extend((2..6).map(|app| part(app, 3, 1, 1)));
    assert_eq!(order(&options, &input), [1, 2, 0, 3, 4]);
}

/// An aggregator of an operation, whose shuffles are told apart by their ranks.
fn aggregator(rank: u16, part: Request) -> Request {
    Request {
        shuffle_rank: rank,
        ..part
    }
}

/// When each operation is done, ms: that of application 1 first. `order` has indices of `input`.
fn ends_ms(servers: &[(&[Request], Vec<u64>)]) -> [u64; 3] {
    let mut ends_ms = [0; 3];
    for (input, order) in servers {
        let mut at_ms = 0;
        for &id in order {
            let request = &input[id as usize];
            at_ms += request.len >> 20;
            let end_ms = &mut ends_ms[request.app.0 as usize - 1];
            *end_ms = at_ms
                .max(*end_ms)
                .max(at_ms + u64::from(request.shuffle_us) / 1000);
        }
    }
    ends_ms
}

#[test]
fn of_several_parts_here_one_alone_comes_before_the_longest_shuffle() {
    // Two parts of 2 ms of each operation on each of two forwarders. The longest shuffle of A is
    // there, and that of B and C here.
    let of = |app, rank, shuffle_ms, shuffle_max_ms| {
        aggregator(rank, part(app, 2, shuffle_ms, shuffle_max_ms))
    };
    let here = [
        of(1, 1, 0, 5),
        of(1, 2, 0, 5),
        of(2, 0, 20, 20),
        of(2, 1, 0, 20),
        of(3, 0, 20, 20),
        of(3, 1, 0, 20),
    ];
    let there = [
        of(1, 0, 5, 5),
        of(1, 3, 0, 5),
        of(2, 2, 0, 20),
        of(2, 3, 0, 20),
        of(3, 2, 0, 20),
        of(3, 3, 0, 20),
    ];
    // A ends there at 7 ms: it can wait here for one part, not for two.
    assert_eq!(order(&options("hio"), &here), [2, 0, 1, 4, 3, 5]);
    let ends = |policy: &str| {
        let by = |input| order(&options(policy), input);
        ends_ms(&[(&here, by(&here)), (&there, by(&there))])
    };
    assert_eq!(ends("window"), [7, 26, 30]);
    assert_eq!(ends("hio"), [7, 22, 28]);
}

#[test]
fn what_was_lent_is_not_lent_again_when_the_next_piece_arrives() {
    let mut scheduler = Scheduler::new(&options("hio")).unwrap();
    let now = Time(1_000_000);
    let arrive = |scheduler: &mut Scheduler, id, request: Request| {
        let id = RequestId(id);
        let request = Request { id, ..request };
        scheduler.handle(now, Input::Arrived(request)).unwrap();
    };
    // Three pieces of 1 ms, one after another, of an operation that can wait for 40 ms in all.
    arrive(&mut scheduler, 0, part(1, 1, 0, 40));
    for app in 2..42 {
        arrive(&mut scheduler, 100 + app, part(app, 4, 50, 50));
    }
    let (mut places, mut batch) = (Vec::new(), Vec::new());
    let mut place = 0;
    while scheduler.poll(now, &mut batch) == Output::Dispatch {
        for request in &batch {
            scheduler.handle(now, Input::Finished(request.id)).unwrap();
            if request.id.0 < 3 {
                places.push(place);
                if request.id.0 < 2 {
                    arrive(&mut scheduler, request.id.0 + 1, part(1, 1, 0, 40));
                }
            }
            place += 1;
        }
    }
    assert_eq!((places, place), (Vec::from([10, 11, 12]), 43));
}

#[test]
fn paper_exact_tells_aggregators_apart_whose_shuffles_are_alike() {
    // On a disk 300 and 400 ms count as alike elsewhere.
    let mut disk = Options {
        cost: CostModel::default(),
        ..options("hio")
    };
    disk.table.set("paper_exact", true);
    let input = [
        aggregator(1, part(1, 1, 0, 400)),
        aggregator(0, part(1, 1, 400, 400)),
        aggregator(0, part(2, 1, 300, 300)),
    ];
    assert_eq!(order(&disk, &input), [1, 2, 0]);
    // Seven shuffles of 4 ms are more than a fifth of seven reads of 16 ms, so ranks decide.
    let mut options = options("hio");
    options.table.set("paper_exact", true);
    let mut input: Vec<Request> = (1..7)
        .map(|rank| aggregator(rank, part(1, 16, 4, 4)))
        .collect();
    input.push(aggregator(0, part(2, 16, 4, 4)));
    assert_eq!(order(&options, &input), [6, 0, 1, 2, 3, 4, 5]);
}

#[test]
fn however_many_shuffles_arrive_an_operation_has_few_parts() {
    const MANY: u32 = 60_000;
    let mut random = Random::new(1);
    let shuffles: Vec<u32> = (0..MANY).map(|_| random.below(1 << 32) as u32).collect();
    let mut operations = Operations::new();
    let key = Key {
        app: 1,
        stamp: WALL,
        ..Key::default()
    };
    for &shuffle_us in &shuffles {
        let request = Request {
            shuffle_us,
            ..part(1, 1, 0, 0)
        };
        operations.arrived(key, &request, u64::from(shuffle_us), 1);
    }
    let operation = operations.of_first_window().next();
    let operation = operation.expect("it arrived");
    let parts: Vec<_> = operations.parts(operation).collect();
    assert_eq!(parts.len(), PARTS_MAX);
    assert_eq!(
        parts.iter().map(|(_, part)| part.work_ns).sum::<u64>(),
        u64::from(MANY)
    );
    // All of them come out, once.
    let options = Options {
        queued_max: MANY,
        ..options("hio")
    };
    let input: Vec<Request> = shuffles
        .iter()
        .map(|&shuffle_us| Request {
            shuffle_us,
            ..part(1, 1, 0, 0)
        })
        .collect();
    let mut ids = order(&options, &input);
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..u64::from(MANY)));
}
