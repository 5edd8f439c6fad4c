//! What is wrong with the back end, for the status: as the host reports it, and as the errors of
//! calls to the back end show.

use super::receive::{Dispatch, Key};
use super::{Forwarder, Running};
use crate::back_end_files::{Access, Errno};
use crate::host::JobResult;
use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::format;
use tidegate_sched::{Direction, Time};

/// What the forwarder knows of the back end's health.
#[derive(Default)]
pub(super) struct BackEnd {
    /// What the host reported.
    told: Option<Box<str>>,
    /// The last call failed because its file is out of reach. Where the whole mount is, the host
    /// ends the process instead.
    pub(super) away: bool,
    /// The back end refused the last change because it is read-only.
    pub(super) read_only: bool,
}

impl BackEnd {
    pub(super) fn told(&mut self, trouble: Option<Box<str>>) {
        self.told = trouble;
    }

    /// Notes the result of a job. `changed` says whether the job was to change anything.
    pub(super) fn answered(&mut self, result: &JobResult, changed: bool) {
        match result {
            JobResult::Io { parts, .. } => parts.iter().for_each(|part| self.note(part, changed)),
            JobResult::Op(result) | JobResult::Change { result, .. } => self.note(result, changed),
            JobResult::Done => {}
        }
    }

    fn note<T>(&mut self, result: &Result<T, Access>, changed: bool) {
        match result {
            Err(Access::Errno(errno)) if is_away(*errno) => self.away = true,
            Err(Access::Errno(Errno::EROFS)) => self.read_only = true,
            // Refused by us, maybe: the back end was not asked.
            Err(_) => {}
            Ok(_) => {
                self.away = false;
                self.read_only &= !changed;
            }
        }
    }

    /// What is wrong, in words; None if nothing is.
    pub(super) fn trouble(&self) -> Option<&str> {
        let away = "a part of it is out of reach (ENOTCONN): look at its servers from this node";
        let read_only = "it is read-only (EROFS)";
        let told = self.told.as_deref().or(self.away.then_some(away));
        told.or(self.read_only.then_some(read_only))
    }
}

/// Whether a call fails with this errno only if a server of the back end is out of reach.
pub(super) fn is_away(errno: Errno) -> bool {
    [Errno::ECONNABORTED, Errno::ENOTCONN, Errno::ESHUTDOWN].contains(&errno)
}

impl Forwarder {
    /// What is wrong with the back end, in words for an operator: what the host reported or calls
    /// showed, or else that the back end does not answer.
    pub(super) fn trouble(&self) -> Option<Cow<'_, str>> {
        if let Some(told) = self.back_end.trouble() {
            return Some(told.into());
        }
        let seconds = |since: Time| self.now.since(since) / 1_000_000_000;
        let wants_seats = !self.seats.all_released();
        if let Some(since) = self.lapsed_at().filter(|_| wants_seats)
            && seconds(since) > 0
        {
            let text = format!(
                "the lease of the seats ran out {} s ago and could not be renewed since: it does \
                 not answer, or a stand-in does not give the seat back",
                seconds(since)
            );
            return Some(text.into());
        }
        if let Some((seat, since)) = self.hanging_take() {
            let text = format!(
                "it has not answered for {} s: seat {seat} was asked for",
                seconds(since)
            );
            return Some(text.into());
        }
        let holds = self.seats.iter().any(|(_, seat)| seat.has_lock());
        let since = self.late_since().filter(|_| holds)?;
        let text = format!(
            "the lease of the seats was renewed {} s ago last: what keeps it (the back end, or \
             etcd) does not answer",
            seconds(since)
        );
        (seconds(since) > 0).then(|| text.into())
    }

    /// Notes what the result of a job says of the back end. A success matters only if the back end
    /// was ill before.
    #[cold]
    pub(super) fn note_health(&mut self, running: &Running, result: &JobResult) {
        let changed = self.back_end.read_only && self.is_change(running);
        self.back_end.answered(result, changed);
    }

    fn is_change(&self, running: &Running) -> bool {
        let key = match running {
            Running::Io(ids) => ids.first().map(|id| (id >> 16) as Key),
            Running::Op(key) => Some(*key),
            Running::Check { .. } | Running::Reach { .. } | Running::Resolve { .. } => None,
            Running::Closed { .. } | Running::Persist { .. } => None,
        };
        key.is_some_and(|key| {
            let pending = &self.requests[key];
            // Changes of names and attributes have a reply slot.
            pending.reply_slot.is_some() || pending.dispatch == Dispatch::Data(Direction::Write)
        })
    }
}
