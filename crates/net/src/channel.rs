//! The protected stream of a connection between nodes: what one end sends in pieces arrives at the
//! other in records, each encrypted or only authenticated.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | bytes that follow, little endian |
//! | 4.. | up to 64 KiB of the stream, and a tag of 16 bytes |
//!
//! The cipher is AES-256-GCM with the keys of the handshake; each end numbers its records from 0,
//! and the number is the record's nonce, so no record can be changed, left out, repeated or moved.
//! After each [`REKEY_RECORDS`] records a new key is made of the old one, as the Noise protocol
//! framework has it.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use std::cell::Cell;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::LocalKey;

/// Bytes of the length before a record.
const LENGTH_LEN: usize = 4;
/// Bytes of a record's tag.
const TAG_LEN: usize = 16;
/// Most bytes of the stream in one record.
const CONTENT_MAX: usize = 64 << 10;
/// Bytes of the longest record, with its length.
const RECORD_MAX: usize = LENGTH_LEN + CONTENT_MAX + TAG_LEN;
/// Bytes from which on a piece of the stream has records of its own, so that its content begins
/// where a record's does. Shorter ones are copied together into one.
const LONG: usize = 8 << 10;
/// Bytes of a buffer for records to be sent: long ones, and the short ones beside them.
const SENT_MAX: usize = 2 * RECORD_MAX + LONG;
/// Bytes to receive at once beyond the record that has begun to arrive.
const AHEAD: usize = 16 << 10;
/// Bytes of a buffer for records that arrive: one, and what has come behind it.
const ARRIVING_MAX: usize = RECORD_MAX + 2 * AHEAD;
/// Records after which the key is replaced: 64 GiB of the stream.
const REKEY_RECORDS: u64 = 1 << 20;
thread_local! {
    /// The buffers that this thread uses next: of the thread, because a process that was forked may
    /// find a lock of other threads taken for ever.
    static SPARE_SENT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static SPARE_ARRIVING: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// How frames between nodes are protected, from the least on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Encryption {
    /// Not at all: the two ends only prove who they are.
    Off,
    /// Nobody can change them; everybody on the way can read them.
    Integrity,
    /// Nobody can change or read them.
    #[default]
    On,
}

impl Encryption {
    /// All, from the least on.
    pub const ALL: [Encryption; 3] = [Encryption::Off, Encryption::Integrity, Encryption::On];

    /// Its name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Encryption::Off => "off",
            Encryption::Integrity => "integrity",
            Encryption::On => "on",
        }
    }

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Encryption> {
        Encryption::ALL.into_iter().find(|it| it.name() == name)
    }

    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_code(code: u8) -> Option<Encryption> {
        Encryption::ALL.get(usize::from(code)).copied()
    }
}

/// See the head of the file. For any thread: one may send while another receives.
pub struct Channel {
    sending: Mutex<Sending>,
    receiving: Mutex<Receiving>,
}

impl Channel {
    /// A channel that sends with the key `ours` and receives with `theirs`; None where frames are
    /// not protected.
    pub(crate) fn new(
        encryption: Encryption,
        ours: &[u8; 32],
        theirs: &[u8; 32],
    ) -> Option<Channel> {
        let encrypts = match encryption {
            Encryption::Off => return None,
            Encryption::Integrity => false,
            Encryption::On => true,
        };
        Some(Channel {
            sending: Mutex::new(Sending {
                cipher: Cipher::new(ours, encrypts),
                buffer: Vec::new(),
                records: 0..0,
                promised: 0,
            }),
            receiving: Mutex::new(Receiving {
                cipher: Cipher::new(theirs, encrypts),
                buffer: Vec::new(),
                content: 0..0,
                arrived: 0..0,
                more: true,
            }),
        })
    }

    /// Sends bytes of the stream: those of the pieces, in their order, as many as there is room for
    /// in one go. `write` sends bytes of records. Returns how many bytes of the stream are out.
    ///
    /// If `write` has no room, the bytes count as not sent, though their records are made: the
    /// caller tries again with the same bytes, which are not looked at a second time.
    pub fn send(
        &self,
        pieces: &[IoSlice<'_>],
        write: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        lock(&self.sending).send(pieces, write)
    }

    /// Receives bytes of the stream into the pieces, in their order. `read` receives bytes of
    /// records. Returns their number; 0 is the end of the stream.
    pub fn receive(
        &self,
        pieces: &mut [IoSliceMut<'_>],
        read: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        lock(&self.receiving).receive(pieces, read)
    }

    /// Whether a record has begun to arrive and has not arrived whole.
    pub(crate) fn is_amid_record(&self) -> bool {
        !lock(&self.receiving).arrived.is_empty()
    }

    /// Whether the next receive may find bytes, or the end of the stream, though the last one did
    /// not fill its pieces and nothing has arrived since.
    pub fn has_more(&self) -> bool {
        lock(&self.receiving).more
    }
}

/// A panic amid a record leaves a record that the other end refuses.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A buffer of `len` bytes. A channel has one only while it has begun a record and not ended it.
fn take_buffer(spare: &'static LocalKey<Cell<Vec<u8>>>, len: usize) -> Vec<u8> {
    let buffer = spare.take();
    match buffer.is_empty() {
        true => vec![0; len],
        false => buffer,
    }
}

/// The key of one direction, and the number of the next record.
struct Cipher {
    key: LessSafeKey,
    encrypts: bool,
    number: u64,
}

impl Cipher {
    fn new(key: &[u8; 32], encrypts: bool) -> Cipher {
        Cipher {
            key: key_of(key),
            encrypts,
            number: 0,
        }
    }

    /// Protects the first `len` bytes of `record`, and puts the tag behind them.
    fn seal(&mut self, record: &mut [u8], len: usize) {
        let nonce = self.nonce();
        let (content, tag) = record.split_at_mut(len);
        let made = match self.encrypts {
            true => (self.key).seal_in_place_separate_tag(nonce, Aad::empty(), content),
            false => (self.key).seal_in_place_separate_tag(nonce, Aad::from(&*content), &mut []),
        };
        let made = made.expect("a record is far shorter than the cipher allows");
        tag.copy_from_slice(made.as_ref());
    }

    /// Puts protected `content` into `record`, and the tag behind it.
    fn seal_from(&mut self, content: &[u8], record: &mut [u8]) {
        record[..content.len()].copy_from_slice(content);
        self.seal(record, content.len());
    }

    /// Checks a record, and leaves its content at its beginning. The length of a record is at least
    /// that of a tag.
    fn open(&mut self, record: &mut [u8]) -> io::Result<()> {
        let nonce = self.nonce();
        let opened = match self.encrypts {
            true => (self.key)
                .open_in_place(nonce, Aad::empty(), record)
                .is_ok(),
            false => {
                let (content, tag) = record.split_at_mut(record.len() - TAG_LEN);
                let content = Aad::from(&*content);
                (self.key).open_in_place(nonce, content, tag).is_ok()
            }
        };
        match opened {
            true => Ok(()),
            false => Err(changed()),
        }
    }

    /// Checks a record, and puts its content into a place of the same length, which stays as it was
    /// if the record was changed.
    fn open_into(&mut self, record: &mut [u8], place: &mut [u8]) -> io::Result<()> {
        self.open(record)?;
        place.copy_from_slice(&record[..place.len()]);
        Ok(())
    }

    /// The nonce of the next record.
    fn nonce(&mut self) -> Nonce {
        if self.number > 0 && self.number.is_multiple_of(REKEY_RECORDS) {
            let mut next = [0; 32];
            let last = nonce_of(u64::MAX);
            let made = self
                .key
                .seal_in_place_separate_tag(last, Aad::empty(), &mut next);
            // The tag is of no use: the next key is not sent.
            let _ = made.expect("it is as long as a key");
            self.key = key_of(&next);
        }
        let nonce = nonce_of(self.number);
        self.number += 1;
        nonce
    }
}

fn changed() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "bytes were changed on the way")
}

fn key_of(bytes: &[u8; 32]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, bytes).expect("it has the cipher's length"))
}

fn nonce_of(number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

struct Sending {
    cipher: Cipher,
    /// Empty while there is no record to send; else it has [`SENT_MAX`] bytes.
    buffer: Vec<u8>,
    /// Which bytes of the buffer are to be sent.
    records: Range<usize>,
    /// Bytes of the stream in the records that were not reported as sent yet.
    promised: usize,
}

impl Sending {
    fn send(
        &mut self,
        pieces: &[IoSlice<'_>],
        mut write: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if self.promised == 0 {
            let mut records = Records {
                cipher: &mut self.cipher,
                buffer: take_buffer(&SPARE_SENT, SENT_MAX),
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
        SPARE_SENT.set(mem::take(&mut self.buffer));
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

struct Receiving {
    cipher: Cipher,
    /// Empty while nothing is in it.
    buffer: Vec<u8>,
    /// Bytes of the stream that the caller has not taken.
    content: Range<usize>,
    /// Bytes of records behind them.
    arrived: Range<usize>,
    more: bool,
}

impl Receiving {
    fn receive(
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
                self.buffer = take_buffer(&SPARE_ARRIVING, ARRIVING_MAX);
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
            SPARE_ARRIVING.set(mem::take(&mut self.buffer));
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

#[cfg(test)]
mod tests;
