//! What a request costs a host: nanoseconds of processor time and allocations of submit, poll and
//! complete, with a long queue. Eight files, 4 KiB, a quarter of the requests sequential.
//!
//! `cargo run --release -p tidegate-sched --example cost -- POLICY QUEUED [reads|mixed] [REQUESTS]`
//! `[runs=N] [OPTION=VALUE ...]`; several POLICY and QUEUED are given as `fifo,window` and
//! `1000,100000`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_sched::{
    AppId, Direction, FileId, Input, Options, Output, Request, RequestId, Scheduler, Time, mix64,
};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const FILES: u64 = 8;
const BYTES: u64 = 4096;
/// Blocks of a file where random requests go.
const BLOCKS: u64 = 1 << 24;

/// The load: request by number.
struct Load {
    writes: bool,
    /// By file: where its sequential stream is.
    at: [u64; FILES as usize],
}

impl Load {
    fn request(&mut self, number: u64, now: Time) -> Request {
        let random = mix64(number + 1);
        let file = random % FILES;
        let offset = if (random >> 8).is_multiple_of(4) {
            let at = &mut self.at[file as usize];
            *at += BYTES;
            // Behind what random requests touch.
            (BLOCKS + *at / BYTES) * BYTES
        } else {
            (random >> 16) % BLOCKS * BYTES
        };
        let direction = match self.writes && (random >> 10).is_multiple_of(2) {
            true => Direction::Write,
            false => Direction::Read,
        };
        let (id, app) = (RequestId(number), AppId(file));
        let mut request = Request::new(id, app, FileId(file), direction, offset, BYTES);
        request.stamp_ns = now.0;
        request
    }
}

/// Processor time of this thread so far; waiting for a processor does not count.
fn processor_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells it");
    let first = text.split(' ').next().and_then(|first| first.parse().ok());
    first.expect("its first number is the time that ran")
}

/// Nanoseconds and allocations of a request, and requests of a batch.
fn measure(options: &Options, queued: u64, writes: bool, requests: u64) -> (f64, f64, f64) {
    let mut scheduler = Scheduler::new(options).unwrap_or_else(|error| panic!("{error}"));
    let mut load = Load {
        writes,
        at: [0; FILES as usize],
    };
    let mut batch = Vec::new();
    let (mut arrived, mut finished, mut batches) = (0, 0, 0);
    let mut from = (processor_ns(), 0, 0);
    // The queue has passed through once before the clock runs.
    let warm = queued + queued.max(10_000);
    while finished < warm + requests {
        let now = Time(arrived * 10_000);
        if arrived < finished + queued {
            let request = load.request(arrived, now);
            scheduler
                .handle(now, Input::Arrived(request))
                .expect("there is room");
            arrived += 1;
            continue;
        }
        match scheduler.poll(now, &mut batch) {
            Output::Dispatch => {}
            output => panic!("{output:?} with {} queued", scheduler.queued()),
        }
        for request in &batch {
            scheduler
                .handle(now, Input::Finished(request.id))
                .expect("it ran");
        }
        let before = finished;
        finished += batch.len() as u64;
        batches += 1;
        if before < warm && finished >= warm {
            from = (
                processor_ns(),
                finished,
                ALLOCATIONS.load(Ordering::Relaxed),
            );
            batches = 0;
        }
    }
    let counted = (finished - from.1) as f64;
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - from.2;
    (
        (processor_ns() - from.0) as f64 / counted,
        allocations as f64 / counted,
        counted / batches as f64,
    )
}

fn main() {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let options: Vec<String> = args.extract_if(.., |arg| arg.contains('=')).collect();
    if args.len() < 2 {
        eprintln!(
            "usage: cost POLICY[,...] QUEUED[,...] [reads|mixed] [REQUESTS] \
             [OPTION=VALUE ...]"
        );
        std::process::exit(2);
    }
    let writes = args.get(2).is_some_and(|mix| mix == "mixed");
    let runs = options
        .iter()
        .find_map(|option| option.strip_prefix("runs="));
    let runs: u64 = runs.map_or(5, |text| text.parse().expect("runs=NUMBER"));
    let requests = args
        .get(3)
        .map_or(300_000, |text| text.parse().expect("REQUESTS"));
    println!("policy           queued  mix    ns a request  allocations  requests a batch");
    for policy in args[0].split(',') {
        for queued in args[1].split(',') {
            let queued: u64 = queued.parse().expect("QUEUED is a whole number");
            let mut chosen = Options {
                queued_max: 1 << 22,
                ..Options::for_policy(policy)
            };
            for option in &options {
                let (name, value) = option.split_once('=').expect("it has a sign");
                match (name, value.parse::<u64>()) {
                    ("runs", _) => {}
                    ("merge", _) => chosen.merge = Some(value == "true"),
                    (_, Ok(number)) => chosen.table.set(name, number),
                    (_, Err(_)) => chosen.table.set(name, value),
                }
            }
            let mut results: Vec<_> = (0..runs)
                .map(|_| measure(&chosen, queued, writes, requests))
                .collect();
            results.sort_by(|one, other| one.0.total_cmp(&other.0));
            let (ns, allocations, batch) = results[results.len() / 2];
            let mix = if writes { "mixed" } else { "reads" };
            println!(
                "{policy:<12} {queued:>10}  {mix}  {ns:>12.0}  {allocations:>11.4}  {batch:.2}"
            );
        }
    }
}
