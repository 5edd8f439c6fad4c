//! Measures what a user's job takes, in the thread that executes it.

use crate::storage::job_width::JobTime;
use rustix::time::{ClockId, clock_gettime};
use std::mem::MaybeUninit;
use std::time::Duration;

/// What the thread had used when the job began.
pub(super) struct JobClock {
    began: Duration,
    computed: Duration,
    slept: libc::c_long,
}

impl JobClock {
    /// For a job that begins now, at this time of a clock that all jobs share.
    pub(super) fn start(began: Duration) -> JobClock {
        JobClock {
            began,
            computed: processor_time(),
            slept: sleeps(),
        }
    }

    /// What the job took that ends now.
    pub(super) fn end(&self, ended: Duration) -> JobTime {
        JobTime {
            ended,
            took: ended.saturating_sub(self.began),
            computed: processor_time().saturating_sub(self.computed),
            slept: sleeps() != self.slept,
        }
    }
}

/// How long the calling thread has had a processor.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

/// How often the calling thread has waited for anything but a processor.
fn sleeps() -> libc::c_long {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills it in, and zeros are a value of this type.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_nvcsw
    }
}
