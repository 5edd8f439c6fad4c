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
/// Names that are remembered of those found one by one.
const LAST_MAX: usize = 4;
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
    /// Whether a call begins for which the client has looked ahead already.
    is_over: bool,
}

#[derive(Default)]
struct Directory {
    /// When something in it was looked up or listed last, ns.
    used_at: u64,
    /// Where names are listed, of those that came of late.
    places: BTreeMap<Name, Place>,
    /// Whether it was listed from the start, and nothing was asked for since.
    is_listed: bool,
    /// Names that were found one by one since the last request: how many, and the last ones.
    missed: u32,
    last_missed: Vec<Name>,
    /// How many requests in a row brought what was of no use, or nothing.
    futile: u32,
    /// The cookies behind which the last request began, and the next one does.
    from: u64,
    next: u64,
    /// What the last request brought, in entries that are lent, and how many of them answered no
    /// look-up yet.
    brought: u32,
    unused: u32,
    /// Counts requests.
    turn: u32,
    /// Extended attributes that the last request asked for.
    xattrs: Vec<Name>,
    /// The request under way.
    request: Option<Id>,
    /// Until when all names in it have a place, but for new ones, ns.
    complete_until: u64,
}

struct Place {
    /// The cookie behind which the name is listed.
    behind: u64,
    /// The number of the request that brought it, until it is used; 0: none.
    turn: u32,
}

impl Directory {
    /// Whether at least half of what the last request brought was used.
    fn was_used(&self) -> bool {
        self.brought > 0 && self.unused <= self.brought / 2
    }

    /// Behind which cookie to look ahead now that a look-up of this name has no answer.
    fn due(&self, name: &Name, now: u64) -> Option<u64> {
        let place = self.places.get(name).map(|place| place.behind);
        let begins = self.is_listed && place == Some(0) && self.futile == 0;
        let due = begins || self.was_used() || self.missed >= self.enough();
        let is_listed = place.is_some() || now >= self.complete_until;
        (due && is_listed).then(|| place.unwrap_or(self.next))
    }

    /// Forgets where names are, and so which of them came and were not used.
    fn forget(&mut self) {
        self.places.clear();
        (self.brought, self.unused) = (0, 0);
    }

    /// With how many names that were found one by one the next request is made.
    fn enough(&self) -> u32 {
        ENOUGH.max(self.unused / ENTRIES_OF_A_TRIP) << self.futile
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
    pub(super) fn missed(&mut self, parent: Handle, name: &Name, now: u64, period: u64) {
        let directory = self.directory(parent, now, period);
        // Who looks at one name again and again does not ask for others.
        if directory.last_missed.contains(name) {
            return;
        }
        directory.missed += 1;
        directory.last_missed.truncate(LAST_MAX - 1);
        directory.last_missed.insert(0, name.clone());
    }

    /// A look-up was answered from what was lent.
    pub(super) fn used(&mut self, parent: Handle, name: &Name, now: u64) {
        if let Some(directory) = self.directories.get_mut(&parent) {
            directory.used_at = now;
            let place = directory.places.get_mut(name);
            if let Some(place) = place.filter(|it| it.turn == directory.turn) {
                place.turn = 0;
                directory.unused = directory.unused.saturating_sub(1);
            }
        }
    }

    /// A program has listed a part of a directory.
    pub(super) fn listed(&mut self, op: &Op, listing: &Listing, now: u64, period: u64) {
        let Op::Readdir { handle, cookie, .. } = op else {
            return;
        };
        let directory = self.directory(*handle, now, period);
        directory.is_listed |= *cookie == 0;
        self.note_places(*handle, *cookie, listing);
    }

    fn note_places(&mut self, handle: Handle, cookie: u64, listing: &Listing) {
        let count = listing.entries.len();
        let known = self.directories.values().map(|it| it.places.len());
        if known.sum::<usize>() + count > PLACES_MAX {
            self.directories.values_mut().for_each(Directory::forget);
        }
        let Some(directory) = self.directories.get_mut(&handle) else {
            return;
        };
        if directory.places.len() + count > PLACES_OF_ONE_MAX {
            directory.forget();
        }
        let mut behind = cookie;
        for entry in &listing.entries {
            match directory.places.get_mut(&entry.name) {
                Some(place) => place.behind = behind,
                None => {
                    let place = Place { behind, turn: 0 };
                    directory.places.insert(entry.name.clone(), place);
                }
            }
            behind = entry.cookie;
        }
    }

    /// Behind which cookie to look ahead now that an extended attribute of an entry has no answer:
    /// where what came did not say whether its file has it, and programs ask for it of several.
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
            directory.request = Some(request);
        }
    }

    /// A request behind this cookie has an answer; None: an error. What it lends counts until
    /// `until`, ns.
    fn came(&mut self, op: &Op, listing: Option<&Listing>, until: u64) {
        let Op::Readdir {
            handle,
            cookie,
            xattrs,
            ..
        } = op
        else {
            return;
        };
        let Some(directory) = self.directories.get_mut(handle) else {
            return;
        };
        directory.request = None;
        directory.is_listed = false;
        directory.missed = 0;
        let entries = listing.map_or(&[][..], |listing| &listing.entries);
        let again = directory.brought > 0 && directory.from == *cookie;
        if again && directory.xattrs != *xattrs && !entries.is_empty() {
            // The same entries, with more extended attributes.
            directory.xattrs.clone_from(xattrs);
            return;
        }
        let lent = entries.iter().filter(|entry| entry.lent).count() as u32;
        directory.futile = match lent > 0 && (directory.brought == 0 || directory.was_used()) {
            true => 0,
            false => (directory.futile + 1).min(FUTILE_MAX),
        };
        (directory.brought, directory.unused) = (0, 0);
        let Some(listing) = listing else {
            return;
        };
        directory.xattrs.clone_from(xattrs);
        directory.from = *cookie;
        let last = entries.last().filter(|_| !listing.ended);
        directory.next = last.map_or(0, |entry| entry.cookie);
        if *cookie == 0 && listing.ended {
            directory.complete_until = until;
        }
        self.note_places(*handle, *cookie, listing);
        self.note_lent(*handle, listing, lent);
    }

    /// Notes which entries came that are lent.
    fn note_lent(&mut self, handle: Handle, listing: &Listing, lent: u32) {
        let Some(directory) = self.directories.get_mut(&handle) else {
            return;
        };
        directory.turn += 1;
        (directory.brought, directory.unused) = (lent, lent);
        for entry in listing.entries.iter().filter(|entry| entry.lent) {
            if let Some(place) = directory.places.get_mut(&entry.name) {
                place.turn = directory.turn;
            }
        }
    }

    /// Forgets everything, because the session has ended.
    pub(super) fn clear(&mut self) {
        self.directories.clear();
    }
}

impl Core {
    /// Asks for several entries of a directory at once before the call goes on.
    pub(super) fn look_ahead(&mut self, id: CallId, call: Call, (handle, op): (Handle, Op)) {
        let (Some(layout), Some(root)) = (self.layout, self.root) else {
            return;
        };
        let seat = layout.seat_of_op(&op, root.handle).unwrap_or(0);
        let mut pending = Pending::new(op, seat, Target::Seat, Purpose::LookAhead { call: id });
        pending.caller = call.caller.clone();
        let deadline_ns = call.deadline_ns;
        let request = self.insert(pending);
        self.ahead.begun(handle, request);
        let parts = vec![Part::new(request, None)];
        self.activate(id, Kind::LookAhead(Box::new(call)), parts, deadline_ns);
        self.route(request);
    }

    /// Of which directory to ask for several entries, and how, before an operation that nothing
    /// answers; None mostly.
    pub(super) fn due(&mut self, op: &Op) -> Option<(Handle, Op)> {
        let handle = match op {
            Op::Lookup { parent, .. } => *parent,
            Op::Getxattr { handle, .. } => self.names.parent_of(*handle)?,
            _ => return None,
        };
        let directory = self.ahead.directories.get(&handle)?;
        let under_way = |id| self.requests.contains_key(&id);
        let is_old = self.now >= directory.used_at.saturating_add(2 * self.loan_ns());
        if self.ahead.is_over || is_old || directory.request.is_some_and(under_way) {
            return None;
        }
        let cookie = match op {
            Op::Lookup { name, .. } => directory.due(name, self.now)?,
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
        let listing = match &result {
            Ok((Outcome::Entries(listing), _)) => Some(listing),
            _ => None,
        };
        let until = pending.sent_at.saturating_add(self.loan_ns());
        self.ahead.came(&pending.op, listing, until);
        if pending.abandoned {
            return;
        }
        if let Some(Kind::LookAhead(call)) = self.calls.remove(&id).map(|active| active.kind) {
            self.ahead.is_over = true;
            self.begin(id, *call);
            self.ahead.is_over = false;
        }
    }

    /// How long something is lent to the client, ns.
    fn loan_ns(&self) -> u64 {
        let periods = self.sessions.iter().map(|session| session.loan_ns());
        periods.max().unwrap_or(0)
    }
}
