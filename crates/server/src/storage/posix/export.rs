//! The exported directory: its root, the hidden folder in it, and what all storage threads share.

use super::bypass::Bypass;
use super::caller::Own;
use super::descriptor::Descriptor;
use super::direct::{Direct, DirectFd, DirectState};
use super::doubts::Doubts;
use super::handle_table::{DataFds, HandleTable, Known};
use super::hidden::{HIDDEN, make_folder, sweep_drafts};
use super::orphans::Opens;
use super::place::{Places, TRAIL_MAX, Trail};
use super::removals::Removals;
use super::stamps::Stamps;
use super::sys::{self, Done, RESOLVE, no};
use super::untold::Untold;
use crate::storage::{Faults, Fence};
use rustix::fs::{AtFlags, Mode, OFlags, Statx};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use tidegate_forward::{Access, Errno};
use tidegate_sched::Direction;
use tidegate_wire::{Attr, Handle, Layout, PATH_MAX};

/// The most descriptors of known files, unless the limit is lower.
const FDS_MAX: usize = 65_536;

/// Kinds of file systems whose pages the kernel itself writes to a device, or keeps in memory:
/// ext4, XFS, F2FS, tmpfs. Not overlays, whose files have no pages of their own to be written back,
/// nor Btrfs, which compresses pages after it has begun to write them back.
pub(super) const LOCAL: [u32; 4] = [0xef53, 0x5846_5342, 0xf2f5_2010, 0x0102_1994];

/// How many times in a row the hidden folder's name may lead elsewhere.
const HIDDEN_MISSED_MAX: u32 = 2;

/// What a forwarder relies on in a back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trust {
    /// Whether sizes, link counts and times that the node's kernel caches are reliable. If not, the
    /// forwarder asks the back end for them each time.
    pub attributes: bool,
    /// Whether data that the node's kernel caches is reliable. If not, data bypasses the page
    /// cache, at any place and length.
    pub pages: bool,
    /// Whether all copies of a file that the back end keeps are the same. If not, clients write
    /// each copy themselves, and a client that was cut off may have written only some of them.
    pub copies: bool,
    /// Whether the back end zeroes a range on request. GlusterFS only allocates the range, and
    /// leaves the bytes.
    pub zero_range: bool,
}

impl Trust {
    /// Full trust, as where no other node has the file system.
    pub const WHOLE: Trust = Trust {
        attributes: true,
        pages: true,
        copies: true,
        zero_range: true,
    };
}

/// How a directory is exported.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// The layout that all forwarders share. It says which seat serves which file.
    pub layout: Layout,
    /// The most descriptors of known files. None: half the limit of open files, 65,536 at most.
    pub fds_max: Option<usize>,
    /// Whether data bypasses the page cache where files support direct I/O.
    pub direct: bool,
    /// Which of the data that this node's kernel caches are believed.
    pub trust: Trust,
    /// Set where the back end's locks do not reach forwarders on other nodes, and are not used. The
    /// fence closes when the seats are not held here any more.
    pub apart: Option<Fence>,
    /// For tests: injected faults.
    pub faults: Faults,
}

impl ExportOptions {
    /// Options with the usual limits.
    pub fn new(layout: Layout) -> ExportOptions {
        ExportOptions {
            layout,
            fds_max: None,
            direct: false,
            trust: Trust::WHOLE,
            apart: None,
            faults: Faults::default(),
        }
    }
}

/// Why a directory cannot be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The directory cannot be opened.
    #[error("cannot export {}: {source}", path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The hidden folder cannot be used.
    #[error("cannot use {}: {source}; the forwarder needs a folder there", path.display())]
    Hidden {
        /// The file or folder in the hidden folder that failed.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The hidden folder, or something in it, belongs to another user.
    #[error("cannot use {}: {source}", path.display())]
    Foreign {
        /// The hidden folder.
        path: PathBuf,
        /// What is wrong, and what to do about it.
        source: std::io::Error,
    },
    /// The kernel has no `openat2` (it is older than Linux 5.6).
    #[error("this kernel has no openat2 (Linux 5.6 or newer is needed)")]
    NoOpenat2,
}

/// What all storage threads of one forwarder share.
pub(super) struct Export {
    pub(super) root: Arc<Known>,
    root_device: (u32, u32),
    hidden: OwnedFd,
    hidden_handle: Handle,
    /// How many times in a row the name of the hidden folder did not lead to it.
    hidden_missed: AtomicU32,
    pub(super) hidden_path: PathBuf,
    pub(super) own: Own,
    pub(super) table: HandleTable,
    pub(super) opens: Opens,
    pub(super) removals: Arc<Removals>,
    pub(super) faults: Faults,
    pub(super) direct: DirectState,
    pub(super) bypass: Bypass,
    pub(super) trust: Trust,
    pub(super) stamps: Stamps,
    pub(super) doubts: Doubts,
    pub(super) places: Places,
    /// Where others have put what a place needs, and where it was not found yet.
    pub(super) unlearned: Mutex<HashMap<Handle, Trail>>,
    pub(super) untold: Untold,
    /// When the log last said that open files have no descriptor.
    pub(super) told_full: Mutex<Option<std::time::Instant>>,
    /// Whether the kernel itself writes pages to a device, or keeps them in memory: what it has
    /// written cannot be lost in another way.
    pub(super) is_local: bool,
    /// Held while a file's mode is widened for a moment, so that two threads do not restore each
    /// other's.
    widening: Mutex<()>,
}

/// A name of the export that no other one on this node has.
fn name_on_node(root: &Statx, hidden: Handle) -> String {
    let (major, minor) = (root.stx_dev_major, root.stx_dev_minor);
    let Handle { inode, birth } = hidden;
    format!("{major:x}:{minor:x}-{inode:x}-{birth:x}")
}

impl Export {
    /// Opens the directory and makes the hidden folder in it.
    pub(super) fn open(dir: &Path, options: &ExportOptions) -> Result<Export, ExportError> {
        let at_root = |source: rustix::io::Errno| ExportError::Open {
            path: dir.to_owned(),
            source: source.into(),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(dir, flags, Mode::empty()).map_err(at_root)?;
        let stat = sys::stat(&root).map_err(at_root)?;
        let hidden_path = dir.join(HIDDEN);
        let at_hidden = |source: std::io::Error| {
            let path = hidden_path.clone();
            match source.raw_os_error() {
                Some(libc::ENOSYS) => ExportError::NoOpenat2,
                Some(_) => ExportError::Hidden { path, source },
                None => ExportError::Foreign { path, source },
            }
        };
        let hidden = make_folder(root.as_fd(), HIDDEN).map_err(at_hidden)?;
        let hidden_handle = sys::handle_of(&sys::stat(&hidden).map_err(|e| at_hidden(e.into()))?);
        // What stays takes little room, and nothing else.
        let _ = sweep_drafts(hidden.as_fd());
        let stamps = Stamps::measure(hidden.as_fd()).map_err(at_hidden)?;
        let removals = Arc::new(match options.apart {
            Some(_) => Removals::default(),
            None => Removals::open(&name_on_node(&stat, hidden_handle)),
        });
        let apart = options.apart.clone();
        let opens = Opens::open(hidden.as_fd(), options.layout, apart, removals.clone())
            .map_err(at_hidden)?;
        let table = HandleTable::new(options.fds_max.unwrap_or_else(fds_max));
        let root = table.insert(sys::handle_of(&stat), sys::DIRECTORY, root);
        root.set_open(true);
        Ok(Export {
            root_device: sys::device_of(&stat),
            hidden,
            hidden_handle,
            hidden_missed: AtomicU32::new(0),
            own: Own::of_process(),
            table,
            opens,
            removals,
            faults: options.faults.clone(),
            direct: DirectState::new(options.direct),
            bypass: Bypass::new(!options.trust.pages),
            trust: options.trust,
            stamps,
            doubts: Doubts::default(),
            places: Places::default(),
            unlearned: Mutex::default(),
            untold: Untold::default(),
            told_full: Mutex::default(),
            is_local: is_local(&root.path),
            widening: Mutex::new(()),
            hidden_path,
            root,
        })
    }

    /// The attributes of a descriptor's file that other nodes may change: size, link count, times,
    /// rights.
    pub(super) fn stat(&self, fd: impl AsFd) -> rustix::io::Result<Statx> {
        sys::stat_at(fd, c"", AtFlags::EMPTY_PATH | self.asks())
    }

    /// The same attributes of a name in a directory.
    pub(super) fn stat_at(
        &self,
        dir: impl AsFd,
        name: impl rustix::path::Arg,
    ) -> rustix::io::Result<Statx> {
        sys::stat_at(dir, name, self.asks())
    }

    /// The size alone, in bytes.
    pub(super) fn size(&self, fd: impl AsFd) -> rustix::io::Result<u64> {
        sys::size(fd, self.asks())
    }

    /// The flags that say whether statx asks the back end: this node's cached attributes may be
    /// stale where other nodes change the file.
    pub(super) fn asks(&self) -> AtFlags {
        match self.trust.attributes {
            true => AtFlags::empty(),
            false => AtFlags::STATX_FORCE_SYNC,
        }
    }

    /// The hidden folder.
    pub(super) fn hidden(&self) -> BorrowedFd<'_> {
        self.hidden.as_fd()
    }

    /// Looks whether the name of the hidden folder still leads to it; to be called once in a while.
    /// On some file systems a name is gone for a moment, so only the second miss counts.
    pub(super) fn look_at_hidden(&self) {
        let found = sys::stat_at(&self.root.path, HIDDEN, self.asks());
        let missed = match found {
            Ok(stat) => stat.stx_ino != self.hidden_handle.inode,
            Err(error) => error == rustix::io::Errno::NOENT,
        };
        match missed {
            true => self.hidden_missed.fetch_add(1, Ordering::Relaxed),
            false if self.is_hidden_gone() => 0,
            false => self.hidden_missed.swap(0, Ordering::Relaxed),
        };
    }

    /// Whether another folder may have taken the place of the hidden one.
    pub(super) fn is_hidden_gone(&self) -> bool {
        self.hidden_missed.load(Ordering::Relaxed) >= HIDDEN_MISSED_MAX
    }

    /// The file of a handle. The thread must act for nobody.
    pub(super) fn known(&self, handle: Handle) -> Done<Arc<Known>> {
        self.make_room()?;
        let found = self.table.find(handle);
        let found = found.map_or_else(|| self.unpark(handle), |known| Ok(Some(known)));
        found?.ok_or(Access::UnknownHandle)
    }

    /// Whether this is the name of the hidden folder in this directory.
    pub(super) fn is_hidden(&self, parent: &Known, name: &[u8]) -> bool {
        name == HIDDEN.as_bytes() && parent.handle == self.root.handle
    }

    /// Opens a name in a directory.
    pub(super) fn open_at(
        &self,
        dir: impl AsFd,
        name: impl rustix::path::Arg + Copy,
        flags: OFlags,
        mode: u32,
    ) -> Done<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(mode & 0o7777);
        self.with_room(|| rustix::fs::openat2(dir.as_fd(), name, flags, mode, RESOLVE))
    }

    /// Opens the file at a path below a directory, without rights to its data. Where the path is
    /// longer than a kernel takes it, one piece after the other.
    pub(super) fn open_below(&self, dir: impl AsFd, path: &[u8]) -> Done<OwnedFd> {
        let (mut at, mut rest) = (None::<OwnedFd>, path);
        loop {
            let dir = at.as_ref().map_or(dir.as_fd(), |dir| dir.as_fd());
            if rest.len() < PATH_MAX {
                return self.open_at(dir, rest, OFlags::PATH, 0);
            }
            let end = rest[..PATH_MAX].iter().rposition(|byte| *byte == b'/');
            let end = end.ok_or(Errno::ENAMETOOLONG)?;
            let piece = self.open_at(dir, &rest[..end], OFlags::PATH | OFlags::DIRECTORY, 0)?;
            (at, rest) = (Some(piece), &rest[end + 1..]);
        }
    }

    /// The path of a name below the root, as the kernel knows its directory now.
    pub(super) fn path_below(&self, parent: &Known, name: &[u8]) -> Option<Vec<u8>> {
        let parent = self.path_of(&parent.path)?;
        Some(match parent.is_empty() {
            true => name.to_vec(),
            false => [&parent, b"/".as_slice(), name].concat(),
        })
    }

    /// This directory, `depth` names below the root, and those above it, the nearest last. Those
    /// near the root are left out where they are many.
    pub(super) fn dirs_down_to(&self, dir: &Known, depth: usize) -> Vec<Handle> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut dirs = VecDeque::new();
        let mut at = None::<OwnedFd>;
        let mut handle = dir.handle;
        while dirs.len() < depth.min(TRAIL_MAX) && handle != self.root.handle {
            dirs.push_front(handle);
            let from = at.as_ref().map_or(dir.path.as_fd(), |dir| dir.as_fd());
            let up = self.with_room(|| rustix::fs::openat(from, "..", flags, Mode::empty()));
            let Ok(up) = up else { break };
            let Ok(stat) = sys::stat(&up) else { break };
            handle = sys::handle_of(&stat);
            at = Some(up);
        }
        dirs.into()
    }

    /// The path of a file below the root, as the kernel knows it now. Empty for the root.
    pub(super) fn path_of(&self, file: impl AsFd) -> Option<Vec<u8>> {
        let path_of = |file: BorrowedFd<'_>| {
            let path = rustix::fs::readlink(sys::proc_path(file), Vec::new());
            path.map(std::ffi::CString::into_bytes).ok()
        };
        let (root, path) = (path_of(self.root.path.as_fd())?, path_of(file.as_fd())?);
        let rest = path.strip_prefix(root.as_slice())?;
        // The root `/` ends with the slash that follows any other one.
        let rest = match rest.strip_prefix(b"/") {
            Some(rest) => rest,
            None if rest.is_empty() || root == b"/" => rest,
            None => return None,
        };
        Some(rest.to_vec())
    }

    /// Opens the file behind a descriptor once more, whatever its name is now.
    /// With the rights of whom the thread acts for, and never with those of a writer.
    pub(super) fn reopen(&self, fd: impl AsFd, flags: OFlags) -> Done<OwnedFd> {
        self.own.act_as_itself()?;
        let path = sys::proc_path(fd);
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        self.with_room(|| rustix::fs::open(&path, flags, Mode::empty()))
    }

    /// Adds the file behind an `O_PATH` descriptor to the known files, and returns its attributes.
    pub(super) fn adopt(&self, path: OwnedFd) -> Done<(Arc<Known>, Attr)> {
        let attr = sys::attr_of(&self.stat(&path).map_err(no)?);
        Ok((self.adopt_as(path, &attr)?, attr))
    }

    /// Does the same where the caller has just asked for the attributes.
    pub(super) fn adopt_as(&self, path: OwnedFd, attr: &Attr) -> Done<Arc<Known>> {
        if attr.handle == self.hidden_handle {
            return Err(Errno::ENOENT.into());
        }
        let known = self.table.insert(attr.handle, attr.mode & sys::KIND, path);
        if !known.is_open() {
            // Registered as open while it was not in the table.
            self.opens
                .if_open_here(attr.handle, || known.set_open(true));
        }
        Ok(known)
    }

    /// Whether statx saw a file of the exported file system, and not of one that is mounted on it.
    pub(super) fn is_ours(&self, stat: &rustix::fs::Statx) -> bool {
        sys::device_of(stat) == self.root_device && sys::handle_of(stat) != self.hidden_handle
    }

    /// Keeps a descriptor that reads and writes a file that was just created.
    pub(super) fn keep_data_fd(&self, known: &Known, fd: OwnedFd) -> Done<()> {
        let fd = self.bypass.for_writing(fd)?;
        let fd = Arc::new(self.for_data(fd));
        *known.data() = DataFds {
            read: Some(fd.clone()).filter(|_| !self.bypass.keeps_writes_apart()),
            write: Some(fd),
            ..DataFds::default()
        };
        Ok(())
    }

    /// Opens the file for data once more. The owner may use an open file whatever its mode has
    /// become. A forwarder that is not root widens the mode for that moment.
    pub(super) fn reopen_widened(&self, known: &Known, flags: OFlags) -> Done<OwnedFd> {
        let refused = match self.reopen(&known.path, flags) {
            Err(Access::Errno(Errno::EACCES)) => Access::Errno(Errno::EACCES),
            result => return result,
        };
        let _widening = self
            .widening
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let stat = self.stat(&known.path).map_err(no)?;
        if stat.stx_uid != self.own.uid() || known.kind != sys::REGULAR {
            return Err(refused);
        }
        let mode = Mode::from_raw_mode(u32::from(stat.stx_mode) & 0o7777);
        let path = sys::proc_path(&known.path);
        rustix::fs::chmod(&path, mode | Mode::RUSR | Mode::WUSR).map_err(|_| refused)?;
        let opened = self.reopen(&known.path, flags);
        rustix::fs::chmod(&path, mode).map_err(no)?;
        opened
    }

    /// The descriptor that moves a file's data past the page cache, if the file has one.
    pub(super) fn direct_fd(&self, known: &Known, direction: Direction) -> Option<Arc<Direct>> {
        if !self.direct.is_wanted() || known.kind != sys::REGULAR {
            return None;
        }
        let unsynced = !self.is_local;
        match known.direct(direction, unsynced, None) {
            DirectFd::Open(direct) => return Some(direct),
            DirectFd::Refused(_) => return None,
            DirectFd::Unknown => {}
        }
        let access = match direction {
            Direction::Read => OFlags::RDONLY,
            Direction::Write => OFlags::WRONLY,
        };
        let refused = |why: &dyn std::fmt::Display| {
            self.direct.tell(why);
            known.refuse_direct(direction);
            None
        };
        let fd = match self.reopen_widened(known, access | OFlags::DIRECT) {
            Ok(fd) => fd,
            Err(Access::Errno(errno)) if is_refusal(i32::from(errno.0)) => {
                return refused(&std::io::Error::from_raw_os_error(errno.0.into()));
            }
            // The buffered descriptor will fail in the same way, if it is not open yet.
            Err(_) => return None,
        };
        match Direct::new(self.table.counted(fd), direction) {
            Ok(Some(direct)) => {
                let found = known.direct(direction, unsynced, Some(Arc::new(direct)));
                found.descriptor().cloned()
            }
            Ok(None) => refused(&"the file system says so"),
            Err(error) => refused(&error),
        }
    }

    /// Makes a descriptor one for a file's data. Where there is direct I/O, keeps the kernel from
    /// reading ahead into the page cache, where direct writes would have to drop the pages again.
    pub(super) fn for_data(&self, fd: OwnedFd) -> Descriptor {
        if self.direct.is_wanted() {
            // A back end that does not support this advice works all the same.
            let _ = rustix::fs::fadvise(&fd, 0, None, rustix::fs::Advice::Random);
        }
        self.table.counted(fd)
    }
}

/// Whether the errno means that the file system does not support direct I/O.
fn is_refusal(errno: i32) -> bool {
    [libc::EINVAL, libc::EOPNOTSUPP, libc::ENOTTY].contains(&errno)
}

fn is_local(root: &Descriptor) -> bool {
    let found = rustix::fs::fstatfs(root);
    found.is_ok_and(|found| LOCAL.contains(&(found.f_type as u32)))
}

/// How many descriptors known files may have.
fn fds_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let open_max = limit.current.and_then(|max| usize::try_from(max).ok());
    open_max.map_or(FDS_MAX, |max| (max / 2).min(FDS_MAX))
}
