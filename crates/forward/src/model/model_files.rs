//! [`Files`] over the shared disk, as one forwarder process sees it.

use super::disk::{
    DIRECTORY, Disk, Inodes, KIND, LINK, R, REGULAR, ROOT, W, X, child, directory, lies_in,
    lose_name, may, owns, touch, white_out,
};
use super::listing::list;
use super::{KILLED, Mount, Switch};
use crate::back_end_files::{Access, Errno, Files};
use std::boxed::Box;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::MutexGuard;
use std::vec::Vec;
use tidegate_wire::{Attr, Caller, Handle, Listing, Name, RenameMode, SetAttr, SetTime, Statfs};

pub(super) type Done<T> = Result<T, Access>;

/// One process's view of a [`Disk`].
pub struct ModelFiles {
    disk: Disk,
    switch: Switch,
    process: u64,
    known: BTreeSet<Handle>,
    mount: Option<Mount>,
    /// The file whose size was asked for last, and what it is: a write there is an append.
    end: Option<(Handle, u64)>,
    /// Files whose copies are made alike from an offset on before their size is told.
    doubted: BTreeMap<Handle, u64>,
}

impl Disk {
    /// The back end as one forwarder process sees it: it knows the root only.
    pub fn files(&self, switch: &Switch) -> ModelFiles {
        self.files_of(switch, None)
    }

    /// The same for a process on a node, through its mount.
    pub fn files_on(&self, mount: &Mount, switch: &Switch) -> ModelFiles {
        self.files_of(switch, Some(mount.clone()))
    }

    fn files_of(&self, switch: &Switch, mount: Option<Mount>) -> ModelFiles {
        let mut inodes = self.lock();
        inodes.processes += 1;
        ModelFiles {
            disk: self.clone(),
            switch: switch.clone(),
            process: inodes.processes,
            known: BTreeSet::from([inodes.inodes[&ROOT].attr.handle]),
            mount,
            end: None,
            doubted: BTreeMap::new(),
        }
    }
}

impl ModelFiles {
    /// Lets go of unlinked files that no process but dead ones has open, among those that `which`
    /// names: what a host does at [`crate::Output::Reclaimed`].
    pub fn let_go(&mut self, which: impl Fn(Handle) -> bool) {
        let process = self.process;
        let Ok(mut inodes) = self.call() else {
            return;
        };
        let all = inodes.inodes.values().map(|inode| inode.attr.handle);
        let handles: Vec<Handle> = all.filter(|handle| which(*handle)).collect();
        for handle in handles {
            let inode = inodes.of(handle).expect("listed above");
            inode.open.retain(|open| *open == process);
            inodes.let_go(handle.inode);
        }
    }

    /// The process's own node knows what it has done to a file.
    fn changed(&self, handle: Handle) {
        if let Some(mount) = &self.mount {
            mount.changed(self.disk.lock().attr(handle.inode));
        }
    }

    fn wrote(&self, handle: Handle, end: u64) {
        if let Some(mount) = &self.mount {
            mount.wrote(handle, end);
        }
    }

    /// Counts a call.
    fn call(&mut self) -> Done<MutexGuard<'_, Inodes>> {
        match self.switch.call() {
            true => Ok(self.disk.lock()),
            false => Err(KILLED),
        }
    }

    /// Counts a call for a handle that must be known.
    pub(super) fn with(&mut self, handle: Handle) -> Done<MutexGuard<'_, Inodes>> {
        if !self.switch.call() {
            return Err(KILLED);
        }
        let mut inodes = self.disk.lock();
        // A file without names has a hidden one, which follows from its handle.
        let hidden = inodes.of(handle).is_ok_and(|inode| inode.attr.nlink == 0);
        match hidden || self.known.contains(&handle) {
            true => Ok(inodes),
            false => Err(Access::UnknownHandle),
        }
    }

    /// Finds a file by a path, every directory of which the caller may search.
    fn walk_as(&mut self, caller: Option<&Caller>, handle: Handle, path: &[u8]) -> Done<Attr> {
        let mut inodes = self.call()?;
        let walked = inodes.walk_as(caller, path);
        let attr = match walked.map(|inode| inodes.attr(inode)) {
            Ok(attr) if attr.handle == handle => attr,
            // The file may have lost its name while it is open: it has a hidden one, which is
            // nobody's but its owner's.
            _ => match inodes.of(handle).map(|inode| inode.attr) {
                Ok(attr) if attr.nlink == 0 && owns(caller, &attr) => inodes.attr(handle.inode),
                _ => return Err(walked.err().unwrap_or(Errno::ESTALE).into()),
            },
        };
        drop(inodes);
        self.meet(Ok(attr))
    }

    /// Remembers the handle of an answer.
    pub(super) fn meet(&mut self, result: Done<Attr>) -> Done<Attr> {
        if let Ok(attr) = &result {
            self.known.insert(attr.handle);
        }
        result
    }
}

impl Files for ModelFiles {
    fn root(&mut self) -> Done<Attr> {
        let disk = self.disk.clone();
        drop(self.call()?);
        Ok(disk.root())
    }

    fn resolve_path(&mut self, handle: Handle, path: &[u8]) -> Done<Attr> {
        self.walk_as(None, handle, path)
    }

    fn reach(&mut self, caller: &Caller, handle: Handle, path: &[u8]) -> Done<Attr> {
        match path.is_empty() {
            // The model knows no path of a file.
            true => Err(Errno::ESTALE.into()),
            false => self.walk_as(Some(caller), handle, path),
        }
    }

    fn lookup(&mut self, caller: Option<&Caller>, parent: Handle, name: &[u8]) -> Done<Attr> {
        let mut inodes = self.with(parent)?;
        directory(&mut inodes, caller, parent, X)?;
        let inode = child(&mut inodes, parent, name)?;
        let attr = inodes.attr(inode);
        drop(inodes);
        self.meet(Ok(attr))
    }

    fn attr(&mut self, handle: Handle) -> Done<Attr> {
        let mount = self.mount.clone();
        let mut inodes = self.with(handle)?;
        inodes.of(handle)?;
        inodes.look(handle.inode, mount.as_ref());
        let attr = inodes.attr(handle.inode);
        Ok(mount.map_or(attr, |mount| mount.believed_attr(attr, inodes.wall_ns)))
    }

    fn create(
        &mut self,
        caller: Option<&Caller>,
        parent: Handle,
        name: &[u8],
        mode: u32,
    ) -> Done<Attr> {
        self.make(caller, parent, name, REGULAR | mode & 0o7777, |_| {})
    }

    fn mkdir(
        &mut self,
        caller: Option<&Caller>,
        parent: Handle,
        name: &[u8],
        mode: u32,
    ) -> Done<Attr> {
        self.make(caller, parent, name, DIRECTORY | mode & 0o7777, |_| {})
    }

    fn mknod(
        &mut self,
        caller: Option<&Caller>,
        parent: Handle,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Done<Attr> {
        let mode = if mode & KIND == 0 {
            mode | REGULAR
        } else {
            mode
        };
        self.make(caller, parent, name, mode, |inode| inode.attr.rdev = rdev)
    }

    fn symlink(
        &mut self,
        caller: Option<&Caller>,
        parent: Handle,
        name: &[u8],
        target: &[u8],
    ) -> Done<Attr> {
        self.make(caller, parent, name, LINK | 0o777, |inode| {
            inode.target = target.into()
        })
    }

    fn link(
        &mut self,
        caller: Option<&Caller>,
        handle: Handle,
        parent: Handle,
        name: &[u8],
    ) -> Done<Attr> {
        drop(self.with(handle)?);
        let mut inodes = self.with(parent)?;
        directory(&mut inodes, caller, parent, W | X)?;
        if inodes.of(parent)?.entries.contains_key(name) {
            return Err(Errno::EEXIST.into());
        }
        if inodes.of(handle)?.attr.mode & KIND == DIRECTORY {
            return Err(Errno::EPERM.into());
        }
        inodes.of(handle)?.attr.nlink += 1;
        inodes.of(parent)?.entries.insert(name.into(), handle.inode);
        touch(&mut inodes, parent)?;
        Ok(inodes.attr(handle.inode))
    }

    fn unlink(&mut self, caller: Option<&Caller>, parent: Handle, name: &[u8]) -> Done<()> {
        self.remove(caller, parent, name, false)
    }

    fn rmdir(&mut self, caller: Option<&Caller>, parent: Handle, name: &[u8]) -> Done<()> {
        self.remove(caller, parent, name, true)
    }

    fn rename(
        &mut self,
        caller: Option<&Caller>,
        from: (Handle, &[u8]),
        to: (Handle, &[u8]),
        mode: RenameMode,
    ) -> Done<()> {
        drop(self.with(from.0)?);
        let mut inodes = self.with(to.0)?;
        directory(&mut inodes, caller, from.0, W | X)?;
        directory(&mut inodes, caller, to.0, W | X)?;
        let source = child(&mut inodes, from.0, from.1)?;
        let target = child(&mut inodes, to.0, to.1).ok();
        let is_directory = |inode: u64| inodes.inodes[&inode].attr.mode & KIND == DIRECTORY;
        let (moves_directory, over) = (is_directory(source), target.map(is_directory));
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST.into()),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT.into()),
            (_, Some(target)) if target == source => return Ok(()),
            _ => {}
        }
        let within = |folder: Handle, moved| lies_in(&inodes, folder.inode, moved);
        let back = target.filter(|_| mode == RenameMode::Exchange);
        if within(to.0, source) || back.is_some_and(|moved| within(from.0, moved)) {
            return Err(Errno::EINVAL.into());
        }
        if let (RenameMode::Replace | RenameMode::Whiteout, Some(target)) = (mode, target) {
            match (moves_directory, over == Some(true)) {
                (false, true) => return Err(Errno::EISDIR.into()),
                (true, false) => return Err(Errno::ENOTDIR.into()),
                (true, true) if !inodes.inodes[&target].entries.is_empty() => {
                    return Err(Errno::ENOTEMPTY.into());
                }
                _ => {}
            }
        }
        inodes.of(from.0)?.entries.remove(from.1);
        inodes.of(to.0)?.entries.insert(to.1.into(), source);
        if moves_directory {
            inodes.of(from.0)?.attr.nlink -= 1;
            inodes.of(to.0)?.attr.nlink += 1;
        }
        match (mode, target) {
            (RenameMode::Exchange, Some(target)) => {
                inodes.of(from.0)?.entries.insert(from.1.into(), target);
                if over == Some(true) {
                    inodes.of(to.0)?.attr.nlink -= 1;
                    inodes.of(from.0)?.attr.nlink += 1;
                }
            }
            (_, Some(target)) => lose_name(&mut inodes, to.0, target)?,
            _ => {}
        }
        white_out(&mut inodes, caller, from, mode)?;
        Ok(touch(&mut inodes, to.0)?)
    }

    fn readdir(
        &mut self,
        caller: Option<&Caller>,
        handle: Handle,
        cookie: u64,
        bytes_max: u32,
        xattrs: Option<&[Name]>,
    ) -> Done<Listing> {
        let mut inodes = self.with(handle)?;
        let listing = list(&mut inodes, caller, handle, cookie, bytes_max, xattrs)?;
        drop(inodes);
        self.known.extend(
            listing
                .entries
                .iter()
                .filter_map(|it| Some(it.attr?.handle)),
        );
        Ok(listing)
    }

    fn set_attr(&mut self, caller: Option<&Caller>, handle: Handle, set: &SetAttr) -> Done<Attr> {
        let mut inodes = self.with(handle)?;
        let attr = inodes.of(handle)?.attr;
        let owns = owns(caller, &attr);
        if !owns && (set.mode.is_some() || set.uid.is_some() || set.gid.is_some()) {
            return Err(Errno::EPERM.into());
        }
        if set.size.is_some() && !owns {
            may(caller, &attr, W)?;
        }
        inodes.effects += 1;
        let now = inodes.tick();
        if set.size.is_some() {
            // The back end itself does it, after it has got what was written.
            inodes.stable(handle.inode);
        }
        let inode = inodes.of(handle)?;
        if let Some(size) = set.size {
            inode.data.truncate(size);
            inode.attr.mtime_ns = now;
        }
        let attr = &mut inode.attr;
        attr.ctime_ns = now;
        if let Some(mode) = set.mode {
            attr.mode = attr.mode & KIND | mode & 0o7777;
        }
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        for (time, wanted) in [
            (&mut attr.atime_ns, set.atime),
            (&mut attr.mtime_ns, set.mtime),
        ] {
            match wanted {
                None => {}
                Some(SetTime::At(ns)) => *time = ns,
                Some(SetTime::Now) => *time = now,
            }
        }
        drop(inodes);
        self.changed(handle);
        let inodes = self.disk.lock();
        Ok(inodes.attr(handle.inode))
    }

    fn opened(
        &mut self,
        caller: Option<&Caller>,
        handle: Handle,
        read: bool,
        write: bool,
    ) -> Done<Attr> {
        let process = self.process;
        if let Some(mount) = &self.mount {
            mount.opened(handle);
        }
        let mut inodes = self.with(handle)?;
        let attr = inodes.of(handle)?.attr;
        if caller.is_none_or(|caller| caller.uid != attr.uid) {
            may(
                caller,
                &attr,
                (u32::from(read) * R) | (u32::from(write) * W),
            )?;
        }
        inodes.of(handle)?.open.insert(process);
        Ok(inodes.attr(handle.inode))
    }

    fn closed(&mut self, handle: Handle) -> Done<()> {
        let process = self.process;
        let mut inodes = self.with(handle)?;
        inodes.of(handle)?.open.remove(&process);
        inodes.let_go(handle.inode);
        Ok(())
    }

    fn readlink(&mut self, _caller: Option<&Caller>, handle: Handle) -> Done<Box<[u8]>> {
        let mut inodes = self.with(handle)?;
        let inode = inodes.of(handle)?;
        match inode.attr.mode & KIND {
            LINK => Ok(inode.target.clone()),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    fn access(&mut self, caller: Option<&Caller>, handle: Handle, mask: u32) -> Done<()> {
        let mut inodes = self.with(handle)?;
        Ok(may(caller, &inodes.of(handle)?.attr, mask)?)
    }

    fn fsync(&mut self, handle: Handle, _data_only: bool) -> Done<()> {
        let mut inodes = self.with(handle)?;
        inodes.of(handle)?;
        inodes.stable(handle.inode);
        Ok(())
    }

    fn statfs(&mut self) -> Done<Statfs> {
        let files = self.call()?.inodes.len() as u64;
        Ok(Statfs {
            files,
            block_size: 4096,
            name_max: 255,
            ..Statfs::default()
        })
    }

    fn fallocate(&mut self, handle: Handle, mode: u32, offset: u64, len: u64) -> Done<()> {
        const KEEP_SIZE: u32 = 1;
        const PUNCH_HOLE: u32 = 2;
        const ZERO_RANGE: u32 = 16;
        let mut inodes = self.with(handle)?;
        inodes.stable(handle.inode);
        let data = &mut inodes.of(handle)?.data;
        let size = data.size.max(offset + len);
        match mode {
            0 => data.size = size,
            KEEP_SIZE => {}
            _ if mode & !KEEP_SIZE == ZERO_RANGE => {
                data.punch(offset, len);
                if mode & KEEP_SIZE == 0 {
                    data.size = size;
                }
            }
            _ if mode == PUNCH_HOLE | KEEP_SIZE => data.punch(offset, len),
            _ => return Err(Errno::EOPNOTSUPP.into()),
        }
        Ok(touch(&mut inodes, handle)?)
    }

    fn copy_range(&mut self, from: (Handle, u64), to: (Handle, u64), len: u64) -> Done<u64> {
        drop(self.with(from.0)?);
        let mount = self.mount.clone();
        let mut inodes = self.with(to.0)?;
        inodes.look(from.0.inode, mount.as_ref());
        inodes.write(to.0.inode, mount.as_ref());
        let bytes = inodes.of(from.0)?.data.read(from.1, len);
        inodes.of(to.0)?.data.write(to.1, &bytes);
        touch(&mut inodes, to.0)?;
        drop(inodes);
        self.changed(to.0);
        Ok(bytes.len() as u64)
    }

    fn seek(&mut self, handle: Handle, offset: u64, whence: u32) -> Done<u64> {
        const ENXIO: Errno = Errno(6);
        let mut inodes = self.with(handle)?;
        let found = inodes.of(handle)?.data.seek(offset, whence == 3);
        Ok(found.ok_or(ENXIO)?)
    }

    fn getxattr(
        &mut self,
        caller: Option<&Caller>,
        handle: Handle,
        name: &[u8],
    ) -> Done<Box<[u8]>> {
        let mut inodes = self.with(handle)?;
        let inode = inodes.of(handle)?;
        may(caller, &inode.attr, R)?;
        Ok(inode.xattrs.get(name).cloned().ok_or(Errno::ENODATA)?)
    }

    fn setxattr(
        &mut self,
        caller: Option<&Caller>,
        handle: Handle,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Done<()> {
        let mut inodes = self.with(handle)?;
        let inode = inodes.of(handle)?;
        may(caller, &inode.attr, W)?;
        match (flags, inode.xattrs.contains_key(name)) {
            (1, true) => return Err(Errno::EEXIST.into()),
            (2, false) => return Err(Errno::ENODATA.into()),
            _ => {}
        }
        inode.xattrs.insert(name.into(), value.into());
        inodes.effects += 1;
        Ok(())
    }

    fn listxattr(&mut self, _caller: Option<&Caller>, handle: Handle) -> Done<Box<[u8]>> {
        let mut inodes = self.with(handle)?;
        let names = inodes.of(handle)?.xattrs.keys();
        let names = names.flat_map(|name| name.iter().copied().chain([0]));
        Ok(names.collect::<Vec<u8>>().into())
    }

    fn removexattr(&mut self, caller: Option<&Caller>, handle: Handle, name: &[u8]) -> Done<()> {
        let mut inodes = self.with(handle)?;
        let inode = inodes.of(handle)?;
        may(caller, &inode.attr, W)?;
        inode.xattrs.remove(name).ok_or(Errno::ENODATA)?;
        inodes.effects += 1;
        Ok(())
    }

    fn read_at(&mut self, handle: Handle, offset: u64, len: u64) -> Done<Vec<u8>> {
        let mount = self.mount.clone();
        let mut inodes = self.with(handle)?;
        inodes.look(handle.inode, mount.as_ref());
        let inode = inodes.of(handle)?;
        match (inode.attr.mode & KIND, mount) {
            (DIRECTORY, _) => Err(Errno::EISDIR.into()),
            (_, None) => Ok(inode.data.read(offset, len)),
            (_, Some(mount)) => Ok(mount.read(&inode.data, &inode.attr, offset, len)),
        }
    }

    fn write_at(&mut self, handle: Handle, offset: u64, bytes: &[u8]) -> Done<u64> {
        let mount = self.mount.clone();
        if self.switch.is_killed() && self.switch.tears() {
            let mut inodes = self.disk.lock();
            inodes.tear(handle, offset, bytes, mount.as_ref())?;
        }
        let appends = self.end.take() == Some((handle, offset));
        let mut inodes = self.with(handle)?;
        if inodes.of(handle)?.attr.mode & KIND == DIRECTORY {
            return Err(Errno::EISDIR.into());
        }
        let written = inodes.take_room((handle, offset), bytes, appends)?;
        inodes.put(handle, offset, &bytes[..written], mount.as_ref())?;
        touch(&mut inodes, handle)?;
        drop(inodes);
        self.wrote(handle, offset + written as u64);
        Ok(written as u64)
    }

    fn size(&mut self, handle: Handle) -> Done<u64> {
        self.disk.lock().see()?;
        let size = self.attr(handle)?.size;
        self.end = Some((handle, size));
        if let Some(offset) = self.doubted.get(&handle) {
            let mut inodes = self.disk.lock();
            let found = inodes.of(handle)?.data.read(*offset, size);
            inodes.align(handle, *offset, &found)?;
            inodes.align(handle, size, &[])?;
            self.doubted.remove(&handle);
        }
        Ok(size)
    }

    fn doubt_end(&mut self, handle: Handle, (offset, _): (u64, u64)) {
        self.doubted.insert(handle, offset);
    }

    fn copies_may_differ(&self) -> bool {
        self.disk.lock().copies_may_differ()
    }

    fn align_copies(&mut self, handle: Handle, offset: u64, found: &[u8]) -> Done<()> {
        Ok(self.with(handle)?.align(handle, offset, found)?)
    }

    fn wall_ns(&mut self) -> i64 {
        self.disk.lock().wall_ns
    }
}
