//! Which file is lent to which client and until when, which requests change files, and which of
//! them wait.

use crate::forwarder::receive::Key;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use tidegate_sched::Time;
use tidegate_wire::{Handle, Name};

/// Files of which one client is lent something at a time.
const OF_CLIENT_MAX: usize = 65_536;
/// Loans of all clients at a time.
const LOANS_MAX: usize = 262_144;
/// Files whose name is known.
const NAMES_MAX: usize = 65_536;
/// How many files are looked at to find one whose name can be forgotten.
const NAME_LOOKS: usize = 8;
/// Files whose last change is remembered, and files that are lent to nobody for a while.
const REMEMBERED_MAX: usize = 8192;
/// How long a file is lent to nobody after clients have changed it in turns, ns: at first, and
/// at most.
const PAUSE_NS: core::ops::RangeInclusive<u64> = 1_000_000_000..=60_000_000_000;

/// What is lent, and which requests wait for it.
#[derive(Default)]
pub(in crate::forwarder) struct Loans {
    /// How long clients may rely on what they are lent, ns; 0: nothing is lent.
    pub(super) period_ns: u64,
    pub(super) borrowers: BTreeMap<Handle, BTreeMap<u64, Loan>>,
    of_clients: BTreeMap<u64, BTreeSet<Handle>>,
    count: usize,
    /// When each loan ends at the earliest, in about that order.
    ends: VecDeque<(Time, Handle, u64)>,
    /// The only name of files that were lent when they were looked up, and back.
    by_name: BTreeMap<(Handle, Name), Handle>,
    names: BTreeMap<Handle, Called>,
    /// Files in about the order in which their names became known; others too.
    named: VecDeque<Handle>,
    /// Requests that change files, from their beginning to their answer.
    pub(super) changes: BTreeMap<Key, Change>,
    /// How many requests change each file.
    changing: BTreeMap<Handle, u32>,
    /// Requests that wait, by the files that they change.
    waiting: BTreeMap<Handle, BTreeSet<Key>>,
    /// Files of which somebody has given something back, for requests that wait.
    pub(super) given_back: Vec<Handle>,
    /// Whether what the predecessor has lent is over since the last look.
    pub(super) inherited_over: bool,
    /// Grows with each change that ends.
    pub(super) clock: u64,
    /// When files were changed last, on that clock.
    changed: BTreeMap<Handle, u64>,
    /// Changes up to this time are not in `changed` any more.
    forgotten: u64,
    contested: BTreeMap<Handle, Contest>,
    /// Until when the predecessor's loans last, and whose they are.
    pub(super) inherited: Option<(Time, BTreeSet<u64>)>,
    pub(in crate::forwarder) counts: LoanCounts,
}

/// Counts since the start.
#[derive(Default)]
pub(in crate::forwarder) struct LoanCounts {
    pub(in crate::forwarder) lent: u64,
    pub(in crate::forwarder) recalled: u64,
    pub(in crate::forwarder) given_back: u64,
}

/// The only name of a file.
struct Called {
    name: (Handle, Name),
    /// Since when it is known, on the loans' clock.
    since: u64,
}

pub(super) struct Loan {
    pub(super) until: Time,
    /// The time of its entry in `ends`; others are of loans that were given back.
    queued: Time,
    /// It is kept, even if its time is over, until the client gives it back: what the client sends
    /// for it must not end a later one.
    pub(super) recalled: bool,
}

/// Clients that have changed a file in turns.
struct Contest {
    until: Time,
    pause_ns: u64,
}

pub(super) struct Change {
    pub(super) client: u64,
    pub(super) files: Vec<Handle>,
    /// Whether what the client itself was lent must be given back first: nothing that it has sent
    /// tells it when the change has ended.
    pub(super) own_too: bool,
}

impl Change {
    /// Whose loans it need not wait for.
    pub(super) fn except(&self) -> Option<u64> {
        (!self.own_too).then_some(self.client)
    }
}

impl Loans {
    /// Loans that last so long, ns; with 0 nothing is lent.
    pub(in crate::forwarder) fn new(period_ns: u64) -> Loans {
        Loans {
            period_ns,
            ..Loans::default()
        }
    }

    /// How long clients may rely on what they are lent, ns.
    pub(in crate::forwarder) fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// How many there are, and files that are lent to nobody for a while.
    pub(in crate::forwarder) fn counted(&self) -> (usize, usize) {
        (self.count, self.contested.len())
    }

    /// When a loan of now has ended for sure: clients' clocks need not run as fast.
    pub(super) fn end(&self, now: Time) -> Time {
        now + self.period_ns + self.period_ns / 8
    }

    /// When the last loan of the file to somebody other than `except` ends; None if it is lent to
    /// nobody else.
    pub(super) fn lent_until(&self, now: Time, file: Handle, except: Option<u64>) -> Option<Time> {
        let loans = self.borrowers.get(&file).into_iter().flatten();
        let others = loans.filter(|(client, _)| Some(**client) != except);
        let last = others.map(|(_, loan)| loan.until).max();
        last.filter(|until| *until > now)
    }

    pub(super) fn lend(&mut self, now: Time, handle: Handle, client: u64) -> bool {
        let until = self.end(now);
        let loans = self.borrowers.get_mut(&handle);
        if let Some(loan) = loans.and_then(|loans| loans.get_mut(&client)) {
            if !loan.recalled {
                loan.until = until;
            }
            return !loan.recalled;
        }
        let own = self.of_clients.get(&client).map_or(0, BTreeSet::len);
        if self.count >= LOANS_MAX || own >= OF_CLIENT_MAX {
            return false;
        }
        self.of_clients.entry(client).or_default().insert(handle);
        self.count += 1;
        self.counts.lent += 1;
        let loan = Loan {
            until,
            queued: until,
            recalled: false,
        };
        self.borrowers
            .entry(handle)
            .or_default()
            .insert(client, loan);
        self.ends.push_back((until, handle, client));
        true
    }

    /// Ends a loan; false if there was none.
    pub(super) fn take_back(&mut self, handle: Handle, client: u64) -> bool {
        let Some(loans) = self.borrowers.get_mut(&handle) else {
            return false;
        };
        if loans.remove(&client).is_none() {
            return false;
        }
        if loans.is_empty() {
            self.borrowers.remove(&handle);
        }
        self.count -= 1;
        if let Some(own) = self.of_clients.get_mut(&client) {
            own.remove(&handle);
            if own.is_empty() {
                self.of_clients.remove(&client);
            }
        }
        if self.waiting.contains_key(&handle) {
            self.given_back.push(handle);
        }
        true
    }

    /// A client throws away what it was lent, of itself. What was recalled it gives back besides.
    pub(super) fn throw_away(&mut self, handle: Handle, client: u64) {
        let loans = self.borrowers.get(&handle);
        let loan = loans.and_then(|loans| loans.get(&client));
        if loan.is_some_and(|loan| !loan.recalled) {
            self.take_back(handle, client);
        }
    }

    /// Ends all loans to a client.
    pub(super) fn take_all_back(&mut self, client: u64) {
        for handle in self.of_clients.get(&client).cloned().unwrap_or_default() {
            self.take_back(handle, client);
        }
    }

    /// Forgets loans whose time is over.
    pub(super) fn forget_ended(&mut self, now: Time) {
        while let Some((end, handle, client)) = self.ends.front().copied()
            && end <= now
        {
            self.ends.pop_front();
            let loans = self.borrowers.get_mut(&handle);
            let loan = loans.and_then(|loans| loans.get_mut(&client));
            let Some(loan) = loan.filter(|loan| loan.queued == end) else {
                continue;
            };
            if loan.until > now {
                loan.queued = loan.until;
                self.ends.push_back((loan.until, handle, client));
                continue;
            }
            if !loan.recalled {
                self.take_back(handle, client);
            } else if self.waiting.contains_key(&handle) {
                self.given_back.push(handle);
            }
        }
    }

    /// Notes the only name of a file; false if there is no room for it.
    pub(super) fn call(&mut self, handle: Handle, (parent, name): (Handle, &Name)) -> bool {
        let name = (parent, name.clone());
        if self.names.get(&handle).is_some_and(|it| it.name == name) {
            return true;
        }
        if self.names.len() >= NAMES_MAX && !self.make_room_for_name() {
            return false;
        }
        self.forget_name(&name);
        self.named.push_back(handle);
        if self.named.len() > 2 * NAMES_MAX {
            let mut once = BTreeSet::new();
            let names = &self.names;
            let is_named = |file: &Handle| *file == handle || names.contains_key(file);
            self.named
                .retain(|file| is_named(file) && once.insert(*file));
        }
        let since = self.clock;
        let called = Called {
            name: name.clone(),
            since,
        };
        if let Some(old) = self.names.insert(handle, called) {
            self.by_name.remove(&old.name);
        }
        self.by_name.insert(name, handle);
        true
    }

    /// Forgets the oldest name of a file that is lent to nobody; false if it finds none soon.
    fn make_room_for_name(&mut self) -> bool {
        for _ in 0..NAME_LOOKS {
            let Some(file) = self.named.pop_front() else {
                break;
            };
            // Of what is lent the name must stay known.
            if self.borrowers.contains_key(&file) {
                self.named.push_back(file);
            } else if let Some(called) = self.names.remove(&file) {
                self.by_name.remove(&called.name);
                return true;
            }
        }
        false
    }

    /// The file whose only name this is, as far as it is known.
    pub(super) fn called(&self, name: &(Handle, Name)) -> Option<Handle> {
        self.by_name.get(name).copied()
    }

    /// Whether the only name of a file has been known since `mark`.
    pub(super) fn has_name(&self, handle: Handle, mark: u64) -> bool {
        self.names.get(&handle).is_some_and(|it| it.since <= mark)
    }

    /// A name leads elsewhere from now on.
    pub(super) fn forget_name(&mut self, name: &(Handle, Name)) {
        if let Some(file) = self.by_name.remove(name) {
            self.names.remove(&file);
        }
    }

    /// Whether nobody has changed the file since the time `mark` of the loans' clock, or does now.
    pub(super) fn is_as_at(&self, mark: u64, handle: Handle) -> bool {
        let changed = self.changed.get(&handle).copied().unwrap_or(0);
        mark >= self.forgotten.max(changed) && !self.changing.contains_key(&handle)
    }

    /// Whether a file may be lent with an answer whose request began at the time `mark` of the
    /// loans' clock.
    pub(super) fn may_lend(&self, now: Time, handle: Handle, mark: u64) -> bool {
        if !self.is_as_at(mark, handle) {
            return false;
        }
        !self.is_contested(now, handle)
    }

    /// Whether clients have changed a file in turns of late.
    pub(super) fn is_contested(&self, now: Time, handle: Handle) -> bool {
        let contest = self.contested.get(&handle);
        contest.is_some_and(|contest| contest.until > now)
    }

    /// Whether one request alone changes the file, and none has done so since the time `mark` of
    /// the loans' clock.
    pub(super) fn is_only_change(&self, key: Key, mark: u64, handle: Handle) -> bool {
        let changed = self.changed.get(&handle).copied().unwrap_or(0);
        let own = self.changes.get(&key);
        let own = own.map_or(0, |it| it.files.iter().filter(|it| **it == handle).count());
        let all = self.changing.get(&handle).copied().unwrap_or(0);
        mark >= self.forgotten.max(changed) && all as usize == own
    }

    /// A request begins to change the file.
    pub(super) fn begin(&mut self, file: Handle) {
        *self.changing.entry(file).or_default() += 1;
    }

    /// A request that has changed the file has ended.
    pub(super) fn end_of(&mut self, file: Handle) {
        if let Some(count) = self.changing.get_mut(&file) {
            *count -= 1;
            if *count == 0 {
                self.changing.remove(&file);
            }
        }
        self.has_changed(file);
    }

    /// What looked at the file before now is not lent any more.
    pub(in crate::forwarder) fn has_changed(&mut self, file: Handle) {
        if self.period_ns == 0 {
            return;
        }
        self.clock += 1;
        self.changed.insert(file, self.clock);
        if self.changed.len() > REMEMBERED_MAX {
            self.changed.clear();
            self.forgotten = self.clock;
        }
    }

    pub(super) fn begin_change(&mut self, key: Key, change: Change) {
        for file in &change.files {
            self.begin(*file);
        }
        self.changes.insert(key, change);
    }

    pub(super) fn end_change(&mut self, key: Key) -> Option<Change> {
        self.stop_waiting(key);
        let change = self.changes.remove(&key)?;
        for file in &change.files {
            self.end_of(*file);
        }
        Some(change)
    }

    pub(super) fn wait(&mut self, key: Key) {
        for file in &self.changes[&key].files {
            self.waiting.entry(*file).or_default().insert(key);
        }
    }

    /// Whether a request waited that does so no longer.
    pub(super) fn stop_waiting(&mut self, key: Key) -> bool {
        let Some(change) = self.changes.get(&key) else {
            return false;
        };
        let mut waited = false;
        for file in &change.files {
            if let Some(keys) = self.waiting.get_mut(file) {
                waited |= keys.remove(&key);
                if keys.is_empty() {
                    self.waiting.remove(file);
                }
            }
        }
        waited
    }

    /// Requests that wait for loans of these files, or all that wait.
    pub(super) fn waiters(&self, of: Option<&[Handle]>) -> Vec<Key> {
        let keys: BTreeSet<Key> = match of {
            None => self.waiting.values().flatten().copied().collect(),
            Some(files) => {
                let sets = files.iter().filter_map(|file| self.waiting.get(file));
                sets.flatten().copied().collect()
            }
        };
        keys.into_iter().collect()
    }

    /// Notes that a client changes a file that another one was lent.
    pub(super) fn contest(&mut self, now: Time, handle: Handle) {
        let (first, most) = (*PAUSE_NS.start(), *PAUSE_NS.end());
        if self.contested.len() >= REMEMBERED_MAX {
            self.contested
                .retain(|_, contest| contest.until + contest.pause_ns > now);
        }
        if self.contested.len() >= REMEMBERED_MAX {
            // Which are the oldest nobody knows. All are lent again.
            self.contested.clear();
        }
        let contest = self.contested.entry(handle).or_insert(Contest {
            until: now,
            pause_ns: 0,
        });
        let again = contest.pause_ns > 0 && now < contest.until + 4 * contest.pause_ns;
        contest.pause_ns = match again {
            true => (contest.pause_ns * 2).min(most),
            false => first,
        };
        contest.until = now + contest.pause_ns;
    }

    /// The forwarder has the seat, perhaps anew: nothing is lent by now. True if it has lent
    /// something before.
    pub(super) fn begin_anew(&mut self) -> bool {
        let lent = self.count > 0;
        let anew = Loans::new(self.period_ns);
        let old = core::mem::replace(self, anew);
        // What the host is still executing changes its files yet.
        (self.changes, self.changing) = (old.changes, old.changing);
        self.clock = old.clock + 1;
        self.forgotten = self.clock;
        self.counts = old.counts;
        lent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::boxed::Box;
    use std::format;

    fn file(inode: u64) -> Handle {
        Handle { inode, birth: 0 }
    }

    #[test]
    fn names_of_files_that_are_lent_stay_and_others_make_room() {
        let mut loans = Loans::new(1000);
        let call = |loans: &mut Loans, inode: u64| {
            let name: Name = format!("{inode}").into_bytes().into();
            loans.call(file(inode), (file(1), &name))
        };
        let all = 10..10 + NAMES_MAX as u64;
        for inode in all.clone() {
            assert!(call(&mut loans, inode));
            loans.lend(Time(0), file(inode), inode % 2);
        }
        for inode in 1_000_000..1_000_100 {
            assert!(!call(&mut loans, inode));
        }
        for inode in all.clone().step_by(4) {
            loans.take_back(file(inode), inode % 2);
        }
        for inode in 1_000_000..1_000_100 {
            assert!(call(&mut loans, inode), "{inode}");
        }
        assert!(
            all.clone()
                .skip(1)
                .step_by(4)
                .all(|it| loans.has_name(file(it), 0))
        );
        assert!(loans.names.len() == NAMES_MAX && loans.by_name.len() == NAMES_MAX);
        // What comes and goes leaves nothing behind.
        for turn in 0..4 * NAMES_MAX {
            let name: Name = Box::from(*b"one");
            loans.forget_name(&(file(1), name.clone()));
            loans.call(file(1_000_000), (file(1), &name));
            assert!(loans.named.len() <= 2 * NAMES_MAX + 1, "{turn}");
        }
    }
}
