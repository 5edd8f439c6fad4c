//! The emulated device: what it delays, in which order, and that the bytes are right.

use super::*;
use crate::storage::scratch::Scratch;
use crate::storage::slots::lock_buffer;
use crate::storage::{ExportOptions, Faults};
use tidegate_forward::{Files, SlotId};

const MS: u64 = 1_000_000;

fn part(offset: u64, len: u32) -> IoPart {
    IoPart {
        offset,
        len,
        slot: SlotId(0),
        slot_offset: 0,
        seat: 0,
    }
}

/// One forwarder.
const LAYOUT: Layout = Layout {
    seats: 1,
    stripe: 1 << 20,
};

/// An export with a file, and a slot of sevens.
fn export() -> (Scratch, PosixFiles, Slots, Handle) {
    let scratch = Scratch::new("emulated");
    let mut files = PosixFiles::open(scratch.path(), &ExportOptions::new(LAYOUT)).expect("export");
    let slots = Slots::new(1 << 20);
    lock_buffer(&slots.open(SlotId(0), 4096)).bytes().fill(7);
    let root = files.root().expect("root").handle;
    let file = files.create(None, root, b"data", 0o644);
    (scratch, files, slots, file.expect("create").handle)
}

/// A device in front of two threads.
fn emulated(files: &PosixFiles, slots: &Slots, device: &DeviceOptions, layout: Layout) -> Emulated {
    let pool = PoolOptions {
        threads: 2,
        queued_max: 64,
        faults: Faults::default(),
        fence: Default::default(),
    };
    let wake: Wake = Arc::new(|| ());
    Emulated::new(files, slots, &pool, device, layout, wake).expect("emulated")
}

#[test]
fn adjacent_parts_of_a_forwarder_are_one_access() {
    let layout = Layout {
        seats: 4,
        stripe: 4096,
    };
    let mapping = Mapping::new(1 << 40, 0);
    let handle = Handle { inode: 5, birth: 1 };
    let mut accesses = Vec::new();
    // The end of one stripe of this forwarder and the beginning of its next, then one far away.
    let parts = [part(4000, 96), part(4 * 4096, 100), part(40 * 4096, 8)];
    map(
        &mapping,
        layout,
        handle,
        Direction::Write,
        &parts,
        &mut accesses,
    );
    let lens: Vec<u64> = accesses.iter().map(|access| access.len).collect();
    assert_eq!(lens, [196, 8]);
    assert!(accesses.iter().all(|access| access.write));
}

#[test]
fn a_file_that_is_not_known_costs_the_device_nothing() {
    let (scratch, files, slots, file) = export();
    let mut device = DeviceOptions::preset("ideal").expect("a preset");
    device.set("service_us", 60_000_000).expect("an option");
    let mut storage = emulated(&files, &slots, &device, LAYOUT);
    let other = Handle {
        inode: file.inode,
        birth: file.birth + 1,
    };
    let began = Instant::now();
    storage.submit(
        JobId(1),
        Job::Io {
            handle: other,
            direction: Direction::Read,
            parts: vec![part(0, 4096)],
            writer: None,
        },
    );
    let mut done = Vec::new();
    while done.is_empty() {
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "it waits for the device"
        );
        storage.completions(&mut done);
        std::thread::sleep(Duration::from_micros(100));
    }
    let JobResult::Io { parts, .. } = &done[0].result else {
        panic!("another kind of result");
    };
    assert_eq!(parts, &[Err(tidegate_forward::Access::UnknownHandle)]);
    drop(storage);
    drop(scratch);
}

#[test]
fn data_jobs_take_the_devices_time_one_after_another() {
    let (scratch, files, slots, file) = export();
    let mut device = DeviceOptions::preset("ideal").expect("a preset");
    device.set("service_us", 20_000).expect("an option");
    device.set("depth", 1).expect("an option");
    let mut storage = emulated(&files, &slots, &device, LAYOUT);
    assert_eq!(storage.depth(), 1);
    let began = Instant::now();
    for job in 0..3 {
        let parts = vec![part(job * 4096, 4096)];
        storage.submit(
            JobId(job),
            Job::Io {
                handle: file,
                direction: Direction::Write,
                parts,
                writer: None,
            },
        );
    }
    storage.submit(JobId(9), Job::Closed { handle: file });
    let mut done = Vec::new();
    let mut order = Vec::new();
    while order.len() < 4 {
        storage.completions(&mut done);
        for completion in done.drain(..) {
            let at = began.elapsed();
            order.push(completion.job.0);
            let JobResult::Io { parts, device_ns } = completion.result else {
                continue;
            };
            assert_eq!(parts, [Ok(4096)]);
            assert!((20 * MS..22 * MS).contains(&device_ns), "{device_ns}");
            let expected = Duration::from_millis(20 * (completion.job.0 + 1));
            assert!(at >= expected, "job {} after {at:?}", completion.job.0);
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    assert_eq!(order, [9, 0, 1, 2]);
    let read = std::fs::read(scratch.path().join("data")).expect("read");
    assert_eq!(read, [7; 3 * 4096]);
}

#[test]
fn shutdown_waits_for_the_device() {
    let scratch = Scratch::new("emulated");
    let layout = Layout {
        seats: 1,
        stripe: 1 << 20,
    };
    let files = PosixFiles::open(scratch.path(), &ExportOptions::new(layout)).expect("export");
    let slots = Slots::new(1 << 20);
    let device = DeviceOptions::preset("hdd-7200").expect("a preset");
    let pool = PoolOptions {
        threads: 1,
        queued_max: 64,
        faults: Faults::default(),
        fence: Default::default(),
    };
    let mut storage =
        Emulated::new(&files, &slots, &pool, &device, layout, Arc::new(|| ())).expect("emulated");
    let handle = Handle { inode: 3, birth: 4 };
    for job in 0..4 {
        let parts = vec![part(job << 30, 4096)];
        storage.submit(
            JobId(job),
            Job::Io {
                handle,
                direction: Direction::Read,
                parts,
                writer: None,
            },
        );
    }
    storage.shutdown();
    let mut done = Vec::new();
    storage.completions(&mut done);
    assert_eq!(done.len(), 4);
}

#[test]
fn a_disk_with_a_queue_finishes_by_itself_and_an_fsync_waits_for_its_cache() {
    let (_scratch, files, slots, file) = export();
    let mut device = DeviceOptions::preset("hdd-ncq").expect("a preset");
    device.set("depth", 8).expect("an option");
    // Each piece of 4 KiB lies somewhere else.
    device.set("unit_bytes", 4096).expect("an option");
    let mut storage = emulated(&files, &slots, &device, LAYOUT);
    let began = Instant::now();
    let ends = |storage: &mut Emulated, count: usize| {
        let (mut done, mut seen) = (Vec::new(), Vec::new());
        while seen.len() < count {
            storage.completions(&mut done);
            seen.extend(done.drain(..).map(|completion| completion.result));
            assert!(began.elapsed() < Duration::from_secs(60), "{}", seen.len());
            std::thread::sleep(Duration::from_micros(100));
        }
        seen
    };
    for job in 0..32 {
        storage.submit(
            JobId(job),
            Job::Io {
                handle: file,
                direction: Direction::Write,
                parts: vec![part(job * 4096, 4096)],
                writer: None,
            },
        );
    }
    for result in ends(&mut storage, 32) {
        let JobResult::Io { parts, device_ns } = result else {
            panic!("not of I/O");
        };
        // The cache has taken them.
        assert_eq!(parts, [Ok(4096)]);
        assert!(device_ns < 10 * MS, "{device_ns}");
    }
    storage.submit(
        JobId(40),
        Job::Op {
            directory: None,
            caller: None,
            op: Op::Fsync {
                handle: file,
                data_only: false,
            },
            reply_slot: None,
            payload: None,
        },
    );
    let synced = ends(&mut storage, 1);
    assert!(matches!(synced[0], JobResult::Op(Ok(_))));
    // 32 positionings of some milliseconds.
    let taken = began.elapsed();
    assert!(taken > Duration::from_millis(80), "{taken:?}");
}
