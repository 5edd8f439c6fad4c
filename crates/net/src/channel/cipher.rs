//! The cipher of one direction of a channel: seals and opens records.

use super::TAG_LEN;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use std::io::{self, ErrorKind};

/// Records after which the key is replaced: 64 GiB of the stream.
pub(super) const REKEY_RECORDS: u64 = 1 << 20;

/// The key of one direction, and the number of the next record.
pub(super) struct Cipher {
    key: LessSafeKey,
    encrypts: bool,
    pub(super) number: u64,
}

impl Cipher {
    pub(super) fn new(key: &[u8; 32], encrypts: bool) -> Cipher {
        Cipher {
            key: key_of(key),
            encrypts,
            number: 0,
        }
    }

    /// Protects the first `len` bytes of `record`, and puts the tag behind them.
    pub(super) fn seal(&mut self, record: &mut [u8], len: usize) {
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
    pub(super) fn seal_from(&mut self, content: &[u8], record: &mut [u8]) {
        record[..content.len()].copy_from_slice(content);
        self.seal(record, content.len());
    }

    /// Checks a record, and leaves its content at its beginning. The length of a record is at least
    /// that of a tag.
    pub(super) fn open(&mut self, record: &mut [u8]) -> io::Result<()> {
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
    pub(super) fn open_into(&mut self, record: &mut [u8], place: &mut [u8]) -> io::Result<()> {
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
