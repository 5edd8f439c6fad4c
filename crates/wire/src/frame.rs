//! Encodes requests and replies as frames, and decodes frames. The decoder checks every field.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | magic `TGW1` |
//! | 4 | version of the frame, [`VERSION`] |
//! | 5 | op (request) or the request's op (reply) |
//! | 6..8 | flags: reply 1, replay 2, slot 4, caller 8, hints 16, shared 32, lent 64 to 256 |
//! | 8..16 | id; 0 for a reply that answers no request ([`NOTICE`]) |
//! | 16..18 | seat |
//! | 18..20 | reply slot index |
//! | 20..24 | body length, at most [`BODY_MAX`] |
//! | 24..28 | payload length |
//! | 28..32 | status (reply): 0, errno, or 5001.. |
//! | 32..40 | reply slot sequence (request), charged ns (reply) |
//! | 40..48 | generation |
//! | 48..56 | epoch |
//! | 56..60 | CRC-32 of the body |
//! | 60..64 | CRC-32 of bytes 0..60 |
//!
//! Fields that a frame does not use are zero. The body of a request holds, in this order, the
//! offset of its payload in shared memory, the caller and the hints, each only if its flag is set,
//! and then the operation's arguments. The body of a reply holds the outcome, or nothing when the
//! status is not 0; with flag 256, attributes of a directory follow. A payload in shared memory
//! does not follow the body; the header states its length all the same.

mod error;
mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use error::FrameError;
pub use reply::{decode_reply, encode_reply, encode_reply_shared};
pub use request::{
    decode_request, decode_request_shared, encode_request, encode_request_shared, op_code,
};

use crate::message::{
    BODY_MAX, CHUNK_MIN, Handle, Lock, LockFamily, LockKind, NAME_MAX, Name, PAYLOAD_LIMIT,
    Pipeline, Pipelining,
};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Length of the header, in bytes.
pub const HEADER_LEN: usize = 64;
/// Largest length of header and body together, in bytes.
pub const HEAD_MAX: usize = HEADER_LEN + BODY_MAX;
/// The id of a reply that answers no request. With it a forwarder tells clients that it has given
/// up the reply's seat ([`Op::ReclaimDone`](crate::Op::ReclaimDone)), or that it recalls what it
/// has lent them ([`Op::GiveBack`](crate::Op::GiveBack)).
pub const NOTICE: u64 = 0;
/// The version of the frame that this code speaks.
pub const VERSION: u8 = 9;

const MAGIC: [u8; 4] = *b"TGW1";

const FLAG_REPLY: u16 = 1;
const FLAG_REPLAY: u16 = 2;
const FLAG_REPLY_SLOT: u16 = 4;
const FLAG_CALLER: u16 = 8;
const FLAG_HINTS: u16 = 16;
const FLAG_SHARED: u16 = 32;
const FLAG_LENT_ASKED: u16 = 64;
const FLAG_LENT_FOUND: u16 = 128;
const FLAG_LENT_DIRECTORY: u16 = 256;
const FLAGS: u16 = 511;

/// A header that [`decode_header`] has checked: magic, version, flags, lengths and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whether the frame is a reply; otherwise it is a request.
    pub reply: bool,
    /// Bytes of body that follow.
    pub body_len: u32,
    /// Bytes of payload that follow the body, or lie in shared memory.
    pub payload_len: u32,
    /// Whether the payload, or that of the reply to come, lies in memory that both ends share.
    pub shared: bool,
    /// The header's checked bytes, for [`decode_request`] and [`decode_reply`].
    pub(crate) bytes: [u8; HEADER_LEN],
}

impl Header {
    /// Id of the request that the frame is, or answers.
    pub fn id(&self) -> u64 {
        self.u64_at(8)
    }

    /// Op code of the request that the frame is, or answers. It may be unknown.
    pub fn op(&self) -> u8 {
        self.bytes[5]
    }

    fn u16_at(&self, at: usize) -> u16 {
        u16::from_le_bytes(array(&self.bytes, at))
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from_le_bytes(array(&self.bytes, at))
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64::from_le_bytes(array(&self.bytes, at))
    }

    fn flag(&self, flag: u16) -> bool {
        self.u16_at(6) & flag != 0
    }

    /// Checks length and checksum of the body that came with this header.
    fn check_body(&self, body: &[u8]) -> Result<(), FrameError> {
        if body.len() != self.body_len as usize {
            return Err(FrameError::Truncated);
        }
        if checksum(body) != self.u32_at(56) {
            return Err(FrameError::BodyChecksum);
        }
        Ok(())
    }
}

/// Checks a header. `payload_max` is the largest payload that the session agreed on, in bytes. An
/// unknown op code is no error here.
pub fn decode_header(bytes: &[u8; HEADER_LEN], payload_max: u32) -> Result<Header, FrameError> {
    let mut header = Header {
        reply: false,
        body_len: 0,
        payload_len: 0,
        shared: false,
        bytes: *bytes,
    };
    if bytes[..4] != MAGIC {
        return Err(FrameError::Magic);
    }
    if bytes[4] != VERSION {
        return Err(FrameError::Version(bytes[4]));
    }
    if checksum(&bytes[..60]) != header.u32_at(60) {
        return Err(FrameError::HeaderChecksum);
    }
    let flags = header.u16_at(6);
    let reply = flags & FLAG_REPLY != 0;
    let lent = FLAG_LENT_ASKED | FLAG_LENT_FOUND | FLAG_LENT_DIRECTORY;
    let of_other_kind = match reply {
        true => flags & !(FLAG_REPLY | FLAG_SHARED | lent),
        false => flags & lent,
    };
    if flags & !FLAGS != 0 || of_other_kind != 0 {
        return Err(FrameError::Flags(flags));
    }
    header.reply = reply;
    header.shared = flags & FLAG_SHARED != 0;
    header.body_len = header.u32_at(20);
    header.payload_len = header.u32_at(24);
    if header.body_len as usize > BODY_MAX {
        return Err(FrameError::BodyLength(header.body_len));
    }
    if header.payload_len > payload_max {
        return Err(FrameError::PayloadLength(header.payload_len));
    }
    let reply_slot = reply || flags & FLAG_REPLY_SLOT != 0;
    if !reply_slot && (header.u16_at(18) != 0 || header.u64_at(32) != 0) {
        return Err(FrameError::Reserved);
    }
    if (reply && header.u16_at(18) != 0) || (!reply && header.u32_at(28) != 0) {
        return Err(FrameError::Reserved);
    }
    Ok(header)
}

/// The checksum of headers and bodies: CRC-32 as in zlib.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// The header fields of a request or a reply, before they are encoded.
struct Fields {
    op: u8,
    flags: u16,
    id: u64,
    seat: u16,
    reply_slot_index: u16,
    payload_len: u32,
    status: u32,
    /// A request's reply slot sequence, or a reply's charged ns.
    counter: u64,
    generation: u64,
    epoch: u64,
}

/// Fills in the header of a frame that starts at `start` and whose body is written already.
fn seal(fields: &Fields, out: &mut [u8], start: usize) {
    let (head, body) = out[start..].split_at_mut(HEADER_LEN);
    debug_assert!(body.len() <= BODY_MAX, "a body beyond its bound");
    head[..4].copy_from_slice(&MAGIC);
    head[4] = VERSION;
    head[5] = fields.op;
    head[6..8].copy_from_slice(&fields.flags.to_le_bytes());
    head[8..16].copy_from_slice(&fields.id.to_le_bytes());
    head[16..18].copy_from_slice(&fields.seat.to_le_bytes());
    head[18..20].copy_from_slice(&fields.reply_slot_index.to_le_bytes());
    head[20..24].copy_from_slice(&(body.len() as u32).to_le_bytes());
    head[24..28].copy_from_slice(&fields.payload_len.to_le_bytes());
    head[28..32].copy_from_slice(&fields.status.to_le_bytes());
    head[32..40].copy_from_slice(&fields.counter.to_le_bytes());
    head[40..48].copy_from_slice(&fields.generation.to_le_bytes());
    head[48..56].copy_from_slice(&fields.epoch.to_le_bytes());
    head[56..60].copy_from_slice(&checksum(body).to_le_bytes());
    let sum = checksum(&head[..60]);
    head[60..64].copy_from_slice(&sum.to_le_bytes());
}

/// Makes room for a header; returns where the frame starts.
fn begin(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.resize(start + HEADER_LEN, 0);
    start
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N]
        .try_into()
        .expect("a slice of N bytes is an array of N bytes")
}

/// Whether these bytes are a valid name in a directory: 1 to 255 bytes, no `/` or NUL, not `.` or
/// `..`.
pub fn name_is_valid(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len())
        && name != b"."
        && name != b".."
        && !name.iter().any(|&b| b == b'/' || b == 0)
}

/// Takes fields from the front of a body.
struct Reader<'a> {
    left: &'a [u8],
}

type Read<T> = Result<T, FrameError>;

impl<'a> Reader<'a> {
    fn new(body: &'a [u8]) -> Reader<'a> {
        Reader { left: body }
    }

    /// All bytes must have been taken.
    fn end(self) -> Read<()> {
        if self.left.is_empty() {
            Ok(())
        } else {
            Err(FrameError::Trailing)
        }
    }

    fn take(&mut self, len: usize) -> Read<&'a [u8]> {
        let (taken, left) = self
            .left
            .split_at_checked(len)
            .ok_or(FrameError::Truncated)?;
        self.left = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let (taken, left) = self
            .left
            .split_first_chunk::<N>()
            .ok_or(FrameError::Truncated)?;
        self.left = left;
        Ok(*taken)
    }

    fn u8(&mut self) -> Read<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Read<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Read<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Read<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn i64(&mut self) -> Read<i64> {
        self.array().map(i64::from_le_bytes)
    }

    fn bool(&mut self) -> Read<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(FrameError::Invalid("a yes or no")),
        }
    }

    /// Bytes with a 32-bit length in front.
    fn blob(&mut self, max: usize, what: &'static str) -> Read<Box<[u8]>> {
        let len = self.u32()? as usize;
        if len > max {
            return Err(FrameError::Invalid(what));
        }
        self.take(len).map(Box::from)
    }

    fn name(&mut self) -> Read<Name> {
        let len = usize::from(self.u8()?);
        let name = self.take(len)?;
        if name_is_valid(name) {
            Ok(Box::from(name))
        } else {
            Err(FrameError::Invalid("a name"))
        }
    }

    fn handle(&mut self) -> Read<Handle> {
        Ok(Handle {
            inode: self.u64()?,
            birth: self.u64()?,
        })
    }

    fn pipeline(&mut self) -> Read<Pipeline> {
        let mode = Pipelining::ALL.get(usize::from(self.u8()?)).copied();
        let mode = mode.ok_or(FrameError::Invalid("a way of pipelining"))?;
        let chunk_bytes = self.u32()?;
        if !(CHUNK_MIN..=PAYLOAD_LIMIT).contains(&chunk_bytes) {
            return Err(FrameError::Invalid("the length of a chunk"));
        }
        Ok(Pipeline { mode, chunk_bytes })
    }

    fn family(&mut self) -> Read<LockFamily> {
        match self.u8()? {
            0 => Ok(LockFamily::Range),
            1 => Ok(LockFamily::Whole),
            _ => Err(FrameError::Invalid("a lock's family")),
        }
    }

    fn lock(&mut self) -> Read<Lock> {
        let lock = Lock {
            family: self.family()?,
            kind: match self.u8()? {
                0 => LockKind::Shared,
                1 => LockKind::Exclusive,
                2 => LockKind::None,
                _ => return Err(FrameError::Invalid("a lock's kind")),
            },
            owner: self.u64()?,
            pid: self.u32()?,
            start: self.u64()?,
            end: self.u64()?,
        };
        if lock.start > lock.end {
            return Err(FrameError::Invalid("a lock's range"));
        }
        Ok(lock)
    }

    /// A 16-bit count of at least one.
    fn count(&mut self, max: usize, what: &'static str) -> Read<usize> {
        let count = usize::from(self.u16()?);
        if (1..=max).contains(&count) {
            Ok(count)
        } else {
            Err(FrameError::Invalid(what))
        }
    }
}

/// Appends fields to a body.
trait Writer {
    fn u8(&mut self, value: u8);
    fn u16(&mut self, value: u16);
    fn u32(&mut self, value: u32);
    fn u64(&mut self, value: u64);
    fn i64(&mut self, value: i64);
    fn blob(&mut self, bytes: &[u8]);
    fn name(&mut self, name: &[u8]);
    fn handle(&mut self, handle: Handle);
    fn pipeline(&mut self, pipeline: Pipeline);
    fn lock(&mut self, lock: &Lock);
}

/// Code of a lock family.
fn family_code(family: LockFamily) -> u8 {
    match family {
        LockFamily::Range => 0,
        LockFamily::Whole => 1,
    }
}

impl Writer for Vec<u8> {
    fn u8(&mut self, value: u8) {
        self.push(value);
    }

    fn u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn i64(&mut self, value: i64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn blob(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.extend_from_slice(bytes);
    }

    fn name(&mut self, name: &[u8]) {
        debug_assert!(name.len() <= NAME_MAX, "a name beyond its bound");
        self.u8(name.len() as u8);
        self.extend_from_slice(name);
    }

    fn handle(&mut self, handle: Handle) {
        self.u64(handle.inode);
        self.u64(handle.birth);
    }

    fn pipeline(&mut self, pipeline: Pipeline) {
        self.u8(pipeline.mode as u8);
        self.u32(pipeline.chunk_bytes);
    }

    fn lock(&mut self, lock: &Lock) {
        self.u8(family_code(lock.family));
        self.u8(match lock.kind {
            LockKind::Shared => 0,
            LockKind::Exclusive => 1,
            LockKind::None => 2,
        });
        self.u64(lock.owner);
        self.u32(lock.pid);
        self.u64(lock.start);
        self.u64(lock.end);
    }
}
