//! The wait of one request: where it is, and how much of its time has no cause yet.

use super::wait_sums::WaitSums;
use tidegate_sched::{Cause, Time};

/// Where a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// It is not one that counts, or is not that far.
    #[default]
    Checked,
    /// A chunk, behind the one of its transfer that the forwarder executes.
    BehindChunk,
    /// The scheduler has parts of it that wait, or has no room for it yet.
    Queued,
    /// The back end executes all parts that are not done.
    Running,
}

/// The wait of one outstanding request.
pub(super) struct Wait {
    /// Since when its time is in no cause yet.
    pub(super) since: Time,
    /// When it was received, less what it had waited for memory.
    came: Time,
    memory_ns: u64,
    pub(super) checks_ns: u64,
    /// Parts that have not gone to the device, and those of them that an overlapping request holds
    /// back.
    pub(super) waiting: u32,
    pub(super) held: u32,
    pub(super) state: State,
    /// Its application's place in `DeviceTime`.
    pub(super) place: u8,
    /// Whether it is known what was so at the time `since`.
    pub(super) compares: bool,
    /// Whether it has been known before: what had come then is what was before it.
    pub(super) looked: bool,
}

impl Wait {
    /// Of a request that is received now and has waited so long for memory.
    #[inline]
    pub(super) fn new(now: Time, memory_ns: u64) -> Wait {
        Wait {
            since: now,
            came: Time(now.0.saturating_sub(memory_ns)),
            memory_ns,
            checks_ns: 0,
            waiting: 0,
            held: 0,
            state: State::Checked,
            place: 0,
            compares: false,
            looked: false,
        }
    }

    /// Whether all of it that waits is held back for overlapping requests.
    pub(super) fn is_held(&self) -> bool {
        self.held == self.waiting
    }

    /// The time in no cause yet, which goes to one now.
    pub(super) fn take_ns(&mut self, now: Time) -> u64 {
        let ns = now.since(self.since);
        self.since = now;
        ns
    }

    /// A chunk waits until the one before it is done.
    pub(super) fn behind_chunk(&mut self, now: Time) {
        self.checks_ns += self.take_ns(now);
        self.state = State::BehindChunk;
    }

    /// Adds what it has waited until now before it came to the scheduler, unless it is in the sums
    /// already.
    pub(super) fn charge_checks(&mut self, now: Time, sums: &mut WaitSums) {
        if self.state == State::Checked {
            self.checks_ns += self.take_ns(now);
        }
        sums.add(Cause::Memory, core::mem::take(&mut self.memory_ns));
        sums.add(Cause::Checks, core::mem::take(&mut self.checks_ns));
    }

    /// It is answered, and has run. Adds what is not in the sums yet.
    #[inline]
    pub(super) fn end(&self, now: Time, sums: &mut WaitSums) {
        if self.memory_ns | self.checks_ns > 0 {
            sums.add(Cause::Memory, self.memory_ns);
            sums.add(Cause::Checks, self.checks_ns);
        }
        sums.add(Cause::Service, now.since(self.since));
        sums.answered(now.since(self.came));
    }

    /// Whether it still waits to go to the device.
    #[inline]
    pub(super) fn is_queued(&self) -> bool {
        self.state == State::Queued
    }

    /// Whether it has passed the scheduler.
    #[inline]
    pub(super) fn has_run(&self) -> bool {
        self.state == State::Running
    }
}
