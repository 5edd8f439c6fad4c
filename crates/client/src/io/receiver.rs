//! One connection's receiving side: bytes in any portions become challenges and replies.
//!
//! Heads pass through a small buffer; a payload is received into memory of its exact size, except
//! for the few kilobytes that came together with its head. A long one's is of the client's arena,
//! which is used again and again: new memory costs a page fault for each page.

use super::arena::{Arena, Piece};
use super::wire::Source;
use bytes::Bytes;
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::sync::Arc;
use tidegate_wire::frame::{self, FrameError, HEADER_LEN, Header};
use tidegate_wire::{Challenge, Reply};

/// Large enough for a small read's whole reply, small enough that copying a payload's first bytes
/// out of it costs nothing.
const BUFFER_LEN: usize = 8 << 10;

/// Longer payloads are received into the arena: an allocator gives their memory back to the
/// system.
const LONG: usize = 32 << 10;

/// Something whole that has arrived.
#[derive(Debug)]
pub(crate) enum Received {
    /// The forwarder wants a proof of the secret.
    Challenge(Challenge),
    /// An answer and its payload; None where that is in shared memory.
    Reply(Reply, Option<Bytes>),
}

/// Why a connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    /// The peer closed it.
    #[error("closed by the forwarder")]
    Closed,
    /// The network did.
    #[error("{0}")]
    Socket(Errno),
    /// The bytes are not a reply.
    #[error("not a reply: {0}")]
    Frame(#[from] FrameError),
    /// A request, which only clients send.
    #[error("the forwarder sent a request")]
    Request,
    /// A payload that lies nowhere.
    #[error("a reply's payload is in memory that was not meant for it")]
    Memory,
}

/// What one look at the socket gave.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// There may be more.
    More,
    /// That was all, but for the end of the stream.
    Drained,
    /// There is nothing, not even an end.
    Empty,
}

/// State between two portions of bytes.
pub(crate) struct Receiver {
    buffer: Vec<u8>,
    /// Bytes of the buffer that are not used up: `start..end`.
    start: usize,
    end: usize,
    challenge_due: bool,
    payload: Option<Payload>,
    arena: Option<Arc<Arena>>,
}

/// A reply whose payload is still coming.
struct Payload {
    reply: Reply,
    memory: Memory,
    len: usize,
}

/// What has come of a payload, and place for the rest.
enum Memory {
    Own(Vec<u8>),
    /// So many bytes of the piece are filled.
    Piece(Piece, usize),
}

impl Receiver {
    /// For a new connection, on which a challenge comes first or not.
    pub(crate) fn new(challenge_due: bool, arena: Option<Arc<Arena>>) -> Receiver {
        Receiver {
            buffer: vec![0; BUFFER_LEN],
            start: 0,
            end: 0,
            challenge_due,
            payload: None,
            arena,
        }
    }

    /// Receives once and appends to `into` all that became whole.
    pub(crate) fn receive(
        &mut self,
        source: &impl Source,
        payload_max: u32,
        into: &mut Vec<Received>,
    ) -> Result<Progress, ReceiveError> {
        let room = match &mut self.payload {
            Some(payload) => payload.room(),
            None => {
                self.make_room();
                // Initialised bytes are fine where uninitialised ones are.
                self.buffer.len() - self.end
            }
        };
        debug_assert!(room > 0, "a receive needs room");
        let received = match &mut self.payload {
            Some(payload) => payload.receive(source),
            None => source.receive(as_uninit(&mut self.buffer[self.end..])),
        };
        let received = match received {
            Ok(0) => return Err(ReceiveError::Closed),
            Ok(received) => received,
            Err(Errno::AGAIN) => return Ok(Progress::Empty),
            Err(Errno::INTR) => return Ok(Progress::More),
            Err(errno) => return Err(ReceiveError::Socket(errno)),
        };
        if self.payload.is_none() {
            self.end += received;
        }
        while self.next(payload_max, into)? {}
        // A short read has emptied a stream socket.
        Ok(if received < room {
            Progress::Drained
        } else {
            Progress::More
        })
    }

    /// Moves what is left to the front if the head that has begun does not fit behind it.
    fn make_room(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.end == self.buffer.len() {
                // Only a head beyond the buffer fills it; `head` made sure of its bound.
                self.buffer.resize(frame::HEAD_MAX, 0);
            }
        }
    }

    /// Takes one thing out of the buffer; false if none is whole.
    fn next(&mut self, payload_max: u32, into: &mut Vec<Received>) -> Result<bool, ReceiveError> {
        if let Some(payload) = &self.payload {
            if payload.room() > 0 {
                return Ok(false);
            }
            let payload = self.payload.take().expect("it was just seen");
            let bytes = payload.memory.into_bytes();
            into.push(Received::Reply(payload.reply, Some(bytes)));
            return Ok(true);
        }
        if self.challenge_due {
            let Some(challenge) = self.buffer[self.start..self.end].first_chunk::<32>() else {
                return Ok(false);
            };
            into.push(Received::Challenge(*challenge));
            self.start += challenge.len();
            self.challenge_due = false;
            return Ok(true);
        }
        let Some((header, body)) = self.head(payload_max)? else {
            return Ok(false);
        };
        let reply = frame::decode_reply(&header, &self.buffer[body.clone()])?;
        if header.shared {
            self.start = body.end;
            into.push(Received::Reply(reply, None));
            return Ok(true);
        }
        let len = header.payload_len as usize;
        let here = len.min(self.end - body.end);
        let memory = self.memory(len, &self.buffer[body.end..body.end + here]);
        self.start = body.end + here;
        self.payload = Some(Payload { reply, memory, len });
        Ok(true)
    }

    /// Memory for a payload of `len` bytes that begins with these.
    fn memory(&self, len: usize, begun: &[u8]) -> Memory {
        let arena = self.arena.as_ref().filter(|_| len >= LONG);
        match arena.and_then(|arena| arena.take(len)) {
            Some(mut piece) => {
                piece.bytes_mut()[..begun.len()].copy_from_slice(begun);
                Memory::Piece(piece, begun.len())
            }
            None => {
                let mut bytes = Vec::with_capacity(len);
                bytes.extend_from_slice(begun);
                Memory::Own(bytes)
            }
        }
    }

    /// The next header and where its body lies, if both have arrived.
    fn head(
        &self,
        payload_max: u32,
    ) -> Result<Option<(Header, std::ops::Range<usize>)>, ReceiveError> {
        let bytes = &self.buffer[self.start..self.end];
        let Some(header) = bytes.first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let header = frame::decode_header(header, payload_max)?;
        if !header.reply {
            return Err(ReceiveError::Request);
        }
        let body = self.start + HEADER_LEN;
        let body = body..body + header.body_len as usize;
        Ok((body.end <= self.end).then_some((header, body)))
    }
}

/// The same bytes, for who only writes there.
fn as_uninit(bytes: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    // SAFETY: the layout is the same, and a source never makes a byte uninitialised.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()) }
}

impl Payload {
    fn room(&self) -> usize {
        self.len - self.memory.filled()
    }

    fn receive(&mut self, source: &impl Source) -> Result<usize, Errno> {
        let room = self.room();
        match &mut self.memory {
            Memory::Piece(piece, filled) => {
                let received = source.receive(as_uninit(&mut piece.bytes_mut()[*filled..]))?;
                *filled += received;
                Ok(received)
            }
            Memory::Own(bytes) => {
                let spare: &mut [MaybeUninit<u8>] = &mut bytes.spare_capacity_mut()[..room];
                let received = source.receive(spare)?;
                // SAFETY: the source has written `received` bytes directly behind the vector's
                // length, and they lie within its capacity because `spare` did.
                unsafe { bytes.set_len(bytes.len() + received) };
                Ok(received)
            }
        }
    }
}

impl Memory {
    fn filled(&self) -> usize {
        match self {
            Memory::Own(bytes) => bytes.len(),
            Memory::Piece(_, filled) => *filled,
        }
    }

    /// All of it, when it is filled.
    fn into_bytes(self) -> Bytes {
        match self {
            Memory::Own(bytes) => bytes.into(),
            Memory::Piece(piece, _) => Bytes::from_owner(piece),
        }
    }
}

#[cfg(test)]
mod tests;
