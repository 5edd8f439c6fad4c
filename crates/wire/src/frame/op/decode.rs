//! Arguments of an operation from bytes, each checked against its bounds.

use super::*;
use crate::frame::FrameError;
use crate::frame::bytes::Reader;
use crate::message::{
    Handle, Hello, Keep, NAME_MAX, PAYLOAD_LIMIT, POLICY_MAX, PROOF_MAX, READDIR_MAX, RenameMode,
    SetAttr, SetTime, XATTR_MAX,
};

/// Reads the arguments of an operation. The code must be known ([`op_is_known`]).
pub(in crate::frame) fn decode_op(code: u8, body: &mut Reader<'_>) -> Result<Op, FrameError> {
    match code {
        HELLO => decode_hello(body).map(Op::Hello),
        BYE => Ok(Op::Bye),
        PING => Ok(Op::Ping),
        STATUS => Ok(Op::Status),
        STATFS => Ok(Op::Statfs),
        RECLAIM_DONE => Ok(Op::ReclaimDone),
        SET_POLICY => decode_set_policy(body),
        SET_SHARES => decode_set_shares(body),
        DRAIN => Ok(Op::Drain { undo: body.bool()? }),
        APPLICATION => decode_application(body),
        SHARE_MEMORY => Ok(Op::ShareMemory { bytes: body.u64()? }),
        REGISTER_MEMORY => Ok(Op::RegisterMemory {
            bytes: body.u64()?,
            address: body.u64()?,
            key: body.u64()?,
        }),
        REACH => Ok(Op::Reach {
            handle: body.handle()?,
            path: body.path()?,
        }),
        LOOKUP..=RENAME => decode_name_op(code, body),
        SET_LOCK..=CANCEL_LOCK => decode_lock_op(code, body),
        _ => decode_file_op(code, body),
    }
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

fn decode_keep(body: &mut Reader<'_>) -> Result<Keep, FrameError> {
    match body.u8()? {
        0 => Ok(Keep::Run),
        1 => Ok(Keep::Saved),
        2 => Ok(Keep::Configured),
        _ => Err(FrameError::Invalid("how long rules hold")),
    }
}

fn decode_set_policy(body: &mut Reader<'_>) -> Result<Op, FrameError> {
    let keep = decode_keep(body)?;
    let text = body.blob(POLICY_MAX, "a policy's text")?;
    if keep == Keep::Configured && !text.is_empty() {
        return Err(FrameError::Invalid("a policy beside the configuration's"));
    }
    Ok(Op::SetPolicy { text, keep })
}

fn decode_set_shares(body: &mut Reader<'_>) -> Result<Op, FrameError> {
    let keep = decode_keep(body)?;
    let (after, at) = (body.u64()?, body.u64()?);
    let text = body.blob(POLICY_MAX, "the rules' text")?;
    if keep == Keep::Configured && !text.is_empty() {
        return Err(FrameError::Invalid("rules beside the configuration's"));
    }
    Ok(Op::SetShares {
        text,
        keep,
        after,
        at,
    })
}

fn decode_application(body: &mut Reader<'_>) -> Result<Op, FrameError> {
    Ok(Op::Application {
        app: body.u64()?,
        name: body.blob(NAME_MAX, "an application's name")?,
        job: body.blob(NAME_MAX, "a job's name")?,
        project: body.blob(NAME_MAX, "a project's name")?,
    })
}

fn decode_name_op(code: u8, body: &mut Reader<'_>) -> Result<Op, FrameError> {
    let parent = body.handle()?;
    let name = body.name()?;
    Ok(match code {
        LOOKUP => Op::Lookup { parent, name },
        UNLINK => Op::Unlink { parent, name },
        RMDIR => Op::Rmdir { parent, name },
        CREATE => {
            let (mode, exclusive) = (body.u32()?, body.bool()?);
            Op::Create {
                parent,
                name,
                mode,
                exclusive,
            }
        }
        MKDIR => Op::Mkdir {
            parent,
            name,
            mode: body.u32()?,
        },
        MKNOD => Op::Mknod {
            parent,
            name,
            mode: body.u32()?,
            rdev: body.u32()?,
        },
        SYMLINK => Op::Symlink {
            parent,
            name,
            target: body.target()?,
        },
        LINK => Op::Link {
            parent,
            name,
            handle: body.handle()?,
        },
        _ => {
            let (new_parent, new_name) = (body.handle()?, body.name()?);
            let mode = match body.u8()? {
                0 => RenameMode::Replace,
                1 => RenameMode::NoReplace,
                2 => RenameMode::Exchange,
                _ => return Err(FrameError::Invalid("a rename's mode")),
            };
            Op::Rename {
                parent,
                name,
                new_parent,
                new_name,
                mode,
            }
        }
    })
}

fn decode_lock_op(code: u8, body: &mut Reader<'_>) -> Result<Op, FrameError> {
    if code == CANCEL_LOCK {
        return Ok(Op::CancelLock {
            request: body.u64()?,
        });
    }
    let handle = body.handle()?;
    Ok(match code {
        SET_LOCK => {
            let (lock, wait, reclaim) = (body.lock()?, body.bool()?, body.bool()?);
            Op::SetLock {
                handle,
                lock,
                wait,
                reclaim,
            }
        }
        TEST_LOCK => Op::TestLock {
            handle,
            lock: body.lock()?,
        },
        _ => Op::DropLocks {
            handle,
            family: body.family()?,
            owner: body.u64()?,
        },
    })
}

fn decode_file_op(code: u8, body: &mut Reader<'_>) -> Result<Op, FrameError> {
    let handle = body.handle()?;
    Ok(match code {
        READDIR => {
            let (cookie, bytes_max, plus) = (body.u64()?, body.u32()?, body.bool()?);
            if bytes_max > READDIR_MAX {
                return Err(FrameError::Invalid("the length of a listing"));
            }
            Op::Readdir {
                handle,
                cookie,
                bytes_max,
                plus,
            }
        }
        GETATTR => Op::Getattr { handle },
        READLINK => Op::Readlink { handle },
        LISTXATTR => Op::Listxattr { handle },
        APPEND => Op::Append { handle },
        SETATTR => Op::Setattr {
            handle,
            set: decode_set(body)?,
        },
        OPEN => {
            let (open, modes) = (body.u64()?, body.u8()?);
            if modes > 3 {
                return Err(FrameError::Invalid("an open's mode"));
            }
            Op::Open {
                handle,
                open,
                read: modes & 1 != 0,
                write: modes & 2 != 0,
            }
        }
        CLOSE => Op::Close {
            handle,
            open: body.u64()?,
        },
        ACCESS => {
            let mask = body.u32()?;
            if mask > 7 {
                return Err(FrameError::Invalid("an access mask"));
            }
            Op::Access { handle, mask }
        }
        FSYNC => Op::Fsync {
            handle,
            data_only: body.bool()?,
        },
        READ => Op::Read {
            handle,
            extents: body.extents()?,
        },
        WRITE => Op::Write {
            handle,
            extents: body.extents()?,
        },
        _ => return decode_range_op(code, handle, body),
    })
}

/// Operations on ranges of bytes and on extended attributes.
fn decode_range_op(code: u8, handle: Handle, body: &mut Reader<'_>) -> Result<Op, FrameError> {
    Ok(match code {
        FALLOCATE => {
            let (mode, offset, len) = (body.u32()?, body.u64()?, body.u64()?);
            Op::Fallocate {
                handle,
                mode,
                offset,
                len,
            }
        }
        COPY_RANGE => Op::CopyRange {
            handle,
            source: body.handle()?,
            source_offset: body.u64()?,
            offset: body.u64()?,
            len: body.u64()?,
        },
        SEEK => {
            let (offset, whence) = (body.u64()?, body.u32()?);
            if !(3..=4).contains(&whence) {
                return Err(FrameError::Invalid("whence"));
            }
            Op::Seek {
                handle,
                offset,
                whence,
            }
        }
        GETXATTR => Op::Getxattr {
            handle,
            name: body.xattr_name()?,
        },
        REMOVEXATTR => Op::Removexattr {
            handle,
            name: body.xattr_name()?,
        },
        SETXATTR => Op::Setxattr {
            handle,
            name: body.xattr_name()?,
            value: body.blob(XATTR_MAX, "an attribute's value")?,
            flags: body.u32()?,
        },
        _ => return Err(FrameError::Invalid("the operation")),
    })
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
