//! Encodes and decodes requests. A table lists for each operation its fields, in their order in the
//! body, and the encoding of each.

use super::{
    FLAG_CALLER, FLAG_HINTS, FLAG_REPLAY, FLAG_REPLY_SLOT, FLAG_SHARED, Fields, FrameError, Header,
    Reader, Writer, begin, family_code, name_is_valid, seal,
};
use crate::message::{
    Caller, EXTENTS_MAX, Extent, Extents, GROUPS_MAX, Hello, Hints, Keep, LISTED_XATTRS_MAX,
    NAME_MAX, Name, Op, OpKind, PATH_MAX, PAYLOAD_LIMIT, POLICY_MAX, READDIR_MAX, RenameMode,
    ReplySlot, Request, SetAttr, SetTime, WALK_MAX, XATTR_MAX,
};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Appends the header and body of a request to `out`.
pub fn encode_request(request: &Request, out: &mut Vec<u8>) {
    encode(request, None, out);
}

/// Appends the header and body of a read or write to `out` whose payload the client has put into
/// shared memory, or the forwarder shall put there. `place` is the payload's offset in that memory,
/// in bytes.
pub fn encode_request_shared(request: &Request, place: u64, out: &mut Vec<u8>) {
    debug_assert!(may_share(&request.op));
    encode(request, Some(place), out);
}

fn encode(request: &Request, place: Option<u64>, out: &mut Vec<u8>) {
    debug_assert_eq!(request.reply_slot.is_some(), request.op.mutates());
    debug_assert_eq!(request.hints.is_some(), request.op.moves_data());
    let start = begin(out);
    let mut flags = 0;
    if request.replay {
        flags |= FLAG_REPLAY;
    }
    if let Some(place) = place {
        flags |= FLAG_SHARED;
        out.u64(place);
    }
    if request.reply_slot.is_some() {
        flags |= FLAG_REPLY_SLOT;
    }
    if let Some(caller) = &request.caller {
        flags |= FLAG_CALLER;
        encode_caller(caller, out);
    }
    if let Some(hints) = &request.hints {
        flags |= FLAG_HINTS;
        encode_hints(hints, out);
    }
    encode_op(&request.op, out);
    let fields = Fields {
        op: op_code(&request.op),
        flags,
        id: request.id,
        seat: request.seat,
        reply_slot_index: request.reply_slot.map_or(0, |its| its.index),
        payload_len: request.payload_len,
        status: 0,
        counter: request.reply_slot.map_or(0, |its| its.sequence),
        generation: request.generation,
        epoch: request.epoch,
    };
    seal(&fields, out, start);
}

/// Decodes a request from its header and body. Fails with [`FrameError::Flags`] if its payload is
/// in shared memory.
pub fn decode_request(header: &Header, body: &[u8]) -> Result<Request, FrameError> {
    match decode_request_shared(header, body)? {
        (request, None) => Ok(request),
        (_, Some(_)) => Err(FrameError::Flags(header.u16_at(6))),
    }
}

/// Decodes a request from its header and body. If the request's payload is in shared memory, also
/// returns its offset there, in bytes.
pub fn decode_request_shared(
    header: &Header,
    body: &[u8],
) -> Result<(Request, Option<u64>), FrameError> {
    if header.reply {
        return Err(FrameError::Direction);
    }
    header.check_body(body)?;
    let (id, op) = (header.id(), header.op());
    let kind = OpKind::of_code(op).ok_or(FrameError::UnknownOp { id, op })?;
    let mut body = Reader::new(body);
    let place = match header.shared {
        true => Some(body.u64()?),
        false => None,
    };
    let caller = match header.flag(FLAG_CALLER) {
        true => Some(body.caller()?),
        false => None,
    };
    let hints = match header.flag(FLAG_HINTS) {
        true => Some(body.hints()?),
        false => None,
    };
    let op = decode_op(kind, &mut body)?;
    body.end()?;
    if header.flag(FLAG_REPLY_SLOT) != op.mutates() || header.flag(FLAG_HINTS) != op.moves_data() {
        return Err(FrameError::Flags(header.u16_at(6)));
    }
    let reply_slot = match header.flag(FLAG_REPLY_SLOT) {
        true => Some(ReplySlot {
            index: header.u16_at(18),
            sequence: header.u64_at(32),
        }),
        false => None,
    };
    if reply_slot.is_some_and(|its| its.sequence == 0) {
        return Err(FrameError::Invalid("a reply slot's sequence"));
    }
    check_payload(&op, header.payload_len)?;
    if place.is_some() && !may_share(&op) {
        return Err(FrameError::Flags(header.u16_at(6)));
    }
    let request = Request {
        id: header.id(),
        seat: header.u16_at(16),
        reply_slot,
        generation: header.u64_at(40),
        epoch: header.u64_at(48),
        replay: header.flag(FLAG_REPLAY),
        caller,
        hints,
        op,
        payload_len: header.payload_len,
    };
    Ok((request, place))
}

/// Whether the payload of an operation may be in shared memory. It may if storage can read and
/// write it there.
fn may_share(op: &Op) -> bool {
    op.data().is_some()
}

fn check_payload(op: &Op, payload_len: u32) -> Result<(), FrameError> {
    let fits = match op {
        Op::Write { extents, .. } => extents.bytes() == u64::from(payload_len),
        Op::Append { .. } => true,
        Op::Read { extents, .. } => payload_len == 0 && extents.bytes() <= u64::from(PAYLOAD_LIMIT),
        Op::Fsync { .. } | Op::Fallocate { .. } | Op::CopyRange { .. } => payload_len == 0,
        session_ops!() | path_ops!() | look_ops!() | name_ops!() => payload_len == 0,
        attribute_ops!() | open_ops!() | lock_ops!() => payload_len == 0,
    };
    match fits {
        true => Ok(()),
        false => Err(FrameError::PayloadLength(payload_len)),
    }
}

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
    ($out:ident, xattr_names, $field:ident) => {
        $out.u8($field.len() as u8);
        $field.iter().for_each(|name| $out.name(name));
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
        encode_extents($field, $out)
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
        fn encode_op(op: &Op, out: &mut Vec<u8>) {
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
    GiveBack { handle: handle }
    ResolvePath { handle: handle, path: path }

    Lookup { parent: handle, name: name }
    Readdir {
        handle: handle,
        cookie: u64,
        bytes_max: u32_in(0, READDIR_MAX, "the length of a listing"),
        plus: bool,
        xattrs: xattr_names
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
fn decode_op(kind: OpKind, body: &mut Reader<'_>) -> Result<Op, FrameError> {
    let op = decode_arguments(kind, body)?;
    if let Op::SetPolicy { text, keep } | Op::SetShares { text, keep, .. } = &op
        && *keep == Keep::Configured
        && !text.is_empty()
    {
        return Err(FrameError::Invalid("rules beside the configuration's"));
    }
    if let Op::Readdir { plus, xattrs, .. } = &op
        && !plus
        && !xattrs.is_empty()
    {
        return Err(FrameError::Invalid("extended attributes without others"));
    }
    Ok(op)
}

fn encode_hello(hello: &Hello, out: &mut Vec<u8>) {
    out.u8(hello.version);
    out.u64(hello.client);
    out.u64(hello.incarnation);
    out.u8(u8::from(hello.joins));
    out.u8(u8::from(hello.asks));
    out.u8(u8::from(hello.borrows));
    out.u64(hello.wall_ns);
    out.u32(hello.payload_max);
    out.pipeline(hello.pipeline);
    out.u32(hello.uid);
    out.u32(hello.gid);
    out.blob(&hello.name);
}

fn decode_hello(body: &mut Reader<'_>) -> Result<Hello, FrameError> {
    let hello = Hello {
        version: body.u8()?,
        client: body.u64()?,
        incarnation: body.u64()?,
        joins: body.bool()?,
        asks: body.bool()?,
        borrows: body.bool()?,
        wall_ns: body.u64()?,
        payload_max: body.u32()?,
        pipeline: body.pipeline()?,
        uid: body.u32()?,
        gid: body.u32()?,
        name: body.blob(NAME_MAX, "a client's name")?,
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
    fn caller(&mut self) -> Result<Caller, FrameError> {
        let (uid, gid) = (self.u32()?, self.u32()?);
        let count = usize::from(self.u16()?);
        if count > GROUPS_MAX {
            return Err(FrameError::Invalid("the number of groups"));
        }
        let groups = (0..count)
            .map(|_| self.u32())
            .collect::<Result<_, FrameError>>()?;
        Ok(Caller { uid, gid, groups })
    }

    fn hints(&mut self) -> Result<Hints, FrameError> {
        Ok(Hints {
            app: self.u64()?,
            operation: self.u64()?,
            operation_bytes: self.u64()?,
            operation_bytes_max: self.u64()?,
            stamp_ns: self.u64()?,
            deadline_ns: self.u64()?,
            charged_elsewhere_ns: self.u64()?,
            charged_here_ns: self.u64()?,
            bytes_elsewhere: self.u64()?,
            operations_elsewhere: self.u32()?,
            away_ms: self.u16()?,
            shuffle_us: self.u32()?,
            shuffle_max_us: self.u32()?,
            shuffle_rank: self.u16()?,
        })
    }

    /// Extents that ascend, are disjoint and not empty, and end within 64 bits.
    fn extents(&mut self) -> Result<Extents, FrameError> {
        let count = self.count(EXTENTS_MAX, "the number of extents")?;
        let first = self.extent(0)?;
        let mut end = first.offset + first.len;
        let mut rest = Vec::with_capacity(count - 1);
        for _ in 1..count {
            let extent = self.extent(end)?;
            end = extent.offset + extent.len;
            rest.push(extent);
        }
        Ok(Extents { first, rest })
    }

    fn extent(&mut self, from: u64) -> Result<Extent, FrameError> {
        let extent = Extent {
            offset: self.u64()?,
            len: self.u64()?,
        };
        let fits = extent.offset.checked_add(extent.len).is_some();
        if extent.offset < from || extent.len == 0 || !fits {
            return Err(FrameError::Invalid("an extent"));
        }
        Ok(extent)
    }

    /// Names of extended attributes, not more than one listing asks for.
    fn xattr_names(&mut self) -> Result<Vec<Name>, FrameError> {
        let count = usize::from(self.u8()?);
        if count > LISTED_XATTRS_MAX {
            return Err(FrameError::Invalid("the number of extended attributes"));
        }
        (0..count).map(|_| self.xattr_name()).collect()
    }

    /// Name of an extended attribute, which may contain slashes.
    fn xattr_name(&mut self) -> Result<Name, FrameError> {
        let len = usize::from(self.u8()?);
        let name = self.take(len)?;
        if name.is_empty() || name.contains(&0) {
            return Err(FrameError::Invalid("an attribute's name"));
        }
        Ok(Box::from(name))
    }

    /// A path relative to the export: valid names joined by `/`, or nothing.
    fn path(&mut self) -> Result<Box<[u8]>, FrameError> {
        let path = self.blob(WALK_MAX, "a path")?;
        if path.is_empty() || path.split(|&b| b == b'/').all(name_is_valid) {
            Ok(path)
        } else {
            Err(FrameError::Invalid("a path"))
        }
    }

    /// What a symbolic link says: not empty, no NUL.
    fn target(&mut self) -> Result<Box<[u8]>, FrameError> {
        let target = self.blob(PATH_MAX, "a link's target")?;
        if target.is_empty() || target.contains(&0) {
            return Err(FrameError::Invalid("a link's target"));
        }
        Ok(target)
    }

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
            3 => Ok(RenameMode::Whiteout),
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

fn encode_caller(caller: &Caller, out: &mut Vec<u8>) {
    out.u32(caller.uid);
    out.u32(caller.gid);
    out.u16(caller.groups.len() as u16);
    for group in &caller.groups {
        out.u32(*group);
    }
}

fn encode_hints(hints: &Hints, out: &mut Vec<u8>) {
    out.u64(hints.app);
    out.u64(hints.operation);
    out.u64(hints.operation_bytes);
    out.u64(hints.operation_bytes_max);
    out.u64(hints.stamp_ns);
    out.u64(hints.deadline_ns);
    out.u64(hints.charged_elsewhere_ns);
    out.u64(hints.charged_here_ns);
    out.u64(hints.bytes_elsewhere);
    out.u32(hints.operations_elsewhere);
    out.u16(hints.away_ms);
    out.u32(hints.shuffle_us);
    out.u32(hints.shuffle_max_us);
    out.u16(hints.shuffle_rank);
}

fn encode_extents(extents: &Extents, out: &mut Vec<u8>) {
    out.u16(1 + extents.rest.len() as u16);
    for extent in extents.iter() {
        out.u64(extent.offset);
        out.u64(extent.len);
    }
}
