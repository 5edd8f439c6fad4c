//! Advisory locks of the seats that this forwarder holds: when grace allows them, which requests
//! wait, and which clients the seat's table marks as holders.

use super::Forwarder;
use super::holdings::LOCKS;
use super::receive::{Dispatch, Key};
use crate::advisory_locks::{Asked, Owner};
use crate::back_end_files::Errno;
use alloc::vec::Vec;
use tidegate_wire::{Handle, Lock, LockKind, Op, Outcome, Status};

const EBADF: u16 = 9;

impl Forwarder {
    /// Executes SetLock, TestLock or DropLocks.
    pub(super) fn lock_operation(&mut self, key: Key) {
        let client = self.requests[key].client;
        let owner = |owner: u64| Owner { client, owner };
        match *self.requests[key].op() {
            Op::SetLock {
                handle,
                lock,
                wait,
                reclaim,
            } => self.set_lock(key, handle, lock, wait, reclaim),
            Op::TestLock { handle, lock } => {
                if !self.may_lock(
                    key,
                    handle,
                    &Lock {
                        kind: LockKind::None,
                        ..lock
                    },
                ) {
                    return self.answer(key, Err(Status::Errno(EBADF)));
                }
                let found = self.locks.test(handle, owner(lock.owner), lock);
                let grace = self.seats[self.requests[key].seat].in_grace();
                // Where none is found, its owner may not have told it yet.
                let known = found.is_some() || !grace;
                let result = known.then_some(Outcome::Lock(found));
                self.answer(key, result.ok_or(Status::TryLater));
            }
            Op::DropLocks {
                handle,
                family,
                owner: its,
            } => {
                self.locks.drop_owner(handle, family, owner(its));
                self.answer(key, Ok(Outcome::Done));
                self.locks_changed(handle);
            }
            Op::CancelLock { .. } | Op::ReclaimDone => unreachable!("they are no locks"),
            session_ops!()
            | path_ops!()
            | look_ops!()
            | name_ops!()
            | attribute_ops!()
            | content_ops!()
            | open_ops!()
            | data_ops!() => unreachable!("they are no locks"),
        }
    }

    fn set_lock(&mut self, key: Key, handle: Handle, lock: Lock, wait: bool, reclaim: bool) {
        let pending = &self.requests[key];
        let (seat, client) = (pending.seat, pending.client);
        let owner = Owner {
            client,
            owner: lock.owner,
        };
        if lock.start > lock.end {
            return self.answer(key, Err(Status::Errno(Errno::EINVAL.0)));
        }
        let release = lock.kind == LockKind::None;
        if !release && !self.may_lock(key, handle, &lock) {
            return self.answer(key, Err(Status::Errno(EBADF)));
        }
        let own = self.locks.count(client);
        let count = |client| self.locks.count(client);
        if !release && !self.may_have_more(client, own, LOCKS, count) {
            self.has_all_of(client, "locks", LOCKS, "ENOLCK");
            return self.answer(key, Err(Status::Errno(Errno::ENOLCK.0)));
        }
        if self.seats[seat].in_grace() && !reclaim && !release {
            if wait {
                self.wait_for_lock(key);
                return self.locks.wait(handle, owner, lock, key);
            }
            return self.answer(key, Err(Status::TryLater));
        }
        let waits = (wait && !reclaim).then_some(key);
        let result = match self.locks.set(handle, owner, lock, waits) {
            Asked::Granted => Ok(Outcome::Done),
            // Somebody else was granted it since: the lock is lost.
            Asked::Conflict if reclaim => Err(Status::Errno(Errno::ENOLCK.0)),
            Asked::Conflict => Err(Status::Errno(Errno::EAGAIN.0)),
            Asked::Deadlock => Err(Status::Errno(Errno::EDEADLK.0)),
            Asked::Full => Err(Status::Errno(Errno::ENOLCK.0)),
            Asked::Waits => {
                self.wait_for_lock(key);
                // An upgrade of a whole-file lock gives the old one up while it waits.
                return self.locks_changed(handle);
            }
        };
        // The table says that the client has a lock before the client hears it.
        self.note_lock_changes();
        self.answer_holding(key, result);
        self.locks_changed(handle);
    }

    /// Lets a request wait for a lock. It may wait for ever, so the release of its seat does not
    /// wait for it.
    fn wait_for_lock(&mut self, key: Key) {
        let pending = &mut self.requests[key];
        if core::mem::replace(&mut pending.active, false) {
            self.seats.entry(pending.seat).count_active(false);
        }
    }

    /// Ends the waiting of a request that has not begun; false if it has.
    pub(super) fn stop_waiting(&mut self, key: Key) -> bool {
        let pending = &self.requests[key];
        if let Some(seat) = self.seats.get_mut(pending.seat)
            && let Some(at) = seat.waiting.iter().position(|waits| *waits == key)
        {
            seat.waiting.remove(at);
            return true;
        }
        if self.parked.remove(pending.user, key) {
            return true;
        }
        if pending.serial_chunk && self.serial_transfers.cancel(pending) {
            return true;
        }
        if pending.dispatch == Dispatch::Local {
            return self.locks.cancel(key);
        }
        self.stop_waiting_for_loans(key)
    }

    /// Cancels a request that waits for a lock. The cancelling request is answered in any case.
    pub(super) fn cancel_lock(&mut self, key: Key, request: u64) {
        let client = &self.clients[&self.requests[key].client];
        if let Ok(place) = client.place_of(request) {
            let (_, waits) = client.outstanding[place];
            let handle = match self.requests[waits].op {
                Some(Op::SetLock { handle, .. }) => Some(handle),
                _ => None,
            };
            // It waits for the lock, or still for the seat.
            if let Some(handle) = handle
                && self.stop_waiting(waits)
            {
                self.answer(waits, Err(Status::Errno(Errno::EINTR.0)));
                self.locks_changed(handle);
            }
        }
        self.answer(key, Ok(Outcome::Done));
    }

    /// After locks of a file have changed: updates the table's marks, and grants the locks that
    /// requests wait for.
    fn locks_changed(&mut self, handle: Handle) {
        let seat = self.config.layout.seat_of_file(handle);
        let granted = match self.seats[seat].in_grace() {
            true => Vec::new(),
            false => self.locks.wake(handle),
        };
        self.note_lock_changes();
        for key in granted {
            self.answer_holding(key, Ok(Outcome::Done));
        }
    }

    fn note_lock_changes(&mut self) {
        for change in self.locks.take_changes() {
            let seat = self.config.layout.seat_of_file(change.handle);
            if let Some(seat) = self.seats.get_mut(seat) {
                seat.hold(change.client, change.holds);
            }
        }
    }

    /// Grants locks that requests wait for, because grace is over.
    pub(super) fn wake_seat_locks(&mut self, seat: u16) {
        let layout = self.config.layout;
        for handle in self
            .locks
            .handles(|handle| layout.seat_of_file(handle) == seat)
        {
            self.locks_changed(handle);
        }
    }

    pub(super) fn drop_client_locks(&mut self, client: u64) {
        for handle in self.locks.drop_client(client) {
            self.locks_changed(handle);
        }
    }

    /// Drops the locks of a client on a file of which it has closed its last open, and ends its
    /// waiting for locks there.
    pub(super) fn drop_locks(&mut self, client: u64, handle: Handle) {
        let waiting = self.locks.take_waiting_of(client, handle);
        if self.locks.drop_in_file(handle, client) || !waiting.is_empty() {
            self.locks_changed(handle);
        }
        for key in waiting {
            self.answer(key, Err(Status::Errno(EBADF)));
        }
    }

    /// Sends requests that wait for locks to the seat's next holder, because the seat will be
    /// released.
    pub(super) fn turn_locks_away(&mut self, seat: u16) {
        let layout = self.config.layout;
        let of_seat = |handle| layout.seat_of_file(handle) == seat;
        for key in self.locks.take_waiting(of_seat) {
            self.answer(key, Err(Status::NotMySeat));
        }
    }

    /// Forgets the locks of a seat that is released. The table still marks the clients that have
    /// some.
    pub(super) fn drop_seat_locks(&mut self, seat: u16) {
        let layout = self.config.layout;
        self.locks
            .drop_files(|handle| layout.seat_of_file(handle) == seat);
        let _ = self.locks.take_changes();
    }
}
