//! Reads and writes from and to a caller's own memory: long ones in parts, so that the caller
//! copies one while forwarders move others.

use super::data::{read_of, write_of, written};
use super::{Answer, Client, Context, Data, Errno};
use crate::core::Operation;
use crate::io::{Ask, Begun, Calm};
use crate::wire::{Extent, Handle};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of a part through a socket. Borders are multiples of it, as those of stripes are.
const PART: u64 = 256 << 10;
/// Bytes of a part in shared memory, where there is less to do at once.
const SHARED_PART: u64 = 512 << 10;
/// Shorter reads and writes are one call each.
const LEN_MIN: usize = 512 << 10;
/// Parts of a call that are on their way at once.
const STARTED_MAX: usize = 8;

impl Client {
    /// Reads; `take` is given the bytes in order, in pieces, each with where it begins behind
    /// `offset`. Returns how many were read; less than `len` only at the end of the file.
    pub fn read_parts(
        &self,
        ctx: &Context,
        handle: Handle,
        offset: u64,
        len: usize,
        mut take: impl FnMut(usize, &[u8]),
    ) -> Result<usize, Errno> {
        let Some(operation) = self.operation(ctx, handle, offset, len) else {
            let data = self.read(ctx, handle, offset, len)?;
            return Ok(hand_out(&data, 0, len, &mut take));
        };
        let start = |part: Extent| {
            let ask = Ask::part(read_of(handle, part), Bytes::new(), operation);
            self.begin(ctx, ask)
        };
        in_turn(self.part(), offset, len, start, |at, len, answer| {
            Ok(hand_out(&answer?.data, at, len, &mut take))
        })
    }

    /// Writes `len` bytes, which `fill` puts into memory that it is given, in order, each piece
    /// with where it begins behind `offset`. On error, how much was written is unknown.
    pub fn write_parts(
        &self,
        ctx: &Context,
        handle: Handle,
        offset: u64,
        len: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
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
            self.begin(ctx, Ask::part(write_of(handle, part), bytes, operation))
        };
        in_turn(self.part(), offset, len, start, |at, _, answer| {
            match answer.and_then(written) {
                // What follows a failure does not count, what is before it does.
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
        // What no file has is one call's to refuse.
        end.filter(|end| i64::try_from(*end).is_ok() && len > LEN_MIN)?;
        self.host.operation(ctx, handle, extent)
    }

    fn part(&self) -> u64 {
        match self.host.shares_memory() {
            true => SHARED_PART,
            false => PART,
        }
    }

    fn begin(&self, ctx: &Context, ask: Ask) -> Result<Begun<'_>, Errno> {
        self.host.begin(&Calm::begin(), &Arc::default(), ctx, ask)
    }

    /// Bytes for a write, where forwarders read them in place if there is room.
    fn filled(&self, at: usize, len: usize, fill: &mut impl FnMut(usize, &mut [u8])) -> Bytes {
        if let Some(mut room) = self.room(len) {
            fill(at, &mut room);
            return room.into();
        }
        let mut bytes = vec![0; len];
        fill(at, &mut bytes);
        bytes.into()
    }
}

/// Starts the parts, some at once, and ends them in order, up to the first that is short.
fn in_turn<'c>(
    part_max: u64,
    offset: u64,
    len: usize,
    mut start: impl FnMut(Extent) -> Result<Begun<'c>, Errno>,
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
        let Some((part, begun)) = started.pop_front() else {
            return Ok(done);
        };
        let answer = begun.and_then(|begun| begun.wait(&Calm::begin()));
        let moved = end(done, part, answer)?;
        done += moved;
        if moved < part {
            return Ok(done);
        }
    }
}

/// Gives at most `len` bytes away; returns how many.
fn hand_out(data: &Data, at: usize, len: usize, take: &mut impl FnMut(usize, &[u8])) -> usize {
    let mut done = 0;
    for piece in &data.pieces {
        let piece = &piece[..piece.len().min(len - done)];
        take(at + done, piece);
        done += piece.len();
    }
    done
}
