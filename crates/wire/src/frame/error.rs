//! The errors of decoding a frame.

use super::VERSION;
use core::fmt;

/// Why bytes are not a valid frame. The receiver ends the session, except after
/// [`FrameError::UnknownOp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FrameError {
    /// The first bytes are not a frame's.
    Magic,
    /// The version of the frame is not [`VERSION`].
    Version(u8),
    /// The header's checksum is wrong.
    HeaderChecksum,
    /// The body's checksum is wrong.
    BodyChecksum,
    /// The flags are unknown, or do not fit each other or the operation.
    Flags(u16),
    /// A field that must be zero is not.
    Reserved,
    /// The body is longer than [`BODY_MAX`](crate::BODY_MAX).
    BodyLength(u32),
    /// The payload is longer than the session allows, or not as long as the operation says.
    PayloadLength(u32),
    /// The frame is a request where a reply was expected, or the other way round.
    Direction,
    /// This side does not know the operation. The frame is valid otherwise, so the forwarder can
    /// answer the request with ENOSYS.
    UnknownOp {
        /// Id of the request.
        id: u64,
        /// Its op code.
        op: u8,
    },
    /// The status is neither 0, an errno nor one of the protocol's.
    Status(u32),
    /// The body ends before its last field.
    Truncated,
    /// The body goes on after its last field.
    Trailing,
    /// The named field of the body is out of its bounds.
    Invalid(&'static str),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Magic => f.write_str("not a frame: wrong magic"),
            FrameError::Version(version) => {
                write!(
                    f,
                    "it speaks version {version} of the protocol, and this side version {VERSION}; \
                     use the same release on both"
                )
            }
            FrameError::HeaderChecksum => f.write_str("wrong checksum of the header"),
            FrameError::BodyChecksum => f.write_str("wrong checksum of the body"),
            FrameError::Flags(flags) => write!(f, "flags {flags:#06x} do not fit the frame"),
            FrameError::Reserved => f.write_str("a reserved field is not zero"),
            FrameError::BodyLength(len) => write!(f, "body of {len} bytes is too long"),
            FrameError::PayloadLength(len) => {
                write!(
                    f,
                    "payload of {len} bytes does not fit the request or session"
                )
            }
            FrameError::Direction => f.write_str("request and reply mixed up"),
            FrameError::UnknownOp { id, op } => write!(f, "request {id}: unknown operation {op}"),
            FrameError::Status(status) => write!(f, "unknown status {status}"),
            FrameError::Truncated => f.write_str("the body is too short"),
            FrameError::Trailing => f.write_str("the body is too long for its operation"),
            FrameError::Invalid(field) => write!(f, "{field} out of bounds"),
        }
    }
}

impl core::error::Error for FrameError {}
