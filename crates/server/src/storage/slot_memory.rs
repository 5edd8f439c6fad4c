//! The memory of one payload buffer: zeroed bytes at an address that direct I/O accepts on every
//! device.

use super::pages::Pages;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use tidegate_fabric::{Domain, Registration};

/// The alignment of a payload buffer, in bytes: one page, which is the most that any device asks
/// for.
pub const ALIGN: usize = 4096;

/// Bytes of a fixed length that begin at a multiple of [`ALIGN`] and never move.
pub struct SlotBytes {
    start: NonNull<u8>,
    len: usize,
    /// The index of these bytes in the ring's table of registered buffers, if they are registered.
    pub(super) registered: Option<u16>,
    /// The pages that are sent instead of these bytes, if there are any.
    pub(crate) pages: Option<Pages>,
    /// The registrations of these bytes with domains of libfabric. Each is made when it is first
    /// needed, and lives as long as the bytes.
    fabric: Vec<Arc<Registration>>,
}

// SAFETY: the bytes belong to this value alone, as those of a Vec do.
unsafe impl Send for SlotBytes {}
// SAFETY: as above; a shared reference only reads.
unsafe impl Sync for SlotBytes {}

impl SlotBytes {
    /// `len` zeros; at least one.
    pub fn zeroed(len: usize) -> SlotBytes {
        let layout = layout(len);
        // SAFETY: the layout has at least one byte.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout);
        };
        SlotBytes {
            start,
            len,
            registered: None,
            pages: None,
            fabric: Vec::new(),
        }
    }

    /// The registration of the bytes with a domain, which is made if there is none.
    pub fn registration(
        &mut self,
        domain: &Arc<Domain>,
    ) -> Result<Option<Arc<Registration>>, tidegate_fabric::Error> {
        if let Some(found) = self.fabric.iter().find(|one| one.is_of(domain)) {
            return Ok(Some(Arc::clone(found)));
        }
        // SAFETY: the bytes never move, and go after their registrations.
        let made = unsafe { domain.register(self.start(), self.len)? };
        let made = made.map(Arc::new);
        self.fabric.extend(made.clone());
        Ok(made)
    }

    /// The address of the first byte, for the kernel, which may write there while this process does
    /// not access the bytes.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

fn layout(len: usize) -> Layout {
    assert!(len > 0, "a slot has bytes");
    Layout::from_size_align(len, ALIGN).expect("a slot is far smaller than the address space")
}

impl Deref for SlotBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: so many bytes were allocated there, and initialised with zeros.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for SlotBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the exclusive reference is handed on.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for SlotBytes {
    fn drop(&mut self) {
        self.fabric.clear();
        // SAFETY: allocated by `zeroed` with the same layout, and not used any more.
        unsafe { dealloc(self.start.as_ptr(), layout(self.len)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_aligned_and_zeroed() {
        for len in [1, 4096, 5000, 1 << 20] {
            let mut bytes = SlotBytes::zeroed(len);
            assert_eq!(bytes.start() as usize % ALIGN, 0);
            assert!(bytes.len() == len && bytes.iter().all(|&byte| byte == 0));
            bytes.fill(9);
            assert_eq!(bytes[len - 1], 9);
        }
    }
}
