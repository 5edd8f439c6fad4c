//! Requests and replies as bytes, and back; nothing that is read is trusted.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | magic `TGW1` |
//! | 4 | version |
//! | 5 | op (request) or the request's op (reply) |
//! | 6..8 | flags: reply 1, replay 2, row 4, caller 8, hints 16; others must be zero |
//! | 8..16 | id |
//! | 16..18 | seat |
//! | 18..20 | row index |
//! | 20..24 | body length, at most [`BODY_MAX`] |
//! | 24..28 | payload length |
//! | 28..32 | status (reply): 0, errno, or 5001.. |
//! | 32..40 | row sequence (request), charged ns (reply) |
//! | 40..48 | generation |
//! | 48..56 | epoch |
//! | 56..60 | CRC-32 of the body |
//! | 60..64 | CRC-32 of bytes 0..60 |
use crate::message::BODY_MAX;

/// Bytes of the header.
pub const HEADER_LEN: usize = 64;
/// Largest header and body together.
pub const HEAD_MAX: usize = HEADER_LEN + BODY_MAX;

use crate::message::{Reply, Request};
use alloc::vec::Vec;

/// A header that passed its checks: magic, version, flags, lengths and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// A reply; otherwise a request.
    pub reply: bool,
    /// Bytes of body that follow.
    pub body_len: u32,
    /// Bytes of payload that follow the body.
    pub payload_len: u32,
    /// The checked bytes, for [`decode_request`] and [`decode_reply`].
    pub(crate) bytes: [u8; HEADER_LEN],
}

/// Why bytes are not a frame. The session that sent them cannot be trusted further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FrameError {
    /// Placeholder until the codec lands.
    Malformed(&'static str),
}

/// Appends header and body of a request.
pub fn encode_request(_request: &Request, _out: &mut Vec<u8>) {
    unreachable!("the codec lands next")
}
/// Appends header and body of a reply. `op` is the request's op code ([`op_code`]).
pub fn encode_reply(_op: u8, _reply: &Reply, _out: &mut Vec<u8>) {
    unreachable!("the codec lands next")
}
/// The op code of an operation.
pub fn op_code(_op: &crate::message::Op) -> u8 {
    0
}
/// Checks a header. `payload_max` is what the session agreed on.
pub fn decode_header(_bytes: &[u8; HEADER_LEN], _payload_max: u32) -> Result<Header, FrameError> {
    Err(FrameError::Malformed("the codec lands next"))
}
/// Reads a request from its header and body.
pub fn decode_request(_header: &Header, _body: &[u8]) -> Result<Request, FrameError> {
    Err(FrameError::Malformed("the codec lands next"))
}
/// Reads a reply from its header and body.
pub fn decode_reply(_header: &Header, _body: &[u8]) -> Result<Reply, FrameError> {
    Err(FrameError::Malformed("the codec lands next"))
}
