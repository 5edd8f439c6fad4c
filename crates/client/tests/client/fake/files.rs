//! The fake's files: one directory, in memory.

use std::collections::BTreeMap;
use tidegate_client::wire::{Attr, Entry, Handle, Lens, Listing, Name, Op, Outcome, Status};

/// The root directory.
pub const ROOT: Handle = Handle { inode: 2, birth: 1 };

const ENOENT: u16 = 2;
const ENOSPC: u16 = 28;
const EEXIST: u16 = 17;
const ENOTEMPTY: u16 = 39;
const ENOSYS: u16 = 38;

/// A directory of files.
pub struct Files {
    /// In order of creation; a name that was removed leaves its file unnamed.
    names: BTreeMap<Name, u64>,
    files: BTreeMap<u64, Node>,
    inode_next: u64,
    /// Bytes that may still be appended.
    pub room: usize,
}

enum Node {
    File(Vec<u8>),
    Directory,
    Link(Box<[u8]>),
}

type Performed = (Result<Outcome, Status>, Vec<u8>);

impl Default for Files {
    fn default() -> Files {
        let files = BTreeMap::from([(ROOT.inode, Node::Directory)]);
        Files {
            names: BTreeMap::new(),
            files,
            inode_next: 10,
            room: usize::MAX,
        }
    }
}

impl Files {
    /// Attributes of the root.
    pub fn root(&self) -> Attr {
        self.attr(ROOT.inode).expect("the root is there")
    }

    /// Carries out an operation.
    pub fn perform(&mut self, op: &Op, payload: &[u8]) -> Performed {
        let mut bytes = Vec::new();
        let result = match op {
            Op::Read { handle, extents } => self.read(handle.inode, extents, &mut bytes),
            Op::Write { handle, extents } => self.write(handle.inode, extents, payload),
            Op::Append { handle } => self.append(handle.inode, payload),
            Op::Readdir { cookie, .. } => Ok(self.list(*cookie)),
            Op::Readlink { handle } => self.readlink(handle.inode),
            Op::Status => Ok(Outcome::Text(b"{\"fake\":true}"[..].into())),
            Op::Setattr { handle, set } => self.resize(handle.inode, set.size),
            Op::Getattr { handle } | Op::Open { handle, .. } | Op::ResolvePath { handle, .. } => {
                self.attr(handle.inode).map(Outcome::Attr)
            }
            Op::Ping | Op::Bye | Op::Close { .. } | Op::DropLocks { .. } | Op::ReclaimDone => {
                Ok(Outcome::Done)
            }
            Op::Fsync { .. } | Op::SetPolicy { .. } | Op::SetShares { .. } | Op::Drain { .. } => {
                Ok(Outcome::Done)
            }
            Op::Application { .. } | Op::Access { .. } => Ok(Outcome::Done),
            named => self.perform_named(named),
        };
        (result.map_err(Status::Errno), bytes)
    }

    fn perform_named(&mut self, op: &Op) -> Result<Outcome, u16> {
        match op {
            Op::Lookup { name, .. } => self.inode(name).and_then(|inode| self.attr(inode)),
            Op::Create {
                name, exclusive, ..
            } => match self.inode(name) {
                Ok(_) if *exclusive => Err(EEXIST),
                Ok(inode) => self.attr(inode),
                Err(_) => self.add(name, Node::File(Vec::new())),
            },
            Op::Mkdir { name, .. } if self.inode(name).is_ok() => Err(EEXIST),
            Op::Mkdir { name, .. } => self.add(name, Node::Directory),
            Op::Symlink { name, target, .. } => self.add(name, Node::Link(target.clone())),
            Op::Rmdir { name, .. } | Op::Unlink { name, .. } => {
                let inode = self.inode(name)?;
                if inode == ROOT.inode {
                    return Err(ENOTEMPTY);
                }
                self.names.remove(name);
                return Ok(Outcome::Removed(Some(handle(inode))));
            }
            Op::Rename { name, new_name, .. } => {
                let inode = self.inode(name)?;
                self.names.remove(name);
                let replaced = self.names.insert(new_name.clone(), inode);
                return Ok(Outcome::Removed(replaced.map(handle)));
            }
            _ => Err(ENOSYS),
        }
        .map(Outcome::Attr)
    }

    fn inode(&self, name: &[u8]) -> Result<u64, u16> {
        self.names.get(name).copied().ok_or(ENOENT)
    }

    fn add(&mut self, name: &[u8], node: Node) -> Result<Attr, u16> {
        let inode = self.inode_next;
        self.inode_next += 1;
        self.names.insert(name.into(), inode);
        self.files.insert(inode, node);
        self.attr(inode)
    }

    fn attr(&self, inode: u64) -> Result<Attr, u16> {
        let (mode, size) = match self.files.get(&inode).ok_or(ENOENT)? {
            Node::File(bytes) => (0o100_644, bytes.len()),
            Node::Directory => (0o040_755, 0),
            Node::Link(target) => (0o120_777, target.len()),
        };
        Ok(Attr {
            handle: handle(inode),
            size: size as u64,
            blocks: size.div_ceil(512) as u64,
            atime_ns: 1,
            mtime_ns: 2,
            ctime_ns: 3,
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            block_size: 4096,
        })
    }

    fn bytes(&mut self, inode: u64) -> Result<&mut Vec<u8>, u16> {
        match self.files.get_mut(&inode) {
            Some(Node::File(bytes)) => Ok(bytes),
            _ => Err(ENOENT),
        }
    }

    fn read(
        &mut self,
        inode: u64,
        extents: &tidegate_client::wire::Extents,
        into: &mut Vec<u8>,
    ) -> Result<Outcome, u16> {
        let bytes = self.bytes(inode)?;
        let mut lens = extents.iter().map(|extent| {
            let start = (extent.offset as usize).min(bytes.len());
            let end = (start + extent.len as usize).min(bytes.len());
            into.extend_from_slice(&bytes[start..end]);
            (end - start) as u32
        });
        let first = lens.next().expect("at least one extent");
        let rest = lens.collect();
        Ok(Outcome::Data {
            lens: Lens { first, rest },
        })
    }

    fn write(
        &mut self,
        inode: u64,
        extents: &tidegate_client::wire::Extents,
        mut payload: &[u8],
    ) -> Result<Outcome, u16> {
        let bytes = self.bytes(inode)?;
        let len = payload.len() as u64;
        assert_eq!(len, extents.bytes(), "a payload is as long as its extents");
        for extent in extents.iter() {
            let (start, end) = (
                extent.offset as usize,
                (extent.offset + extent.len) as usize,
            );
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            let (here, rest) = payload.split_at(end - start);
            bytes[start..end].copy_from_slice(here);
            payload = rest;
        }
        Ok(Outcome::Written { len })
    }

    fn append(&mut self, inode: u64, payload: &[u8]) -> Result<Outcome, u16> {
        let taken = payload.len().min(self.room);
        if taken == 0 {
            return Err(ENOSPC);
        }
        self.room -= taken;
        let bytes = self.bytes(inode)?;
        let offset = bytes.len() as u64;
        bytes.extend_from_slice(&payload[..taken]);
        Ok(Outcome::Appended {
            offset,
            len: taken as u64,
        })
    }

    fn resize(&mut self, inode: u64, size: Option<u64>) -> Result<Outcome, u16> {
        if let Some(size) = size {
            self.bytes(inode)?.resize(size as usize, 0);
        }
        self.attr(inode).map(Outcome::Attr)
    }

    fn readlink(&mut self, inode: u64) -> Result<Outcome, u16> {
        match self.files.get(&inode) {
            Some(Node::Link(target)) => Ok(Outcome::Text(target.clone())),
            _ => Err(ENOENT),
        }
    }

    /// Three entries at a time, so that listing takes several requests.
    fn list(&self, cookie: u64) -> Outcome {
        let entries = self.names.iter().zip(1..).skip(cookie as usize).take(3);
        let entries = entries.map(|((name, inode), cookie)| Entry {
            name: name.clone(),
            inode: *inode,
            kind: 8,
            cookie,
            attr: None,
            lacks: 0,
            lent: false,
        });
        let entries: Vec<Entry> = entries.collect();
        // Some forwarders say so only when they are asked once more.
        let ended = entries.is_empty();
        Outcome::Entries(Listing { entries, ended })
    }
}

fn handle(inode: u64) -> Handle {
    Handle { inode, birth: 1 }
}
