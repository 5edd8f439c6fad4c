//! The buffers of a link's messages: pieces of one length in one registered block.

use crate::domain::{Domain, Error, Registration};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

/// Blocks begin at pages.
const ALIGN: usize = 4096;

/// See the head of the file. Whose a piece is, ours or the endpoint's, its user knows.
pub(crate) struct Pieces {
    start: NonNull<u8>,
    len: usize,
    count: usize,
    /// Dropped before the memory is.
    registration: Option<Registration>,
}

// SAFETY: the block is this value's alone.
unsafe impl Send for Pieces {}

impl Pieces {
    /// So many pieces of so many bytes.
    pub(crate) fn new(domain: &Arc<Domain>, count: usize, len: usize) -> Result<Pieces, Error> {
        let layout = layout(count, len);
        // SAFETY: it has at least one byte.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout);
        };
        let mut pieces = Pieces {
            start,
            len,
            count,
            registration: None,
        };
        // SAFETY: the block does not move, and is freed after its registration.
        pieces.registration = unsafe { domain.register(start.as_ptr(), layout.size())? };
        Ok(pieces)
    }

    /// Where a piece begins.
    pub(crate) fn at(&self, number: usize) -> *mut u8 {
        assert!(number < self.count, "the piece is there");
        self.start.as_ptr().wrapping_add(number * self.len)
    }

    /// The bytes of a piece that is ours.
    ///
    /// # Safety
    /// No operation is under way with that piece.
    pub(crate) unsafe fn bytes(&mut self, number: usize) -> &mut [u8] {
        // SAFETY: the piece lies in the block, and the caller says that nobody else uses it.
        unsafe { std::slice::from_raw_parts_mut(self.at(number), self.len) }
    }

    pub(crate) fn registration(&self) -> Option<&Registration> {
        self.registration.as_ref()
    }
}

fn layout(count: usize, len: usize) -> Layout {
    assert!(count * len > 0, "there are pieces, and bytes in them");
    Layout::from_size_align(count * len, ALIGN).expect("far smaller than the address space")
}

impl Drop for Pieces {
    fn drop(&mut self) {
        drop(self.registration.take());
        // SAFETY: allocated so by `new`.
        unsafe { dealloc(self.start.as_ptr(), layout(self.count, self.len)) };
    }
}
