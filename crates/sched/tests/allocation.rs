//! Counts allocations: once the queues have had their longest, a request allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use tidegate_sched::{
    AppId, Direction, FileId, Input, Observed, Options, Output, Prediction, Request, RequestId,
    Scheduler, Time,
};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
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

/// Allocations of `count` requests of eight applications at a queue of 64, after as many to warm
/// up. Of `writes` each fourth writes, and each eighth what the fourth before it writes.
fn allocations(options: &Options, writes: bool, count: u64) -> u64 {
    let mut scheduler = Scheduler::new(options).unwrap();
    let mut batch = Vec::new();
    let (mut arrived, mut finished) = (0, 0);
    let mut before = 0;
    let mut waits = 0;
    while finished < 2 * count {
        let now = Time((arrived + waits) * 100_000);
        if arrived < finished + 64 {
            let app = arrived % 8;
            let (id, offset) = (RequestId(arrived), arrived / 8 * 4096);
            let (app, file) = (AppId(app), FileId(app));
            let mut request = Request::new(id, app, file, Direction::Read, offset, 4096);
            if writes && arrived % 4 == 3 {
                request.direction = Direction::Write;
                request.offset = arrived / 8 * 4096;
                request.file = FileId(9);
            }
            request.stamp_ns = now.0;
            scheduler.handle(now, Input::Arrived(request)).unwrap();
            arrived += 1;
            if arrived == count {
                before = COUNT.with(Cell::get);
            }
        } else if scheduler.poll(now, &mut batch) != Output::Dispatch {
            waits += 1;
        } else {
            for request in &batch {
                scheduler.handle(now, Input::Finished(request.id)).unwrap();
            }
            finished += batch.len() as u64;
        }
    }
    COUNT.with(Cell::get) - before
}

#[test]
fn no_policy_allocates_for_a_request() {
    for policy in tidegate_sched::policies::NAMES {
        let options = Options::for_policy(policy);
        // `auto` serves one file's requests one after the other, several as one call, so that the
        // lists of the eight files have their longest late.
        let is_auto = *policy == "auto";
        let count = if is_auto { 400_000 } else { 100_000 };
        let counted = allocations(&options, false, count);
        assert!(counted <= u64::from(is_auto), "{policy}: {counted}");
        // With those that wait for each other queues have their longest late.
        let counted = allocations(&options, true, 20_000);
        assert!(counted <= 40, "{policy}: {counted}");
    }
}

#[test]
fn no_prediction_allocates_for_a_request() {
    let observed = |number: u64| Observed {
        file: FileId(number % 8),
        direction: Direction::Read,
        offset: number / 8 * 4096,
        len: 4096,
        at_ns: number * 100_000,
    };
    let mut options = Options::for_policy("aioli");
    let trace = (0..1000).map(observed).collect();
    options.prediction = Some(Arc::new(Prediction::new(&[trace], &options.cost)));
    for kind in ["online", "recorded"] {
        options.table.set("prediction", kind);
        for writes in [false, true] {
            let counted = allocations(&options, writes, 20_000);
            assert_eq!(counted, 0, "{kind}, writes: {writes}");
        }
    }
}
