//! One data job: moves the parts of one file between payload buffers and the back end, in as few
//! system calls as the parts' places in the file allow. Each call goes by direct I/O where that is
//! possible, else through the page cache.

use super::Fence;
use super::cache_gate::{Gate, Kind, Pass};
use super::posix::{Descriptor, Direct, Ends, PosixFiles, no};
use super::raw_bytes::{self, RawBytes};
use super::slots::{Memory, SlotBuffer, Slots, lock_buffer};
use rustix::io::retry_on_intr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Instant;
use tidegate_forward::{Access, Errno, IoPart, Job, JobResult, SlotId};
use tidegate_sched::Direction;
use tidegate_wire::{Caller, Handle};

/// The most bytes of a read that the forwarder's loop itself does: a longer one would delay its
/// other work for too long.
const CACHED_READ_MAX: u32 = 64 << 10;
/// The same on few processors, of bytes that the loop then encrypts. Waking a storage thread takes
/// longer there than the copy, and keeps the loop from a processor.
const CACHED_READ_MAX_TO_ENCRYPT: u32 = 256 << 10;
/// The most processors that are few.
const FEW_PROCESSORS: usize = 2;
/// The bytes that the loop reads before it sends them.
const UNSENT_MAX: u64 = 128 << 10;

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
    route: &mut Route<'_>,
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
    let Some(pieces) = pieces_of(parts, &mut locked) else {
        tracing::error!("a data job names bytes that its slots do not have");
        return vec![Err(Errno::EIO.into()); parts.len()];
    };
    let mut results = vec![Ok(0); parts.len()];
    let mut begin = 0;
    while begin < parts.len() {
        let end = run_end(parts, begin);
        let run = (&parts[begin..end], &pieces[begin..end]);
        transfer_run(route, run, &mut results[begin..end], meter);
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
fn pieces_of<'a>(
    parts: &[IoPart],
    locked: &'a mut [(SlotId, MutexGuard<'_, Memory>)],
) -> Option<Vec<RawBytes<'a>>> {
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_unstable_by_key(|&i| (parts[i].slot, parts[i].slot_offset));
    let mut found: Vec<Option<RawBytes<'a>>> = vec![None; parts.len()];
    let mut order = order.into_iter().peekable();
    for (slot, buffer) in locked {
        let whole = buffer.raw();
        let mut at = 0;
        while let Some(index) = order.next_if(|&i| parts[i].slot == *slot) {
            let begin = parts[index].slot_offset as usize;
            begin.checked_sub(at)?;
            let piece = whole.part(begin, parts[index].len as usize)?;
            found[index] = Some(piece);
            at = begin + piece.len();
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
    route: &mut Route<'_>,
    (parts, pieces): (&[IoPart], &[RawBytes<'_>]),
    results: &mut [Part],
    meter: &Meter,
) {
    let direction = route.direction;
    let mut offset = parts[0].offset;
    let mut index = 0;
    // Bytes of part `index` that are done.
    let mut within = 0;
    while index < pieces.len() {
        let left = pieces[index].len() - within;
        if left == 0 {
            results[index] = Ok(within as u32);
            (index, within) = (index + 1, 0);
            continue;
        }
        let (way, count) = match route.next(offset, &pieces[index..], within) {
            Ok(next) => next,
            Err(error) => {
                results[index] = ended_early(direction, within, error);
                results[index + 1..].fill(Err(error));
                return;
            }
        };
        meter.syscalls.fetch_add(1, Ordering::Relaxed);
        let run = &pieces[index..index + count];
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
                while index < pieces.len() && moved >= pieces[index].len() - within {
                    moved -= pieces[index].len() - within;
                    results[index] = Ok(pieces[index].len() as u32);
                    (index, within) = (index + 1, 0);
                }
                within += moved;
                if ended && index < pieces.len() {
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
    route: &mut Route<'_>,
    way: &Way,
    (offset, parts): (u64, &[IoPart]),
    pieces: &[RawBytes<'_>],
    within: usize,
) -> Result<Option<usize>, Access> {
    let (fd, direction) = (way.fd(), route.direction);
    if direction == Direction::Write {
        let _pass = route.pass(way);
        if let Some((files, _)) = &route.files {
            files.write_as(route.writer)?;
        }
        // Earlier steps may have hung: another call of the job, opening the file, waiting for the
        // gate or for room.
        let write = || match route.allowed(parts) {
            0 => Err(Access::NotHeld),
            allowed => call(fd, direction, offset, &pieces[..allowed], within).map_err(no),
        };
        let written = match &route.files {
            Some((files, _)) => files.with_space(write),
            None => write(),
        };
        return written.map(Some);
    }
    let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
    let len = (bytes - within) as u64;
    route.ends.before(fd, offset, len)?;
    let pass = route.pass(way);
    let read = call(fd, direction, offset, pieces, within).map_err(no)?;
    drop(pass);
    let last = || byte_at(pieces, within + read - 1);
    route.ends.found(fd, (offset, len), read, last)
}

/// One byte of consecutive pieces; 0 behind them.
fn byte_at(pieces: &[RawBytes<'_>], mut at: usize) -> u8 {
    for piece in pieces {
        match piece.byte(at) {
            Some(byte) => return byte,
            None => at -= piece.len(),
        }
    }
    0
}

/// Makes one system call, which begins `within` bytes into the first piece.
fn call(
    fd: &OwnedFd,
    direction: Direction,
    offset: u64,
    pieces: &[RawBytes<'_>],
    within: usize,
) -> rustix::io::Result<usize> {
    let pieces = &pieces[..pieces.len().min(BUFFERS_MAX)];
    retry_on_intr(|| {
        let numbered = pieces.iter().enumerate();
        let bytes = numbered.map(|(at, piece)| piece.after(if at == 0 { within } else { 0 }));
        raw_bytes::transfer(fd, direction, offset, bytes)
    })
}

/// The descriptors of one job. Only the thread that made it may write by it.
pub(super) struct Route<'a> {
    direction: Direction,
    /// Opens the buffered descriptor when it is first needed.
    files: Option<(PosixFiles, Handle)>,
    /// On whose behalf data is written; None: of the forwarder itself.
    writer: Option<&'a Caller>,
    buffered: Option<Arc<Descriptor>>,
    direct: Option<Arc<Direct>>,
    gate: Option<Arc<Gate>>,
    /// Blocks the parts of seats that this forwarder has lost.
    fence: Fence,
    /// Decides whether reads have reached the end of the file.
    ends: Ends,
}

/// The route of the next system call.
enum Way {
    /// Direct I/O, past the page cache.
    Direct(Arc<Direct>),
    /// Through the page cache.
    Buffered(Arc<Descriptor>),
}

impl Way {
    /// The descriptor to use.
    fn fd(&self) -> &OwnedFd {
        match self {
            Way::Direct(direct) => &direct.fd,
            Way::Buffered(fd) => fd,
        }
    }

    /// Whether a call that moved this many bytes has reached the end of the file.
    fn is_end(&self, direction: Direction, moved: usize) -> bool {
        match self {
            Way::Direct(direct) => direction == Direction::Read && direct.is_end(moved),
            Way::Buffered(_) => false,
        }
    }
}

impl<'a> Route<'a> {
    /// The route to a file. Fails if the file cannot be opened.
    pub(super) fn find(
        files: &PosixFiles,
        handle: Handle,
        direction: Direction,
        writer: Option<&'a Caller>,
    ) -> Result<Route<'a>, Access> {
        let (direct, gate) = files.direct_and_gate(handle, direction)?;
        let buffered = match &direct {
            Some(_) => None,
            None => Some(files.data_fd(handle, direction)?),
        };
        Ok(Route {
            direction,
            files: Some((files.clone(), handle)),
            writer,
            buffered,
            direct,
            gate,
            fence: files.permit.fence().clone(),
            ends: match direction {
                Direction::Read => Ends::of(files, handle),
                Direction::Write => Ends::default(),
            },
        })
    }

    /// How the bytes from `within` the first piece on move next, and how many of the pieces go
    /// together.
    fn next(
        &mut self,
        mut offset: u64,
        pieces: &[RawBytes<'_>],
        within: usize,
    ) -> Result<(Way, usize), Access> {
        let Some(direct) = &self.direct else {
            return Ok((Way::Buffered(self.buffered()?), pieces.len()));
        };
        let mut fits = pieces.iter().enumerate().map(|(index, piece)| {
            let bytes = piece.after(if index == 0 { within } else { 0 });
            let fits = direct.takes(offset, bytes);
            offset += bytes.len() as u64;
            fits
        });
        let first = fits.next().unwrap_or_default();
        let count = 1 + fits.take_while(|fits| *fits == first).count();
        let way = match first {
            true => Way::Direct(direct.clone()),
            false => Way::Buffered(self.buffered()?),
        };
        Ok((way, count))
    }

    /// How many of the parts may be written together now: those before the first part whose seat is
    /// lost.
    fn allowed(&self, parts: &[IoPart]) -> usize {
        let open = |part: &&IoPart| !self.fence.is_lost(part.seat);
        match self.fence.is_closed() {
            true => 0,
            false => parts.iter().take_while(open).count(),
        }
    }

    /// Notes that the file refused a direct call.
    fn refused(&mut self) {
        self.direct = None;
        if let Some((files, handle)) = &self.files {
            files.direct_refused(*handle, self.direction);
        }
    }

    /// The pass that the thread must hold during a system call.
    fn pass(&self, way: &Way) -> Option<Pass> {
        let kind = match (way, self.direction) {
            (Way::Direct(_), Direction::Read) => return None,
            (Way::Direct(_), Direction::Write) => Kind::DirectWrite,
            (Way::Buffered(_), _) => Kind::Buffered,
        };
        self.gate.as_ref().map(|gate| gate.enter(kind))
    }

    fn buffered(&mut self) -> Result<Arc<Descriptor>, Access> {
        if let Some(fd) = &self.buffered {
            return Ok(fd.clone());
        }
        let (files, handle) = self.files.as_ref().expect("else it was given");
        let fd = files.data_fd(*handle, self.direction)?;
        Ok(self.buffered.insert(fd).clone())
    }
}

/// Small reads of data in the page cache, which the thread of the forwarder's loop executes at
/// once. To wake a pool's thread, and to let it sleep again, would take longer than the read.
pub(super) struct CachedReads {
    files: PosixFiles,
    /// Whether the back end does not support reads that return instead of waiting.
    unable: bool,
    /// Whether the loop has processors enough for storage threads beside it.
    many_processors: bool,
    /// Bytes that were read and are not sent.
    unsent: u64,
}

impl CachedReads {
    pub(super) fn new(files: PosixFiles, processors: usize) -> CachedReads {
        CachedReads {
            files,
            unable: false,
            many_processors: processors > FEW_PROCESSORS,
            unsent: 0,
        }
    }

    /// Whether so much was read that it should be sent before more is.
    pub(super) fn is_to_send(&self) -> bool {
        self.unsent >= UNSENT_MAX
    }

    /// All results so far are taken, to be sent.
    pub(super) fn taken(&mut self) {
        self.unsent = 0;
    }

    /// Whether the loop reads so many bytes itself.
    fn takes(&self, slots: &Slots, part: &IoPart) -> bool {
        let may_be_long = !self.many_processors && part.len <= CACHED_READ_MAX_TO_ENCRYPT;
        part.len <= CACHED_READ_MAX || (may_be_long && slots.is_to_encrypt(part.slot))
    }

    /// The result, if the job is such a read and can be executed without waiting.
    pub(super) fn try_read(
        &mut self,
        slots: &Slots,
        reads: &Meter,
        work: &Job,
    ) -> Option<JobResult> {
        let Job::Io {
            handle,
            direction: Direction::Read,
            parts,
            ..
        } = work
        else {
            return None;
        };
        let [part] = &**parts else {
            return None;
        };
        if self.unable || !self.takes(slots, part) {
            return None;
        }
        let began = Instant::now();
        let fd = self.files.open_read_fd(*handle)?;
        let buffer = slots.buffer(part.slot)?;
        // A thread may use another part of the buffer, for as long as the back end takes.
        let mut bytes = buffer.try_lock().ok()?;
        let whole = bytes.raw();
        let into = whole.part(part.slot_offset as usize, part.len as usize)?;
        match raw_bytes::read_cached(&fd, part.offset, into) {
            Ok(read) if read == part.len as usize => {}
            // The end of the file, or of what is in the cache.
            Ok(_) => return None,
            Err(rustix::io::Errno::OPNOTSUPP) => {
                self.unable = true;
                return None;
            }
            Err(_) => return None,
        }
        reads.calls.fetch_add(1, Ordering::Relaxed);
        reads.syscalls.fetch_add(1, Ordering::Relaxed);
        let read = u64::from(part.len);
        self.unsent += read;
        reads.bytes.fetch_add(read, Ordering::Relaxed);
        let device_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Some(JobResult::Io {
            parts: vec![Ok(part.len)],
            device_ns,
        })
    }
}

#[cfg(test)]
mod tests;
