//! The bytes of the reply table's records: little-endian fields, and results of operations.

use tidegate_wire::{Attr, Handle, Outcome, Status};

const DONE: u8 = 0;
const ATTR: u8 = 1;
const REMOVED: u8 = 2;
const WRITTEN: u8 = 3;
const APPENDED: u8 = 4;
const ERRNO: u8 = 5;

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

/// Writes a result and returns its length. Only results of mutating operations come here.
pub(crate) fn encode_result(result: &Result<Outcome, Status>, out: &mut [u8]) -> usize {
    let mut out = Writer::new(out);
    match result {
        Ok(Outcome::Done) => out.u8(DONE),
        Ok(Outcome::Attr(attr)) => {
            out.u8(ATTR);
            put_attr(&mut out, attr);
        }
        Ok(Outcome::Removed(handle)) => {
            out.u8(REMOVED);
            out.u8(u8::from(handle.is_some()));
            out.handle(handle.unwrap_or(Handle { inode: 0, birth: 0 }));
        }
        Ok(Outcome::Written { len }) => {
            out.u8(WRITTEN);
            out.u64(*len);
        }
        Ok(Outcome::Appended { offset, len }) => {
            out.u8(APPENDED);
            out.u64(*offset);
            out.u64(*len);
        }
        Err(Status::Errno(errno)) => {
            out.u8(ERRNO);
            out.u64(u64::from(*errno));
        }
        Ok(_) | Err(_) => unreachable!("no mutating operation has such a result to record"),
    }
    out.len()
}

/// Reads a result, None if the bytes are none.
pub(crate) fn decode_result(bytes: &[u8]) -> Option<Result<Outcome, Status>> {
    let mut from = Reader::new(bytes);
    let result = match from.u8()? {
        DONE => Ok(Outcome::Done),
        ATTR => Ok(Outcome::Attr(take_attr(&mut from)?)),
        REMOVED => {
            let some = from.u8()? != 0;
            let handle = from.handle()?;
            Ok(Outcome::Removed(some.then_some(handle)))
        }
        WRITTEN => Ok(Outcome::Written { len: from.u64()? }),
        APPENDED => Ok(Outcome::Appended {
            offset: from.u64()?,
            len: from.u64()?,
        }),
        ERRNO => Err(Status::Errno(u16::try_from(from.u64()?).ok()?)),
        _ => return None,
    };
    from.is_empty().then_some(result)
}

fn put_attr(out: &mut Writer<'_>, attr: &Attr) {
    out.handle(attr.handle);
    out.u64(attr.size);
    out.u64(attr.blocks);
    for time in [attr.atime_ns, attr.mtime_ns, attr.ctime_ns] {
        out.u64(time as u64);
    }
    for word in [
        attr.mode,
        attr.nlink,
        attr.uid,
        attr.gid,
        attr.rdev,
        attr.block_size,
    ] {
        out.u32(word);
    }
}

fn take_attr(from: &mut Reader<'_>) -> Option<Attr> {
    Some(Attr {
        handle: from.handle()?,
        size: from.u64()?,
        blocks: from.u64()?,
        atime_ns: from.u64()? as i64,
        mtime_ns: from.u64()? as i64,
        ctime_ns: from.u64()? as i64,
        mode: from.u32()?,
        nlink: from.u32()?,
        uid: from.u32()?,
        gid: from.u32()?,
        rdev: from.u32()?,
        block_size: from.u32()?,
    })
}
