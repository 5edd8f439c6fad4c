//! Forwarders that are none: a local directory, with locks in memory, that can be made to stand
//! still. Files are known by handles alone, as at a real forwarder.

use crate::locks::LockTable;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    self as linux, AtFlags, Mode, OFlags, RawDir, RenameFlags, SeekFrom, StatxFlags, Timespec,
    Timestamps, XattrFlags,
};
use rustix::io::Errno as Linux;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidegate_client::wire::{
    Attr, Caller, Entry, Extent, Handle, Lens, LockFamily, Op, Outcome, RenameMode, SetAttr,
    SetTime, Statfs,
};
use tidegate_client::{Answer, Bytes, Context, Data, Errno};
use tidegate_mount::Forwarders;

/// How long a call waits for a forwarder that stands still, as the client's time limit.
const TIMEOUT: Duration = Duration::from_secs(60);

pub struct Local {
    root: Handle,
    files: Mutex<HashMap<Handle, Arc<OwnedFd>>>,
    pub locks: LockTable,
    /// No call is answered while this is set, as if the forwarder were stopped.
    pub frozen: AtomicBool,
    /// Calls that wait because of that.
    pub waiting: AtomicUsize,
    /// Open files.
    pub open: Arc<AtomicUsize>,
    /// What the calls with data said: application, and on whose behalf.
    pub data_calls: Mutex<Vec<(u64, Option<Caller>)>>,
    /// Locks dropped without waiting.
    pub dropped: AtomicUsize,
}

/// Counts as open until dropped.
struct Held(Arc<AtomicUsize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Local {
    pub fn new(directory: &Path) -> Arc<Self> {
        let root = linux::open(directory, OFlags::PATH, Mode::empty()).expect("a directory");
        let handle = attr(&root).expect("attributes").handle;
        Arc::new(Self {
            root: handle,
            files: Mutex::new(HashMap::from([(handle, Arc::new(root))])),
            locks: LockTable::default(),
            frozen: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            open: Arc::default(),
            data_calls: Mutex::default(),
            dropped: AtomicUsize::new(0),
        })
    }

    /// Waits while the forwarder stands still.
    fn thaw(&self, ctx: &Context) -> Result<(), Linux> {
        let until = Instant::now() + ctx.timeout.unwrap_or(TIMEOUT);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let result = loop {
            if !self.frozen.load(Ordering::SeqCst) {
                break Ok(());
            }
            if ctx
                .cancel
                .as_ref()
                .is_some_and(|cancel| cancel.is_cancelled())
            {
                break Err(Linux::INTR);
            }
            if Instant::now() > until && ctx.timeout != Some(Duration::ZERO) {
                break Err(Linux::TIMEDOUT);
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        result
    }

    fn file(&self, handle: Handle) -> Result<Arc<OwnedFd>, Linux> {
        self.files
            .lock()
            .unwrap()
            .get(&handle)
            .cloned()
            .ok_or(Linux::STALE)
    }

    /// A name of the file for calls that want one, even after its own names are gone.
    fn path(&self, handle: Handle) -> Result<PathBuf, Linux> {
        use std::os::fd::AsRawFd;
        Ok(PathBuf::from(format!(
            "/proc/self/fd/{}",
            self.file(handle)?.as_raw_fd()
        )))
    }

    fn reopen(&self, handle: Handle, flags: OFlags) -> Result<OwnedFd, Linux> {
        linux::open(self.path(handle)?, flags | OFlags::CLOEXEC, Mode::empty())
    }

    fn found(&self, parent: Handle, name: &[u8]) -> Result<Outcome, Linux> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = linux::openat(self.file(parent)?, name, flags, Mode::empty())?;
        let attr = attr(&file)?;
        self.files
            .lock()
            .unwrap()
            .entry(attr.handle)
            .or_insert(Arc::new(file));
        Ok(Outcome::Attr(attr))
    }

    fn serve(&self, ctx: &Context, op: Op, payload: &[u8]) -> Result<Outcome, Linux> {
        match op {
            Op::Lookup { parent, name } => self.found(parent, &name),
            Op::Create {
                parent,
                name,
                mode,
                exclusive,
            } => {
                let exclusive = if exclusive {
                    OFlags::EXCL
                } else {
                    OFlags::empty()
                };
                let flags = OFlags::CREATE | OFlags::RDONLY | OFlags::CLOEXEC | exclusive;
                linux::openat(self.file(parent)?, &*name, flags, Mode::from_raw_mode(mode))?;
                self.found(parent, &name)
            }
            Op::Mkdir { parent, name, mode } => {
                linux::mkdirat(self.file(parent)?, &*name, Mode::from_raw_mode(mode))?;
                self.found(parent, &name)
            }
            Op::Mknod {
                parent,
                name,
                mode,
                rdev,
            } => {
                let kind = linux::FileType::from_raw_mode(mode);
                let mode = Mode::from_raw_mode(mode);
                linux::mknodat(self.file(parent)?, &*name, kind, mode, u64::from(rdev))?;
                self.found(parent, &name)
            }
            Op::Symlink {
                parent,
                name,
                target,
            } => {
                linux::symlinkat(&*target, self.file(parent)?, &*name)?;
                self.found(parent, &name)
            }
            Op::Link {
                handle,
                parent,
                name,
            } => {
                let parent_file = self.file(parent)?;
                let follow = AtFlags::SYMLINK_FOLLOW;
                linux::linkat(linux::CWD, self.path(handle)?, parent_file, &*name, follow)?;
                self.found(parent, &name)
            }
            Op::Unlink { parent, name } => self.removed(parent, &name, AtFlags::empty()),
            Op::Rmdir { parent, name } => self.removed(parent, &name, AtFlags::REMOVEDIR),
            Op::Rename {
                parent,
                name,
                new_parent,
                new_name,
                mode,
            } => {
                let flags = match mode {
                    RenameMode::Replace => RenameFlags::empty(),
                    RenameMode::NoReplace => RenameFlags::NOREPLACE,
                    RenameMode::Exchange => RenameFlags::EXCHANGE,
                };
                let (from, to) = (self.file(parent)?, self.file(new_parent)?);
                linux::renameat_with(from, &*name, to, &*new_name, flags)?;
                Ok(Outcome::Removed(None))
            }
            other => self.serve_file(ctx, other, payload),
        }
    }

    fn removed(&self, parent: Handle, name: &[u8], flags: AtFlags) -> Result<Outcome, Linux> {
        let Outcome::Attr(attr) = self.found(parent, name)? else {
            return Err(Linux::IO);
        };
        linux::unlinkat(self.file(parent)?, name, flags)?;
        Ok(Outcome::Removed(Some(attr.handle)))
    }

    fn serve_file(&self, ctx: &Context, op: Op, payload: &[u8]) -> Result<Outcome, Linux> {
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
            Op::Fsync { handle, .. } => {
                linux::fsync(self.reopen(handle, OFlags::RDONLY)?)?;
                Ok(Outcome::Done)
            }
            Op::Statfs => self.space(),
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

    fn read(&self, handle: Handle, extent: Extent) -> Result<Answer, Linux> {
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
            data: Data { pieces, len },
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

    fn entries(&self, handle: Handle, cookie: u64, bytes_max: u32) -> Result<Vec<Entry>, Linux> {
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
                });
            }
        }
        Ok(entries)
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

impl Forwarders for Local {
    fn root(&self) -> Attr {
        attr(&*self.file(self.root).expect("the root")).expect("attributes")
    }

    fn payload_max(&self) -> u32 {
        1 << 20
    }

    fn call(&self, ctx: &Context, op: Op, payload: Bytes) -> Result<Answer, Errno> {
        let errno = |errno: Linux| Errno(errno.raw_os_error());
        self.thaw(ctx).map_err(errno)?;
        if matches!(op, Op::Read { .. } | Op::Write { .. } | Op::Append { .. }) {
            self.data_calls
                .lock()
                .unwrap()
                .push((ctx.app, ctx.caller.clone()));
        }
        if let Op::Read { handle, extents } = op {
            return self.read(handle, extents.first).map_err(errno);
        }
        let outcome = self.serve(ctx, op, &payload).map_err(errno)?;
        Ok(Answer {
            outcome,
            data: Data::default(),
        })
    }

    fn open(
        &self,
        ctx: &Context,
        handle: Handle,
        _read: bool,
        _write: bool,
    ) -> Result<Box<dyn Send + Sync>, Errno> {
        let errno = |errno: Linux| Errno(errno.raw_os_error());
        self.thaw(ctx).map_err(errno)?;
        self.file(handle).map_err(errno)?;
        self.open.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(Held(Arc::clone(&self.open))))
    }

    fn drop_locks(&self, handle: Handle, family: LockFamily, owner: u64) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
        self.locks.drop_owner(handle, family, owner);
    }

    fn forget(&self, _handle: Handle) {}
}

fn attr(file: impl AsFd) -> Result<Attr, Linux> {
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
