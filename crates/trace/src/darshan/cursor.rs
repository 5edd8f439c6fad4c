//! Numbers of either byte order, read one after the other from a slice.

use super::Wrong;

/// A slice that is read from its front, and the byte order of what is in it.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    big_endian: bool,
    section: &'a str,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], big_endian: bool, section: &'a str) -> Cursor<'a> {
        Cursor {
            bytes,
            at: 0,
            big_endian,
            section,
        }
    }

    /// Goes to a byte.
    pub(super) fn to(mut self, at: usize) -> Cursor<'a> {
        self.at = at;
        self
    }

    pub(super) fn take<const N: usize>(&mut self) -> Result<[u8; N], Wrong> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(bytes) = rest.first_chunk::<N>() else {
            let place = format!("byte {}", self.bytes.len());
            let why = format!("it ends there, {N} bytes were expected at byte {}", self.at);
            return Err(Wrong::new(self.section, place, why));
        };
        self.at += N;
        Ok(*bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Wrong> {
        let bytes = self.take()?;
        Ok(match self.big_endian {
            true => u64::from_be_bytes(bytes),
            false => u64::from_le_bytes(bytes),
        })
    }

    pub(super) fn u32(&mut self) -> Result<u32, Wrong> {
        let bytes = self.take()?;
        Ok(match self.big_endian {
            true => u32::from_be_bytes(bytes),
            false => u32::from_le_bytes(bytes),
        })
    }

    pub(super) fn i64(&mut self) -> Result<i64, Wrong> {
        Ok(self.u64()? as i64)
    }

    pub(super) fn f64(&mut self) -> Result<f64, Wrong> {
        Ok(f64::from_bits(self.u64()?))
    }
}

/// The text up to the first zero byte, whatever its encoding.
pub(super) fn text(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}
