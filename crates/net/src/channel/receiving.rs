//! The receiving end of a channel: opens records that have arrived whole.

use super::cipher::Cipher;
use super::{CONTENT_MAX, LENGTH_LEN, RECORD_MAX, TAG_LEN, take_buffer};
use std::cell::Cell;
use std::io::{self, ErrorKind, IoSliceMut};
use std::mem;
use std::ops::Range;

/// Bytes to receive at once beyond the record that has begun to arrive.
const AHEAD: usize = 16 << 10;
/// Bytes of a buffer for records that arrive: one, and what has come behind it.
const ARRIVING_MAX: usize = RECORD_MAX + 2 * AHEAD;

thread_local! {
    /// The buffer that this thread uses next; see that of the sending end.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

pub(super) struct Receiving {
    pub(super) cipher: Cipher,
    /// Empty while nothing is in it.
    pub(super) buffer: Vec<u8>,
    /// Bytes of the stream that the caller has not taken.
    content: Range<usize>,
    /// Bytes of records behind them.
    arrived: Range<usize>,
    more: bool,
}

impl Receiving {
    pub(super) fn new(cipher: Cipher) -> Receiving {
        Receiving {
            cipher,
            buffer: Vec::new(),
            content: 0..0,
            arrived: 0..0,
            more: true,
        }
    }

    /// Whether a record has begun to arrive and has not arrived whole.
    pub(super) fn is_amid_record(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// See [`super::Channel::has_more`].
    pub(super) fn has_more(&self) -> bool {
        self.more
    }

    pub(super) fn receive(
        &mut self,
        pieces: &mut [IoSliceMut<'_>],
        mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let room = pieces.iter().map(|piece| piece.len()).sum();
        let (mut given, mut drained) = (0, false);
        self.more = true;
        loop {
            given += self.give(pieces, given);
            if given == room {
                return self.rest(given);
            }
            let place = place_behind(pieces, given);
            if let Some(opened) = self.open_next(place)? {
                given += opened;
                continue;
            }
            if drained && given > 0 {
                self.more = false;
                return self.rest(given);
            }
            if self.buffer.is_empty() {
                self.buffer = take_buffer(&SPARE, ARRIVING_MAX);
            }
            let want = self.want();
            self.make_room(want);
            let space = &mut self.buffer[self.arrived.end..][..want];
            let len = space.len();
            match read(space) {
                Ok(0) if given == 0 && !self.arrived.is_empty() => {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                Ok(0) => return self.rest(given),
                Ok(count) => {
                    self.arrived.end += count;
                    // A short read has emptied the socket.
                    drained = count < len;
                }
                Err(error) if given == 0 => {
                    self.more = false;
                    self.give_back();
                    return Err(error);
                }
                Err(error) => {
                    self.more = error.kind() != ErrorKind::WouldBlock;
                    return self.rest(given);
                }
            }
        }
    }

    fn rest(&mut self, given: usize) -> io::Result<usize> {
        self.give_back();
        Ok(given)
    }

    /// Gives the buffer back if nothing is in it.
    fn give_back(&mut self) {
        if self.content.is_empty() && self.arrived.is_empty() && !self.buffer.is_empty() {
            (self.content, self.arrived) = (0..0, 0..0);
            SPARE.set(mem::take(&mut self.buffer));
        }
    }

    /// Copies content into the pieces behind their first `skip` bytes. Returns how many bytes.
    fn give(&mut self, pieces: &mut [IoSliceMut<'_>], mut skip: usize) -> usize {
        let before = self.content.len();
        for piece in pieces {
            let at = skip.min(piece.len());
            skip -= at;
            let count = (piece.len() - at).min(self.content.len());
            let from = self.content.start;
            piece[at..at + count].copy_from_slice(&self.buffer[from..from + count]);
            self.content.start += count;
        }
        before - self.content.len()
    }

    /// Opens the next record, if it has arrived whole: into `place` if there is room for all of its
    /// content, else where it is. Returns the number of bytes in `place`; None if it has not.
    fn open_next(&mut self, place: &mut [u8]) -> io::Result<Option<usize>> {
        let Some(len) = self.begun()? else {
            return Ok(None);
        };
        if self.arrived.len() < LENGTH_LEN + len {
            return Ok(None);
        }
        let start = self.arrived.start + LENGTH_LEN;
        let record = &mut self.buffer[start..start + len];
        self.arrived.start = start + len;
        let count = len - TAG_LEN;
        if let Some(place) = place.get_mut(..count) {
            self.cipher.open_into(record, place)?;
            return Ok(Some(count));
        }
        self.cipher.open(record)?;
        self.content = start..start + count;
        Ok(Some(0))
    }

    /// The length of the record that has begun to arrive.
    fn begun(&self) -> io::Result<Option<usize>> {
        let arrived = &self.buffer[self.arrived.clone()];
        let Some(length) = arrived.first_chunk::<LENGTH_LEN>() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(*length) as usize;
        if !(TAG_LEN + 1..=CONTENT_MAX + TAG_LEN).contains(&len) {
            let error = "a record of a length that none has";
            return Err(io::Error::new(ErrorKind::InvalidData, error));
        }
        Ok(Some(len))
    }

    /// How many bytes to receive next: what the begun record lacks, and some more.
    fn want(&self) -> usize {
        let begun = self.begun().ok().flatten();
        let record = begun.map_or(0, |len| LENGTH_LEN + len);
        record.saturating_sub(self.arrived.len()) + AHEAD
    }

    /// Moves the begun record to the front, if there is no room for `want` bytes behind it.
    fn make_room(&mut self, want: usize) {
        if self.buffer.len() - self.arrived.end < want {
            self.buffer.copy_within(self.arrived.clone(), 0);
            self.arrived = 0..self.arrived.len();
        }
    }
}

/// What of the pieces is behind their first `skip` bytes and in one piece.
fn place_behind<'a>(pieces: &'a mut [IoSliceMut<'_>], mut skip: usize) -> &'a mut [u8] {
    for piece in pieces {
        if skip < piece.len() {
            return &mut piece[skip..];
        }
        skip -= piece.len();
    }
    &mut []
}
