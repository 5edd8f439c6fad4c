//! Operations on names, attributes and directories.

use super::directory::OpenDirectory;
use super::{Asked, NEVER, RemoteFiles, answer, convert, done, left};
use crate::Checks;
use crate::fuse::{Entry, Errno, Opened, Operation, ROOT, Reply, SetAttributes};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use tidegate_client::wire::{Attr, Handle, Op, Outcome, RenameMode, SetAttr};

const O_EXCL: u32 = 0o200;
const O_TRUNC: u32 = 0o1000;
const PERMISSIONS: u32 = 0o7777;
/// Masks of access(2).
pub(super) const X_OK: u32 = 1;
pub(super) const W_OK: u32 = 2;
pub(super) const R_OK: u32 = 4;
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const RENAME_WHITEOUT: u32 = 4;

impl RemoteFiles {
    /// Serves requests that are not about an open file.
    pub(super) fn handle_named(&self, asked: &Asked, operation: Operation, reply: Reply) {
        match operation {
            Operation::Lookup { name } => {
                let clears = self.nodes.clears();
                let name = boxed(name);
                let lookup = |parent| Op::Lookup { parent, name };
                let parent = self.handle_of(asked);
                let found = parent.and_then(|it| self.call(asked).lasting_attr(lookup(it)));
                self.answer_found(reply, asked, found, clears);
            }
            Operation::Getattr { .. } => self.answer_getattr(reply, asked),
            Operation::Setattr(set) => answer_attr(reply, self.setattr(asked, &set)),
            Operation::Create { name, mode, flags } => {
                self.answer_create(reply, asked, name, mode, flags);
            }
            Operation::Unlink { name } => {
                done(
                    reply,
                    self.remove(asked, |parent| Op::Unlink {
                        parent,
                        name: boxed(name),
                    }),
                );
            }
            Operation::Rmdir { name } => {
                done(
                    reply,
                    self.remove(asked, |parent| Op::Rmdir {
                        parent,
                        name: boxed(name),
                    }),
                );
            }
            Operation::Rename {
                name,
                new_parent,
                new_name,
                flags,
            } => {
                done(
                    reply,
                    self.rename(asked, name, (new_parent, new_name), flags),
                );
            }
            Operation::Readlink => {
                let target = self.on_file(asked, |handle| Op::Readlink { handle });
                answer(reply, target, |reply, target| reply.bytes(&target));
            }
            Operation::Access { mask } => done(reply, self.access(asked, mask)),
            Operation::Statfs => self.answer_statfs(reply, asked),
            Operation::Opendir { .. } => self.answer_opendir(reply, asked),
            Operation::Readdir(read) => {
                let directory = self.directories.find(read.handle);
                let names = directory.and_then(|directory| directory.list(&self.call(asked), read));
                answer(reply, names, |reply, names| reply.bytes(names.as_bytes()));
            }
            Operation::Releasedir { handle } => {
                self.directories.remove(handle);
                reply.done();
            }
            Operation::Fsyncdir { handle, data_only } => {
                done(reply, self.fsyncdir(asked, handle, data_only));
            }
            other => self.handle_made_or_xattr(asked, other, reply),
        }
    }

    fn handle_made_or_xattr(&self, asked: &Asked, operation: Operation, reply: Reply) {
        let made = match operation {
            Operation::Mkdir { name, mode } => self.in_directory(asked, |parent| Op::Mkdir {
                parent,
                name: boxed(name),
                mode: mode & PERMISSIONS,
            }),
            Operation::Mknod { name, mode, rdev } => self.in_directory(asked, |parent| Op::Mknod {
                parent,
                name: boxed(name),
                mode,
                rdev,
            }),
            Operation::Symlink { name, target } => self.in_directory(asked, |parent| Op::Symlink {
                parent,
                name: boxed(name),
                target: boxed(target),
            }),
            Operation::Link { node, name } => self.nodes.handle(node).and_then(|handle| {
                self.in_directory(asked, |parent| Op::Link {
                    handle,
                    parent,
                    name: boxed(name),
                })
            }),
            other => return self.handle_xattr(asked, other, reply),
        };
        self.answer_entry(reply, asked, made);
    }

    fn handle_xattr(&self, asked: &Asked, operation: Operation, reply: Reply) {
        match operation {
            Operation::Getxattr { name, len } => {
                let value = self.on_file(asked, |handle| Op::Getxattr {
                    handle,
                    name: boxed(name),
                });
                answer_xattr(reply, value, len);
            }
            Operation::Listxattr { len } => {
                let names = self.on_file(asked, |handle| Op::Listxattr { handle });
                answer_xattr(reply, names, len);
            }
            Operation::Setxattr { name, value, flags } => {
                let (name, value) = (boxed(name), value.into_boxed_slice());
                let set = |handle| Op::Setxattr {
                    handle,
                    name,
                    value,
                    flags,
                };
                done(
                    reply,
                    self.handle_of(asked)
                        .and_then(|it| self.call(asked).done(set(it))),
                );
            }
            Operation::Removexattr { name } => {
                let remove = |handle| Op::Removexattr {
                    handle,
                    name: boxed(name),
                };
                done(
                    reply,
                    self.handle_of(asked)
                        .and_then(|it| self.call(asked).done(remove(it))),
                );
            }
            // The kernel then asks in another way, or tells the program so.
            other => {
                tracing::debug!(
                    ?other,
                    "an operation that no part of the file system serves"
                );
                reply.error(Errno::OPNOTSUPP);
            }
        }
    }

    /// Does an operation that finds or makes a file in a directory.
    fn in_directory(&self, asked: &Asked, op: impl FnOnce(Handle) -> Op) -> Result<Attr, Errno> {
        let parent = self.handle_of(asked)?;
        self.call(asked).attr(op(parent))
    }

    /// Does an operation that reads a text of a file.
    fn on_file(&self, asked: &Asked, op: impl FnOnce(Handle) -> Op) -> Result<Box<[u8]>, Errno> {
        let handle = self.handle_of(asked)?;
        self.call(asked).text(op(handle))
    }

    fn answer_getattr(&self, reply: Reply, asked: &Asked) {
        let getattr = |handle| self.call(asked).lasting_attr(Op::Getattr { handle });
        match self.handle_of(asked).and_then(getattr) {
            Ok((attr, until)) => {
                reply.attributes(&convert::attributes(&attr), left(until));
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(&self, asked: &Asked, set: &SetAttributes) -> Result<Attr, Errno> {
        let op = Op::Setattr {
            handle: self.handle_of(asked)?,
            set: convert::set_attr(set),
        };
        // Truncating through an open file needs no permission but that of having opened it.
        match set.handle.and_then(|number| self.files.find(number).ok()) {
            Some(file) => self.call_through(asked, &file).attr(op),
            None => {
                if set.size.is_some() {
                    self.judge(asked, W_OK)?;
                }
                self.call(asked).attr(op)
            }
        }
    }

    fn answer_create(&self, reply: Reply, asked: &Asked, name: OsString, mode: u32, flags: u32) {
        match self.create(asked, name, mode, flags) {
            Ok((entry, opened)) => {
                if !reply.created(&entry, &opened) {
                    self.files.remove(opened.handle);
                    self.forget_lookups(entry.node, 1);
                }
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn create(
        &self,
        asked: &Asked,
        name: OsString,
        mode: u32,
        flags: u32,
    ) -> Result<(Entry, Opened), Errno> {
        let (name, mode, exclusive) = (boxed(name), mode & PERMISSIONS, flags & O_EXCL != 0);
        let mut attr = self.in_directory(asked, |parent| Op::Create {
            parent,
            name,
            mode,
            exclusive,
        })?;
        let handle = attr.handle;
        // Told ESTALE, the kernel would try again, and find its own file in the way.
        let opened = self
            .open(asked, handle, flags)
            .map_err(|errno| match errno {
                Errno::STALE => Errno::IO,
                errno => errno,
            })?;
        if flags & O_TRUNC != 0 && attr.size > 0 {
            // Another node has made it since the kernel looked. The kernel believes it to be new,
            // and will not truncate it.
            let set = SetAttr {
                size: Some(0),
                ..SetAttr::default()
            };
            match self.call(asked).attr(Op::Setattr { handle, set }) {
                Ok(truncated) => attr = truncated,
                Err(errno) => {
                    self.files.remove(opened.handle);
                    return Err(errno);
                }
            }
        }
        Ok((self.entry(asked, &attr), opened))
    }

    fn remove(&self, asked: &Asked, op: impl FnOnce(Handle) -> Op) -> Result<(), Errno> {
        let op = op(self.handle_of(asked)?);
        let is_directory = matches!(op, Op::Rmdir { .. });
        let outcome = self.call(asked).outcome(op)?;
        if let (Outcome::Removed(Some(handle)), true) = (outcome, is_directory) {
            self.nodes.removed(handle);
        }
        Ok(())
    }

    fn rename(
        &self,
        asked: &Asked,
        name: OsString,
        to: (u64, OsString),
        flags: u32,
    ) -> Result<(), Errno> {
        let mode = match flags {
            0 => RenameMode::Replace,
            RENAME_NOREPLACE => RenameMode::NoReplace,
            RENAME_EXCHANGE => RenameMode::Exchange,
            RENAME_WHITEOUT => RenameMode::Whiteout,
            _ => return Err(Errno::INVAL),
        };
        let (parent, new_parent) = (self.handle_of(asked)?, self.nodes.handle(to.0)?);
        let (name, new_name) = (boxed(name), boxed(to.1));
        self.call(asked).done(Op::Rename {
            parent,
            name,
            new_parent,
            new_name,
            mode,
        })
    }

    fn access(&self, asked: &Asked, mask: u32) -> Result<(), Errno> {
        let handle = self.handle_of(asked)?;
        match mask & 0o7 {
            // Whether it is there: the kernel has just found it, or holds it.
            0 => Ok(()),
            mask => self.call(asked).done(Op::Access { handle, mask }),
        }
    }

    /// Whether the caller may use a file in a way that no call checks by itself: `mask` is that of
    /// access(2). Asks nothing where the kernel has seen to it.
    pub(super) fn judge(&self, asked: &Asked, mask: u32) -> Result<(), Errno> {
        match self.checks {
            Checks::Kernel => Ok(()),
            Checks::Forwarders => self.access(asked, mask),
        }
    }

    fn answer_statfs(&self, reply: Reply, asked: &Asked) {
        match self.call(asked).outcome(Op::Statfs) {
            Ok(Outcome::Statfs(statfs)) => reply.space(&convert::space(&statfs)),
            Ok(_) => reply.error(Errno::IO),
            Err(errno) => reply.error(errno),
        }
    }

    /// Opens a directory, of which forwarders know nothing.
    fn answer_opendir(&self, reply: Reply, asked: &Asked) {
        let may = self.judge(asked, R_OK);
        let handle = match may.and_then(|()| self.handle_of(asked)) {
            Ok(handle) => handle,
            Err(errno) => return reply.error(errno),
        };
        let parent = self
            .nodes
            .parent_inode(asked.node)
            .filter(|_| asked.node != ROOT);
        let directory = OpenDirectory::new(handle, parent.unwrap_or(handle.inode));
        let number = self.directories.insert(|_| directory);
        if !reply.opened(&Opened {
            handle: number,
            ..Opened::default()
        }) {
            self.directories.remove(number);
        }
    }

    fn fsyncdir(&self, asked: &Asked, number: u64, data_only: bool) -> Result<(), Errno> {
        let handle = self.directories.find(number)?.handle();
        self.call(asked).done(Op::Fsync { handle, data_only })
    }
}

fn answer_attr(reply: Reply, attr: Result<Attr, Errno>) {
    answer(reply, attr, |reply, attr| {
        reply.attributes(&convert::attributes(&attr), NEVER)
    });
}

/// Answers with a text of at most `len` bytes, or with its length if `len` is 0.
fn answer_xattr(reply: Reply, text: Result<Box<[u8]>, Errno>, len: u32) {
    answer(reply, text, |reply, text| {
        let text_len = u32::try_from(text.len()).unwrap_or(u32::MAX);
        match len {
            0 => reply.xattr_len(text_len),
            _ if text_len > len => reply.error(Errno::RANGE),
            _ => reply.bytes(&text),
        }
    });
}

/// A name or a link's target as the wire has it.
fn boxed(text: OsString) -> Box<[u8]> {
    text.into_vec().into_boxed_slice()
}
