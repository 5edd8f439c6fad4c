//! Gathers small consecutive writes of one open file and sends them as one.
//!
//! Off unless [`Options::coalesce_bytes`](crate::Options::coalesce_bytes) says otherwise. The
//! client sends the gathered writes before it does anything else with the open file, and when the
//! file is closed. Nobody else sees them before. The call that sends them reports the error.

use crate::api::{Client, Context, Errno};
use crate::payload::Payload;
use crate::wire::Handle;
use bytes::BytesMut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_net::RawBytes;

/// The gathered writes of one open file.
pub(super) struct Coalescer {
    client: Arc<Client>,
    handle: Handle,
    bytes_max: usize,
    gathered: Mutex<Gathered>,
}

/// Bytes that lie together in the file.
#[derive(Default)]
struct Gathered {
    offset: u64,
    bytes: BytesMut,
    /// On whose behalf; a call of another sends them first.
    context: Context,
}

impl Gathered {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    /// Gathers a write if it is adjacent to the gathered ones and fits; false if not.
    fn takes(&mut self, offset: u64, bytes: RawBytes<'_>, room: usize) -> bool {
        let begin = match offset.checked_sub(self.offset) {
            Some(begin) if offset <= self.end() => begin as usize,
            _ => return false,
        };
        let end = begin + bytes.len();
        if end > room {
            return false;
        }
        if end > self.bytes.len() {
            self.bytes.resize(end, 0);
        }
        bytes.copy_to(&mut self.bytes[begin..]);
        true
    }
}

impl Coalescer {
    pub(super) fn new(client: &Arc<Client>, handle: Handle, bytes_max: usize) -> Coalescer {
        Coalescer {
            client: Arc::clone(client),
            handle,
            bytes_max,
            gathered: Mutex::default(),
        }
    }

    /// Writes now, or gathers the write for later.
    pub(super) fn write(&self, ctx: &Context, offset: u64, bytes: Payload) -> Result<usize, Errno> {
        let mut gathered = self.gathered();
        let whose = (gathered.context.app, &gathered.context.caller);
        if !gathered.bytes.is_empty() && whose != (ctx.app, &ctx.caller) {
            self.send(&mut gathered, ctx)?;
        }
        if !gathered.bytes.is_empty() && gathered.takes(offset, bytes.raw(), self.bytes_max) {
            return Ok(bytes.len());
        }
        self.send(&mut gathered, ctx)?;
        if bytes.len() >= self.bytes_max || offset.checked_add(bytes.len() as u64).is_none() {
            return self.client.write(ctx, self.handle, offset, bytes);
        }
        gathered.offset = offset;
        gathered.bytes.resize(bytes.len(), 0);
        bytes.raw().copy_to(&mut gathered.bytes);
        gathered.context = Context {
            cancel: None,
            ..ctx.clone()
        };
        Ok(bytes.len())
    }

    /// Sends the gathered writes. After an error they are lost, as pages are that the kernel could
    /// not write back.
    pub(super) fn flush(&self, ctx: &Context) -> Result<(), Errno> {
        self.send(&mut self.gathered(), ctx)
    }

    fn send(&self, gathered: &mut Gathered, ctx: &Context) -> Result<(), Errno> {
        if gathered.bytes.is_empty() {
            return Ok(());
        }
        let bytes = std::mem::take(&mut gathered.bytes).freeze();
        let context = Context {
            cancel: ctx.cancel.clone(),
            timeout: ctx.timeout,
            ..std::mem::take(&mut gathered.context)
        };
        let len = bytes.len();
        let written = self
            .client
            .write(&context, self.handle, gathered.offset, bytes)?;
        match written < len {
            true => Err(Errno::IO),
            false => Ok(()),
        }
    }

    fn gathered(&self) -> MutexGuard<'_, Gathered> {
        // Bytes that a panic has left half-gathered were promised to nobody.
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Coalescer {
    fn drop(&mut self) {
        if let Err(errno) = self.flush(&Context::default()) {
            let inode = self.handle.inode;
            tracing::warn!(inode, %errno, "bytes that were written before a close are lost");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_touches_is_taken_as_far_as_it_fits() {
        let mut gathered = Gathered {
            offset: 100,
            bytes: BytesMut::from(&b"abc"[..]),
            ..Gathered::default()
        };
        let mut takes = |offset, bytes: &[u8]| gathered.takes(offset, bytes.into(), 10);
        assert!(!takes(99, b"x"), "before it");
        assert!(!takes(104, b"x"), "a gap");
        assert!(takes(103, b"de"));
        assert!(takes(101, b"BCDEF"), "over it and on");
        assert!(!takes(106, b"01234"), "more than there is room for");
        assert!(takes(106, b"0123"));
        assert!(!takes(u64::MAX, b"x"));
        assert_eq!(&gathered.bytes[..], b"aBCDEF0123");
    }
}
