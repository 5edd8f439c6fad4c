//! What the public AGIOS gets wrong in its policies, as tests that these pass. Its faults at the
//! border to the program (start, callbacks, files) are tested with the C library.

use std::sync::Arc;
use tidegate_sched::{
    AppId, CostModel, Direction, FileId, Input, Observed, Options, Output, PolicyOptions,
    Prediction, Request, RequestId, Scheduler, Time,
};

fn read(id: u64, file: u64, offset: u64, len: u64) -> Request {
    let (id, app, file) = (RequestId(id), AppId(file), FileId(file));
    Request::new(id, app, file, Direction::Read, offset, len)
}

fn scheduler(policy: &str, table: PolicyOptions) -> Scheduler {
    let options = Options {
        table,
        ..Options::for_policy(policy)
    };
    Scheduler::new(&options).expect("good options")
}

fn arrive(scheduler: &mut Scheduler, now: u64, request: Request) {
    let arrived = Input::Arrived(request);
    scheduler.handle(Time(now), arrived).expect("there is room");
}

/// Runs the next batch to its end; its first request.
fn run(scheduler: &mut Scheduler, now: u64) -> Request {
    let mut batch = Vec::new();
    assert_eq!(scheduler.poll(Time(now), &mut batch), Output::Dispatch);
    for request in &batch {
        let finished = Input::Finished(request.id);
        scheduler.handle(Time(now), finished).expect("it runs");
    }
    batch[0]
}

/// AGIOS's window policy never stores the key that it computes, so its order is that of arrival;
/// and the key overflows after 18 hours.
#[test]
fn windows_order_by_application_also_after_years() {
    let wall = 1_700_000_000_000_000_000;
    let mut options = Options::for_policy("window");
    options.wall_offset_ns = wall;
    options.table.set("order", "id");
    let mut scheduler = Scheduler::new(&options).unwrap();
    for (id, app) in [3, 1, 2, 1, 3, 2].into_iter().enumerate() {
        let mut request = read(id as u64, app, id as u64 * 4096, 4096);
        request.stamp_ns = wall + 7;
        arrive(&mut scheduler, 7, request);
    }
    let order: Vec<u64> = (0..6).map(|_| run(&mut scheduler, 8).app.0).collect();
    assert_eq!(order, [1, 1, 2, 2, 3, 3]);
}

/// AGIOS's wait for a better aggregation is 1 ns, so that it never waits.
#[test]
fn a_wait_for_more_is_as_long_as_what_it_waits_for() {
    let cost = CostModel::default();
    let observed = |offset, at_ns| Observed {
        file: FileId(1),
        direction: Direction::Read,
        offset,
        len: 8192,
        at_ns,
    };
    let trace = vec![observed(0, 0), observed(8192, 2_000_000)];
    let mut options = Options::for_policy("aioli");
    options.table.set("prediction", "recorded");
    options.prediction = Some(Arc::new(Prediction::new(&[trace], &cost)));
    let mut scheduler = Scheduler::new(&options).unwrap();
    arrive(&mut scheduler, 0, read(1, 1, 0, 8192));
    let mut batch = Vec::new();
    match scheduler.poll(Time(0), &mut batch) {
        Output::WaitUntil(until) => assert!(until >= Time(2_000_000), "{until:?}"),
        output => panic!("{output:?}"),
    }
    arrive(&mut scheduler, 2_000_000, read(2, 1, 8192, 8192));
    assert_eq!(
        scheduler.poll(Time(2_000_000), &mut batch),
        Output::Dispatch
    );
    assert_eq!(batch.len(), 2);
}

/// AGIOS caps a quantum of bytes at 16, the number of something else.
#[test]
fn an_adaptive_quantum_grows_with_its_use() {
    let table = PolicyOptions::default().with("quantum", "adaptive");
    let mut scheduler = scheduler("aioli", table.with("quantum_bytes", 4096));
    for id in 0..400 {
        arrive(&mut scheduler, 0, read(id, id % 2, id * 65_536, 4096));
    }
    let files: Vec<u64> = (0..400).map(|_| run(&mut scheduler, 1).file.0).collect();
    let turns: Vec<usize> = files
        .chunk_by(|one, other| one == other)
        .map(<[u64]>::len)
        .collect();
    assert_eq!(turns[..6], [1, 1, 2, 2, 4, 4], "{turns:?}");
    assert!(turns.iter().max() > Some(&16), "{turns:?}");
}

/// AGIOS keeps bandwidth as whole bytes in a nanosecond: none below 1 GB/s.
#[test]
fn a_slow_device_has_a_speed() {
    let mut model = CostModel::default();
    // 1 MB/s, and no base.
    (model.read_random.base_ns, model.read_random.ns_per_mib) = (0, 1_048_576_000);
    assert_eq!(model.read_random.ns(1000), 1_000_000);
    assert_eq!(model.read_random.ns(1 << 20), 1_048_576_000);
}

/// AGIOS's TWINS rotates over one window more than there are servers.
#[test]
fn each_server_has_one_turn_in_a_round() {
    let table = PolicyOptions::default()
        .with("servers", 3)
        .with("window_us", 1000);
    let mut scheduler = scheduler("twins", table);
    for id in 0..90 {
        let mut request = read(id, id, 0, 4096);
        request.queue = (id % 3) as u32;
        arrive(&mut scheduler, 0, request);
    }
    let turns: Vec<u32> = (0..30)
        .map(|window| run(&mut scheduler, window * 1_000_000 + 500).queue)
        .collect();
    let expected: Vec<u32> = (0..30).map(|window| window % 3).collect();
    assert_eq!(turns, expected);
}

/// A shift in AGIOS's MLF overflows after 31 rounds.
#[test]
fn a_request_can_wait_for_many_doublings() {
    let table = PolicyOptions::default().with("quantum_bytes", 1);
    let mut options = Options {
        table,
        ..Options::for_policy("mlf")
    };
    options.cost.read_random.base_ns = 0;
    let mut scheduler = Scheduler::new(&options).unwrap();
    arrive(&mut scheduler, 0, read(0, 0, 0, u64::MAX / 2));
    for id in 1..100 {
        arrive(&mut scheduler, 0, read(id, id, 0, 1));
    }
    let order: Vec<u64> = (0..100).map(|_| run(&mut scheduler, 1).id.0).collect();
    let place = order.iter().position(|&id| id == 0);
    // Its steps are bounded, so it comes when the short ones are done at the latest.
    assert!(place > Some(15), "{place:?}");
}

/// AGIOS's queue grows without bound under a producer that does not wait.
#[test]
fn a_full_queue_says_so() {
    for policy in tidegate_sched::policies::NAMES {
        let mut options = Options::for_policy(policy);
        options.queued_max = 10;
        let mut scheduler = Scheduler::new(&options).unwrap();
        let taken = (0..100).filter(|&id| {
            let arrived = Input::Arrived(read(id, id, 0, 4096));
            scheduler.handle(Time(0), arrived).is_ok()
        });
        assert_eq!(taken.count(), 10, "{policy}");
    }
}
