//! Bytes as an address and a length: all that this process says of memory that a peer can change
//! while it is looked at.
//!
//! A reference to such memory would promise the compiler what a peer can break. So there is none.
//! Bytes there are moved as wholes: by this file, which copies them to or from memory that is this
//! process's own, or by the kernel. What has to be judged is copied first, and the copy is judged.

use std::io::IoSlice;
use std::marker::PhantomData;
use std::mem::{align_of, size_of};
use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};

/// Bytes to be read, which stay where they are for `'a`. Laid out as the kernel's lists of buffers
/// are (`struct iovec`).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RawBytes<'a> {
    start: *const u8,
    len: usize,
    lives: PhantomData<&'a ()>,
}

const _: () = assert!(size_of::<RawBytes<'_>>() == size_of::<IoSlice<'_>>());
const _: () = assert!(align_of::<RawBytes<'_>>() == align_of::<IoSlice<'_>>());

// SAFETY: it only reads, and what it says of the bytes holds for every thread.
unsafe impl Send for RawBytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for RawBytes<'_> {}

impl<'a> RawBytes<'a> {
    /// The `len` bytes at `start`.
    ///
    /// # Safety
    ///
    /// They are mapped and readable for `'a`. This process does not write to them in `'a`; others
    /// may, at any time.
    pub unsafe fn new(start: *const u8, len: usize) -> RawBytes<'a> {
        RawBytes {
            start,
            len,
            lives: PhantomData,
        }
    }

    /// The number of bytes.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The first bytes and the others, of which the first has at most `len`.
    pub fn split(self, len: usize) -> (RawBytes<'a>, RawBytes<'a>) {
        let len = len.min(self.len);
        let first = RawBytes { len, ..self };
        let rest = RawBytes {
            start: self.start.wrapping_add(len),
            len: self.len - len,
            lives: PhantomData,
        };
        (first, rest)
    }

    /// Copies the bytes to the front of `into`, as many as it holds; returns how many.
    pub fn copy_to(self, into: &mut [u8]) -> usize {
        let (first, _) = self.split(into.len());
        // SAFETY: there is room for so many.
        unsafe { first.copy_to_address(into.as_mut_ptr()) };
        first.len
    }

    /// Copies all bytes to the address.
    ///
    /// # Safety
    ///
    /// There is room for so many, which are not among those copied.
    pub unsafe fn copy_to_address(self, to: *mut u8) {
        // SAFETY: these bytes can be read, and the caller has room for them elsewhere. What a peer
        // writes meanwhile makes the copy neither the old bytes nor the new, and no more than that.
        unsafe { ptr::copy_nonoverlapping(self.start, to, self.len) };
        // Who looks at the copy looks at the copy: the compiler does not go back to the bytes.
        compiler_fence(Ordering::SeqCst);
    }

    /// A copy of the bytes.
    pub fn to_vec(self) -> Vec<u8> {
        let mut copy = Vec::with_capacity(self.len);
        // SAFETY: there is room for so many in new memory, and then they are there.
        unsafe {
            self.copy_to_address(copy.as_mut_ptr());
            copy.set_len(self.len);
        }
        copy
    }

    /// The same pieces, of which no reference is asked any more.
    pub fn of_io_slices<'s>(pieces: &'s [IoSlice<'a>]) -> &'s [RawBytes<'a>] {
        // SAFETY: std promises that an IoSlice is laid out as a `struct iovec`, and so is this.
        unsafe { &*(ptr::from_ref(pieces) as *const [RawBytes<'a>]) }
    }

    /// The pieces, as functions of the system take them.
    ///
    /// # Safety
    ///
    /// They go to the kernel, and nothing in this process looks into them.
    pub unsafe fn io_slices<'s>(pieces: &'s [RawBytes<'a>]) -> &'s [IoSlice<'a>] {
        // SAFETY: as above.
        unsafe { &*(ptr::from_ref(pieces) as *const [IoSlice<'a>]) }
    }
}

impl<'a> From<&'a [u8]> for RawBytes<'a> {
    fn from(bytes: &'a [u8]) -> RawBytes<'a> {
        // SAFETY: the reference says more than that.
        unsafe { RawBytes::new(bytes.as_ptr(), bytes.len()) }
    }
}

impl Default for RawBytes<'_> {
    fn default() -> Self {
        RawBytes::from(&[][..])
    }
}

/// Bytes to be filled, which are this value's alone in this process for `'a`.
pub struct RawRoom<'a> {
    start: *mut u8,
    len: usize,
    lives: PhantomData<&'a mut ()>,
}

impl<'a> RawRoom<'a> {
    /// The `len` bytes at `start`.
    ///
    /// # Safety
    ///
    /// They are mapped and writable for `'a`. Nothing else in this process accesses them in `'a`;
    /// others may, at any time.
    pub unsafe fn new(start: *mut u8, len: usize) -> RawRoom<'a> {
        RawRoom {
            start,
            len,
            lives: PhantomData,
        }
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies these bytes to the places from `at` on.
    ///
    /// # Panics
    ///
    /// Panics if there are more of them than places.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        self.put_raw(at, bytes.into());
    }

    /// Copies these bytes to the places from `at` on.
    ///
    /// # Panics
    ///
    /// Panics if there are more of them than places.
    pub fn put_raw(&mut self, at: usize, bytes: RawBytes<'_>) {
        // SAFETY: so many bytes are there, of which this process writes to none: they are none of
        // this room's.
        unsafe { self.put_from_address(at, bytes.start, bytes.len) };
    }

    /// Copies the `len` bytes at the address to the places from `at` on.
    ///
    /// # Safety
    ///
    /// So many bytes are there, apart from this room.
    ///
    /// # Panics
    ///
    /// Panics if there are more of them than places.
    pub unsafe fn put_from_address(&mut self, at: usize, from: *const u8, len: usize) {
        let end = at.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "there is no room");
        // SAFETY: the places are inside, and the caller has the bytes elsewhere.
        unsafe { ptr::copy_nonoverlapping(from, self.start.add(at), len) };
    }
}

impl<'a> From<&'a mut [u8]> for RawRoom<'a> {
    fn from(bytes: &'a mut [u8]) -> RawRoom<'a> {
        // SAFETY: the reference says more than that.
        unsafe { RawRoom::new(bytes.as_mut_ptr(), bytes.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_copied_where_they_belong() {
        let from: Vec<u8> = (0..100).collect();
        let (first, rest) = RawBytes::from(&from[..]).split(30);
        assert_eq!((first.len(), rest.len()), (30, 70));
        assert_eq!(first.to_vec(), from[..30]);
        let mut short = [0xff; 20];
        assert_eq!(rest.copy_to(&mut short), 20);
        assert_eq!(short, from[30..50]);
        let mut long = [0xff; 80];
        assert_eq!(rest.copy_to(&mut long), 70);
        assert_eq!(long[..70], from[30..]);
        assert_eq!(long[70..], [0xff; 10]);
        let (all, none) = rest.split(1000);
        assert_eq!((all.len(), none.is_empty()), (70, true));
        assert_eq!(RawBytes::default().to_vec(), []);
    }

    #[test]
    fn places_are_filled_from_where_is_said() {
        let mut bytes = [0; 8];
        let mut room = RawRoom::from(&mut bytes[..]);
        assert_eq!(room.len(), 8);
        room.put(0, b"ab");
        room.put(6, b"gh");
        room.put(8, b"");
        let from = *b"cdef";
        // SAFETY: so many bytes are there.
        unsafe { room.put_from_address(2, from.as_ptr(), from.len()) };
        assert_eq!(&bytes, b"abcdefgh");
    }

    #[test]
    #[should_panic(expected = "there is no room")]
    fn more_than_there_is_room_for_is_not_put() {
        RawRoom::from(&mut [0; 8][..]).put(5, &[1; 4]);
    }

    #[test]
    fn the_kernel_takes_them_as_they_are() {
        let pieces = [&b"abc"[..], b"", b"defg"].map(RawBytes::from);
        // SAFETY: the bytes are the test's own, who may look into them.
        let slices = unsafe { RawBytes::io_slices(&pieces) };
        let seen: Vec<&[u8]> = slices.iter().map(|slice| &slice[..]).collect();
        assert_eq!(seen, [&b"abc"[..], b"", b"defg"]);
        let again = RawBytes::of_io_slices(slices).iter();
        assert_eq!(again.map(|it| it.to_vec()).collect::<Vec<_>>(), seen);
    }
}
