//! Buffers for requests of the kernel, which are used again so that a busy mount does not allocate.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, PoisonError};

/// Hands out buffers of one size and keeps a bounded number of returned ones.
#[derive(Debug)]
pub(super) struct BufferPool {
    free: Mutex<Vec<Box<[u8]>>>,
    free_max: usize,
    len: usize,
}

impl BufferPool {
    pub(super) fn new(len: usize, free_max: usize) -> Arc<Self> {
        Arc::new(Self {
            free: Mutex::new(Vec::with_capacity(free_max)),
            free_max,
            len,
        })
    }

    /// A free buffer or a new one; how many are out is bounded by the outstanding requests.
    pub(super) fn take(self: &Arc<Self>) -> Buffer {
        let free = self
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        // Zeroed memory of this size comes from the kernel as untouched pages, so a buffer costs
        // what was written into it and no more.
        let bytes = free.unwrap_or_else(|| vec![0; self.len].into_boxed_slice());
        Buffer {
            bytes,
            pool: Arc::clone(self),
        }
    }

    fn put(&self, bytes: Box<[u8]>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < self.free_max {
            free.push(bytes);
        }
    }
}

/// A buffer of the pool, which goes back there when it is dropped.
pub(super) struct Buffer {
    bytes: Box<[u8]>,
    pool: Arc<BufferPool>,
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.put(std::mem::take(&mut self.bytes));
    }
}

/// The bytes of a write, in the buffer that they were read into. Owned: it can be kept, and handed
/// to another thread, for as long as they are needed.
#[derive(Default)]
pub struct Payload {
    buffer: Option<Buffer>,
    range: Range<usize>,
}

impl Payload {
    pub(super) fn new(buffer: Buffer, range: Range<usize>) -> Self {
        assert!(range.end <= buffer.len(), "payload ends behind its buffer");
        Self {
            buffer: Some(buffer),
            range,
        }
    }
}

impl Deref for Payload {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.buffer
            .as_ref()
            .map_or(&[], |buffer| &buffer[self.range.clone()])
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_payload_gives_its_buffer_back() {
        let pool = BufferPool::new(64, 1);
        let mut buffer = pool.take();
        buffer[3..6].copy_from_slice(b"abc");
        let address = buffer.as_ptr();
        let payload = Payload::new(buffer, 3..6);
        assert_eq!(&*payload, b"abc");
        let other = pool.take();
        assert_ne!(other.as_ptr(), address);
        drop(payload);
        drop(other);
        assert_eq!(
            pool.free.lock().unwrap().len(),
            1,
            "no more than the bound are kept"
        );
        assert_eq!(pool.take().as_ptr(), address);
    }

    #[test]
    fn an_empty_payload_has_no_buffer() {
        assert_eq!(Payload::default().len(), 0);
    }
}
