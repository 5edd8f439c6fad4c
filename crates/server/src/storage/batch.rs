//! One data job: moves the parts of one file between payload buffers and the back end, in as few
//! system calls as the parts' places in the file allow.

use super::posix::no;
use super::route::{Route, Way};
use super::slots::{Memory, SlotBuffer, Slots, lock_buffer};
use rustix::io::retry_on_intr;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_forward::{Access, Errno, IoPart, SlotId};
use tidegate_sched::Direction;

/// Most buffers of one system call (the kernel's UIO_MAXIOV).
const BUFFERS_MAX: usize = 1024;

type Part = Result<u32, Access>;

/// Totals of the calls and bytes of one direction.
#[derive(Default)]
pub(super) struct Meter {
    pub(super) calls: AtomicU64,
    pub(super) syscalls: AtomicU64,
    pub(super) bytes: AtomicU64,
}

/// Moves the parts. Returns for each the number of bytes moved, or the error. Adjacent parts share
/// a system call.
pub(super) fn transfer(
    route: &mut Route,
    parts: &[IoPart],
    slots: &Slots,
    meter: &Meter,
) -> Vec<Part> {
    meter.calls.fetch_add(1, Ordering::Relaxed);
    let buffers = buffers_of(parts, slots);
    let mut locked: Vec<_> = buffers
        .iter()
        .map(|(slot, buffer)| (*slot, lock_buffer(buffer)))
        .collect();
    let Some(mut slices) = slices(parts, &mut locked) else {
        tracing::error!("a data job names bytes that its slots do not have");
        return vec![Err(Errno::EIO.into()); parts.len()];
    };
    let mut results = vec![Ok(0); parts.len()];
    let mut begin = 0;
    while begin < parts.len() {
        let end = run_end(parts, begin);
        let run = &mut slices[begin..end];
        transfer_run(
            route,
            &parts[begin..end],
            run,
            &mut results[begin..end],
            meter,
        );
        begin = end;
    }
    let moved = results.iter().flatten().map(|&len| u64::from(len)).sum();
    meter.bytes.fetch_add(moved, Ordering::Relaxed);
    results
}

/// The payload buffers that the parts name, each once and in the order of their numbers. Locking in
/// this order cannot deadlock.
fn buffers_of(parts: &[IoPart], slots: &Slots) -> Vec<(SlotId, SlotBuffer)> {
    let mut ids: Vec<SlotId> = parts.iter().map(|part| part.slot).collect();
    ids.sort_unstable();
    ids.dedup();
    ids.into_iter()
        .filter_map(|slot| Some((slot, slots.buffer(slot)?)))
        .collect()
}

/// The bytes of each part in its payload buffer. None if two parts overlap, or a part exceeds its
/// buffer.
fn slices<'a>(
    parts: &[IoPart],
    locked: &'a mut [(SlotId, MutexGuard<'_, Memory>)],
) -> Option<Vec<&'a mut [u8]>> {
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_unstable_by_key(|&i| (parts[i].slot, parts[i].slot_offset));
    let mut found: Vec<Option<&mut [u8]>> = Vec::new();
    found.resize_with(parts.len(), || None);
    let mut order = order.into_iter().peekable();
    for (slot, buffer) in locked {
        let mut rest: &mut [u8] = &mut *buffer;
        let mut at = 0;
        while let Some(index) = order.next_if(|&i| parts[i].slot == *slot) {
            let begin = parts[index].slot_offset as usize;
            let (_, tail) = rest.split_at_mut_checked(begin.checked_sub(at)?)?;
            let (bytes, tail) = tail.split_at_mut_checked(parts[index].len as usize)?;
            found[index] = Some(bytes);
            at = begin + parts[index].len as usize;
            rest = tail;
        }
    }
    found.into_iter().collect()
}

/// Where the run of adjacent parts that begins at `begin` ends.
fn run_end(parts: &[IoPart], begin: usize) -> usize {
    let adjacent = |pair: &[IoPart]| {
        pair[0].offset.checked_add(u64::from(pair[0].len)) == Some(pair[1].offset)
    };
    begin
        + 1
        + parts[begin..]
            .windows(2)
            .take_while(|pair| adjacent(pair))
            .count()
}

/// Moves one run. If a part fails, the parts after it are tried all the same.
fn transfer_run(
    route: &mut Route,
    parts: &[IoPart],
    slices: &mut [&mut [u8]],
    results: &mut [Part],
    meter: &Meter,
) {
    let direction = route.direction();
    let mut offset = parts[0].offset;
    let mut index = 0;
    // Bytes of part `index` that are done.
    let mut within = 0;
    while index < slices.len() {
        let left = slices[index].len() - within;
        if left == 0 {
            results[index] = Ok(within as u32);
            (index, within) = (index + 1, 0);
            continue;
        }
        let (way, count) = match route.next(offset, &slices[index..], within) {
            Ok(next) => next,
            Err(error) => {
                results[index] = ended_early(direction, within, error);
                results[index + 1..].fill(Err(error));
                return;
            }
        };
        meter.syscalls.fetch_add(1, Ordering::Relaxed);
        let run = &mut slices[index..index + count];
        let parts = &parts[index..index + count];
        match call_by(route, &way, (offset, parts), run, within) {
            Err(Access::Errno(Errno::EINVAL)) if matches!(way, Way::Direct(_)) => route.refused(),
            Ok(None) => {}
            Ok(Some(0)) if direction == Direction::Read => {
                // The end of the file: whatever follows in this run is beyond it.
                results[index] = Ok(within as u32);
                return;
            }
            Ok(Some(0)) => {
                results[index] = ended_early(direction, within, Errno::EIO.into());
                offset += left as u64;
                (index, within) = (index + 1, 0);
            }
            Ok(Some(mut moved)) => {
                let ended = way.is_end(direction, moved);
                offset += moved as u64;
                while index < slices.len() && moved >= slices[index].len() - within {
                    moved -= slices[index].len() - within;
                    results[index] = Ok(slices[index].len() as u32);
                    (index, within) = (index + 1, 0);
                }
                within += moved;
                if ended && index < slices.len() {
                    results[index] = Ok(within as u32);
                    return;
                }
            }
            Err(error) => {
                results[index] = ended_early(direction, within, error);
                offset += left as u64;
                (index, within) = (index + 1, 0);
            }
        }
    }
}

/// The result of a part that stopped early. A write counts for the bytes that it wrote, as write(2)
/// does. A short read would mean the end of the file, so it is an error instead.
fn ended_early(direction: Direction, within: usize, error: Access) -> Part {
    match direction {
        Direction::Write if within > 0 && error != Access::NotHeld => Ok(within as u32),
        _ => Err(error),
    }
}

/// Makes one system call on one route. Returns the bytes moved; of a read, those that are the
/// file's. None: the call must be repeated.
fn call_by(
    route: &mut Route,
    way: &Way,
    (offset, parts): (u64, &[IoPart]),
    slices: &mut [&mut [u8]],
    within: usize,
) -> Result<Option<usize>, Access> {
    let (fd, direction) = (way.fd(), route.direction());
    if direction == Direction::Write {
        let _pass = route.pass(way);
        // Earlier steps may have hung: another call of the job, opening the file, waiting for the
        // gate.
        let slices = match route.allowed(parts) {
            0 => return Err(Access::NotHeld),
            allowed => &mut slices[..allowed],
        };
        let written = call(fd, direction, offset, slices, within);
        return written.map(Some).map_err(no);
    }
    let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
    let len = (bytes - within) as u64;
    route.ends.before(fd, offset, len)?;
    let pass = route.pass(way);
    let read = call(fd, direction, offset, slices, within).map_err(no)?;
    drop(pass);
    route.ends.found(fd, (offset, len), read)
}

/// Makes one system call, which begins `within` bytes into the first slice.
fn call(
    fd: &OwnedFd,
    direction: Direction,
    offset: u64,
    slices: &mut [&mut [u8]],
    within: usize,
) -> rustix::io::Result<usize> {
    let count = slices.len().min(BUFFERS_MAX);
    let Some((first, others)) = slices[..count].split_first_mut() else {
        return Ok(0);
    };
    let first = &mut first[within..];
    match direction {
        Direction::Read if others.is_empty() => {
            retry_on_intr(|| rustix::io::pread(fd, &mut *first, offset))
        }
        Direction::Write if others.is_empty() => {
            retry_on_intr(|| rustix::io::pwrite(fd, first, offset))
        }
        Direction::Read => {
            let others = others.iter_mut().map(|slice| IoSliceMut::new(slice));
            let mut all: Vec<_> = std::iter::once(IoSliceMut::new(first))
                .chain(others)
                .collect();
            retry_on_intr(|| rustix::io::preadv(fd, &mut all, offset))
        }
        Direction::Write => {
            let others = others.iter().map(|slice| IoSlice::new(slice));
            let all: Vec<_> = std::iter::once(IoSlice::new(first)).chain(others).collect();
            retry_on_intr(|| rustix::io::pwritev(fd, &all, offset))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Fence;
    use crate::storage::cache_gate::{Gate, Kind};
    use crate::storage::posix::Ends;
    use crate::storage::scratch::{Scratch, Tmpfs};
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    fn part(offset: u64, len: u32, slot: u32, slot_offset: u32) -> IoPart {
        IoPart {
            offset,
            len,
            slot: SlotId(slot),
            slot_offset,
            seat: 0,
        }
    }

    fn through(fd: &OwnedFd, direction: Direction) -> Route {
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
            lock_buffer(&buffer).fill(slot as u8);
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
        lock_buffer(&slots.open(SlotId(1), 8192)).fill(7);
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
        lock_buffer(&slots.open(SlotId(1), 8192)).fill(9);
        let parts = [
            part(0, 100, 1, 0),
            part(100, 100, 1, 100),
            part(4990, 5, 1, 200),
        ];
        let done = transfer(&mut through(&fd, Direction::Read), &parts, &slots, &meter);
        assert_eq!(done, [Ok(100), Ok(100), Ok(5)]);
        let buffer = slots.buffer(SlotId(1)).expect("open");
        assert_eq!(&lock_buffer(&buffer)[148..152], [7, 7, 0, 0]);
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
        lock_buffer(&slots.open(SlotId(1), 8192)).fill(9);
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
        assert_eq!(&lock_buffer(&buffer)[48..52], [7, 7, 8, 8]);
        assert_eq!(lock_buffer(&buffer)[149..151], [8, 9]);
        // A back end that contradicts itself is an error, and no short read.
        let done = read(&fd, Ends::asking(|| Ok(1000)));
        assert_eq!(done, [Ok(100), Err(Errno::EIO.into())]);
    }

    #[test]
    fn more_parts_than_one_system_call_takes() {
        let scratch = Scratch::new("batch");
        let (file, fd) = file(&scratch);
        let (slots, meter) = (Slots::new(1 << 20), Meter::default());
        lock_buffer(&slots.open(SlotId(1), 8192)).fill(3);
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
}
