//! What is wrong with the back end, for the status: what the host says of it, and what calls to it
//! say.

use crate::files::{Access, Errno};
use crate::host::JobResult;
use alloc::boxed::Box;

/// What is known of it.
#[derive(Default)]
pub(super) struct BackEnd {
    /// In the host's words.
    told: Option<Box<str>>,
    /// The last call said that there is no back end behind its mount.
    gone: bool,
}

impl BackEnd {
    pub(super) fn told(&mut self, trouble: Option<Box<str>>) {
        self.told = trouble;
    }

    /// A job has ended.
    pub(super) fn answered(&mut self, result: &JobResult) {
        match result {
            JobResult::Io { parts, .. } => parts.iter().for_each(|part| self.note(part)),
            JobResult::Op(result) => self.note(result),
            JobResult::Done => {}
        }
    }

    fn note<T>(&mut self, result: &Result<T, Access>) {
        match result {
            // Errors of all calls to a dead mount, and of none to a live one.
            Err(Access::Errno(Errno::ENOTCONN | Errno::ESHUTDOWN)) => self.gone = true,
            // Refused by us, maybe: the back end was not asked.
            Err(_) => {}
            Ok(_) => self.gone = false,
        }
    }

    /// In words, if something is wrong.
    pub(super) fn trouble(&self) -> Option<&str> {
        let gone = "its mount is dead (ENOTCONN): mount it again and start this forwarder again";
        self.told.as_deref().or(self.gone.then_some(gone))
    }
}
