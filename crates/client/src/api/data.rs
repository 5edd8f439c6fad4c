//! Calls on a file's bytes.

use super::Answer;
use super::{Client, Context, Data, Errno, OpenFile};
use crate::io::{Ask, Begun, Calm, Piece};
use crate::wire::{Extent, Handle, Op, Outcome};
use bytes::Bytes;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Room for the bytes of a write, in memory that is used again and again. Forwarders on this node
/// read them in place: bytes that are made here are not copied on their way. Holds whatever was in
/// it before.
pub struct Room(Piece);

impl Deref for Room {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_ref()
    }
}

impl DerefMut for Room {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}

impl From<Room> for Bytes {
    fn from(room: Room) -> Bytes {
        Bytes::from_owner(room.0)
    }
}

/// A read or write that goes on while its caller does something else, as MPI's nonblocking calls
/// do. Dropped, it goes on without anybody who waits; its bytes count as in flight no longer.
#[must_use = "whether it succeeded is known after the wait"]
pub struct Started<'c, T> {
    begun: Begun<'c>,
    end: fn(Answer) -> Result<T, Errno>,
}

impl<T> Started<'_, T> {
    /// Waits for the result.
    pub fn wait(self) -> Result<T, Errno> {
        self.begun.wait(&Calm::begin()).and_then(self.end)
    }
}

impl Client {
    /// Starts a read of at least one byte; the parts of different seats in parallel. Waits only
    /// where too many bytes are in flight. Calls that are under way at once have no order.
    pub fn start_read(
        &self,
        ctx: &Context,
        handle: Handle,
        offset: u64,
        len: usize,
    ) -> Result<Started<'_, Data>, Errno> {
        let len = len as u64;
        let op = read_of(handle, Extent { offset, len });
        let calm = Calm::begin();
        Ok(Started {
            begun: self
                .host
                .begin(&calm, &Arc::default(), ctx, Ask::new(op, Bytes::new()))?,
            end: |answer| Ok(answer.data),
        })
    }

    /// Starts a write of at least one byte, as [`start_read`](Client::start_read). On error, how
    /// much was written is unknown.
    pub fn start_write(
        &self,
        ctx: &Context,
        handle: Handle,
        offset: u64,
        bytes: Bytes,
    ) -> Result<Started<'_, usize>, Errno> {
        let len = bytes.len() as u64;
        let op = write_of(handle, Extent { offset, len });
        let calm = Calm::begin();
        Ok(Started {
            begun: self
                .host
                .begin(&calm, &Arc::default(), ctx, Ask::new(op, bytes))?,
            end: written,
        })
    }

    /// Room for a write of `len` bytes. None where there is no such memory, or all of it is in use:
    /// any other bytes will do.
    pub fn room(&self, len: usize) -> Option<Room> {
        self.host.room(len).map(Room)
    }

    /// Opens a file by handle. The number of the open is chosen by the client; re-opened after a
    /// forwarder changed.
    pub fn open(
        self: &Arc<Self>,
        ctx: &Context,
        handle: Handle,
        read: bool,
        write: bool,
    ) -> Result<OpenFile, Errno> {
        let open = self.host.open(ctx, handle, read, write)?;
        Ok(OpenFile {
            client: Arc::clone(self),
            handle,
            open,
        })
    }

    /// Reads; the parts of different seats in parallel.
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
        self.call(ctx, op, Bytes::new()).map(|answer| answer.data)
    }

    /// Writes all bytes; the parts of different seats in parallel. On error, how much was written
    /// is unknown.
    pub fn write(
        &self,
        ctx: &Context,
        handle: Handle,
        offset: u64,
        bytes: Bytes,
    ) -> Result<usize, Errno> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let len = bytes.len() as u64;
        let op = write_of(handle, Extent { offset, len });
        written(self.call(ctx, op, bytes)?)
    }

    /// Appends in one piece (at most `payload_max`); returns where, and how much: a back end that
    /// has not room for all may have taken the first bytes.
    pub fn append(&self, ctx: &Context, handle: Handle, bytes: Bytes) -> Result<Extent, Errno> {
        let asked = bytes.len() as u64;
        if asked == 0 {
            let offset = self.getattr(ctx, handle)?.size;
            return Ok(Extent { offset, len: 0 });
        }
        match self.call(ctx, Op::Append { handle }, bytes)?.outcome {
            Outcome::Appended { offset, len } if len <= asked => Ok(Extent { offset, len }),
            _ => Err(Errno::IO),
        }
    }

    /// Returns when the bytes written so far are stable on the back end.
    pub fn fsync(&self, ctx: &Context, handle: Handle, data_only: bool) -> Result<(), Errno> {
        self.call_done(ctx, Op::Fsync { handle, data_only })
    }

    /// fallocate(2).
    pub fn fallocate(
        &self,
        ctx: &Context,
        handle: Handle,
        mode: u32,
        offset: u64,
        len: u64,
    ) -> Result<(), Errno> {
        self.call_done(
            ctx,
            Op::Fallocate {
                handle,
                mode,
                offset,
                len,
            },
        )
    }

    /// copy_file_range(2); returns how many bytes were copied.
    pub fn copy_range(
        &self,
        ctx: &Context,
        from: (Handle, u64),
        to: (Handle, u64),
        len: u64,
    ) -> Result<u64, Errno> {
        let (source, source_offset) = from;
        let (handle, offset) = to;
        let op = Op::CopyRange {
            source,
            source_offset,
            handle,
            offset,
            len,
        };
        match self.call(ctx, op, Bytes::new())?.outcome {
            Outcome::Written { len } => Ok(len),
            _ => Err(Errno::IO),
        }
    }

    /// Next data or hole: whence is SEEK_DATA 3 or SEEK_HOLE 4.
    pub fn seek(
        &self,
        ctx: &Context,
        handle: Handle,
        offset: u64,
        whence: u32,
    ) -> Result<u64, Errno> {
        match self
            .call(
                ctx,
                Op::Seek {
                    handle,
                    offset,
                    whence,
                },
                Bytes::new(),
            )?
            .outcome
        {
            Outcome::Offset(offset) => Ok(offset),
            _ => Err(Errno::IO),
        }
    }
}

/// How much a write has written.
pub(super) fn written(answer: Answer) -> Result<usize, Errno> {
    match answer.outcome {
        Outcome::Written { len } => Ok(len as usize),
        _ => Err(Errno::IO),
    }
}

pub(super) fn read_of(handle: Handle, extent: Extent) -> Op {
    let extents = extent.into();
    Op::Read { handle, extents }
}

pub(super) fn write_of(handle: Handle, extent: Extent) -> Op {
    let extents = extent.into();
    Op::Write { handle, extents }
}
