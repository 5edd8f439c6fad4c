//! Memory for payload, in which forwarders read and write themselves if they reach it.
//!
//! It is one memfd. The client offers it to each forwarder that it reaches by a Unix socket, and
//! registers it with each connection through libfabric. Payload lies in a piece of it from before
//! its request is sent until after the reply has arrived, and a frame says where. The client never
//! uses a piece again whose request got no reply: its forwarder may still work on it.
//!
//! A forwarder that means ill writes there whenever it wants, so nothing refers to the bytes of
//! shared memory: they are copied as wholes ([`RawBytes`], [`RawRoom`]), and decide nothing.
//!
//! For what comes and goes through sockets there is an arena that no forwarder gets: it is memory
//! as any other ([`OwnPiece`]), which is used again and again.

use rustix::fd::OwnedFd;
use rustix::ffi::c_void;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeSet;
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_net::{RawBytes, RawRoom};

/// Smallest piece in bytes; all others are multiples of it.
const PIECE_MIN: usize = 4096;
/// Number of sizes of pieces, which are powers of two.
const SIZES: usize = 13;

/// See the head of the file.
pub(crate) struct Arena {
    /// What forwarders may get; none if it is this process's alone.
    fd: Option<OwnedFd>,
    base: NonNull<u8>,
    len: usize,
    /// Whether a forwarder has accepted it.
    accepted: AtomicBool,
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

/// A part of the arena, which in this process belongs to its owner alone until it is dropped.
pub(crate) struct Piece {
    arena: Arc<Arena>,
    at: usize,
    /// Bytes of use.
    len: usize,
    size: usize,
}

/// A part of an arena that no forwarder gets.
pub(crate) struct OwnPiece(Piece);

impl Arena {
    /// An arena of this size that forwarders may get. `place` moves its descriptor.
    pub(crate) fn shared(
        bytes: u64,
        place: Option<fn(OwnedFd) -> OwnedFd>,
    ) -> io::Result<Arc<Arena>> {
        let limit = getrlimit(Resource::Fsize).current;
        if limit.is_some_and(|limit| limit < bytes) {
            // The kernel counts this memory as a file, and would kill the program.
            return Err(io::Error::other("there is a limit on the size of files"));
        }
        let len = whole_pieces(bytes)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create(c"tidegate", flags)?;
        let fd = match place {
            Some(place) => place(fd),
            None => fd,
        };
        ftruncate(&fd, len as u64)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&fd, seals)?;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { mmap(null_mut(), len, access(), MapFlags::SHARED, &fd, 0)? };
        Arena::mapped(Some(fd), base, len)
    }

    /// An arena of this size that is this process's alone: a child that it forks has a copy.
    pub(crate) fn own(bytes: u64) -> io::Result<Arc<Arena>> {
        let len = whole_pieces(bytes)?;
        // Most of it is never used where replies are few or short.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { mmap_anonymous(null_mut(), len, access(), flags)? };
        Arena::mapped(None, base, len)
    }

    /// An arena in this mapping. The system allots its pages when they are first used.
    fn mapped(fd: Option<OwnedFd>, base: *mut c_void, len: usize) -> io::Result<Arc<Arena>> {
        // SAFETY: only what is left out of a core dump changes. Where that is not known, it is not.
        let _ = unsafe { madvise(base, len, Advice::LinuxDontDump) };
        let base = NonNull::new(base.cast::<u8>());
        Ok(Arc::new(Arena {
            fd,
            base: base.ok_or_else(|| io::Error::other("mapped nowhere"))?,
            len,
            accepted: AtomicBool::new(false),
            free: Mutex::default(),
        }))
    }

    /// The arena's descriptor, which forwarders receive.
    pub(crate) fn fd(&self) -> &OwnedFd {
        self.fd
            .as_ref()
            .expect("an arena that is offered is shared")
    }

    /// The arena's first byte in this process, which forwarders reach.
    pub(crate) fn start(&self) -> *mut u8 {
        assert!(self.fd.is_some(), "it is this process's alone");
        self.base.as_ptr()
    }

    /// A forwarder has accepted it.
    pub(crate) fn accept(&self) {
        self.accepted.store(true, Ordering::Release);
    }

    /// Whether a forwarder has accepted it. One that has not may have it all the same.
    pub(crate) fn is_accepted(&self) -> bool {
        self.accepted.load(Ordering::Acquire)
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

/// The size that has no part of a piece left over.
fn whole_pieces(bytes: u64) -> io::Result<usize> {
    let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
    Ok(bytes / PIECE_MIN * PIECE_MIN)
}

fn access() -> ProtFlags {
    ProtFlags::READ | ProtFlags::WRITE
}

fn class_of(size: usize) -> usize {
    (size.trailing_zeros() - PIECE_MIN.trailing_zeros()) as usize
}

impl Piece {
    /// The piece's place in the arena.
    pub(crate) fn place(&self) -> u64 {
        self.at as u64
    }

    /// Whether it is a part of this arena.
    pub(crate) fn is_of(&self, arena: &Arc<Arena>) -> bool {
        Arc::ptr_eq(&self.arena, arena)
    }

    /// Number of bytes of use.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The piece's bytes, to be read.
    pub(crate) fn raw(&self) -> RawBytes<'_> {
        // SAFETY: the piece lies in the mapping, and this process writes to it only by `raw_room`
        // and `OwnPiece`, which borrow it.
        unsafe { RawBytes::new(self.start(), self.len) }
    }

    /// The piece's bytes, to be filled.
    pub(crate) fn raw_room(&mut self) -> RawRoom<'_> {
        // SAFETY: the piece lies in the mapping, and nobody else in this process has it.
        unsafe { RawRoom::new(self.start(), self.len) }
    }

    /// The same piece, to which there may be references; itself if forwarders may reach it.
    pub(crate) fn into_own(self) -> Result<OwnPiece, Piece> {
        match self.arena.fd {
            None => Ok(OwnPiece(self)),
            Some(_) => Err(self),
        }
    }

    fn start(&self) -> *mut u8 {
        self.arena.base.as_ptr().wrapping_add(self.at)
    }
}

impl OwnPiece {
    /// The piece's bytes, to be filled.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the piece lies in the mapping, nobody else in this process has it, and no other
        // process gets the mapping: `into_own` has looked.
        unsafe { std::slice::from_raw_parts_mut(self.0.start(), self.0.len) }
    }
}

impl AsRef<[u8]> for OwnPiece {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.0.start(), self.0.len) }
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
        let arena = Arena::shared(1 << 20, None).expect("memory");
        let mut pieces: Vec<Piece> = (1..=32)
            .map(|n| arena.take(n * 700).expect("there is room"))
            .collect();
        for (number, piece) in pieces.iter_mut().enumerate() {
            let bytes = vec![number as u8; piece.len()];
            piece.raw_room().put(0, &bytes);
        }
        for (number, piece) in pieces.iter().enumerate() {
            assert_eq!(piece.raw().to_vec(), vec![number as u8; (number + 1) * 700]);
        }
        let last = pieces.pop().expect("there are 32");
        let place = last.place();
        drop(last);
        assert_eq!(arena.take(32 * 700).map(|it| it.place()), Some(place));
    }

    #[test]
    fn only_a_piece_that_no_forwarder_gets_can_be_referred_to() {
        let arena = Arena::own(1 << 16).expect("memory");
        let piece = arena.take(6).expect("there is room");
        let mut own = piece.into_own().unwrap_or_else(|_| panic!("it is its own"));
        own.bytes_mut().copy_from_slice(b"abcdef");
        assert_eq!(own.as_ref(), b"abcdef");
        assert_eq!(own.0.raw().to_vec(), b"abcdef");
        let arena = Arena::shared(1 << 16, None).expect("memory");
        let piece = arena.take(6).expect("there is room");
        assert!(piece.into_own().is_err());
    }

    #[test]
    #[should_panic(expected = "this process's alone")]
    fn what_is_not_shared_is_not_given_away() {
        Arena::own(1 << 16).expect("memory").start();
    }

    /// What the kernel says of the mapping that begins there, after the range.
    fn mapping(arena: &Arena) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("the kernel shows them");
        let inside = |line: &&str| {
            let (range, _) = line.split_once(' ').expect("a line begins with a range");
            let (start, end) = range.split_once('-').expect("a range has two ends");
            let at = |text| usize::from_str_radix(text, 16).expect("it is a number");
            (at(start)..at(end)).contains(&(arena.base.as_ptr() as usize))
        };
        let line = maps.lines().find(inside).expect("it is mapped");
        line.split_once(' ').expect("as above").1.to_string()
    }

    #[test]
    fn a_child_that_is_forked_shares_only_what_forwarders_may_get() {
        let own = mapping(&Arena::own(1 << 16).expect("memory"));
        assert!(own.starts_with("rw-p ") && !own.contains("memfd"), "{own}");
        let shared = mapping(&Arena::shared(1 << 16, None).expect("memory"));
        assert!(
            shared.starts_with("rw-s ") && shared.contains("memfd"),
            "{shared}"
        );
    }

    #[test]
    fn what_is_retired_is_not_used_again_and_goes_with_the_arena() {
        let arena = Arena::shared(4 * 4096, None).expect("memory");
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
        let arena = Arena::shared(3 * 4096 + 100, None).expect("memory");
        let held: Vec<_> = (0..3).map_while(|_| arena.take(4096)).collect();
        assert_eq!(held.len(), 3);
        assert!(arena.take(1).is_none());
        assert!(arena.take(usize::MAX).is_none());
        drop(held);
        assert!(arena.take(1).is_some());
        assert!(arena.take(8192).is_none(), "pieces are not joined");
    }
}
