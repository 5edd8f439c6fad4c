//! Memory in which forwarders read and write payload themselves.
//!
//! It is one memfd. The client offers it to each forwarder that it reaches by a Unix socket, and
//! registers it with each connection through libfabric. Payload lies in a piece of it from before
//! its request is sent until after the reply has arrived, and a frame says where. The client never
//! uses a piece again whose request got no reply: its forwarder may still work on it.

use bytes::Bytes;
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeSet;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Smallest piece in bytes; all others are multiples of it.
const PIECE_MIN: usize = 4096;
/// Number of sizes of pieces, which are powers of two.
const SIZES: usize = 13;

/// See the head of the file.
pub(crate) struct Arena {
    fd: OwnedFd,
    base: NonNull<u8>,
    len: usize,
    free: Mutex<Free>,
}

/// The memory that is not in use.
#[derive(Default)]
struct Free {
    /// Pieces by size, the last freed last.
    pieces: [Vec<usize>; SIZES],
    /// Where the part begins that no piece was made of yet.
    rest: usize,
    /// Places in pieces that must not be used again.
    retired: BTreeSet<usize>,
}

// SAFETY: it is an address range; who may use which part of it is said by the pieces.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

/// A part of the arena, which belongs to its owner alone until it is dropped.
pub(crate) struct Piece {
    arena: Arc<Arena>,
    at: usize,
    /// Bytes of use.
    len: usize,
    size: usize,
}

impl Arena {
    /// An arena of this size. The system allots its pages when they are first used.
    pub(crate) fn new(bytes: u64, place: Option<fn(OwnedFd) -> OwnedFd>) -> io::Result<Arc<Arena>> {
        let len = usize::try_from(bytes).map_err(io::Error::other)? / PIECE_MIN * PIECE_MIN;
        let limit = getrlimit(Resource::Fsize).current;
        if limit.is_some_and(|limit| limit < bytes) {
            // The kernel counts this memory as a file, and would kill the program.
            return Err(io::Error::other("there is a limit on the size of files"));
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create(c"tidegate", flags)?;
        let fd = match place {
            Some(place) => place(fd),
            None => fd,
        };
        ftruncate(&fd, len as u64)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&fd, seals)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &fd, 0)? };
        let base = NonNull::new(base.cast::<u8>());
        let base = base.ok_or_else(|| io::Error::other("mapped nowhere"))?;
        // SAFETY: only what is left out of a core dump changes. Where that is not known, it is not.
        let _ = unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxDontDump) };
        let free = Mutex::default();
        Ok(Arc::new(Arena {
            fd,
            base,
            len,
            free,
        }))
    }

    /// The arena's descriptor, which forwarders receive.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// The arena's first byte in this process.
    pub(crate) fn start(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.len as u64
    }

    /// A piece for `len` bytes, which holds whatever was in it before; None if no such piece is
    /// free.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Option<Piece> {
        let size = len.max(PIECE_MIN).checked_next_power_of_two()?;
        let class = class_of(size);
        let mut free = self.free();
        let at = match free.pieces.get_mut(class)?.pop() {
            Some(at) => at,
            None if self.len - free.rest >= size => {
                free.rest += size;
                free.rest - size
            }
            None => return None,
        };
        Some(Piece {
            arena: Arc::clone(self),
            at,
            len,
            size,
        })
    }

    /// Where in the arena the bytes lie, if they do.
    pub(crate) fn place_of(&self, bytes: &[u8]) -> Option<u64> {
        let base = self.base.as_ptr() as usize;
        let at = (bytes.as_ptr() as usize).checked_sub(base)?;
        (at.checked_add(bytes.len())? <= self.len).then_some(at as u64)
    }

    /// Never gives out again the piece that has this place: a forwarder may still work on it. Its
    /// present owner keeps it as long as it wants.
    pub(crate) fn retire(&self, place: u64) {
        self.free().retired.insert(place as usize);
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        // Lists of numbers are whole after any panic.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: it was mapped so, and no piece is left.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

fn class_of(size: usize) -> usize {
    (size.trailing_zeros() - PIECE_MIN.trailing_zeros()) as usize
}

impl Piece {
    /// The piece's place in the arena.
    pub(crate) fn place(&self) -> u64 {
        self.at as u64
    }

    /// The piece's bytes, to be filled.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the piece lies in the mapping, and nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }

    /// The piece's first `len` bytes, or None if it has fewer. The piece is free again when they
    /// are dropped.
    pub(crate) fn into_bytes(mut self, len: usize) -> Option<Bytes> {
        if len > self.len {
            return None;
        }
        self.len = len;
        Some(Bytes::from_owner(self))
    }

    fn start(&self) -> *mut u8 {
        self.arena.base.as_ptr().wrapping_add(self.at)
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: as for `bytes_mut`. A forwarder writes here only until it has replied.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut free = self.arena.free();
        if !free.retired.is_empty() {
            let own: Vec<usize> = free
                .retired
                .range(self.at..self.at + self.size)
                .copied()
                .collect();
            if !own.is_empty() {
                for place in own {
                    free.retired.remove(&place);
                }
                return;
            }
        }
        free.pieces[class_of(self.size)].push(self.at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_apart_and_the_last_freed_comes_first() {
        let arena = Arena::new(1 << 20, None).expect("memory");
        let mut pieces: Vec<Piece> = (1..=32)
            .map(|n| arena.take(n * 700).expect("there is room"))
            .collect();
        for (number, piece) in pieces.iter_mut().enumerate() {
            piece.bytes_mut().fill(number as u8);
        }
        for (number, piece) in pieces.iter().enumerate() {
            assert_eq!(piece.as_ref().len(), (number + 1) * 700);
            assert!(piece.as_ref().iter().all(|byte| *byte == number as u8));
            assert_eq!(arena.place_of(piece.as_ref()), Some(piece.place()));
        }
        let last = pieces.pop().expect("there are 32");
        let place = last.place();
        let bytes = last.into_bytes(5).expect("it has more");
        assert_eq!(arena.place_of(&bytes), Some(place));
        drop(bytes);
        assert_eq!(arena.take(32 * 700).map(|it| it.place()), Some(place));
        assert_eq!(arena.place_of(&[0; 8]), None);
    }

    #[test]
    fn what_is_retired_is_not_used_again_and_goes_with_the_arena() {
        let arena = Arena::new(4 * 4096, None).expect("memory");
        let (first, second) = (arena.take(4096), arena.take(8192));
        let (first, second) = (first.expect("room"), second.expect("room"));
        arena.retire(second.place() + 5000);
        arena.retire(second.place());
        drop((first, second));
        assert!(arena.take(8192).is_none());
        assert_eq!(arena.take(4096).map(|it| it.place()), Some(0));
        assert!(arena.free().retired.is_empty());
        assert_eq!(Arc::strong_count(&arena), 1);
    }

    #[test]
    fn a_full_arena_says_so() {
        let arena = Arena::new(3 * 4096 + 100, None).expect("memory");
        let held: Vec<_> = (0..3).map_while(|_| arena.take(4096)).collect();
        assert_eq!(held.len(), 3);
        assert!(arena.take(1).is_none());
        assert!(arena.take(usize::MAX).is_none());
        drop(held);
        assert!(arena.take(1).is_some());
        assert!(arena.take(8192).is_none(), "pieces are not joined");
        let piece = arena.take(10).expect("two are free");
        assert!(piece.into_bytes(11).is_none());
    }
}
