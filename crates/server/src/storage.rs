//! Executes the forwarder's jobs: on the files of the export by threads or io_uring, or on an
//! emulated device.
//!
//! The forwarder's loop hands a [`Job`] to a [`Storage`] and gets a [`Completion`] back. Payload
//! stays in the payload buffers of [`Slots`]; a job names its buffers by number. Only
//! [`PosixFiles`] touches the exported directory.

mod batch;
mod cache_gate;
pub(crate) mod dead;
pub mod emulated;
mod ends;
pub mod faults;
pub mod fence;
pub(crate) mod ofd;
pub mod pages;
pub mod pool;
pub mod posix;
mod route;
#[cfg(test)]
pub(crate) mod scratch;
pub mod shared;
pub mod slot_memory;
pub mod slots;
pub mod uring;

pub use emulated::{Emulated, EmulatedError};
pub use faults::{Faults, KillAfterEffect};
pub use fence::{Fence, Permit};
pub use pool::{PoolOptions, ThreadPool};
pub use posix::{ExportError, ExportOptions, HIDDEN, PosixFiles};
pub use shared::SharedMemory;
pub use slot_memory::SlotBytes;
pub use slots::{SlotBuffer, Slots};
pub use uring::{Uring, UringOptions, UringRefused};

use std::sync::Arc;
use std::time::Duration;
use tidegate_forward::{Job, JobId, JobResult};

/// Called from a storage thread after a completion was queued: wakes the reactor (for example a
/// `mio::Waker`). It must not block.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// A job that has ended.
pub struct Completion {
    /// Which.
    pub job: JobId,
    /// What came of it.
    pub result: JobResult,
}

/// Carries out jobs, in any order, each exactly once.
pub trait Storage: Send {
    /// Starts a job and returns at once. The slots that it names are in [`Slots`] until the job's
    /// completion was taken. When more than the configured number of jobs wait, the job completes
    /// with EAGAIN.
    fn submit(&mut self, job: JobId, work: Job);

    /// Hands over to the kernel what was submitted. Call it after submitting, before sleeping.
    fn flush(&mut self) {}

    /// A descriptor that becomes readable when there are completions, for storage that calls no
    /// [`Wake`] for all of them. Watch it with edges.
    fn wake_fd(&self) -> Option<std::os::fd::RawFd> {
        None
    }

    /// Appends what has ended since the last call. Call it after a wake, and after jobs were
    /// submitted: some have ended by then.
    fn completions(&mut self, into: &mut Vec<Completion>);

    /// Data jobs that are worth having at once: the scheduler's depth.
    fn depth(&self) -> u32;

    /// How long the oldest job that has begun and not ended has been running; zero if there is
    /// none.
    fn oldest(&self) -> Duration;

    /// Why nothing that has ended since may be told to anybody, and the forwarder is to end; None
    /// while all is well.
    fn failure(&self) -> Option<String> {
        None
    }

    /// What has been done so far.
    fn counts(&self) -> Counts;

    /// Finishes what was submitted and ends the threads. Their completions can still be taken.
    fn shutdown(&mut self);
}

/// Calls to the back end since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Data jobs that read: a batch counts once.
    pub read_calls: u64,
    /// Data jobs that write.
    pub write_calls: u64,
    /// System calls that read data.
    pub read_syscalls: u64,
    /// System calls that write data.
    pub write_syscalls: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Jobs that are no data jobs.
    pub operations: u64,
    /// Jobs that waited or ran when last counted.
    pub pending: u64,
}

/// Makes the process fit to be a forwarder; call it once before threads start. Modes come from
/// clients that have applied their umask, so the process has none; a file that reaches the size
/// limit is an error for its writer and no signal; and as many files may be open as the system
/// allows.
pub fn prepare_process() {
    rustix::process::umask(rustix::fs::Mode::empty());
    // SAFETY: ignoring a signal runs no code of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}
