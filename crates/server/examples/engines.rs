//! What the engines of direct I/O cost: `cargo run --release -p tidegate-server --example engines
//! [DIR]` drives the storage as a reactor does, by threads and by io_uring, in turns, and prints
//! the medians of five: operations per second, and processor time of each.

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use rustix::time::{ClockId, clock_gettime};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_forward::{Files, IoPart, Job, JobId, JobResult, SlotId};
use tidegate_sched::{Direction, mix64};
use tidegate_server::storage::{
    ExportOptions, Faults, PoolOptions, PosixFiles, Slots, Storage, ThreadPool, Uring,
    UringOptions, Wake,
};
use tidegate_wire::{Handle, Layout};

const FILE_BYTES: u64 = 256 << 20;
const TURNS: usize = 5;
const TIME: Duration = Duration::from_millis(500);

/// An engine with its own threads and slots, on a file that all engines share.
struct Engine {
    storage: Box<dyn Storage>,
    poll: Poll,
    file: Handle,
    jobs: u64,
}

impl Engine {
    fn new(files: &PosixFiles, file: Handle, uring: bool) -> Engine {
        let poll = Poll::new().expect("epoll");
        let waker = Arc::new(Waker::new(poll.registry(), Token(0)).expect("eventfd"));
        let wake: Wake = Arc::new(move || waker.wake().expect("eventfd"));
        let slots = Slots::new(256 << 20);
        let pool = PoolOptions {
            // As many as the deepest queue below, so that threads are not the bound.
            threads: 32,
            queued_max: 1000,
            faults: Faults::default(),
            fence: Default::default(),
        };
        let ring = UringOptions { depth: 32 };
        let storage: Box<dyn Storage> = match uring {
            true => Box::new(Uring::new(files, &slots, &pool, &ring, wake).expect("io_uring")),
            false => Box::new(ThreadPool::new(files, &slots, &pool, wake).expect("threads")),
        };
        for slot in 0..32 {
            slots.open(SlotId(slot), 1 << 20);
        }
        if let Some(fd) = storage.wake_fd() {
            let source = &mut SourceFd(&fd);
            let registered = poll
                .registry()
                .register(source, Token(1), Interest::READABLE);
            registered.expect("epoll");
        }
        Engine {
            storage,
            poll,
            file,
            jobs: 0,
        }
    }

    fn submit(&mut self, direction: Direction, len: u32, slot: u32) {
        self.jobs += 1;
        let place = mix64(self.jobs) % (FILE_BYTES / u64::from(len));
        let part = IoPart {
            offset: place * u64::from(len),
            len,
            slot: SlotId(slot),
            slot_offset: 0,
            seat: 0,
        };
        let work = Job::Io {
            handle: self.file,
            direction,
            parts: vec![part],
            writer: None,
        };
        // The low bits say whose slot is free when it is done.
        self.storage
            .submit(JobId(self.jobs << 8 | u64::from(slot)), work);
    }

    /// Keeps so many in flight for a while: operations per second, processor us of each.
    fn measure(&mut self, direction: Direction, len: u32, depth: u32) -> (f64, f64) {
        let mut events = Events::with_capacity(16);
        let (mut done, mut count) = (Vec::new(), 0u64);
        let (began, processor) = (Instant::now(), processor_ns());
        (0..depth).for_each(|slot| self.submit(direction, len, slot));
        let mut flying = depth;
        while flying > 0 {
            self.storage.flush();
            // Interrupted by the ring's own work: there is something to take.
            let _ = self.poll.poll(&mut events, Some(Duration::from_secs(1)));
            self.storage.completions(&mut done);
            for completion in done.drain(..) {
                let JobResult::Io { parts, .. } = &completion.result else {
                    panic!("a data job has a result of its kind");
                };
                assert_eq!(parts[..], [Ok(len)]);
                (count, flying) = (count + 1, flying - 1);
                if began.elapsed() < TIME {
                    self.submit(direction, len, completion.job.0 as u32 & 0xFF);
                    flying += 1;
                }
            }
        }
        let spent = processor_ns() - processor;
        let per_second = count as f64 / began.elapsed().as_secs_f64();
        (per_second, spent as f64 / 1000.0 / count as f64)
    }
}

fn processor_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let dir = std::env::args()
        .nth(1)
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = dir.join(format!("tidegate-engines-{}", std::process::id()));
    std::fs::create_dir(&dir).expect("a directory of its own");
    let layout = Layout {
        seats: 1,
        stripe: 1 << 20,
    };
    let options = ExportOptions {
        direct: true,
        ..ExportOptions::new(layout)
    };
    let mut files = PosixFiles::open(&dir, &options).expect("export");
    let root = files.root().expect("root").handle;
    let file = files
        .create(None, root, b"file", 0o600)
        .expect("create")
        .handle;
    let piece = vec![7; 1 << 20];
    for offset in (0..FILE_BYTES).step_by(1 << 20) {
        files.write_at(file, offset, &piece).expect("fill");
    }
    files.fsync(file, false).expect("sync");
    let mut engines = [false, true].map(|uring| Engine::new(&files, file, uring));
    println!("access         depth   threads op/s   us     uring op/s   us");
    for len in [4 << 10, 1 << 20] {
        for direction in [Direction::Read, Direction::Write] {
            for depth in [1, 8, 32] {
                let mut samples = [(Vec::new(), Vec::new()), (Vec::new(), Vec::new())];
                for _ in 0..TURNS {
                    for (engine, sample) in engines.iter_mut().zip(&mut samples) {
                        let (rate, cost) = engine.measure(direction, len, depth);
                        sample.0.push(rate);
                        sample.1.push(cost);
                    }
                }
                let [threads, uring] = samples.map(|(rate, cost)| (median(rate), median(cost)));
                println!(
                    "{:>5} KiB {direction:<6?} {depth:>3} {:>14.0} {:>6.1} {:>12.0} {:>6.1}",
                    len >> 10,
                    threads.0,
                    threads.1,
                    uring.0,
                    uring.1
                );
            }
        }
    }
    drop(engines);
    std::fs::remove_dir_all(&dir).expect("it is ours");
}
