//! Decodes the messages of the kernel. It refuses a message that is cut short or inconsistent, and
//! never panics, although only the kernel can write here.

mod fields;
mod operation;

use super::abi::{self, opcode};
use super::request::Operation;
use fields::Fields;
use operation::operation;
use std::mem::size_of;
use std::ops::Range;
use zerocopy::FromBytes;

/// What the kernel sent.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) header: abi::InHeader,
    pub(super) body: Body,
}

#[derive(Debug)]
pub(super) enum Body {
    /// An operation for the file system. The range is where the bytes of a write lie in the
    /// message.
    Operation(Operation, Range<usize>),
    /// Nodes that the kernel no longer refers to, with how many lookups it forgets; no answer.
    Forget(Vec<abi::ForgetOne>),
    /// An interrupt: the caller of this request no longer waits for the answer.
    Interrupt(u64),
    /// The first message.
    Init(abi::InitIn),
    /// The last message, on some mounts.
    Destroy,
    /// An operation that this code does not know or support.
    Unknown,
}

/// Why a message was refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error("{got} bytes are no header")]
    Header { got: usize },
    #[error("request {opcode} is cut short")]
    Truncated { opcode: u32 },
    #[error("request {opcode} says it has {says} bytes, but has {got}")]
    Length { opcode: u32, says: u32, got: usize },
    #[error("request {opcode} holds a name that is none")]
    Name { opcode: u32 },
    #[error("request {opcode} asks for an unknown lock type {kind}")]
    LockKind { opcode: u32, kind: u32 },
}

/// The header alone, so that even a request with a broken body can be answered.
pub(super) fn header(bytes: &[u8]) -> Result<abi::InHeader, Malformed> {
    let (header, _) = abi::InHeader::read_from_prefix(bytes)
        .map_err(|_| Malformed::Header { got: bytes.len() })?;
    Ok(header)
}

/// The whole message.
pub(super) fn decode(bytes: &[u8]) -> Result<Message, Malformed> {
    let header = header(bytes)?;
    let opcode = header.opcode;
    if header.len as usize != bytes.len() {
        return Err(Malformed::Length {
            opcode,
            says: header.len,
            got: bytes.len(),
        });
    }
    // Extensions stand at the end and none is asked for; a kernel that sends one is not misread.
    let extensions_len = usize::from(header.extensions_len) * 8;
    let end = bytes
        .len()
        .checked_sub(extensions_len)
        .ok_or(Malformed::Truncated { opcode })?;
    let rest = bytes
        .get(size_of::<abi::InHeader>()..end)
        .ok_or(Malformed::Truncated { opcode })?;
    let mut fields = Fields { opcode, rest };
    let body = match opcode {
        opcode::INIT => Body::Init(fields.record()?),
        opcode::DESTROY => Body::Destroy,
        opcode::INTERRUPT => Body::Interrupt(fields.record::<abi::InterruptIn>()?.unique),
        opcode::FORGET => {
            let forget: abi::ForgetIn = fields.record()?;
            Body::Forget(vec![abi::ForgetOne {
                node: header.node,
                lookups: forget.lookups,
            }])
        }
        opcode::BATCH_FORGET => Body::Forget(fields.forgets()?),
        opcode::WRITE => {
            let (write, len) = fields.write()?;
            let start = end - fields.rest.len();
            Body::Operation(Operation::Write(write), start..start + len)
        }
        _ => match operation(&mut fields)? {
            Some(operation) => Body::Operation(operation, 0..0),
            None => Body::Unknown,
        },
    };
    Ok(Message { header, body })
}

#[cfg(test)]
mod tests;
