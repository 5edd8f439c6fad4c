//! Counts allocations: once the queues have had their longest, a request allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use tidegate_sched::{
    AppId, Direction, FileId, Input, Options, Output, Request, RequestId, Scheduler, Time,
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

/// Allocations of `count` reads of eight applications at a queue of 64, after as many to warm up.
fn allocations(policy: &str, count: u64) -> u64 {
    let mut scheduler = Scheduler::new(&Options::for_policy(policy)).unwrap();
    let mut batch = Vec::new();
    let (mut arrived, mut finished) = (0, 0);
    let mut before = 0;
    while finished < 2 * count {
        let now = Time(arrived * 100_000);
        if arrived < finished + 64 {
            let app = arrived % 8;
            let (id, offset) = (RequestId(arrived), arrived / 8 * 4096);
            let (app, file) = (AppId(app), FileId(app));
            let mut request = Request::new(id, app, file, Direction::Read, offset, 4096);
            request.stamp_ns = now.0;
            scheduler.handle(now, Input::Arrived(request)).unwrap();
            arrived += 1;
            if arrived == count {
                before = COUNT.with(Cell::get);
            }
        } else {
            assert_eq!(scheduler.poll(now, &mut batch), Output::Dispatch);
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
    for policy in tidegate_sched::policy::NAMES {
        assert_eq!(allocations(policy, 100_000), 0, "{policy}");
    }
}
