//! Open files, calls on their bytes other than reads and writes, and advisory locks on them.

use super::{Client, Context, Errno};
use crate::payload::Payload;
use crate::wire::{Attr, Extent, Handle, Lock, LockFamily, Op, Outcome};
use std::sync::Arc;
use std::time::Duration;

/// An open file. It keeps the file alive after its last name is gone. Dropping it closes the file
/// in the background.
pub struct OpenFile {
    client: Arc<Client>,
    handle: Handle,
    open: u64,
    attr: Attr,
}

impl OpenFile {
    /// The file.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// The client that opened it.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// The client's number of this open file.
    pub fn number(&self) -> u64 {
        self.open
    }

    /// The file's attributes when it was opened.
    pub fn attr(&self) -> &Attr {
        &self.attr
    }

    /// Waits until the bytes of the file written so far, by whichever open file of this client, are
    /// stable on the back end. EIO, ENOSPC or EDQUOT if some of them were lost, once for each open
    /// file.
    pub fn fsync(&self, ctx: &Context, data_only: bool) -> Result<(), Errno> {
        let ctx = Context {
            open: Some(self.open),
            ..ctx.clone()
        };
        self.client.fsync(&ctx, self.handle, data_only)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.client.host.close(self.handle, self.open);
    }
}

impl Client {
    /// Opens a file by handle. The client opens it again by itself when another forwarder takes
    /// over.
    pub fn open(
        self: &Arc<Self>,
        ctx: &Context,
        handle: Handle,
        read: bool,
        write: bool,
    ) -> Result<OpenFile, Errno> {
        let (open, attr) = self.host.open(ctx, handle, read, write)?;
        Ok(OpenFile {
            client: Arc::clone(self),
            handle,
            open,
            attr,
        })
    }

    /// Appends in one piece, at most [`Client::payload_max`] bytes; returns where, and how many
    /// bytes: a back end without space for all may have taken the first of them.
    pub fn append(
        &self,
        ctx: &Context,
        handle: Handle,
        bytes: impl Into<Payload>,
    ) -> Result<Extent, Errno> {
        let bytes = bytes.into();
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

    /// Waits until the bytes of the file written so far are stable on the back end. EIO, ENOSPC or
    /// EDQUOT if some of them were lost; [`OpenFile::fsync`] tells each open file.
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
        match self.call(ctx, op, Payload::new())?.outcome {
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
        let op = Op::Seek {
            handle,
            offset,
            whence,
        };
        match self.call(ctx, op, Payload::new())?.outcome {
            Outcome::Offset(offset) => Ok(offset),
            _ => Err(Errno::IO),
        }
    }
}

/// Advisory locks.
impl Client {
    /// Sets or releases a lock. With `wait` the call blocks until a forwarder grants the lock or
    /// the caller cancels (EINTR); it has no timeout. The client remembers the locks it holds, and
    /// reclaims them after a seat has changed hands.
    pub fn set_lock(
        &self,
        ctx: &Context,
        handle: Handle,
        lock: Lock,
        wait: bool,
    ) -> Result<(), Errno> {
        let op = Op::SetLock {
            handle,
            lock,
            wait,
            reclaim: false,
        };
        if !wait {
            return self.call_done(ctx, op);
        }
        let timeout = Some(Duration::ZERO);
        let ctx = ctx.clone();
        self.call_done(&Context { timeout, ..ctx }, op)
    }

    /// A lock that conflicts with `lock`, if there is any.
    pub fn test_lock(
        &self,
        ctx: &Context,
        handle: Handle,
        lock: Lock,
    ) -> Result<Option<Lock>, Errno> {
        let op = Op::TestLock { handle, lock };
        match self.call(ctx, op, Payload::new())?.outcome {
            Outcome::Lock(lock) => Ok(lock),
            _ => Err(Errno::IO),
        }
    }

    /// Releases all locks of an owner, in the background: never waits for a forwarder.
    pub fn drop_locks(&self, handle: Handle, family: LockFamily, owner: u64) {
        self.host.drop_locks(handle, family, owner);
    }
}
