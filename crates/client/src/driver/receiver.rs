//! The receiving side of one connection: turns frames into challenges and replies.
//!
//! The receiver puts a payload into memory of its exact size. For a long payload it takes memory of
//! the client's arena, which is used again and again: new memory costs a page fault for each page.

use super::arena::{Arena, Piece};
use bytes::Bytes;
use std::io::{self, ErrorKind, IoSliceMut};
use std::sync::Arc;
use tidegate_net::{FrameReader, Step};
use tidegate_wire::frame::{self, FrameError};
use tidegate_wire::{Challenge, Reply};

/// Payloads longer than this go into the arena, because an allocator would return their memory to
/// the system each time. Bytes.
const LONG: usize = 32 << 10;

/// Something whole that has arrived.
#[derive(Debug)]
pub(crate) enum Received {
    /// The forwarder wants a proof of the secret.
    Challenge(Challenge),
    /// A reply and its payload; None where the payload is in shared memory.
    Reply(Reply, Option<Bytes>),
}

/// Why a connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    /// The peer closed it.
    #[error("closed by the forwarder")]
    Closed,
    /// The network broke it.
    #[error("{0}")]
    Socket(io::Error),
    /// The bytes are no reply.
    #[error("not a reply: {0}")]
    Frame(#[from] FrameError),
    /// A reply names a payload that is not in shared memory.
    #[error("a reply's payload is in memory that was not meant for it")]
    Memory,
}

/// How one receive from the socket ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// There may be more bytes.
    More,
    /// There are no more bytes; the end of the stream may follow.
    Drained,
    /// There is nothing to receive, not even the end of the stream.
    Empty,
}

/// The state of parsing between two receives.
pub(crate) struct Receiver {
    frames: FrameReader,
    /// A reply whose payload is still coming.
    payload: Option<(Reply, Memory)>,
    arena: Option<Arc<Arena>>,
}

/// Place for a payload, of its length.
enum Memory {
    Own(Vec<u8>),
    Piece(Piece),
}

impl Memory {
    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Own(bytes) => bytes,
            Memory::Piece(piece) => piece.bytes_mut(),
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Memory::Own(bytes) => bytes.into(),
            Memory::Piece(piece) => Bytes::from_owner(piece),
        }
    }
}

impl Receiver {
    /// A receiver for a new connection; `challenged` says whether the stream begins with a
    /// challenge.
    pub(crate) fn new(payload_max: u32, challenged: bool, arena: Option<Arc<Arena>>) -> Receiver {
        Receiver {
            frames: FrameReader::of_replies(payload_max, challenged),
            payload: None,
            arena,
        }
    }

    /// Receives once, and appends to `into` every challenge and reply that is now complete.
    pub(crate) fn receive(
        &mut self,
        receive: impl FnOnce(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
        into: &mut Vec<Received>,
    ) -> Result<Progress, ReceiveError> {
        let target = match &mut self.payload {
            Some((_, memory)) => memory.bytes_mut(),
            None => &mut [],
        };
        let (received, room) = match self.frames.fill(receive, target) {
            Ok(Some(filled)) => filled,
            Ok(None) => return Err(ReceiveError::Closed),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Progress::Empty),
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(Progress::More),
            Err(error) => return Err(ReceiveError::Socket(error)),
        };
        while self.next(into)? {}
        // A short read has emptied a stream socket.
        Ok(match received < room {
            true => Progress::Drained,
            false => Progress::More,
        })
    }

    /// Takes one challenge or reply out of what has arrived; false if none is complete.
    fn next(&mut self, into: &mut Vec<Received>) -> Result<bool, ReceiveError> {
        let target = match &mut self.payload {
            Some((_, memory)) => memory.bytes_mut(),
            None => &mut [],
        };
        match self.frames.next(target)? {
            Step::More => return Ok(false),
            Step::Challenge(challenge) => into.push(Received::Challenge(challenge)),
            Step::Frame(header, body) => {
                let reply = frame::decode_reply(&header, body)?;
                match header.payload_len {
                    _ if header.shared => into.push(Received::Reply(reply, None)),
                    0 => into.push(Received::Reply(reply, Some(Bytes::new()))),
                    len => {
                        self.frames.keep_payload();
                        self.payload = Some((reply, self.memory(len as usize)));
                    }
                }
            }
            Step::Payload => {
                let (reply, memory) = self.payload.take().expect("its end has come");
                into.push(Received::Reply(reply, Some(memory.into_bytes())));
            }
        }
        Ok(true)
    }

    /// Memory for a payload of `len` bytes.
    fn memory(&self, len: usize) -> Memory {
        let arena = self.arena.as_ref().filter(|_| len >= LONG);
        match arena.and_then(|arena| arena.take(len)) {
            Some(piece) => Memory::Piece(piece),
            None => Memory::Own(vec![0; len]),
        }
    }
}

#[cfg(test)]
mod tests;
