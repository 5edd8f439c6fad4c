//! Handles replies: each ends its request or makes the core send it elsewhere, and some carry news
//! that the core records, such as which node has written bytes that are not stable yet.

use super::hints::{Service, ServiceDelta};
use super::requests::{Id, LATER, Pending, Place, Purpose, Target};
use super::types::whose;
use super::{Core, Ending, Opened};
use crate::core::Errno;
use crate::wire::frame::NOTICE;
use crate::wire::{Attr, Handle, LockKind, Op, Outcome, RenameMode, Reply, Status};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Largest number of files with unstable writes. Beyond it the client counts the writes of one as
/// anybody's, and each fsync asks their node too.
const FILES_MAX: usize = 65_536;

/// The result of a request: outcome and payload, or an errno.
pub(super) type Settled = Result<(Outcome, Bytes), Errno>;

impl Core {
    pub(super) fn received(&mut self, forwarder: usize, reply: Reply, payload: Bytes) {
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

    /// Handles a notice that a forwarder has given a seat away. The core starts the recovery at the
    /// next holder now, since perhaps no call comes before its grace time is over.
    fn noticed(&mut self, forwarder: usize, notice: &Reply) {
        let away = notice.result == Err(Status::NotMySeat) && self.ending.is_none();
        let known = usize::from(notice.seat) < self.seats.len();
        if away && known && self.serves(notice.seat, forwarder) {
            self.leave(notice.seat, forwarder, None);
        }
    }

    fn answered(&mut self, forwarder: usize, reply: Reply, payload: Bytes) {
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
        self.learn(forwarder, &pending, &result);
        let done = result.as_ref().map(|_| ()).map_err(|errno| *errno);
        match pending.purpose {
            Purpose::Part { call, part } if !pending.abandoned => {
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

    fn learn_names(&mut self, op: &Op, outcome: &Outcome) {
        match (op, outcome) {
            (Op::Lookup { parent, name }, Outcome::Attr(attr))
            | (Op::Create { parent, name, .. }, Outcome::Attr(attr))
            | (Op::Mkdir { parent, name, .. }, Outcome::Attr(attr))
            | (Op::Mknod { parent, name, .. }, Outcome::Attr(attr))
            | (Op::Symlink { parent, name, .. }, Outcome::Attr(attr))
            | (Op::Link { parent, name, .. }, Outcome::Attr(attr)) => {
                self.seen(*parent, name, attr);
            }
            (Op::Readdir { handle, .. }, Outcome::Entries(entries)) => {
                for entry in entries {
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

/// A node from one boot to the next: its host and boot ids, from the hello.
pub(super) type Identity = (u64, u64);

/// Writes of one file that one node has in its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dirt {
    pub(super) identity: Identity,
    /// Number of the last of these writes.
    pub(super) mark: u64,
    /// Seats through which these writes went.
    pub(super) seats: Vec<u16>,
}

/// Which nodes have written bytes in memory that no fsync has made stable yet, by file.
#[derive(Default)]
pub(super) struct Unstable {
    files: BTreeMap<Handle, Vec<Dirt>>,
    anybody: Vec<Dirt>,
    marks: u64,
}

impl Unstable {
    /// Records that this node has acknowledged a write through this seat.
    pub(super) fn wrote(&mut self, handle: Handle, identity: Identity, seat: u16) {
        if self.files.len() >= FILES_MAX && !self.files.contains_key(&handle) {
            let (_, dirt) = self.files.pop_first().expect("it is full");
            for dirt in dirt {
                note(&mut self.anybody, dirt.identity, dirt.mark, &dirt.seats);
            }
        }
        self.marks += 1;
        let dirt = self.files.entry(handle).or_default();
        note(dirt, identity, self.marks, &[seat]);
    }

    /// The nodes that have unstable writes of the file.
    pub(super) fn of(&self, handle: Handle) -> Vec<Dirt> {
        let mut all = self.files.get(&handle).cloned().unwrap_or_default();
        for dirt in &self.anybody {
            if !all.iter().any(|known| known.identity == dirt.identity) {
                all.push(dirt.clone());
            }
        }
        all
    }

    /// Removes the writes up to the mark through these seats: they are stable, or the client has
    /// reported their loss.
    pub(super) fn settled(&mut self, handle: Handle, settled: &Dirt, lost: bool) {
        let done = |d: &Dirt| d.identity == settled.identity && d.mark <= settled.mark;
        if let Some(dirt) = self.files.get_mut(&handle) {
            dirt.retain_mut(|dirt| {
                if done(dirt) {
                    dirt.seats.retain(|seat| !settled.seats.contains(seat));
                }
                !(dirt.seats.is_empty() || lost && done(dirt))
            });
            if dirt.is_empty() {
                self.files.remove(&handle);
            }
        }
        // A file's fsync says nothing of the others, but a lost node is lost for all.
        if lost {
            self.anybody.retain(|dirt| !done(dirt));
        }
    }
}

fn note(dirt: &mut Vec<Dirt>, identity: Identity, mark: u64, seats: &[u16]) {
    match dirt.iter_mut().find(|dirt| dirt.identity == identity) {
        Some(known) => {
            known.mark = known.mark.max(mark);
            for seat in seats {
                if !known.seats.contains(seat) {
                    known.seats.push(*seat);
                }
            }
        }
        None => dirt.push(Dirt {
            identity,
            mark,
            seats: seats.to_vec(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(inode: u64) -> Handle {
        Handle { inode, birth: 0 }
    }

    #[test]
    fn a_write_during_the_fsync_stays_unstable() {
        let mut unstable = Unstable::default();
        unstable.wrote(file(1), (7, 1), 0);
        unstable.wrote(file(1), (8, 1), 1);
        let [first, second] = &unstable.of(file(1))[..] else {
            panic!("two nodes have writes")
        };
        unstable.wrote(file(1), (7, 1), 2);
        unstable.settled(file(1), first, false);
        unstable.settled(file(1), second, false);
        let left = unstable.of(file(1));
        assert_eq!(left.len(), 1);
        assert_eq!(
            (left[0].identity, &left[0].seats[..]),
            ((7, 1), &[0, 2][..])
        );
    }

    #[test]
    fn too_many_files_are_remembered_together() {
        let mut unstable = Unstable::default();
        for inode in 0..=FILES_MAX as u64 {
            unstable.wrote(file(inode), (7, 1), 0);
        }
        assert_eq!(unstable.files.len(), FILES_MAX);
        let dirt = unstable.of(file(u64::MAX));
        assert_eq!(dirt[0].identity, (7, 1));
        unstable.settled(file(u64::MAX), &dirt[0], false);
        assert_eq!(unstable.of(file(u64::MAX)).len(), 1);
        unstable.settled(file(u64::MAX), &dirt[0], true);
        assert!(unstable.of(file(u64::MAX)).is_empty());
    }
}
