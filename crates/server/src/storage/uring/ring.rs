//! The ring: makes it and tries it at the start, and explains whatever forbids it.

use super::registered::Registered;
use crate::storage::{PosixFiles, SlotBytes};
use io_uring::squeue::Entry;
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, types};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;
use tidegate_sched::Direction;

/// How long the trial may take.
const TRIAL_MAX: Duration = Duration::from_secs(10);

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
    /// The kernel's number of the credentials that writes use; None: those of the process.
    writer: Option<u16>,
}

impl Ring {
    /// Makes a ring for `depth` calls at once, and tries it on the export.
    pub(super) fn open(files: &PosixFiles, depth: u32) -> Result<Ring, UringRefused> {
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
        // Writes take set-id bits away as those of the pool's threads do, whichever thread of the
        // kernel carries them out.
        let writer = files.as_writer(|| uring.submitter().register_personality());
        let writer = writer.and_then(Option::transpose);
        let mut ring = Ring {
            registered: Registered::new(&uring),
            uring,
            writer: writer.map_err(UringRefused::Trial)?,
        };
        ring.try_on(files).map_err(UringRefused::Trial)?;
        Ok(ring)
    }

    /// A descriptor that is readable while there are completions.
    pub(super) fn fd(&self) -> RawFd {
        self.uring.as_raw_fd()
    }

    /// Queues a call. False if there is no room before the next [`Ring::submit`].
    ///
    /// # Safety
    ///
    /// The memory that the entry points to stays valid until the completion with this mark was
    /// taken.
    pub(super) unsafe fn push(&mut self, entry: Entry, direction: Direction, mark: u64) -> bool {
        let mut entry = entry.user_data(mark);
        if let (Direction::Write, Some(writer)) = (direction, self.writer) {
            entry = entry.personality(writer);
        }
        // SAFETY: promised by the caller.
        unsafe { self.uring.submission().push(&entry) }.is_ok()
    }

    /// Submits the queued calls to the kernel.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        loop {
            if self.uring.submission().is_empty() {
                return Ok(());
            }
            match self.uring.submit() {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
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
        for (entry, direction) in [(write, Direction::Write), (read, Direction::Read)] {
            // SAFETY: both pages outlive the call, or are leaked below.
            let _ = unsafe { self.push(entry, direction, 0) };
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
