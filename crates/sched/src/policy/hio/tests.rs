//! Tests of `hio`: where it is `window`, what goes first, what is passed, and the printed form.

use crate::test::{Random, drain_at, read};
use crate::{AccessCost, AppId, CostModel, Direction, Options, Request, Scheduler, Time};
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

/// A part of the operation of `app`: so many ms of work, a tail, and the operation's longest tail.
fn part(app: u64, work_ms: u64, tail_ms: u32, tail_max_ms: u32) -> Request {
    Request {
        app: AppId(app),
        stamp_ns: WALL + app,
        tail_us: tail_ms * 1000,
        tail_max_us: tail_max_ms * 1000,
        ..read(app, 0, work_ms << 20)
    }
}

#[test]
fn without_tails_it_is_window() {
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
fn inside_an_operation_the_longest_tail_goes_first() {
    // Three aggregators of one application on one forwarder, of figure 2: they share the stamp.
    let aggregator = |file: u64, tail_ms| Request {
        file: crate::FileId(file),
        ..part(1, 6, tail_ms, 6)
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
fn tails_that_differ_by_less_than_many_seeks_keep_the_order_of_place() {
    let options = Options {
        cost: CostModel::default(),
        ..options("hio")
    };
    let at = |offset, tail_us| Request {
        tail_us,
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
    other[2].tail_max_us = 60_000;
    assert_eq!(order(&options("hio"), &other), [1, 3, 0, 2]);
    let mut none = options("hio");
    none.table.set("slack_percent", 0);
    assert_eq!(order(&none, &other), [0, 1, 2, 3]);
    none.table.set("slack_percent", 59);
    assert_eq!(order(&none, &other), [0, 1, 3, 2]);
}

#[test]
fn one_that_has_less_slack_afterwards_than_the_other_is_not_passed() {
    // 5 ms, of which 3 would be lent to one that has 3 of its own.
    let input = [part(1, 2, 4, 9), part(2, 3, 4, 7)];
    assert_eq!(order(&options("hio"), &input), [0, 1]);
}

#[test]
fn what_all_parts_here_need_is_no_slack() {
    // The operation's longest tail is here as well, and goes first. The other part has slack then:
    // it ends at 2 + 4 at the soonest, and the operation at 2 + 9.
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
fn printed_orders_by_rank_where_tails_are_long_and_changes_neighbours() {
    let mut options = options("hio");
    options.table.set("printed", true);
    let with_rank = |rank, part: Request| Request {
        tail_rank: rank,
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
    input[2].tail_max_us = 9000;
    assert_eq!(order(&options, &input), [1, 0, 2]);
    // Tails of less than a fifth of all reads: in the base order, where the first two wait.
    for request in &mut input {
        request.tail_us /= 100;
    }
    input[0].tail_max_us = 0;
    assert_eq!(order(&options, &input), [0, 2, 1]);
    input[1].tail_max_us = 0;
    assert_eq!(order(&options, &input), [0, 1, 2]);
}

#[test]
fn the_delay_that_was_used_is_gone() {
    let mut options = options("hio");
    options.table.set("printed", true);
    // 8 ms: the first waits for two of 3 ms, not for a third.
    let mut input = Vec::from([part(1, 5, 0, 8)]);
    input.extend((2..6).map(|app| part(app, 3, 1, 1)));
    assert_eq!(order(&options, &input), [1, 2, 0, 3, 4]);
}
