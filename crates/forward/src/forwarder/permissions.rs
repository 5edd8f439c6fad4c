//! The rights of clients to the data of files, and to lock them.
//!
//! A forwarder of root reads and writes data with its own rights, so it must check those of the
//! client. A client is trusted to check its callers itself if it runs as root or as the forwarder's
//! user, or if it has proved the role of a site or a mount. Any other client has the rights of the
//! files that it has open here, until it closes them, as with descriptors. Data of files that it
//! has not opened here, because another forwarder is in charge of the file, it may read or write
//! where access(2) allows that to its user; the forwarder asks this again when the answer is old,
//! or when it has changed the file's mode itself. A mount that acts for some users only is checked
//! likewise, for the users that it names: what it has open for one of them it may use for all of
//! them. The owner of a file may always read and write it, as open(2) allows the creator of a file.
//! Locks need an open.

use super::receive::Key;
use super::{Forwarder, Running};
use crate::back_end_files::{Access, Errno};
use crate::host::Job;
use alloc::collections::BTreeMap;
use tidegate_sched::Time;
use tidegate_wire::{FileUse, Handle, Lock, LockFamily, LockKind, Op, Outcome, Status};

/// Answers of access(2) that the forwarder remembers for one client.
const ASKED_MAX: usize = 4096;
/// How long such an answer holds, in ns: so soon a change of the file's mode takes effect that was
/// not made here.
const ASKED_NS: u64 = 10_000_000_000;
const R_OK: u32 = 4;
const W_OK: u32 = 2;

/// What a client whose rights are checked may do with files.
#[derive(Default)]
pub(super) struct Rights {
    /// For each of its opens, by file and its number of the open, whether it reads and writes.
    opens: BTreeMap<(Handle, u64), (bool, bool)>,
    /// The number of these opens by file.
    files: BTreeMap<Handle, Opens>,
    /// Files that access(2) allowed it to read (false) or write (true), and when.
    asked: BTreeMap<(Handle, bool), Time>,
}

/// Opens of one file by one client.
#[derive(Default)]
struct Opens {
    all: u32,
    read: u32,
    write: u32,
}

impl Rights {
    /// Notes an open that the back end has granted.
    pub(super) fn opened(&mut self, handle: Handle, open: u64, modes: (bool, bool)) {
        self.closed(handle, open);
        self.opens.insert((handle, open), modes);
        let file = self.files.entry(handle).or_default();
        file.all += 1;
        file.read += u32::from(modes.0);
        file.write += u32::from(modes.1);
    }

    /// Ends the rights of an open. Returns whether the client has no other open of the file.
    pub(super) fn closed(&mut self, handle: Handle, open: u64) -> bool {
        let Some((read, write)) = self.opens.remove(&(handle, open)) else {
            return false;
        };
        let file = self.files.get_mut(&handle).expect("it has an open");
        file.all -= 1;
        file.read -= u32::from(read);
        file.write -= u32::from(write);
        let last = file.all == 0;
        if last {
            self.files.remove(&handle);
        }
        last
    }

    /// Forgets the opens of files that do not stay.
    pub(super) fn keep_opens(&mut self, stays: impl Fn(Handle) -> bool) {
        self.opens.retain(|(handle, _), _| stays(*handle));
        self.files.retain(|handle, _| stays(*handle));
    }

    /// Whether the client has the file open.
    pub(super) fn has_open(&self, handle: Handle) -> bool {
        self.files.contains_key(&handle)
    }

    /// Lets the opens stay, and forgets which rights they and access(2) gave.
    pub(super) fn judge_anew(&mut self) {
        self.opens
            .values_mut()
            .for_each(|modes| *modes = (false, false));
        for file in self.files.values_mut() {
            (file.read, file.write) = (0, 0);
        }
        self.forget_asked();
    }

    /// Forgets what access(2) said.
    pub(super) fn forget_asked(&mut self) {
        self.asked.clear();
    }

    fn may(&self, (handle, write): (Handle, bool), now: Time) -> bool {
        let opens = self.files.get(&handle);
        let opened = opens.is_some_and(|it| (if write { it.write } else { it.read }) > 0);
        let asked = || self.asked.get(&(handle, write));
        opened || asked().is_some_and(|at| now < *at + ASKED_NS)
    }

    /// Whether the client may set a lock, as fcntl(2) and flock(2) say: a shared lock of bytes
    /// needs an open for reading, an exclusive one an open for writing, others any open.
    fn may_lock(&self, handle: Handle, lock: &Lock) -> bool {
        self.files
            .get(&handle)
            .is_some_and(|it| match (lock.family, lock.kind) {
                (LockFamily::Range, LockKind::Shared) => it.read > 0,
                (LockFamily::Range, LockKind::Exclusive) => it.write > 0,
                (LockFamily::Range | LockFamily::Whole, _) => true,
            })
    }

    fn allow(&mut self, need: (Handle, bool), now: Time) {
        if self.asked.len() >= ASKED_MAX {
            self.asked.retain(|_, at| now < *at + ASKED_NS);
        }
        if self.asked.len() >= ASKED_MAX {
            self.asked.clear();
        }
        self.asked.insert(need, now);
    }
}

impl Forwarder {
    /// Executes the request of a client whose rights are checked, if the client can reach the file
    /// and has the right to it. If either is unknown, first asks the host.
    pub(super) fn check_rights(&mut self, key: Key) {
        if let Some(handle) = self.unreached(key) {
            return self.reach(key, handle);
        }
        let pending = &self.requests[key];
        let client = &self.clients[&pending.client];
        match missing(pending.op(), &client.rights, self.now) {
            None => self.begin(key),
            Some((handle, write)) => self.ask_permission(key, (handle, write), false),
        }
    }

    fn ask_permission(&mut self, key: Key, (handle, write): (Handle, bool), owner: bool) {
        let (client, caller) = (self.requests[key].client, Some(self.judged_as(key)));
        let op = match owner {
            true => Op::Getattr { handle },
            false => Op::Access {
                handle,
                mask: if write { W_OK } else { R_OK },
            },
        };
        let work = Job::Op {
            caller: self.acting(client, caller),
            op,
            reply_slot: None,
            payload: None,
            directory: None,
        };
        let running = Running::Check {
            key,
            handle,
            write,
            owner,
        };
        self.start(running, work);
    }

    pub(super) fn permission_checked(
        &mut self,
        key: Key,
        need: (Handle, bool),
        owner: bool,
        result: Result<Outcome, Access>,
    ) {
        let uid = self.judged_as(key).uid;
        let reads = matches!(self.requests[key].op(), Op::Fsync { .. }) && need.1;
        match result {
            Ok(Outcome::Attr(attr)) if owner && attr.uid != uid && reads => {
                self.ask_permission(key, (need.0, false), false);
            }
            Ok(Outcome::Attr(attr)) if owner && attr.uid != uid => {
                self.answer(key, Err(Status::Errno(Errno::EACCES.0)));
            }
            Ok(_) => {
                let client = self.requests[key].client;
                if let Some(client) = self.clients.get_mut(&client) {
                    client.rights.allow(need, self.now);
                }
                self.check_rights(key);
            }
            Err(Access::Errno(Errno::EACCES)) if !owner => self.ask_permission(key, need, true),
            Err(access) => self.answer(key, Err(access.into())),
        }
    }

    /// Whether a request's client may set or test this lock of a file.
    pub(super) fn may_lock(&self, key: Key, handle: Handle, lock: &Lock) -> bool {
        let pending = &self.requests[key];
        let client = &self.clients[&pending.client];
        !pending.checked || client.rights.may_lock(handle, lock)
    }

    /// Forgets what access(2) said about a file, because its mode or owner may have changed.
    pub(super) fn rights_changed(&mut self, handle: Handle) {
        let clients = self.clients.values_mut();
        for client in clients.filter(|it| it.standing.is_checked()) {
            for write in [false, true] {
                client.rights.asked.remove(&(handle, write));
            }
        }
    }
}

/// The first file whose data an operation reads (false) or writes (true) without a known right of
/// the client to do so.
fn missing(op: &Op, rights: &Rights, now: Time) -> Option<(Handle, bool)> {
    let lacks = |(handle, file_use): (Handle, FileUse)| {
        let needs = |write: bool| {
            let need = (handle, write);
            (!rights.may(need, now)).then_some(need)
        };
        match file_use {
            FileUse::Read => needs(false),
            FileUse::Write => needs(true),
            // Whoever may use the file in any way may make it stable; writers are the usual ones.
            FileUse::Sync => needs(false).and(needs(true)),
            FileUse::Look | FileUse::Names | FileUse::Set => None,
        }
    };
    op.files().into_iter().flatten().find_map(lacks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_access_said_holds_for_a_while() {
        let need = (Handle { inode: 1, birth: 1 }, false);
        let mut rights = Rights::default();
        rights.allow(need, Time(5));
        assert!(rights.may(need, Time(4 + ASKED_NS)));
        assert!(!rights.may(need, Time(5 + ASKED_NS)));
        for inode in 0..3 * ASKED_MAX as u64 {
            rights.allow((Handle { inode, birth: 1 }, false), Time(5));
        }
        assert!(rights.asked.len() <= ASKED_MAX);
    }
}
