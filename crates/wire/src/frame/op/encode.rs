//! Arguments of an operation to bytes.

use crate::frame::bytes::{Writer, family_code};
use crate::message::{Hello, Keep, Op, RenameMode, SetAttr, SetTime};
use alloc::vec::Vec;

/// Appends the arguments of an operation.
pub(in crate::frame) fn encode_op(op: &Op, out: &mut Vec<u8>) {
    match op {
        Op::Hello(hello) => encode_hello(hello, out),
        Op::Bye | Op::Ping | Op::Status | Op::Statfs | Op::ReclaimDone => {}
        Op::Drain { undo } => out.u8(u8::from(*undo)),
        Op::SetPolicy { text, keep } => {
            out.u8(keep_code(*keep));
            out.blob(text);
        }
        Op::SetShares {
            text,
            keep,
            after,
            at,
        } => {
            out.u8(keep_code(*keep));
            out.u64(*after);
            out.u64(*at);
            out.blob(text);
        }
        Op::Application {
            app,
            name,
            job,
            project,
        } => {
            out.u64(*app);
            out.blob(name);
            out.blob(job);
            out.blob(project);
        }
        Op::ShareMemory { bytes } => out.u64(*bytes),
        Op::RegisterMemory {
            bytes,
            address,
            key,
        } => {
            out.u64(*bytes);
            out.u64(*address);
            out.u64(*key);
        }
        Op::Reach { handle, path } => {
            out.handle(*handle);
            out.blob(path);
        }
        Op::Lookup { .. }
        | Op::Create { .. }
        | Op::Mkdir { .. }
        | Op::Mknod { .. }
        | Op::Symlink { .. }
        | Op::Link { .. }
        | Op::Unlink { .. }
        | Op::Rmdir { .. }
        | Op::Rename { .. } => encode_name_op(op, out),
        Op::SetLock { .. } | Op::TestLock { .. } | Op::DropLocks { .. } | Op::CancelLock { .. } => {
            encode_lock_op(op, out)
        }
        _ => encode_file_op(op, out),
    }
}

fn keep_code(keep: Keep) -> u8 {
    match keep {
        Keep::Run => 0,
        Keep::Saved => 1,
        Keep::Configured => 2,
    }
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

fn encode_name_op(op: &Op, out: &mut Vec<u8>) {
    let mut entry = |parent, name: &[u8]| {
        out.handle(parent);
        out.name(name);
    };
    match op {
        Op::Lookup { parent, name } | Op::Unlink { parent, name } | Op::Rmdir { parent, name } => {
            entry(*parent, name)
        }
        Op::Create {
            parent,
            name,
            mode,
            exclusive,
        } => {
            entry(*parent, name);
            out.u32(*mode);
            out.u8(u8::from(*exclusive));
        }
        Op::Mkdir { parent, name, mode } => {
            entry(*parent, name);
            out.u32(*mode);
        }
        Op::Mknod {
            parent,
            name,
            mode,
            rdev,
        } => {
            entry(*parent, name);
            out.u32(*mode);
            out.u32(*rdev);
        }
        Op::Symlink {
            parent,
            name,
            target,
        } => {
            entry(*parent, name);
            out.blob(target);
        }
        Op::Link {
            handle,
            parent,
            name,
        } => {
            entry(*parent, name);
            out.handle(*handle);
        }
        Op::Rename {
            parent,
            name,
            new_parent,
            new_name,
            mode,
        } => {
            entry(*parent, name);
            entry(*new_parent, new_name);
            out.u8(match mode {
                RenameMode::Replace => 0,
                RenameMode::NoReplace => 1,
                RenameMode::Exchange => 2,
            });
        }
        _ => unreachable!("only operations on names are passed"),
    }
}

fn encode_lock_op(op: &Op, out: &mut Vec<u8>) {
    match op {
        Op::SetLock {
            handle,
            lock,
            wait,
            reclaim,
        } => {
            out.handle(*handle);
            out.lock(lock);
            out.u8(u8::from(*wait));
            out.u8(u8::from(*reclaim));
        }
        Op::TestLock { handle, lock } => {
            out.handle(*handle);
            out.lock(lock);
        }
        Op::DropLocks {
            handle,
            family,
            owner,
        } => {
            out.handle(*handle);
            out.u8(family_code(*family));
            out.u64(*owner);
        }
        Op::CancelLock { request } => out.u64(*request),
        _ => unreachable!("only operations on locks are passed"),
    }
}

fn encode_file_op(op: &Op, out: &mut Vec<u8>) {
    match op {
        Op::Readdir {
            handle,
            cookie,
            bytes_max,
            plus,
        } => {
            out.handle(*handle);
            out.u64(*cookie);
            out.u32(*bytes_max);
            out.u8(u8::from(*plus));
        }
        Op::Getattr { handle }
        | Op::Readlink { handle }
        | Op::Listxattr { handle }
        | Op::Append { handle } => out.handle(*handle),
        Op::Setattr { handle, set } => {
            out.handle(*handle);
            encode_set(set, out);
        }
        Op::Open {
            handle,
            open,
            read,
            write,
        } => {
            out.handle(*handle);
            out.u64(*open);
            out.u8(u8::from(*read) | u8::from(*write) << 1);
        }
        Op::Close { handle, open } => {
            out.handle(*handle);
            out.u64(*open);
        }
        Op::Access { handle, mask } => {
            out.handle(*handle);
            out.u32(*mask);
        }
        Op::Fsync { handle, data_only } => {
            out.handle(*handle);
            out.u8(u8::from(*data_only));
        }
        Op::Read { handle, extents } | Op::Write { handle, extents } => {
            out.handle(*handle);
            out.extents(extents);
        }
        _ => encode_range_op(op, out),
    }
}

/// Operations on ranges of bytes and on extended attributes.
fn encode_range_op(op: &Op, out: &mut Vec<u8>) {
    match op {
        Op::Fallocate {
            handle,
            mode,
            offset,
            len,
        } => {
            out.handle(*handle);
            out.u32(*mode);
            out.u64(*offset);
            out.u64(*len);
        }
        Op::CopyRange {
            source,
            source_offset,
            handle,
            offset,
            len,
        } => {
            out.handle(*handle);
            out.handle(*source);
            out.u64(*source_offset);
            out.u64(*offset);
            out.u64(*len);
        }
        Op::Seek {
            handle,
            offset,
            whence,
        } => {
            out.handle(*handle);
            out.u64(*offset);
            out.u32(*whence);
        }
        Op::Getxattr { handle, name } | Op::Removexattr { handle, name } => {
            out.handle(*handle);
            out.name(name);
        }
        Op::Setxattr {
            handle,
            name,
            value,
            flags,
        } => {
            out.handle(*handle);
            out.name(name);
            out.blob(value);
            out.u32(*flags);
        }
        _ => unreachable!("operations on names, locks and sessions are encoded elsewhere"),
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
