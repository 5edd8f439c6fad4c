//! The bytes of a read or write, wherever they lie.
//!
//! They lie in memory of this process, or in memory that forwarders share. What is shared changes
//! whenever a forwarder wants, so it is only handed on, or copied as a whole ([`RawBytes`]).

use crate::arena::{Arena, Piece};
use bytes::Bytes;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use tidegate_net::RawBytes;

/// See the head of the file. Cheap to clone.
#[derive(Clone)]
pub struct Payload(Place);

#[derive(Clone)]
enum Place {
    /// In memory that no forwarder reaches.
    Own(Bytes),
    /// In shared memory.
    Shared(Arc<Piece>, u32, u32),
}

impl Payload {
    /// No bytes.
    pub const fn new() -> Payload {
        Payload(Place::Own(Bytes::new()))
    }

    /// The first `len` bytes of a piece of the arena, or None if it has fewer. The piece is free
    /// again when they are dropped.
    pub(crate) fn of_piece(piece: Piece, len: usize) -> Option<Payload> {
        if len > piece.len() {
            return None;
        }
        Some(Payload(match piece.into_own() {
            Ok(own) => Place::Own(Bytes::from_owner(own).slice(..len)),
            // The longest piece is far shorter than 4 GiB.
            Err(shared) => Place::Shared(Arc::new(shared), 0, len as u32),
        }))
    }

    /// The number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            Place::Own(bytes) => bytes.len(),
            Place::Shared(_, _, len) => *len as usize,
        }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of a range, which are not copied.
    ///
    /// # Panics
    ///
    /// Panics if there are no such bytes.
    pub fn slice(&self, range: Range<usize>) -> Payload {
        Payload(match &self.0 {
            Place::Own(bytes) => Place::Own(bytes.slice(range)),
            Place::Shared(piece, at, len) => {
                let Range { start, end } = range;
                assert!(start <= end && end <= *len as usize, "no such bytes");
                let (at, len) = (*at + start as u32, (end - start) as u32);
                Place::Shared(Arc::clone(piece), at, len)
            }
        })
    }

    /// The bytes, to be copied or given to the kernel.
    pub fn raw(&self) -> RawBytes<'_> {
        match &self.0 {
            Place::Own(bytes) => RawBytes::from(&bytes[..]),
            Place::Shared(piece, at, len) => {
                let (_, rest) = piece.raw().split(*at as usize);
                rest.split(*len as usize).0
            }
        }
    }

    /// A copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.raw().to_vec()
    }

    /// The bytes, as memory of this process alone: a copy of what is shared.
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            Place::Own(bytes) => bytes,
            Place::Shared(..) => self.to_vec().into(),
        }
    }

    /// Where in this arena the bytes lie, if they do, and forwarders share it.
    pub(crate) fn place_in(&self, arena: &Arc<Arena>) -> Option<u64> {
        match &self.0 {
            Place::Shared(piece, at, _) if piece.is_of(arena) => {
                Some(piece.place() + u64::from(*at))
            }
            _ => None,
        }
    }
}

impl Default for Payload {
    fn default() -> Payload {
        Payload::new()
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Payload {
        Payload(Place::Own(bytes))
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Payload {
        Bytes::from(bytes).into()
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

    /// Four bytes of an arena of each kind, which were filled with these.
    fn payload(shared: bool, bytes: &[u8; 6]) -> (Arc<Arena>, Payload) {
        let arena = match shared {
            true => Arena::shared(1 << 16, None),
            false => Arena::own(1 << 16),
        };
        let arena = arena.expect("memory");
        drop(arena.take(4096));
        let (_before, mut piece) = (arena.take(10), arena.take(6).expect("room"));
        piece.raw_room().put(0, bytes);
        let payload = Payload::of_piece(piece, 5).expect("it has them");
        (arena, payload)
    }

    #[test]
    fn bytes_are_the_same_wherever_they_lie() {
        let own = Payload::from(b"abcde".to_vec());
        let (kept, shared) = (payload(false, b"abcdef").1, payload(true, b"abcdef").1);
        for whole in [own, kept, shared] {
            assert_eq!((whole.len(), whole.is_empty()), (5, false));
            let part = whole.slice(1..4);
            assert_eq!(part.to_vec(), b"bcd");
            assert_eq!(part.slice(1..3).into_bytes(), &b"cd"[..]);
            assert!(whole.slice(5..5).is_empty());
            assert_eq!(whole.raw().to_vec(), b"abcde");
        }
    }

    #[test]
    #[should_panic(expected = "no such bytes")]
    fn bytes_behind_the_end_are_not_to_be_had() {
        drop(payload(true, b"abcdef").1.slice(1..3).slice(0..3));
    }

    #[test]
    fn only_what_is_shared_has_a_place_there() {
        let (arena, shared) = payload(true, b"abcdef");
        assert_eq!(shared.place_in(&arena), Some(4096));
        assert_eq!(shared.slice(2..4).place_in(&arena), Some(4098));
        let (kept_in, kept) = payload(false, b"abcdef");
        assert_eq!(kept.place_in(&kept_in), None);
        assert_eq!(shared.place_in(&kept_in), None);
    }

    #[test]
    fn what_was_copied_stays_as_it_was() {
        let (arena, shared) = payload(true, b"abcdef");
        let copy = shared.clone().into_bytes();
        // A forwarder has the same memory elsewhere.
        let place = shared.place_in(&arena).expect("it is shared");
        rustix::io::pwrite(arena.fd(), b"!!", place + 1).expect("it is memory");
        assert_eq!(copy, &b"abcde"[..]);
        assert_eq!(shared.into_bytes(), &b"a!!de"[..]);
    }
}
