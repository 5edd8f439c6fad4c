//! Handles replies: each ends its request or makes the core send it elsewhere, and some carry news
//! that the core records, such as which node has written bytes that are not stable yet.

use super::hints::{Service, ServiceDelta};
use super::requests::{Id, LATER, Pending, Place, Purpose, Target};
use super::types::whose;
use super::{Core, Ending, Opened};
use crate::core::Errno;
use crate::payload::Payload;
use crate::wire::frame::NOTICE;
use crate::wire::{Attr, Handle, LockKind, Op, Outcome, RenameMode, Reply, Status};

/// The result of a request: outcome and payload, or an errno.
pub(super) type Settled = Result<(Outcome, Payload), Errno>;

impl Core {
    pub(super) fn received(&mut self, forwarder: usize, reply: Reply, payload: Payload) {
        self.epoch = self.epoch.max(reply.epoch);
        if self.is_greeting(forwarder, &reply) {
            return;
        }
        if reply.id == NOTICE {
            return self.noticed(forwarder, &reply);
        }
        let session = &mut self.sessions[forwarder];
        if !session.sent.remove(reply.id) {
            return;
        }
        session.waits.remove(reply.id);
        session.introducing.remove(&reply.id);
        self.answered(forwarder, reply, payload);
        match self.ending {
            None => self.flush(forwarder),
            Some(Ending::Until(_)) => self.end_if_quiet(),
            Some(Ending::Ended) => {}
        }
    }

    /// Handles a notice: a forwarder recalls what it has lent, or it has given a seat away. Then
    /// the core starts the recovery at the next holder now, since perhaps no call comes before its
    /// grace time is over.
    fn noticed(&mut self, forwarder: usize, notice: &Reply) {
        let away = notice.result == Err(Status::NotMySeat) && self.ending.is_none();
        let known = usize::from(notice.seat) < self.seats.len();
        if let Ok(Outcome::Recalled(Some(handle))) = notice.result {
            return self.recalled(forwarder, handle);
        }
        if away && known && self.serves(notice.seat, forwarder) {
            self.leave(notice.seat, forwarder, None);
        }
    }

    fn answered(&mut self, forwarder: usize, mut reply: Reply, payload: Payload) {
        let id = reply.id;
        let Some(pending) = self.requests.get_mut(&id) else {
            return;
        };
        pending.place = Place::Nowhere;
        if let Some(hints) = &pending.hints {
            let app = whose(hints, pending.caller.as_ref());
            match reply.result {
                Ok(_) | Err(Status::Errno(_)) => {
                    let service = Service::of(pending, reply.charged_ns);
                    self.charges.charged(app, forwarder, service);
                }
                Err(_) => {
                    let delta = ServiceDelta::of_hints(hints);
                    self.charges.give_back(app, forwarder, delta);
                }
            }
        }
        let (seat, purpose) = (pending.seat, pending.purpose);
        let by_seat = pending.target == Target::Seat || pending.purpose == Purpose::Recover;
        let resolves = matches!(pending.purpose, Purpose::ResolvePath { .. });
        // A late reply of a former holder does not count: the request goes to the present one.
        if by_seat && reply.generation != 0 && self.is_former(seat, reply.generation) {
            return self.route(id);
        }
        if by_seat && !matches!(reply.result, Err(Status::NotMySeat)) {
            self.served(seat, forwarder);
            let known = &mut self.seats[usize::from(seat)];
            let changed = matches!(reply.result, Err(Status::NewGeneration));
            if known.generation == 0 && !changed && known.recovery.is_none() {
                known.generation = reply.generation;
            }
        }
        let directory = self.take_lent(forwarder, &mut reply);
        match reply.result {
            Ok(outcome) => self.settled(forwarder, id, Ok((outcome, payload))),
            Err(Status::Errno(errno)) => {
                let errno = Errno(i32::from(errno));
                match self.polls_again(id, errno) {
                    true => self.later(id, LATER),
                    false => self.settled(forwarder, id, Err(errno)),
                }
            }
            Err(Status::TryLater) => self.later(id, LATER),
            Err(Status::UnknownHandle) => self.unknown_handle(forwarder, id),
            Err(Status::NotMySeat) if matches!(purpose, Purpose::Fsync { .. }) => {
                self.fsync_elsewhere(forwarder, id);
            }
            Err(Status::NotMySeat) if by_seat => self.leave(seat, forwarder, Some(id)),
            // The forwarder cannot ask its back end: requests that wait for the path go to another.
            Err(Status::NotMySeat) if resolves => self.forwarder_lost(forwarder, id),
            Err(Status::NewGeneration) if by_seat => {
                self.new_generation(forwarder, id, reply.generation);
            }
            Err(_) => self.settled(forwarder, id, Err(Errno::PROTO)),
        }
        // Only now is the change over.
        if let Some(lent) = directory {
            self.lent_directory(&lent);
        }
    }

    /// Whether the client knows that another forwarder has since taken the seat with a higher
    /// generation.
    fn is_former(&self, seat: u16, generation: u64) -> bool {
        let known = &self.seats[usize::from(seat)];
        let recovering = known.recovery.as_ref();
        let recovering = recovering.is_some_and(|recovery| generation < recovery.generation);
        generation < known.generation || recovering
    }

    /// Ends a request with its final answer.
    pub(super) fn settled(&mut self, forwarder: usize, id: Id, result: Settled) {
        let Some(pending) = self.remove(id) else {
            return;
        };
        self.changed(&pending, &result);
        self.learn(forwarder, &pending, &result);
        let done = result.as_ref().map(|_| ()).map_err(|errno| *errno);
        match pending.purpose {
            Purpose::Part { call, part } if !pending.abandoned => {
                if let (true, Ok((outcome, _))) = (pending.caches, &result) {
                    let lasts_ns = self.cache_attr(&pending.op, outcome, pending.caller.as_ref());
                    let active = self.calls.get_mut(&call);
                    active.into_iter().for_each(|it| it.lasts_ns = lasts_ns);
                }
                self.note(call, forwarder);
                self.part_done(call, part, result);
            }
            Purpose::Part { .. } | Purpose::Background => match pending.op {
                Op::Open { handle, open, .. } if done.is_ok() => {
                    self.close_unwanted(handle, open, pending.seat);
                }
                Op::Fsync { handle, .. } => self.unheard(handle, done),
                _ => self.lock_abandoned(&pending, done.is_ok()),
            },
            Purpose::Fsync { call, part } => match pending.op {
                Op::Fsync { handle, .. } if pending.abandoned => self.unheard(handle, done),
                _ => self.fsynced(call, part, done),
            },
            Purpose::LookAhead { call } => self.looked_ahead(call, *pending, result),
            Purpose::Session => {}
            Purpose::ResolvePath { handle } => self.path_resolved(forwarder, handle, done),
            Purpose::Recover => self.reclaimed(id, &pending, done),
            Purpose::Probe => self.seats[usize::from(pending.seat)].probe = None,
            Purpose::TakeBack { handle, lock } => self.restore(handle, lock, pending.seat),
            Purpose::Restore { key } => self.release_gate(key),
        }
    }

    /// Handles a request whose only possible forwarder is gone.
    pub(super) fn forwarder_lost(&mut self, forwarder: usize, id: Id) {
        let Some(pending) = self.requests.get(&id) else {
            return;
        };
        match pending.purpose {
            Purpose::Fsync { .. } if !pending.abandoned => self.fsync_step(id),
            // Its waiters ask whoever serves their seat now.
            Purpose::ResolvePath { handle } => {
                self.remove(id);
                self.path_resolved(forwarder, handle, Ok(()));
            }
            Purpose::Part { .. } if !pending.abandoned => {
                self.settled(forwarder, id, Err(Errno::CONNREFUSED));
            }
            _ => drop(self.remove(id)),
        }
    }

    /// Records what a reply says about names, opens, locks and unstable writes, even if its caller
    /// waits no longer.
    fn learn(&mut self, forwarder: usize, pending: &Pending, result: &Settled) {
        let wanted = !pending.abandoned;
        match (&pending.op, result) {
            (Op::Lookup { parent, name }, Err(Errno::NOENT)) => {
                self.names.removed(*parent, name);
            }
            // Names that come ahead are learnt when a program asks for them.
            (_, Ok(_)) if matches!(pending.purpose, Purpose::LookAhead { .. }) => {}
            (op, Ok((outcome, _))) => {
                self.learn_names(op, outcome);
                self.learn_unstable(forwarder, pending.seat, op);
                if wanted && matches!(pending.purpose, Purpose::Part { .. }) {
                    self.learn_open(pending);
                }
                if wanted || pending.releases() {
                    self.learn_lock(op);
                }
            }
            _ => {}
        }
    }

    pub(super) fn learn_names(&mut self, op: &Op, outcome: &Outcome) {
        match (op, outcome) {
            (Op::Lookup { parent, name }, Outcome::Attr(attr))
            | (Op::Create { parent, name, .. }, Outcome::Attr(attr))
            | (Op::Mkdir { parent, name, .. }, Outcome::Attr(attr))
            | (Op::Mknod { parent, name, .. }, Outcome::Attr(attr))
            | (Op::Symlink { parent, name, .. }, Outcome::Attr(attr))
            | (Op::Link { parent, name, .. }, Outcome::Attr(attr)) => {
                self.seen(*parent, name, attr);
            }
            (Op::Readdir { handle, .. }, Outcome::Entries(listing)) => {
                for entry in &listing.entries {
                    if let Some(attr) = &entry.attr {
                        self.seen(*handle, &entry.name, attr);
                    }
                }
            }
            (Op::Unlink { parent, name } | Op::Rmdir { parent, name }, _) => {
                self.names.removed(*parent, name);
            }
            (
                Op::Rename {
                    parent,
                    name,
                    new_parent,
                    new_name,
                    mode,
                },
                _,
            ) => {
                let exchange = *mode == RenameMode::Exchange;
                self.names
                    .moved((*parent, name), (*new_parent, new_name), exchange);
            }
            _ => {}
        }
    }

    fn seen(&mut self, parent: Handle, name: &[u8], attr: &Attr) {
        if self.root.is_some_and(|root| root.handle != attr.handle) {
            self.names.seen(parent, name, attr.handle);
        }
    }

    /// Records written bytes that the forwarder's node has only in its memory.
    fn learn_unstable(&mut self, forwarder: usize, seat: u16, op: &Op) {
        let Some(identity) = self.sessions[forwarder].identity else {
            return;
        };
        match op {
            Op::Write { handle, .. }
            | Op::Append { handle }
            | Op::Setattr { handle, .. }
            | Op::Fallocate { handle, .. }
            | Op::CopyRange { handle, .. } => self.unstable.wrote(*handle, identity, seat),
            _ => {}
        }
    }

    fn learn_open(&mut self, pending: &Pending) {
        if let Op::Open {
            handle,
            open,
            read,
            write,
        } = &pending.op
        {
            let opened = Opened {
                read: *read,
                write: *write,
                opener: pending.caller.clone(),
            };
            if self.opens.insert((*handle, *open), opened).is_none() {
                self.names.opened(*handle);
            }
        }
    }

    fn learn_lock(&mut self, op: &Op) {
        match op {
            Op::SetLock {
                handle,
                lock,
                reclaim: false,
                ..
            } => {
                debug_assert!(lock.kind == LockKind::None || lock.start <= lock.end);
                self.locks.set(*handle, *lock);
            }
            Op::DropLocks {
                handle,
                family,
                owner,
            } => self.locks.drop_all(&(*handle, *family, *owner)),
            _ => {}
        }
    }
}
