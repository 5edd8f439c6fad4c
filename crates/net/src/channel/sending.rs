//! The sending end of a channel: makes records, and keeps those for which there was no room.

use super::cipher::Cipher;
use super::{CONTENT_MAX, LENGTH_LEN, RECORD_MAX, TAG_LEN, take_buffer};
use std::cell::Cell;
use std::io::{self, ErrorKind, IoSlice};
use std::mem;
use std::ops::Range;

/// Bytes from which on a piece of the stream has records of its own, so that its content begins
/// where a record's does. Shorter ones are copied together into one.
pub(super) const LONG: usize = 8 << 10;
/// Bytes of a buffer for records to be sent: long ones, and the short ones beside them.
const SENT_MAX: usize = 2 * RECORD_MAX + LONG;

thread_local! {
    /// The buffer that this thread uses next: of the thread, because a process that was forked may
    /// find a lock of other threads taken for ever.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

pub(super) struct Sending {
    pub(super) cipher: Cipher,
    /// Empty while there is no record to send; else it has [`SENT_MAX`] bytes.
    pub(super) buffer: Vec<u8>,
    /// Which bytes of the buffer are to be sent.
    records: Range<usize>,
    /// Bytes of the stream in the records that were not reported as sent yet.
    promised: usize,
}

impl Sending {
    pub(super) fn new(cipher: Cipher) -> Sending {
        Sending {
            cipher,
            buffer: Vec::new(),
            records: 0..0,
            promised: 0,
        }
    }

    pub(super) fn send(
        &mut self,
        pieces: &[IoSlice<'_>],
        mut write: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if self.promised == 0 {
            let mut records = Records {
                cipher: &mut self.cipher,
                buffer: take_buffer(&SPARE, SENT_MAX),
                end: 0,
                promised: 0,
            };
            records.seal(pieces);
            (self.promised, self.records) = (records.promised, 0..records.end);
            self.buffer = records.buffer;
        }
        while !self.records.is_empty() {
            match write(&self.buffer[self.records.clone()])? {
                0 => return Err(ErrorKind::WriteZero.into()),
                count => self.records.start += count,
            }
        }
        SPARE.set(mem::take(&mut self.buffer));
        Ok(mem::take(&mut self.promised))
    }
}

/// Records that are made one behind the other, to be sent together.
struct Records<'a> {
    cipher: &'a mut Cipher,
    buffer: Vec<u8>,
    /// The end of the last record in the buffer.
    end: usize,
    /// Bytes of the stream in the records.
    promised: usize,
}

impl Records<'_> {
    /// Makes records of the pieces' bytes, in their order, as far as there is room.
    fn seal(&mut self, pieces: &[IoSlice<'_>]) {
        // Bytes of the record that short pieces are copied into.
        let mut gathered = 0;
        for piece in pieces {
            if piece.len() >= LONG {
                self.end_record(mem::take(&mut gathered));
                if !self.seal_long(piece) {
                    return;
                }
                continue;
            }
            if piece.len() > self.room() - gathered {
                self.end_record(mem::take(&mut gathered));
                if piece.len() > self.room() {
                    return;
                }
            }
            self.content()[gathered..][..piece.len()].copy_from_slice(piece);
            gathered += piece.len();
        }
        self.end_record(gathered);
    }

    /// Makes records of a long piece. False if there was not room for all of it.
    fn seal_long(&mut self, piece: &[u8]) -> bool {
        piece.chunks(CONTENT_MAX).all(|part| {
            let fits = part.len() <= self.room();
            if fits {
                let start = self.begin_record(part.len());
                let record = &mut self.buffer[start..self.end];
                self.cipher.seal_from(part, record);
            }
            fits
        })
    }

    /// Bytes of the stream that the next record can have.
    fn room(&self) -> usize {
        let left = self.buffer.len() - self.end;
        left.saturating_sub(LENGTH_LEN + TAG_LEN).min(CONTENT_MAX)
    }

    /// The memory for the content of the next record.
    fn content(&mut self) -> &mut [u8] {
        let room = self.room();
        &mut self.buffer[self.end + LENGTH_LEN..][..room]
    }

    /// Makes a record of the first `len` bytes of its content; none if it would be empty.
    fn end_record(&mut self, len: usize) {
        if len > 0 {
            let start = self.begin_record(len);
            self.cipher.seal(&mut self.buffer[start..self.end], len);
        }
    }

    /// Writes the length of a record of `len` bytes of the stream. Returns where
    /// its content begins.
    fn begin_record(&mut self, len: usize) -> usize {
        let start = self.end + LENGTH_LEN;
        let length = (len + TAG_LEN) as u32;
        self.buffer[self.end..start].copy_from_slice(&length.to_le_bytes());
        self.end = start + len + TAG_LEN;
        self.promised += len;
        start
    }
}
