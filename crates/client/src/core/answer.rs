//! The result of a call.

use crate::wire::Outcome;
use bytes::Bytes;

/// The bytes that a call has read: the parts of the file in order, without gaps.
#[derive(Clone, Debug, Default)]
pub struct Data {
    /// Consecutive pieces.
    pub pieces: Vec<Bytes>,
    /// Number of bytes in all pieces; fewer than the caller asked for only at the end of the file.
    pub len: usize,
}

impl Data {
    /// Joins the bytes to one piece; copies them only if there are several pieces.
    pub fn into_bytes(mut self) -> Bytes {
        match self.pieces.len() {
            0 => Bytes::new(),
            1 => self.pieces.swap_remove(0),
            _ => self.pieces.concat().into(),
        }
    }

    /// Copies the bytes to the front of `buffer`, as many as it holds; returns how many.
    pub fn copy_to(&self, buffer: &mut [u8]) -> usize {
        let mut at = 0;
        for piece in &self.pieces {
            let len = piece.len().min(buffer.len() - at);
            buffer[at..at + len].copy_from_slice(&piece[..len]);
            at += len;
        }
        at
    }
}

/// The result of any call of the protocol.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The outcome.
    pub outcome: Outcome,
    /// Payload, for reads.
    pub data: Data,
}
