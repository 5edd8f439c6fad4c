//! What forwarders have lent to the client: names and attributes that stay true for a while, so
//! that the core answers calls itself.
//!
//! A reply says what it lends ([`Lent`]). The core may use it until the loan's time is over,
//! counted from when it sent the request, and no longer than the session lasts. It throws away what
//! it has of a file when the forwarder recalls it, and when it changes the file itself. While a
//! change of its own is under way the forwarder answers what concerns the file. The answer to a
//! change of names may lend what the directory is after it; that counts when the change has ended,
//! if no other own change of the directory is under way.
//!
//! Each answer counts for the users who got it: another one may have fewer rights.

mod directory;

use super::host_cache::After;
use super::replies::Settled;
use super::requests::{Id, Pending, Purpose, Target};
use super::{Core, MS};
use crate::core::Errno;
use crate::wire::{
    Attr, Caller, Entry, FileUse, Handle, Lent, Name, Named, Op, Outcome, RenameMode,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Answers that a client keeps.
const ANSWERS_MAX: usize = 65_536;
/// Longest text that a client keeps, bytes.
const TEXT_MAX: usize = 512;
/// Users for whom an answer counts; further ones ask the forwarder.
const CALLERS_MAX: usize = 8;
/// The longest time for which forwarders can be configured to lend something, ns.
const LOAN_MAX: u64 = 10_000 * MS;
/// Callers that are told apart without a copy of each.
const KNOWN_MAX: usize = 64;

/// See the head of the file.
#[derive(Default)]
pub(super) struct Loans {
    answers: BTreeMap<Place, Answer>,
    /// When each answer ends at the earliest, the first one first.
    ends: VecDeque<(u64, Place)>,
    /// The callers of late.
    callers: VecDeque<Arc<Caller>>,
    /// How many requests that change it are under way, of each file.
    changing: BTreeMap<Handle, u64>,
}

/// A file, and what of it an answer is about.
type Place = (Handle, Part);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Attr,
    /// What a name in the directory leads to.
    Name(Name),
    /// Of a symbolic link.
    Target,
    Xattr(Name),
    Xattrs,
}

#[derive(PartialEq)]
enum Value {
    Attr(Attr),
    /// None: the name leads to nothing.
    LeadsTo(Option<Handle>),
    /// None: there is no such attribute.
    Text(Option<Box<[u8]>>),
}

struct Answer {
    value: Value,
    /// Until when it counts for anybody, ns.
    until: u64,
    /// The time of its entry in `ends`; others are of answers that were thrown away.
    queued: u64,
    /// For whom it counts, and until when.
    callers: Vec<(Option<Arc<Caller>>, u64)>,
}

/// When a request was made, until when its answer counts, and for whom.
struct Terms<'a> {
    now: u64,
    until: u64,
    caller: Option<&'a Caller>,
}

impl Loans {
    /// The answer to an operation, if the client was lent it; the error is that of a name or an
    /// extended attribute that is not there.
    pub(super) fn answer(
        &self,
        op: &Op,
        now: u64,
        caller: Option<&Caller>,
    ) -> Option<Result<Outcome, Errno>> {
        let found = match self.get(place_of(op)?, now, caller)? {
            Value::LeadsTo(Some(handle)) => self.get((*handle, Part::Attr), now, caller)?,
            value => value,
        };
        Some(match found {
            Value::Attr(attr) => Ok(Outcome::Attr(*attr)),
            Value::LeadsTo(_) => Err(Errno::NOENT),
            Value::Text(Some(text)) => Ok(Outcome::Text(text.clone())),
            Value::Text(None) => Err(Errno::NODATA),
        })
    }

    fn get(&self, place: Place, now: u64, caller: Option<&Caller>) -> Option<&Value> {
        if self.answers.is_empty() || self.changing.contains_key(&place.0) {
            return None;
        }
        let answer = self.answers.get(&place)?;
        let mut callers = answer.callers.iter();
        let counts = callers.any(|(it, until)| now < *until && it.as_deref() == caller);
        counts.then_some(&answer.value)
    }

    /// Until when the attributes count for the caller, ns; 0 if they are not lent.
    fn lasts(&self, attr: &Attr, now: u64, caller: Option<&Caller>) -> u64 {
        let place = (attr.handle, Part::Attr);
        if self.get(place.clone(), now, caller) != Some(&Value::Attr(*attr)) {
            return 0;
        }
        let callers = self.answers.get(&place).map(|answer| answer.callers.iter());
        let mut callers = callers.into_iter().flatten();
        let own = callers.find(|(it, _)| it.as_deref() == caller);
        own.map_or(0, |(_, until)| *until)
    }

    /// Keeps what a reply lends.
    fn keep(&mut self, op: &Op, result: Result<&Outcome, Errno>, lent: &Lent, terms: &Terms<'_>) {
        self.forget_ended(terms.now);
        if let (Op::Readdir { handle, xattrs, .. }, Ok(Outcome::Entries(listing))) = (op, result)
            && lent.asked
        {
            let entries = listing.entries.iter();
            entries.for_each(|entry| self.keep_entry(*handle, entry, xattrs, terms));
        }
        let Some(place) = place_of(op) else {
            return;
        };
        let value = match (&place.1, result) {
            (Part::Name(_), Ok(Outcome::Attr(attr))) => {
                // No attributes without the name by which a change finds them.
                if lent.found && !self.changing.contains_key(&place.0) {
                    self.put((attr.handle, Part::Attr), Value::Attr(*attr), terms);
                }
                Value::LeadsTo(Some(attr.handle))
            }
            (Part::Name(_), Err(Errno::NOENT)) => Value::LeadsTo(None),
            (Part::Attr, Ok(Outcome::Attr(attr))) if attr.handle == place.0 => Value::Attr(*attr),
            (Part::Target | Part::Xattr(_) | Part::Xattrs, Ok(Outcome::Text(text))) => {
                if text.len() > TEXT_MAX {
                    return;
                }
                Value::Text(Some(text.clone()))
            }
            (Part::Xattr(_), Err(Errno::NODATA)) => Value::Text(None),
            _ => return,
        };
        if lent.asked {
            self.put(place, value, terms);
        }
    }

    /// Keeps what an entry of a directory lends.
    fn keep_entry(&mut self, parent: Handle, entry: &Entry, xattrs: &[Name], terms: &Terms<'_>) {
        let attr = entry.attr;
        let attr = attr.filter(|_| !self.changing.contains_key(&parent));
        let Some(attr) = attr else {
            return;
        };
        let (file, name) = (attr.handle, Part::Name(entry.name.clone()));
        self.put((parent, name), Value::LeadsTo(Some(file)), terms);
        if entry.lent {
            self.put((file, Part::Attr), Value::Attr(attr), terms);
            let lacks = |at: &usize| entry.lacks & 1 << at != 0;
            for at in (0..xattrs.len()).filter(lacks) {
                let place = (file, Part::Xattr(xattrs[at].clone()));
                self.put(place, Value::Text(None), terms);
            }
        }
    }

    /// Puts a new answer in the place of an older one. The users of that can have the new one for
    /// the rest of their time, if it says the same: another one may be for the new user alone.
    fn put(&mut self, place: Place, value: Value, terms: &Terms<'_>) {
        let (now, until) = (terms.now, terms.until);
        let busy = self.changing.contains_key(&place.0);
        if busy || until <= now {
            return;
        }
        if !self.answers.contains_key(&place) {
            self.make_room();
        }
        let old = self.answers.remove(&place);
        let queued = old.as_ref().map(|old| old.queued);
        let queued = queued.unwrap_or_else(|| {
            self.ends.push_back((until, place.clone()));
            until
        });
        let old = old.filter(|old| old.value == value);
        let mut callers = old.map_or_else(Vec::new, |old| old.callers);
        callers.retain(|(it, until)| now < *until && it.as_deref() != terms.caller);
        if callers.len() >= CALLERS_MAX {
            callers.remove(0);
        }
        callers.push((self.known(terms.caller), until));
        let answer = Answer {
            value,
            until,
            queued,
            callers,
        };
        self.answers.insert(place, answer);
    }

    /// Throws answers away, those that end first, while there are too many. With a name goes what
    /// is kept of its file, which a change by that name would not find.
    fn make_room(&mut self) {
        while self.answers.len() >= ANSWERS_MAX
            && let Some((end, place)) = self.ends.pop_front()
        {
            let Some(answer) = self.answers.get(&place).filter(|it| it.queued == end) else {
                continue;
            };
            if let Value::LeadsTo(Some(file)) = answer.value {
                self.drop_file(file);
            }
            self.answers.remove(&place);
        }
    }

    /// The caller, in memory that answers share: a caller can have a thousand groups.
    fn known(&mut self, caller: Option<&Caller>) -> Option<Arc<Caller>> {
        let caller = caller?;
        if let Some(known) = self.callers.iter().find(|known| known.as_ref() == caller) {
            return Some(Arc::clone(known));
        }
        if self.callers.len() >= KNOWN_MAX {
            self.callers.pop_front();
        }
        self.callers.push_back(Arc::new(caller.clone()));
        self.callers.back().cloned()
    }

    /// A reply that lends no attributes says what they are: others that are kept are old.
    fn compare(&mut self, attr: &Attr) {
        let place = (attr.handle, Part::Attr);
        let kept = self.answers.get(&place);
        if kept.is_some_and(|kept| kept.value != Value::Attr(*attr)) {
            self.answers.remove(&place);
        }
    }

    /// Forgets what ended.
    fn forget_ended(&mut self, now: u64) {
        while self.ends.front().is_some_and(|(end, _)| *end <= now)
            && let Some((end, place)) = self.ends.pop_front()
        {
            let answer = self.answers.get_mut(&place);
            let Some(answer) = answer.filter(|answer| answer.queued == end) else {
                continue;
            };
            if answer.until <= now {
                self.answers.remove(&place);
                continue;
            }
            answer.queued = answer.until;
            self.ends.push_back((answer.until, place));
        }
    }

    /// The file that a name leads to, as somebody was lent it.
    fn file_of(&self, parent: Handle, name: &[u8]) -> Option<Handle> {
        match self.answers.get(&(parent, Part::Name(name.into())))?.value {
            Value::LeadsTo(file) => file,
            _ => None,
        }
    }

    /// Throws away what the client has of a file.
    pub(super) fn drop_file(&mut self, handle: Handle) {
        let all = (handle, Part::Attr)..=(handle, Part::Xattrs);
        let places: Vec<Place> = self
            .answers
            .range(all)
            .map(|(place, _)| place.clone())
            .collect();
        for place in places {
            self.answers.remove(&place);
        }
    }

    /// Throws away everything, because the session has ended.
    pub(super) fn clear(&mut self) {
        self.answers.clear();
        self.ends.clear();
    }

    /// A request that changes these files begins, or it has ended.
    fn count_change(&mut self, files: &[Handle], begins: bool) {
        for file in files {
            let count = self.changing.entry(*file).or_default();
            match begins {
                true => *count += 1,
                false => *count -= 1,
            }
            if *count == 0 {
                self.changing.remove(file);
            }
        }
    }
}

impl Core {
    /// Notes a new request that changes something: what it concerns is not answered from loans
    /// until it has ended.
    pub(super) fn begin_change(&mut self, id: Id, pending: &mut Pending) {
        let changes = match &pending.op {
            // Nothing is lent of a file that is open for writing; else the forwarder recalls it.
            Op::Write { .. } => false,
            Op::Open { write, .. } => *write,
            op => op.mutates(),
        };
        if !changes {
            return;
        }
        let names = changed_names(&pending.op).into_iter().flatten();
        let named = names.flat_map(|(parent, name)| self.files_called(parent, name));
        let files = pending
            .op
            .files()
            .map(|file| file.map(|(handle, _)| handle));
        let files = files.into_iter().flatten().chain(named);
        pending.changes = files.collect();
        self.loans.count_change(&pending.changes, true);
        if self.host_cache.is_empty() {
            return;
        }
        let after = After::Change(id);
        // What is cached of a file is found by its name, unless the client has had to forget names.
        if self.names.take_evicted() {
            self.host_cache.doubt_until = self.now + LOAN_MAX;
        }
        let doubt = self.now < self.host_cache.doubt_until;
        let unknown = doubt && self.takes_unknown(&pending.op);
        pending.held_by_host = match unknown {
            true => self.invalidate_all(after),
            false => self.invalidate(&pending.changes, after),
        };
    }

    /// Whether a change may take a name from a file that the client does not know by it.
    fn takes_unknown(&self, op: &Op) -> bool {
        let takes = matches!(op, Op::Unlink { .. } | Op::Rmdir { .. } | Op::Rename { .. });
        let unknown = |(parent, name)| self.files_called(parent, name).next().is_none();
        let mut names = changed_names(op).into_iter().flatten();
        takes && names.any(unknown)
    }

    /// Whether the client is lent a name of the file, by which an own change finds what is cached
    /// of it. The root has none.
    fn is_called(&self, file: Handle, caller: Option<&Caller>) -> bool {
        let leads = |(parent, name): (Handle, &[u8])| {
            let place = (parent, Part::Name(name.into()));
            self.loans.get(place, self.now, caller) == Some(&Value::LeadsTo(Some(file)))
        };
        self.root.is_some_and(|root| root.handle == file)
            || self.names.name_of(file).is_some_and(leads)
    }

    /// For how long a caller may cache the attributes in an answer, ns.
    pub(super) fn cache_attr(
        &mut self,
        op: &Op,
        outcome: &Outcome,
        caller: Option<&Caller>,
    ) -> u64 {
        let (Op::Lookup { .. } | Op::Getattr { .. }, Outcome::Attr(attr)) = (op, outcome) else {
            return 0;
        };
        // The kernel would throw them away, and never know the file.
        let is_sound = matches!(attr.mode >> 12, 1 | 2 | 4 | 6 | 8 | 10 | 12);
        if !is_sound || attr.size > i64::MAX as u64 {
            return 0;
        }
        if matches!(op, Op::Getattr { .. }) && !self.is_called(attr.handle, caller) {
            return 0;
        }
        let until = self.loans.lasts(attr, self.now, caller);
        if until > self.now {
            self.cached(attr.handle, until);
        }
        until.saturating_sub(self.now)
    }

    /// A request that changes something has ended: throws away what was lent of its files, but for
    /// other names of a directory.
    pub(super) fn end_change(&mut self, pending: &mut Pending) {
        if pending.changes.is_empty() {
            return;
        }
        self.loans.count_change(&pending.changes, false);
        let directories = pending.op.files().into_iter().flatten();
        let directories = directories.filter(|(_, of)| *of == FileUse::Names);
        let directories: Vec<Handle> = directories.map(|(handle, _)| handle).collect();
        for file in &pending.changes {
            match directories.contains(file) {
                true => drop(self.loans.answers.remove(&(*file, Part::Attr))),
                false => self.loans.drop_file(*file),
            }
        }
        let names = changed_names(&pending.op).into_iter().flatten();
        for ((parent, name), unknown) in names.zip(&mut pending.unknown) {
            // A look that came between may have told which file it is.
            let files: Vec<Handle> = self.files_called(parent, name).collect();
            *unknown = files.is_empty();
            files.iter().for_each(|file| self.loans.drop_file(*file));
            let place = (parent, Part::Name(name.into()));
            self.loans.answers.remove(&place);
        }
    }

    /// The files that a name leads to, as the client was lent it or has seen it last.
    fn files_called(&self, parent: Handle, name: &[u8]) -> impl Iterator<Item = Handle> + use<> {
        let lent = self.loans.file_of(parent, name);
        let seen = self.names.file_of(parent, name);
        lent.into_iter().chain(seen)
    }

    /// Throws away what was lent of the files that a change names in its answer, and everything
    /// where it may have changed a file that the client does not know by the name: the forwarder
    /// counts on that for the client's own changes.
    pub(super) fn changed(&mut self, pending: &Pending, result: &Settled) {
        if pending.changes.is_empty() {
            return;
        }
        let [first, second] = pending.unknown;
        let doubted = match (&pending.op, result) {
            (_, Ok((Outcome::Attr(attr), _))) => {
                self.loans.drop_file(attr.handle);
                self.invalidate(&[attr.handle], After::Nothing);
                false
            }
            (op, Ok((Outcome::Removed(victim), _))) => {
                if let Some(victim) = victim {
                    self.loans.drop_file(*victim);
                    self.invalidate(&[*victim], After::Nothing);
                }
                match op {
                    Op::Rename { mode, .. } => first || second && *mode == RenameMode::Exchange,
                    _ => first && victim.is_none(),
                }
            }
            (_, Err(Errno::NOENT) | Ok(_)) => false,
            (_, Err(_)) => first || second,
        };
        if doubted {
            self.loans.clear();
            self.invalidate_all(After::Nothing);
        }
    }

    /// Keeps what a reply lends.
    pub(super) fn lent(
        &mut self,
        forwarder: usize,
        pending: u64,
        result: Result<&Outcome, Errno>,
        lent: &Lent,
    ) {
        match result {
            Ok(Outcome::Attr(attr)) => self.loans.compare(attr),
            Ok(Outcome::Entries(listing)) => {
                let attrs = listing.entries.iter().filter_map(|entry| entry.attr);
                attrs.for_each(|attr| self.loans.compare(&attr));
            }
            _ => {}
        }
        let Some(until) = self.lent_until(forwarder, pending) else {
            return;
        };
        let period = self.sessions[forwarder].loan_ns();
        let Some(pending) = self.requests.get(&pending) else {
            return;
        };
        let terms = Terms {
            now: self.now,
            until,
            caller: pending.caller.as_ref(),
        };
        self.loans.keep(&pending.op, result, lent, &terms);
        match (&pending.op, result) {
            (Op::Lookup { parent, name }, Ok(_)) if lent.asked => {
                self.ahead.missed(*parent, name, self.now, period);
            }
            (op @ Op::Readdir { plus: false, .. }, Ok(Outcome::Entries(listing))) => {
                self.ahead.listed(op, listing, self.now, period);
            }
            _ => {}
        }
    }

    /// Until when counts what the reply to a request lends, ns; None if it counts not at all.
    pub(super) fn lent_until(&self, forwarder: usize, id: Id) -> Option<u64> {
        let period = self.sessions[forwarder].loan_ns();
        // Of what was asked for before a hello a successor may know nothing.
        let counts = id > self.greeted_last && !self.greets() && period > 0;
        let pending = self.requests.get(&id).filter(|_| counts)?;
        Some(pending.sent_at.saturating_add(period))
    }

    /// The forwarder recalls what it has lent of a file: others wait to change it.
    pub(super) fn recalled(&mut self, forwarder: usize, handle: Handle) {
        self.loans.drop_file(handle);
        let after = After::GiveBack {
            forwarder,
            incarnation: self.sessions[forwarder].incarnation(),
            file: handle,
        };
        if !self.invalidate(&[handle], after) {
            self.give_back(forwarder, handle);
        }
    }

    /// Tells the forwarder that the client has nothing more of what it was lent of a file.
    pub(super) fn give_back(&mut self, forwarder: usize, handle: Handle) {
        if self.sessions[forwarder].is_open() && self.ending.is_none() {
            let target = Target::Forwarder(forwarder);
            let op = Op::GiveBack { handle };
            let id = self.insert(Pending::new(op, 0, target, Purpose::Session));
            self.transmit(forwarder, id);
        }
    }

    /// Ends a call that what was lent answers; false if nothing does.
    pub(super) fn answer_from_loans(&mut self, id: super::CallId, call: &super::Call) -> bool {
        let answer = self.loans.answer(&call.op, self.now, call.caller.as_ref());
        let Some(answer) = answer else {
            return false;
        };
        if let (Op::Lookup { parent, name }, Ok(_)) = (&call.op, &answer) {
            self.ahead.used(*parent, name, self.now);
        }
        // As with a forwarder's answer: the caller may have let the name be forgotten meanwhile.
        match (&call.op, &answer) {
            (op, Ok(outcome)) => self.learn_names(op, outcome),
            (Op::Lookup { parent, name }, Err(_)) => self.names.removed(*parent, name),
            (_, Err(_)) => {}
        }
        let lasts_ns = match &answer {
            Ok(outcome) if call.caches => self.cache_attr(&call.op, outcome, call.caller.as_ref()),
            _ => 0,
        };
        self.end_answered(id, call.deadline_ns, answer, lasts_ns);
        true
    }
}

/// What an operation asks that can be lent.
fn place_of(op: &Op) -> Option<Place> {
    match op {
        Op::Lookup { parent, name } => Some((*parent, Part::Name(name.clone()))),
        Op::Getattr { handle } => Some((*handle, Part::Attr)),
        Op::Readlink { handle } => Some((*handle, Part::Target)),
        Op::Getxattr { handle, name } => Some((*handle, Part::Xattr(name.clone()))),
        Op::Listxattr { handle } => Some((*handle, Part::Xattrs)),
        _ => None,
    }
}

/// The names that an operation makes, moves or removes.
fn changed_names(op: &Op) -> [Option<(Handle, &[u8])>; 2] {
    let [one, other] = op.files();
    let [name, new_name] = op.names();
    let entry = |file: Option<(Handle, FileUse)>, name| match (file, name) {
        (Some((handle, FileUse::Names)), Some(Named::Entry(name))) => Some((handle, name)),
        _ => None,
    };
    [entry(one, name), entry(other, new_name)]
}
