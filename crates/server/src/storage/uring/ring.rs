//! The ring and its table of registered buffers: makes the ring and tries it at the start, and
//! explains whatever forbids it.

use super::writers::Writers;
use crate::storage::slots::{Memory, SlotBuffer};
use crate::storage::{PosixFiles, SlotBytes};
use io_uring::squeue::Entry;
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, types};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tidegate_wire::Caller;

/// How long the trial may take.
const TRIAL_MAX: Duration = Duration::from_secs(10);

/// The most registered buffers.
const REGISTERED_MAX: u32 = 1024;

/// Smaller buffers gain nothing from being registered.
const REGISTERED_BYTES_MIN: usize = 32 << 10;

/// Why io_uring cannot be used here, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UringRefused {
    /// The kernel refuses to make a ring.
    #[error("{advice} ({error})")]
    Ring {
        /// What to do about it.
        advice: String,
        /// The error of the system.
        error: io::Error,
    },
    /// The kernel is too old.
    #[error("this kernel's io_uring lacks reads and writes of buffers (Linux 5.6 has them)")]
    Old,
    /// The file system of the export refuses io_uring.
    #[error("a trial in the exported directory failed: {0}")]
    Trial(io::Error),
    /// A thread could not be started.
    #[error("storage threads: {0}")]
    Threads(io::Error),
}

/// The ring, the credentials of its writes, and its table of registered buffers.
pub(super) struct Ring {
    pub(super) uring: IoUring,
    pub(super) registered: Registered,
    writers: Writers,
}

impl Ring {
    /// Makes a ring for `depth` calls at once, and tries it on the export.
    pub(super) fn open(files: &PosixFiles, depth: u32) -> Result<Ring, UringRefused> {
        let uring = made(depth)?;
        let mut ring = Ring {
            registered: Registered::new(&uring),
            uring,
            writers: Writers::default(),
        };
        ring.try_on(files).map_err(UringRefused::Trial)?;
        Ok(ring)
    }

    /// A descriptor that is readable while there are completions.
    pub(super) fn fd(&self) -> RawFd {
        self.uring.as_raw_fd()
    }

    /// The kernel's number of the credentials that writes for this user have; None: those of the
    /// process.
    pub(super) fn credentials(
        &mut self,
        files: &PosixFiles,
        writer: Option<&Caller>,
    ) -> io::Result<Option<u16>> {
        self.writers.number(&mut self.uring, files, writer, submit)
    }

    /// Queues a call. False if there is no room before the next [`Ring::submit`].
    ///
    /// # Safety
    ///
    /// The memory that the entry points to stays valid until the completion with this mark was
    /// taken.
    pub(super) unsafe fn push(
        &mut self,
        entry: Entry,
        credentials: Option<u16>,
        mark: u64,
    ) -> bool {
        let mut entry = entry.user_data(mark);
        if let Some(credentials) = credentials {
            entry = entry.personality(credentials);
        }
        // SAFETY: promised by the caller.
        unsafe { self.uring.submission().push(&entry) }.is_ok()
    }

    /// Submits the queued calls to the kernel.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        submit(&mut self.uring)
    }

    /// The next completion: its mark, and the number of bytes or a negative errno.
    pub(super) fn next(&mut self) -> Option<(u64, i32)> {
        let entry = self.uring.completion().next()?;
        Some((entry.user_data(), entry.result()))
    }

    /// Waits for a completion, at most for `time`.
    pub(super) fn wait(&mut self, time: Duration) {
        let time = Timespec::from(time);
        let args = SubmitArgs::new().timespec(&time);
        // Time over, a signal: the caller looks what there is.
        let _ = self.uring.submitter().submit_with_args(1, &args);
    }

    /// Writes a page to a nameless file of the export and reads it back.
    fn try_on(&mut self, files: &PosixFiles) -> io::Result<()> {
        let file = files.direct_draft()?;
        let fd = types::Fd(file.fd.as_raw_fd());
        let len = rustix::param::page_size();
        let mut page = SlotBytes::zeroed(len);
        page.fill(0xA5);
        let write = opcode::Write::new(fd, page.start(), len as u32).build();
        let back = SlotBytes::zeroed(len);
        let read = opcode::Read::new(fd, back.start(), len as u32).build();
        let credentials = self.credentials(files, None)?;
        for (entry, credentials) in [(write, credentials), (read, None)] {
            // SAFETY: both pages outlive the call, or are leaked below.
            let _ = unsafe { self.push(entry, credentials, 0) };
            self.wait(TRIAL_MAX);
            match self.next() {
                Some((_, moved)) if moved == len as i32 => {}
                Some((_, errno)) if errno < 0 => {
                    return Err(io::Error::from_raw_os_error(-errno));
                }
                Some(_) => return Err(io::ErrorKind::WriteZero.into()),
                None => {
                    std::mem::forget((page, back, file));
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
        }
        match *page == *back {
            true => Ok(()),
            false => Err(io::Error::other("a page came back changed")),
        }
    }
}

/// Submits the queued calls of a ring to the kernel.
fn submit(uring: &mut IoUring) -> io::Result<()> {
    loop {
        if uring.submission().is_empty() {
            return Ok(());
        }
        match uring.submit() {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// A ring for `depth` calls at once, of a kernel that knows the calls.
pub(super) fn made(depth: u32) -> Result<IoUring, UringRefused> {
    let made = IoUring::builder().setup_coop_taskrun().build(depth);
    let made = match made {
        // Before Linux 5.19: the kernel interrupts to say that something is finished.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::new(depth),
        made => made,
    };
    let uring = made.map_err(refused)?;
    let mut known = Probe::new();
    let needed = [
        opcode::Readv::CODE,
        opcode::Writev::CODE,
        opcode::ReadFixed::CODE,
        opcode::WriteFixed::CODE,
    ];
    let probed = uring.submitter().register_probe(&mut known);
    if probed.is_err() || !needed.iter().all(|code| known.is_supported(*code)) {
        return Err(UringRefused::Old);
    }
    Ok(uring)
}

/// Translates the kernel's error into what forbids a ring.
fn refused(error: io::Error) -> UringRefused {
    let switch = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    let switch = switch.unwrap_or_default();
    let advice = match (error.raw_os_error(), switch.trim()) {
        (Some(libc::ENOSYS), _) => "this kernel has no io_uring, or a sandbox hides it".to_string(),
        (Some(libc::EPERM | libc::EACCES), "1" | "2") => format!(
            "io_uring is switched off: /proc/sys/kernel/io_uring_disabled is {}",
            switch.trim()
        ),
        (Some(libc::EPERM | libc::EACCES), _) => {
            "io_uring is forbidden here, perhaps by the seccomp profile of a container".to_string()
        }
        (Some(libc::ENOMEM), _) => {
            "io_uring needs more locked memory: raise the limit (ulimit -l)".to_string()
        }
        _ => "io_uring cannot be had".to_string(),
    };
    UringRefused::Ring { advice, error }
}

/// The ring's table of buffers that are registered with the kernel. Their pages stay pinned, so
/// that a call need not pin them.
///
/// A buffer is registered when it is first used in a call, and stays registered as long as it
/// lives. Buffers are reused in the order last freed, first used, so few buffers do most of the
/// work. For a user other than root, pinned pages count against RLIMIT_MEMLOCK. A buffer that
/// exceeds the limit is used unregistered.
pub(super) struct Registered {
    /// The buffers by index. The entry of a freed buffer is cleared when the next one is
    /// registered.
    entries: Vec<Option<Weak<Mutex<Memory>>>>,
    /// Why no more buffers can be registered, if so.
    refusal: Option<String>,
}

impl Registered {
    /// An empty table, if the kernel supports one.
    fn new(uring: &IoUring) -> Registered {
        let made = uring.submitter().register_buffers_sparse(REGISTERED_MAX);
        let refusal = made
            .err()
            .map(|error| format!("the kernel has no table for it: {error}"));
        Registered {
            entries: (0..REGISTERED_MAX).map(|_| None).collect(),
            refusal,
        }
    }

    /// Whether buffers can be registered; if not, the error says why.
    pub(super) fn works(&self) -> Result<(), &str> {
        match &self.refusal {
            None => Ok(()),
            Some(why) => Err(why),
        }
    }

    /// The index of the buffer, if it is registered or can be registered now.
    pub(super) fn index(
        &mut self,
        uring: &IoUring,
        buffer: &SlotBuffer,
        bytes: &mut Memory,
    ) -> Option<u16> {
        let Memory::Own(bytes) = bytes else {
            return None;
        };
        if bytes.registered.is_some()
            || bytes.len() < REGISTERED_BYTES_MIN
            || self.refusal.is_some()
        {
            return bytes.registered;
        }
        self.sweep(uring);
        let index = self.entries.iter().position(Option::is_none)?;
        match update(uring, index, bytes.start(), bytes.len()) {
            Ok(()) => {
                self.entries[index] = Some(Arc::downgrade(buffer));
                bytes.registered = Some(index as u16);
            }
            Err(error) => {
                tracing::warn!(
                    "{} buffers are registered with io_uring and no more ({error}): a higher \
                     limit of locked memory (ulimit -l) saves processor time",
                    self.entries.iter().flatten().count()
                );
                self.refusal = Some(format!("{error}"));
            }
        }
        bytes.registered
    }

    /// Unpins the pages of buffers that were freed.
    fn sweep(&mut self, uring: &IoUring) {
        for (index, entry) in self.entries.iter_mut().enumerate() {
            let gone = |weak: &mut Weak<_>| weak.strong_count() == 0;
            if entry.take_if(gone).is_some()
                && let Err(error) = update(uring, index, std::ptr::null_mut(), 0)
            {
                tracing::warn!(%error, "io_uring keeps a buffer that is gone");
            }
        }
    }
}

fn update(uring: &IoUring, index: usize, start: *mut u8, len: usize) -> io::Result<()> {
    let bytes = libc::iovec {
        iov_base: start.cast(),
        iov_len: len,
    };
    // SAFETY: the memory is used by calls only while its task holds the buffer; afterwards the
    // kernel keeps pages, and touches none.
    unsafe {
        uring
            .submitter()
            .register_buffers_update(index as u32, &[bytes], None)
    }
}
