//! The intents of operations, encoded for a reply slot: what is needed to look up on the back end
//! whether an operation took effect.

use crate::record_bytes::{Reader, Writer};
use tidegate_wire::{Handle, RenameMode, SetAttr, SetTime};

/// Most bytes of an append that its intent holds.
pub(super) const HEAD_MAX: usize = 256;

/// An operation that was begun, with what it found on the back end before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intent<'a> {
    /// A name that did not exist is being made.
    Make(Make<'a>),
    /// A file gets another name, which did not exist.
    Link {
        /// The file.
        handle: Handle,
        /// Directory of the new name.
        parent: Handle,
        /// New name.
        name: &'a [u8],
    },
    /// A name is being removed.
    Remove {
        /// Directory.
        parent: Handle,
        /// Name in it.
        name: &'a [u8],
        /// The file that the name leads to.
        victim: Handle,
    },
    /// A name moves.
    Rename(Rename<'a>),
    /// Bytes are being appended.
    Append {
        /// The file.
        handle: Handle,
        /// The file's size before.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Checksum of the bytes, because others may make the file longer meanwhile.
        checksum: u32,
        /// The first bytes, at most [`HEAD_MAX`]. They tell whether bytes in the file are a part of
        /// this append.
        head: &'a [u8],
    },
    /// Attributes and the size are being set.
    SetAttr {
        /// The file.
        handle: Handle,
        /// What is set.
        set: SetAttr,
        /// The size before.
        size: u64,
    },
    /// An extended attribute is being set to another value than it had.
    SetXattr {
        /// The file.
        handle: Handle,
        /// The attribute.
        name: &'a [u8],
        /// Bytes of the value.
        len: u32,
        /// [`hash`] of the value.
        hash: u64,
    },
    /// An extended attribute that was there is being removed.
    RemoveXattr {
        /// The file.
        handle: Handle,
        /// The attribute.
        name: &'a [u8],
    },
}

/// See [`Intent::Make`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Make<'a> {
    /// Directory.
    pub(super) parent: Handle,
    /// New name.
    pub(super) name: &'a [u8],
    /// The type bits of the mode.
    pub(super) kind: u32,
    /// The back end's clock before the name was made, ns since 1970.
    pub(super) wall_ns: i64,
    /// Bytes and [`hash`] of a symbolic link's target, else zeros.
    pub(super) target: (u32, u64),
}

/// See [`Intent::Rename`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rename<'a> {
    /// Old directory and name.
    pub(super) from: (Handle, &'a [u8]),
    /// New directory and name.
    pub(super) to: (Handle, &'a [u8]),
    /// The file that the old name leads to.
    pub(super) source: Handle,
    /// The file that the new name leads to, if there is one.
    pub(super) target: Option<Handle>,
    /// What may happen to that file.
    pub(super) mode: RenameMode,
}

impl<'a> Intent<'a> {
    /// The files whose names or contents the operation changes.
    pub(super) fn files(&self) -> [Option<Handle>; 2] {
        match self {
            Intent::Make(made) => [Some(made.parent), None],
            Intent::Link { parent, .. } | Intent::Remove { parent, .. } => [Some(*parent), None],
            Intent::Rename(rename) => [Some(rename.from.0), Some(rename.to.0)],
            Intent::Append { handle, .. }
            | Intent::SetAttr { handle, .. }
            | Intent::SetXattr { handle, .. }
            | Intent::RemoveXattr { handle, .. } => [Some(*handle), None],
        }
    }

    /// Writes the intent and returns its length.
    pub(super) fn encode(&self, out: &mut [u8]) -> usize {
        let mut out = Writer::new(out);
        match self {
            Intent::Make(made) => {
                out.u8(1);
                out.handle(made.parent);
                out.string(made.name);
                out.u32(made.kind);
                out.u64(made.wall_ns as u64);
                out.u32(made.target.0);
                out.u64(made.target.1);
            }
            Intent::Link {
                handle,
                parent,
                name,
            } => {
                out.u8(2);
                out.handle(*handle);
                out.handle(*parent);
                out.string(name);
            }
            Intent::Remove {
                parent,
                name,
                victim,
            } => {
                out.u8(3);
                out.handle(*parent);
                out.string(name);
                out.handle(*victim);
            }
            Intent::Rename(rename) => put_rename(&mut out, rename),
            Intent::Append {
                handle,
                offset,
                len,
                checksum,
                head,
            } => {
                put_append(&mut out, *handle, (*offset, *len), *checksum);
                out.string(head);
            }
            Intent::SetAttr { handle, set, size } => {
                out.u8(6);
                out.handle(*handle);
                put_set(&mut out, set);
                out.u64(*size);
            }
            Intent::SetXattr {
                handle,
                name,
                len,
                hash,
            } => {
                out.u8(7);
                out.handle(*handle);
                out.string(name);
                out.u32(*len);
                out.u64(*hash);
            }
            Intent::RemoveXattr { handle, name } => {
                out.u8(8);
                out.handle(*handle);
                out.string(name);
            }
        }
        out.len()
    }

    /// Whether the operation may free room on the back end.
    pub(super) fn frees_room(&self) -> bool {
        match self {
            Intent::Remove { .. } | Intent::RemoveXattr { .. } => true,
            Intent::SetAttr { set, size, .. } => set.size.is_some_and(|wanted| wanted < *size),
            Intent::Make(_) | Intent::Link { .. } | Intent::Rename(_) => false,
            Intent::Append { .. } | Intent::SetXattr { .. } => false,
        }
    }

    /// Decodes an intent; None if the bytes are not one.
    pub(super) fn decode(bytes: &'a [u8]) -> Option<Intent<'a>> {
        let mut from = Reader::new(bytes);
        let intent = match from.u8()? {
            1 => Intent::Make(Make {
                parent: from.handle()?,
                name: from.string()?,
                kind: from.u32()?,
                wall_ns: from.u64()? as i64,
                target: (from.u32()?, from.u64()?),
            }),
            2 => Intent::Link {
                handle: from.handle()?,
                parent: from.handle()?,
                name: from.string()?,
            },
            3 => Intent::Remove {
                parent: from.handle()?,
                name: from.string()?,
                victim: from.handle()?,
            },
            4 => Intent::Rename(take_rename(&mut from)?),
            5 => Intent::Append {
                handle: from.handle()?,
                offset: from.u64()?,
                len: from.u64()?,
                checksum: from.u32()?,
                head: from.string()?,
            },
            6 => Intent::SetAttr {
                handle: from.handle()?,
                set: take_set(&mut from)?,
                size: from.u64()?,
            },
            7 => Intent::SetXattr {
                handle: from.handle()?,
                name: from.string()?,
                len: from.u32()?,
                hash: from.u64()?,
            },
            8 => Intent::RemoveXattr {
                handle: from.handle()?,
                name: from.string()?,
            },
            _ => return None,
        };
        from.is_empty().then_some(intent)
    }
}

/// FNV-1a hash of a value, to compare long values without keeping them.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn put_append(out: &mut Writer<'_>, handle: Handle, (offset, len): (u64, u64), checksum: u32) {
    out.u8(5);
    out.handle(handle);
    out.u64(offset);
    out.u64(len);
    out.u32(checksum);
}

fn put_rename(out: &mut Writer<'_>, rename: &Rename<'_>) {
    out.u8(4);
    for (parent, name) in [rename.from, rename.to] {
        out.handle(parent);
        out.string(name);
    }
    out.handle(rename.source);
    out.u8(u8::from(rename.target.is_some()));
    out.handle(rename.target.unwrap_or(rename.source));
    out.u8(match rename.mode {
        RenameMode::Replace => 0,
        RenameMode::NoReplace => 1,
        RenameMode::Exchange => 2,
        RenameMode::Whiteout => 3,
    });
}

fn take_rename<'a>(from: &mut Reader<'a>) -> Option<Rename<'a>> {
    let old = (from.handle()?, from.string()?);
    let new = (from.handle()?, from.string()?);
    let source = from.handle()?;
    let some = from.u8()? != 0;
    let target = from.handle()?;
    let mode = match from.u8()? {
        0 => RenameMode::Replace,
        1 => RenameMode::NoReplace,
        2 => RenameMode::Exchange,
        3 => RenameMode::Whiteout,
        _ => return None,
    };
    Some(Rename {
        from: old,
        to: new,
        source,
        target: some.then_some(target),
        mode,
    })
}

fn put_set(out: &mut Writer<'_>, set: &SetAttr) {
    for word in [set.mode, set.uid, set.gid] {
        out.u8(u8::from(word.is_some()));
        out.u32(word.unwrap_or(0));
    }
    out.u8(u8::from(set.size.is_some()));
    out.u64(set.size.unwrap_or(0));
    for time in [set.atime, set.mtime] {
        let (kind, ns) = match time {
            None => (0, 0),
            Some(SetTime::At(ns)) => (1, ns),
            Some(SetTime::Now) => (2, 0),
        };
        out.u8(kind);
        out.u64(ns as u64);
    }
}

fn take_set(from: &mut Reader<'_>) -> Option<SetAttr> {
    let mut word = || {
        let some = from.u8()? != 0;
        let value = from.u32()?;
        Some(some.then_some(value))
    };
    let (mode, uid, gid) = (word()?, word()?, word()?);
    let some = from.u8()? != 0;
    let size = from.u64()?;
    let mut time = || {
        let kind = from.u8()?;
        let ns = from.u64()? as i64;
        match kind {
            0 => Some(None),
            1 => Some(Some(SetTime::At(ns))),
            2 => Some(Some(SetTime::Now)),
            _ => None,
        }
    };
    let (atime, mtime) = (time()?, time()?);
    Some(SetAttr {
        mode,
        uid,
        gid,
        size: some.then_some(size),
        atime,
        mtime,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply_table::INTENT_MAX;

    const HANDLE: Handle = Handle { inode: 3, birth: 5 };

    #[test]
    fn every_intent_fits_its_room_and_comes_back() {
        let name = [b'n'; 255];
        let set = SetAttr {
            size: Some(9),
            mtime: Some(SetTime::Now),
            ..SetAttr::default()
        };
        let at = (HANDLE, &name[..]);
        let intents = [
            Intent::Make(Make {
                parent: HANDLE,
                name: &name,
                kind: 0o100000,
                wall_ns: -7,
                target: (4096, 1),
            }),
            Intent::Link {
                handle: HANDLE,
                parent: HANDLE,
                name: &name,
            },
            Intent::Remove {
                parent: HANDLE,
                name: &name,
                victim: HANDLE,
            },
            Intent::Rename(Rename {
                from: at,
                to: at,
                source: HANDLE,
                target: Some(HANDLE),
                mode: RenameMode::Exchange,
            }),
            Intent::Append {
                handle: HANDLE,
                offset: 1,
                len: 2,
                checksum: 3,
                head: &[7; HEAD_MAX],
            },
            Intent::SetAttr {
                handle: HANDLE,
                set,
                size: 4,
            },
            Intent::SetXattr {
                handle: HANDLE,
                name: &name,
                len: 65536,
                hash: 8,
            },
            Intent::RemoveXattr {
                handle: HANDLE,
                name: &name,
            },
        ];
        for intent in intents {
            let mut bytes = [0; INTENT_MAX];
            let len = intent.encode(&mut bytes);
            assert_eq!(Intent::decode(&bytes[..len]), Some(intent));
            for cut in 0..len {
                assert_eq!(Intent::decode(&bytes[..cut]), None, "cut at {cut}");
            }
        }
    }
}
