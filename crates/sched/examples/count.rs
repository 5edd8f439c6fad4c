//! Runs N reads through a policy at a steady queue of 64, so that callgrind can count the
//! instructions of a request: the difference of two runs, divided by the difference of their N.
//!
//! `valgrind --tool=callgrind target/release/examples/count window 20000`
//!
//! `count --list` prints the names of the policies.
//!
//! `hio-shuffles` is `hio` with collective reads: each application's next four records are one,
//! with a shuffle for each.

use tidegate_sched::{
    AppId, Direction, FileId, Input, Options, Output, Request, RequestId, Scheduler, Time, policies,
};

const QUEUED: u64 = 64;

fn main() {
    let mut args = std::env::args().skip(1);
    if std::env::args().any(|arg| arg == "--list") {
        return println!("{}", policies::NAMES.join("\n"));
    }
    let (Some(policy), Some(count)) = (args.next(), args.next()) else {
        eprintln!("usage: count POLICY N");
        std::process::exit(2);
    };
    let count: u64 = count.parse().expect("N must be a whole number");
    let queued: u64 = args
        .next()
        .map_or(QUEUED, |text| text.parse().expect("a queue length"));
    let (policy, shuffles) = match policy.strip_suffix("-shuffles") {
        Some(policy) => (policy, true),
        None => (&*policy, false),
    };
    let options = Options {
        queued_max: 1 << 20,
        ..Options::for_policy(policy)
    };
    let mut scheduler = Scheduler::new(&options).expect("POLICY must be a known name");
    let mut batch = Vec::new();
    let (mut arrived, mut finished) = (0, 0);
    while finished < count {
        let now = Time(arrived * 1_000);
        if arrived < count && arrived < finished + queued {
            let mut request = request(arrived);
            if shuffles {
                add_shuffles(&mut request);
            }
            scheduler
                .handle(now, Input::Arrived(request))
                .expect("there is room");
            arrived += 1;
        } else {
            assert_eq!(scheduler.poll(now, &mut batch), Output::Dispatch);
            for request in &batch {
                scheduler
                    .handle(now, Input::Finished(request.id))
                    .expect("it ran");
            }
            finished += batch.len() as u64;
        }
    }
    println!("{count} requests in {} batches", scheduler.stats().batches);
}

/// Eight applications, each reading its own file from the start.
fn request(number: u64) -> Request {
    let (app, record) = (number % 8, number / 8);
    let mut request = Request::new(
        RequestId(number),
        AppId(app),
        FileId(app),
        Direction::Read,
        record * 65_536,
        65_536,
    );
    request.stamp_ns = number * 1_000;
    request
}

/// Makes each four records of an application one collective read; shuffles differ by seconds.
#[inline(never)]
fn add_shuffles(request: &mut Request) {
    let (app, record) = (request.app.0, request.offset / 65_536);
    let (operation, rank) = (record / 4, record % 4);
    request.stamp_ns = (operation * 32 + app) * 1_000;
    request.shuffle_us = (3 - rank) as u32 * 1_000_000;
    request.shuffle_max_us = (3 + app) as u32 * 1_000_000;
    request.shuffle_rank = rank as u16;
}
