//! The cipher of one direction of a channel: seals and opens records.

use super::TAG_LEN;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
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

    /// Protects the content of a record where it lies, and returns the record's tag.
    pub(super) fn seal(&mut self, content: &mut [u8]) -> [u8; TAG_LEN] {
        let nonce = self.nonce();
        let made = match self.encrypts {
            true => (self.key).seal_in_place_separate_tag(nonce, Aad::empty(), content),
            false => (self.key).seal_in_place_separate_tag(nonce, Aad::from(&*content), &mut []),
        };
        let tag = made.expect("a record is far shorter than the cipher allows");
        *tag.as_ref().first_chunk().expect("a tag has this length")
    }

    /// Checks the content of a record, and restores it where it lies. After an error its bytes are
    /// of no use.
    pub(super) fn open(&mut self, content: &mut [u8], tag: [u8; TAG_LEN]) -> io::Result<()> {
        let (nonce, tag) = (self.nonce(), Tag::from(tag));
        let key = &self.key;
        let opened = match self.encrypts {
            true => key.open_in_place_separate_tag(nonce, Aad::empty(), tag, content, 0..),
            false => key.open_in_place_separate_tag(nonce, Aad::from(&*content), tag, &mut [], 0..),
        };
        match opened {
            Ok(_) => Ok(()),
            Err(_) => Err(changed()),
        }
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
