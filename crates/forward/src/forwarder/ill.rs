//! What is wrong with the back end, for the status: as the host reports it, and as the errors of
//! calls to the back end show.

use super::pending_request::{Dispatch, Key};
use super::{Forwarder, Running};
use crate::back_end_files::{Access, Errno};
use crate::host::JobResult;
use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::format;
use tidegate_sched::{Direction, Time};

/// What is known of it.
#[derive(Default)]
pub(super) struct BackEnd {
    /// In the host's words.
    told: Option<Box<str>>,
    /// The last call said that what it asked for is out of reach. Where all of the mount is, the
    /// host ends the process instead.
    away: bool,
    /// The last change was refused because it is read-only.
    read_only: bool,
}

impl BackEnd {
    pub(super) fn told(&mut self, trouble: Option<Box<str>>) {
        self.told = trouble;
    }

    /// A job has ended; `changed` says whether it was to change anything.
    pub(super) fn answered(&mut self, result: &JobResult, changed: bool) {
        match result {
            JobResult::Io { parts, .. } => parts.iter().for_each(|part| self.note(part, changed)),
            JobResult::Op(result) => self.note(result, changed),
            JobResult::Done => {}
        }
    }

    /// Whether calls have told something that a success may end.
    pub(super) fn is_ill(&self) -> bool {
        self.away || self.read_only
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

    /// In words, if something is wrong.
    pub(super) fn trouble(&self) -> Option<&str> {
        let away = "a part of it is out of reach (ENOTCONN): look at its servers from this node";
        let read_only = "it is read-only (EROFS)";
        let told = self.told.as_deref().or(self.away.then_some(away));
        told.or(self.read_only.then_some(read_only))
    }
}

/// Errors of calls to a server of the back end that is gone; of none to one that answers.
pub(super) fn is_away(errno: Errno) -> bool {
    [Errno::ECONNABORTED, Errno::ENOTCONN, Errno::ESHUTDOWN].contains(&errno)
}

impl Forwarder {
    /// What is wrong with the back end, in words for an operator: what the host or calls say, else
    /// what follows from its silence.
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

    /// Takes notice of what a job's end says of the back end: a failure something, a success only
    /// if the back end is ill.
    #[cold]
    pub(super) fn note_health(&mut self, running: &Running, result: &JobResult) {
        let changed = self.back_end.read_only && self.is_change(running);
        self.back_end.answered(result, changed);
    }

    fn is_change(&self, running: &Running) -> bool {
        let key = match running {
            Running::Io(ids) => ids.first().map(|id| (id >> 16) as Key),
            Running::Op(key) => Some(*key),
            Running::Check { .. } | Running::Resolve { .. } => None,
            Running::Closed { .. } | Running::Persist { .. } => None,
        };
        key.is_some_and(|key| {
            let pending = &self.requests[key];
            // Changes of names and attributes have a reply slot.
            pending.reply_slot.is_some() || pending.dispatch == Dispatch::Data(Direction::Write)
        })
    }
}
