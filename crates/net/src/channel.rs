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
/// Bytes of a buffer for records that arrive: one that is complete, and most of the next.
const ARRIVING_MAX: usize = 2 * RECORD_MAX;
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
                record: 0..0,
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

    /// Sends bytes of the stream. `fill` puts them into the memory that it is given, and returns
    /// their number; `write` sends bytes of records. Returns how many bytes of the stream are out.
    ///
    /// If `write` has no room, the bytes count as not sent, though their record is made: the caller
    /// tries again with the same bytes, of which `fill` is not asked a second time.
    pub fn send(
        &self,
        fill: impl FnOnce(&mut [u8]) -> io::Result<usize>,
        write: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        lock(&self.sending).send(fill, write)
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

    /// Protects `content`; returns the tag.
    fn seal(&mut self, content: &mut [u8]) -> [u8; TAG_LEN] {
        let nonce = self.nonce();
        let tag = match self.encrypts {
            true => (self.key).seal_in_place_separate_tag(nonce, Aad::empty(), content),
            false => (self.key).seal_in_place_separate_tag(nonce, Aad::from(&*content), &mut []),
        };
        let tag = tag.expect("a record is far shorter than the cipher allows");
        tag.as_ref().try_into().expect("a tag has 16 bytes")
    }

    /// Checks a record, and leaves its content at its beginning. The length of a record is at least
    /// that of a tag.
    fn open(&mut self, record: &mut [u8]) -> io::Result<()> {
        let nonce = self.nonce();
        let opened = match self.encrypts {
            true => self
                .key
                .open_in_place(nonce, Aad::empty(), record)
                .map(|_| ()),
            false => {
                let (content, tag) = record.split_at_mut(record.len() - TAG_LEN);
                let opened = self.key.open_in_place(nonce, Aad::from(&*content), tag);
                opened.map(|_| ())
            }
        };
        opened.map_err(|_| io::Error::new(ErrorKind::InvalidData, "bytes were changed on the way"))
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
    /// Empty while there is no record to send; else it has room for the longest.
    buffer: Vec<u8>,
    /// Which bytes of the buffer are to be sent.
    record: Range<usize>,
    /// Bytes of the stream in the record that were not reported as sent yet.
    promised: usize,
}

impl Sending {
    fn send(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> io::Result<usize>,
        mut write: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if self.promised == 0 {
            let mut buffer = take_buffer(&SPARE_SENT, RECORD_MAX);
            match fill(&mut buffer[LENGTH_LEN..LENGTH_LEN + CONTENT_MAX]) {
                Ok(len) if len > 0 => self.begin(buffer, len),
                other => {
                    SPARE_SENT.set(buffer);
                    return other;
                }
            }
        }
        while !self.record.is_empty() {
            match write(&self.buffer[self.record.clone()])? {
                0 => return Err(ErrorKind::WriteZero.into()),
                count => self.record.start += count,
            }
        }
        SPARE_SENT.set(mem::take(&mut self.buffer));
        Ok(mem::take(&mut self.promised))
    }

    /// Makes a record of the `len` bytes of the stream that are in the buffer.
    fn begin(&mut self, mut buffer: Vec<u8>, len: usize) {
        let end = LENGTH_LEN + len;
        let length = (len + TAG_LEN) as u32;
        buffer[..LENGTH_LEN].copy_from_slice(&length.to_le_bytes());
        let tag = self.cipher.seal(&mut buffer[LENGTH_LEN..end]);
        buffer[end..end + TAG_LEN].copy_from_slice(&tag);
        (self.buffer, self.record, self.promised) = (buffer, 0..end + TAG_LEN, len);
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
            if self.open_next()? {
                continue;
            }
            if drained && given > 0 {
                self.more = false;
                return self.rest(given);
            }
            if self.buffer.is_empty() {
                self.buffer = take_buffer(&SPARE_ARRIVING, ARRIVING_MAX);
            }
            self.move_to_front();
            let space = &mut self.buffer[self.arrived.end..];
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

    /// Opens the next record, if it has arrived whole. False if it has not.
    fn open_next(&mut self) -> io::Result<bool> {
        let arrived = &self.buffer[self.arrived.clone()];
        let Some(length) = arrived.first_chunk::<LENGTH_LEN>() else {
            return Ok(false);
        };
        let len = u32::from_le_bytes(*length) as usize;
        if !(TAG_LEN + 1..=CONTENT_MAX + TAG_LEN).contains(&len) {
            let error = "a record of a length that none has";
            return Err(io::Error::new(ErrorKind::InvalidData, error));
        }
        if arrived.len() < LENGTH_LEN + len {
            return Ok(false);
        }
        let start = self.arrived.start + LENGTH_LEN;
        self.cipher.open(&mut self.buffer[start..start + len])?;
        self.content = start..start + len - TAG_LEN;
        self.arrived.start = start + len;
        Ok(true)
    }

    /// Moves the begun record to the front, so that there is room for all of it.
    fn move_to_front(&mut self) {
        if self.arrived.start > 0 {
            self.buffer.copy_within(self.arrived.clone(), 0);
            self.arrived = 0..self.arrived.len();
        }
    }
}

/// Gathers the bytes of `pieces` into `into`, as many as there is room for. Returns their number.
pub(crate) fn gather(pieces: &[IoSlice<'_>], into: &mut [u8]) -> usize {
    let mut filled = 0;
    for piece in pieces {
        let count = piece.len().min(into.len() - filled);
        into[filled..filled + count].copy_from_slice(&piece[..count]);
        filled += count;
    }
    filled
}

#[cfg(test)]
mod tests;
