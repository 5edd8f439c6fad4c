//! Encodes the results of operations that change something as bytes of a reply slot.

use crate::bytes::{Reader, Writer};
use tidegate_wire::{Attr, Handle, Outcome, Status};

const DONE: u8 = 0;
const ATTR: u8 = 1;
const REMOVED: u8 = 2;
const WRITTEN: u8 = 3;
const APPENDED: u8 = 4;
const ERRNO: u8 = 5;

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
