//! The shared file system: inodes, names, and which process has what open.

use super::model_data::Data;
use super::{Mount, lock};
use crate::back_end_files::Errno;
use std::boxed::Box;
use std::collections::{BTreeMap, BTreeSet};
use std::string::String;
use std::sync::{Arc, Mutex, MutexGuard};
use std::vec::Vec;
use tidegate_wire::{Attr, Caller, Handle, RenameMode};

pub(super) const KIND: u32 = 0o170000;
pub(super) const DIRECTORY: u32 = 0o040000;
pub(super) const REGULAR: u32 = 0o100000;
pub(super) const LINK: u32 = 0o120000;
pub(super) const DEVICE: u32 = 0o020000;
pub(super) const ROOT: u64 = 1;

pub(super) const R: u32 = 4;
pub(super) const W: u32 = 2;
pub(super) const X: u32 = 1;

/// A file system in memory. Clones are the same one. Its clock moves by one microsecond with every
/// change, and numbers of removed inodes are used again, as on ext4.
#[derive(Clone)]
pub struct Disk(Arc<Mutex<Inodes>>);

pub(super) struct Inodes {
    pub(super) inodes: BTreeMap<u64, Inode>,
    free: BTreeSet<u64>,
    pub(super) wall_ns: i64,
    pub(super) processes: u64,
    /// Whether files have births.
    births: bool,
    /// Changes that took effect, for tests of "once".
    pub(super) effects: u64,
    /// Bytes that may still be written.
    pub(super) room: u64,
    /// What fails or is torn is in one copy of two all the same.
    pub(super) copies: Option<Copies>,
    /// Forwarders do not know that.
    copies_trusted: bool,
    /// Of so many appends one is refused for want of room in one of the copies; 0: none.
    refused_one_in: u64,
    appends: u64,
    /// So many times a size cannot be asked for after a refusal.
    blind: u32,
}

/// In which of a file's two copies is what failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// In that which is read.
    Seen,
    /// In the other.
    Unseen,
    /// By turns.
    Either,
}

/// One file.
#[derive(Clone, Debug)]
pub(super) struct Inode {
    pub(super) attr: Attr,
    pub(super) data: Data,
    pub(super) entries: BTreeMap<Box<[u8]>, u64>,
    pub(super) target: Box<[u8]>,
    pub(super) xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// Processes that have it open.
    pub(super) open: BTreeSet<u64>,
    /// The mount that has written to it and keeps that to itself, and the contents without it.
    pub(super) unstable: Option<(u64, Data)>,
}

impl Default for Disk {
    fn default() -> Self {
        Disk::new()
    }
}

impl Disk {
    /// A file system with an empty root directory that everybody may change.
    pub fn new() -> Disk {
        let mut inodes = Inodes {
            inodes: BTreeMap::new(),
            free: BTreeSet::from([ROOT]),
            wall_ns: 1_000_000_000_000_000_000,
            processes: 0,
            births: true,
            effects: 0,
            room: u64::MAX,
            copies: None,
            copies_trusted: false,
            refused_one_in: 0,
            appends: 0,
            blind: 0,
        };
        inodes.add(None, DIRECTORY | 0o777);
        inodes.inodes.get_mut(&ROOT).expect("just made").attr.nlink = 2;
        Disk(Arc::new(Mutex::new(inodes)))
    }

    /// From now on files have no births, and so no way to tell a reused number.
    pub fn without_births(self) -> Disk {
        let mut inodes = self.lock();
        inodes.births = false;
        let root = inodes.inodes.get_mut(&ROOT).expect("the root stays");
        root.attr.handle.birth = 0;
        drop(inodes);
        self
    }

    /// Drops what a node has written and not made stable: the node is gone, or the back end takes
    /// no more of it. Returns the files that are not as they were written.
    pub fn lose(&self, mount: &Mount) -> Vec<Handle> {
        let mut inodes = self.lock();
        let mut lost = Vec::new();
        for inode in inodes.inodes.values_mut() {
            if let Some((_, stable)) = inode.unstable.take_if(|(node, _)| *node == mount.number) {
                inode.data = stable;
                lost.push(inode.attr.handle);
            }
        }
        lost
    }

    /// Attributes of the root.
    pub fn root(&self) -> Attr {
        self.lock().inodes[&ROOT].attr
    }

    /// Sets the clock.
    pub fn set_wall_ns(&self, wall_ns: i64) {
        self.lock().wall_ns = wall_ns;
    }

    /// From now on so many bytes can be written, then it is full.
    pub fn set_room(&self, bytes: u64) {
        self.lock().room = bytes;
    }

    /// From now on there are two copies of each file, and an append or a new name for which there
    /// is no room, or under which the process dies, is in one of them.
    pub fn keep_copies(&self, failed_in: Copies) {
        self.lock().copies = Some(failed_in);
    }

    /// From now on one append of so many is refused, because a copy has no room for it.
    pub fn refuse_one_in(&self, appends: u64) {
        self.lock().refused_one_in = appends;
    }

    /// So many sizes are EIO.
    pub fn blind(&self, times: u32) {
        self.lock().blind = times;
    }

    /// Forwarders believe that all copies are alike, which is wrong.
    pub fn trust_copies(&self) {
        self.lock().copies_trusted = true;
    }

    /// What the copy of a file holds that is not read.
    pub fn other_copy(&self, path: &str) -> Option<Vec<u8>> {
        let inodes = self.lock();
        let data = &inodes.inodes[&inodes.walk(path.as_bytes()).ok()?].data;
        Some(data.other().unwrap_or(data).read(0, u64::MAX))
    }

    /// Changes that took effect so far.
    pub fn effects(&self) -> u64 {
        self.lock().effects
    }

    /// The whole tree as text, one line for each name: path, inode, type and mode, links, size, and
    /// contents if they are short; then extended attributes. Two equal trees have equal text.
    pub fn tree(&self) -> String {
        let inodes = self.lock();
        let mut text = String::new();
        inodes.write_tree(ROOT, "", &mut text);
        text
    }

    /// Contents of the file at a path below the root, components joined by `/`.
    pub fn contents(&self, path: &str) -> Option<Vec<u8>> {
        let inodes = self.lock();
        let inode = &inodes.inodes[&inodes.walk(path.as_bytes()).ok()?];
        Some(inode.data.read(0, u64::MAX))
    }

    /// Contents of a file that has a name or is open.
    pub fn contents_of(&self, handle: Handle) -> Option<Vec<u8>> {
        let mut inodes = self.lock();
        let inode = inodes.of(handle).ok()?;
        Some(inode.data.read(0, u64::MAX))
    }

    /// Inodes that no name leads to, kept by opens.
    pub fn orphans(&self) -> usize {
        let inodes = self.lock();
        inodes
            .inodes
            .values()
            .filter(|inode| inode.attr.nlink == 0)
            .count()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inodes> {
        lock(&self.0)
    }
}

impl Inodes {
    /// A node looks at a file: what others have written and kept reaches the back end.
    pub(super) fn look(&mut self, inode: u64, mount: Option<&Mount>) {
        let Some(inode) = self.inodes.get_mut(&inode) else {
            return;
        };
        let others = |(node, _): &(u64, Data)| mount.is_none_or(|mount| mount.number != *node);
        if inode.unstable.as_ref().is_some_and(others) {
            inode.unstable = None;
        }
    }

    /// A node writes to a file, and may keep it until it is asked for it.
    pub(super) fn write(&mut self, inode: u64, mount: Option<&Mount>) {
        self.look(inode, mount);
        let keeps = mount.filter(|mount| mount.keeps_writes());
        if let (Some(mount), Some(inode)) = (keeps, self.inodes.get_mut(&inode))
            && inode.unstable.is_none()
        {
            inode.unstable = Some((mount.number, inode.data.clone()));
        }
    }

    /// All that was written to a file is stable.
    pub(super) fn stable(&mut self, inode: u64) {
        if let Some(inode) = self.inodes.get_mut(&inode) {
            inode.unstable = None;
        }
    }

    /// How many of these bytes there is room for, which is taken. Where there is none, one copy of
    /// the file may have them all the same.
    pub(super) fn take_room(
        &mut self,
        (handle, offset): (Handle, u64),
        bytes: &[u8],
        appends: bool,
    ) -> Result<usize, Errno> {
        self.appends += u64::from(appends);
        let due = self.refused_one_in > 0 && self.appends.is_multiple_of(self.refused_one_in);
        let refused = appends && due;
        let taken = match refused {
            true => 0,
            false => self.room.min(bytes.len() as u64),
        };
        self.room -= taken;
        if taken == 0 && !bytes.is_empty() {
            self.put_in_one(handle, offset, bytes)?;
            return Err(Errno::ENOSPC);
        }
        Ok(taken as usize)
    }

    /// Writes in one copy of a file, if there are two.
    pub(super) fn put_in_one(
        &mut self,
        handle: Handle,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        let seen = match self.copies {
            None => return Ok(()),
            Some(Copies::Seen) => true,
            Some(Copies::Unseen) => false,
            Some(Copies::Either) => self.tick() / 1000 % 2 == 0,
        };
        self.of(handle)?.data.write_one(seen, offset, bytes);
        Ok(())
    }

    /// A new inode without a name.
    pub(super) fn add(&mut self, caller: Option<&Caller>, mode: u32) -> u64 {
        let inode = match self.free.pop_first() {
            Some(inode) => inode,
            None => self.inodes.keys().last().map_or(ROOT, |last| last + 1),
        };
        let now = self.tick();
        let attr = Attr {
            handle: Handle {
                inode,
                birth: if self.births { now as u64 } else { 0 },
            },
            size: 0,
            blocks: 0,
            atime_ns: now,
            mtime_ns: now,
            ctime_ns: now,
            mode,
            nlink: 1,
            uid: caller.map_or(0, |caller| caller.uid),
            gid: caller.map_or(0, |caller| caller.gid),
            rdev: 0,
            block_size: 4096,
        };
        let fresh = Inode {
            attr,
            data: Data::default(),
            entries: BTreeMap::new(),
            target: Box::default(),
            xattrs: BTreeMap::new(),
            open: BTreeSet::new(),
            unstable: None,
        };
        self.inodes.insert(inode, fresh);
        inode
    }

    pub(super) fn tick(&mut self) -> i64 {
        self.wall_ns += 1000;
        self.wall_ns
    }

    /// Lets an inode go that has neither names nor opens.
    pub(super) fn let_go(&mut self, inode: u64) {
        let gone = |it: &Inode| it.attr.nlink == 0 && it.open.is_empty();
        if self.inodes.get(&inode).is_some_and(gone) {
            self.inodes.remove(&inode);
            self.free.insert(inode);
        }
    }

    /// Writes bytes as a process does that has this mount, or none.
    pub(super) fn put(
        &mut self,
        handle: Handle,
        offset: u64,
        bytes: &[u8],
        mount: Option<&Mount>,
    ) -> Result<(), Errno> {
        self.write(handle.inode, mount);
        self.of(handle)?.data.write(offset, bytes);
        Ok(())
    }

    /// An error instead of a size.
    pub(super) fn see(&mut self) -> Result<(), Errno> {
        match self.blind {
            0 => Ok(()),
            _ => {
                self.blind -= 1;
                Err(Errno::EIO)
            }
        }
    }

    /// What [`Files::copies_may_differ`](crate::Files::copies_may_differ) says.
    pub(super) fn copies_may_differ(&self) -> bool {
        self.copies.is_some() && !self.copies_trusted
    }

    /// What a process leaves that dies while it writes: a half, or one of two copies.
    pub(super) fn tear(
        &mut self,
        handle: Handle,
        offset: u64,
        bytes: &[u8],
        mount: Option<&Mount>,
    ) -> Result<(), Errno> {
        match self.copies {
            Some(_) => self.put_in_one(handle, offset, bytes),
            None => self.put(handle, offset, &bytes[..bytes.len() / 2], mount),
        }
    }

    /// Writes to all copies of a file what was found in one, or sets their end.
    pub(super) fn align(&mut self, handle: Handle, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        if !self.copies_may_differ() {
            return Ok(());
        }
        let room = self.room;
        let data = &mut self.of(handle)?.data;
        let other = data.other().unwrap_or(data);
        let lacks = (at + bytes.len() as u64).saturating_sub(other.size);
        match bytes {
            [] => data.truncate(at),
            _ if lacks > room => return Err(Errno::ENOSPC),
            bytes => data.write(at, bytes),
        }
        touch(self, handle)
    }

    /// The inode of a handle, ESTALE if it is another file's or nobody's by now.
    pub(super) fn of(&mut self, handle: Handle) -> Result<&mut Inode, Errno> {
        match self.inodes.get_mut(&handle.inode) {
            Some(inode) if inode.attr.handle == handle => Ok(inode),
            _ => Err(Errno::ESTALE),
        }
    }

    pub(super) fn attr(&self, inode: u64) -> Attr {
        let inode = &self.inodes[&inode];
        Attr {
            size: match inode.attr.mode & KIND {
                LINK => inode.target.len() as u64,
                DIRECTORY => inode.entries.len() as u64,
                _ => inode.data.size,
            },
            blocks: inode.data.blocks(),
            ..inode.attr
        }
    }

    /// The inode at a path.
    pub(super) fn walk(&self, path: &[u8]) -> Result<u64, Errno> {
        self.walk_as(None, path)
    }

    /// The inode at a path, every directory of which the caller may search.
    pub(super) fn walk_as(&self, caller: Option<&Caller>, path: &[u8]) -> Result<u64, Errno> {
        let mut at = ROOT;
        for name in path
            .split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty())
        {
            let inode = &self.inodes[&at];
            may(caller, &inode.attr, X)?;
            at = *inode.entries.get(name).ok_or(Errno::ENOENT)?;
        }
        Ok(at)
    }

    fn write_tree(&self, inode: u64, path: &str, text: &mut String) {
        for (name, child) in &self.inodes[&inode].entries {
            let file = &self.inodes[child];
            let attr = self.attr(*child);
            let path = std::format!("{path}/{}", String::from_utf8_lossy(name));
            let shown = match attr.mode & KIND {
                LINK => file.target.to_vec(),
                _ => file.data.read(0, 64),
            };
            *text += &std::format!(
                "{path} {:o} links {} size {} {}:{} {:?}\n",
                attr.mode,
                attr.nlink,
                attr.size,
                attr.uid,
                attr.gid,
                String::from_utf8_lossy(&shown)
            );
            for (name, value) in &file.xattrs {
                let [name, value] = [name, value].map(|it| String::from_utf8_lossy(it));
                *text += &std::format!("{path} {name}={value:?}\n");
            }
            self.write_tree(*child, &path, text);
        }
    }
}

/// Whether a caller may, as the mode says; the forwarder itself and root may everything.
pub(super) fn may(caller: Option<&Caller>, attr: &Attr, mask: u32) -> Result<(), Errno> {
    let Some(caller) = caller.filter(|caller| caller.uid != 0) else {
        return Ok(());
    };
    let shift = if caller.uid == attr.uid {
        6
    } else if caller.gid == attr.gid || caller.groups.contains(&attr.gid) {
        3
    } else {
        0
    };
    match (attr.mode >> shift) & mask == mask {
        true => Ok(()),
        false => Err(Errno::EACCES),
    }
}

/// Whether a caller has the rights of a file's owner.
pub(super) fn owns(caller: Option<&Caller>, attr: &Attr) -> bool {
    caller.is_none_or(|caller| caller.uid == 0 || caller.uid == attr.uid)
}

/// The inode of a directory that the caller may use so.
pub(super) fn directory(
    inodes: &mut Inodes,
    caller: Option<&Caller>,
    handle: Handle,
    mask: u32,
) -> Result<(), Errno> {
    let attr = inodes.of(handle)?.attr;
    if attr.mode & KIND != DIRECTORY {
        return Err(Errno::ENOTDIR);
    }
    may(caller, &attr, mask)
}

/// The inode that a name leads to.
pub(super) fn child(inodes: &mut Inodes, parent: Handle, name: &[u8]) -> Result<u64, Errno> {
    let entries = &inodes.of(parent)?.entries;
    entries.get(name).copied().ok_or(Errno::ENOENT)
}

/// Leaves a device 0/0 under the old name, if a rename is to do so.
pub(super) fn white_out(
    inodes: &mut Inodes,
    caller: Option<&Caller>,
    from: (Handle, &[u8]),
    mode: RenameMode,
) -> Result<(), Errno> {
    if mode == RenameMode::Whiteout {
        let whiteout = inodes.add(caller, DEVICE);
        inodes.of(from.0)?.entries.insert(from.1.into(), whiteout);
    }
    Ok(())
}

/// Counts a change of a file.
pub(super) fn touch(inodes: &mut Inodes, handle: Handle) -> Result<(), Errno> {
    inodes.effects += 1;
    let now = inodes.tick();
    let attr = &mut inodes.of(handle)?.attr;
    attr.mtime_ns = now;
    attr.ctime_ns = now;
    Ok(())
}

/// An entry that led to an inode is gone.
pub(super) fn lose_name(inodes: &mut Inodes, parent: Handle, inode: u64) -> Result<(), Errno> {
    let attr = &mut inodes.inodes.get_mut(&inode).ok_or(Errno::EIO)?.attr;
    if attr.mode & KIND == DIRECTORY {
        attr.nlink = 0;
        inodes.of(parent)?.attr.nlink -= 1;
    } else {
        attr.nlink -= 1;
    }
    inodes.let_go(inode);
    Ok(())
}

/// Whether a directory lies in another, or is it.
pub(super) fn lies_in(inodes: &Inodes, inode: u64, directory: u64) -> bool {
    let mut open = std::vec![directory];
    while let Some(at) = open.pop() {
        if at == inode {
            return true;
        }
        open.extend(inodes.inodes[&at].entries.values());
    }
    false
}
