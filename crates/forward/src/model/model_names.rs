//! Names of the model file system: how they are made and removed.

use super::disk::{DIRECTORY, KIND, child, directory, lose_name, touch};
use super::disk::{W, X};
use super::model_files::{Done, ModelFiles};
use crate::back_end_files::Errno;
use tidegate_wire::{Attr, Caller, Handle};

impl ModelFiles {
    /// Makes a new file of a kind under a new name.
    pub(super) fn make(
        &mut self,
        caller: Option<&Caller>,
        parent: Handle,
        name: &[u8],
        mode: u32,
        finish: impl FnOnce(&mut super::disk::Inode),
    ) -> Done<Attr> {
        let mut inodes = self.with(parent)?;
        directory(&mut inodes, caller, parent, W | X)?;
        if inodes.of(parent)?.entries.contains_key(name) {
            return Err(Errno::EEXIST.into());
        }
        let inode = inodes.add(caller, mode);
        finish(inodes.inodes.get_mut(&inode).expect("just made"));
        inodes.of(parent)?.entries.insert(name.into(), inode);
        if mode & KIND == DIRECTORY {
            inodes.inodes.get_mut(&inode).expect("just made").attr.nlink = 2;
            inodes.of(parent)?.attr.nlink += 1;
        }
        touch(&mut inodes, parent)?;
        if inodes.copies.is_some() && inodes.room == 0 {
            // It is in one of them.
            return Err(Errno::ENOSPC.into());
        }
        let attr = inodes.attr(inode);
        drop(inodes);
        self.meet(Ok(attr))
    }

    pub(super) fn remove(
        &mut self,
        caller: Option<&Caller>,
        parent: Handle,
        name: &[u8],
        wants_directory: bool,
    ) -> Done<()> {
        let mut inodes = self.with(parent)?;
        directory(&mut inodes, caller, parent, W | X)?;
        let inode = child(&mut inodes, parent, name)?;
        let victim = &inodes.inodes[&inode];
        match (victim.attr.mode & KIND == DIRECTORY, wants_directory) {
            (true, false) => return Err(Errno::EISDIR.into()),
            (false, true) => return Err(Errno::ENOTDIR.into()),
            (true, true) if !victim.entries.is_empty() => return Err(Errno::ENOTEMPTY.into()),
            _ => {}
        }
        inodes.of(parent)?.entries.remove(name);
        lose_name(&mut inodes, parent, inode)?;
        touch(&mut inodes, parent)?;
        Ok(())
    }
}
