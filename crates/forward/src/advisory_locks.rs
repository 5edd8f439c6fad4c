//! Advisory locks: POSIX byte ranges and whole files, as Linux grants them.
//!
//! A lock belongs to an owner of a client. Requests that wait are granted in order of arrival: an
//! owner without locks on the file does not pass an earlier request that waits for the same bytes.
//! An owner with locks may pass it, because the earlier request may wait for just these locks. The
//! forwarder refuses a request for a byte range that would close a cycle of waits within this
//! forwarder (EDEADLK). It does not check whole-file locks for cycles, as Linux does not either.

mod granted;
mod ranges;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use granted::Granted;
use ranges::{Held, normal, overlap};
use tidegate_wire::{Handle, Lock, LockFamily, LockKind};

/// Locks that one client may hold or wait for.
const LOCKS_MAX: u32 = 1 << 16;

/// Who holds a lock: a client, and the owner that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Owner {
    pub(crate) client: u64,
    pub(crate) owner: u64,
}

/// The answer to a request for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Granted,
    /// Another owner's lock conflicts, and the request was not to wait.
    Conflict,
    Waits,
    /// The owner would wait, over others, for itself.
    Deadlock,
    /// The client holds or waits for too many locks.
    Full,
}

/// A client has got its first lock of a file (`holds`), or has lost its last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) handle: Handle,
    pub(crate) client: u64,
    pub(crate) holds: bool,
}

struct Waiter<K> {
    key: K,
    owner: Owner,
    lock: Lock,
}

struct FileLocks<K> {
    range: Granted,
    whole: Granted,
    waiting: VecDeque<Waiter<K>>,
}

/// All locks of one forwarder; `K` names a request that waits.
pub(crate) struct Locks<K> {
    files: BTreeMap<Handle, FileLocks<K>>,
    /// Locks held and waited for, by client.
    counts: BTreeMap<u64, u32>,
    /// Locks held, by owner.
    owners: BTreeMap<Owner, u32>,
    /// The locks that each owner waits for.
    waits: BTreeMap<Owner, Vec<(Handle, Lock)>>,
    changes: Vec<Change>,
}

impl<K> FileLocks<K> {
    fn held(&self, family: LockFamily) -> &Granted {
        match family {
            LockFamily::Range => &self.range,
            LockFamily::Whole => &self.whole,
        }
    }

    fn held_mut(&mut self, family: LockFamily) -> &mut Granted {
        match family {
            LockFamily::Range => &mut self.range,
            LockFamily::Whole => &mut self.whole,
        }
    }

    fn holds(&self, client: u64) -> bool {
        self.range.has(client) || self.whole.has(client)
    }
}

impl<K: Copy + PartialEq> Locks<K> {
    pub(crate) fn new() -> Locks<K> {
        Locks {
            files: BTreeMap::new(),
            counts: BTreeMap::new(),
            owners: BTreeMap::new(),
            waits: BTreeMap::new(),
            changes: Vec::new(),
        }
    }

    /// Locks that a client holds or waits for.
    pub(crate) fn count(&self, client: u64) -> u32 {
        self.counts.get(&client).copied().unwrap_or(0)
    }

    /// The changes since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        core::mem::take(&mut self.changes)
    }

    /// Sets, changes or releases a lock. `wait` names the request that may wait for it. The caller
    /// calls [`Locks::wake`] for the file afterwards, because the owner may have given up a part of
    /// a lock.
    pub(crate) fn set(
        &mut self,
        handle: Handle,
        owner: Owner,
        lock: Lock,
        wait: Option<K>,
    ) -> Asked {
        let lock = normal(lock);
        if lock.kind == LockKind::None {
            self.apply(handle, owner, &lock);
            return Asked::Granted;
        }
        if self.count(owner.client) >= LOCKS_MAX {
            return Asked::Full;
        }
        if lock.family == LockFamily::Whole && self.other_kind_held(handle, owner, lock.kind) {
            // flock(2): an existing lock is first removed, so two upgrades cannot block each other.
            self.apply(
                handle,
                owner,
                &Lock {
                    kind: LockKind::None,
                    ..lock
                },
            );
        }
        if self.blocker(handle, owner, &lock).is_none()
            && (wait.is_none() || !self.is_behind(handle, owner, &lock, None))
        {
            self.apply(handle, owner, &lock);
            return Asked::Granted;
        }
        let Some(key) = wait else {
            return Asked::Conflict;
        };
        if lock.family == LockFamily::Range && self.closes_cycle(handle, owner, lock) {
            return Asked::Deadlock;
        }
        self.wait(handle, owner, lock, key);
        Asked::Waits
    }

    /// Lets a request wait for a lock, without trying to grant it.
    pub(crate) fn wait(&mut self, handle: Handle, owner: Owner, lock: Lock, key: K) {
        let lock = normal(lock);
        *self.counts.entry(owner.client).or_default() += 1;
        self.waits.entry(owner).or_default().push((handle, lock));
        self.file(handle)
            .waiting
            .push_back(Waiter { key, owner, lock });
    }

    /// The first lock that conflicts with this one.
    pub(crate) fn test(&self, handle: Handle, owner: Owner, lock: Lock) -> Option<Lock> {
        let lock = normal(lock);
        let held = self.blocker(handle, owner, &lock)?;
        Some(Lock {
            family: lock.family,
            kind: held.kind,
            owner: held.owner.owner,
            pid: held.pid,
            start: held.start,
            end: held.end,
        })
    }

    /// Cancels a request that waits for a lock; false if it does not wait.
    pub(crate) fn cancel(&mut self, key: K) -> bool {
        let mut files = self.files.iter();
        let found = files.find_map(|(handle, file)| {
            let at = file.waiting.iter().position(|waiter| waiter.key == key)?;
            Some((*handle, at))
        });
        let Some((handle, at)) = found else {
            return false;
        };
        self.remove_waiter(handle, at);
        self.tidy(handle);
        true
    }

    /// Releases all of an owner's locks on a file. Its waiting requests stay.
    pub(crate) fn drop_owner(&mut self, handle: Handle, family: LockFamily, owner: Owner) {
        let all = Lock {
            family,
            kind: LockKind::None,
            owner: owner.owner,
            pid: 0,
            start: 0,
            end: u64::MAX,
        };
        self.apply(handle, owner, &all);
    }

    /// Releases all of a client's locks; returns the files that had some.
    pub(crate) fn drop_client(&mut self, client: u64) -> Vec<Handle> {
        if self.count(client) == 0 {
            return Vec::new();
        }
        let files = self.files.iter();
        let held = files.filter(|(_, file)| file.holds(client));
        let handles: Vec<Handle> = held.map(|(handle, _)| *handle).collect();
        for handle in &handles {
            self.drop_in_file(*handle, client);
        }
        handles
    }

    /// Forgets the locks of all files that `gone` names.
    pub(crate) fn drop_files(&mut self, gone: impl Fn(Handle) -> bool) {
        let handles: Vec<Handle> = self.files.keys().copied().filter(|it| gone(*it)).collect();
        for handle in handles {
            let clients: BTreeSet<u64> = {
                let file = &self.files[&handle];
                let held = file.range.iter().chain(file.whole.iter());
                held.map(|held| held.owner.client).collect()
            };
            for client in clients {
                self.drop_in_file(handle, client);
            }
        }
    }

    /// Takes out of their queues the requests that wait for locks of files that `which` names.
    pub(crate) fn take_waiting(&mut self, which: impl Fn(Handle) -> bool) -> Vec<K> {
        let handles: Vec<Handle> = self.files.keys().copied().filter(|it| which(*it)).collect();
        let mut keys = Vec::new();
        for handle in handles {
            while !self.files[&handle].waiting.is_empty() {
                keys.push(self.remove_waiter(handle, 0).key);
            }
            self.tidy(handle);
        }
        keys
    }

    /// Takes a client's requests that wait for locks of a file out of its queue.
    pub(crate) fn take_waiting_of(&mut self, client: u64, handle: Handle) -> Vec<K> {
        let mut keys = Vec::new();
        while let Some(at) = self.files.get(&handle).and_then(|file| {
            let mut waiting = file.waiting.iter();
            waiting.position(|waiter| waiter.owner.client == client)
        }) {
            keys.push(self.remove_waiter(handle, at).key);
        }
        self.tidy(handle);
        keys
    }

    /// Files with locks that `which` names.
    pub(crate) fn handles(&self, which: impl Fn(Handle) -> bool) -> Vec<Handle> {
        self.files
            .keys()
            .copied()
            .filter(|handle| which(*handle))
            .collect()
    }

    /// Grants the locks of a file that requests wait for, as far as nothing conflicts any more.
    /// Returns these requests.
    pub(crate) fn wake(&mut self, handle: Handle) -> Vec<K> {
        let mut granted = Vec::new();
        let mut at = 0;
        while let Some(waiter) = self
            .files
            .get(&handle)
            .and_then(|file| file.waiting.get(at))
        {
            let (owner, lock) = (waiter.owner, waiter.lock);
            if self.blocker(handle, owner, &lock).is_some()
                || self.is_behind(handle, owner, &lock, Some(at))
            {
                at += 1;
                continue;
            }
            granted.push(self.remove_waiter(handle, at).key);
            self.apply(handle, owner, &lock);
            // A changed lock may have made room for one further ahead.
            at = 0;
        }
        granted
    }

    /// Releases all of a client's locks of a file; false if it has none.
    pub(crate) fn drop_in_file(&mut self, handle: Handle, client: u64) -> bool {
        let file = self.files.get(&handle);
        if !file.is_some_and(|file| file.holds(client)) {
            return false;
        }
        for family in [LockFamily::Range, LockFamily::Whole] {
            let Some(file) = self.files.get(&handle) else {
                break;
            };
            for owner in file.held(family).owners_of(client) {
                self.drop_owner(handle, family, owner);
            }
        }
        true
    }

    fn file(&mut self, handle: Handle) -> &mut FileLocks<K> {
        self.files.entry(handle).or_insert_with(FileLocks::none)
    }

    /// Forgets a file that has no locks and no waiting requests.
    fn tidy(&mut self, handle: Handle) {
        if let Some(file) = self.files.get(&handle)
            && file.range.is_empty()
            && file.whole.is_empty()
            && file.waiting.is_empty()
        {
            self.files.remove(&handle);
        }
    }

    fn other_kind_held(&self, handle: Handle, owner: Owner, kind: LockKind) -> bool {
        let file = self.files.get(&handle);
        let mut whole = file.into_iter().flat_map(|file| file.whole.of(owner));
        whole.any(|held| held.kind != kind)
    }

    /// Another owner's lock that conflicts with this one.
    fn blocker(&self, handle: Handle, owner: Owner, lock: &Lock) -> Option<Held> {
        let held = self.files.get(&handle)?.held(lock.family);
        held.in_the_way(owner, *lock).next().copied()
    }

    /// Whether an earlier request that waits must be granted before this one.
    fn is_behind(&self, handle: Handle, owner: Owner, lock: &Lock, at: Option<usize>) -> bool {
        if self.owners.contains_key(&owner) {
            return false;
        }
        let Some(file) = self.files.get(&handle) else {
            return false;
        };
        let earlier = file.waiting.iter().take(at.unwrap_or(file.waiting.len()));
        let mut others = earlier.filter(|waiter| waiter.owner != owner);
        others.any(|waiter| waiter.lock.family == lock.family && overlap(&waiter.lock, lock))
    }

    /// Whether the owners of conflicting locks wait, directly or over others, for this owner.
    fn closes_cycle(&self, handle: Handle, owner: Owner, lock: Lock) -> bool {
        let mut visited = BTreeSet::new();
        let mut open = vec![(owner, handle, lock)];
        while let Some((waits, handle, lock)) = open.pop() {
            let file = self.files.get(&handle);
            let held = file.map(|file| file.held(lock.family).in_the_way(waits, lock));
            for held in held.into_iter().flatten() {
                if held.owner == owner {
                    return true;
                }
                if visited.insert(held.owner) {
                    let waits = self.waits.get(&held.owner).into_iter().flatten();
                    let ranges = waits.filter(|(_, lock)| lock.family == LockFamily::Range);
                    open.extend(ranges.map(|(handle, lock)| (held.owner, *handle, *lock)));
                }
            }
        }
        false
    }

    fn remove_waiter(&mut self, handle: Handle, at: usize) -> Waiter<K> {
        let waiter = self
            .file(handle)
            .waiting
            .remove(at)
            .expect("looked up before");
        let waits = self
            .waits
            .get_mut(&waiter.owner)
            .expect("each waiter is noted");
        let noted = waits
            .iter()
            .position(|(file, lock)| (*file, *lock) == (handle, waiter.lock));
        waits.swap_remove(noted.expect("each waiter is noted"));
        if waits.is_empty() {
            self.waits.remove(&waiter.owner);
        }
        self.uncount(waiter.owner.client, 1);
        waiter
    }

    fn uncount(&mut self, client: u64, less: u32) {
        let count = self.counts.entry(client).or_default();
        *count -= less;
        if *count == 0 {
            self.counts.remove(&client);
        }
    }

    /// Replaces what the owner holds of the lock's bytes: splits, joins, upgrades, releases locks.
    fn apply(&mut self, handle: Handle, owner: Owner, lock: &Lock) {
        let file = self.files.entry(handle).or_insert_with(FileLocks::none);
        let held_before = file.holds(owner.client);
        let (before, after) = file.held_mut(lock.family).replace(owner, lock);
        let holds = file.holds(owner.client);
        if holds != held_before {
            let client = owner.client;
            self.changes.push(Change {
                handle,
                client,
                holds,
            });
        }
        *self.counts.entry(owner.client).or_default() += after;
        self.uncount(owner.client, before);
        let of_owner = self.owners.entry(owner).or_default();
        *of_owner = *of_owner + after - before;
        if *of_owner == 0 {
            self.owners.remove(&owner);
        }
        self.tidy(handle);
    }
}

impl<K> FileLocks<K> {
    fn none() -> FileLocks<K> {
        FileLocks {
            range: Granted::default(),
            whole: Granted::default(),
            waiting: VecDeque::new(),
        }
    }
}

#[cfg(test)]
mod tests;
