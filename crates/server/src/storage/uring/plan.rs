//! Divides a data job into pieces for the ring. Each piece is one direct call.

use super::ring::Ring;
use crate::storage::cache_gate::{Kind, Pass};
use crate::storage::posix::Direct;
use crate::storage::slots::SlotBuffer;
use crate::storage::{PosixFiles, Slots};
use io_uring::squeue::Entry;
use io_uring::{opcode, types};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::{Arc, TryLockError};
use tidegate_forward::{IoPart, SlotId};
use tidegate_sched::Direction;
use tidegate_wire::Handle;

/// Most buffers of one call (the kernel's UIO_MAXIOV).
const BUFFERS_MAX: usize = 1024;

/// A larger segment gets a call of its own if its memory is registered: that saves more than a call
/// costs.
const ALONE_MIN: usize = 128 << 10;

/// The most bytes of one call: the kernel's own limit, rounded down.
const PIECE_MAX: usize = 1 << 30;

/// All pieces of a job, and what must stay valid until they have completed.
pub(super) struct Plan {
    pub(super) pieces: Vec<Piece>,
    pub(super) buffers: Vec<SlotBuffer>,
    pub(super) direct: Arc<Direct>,
    pub(super) pass: Option<Pass>,
}

/// One call on adjacent parts of the file.
pub(super) struct Piece {
    /// The parts of the job that the piece covers.
    pub(super) parts: Range<usize>,
    offset: u64,
    /// The number of bytes.
    pub(super) len: usize,
    segments: Vec<libc::iovec>,
    /// The index of the only segment's memory in the table of registered buffers.
    registered: Option<u16>,
}

// SAFETY: the pointers lead into buffers that the task holds, and only the kernel follows them.
unsafe impl Send for Piece {}

impl Plan {
    /// The plan of a job. None if the ring cannot execute the whole job at once without waiting.
    pub(super) fn make(
        files: &PosixFiles,
        slots: &Slots,
        ring: &mut Ring,
        handle: Handle,
        direction: Direction,
        parts: &[IoPart],
    ) -> Option<Plan> {
        let (direct, gate) = files.direct_at_hand(handle, direction)?;
        let mut pieces: Vec<Piece> = Vec::new();
        let mut buffers: Vec<(SlotId, SlotBuffer)> = Vec::new();
        for (number, part) in parts.iter().enumerate() {
            if buffers.last().is_none_or(|(slot, _)| *slot != part.slot) {
                buffers.push((part.slot, slots.buffer(part.slot)?));
            }
            let (_, buffer) = buffers.last()?;
            // Another job may use the same buffer; the pool can wait for it.
            let mut bytes = match buffer.try_lock() {
                Ok(bytes) => bytes,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return None,
            };
            let registered = ring.registered.index(&ring.uring, buffer, &mut bytes);
            let piece = bytes.raw();
            let piece = piece.part(part.slot_offset as usize, part.len as usize)?;
            if piece.len() == 0 || !direct.takes(part.offset, piece) {
                return None;
            }
            let segment = piece.iovec();
            match pieces.last_mut() {
                Some(piece) if piece.takes(part.offset, &segment, registered) => {
                    piece.add(number, segment);
                }
                _ => pieces.push(Piece {
                    parts: number..number + 1,
                    offset: part.offset,
                    len: segment.iov_len,
                    segments: vec![segment],
                    registered,
                }),
            }
        }
        let pass = match direction {
            Direction::Read => None,
            Direction::Write => Some(gate.try_enter(Kind::DirectWrite)?),
        };
        Some(Plan {
            pieces,
            buffers: buffers.into_iter().map(|(_, buffer)| buffer).collect(),
            direct,
            pass,
        })
    }
}

impl Piece {
    /// Whether a segment can be part of the same call.
    fn takes(&self, offset: u64, segment: &libc::iovec, registered: Option<u16>) -> bool {
        let is_adjacent = self.offset.checked_add(self.len as u64) == Some(offset);
        let alone = |len, registered: Option<u16>| len >= ALONE_MIN && registered.is_some();
        is_adjacent
            && self.segments.len() < BUFFERS_MAX
            && self.len + segment.iov_len <= PIECE_MAX
            && !alone(self.len, self.registered)
            && !alone(segment.iov_len, registered)
    }

    fn add(&mut self, part: usize, segment: libc::iovec) {
        self.parts.end = part + 1;
        self.len += segment.iov_len;
        self.segments.push(segment);
        self.registered = None;
    }

    /// The call, as an entry of the ring.
    pub(super) fn entry(&self, direct: &Direct, direction: Direction) -> Entry {
        let fd = types::Fd(direct.fd.as_raw_fd());
        let (start, count) = (self.segments[0].iov_base.cast::<u8>(), self.segments.len());
        let (list, len) = (self.segments.as_ptr(), self.len as u32);
        let offset = self.offset;
        match (direction, self.registered) {
            (Direction::Read, Some(index)) => opcode::ReadFixed::new(fd, start, len, index)
                .offset(offset)
                .build(),
            (Direction::Write, Some(index)) => opcode::WriteFixed::new(fd, start, len, index)
                .offset(offset)
                .build(),
            (Direction::Read, None) => opcode::Readv::new(fd, list, count as u32)
                .offset(offset)
                .build(),
            (Direction::Write, None) => opcode::Writev::new(fd, list, count as u32)
                .offset(offset)
                .build(),
        }
    }
}
