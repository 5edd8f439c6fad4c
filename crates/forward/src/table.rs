//! The reply table of a seat: per client row, what was begun and what came of it.
//!
//! It lives in memory that outlives the forwarder's process (a mapped file in `.tidegate`), so that
//! the next holder of the seat can answer a replay. Intent is stored before an effect, result
//! after.
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
pub const CLIENTS_MAX: usize = 1024;
/// Rows of each client.
pub const ROWS: usize = 64;
/// Bytes that a seat's table file must have.
pub const TABLE_BYTES: usize = table_bytes(CLIENTS_MAX);

const CLIENT_BYTES: usize = 64;
/// Bytes of one client's rows.
const BLOCK_BYTES: usize = ROWS * RowRecord::BYTES_MAX;
/// Clients whose entries are loaded together.
const LOADED_TOGETHER: usize = 64;
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

    fn empty() -> RowRecord {
        RowRecord {
            state: RowState::Empty,
            sequence: 0,
            intent: Box::default(),
            result: None,
        }
    }
}

/// Memory of one seat's table. Shared by the core and the threads that carry out operations; a row
/// is used by one of them at a time.
pub trait SeatTable: Send + Sync {
    /// Copies `bytes.len()` bytes from `at`.
    fn load(&self, at: usize, bytes: &mut [u8]);
    /// Stores bytes at `at`, then is visible to whoever maps the file, in program order with other
    /// stores.
    fn store(&self, at: usize, bytes: &[u8]);
    /// Makes sure that later stores into `len` bytes from `at` find room where the table is kept;
    /// false if there is none. Told before a client gets its rows, which nobody uses then: what
    /// they hold may be lost.
    fn reserve(&self, at: usize, len: usize) -> bool {
        let _ = (at, len);
        true
    }
    /// Bytes of the table: [`TABLE_BYTES`], whatever the file held before.
    fn len(&self) -> usize;
    /// A table has a fixed, positive length.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Bytes of the front of a table up to the rows of its first `clients` clients.
pub const fn table_bytes(clients: usize) -> usize {
    CLIENTS_MAX * CLIENT_BYTES + clients * BLOCK_BYTES
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
    let mut bytes = [0; LOADED_TOGETHER * CLIENT_BYTES];
    for first in (0..CLIENTS_MAX).step_by(LOADED_TOGETHER) {
        table.load(first * CLIENT_BYTES, &mut bytes);
        for (index, entry) in bytes.chunks_exact(CLIENT_BYTES).enumerate() {
            let client = u64_at(entry, 0);
            if client == 0 {
                continue;
            }
            if u32_at(entry, 8) != crc(&[&entry[..8]]) {
                damaged += 1;
                continue;
            }
            found.push(ClientEntry {
                block: (first + index) as u16,
                client,
                held: entry[HELD_AT] != 0,
            });
        }
    }
    (found, damaged)
}

/// Gives a block to a client: empties its rows, then names the client. False if the table has no
/// room for them.
pub(crate) fn enter(table: &dyn SeatTable, block: u16, client: u64) -> bool {
    if !table.reserve(table_bytes(usize::from(block)), BLOCK_BYTES) {
        return false;
    }
    for index in 0..ROWS {
        let row = row_number(block, index as u16);
        // Most are empty, and a store would take memory for each.
        if peek(table, row).0 != RowState::Empty {
            clear(table, row);
        }
    }
    let mut bytes = [0; CLIENT_BYTES];
    bytes[..8].copy_from_slice(&client.to_le_bytes());
    let checksum = crc(&[&bytes[..8]]);
    bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
    table.store(usize::from(block) * CLIENT_BYTES, &bytes);
    true
}

/// Takes a block away from its client.
pub(crate) fn leave(table: &dyn SeatTable, block: u16) {
    table.store(usize::from(block) * CLIENT_BYTES, &[0; CLIENT_BYTES]);
}

/// Marks that the client of a block has opens or locks at this seat, so that the next holder waits
/// for it.
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
        return RowRecord::empty();
    }
    let intent = &bytes[INTENT_AT..][..intent_len];
    if u32_at(&bytes, 12) != crc(&[&bytes[..12], intent]) {
        return RowRecord::empty();
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
        return RowRecord::empty();
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

/// CRC-32 (IEEE) of several pieces, a byte at a time: rows are short, so a small table will do.
fn crc(pieces: &[&[u8]]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0u32; 256];
        let mut i = 0;
        while i < 256 {
            let mut value = i as u32;
            let mut bit = 0;
            while bit < 8 {
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
    for piece in pieces {
        for byte in *piece {
            crc = crc >> 8 ^ TABLE[(crc as u8 ^ byte) as usize];
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ModelTable, Switch};

    const RESULT: Result<Outcome, Status> = Ok(Outcome::Appended { offset: 7, len: 9 });

    fn table() -> (Switch, ModelTable) {
        let switch = Switch::new();
        (switch.clone(), ModelTable::new(&switch))
    }

    #[test]
    fn the_crc_is_the_usual_one() {
        assert_eq!(crc(&[b"1234", b"56789"]), 0xcbf4_3926);
    }

    #[test]
    fn clients_come_and_go_and_are_found_again() {
        let (_, table) = table();
        let last = CLIENTS_MAX as u16 - 1;
        assert!(enter(&table, 3, 77) && enter(&table, last, 88));
        set_held(&table, last, true);
        let entry = |block, client, held| ClientEntry {
            block,
            client,
            held,
        };
        assert_eq!(
            clients(&table),
            (alloc::vec![entry(3, 77, false), entry(last, 88, true)], 0)
        );
        leave(&table, 3);
        set_held(&table, last, false);
        assert_eq!(clients(&table), (alloc::vec![entry(last, 88, false)], 0));
    }

    #[test]
    fn a_new_client_finds_the_rows_of_its_block_empty() {
        let (_, table) = table();
        enter(&table, 3, 77);
        let row = row_number(3, 63);
        record(&table, row, 1, &RESULT);
        leave(&table, 3);
        enter(&table, 3, 88);
        assert_eq!(read(&table, row).state, RowState::Empty);
        assert_eq!(peek(&table, row), (RowState::Empty, 0));
    }

    #[test]
    fn every_result_comes_back() {
        let (_, table) = table();
        let attr = tidegate_wire::Attr {
            handle: tidegate_wire::Handle { inode: 1, birth: 2 },
            size: 3,
            blocks: 4,
            atime_ns: -5,
            mtime_ns: 6,
            ctime_ns: 7,
            mode: 8,
            nlink: 9,
            uid: 10,
            gid: 11,
            rdev: 12,
            block_size: 13,
        };
        let results = [
            Ok(Outcome::Done),
            Ok(Outcome::Attr(attr)),
            Ok(Outcome::Removed(None)),
            Ok(Outcome::Removed(Some(attr.handle))),
            Ok(Outcome::Written { len: 5 }),
            RESULT,
            Err(Status::Errno(28)),
        ];
        for (sequence, result) in results.into_iter().enumerate() {
            begin(&table, 9, sequence as u64, b"intent");
            finish(&table, 9, sequence as u64, &result);
            let stored = read(&table, 9);
            assert_eq!(
                (stored.state, stored.sequence),
                (RowState::Done, sequence as u64)
            );
            assert_eq!(
                (&*stored.intent, stored.result),
                (&b"intent"[..], Some(result))
            );
        }
    }

    /// Kills a record at every store, whole and torn: what is read is old, empty, or new, never
    /// mixed.
    #[test]
    fn a_record_that_is_torn_anywhere_is_old_empty_or_new() {
        for torn in [false, true] {
            for stores in 0..10 {
                let (switch, table) = table();
                record(&table, 0, 1, &Ok(Outcome::Done));
                switch.fail_after(stores, torn);
                begin(&table, 0, 2, b"an intent of some length");
                finish(&table, 0, 2, &RESULT);
                let now = read(&table, 0);
                match (now.state, now.sequence) {
                    (RowState::Done, 1) => assert_eq!(now.result, Some(Ok(Outcome::Done))),
                    (RowState::Empty, _) => {}
                    (RowState::Intent, 2) => {
                        assert_eq!(&*now.intent, b"an intent of some length");
                    }
                    (RowState::Done, 2) => assert_eq!(now.result, Some(RESULT)),
                    other => panic!("{other:?} after {stores} stores"),
                }
                // An effect lies between begin's last store and finish's first.
                let begun = stores >= 4;
                assert_eq!(begun, now.sequence == 2, "after {stores} stores: {now:?}");
            }
        }
    }

    #[test]
    fn a_flipped_bit_never_makes_another_record() {
        let (_, table) = table();
        begin(&table, 0, 2, b"an intent");
        finish(&table, 0, 2, &RESULT);
        let good = read(&table, 0);
        for bit in 0..RowRecord::BYTES_MAX * 8 {
            let at = row_at(0) + bit / 8;
            let mut byte = [0];
            table.load(at, &mut byte);
            table.store(at, &[byte[0] ^ 1 << (bit % 8)]);
            let bad = read(&table, 0);
            let expected = match bad.state {
                RowState::Done => good.clone(),
                RowState::Intent => RowRecord {
                    state: RowState::Intent,
                    result: None,
                    ..good.clone()
                },
                RowState::Empty => RowRecord::empty(),
            };
            assert_eq!(bad, expected, "bit {bit}");
            table.store(at, &byte);
        }
    }
}
