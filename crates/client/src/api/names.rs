//! Calls on names and directories.

use super::{Client, Context, Errno};
use crate::payload::Payload;
use crate::wire::{Attr, Handle, Listing, Op, Outcome, READDIR_MAX, RenameMode};

impl Client {
    /// Attributes of the file with this name.
    pub fn lookup(&self, ctx: &Context, parent: Handle, name: &[u8]) -> Result<Attr, Errno> {
        let name = name.into();
        self.call_attr(ctx, Op::Lookup { parent, name })
    }

    /// Creates a regular file, or finds an existing one unless `exclusive`.
    pub fn create(
        &self,
        ctx: &Context,
        parent: Handle,
        name: &[u8],
        mode: u32,
        exclusive: bool,
    ) -> Result<Attr, Errno> {
        let name = name.into();
        self.call_attr(
            ctx,
            Op::Create {
                parent,
                name,
                mode,
                exclusive,
            },
        )
    }

    /// Creates a directory.
    pub fn mkdir(
        &self,
        ctx: &Context,
        parent: Handle,
        name: &[u8],
        mode: u32,
    ) -> Result<Attr, Errno> {
        let name = name.into();
        self.call_attr(ctx, Op::Mkdir { parent, name, mode })
    }

    /// Creates a fifo, socket, device or regular file, by the type bits of `mode`.
    pub fn mknod(
        &self,
        ctx: &Context,
        parent: Handle,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Attr, Errno> {
        let name = name.into();
        self.call_attr(
            ctx,
            Op::Mknod {
                parent,
                name,
                mode,
                rdev,
            },
        )
    }

    /// Creates a symbolic link to `target`.
    pub fn symlink(
        &self,
        ctx: &Context,
        parent: Handle,
        name: &[u8],
        target: &[u8],
    ) -> Result<Attr, Errno> {
        let (name, target) = (name.into(), target.into());
        self.call_attr(
            ctx,
            Op::Symlink {
                parent,
                name,
                target,
            },
        )
    }

    /// Gives a file another name.
    pub fn link(
        &self,
        ctx: &Context,
        handle: Handle,
        parent: Handle,
        name: &[u8],
    ) -> Result<Attr, Errno> {
        let name = name.into();
        self.call_attr(
            ctx,
            Op::Link {
                handle,
                parent,
                name,
            },
        )
    }

    /// Removes a name of a file that is no directory.
    pub fn unlink(&self, ctx: &Context, parent: Handle, name: &[u8]) -> Result<(), Errno> {
        let name = name.into();
        self.call_done(ctx, Op::Unlink { parent, name })
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, ctx: &Context, parent: Handle, name: &[u8]) -> Result<(), Errno> {
        let name = name.into();
        self.call_done(ctx, Op::Rmdir { parent, name })
    }

    /// Moves a name.
    pub fn rename(
        &self,
        ctx: &Context,
        from: (Handle, &[u8]),
        to: (Handle, &[u8]),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let op = Op::Rename {
            parent: from.0,
            name: from.1.into(),
            new_parent: to.0,
            new_name: to.1.into(),
            mode,
        };
        self.call_done(ctx, op)
    }

    /// The target of a symbolic link.
    pub fn readlink(&self, ctx: &Context, handle: Handle) -> Result<Vec<u8>, Errno> {
        self.call_text(ctx, Op::Readlink { handle })
    }

    /// Some entries of a directory after the one with `cookie` (0: from the start), with their
    /// attributes if `plus`.
    pub fn readdir(
        &self,
        ctx: &Context,
        handle: Handle,
        cookie: u64,
        bytes_max: u32,
        plus: bool,
    ) -> Result<Listing, Errno> {
        let bytes_max = bytes_max.min(READDIR_MAX);
        let op = Op::Readdir {
            handle,
            cookie,
            bytes_max,
            plus,
            xattrs: Vec::new(),
        };
        match self.call(ctx, op, Payload::new())?.outcome {
            Outcome::Entries(listing) => Ok(listing),
            _ => Err(Errno::IO),
        }
    }
}
