//! The receiving end of a channel: opens records that have arrived whole.

use super::cipher::Cipher;
use super::{CONTENT_MAX, LENGTH_LEN, RECORD_MAX, TAG_LEN, take_buffer};
use crate::spare::{self, Spare};
use std::cell::Cell;
use std::io::{self, ErrorKind, IoSliceMut};
use std::mem;
use std::ops::Range;

/// Bytes to receive at once beyond the record that has begun to arrive.
const AHEAD: usize = 16 << 10;
/// Bytes of a buffer for records that arrive: one, and what has come behind it.
const ARRIVING_MAX: usize = RECORD_MAX + 2 * AHEAD;

/// The same beyond a record whose content arrives in its place: the tag, and the beginning of what
/// follows, which is copied if it is content.
const AHEAD_OF_PLACE: usize = 256;
/// Bytes of content from which on a record arrives in its place. That is more than any reader reads
/// ahead: longer memory is for a payload or a body, and stays where it is until it is full.
pub(super) const IN_PLACE_MIN: usize = 32 << 10;

thread_local! {
    /// The buffer that this thread uses next.
    static SPARE: Spare = const { Cell::new(Vec::new()) };
}

pub(super) struct Receiving {
    pub(super) cipher: Cipher,
    /// Empty while nothing is in it.
    pub(super) buffer: Vec<u8>,
    /// Bytes of the stream that the caller has not taken.
    content: Range<usize>,
    /// Bytes of records behind them.
    arrived: Range<usize>,
    /// The record whose content arrives where the caller wants it.
    placed: Option<Placed>,
    more: bool,
}

impl Receiving {
    pub(super) fn new(cipher: Cipher) -> Receiving {
        Receiving {
            cipher,
            buffer: Vec::new(),
            content: 0..0,
            arrived: 0..0,
            placed: None,
            more: true,
        }
    }

    /// Whether a record has begun to arrive and has not arrived whole.
    pub(super) fn is_amid_record(&self) -> bool {
        !self.arrived.is_empty() || self.placed.is_some()
    }

    /// See [`super::Channel::has_more`].
    pub(super) fn has_more(&self) -> bool {
        self.more
    }

    pub(super) fn receive(
        &mut self,
        pieces: &mut [IoSliceMut<'_>],
        mut read: impl FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
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
            match self.read_once(place_behind(pieces, given), &mut read) {
                Ok((0, _)) if given == 0 && self.is_amid_record() => {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                Ok((0, _)) => return self.rest(given),
                // A short read has emptied the socket.
                Ok((count, room)) => drained = count < room,
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
            spare::keep(&SPARE, mem::take(&mut self.buffer));
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

    /// Calls `read` once. Returns how many bytes it read and how many there was room for.
    fn read_once(
        &mut self,
        place: &mut [u8],
        read: &mut impl FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<(usize, usize)> {
        let want = match self.placed {
            Some(_) => AHEAD_OF_PLACE,
            None => self.want(),
        };
        self.make_room(want);
        let behind = IoSliceMut::new(&mut self.buffer[self.arrived.end..][..want]);
        let Some(placed) = &mut self.placed else {
            let count = read(&mut [behind])?;
            self.arrived.end += count;
            return Ok((count, want));
        };
        let left = &mut placed.content(place)?[placed.filled..];
        let room = left.len();
        let count = read(&mut [IoSliceMut::new(left), behind])?;
        placed.filled += count.min(room);
        self.arrived.end += count.saturating_sub(room);
        Ok((count, room + want))
    }

    /// Opens the next record, if it has arrived whole: in `place` if there is room for all of its
    /// content, else where it is. Returns the number of bytes in `place`; None if it has not.
    fn open_next(&mut self, place: &mut [u8]) -> io::Result<Option<usize>> {
        if self.placed.is_some() {
            return self.open_placed(place);
        }
        let Some(count) = self.begun()? else {
            return Ok(None);
        };
        let start = self.arrived.start + LENGTH_LEN;
        if self.arrived.end < start + count + TAG_LEN {
            if count >= IN_PLACE_MIN && count <= place.len() {
                self.begin_in_place(count, place);
            }
            return Ok(None);
        }
        let record = &mut self.buffer[start..start + count + TAG_LEN];
        let (content, tag) = record.split_at_mut(count);
        self.cipher.open(content, tag_of(tag))?;
        self.arrived.start = start + count + TAG_LEN;
        if let Some(place) = place.get_mut(..count) {
            place.copy_from_slice(content);
            return Ok(Some(count));
        }
        self.content = start..start + count;
        Ok(Some(0))
    }

    /// From now on the record that has begun arrives in `place`.
    fn begin_in_place(&mut self, count: usize, place: &mut [u8]) {
        let arrived = &self.buffer[self.arrived.clone()][LENGTH_LEN..];
        let filled = arrived.len().min(count);
        place[..filled].copy_from_slice(&arrived[..filled]);
        self.arrived.start += LENGTH_LEN + filled;
        self.placed = Some(Placed {
            address: place.as_ptr().addr(),
            count,
            filled,
        });
    }

    /// Opens the record whose content has arrived in `place`, if its tag has arrived, too.
    fn open_placed(&mut self, place: &mut [u8]) -> io::Result<Option<usize>> {
        let is_whole = |it: &&Placed| it.filled == it.count && self.arrived.len() >= TAG_LEN;
        let Some(placed) = self.placed.as_ref().filter(is_whole) else {
            return Ok(None);
        };
        let (count, tag) = (placed.count, tag_of(&self.buffer[self.arrived.clone()]));
        self.cipher.open(placed.content(place)?, tag)?;
        self.arrived.start += TAG_LEN;
        self.placed = None;
        Ok(Some(count))
    }

    /// The number of bytes of content of the record that has begun to arrive.
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
        Ok(Some(len - TAG_LEN))
    }

    /// How many bytes to receive next: what the begun record lacks, and some more.
    fn want(&self) -> usize {
        let begun = self.begun().ok().flatten();
        let record = begun.map_or(0, |count| LENGTH_LEN + count + TAG_LEN);
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

/// A record whose content arrives where the caller wants it.
struct Placed {
    /// Where that is, so that a caller who wants it elsewhere meanwhile is noticed.
    address: usize,
    /// Bytes of content.
    count: usize,
    /// How many of them have arrived.
    filled: usize,
}

impl Placed {
    fn content<'a>(&self, place: &'a mut [u8]) -> io::Result<&'a mut [u8]> {
        let content = place.get_mut(..self.count);
        let content = content.filter(|it| it.as_ptr().addr() == self.address);
        content.ok_or_else(|| io::Error::other("other memory than that which half a record is in"))
    }
}

fn tag_of(bytes: &[u8]) -> [u8; TAG_LEN] {
    *bytes.first_chunk().expect("it has arrived")
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
