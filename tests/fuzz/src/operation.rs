//! Operations on files that somebody may ask for, right or wrong.

use crate::Draw;
use tidegate_wire::{
    Extent, Extents, Handle, Lock, LockFamily, LockKind, Name, Op, OpKind, RenameMode, SetAttr,
    SetTime,
};

/// What operations are about.
pub(crate) struct Things<'a> {
    /// Files whose handles may be known or guessed; not empty.
    pub(crate) handles: &'a [Handle],
    /// Names that may lead somewhere; not empty.
    pub(crate) names: &'a [Name],
    /// Names for what is made; not empty.
    pub(crate) new_names: &'a [Name],
    /// Paths that may lead somewhere; not empty.
    pub(crate) paths: &'a [Box<[u8]>],
    /// What values and targets consist of.
    pub(crate) fill: u8,
    /// Whether chances are taken at sizes that no file has.
    pub(crate) large: bool,
}

/// An operation on files or on the session.
pub(crate) fn operation(draw: &mut Draw<'_>, of: &Things<'_>) -> Op {
    let kind = draw.of(OpKind::ALL);
    match kind.spec().class {
        "Session" => session(draw, kind),
        "Names" => names(draw, kind, of),
        "Data" | "Contents" | "Attributes" => contents(draw, kind, of),
        "Locks" => locks(draw, kind, of),
        _ => look(draw, kind, of),
    }
}

/// An operation as a program asks for it, which has memory for so many bytes of its first extent
/// and of each further one; what it writes; and how many bytes it may read.
pub(crate) fn asked(
    draw: &mut Draw<'_>,
    handles: &[Handle],
    (first_max, further_max): (u64, u64),
) -> (Op, Box<[u8]>, u64) {
    let names = [b"a".as_slice(), b"b", b"user.c"].map(Name::from);
    let of = Things {
        handles,
        names: &names,
        new_names: &names,
        paths: &[b"a/b".as_slice().into()],
        fill: b'.',
        large: true,
    };
    let mut op = operation(draw, &of);
    let (writes, reads) = match &mut op {
        Op::Read { extents, .. } | Op::Write { extents, .. } => {
            extents.first.len %= first_max;
            let further = extents.rest.iter_mut();
            further.for_each(|extent| extent.len %= further_max);
            let bytes = extents.bytes();
            match op.kind() {
                OpKind::Read => (0, bytes),
                _ => (bytes, 0),
            }
        }
        Op::Append { .. } => (u64::from(draw.u16()), 0),
        _ => (0, 0),
    };
    (op, vec![b'.'; writes as usize].into(), reads)
}

fn handle(draw: &mut Draw<'_>, of: &Things<'_>) -> Handle {
    let handle = draw.of(of.handles);
    match draw.one_in(32) {
        true => Handle {
            birth: handle.birth ^ draw.u64(),
            ..handle
        },
        false => handle,
    }
}

fn name(draw: &mut Draw<'_>, of: &Things<'_>) -> Name {
    draw.of(of.names)
}

fn new_name(draw: &mut Draw<'_>, of: &Things<'_>) -> Name {
    draw.of(of.new_names)
}

fn filled(draw: &mut Draw<'_>, of: &Things<'_>) -> Box<[u8]> {
    vec![of.fill; usize::from(draw.u8())].into()
}

/// A place in a file, or a number of bytes.
fn place(draw: &mut Draw<'_>, of: &Things<'_>) -> u64 {
    match of.large && draw.one_in(8) {
        true => draw.size(),
        false => u64::from(draw.u16() % 20_000),
    }
}

fn session(draw: &mut Draw<'_>, kind: OpKind) -> Op {
    match kind {
        OpKind::Bye => Op::Bye,
        OpKind::Status => Op::Status,
        OpKind::Application => Op::Application {
            app: u64::from(draw.u8()),
            name: draw.some_bytes().into(),
            job: draw.some_bytes().into(),
            project: draw.some_bytes().into(),
        },
        OpKind::Drain => Op::Drain { undo: draw.yes() },
        OpKind::SetPolicy => Op::SetPolicy {
            text: draw.some_bytes().into(),
            keep: tidegate_wire::Keep::Run,
        },
        OpKind::SetShares => Op::SetShares {
            text: draw.some_bytes().into(),
            keep: tidegate_wire::Keep::Run,
            after: draw.u64(),
            at: draw.u64(),
        },
        OpKind::ShareMemory => Op::ShareMemory { bytes: draw.size() },
        OpKind::RegisterMemory => Op::RegisterMemory {
            bytes: draw.size(),
            address: draw.u64(),
            key: draw.u64(),
        },
        // A hello has a step of its own.
        _ => Op::Ping,
    }
}

fn names(draw: &mut Draw<'_>, kind: OpKind, of: &Things<'_>) -> Op {
    let parent = handle(draw, of);
    match kind {
        OpKind::Create => Op::Create {
            parent,
            name: new_name(draw, of),
            mode: draw.u16().into(),
            exclusive: draw.yes(),
        },
        OpKind::Mkdir => Op::Mkdir {
            parent,
            name: new_name(draw, of),
            mode: draw.u16().into(),
        },
        OpKind::Mknod => Op::Mknod {
            parent,
            name: new_name(draw, of),
            mode: draw.of(&[0o010_666, 0o100_777, 0o020_600, 0o040_755, 0]),
            rdev: draw.u32(),
        },
        OpKind::Symlink => Op::Symlink {
            parent,
            name: new_name(draw, of),
            target: filled(draw, of),
        },
        OpKind::Link => Op::Link {
            handle: handle(draw, of),
            parent,
            name: new_name(draw, of),
        },
        OpKind::Unlink => Op::Unlink {
            parent,
            name: name(draw, of),
        },
        OpKind::Rmdir => Op::Rmdir {
            parent,
            name: name(draw, of),
        },
        _ => Op::Rename {
            parent,
            name: name(draw, of),
            new_parent: handle(draw, of),
            new_name: new_name(draw, of),
            mode: draw.of(&[
                RenameMode::Replace,
                RenameMode::NoReplace,
                RenameMode::Exchange,
            ]),
        },
    }
}

fn look(draw: &mut Draw<'_>, kind: OpKind, of: &Things<'_>) -> Op {
    let handle = handle(draw, of);
    match kind {
        OpKind::ResolvePath => Op::ResolvePath {
            handle,
            path: draw.of(of.paths),
        },
        OpKind::Lookup => Op::Lookup {
            parent: handle,
            name: name(draw, of),
        },
        OpKind::Readdir => Op::Readdir {
            handle,
            cookie: draw.u8().into(),
            bytes_max: draw.u16().into(),
            plus: draw.yes(),
            xattrs: (0..draw.u8() % 5).map(|_| name(draw, of)).collect(),
        },
        OpKind::Readlink => Op::Readlink { handle },
        OpKind::Access => Op::Access {
            handle,
            mask: draw.u32() % 8,
        },
        OpKind::Statfs => Op::Statfs,
        OpKind::Seek => Op::Seek {
            handle,
            offset: place(draw, of),
            whence: 3 + draw.u32() % 2,
        },
        OpKind::Getxattr => Op::Getxattr {
            handle,
            name: name(draw, of),
        },
        OpKind::Listxattr => Op::Listxattr { handle },
        OpKind::Open => Op::Open {
            handle,
            open: draw.u8().into(),
            read: draw.yes(),
            write: draw.yes(),
        },
        OpKind::Close => Op::Close {
            handle,
            open: draw.u8().into(),
        },
        _ => Op::Getattr { handle },
    }
}

fn contents(draw: &mut Draw<'_>, kind: OpKind, of: &Things<'_>) -> Op {
    let handle = handle(draw, of);
    match kind {
        OpKind::Setattr => Op::Setattr {
            handle,
            set: set(draw, of),
        },
        OpKind::Setxattr => Op::Setxattr {
            handle,
            name: new_name(draw, of),
            value: filled(draw, of),
            flags: draw.u32() % 4,
        },
        OpKind::Removexattr => Op::Removexattr {
            handle,
            name: name(draw, of),
        },
        OpKind::Fsync => Op::Fsync {
            handle,
            data_only: draw.yes(),
        },
        OpKind::Fallocate => Op::Fallocate {
            handle,
            mode: draw.u32() % 64,
            offset: place(draw, of),
            len: place(draw, of),
        },
        OpKind::CopyRange => Op::CopyRange {
            source: self::handle(draw, of),
            source_offset: place(draw, of),
            handle,
            offset: place(draw, of),
            len: place(draw, of),
        },
        OpKind::Append => Op::Append { handle },
        OpKind::Write => Op::Write {
            handle,
            extents: extents(draw, of),
        },
        _ => Op::Read {
            handle,
            extents: extents(draw, of),
        },
    }
}

fn extents(draw: &mut Draw<'_>, of: &Things<'_>) -> Extents {
    let mut extent = || Extent {
        offset: place(draw, of),
        len: place(draw, of),
    };
    let first = extent();
    let more = (first.len % 7 == 6).then(extent);
    Extents {
        first,
        rest: more.into_iter().collect(),
    }
}

fn set(draw: &mut Draw<'_>, of: &Things<'_>) -> SetAttr {
    let which = draw.u8();
    let has = |bit: u8| which >> bit & 1 == 1;
    let time = |number: u8| match number {
        0 => SetTime::Now,
        number => SetTime::At(i64::from(number)),
    };
    SetAttr {
        mode: has(0).then(|| draw.u16().into()),
        uid: has(1).then(|| draw.of(&[0, 1000, 1001, u32::MAX])),
        gid: has(2).then(|| draw.of(&[0, 1000, 1001, u32::MAX])),
        size: has(3).then(|| place(draw, of)),
        atime: has(4).then(|| time(draw.u8())),
        mtime: has(5).then(|| time(draw.u8())),
    }
}

fn locks(draw: &mut Draw<'_>, kind: OpKind, of: &Things<'_>) -> Op {
    let handle = handle(draw, of);
    let family = draw.of(&[LockFamily::Range, LockFamily::Whole]);
    let (start, len) = (draw.u8(), draw.u8());
    let lock = Lock {
        family,
        kind: draw.of(&[LockKind::Shared, LockKind::Exclusive, LockKind::None]),
        owner: u64::from(draw.u8() % 4),
        pid: 1,
        start: start.into(),
        end: match len {
            255 => u64::MAX,
            len => u64::from(start) + u64::from(len),
        },
    };
    match kind {
        OpKind::SetLock => Op::SetLock {
            handle,
            lock,
            wait: draw.yes(),
            reclaim: draw.yes(),
        },
        OpKind::TestLock => Op::TestLock { handle, lock },
        OpKind::DropLocks => Op::DropLocks {
            handle,
            family,
            owner: lock.owner,
        },
        OpKind::CancelLock => Op::CancelLock {
            request: draw.u8().into(),
        },
        _ => Op::ReclaimDone,
    }
}
