//! Operations on names: each takes the handle of a directory and one path component.

use super::PosixFiles;
use super::handle_table::Known;
use super::orphans::Removing;
use super::place::Trail;
use super::sys::{self, Done, attr_of, check_name, handle_of, no};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use std::os::fd::AsFd;
use std::sync::Arc;
use tidegate_forward::{Access, Errno};
use tidegate_wire::{Attr, Caller, Handle, RenameMode, WALK_MAX};

/// The mask of access(2) for a directory whose names are to change.
const WRITE_AND_SEARCH: u32 = 3;

impl PosixFiles {
    pub(super) fn walk_path(&self, handle: Handle, path: &[u8]) -> Done<Attr> {
        match self.export.known(handle) {
            Ok(known) => return self.attr_of_known(&known),
            Err(Access::UnknownHandle) => {}
            Err(error) => return Err(error),
        }
        let refused = match self.walk(None, handle, path) {
            Ok(attr) => return Ok(attr),
            Err(refused) => refused,
        };
        if let Some(hidden) = self.reach_hidden(handle) {
            return Ok(hidden);
        }
        let to = self.export.renamed_to(handle)?;
        let elsewhere = to.and_then(|to| self.walk(None, handle, &to).ok());
        elsewhere.ok_or_else(|| stale(refused))
    }

    /// Removes notes of renames that are not needed any more, of these seats' files and
    /// directories. Ends early where `goes_on` says so.
    pub(super) fn sweep_notes(&self, seats: &[u16], goes_on: &mut dyn FnMut() -> bool) -> Done<()> {
        if seats.is_empty() {
            return Ok(());
        }
        let export = &self.export;
        let is_there = |handle: Handle, trail: Trail| match export.follow(handle, trail) {
            Ok(Some(found)) => {
                sys::stat(found).is_ok_and(|stat| attr_of(&stat).mode & sys::KIND == sys::DIRECTORY)
            }
            Ok(None) => false,
            // Not to be told now.
            Err(_) => true,
        };
        for note in export.with_room(|| export.opens.list_moves())? {
            if !goes_on() {
                break;
            }
            let note = note.map_err(no)?;
            export
                .opens
                .sweep_moved(&note, seats, &self.permit, is_there)?;
        }
        Ok(())
    }

    /// Leaves a note about a file that was just renamed to `name`, for clients that have it open.
    fn note_move(&self, parent: &Known, name: &[u8]) {
        let Ok(stat) = sys::stat_at(&parent.path, name, AtFlags::empty()) else {
            return;
        };
        let attr = attr_of(&stat);
        let Some(path) = self.export.path_below(parent, name) else {
            return;
        };
        let trail = || {
            let depth = path.iter().filter(|byte| **byte == b'/').count();
            Trail {
                path: path.clone(),
                dirs: self.export.dirs_down_to(parent, depth),
            }
        };
        let kind = attr.mode & sys::KIND;
        let opens = &self.export.opens;
        opens.moved(attr.handle, kind, trail, &self.permit);
        self.export.moved(attr.handle, &path);
    }

    /// Walks down a path, as the caller if there is one. ESTALE if it ends at another file.
    pub(super) fn walk(&self, caller: Option<&Caller>, handle: Handle, path: &[u8]) -> Done<Attr> {
        if path.len() > WALK_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        let mut components = path.split(|&b| b == b'/');
        let first = components.next().unwrap_or_default();
        check_name(first)?;
        components.try_for_each(check_name)?;
        if self.export.is_hidden(&self.export.root, first) {
            return Err(Errno::ENOENT.into());
        }
        let acting = caller.map(|it| self.export.own.act_as(Some(it)));
        let acting = acting.transpose()?;
        let fd = self.export.open_below(&self.export.root.path, path)?;
        drop(acting);
        let mut attr = attr_of(&self.export.stat(&fd).map_err(no)?);
        if attr.handle != handle {
            return Err(Errno::ESTALE.into());
        }
        let known = self.export.adopt_as(fd, &attr)?;
        self.leave_out_hidden_name_of(&known, &mut attr);
        Ok(attr)
    }

    /// Finds a file that has lost its last name but is open somewhere.
    pub(super) fn reach_hidden(&self, handle: Handle) -> Option<Attr> {
        if !self.export.opens.has_hidden_name(handle) {
            return None;
        }
        let name = super::orphans::hidden_name(handle);
        let orphans = self.export.opens.orphans();
        let fd = self
            .export
            .open_at(orphans, name.as_str(), OFlags::PATH, 0)
            .ok()?;
        let (known, _) = self.export.adopt(fd).ok()?;
        if known.handle != handle {
            return None;
        }
        let mut attr = self.attr_of_known(&known).ok()?;
        if !known.is_open() {
            attr.nlink = attr.nlink.saturating_sub(1);
        }
        Some(attr)
    }

    pub(super) fn lookup_name(
        &self,
        caller: Option<&Caller>,
        parent: Handle,
        name: &[u8],
    ) -> Done<Attr> {
        check_name(name)?;
        let parent = self.export.known(parent)?;
        if self.export.is_hidden(&parent, name) {
            return Err(Errno::ENOENT.into());
        }
        let acting = self.export.own.act_as(caller)?;
        let (_, mut attr) = self.look_at(&parent.path, name)?;
        drop(acting);
        self.leave_out_hidden_name(&mut attr);
        Ok(attr)
    }

    /// Makes the file of a name known. The thread acts for whoever looks.
    pub(super) fn look_at(&self, parent: impl AsFd, name: &[u8]) -> Done<(Arc<Known>, Attr)> {
        let stat = self.export.stat_at(&parent, name).map_err(no)?;
        let attr = attr_of(&stat);
        let known = self.export.is_ours(&stat);
        match known.then(|| self.export.table.find(attr.handle)).flatten() {
            Some(known) => Ok((known, attr)),
            None => {
                let fd = self.export.open_at(&parent, name, OFlags::PATH, 0)?;
                self.export.adopt(fd)
            }
        }
    }

    pub(super) fn create_file(
        &self,
        caller: Option<&Caller>,
        parent: Handle,
        name: &[u8],
        mode: u32,
    ) -> Done<Attr> {
        let parent = self.place(parent, name)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | self.export.bypass.flags();
        let acting = self.export.own.act_as(caller)?;
        self.permit.begin()?;
        let data = self.export.open_at(&parent.path, name, flags, mode)?;
        drop(acting);
        self.export.faults.effect("create");
        let path = self.export.reopen(&data, OFlags::PATH);
        let (known, attr) = path
            .and_then(|path| self.export.adopt(path))
            .map_err(made_and_lost)?;
        if self.serves(known.handle) {
            self.export.keep_data_fd(&known, data)?;
        }
        Ok(attr)
    }

    pub(super) fn make_directory(
        &self,
        caller: Option<&Caller>,
        parent: Handle,
        name: &[u8],
        mode: u32,
    ) -> Done<Attr> {
        let parent = self.place(parent, name)?;
        let _acting = self.export.own.act_as(caller)?;
        self.permit.begin()?;
        // mkdir heeds the sticky bit; the set-id bits of directories are set by chmod only.
        rustix::fs::mkdirat(&parent.path, name, Mode::from_raw_mode(mode & 0o7777)).map_err(no)?;
        self.export.faults.effect("mkdir");
        self.adopt_new(&parent, name)
    }

    pub(super) fn make_node(
        &self,
        caller: Option<&Caller>,
        parent: Handle,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Done<Attr> {
        let parent = self.place(parent, name)?;
        let kind = match mode & sys::KIND {
            0 => FileType::RegularFile,
            kind => FileType::from_raw_mode(kind),
        };
        if matches!(
            kind,
            FileType::Directory | FileType::Symlink | FileType::Unknown
        ) {
            return Err(Errno::EINVAL.into());
        }
        let _acting = self.export.own.act_as(caller)?;
        let mode = Mode::from_raw_mode(mode & 0o7777);
        self.permit.begin()?;
        rustix::fs::mknodat(&parent.path, name, kind, mode, sys::decode_device(rdev))
            .map_err(no)?;
        self.export.faults.effect("mknod");
        self.adopt_new(&parent, name)
    }

    pub(super) fn make_symlink(
        &self,
        caller: Option<&Caller>,
        parent: Handle,
        name: &[u8],
        target: &[u8],
    ) -> Done<Attr> {
        let parent = self.place(parent, name)?;
        let _acting = self.export.own.act_as(caller)?;
        self.permit.begin()?;
        rustix::fs::symlinkat(target, &parent.path, name).map_err(no)?;
        self.export.faults.effect("symlink");
        self.adopt_new(&parent, name)
    }

    pub(super) fn link_file(
        &self,
        caller: Option<&Caller>,
        handle: Handle,
        parent: Handle,
        name: &[u8],
    ) -> Done<Attr> {
        let known = self.export.known(handle)?;
        let parent = self.place(parent, name)?;
        // As on any file system, what has lost its last name cannot get another one.
        if self.attr_of_known(&known)?.nlink == 0 {
            return Err(Errno::ENOENT.into());
        }
        let acting = self.export.own.act_as(caller)?;
        let from = sys::proc_path(&known.path);
        self.permit.begin()?;
        rustix::fs::linkat(CWD, from, &parent.path, name, AtFlags::SYMLINK_FOLLOW).map_err(no)?;
        drop(acting);
        self.export.faults.effect("link");
        self.attr_of_known(&known)
    }

    pub(super) fn unlink_name(
        &self,
        caller: Option<&Caller>,
        parent: Handle,
        name: &[u8],
    ) -> Done<()> {
        check_name(name)?;
        let parent = self.export.known(parent)?;
        if self.export.is_hidden(&parent, name) {
            return Err(Errno::ENOENT.into());
        }
        let remove = || {
            self.permit.begin()?;
            rustix::fs::unlinkat(&parent.path, name, AtFlags::empty()).map_err(no)
        };
        self.remove_name(caller, &parent, name, || None, remove)?;
        self.export.faults.effect("unlink");
        Ok(())
    }

    pub(super) fn remove_directory(
        &self,
        caller: Option<&Caller>,
        parent: Handle,
        name: &[u8],
    ) -> Done<()> {
        check_name(name)?;
        let parent = self.export.known(parent)?;
        if self.export.is_hidden(&parent, name) {
            return Err(Errno::ENOENT.into());
        }
        let _acting = self.export.own.act_as(caller)?;
        self.permit.begin()?;
        rustix::fs::unlinkat(&parent.path, name, AtFlags::REMOVEDIR).map_err(no)?;
        self.export.faults.effect("rmdir");
        Ok(())
    }

    pub(super) fn rename_name(
        &self,
        caller: Option<&Caller>,
        (from, name): (Handle, &[u8]),
        (to, new_name): (Handle, &[u8]),
        mode: RenameMode,
    ) -> Done<()> {
        check_name(name)?;
        let from = self.export.known(from)?;
        if self.export.is_hidden(&from, name) {
            return Err(Errno::ENOENT.into());
        }
        let to = self.place(to, new_name)?;
        let flags = match mode {
            RenameMode::Replace => RenameFlags::empty(),
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
            RenameMode::Whiteout => RenameFlags::WHITEOUT,
        };
        let rename = || {
            self.permit.begin()?;
            let renamed = rustix::fs::renameat_with(&from.path, name, &to.path, new_name, flags);
            renamed.map_err(no)
        };
        if matches!(mode, RenameMode::Replace | RenameMode::Whiteout) {
            let moved = || {
                let stat = sys::stat_at(&from.path, name, AtFlags::empty());
                stat.as_ref().map(handle_of).ok()
            };
            self.remove_name(caller, &to, new_name, moved, rename)?;
        } else {
            let _acting = self.export.own.act_as(caller)?;
            rename()?;
        }
        self.note_move(&to, new_name);
        if mode == RenameMode::Exchange {
            self.note_move(&from, name);
        }
        self.export.faults.effect("rename");
        Ok(())
    }

    /// Runs `remove`, which removes `name` from a file, as the caller. A file that may be open
    /// keeps a hidden name. A file that is not open and has no other name is dropped from the known
    /// files. Does nothing to a name of the file `spared`, because a rename onto another name of
    /// the same file has no effect.
    fn remove_name(
        &self,
        caller: Option<&Caller>,
        parent: &Known,
        name: &[u8],
        spared: impl FnOnce() -> Option<Handle>,
        remove: impl Fn() -> Done<()>,
    ) -> Done<()> {
        let file = match self.export.open_at(&parent.path, name, OFlags::PATH, 0) {
            Ok(fd) => self.export.stat(&fd).ok().map(|stat| (fd, attr_of(&stat))),
            Err(_) => None,
        };
        let file = file.filter(|(_, attr)| {
            attr.mode & sys::KIND != sys::DIRECTORY && Some(attr.handle) != spared()
        });
        let Some((fd, attr)) = file else {
            let _acting = self.export.own.act_as(caller)?;
            return remove();
        };
        let regular = attr.mode & sys::KIND == sys::REGULAR;
        let removing = match regular {
            true => {
                let opens = &self.export.opens;
                let may = || self.may_remove(caller, parent, &attr);
                Some(opens.removing(attr.handle, fd.as_fd(), &self.permit, may)?)
            }
            false => None,
        };
        let kept = removing.as_ref().is_some_and(Removing::is_kept);
        let open = removing.as_ref().is_some_and(Removing::may_be_open);
        let held = match regular && !kept {
            // From now on only a descriptor may lead to it.
            true => self.export.table.hold(attr.handle, sys::REGULAR, fd),
            false => {
                drop(fd);
                None
            }
        };
        let acting = self.export.own.act_as(caller);
        let removed = acting.and_then(|_acting| remove());
        drop(held);
        if let Some(mut removing) = removing {
            match removed {
                Ok(()) => removing.done(attr.nlink),
                Err(_) => removing.undo(),
            }
        }
        match removed {
            Ok(()) if attr.nlink == 1 && !kept => self.export.forget(attr.handle),
            Ok(()) => self.forget_if_gone(attr.handle),
            Err(_) => {}
        }
        if removed.is_ok() && !open {
            self.export.opens.gone(attr.handle);
        }
        removed
    }

    /// Whether the caller may remove a name of a file from a directory, as unlink(2) says. A hidden
    /// name changes the file's ctime, so none is made for a removal that will be refused.
    fn may_remove(&self, caller: Option<&Caller>, parent: &Known, attr: &Attr) -> Done<()> {
        let uid = self.export.own.effective_uid(caller);
        if uid == 0 {
            return Ok(());
        }
        self.check_access(caller, parent, WRITE_AND_SEARCH)?;
        let stat = self.export.stat(&parent.path).map_err(no)?;
        let sticky = u32::from(stat.stx_mode) & libc::S_ISVTX != 0;
        match sticky && stat.stx_uid != uid && attr.uid != uid {
            true => Err(Errno::EPERM.into()),
            false => Ok(()),
        }
    }

    /// Closes descriptors that would keep a file without names from being freed.
    fn forget_if_gone(&self, handle: Handle) {
        if let Some(known) = self.export.table.find(handle)
            && self
                .export
                .stat(&known.path)
                .is_ok_and(|stat| stat.stx_nlink == 0)
        {
            self.export.forget(handle);
        }
    }

    /// Whether the seat that the call is for also serves the file's beginning. If it does not,
    /// another forwarder is about to write the file. A descriptor that can write it here would then
    /// take from that forwarder what a back end grants to a single writer, and would delay its
    /// calls.
    fn serves(&self, handle: Handle) -> bool {
        let seat = self.permit.seat();
        seat.is_none_or(|seat| seat == self.seat_of(handle))
    }

    /// The directory in which a name is to appear.
    fn place(&self, parent: Handle, name: &[u8]) -> Done<Arc<Known>> {
        check_name(name)?;
        let parent = self.export.known(parent)?;
        match self.export.is_hidden(&parent, name) {
            true => Err(Errno::EPERM.into()),
            false => Ok(parent),
        }
    }

    /// Adds a file that was just created under a name to the known files.
    fn adopt_new(&self, parent: &Known, name: &[u8]) -> Done<Attr> {
        let fd = self.export.open_at(&parent.path, name, OFlags::PATH, 0);
        let made = fd.and_then(|fd| self.export.adopt(fd));
        Ok(made.map_err(made_and_lost)?.1)
    }
}

/// What a refusal on a path says of the handle whose path it was.
pub(super) fn stale(refused: Access) -> Access {
    match refused {
        Access::Errno(Errno::ENOENT | Errno::ENOTDIR | Errno::ENAMETOOLONG) => Errno::ESTALE.into(),
        other => other,
    }
}

/// The error of a call that has created a file and then lost it. It must not say that the file was
/// not created, as ESTALE does: upon ESTALE kernels try again and find the file in the way.
fn made_and_lost(access: Access) -> Access {
    match access {
        Access::Errno(Errno::ESTALE) => Errno::EIO.into(),
        access => access,
    }
}
