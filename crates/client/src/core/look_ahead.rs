//! Look-ups of several names at once: where programs look up one entry of a directory after the
//! other, as `ls -l` does, the core asks for the next ones together, and answers from what the
//! forwarder lends ([`super::loans`]).
//!
//! What it sends is a listing with attributes, in place of the request of a call that nothing
//! answers; then the call goes on. It does so for the first name of a listing, for another name
//! after a few that it had to ask for one by one, and again where at least half of what came was
//! used. Where less was, it first waits for so many look-ups that would cost as much as what was of
//! no use, and for more each time.

use super::Core;
use super::calls::Kind;
use super::replies::Settled;
use super::requests::{Id, Pending, Purpose, Target};
use super::split::Part;
use super::types::{Call, CallId};
use crate::wire::{Handle, LISTED_XATTRS_MAX, Listing, Name, Op, Outcome};
use std::collections::BTreeMap;

/// Bytes of names that are asked for at once, where each name counts 32 bytes more.
const BYTES: u32 = 8 * 1024;
/// Names found one by one before more are asked for.
const ENOUGH: u32 = 2;
/// So many entries that come together cost about what one does that is asked for by itself.
const ENTRIES_OF_A_TRIP: u32 = 16;
/// So many entries does a request cost that brings none which are lent.
const NOTHING_LENT: u32 = 64;
/// How often the wait is doubled where what comes is of no use.
const FUTILE_MAX: u32 = 8;
/// Directories whose look-ups are counted.
const DIRECTORIES_MAX: usize = 64;
/// Names whose place is known, in all directories and in one.
const PLACES_MAX: usize = 65_536;
const PLACES_OF_ONE_MAX: usize = 16_384;

/// See the head of the file.
#[derive(Default)]
pub(super) struct LookAhead {
    directories: BTreeMap<Handle, Directory>,
    /// The extended attributes that programs asked for of several files, the latest first.
    xattrs: Vec<Name>,
}

#[derive(Default)]
struct Directory {
    /// When something in it was looked up or listed last, ns.
    used_at: u64,
    /// The cookie behind which each name is listed, of names that came of late.
    places: BTreeMap<Name, u64>,
    /// Whether it was listed from the start, and nothing was asked for since.
    is_listed: bool,
    /// Names that were found one by one since the last request.
    missed: u32,
    /// How many requests in a row brought what was of no use.
    futile: u32,
    /// The cookies behind which the last request began, and the next one does.
    from: u64,
    next: u64,
    /// What the last request brought, in entries, and look-ups that were answered since.
    brought: u32,
    used: u32,
    /// Extended attributes that the last request asked for.
    xattrs: Vec<Name>,
    /// The request under way.
    request: Option<Id>,
}

impl Directory {
    /// Whether the last request was of use.
    fn was_used(&self) -> bool {
        self.used > 0 && (1..=2 * self.used).contains(&self.brought)
    }

    /// With how many names that were found one by one the next request is made.
    fn enough(&self) -> u32 {
        let unused = self.brought.saturating_sub(self.used) / ENTRIES_OF_A_TRIP;
        ENOUGH.max(unused << self.futile)
    }
}

impl LookAhead {
    /// What is known of a directory, in place of the one that was used least lately. What is old is
    /// forgotten.
    fn directory(&mut self, handle: Handle, now: u64, period: u64) -> &mut Directory {
        let (directories, max) = (&mut self.directories, DIRECTORIES_MAX);
        if directories.len() >= max && !directories.contains_key(&handle) {
            let oldest = directories.iter().min_by_key(|(_, it)| it.used_at);
            if let Some((oldest, _)) = oldest.map(|(handle, it)| (*handle, it.used_at)) {
                directories.remove(&oldest);
            }
        }
        let directory = directories.entry(handle).or_default();
        if now >= directory.used_at.saturating_add(2 * period) {
            *directory = Directory {
                request: directory.request,
                ..Directory::default()
            };
        }
        directory.used_at = now;
        directory
    }

    /// A name was found that had to be asked for.
    pub(super) fn missed(&mut self, parent: Handle, now: u64, period: u64) {
        self.directory(parent, now, period).missed += 1;
    }

    /// A look-up was answered from what was lent.
    pub(super) fn used(&mut self, parent: Handle, now: u64) {
        if let Some(directory) = self.directories.get_mut(&parent) {
            directory.used = directory.used.saturating_add(1);
            directory.used_at = now;
        }
    }

    /// A program has listed a part of a directory.
    pub(super) fn listed(&mut self, op: &Op, listing: &Listing, now: u64, period: u64) {
        let Op::Readdir { handle, cookie, .. } = op else {
            return;
        };
        let directory = self.directory(*handle, now, period);
        if *cookie == 0 {
            (directory.is_listed, directory.missed) = (true, 0);
        }
        self.note_places(*handle, *cookie, listing);
    }

    fn note_places(&mut self, handle: Handle, cookie: u64, listing: &Listing) {
        let count = listing.entries.len();
        let known = self.directories.values().map(|it| it.places.len());
        if known.sum::<usize>() + count > PLACES_MAX {
            self.directories
                .values_mut()
                .for_each(|it| it.places.clear());
        }
        let Some(directory) = self.directories.get_mut(&handle) else {
            return;
        };
        if directory.places.len() + count > PLACES_OF_ONE_MAX {
            directory.places.clear();
        }
        let mut behind = cookie;
        for entry in &listing.entries {
            directory.places.insert(entry.name.clone(), behind);
            behind = entry.cookie;
        }
    }

    /// Behind which cookie to look ahead now that a look-up of this name has no answer.
    fn due(&mut self, parent: Handle, name: &Name) -> Option<u64> {
        let directory = self.directories.get_mut(&parent)?;
        let place = directory.places.get(name).copied();
        let begins = directory.is_listed && place == Some(0);
        let was_used = directory.was_used();
        if !begins && !was_used && directory.missed < directory.enough() {
            return None;
        }
        directory.futile = match was_used || directory.brought == 0 {
            true => 0,
            false => (directory.futile + 1).min(FUTILE_MAX),
        };
        Some(place.unwrap_or(directory.next))
    }

    /// The same for an extended attribute that was asked for of an entry: where what came did not
    /// say whether the file has it, though another one was asked, too.
    fn due_for_xattr(&mut self, parent: Handle, name: &Name) -> Option<u64> {
        let directory = self.directories.get(&parent)?;
        if directory.brought == 0 {
            return None;
        }
        let known = self.xattrs.iter().position(|it| it == name);
        if let Some(known) = known {
            self.xattrs.remove(known);
        }
        self.xattrs.insert(0, name.clone());
        self.xattrs.truncate(LISTED_XATTRS_MAX);
        let again = known.is_some() && !directory.xattrs.contains(name);
        again.then_some(directory.from)
    }

    /// A request is made.
    fn begun(&mut self, handle: Handle, request: Id) {
        if let Some(directory) = self.directories.get_mut(&handle) {
            directory.xattrs.clone_from(&self.xattrs);
            directory.is_listed = false;
            directory.request = Some(request);
        }
    }

    /// A request behind this cookie has an answer; None: an error.
    fn came(&mut self, handle: Handle, from: u64, listing: Option<&Listing>) {
        let Some(directory) = self.directories.get_mut(&handle) else {
            return;
        };
        let entries = listing.map_or(&[][..], |listing| &listing.entries);
        let lent = entries.iter().filter(|entry| entry.lent).count();
        directory.request = None;
        directory.brought = match u32::try_from(lent).unwrap_or(u32::MAX) {
            0 => NOTHING_LENT,
            lent => lent,
        };
        (directory.used, directory.missed) = (0, 0);
        directory.from = from;
        let goes_on = listing.is_some_and(|listing| !listing.ended);
        let last = entries.last().filter(|_| goes_on);
        directory.next = last.map_or(0, |entry| entry.cookie);
        if let Some(listing) = listing {
            self.note_places(handle, from, listing);
        }
    }

    /// Forgets everything, because the session has ended.
    pub(super) fn clear(&mut self) {
        self.directories.clear();
    }
}

impl Core {
    /// Asks for several entries of a directory at once, if it is time to, before the call goes on.
    /// Returns the call otherwise.
    pub(super) fn look_ahead(&mut self, id: CallId, call: Call) -> Option<Call> {
        let due = self.due(&call.op);
        let (Some((handle, op)), Some(layout), Some(root)) = (due, self.layout, self.root) else {
            return Some(call);
        };
        let seat = layout.seat_of_op(&op, root.handle).unwrap_or(0);
        let mut pending = Pending::new(op, seat, Target::Seat, Purpose::LookAhead { call: id });
        pending.caller = call.caller.clone();
        let deadline_ns = call.deadline_ns;
        pending.before = Some(Box::new(call));
        let request = self.insert(pending);
        self.ahead.begun(handle, request);
        let parts = vec![Part::new(request, None)];
        self.activate(id, Kind::Single, parts, deadline_ns);
        self.route(request);
        None
    }

    /// What to ask for, and of which directory, before an operation that nothing answers.
    fn due(&mut self, op: &Op) -> Option<(Handle, Op)> {
        let handle = match op {
            Op::Lookup { parent, .. } => *parent,
            Op::Getxattr { handle, .. } => self.names.parent_of(*handle)?,
            _ => return None,
        };
        let request = self.ahead.directories.get(&handle)?.request;
        if request.is_some_and(|id| self.requests.contains_key(&id)) {
            return None;
        }
        let cookie = match op {
            Op::Lookup { name, .. } => self.ahead.due(handle, name)?,
            Op::Getxattr { name, .. } => self.ahead.due_for_xattr(handle, name)?,
            _ => return None,
        };
        let op = Op::Readdir {
            handle,
            cookie,
            bytes_max: BYTES,
            plus: true,
            xattrs: self.ahead.xattrs.clone(),
        };
        Some((handle, op))
    }

    /// A request of a look-ahead has its answer: the call before which it was made goes on.
    pub(super) fn looked_ahead(&mut self, id: CallId, pending: Pending, result: Settled) {
        let Op::Readdir { handle, cookie, .. } = pending.op else {
            return;
        };
        let listing = match &result {
            Ok((Outcome::Entries(listing), _)) => Some(listing),
            _ => None,
        };
        self.ahead.came(handle, cookie, listing);
        if pending.abandoned || self.calls.remove(&id).is_none() {
            return;
        }
        if let Some(call) = pending.before
            && !self.answer_from_loans(id, &call)
        {
            self.ask(id, *call);
        }
    }
}
