//! Little-endian fields in and out of byte slices, for the records of the reply table.

use tidegate_wire::Handle;

/// Appends fields to a slice that is known to be long enough.
pub(crate) struct Writer<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    /// Starts at the slice's first byte.
    pub(crate) fn new(bytes: &'a mut [u8]) -> Writer<'a> {
        Writer { bytes, len: 0 }
    }

    /// Bytes written so far.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.raw(&[value]);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    pub(crate) fn handle(&mut self, value: Handle) {
        self.u64(value.inode);
        self.u64(value.birth);
    }

    /// A string of at most 65,535 bytes with its length.
    pub(crate) fn string(&mut self, value: &[u8]) {
        let len = u16::try_from(value.len()).expect("strings in records are short");
        self.raw(&len.to_le_bytes());
        self.raw(value);
    }

    fn raw(&mut self, value: &[u8]) {
        self.bytes[self.len..][..value.len()].copy_from_slice(value);
        self.len += value.len();
    }
}

/// Takes fields from a slice; None when it is too short.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the slice's first byte.
    pub(crate) fn new(rest: &'a [u8]) -> Reader<'a> {
        Reader { rest }
    }

    /// Whether all was taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        Some(self.raw(1)?[0])
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.raw(4)?.try_into().ok()?))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.raw(8)?.try_into().ok()?))
    }

    pub(crate) fn handle(&mut self) -> Option<Handle> {
        Some(Handle {
            inode: self.u64()?,
            birth: self.u64()?,
        })
    }

    /// A string with its length.
    pub(crate) fn string(&mut self) -> Option<&'a [u8]> {
        let len = u16::from_le_bytes(self.raw(2)?.try_into().ok()?);
        self.raw(usize::from(len))
    }

    fn raw(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }
}
