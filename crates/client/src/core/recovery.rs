//! Recovery of a seat that has changed hands: the client sends its opens and locks to the new
//! holder.

use super::Core;
use super::host_cache::After;
use super::locks::Locks;
use super::requests::{Id, Pending, Place, Purpose, Target};
use crate::core::Errno;
use crate::wire::{Handle, Layout, Lock, Op};
use std::collections::BTreeSet;

/// A recovery under way: which opens and locks the seat's holder still has to take.
#[derive(Debug)]
pub(super) struct Recovery {
    pub(super) forwarder: usize,
    pub(super) generation: u64,
    /// Requests without an answer.
    left: BTreeSet<Id>,
}

impl Core {
    fn known_layout(&self) -> Layout {
        self.layout
            .expect("requests are made after the layout is known")
    }

    /// Whether the client has opens or locks that the seat's holder must know.
    pub(super) fn has_state(&self, seat: u16) -> bool {
        let layout = self.known_layout();
        let opens = self
            .opens
            .keys()
            .any(|(handle, _)| layout.seat_of_file(*handle) == seat);
        opens || !self.locks.of_seat(&layout, seat).is_empty()
    }

    /// Handles a reply which says that the seat has another generation than the client knows.
    pub(super) fn new_generation(&mut self, forwarder: usize, id: Id, generation: u64) {
        let Some(pending) = self.requests.get(&id) else {
            return;
        };
        let (seat, purpose) = (pending.seat, pending.purpose);
        let known = &self.seats[usize::from(seat)];
        if generation < known.generation {
            // Another forwarder has taken the seat since, and this one has not noticed.
            return self.leave(seat, forwarder, Some(id));
        }
        if generation == known.generation && known.recovery.is_none() {
            // The client sent the request before the recovery, which has ended meanwhile.
            return self.route(id);
        }
        if purpose == Purpose::Probe {
            self.remove(id);
            self.seats[usize::from(seat)].probe = None;
        } else if purpose != Purpose::Recover {
            self.seats[usize::from(seat)].waiting.insert(id);
            self.put(id, Place::Seat);
        }
        self.recover(seat, forwarder, generation);
    }

    /// Sends all opens and locks of the seat to the forwarder, unless that is under way. Meanwhile
    /// the requests of the seat wait.
    pub(super) fn recover(&mut self, seat: u16, forwarder: usize, generation: u64) {
        let known = &self.seats[usize::from(seat)].recovery;
        let same = |recovery: &Recovery| {
            (recovery.forwarder, recovery.generation) == (forwarder, generation)
        };
        if known.as_ref().is_some_and(same) {
            return;
        }
        // What a former holder has lent its successor does not know.
        self.loans.clear();
        self.invalidate_all(After::Nothing);
        self.ahead.clear();
        self.abort_recovery(seat);
        let known = &mut self.seats[usize::from(seat)];
        known.found(forwarder);
        known.paused_until = None;
        known.recovery = Some(Recovery {
            forwarder,
            generation,
            left: BTreeSet::new(),
        });
        self.hold_back(seat);
        self.tell_opens(seat);
    }

    /// Tells the opens of the seat, and then the rest.
    fn tell_opens(&mut self, seat: u16) {
        let ops = self.opens_of(seat);
        match ops.is_empty() {
            true => self.tell_locks(seat),
            false => self.tell(seat, ops),
        }
    }

    /// Tells the locks of the seat, and then that this was all. A forwarder may grant a lock only
    /// to a client that it knows to have the file open, so its opens are told before.
    fn tell_locks(&mut self, seat: u16) {
        let ops = self.locks_of(seat);
        match ops.is_empty() {
            true => self.tell(seat, [Op::ReclaimDone]),
            false => self.tell(seat, ops),
        }
    }

    /// Makes the unsent requests of the seat wait, and ends the search for its holder.
    fn hold_back(&mut self, seat: u16) {
        if let Some(probe) = self.seats[usize::from(seat)].probe.take() {
            self.remove(probe);
        }
        for forwarder in 0..self.sessions.len() {
            for id in self.unqueue(seat, forwarder) {
                self.seats[usize::from(seat)].waiting.insert(id);
                self.put(id, Place::Seat);
            }
        }
    }

    /// The opens of a seat as requests.
    fn opens_of(&self, seat: u16) -> Vec<Op> {
        let layout = self.known_layout();
        let opens = self
            .opens
            .iter()
            .filter(|((handle, _), _)| layout.seat_of_file(*handle) == seat);
        // Without a caller: an open file stays open, whatever the file's mode is now.
        let opens = opens.map(|((handle, open), opened)| Op::Open {
            handle: *handle,
            open: *open,
            read: opened.read,
            write: opened.write,
        });
        opens.collect()
    }

    /// Opens a file again for the user who has it open, if it was refused to the client itself,
    /// which may act for some users only. False if that was tried, or there is no such user.
    fn reopen_for_opener(&mut self, id: Id, refused: &Pending) -> bool {
        let Op::Open { handle, open, .. } = refused.op else {
            return false;
        };
        let opened = self.opens.get(&(handle, open));
        let opener = opened.and_then(|opened| opened.opener.clone());
        let recovery = &self.seats[usize::from(refused.seat)].recovery;
        let waited_for = recovery.as_ref().is_some_and(|it| it.left.contains(&id));
        if refused.caller.is_some() || opener.is_none() || !waited_for {
            return false;
        }
        let target = refused.target;
        let again = Pending::new(refused.op.clone(), refused.seat, target, Purpose::Recover);
        let again = self.insert(Pending {
            caller: opener,
            ..again
        });
        if let Some(recovery) = &mut self.seats[usize::from(refused.seat)].recovery {
            recovery.left.remove(&id);
            recovery.left.insert(again);
        }
        self.route(again);
        true
    }

    /// The locks of a seat as requests.
    fn locks_of(&self, seat: u16) -> Vec<Op> {
        let layout = self.known_layout();
        let locks = self.claimable_locks().of_seat(&layout, seat).into_iter();
        let locks = locks.map(|(handle, lock)| Op::SetLock {
            handle,
            lock,
            wait: false,
            reclaim: true,
        });
        locks.collect()
    }

    /// The locks that the client holds whatever became of its calls without an answer. A forwarder
    /// may have carried out a release whose reply was lost, and may then have granted the lock to
    /// somebody else.
    fn claimable_locks(&self) -> Locks {
        let mut locks = self.locks.clone();
        for pending in self.requests.values() {
            match &pending.op {
                Op::SetLock {
                    handle,
                    lock,
                    reclaim: false,
                    ..
                } => locks.weaken(*handle, lock),
                Op::DropLocks {
                    handle,
                    family,
                    owner,
                } => locks.drop_all(&(*handle, *family, *owner)),
                _ => {}
            }
        }
        locks
    }

    fn tell(&mut self, seat: u16, ops: impl IntoIterator<Item = Op>) {
        let Some(recovery) = &self.seats[usize::from(seat)].recovery else {
            return;
        };
        let target = Target::Forwarder(recovery.forwarder);
        let mut ids = Vec::new();
        for op in ops {
            ids.push(self.insert(Pending::new(op, seat, target, Purpose::Recover)));
        }
        if let Some(recovery) = &mut self.seats[usize::from(seat)].recovery {
            recovery.left.extend(&ids);
        }
        for id in ids {
            self.route(id);
        }
    }

    /// Takes in the answer to one open or lock. After the last open the core sends the locks, after
    /// the last lock ReclaimDone; after the reply to that, the seat's requests go on.
    pub(super) fn reclaimed(&mut self, id: Id, pending: &Pending, result: Result<(), Errno>) {
        let number = pending.seat;
        if let Err(errno) = result {
            if self.reopen_for_opener(id, pending) {
                return;
            }
            self.lost_state(&pending.op, errno);
        }
        let seat = &mut self.seats[usize::from(number)];
        let Some(recovery) = &mut seat.recovery else {
            return;
        };
        if !recovery.left.remove(&id) || !recovery.left.is_empty() {
            return;
        }
        match pending.op {
            Op::ReclaimDone => {}
            Op::Open { .. } => return self.tell_locks(number),
            _ => return self.tell(number, [Op::ReclaimDone]),
        }
        seat.generation = recovery.generation;
        seat.recovery = None;
        self.release_waiting(number);
    }

    /// Removes an open or a lock that the new holder refused.
    fn lost_state(&mut self, op: &Op, errno: Errno) {
        match op {
            Op::Open { handle, open, .. } => {
                if self.opens.remove(&(*handle, *open)).is_some() {
                    self.names.closed(*handle);
                }
                let inode = handle.inode;
                self.log(format!(
                    "inode {inode} could not be re-opened: errno {}",
                    errno.0
                ));
            }
            Op::SetLock { handle, lock, .. } => self.lost_lock(*handle, *lock, errno),
            _ => {}
        }
    }

    fn lost_lock(&mut self, handle: Handle, lock: Lock, errno: Errno) {
        let nothing = Lock {
            kind: crate::wire::LockKind::None,
            ..lock
        };
        self.locks.set(handle, nothing);
        self.log(format!(
            "process {} (owner {:#x}) has lost its lock on bytes {}..={} of inode {} while its \
             forwarder was away: errno {}",
            lock.pid, lock.owner, lock.start, lock.end, handle.inode, errno.0
        ));
    }

    /// Stops the recovery; the requests of the seat still wait.
    pub(super) fn abort_recovery(&mut self, seat: u16) {
        let recovery = self.seats[usize::from(seat)].recovery.take();
        for id in recovery.into_iter().flat_map(|recovery| recovery.left) {
            self.remove(id);
        }
    }

    /// Looks for the new holder of a seat to which opens and locks belong, if no request looks for
    /// it anyway: the client must reclaim its locks before the grace time is over.
    pub(super) fn probe_if_needed(&mut self, seat: u16) {
        let known = &self.seats[usize::from(seat)];
        if known.probe.is_none() && self.has_state(seat) {
            self.probe(seat);
        }
    }

    /// Sends a request whose reply says who serves the seat.
    pub(super) fn probe(&mut self, seat: u16) {
        if self.seats[usize::from(seat)].probe.is_some() {
            return;
        }
        let done = Op::ReclaimDone;
        let id = self.insert(Pending::new(done, seat, Target::Seat, Purpose::Probe));
        self.seats[usize::from(seat)].probe = Some(id);
        self.route(id);
    }
}
