//! Executes the forwarder's jobs: on the files of the export by threads or io_uring, or on an
//! emulated device.
//!
//! The forwarder's loop hands a [`Job`] to a [`Storage`] and gets a [`Completion`] back. Payload
//! stays in the payload buffers of [`Slots`]; a job names its buffers by number. Only
//! [`PosixFiles`] touches the exported directory.

mod batch;
mod cache_gate;
mod completion_queue;
pub mod emulated;
pub mod faults;
pub mod fence;
mod job_queue;
mod job_width;
pub(crate) mod ofd;
pub mod pages;
pub mod pool;
pub mod posix;
mod raw_bytes;
#[cfg(test)]
pub(crate) mod scratch;
pub mod slots;
pub mod uring;

pub use emulated::{Emulated, EmulatedError};
pub(crate) use faults::die;
pub use faults::{FailCall, Faults, KillAfterEffect};
pub use fence::{Fence, Permit};
pub use pool::{PoolOptions, ThreadPool};
pub(crate) use posix::leave_node_memory;
pub use posix::{ExportError, ExportOptions, HIDDEN, PosixFiles, Trust};
pub use slots::{SharedMemory, SlotBuffer, SlotBytes, Slots};
pub use uring::{Uring, UringOptions, UringRefused};

use std::sync::Arc;
use std::time::Duration;
use tidegate_forward::{Job, JobId, JobResult};

/// Wakes the forwarder's loop, for example by a `mio::Waker`. A storage thread calls it after it
/// has queued a completion. It must not block.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// A job that was executed.
pub struct Completion {
    /// The job.
    pub job: JobId,
    /// Whose turn it took.
    asker: job_queue::Asker,
    /// Its result.
    pub result: JobResult,
}

/// Executes jobs, in any order, each exactly once.
pub trait Storage: Send {
    /// Starts a job and returns at once. The payload buffers that the job names must stay in
    /// [`Slots`] until its completion was taken. If more than the configured number of jobs wait,
    /// the job completes with EAGAIN.
    fn submit(&mut self, job: JobId, work: Job);

    /// Hands submitted jobs over to the kernel. Must be called after submitting, before the thread
    /// sleeps.
    fn flush(&mut self) {}

    /// A descriptor that becomes readable when there are completions, for storage that does not
    /// call [`Wake`] for all of them. It must be watched with edge-triggered events.
    fn wake_fd(&self) -> Option<std::os::fd::RawFd> {
        None
    }

    /// Appends the completions since the last call. Must be called after a wake, and after jobs
    /// were submitted, because some of these may have ended already.
    fn completions(&mut self, into: &mut Vec<Completion>);

    /// Whether jobs have ended while they were submitted, and their results should be sent before
    /// further jobs are submitted.
    fn is_to_send(&self) -> bool {
        false
    }

    /// How many data jobs are worth running at once: the scheduler's depth.
    fn depth(&self) -> u32;

    /// How long the oldest running job has run; zero if none runs.
    fn oldest(&self) -> Duration;

    /// Why the results of jobs that have ended since must not be reported, and the forwarder must
    /// end. None while all is well.
    fn failure(&self) -> Option<String> {
        None
    }

    /// What has been done since the start.
    fn counts(&self) -> Counts;

    /// Executes all submitted jobs and ends the threads. Their completions can still be taken.
    fn shutdown(&mut self);
}

/// Calls to the back end since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Data jobs that read. A batch counts once.
    pub read_calls: u64,
    /// Data jobs that write. A batch counts once.
    pub write_calls: u64,
    /// System calls that read data.
    pub read_syscalls: u64,
    /// System calls that write data.
    pub write_syscalls: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Jobs other than data jobs.
    pub operations: u64,
    /// Jobs that were waiting or running when this was counted.
    pub pending: u64,
    /// The files of the export.
    pub files: FileCounts,
}

/// Files of the export that are known now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileCounts {
    /// Their descriptors.
    pub descriptors: u64,
    /// Files that are open at clients and have none.
    pub parked: u64,
}

/// Prepares the process to be a forwarder. Must be called before threads start. Sets the
/// umask to 0, because clients have already applied theirs to the modes that they send. Makes a
/// file that reaches the size limit an error for its writer, not a signal. Raises the limit of open
/// files as far as the system allows.
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

#[cfg(test)]
mod tests;
