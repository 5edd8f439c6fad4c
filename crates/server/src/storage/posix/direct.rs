//! Descriptors that bypass the page cache (`O_DIRECT`), and the alignment that they need.

use super::PosixFiles;
use super::descriptor::Descriptor;
use super::hidden::{draft_name, open_hidden_file};
use super::sys::Done;
use crate::storage::SlotBytes;
use crate::storage::cache_gate::Gate;
use crate::storage::raw_bytes::RawBytes;
use rustix::fs::{AtFlags, OFlags, StatxFlags};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidegate_sched::Direction;
use tidegate_wire::{Caller, Handle};

/// The alignment used where the kernel does not tell what is needed, in bytes: more than any device
/// needs.
const ALIGN_UNKNOWN: u64 = 4096;

/// A descriptor that bypasses the page cache.
pub(crate) struct Direct {
    pub(crate) fd: Descriptor,
    /// Memory addresses must be multiples of this.
    memory_align: u64,
    /// Offsets and lengths must be multiples of this.
    offset_align: u64,
}

/// Whether a file has such a descriptor.
#[derive(Clone, Default)]
pub(super) enum DirectFd {
    /// Not tried yet.
    #[default]
    Unknown,
    /// The file does not support direct I/O. A descriptor that may have written before that was
    /// known stays for the next sync.
    Refused(Option<Arc<Direct>>),
    /// The descriptor.
    Open(Arc<Direct>),
}

impl DirectFd {
    /// The descriptor, also one that is used no more.
    pub(super) fn descriptor(&self) -> Option<&Arc<Direct>> {
        match self {
            DirectFd::Unknown => None,
            DirectFd::Refused(before) => before.as_ref(),
            DirectFd::Open(direct) => Some(direct),
        }
    }
}

/// Whether an export uses direct I/O.
pub(super) struct DirectState {
    wanted: AtomicBool,
    /// Whether the log already says that a file does not support it.
    told: AtomicBool,
}

impl DirectState {
    pub(super) fn new(wanted: bool) -> DirectState {
        DirectState {
            wanted: AtomicBool::new(wanted),
            told: AtomicBool::new(false),
        }
    }

    /// Whether direct I/O is used for files that support it.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Logs once that there are files that do not support direct I/O.
    pub(super) fn tell(&self, why: &dyn std::fmt::Display) {
        if !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a file does not take direct I/O ({why}); its data, and that of others \
                 like it, goes through the page cache"
            );
        }
    }
}

impl Direct {
    /// Whether these bytes may be moved to or from this offset of the file.
    pub(in crate::storage) fn takes(&self, offset: u64, bytes: RawBytes<'_>) -> bool {
        let address = bytes.start() as u64;
        (offset | bytes.len() as u64).is_multiple_of(self.offset_align)
            && address.is_multiple_of(self.memory_align)
    }

    /// Whether a read that moved this many of the requested bytes has reached the end of the file:
    /// direct reads end within a block only there.
    pub(crate) fn is_end(&self, moved: usize) -> bool {
        !(moved as u64).is_multiple_of(self.offset_align)
    }

    /// Finds out the alignment that a descriptor needs. None if it does not support direct I/O
    /// after all. Writes cover whole pages, so that no page is shared with a write through the page
    /// cache.
    pub(super) fn new(fd: Descriptor, direction: Direction) -> std::io::Result<Option<Direct>> {
        // Clears O_NONBLOCK, with which io_uring would fail where it had to wait.
        rustix::fs::fcntl_setfl(&fd, OFlags::DIRECT)?;
        let flags = AtFlags::EMPTY_PATH;
        let stat = rustix::fs::statx(&fd, c"", flags, StatxFlags::DIOALIGN)?;
        let (memory_align, offset_align) = match stat.stx_mask & StatxFlags::DIOALIGN.bits() {
            0 => (ALIGN_UNKNOWN, ALIGN_UNKNOWN),
            _ => (
                stat.stx_dio_mem_align.into(),
                stat.stx_dio_offset_align.into(),
            ),
        };
        if memory_align == 0 || offset_align == 0 {
            return Ok(None);
        }
        let offset_align = match direction {
            Direction::Read => offset_align,
            Direction::Write => offset_align.max(rustix::param::page_size() as u64),
        };
        Ok(Some(Direct {
            fd,
            memory_align,
            offset_align,
        }))
    }
}

/// A direct descriptor, if there is one, and the gate that calls must pass, if there is one.
type DirectAndGate = (Option<Arc<Direct>>, Option<Arc<Gate>>);

impl PosixFiles {
    /// Whether data bypasses the page cache where files support direct I/O.
    pub(crate) fn is_direct(&self) -> bool {
        self.export.direct.is_wanted()
    }

    /// Whether data bypasses the page cache, by direct I/O or by [`PosixFiles::bypasses`].
    pub(crate) fn avoids_pages(&self) -> bool {
        self.is_direct() || self.bypasses()
    }

    /// Tries direct I/O on the export. The error says why it does not work.
    pub(crate) fn try_direct(&self) -> std::io::Result<()> {
        self.direct_draft().map(|_| ())
    }

    /// Stops using direct I/O, because the export does not support it.
    pub(crate) fn forget_direct(&self) {
        self.export.direct.wanted.store(false, Ordering::Relaxed);
    }

    /// Stops direct I/O on a file that refused a call which its descriptor had promised to take.
    pub(crate) fn direct_refused(&self, handle: Handle, direction: Direction) {
        self.export.direct.tell(&"Invalid argument");
        if let Some(known) = self.export.table.find(handle) {
            known.refuse_direct(direction);
        }
    }

    /// A file's direct descriptor and its gate, if both are open already. Does not wait.
    pub(crate) fn direct_at_hand(
        &self,
        handle: Handle,
        direction: Direction,
    ) -> Option<(Arc<Direct>, Arc<Gate>)> {
        let known = self.export.table.find(handle)?;
        let unsynced = !self.export.is_local;
        let DirectFd::Open(direct) = known.direct(direction, unsynced, None) else {
            return None;
        };
        Some((direct, known.gate.clone()))
    }

    /// A file's direct descriptor, opened if necessary, and its gate if calls must pass it.
    pub(crate) fn direct_and_gate(
        &self,
        handle: Handle,
        direction: Direction,
    ) -> Done<DirectAndGate> {
        if !self.is_direct() {
            return Ok((None, None));
        }
        let known = self.export.known(handle)?;
        let direct = self.export.direct_fd(&known, direction);
        Ok((direct, Some(known.gate.clone())))
    }

    /// Whether threads take on the ids of callers. Then writes of data have the credentials of
    /// their writers.
    pub(crate) fn acts_for_callers(&self) -> bool {
        self.export.own.acts_for_callers()
    }

    /// Runs `act` with the credentials that writes for this user have, which the kernel may then
    /// keep.
    pub(crate) fn as_writer<T>(
        &self,
        writer: Option<&Caller>,
        act: impl FnOnce() -> T,
    ) -> std::io::Result<T> {
        let failed = super::as_io_error;
        self.export.own.write_as(writer).map_err(failed)?;
        let done = act();
        drop(self.export.own.act_as(None).map_err(failed)?);
        Ok(done)
    }

    /// Opens a nameless file in the hidden folder for direct I/O, on which it is tried.
    pub(crate) fn direct_draft(&self) -> std::io::Result<Direct> {
        let hidden = self.export.hidden();
        let name = draft_name("direct");
        let file = open_hidden_file(hidden, &name)?;
        let opened = self
            .export
            .reopen(file.as_fd(), OFlags::RDWR | OFlags::DIRECT);
        rustix::fs::unlinkat(hidden, &name, AtFlags::empty())?;
        let fd = self
            .export
            .table
            .counted(opened.map_err(super::as_io_error)?);
        let direct = Direct::new(fd, Direction::Write)?.ok_or(std::io::ErrorKind::Unsupported)?;
        let mut page = SlotBytes::zeroed(direct.offset_align as usize);
        rustix::io::pwrite(&direct.fd, &page, 0)?;
        rustix::io::pread(&direct.fd, &mut *page, 0)?;
        Ok(direct)
    }
}
