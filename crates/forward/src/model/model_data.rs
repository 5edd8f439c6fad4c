//! The bytes of a model file: pages that were written, holes between them.

use std::boxed::Box;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

const PAGE: u64 = 4096;

/// Contents and size of a regular file, as they are read.
#[derive(Clone, Debug, Default)]
pub(super) struct Data {
    pages: BTreeMap<u64, Box<[u8]>>,
    pub(super) size: u64,
    /// Another copy that the back end keeps, once a write was in one of them only. It has all later
    /// changes, and is not read.
    other: Option<Box<Data>>,
}

impl Data {
    /// Up to `len` bytes, fewer at the end of the file.
    pub(super) fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let end = offset.saturating_add(len).min(self.size);
        let mut bytes = vec![0; end.saturating_sub(offset) as usize];
        for (page, from, to) in pieces(offset, end) {
            if let Some(stored) = self.pages.get(&page) {
                let at = (page * PAGE + from as u64 - offset) as usize;
                bytes[at..][..to - from].copy_from_slice(&stored[from..to]);
            }
        }
        bytes
    }

    /// Writes in one copy only: in that which is read, or in the other.
    pub(super) fn write_one(&mut self, seen: bool, offset: u64, bytes: &[u8]) {
        let mut other = self.other.take().unwrap_or_else(|| Box::new(self.clone()));
        match seen {
            true => self.write(offset, bytes),
            false => other.write(offset, bytes),
        }
        self.other = Some(other);
    }

    /// The copy that is not read, if they may differ.
    pub(super) fn other(&self) -> Option<&Data> {
        self.other.as_deref()
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        if let Some(other) = &mut self.other {
            other.write(offset, bytes);
        }
        let end = offset + bytes.len() as u64;
        for (page, from, to) in pieces(offset, end) {
            let at = (page * PAGE + from as u64 - offset) as usize;
            self.page(page)[from..to].copy_from_slice(&bytes[at..][..to - from]);
        }
        if !bytes.is_empty() {
            self.size = self.size.max(end);
        }
    }

    pub(super) fn truncate(&mut self, size: u64) {
        if let Some(other) = &mut self.other {
            other.truncate(size);
        }
        if size < self.size {
            let kept = size.div_ceil(PAGE);
            self.pages.split_off(&kept);
            let tail = (size % PAGE) as usize;
            if let Some(page) = self.pages.get_mut(&(size / PAGE)) {
                page[tail..].fill(0);
            }
        }
        self.size = size;
    }

    /// Makes a range read as zeros.
    pub(super) fn punch(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.size);
        if end <= offset {
            return;
        }
        // A file can have more pages than anybody counts, but not more that were written.
        let stored = self.pages.range(offset / PAGE..end.div_ceil(PAGE));
        let stored: Vec<u64> = stored.map(|(page, _)| *page).collect();
        for page in stored {
            let (page, from, to) = piece(page, offset, end);
            if to - from == PAGE as usize {
                self.pages.remove(&page);
            } else if let Some(stored) = self.pages.get_mut(&page) {
                stored[from..to].fill(0);
            }
        }
    }

    /// The next byte from `offset` on that is data, or that is a hole (the end is one).
    pub(super) fn seek(&self, offset: u64, data: bool) -> Option<u64> {
        if offset >= self.size {
            return None;
        }
        let mut stored = self.pages.range(offset / PAGE..).map(|(page, _)| *page);
        if data {
            let page = stored.next().filter(|page| page * PAGE < self.size)?;
            return Some(offset.max(page * PAGE));
        }
        let gap = (offset / PAGE..)
            .zip(stored)
            .find(|(page, stored)| page != stored);
        let behind = self.pages.range(offset / PAGE..).count() as u64;
        let page = gap.map_or(offset / PAGE + behind, |(page, _)| page);
        Some(offset.max(page * PAGE).min(self.size))
    }

    /// Blocks of 512 bytes.
    pub(super) fn blocks(&self) -> u64 {
        self.pages.len() as u64 * (PAGE / 512)
    }

    fn page(&mut self, page: u64) -> &mut [u8] {
        let fresh = || vec![0; PAGE as usize].into_boxed_slice();
        self.pages.entry(page).or_insert_with(fresh)
    }
}

/// A range as pages, each with its first byte and the one after its last.
fn pieces(offset: u64, end: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let pages = offset / PAGE..end.div_ceil(PAGE).max(offset / PAGE);
    pages
        .filter(move |_| end > offset)
        .map(move |page| piece(page, offset, end))
}

/// The part of a page that lies in a range which reaches it.
fn piece(page: u64, offset: u64, end: u64) -> (u64, usize, usize) {
    let from = offset.saturating_sub(page * PAGE).min(PAGE);
    let to = (end - page * PAGE).min(PAGE);
    (page, from as usize, to as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_written_is_not_counted_page_by_page() {
        let mut data = Data::default();
        data.truncate(1 << 62);
        for page in [3, 4, 9] {
            data.write(page * PAGE, &[7; PAGE as usize]);
        }
        assert_eq!(data.seek(5, true), Some(3 * PAGE));
        assert_eq!(data.seek(3 * PAGE + 5, true), Some(3 * PAGE + 5));
        assert_eq!(data.seek(3 * PAGE + 5, false), Some(5 * PAGE));
        assert_eq!(data.seek(9 * PAGE, false), Some(10 * PAGE));
        assert_eq!(data.seek(10 * PAGE, true), None);
        assert_eq!(data.seek(7, false), Some(7));
        data.punch(3 * PAGE + 1, u64::MAX);
        assert_eq!((data.blocks(), data.read(3 * PAGE, 3)), (8, vec![7, 0, 0]));
        data.truncate(3 * PAGE + 9);
        assert_eq!(data.seek(3 * PAGE, false), Some(3 * PAGE + 9), "its end");
    }
}
