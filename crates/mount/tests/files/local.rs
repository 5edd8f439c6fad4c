//! Forwarders that are none: a local directory, with locks in memory, that can be made to stand
//! still. Files are known by handles alone, as at a real forwarder.

mod files;

use crate::locks::LockTable;
use files::attr;
use rustix::fd::OwnedFd;
use rustix::fs::{self as linux, AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno as Linux;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tidegate_client::wire::{Attr, Caller, Extent, Handle, LockFamily, Op, Outcome, RenameMode};
use tidegate_client::{Answer, Bytes, Context, Data, Errno, Invalidates};
use tidegate_mount::{Forwarders, Held};

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
    /// What each open asked for: to read, to write.
    pub rights: Mutex<Vec<(bool, bool)>>,
    /// Whether each fsync asked for the data alone, and for which part of the file.
    pub syncs: Mutex<Vec<(bool, Option<Extent>)>>,
    /// Locks dropped without waiting.
    pub dropped: AtomicUsize,
    /// For how long attributes may be cached, ns.
    pub lasts_ns: AtomicU64,
    /// The cache, where it is cleared.
    pub cache: OnceLock<Arc<dyn Invalidates>>,
    /// How often a name was looked up, or attributes were asked for.
    pub looks: AtomicUsize,
    /// What was found is not answered while this is set.
    pub late: AtomicBool,
}

/// Counts as open until dropped.
struct Open(Arc<AtomicUsize>, Attr);

impl Held for Open {
    fn number(&self) -> u64 {
        0
    }

    fn attr(&self) -> Attr {
        self.1
    }
}

impl Drop for Open {
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
            rights: Mutex::default(),
            syncs: Mutex::default(),
            dropped: AtomicUsize::new(0),
            lasts_ns: AtomicU64::new(0),
            cache: OnceLock::new(),
            looks: AtomicUsize::new(0),
            late: AtomicBool::new(false),
        })
    }

    /// The handle of a file behind the mount.
    pub fn handle(path: &Path) -> Handle {
        let file = linux::open(path, OFlags::PATH, Mode::empty()).expect("it is there");
        attr(&file).expect("attributes").handle
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
            other => self.serve_change(ctx, other, payload),
        }
    }

    fn serve_change(&self, ctx: &Context, op: Op, payload: &[u8]) -> Result<Outcome, Linux> {
        match op {
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
                    RenameMode::Whiteout => RenameFlags::WHITEOUT,
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
        let looks = matches!(op, Op::Lookup { .. } | Op::Getattr { .. });
        let outcome = self.serve(ctx, op, &payload).map_err(errno)?;
        if looks {
            self.looks.fetch_add(1, Ordering::SeqCst);
            while self.late.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let lasts_ns = self.lasts_ns.load(Ordering::SeqCst);
        Ok(Answer {
            outcome,
            data: Data::default(),
            lasts_ns: if looks && ctx.caches { lasts_ns } else { 0 },
        })
    }

    fn open(
        &self,
        ctx: &Context,
        handle: Handle,
        read: bool,
        write: bool,
    ) -> Result<Box<dyn Held>, Errno> {
        let errno = |errno: Linux| Errno(errno.raw_os_error());
        self.thaw(ctx).map_err(errno)?;
        let file = self.file(handle).map_err(errno)?;
        let attr = attr(&*file).map_err(errno)?;
        self.rights.lock().unwrap().push((read, write));
        self.open.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(Open(Arc::clone(&self.open), attr)))
    }

    fn drop_locks(&self, handle: Handle, family: LockFamily, owner: u64) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
        self.locks.drop_owner(handle, family, owner);
    }

    fn caches_by(&self, cache: Arc<dyn Invalidates>) -> bool {
        self.cache.set(cache).is_ok()
    }

    fn forget(&self, _handle: Handle) {}
}
