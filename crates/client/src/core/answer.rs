//! What a call yields.

use crate::wire::Outcome;
use bytes::Bytes;

/// Bytes read: the parts of the file in order, without gaps.
#[derive(Clone, Debug, Default)]
pub struct Data {
    /// Consecutive pieces.
    pub pieces: Vec<Bytes>,
    /// Their bytes together; less than asked for only at the end of the file.
    pub len: usize,
}

impl Data {
    /// The bytes in one piece; copied only if there are several.
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

/// What a generic call yields.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The outcome.
    pub outcome: Outcome,
    /// Payload, for reads.
    pub data: Data,
}
