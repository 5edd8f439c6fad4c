//! Encodes and decodes the arguments of operations. A table lists for each operation its fields, in
//! their order in the body, and the encoding of each.

use super::FrameError;
use super::bytes::{Reader, Writer, family_code};
use crate::message::{
    Hello, Keep, NAME_MAX, Op, OpKind, PAYLOAD_LIMIT, POLICY_MAX, PROOF_MAX, READDIR_MAX,
    RenameMode, SetAttr, SetTime, XATTR_MAX,
};
use alloc::vec::Vec;

/// The op code of an operation.
#[inline]
pub fn op_code(op: &Op) -> u8 {
    op.kind() as u8
}

/// Writes one field. The reader has a method of the same name.
macro_rules! put {
    ($out:ident, u32, $field:ident) => {
        $out.u32(*$field)
    };
    ($out:ident, u32_in, $field:ident) => {
        $out.u32(*$field)
    };
    ($out:ident, u64, $field:ident) => {
        $out.u64(*$field)
    };
    ($out:ident, bool, $field:ident) => {
        $out.u8(u8::from(*$field))
    };
    ($out:ident, handle, $field:ident) => {
        $out.handle(*$field)
    };
    ($out:ident, name, $field:ident) => {
        $out.name($field)
    };
    ($out:ident, xattr_name, $field:ident) => {
        $out.name($field)
    };
    ($out:ident, path, $field:ident) => {
        $out.blob($field)
    };
    ($out:ident, target, $field:ident) => {
        $out.blob($field)
    };
    ($out:ident, blob, $field:ident) => {
        $out.blob($field)
    };
    ($out:ident, lock, $field:ident) => {
        $out.lock($field)
    };
    ($out:ident, family, $field:ident) => {
        $out.u8(family_code(*$field))
    };
    ($out:ident, extents, $field:ident) => {
        $out.extents($field)
    };
    ($out:ident, keep, $field:ident) => {
        $out.u8(*$field as u8)
    };
    ($out:ident, rename_mode, $field:ident) => {
        $out.u8(*$field as u8)
    };
    ($out:ident, set_attr, $field:ident) => {
        encode_set($field, $out)
    };
}

macro_rules! arguments {
    ($($op:ident { $($field:ident: $way:ident $(($($bound:expr),+))?),* })+) => {
        /// Appends the arguments of an operation.
        pub(super) fn encode_op(op: &Op, out: &mut Vec<u8>) {
            match op {
                Op::Hello(hello) => encode_hello(hello, out),
                Op::Open { handle, open, read, write } => {
                    out.handle(*handle);
                    out.u64(*open);
                    out.u8(u8::from(*read) | u8::from(*write) << 1);
                }
                $(Op::$op { $($field),* } => {
                    $(put!(out, $way, $field);)*
                })+
            }
        }

        fn decode_arguments(kind: OpKind, body: &mut Reader<'_>) -> Result<Op, FrameError> {
            Ok(match kind {
                OpKind::Hello => Op::Hello(decode_hello(body)?),
                OpKind::Open => decode_open(body)?,
                $(OpKind::$op => Op::$op {
                    $($field: body.$way($($($bound),+)?)?),*
                },)+
            })
        }
    };
}

arguments! {
    Bye {}
    Ping {}
    Status {}
    SetPolicy { keep: keep, text: blob(POLICY_MAX, "a policy's text") }
    SetShares { keep: keep, after: u64, at: u64, text: blob(POLICY_MAX, "the rules' text") }
    Application {
        app: u64,
        name: blob(NAME_MAX, "an application's name"),
        job: blob(NAME_MAX, "a job's name"),
        project: blob(NAME_MAX, "a project's name")
    }
    ShareMemory { bytes: u64 }
    RegisterMemory { bytes: u64, address: u64, key: u64 }
    Drain { undo: bool }
    Reach { handle: handle, path: path }

    Lookup { parent: handle, name: name }
    Readdir {
        handle: handle,
        cookie: u64,
        bytes_max: u32_in(0, READDIR_MAX, "the length of a listing"),
        plus: bool
    }
    Getattr { handle: handle }
    Readlink { handle: handle }
    Access { handle: handle, mask: u32_in(0, 7, "an access mask") }
    Statfs {}
    Seek { handle: handle, offset: u64, whence: u32_in(3, 4, "whence") }
    Getxattr { handle: handle, name: xattr_name }
    Listxattr { handle: handle }

    Create { parent: handle, name: name, mode: u32, exclusive: bool }
    Mkdir { parent: handle, name: name, mode: u32 }
    Mknod { parent: handle, name: name, mode: u32, rdev: u32 }
    Symlink { parent: handle, name: name, target: target }
    Link { parent: handle, name: name, handle: handle }
    Unlink { parent: handle, name: name }
    Rmdir { parent: handle, name: name }
    Rename { parent: handle, name: name, new_parent: handle, new_name: name, mode: rename_mode }

    Setattr { handle: handle, set: set_attr }
    Setxattr {
        handle: handle,
        name: xattr_name,
        value: blob(XATTR_MAX, "an attribute's value"),
        flags: u32
    }
    Removexattr { handle: handle, name: xattr_name }
    Fsync { handle: handle, data_only: bool }
    Fallocate { handle: handle, mode: u32, offset: u64, len: u64 }
    CopyRange { handle: handle, source: handle, source_offset: u64, offset: u64, len: u64 }
    Append { handle: handle }
    Close { handle: handle, open: u64 }

    SetLock { handle: handle, lock: lock, wait: bool, reclaim: bool }
    TestLock { handle: handle, lock: lock }
    DropLocks { handle: handle, family: family, owner: u64 }
    CancelLock { request: u64 }
    ReclaimDone {}

    Read { handle: handle, extents: extents }
    Write { handle: handle, extents: extents }
}

/// Reads the arguments of an operation, each checked against its bounds.
pub(super) fn decode_op(kind: OpKind, body: &mut Reader<'_>) -> Result<Op, FrameError> {
    let op = decode_arguments(kind, body)?;
    if let Op::SetPolicy { text, keep } | Op::SetShares { text, keep, .. } = &op
        && *keep == Keep::Configured
        && !text.is_empty()
    {
        return Err(FrameError::Invalid("rules beside the configuration's"));
    }
    Ok(op)
}

fn encode_hello(hello: &Hello, out: &mut Vec<u8>) {
    out.u8(hello.version);
    out.u64(hello.client);
    out.u64(hello.incarnation);
    out.u8(u8::from(hello.joins));
    out.u8(u8::from(hello.asks));
    out.u64(hello.wall_ns);
    out.u32(hello.payload_max);
    out.pipeline(hello.pipeline);
    out.u32(hello.uid);
    out.u32(hello.gid);
    out.blob(&hello.name);
    out.blob(&hello.proof);
}

fn decode_hello(body: &mut Reader<'_>) -> Result<Hello, FrameError> {
    let hello = Hello {
        version: body.u8()?,
        client: body.u64()?,
        incarnation: body.u64()?,
        joins: body.bool()?,
        asks: body.bool()?,
        wall_ns: body.u64()?,
        payload_max: body.u32()?,
        pipeline: body.pipeline()?,
        uid: body.u32()?,
        gid: body.u32()?,
        name: body.blob(NAME_MAX, "a client's name")?,
        proof: body.blob(PROOF_MAX, "a proof")?,
    };
    if hello.client == 0 {
        return Err(FrameError::Invalid("a client's id"));
    }
    if !(4096..=PAYLOAD_LIMIT).contains(&hello.payload_max) {
        return Err(FrameError::Invalid("the largest payload"));
    }
    Ok(hello)
}

fn decode_open(body: &mut Reader<'_>) -> Result<Op, FrameError> {
    let (handle, open, modes) = (body.handle()?, body.u64()?, body.u8()?);
    if modes > 3 {
        return Err(FrameError::Invalid("an open's mode"));
    }
    Ok(Op::Open {
        handle,
        open,
        read: modes & 1 != 0,
        write: modes & 2 != 0,
    })
}

impl Reader<'_> {
    fn u32_in(&mut self, min: u32, max: u32, what: &'static str) -> Result<u32, FrameError> {
        let value = self.u32()?;
        match (min..=max).contains(&value) {
            true => Ok(value),
            false => Err(FrameError::Invalid(what)),
        }
    }

    fn keep(&mut self) -> Result<Keep, FrameError> {
        match self.u8()? {
            0 => Ok(Keep::Run),
            1 => Ok(Keep::Saved),
            2 => Ok(Keep::Configured),
            _ => Err(FrameError::Invalid("how long rules hold")),
        }
    }

    fn rename_mode(&mut self) -> Result<RenameMode, FrameError> {
        match self.u8()? {
            0 => Ok(RenameMode::Replace),
            1 => Ok(RenameMode::NoReplace),
            2 => Ok(RenameMode::Exchange),
            _ => Err(FrameError::Invalid("a rename's mode")),
        }
    }

    fn set_attr(&mut self) -> Result<SetAttr, FrameError> {
        decode_set(self)
    }
}

fn encode_set(set: &SetAttr, out: &mut Vec<u8>) {
    let now = |time: Option<SetTime>| time == Some(SetTime::Now);
    out.u8(u8::from(set.mode.is_some())
        | u8::from(set.uid.is_some()) << 1
        | u8::from(set.gid.is_some()) << 2
        | u8::from(set.size.is_some()) << 3
        | u8::from(set.atime.is_some()) << 4
        | u8::from(set.mtime.is_some()) << 5
        | u8::from(now(set.atime)) << 6
        | u8::from(now(set.mtime)) << 7);
    for field in [set.mode, set.uid, set.gid].into_iter().flatten() {
        out.u32(field);
    }
    set.size.iter().for_each(|size| out.u64(*size));
    for time in [set.atime, set.mtime].into_iter().flatten() {
        if let SetTime::At(at) = time {
            out.i64(at);
        }
    }
}

fn decode_set(body: &mut Reader<'_>) -> Result<SetAttr, FrameError> {
    let bits = body.u8()?;
    let has = |bit: u8| bits & (1 << bit) != 0;
    if (has(6) && !has(4)) || (has(7) && !has(5)) {
        return Err(FrameError::Invalid("the attributes to set"));
    }
    let mut field = |bit: u8| has(bit).then(|| body.u32()).transpose();
    let (mode, uid, gid) = (field(0)?, field(1)?, field(2)?);
    let size = has(3).then(|| body.u64()).transpose()?;
    let mut time = |set: bool, now: bool| match (set, now) {
        (false, _) => Ok(None),
        (true, true) => Ok(Some(SetTime::Now)),
        (true, false) => body.i64().map(|at| Some(SetTime::At(at))),
    };
    let atime = time(has(4), has(6))?;
    let mtime = time(has(5), has(7))?;
    Ok(SetAttr {
        mode,
        uid,
        gid,
        size,
        atime,
        mtime,
    })
}
