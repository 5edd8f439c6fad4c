//! Turns each step of a program into an operation of the protocol.

use super::script::{Ask, Script, Step};
use bytes::Bytes;
use tidegate_wire::{Extent, Handle, Lock, LockFamily, LockKind, Op, RenameMode, SetAttr};

impl Script {
    pub(super) fn ask(&self, step: &Step) -> Ask {
        let own = self
            .ask_name(step)
            .or_else(|| self.ask_file(step))
            .or_else(|| self.ask_look(step));
        let (op, payload) = match (own, step) {
            (Some(op), Step::Write { bytes, .. } | Step::Append { bytes, .. }) => {
                (op, bytes.clone())
            }
            (Some(op), _) => (op, Bytes::new()),
            (None, shared) => self.ask_shared(shared),
        };
        Ask { op, payload }
    }

    /// What makes, moves or removes a name.
    fn ask_name(&self, step: &Step) -> Option<Op> {
        let parent = self.folder.unwrap_or(self.root);
        let bytes = |text: &str| -> Box<[u8]> { text.as_bytes().into() };
        let handle = |file: &usize| self.files[*file].handle;
        Some(match step {
            Step::MakeFolder => {
                let name = bytes(&self.folder_name());
                Op::Mkdir {
                    parent: self.root,
                    name,
                    mode: 0o755,
                }
            }
            Step::Create { name, exclusive } => {
                let (name, exclusive) = (bytes(name), *exclusive);
                Op::Create {
                    parent,
                    name,
                    mode: 0o644,
                    exclusive,
                }
            }
            Step::Rename { from, to } => Op::Rename {
                parent,
                name: bytes(from),
                new_parent: parent,
                new_name: bytes(to),
                mode: RenameMode::Replace,
            },
            Step::Link { file, name } => Op::Link {
                handle: handle(file),
                parent,
                name: bytes(name),
            },
            Step::Unlink { name } => Op::Unlink {
                parent,
                name: bytes(name),
            },
            Step::Mkdir { name } => Op::Mkdir {
                parent,
                name: bytes(name),
                mode: 0o755,
            },
            Step::Rmdir { name } => Op::Rmdir {
                parent,
                name: bytes(name),
            },
            Step::Symlink { name, target } => Op::Symlink {
                parent,
                name: bytes(name),
                target: target[..].into(),
            },
            _ => return None,
        })
    }

    /// What concerns an own file's contents, size or opens.
    fn ask_file(&self, step: &Step) -> Option<Op> {
        let handle = |file: &usize| self.files[*file].handle;
        Some(match step {
            Step::Write {
                file,
                offset,
                bytes,
            } => {
                let extent = Extent {
                    offset: *offset,
                    len: bytes.len() as u64,
                };
                Op::Write {
                    handle: handle(file),
                    extents: extent.into(),
                }
            }
            Step::Read { file, offset, len } => {
                let extent = Extent {
                    offset: *offset,
                    len: *len,
                };
                Op::Read {
                    handle: handle(file),
                    extents: extent.into(),
                }
            }
            Step::Append { file, .. } => Op::Append {
                handle: handle(file),
            },
            Step::Truncate { file, size } => {
                let set = SetAttr {
                    size: Some(*size),
                    ..SetAttr::default()
                };
                Op::Setattr {
                    handle: handle(file),
                    set,
                }
            }
            Step::Getattr { file } => Op::Getattr {
                handle: handle(file),
            },
            Step::Fsync { file } => Op::Fsync {
                handle: handle(file),
                data_only: false,
            },
            Step::Open { file, open } => Op::Open {
                handle: handle(file),
                open: *open,
                read: true,
                write: true,
            },
            Step::Close { file, open } => Op::Close {
                handle: handle(file),
                open: *open,
            },
            _ => return None,
        })
    }

    /// What looks, and extended attributes.
    fn ask_look(&self, step: &Step) -> Option<Op> {
        let parent = self.folder.unwrap_or(self.root);
        let bytes = |text: &str| -> Box<[u8]> { text.as_bytes().into() };
        let handle = |file: &usize| self.files[*file].handle;
        let xattr = || bytes("user.fault");
        Some(match step {
            Step::FindShared { name } => {
                let parent = self.shared.first().copied().unwrap_or(self.root);
                Op::Lookup {
                    parent,
                    name: bytes(name),
                }
            }
            Step::Lookup { name } => Op::Lookup {
                parent,
                name: bytes(name),
            },
            Step::List => Op::Readdir {
                handle: parent,
                cookie: 0,
                bytes_max: 65536,
                plus: false,
                xattrs: Vec::new(),
            },
            Step::SetXattr { file, value } => {
                let (handle, value) = (handle(file), value[..].into());
                Op::Setxattr {
                    handle,
                    name: xattr(),
                    value,
                    flags: 0,
                }
            }
            Step::GetXattr { file } => Op::Getxattr {
                handle: handle(file),
                name: xattr(),
            },
            Step::RemoveXattr { file } => Op::Removexattr {
                handle: handle(file),
                name: xattr(),
            },
            _ => return None,
        })
    }

    fn ask_shared(&self, step: &Step) -> (Op, Bytes) {
        let [folder, journal, counter] = self.shared[..] else {
            unreachable!("the shared files were found first");
        };
        let extent = Extent { offset: 0, len: 8 };
        let lock = |kind| Lock {
            family: LockFamily::Range,
            kind,
            owner: self.id,
            pid: self.id as u32,
            start: 0,
            end: 7,
        };
        let op = match step {
            Step::Journal { record } => {
                return (
                    Op::Append { handle: journal },
                    Bytes::copy_from_slice(record),
                );
            }
            Step::CounterWrite { value } => {
                let op = Op::Write {
                    handle: counter,
                    extents: extent.into(),
                };
                return (op, Bytes::copy_from_slice(&value.to_le_bytes()));
            }
            Step::Prize { number } => {
                let name = format!("prize-{number}").into_bytes().into();
                Op::Create {
                    parent: folder,
                    name,
                    mode: 0o644,
                    exclusive: true,
                }
            }
            Step::CounterLock => {
                let lock = lock(LockKind::Exclusive);
                Op::SetLock {
                    handle: counter,
                    lock,
                    wait: true,
                    reclaim: false,
                }
            }
            Step::JournalSync => fsync(journal),
            Step::CounterSync { .. } => fsync(counter),
            Step::CounterRead => Op::Read {
                handle: counter,
                extents: extent.into(),
            },
            Step::CounterUnlock => {
                let lock = lock(LockKind::None);
                Op::SetLock {
                    handle: counter,
                    lock,
                    wait: false,
                    reclaim: false,
                }
            }
            sharing => self.ask_sharing(sharing, folder, journal),
        };
        (op, Bytes::new())
    }
}

impl Script {
    /// What all programs of a world that shares look at and change.
    fn ask_sharing(&self, step: &Step, folder: Handle, journal: Handle) -> Op {
        match step {
            Step::FlagMake { name, .. } => Op::Create {
                parent: folder,
                name: name.as_bytes().into(),
                mode: 0o644,
                exclusive: true,
            },
            Step::FlagMove { flag, name, .. } => Op::Rename {
                parent: folder,
                name: name.as_bytes().into(),
                new_parent: folder,
                new_name: flag_name(*flag),
                mode: RenameMode::Replace,
            },
            Step::FlagFind { flag } => Op::Lookup {
                parent: folder,
                name: flag_name(*flag),
            },
            Step::JournalSize => Op::Getattr { handle: journal },
            Step::JournalOpen { open, .. } => Op::Open {
                handle: journal,
                open: *open,
                read: true,
                write: true,
            },
            Step::JournalClose { open } => Op::Close {
                handle: journal,
                open: *open,
            },
            own => unreachable!("{own:?} is no shared step"),
        }
    }
}

fn flag_name(flag: u64) -> Box<[u8]> {
    format!("flag-{flag}").into_bytes().into()
}

fn fsync(handle: Handle) -> Op {
    let data_only = false;
    Op::Fsync { handle, data_only }
}
