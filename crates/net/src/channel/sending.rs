//! The sending end of a channel: makes records, and keeps those for which there was no room.

use super::cipher::Cipher;
use super::{CONTENT_MAX, LENGTH_LEN, RECORD_MAX, TAG_LEN, take_buffer};
use crate::RawBytes;
use crate::spare::{self, Spare};
use std::cell::Cell;
use std::io::{self, ErrorKind, IoSlice};
use std::mem;
use std::ops::Range;

/// Bytes from which on a piece of the stream has records of its own, so that its content begins
/// where a record's does. Shorter ones are copied together into one.
pub(super) const LONG: usize = 8 << 10;
/// Bytes of a buffer for records to be sent: long ones, and the short ones beside them.
const SENT_MAX: usize = 4 * RECORD_MAX + LONG;

/// Most records that are made at once where their content lies: they are sent while they are in the
/// processor's cache.
const IN_PLACE_RECORDS: usize = 4;

thread_local! {
    /// The buffer that this thread uses next.
    static SPARE: Spare = const { Cell::new(Vec::new()) };
}

pub(super) struct Sending {
    pub(super) cipher: Cipher,
    /// Empty while there is no record to send; else it has [`SENT_MAX`] bytes.
    pub(super) buffer: Vec<u8>,
    /// Which bytes of the buffer are to be sent.
    records: Range<usize>,
    /// Bytes of the stream in the records that were not reported as sent yet.
    promised: usize,
    /// Records that were made where their content lies, in memory of the caller's.
    in_place: InPlace,
}

impl Sending {
    pub(super) fn new(cipher: Cipher) -> Sending {
        Sending {
            cipher,
            buffer: Vec::new(),
            records: 0..0,
            promised: 0,
            in_place: InPlace::default(),
        }
    }

    /// See [`super::Channel::send_in_place`].
    pub(super) fn send_in_place(
        &mut self,
        piece: &mut [u8],
        write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        assert_eq!(
            self.promised, 0,
            "the bytes for which there was no room come first"
        );
        if self.in_place.records == 0 {
            self.in_place.seal(&mut self.cipher, piece);
        }
        self.in_place.write_out(piece, write)
    }

    pub(super) fn send(
        &mut self,
        pieces: &[RawBytes<'_>],
        mut write: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if self.in_place.records > 0 {
            return Err(io::Error::other(
                "the bytes for which there was no room come first",
            ));
        }
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
        spare::keep(&SPARE, mem::take(&mut self.buffer));
        Ok(mem::take(&mut self.promised))
    }
}

/// The bytes before a record with so many bytes of content.
fn length_of(content: usize) -> [u8; LENGTH_LEN] {
    ((content + TAG_LEN) as u32).to_le_bytes()
}

/// Records that were made where their content lies, one behind the other.
#[derive(Default)]
struct InPlace {
    /// Where the content of the first one begins, so that a caller with other memory is noticed.
    address: usize,
    /// Bytes of content in all of them.
    len: usize,
    tags: [[u8; TAG_LEN]; IN_PLACE_RECORDS],
    /// How many there are.
    records: usize,
    /// Bytes of the records that are sent.
    sent: usize,
}

impl InPlace {
    fn seal(&mut self, cipher: &mut Cipher, piece: &mut [u8]) {
        let len = piece.len().min(IN_PLACE_RECORDS * CONTENT_MAX);
        (self.address, self.len) = (piece.as_ptr().addr(), len);
        (self.records, self.sent) = (0, 0);
        for (content, tag) in piece[..len].chunks_mut(CONTENT_MAX).zip(&mut self.tags) {
            *tag = cipher.seal(content);
            self.records += 1;
        }
    }

    /// Sends what is left of the records. Returns how many bytes of the stream are out.
    fn write_out(
        &mut self,
        piece: &[u8],
        mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let content = piece
            .get(..self.len)
            .filter(|it| it.as_ptr().addr() == self.address);
        let elsewhere = || io::Error::other("other memory than that which is half sent");
        let content = content.ok_or_else(elsewhere)?;
        let contents = content.chunks(CONTENT_MAX);
        let lengths = contents.clone().map(|content| length_of(content.len()));
        let mut lengths_of = [[0; LENGTH_LEN]; IN_PLACE_RECORDS];
        lengths_of
            .iter_mut()
            .zip(lengths)
            .for_each(|(to, length)| *to = length);
        let all = contents.len() * (LENGTH_LEN + TAG_LEN) + content.len();
        let mut pieces = [IoSlice::new(&[]); 3 * IN_PLACE_RECORDS];
        let records = lengths_of.iter().zip(contents).zip(&self.tags);
        for (into, ((length, content), tag)) in pieces.chunks_exact_mut(3).zip(records) {
            into.copy_from_slice(&[length, content, tag].map(|piece: &[u8]| IoSlice::new(piece)));
        }
        let mut left = &mut pieces[..3 * self.records];
        IoSlice::advance_slices(&mut left, self.sent);
        while self.sent < all {
            match write(left)? {
                0 => return Err(ErrorKind::WriteZero.into()),
                count => {
                    self.sent += count;
                    IoSlice::advance_slices(&mut left, count);
                }
            }
        }
        self.records = 0;
        Ok(self.len)
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
    fn seal(&mut self, pieces: &[RawBytes<'_>]) {
        // Bytes of the record that short pieces are copied into.
        let mut gathered = 0;
        for piece in pieces {
            if piece.len() >= LONG {
                self.end_record(mem::take(&mut gathered));
                if !self.seal_long(*piece) {
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
            piece.copy_to(&mut self.content()[gathered..]);
            gathered += piece.len();
        }
        self.end_record(gathered);
    }

    /// Makes records of a long piece. False if there was not room for all of it.
    fn seal_long(&mut self, piece: RawBytes<'_>) -> bool {
        let mut rest = piece;
        while !rest.is_empty() {
            let (part, later) = rest.split(CONTENT_MAX);
            if part.len() > self.room() {
                return false;
            }
            let start = self.begin_record(part.len());
            part.copy_to(&mut self.buffer[start..]);
            self.seal_record(start, part.len());
            rest = later;
        }
        true
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
            self.seal_record(start, len);
        }
    }

    /// Protects a record's content, and writes the tag behind it.
    fn seal_record(&mut self, start: usize, len: usize) {
        let (content, tag) = self.buffer[start..self.end].split_at_mut(len);
        tag.copy_from_slice(&self.cipher.seal(content));
    }

    /// Writes the length of a record of `len` bytes of the stream. Returns where
    /// its content begins.
    fn begin_record(&mut self, len: usize) -> usize {
        let start = self.end + LENGTH_LEN;
        self.buffer[self.end..start].copy_from_slice(&length_of(len));
        self.end = start + len + TAG_LEN;
        self.promised += len;
        start
    }
}
