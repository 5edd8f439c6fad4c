//! Encodes the fields of a body, and decodes them with their bounds checked.

use super::FrameError;
use crate::message::{
    Attr, CHUNK_MIN, Caller, EXTENTS_MAX, Extent, Extents, GROUPS_MAX, Handle, Hints, Lock,
    LockFamily, LockKind, NAME_MAX, Name, PATH_MAX, PAYLOAD_LIMIT, Pipeline, Pipelining,
};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Whether these bytes are a valid name in a directory: 1 to 255 bytes, no `/` or NUL, not `.` or
/// `..`.
pub fn name_is_valid(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len())
        && name != b"."
        && name != b".."
        && !name.iter().any(|&b| b == b'/' || b == 0)
}

/// Takes fields from the front of a body.
pub(super) struct Reader<'a> {
    left: &'a [u8],
}

type Read<T> = Result<T, FrameError>;

impl<'a> Reader<'a> {
    pub(super) fn new(body: &'a [u8]) -> Reader<'a> {
        Reader { left: body }
    }

    /// All bytes must have been taken.
    pub(super) fn end(self) -> Read<()> {
        if self.left.is_empty() {
            Ok(())
        } else {
            Err(FrameError::Trailing)
        }
    }

    pub(super) fn take(&mut self, len: usize) -> Read<&'a [u8]> {
        let (taken, left) = self
            .left
            .split_at_checked(len)
            .ok_or(FrameError::Truncated)?;
        self.left = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let (taken, left) = self
            .left
            .split_first_chunk::<N>()
            .ok_or(FrameError::Truncated)?;
        self.left = left;
        Ok(*taken)
    }

    pub(super) fn u8(&mut self) -> Read<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Read<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Read<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Read<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn i64(&mut self) -> Read<i64> {
        self.array().map(i64::from_le_bytes)
    }

    pub(super) fn bool(&mut self) -> Read<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(FrameError::Invalid("a yes or no")),
        }
    }

    /// Bytes with a 32-bit length in front.
    pub(super) fn blob(&mut self, max: usize, what: &'static str) -> Read<Box<[u8]>> {
        let len = self.u32()? as usize;
        if len > max {
            return Err(FrameError::Invalid(what));
        }
        self.take(len).map(Box::from)
    }

    pub(super) fn name(&mut self) -> Read<Name> {
        let len = usize::from(self.u8()?);
        let name = self.take(len)?;
        if name_is_valid(name) {
            Ok(Box::from(name))
        } else {
            Err(FrameError::Invalid("a name"))
        }
    }

    /// Name of an extended attribute, which may contain slashes.
    pub(super) fn xattr_name(&mut self) -> Read<Name> {
        let len = usize::from(self.u8()?);
        let name = self.take(len)?;
        if name.is_empty() || name.contains(&0) {
            return Err(FrameError::Invalid("an attribute's name"));
        }
        Ok(Box::from(name))
    }

    /// A path relative to the export: valid names joined by `/`, or nothing.
    pub(super) fn path(&mut self) -> Read<Box<[u8]>> {
        let path = self.blob(PATH_MAX, "a path")?;
        if path.is_empty() || path.split(|&b| b == b'/').all(name_is_valid) {
            Ok(path)
        } else {
            Err(FrameError::Invalid("a path"))
        }
    }

    /// What a symbolic link says: not empty, no NUL.
    pub(super) fn target(&mut self) -> Read<Box<[u8]>> {
        let target = self.blob(PATH_MAX, "a link's target")?;
        if target.is_empty() || target.contains(&0) {
            return Err(FrameError::Invalid("a link's target"));
        }
        Ok(target)
    }

    pub(super) fn handle(&mut self) -> Read<Handle> {
        Ok(Handle {
            inode: self.u64()?,
            birth: self.u64()?,
        })
    }

    pub(super) fn pipeline(&mut self) -> Read<Pipeline> {
        let mode = Pipelining::ALL.get(usize::from(self.u8()?)).copied();
        let mode = mode.ok_or(FrameError::Invalid("a way of pipelining"))?;
        let chunk_bytes = self.u32()?;
        if !(CHUNK_MIN..=PAYLOAD_LIMIT).contains(&chunk_bytes) {
            return Err(FrameError::Invalid("the length of a chunk"));
        }
        Ok(Pipeline { mode, chunk_bytes })
    }

    pub(super) fn attr(&mut self) -> Read<Attr> {
        Ok(Attr {
            handle: self.handle()?,
            size: self.u64()?,
            blocks: self.u64()?,
            atime_ns: self.i64()?,
            mtime_ns: self.i64()?,
            ctime_ns: self.i64()?,
            mode: self.u32()?,
            nlink: self.u32()?,
            uid: self.u32()?,
            gid: self.u32()?,
            rdev: self.u32()?,
            block_size: self.u32()?,
        })
    }

    pub(super) fn family(&mut self) -> Read<LockFamily> {
        match self.u8()? {
            0 => Ok(LockFamily::Range),
            1 => Ok(LockFamily::Whole),
            _ => Err(FrameError::Invalid("a lock's family")),
        }
    }

    pub(super) fn lock(&mut self) -> Read<Lock> {
        let lock = Lock {
            family: self.family()?,
            kind: match self.u8()? {
                0 => LockKind::Shared,
                1 => LockKind::Exclusive,
                2 => LockKind::None,
                _ => return Err(FrameError::Invalid("a lock's kind")),
            },
            owner: self.u64()?,
            pid: self.u32()?,
            start: self.u64()?,
            end: self.u64()?,
        };
        if lock.start > lock.end {
            return Err(FrameError::Invalid("a lock's range"));
        }
        Ok(lock)
    }

    pub(super) fn caller(&mut self) -> Read<Caller> {
        let (uid, gid) = (self.u32()?, self.u32()?);
        let count = usize::from(self.u16()?);
        if count > GROUPS_MAX {
            return Err(FrameError::Invalid("the number of groups"));
        }
        let groups = (0..count).map(|_| self.u32()).collect::<Read<_>>()?;
        Ok(Caller { uid, gid, groups })
    }

    pub(super) fn hints(&mut self) -> Read<Hints> {
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
    pub(super) fn extents(&mut self) -> Read<Extents> {
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

    fn extent(&mut self, from: u64) -> Read<Extent> {
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

    /// A 16-bit count of at least one.
    pub(super) fn count(&mut self, max: usize, what: &'static str) -> Read<usize> {
        let count = usize::from(self.u16()?);
        if (1..=max).contains(&count) {
            Ok(count)
        } else {
            Err(FrameError::Invalid(what))
        }
    }
}

/// Appends fields to a body.
pub(super) trait Writer {
    fn u8(&mut self, value: u8);
    fn u16(&mut self, value: u16);
    fn u32(&mut self, value: u32);
    fn u64(&mut self, value: u64);
    fn i64(&mut self, value: i64);
    fn blob(&mut self, bytes: &[u8]);
    fn name(&mut self, name: &[u8]);
    fn handle(&mut self, handle: Handle);
    fn pipeline(&mut self, pipeline: Pipeline);
    fn attr(&mut self, attr: &Attr);
    fn lock(&mut self, lock: &Lock);
    fn caller(&mut self, caller: &Caller);
    fn hints(&mut self, hints: &Hints);
    fn extents(&mut self, extents: &Extents);
}

/// Code of a lock family.
pub(super) fn family_code(family: LockFamily) -> u8 {
    match family {
        LockFamily::Range => 0,
        LockFamily::Whole => 1,
    }
}

impl Writer for Vec<u8> {
    fn u8(&mut self, value: u8) {
        self.push(value);
    }

    fn u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn i64(&mut self, value: i64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn blob(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.extend_from_slice(bytes);
    }

    fn name(&mut self, name: &[u8]) {
        debug_assert!(name.len() <= NAME_MAX, "a name beyond its bound");
        self.u8(name.len() as u8);
        self.extend_from_slice(name);
    }

    fn handle(&mut self, handle: Handle) {
        self.u64(handle.inode);
        self.u64(handle.birth);
    }

    fn pipeline(&mut self, pipeline: Pipeline) {
        self.u8(pipeline.mode as u8);
        self.u32(pipeline.chunk_bytes);
    }

    fn attr(&mut self, attr: &Attr) {
        self.handle(attr.handle);
        self.u64(attr.size);
        self.u64(attr.blocks);
        self.i64(attr.atime_ns);
        self.i64(attr.mtime_ns);
        self.i64(attr.ctime_ns);
        self.u32(attr.mode);
        self.u32(attr.nlink);
        self.u32(attr.uid);
        self.u32(attr.gid);
        self.u32(attr.rdev);
        self.u32(attr.block_size);
    }

    fn lock(&mut self, lock: &Lock) {
        self.u8(family_code(lock.family));
        self.u8(match lock.kind {
            LockKind::Shared => 0,
            LockKind::Exclusive => 1,
            LockKind::None => 2,
        });
        self.u64(lock.owner);
        self.u32(lock.pid);
        self.u64(lock.start);
        self.u64(lock.end);
    }

    fn caller(&mut self, caller: &Caller) {
        self.u32(caller.uid);
        self.u32(caller.gid);
        self.u16(caller.groups.len() as u16);
        for group in &caller.groups {
            self.u32(*group);
        }
    }

    fn hints(&mut self, hints: &Hints) {
        self.u64(hints.app);
        self.u64(hints.operation);
        self.u64(hints.operation_bytes);
        self.u64(hints.operation_bytes_max);
        self.u64(hints.stamp_ns);
        self.u64(hints.deadline_ns);
        self.u64(hints.charged_elsewhere_ns);
        self.u64(hints.charged_here_ns);
        self.u64(hints.bytes_elsewhere);
        self.u32(hints.operations_elsewhere);
        self.u16(hints.away_ms);
        self.u32(hints.shuffle_us);
        self.u32(hints.shuffle_max_us);
        self.u16(hints.shuffle_rank);
    }

    fn extents(&mut self, extents: &Extents) {
        self.u16(1 + extents.rest.len() as u16);
        for extent in extents.iter() {
            self.u64(extent.offset);
            self.u64(extent.len);
        }
    }
}
