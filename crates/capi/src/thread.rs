//! The library's own thread, as the scheduler that it serves knows it.

use std::thread::JoinHandle;

/// How a thread shall end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    Drain,
    Cancel,
}

/// The thread as its instance knows it.
pub(crate) struct Thread {
    /// It waits, so what happens must wake it.
    pub(crate) waits: bool,
    pub(crate) stop: Option<Stop>,
    pub(crate) ended: bool,
    pub(crate) joined: JoinHandle<()>,
}

impl Thread {
    /// Whether no request is taken any more.
    pub(crate) fn stops(&self) -> bool {
        self.stop.is_some()
    }
}
