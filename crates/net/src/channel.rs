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
//! After each 2^20 records (64 GiB) a new key is made of the old one, as the Noise protocol
//! framework has it.

mod cipher;
mod receiving;
mod sending;

use crate::RawBytes;
use crate::spare::{self, Spare};
use cipher::Cipher;
use receiving::Receiving;
use sending::Sending;
use std::io::{self, IoSlice, IoSliceMut};
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
            sending: Mutex::new(Sending::new(Cipher::new(ours, encrypts))),
            receiving: Mutex::new(Receiving::new(Cipher::new(theirs, encrypts))),
        })
    }

    /// Sends bytes of the stream: those of the pieces, in their order, as many as there is room for
    /// in one go. `write` sends bytes of records. Returns how many bytes of the stream are out.
    ///
    /// If `write` has no room, the bytes count as not sent, though their records are made: the
    /// caller tries again with the same bytes, which are not looked at a second time.
    pub fn send(
        &self,
        pieces: &[RawBytes<'_>],
        write: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        lock(&self.sending).send(pieces, write)
    }

    /// Sends bytes of the stream that the caller does not need any more: they become records where
    /// they lie, and are not copied. The rest is as with [`Channel::send`]: after `WouldBlock` the
    /// caller tries again with the same memory; it is an error if it does not.
    pub fn send_in_place(
        &self,
        piece: &mut [u8],
        write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        lock(&self.sending).send_in_place(piece, write)
    }

    /// Receives bytes of the stream into the pieces, in their order. `read` receives bytes of
    /// records, likewise. Returns the number of bytes of the stream; 0 is its end.
    ///
    /// Long records arrive in the first piece itself. So if that has 32 KiB or more, the next call
    /// must begin where this one ended, until the piece is full; otherwise it fails. What is in the
    /// pieces beyond the returned number is nothing that the other end has said.
    pub fn receive(
        &self,
        pieces: &mut [IoSliceMut<'_>],
        read: impl FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        lock(&self.receiving).receive(pieces, read)
    }

    /// Whether a record has begun to arrive and has not arrived whole.
    pub(crate) fn is_amid_record(&self) -> bool {
        lock(&self.receiving).is_amid_record()
    }

    /// Whether the next receive may find bytes, or the end of the stream, though the last one did
    /// not fill its pieces and nothing has arrived since.
    pub fn has_more(&self) -> bool {
        lock(&self.receiving).has_more()
    }
}

/// A panic amid a record leaves a record that the other end refuses.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A buffer of `len` bytes. A channel has one only while it has begun a record and not ended it.
fn take_buffer(kept: &'static LocalKey<Spare>, len: usize) -> Vec<u8> {
    let buffer = spare::take(kept);
    match buffer.is_empty() {
        true => vec![0; len],
        false => buffer,
    }
}

#[cfg(test)]
mod tests;
