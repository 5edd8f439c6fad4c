//! Memory for replies' payload that comes through sockets, of all connections of a client together.
//!
//! New memory must be filled with zeros first, and costs a page fault for each page. So a long
//! payload takes memory that is used again and again: of an arena that no forwarder gets, or, where
//! that is full or the client is to have none, of one of the last payloads that the caller has
//! dropped. What is kept of these is bounded for the client, however many connections it has.

use crate::arena::{Arena, OwnPiece, Piece};
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Payloads of this length and more are long: an allocator would return their memory to the system
/// each time. Bytes.
pub(super) const LONG: usize = 32 << 10;
/// Largest number of payloads outside the arena whose memory is kept.
pub(super) const KEPT_MAX: usize = 64;
/// Largest number of their bytes.
pub(super) const KEPT_BYTES_MAX: usize = 16 << 20;
/// Distance from the beginning of an allocation to that of a long payload. Bytes. A large
/// allocation begins at the beginning of a page, and so does the kernel's buffer of a socket. Some
/// processors (AMD's Zen 4) copy slowly between places that are nearly the same in their pages.
const AMID_PAGE: usize = 1024;

/// See the head of the file.
pub(crate) struct ReplyMemory {
    /// Bytes of the arena; 0: there shall be none.
    arena_bytes: u64,
    /// Made when it is first needed: most clients share memory with all their forwarders.
    arena: OnceLock<Option<Arc<Arena>>>,
    kept: Mutex<Kept>,
}

/// The last long payloads outside the arena, with the bytes that each keeps.
#[derive(Default)]
struct Kept {
    payloads: VecDeque<(Bytes, usize)>,
    bytes: usize,
}

/// Place for a payload, of its length.
pub(super) enum Memory {
    Own(BytesMut),
    Piece(OwnPiece),
}

impl Memory {
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Own(bytes) => bytes,
            Memory::Piece(piece) => piece.bytes_mut(),
        }
    }
}

impl ReplyMemory {
    /// Memory with an arena of this size, or without one if that is 0.
    pub(crate) fn new(arena_bytes: u64) -> ReplyMemory {
        ReplyMemory {
            arena_bytes,
            arena: OnceLock::new(),
            kept: Mutex::default(),
        }
    }

    /// The arena, which no forwarder gets, if there is one.
    pub(crate) fn arena(&self) -> Option<&Arc<Arena>> {
        let make = || match self.arena_bytes {
            0 => None,
            bytes => {
                let made = Arena::own(bytes);
                let failed = |error: &_| tracing::info!(%error, "no memory is kept for payload");
                made.inspect_err(failed).ok()
            }
        };
        self.arena.get_or_init(make).as_ref()
    }

    /// Memory for a payload of `len` bytes.
    pub(super) fn take(&self, len: usize) -> Memory {
        if len < LONG {
            return Memory::Own(BytesMut::zeroed(len));
        }
        let piece = self.arena().and_then(|arena| arena.take(len));
        if let Some(Ok(piece)) = piece.map(Piece::into_own) {
            return Memory::Piece(piece);
        }
        let bytes = self.kept().take(len);
        let new = || BytesMut::zeroed(AMID_PAGE + len).split_off(AMID_PAGE);
        let mut bytes = bytes.unwrap_or_else(new);
        bytes.resize(len, 0);
        Memory::Own(bytes)
    }

    /// The bytes that were filled in. Their memory is used again once they are dropped.
    pub(super) fn filled(&self, memory: Memory) -> Bytes {
        match memory {
            Memory::Own(bytes) if bytes.len() < LONG => bytes.freeze(),
            Memory::Own(bytes) => {
                let room = bytes.capacity();
                let bytes = bytes.freeze();
                self.kept().keep(bytes.clone(), room);
                bytes
            }
            Memory::Piece(piece) => Bytes::from_owner(piece),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Whatever is missing after a panic is only not used again.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Memory of a dropped payload that has room for `len` bytes.
    fn take(&mut self, len: usize) -> Option<BytesMut> {
        // The latest one is the likeliest to be in the processor's cache.
        let fits = |(bytes, room): &(Bytes, usize)| *room >= len && bytes.is_unique();
        let at = self.payloads.iter().rposition(fits)?;
        let (bytes, room) = self.payloads.remove(at)?;
        self.bytes -= room;
        let bytes = bytes.try_into_mut().ok()?;
        (bytes.capacity() >= len).then_some(bytes)
    }

    /// Keeps a payload that has room for so many bytes; the oldest go until the bounds hold.
    fn keep(&mut self, bytes: Bytes, room: usize) {
        self.payloads.push_back((bytes, room));
        self.bytes += room;
        while self.payloads.len() > KEPT_MAX || self.bytes > KEPT_BYTES_MAX {
            let oldest = self.payloads.pop_front();
            self.bytes -= oldest.map_or(0, |(_, room)| room);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A payload of `len` bytes, of which the first tells it from new memory.
    fn payload(memory: &ReplyMemory, len: usize) -> Bytes {
        let mut taken = memory.take(len);
        taken.bytes_mut()[0] = 7;
        memory.filled(taken)
    }

    #[test]
    fn long_payloads_lie_in_the_arena_and_then_take_the_same_memory_again() {
        let memory = ReplyMemory::new(1 << 20);
        let held: Vec<Bytes> = (0..9).map(|_| payload(&memory, LONG)).collect();
        let places = |all: &[Bytes]| -> Vec<usize> {
            let mut places: Vec<usize> = all.iter().map(|it| it.as_ptr() as usize).collect();
            places.sort_unstable();
            places
        };
        let first = places(&held);
        drop(held);
        let again: Vec<Bytes> = (0..9).map(|_| payload(&memory, LONG)).collect();
        assert_eq!(places(&again), first);
        assert_eq!(memory.kept().payloads.len(), 0);
    }

    #[test]
    fn what_is_kept_outside_of_the_arena_is_bounded_however_many_are_held() {
        let memory = ReplyMemory::new(0);
        for len in [LONG, 1 << 20, 8 << 20, 32 << 20, LONG] {
            let held: Vec<Bytes> = (0..KEPT_MAX + 9).map(|_| payload(&memory, len)).collect();
            let kept = memory.kept();
            let room: usize = kept.payloads.iter().map(|(_, room)| room).sum();
            assert_eq!(kept.bytes, room);
            assert!(
                room <= KEPT_BYTES_MAX && kept.payloads.len() <= KEPT_MAX,
                "{len}"
            );
            drop((kept, held));
        }
        assert_eq!(memory.take(LONG).bytes_mut()[0], 7, "it is used again");
    }

    #[test]
    fn only_memory_that_is_long_enough_is_used_again() {
        let memory = ReplyMemory::new(0);
        drop(payload(&memory, 2 * LONG));
        drop(payload(&memory, LONG));
        assert_eq!(memory.kept().payloads.len(), 1, "the same memory");
        let mut more = memory.take(4 * LONG);
        assert_eq!(more.bytes_mut().len(), 4 * LONG);
        assert_eq!(memory.kept().bytes, 2 * LONG);
        drop(more);
        let mut again = memory.take(2 * LONG);
        assert_eq!(again.bytes_mut()[0], 7, "it kept its room");
        assert_eq!(memory.kept().bytes, 0);
    }
}
