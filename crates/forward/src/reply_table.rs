//! The reply table of a seat. For each reply slot of a client it holds the intent of the slot's
//! latest operation and the operation's result.
//!
//! The table outlives the seat's holder, so that the next holder can answer a replay. The holder
//! stores the intent before the operation takes effect, and the result afterwards. Where all
//! forwarders run on one node, the table is a mapped file in `.tidegate`, and every store outlives
//! the process. Where they run on several nodes, the table is memory of the process, and what
//! [`SeatTable::persist`] has made durable outlives the node.
//!
//! A table has one or more segments of the same form, one behind the other. It grows by a segment
//! when there are more clients. Client `c` is client `c % SEGMENT_CLIENTS` of its segment.
//!
//! | bytes of a segment | what |
//! |---|---|
//! | `64 * c ..` | its client `c` |
//! | `64 * SEGMENT_CLIENTS + 1024 * r ..` | reply slot `r = c * REPLY_SLOTS + index` |
//!
//! | bytes of a client | what |
//! |---|---|
//! | 0..8 | id; 0: the place is free |
//! | 8..12 | CRC-32 of the id |
//! | 16 | held: the client has opens or locks |
//! | 18..20 | vacant |
//!
//! A client's reply slots come into use one page at a time, in order; most clients need one page of
//! the 16. Bit `p` of `vacant` says that page `p` is not in use and that its contents mean nothing.
//! Tables of older versions, which had no pages, have zeros there: all pages are in use.
//!
//! | bytes of a reply slot | what |
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
//! The table leaves four bytes of each 4 KiB, from [`SPARE_AT`] on, to the code that keeps the
//! table on the back end.
//!
//! The state is one byte, and the holder stores it after what it describes. So a process that dies
//! between two stores leaves the old record, an empty reply slot or the new record. What fails its
//! checksum counts as not written: an unreadable result leaves the intent, and an unreadable intent
//! leaves an empty reply slot.

use crate::back_end_files::Errno;
use crate::record_bytes::{decode_result, encode_result};
use alloc::boxed::Box;
use tidegate_wire::{Outcome, Status};

/// Clients of one segment of a table.
pub const SEGMENT_CLIENTS: usize = 1024;
/// Segments that a table has at most.
pub const SEGMENTS_MAX: usize = 16;
/// Clients that one seat's table has room for.
pub const CLIENTS_MAX: usize = SEGMENTS_MAX * SEGMENT_CLIENTS;
/// Reply slots of each client.
pub const REPLY_SLOTS: usize = 64;
/// Bytes of a segment, most of which are never used.
pub const SEGMENT_BYTES: usize = SEGMENT_CLIENTS * (CLIENT_BYTES + BLOCK_BYTES);
/// Bytes of the entries at the front of a segment, which say to which client each block of reply
/// slots belongs.
pub const ENTRIES_BYTES: usize = SEGMENT_CLIENTS * CLIENT_BYTES;
/// Reply slots of a page, which come into use together.
pub const PAGE_REPLY_SLOTS: usize = 4;
/// Offset in each 4 KiB of a table of four bytes that are always zeros.
pub const SPARE_AT: usize = 28;

const CLIENT_BYTES: usize = 64;
/// Bytes of one client's reply slots.
const BLOCK_BYTES: usize = REPLY_SLOTS * ReplyRecord::BYTES_MAX;
/// Bytes of reply slots that are put to use together.
const PAGE_BYTES: usize = PAGE_REPLY_SLOTS * ReplyRecord::BYTES_MAX;
/// Clients whose entries are loaded together.
const LOADED_TOGETHER: usize = 64;
const HELD_AT: usize = 16;
const VACANT_AT: usize = 18;
/// No page of a client is used.
pub(crate) const ALL_VACANT: u16 = u16::MAX;
const STATE_AT: usize = 16;
const RESULT_HEAD_AT: usize = 20;
const INTENT_AT: usize = 32;
const RESULT_AT: usize = 896;
/// Longest intent.
pub(crate) const INTENT_MAX: usize = RESULT_AT - INTENT_AT;
/// Longest result.
pub(crate) const RESULT_MAX: usize = ReplyRecord::BYTES_MAX - RESULT_AT;

/// How far the request of a reply slot has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplySlotState {
    /// The slot has no record, or one that a process was writing when it died.
    Empty,
    /// An operation was begun. Whether it took effect must be looked up on the back end.
    Intent,
    /// The operation has a result.
    Done,
}

/// The record of one reply slot, at most [`ReplyRecord::BYTES_MAX`] bytes in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyRecord {
    /// How far the request has come.
    pub state: ReplySlotState,
    /// Sequence number of the request.
    pub sequence: u64,
    /// The operation that was begun, with what is needed to look up whether it took effect. Encoded
    /// by [`crate::effect`].
    pub intent: Box<[u8]>,
    /// The operation's result, when it is done.
    pub result: Option<Result<Outcome, Status>>,
}

impl ReplyRecord {
    /// Bytes of a record, enough for two names, four handles and attributes.
    pub const BYTES_MAX: usize = 1024;

    fn empty() -> ReplyRecord {
        ReplyRecord {
            state: ReplySlotState::Empty,
            sequence: 0,
            intent: Box::default(),
            result: None,
        }
    }
}

/// The memory of one seat's reply table, which the host provides. The forwarder's loop and the
/// storage threads share it; one of them at a time uses a reply slot.
pub trait SeatTable: Send + Sync {
    /// Copies `bytes.len()` bytes of the table, from offset `at` on, into `bytes`.
    fn load(&self, at: usize, bytes: &mut [u8]);
    /// Stores bytes at offset `at`. Other processes that map the file see stores in program order.
    fn store(&self, at: usize, bytes: &[u8]);
    /// Stores bytes that need not outlive the node: without them a replay repeats an operation that
    /// may be repeated.
    fn store_later(&self, at: usize, bytes: &[u8]) {
        self.store(at, bytes);
    }
    /// Stores bytes that only this holder of the seat uses, so that they need not outlive it.
    fn store_here(&self, at: usize, bytes: &[u8]) {
        self.store(at, bytes);
    }
    /// Whether stores outlive the node only after [`SeatTable::persist`].
    fn must_persist(&self) -> bool {
        false
    }
    /// Makes all stores so far outlive this node, except those by [`SeatTable::store_later`] and
    /// [`SeatTable::store_here`]. It may wait for the back end. It fails with an error of the back
    /// end, or because this forwarder does not hold the seat any more; after a failure it is
    /// unknown which stores outlive the node.
    fn persist(&self) -> Result<(), Errno> {
        Ok(())
    }
    /// Whether the forwarder that got this table still holds its seat. If it does not, no operation
    /// may take effect any more, even after [`SeatTable::persist`] has succeeded.
    fn is_held(&self) -> bool {
        true
    }
    /// Makes the marks of clients that hold opens or locks outlive this node. Where the back end
    /// has no room for them, it records instead that the table may lack some
    /// ([`SeatTable::may_lack_holders`]).
    fn persist_holders(&self) -> Result<(), Errno> {
        self.persist()
    }
    /// Whether clients that the table does not mark may have opens and locks from the seat's last
    /// holder.
    fn may_lack_holders(&self) -> bool {
        false
    }
    /// Reserves room on the back end for later stores into `len` bytes from `at`; false if there is
    /// none. The forwarder reserves room before it gives reply slots to a client. Their old
    /// contents may be lost.
    fn reserve(&self, at: usize, len: usize) -> bool {
        let _ = (at, len);
        true
    }
    /// Gives back the room of `len` bytes from `at`, until it is reserved again. Their contents may
    /// be lost.
    fn give_back(&self, at: usize, len: usize) {
        let _ = (at, len);
    }
    /// Adds a segment of zeros; false if there is no room for its entries, or if the table has
    /// [`SEGMENTS_MAX`] segments already.
    fn grow(&self) -> bool;
    /// Bytes of the table: whole segments, at least one.
    fn len(&self) -> usize;
    /// Whether the table has no bytes, which is never so.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Bytes from the table's beginning to the end of the reply slots of its first `clients` clients.
/// They must be clients of the first segment.
pub const fn table_bytes(clients: usize) -> usize {
    assert!(clients <= SEGMENT_CLIENTS);
    ENTRIES_BYTES + clients * BLOCK_BYTES
}

/// The byte ranges of a table that hold reply slots of clients, as its entries say.
pub fn used_ranges(table: &dyn SeatTable) -> alloc::vec::Vec<core::ops::Range<usize>> {
    let mut ranges = alloc::vec::Vec::new();
    for entry in clients(table).0 {
        let first = reply_slot_at(reply_slot_number(entry.block, 0));
        let used = (0..REPLY_SLOTS / PAGE_REPLY_SLOTS).filter(|page| entry.vacant >> page & 1 == 0);
        ranges.extend(used.map(|page| {
            let at = first + page * PAGE_BYTES;
            at..at + PAGE_BYTES
        }));
    }
    ranges
}

/// Clients that a table has room for without growing.
pub(crate) fn room(table: &dyn SeatTable) -> usize {
    table.len() / SEGMENT_BYTES * SEGMENT_CLIENTS
}

/// The table's entry for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientEntry {
    /// Position of the entry among all entries, and of the client's block of reply slots.
    pub(crate) block: u16,
    /// The client's id, not 0.
    pub(crate) client: u64,
    /// The client had opens or locks at this seat.
    pub(crate) held: bool,
    /// Pages of its reply slots that it has not used: bit `p` for page `p`.
    pub(crate) vacant: u16,
}

/// The entries of all clients in order of position, and the number of damaged entries.
pub(crate) fn clients(table: &dyn SeatTable) -> (alloc::vec::Vec<ClientEntry>, usize) {
    let (mut found, mut damaged) = (alloc::vec::Vec::new(), 0);
    let mut bytes = [0; LOADED_TOGETHER * CLIENT_BYTES];
    for first in (0..room(table)).step_by(LOADED_TOGETHER) {
        table.load(entry_at(first as u16), &mut bytes);
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
                vacant: u16_at(entry, VACANT_AT),
            });
        }
    }
    (found, damaged)
}

/// Gives a block to a client, with all its pages vacant. False if the table has no room for it.
pub(crate) fn enter(table: &dyn SeatTable, block: u16, client: u64) -> bool {
    if usize::from(block) >= room(table) && !table.grow() {
        return false;
    }
    let mut bytes = [0; CLIENT_BYTES];
    bytes[..8].copy_from_slice(&client.to_le_bytes());
    let checksum = crc(&[&bytes[..8]]);
    bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
    bytes[VACANT_AT..VACANT_AT + 2].copy_from_slice(&ALL_VACANT.to_le_bytes());
    // The client is named last: a process that dies between the two leaves no client whose reply
    // slots are another's.
    let (name, rest) = bytes.split_at(HELD_AT);
    table.store(entry_at(block) + HELD_AT, rest);
    table.store(entry_at(block), name);
    true
}

/// Puts the vacant page of a client's reply slot into use, with empty reply slots. False if there
/// is no room for it. `vacant` is that of the client's entry, and gets its new value.
pub(crate) fn open_page(table: &dyn SeatTable, block: u16, index: u16, vacant: &mut u16) -> bool {
    let page = index / PAGE_REPLY_SLOTS as u16;
    let first = reply_slot_number(block, page * PAGE_REPLY_SLOTS as u16);
    if !table.reserve(reply_slot_at(first), PAGE_BYTES) {
        return false;
    }
    for reply_slot in first..first + PAGE_REPLY_SLOTS as u32 {
        // Most are empty, and a store would take memory for each.
        if peek(table, reply_slot).0 != ReplySlotState::Empty {
            clear(table, reply_slot);
        }
    }
    *vacant &= !page_bit(index);
    // One byte, so that it is the old one or the new one whenever the process dies.
    let byte = usize::from(page / 8);
    let at = entry_at(block) + VACANT_AT + byte;
    table.store(at, &vacant.to_le_bytes()[byte..=byte]);
    true
}

/// The bit of `vacant` for the page of a reply slot.
pub(crate) fn page_bit(index: u16) -> u16 {
    1 << (index / PAGE_REPLY_SLOTS as u16)
}

/// Gives back the room of the reply slots of blocks that no client has.
pub(crate) fn give_back(table: &dyn SeatTable, blocks: core::ops::Range<usize>) {
    let mut from = blocks.start;
    while from < blocks.end {
        let segment_end = (from / SEGMENT_CLIENTS + 1) * SEGMENT_CLIENTS;
        let to = blocks.end.min(segment_end);
        let at = reply_slot_at(reply_slot_number(from as u16, 0));
        table.give_back(at, (to - from) * BLOCK_BYTES);
        from = to;
    }
}

/// Takes a block away from its client.
pub(crate) fn leave(table: &dyn SeatTable, block: u16) {
    table.store(entry_at(block), &[0; CLIENT_BYTES]);
}

/// Marks that the client of a block has opens or locks at this seat, so that the next holder waits
/// for it.
pub(crate) fn set_held(table: &dyn SeatTable, block: u16, held: bool) {
    table.store(entry_at(block) + HELD_AT, &[u8::from(held)]);
}

/// The number of a client's reply slot over all clients.
pub(crate) fn reply_slot_number(block: u16, index: u16) -> u32 {
    u32::from(block) * REPLY_SLOTS as u32 + u32::from(index)
}

/// State and sequence of a reply slot, without its contents: cheap enough for every write.
pub(crate) fn peek(table: &dyn SeatTable, reply_slot: u32) -> (ReplySlotState, u64) {
    let mut head = [0; INTENT_AT];
    table.load(reply_slot_at(reply_slot), &mut head);
    match head[STATE_AT] {
        0 => (ReplySlotState::Empty, 0),
        1 => (ReplySlotState::Intent, u64_at(&head, 0)),
        _ => (ReplySlotState::Done, u64_at(&head, 0)),
    }
}

/// Reads a reply slot, and takes what fails its checksum as not written.
pub(crate) fn read(table: &dyn SeatTable, reply_slot: u32) -> ReplyRecord {
    let mut bytes = [0; ReplyRecord::BYTES_MAX];
    table.load(reply_slot_at(reply_slot), &mut bytes);
    let sequence = u64_at(&bytes, 0);
    let intent_len = usize::from(u16_at(&bytes, 8));
    let result_len = usize::from(u16_at(&bytes, RESULT_HEAD_AT));
    if !matches!(bytes[STATE_AT], 1 | 2) || intent_len > INTENT_MAX {
        return ReplyRecord::empty();
    }
    let intent = &bytes[INTENT_AT..][..intent_len];
    if u32_at(&bytes, 12) != crc(&[&bytes[..12], intent]) {
        return ReplyRecord::empty();
    }
    let mut record = ReplyRecord {
        state: ReplySlotState::Intent,
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
            record.state = ReplySlotState::Done;
        }
    }
    if record.state == ReplySlotState::Intent && record.intent.is_empty() {
        // Nothing was recorded that could be looked up.
        return ReplyRecord::empty();
    }
    record
}

/// Records that an operation begins.
pub(crate) fn begin(table: &dyn SeatTable, reply_slot: u32, sequence: u64, intent: &[u8]) {
    assert!(
        intent.len() <= INTENT_MAX,
        "an intent is longer than its room"
    );
    let at = reply_slot_at(reply_slot);
    table.store(at + STATE_AT, &[0]);
    table.store(at + INTENT_AT, intent);
    table.store(at, &intent_head(sequence, intent));
    table.store(at + STATE_AT, &[1]);
}

/// Records the result of an operation that [`begin`] has recorded.
pub(crate) fn finish(
    table: &dyn SeatTable,
    reply_slot: u32,
    sequence: u64,
    result: &Result<Outcome, Status>,
) {
    let at = reply_slot_at(reply_slot);
    put_result(sequence, result, |part, bytes| {
        table.store(at + part, bytes)
    });
}

/// Records the result of an operation that needs no intent, because a replay may repeat it.
pub(crate) fn record(
    table: &dyn SeatTable,
    reply_slot: u32,
    sequence: u64,
    result: &Result<Outcome, Status>,
) {
    store_record(reply_slot, sequence, result, |at, bytes| {
        table.store_later(at, bytes)
    });
}

/// Records the result of an operation for this holder only. Clients repeat such an operation at the
/// next holder in any case, because its bytes may be lost with this holder's node.
pub(crate) fn record_here(
    table: &dyn SeatTable,
    reply_slot: u32,
    sequence: u64,
    result: &Result<Outcome, Status>,
) {
    store_record(reply_slot, sequence, result, |at, bytes| {
        table.store_here(at, bytes)
    });
}

fn store_record(
    reply_slot: u32,
    sequence: u64,
    result: &Result<Outcome, Status>,
    store: impl Fn(usize, &[u8]),
) {
    let at = reply_slot_at(reply_slot);
    store(at + STATE_AT, &[0]);
    store(at, &intent_head(sequence, &[]));
    put_result(sequence, result, |part, bytes| store(at + part, bytes));
}

/// Turns a result back into an intent, so that its outcome must be looked up.
pub(crate) fn doubt(table: &dyn SeatTable, reply_slot: u32) {
    table.store(reply_slot_at(reply_slot) + STATE_AT, &[1]);
}

/// Forgets a reply slot's record.
pub(crate) fn clear(table: &dyn SeatTable, reply_slot: u32) {
    table.store(reply_slot_at(reply_slot) + STATE_AT, &[0]);
}

fn entry_at(block: u16) -> usize {
    let (segment, client) = place(usize::from(block));
    segment * SEGMENT_BYTES + client * CLIENT_BYTES
}

fn reply_slot_at(reply_slot: u32) -> usize {
    let (segment, client) = place(reply_slot as usize / REPLY_SLOTS);
    let reply_slot = client * REPLY_SLOTS + reply_slot as usize % REPLY_SLOTS;
    segment * SEGMENT_BYTES + ENTRIES_BYTES + reply_slot * ReplyRecord::BYTES_MAX
}

/// A client's segment and its number there.
fn place(client: usize) -> (usize, usize) {
    (client / SEGMENT_CLIENTS, client % SEGMENT_CLIENTS)
}

fn intent_head(sequence: u64, intent: &[u8]) -> [u8; STATE_AT] {
    let mut head = [0; STATE_AT];
    head[..8].copy_from_slice(&sequence.to_le_bytes());
    head[8..10].copy_from_slice(&(intent.len() as u16).to_le_bytes());
    let checksum = crc(&[&head[..12], intent]);
    head[12..16].copy_from_slice(&checksum.to_le_bytes());
    head
}

/// Stores a result, and then the state that says so, by `store`, which gets an offset in the reply
/// slot.
fn put_result(sequence: u64, result: &Result<Outcome, Status>, store: impl Fn(usize, &[u8])) {
    let mut bytes = [0; RESULT_MAX];
    let len = encode_result(result, &mut bytes);
    let mut head = [0; 8];
    head[..2].copy_from_slice(&(len as u16).to_le_bytes());
    let checksum = crc(&[&sequence.to_le_bytes(), &head[..4], &bytes[..len]]);
    head[4..8].copy_from_slice(&checksum.to_le_bytes());
    store(RESULT_AT, &bytes[..len]);
    store(RESULT_HEAD_AT, &head);
    store(STATE_AT, &[2]);
}

/// CRC-32 (IEEE) of several pieces, a byte at a time: reply slots are short, so a small table will
/// do.
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
mod tests;
