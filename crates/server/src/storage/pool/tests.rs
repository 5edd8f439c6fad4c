//! The thread pool on real files: jobs, lists of extents, faults on purpose.

use super::*;
use crate::storage::scratch::Scratch;
use crate::storage::{ExportOptions, KillAfterEffect};
use std::process::Command;
use std::time::Duration;
use tidegate_forward::{ReplySlotAddress, SlotId};
use tidegate_wire::{Layout, Op, Outcome, SetAttr};

const LAYOUT: Layout = Layout {
    seats: 1,
    stripe: 1 << 20,
};

struct Rig {
    files: PosixFiles,
    slots: Slots,
    pool: ThreadPool,
    fence: Fence,
}

fn rig(dir: &std::path::Path, threads: u32, queued_max: usize, faults: Faults) -> Rig {
    let options = ExportOptions {
        faults: faults.clone(),
        ..ExportOptions::new(LAYOUT)
    };
    let files = PosixFiles::open(dir, &options).expect("export");
    let slots = Slots::new(1 << 20);
    let options = PoolOptions {
        threads,
        queued_max,
        faults,
        fence: Fence::default(),
    };
    let pool = ThreadPool::new(&files, &slots, &options, Arc::new(|| ())).expect("threads");
    Rig {
        files,
        slots,
        pool,
        fence: options.fence,
    }
}

impl Rig {
    fn create(&mut self, name: &[u8]) -> Handle {
        let root = self.files.root().expect("root").handle;
        self.files
            .create(None, root, name, 0o644)
            .expect("create")
            .handle
    }

    fn io(&self, handle: Handle, direction: Direction, offset: u64, slot: u32, len: u32) -> Job {
        let part = IoPart {
            offset,
            len,
            slot: SlotId(slot),
            slot_offset: 0,
            seat: 0,
        };
        Job::Io {
            handle,
            direction,
            parts: vec![part],
            writer: None,
        }
    }

    fn wait(&mut self, count: usize) -> Vec<Completion> {
        let mut done = Vec::new();
        let give_up = Instant::now() + Duration::from_secs(20);
        while done.len() < count {
            assert!(Instant::now() < give_up, "jobs are lost");
            self.pool.completions(&mut done);
            std::thread::sleep(Duration::from_millis(1));
        }
        done
    }
}

fn parts_of(completion: &Completion) -> &[Result<u32, Access>] {
    match &completion.result {
        JobResult::Io { parts, .. } => parts,
        _ => panic!("a data job has a result of its kind"),
    }
}

#[test]
fn what_was_written_by_one_job_is_read_by_another() {
    let scratch = Scratch::new("pool");
    let mut rig = rig(scratch.path(), 2, 64, Faults::default());
    let file = rig.create(b"data");
    for slot in 0..8 {
        lock_buffer(&rig.slots.open(SlotId(slot), 4096))
            .bytes()
            .fill(slot as u8 + 1);
        let job = rig.io(file, Direction::Write, u64::from(slot) * 4096, slot, 4096);
        rig.pool.submit(JobId(slot.into()), job);
    }
    let done = rig.wait(8);
    assert!(done.iter().all(|done| parts_of(done) == [Ok(4096)]));
    rig.slots.open(SlotId(99), 65536);
    rig.pool
        .submit(JobId(99), rig.io(file, Direction::Read, 0, 99, 65536));
    assert_eq!(parts_of(&rig.wait(1)[0]), [Ok(32768)]);
    let buffer = rig.slots.buffer(SlotId(99)).expect("open");
    for slot in 0..8 {
        assert_eq!(
            lock_buffer(&buffer).bytes()[slot * 4096 + 7],
            slot as u8 + 1
        );
    }
    let counts = rig.pool.counts();
    assert_eq!((counts.write_calls, counts.read_calls), (8, 1));
    assert_eq!((counts.write_bytes, counts.read_bytes), (32768, 32768));
    assert_eq!(counts.pending, 0);
}

#[test]
fn a_read_beside_one_that_takes_long_does_not_hold_up_who_asks() {
    let scratch = Scratch::new("pool");
    let mut rig = rig(scratch.path(), 2, 64, Faults::default());
    let file = rig.create(b"data");
    rig.slots.open(SlotId(1), 4096);
    rig.pool
        .submit(JobId(1), rig.io(file, Direction::Write, 0, 1, 4096));
    rig.wait(1);
    rig.pool
        .submit(JobId(2), rig.io(file, Direction::Read, 0, 1, 4096));
    assert_eq!(parts_of(&rig.wait(1)[0]), [Ok(4096)]);
    let buffer = rig.slots.buffer(SlotId(1)).expect("open");
    let read = rig.io(file, Direction::Read, 0, 1, 4096);
    let (asked, goes_on) = std::sync::mpsc::channel();
    // Another job has the slot's lock, amid a read of what is not in the cache.
    let busy = lock_buffer(&buffer);
    std::thread::scope(|scope| {
        let pool = &mut rig.pool;
        scope.spawn(move || {
            pool.submit(JobId(3), read);
            asked.send(()).expect("the test listens");
        });
        let asked = goes_on.recv_timeout(Duration::from_secs(10));
        drop(busy);
        assert!(asked.is_ok(), "the one who asked waited for the slot");
    });
    assert_eq!(parts_of(&rig.wait(1)[0]), [Ok(4096)]);
}

#[test]
fn how_long_the_oldest_job_runs_is_told_while_it_runs() {
    let scratch = Scratch::new("pool");
    let mut rig = rig(scratch.path(), 2, 64, Faults::default());
    let file = rig.create(b"data");
    rig.slots.open(SlotId(1), 4096);
    rig.slots.open(SlotId(2), 4096);
    assert_eq!(rig.pool.oldest(), Duration::ZERO);
    let buffer = rig.slots.buffer(SlotId(1)).expect("open");
    // The first one cannot go on.
    let busy = lock_buffer(&buffer);
    let hangs = rig.io(file, Direction::Write, 0, 1, 4096);
    rig.pool.submit(JobId(1), hangs);
    let give_up = Instant::now() + Duration::from_secs(20);
    while rig.pool.oldest() < Duration::from_millis(30) {
        assert!(Instant::now() < give_up, "it does not count");
        std::thread::sleep(Duration::from_millis(1));
    }
    let goes = rig.io(file, Direction::Write, 4096, 2, 4096);
    rig.pool.submit(JobId(2), goes);
    assert_eq!(rig.wait(1)[0].job, JobId(2));
    assert!(
        rig.pool.oldest() >= Duration::from_millis(30),
        "the other one still runs"
    );
    drop(busy);
    assert_eq!(rig.wait(1)[0].job, JobId(1));
    assert_eq!(rig.pool.oldest(), Duration::ZERO);
}

#[test]
fn after_the_lease_nothing_begins_but_what_needs_no_seat() {
    let scratch = Scratch::new("pool");
    let mut rig = rig(scratch.path(), 1, 64, Faults::default());
    let file = rig.create(b"data");
    rig.slots.open(SlotId(1), 4096);
    let write = rig.io(file, Direction::Write, 0, 1, 4096);
    rig.fence.opens_until(tidegate_sched::Time(0));
    rig.pool.submit(JobId(1), write);
    assert_eq!(parts_of(&rig.wait(1)[0]), [Err(Access::NotHeld)]);
    let plain = |op| Job::Op {
        directory: None,
        caller: None,
        op,
        reply_slot: None,
        payload: None,
    };
    let ops = [
        (Op::Getattr { handle: file }, false),
        (
            Op::Fsync {
                handle: file,
                data_only: false,
            },
            true,
        ),
    ];
    for (op, passes) in ops {
        rig.pool.submit(JobId(2), plain(op));
        let done = rig.wait(1).remove(0);
        let JobResult::Op(result) = done.result else {
            panic!("another kind of result");
        };
        assert_eq!(result.is_ok(), passes, "{result:?}");
    }
}

#[test]
fn a_lost_seat_is_closed_to_its_own_parts_alone() {
    let scratch = Scratch::new("pool");
    let mut rig = rig(scratch.path(), 1, 64, Faults::default());
    let file = rig.create(b"data");
    lock_buffer(&rig.slots.open(SlotId(1), 4096))
        .bytes()
        .fill(7);
    rig.fence.taken(1).close();
    let parts = [0, 1, 0].iter().zip(0..);
    let parts = parts.map(|(seat, number)| IoPart {
        offset: number * 1000,
        len: 1000,
        slot: SlotId(1),
        slot_offset: number as u32 * 1000,
        seat: *seat,
    });
    let work = Job::Io {
        handle: file,
        direction: Direction::Write,
        parts: parts.collect(),
        writer: None,
    };
    rig.pool.submit(JobId(1), work);
    let all = [Ok(1000), Err(Access::NotHeld), Ok(1000)];
    assert_eq!(parts_of(&rig.wait(1)[0]), all);
    let bytes = std::fs::read(scratch.path().join("data")).expect("written");
    assert_eq!(bytes, [[7; 1000], [0; 1000], [7; 1000]].concat());
}

#[test]
fn a_first_write_does_not_begin_when_the_file_took_too_long_to_open() {
    let scratch = Scratch::new("pool");
    let mut rig = rig(scratch.path(), 1, 64, Faults::default());
    let file = rig.create(b"data");
    rig.slots.open(SlotId(1), 4096);
    let files = rig.files.clone().fenced(&rig.fence);
    let mut route = Route::find(&files, file, Direction::Write, None).expect("opened");
    // It has hung there for as long as a lease lasts.
    rig.fence.opens_until(tidegate_sched::Time(0));
    let part = IoPart {
        offset: 0,
        len: 4096,
        slot: SlotId(1),
        slot_offset: 0,
        seat: 0,
    };
    let done = batch::transfer(&mut route, &[part], &rig.slots, &Meter::default());
    assert_eq!(done, [Err(Access::NotHeld)]);
    let len = std::fs::metadata(scratch.path().join("data")).expect("made");
    assert_eq!(len.len(), 0);
}

/// A table that takes so long to persist that its lease is over.
struct Slow {
    table: Arc<dyn tidegate_forward::SeatTable>,
    fence: Fence,
}

impl tidegate_forward::SeatTable for Slow {
    fn load(&self, at: usize, bytes: &mut [u8]) {
        self.table.load(at, bytes);
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        self.table.store(at, bytes);
    }

    fn must_persist(&self) -> bool {
        true
    }

    fn persist(&self) -> Result<(), Errno> {
        self.fence.opens_until(tidegate_sched::Time(0));
        Ok(())
    }

    fn grow(&self) -> bool {
        self.table.grow()
    }

    fn len(&self) -> usize {
        self.table.len()
    }
}

#[test]
fn no_name_changes_when_its_intent_took_too_long_to_persist() {
    let scratch = Scratch::new("pool");
    let mut rig = rig(scratch.path(), 1, 8, Faults::default());
    rig.create(b"kept");
    let parent = rig.files.root().expect("root").handle;
    let seats = crate::seats::Seats::open(&rig.files, LAYOUT, 0).expect("seats");
    let table = Slow {
        table: seats.try_take(0).expect("take").expect("free").table,
        fence: rig.fence.clone(),
    };
    let mut reply_slot = ReplySlotAddress {
        seat: 0,
        table: Arc::new(table),
        reply_slot: 0,
        sequence: 0,
        unresolved: Default::default(),
    };
    let name = |name: &[u8]| name.into();
    let ops = [
        Op::Unlink {
            parent,
            name: name(b"kept"),
        },
        Op::Mkdir {
            parent,
            name: name(b"new"),
            mode: 0o755,
        },
        Op::Rename {
            parent,
            name: name(b"kept"),
            new_parent: parent,
            new_name: name(b"new"),
            mode: tidegate_wire::RenameMode::Replace,
        },
    ];
    for op in ops {
        rig.fence.opens_until(tidegate_sched::Time(u64::MAX));
        reply_slot.sequence += 1;
        let job = Job::Op {
            directory: None,
            caller: None,
            op,
            reply_slot: Some(reply_slot.clone()),
            payload: None,
        };
        rig.pool.submit(JobId(1), job);
        let done = rig.wait(1).remove(0);
        let JobResult::Op(result) = done.result else {
            panic!("an operation has a result of its kind");
        };
        assert_eq!(result, Err(Access::NotHeld));
        assert!(scratch.path().join("kept").exists() && !scratch.path().join("new").exists());
    }
}

#[test]
fn a_panic_is_an_error_of_its_job_only() {
    let scratch = Scratch::new("pool");
    let mut rig = rig(scratch.path(), 1, 64, Faults::panic_at(1));
    let file = rig.create(b"data");
    rig.slots.open(SlotId(0), 4096);
    rig.pool
        .submit(JobId(1), rig.io(file, Direction::Write, 0, 0, 10));
    rig.pool
        .submit(JobId(2), rig.io(file, Direction::Write, 0, 0, 10));
    let mut done = rig.wait(2);
    done.sort_by_key(|done| done.job);
    assert_eq!(parts_of(&done[0]), [Err(Errno::EIO.into())]);
    assert_eq!(parts_of(&done[1]), [Ok(10)]);
}

#[test]
fn a_full_queue_refuses_and_an_unknown_file_is_told() {
    let scratch = Scratch::new("pool");
    let mut rig = rig(scratch.path(), 1, 0, Faults::default());
    let unknown = Handle { inode: 1, birth: 2 };
    rig.pool
        .submit(JobId(1), rig.io(unknown, Direction::Read, 0, 0, 10));
    assert_eq!(parts_of(&rig.wait(1)[0]), [Err(Errno::EAGAIN.into())]);
    rig.pool.submit(JobId(2), Job::Closed { handle: unknown });
    assert!(matches!(rig.wait(1)[0].result, JobResult::Done));
    drop(rig);
    let mut rig = self::rig(scratch.path(), 1, 8, Faults::default());
    rig.pool
        .submit(JobId(3), rig.io(unknown, Direction::Read, 0, 0, 10));
    assert_eq!(parts_of(&rig.wait(1)[0]), [Err(Access::UnknownHandle)]);
}

#[test]
fn shutdown_finishes_what_was_submitted() {
    let scratch = Scratch::new("pool");
    let mut rig = rig(scratch.path(), 2, 1000, Faults::default());
    let file = rig.create(b"data");
    rig.slots.open(SlotId(0), 4096);
    for job in 0..500 {
        rig.pool
            .submit(JobId(job), rig.io(file, Direction::Write, job, 0, 1));
    }
    rig.pool.shutdown();
    let mut done = Vec::new();
    rig.pool.completions(&mut done);
    assert_eq!(done.len(), 500);
    rig.pool
        .submit(JobId(0), rig.io(file, Direction::Write, 0, 0, 1));
    assert_eq!(parts_of(&rig.wait(1)[0]), [Err(Errno::EAGAIN.into())]);
}

#[test]
fn operations_are_carried_out_by_the_forwarders_code() {
    let scratch = Scratch::new("pool");
    let mut rig = rig(scratch.path(), 1, 8, Faults::default());
    let file = rig.create(b"data");
    let op = Op::Getattr { handle: file };
    rig.pool.submit(
        JobId(1),
        Job::Op {
            directory: None,
            caller: None,
            op,
            reply_slot: None,
            payload: None,
        },
    );
    match &rig.wait(1)[0].result {
        JobResult::Op(Ok(Outcome::Attr(attr))) => assert_eq!(attr.handle, file),
        JobResult::Op(other) => panic!("{other:?}"),
        _ => panic!("an operation has a result of its kind"),
    }
}

/// Carries out a change with the forwarder's own rights.
fn perform(
    rig: &mut Rig,
    reply_slot: &mut ReplySlotAddress,
    op: Op,
    payload: Option<(SlotId, u32)>,
) {
    reply_slot.sequence += 1;
    let job = Job::Op {
        directory: None,
        caller: None,
        op,
        reply_slot: Some(reply_slot.clone()),
        payload,
    };
    rig.pool.submit(JobId(1), job);
    match &rig.wait(1)[0].result {
        JobResult::Op(Ok(_)) => {}
        JobResult::Op(other) => panic!("{other:?}"),
        _ => panic!("an operation has a result of its kind"),
    }
}

#[test]
fn what_is_written_to_loses_its_set_id_bits() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped, needs root: set-id bits");
        return;
    }
    let scratch = Scratch::new("set-id");
    // One thread: what it does for one job must not show in the next.
    let mut rig = rig(scratch.path(), 1, 8, Faults::default());
    let (handle, source) = (rig.create(b"tool"), rig.create(b"source"));
    let path = scratch.path().join("tool");
    std::os::unix::fs::chown(&path, Some(1001), Some(1001)).expect("chown");
    std::fs::write(scratch.path().join("source"), b"text").expect("write");
    lock_buffer(&rig.slots.open(SlotId(0), 4096))
        .bytes()
        .fill(1);
    let seats = crate::seats::Seats::open(&rig.files, LAYOUT, 0).expect("seats");
    let mut reply_slot = ReplySlotAddress {
        seat: 0,
        table: seats.try_take(0).expect("take").expect("free").table,
        reply_slot: 0,
        sequence: 0,
        unresolved: Default::default(),
    };
    let appended = Some((SlotId(0), 10));
    let allocate = Op::Fallocate {
        handle,
        mode: 0,
        offset: 0,
        len: 8192,
    };
    let copy = Op::CopyRange {
        source,
        source_offset: 0,
        handle,
        offset: 0,
        len: 4,
    };
    let ways = [
        None,
        Some((Op::Append { handle }, appended)),
        Some((allocate, None)),
        Some((copy, None)),
    ];
    for way in ways {
        for mode in [0o4777, 0o2755] {
            let set = SetAttr {
                mode: Some(mode),
                ..SetAttr::default()
            };
            perform(&mut rig, &mut reply_slot, Op::Setattr { handle, set }, None);
            assert_eq!(mode_of(&path), mode, "the forwarder may set any bit");
            match way.clone() {
                Some((op, payload)) => perform(&mut rig, &mut reply_slot, op, payload),
                None => {
                    let job = rig.io(handle, Direction::Write, 0, 0, 100);
                    rig.pool.submit(JobId(1), job);
                    assert_eq!(parts_of(&rig.wait(1)[0]), [Ok(100)]);
                }
            }
            assert_eq!(mode_of(&path), mode & 0o777, "{way:?}");
        }
    }
}

fn mode_of(path: &std::path::Path) -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::symlink_metadata(path).expect("stat").mode() & 0o7777
}

/// Not a test of its own: the process that the next one sees die.
#[test]
fn child_that_dies_after_an_effect() {
    let Some(dir) = std::env::var_os("TIDEGATE_TEST_FAULT_DIR") else {
        return;
    };
    let kill = KillAfterEffect {
        operation: "create".to_owned(),
        count: 2,
    };
    let mut rig = rig(std::path::Path::new(&dir), 1, 8, Faults::kill_after(kill));
    for name in [b"one", b"two", b"six"] {
        rig.create(name);
    }
}

#[test]
fn a_forwarder_can_be_killed_between_an_effect_and_its_result() {
    use std::os::unix::process::ExitStatusExt;
    let scratch = Scratch::new("pool");
    let ended = Command::new(std::env::current_exe().expect("this test"))
        .args([
            "--exact",
            "storage::pool::tests::child_that_dies_after_an_effect",
        ])
        .env("TIDEGATE_TEST_FAULT_DIR", scratch.path())
        .output()
        .expect("child");
    assert_eq!(ended.status.signal(), Some(libc::SIGKILL));
    assert!(scratch.path().join("two").exists() && !scratch.path().join("six").exists());
}

mod here;
mod users;
