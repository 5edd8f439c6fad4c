//! What is asked of a file itself: its attributes, bytes, entries and locks.

use super::Local;
use rustix::fd::AsFd;
use rustix::fs::{
    self as linux, AtFlags, Mode, OFlags, RawDir, SeekFrom, StatxFlags, Timespec, Timestamps,
    XattrFlags,
};
use rustix::io::Errno as Linux;
use std::mem::MaybeUninit;
use tidegate_client::wire::{
    Attr, Entry, Extent, Handle, Lens, Listing, Op, Outcome, SetAttr, SetTime, Statfs,
};
use tidegate_client::{Answer, Bytes, Context, Data};

impl Local {
    pub(super) fn serve_file(
        &self,
        ctx: &Context,
        op: Op,
        payload: &[u8],
    ) -> Result<Outcome, Linux> {
        match op {
            Op::Getattr { handle } => Ok(Outcome::Attr(attr(&*self.file(handle)?)?)),
            Op::Setattr { handle, set } => {
                self.set_attributes(handle, &set)?;
                Ok(Outcome::Attr(attr(&*self.file(handle)?)?))
            }
            Op::Readlink { handle } => {
                let target = linux::readlinkat(self.file(handle)?, "", Vec::new())?;
                Ok(Outcome::Text(target.into_bytes().into_boxed_slice()))
            }
            Op::Access { .. } => Ok(Outcome::Done),
            Op::Readdir {
                handle,
                cookie,
                bytes_max,
                ..
            } => self
                .entries(handle, cookie, bytes_max)
                .map(Outcome::Entries),
            Op::Statfs => self.space(),
            other => self.serve_data(ctx, other, payload),
        }
    }

    fn serve_data(&self, ctx: &Context, op: Op, payload: &[u8]) -> Result<Outcome, Linux> {
        match op {
            Op::Fsync { handle, data_only } => {
                self.syncs.lock().unwrap().push((data_only, ctx.range));
                linux::fsync(self.reopen(handle, OFlags::RDONLY)?)?;
                Ok(Outcome::Done)
            }
            Op::Fallocate {
                handle,
                mode,
                offset,
                len,
            } => {
                let file = self.reopen(handle, OFlags::RDWR)?;
                let flags = linux::FallocateFlags::from_bits_retain(mode);
                linux::fallocate(file, flags, offset, len)?;
                Ok(Outcome::Done)
            }
            Op::CopyRange {
                source,
                source_offset,
                handle,
                offset,
                len,
            } => {
                let from = self.reopen(source, OFlags::RDONLY)?;
                let to = self.reopen(handle, OFlags::RDWR)?;
                let (mut start, mut end) = (source_offset, offset);
                let len = len.min(1 << 30) as usize;
                let (from_at, to_at) = (Some(&mut start), Some(&mut end));
                let copied = linux::copy_file_range(from, from_at, to, to_at, len)?;
                Ok(Outcome::Written { len: copied as u64 })
            }
            Op::Seek {
                handle,
                offset,
                whence,
            } => {
                let file = self.reopen(handle, OFlags::RDONLY)?;
                let to = if whence == 3 {
                    SeekFrom::Data(offset)
                } else {
                    SeekFrom::Hole(offset)
                };
                Ok(Outcome::Offset(linux::seek(file, to)?))
            }
            Op::SetLock {
                handle, lock, wait, ..
            } => {
                self.locks.set(handle, lock, wait, ctx)?;
                Ok(Outcome::Done)
            }
            Op::TestLock { handle, lock } => Ok(Outcome::Lock(self.locks.test(handle, &lock))),
            Op::Write { handle, extents } => self.write(handle, extents.first.offset, payload),
            Op::Append { handle } => {
                let file = self.reopen(handle, OFlags::WRONLY | OFlags::APPEND)?;
                let len = rustix::io::write(&file, payload)? as u64;
                Ok(Outcome::Appended {
                    offset: attr(&file)?.size - len,
                    len,
                })
            }
            other => self.serve_xattr(other),
        }
    }

    fn serve_xattr(&self, op: Op) -> Result<Outcome, Linux> {
        let mut buffer = vec![0; 65_536];
        match op {
            Op::Getxattr { handle, name } => {
                let len = linux::getxattr(self.path(handle)?, &*name, &mut buffer)?;
                Ok(Outcome::Text(buffer[..len].into()))
            }
            Op::Setxattr {
                handle,
                name,
                value,
                flags,
            } => {
                let flags = XattrFlags::from_bits_retain(flags);
                linux::setxattr(self.path(handle)?, &*name, &value, flags)?;
                Ok(Outcome::Done)
            }
            Op::Listxattr { handle } => {
                let len = linux::listxattr(self.path(handle)?, &mut buffer)?;
                Ok(Outcome::Text(buffer[..len].into()))
            }
            Op::Removexattr { handle, name } => {
                linux::removexattr(self.path(handle)?, &*name)?;
                Ok(Outcome::Done)
            }
            _ => Err(Linux::OPNOTSUPP),
        }
    }

    pub(super) fn read(&self, handle: Handle, extent: Extent) -> Result<Answer, Linux> {
        let file = self.reopen(handle, OFlags::RDONLY)?;
        let mut bytes = vec![0; extent.len as usize];
        let len = rustix::io::pread(&file, &mut *bytes, extent.offset)?;
        bytes.truncate(len);
        let lens = Lens {
            first: len as u32,
            rest: Vec::new(),
        };
        // In two pieces, as if they came from two forwarders.
        let mut pieces = vec![Bytes::from(bytes)];
        if len > 1 {
            let second = pieces[0].split_off(len / 2);
            pieces.push(second);
        }
        Ok(Answer {
            outcome: Outcome::Data { lens },
            data: Data {
                pieces: pieces.into_iter().map(Into::into).collect(),
                len,
            },
            lasts_ns: 0,
        })
    }

    fn write(&self, handle: Handle, offset: u64, payload: &[u8]) -> Result<Outcome, Linux> {
        let file = self.reopen(handle, OFlags::WRONLY)?;
        let len = rustix::io::pwrite(&file, payload, offset)? as u64;
        Ok(Outcome::Written { len })
    }

    fn set_attributes(&self, handle: Handle, set: &SetAttr) -> Result<(), Linux> {
        let (file, path) = (self.file(handle)?, self.path(handle)?);
        if set.uid.is_some() || set.gid.is_some() {
            let (uid, gid) = (
                set.uid.map(linux::Uid::from_raw),
                set.gid.map(linux::Gid::from_raw),
            );
            linux::chownat(&*file, "", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(mode) = set.mode {
            linux::chmod(&path, Mode::from_raw_mode(mode))?;
        }
        if let Some(size) = set.size {
            linux::ftruncate(self.reopen(handle, OFlags::RDWR)?, size)?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let times = Timestamps {
                last_access: timespec(set.atime),
                last_modification: timespec(set.mtime),
            };
            linux::utimensat(&*file, "", &times, AtFlags::EMPTY_PATH)?;
        }
        Ok(())
    }

    fn entries(&self, handle: Handle, cookie: u64, bytes_max: u32) -> Result<Listing, Linux> {
        let directory = self.reopen(handle, OFlags::RDONLY | OFlags::DIRECTORY)?;
        linux::seek(&directory, SeekFrom::Start(cookie))?;
        let mut buffer = vec![MaybeUninit::uninit(); 65_536];
        let mut listing = RawDir::new(directory.as_fd(), &mut buffer);
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while bytes < bytes_max as usize {
            let Some(entry) = listing.next() else { break };
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                bytes += name.len();
                entries.push(Entry {
                    name: name.into(),
                    inode: entry.ino(),
                    kind: (entry.file_type().as_raw_mode() >> 12) as u8,
                    cookie: entry.next_entry_cookie(),
                    attr: None,
                    lacks: 0,
                    lent: false,
                });
            }
        }
        let ended = entries.is_empty();
        Ok(Listing { entries, ended })
    }

    fn space(&self) -> Result<Outcome, Linux> {
        let found = linux::fstatvfs(self.file(self.root)?)?;
        Ok(Outcome::Statfs(Statfs {
            blocks: found.f_blocks,
            blocks_free: found.f_bfree,
            blocks_available: found.f_bavail,
            files: found.f_files,
            files_free: found.f_ffree,
            block_size: found.f_frsize as u32,
            name_max: found.f_namemax as u32,
        }))
    }
}

pub(super) fn attr(file: impl AsFd) -> Result<Attr, Linux> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let found = linux::statx(
        file,
        "",
        AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW,
        wanted,
    )?;
    let ns = |time: linux::StatxTimestamp| time.tv_sec * 1_000_000_000 + i64::from(time.tv_nsec);
    let birth = ns(found.stx_btime) as u64;
    Ok(Attr {
        handle: Handle {
            inode: found.stx_ino,
            birth,
        },
        size: found.stx_size,
        blocks: found.stx_blocks,
        atime_ns: ns(found.stx_atime),
        mtime_ns: ns(found.stx_mtime),
        ctime_ns: ns(found.stx_ctime),
        mode: u32::from(found.stx_mode),
        nlink: found.stx_nlink,
        uid: found.stx_uid,
        gid: found.stx_gid,
        rdev: linux::makedev(found.stx_rdev_major, found.stx_rdev_minor) as u32,
        block_size: found.stx_blksize,
    })
}

fn timespec(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec {
            tv_sec: 0,
            tv_nsec: linux::UTIME_OMIT,
        },
        Some(SetTime::Now) => Timespec {
            tv_sec: 0,
            tv_nsec: linux::UTIME_NOW,
        },
        Some(SetTime::At(ns)) => Timespec {
            tv_sec: ns.div_euclid(1_000_000_000),
            tv_nsec: ns.rem_euclid(1_000_000_000),
        },
    }
}
