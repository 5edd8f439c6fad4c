//! The reply table of a seat: per client row, what was begun and what came of it.
//!
//! It lives in memory that outlives the forwarder's process (a mapped file in `.tidegate`), so that the
//! next holder of the seat can answer a replay. Intent is stored before an effect, result after.
//!
//! | bytes | what |
//! |---|---|
//! | `64 * c ..` | client `c`: id (8), CRC-32 of the id (4), zero (4), held (1), zero |
//! | `64 * CLIENTS_MAX + 1024 * r ..` | row `r = c * ROWS + index` |
//!
//! | bytes of a row | what |
//! |---|---|
//! | 0..8 | sequence |
//! | 8..10 | length of the intent |
//! | 10..12 | zero |
//! | 12..16 | CRC-32 of bytes 0..12 and the intent |
//! | 16 | state: 0 empty, 1 intent, 2 done |
//! | 20..22 | length of the result |
//! | 22..24 | zero |
//! | 24..28 | CRC-32 of bytes 0..8, 20..24 and the result |
//! | 32..896 | intent |
//! | 896..1024 | result |
//!
//! A state is one byte and is stored after what it speaks of, so a process that dies between two
//! stores leaves the old record, an empty row or the new record. Whatever fails its checksum counts
//! as not written: an unreadable result leaves the intent, an unreadable intent an empty row.

use crate::result::{decode_result, encode_result};
use alloc::boxed::Box;
use tidegate_wire::{Outcome, Status};

/// Clients that one seat's table has room for.
pub const CLIENTS_MAX: usize = 256;
/// Rows of each client.
pub const ROWS: usize = 64;
/// Bytes that a seat's table file must have.
pub const TABLE_BYTES: usize =
    CLIENTS_MAX * CLIENT_BYTES + CLIENTS_MAX * ROWS * RowRecord::BYTES_MAX;

const CLIENT_BYTES: usize = 64;
const HELD_AT: usize = 16;
const STATE_AT: usize = 16;
const RESULT_HEAD_AT: usize = 20;
const INTENT_AT: usize = 32;
const RESULT_AT: usize = 896;
/// Longest intent.
pub(crate) const INTENT_MAX: usize = RESULT_AT - INTENT_AT;
/// Longest result.
pub(crate) const RESULT_MAX: usize = RowRecord::BYTES_MAX - RESULT_AT;

/// How far a row's request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowState {
    /// Nothing recorded, or a record that was being written when the process died.
    Empty,
    /// Begun; whether it took effect must be looked up.
    Intent,
    /// The result stands.
    Done,
}

/// One row. `forward` encodes it to at most [`RowRecord::BYTES_MAX`] bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowRecord {
    /// How far.
    pub state: RowState,
    /// Sequence number of the request.
    pub sequence: u64,
    /// What was begun, enough to look its outcome up (encoded by [`crate::effect`]).
    pub intent: Box<[u8]>,
    /// What came of it, when done.
    pub result: Option<Result<Outcome, Status>>,
}

impl RowRecord {
    /// Room for a record: two names, four handles, attributes.
    pub const BYTES_MAX: usize = 1024;

    const EMPTY: fn() -> RowRecord = || RowRecord {
        state: RowState::Empty,
        sequence: 0,
        intent: Box::default(),
        result: None,
    };
}

/// Memory of one seat's table. Shared by the core and the threads that carry out operations; a row is
/// used by one of them at a time.
pub trait SeatTable: Send + Sync {
    /// Copies `bytes.len()` bytes from `at`.
    fn load(&self, at: usize, bytes: &mut [u8]);
    /// Stores bytes at `at`, then is visible to whoever maps the file, in program order with other stores.
    fn store(&self, at: usize, bytes: &[u8]);
    /// Bytes of the table: [`TABLE_BYTES`], whatever the file held before.
    fn len(&self) -> usize;
    /// A table has a fixed, positive length.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What the table says of one of its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientEntry {
    /// Position in the header, which is that of its rows.
    pub(crate) block: u16,
    /// The client's id, not 0.
    pub(crate) client: u64,
    /// The client had opens or locks at this seat.
    pub(crate) held: bool,
}

/// The clients in the header, in order of position; and how many entries are damaged.
pub(crate) fn clients(table: &dyn SeatTable) -> (alloc::vec::Vec<ClientEntry>, usize) {
    let (mut found, mut damaged) = (alloc::vec::Vec::new(), 0);
    for block in 0..CLIENTS_MAX {
        let mut bytes = [0; HELD_AT + 1];
        table.load(block * CLIENT_BYTES, &mut bytes);
        let client = u64_at(&bytes, 0);
        let damage = u32_at(&bytes, 8) != crc(&[&bytes[..8]]);
        if client == 0 {
            continue;
        }
        if damage {
            damaged += 1;
            continue;
        }
        let held = bytes[HELD_AT] != 0;
        found.push(ClientEntry {
            block: block as u16,
            client,
            held,
        });
    }
    (found, damaged)
}

/// Gives a block to a client: empties its rows, then names the client.
pub(crate) fn enter(table: &dyn SeatTable, block: u16, client: u64) {
    for index in 0..ROWS {
        clear(table, row_number(block, index as u16));
    }
    let mut bytes = [0; CLIENT_BYTES];
    bytes[..8].copy_from_slice(&client.to_le_bytes());
    let checksum = crc(&[&bytes[..8]]);
    bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
    table.store(usize::from(block) * CLIENT_BYTES, &bytes);
}

/// Takes a block away from its client.
pub(crate) fn leave(table: &dyn SeatTable, block: u16) {
    table.store(usize::from(block) * CLIENT_BYTES, &[0; CLIENT_BYTES]);
}

/// Marks that the client of a block has opens or locks at this seat, so that the next holder waits for it.
pub(crate) fn set_held(table: &dyn SeatTable, block: u16, held: bool) {
    table.store(
        usize::from(block) * CLIENT_BYTES + HELD_AT,
        &[u8::from(held)],
    );
}

/// The number of a client's row over all clients.
pub(crate) fn row_number(block: u16, index: u16) -> u32 {
    u32::from(block) * ROWS as u32 + u32::from(index)
}

/// State and sequence of a row, without its contents: cheap enough for every write.
pub(crate) fn peek(table: &dyn SeatTable, row: u32) -> (RowState, u64) {
    let mut head = [0; INTENT_AT];
    table.load(row_at(row), &mut head);
    match head[STATE_AT] {
        0 => (RowState::Empty, 0),
        1 => (RowState::Intent, u64_at(&head, 0)),
        _ => (RowState::Done, u64_at(&head, 0)),
    }
}

/// A row as far as its checksums vouch for it.
pub(crate) fn read(table: &dyn SeatTable, row: u32) -> RowRecord {
    let mut bytes = [0; RowRecord::BYTES_MAX];
    table.load(row_at(row), &mut bytes);
    let sequence = u64_at(&bytes, 0);
    let intent_len = usize::from(u16_at(&bytes, 8));
    let result_len = usize::from(u16_at(&bytes, RESULT_HEAD_AT));
    if !matches!(bytes[STATE_AT], 1 | 2) || intent_len > INTENT_MAX {
        return (RowRecord::EMPTY)();
    }
    let intent = &bytes[INTENT_AT..][..intent_len];
    if u32_at(&bytes, 12) != crc(&[&bytes[..12], intent]) {
        return (RowRecord::EMPTY)();
    }
    let mut record = RowRecord {
        state: RowState::Intent,
        sequence,
        intent: intent.into(),
        result: None,
    };
    if bytes[STATE_AT] == 2 && result_len <= RESULT_MAX {
        let result = &bytes[RESULT_AT..][..result_len];
        if u32_at(&bytes, 24) == crc(&[&bytes[..8], &bytes[20..24], result]) {
            record.result = decode_result(result);
        }
        if record.result.is_some() {
            record.state = RowState::Done;
        }
    }
    if record.state == RowState::Intent && record.intent.is_empty() {
        // Nothing was recorded that could be looked up.
        return (RowRecord::EMPTY)();
    }
    record
}

/// Records that an operation begins.
pub(crate) fn begin(table: &dyn SeatTable, row: u32, sequence: u64, intent: &[u8]) {
    assert!(
        intent.len() <= INTENT_MAX,
        "an intent is longer than its room"
    );
    let at = row_at(row);
    table.store(at + STATE_AT, &[0]);
    table.store(at + INTENT_AT, intent);
    table.store(at, &intent_head(sequence, intent));
    table.store(at + STATE_AT, &[1]);
}

/// Records the result of what [`begin`] began.
pub(crate) fn finish(
    table: &dyn SeatTable,
    row: u32,
    sequence: u64,
    result: &Result<Outcome, Status>,
) {
    let at = row_at(row);
    store_result(table, at, sequence, result);
    table.store(at + STATE_AT, &[2]);
}

/// Records the result of an operation that needs no intent, because a replay may repeat it.
pub(crate) fn record(
    table: &dyn SeatTable,
    row: u32,
    sequence: u64,
    result: &Result<Outcome, Status>,
) {
    let at = row_at(row);
    table.store(at + STATE_AT, &[0]);
    table.store(at, &intent_head(sequence, &[]));
    store_result(table, at, sequence, result);
    table.store(at + STATE_AT, &[2]);
}

/// Forgets a row's record.
pub(crate) fn clear(table: &dyn SeatTable, row: u32) {
    table.store(row_at(row) + STATE_AT, &[0]);
}

fn row_at(row: u32) -> usize {
    CLIENTS_MAX * CLIENT_BYTES + row as usize * RowRecord::BYTES_MAX
}

fn intent_head(sequence: u64, intent: &[u8]) -> [u8; STATE_AT] {
    let mut head = [0; STATE_AT];
    head[..8].copy_from_slice(&sequence.to_le_bytes());
    head[8..10].copy_from_slice(&(intent.len() as u16).to_le_bytes());
    let checksum = crc(&[&head[..12], intent]);
    head[12..16].copy_from_slice(&checksum.to_le_bytes());
    head
}

fn store_result(table: &dyn SeatTable, at: usize, sequence: u64, result: &Result<Outcome, Status>) {
    let mut bytes = [0; RESULT_MAX];
    let len = encode_result(result, &mut bytes);
    let mut head = [0; 8];
    head[..2].copy_from_slice(&(len as u16).to_le_bytes());
    let checksum = crc(&[&sequence.to_le_bytes(), &head[..4], &bytes[..len]]);
    head[4..8].copy_from_slice(&checksum.to_le_bytes());
    table.store(at + RESULT_AT, &bytes[..len]);
    table.store(at + RESULT_HEAD_AT, &head);
}

/// CRC-32 (IEEE) of several pieces, four bits at a time: rows are short, so a small table will do.
fn crc(pieces: &[&[u8]]) -> u32 {
    const TABLE: [u32; 16] = {
        let mut table = [0u32; 16];
        let mut i = 0;
        while i < 16 {
            let mut value = i as u32;
            let mut bit = 0;
            while bit < 4 {
                value = if value & 1 == 1 {
                    value >> 1 ^ 0xedb8_8320
                } else {
                    value >> 1
                };
                bit += 1;
            }
            table[i] = value;
            i += 1;
        }
        table
    };
    let mut crc = !0u32;
    for &byte in pieces.iter().copied().flatten() {
        crc ^= u32::from(byte);
        crc = crc >> 4 ^ TABLE[crc as usize & 15];
        crc = crc >> 4 ^ TABLE[crc as usize & 15];
    }
    !crc
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
