//! Direct I/O on real files, by the ring and by threads: the same bytes as through the page cache.

use super::*;
use crate::storage::ExportOptions;
use crate::storage::scratch::Scratch;
use crate::storage::slots::lock_buffer;
use tidegate_forward::{Files, SlotId};
use tidegate_sched::mix64;
use tidegate_wire::{Layout, SetAttr};

const LAYOUT: Layout = Layout {
    seats: 1,
    stripe: 1 << 20,
};

const DEPTH: u32 = 8;

struct Rig {
    files: PosixFiles,
    slots: Slots,
    storage: Box<dyn Storage>,
    file: Handle,
    _scratch: Scratch,
}

fn pool_options() -> PoolOptions {
    PoolOptions {
        threads: 4,
        queued_max: 1000,
        faults: Faults::default(),
        fence: Default::default(),
    }
}

fn files(scratch: &Scratch) -> PosixFiles {
    let options = ExportOptions {
        direct: true,
        ..ExportOptions::new(LAYOUT)
    };
    PosixFiles::open(scratch.path(), &options).expect("export")
}

/// A ring, or None with a printed line where there cannot be one.
fn ring(files: &PosixFiles, slots: &Slots) -> Option<Uring> {
    let options = UringOptions { depth: DEPTH };
    match Uring::new(files, slots, &pool_options(), &options, Arc::new(|| ())) {
        Ok(uring) => Some(uring),
        Err(refused) => {
            println!("skipped: {refused}");
            None
        }
    }
}

fn rig(uring: bool) -> Option<Rig> {
    let scratch = Scratch::new("uring");
    let mut files = files(&scratch);
    if let Err(error) = files.direct_draft() {
        println!("skipped, no direct I/O here: {error}");
        return None;
    }
    let slots = Slots::new(8 << 20);
    let storage: Box<dyn Storage> = match uring {
        true => Box::new(ring(&files, &slots)?),
        false => Box::new(
            ThreadPool::new(&files, &slots, &pool_options(), Arc::new(|| ())).expect("threads"),
        ),
    };
    let root = files.root().expect("root").handle;
    let made = files.create(None, root, b"file", 0o644).expect("create");
    Some(Rig {
        files,
        slots,
        storage,
        file: made.handle,
        _scratch: scratch,
    })
}

fn wait(storage: &mut dyn Storage, count: usize) -> Vec<Completion> {
    let mut done = Vec::new();
    let give_up = Instant::now() + Duration::from_secs(30);
    storage.flush();
    while done.len() < count {
        assert!(Instant::now() < give_up, "jobs are lost");
        storage.completions(&mut done);
        std::thread::sleep(Duration::from_micros(50));
    }
    done
}

fn parts_of(completion: &Completion) -> &[Result<u32, Access>] {
    match &completion.result {
        JobResult::Io { parts, .. } => parts,
        _ => panic!("a data job has a result of its kind"),
    }
}

fn part(offset: u64, len: u32, slot: u32, slot_offset: u32) -> IoPart {
    IoPart {
        offset,
        len,
        slot: SlotId(slot),
        slot_offset,
        seat: 0,
    }
}

impl Rig {
    fn io(&self, direction: Direction, parts: Vec<IoPart>) -> Job {
        Job::Io {
            handle: self.file,
            direction,
            parts,
            writer: None,
        }
    }

    fn run(&mut self, direction: Direction, parts: Vec<IoPart>) -> Vec<Result<u32, Access>> {
        let work = self.io(direction, parts);
        self.storage.submit(JobId(1 << 40), work);
        parts_of(&wait(&mut *self.storage, 1)[0]).to_vec()
    }
}

/// Numbers that follow from a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, max: u64) -> u64 {
        self.0 += 1;
        mix64(self.0) % max
    }
}

/// A job of a round, and what it must do.
struct Planned {
    direction: Direction,
    parts: Vec<IoPart>,
}

/// Ascending, disjoint parts within a zone of the file: half of the jobs on whole pages, and in
/// slots of their own or one after another in the same.
fn parts_within(numbers: &mut Numbers, begin: u64, end: u64, slot: u32) -> Vec<IoPart> {
    let unit = [4096, 4096, 1, 512][numbers.below(4) as usize];
    let mut at = begin.next_multiple_of(unit);
    let (mut parts, mut slot_offset): (Vec<IoPart>, u32) = (Vec::new(), 0);
    for number in 0..1 + numbers.below(5) {
        let len = (1 + numbers.below(24)) * unit.clamp(64, 4096);
        let len = if unit == 1 {
            len + numbers.below(5000)
        } else {
            len.next_multiple_of(unit)
        };
        if at + len > end {
            break;
        }
        let apart = numbers.below(2) == 0;
        let (slot, within) = match apart {
            true => (slot + 1 + number as u32, 0),
            false => (slot, slot_offset),
        };
        if !apart {
            slot_offset += len as u32;
        }
        parts.push(part(at, len as u32, slot, within));
        // The next part touches this one, or leaves a hole.
        at += len + [0, unit * numbers.below(3)][numbers.below(2) as usize];
    }
    parts
}

/// Rounds of jobs that run at once, on parts of the file that do not overlap, as the scheduler
/// gives them; between them the file is cut, grown and appended to.
fn compare_with_model(uring: bool, seed: u64, rounds: usize) {
    let Some(mut rig) = rig(uring) else { return };
    let mut numbers = Numbers(seed << 32);
    let mut model: Vec<u8> = Vec::new();
    for round in 0..rounds {
        let size = model.len() as u64;
        let alone = numbers.below(4) == 0 || size < 100_000;
        let zones = if alone { 1 } else { 2 + numbers.below(5) };
        let end = if alone { size + 300_000 } else { size };
        let mut planned = Vec::new();
        for zone in 0..zones {
            let (begin, end) = (end * zone / zones, end * (zone + 1) / zones);
            let begin = begin + numbers.below((end - begin) / 2 + 1);
            let parts = parts_within(&mut numbers, begin, end, zone as u32 * 10);
            let direction = [Direction::Read, Direction::Write][numbers.below(2) as usize];
            if !parts.is_empty() {
                planned.push(Planned { direction, parts });
            }
        }
        play(&mut rig, &mut model, &planned, round as u8, seed);
        if numbers.below(6) == 0 {
            reshape(&mut rig, &mut model, &mut numbers);
        }
    }
    let whole = rig.files.read_at(rig.file, 0, 1 << 30).expect("read");
    assert!(
        whole == model,
        "seed {seed}: the file differs from the model"
    );
}

fn play(rig: &mut Rig, model: &mut Vec<u8>, planned: &[Planned], fill: u8, seed: u64) {
    for (number, job) in planned.iter().enumerate() {
        for part in &job.parts {
            let needed = part.slot_offset + part.len;
            let known = rig.slots.buffer(part.slot);
            if known.is_none_or(|buffer| lock_buffer(&buffer).bytes().len() < needed as usize) {
                rig.slots.free(part.slot);
                rig.slots.open(part.slot, needed.max(400_000));
            }
            let buffer = rig.slots.buffer(part.slot).expect("open");
            let from = part.slot_offset as usize;
            let byte = fill.wrapping_mul(7) ^ part.offset as u8 | 1;
            lock_buffer(&buffer).bytes()[from..from + part.len as usize].fill(byte);
        }
        let work = rig.io(job.direction, job.parts.clone());
        rig.storage.submit(JobId(number as u64), work);
    }
    let done = wait(&mut *rig.storage, planned.len());
    for completion in &done {
        let job = &planned[completion.job.0 as usize];
        for (part, moved) in job.parts.iter().zip(parts_of(completion)) {
            let bytes = rig.slots.buffer(part.slot).expect("open");
            let mut bytes = lock_buffer(&bytes);
            let bytes = &bytes.bytes()[part.slot_offset as usize..][..part.len as usize];
            let (from, to) = (part.offset as usize, part.offset as usize + bytes.len());
            if job.direction == Direction::Write {
                assert_eq!(*moved, Ok(part.len), "seed {seed}: {part:?}");
                model.resize(model.len().max(to), 0);
                model[from..to].copy_from_slice(bytes);
                continue;
            }
            let expected = &model[from.min(model.len())..to.min(model.len())];
            assert_eq!(*moved, Ok(expected.len() as u32), "seed {seed}: {part:?}");
            assert!(
                bytes[..expected.len()] == *expected,
                "seed {seed}: {part:?}"
            );
        }
    }
}

fn reshape(rig: &mut Rig, model: &mut Vec<u8>, numbers: &mut Numbers) {
    match numbers.below(3) {
        0 => {
            let size = numbers.below(model.len() as u64 + 50_000);
            let set = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            rig.files.set_attr(None, rig.file, &set).expect("truncate");
            model.resize(size as usize, 0);
        }
        1 => {
            let bytes = vec![0xEE; 1 + numbers.below(9000) as usize];
            let end = model.len() as u64;
            rig.files.write_at(rig.file, end, &bytes).expect("append");
            model.extend(bytes);
        }
        _ => {
            rig.files.fsync(rig.file, true).expect("sync");
            let from = numbers.below(model.len() as u64 + 1);
            let len = 1 + numbers.below(20_000);
            let punch = rig.files.fallocate(rig.file, 3, from, len);
            if punch.is_ok() {
                let size = model.len() as u64;
                model[from as usize..(from + len).min(size) as usize].fill(0);
            }
        }
    }
}

#[test]
fn the_ring_gives_the_same_bytes_as_a_model() {
    (1..=4).for_each(|seed| compare_with_model(true, seed, 150));
}

#[test]
fn threads_give_the_same_bytes_as_a_model() {
    (1..=4).for_each(|seed| compare_with_model(false, seed, 150));
}

#[test]
fn whole_pages_take_the_ring_and_others_the_pool() {
    let scratch = Scratch::new("uring");
    let (mut files, slots) = (files(&scratch), Slots::new(8 << 20));
    let Some(mut uring) = ring(&files, &slots) else {
        return;
    };
    let root = files.root().expect("root").handle;
    let made = files.create(None, root, b"file", 0o644).expect("create");
    let file = made.handle;
    slots.open(SlotId(1), 1 << 20);
    slots.open(SlotId(2), 1 << 20);
    let run = |uring: &mut Uring, direction, parts: Vec<IoPart>| {
        let work = Job::Io {
            handle: file,
            direction,
            parts,
            writer: None,
        };
        let before = uring.rung;
        uring.submit(JobId(7), work);
        let done = wait(uring, 1);
        (parts_of(&done[0]).to_vec(), uring.rung - before)
    };
    let large = |slot| part(u64::from(slot - 1) << 20, 1 << 20, slot, 0);
    // The first call of a file opens its descriptors, so it is the pool's.
    let first = run(&mut uring, Direction::Write, vec![large(1)]);
    assert_eq!(first, (vec![Ok(1 << 20)], 0));
    let both = run(&mut uring, Direction::Write, vec![large(1), large(2)]);
    assert_eq!(both, (vec![Ok(1 << 20); 2], 1));
    // An odd tail: some of the file is beyond a page's border.
    let tail = part(2 << 20, 100, 1, 0);
    assert_eq!(
        run(&mut uring, Direction::Write, vec![tail]),
        (vec![Ok(100)], 0)
    );
    assert_eq!(
        run(&mut uring, Direction::Read, vec![large(1)]).0,
        [Ok(1 << 20)]
    );
    // Over the end: a read that ends within a block has seen it.
    let parts = vec![
        part(2 << 20, 4096, 1, 0),
        part((2 << 20) + 4096, 4096, 1, 4096),
    ];
    assert_eq!(
        run(&mut uring, Direction::Read, parts),
        (vec![Ok(100), Ok(0)], 1)
    );
    // Small pages of two slots in turns: one call, with a list of buffers.
    let before = uring.counts().read_syscalls;
    let pages = (0..8u32).map(|n| part(u64::from(n) * 4096, 4096, 1 + n % 2, n / 2 * 4096));
    let read = run(&mut uring, Direction::Read, pages.collect());
    assert_eq!(read, (vec![Ok(4096); 8], 1));
    assert_eq!(uring.counts().read_syscalls, before + 1);
    // Somebody works on the slot: the pool waits for him, the ring does not.
    let buffer = slots.buffer(SlotId(1)).expect("open");
    let busy = lock_buffer(&buffer);
    let before = uring.rung;
    let work = Job::Io {
        handle: file,
        direction: Direction::Read,
        parts: vec![large(1)],
        writer: None,
    };
    uring.submit(JobId(8), work);
    drop(busy);
    assert_eq!(parts_of(&wait(&mut uring, 1)[0]), [Ok(1 << 20)]);
    assert_eq!(uring.rung, before);
}

#[test]
fn buffers_are_registered_once_and_let_go_with_their_memory() {
    let Some(mut rig) = rig(true) else { return };
    for round in 0..3 {
        for slot in 0..4 {
            rig.slots.open(SlotId(slot), 256 << 10);
        }
        let parts = (0..4).map(|n| part(u64::from(n) << 18, 1 << 18, n, 0));
        for _ in 0..2 {
            let done = rig.run(Direction::Write, parts.clone().collect());
            assert_eq!(done, [Ok(1 << 18); 4]);
        }
        let indices: Vec<_> = (0..4)
            .map(|slot| lock_buffer(&rig.slots.buffer(SlotId(slot)).expect("open")).registered())
            .collect();
        // Under a small limit of locked memory some have none.
        let mut some: Vec<u16> = indices.into_iter().flatten().collect();
        assert!(
            some.iter().all(|index| *index < 8),
            "round {round}: {some:?}"
        );
        some.dedup();
        let held: Vec<_> = (0..4).map(|slot| rig.slots.buffer(SlotId(slot))).collect();
        // Still held, so these are dropped and not used again.
        (0..4).for_each(|slot| rig.slots.free(SlotId(slot)));
        drop(held);
    }
}

#[test]
fn the_kernel_is_given_nothing_of_a_seat_that_is_lost() {
    let scratch = Scratch::new("uring");
    let (mut files, slots) = (files(&scratch), Slots::new(8 << 20));
    let Some(mut uring) = ring(&files, &slots) else {
        return;
    };
    let root = files.root().expect("root").handle;
    let made = files.create(None, root, b"file", 0o644).expect("create");
    lock_buffer(&slots.open(SlotId(1), 64 << 10))
        .bytes()
        .fill(7);
    let io = |seats: [u16; 2]| Job::Io {
        handle: made.handle,
        direction: Direction::Write,
        parts: (0..2u32)
            .map(|number| IoPart {
                seat: seats[number as usize],
                ..part(u64::from(number) << 16, 4096, 1, number * 4096)
            })
            .collect(),
        writer: None,
    };
    // The first call of a file opens its descriptors, so it is the pool's.
    uring.submit(JobId(1), io([0, 0]));
    assert_eq!(parts_of(&wait(&mut uring, 1)[0]), [Ok(4096), Ok(4096)]);
    lock_buffer(&slots.buffer(SlotId(1)).expect("open"))
        .bytes()
        .fill(8);
    // Lost after the job was begun, and before its calls are handed to the kernel.
    let before = uring.rung;
    uring.submit(JobId(2), io([0, 1]));
    assert_eq!(uring.rung, before + 1);
    uring.fence.taken(1).close();
    let refused = Err(Access::NotHeld);
    assert_eq!(parts_of(&wait(&mut uring, 1)[0]), [Ok(4096), refused]);
    uring.submit(JobId(3), io([0, 0]));
    uring.fence.opens_until(tidegate_sched::Time(0));
    assert_eq!(parts_of(&wait(&mut uring, 1)[0]), [refused, refused]);
    let bytes = std::fs::read(scratch.path().join("file")).expect("written");
    assert!(bytes[..4096].iter().all(|byte| *byte == 8));
    assert!(bytes[64 << 10..].iter().all(|byte| *byte == 7));
    assert_eq!(uring.tasks.len(), uring.spare.len());
}

#[test]
fn what_was_submitted_is_finished_before_the_end() {
    let Some(mut rig) = rig(true) else { return };
    rig.slots.open(SlotId(0), 1 << 20);
    assert_eq!(
        rig.run(Direction::Write, vec![part(0, 1 << 20, 0, 0)]),
        [Ok(1 << 20)]
    );
    for number in 0..50u32 {
        let work = rig.io(
            Direction::Write,
            vec![part(u64::from(number) * 4096, 4096, 0, 0)],
        );
        rig.storage.submit(JobId(number.into()), work);
    }
    rig.storage.shutdown();
    let mut done = Vec::new();
    rig.storage.completions(&mut done);
    assert_eq!(done.len(), 50);
    assert!(done.iter().all(|one| parts_of(one) == [Ok(4096)]));
    assert_eq!(rig.storage.counts().pending, 0);
}

#[test]
fn writes_of_the_ring_take_set_id_bits_away() {
    let Some(mut rig) = rig(true) else { return };
    rig.slots.open(SlotId(0), 1 << 16);
    for _ in 0..2 {
        let set = SetAttr {
            mode: Some(0o6755),
            ..SetAttr::default()
        };
        rig.files.set_attr(None, rig.file, &set).expect("chmod");
        assert_eq!(
            rig.run(Direction::Write, vec![part(0, 1 << 16, 0, 0)]),
            [Ok(1 << 16)]
        );
        let mode = rig.files.attr(rig.file).expect("attr").mode;
        assert_eq!(mode & 0o7777, 0o755);
    }
}

#[test]
fn a_file_that_refuses_direct_calls_is_read_through_the_page_cache() {
    let Some(mut rig) = rig(true) else { return };
    rig.slots.open(SlotId(0), 1 << 16);
    assert_eq!(
        rig.run(Direction::Write, vec![part(0, 1 << 16, 0, 0)]),
        [Ok(1 << 16)]
    );
    for direction in [Direction::Read, Direction::Write] {
        rig.files.direct_refused(rig.file, direction);
        assert!(rig.files.direct_at_hand(rig.file, direction).is_none());
        assert_eq!(
            rig.run(direction, vec![part(0, 1 << 16, 0, 0)]),
            [Ok(1 << 16)]
        );
    }
}
