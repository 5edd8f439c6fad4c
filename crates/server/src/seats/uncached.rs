//! A file of the hidden folder that is read and written past the page cache of this node.
//!
//! Data that another node may have written, or that must survive a crash of this node, bypasses the
//! page cache: by direct I/O, in whole pages. Where a file system does not support direct I/O,
//! writes still reach the device or the servers before they return, and reads are as fresh as the
//! page cache.

use crate::storage::posix::open_hidden_with;
use rustix::fs::{AtFlags, OFlags, StatxFlags};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Once;

/// The unit of reads and writes in bytes: the alignment for direct I/O of all devices that we know.
pub(super) const PAGE: usize = 4096;

/// Memory with the alignment for direct I/O.
#[derive(Clone)]
#[repr(align(4096))]
pub(super) struct Page(pub(super) [u8; PAGE]);

impl Page {
    pub(super) const ZERO: Page = Page([0; PAGE]);
}

/// The extended attribute that holds a note.
const NOTE: &str = "user.tidegate.lease";
/// The longest note, in bytes.
const NOTE_MAX: usize = 1024;

/// A file that is read and written past the page cache.
pub(super) struct UncachedFile {
    fd: OwnedFd,
    way: Way,
}

/// How far a write goes before it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// To the servers of a shared file system, which are other nodes.
    Past,
    /// To the device of this node's own file system.
    Stable,
    /// To the page cache: it survives a crash of the process only.
    Cached,
}

impl Way {
    fn flags(self) -> OFlags {
        match self {
            Way::Past => OFlags::DIRECT,
            Way::Stable => OFlags::DIRECT | OFlags::DSYNC,
            Way::Cached => OFlags::empty(),
        }
    }
}

impl UncachedFile {
    /// Makes a file; None if it exists already.
    pub(super) fn make(dir: BorrowedFd<'_>, name: &str, way: Way) -> io::Result<Option<Self>> {
        let exclusive = OFlags::CREATE | OFlags::EXCL;
        match open(dir, name, way, exclusive) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            made => made.map(Some),
        }
    }

    /// A file that never has room, for tests.
    #[cfg(test)]
    pub(super) fn full() -> Self {
        let full = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/full");
        UncachedFile {
            fd: full.expect("every Linux has it").into(),
            way: Way::Cached,
        }
    }

    /// Opens a file; None if it does not exist.
    pub(super) fn open(dir: BorrowedFd<'_>, name: &str, way: Way) -> io::Result<Option<Self>> {
        match open(dir, name, way, OFlags::empty()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Whether a name exists on the back end.
    pub(super) fn is_there(dir: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
        match rustix::fs::statx(dir, name, flags, StatxFlags::INO) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a name leads to this file on the back end.
    pub(super) fn is_at(&self, dir: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
        let own = rustix::fs::statx(&self.fd, c"", AtFlags::EMPTY_PATH, StatxFlags::INO)?;
        match rustix::fs::statx(dir, name, flags, StatxFlags::INO) {
            Ok(found) => Ok(found.stx_ino == own.stx_ino),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Stores a few bytes beside the contents of the file.
    pub(super) fn set_note(&self, bytes: &[u8]) -> io::Result<()> {
        assert!(bytes.len() <= NOTE_MAX, "a note is short");
        let how = rustix::fs::XattrFlags::empty();
        rustix::fs::fsetxattr(&self.fd, NOTE, bytes, how)?;
        // A client of a shared file system may delay attributes for a while.
        if self.way != Way::Cached {
            rustix::fs::fsync(&self.fd)?;
        }
        Ok(())
    }

    /// The stored bytes, if there are any.
    pub(super) fn note(&self) -> io::Result<Option<Vec<u8>>> {
        use rustix::io::Errno;
        let mut bytes = vec![0; NOTE_MAX];
        match rustix::fs::fgetxattr(&self.fd, NOTE, &mut bytes[..]) {
            Ok(len) => {
                bytes.truncate(len);
                Ok(Some(bytes))
            }
            // A note in another format does not count.
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The file's length now, in bytes, whichever node has made it longer.
    pub(super) fn len(&self) -> io::Result<u64> {
        begin_call();
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        let stat = rustix::fs::statx(&self.fd, c"", flags, StatxFlags::SIZE)?;
        Ok(stat.stx_size)
    }

    /// Fills pages from an offset. Beyond the end of the file they are zeros.
    pub(super) fn read(&self, at: u64, pages: &mut [Page]) -> io::Result<()> {
        // The kernel trusts its own size of the file before it asks for bytes.
        self.read_below(self.len()?, at, pages)
    }

    /// Does the same where the length is known.
    pub(super) fn read_below(&self, len: u64, at: u64, pages: &mut [Page]) -> io::Result<()> {
        let bytes = bytes_of_mut(pages);
        let there = len.saturating_sub(at).min(bytes.len() as u64) as usize;
        let mut done = 0;
        while done < there {
            let from = at + done as u64;
            let into = &mut bytes[done..];
            begin_call();
            match rustix::io::retry_on_intr(|| rustix::io::pread(&self.fd, &mut *into, from))? {
                0 => {
                    let what = format!("a file of {len} bytes has none at {from}");
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
                }
                read => done += read,
            }
        }
        bytes[there..].fill(0);
        Ok(())
    }

    /// Writes pages at an offset.
    pub(super) fn write(&self, at: u64, pages: &[Page]) -> io::Result<()> {
        #[cfg(test)]
        if full::IS_FULL.get() {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let bytes = bytes_of(pages);
        let mut done = 0;
        while done < bytes.len() {
            let (rest, from) = (&bytes[done..], at + done as u64);
            begin_call();
            match rustix::io::retry_on_intr(|| rustix::io::pwrite(&self.fd, rest, from))? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => done += written,
            }
        }
        Ok(())
    }

    /// Whether writes reach the device or the servers before they return.
    #[cfg(test)]
    pub(super) fn is_past_cache(&self) -> bool {
        let flags = rustix::fs::fcntl_getfl(&self.fd).expect("flags");
        flags.intersects(OFlags::DIRECT | OFlags::DSYNC)
    }

    /// Gives back the room of whole pages, where the file system supports that.
    pub(super) fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        begin_call();
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::io::retry_on_intr(|| fallocate(&self.fd, flags, at, len))?;
        Ok(())
    }
}

/// For tests of one thread: a back end that accepts no bytes, like a full CephFS.
#[cfg(test)]
pub(super) mod full {
    use std::cell::Cell;

    thread_local! {
        pub(in crate::seats) static IS_FULL: Cell<bool> = const { Cell::new(false) };
    }
}

fn bytes_of(pages: &[Page]) -> &[u8] {
    // SAFETY: a page is an array of bytes, as long as it is aligned, so pages lie side by side.
    unsafe { std::slice::from_raw_parts(pages.as_ptr().cast(), pages.len() * PAGE) }
}

fn bytes_of_mut(pages: &mut [Page]) -> &mut [u8] {
    // SAFETY: as above, and any bytes are a page.
    unsafe { std::slice::from_raw_parts_mut(pages.as_mut_ptr().cast(), pages.len() * PAGE) }
}

fn open(dir: BorrowedFd<'_>, name: &str, way: Way, more: OFlags) -> io::Result<UncachedFile> {
    let opened = open_hidden_with(dir, name, OFlags::RDWR | way.flags() | more);
    let fd = match opened {
        Err(error)
            if error.raw_os_error() == Some(libc::EINVAL)
                && way.flags().contains(OFlags::DIRECT) =>
        {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| {
                tracing::warn!(
                    "the file system of the export has no direct I/O: leases and reply tables are \
                     written through its page cache to its device or servers"
                );
            });
            // The file may have been made before the call was refused.
            let more = more & !OFlags::EXCL | OFlags::DSYNC;
            open_hidden_with(dir, name, OFlags::RDWR | more)?
        }
        opened => opened?,
    };
    Ok(UncachedFile { fd, way })
}

/// Notes that a call to the back end begins, for tests.
fn begin_call() {
    #[cfg(test)]
    slow::begin_call();
}

/// For tests: a back end whose calls take time by a test's clock.
#[cfg(test)]
pub(super) mod slow {
    use std::cell::RefCell;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    thread_local! {
        static COST: RefCell<Option<(Vec<Arc<AtomicU64>>, u64)>> = const { RefCell::new(None) };
        static MEANWHILE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    }

    /// Runs `what` during the next call of this thread.
    pub(in crate::seats) fn meanwhile(what: impl FnOnce() + 'static) {
        MEANWHILE.set(Some(Box::new(what)));
    }

    /// Makes each later call of this thread take `ns` by these clocks.
    pub(in crate::seats) fn each_call_takes(clocks: &[Arc<AtomicU64>], ns: u64) {
        COST.with(|cost| *cost.borrow_mut() = Some((clocks.to_vec(), ns)));
    }

    pub(super) fn begin_call() {
        if let Some(what) = MEANWHILE.take() {
            what();
        }
        COST.with(|cost| {
            let cost = cost.borrow();
            for (clocks, ns) in cost.iter() {
                for clock in clocks {
                    clock.fetch_add(*ns, Ordering::AcqRel);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::scratch::Scratch;
    use std::os::fd::AsFd;

    #[test]
    fn pages_come_back_and_what_is_beyond_the_end_is_zeros() {
        let scratch = Scratch::new("uncached");
        let dir: OwnedFd = std::fs::File::open(scratch.path()).expect("there").into();
        for (way, name) in [(Way::Past, "a"), (Way::Stable, "b"), (Way::Cached, "c")] {
            assert!(
                UncachedFile::open(dir.as_fd(), name, way)
                    .expect("look")
                    .is_none()
            );
            let file = UncachedFile::make(dir.as_fd(), name, way).expect("make");
            let file = file.expect("new");
            assert!(
                UncachedFile::make(dir.as_fd(), name, way)
                    .expect("make")
                    .is_none()
            );
            let (one, two) = (Page([1; PAGE]), Page([2; PAGE]));
            file.write(PAGE as u64, &[one, two]).expect("write");
            let again = UncachedFile::open(dir.as_fd(), name, way).expect("open");
            let again = again.expect("there");
            assert_eq!(again.len().expect("stat"), 3 * PAGE as u64);
            let mut pages = vec![Page([9; PAGE]); 4];
            again.read(0, &mut pages).expect("read");
            let firsts: Vec<u8> = pages.iter().map(|page| page.0[0]).collect();
            assert_eq!(firsts, [0, 1, 2, 0]);
        }
    }

    #[test]
    fn files_are_opened_as_their_way_demands() {
        use rustix::fs::{Mode, fcntl_getfl, openat};
        let scratch = Scratch::new("uncached-flags");
        let dir: OwnedFd = std::fs::File::open(scratch.path()).expect("there").into();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::DIRECT;
        // Some file systems of memory have no direct I/O.
        let has_direct = openat(&dir, "probe", flags, Mode::RWXU).is_ok();
        let direct = has_direct.then_some(OFlags::DIRECT);
        let direct = direct.unwrap_or(OFlags::DSYNC);
        for (way, name, demanded) in [
            (Way::Past, "a", direct),
            (Way::Stable, "b", direct | OFlags::DSYNC),
            (Way::Cached, "c", OFlags::empty()),
        ] {
            let made = UncachedFile::make(dir.as_fd(), name, way).expect("make");
            let opened = UncachedFile::open(dir.as_fd(), name, way).expect("open");
            for file in [made.expect("new"), opened.expect("there")] {
                let flags = fcntl_getfl(&file.fd).expect("flags");
                let flags = flags & (OFlags::DIRECT | OFlags::DSYNC);
                assert_eq!(flags, demanded, "{way:?}");
            }
        }
    }

    #[test]
    fn bytes_that_must_be_there_and_are_not_are_an_error() {
        let scratch = Scratch::new("uncached-short");
        let dir: OwnedFd = std::fs::File::open(scratch.path()).expect("there").into();
        let file = UncachedFile::make(dir.as_fd(), "a", Way::Past).expect("make");
        let file = file.expect("new");
        file.write(0, &[Page([1; PAGE])]).expect("write");
        let mut pages = vec![Page::ZERO; 2];
        let read = file.read_below(2 * PAGE as u64, 0, &mut pages);
        let kind = read.expect_err("a page is missing").kind();
        assert_eq!(kind, io::ErrorKind::UnexpectedEof);
    }
}
