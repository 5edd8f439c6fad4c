//! Counts the allocations of a request after start: in the client's core, in the forwarder's, and
//! in the storage of a data job. docs/allocations.txt has the counts, which may only fall.
//!
//! `TIDEGATE_WRITE_ALLOCATIONS=1 cargo test -p tidegate-server --test allocations` writes it anew.

mod support;
#[path = "../examples/forwarded/world.rs"]
mod world;

use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_forward::{Files, IoPart, Job, JobId, SlotId};
use tidegate_sched::Direction;
use tidegate_server::storage::{
    Completion, ExportOptions, Faults, Fence, PoolOptions, PosixFiles, Slots, Storage, ThreadPool,
};
use tidegate_wire::{Handle, Layout};
use world::World;

/// What `support` starts is not counted.
const REACTORS: u32 = 1;
/// All threads are in storage.
const STORAGE: usize = 3;
/// By whose code runs ([`world::SIDE`]).
static COUNTS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

struct Counting;

fn count() {
    COUNTS[world::SIDE.load(Ordering::Relaxed)].fetch_add(1, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Memory) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Memory, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Memory) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The counts of `part`, each divided by so many requests.
fn counted(requests: u64, part: impl FnOnce()) -> [f64; 4] {
    let before = COUNTS.each_ref().map(|count| count.load(Ordering::Relaxed));
    part();
    let after = COUNTS.each_ref().map(|count| count.load(Ordering::Relaxed));
    std::array::from_fn(|side| (after[side] - before[side]) as f64 / requests as f64)
}

/// Of requests from a client through a forwarder, 32 at once, once as many have passed.
fn forwarded(writes: bool) -> [f64; 4] {
    const REQUESTS: u64 = 20_000;
    let mut world = World::new("window");
    world.run(REQUESTS, 32, |_| writes);
    counted(REQUESTS, || world.run(REQUESTS, 32, |_| writes))
}

/// Of data jobs with so many adjacent parts of 4 KiB, by one thread, once as many have passed.
fn stored(direction: Direction, parts: u32) -> f64 {
    const JOBS: u64 = 1000;
    let scratch = support::Scratch::new("allocations");
    let layout = Layout {
        seats: 1,
        stripe: 1 << 20,
    };
    let mut files =
        PosixFiles::open(&scratch.export(), &ExportOptions::new(layout)).expect("export");
    let slots = Slots::new(1 << 20);
    let options = PoolOptions {
        threads: 1,
        queued_max: 64,
        faults: Faults::default(),
        fence: Fence::default(),
    };
    let mut pool = ThreadPool::new(&files, &slots, &options, Arc::new(|| ())).expect("threads");
    let root = files.root().expect("root").handle;
    let file = files
        .create(None, root, b"file", 0o644)
        .expect("room")
        .handle;
    for slot in 0..parts {
        slots.open(SlotId(slot), 4096);
    }
    let mut done = Vec::with_capacity(8);
    let mut run = |direction| {
        let jobs: Vec<_> = (0..JOBS).map(|_| job(file, direction, parts)).collect();
        world::SIDE.store(STORAGE, Ordering::Relaxed);
        for (number, job) in jobs.into_iter().enumerate() {
            pool.submit(JobId(number as u64), job);
            wait(&mut pool, &mut done);
        }
        world::SIDE.store(world::WORLD, Ordering::Relaxed);
    };
    run(Direction::Write);
    run(direction);
    counted(JOBS, || run(direction))[STORAGE]
}

fn job(handle: Handle, direction: Direction, parts: u32) -> Job {
    let part = |slot| IoPart {
        offset: u64::from(slot) * 4096,
        len: 4096,
        slot: SlotId(slot),
        slot_offset: 0,
        seat: 0,
    };
    let parts = (0..parts).map(part).collect();
    Job::Io {
        handle,
        direction,
        parts,
        writer: None,
    }
}

fn wait(pool: &mut ThreadPool, done: &mut Vec<Completion>) {
    while done.is_empty() {
        pool.completions(done);
        std::thread::yield_now();
    }
    done.clear();
}

#[test]
fn a_request_allocates_no_more_than_is_written_down() {
    let (read, write) = (forwarded(false), forwarded(true));
    let counts = [
        ("client-read", read[world::CLIENT]),
        ("client-write", write[world::CLIENT]),
        ("forwarder-read", read[world::FORWARDER]),
        ("forwarder-write", write[world::FORWARDER]),
        ("storage-read", stored(Direction::Read, 1)),
        ("storage-write", stored(Direction::Write, 1)),
        ("storage-read-8-parts", stored(Direction::Read, 8)),
        ("storage-write-8-parts", stored(Direction::Write, 8)),
    ];
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/allocations.txt");
    let written = std::fs::read_to_string(path).unwrap_or_default();
    let lines = written.lines().filter(|line| !line.starts_with('#'));
    let known = |name: &str| {
        let mut words = lines.clone().map(str::split_whitespace);
        let line =
            words.find_map(|mut words| words.next().filter(|it| *it == name).and(words.next()));
        line.map(|count| count.parse::<f64>().expect("a count is a number"))
    };
    let mut table = String::from(
        "# Allocations of one request after start, with 32 of 64 KiB under way under `window`: in\n\
         # the client's core, in the forwarder's with its scheduler, and of a job of data in\n\
         # storage, of one or of eight parts. More than these fail:\n\
         # `cargo test -p tidegate-server --test allocations`.\n",
    );
    let mut above = Vec::new();
    for (name, count) in counts {
        writeln!(table, "{name:24} {count:6.2}").expect("a text has room");
        // Tables that still grow allocate now and then.
        if known(name).is_none_or(|known| count > known + 0.05) {
            above.push(format!("{name} {count:.2}, written {:?}", known(name)));
        }
    }
    if std::env::var_os("TIDEGATE_WRITE_ALLOCATIONS").is_some() {
        std::fs::write(path, table).expect("the table can be written");
        return;
    }
    assert!(
        above.is_empty(),
        "allocations of a request: {above:?}\n{table}"
    );
}
