//! The data of one part of a binary log, uncompressed as it is read.

use super::Wrong;
use flate2::{Decompress, FlushDecompress, Status};

const BUFFER: usize = 1 << 16;

/// How a log's parts are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Zlib,
    None,
}

/// Reads a part: one zlib stream or several, one behind the other, or plain data.
pub(super) struct Part<'a> {
    section: &'a str,
    /// Where in the file the compressed data begins.
    begin: u64,
    rest: &'a [u8],
    len: usize,
    zlib: Option<Decompress>,
    /// A zlib stream has begun and not ended.
    in_stream: bool,
    /// Uncompressed bytes that were not read yet.
    ready: Vec<u8>,
    ready_from: usize,
    /// How many uncompressed bytes were read.
    at: u64,
}

impl<'a> Part<'a> {
    pub(super) fn new(
        section: &'a str,
        bytes: &'a [u8],
        begin: u64,
        compression: Compression,
    ) -> Part<'a> {
        Part {
            section,
            begin,
            rest: bytes,
            len: bytes.len(),
            zlib: (compression == Compression::Zlib).then(|| Decompress::new(true)),
            in_stream: false,
            ready: Vec::new(),
            ready_from: 0,
            at: 0,
        }
    }

    /// How many uncompressed bytes were read.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Fills the buffer; false at the end of the part, if that comes before the first byte.
    pub(super) fn fill(&mut self, into: &mut [u8]) -> Result<bool, Wrong> {
        let len = self.fill_some(into)?;
        if len == 0 && !into.is_empty() {
            return Ok(false);
        }
        if len < into.len() {
            let place = format!("byte {} of its data", self.at);
            let why = format!(
                "it ends there, amid {} bytes that belong together",
                into.len()
            );
            return Err(Wrong::new(self.section, place, why));
        }
        Ok(true)
    }

    /// Fills the buffer as far as there is data; says how far.
    pub(super) fn fill_some(&mut self, into: &mut [u8]) -> Result<usize, Wrong> {
        let mut done = 0;
        while done < into.len() {
            if self.ready_from == self.ready.len() && !self.inflate()? {
                break;
            }
            let some = &self.ready[self.ready_from..];
            let len = some.len().min(into.len() - done);
            into[done..done + len].copy_from_slice(&some[..len]);
            self.ready_from += len;
            done += len;
        }
        self.at += done as u64;
        Ok(done)
    }

    /// Makes more data ready; false if there is none.
    fn inflate(&mut self) -> Result<bool, Wrong> {
        self.ready.clear();
        self.ready_from = 0;
        let Some(zlib) = &mut self.zlib else {
            let (some, rest) = self.rest.split_at(self.rest.len().min(BUFFER));
            self.ready.extend_from_slice(some);
            self.rest = rest;
            return Ok(!some.is_empty());
        };
        self.ready.reserve(BUFFER);
        while self.ready.is_empty() {
            if self.rest.is_empty() && !self.in_stream {
                return Ok(false);
            }
            let before = zlib.total_in();
            let status = zlib.decompress_vec(self.rest, &mut self.ready, FlushDecompress::None);
            let taken = (zlib.total_in() - before) as usize;
            self.rest = &self.rest[taken..];
            let why = match status {
                Ok(Status::StreamEnd) => {
                    zlib.reset(true);
                    self.in_stream = false;
                    continue;
                }
                Ok(_) if taken > 0 || !self.ready.is_empty() => {
                    self.in_stream = true;
                    continue;
                }
                Ok(_) => "the compressed data is cut short",
                Err(_) => "the compressed data is damaged",
            };
            let at = self.begin + (self.len - self.rest.len()) as u64;
            return Err(Wrong::new(
                self.section,
                format!("byte {at} of the file"),
                why,
            ));
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn zlib(data: &[u8]) -> Vec<u8> {
        let level = flate2::Compression::default();
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), level);
        encoder.write_all(data).expect("memory");
        encoder.finish().expect("memory")
    }

    fn read(bytes: &[u8], compression: Compression) -> Result<Vec<u8>, String> {
        let mut part = Part::new("part", bytes, 100, compression);
        let (mut all, mut byte) = (Vec::new(), [0; 7]);
        loop {
            match part.fill_some(&mut byte) {
                Ok(0) => return Ok(all),
                Ok(len) => all.extend_from_slice(&byte[..len]),
                Err(wrong) => return Err(format!("{}: {}", wrong.place, wrong.why)),
            }
        }
    }

    #[test]
    fn streams_one_behind_the_other_are_one() {
        let data: Vec<u8> = (0..300_000u32).flat_map(u32::to_le_bytes).collect();
        let (one, other) = data.split_at(500_001);
        let bytes = [zlib(one), zlib(b""), zlib(other)].concat();
        assert_eq!(read(&bytes, Compression::Zlib), Ok(data.clone()));
        assert_eq!(read(&data, Compression::None), Ok(data));
        assert_eq!(read(b"", Compression::Zlib), Ok(Vec::new()));
        assert_eq!(read(&zlib(b""), Compression::Zlib), Ok(Vec::new()));
    }

    #[test]
    fn a_stream_cut_anywhere_is_told() {
        let data: Vec<u8> = (0..999u32).flat_map(u32::to_le_bytes).collect();
        let bytes = zlib(&data);
        for len in 1..bytes.len() {
            let error = read(&bytes[..len], Compression::Zlib).expect_err("cut short");
            assert!(error.contains("cut short"), "{len}: {error}");
        }
        let mut bad = bytes;
        bad[10] ^= 0xff;
        let error = read(&bad, Compression::Zlib).expect_err("damaged");
        assert!(
            error.contains("damaged") || error.contains("cut short"),
            "{error}"
        );
    }
}
