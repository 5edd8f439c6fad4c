//! Paths over handles: walking to a file, opening it, and reading and writing it.
//!
//! A path starts at the root of the export, with or without a leading slash. The client follows
//! symbolic links inside the export: an absolute target starts again at the export's root, and `..`
//! at the root stays there.

mod coalesce;

use crate::api::{Client, Context, Data, Errno, OpenFile};
use crate::payload::Payload;
use crate::wire::{Attr, Extent, Extents, Handle, Name, SetAttr};
use coalesce::Coalescer;
use std::collections::VecDeque;
use std::sync::Arc;
use tidegate_net::{RawBytes, RawRoom};

/// Largest number of symbolic links that one walk follows, as in Linux.
const LINKS_MAX: u32 = 40;

const KIND_MASK: u32 = 0o170_000;
const KIND_DIRECTORY: u32 = 0o040_000;
const KIND_REGULAR: u32 = 0o100_000;
const KIND_LINK: u32 = 0o120_000;

/// How to open a file by its path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenHow {
    /// Opens the file for reading.
    pub read: bool,
    /// Opens the file for writing.
    pub write: bool,
    /// Creates a file that does not exist, with these permission bits.
    pub create: Option<u32>,
    /// With `create`: EEXIST if it exists.
    pub exclusive: bool,
    /// Truncates an existing file to length 0.
    pub truncate: bool,
    /// ELOOP if the path's last name is a symbolic link.
    pub no_follow: bool,
}

impl OpenHow {
    /// Opens an existing file for reading.
    pub fn read() -> OpenHow {
        OpenHow {
            read: true,
            ..OpenHow::default()
        }
    }

    /// Opens a file for reading and writing, and creates it with mode 0644 if it does not exist.
    pub fn create() -> OpenHow {
        OpenHow {
            read: true,
            write: true,
            create: Some(0o644),
            ..OpenHow::default()
        }
    }
}

/// Whether the attributes are those of a directory.
pub fn is_directory(attr: &Attr) -> bool {
    attr.mode & KIND_MASK == KIND_DIRECTORY
}

/// Where a path leads.
struct Walked {
    /// Directory and name of the last component, after links; None for the root and after `..`.
    place: Option<(Handle, Name)>,
    /// The file there, if there is one.
    attr: Option<Attr>,
}

impl Client {
    /// Attributes of the file to which a path leads.
    pub fn resolve(&self, ctx: &Context, path: &[u8]) -> Result<Attr, Errno> {
        self.walk(ctx, path, true)?.attr.ok_or(Errno::NOENT)
    }

    /// Like [`Client::resolve`], without following a symbolic link at the end.
    pub fn resolve_link(&self, ctx: &Context, path: &[u8]) -> Result<Attr, Errno> {
        self.walk(ctx, path, false)?.attr.ok_or(Errno::NOENT)
    }

    /// Directory and name in which a path ends, whether or not the name exists. EBUSY for a path
    /// that ends in no name: nobody can make, move or remove the root.
    pub fn resolve_parent(&self, ctx: &Context, path: &[u8]) -> Result<(Handle, Name), Errno> {
        self.walk(ctx, path, false)?.place.ok_or(Errno::BUSY)
    }

    /// Opens a regular file by its path.
    pub fn open_path(
        self: &Arc<Self>,
        ctx: &Context,
        path: &[u8],
        how: &OpenHow,
    ) -> Result<File, Errno> {
        let walked = self.walk(ctx, path, !how.no_follow && !how.exclusive)?;
        let attr = match (walked.attr, how.create) {
            (Some(_), Some(_)) if how.exclusive => return Err(Errno::EXIST),
            (Some(attr), _) => attr,
            (None, None) => return Err(Errno::NOENT),
            (None, Some(mode)) => {
                let (parent, name) = walked.place.ok_or(Errno::NOENT)?;
                if path.ends_with(b"/") {
                    return Err(Errno::ISDIR);
                }
                self.create(ctx, parent, &name, mode, how.exclusive)?
            }
        };
        match attr.mode & KIND_MASK {
            KIND_REGULAR => {}
            KIND_DIRECTORY => return Err(Errno::ISDIR),
            KIND_LINK => return Err(Errno::LOOP),
            _ => return Err(Errno::INVAL),
        }
        let open = self.open(ctx, attr.handle, how.read, how.write)?;
        let file = File::new(open);
        if how.truncate && attr.size > 0 {
            file.truncate(ctx, 0)?;
        }
        Ok(file)
    }

    fn walk(&self, ctx: &Context, path: &[u8], follow_last: bool) -> Result<Walked, Errno> {
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        let wants_directory = path.ends_with(b"/");
        // The directories on the way, for `..`.
        let mut way = vec![self.root().handle];
        let mut names: VecDeque<Name> = names_of(path).collect();
        let mut links = 0;
        while let Some(name) = names.pop_front() {
            if &*name == b".." {
                if way.len() > 1 {
                    way.pop();
                }
                continue;
            }
            let parent = *way.last().expect("the root stays on the way");
            let is_last = names.is_empty();
            let attr = match self.lookup(ctx, parent, &name) {
                Ok(attr) => attr,
                Err(Errno::NOENT) if is_last => {
                    return Ok(Walked {
                        place: Some((parent, name)),
                        attr: None,
                    });
                }
                Err(errno) => return Err(errno),
            };
            let kind = attr.mode & KIND_MASK;
            if kind == KIND_LINK && (!is_last || follow_last || wants_directory) {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::LOOP);
                }
                let target = self.readlink(ctx, attr.handle)?;
                if target.starts_with(b"/") {
                    way.truncate(1);
                }
                for name in names_of(&target).rev() {
                    names.push_front(name);
                }
                continue;
            }
            if kind != KIND_DIRECTORY && (!is_last || wants_directory) {
                return Err(Errno::NOTDIR);
            }
            if is_last {
                return Ok(Walked {
                    place: Some((parent, name)),
                    attr: Some(attr),
                });
            }
            way.push(attr.handle);
        }
        let last = *way.last().expect("the root stays on the way");
        Ok(Walked {
            place: None,
            attr: Some(self.getattr(ctx, last)?),
        })
    }
}

/// The names of a path, without empty names and `.`.
fn names_of(path: &[u8]) -> impl DoubleEndedIterator<Item = Name> {
    let names = path.split(|&byte| byte == b'/');
    names
        .filter(|name| !name.is_empty() && *name != b".")
        .map(Name::from)
}

/// An open regular file. Dropping it closes the file in the background.
pub struct File {
    // Before the open, which ends after it.
    coalescer: Option<Coalescer>,
    open: OpenFile,
}

impl File {
    fn new(open: OpenFile) -> File {
        let (client, handle) = (open.client(), open.handle());
        let bytes_max = client.coalesce_bytes();
        let coalescer = (bytes_max > 0).then(|| Coalescer::new(client, handle, bytes_max));
        File { coalescer, open }
    }

    /// Opens by handle a file that the caller knows to be regular.
    pub fn from_handle(
        client: &Arc<Client>,
        ctx: &Context,
        handle: Handle,
        how: &OpenHow,
    ) -> Result<File, Errno> {
        let open = client.open(ctx, handle, how.read, how.write)?;
        Ok(File::new(open))
    }

    /// The file's handle.
    pub fn handle(&self) -> Handle {
        self.open.handle()
    }

    /// Reads; returns fewer than `len` bytes only at the end of the file.
    pub fn pread(&self, ctx: &Context, offset: u64, len: usize) -> Result<Data, Errno> {
        self.flush(ctx)?;
        self.client().read(ctx, self.handle(), offset, len)
    }

    /// Reads into the caller's memory: the client fills some parts while forwarders send others.
    /// Returns the number of bytes; fewer than `into` holds only at the end of the file.
    pub fn pread_into(&self, ctx: &Context, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        let len = into.len();
        let take = |at: usize, bytes: RawBytes<'_>| {
            bytes.copy_to(&mut into[at..]);
        };
        self.pread_parts(ctx, offset, len, take)
    }

    /// Reads like [`Client::read_parts`].
    pub fn pread_parts(
        &self,
        ctx: &Context,
        offset: u64,
        len: usize,
        take: impl FnMut(usize, RawBytes<'_>),
    ) -> Result<usize, Errno> {
        self.flush(ctx)?;
        self.client()
            .read_parts(ctx, self.handle(), offset, len, take)
    }

    /// Writes from the caller's memory: the client copies some parts while others are on their way.
    /// Otherwise like [`pwrite`](File::pwrite).
    pub fn pwrite_from(&self, ctx: &Context, offset: u64, from: &[u8]) -> Result<usize, Errno> {
        let fill = |at: usize, mut to: RawRoom<'_>| to.put(0, &from[at..at + to.len()]);
        match &self.coalescer {
            Some(coalescer) if !from.is_empty() => {
                coalescer.write(ctx, offset, from.to_vec().into())
            }
            _ => self
                .client()
                .write_parts(ctx, self.handle(), offset, from.len(), fill),
        }
    }

    /// Writes all bytes. With [`Options::coalesce_bytes`](crate::Options::coalesce_bytes) the
    /// client may hold them back and send them with the writes that follow.
    pub fn pwrite(
        &self,
        ctx: &Context,
        offset: u64,
        bytes: impl Into<Payload>,
    ) -> Result<usize, Errno> {
        let bytes = bytes.into();
        match &self.coalescer {
            Some(coalescer) if !bytes.is_empty() => coalescer.write(ctx, offset, bytes),
            _ => self.client().write(ctx, self.handle(), offset, bytes),
        }
    }

    /// Reads like [`Client::read_list`].
    pub fn read_list(&self, ctx: &Context, extents: Extents) -> Result<Data, Errno> {
        self.flush(ctx)?;
        self.client().read_list(ctx, self.handle(), extents)
    }

    /// Writes like [`Client::write_list`].
    pub fn write_list(
        &self,
        ctx: &Context,
        extents: Extents,
        bytes: impl Into<Payload>,
    ) -> Result<usize, Errno> {
        self.flush(ctx)?;
        self.client().write_list(ctx, self.handle(), extents, bytes)
    }

    /// Appends in one piece, at most [`Client::payload_max`] bytes; returns where, and how many
    /// bytes: a back end without space for all may have taken the first of them.
    pub fn append(&self, ctx: &Context, bytes: impl Into<Payload>) -> Result<Extent, Errno> {
        self.flush(ctx)?;
        self.client().append(ctx, self.handle(), bytes)
    }

    /// The file's attributes.
    pub fn attr(&self, ctx: &Context) -> Result<Attr, Errno> {
        self.flush(ctx)?;
        self.client().getattr(ctx, self.handle())
    }

    /// Truncates or extends the file to `size` bytes.
    pub fn truncate(&self, ctx: &Context, size: u64) -> Result<Attr, Errno> {
        self.flush(ctx)?;
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.client().setattr(ctx, self.handle(), set)
    }

    /// Waits until everything written is stable on the back end.
    pub fn fsync(&self, ctx: &Context, data_only: bool) -> Result<(), Errno> {
        self.flush(ctx)?;
        self.open.fsync(ctx, data_only)
    }

    /// Sends the writes that the client has held back to send them together. After an error they
    /// are lost.
    pub fn flush(&self, ctx: &Context) -> Result<(), Errno> {
        match &self.coalescer {
            Some(coalescer) => coalescer.flush(ctx),
            None => Ok(()),
        }
    }

    /// Closes the file. Unlike a drop, it reports whether the writes that the client held back have
    /// succeeded.
    pub fn close(self, ctx: &Context) -> Result<(), Errno> {
        self.flush(ctx)
    }

    /// The client that opened it.
    pub fn client(&self) -> &Arc<Client> {
        self.open.client()
    }
}
