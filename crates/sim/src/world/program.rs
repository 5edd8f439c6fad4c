//! The programs of simulated processes: a process asks its program for one step after the other.

use crate::rng::Rng;
use tidegate_sched::Direction;
use tidegate_wire::Extents;

/// A program of one process of an application.
pub trait Program: Send {
    /// The next step, asked for when the last one is done.
    fn next(&mut self, rng: &mut Rng) -> Step;
}

/// One access of a file, by one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Number of the file, the same for all processes that share it.
    pub file: u64,
    /// Read or write.
    pub direction: Direction,
    /// Which bytes, ascending.
    pub extents: Extents,
    /// Its part in a collective operation, if its requests shall carry hints.
    pub part: Option<Part>,
}

/// A part of a collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The operation's number, as in [`Step::Begin`].
    pub operation: u64,
    /// Work that follows, ns.
    pub shuffle_ns: u64,
    /// The longest that follows any part, ns.
    pub shuffle_max_ns: u64,
    /// How many parts have a longer one.
    pub rank: u16,
    /// The access ends when the work that follows is over. Else the program does that work.
    pub with_shuffle: bool,
}

/// What a process does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read or write, and wait for the answer.
    Call(Access),
    /// Read or write without waiting.
    Issue(Access),
    /// Read or write at a time, and wait for the answer. Skip the access once it is too late for
    /// it.
    Timed {
        /// When, ns since the process's start.
        at_ns: u64,
        /// Not any more from then on, ns since the process's start.
        until_ns: u64,
        /// What.
        access: Access,
    },
    /// Make what was written of a file durable, and wait for the answer.
    Sync(u64),
    /// Wait until at most this number of the process's accesses have no answer.
    Drain(u32),
    /// Wait for all processes of the application.
    Barrier,
    /// Compute, ns.
    Think(u64),
    /// Wait until a time since the start of the run, ns; at once if it is over.
    Until(u64),
    /// Send bytes to another process of the application, by its rank.
    Send {
        /// To whom.
        rank: u32,
        /// How many.
        bytes: u64,
    },
    /// Wait for this number of messages for which the process has not waited yet.
    Receive(u32),
    /// The process begins its part of the application's operation of this number. The operation's
    /// time runs from the first process's beginning to the last one's end.
    Begin(u64),
    /// The process has ended its part of the operation.
    End(u64),
    /// The program has ended, once all its accesses have been answered.
    Exit,
}
