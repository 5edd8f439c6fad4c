//! The bytes of a trace: blocks of 96 bytes, little-endian, each with a checksum of its own.
//!
//! A file is a sequence of blocks and nothing else. So a reader can read a file that a crash cut
//! short up to the cut, and a recorder that starts again appends behind the last whole block.
//! docs/traces.md has the layout as a table.

use crate::record::{Header, Origin, Record, Shuffle};
use tidegate_sched::{AppId, Direction, FileId};

/// Bytes of a block.
pub const BLOCK_LEN: usize = 96;
/// The version that is written, and the only one that is read.
pub const VERSION: u16 = 1;
/// Begins every trace: the first bytes of a header block.
pub const MAGIC: [u8; 8] = *b"TIDETRC\n";
/// Bytes of an application's name that a block has room for.
pub const NAME_MAX: usize = 80;

/// A block.
pub type Bytes = [u8; BLOCK_LEN];

const CHECK_AT: usize = 92;
const HEADER: u8 = MAGIC[0];
const REQUEST: u8 = 1;
const NAME: u8 = 2;
const LOSS: u8 = 3;
const END: u8 = 4;
const SHUFFLE: u8 = 5;
const NO_FORWARDER: u16 = u16::MAX;

const ISSUE_KNOWN: u16 = 1;
const WAIT_KNOWN: u16 = 2;
const SERVICE_KNOWN: u16 = 4;
const APPEND: u16 = 8;
const LISTED: u16 = 16;
const FLAGS_ALL: u16 = 31;

/// What a block says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// A recording begins; times of the records that follow count from its zero.
    Header(Header),
    /// A request, all of it but its shuffle.
    Request(Record),
    /// The shuffle that follows the next request in its operation.
    Shuffle(Shuffle),
    /// An application's name.
    Name(AppId, String),
    /// The number of requests that this recording has dropped so far.
    Loss(u64),
    /// The recording ended in order.
    End {
        /// Requests recorded.
        recorded: u64,
        /// Requests dropped.
        dropped: u64,
        /// When, ns since the zero.
        at_ns: u64,
    },
}

/// Why 96 bytes are not a valid block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// Wrong checksum.
    #[error("the checksum is wrong")]
    Checksum,
    /// A version that is not known.
    #[error("the format's version is {0}, and only 1 is known")]
    Version(u16),
    /// A kind of block that is not known.
    #[error("a block of the unknown kind {0}")]
    Kind(u8),
    /// The fields contradict each other.
    #[error("{0} is not valid")]
    Field(&'static str),
}

impl Block {
    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let mut bytes = [0; BLOCK_LEN];
        match self {
            Block::Header(header) => encode_header(header, &mut bytes),
            Block::Request(record) => bytes = encode_record(record),
            Block::Shuffle(shuffle) => bytes = encode_shuffle(shuffle),
            Block::Name(app, name) => {
                let name = shorten(name);
                bytes[0] = NAME;
                bytes[1] = name.len() as u8;
                put(&mut bytes, 4, &app.0.to_le_bytes());
                put(&mut bytes, 12, name.as_bytes());
            }
            Block::Loss(dropped) => {
                bytes[0] = LOSS;
                put(&mut bytes, 8, &dropped.to_le_bytes());
            }
            Block::End {
                recorded,
                dropped,
                at_ns,
            } => {
                bytes[0] = END;
                put(&mut bytes, 8, &recorded.to_le_bytes());
                put(&mut bytes, 16, &dropped.to_le_bytes());
                put(&mut bytes, 24, &at_ns.to_le_bytes());
            }
        }
        seal(&mut bytes);
        bytes
    }

    /// What the bytes say. Never panics; what decodes encodes to the same bytes.
    pub fn decode(bytes: &Bytes) -> Result<Block, BlockError> {
        if bytes[..8] == MAGIC && u16_at(bytes, 8) != VERSION {
            // Told before the checksum, which another version may compute otherwise.
            return Err(BlockError::Version(u16_at(bytes, 8)));
        }
        if u32_at(bytes, CHECK_AT) != checksum(bytes) {
            return Err(BlockError::Checksum);
        }
        let block = match bytes[0] {
            HEADER => Block::Header(decode_header(bytes)?),
            REQUEST => Block::Request(decode_record(bytes)?),
            SHUFFLE => Block::Shuffle(Shuffle {
                us: u32_at(bytes, 8),
                max_us: u32_at(bytes, 12),
                rank: u16_at(bytes, 16),
            }),
            NAME => {
                let len = usize::from(bytes[1]);
                let text = bytes[12..12 + NAME_MAX].get(..len);
                let text = text.and_then(|text| std::str::from_utf8(text).ok());
                let text = text.ok_or(BlockError::Field("an application's name"))?;
                Block::Name(AppId(u64_at(bytes, 4)), text.to_string())
            }
            LOSS => Block::Loss(u64_at(bytes, 8)),
            END => Block::End {
                recorded: u64_at(bytes, 8),
                dropped: u64_at(bytes, 16),
                at_ns: u64_at(bytes, 24),
            },
            kind => return Err(BlockError::Kind(kind)),
        };
        // One place that refuses whatever lies in the unused parts of a block.
        match block.encode() == *bytes {
            true => Ok(block),
            false => Err(BlockError::Field("an unused part")),
        }
    }
}

/// The record's block without the checksum, which [`seal`] sets later, on the writing thread.
pub(crate) fn encode_record(record: &Record) -> Bytes {
    let mut bytes = [0; BLOCK_LEN];
    let flag = |set: bool, flag: u16| if set { flag } else { 0 };
    let flags = flag(record.issue_ns.is_some(), ISSUE_KNOWN)
        | flag(record.wait_ns.is_some(), WAIT_KNOWN)
        | flag(record.service_ns.is_some(), SERVICE_KNOWN)
        | flag(record.append, APPEND)
        | flag(record.listed, LISTED);
    bytes[0] = REQUEST;
    bytes[1] = record.direction as u8;
    put(&mut bytes, 2, &flags.to_le_bytes());
    let forwarder = record.forwarder.unwrap_or(NO_FORWARDER);
    put(&mut bytes, 4, &forwarder.to_le_bytes());
    put(&mut bytes, 6, &record.errno.to_le_bytes());
    put(&mut bytes, 8, &record.arrival_ns.to_le_bytes());
    put(&mut bytes, 16, &record.issue_ns.unwrap_or(0).to_le_bytes());
    put(&mut bytes, 24, &record.app.0.to_le_bytes());
    put(&mut bytes, 32, &record.operation.to_le_bytes());
    put(&mut bytes, 40, &record.file.0.to_le_bytes());
    put(&mut bytes, 48, &record.offset.to_le_bytes());
    put(&mut bytes, 56, &record.len.to_le_bytes());
    put(&mut bytes, 64, &record.done.to_le_bytes());
    put(&mut bytes, 72, &record.wait_ns.unwrap_or(0).to_le_bytes());
    put(
        &mut bytes,
        80,
        &record.service_ns.unwrap_or(0).to_le_bytes(),
    );
    put(&mut bytes, 88, &record.client.to_le_bytes());
    bytes
}

/// The block of the record's shuffle, if it has one; it stands before the record's own block.
pub(crate) fn encode_shuffle(shuffle: &Shuffle) -> Bytes {
    let mut bytes = [0; BLOCK_LEN];
    bytes[0] = SHUFFLE;
    put(&mut bytes, 8, &shuffle.us.to_le_bytes());
    put(&mut bytes, 12, &shuffle.max_us.to_le_bytes());
    put(&mut bytes, 16, &shuffle.rank.to_le_bytes());
    bytes
}

/// Whether a block is a record's own, and not the one of its shuffle.
pub(crate) fn is_record(bytes: &Bytes) -> bool {
    bytes[0] == REQUEST
}

/// Sets a block's checksum.
pub(crate) fn seal(bytes: &mut Bytes) {
    let check = checksum(bytes);
    put(bytes, CHECK_AT, &check.to_le_bytes());
}

/// The checksum that a block must have in its last four bytes: CRC-32 (as in zip) of the others.
pub fn checksum(bytes: &Bytes) -> u32 {
    crc32fast::hash(&bytes[..CHECK_AT])
}

/// When the request of a record's block was done, ns since the zero.
pub(crate) fn done_ns(bytes: &Bytes) -> u64 {
    let arrival = u64_at(bytes, 8);
    let spent = u64_at(bytes, 72).saturating_add(u64_at(bytes, 80));
    arrival.saturating_add(spent)
}

/// As much of a name as a block has room for, cut between characters.
pub(crate) fn shorten(name: &str) -> &str {
    let mut len = name.len().min(NAME_MAX);
    while !name.is_char_boundary(len) {
        len -= 1;
    }
    &name[..len]
}

fn encode_header(header: &Header, bytes: &mut Bytes) {
    put(bytes, 0, &MAGIC);
    put(bytes, 8, &VERSION.to_le_bytes());
    put(bytes, 10, &(BLOCK_LEN as u16).to_le_bytes());
    put(bytes, 12, &header.forwarders.to_le_bytes());
    bytes[14] = header.origin as u8;
    put(bytes, 16, &header.zero_wall_ns.to_le_bytes());
    put(bytes, 24, &header.stripe.to_le_bytes());
}

fn decode_header(bytes: &Bytes) -> Result<Header, BlockError> {
    if bytes[..8] != MAGIC {
        return Err(BlockError::Kind(bytes[0]));
    }
    if usize::from(u16_at(bytes, 10)) != BLOCK_LEN {
        return Err(BlockError::Field("the length of a block"));
    }
    let origins = [Origin::Forwarder, Origin::Darshan, Origin::Simulation];
    let origin = origins.get(usize::from(bytes[14])).copied();
    Ok(Header {
        zero_wall_ns: u64_at(bytes, 16),
        forwarders: u16_at(bytes, 12),
        stripe: u64_at(bytes, 24),
        origin: origin.ok_or(BlockError::Field("the origin"))?,
    })
}

fn decode_record(bytes: &Bytes) -> Result<Record, BlockError> {
    let flags = u16_at(bytes, 2);
    if flags & !FLAGS_ALL != 0 {
        return Err(BlockError::Field("a flag"));
    }
    let direction = match bytes[1] {
        0 => Direction::Read,
        1 => Direction::Write,
        _ => return Err(BlockError::Field("the direction")),
    };
    let known = |flag: u16, value: u64| (flags & flag != 0).then_some(value);
    Ok(Record {
        arrival_ns: u64_at(bytes, 8),
        issue_ns: known(ISSUE_KNOWN, u64_at(bytes, 16)).map(|ns| ns as i64),
        app: AppId(u64_at(bytes, 24)),
        operation: u64_at(bytes, 32),
        file: FileId(u64_at(bytes, 40)),
        client: u32_at(bytes, 88),
        forwarder: Some(u16_at(bytes, 4)).filter(|forwarder| *forwarder != NO_FORWARDER),
        direction,
        append: flags & APPEND != 0,
        listed: flags & LISTED != 0,
        offset: u64_at(bytes, 48),
        len: u64_at(bytes, 56),
        done: u64_at(bytes, 64),
        errno: u16_at(bytes, 6),
        wait_ns: known(WAIT_KNOWN, u64_at(bytes, 72)),
        service_ns: known(SERVICE_KNOWN, u64_at(bytes, 80)),
        shuffle: None,
    })
}

fn put(bytes: &mut Bytes, at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn array<const N: usize>(bytes: &Bytes, at: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&bytes[at..at + N]);
    value
}

fn u16_at(bytes: &Bytes, at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

fn u32_at(bytes: &Bytes, at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

fn u64_at(bytes: &Bytes, at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}
