//! The answer to a readdir: as many entries as the kernel has room for.

use super::abi;
use super::reply::Entry;
use std::mem::size_of;
use zerocopy::IntoBytes;

/// Entries of a directory, packed up to a number of bytes.
#[derive(Debug)]
pub struct Names {
    bytes: Vec<u8>,
    len_max: usize,
}

impl Names {
    /// An empty list with room for `len_max` bytes, as the request says.
    pub fn new(len_max: u32) -> Self {
        let len_max = len_max as usize;
        // A kernel asks for at most 1 MiB; the bound guards the reservation alone.
        Self {
            bytes: Vec::with_capacity(len_max.min(1 << 20)),
            len_max,
        }
    }

    /// Adds an entry to a readdir: its inode, where to go on behind it, the type bits of its mode
    /// (0 if not known) and its name. False if it has no more room; then it is not added.
    #[must_use = "an entry that had no room must be offered again"]
    pub fn push(&mut self, inode: u64, next: u64, mode: u32, name: &[u8]) -> bool {
        self.push_behind(&[], inode, next, mode, name)
    }

    /// Like [`Names::push`], for a readdirplus. `None` stands for an entry without a lookup: `.`,
    /// `..`, or one that is gone or whose attributes cannot be read.
    #[must_use = "an entry that had no room must be offered again"]
    pub fn push_plus(
        &mut self,
        entry: Option<&Entry>,
        inode: u64,
        next: u64,
        mode: u32,
        name: &[u8],
    ) -> bool {
        let record = entry.map_or_else(abi::EntryOut::default, Entry::record);
        self.push_behind(record.as_bytes(), inode, next, mode, name)
    }

    /// True before the first entry.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes of the answer.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn push_behind(
        &mut self,
        before: &[u8],
        inode: u64,
        next: u64,
        mode: u32,
        name: &[u8],
    ) -> bool {
        let len = before.len() + size_of::<abi::Dirent>() + name.len().next_multiple_of(8);
        if self.bytes.len() + len > self.len_max {
            return false;
        }
        let name_len = u32::try_from(name.len()).expect("a name fits into the reply");
        // An entry's type is the upper four bits of the file type in a mode.
        let record = abi::Dirent {
            inode,
            next,
            name_len,
            kind: (mode & 0o170_000) >> 12,
        };
        self.bytes.extend_from_slice(before);
        self.bytes.extend_from_slice(record.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_padded_and_never_cut() {
        let mut names = Names::new(24 + 8 + 24 + 16);
        assert!(names.is_empty());
        assert!(names.push(5, 1, 0o100_644, b"12345678"));
        assert!(!names.push(6, 2, 0o040_755, b"a name of 17 byte"));
        assert!(names.push(6, 2, 0o040_755, b"a name"));
        assert!(!names.push(7, 3, 0, b"b"));
        let bytes = names.as_bytes();
        assert_eq!(bytes.len(), 24 + 8 + 24 + 8);
        assert_eq!(&bytes[24..32], b"12345678");
        assert_eq!(bytes[20..24], 8_u32.as_bytes()[..], "a regular file");
        assert_eq!(&bytes[56..64], b"a name\0\0");
    }

    #[test]
    fn an_entry_with_attributes_comes_before_its_name() {
        let mut names = Names::new(4096);
        let entry = Entry {
            node: 9,
            ..Default::default()
        };
        assert!(names.push_plus(Some(&entry), 5, 1, 0o100_644, b"x"));
        assert!(names.push_plus(None, 5, 2, 0o040_755, b"."));
        assert_eq!(names.as_bytes().len(), 2 * (128 + 24 + 8));
        assert_eq!(names.as_bytes()[..8], 9_u64.as_bytes()[..]);
    }
}
