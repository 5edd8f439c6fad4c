//! Finds files for a caller who must be able to reach them himself: every directory on the way is
//! searched with the caller's ids, so that he learns no more than on a local file system.

use super::PosixFiles;
use super::sys::{Done, handle_of, no};
use rustix::fs::{AtFlags, OFlags};
use std::os::fd::{AsFd, OwnedFd};
use tidegate_forward::{Access, Errno};
use tidegate_wire::{Attr, Caller, Handle, PATH_MAX};

impl PosixFiles {
    /// Walks to a file along a path as the caller. An empty path stands for the one by which the
    /// kernel knows the file now; the caller must then be allowed to list each directory of it, and
    /// not only to pass through.
    pub(super) fn reach_as(&self, caller: &Caller, handle: Handle, path: &[u8]) -> Done<Attr> {
        if path.is_empty() {
            return self.find_as(caller, handle);
        }
        let refused = match self.walk(Some(caller), handle, path) {
            Ok(attr) => return Ok(attr),
            Err(refused) => refused,
        };
        let to = self.export.renamed_to(handle)?;
        let elsewhere = || self.walk(Some(caller), handle, &to?).ok();
        // A file without names has no directories. Its owner may have it open.
        let own = || {
            let hidden = self.reach_hidden(handle)?;
            (hidden.uid == caller.uid).then_some(hidden)
        };
        let found = elsewhere().or_else(own);
        found.ok_or_else(|| super::name_calls::stale(refused))
    }

    fn find_as(&self, caller: &Caller, handle: Handle) -> Done<Attr> {
        let known = self.export.known(handle)?;
        let path = self.export.path_of(&known.path).ok_or(Errno::ESTALE)?;
        if path.len() >= PATH_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        if !path.is_empty() {
            self.list_down(caller, handle, &path)?;
        }
        self.attr_of_known(&known)
    }

    /// Walks down a path through directories that the caller may list. ESTALE if it ends at another
    /// file.
    fn list_down(&self, caller: &Caller, handle: Handle, path: &[u8]) -> Done<()> {
        let mut names = path.split(|&byte| byte == b'/').peekable();
        let hidden = |name: &&[u8]| self.export.is_hidden(&self.export.root, name);
        if names.peek().is_some_and(hidden) {
            return Err(Errno::ENOENT.into());
        }
        let _acting = self.export.own.act_as(Some(caller))?;
        let may_list = rustix::fs::Access::READ_OK | rustix::fs::Access::EXEC_OK;
        let mut at: Option<OwnedFd> = None;
        for name in names {
            let dir = match &at {
                Some(dir) => dir.as_fd(),
                None => self.export.root.path.as_fd(),
            };
            rustix::fs::accessat(dir, c".", may_list, AtFlags::EACCESS).map_err(no)?;
            at = Some(self.export.open_at(dir, name, OFlags::PATH, 0)?);
        }
        let found = at.ok_or(Access::from(Errno::ESTALE))?;
        let stat = self.export.stat(&found).map_err(no)?;
        match handle_of(&stat) == handle {
            true => Ok(()),
            false => Err(Errno::ESTALE.into()),
        }
    }
}
