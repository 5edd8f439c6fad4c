//! Takes the pieces of a request from its bytes, and checks each.

use super::Malformed;
use crate::fuse::abi::{self, opcode, valid};
use crate::fuse::request::{
    Copy, Lock, LockKind, Operation, Read, SetAttributes, SetTime, Timestamp, Write,
};
use std::ffi::OsString;
use std::mem::size_of;
use std::os::unix::ffi::OsStringExt;
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// What is left of a message, taken from the front.
pub(super) struct Fields<'a> {
    pub(super) opcode: u32,
    pub(super) rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn record<T: FromBytes + KnownLayout + Immutable>(
        &mut self,
    ) -> Result<T, Malformed> {
        let (record, rest) = T::read_from_prefix(self.rest).map_err(|_| Malformed::Truncated {
            opcode: self.opcode,
        })?;
        self.rest = rest;
        Ok(record)
    }

    pub(super) fn bytes(&mut self, len: u32) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) =
            self.rest
                .split_at_checked(len as usize)
                .ok_or(Malformed::Truncated {
                    opcode: self.opcode,
                })?;
        self.rest = rest;
        Ok(bytes)
    }

    /// A string that ends with NUL and is not empty.
    pub(super) fn text(&mut self) -> Result<OsString, Malformed> {
        let opcode = self.opcode;
        let len = self.rest.iter().position(|byte| *byte == 0);
        let (text, rest) = self
            .rest
            .split_at(len.ok_or(Malformed::Truncated { opcode })?);
        self.rest = &rest[1..];
        if text.is_empty() {
            return Err(Malformed::Name { opcode });
        }
        Ok(OsString::from_vec(text.to_vec()))
    }

    /// One component of a path that stays inside its directory.
    pub(super) fn name(&mut self) -> Result<OsString, Malformed> {
        let name = self.text()?;
        let bytes = name.as_encoded_bytes();
        if bytes.contains(&b'/') || bytes == b"." || bytes == b".." {
            return Err(Malformed::Name {
                opcode: self.opcode,
            });
        }
        Ok(name)
    }

    pub(super) fn rename(&mut self, new_parent: u64, flags: u32) -> Result<Operation, Malformed> {
        let (name, new_name) = (self.name()?, self.name()?);
        Ok(Operation::Rename {
            name,
            new_parent,
            new_name,
            flags,
        })
    }

    pub(super) fn read(&mut self) -> Result<Read, Malformed> {
        let abi::ReadIn {
            handle,
            offset,
            len,
            flags,
            ..
        } = self.record()?;
        Ok(Read {
            handle,
            offset,
            len,
            flags,
        })
    }

    pub(super) fn write(&mut self) -> Result<(Write, usize), Malformed> {
        let write: abi::WriteIn = self.record()?;
        if self.rest.len() < write.len as usize {
            return Err(Malformed::Truncated {
                opcode: self.opcode,
            });
        }
        let flag = |bit: u32| write.write_flags & bit != 0;
        let (from_cache, kill_suidgid) = (flag(abi::WRITE_CACHE), flag(abi::WRITE_KILL_SUIDGID));
        let abi::WriteIn {
            handle,
            offset,
            flags,
            ..
        } = write;
        Ok((
            Write {
                handle,
                offset,
                flags,
                from_cache,
                kill_suidgid,
            },
            write.len as usize,
        ))
    }

    pub(super) fn lock(&mut self) -> Result<Lock, Malformed> {
        let abi::LkIn {
            handle,
            owner,
            lock,
            flags,
            ..
        } = self.record()?;
        let kind = match lock.kind {
            0 => LockKind::Shared,
            1 => LockKind::Exclusive,
            2 => LockKind::Unlock,
            kind => {
                return Err(Malformed::LockKind {
                    opcode: self.opcode,
                    kind,
                });
            }
        };
        let whole_file = flags & abi::LK_FLOCK != 0;
        let abi::FileLock {
            start, end, pid, ..
        } = lock;
        Ok(Lock {
            handle,
            owner,
            start,
            end,
            kind,
            pid,
            whole_file,
        })
    }

    pub(super) fn copy(&mut self) -> Result<Copy, Malformed> {
        let abi::CopyIn {
            handle_in,
            offset_in,
            node_out,
            handle_out,
            offset_out,
            len,
            flags,
        } = self.record()?;
        let wide = self.opcode == opcode::COPY_FILE_RANGE_64;
        Ok(Copy {
            handle_in,
            offset_in,
            node_out,
            handle_out,
            offset_out,
            len,
            flags,
            wide,
        })
    }

    pub(super) fn forgets(&mut self) -> Result<Vec<abi::ForgetOne>, Malformed> {
        let count = self.record::<abi::BatchForgetIn>()?.count as usize;
        // Checked before anything is reserved: the count is only a claim.
        if self.rest.len() / size_of::<abi::ForgetOne>() < count {
            return Err(Malformed::Truncated {
                opcode: self.opcode,
            });
        }
        (0..count).map(|_| self.record()).collect()
    }
}

pub(super) fn set_attributes(setattr: &abi::SetattrIn) -> SetAttributes {
    let has = |bit: u32| setattr.valid & bit != 0;
    let time =
        |bit: u32, now_bit: u32, seconds: i64, nanoseconds: u32| match (has(bit), has(now_bit)) {
            (_, true) => Some(SetTime::Now),
            (true, false) => Some(SetTime::At(Timestamp {
                seconds,
                nanoseconds,
            })),
            (false, false) => None,
        };
    SetAttributes {
        handle: has(valid::FH).then_some(setattr.handle),
        mode: has(valid::MODE).then_some(setattr.mode),
        uid: has(valid::UID).then_some(setattr.uid),
        gid: has(valid::GID).then_some(setattr.gid),
        size: has(valid::SIZE).then_some(setattr.size),
        accessed: time(
            valid::ATIME,
            valid::ATIME_NOW,
            setattr.atime,
            setattr.atime_ns,
        ),
        modified: time(
            valid::MTIME,
            valid::MTIME_NOW,
            setattr.mtime,
            setattr.mtime_ns,
        ),
    }
}
