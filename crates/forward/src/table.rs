//! The reply table of a seat: per client row, what was begun and what came of it.
//!
//! It lives in memory that outlives the forwarder's process (a mapped file in `.tidegate`), so that the
//! next holder of the seat can answer a replay. Intent is stored before an effect, result after.

use alloc::boxed::Box;
use tidegate_wire::{Handle, Outcome, Status};

/// Clients that one seat's table has room for.
pub const CLIENTS_MAX: usize = 256;
/// Rows of each client.
pub const ROWS: usize = 64;

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
}

/// Memory of one seat's table. Shared by the core and the threads that carry out operations; a row is
/// used by one of them at a time.
pub trait SeatTable: Send + Sync {
    /// Copies `bytes.len()` bytes from `at`.
    fn load(&self, at: usize, bytes: &mut [u8]);
    /// Stores bytes at `at`, then is visible to whoever maps the file, in program order with other stores.
    fn store(&self, at: usize, bytes: &[u8]);
    /// Marks a handle of the client in the file's header (see `ClientEntry` in the layout of the table).
    fn len(&self) -> usize;
    /// A table has a fixed, positive length.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Bytes that a seat's table file must have.
pub const TABLE_BYTES: usize = CLIENTS_MAX * 64 + CLIENTS_MAX * ROWS * RowRecord::BYTES_MAX;

/// Keeps the handle type in the intent's vocabulary.
pub type Target = Handle;
