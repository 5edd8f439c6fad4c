//! What a data job moves, in how many calls, and what it leaves alone.

use super::*;
use crate::storage::SharedMemory;
use crate::storage::scratch::{Scratch, Tmpfs};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU8};

impl Route<'_> {
    /// The route by one given descriptor.
    fn through(fd: OwnedFd, direction: Direction) -> Route<'static> {
        Route::through_until(fd, direction, Ends::default())
    }

    /// The route by one given descriptor, for a file whose cached end is not believed.
    fn through_until(fd: OwnedFd, direction: Direction, ends: Ends) -> Route<'static> {
        Route {
            direction,
            files: None,
            writer: None,
            buffered: Some(Arc::new(Descriptor::new(fd, &Arc::default()))),
            direct: None,
            gate: None,
            fence: Fence::default(),
            ends,
        }
    }

    /// The same route, with another fence.
    fn fenced(self, fence: Fence) -> Self {
        Route { fence, ..self }
    }

    /// The same route, for a file on which other calls run at the same time.
    fn gated(self, gate: Arc<Gate>) -> Self {
        let gate = Some(gate);
        Route { gate, ..self }
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

fn through(fd: &OwnedFd, direction: Direction) -> Route<'static> {
    Route::through(fd.try_clone().expect("descriptor"), direction)
}

fn file(scratch: &Scratch) -> (std::fs::File, OwnedFd) {
    let path = scratch.path().join("data");
    let mut options = std::fs::OpenOptions::new();
    let file = options
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(path);
    let file = file.expect("scratch file");
    let fd = file.try_clone().expect("descriptor").into();
    (file, fd)
}

#[test]
fn adjacent_parts_share_a_system_call_and_others_do_not() {
    let scratch = Scratch::new("batch");
    let (file, fd) = file(&scratch);
    let (slots, meter) = (Slots::new(1 << 20), Meter::default());
    for slot in 1..=2 {
        let buffer = slots.open(SlotId(slot), 8192);
        lock_buffer(&buffer).bytes().fill(slot as u8);
    }
    // Slot 1 holds two parts, in the other order than the file.
    let parts = [
        part(0, 100, 1, 4000),
        part(100, 50, 2, 0),
        part(1000, 100, 1, 0),
    ];
    let done = transfer(&mut through(&fd, Direction::Write), &parts, &slots, &meter);
    assert_eq!(done, [Ok(100), Ok(50), Ok(100)]);
    assert_eq!(meter.calls.load(Ordering::Relaxed), 1);
    assert_eq!(meter.syscalls.load(Ordering::Relaxed), 2);
    assert_eq!(meter.bytes.load(Ordering::Relaxed), 250);
    let mut bytes = vec![9; 1100];
    file.read_exact_at(&mut bytes, 0).expect("read");
    assert!(bytes[..100].iter().all(|&b| b == 1) && bytes[100..150].iter().all(|&b| b == 2));
    assert!(bytes[150..1000].iter().all(|&b| b == 0) && bytes[1000..].iter().all(|&b| b == 1));
}

#[test]
fn no_call_follows_one_that_hung_until_the_seat_was_lost() {
    let scratch = Scratch::new("batch");
    let (file, fd) = file(&scratch);
    file.write_all_at(&[5; 100], 1000).expect("write");
    let (slots, meter) = (Slots::new(1 << 20), Meter::default());
    lock_buffer(&slots.open(SlotId(1), 8192)).bytes().fill(7);
    let parts = [part(0, 100, 1, 0), part(1000, 100, 1, 100)];
    // The fence closes while the first part is written.
    let mut route = through(&fd, Direction::Write).fenced(Fence::closing_after(1));
    let done = transfer(&mut route, &parts, &slots, &meter);
    assert_eq!(done, [Ok(100), Err(Access::NotHeld)]);
    let mut bytes = [0; 100];
    file.read_exact_at(&mut bytes, 1000).expect("read");
    assert_eq!(bytes, [5; 100], "another client's by then");
}

#[test]
fn a_write_that_waited_for_others_until_the_seat_was_lost_does_not_begin() {
    let scratch = Scratch::new("batch");
    let (file, fd) = file(&scratch);
    let (slots, meter) = (Slots::new(1 << 20), Meter::default());
    slots.open(SlotId(1), 8192);
    let (fence, gate) = (Fence::default(), Arc::new(Gate::default()));
    let route = through(&fd, Direction::Write).fenced(fence.clone());
    let mut route = route.gated(gate.clone());
    let inside = gate.enter(Kind::DirectWrite);
    let done = std::thread::scope(|scope| {
        let write = || transfer(&mut route, &[part(0, 100, 1, 0)], &slots, &meter);
        let writing = scope.spawn(write);
        while !gate.is_waited_for() {
            std::thread::yield_now();
        }
        fence.opens_until(tidegate_sched::Time(0));
        drop(inside);
        writing.join().expect("no panic")
    });
    assert_eq!(done, [Err(Access::NotHeld)]);
    assert_eq!(file.metadata().expect("stat").len(), 0);
}

#[test]
fn a_read_is_short_at_the_end_of_the_file_only() {
    let scratch = Scratch::new("batch");
    let (file, fd) = file(&scratch);
    file.write_all_at(&[7; 150], 0).expect("write");
    file.set_len(5000).expect("sparse");
    let (slots, meter) = (Slots::new(1 << 20), Meter::default());
    lock_buffer(&slots.open(SlotId(1), 8192)).bytes().fill(9);
    let parts = [
        part(0, 100, 1, 0),
        part(100, 100, 1, 100),
        part(4990, 5, 1, 200),
    ];
    let done = transfer(&mut through(&fd, Direction::Read), &parts, &slots, &meter);
    assert_eq!(done, [Ok(100), Ok(100), Ok(5)]);
    let buffer = slots.buffer(SlotId(1)).expect("open");
    assert_eq!(&lock_buffer(&buffer).bytes()[148..152], [7, 7, 0, 0]);
    let parts = [
        part(4900, 60, 1, 0),
        part(4960, 60, 1, 60),
        part(5020, 10, 1, 120),
    ];
    let done = transfer(&mut through(&fd, Direction::Read), &parts, &slots, &meter);
    assert_eq!(done, [Ok(60), Ok(40), Ok(0)]);
}

#[test]
fn an_end_that_the_back_end_does_not_confirm_is_read_past() {
    let scratch = Scratch::new("batch");
    let (file, fd) = file(&scratch);
    file.write_all_at(&[7; 150], 0).expect("write");
    let (slots, meter) = (Slots::new(1 << 20), Meter::default());
    lock_buffer(&slots.open(SlotId(1), 8192)).bytes().fill(9);
    let parts = [part(100, 100, 1, 0), part(200, 100, 1, 100)];
    // Another node has written more; this one learns of it when it asks for the size.
    let grown = file.try_clone().expect("descriptor");
    let ends = Ends::asking(move || {
        grown.write_all_at(&[8; 100], 150).expect("write");
        Ok(250)
    });
    let read = |fd: &OwnedFd, ends| {
        let fd = fd.try_clone().expect("descriptor");
        let mut route = Route::through_until(fd, Direction::Read, ends);
        transfer(&mut route, &parts, &slots, &meter)
    };
    assert_eq!(read(&fd, ends), [Ok(100), Ok(50)]);
    let buffer = slots.buffer(SlotId(1)).expect("open");
    assert_eq!(&lock_buffer(&buffer).bytes()[48..52], [7, 7, 8, 8]);
    assert_eq!(lock_buffer(&buffer).bytes()[149..151], [8, 9]);
    // A back end that contradicts itself is an error, and no short read.
    let done = read(&fd, Ends::asking(|| Ok(1000)));
    assert_eq!(done, [Ok(100), Err(Errno::EIO.into())]);
}

#[test]
fn more_parts_than_one_system_call_takes() {
    let scratch = Scratch::new("batch");
    let (file, fd) = file(&scratch);
    let (slots, meter) = (Slots::new(1 << 20), Meter::default());
    lock_buffer(&slots.open(SlotId(1), 8192)).bytes().fill(3);
    let parts: Vec<_> = (0..1500).map(|i| part(i * 2, 2, 1, i as u32 * 2)).collect();
    let done = transfer(&mut through(&fd, Direction::Write), &parts, &slots, &meter);
    assert!(done.iter().all(|done| *done == Ok(2)));
    assert_eq!(meter.syscalls.load(Ordering::Relaxed), 2);
    assert_eq!(file.metadata().expect("stat").len(), 3000);
}

#[test]
fn a_write_that_fills_the_disk_counts_for_what_it_wrote() {
    let scratch = Scratch::new("batch");
    let Some(_mount) = Tmpfs::mount(scratch.path(), "64k") else {
        return;
    };
    let (file, fd) = file(&scratch);
    let (slots, meter) = (Slots::new(1 << 20), Meter::default());
    slots.open(SlotId(1), 100_000);
    let parts = [
        part(0, 10_000, 1, 0),
        part(10_000, 80_000, 1, 10_000),
        part(90_000, 10_000, 1, 90_000),
    ];
    let done = transfer(&mut through(&fd, Direction::Write), &parts, &slots, &meter);
    assert_eq!(done[0], Ok(10_000));
    let within = done[1].expect("some of it fitted");
    assert!(0 < within && within < 80_000, "{within}");
    assert_eq!(done[2], Err(Errno::ENOSPC.into()));
    let len = file.metadata().expect("stat").len();
    assert_eq!(len, 10_000 + u64::from(within));
    assert_eq!(meter.bytes.load(Ordering::Relaxed), len);
}

#[test]
fn parts_outside_their_slots_are_refused_whole() {
    let scratch = Scratch::new("batch");
    let (_, fd) = file(&scratch);
    let (slots, meter) = (Slots::new(1 << 20), Meter::default());
    slots.open(SlotId(1), 4096);
    let outside = [part(0, 10, 1, 0), part(10, 10, 1, 4090)];
    let overlapping = [part(0, 10, 1, 0), part(10, 10, 1, 5)];
    let absent = [part(0, 10, 2, 0)];
    for parts in [&outside[..], &overlapping, &absent] {
        let done = transfer(&mut through(&fd, Direction::Write), parts, &slots, &meter);
        assert!(
            done.iter().all(|done| *done == Err(Errno::EIO.into())),
            "{done:?}"
        );
    }
    assert_eq!(meter.syscalls.load(Ordering::Relaxed), 0);
}

/// A client's memory of 32 KiB: as its client has it, and as the forwarder maps it.
fn shared() -> (SharedMemory, Arc<SharedMemory>) {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create(c"test", flags).expect("memory");
    ftruncate(&fd, 32 << 10).expect("its size");
    fcntl_add_seals(&fd, SealFlags::SHRINK).expect("seals");
    let map = || SharedMemory::map(&fd, 32 << 10).expect("it is sound");
    (map(), Arc::new(map()))
}

/// The byte at this place of the memory.
fn byte_at(memory: &SharedMemory, place: u64) -> &AtomicU8 {
    // SAFETY: the place is mapped, and this process accesses it by atomics alone.
    unsafe { AtomicU8::from_ptr(memory.at(place)) }
}

#[test]
fn memory_that_its_client_changes_all_the_time_is_moved_within_its_bounds() {
    let scratch = Scratch::new("batch-race");
    let (file, fd) = file(&scratch);
    file.write_all_at(&[1; 12288], 1 << 20).expect("room");
    let (client, memory) = shared();
    let (slots, meter) = (Slots::new(1 << 20), Meter::default());
    slots.open_shared(SlotId(1), Arc::clone(&memory), 8192, 12288);
    let buffer = slots.buffer(SlotId(1)).expect("open");
    assert!(lock_buffer(&buffer).own().is_none(), "nobody refers to it");
    let ended = AtomicBool::new(false);
    let races = |ended: &AtomicBool| {
        let mut value = 0;
        while !ended.load(Ordering::Relaxed) {
            value = if value == 2 { 1 } else { 2 };
            (8192..20480).for_each(|at| byte_at(&client, at).store(value, Ordering::Relaxed));
        }
    };
    (8192..20480).for_each(|at| byte_at(&client, at).store(1, Ordering::Relaxed));
    std::thread::scope(|scope| {
        scope.spawn(|| races(&ended));
        for round in 0..200 {
            // One call with one buffer, one with two, by turns.
            let half = if round % 2 == 0 { 12288 } else { 6000 };
            let parts = |at| {
                [
                    part(at, half, 1, 0),
                    part(at + u64::from(half), 12288 - half, 1, half),
                ]
            };
            let wanted = [Ok(half), Ok(12288 - half)];
            let write = &mut through(&fd, Direction::Write);
            assert_eq!(transfer(write, &parts(0), &slots, &meter), wanted);
            let read = &mut through(&fd, Direction::Read);
            assert_eq!(transfer(read, &parts(1 << 20), &slots, &meter), wanted);
        }
        ended.store(true, Ordering::Relaxed);
    });
    let mut written = vec![0; 12288];
    file.read_exact_at(&mut written, 0).expect("it was written");
    assert!(
        written.iter().all(|byte| [1, 2].contains(byte)),
        "only what its client wrote"
    );
    let around = (0..8192).chain(20480..32 << 10);
    assert!(
        around
            .into_iter()
            .all(|at| byte_at(&client, at).load(Ordering::Relaxed) == 0)
    );
    // Parts that overlap, or are not in the buffer, are refused.
    for parts in [
        [part(0, 9, 1, 0), part(9, 9, 1, 8)],
        [part(0, 9, 1, 0), part(9, 9, 1, 12280)],
    ] {
        let write = &mut through(&fd, Direction::Write);
        let refused = Err(Access::Errno(Errno::EIO));
        assert_eq!(transfer(write, &parts, &slots, &meter), [refused; 2]);
    }
}
