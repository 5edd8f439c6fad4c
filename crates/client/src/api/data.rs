//! Reads and writes. The client transfers long ones from or to a caller's own memory in parts:
//! while the caller copies one part, forwarders move others.

use super::{Answer, Client, Context, Data, Errno};
use crate::arena::Piece;
use crate::core::Operation;
use crate::driver::{CallSpec, InFlight};
use crate::payload::Payload;
use crate::wire::{Extent, Extents, Handle, Op, Outcome};
use std::collections::VecDeque;
use tidegate_net::{RawBytes, RawRoom};

/// Bytes of a part through a socket. Parts begin at multiples of it, as stripes do.
const PART: u64 = 256 << 10;
/// Bytes of a part in shared memory, where fewer steps can overlap.
const SHARED_PART: u64 = 512 << 10;
/// Shorter reads and writes are one call each.
const LEN_MIN: usize = 512 << 10;
/// Number of parts of a call that are under way at once.
const STARTED_MAX: usize = 8;

/// Memory for the bytes of a write, which the client uses again and again. Forwarders with which it
/// is shared read it in place, so nothing copies bytes again that the caller puts here. At first it
/// holds whatever was in it before. A forwarder that means ill may change it, so there are no
/// references to the bytes.
pub struct Room(Piece);

impl Room {
    /// The bytes, to be filled.
    pub fn raw(&mut self) -> RawRoom<'_> {
        self.0.raw_room()
    }
}

impl From<Room> for Payload {
    fn from(room: Room) -> Payload {
        let len = room.0.len();
        Payload::of_piece(room.0, len).expect("it has as many")
    }
}

/// A read or write that goes on while its caller does something else, like MPI's nonblocking calls.
/// If it is dropped, it goes on although nobody waits for it; its bytes no longer count as in
/// flight.
#[must_use = "whether it succeeded is known after the wait"]
pub struct Pending<'c, T> {
    in_flight: InFlight<'c>,
    end: fn(Answer) -> Result<T, Errno>,
}

impl<T> Pending<'_, T> {
    /// Waits for the result.
    pub fn wait(self) -> Result<T, Errno> {
        self.in_flight.wait().and_then(self.end)
    }
}

impl Client {
    /// Starts a read of at least one byte; different seats serve their parts in parallel. Waits
    /// only while too many bytes are in flight. Calls that are under way at once have no order.
    pub fn start_read(
        &self,
        ctx: &Context,
        handle: Handle,
        offset: u64,
        len: usize,
    ) -> Result<Pending<'_, Data>, Errno> {
        let len = len as u64;
        let op = read_of(handle, Extent { offset, len });
        let spec = CallSpec::new(op, Payload::new());
        Ok(Pending {
            in_flight: self.host.begin(ctx, spec)?,
            end: |answer| Ok(answer.data),
        })
    }

    /// Starts a write of at least one byte, otherwise like [`start_read`](Client::start_read).
    /// After an error, how much was written is unknown.
    pub fn start_write(
        &self,
        ctx: &Context,
        handle: Handle,
        offset: u64,
        bytes: impl Into<Payload>,
    ) -> Result<Pending<'_, usize>, Errno> {
        let bytes = bytes.into();
        let len = bytes.len() as u64;
        let op = write_of(handle, Extent { offset, len });
        Ok(Pending {
            in_flight: self.host.begin(ctx, CallSpec::new(op, bytes))?,
            end: written,
        })
    }

    /// Memory for a write of `len` bytes: what the client shares with forwarders, or, if it shares
    /// none, memory of its own that it uses again and again. None where
    /// [`shared_memory_bytes`](crate::Options::shared_memory_bytes) is 0 or all of it is in use:
    /// then any other bytes will do.
    pub fn room(&self, len: usize) -> Option<Room> {
        self.host.room(len).map(Room)
    }

    /// Reads; different seats serve their parts in parallel. Returns fewer than `len` bytes only at
    /// the end of the file.
    pub fn read(
        &self,
        ctx: &Context,
        handle: Handle,
        offset: u64,
        len: usize,
    ) -> Result<Data, Errno> {
        if len == 0 {
            return Ok(Data::default());
        }
        let len = len as u64;
        let op = read_of(handle, Extent { offset, len });
        let answer = self.host.call(ctx, op, Payload::new())?;
        Ok(answer.data)
    }

    /// Writes all bytes; different seats serve their parts in parallel. After an error, how much
    /// was written is unknown.
    pub fn write(
        &self,
        ctx: &Context,
        handle: Handle,
        offset: u64,
        bytes: impl Into<Payload>,
    ) -> Result<usize, Errno> {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Ok(0);
        }
        let len = bytes.len() as u64;
        let op = write_of(handle, Extent { offset, len });
        written(self.host.call(ctx, op, bytes)?)
    }
}

impl Client {
    /// Reads several extents of a file in one call (list I/O): they ascend, are disjoint, and none
    /// is empty. Returns their bytes one after another, without gaps; fewer than they hold only at
    /// the end of the file.
    pub fn read_list(
        &self,
        ctx: &Context,
        handle: Handle,
        extents: Extents,
    ) -> Result<Data, Errno> {
        let op = Op::Read { handle, extents };
        Ok(self.host.call(ctx, op, Payload::new())?.data)
    }

    /// Writes several extents of a file in one call, whose bytes lie one after another in `bytes`;
    /// otherwise like [`read_list`](Client::read_list). Returns how many bytes were written, from
    /// the first extent on.
    pub fn write_list(
        &self,
        ctx: &Context,
        handle: Handle,
        extents: Extents,
        bytes: impl Into<Payload>,
    ) -> Result<usize, Errno> {
        let op = Op::Write { handle, extents };
        written(self.host.call(ctx, op, bytes.into())?)
    }
}

/// How much a write has written.
fn written(answer: Answer) -> Result<usize, Errno> {
    match answer.outcome {
        Outcome::Written { len } => Ok(len as usize),
        _ => Err(Errno::IO),
    }
}

fn read_of(handle: Handle, extent: Extent) -> Op {
    let extents = extent.into();
    Op::Read { handle, extents }
}

fn write_of(handle: Handle, extent: Extent) -> Op {
    let extents = extent.into();
    Op::Write { handle, extents }
}

impl Client {
    /// Reads, and calls `take` with the bytes in order, in pieces, each with its distance from
    /// `offset`. Returns the number of bytes; fewer than `len` only at the end of the file.
    pub fn read_parts(
        &self,
        ctx: &Context,
        handle: Handle,
        offset: u64,
        len: usize,
        mut take: impl FnMut(usize, RawBytes<'_>),
    ) -> Result<usize, Errno> {
        let Some(operation) = self.operation(ctx, handle, offset, len) else {
            let data = self.read(ctx, handle, offset, len)?;
            return Ok(hand_out(&data, 0, len, &mut take));
        };
        let start = |part: Extent| {
            let spec = CallSpec::part(read_of(handle, part), Payload::new(), operation);
            self.host.begin(ctx, spec)
        };
        in_turn(self.part(), offset, len, start, |at, len, answer| {
            Ok(hand_out(&answer?.data, at, len, &mut take))
        })
    }

    /// Writes `len` bytes. Calls `fill` for each piece of memory in order, with the piece's
    /// distance from `offset`; `fill` puts the bytes into it. After an error, how much was written
    /// is unknown.
    pub fn write_parts(
        &self,
        ctx: &Context,
        handle: Handle,
        offset: u64,
        len: usize,
        mut fill: impl FnMut(usize, RawRoom<'_>),
    ) -> Result<usize, Errno> {
        let Some(operation) = self.operation(ctx, handle, offset, len) else {
            return self.write(ctx, handle, offset, self.filled(0, len, &mut fill));
        };
        let start = |part: Extent| {
            let bytes = self.filled(
                (part.offset - offset) as usize,
                part.len as usize,
                &mut fill,
            );
            let spec = CallSpec::part(write_of(handle, part), bytes, operation);
            self.host.begin(ctx, spec)
        };
        in_turn(self.part(), offset, len, start, |at, _, answer| {
            match answer.and_then(written) {
                // Parts before the failed one count as written.
                Err(_) if at > 0 => Ok(0),
                other => other,
            }
        })
    }

    fn operation(
        &self,
        ctx: &Context,
        handle: Handle,
        offset: u64,
        len: usize,
    ) -> Option<Operation> {
        let extent = Extent {
            offset,
            len: len as u64,
        };
        let end = offset.checked_add(extent.len);
        // A range that no file can have goes into one call, which refuses it.
        end.filter(|end| i64::try_from(*end).is_ok() && len > LEN_MIN)?;
        self.host.begin_operation(ctx, handle, extent)
    }

    fn part(&self) -> u64 {
        match self.host.shares_memory() {
            true => SHARED_PART,
            false => PART,
        }
    }

    /// Makes the bytes of a write, in memory that forwarders read in place if there is any left.
    fn filled(&self, at: usize, len: usize, fill: &mut impl FnMut(usize, RawRoom<'_>)) -> Payload {
        if let Some(mut room) = self.room(len) {
            fill(at, room.raw());
            return room.into();
        }
        let mut bytes = vec![0; len];
        fill(at, RawRoom::from(&mut bytes[..]));
        bytes.into()
    }
}

/// Starts the parts, several at once, and waits for them in order, up to the first that is short.
fn in_turn<'c>(
    part_max: u64,
    offset: u64,
    len: usize,
    mut start: impl FnMut(Extent) -> Result<InFlight<'c>, Errno>,
    mut end: impl FnMut(usize, usize, Result<Answer, Errno>) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let (mut started, mut started_len, mut done) = (VecDeque::new(), 0, 0);
    loop {
        while started.len() < STARTED_MAX && started_len < len {
            let at = offset + started_len as u64;
            let part = (part_max - at % part_max).min((len - started_len) as u64);
            let extent = Extent {
                offset: at,
                len: part,
            };
            started.push_back((part as usize, start(extent)));
            started_len += part as usize;
        }
        let Some((part, in_flight)) = started.pop_front() else {
            return Ok(done);
        };
        let answer = in_flight.and_then(InFlight::wait);
        let moved = end(done, part, answer)?;
        done += moved;
        if moved < part {
            return Ok(done);
        }
    }
}

/// Calls `take` with at most `len` bytes; returns how many.
fn hand_out(
    data: &Data,
    at: usize,
    len: usize,
    take: &mut impl FnMut(usize, RawBytes<'_>),
) -> usize {
    let mut done = 0;
    for piece in &data.pieces {
        let (piece, _) = piece.raw().split(len - done);
        take(at + done, piece);
        done += piece.len();
    }
    done
}
