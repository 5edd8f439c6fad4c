//! I/O past the page cache at any place and length. It is for back ends that do not keep the page
//! caches of several nodes consistent, such as file systems through FUSE and NFS.
//!
//! Descriptors are opened with `O_DIRECT`, which such file systems accept without any alignment.
//! Two habits of the kernel must be avoided:
//!
//! - The kernel completes a short direct read through the page cache. So pages of the range that
//!   an earlier call may have left there are dropped first, and the read counts only if the cache
//!   has no pages of the range afterwards ([`super::ends`]).
//! - When a direct write fails beyond what the kernel takes for the end of the file, FUSE truncates
//!   the file to that size, and so loses what other nodes have written since. FUSE without a
//!   write-back cache passes buffered writes on before they return, and does not truncate. So the
//!   FUSE daemon sees `O_DIRECT` when the descriptor is opened, and then the kernel's flag is
//!   cleared.

use super::PosixFiles;
use super::hidden::{draft_name, open_hidden_file};
use super::sys::{Done, no};
use rustix::fs::{Advice, AtFlags, OFlags};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tidegate_wire::Handle;

/// The bytes that the trial writes, and their offset; neither is aligned.
const TRIAL: (&[u8], u64) = (b"abc", 1);

/// Whether all data bypasses the page cache.
pub(super) struct Bypass {
    wanted: bool,
    /// Whether buffered writes have been passed on when they return, as the trial has found.
    writes_through: AtomicBool,
    /// Counts by file; several files may share one.
    drops: [Arc<Drops>; DROPS],
}

/// How many counts there are.
const DROPS: usize = 64;

/// Counts how often pages of a file were dropped. A thread whose read made the kernel cache pages
/// does not find them if another thread has dropped them meanwhile; these counts tell the reading
/// thread.
#[derive(Default)]
pub(super) struct Drops {
    started: AtomicU32,
    finished: AtomicU32,
}

impl Drops {
    /// Makes the kernel drop its cached pages of that range.
    pub(super) fn drop_pages(&self, fd: impl AsFd, offset: u64, len: u64) {
        self.started.fetch_add(1, Ordering::SeqCst);
        drop_pages(fd, offset, len);
        self.finished.fetch_add(1, Ordering::SeqCst);
    }

    /// How many drops were finished; must be noted before a read.
    pub(super) fn finished(&self) -> u32 {
        self.finished.load(Ordering::SeqCst)
    }

    /// Whether a drop was under way since that was noted.
    pub(super) fn since(&self, finished: u32) -> bool {
        self.started.load(Ordering::SeqCst) != finished
    }
}

/// Whether the kernel caches or has cached pages of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cached {
    None,
    Some,
    /// The kernel does not tell (before Linux 6.5, or for files of other users).
    Unknown,
}

/// What the kernel tells of the pages of a range. Pages that it evicted for want of memory count.
pub(super) fn cached_pages(fd: impl AsFd, offset: u64, len: u64) -> Cached {
    match page_counts(fd, offset, len) {
        None => Cached::Unknown,
        Some(counts) if counts.cached + counts.evicted > 0 => Cached::Some,
        Some(_) => Cached::None,
    }
}

impl Bypass {
    pub(super) fn new(wanted: bool) -> Bypass {
        Bypass {
            wanted,
            writes_through: AtomicBool::new(false),
            drops: std::array::from_fn(|_| Arc::default()),
        }
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// The flags with which regular files are opened for their data.
    pub(super) fn flags(&self) -> OFlags {
        match self.wanted {
            true => OFlags::DIRECT,
            false => OFlags::empty(),
        }
    }

    /// Whether writes use a descriptor of their own, which must not be used for reads.
    pub(super) fn keeps_writes_apart(&self) -> bool {
        self.writes_through.load(Ordering::Relaxed)
    }

    /// Makes a descriptor that was opened with [`Self::flags`] fit for writes.
    pub(super) fn for_writing(&self, fd: OwnedFd) -> Done<OwnedFd> {
        if self.keeps_writes_apart() {
            let flags = rustix::fs::fcntl_getfl(&fd).map_err(no)?;
            rustix::fs::fcntl_setfl(&fd, flags - OFlags::DIRECT).map_err(no)?;
        }
        Ok(fd)
    }
}

/// Makes the kernel drop its cached pages of that range.
fn drop_pages(fd: impl AsFd, offset: u64, len: u64) {
    let page = rustix::param::page_size() as u64;
    let begin = offset - offset % page;
    let len = (offset - begin).saturating_add(len).next_multiple_of(page);
    // A back end that does not support this advice keeps no pages.
    let _ = rustix::fs::fadvise(fd, begin, NonZeroU64::new(len), Advice::DontNeed);
}

impl PosixFiles {
    /// Whether data bypasses the page cache at any place and length.
    pub(crate) fn bypasses(&self) -> bool {
        self.export.bypass.is_wanted()
    }

    /// The count of the file's dropped pages.
    pub(super) fn drops(&self, handle: Handle) -> &Arc<Drops> {
        &self.export.bypass.drops[handle.inode as usize % DROPS]
    }

    /// Tries whether data written at any offset can be read past the page cache at any offset. The
    /// error says why not. Must be called before data is moved.
    pub(crate) fn try_bypass(&self) -> io::Result<()> {
        let name = draft_name("bypass");
        let file = open_hidden_file(self.hidden(), &name)?;
        let open = |access| self.export.reopen(file.as_fd(), access | OFlags::DIRECT);
        let opened = open(OFlags::RDONLY).and_then(|read| Ok((read, open(OFlags::WRONLY)?)));
        let tried = match opened {
            Ok((read, write)) => self.try_on(&read, &write),
            Err(refusal) => Err(super::as_io_error(refusal)),
        };
        drop(file);
        rustix::fs::unlinkat(self.hidden(), &name, AtFlags::empty())?;
        tried
    }

    fn try_on(&self, read: &OwnedFd, write: &OwnedFd) -> io::Result<()> {
        let (bytes, offset) = TRIAL;
        let check = |write: &OwnedFd, bytes: &[u8]| {
            let written = rustix::io::pwrite(write, bytes, offset)?;
            drop_pages(read, 0, 8);
            let mut found = [b'?'; 8];
            let len = rustix::io::pread(read, &mut found[1..], 0)?;
            match written == bytes.len() && len == 4 && found[2..5] == *bytes {
                true => Ok(()),
                false => Err(io::Error::other(
                    "direct reads do not show what was written",
                )),
            }
        };
        check(write, bytes)?;
        if !is_of_fuse(read)? {
            return Ok(());
        }
        let flags = rustix::fs::fcntl_getfl(write)?;
        rustix::fs::fcntl_setfl(write, flags - OFlags::DIRECT)?;
        let before = accounted();
        rustix::io::pwrite(write, b"xyz", offset)?;
        match held_back(write).or_else(|| accounted()?.checked_sub(before?)) {
            Some(0) => check(write, b"xyz")?,
            Some(_) => {
                // With a write-back cache the kernel does not trust the back end's size either.
                return Err(io::Error::other(
                    "the mount holds writes back in this node's memory (a write-back cache)",
                ));
            }
            None => {
                return Err(io::Error::other(
                    "the kernel does not tell whether the mount holds writes back in this node's \
                     memory (Linux 6.5 does, or one that accounts I/O in /proc/thread-self/io)",
                ));
            }
        }
        self.export
            .bypass
            .writes_through
            .store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// Whether a process serves the file through the kernel's FUSE.
fn is_of_fuse(fd: &OwnedFd) -> io::Result<bool> {
    const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;
    Ok(rustix::fs::fstatfs(fd)?.f_type as i64 == FUSE_SUPER_MAGIC)
}

/// The bytes of this thread's writes that the kernel has kept in the page cache so far; None if the
/// kernel does not count them. Writes that go to the mount's process at once are not counted.
fn accounted() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/io").ok()?;
    let count = text
        .lines()
        .find_map(|line| line.strip_prefix("write_bytes: "));
    count?.parse().ok()
}

/// How many dirty pages of the file's beginning the kernel keeps; None if it does not tell.
fn held_back(fd: &OwnedFd) -> Option<u64> {
    page_counts(fd, 0, 1).map(|counts| counts.dirty + counts.being_written)
}

/// The kernel's `struct cachestat`.
#[repr(C)]
#[derive(Default)]
struct PageCounts {
    cached: u64,
    dirty: u64,
    being_written: u64,
    evicted: u64,
    lately_evicted: u64,
}

/// What the kernel tells of the pages of a range; None if it does not tell (before Linux 6.5, or
/// for files of other users).
fn page_counts(fd: impl AsFd, offset: u64, len: u64) -> Option<PageCounts> {
    const CACHESTAT: libc::c_long = 451;
    let range: [u64; 2] = [offset, len];
    let mut counts = PageCounts::default();
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open, and the kernel reads two numbers and writes five.
    let done = unsafe { libc::syscall(CACHESTAT, fd, &range, &raw mut counts, 0) };
    (done == 0).then_some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::scratch::Scratch;
    use std::io::Write;

    #[test]
    fn a_buffered_write_is_held_back_until_it_is_synced() {
        let scratch = Scratch::new("held-back");
        let mut file = std::fs::File::create(scratch.path().join("f")).expect("room");
        file.write_all(&[7; 4096]).expect("room");
        let kind = crate::backend::Backend::of(&file).expect("mounted").kind;
        let fd = OwnedFd::from(file);
        // Older kernels do not say, and a tmpfs has nowhere to write to.
        if kind == "tmpfs" || held_back(&fd).is_none() {
            return println!("skipped, the kernel does not say or has only memory");
        }
        assert_eq!(held_back(&fd), Some(1));
        // What kernels tell that are too old for that.
        let before = accounted();
        rustix::io::pwrite(&fd, b"another page", 4096).expect("room");
        let both = accounted().zip(before);
        assert!(
            both.is_none_or(|(after, before)| after > before),
            "{both:?}"
        );
        rustix::fs::fsync(&fd).expect("synced");
        assert_eq!(held_back(&fd), Some(0));
    }
}
