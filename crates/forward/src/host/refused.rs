//! Jobs that the host does not do, and what is said of them.

use super::{Job, JobResult};
use crate::back_end_files::Access;

/// The kind of a refused job, which decides the form of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedJob {
    /// [`Job::Io`] with so many parts.
    Io(usize),
    /// An operation.
    Op,
    /// A job without a result.
    Other,
}

impl RefusedJob {
    /// The result of the refused job, with this error.
    pub fn result(self, refusal: impl Into<Access>) -> JobResult {
        let refusal = refusal.into();
        match self {
            RefusedJob::Io(parts) => JobResult::Io {
                parts: alloc::vec![Err(refusal); parts],
                device_ns: 0,
            },
            RefusedJob::Op => JobResult::Op(Err(refusal)),
            RefusedJob::Other => JobResult::Done,
        }
    }
}

impl Job {
    /// This job as a refused one.
    pub fn refused(&self) -> RefusedJob {
        match self {
            Job::Io { parts, .. } => RefusedJob::Io(parts.len()),
            Job::Op { .. } | Job::Persist { .. } => RefusedJob::Op,
            Job::Resolve { .. } | Job::Closed { .. } => RefusedJob::Other,
            Job::Refused(refused) => *refused,
        }
    }
}

impl JobResult {
    /// Whether the job, or a part of it, was not done.
    pub(crate) fn has_failed(&self) -> bool {
        match self {
            JobResult::Io { parts, .. } => parts.iter().any(Result::is_err),
            JobResult::Op(result) | JobResult::Change { result, .. } => result.is_err(),
            JobResult::Done => false,
        }
    }
}
