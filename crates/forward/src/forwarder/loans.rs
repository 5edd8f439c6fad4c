//! What the forwarder has lent to clients: names and attributes that stay true until it recalls
//! them, so that clients need not ask for them each time.
//!
//! A reply to a look-up or to a question for attributes may lend what it says ([`Lent`]). Before
//! the forwarder begins a request that changes a file, it recalls what others have been lent of
//! that file, and waits until they have given it back or their time is over. It lends nothing of a
//! file that is being changed, that somebody has open for writing, or that several clients have
//! changed in turns just before. The answer to a change of names lends what the directory is after
//! it, if nobody else changes that.
//!
//! One forwarder can only know of all changes where it serves the whole export. So a forwarder of
//! a layout of one seat lends, and no other. It lends to clients that it trusts: another one could
//! keep others waiting. What its predecessor has lent it does not know. It begins no change until
//! all clients that the seat's table names have connected to it, and so have thrown away what they
//! had been lent, or until that time must be over.

mod table;

use super::Forwarder;
use super::receive::{Dispatch, Key, Look, Pending};
use super::seat_gate::State;
use super::sessions::Client;
use crate::host::Output;
use crate::reply_table::SeatTable;
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use table::Change;
pub(super) use table::Loans;
use tidegate_sched::Direction;
use tidegate_wire::{
    Attr, Entry, FileUse, Handle, Lent, Name, Named, Op, OpKind, Outcome, Reply, Status, frame,
};

const ENOENT: u16 = 2;
const ENODATA: u16 = 61;
const S_IFMT: u32 = 0o170000;
const S_IFDIR: u32 = 0o040000;

impl Forwarder {
    /// Executes a request that has passed all checks, when what others were lent of the files that
    /// it changes is given back.
    pub(super) fn begin(&mut self, key: Key) {
        if self.loans_allow(key) {
            self.begin_unlent(key);
        }
    }

    /// Whether a request that is to begin need not wait for loans. One that must begins when they
    /// are given back.
    fn loans_allow(&mut self, key: Key) -> bool {
        // In a seat that is lost by now it is refused as soon as it begins.
        if self.loans.period_ns == 0 || self.is_lost(key) {
            return true;
        }
        let pending = &mut self.requests[key];
        if let Some((file, name)) = looks_at(pending.op()) {
            let mark = self.loans.clock;
            pending.look = Some(Look { mark, file, name });
            return true;
        }
        match pending.dispatch {
            Dispatch::Data(Direction::Read) | Dispatch::ResolvePath | Dispatch::Local => {
                return true;
            }
            Dispatch::Data(Direction::Write) | Dispatch::WholeFile => {}
            Dispatch::Names | Dispatch::Open | Dispatch::BackEnd => {}
        }
        let changed = changed_files(pending);
        if let [Some((file, FileUse::Write)), None] = changed
            && self.opens.is_written(file)
        {
            // Nothing is lent of a file that is open for writing, nor while this request runs.
            pending.writes = Some(file);
            self.loans.begin(file);
            return true;
        }
        let files = changed.into_iter().flatten();
        let mut files: Vec<Handle> = files.map(|(file, _)| file).collect();
        if files.is_empty() {
            return true;
        }
        let names = changed_names(self.requests[key].op());
        files.extend(names.iter().filter_map(|name| self.loans.called(name)));
        let change = Change {
            client: self.requests[key].client,
            files,
            own_too: matches!(self.requests[key].dispatch, Dispatch::Data(_)),
        };
        self.loans.begin_change(key, change);
        self.await_loans(key)
    }

    /// Recalls what others were lent of the files that a request changes. True if there is nothing
    /// to wait for.
    fn await_loans(&mut self, key: Key) -> bool {
        let change = &self.loans.changes[&key];
        let except = change.except();
        let mut lent = false;
        for file in change.files.clone() {
            if let Some(until) = self.loans.lent_until(self.now, file, except) {
                lent = true;
                self.recall(file, except);
                self.wake_by(until);
            }
        }
        if !lent && self.loans.inherited.is_none() {
            return true;
        }
        self.loans.wait(key);
        false
    }

    fn is_free(&self, key: Key) -> bool {
        let change = &self.loans.changes[&key];
        let except = change.except();
        let lent = |file: &Handle| self.loans.lent_until(self.now, *file, except).is_some();
        self.loans.inherited.is_none() && !change.files.iter().any(lent)
    }

    fn recall(&mut self, file: Handle, except: Option<u64>) {
        let mut recalled = false;
        let Some(loans) = self.loans.borrowers.get_mut(&file) else {
            return;
        };
        let epoch = self.scheduler.epoch(self.now);
        for (client, loan) in loans {
            if Some(*client) == except || core::mem::replace(&mut loan.recalled, true) {
                continue;
            }
            recalled = true;
            let conn = self.clients.get(client).and_then(|client| client.conn);
            let Some(conn) = conn else {
                continue;
            };
            self.loans.counts.recalled += 1;
            let reply = Reply {
                id: frame::NOTICE,
                seat: self.config.forwarder,
                generation: 0,
                epoch,
                charged_ns: 0,
                result: Ok(Outcome::Recalled(Some(file))),
                payload_len: 0,
                lent: Lent::default(),
            };
            self.outputs.push_back(Output::Send {
                conn,
                op: OpKind::GiveBack as u8,
                reply,
                slot: None,
            });
        }
        if recalled {
            self.loans.contest(self.now, file);
        }
    }

    /// A client gives back what it was lent of a file.
    pub(super) fn given_back(&mut self, client: u64, handle: Handle) {
        if self.loans.take_back(handle, client) {
            self.loans.counts.given_back += 1;
        }
    }

    /// Takes back all that a client was lent: it has thrown it away, or is gone.
    pub(super) fn take_all_back(&mut self, client: u64) {
        if let Some((_, owners)) = &mut self.loans.inherited {
            owners.remove(&client);
            if owners.is_empty() {
                self.loans.inherited = None;
                self.loans.inherited_over = true;
            }
        }
        self.loans.take_all_back(client);
    }

    /// Begins the requests that have nothing to wait for any more. This is done here alone, and not
    /// where something is given back, because what begins may end at once.
    pub(super) fn settle_loans(&mut self) {
        while self.loans.inherited_over || !self.loans.given_back.is_empty() {
            let files = core::mem::take(&mut self.loans.given_back);
            let all = core::mem::take(&mut self.loans.inherited_over);
            for key in self.loans.waiters((!all).then_some(&files[..])) {
                if self.is_free(key) && self.loans.stop_waiting(key) {
                    self.begin_unlent(key);
                }
            }
        }
    }

    /// Ends the loans whose time is over.
    pub(super) fn expire_loans(&mut self) {
        if self.loans.period_ns == 0 {
            return;
        }
        if let Some((until, _)) = &self.loans.inherited {
            let until = *until;
            match until <= self.now {
                true => {
                    self.loans.inherited = None;
                    self.loans.inherited_over = true;
                }
                false => self.wake_by(until),
            }
        }
        self.loans.forget_ended(self.now);
        for key in self.loans.waiters(None) {
            let change = &self.loans.changes[&key];
            let except = change.except();
            let lent = |file: &Handle| self.loans.lent_until(self.now, *file, except);
            match change.files.iter().filter_map(lent).min() {
                Some(until) => self.wake_by(until),
                None => {
                    let files = self.loans.changes[&key].files.clone();
                    self.loans.given_back.extend(files);
                }
            }
        }
    }

    /// Drops a request that waits for loans; false if it is none.
    pub(super) fn stop_waiting_for_loans(&mut self, key: Key) -> bool {
        self.loans.stop_waiting(key)
    }

    /// The forwarder has lost the seat: its successor waits until what is lent is over. Sends
    /// clients elsewhere whose requests wait.
    pub(super) fn lose_loans(&mut self) {
        for key in self.loans.waiters(None) {
            self.answer(key, Err(Status::NotMySeat));
        }
    }

    /// The forwarder has the seat. Whoever had it before may have lent something to the clients
    /// that the seat's table names, or that it lacks.
    pub(super) fn inherit_loans(&mut self, seat: u16, lacks_clients: bool) {
        if self.loans.period_ns == 0 {
            return;
        }
        let own = self.loans.begin_anew();
        let seat = &self.seats[seat];
        let named = seat.clients.iter();
        let named = named.filter(|(_, seated)| seated.inherited);
        let mut owners: BTreeSet<u64> = named.map(|(client, _)| *client).collect();
        // A client that was lent something may not be in a table that outlived the node.
        let persists = seat.table.as_deref().is_some_and(SeatTable::must_persist);
        if lacks_clients || seat.whole_grace || own || persists && seat.generation > 1 {
            // No client has this id. So the whole time is waited for.
            owners.insert(0);
        }
        if !owners.is_empty() {
            let until = self.loans.end(self.now);
            self.loans.inherited = Some((until, owners));
            self.wake_by(until);
        }
    }

    /// The host begins a request that may change names. Returns the directory whose attributes the
    /// answer could lend, because the request ends what the client was lent of it.
    pub(super) fn begin_in_directory(&mut self, key: Key) -> Option<Handle> {
        if self.loans.period_ns == 0 {
            return None;
        }
        let pending = &self.requests[key];
        // Its operation stays here if it changes names.
        let directory = only_directory(pending.op.as_ref()?)?;
        let mark = self.loans.clock;
        let lends = self.may_lend_to(pending)
            && (self.is_root(directory) || self.loans.has_name(directory, mark))
            && !self.loans.is_contested(self.now, directory)
            // Whoever changes it now will still do so, or have done so, at the end.
            && self.loans.is_only_change(key, mark, directory);
        self.requests[key].changes_in = lends.then_some((directory, mark));
        lends.then_some(directory)
    }

    /// Whether the answer to a request may lend anything.
    fn may_lend_to(&self, pending: &Pending) -> bool {
        let client = self.clients.get(&pending.client);
        let client = client.filter(|it| it.may_borrow() && !it.ended);
        // Recalls go there too, behind what was lent before.
        let first = client.and_then(|it| it.conn) == Some(pending.conn);
        let seat = &self.seats[pending.seat];
        first && seat.state == State::Held && !seat.in_grace()
    }

    fn is_root(&self, handle: Handle) -> bool {
        self.config.root.handle == handle
    }

    /// What is lent with the answer to a request. Entries of a listing say it themselves.
    pub(super) fn lend(
        &mut self,
        pending: &mut Pending,
        result: &mut Result<Outcome, Status>,
    ) -> Lent {
        if pending.look.is_none() && pending.directory.is_none() {
            return Lent::default();
        }
        if !self.may_lend_to(pending) {
            return Lent::default();
        }
        self.loans.forget_ended(self.now);
        let is_final = matches!(result, Ok(_) | Err(Status::Errno(_)));
        if let Some(attr) = pending.directory.take().filter(|_| is_final) {
            return Lent {
                directory: self.lend_directory(pending, attr),
                ..Lent::default()
            };
        }
        let Some(look) = &pending.look else {
            return Lent::default();
        };
        match result {
            Ok(Outcome::Attr(attr)) => self.lend_look(pending, look, Some(*attr)),
            Ok(Outcome::Text(_)) | Err(Status::Errno(ENOENT | ENODATA)) => {
                self.lend_look(pending, look, None)
            }
            Ok(Outcome::Entries(listing)) => self.lend_entries(pending, look, &mut listing.entries),
            _ => Lent::default(),
        }
    }

    /// For how long something may be lent to a client, ms; 0: nothing is.
    pub(super) fn loan_ms(&self, client: u64) -> u32 {
        let client = self.clients.get(&client);
        match client.is_some_and(Client::may_borrow) {
            true => u32::try_from(self.loans.period_ns() / 1_000_000).unwrap_or(u32::MAX),
            false => 0,
        }
    }

    /// Whether a file may be lent with an answer for which the host began to look at this mark.
    fn may_lend(&self, file: Handle, mark: u64) -> bool {
        !self.opens.is_written(file) && self.loans.may_lend(self.now, file, mark)
    }

    fn lend_look(&mut self, pending: &Pending, look: &Look, attr: Option<Attr>) -> Lent {
        // The name may lead elsewhere by now.
        let leads_there = look.name.is_some() && self.loans.is_as_at(look.mark, look.file);
        let found = attr.filter(|_| leads_there).filter(has_one_name);
        let found = found.map(|attr| attr.handle);
        let found = found.filter(|it| self.may_lend(*it, look.mark));
        let root = self.is_root(look.file);
        let is_known = |it: Attr| root || self.loans.has_name(it.handle, look.mark);
        let lasts = attr.is_none_or(|it| has_one_name(&it) && is_known(it));
        let asked = look.name.is_some() || lasts;
        let asked = Some(look.file).filter(|file| asked && self.may_lend(*file, look.mark));
        let lends = asked.is_some() || found.is_some();
        // The successor must know the client.
        if !lends || !self.seats.entry(pending.seat).seat_client(pending.client) {
            return Lent::default();
        }
        let (now, client) = (self.now, pending.client);
        let called = |loans: &mut Loans, file| match &look.name {
            Some(name) => loans.call(file, (look.file, name)),
            None => false,
        };
        let loans = &mut self.loans;
        let found = found.filter(|file| called(loans, *file));
        Lent {
            asked: asked.is_some_and(|file| loans.lend(now, file, client)),
            found: found.is_some_and(|file| loans.lend(now, file, client)),
            directory: None,
        }
    }

    /// Lends the attributes of a directory after a change of its names.
    fn lend_directory(&mut self, pending: &Pending, attr: Box<Attr>) -> Option<Box<Attr>> {
        let (handle, client) = (attr.handle, pending.client);
        let (_, mark) = pending.changes_in.filter(|it| it.0 == handle)?;
        // Its own name must still be known, by which a change of it would find it.
        let known = self.is_root(handle) || self.loans.has_name(handle, mark);
        // The successor must know the client.
        let lends = known
            && !self.loans.is_contested(self.now, handle)
            && self.seats.entry(pending.seat).seat_client(client)
            && self.loans.lend(self.now, handle, client);
        lends.then_some(attr)
    }

    /// Lends the names of a listing with attributes, and the files that have no other names.
    fn lend_entries(&mut self, pending: &Pending, look: &Look, entries: &mut [Entry]) -> Lent {
        let looked = entries.iter().any(|entry| entry.attr.is_some());
        let lends = looked && self.may_lend(look.file, look.mark);
        // The successor must know the client.
        if !lends || !self.seats.entry(pending.seat).seat_client(pending.client) {
            return Lent::default();
        }
        let (now, client) = (self.now, pending.client);
        if !self.loans.lend(now, look.file, client) {
            return Lent::default();
        }
        for entry in entries {
            let Some(attr) = entry.attr.filter(has_one_name) else {
                continue;
            };
            entry.lent = self.may_lend(attr.handle, look.mark)
                && (self.loans).call(attr.handle, (look.file, &entry.name))
                && self.loans.lend(now, attr.handle, client);
        }
        Lent {
            asked: true,
            found: false,
            directory: None,
        }
    }

    /// The answer to a request leaves. What the client itself was lent of the files that the
    /// request has changed it throws away with the answer, but for other names of a directory.
    pub(super) fn end_change(&mut self, key: Key, pending: &mut Pending) {
        if let Some((directory, mark)) = pending.changes_in
            && !self.loans.is_only_change(key, mark, directory)
        {
            pending.directory = None;
        }
        if let Some(file) = pending.writes {
            self.loans.end_of(file);
        }
        if self.loans.changes.is_empty() {
            return;
        }
        let Some(change) = self.loans.end_change(key) else {
            return;
        };
        let directories = pending.op.iter().flat_map(|op| op.files()).flatten();
        let directories = directories.filter(|(_, of)| *of == FileUse::Names);
        let directories: Vec<Handle> = directories.map(|(handle, _)| handle).collect();
        let mut files = change.files;
        for name in pending.op.iter().flat_map(changed_names) {
            files.extend(self.loans.called(&name));
            self.loans.forget_name(&name);
        }
        for file in files.iter().filter(|file| !directories.contains(file)) {
            self.loans.throw_away(*file, change.client);
        }
    }
}

/// Attributes change with names, too: the forwarder must know the only name. A directory has only
/// one, whatever the number of its links.
fn has_one_name(attr: &Attr) -> bool {
    attr.nlink == 1 || attr.mode & S_IFMT == S_IFDIR
}

/// The file that an operation looks at, and in a directory the name, if its answer can be lent.
fn looks_at(op: &Op) -> Option<(Handle, Option<Name>)> {
    match op {
        Op::Lookup { parent, name } => Some((*parent, Some(name.clone()))),
        Op::Getattr { handle } | Op::Readlink { handle } => Some((*handle, None)),
        Op::Getxattr { handle, .. } | Op::Listxattr { handle } => Some((*handle, None)),
        Op::Readdir { handle, plus, .. } => plus.then_some((*handle, None)),
        Op::Access { .. } | Op::Statfs | Op::Seek { .. } => None,
        session_ops!() | path_ops!() | name_ops!() | attribute_ops!() => None,
        content_ops!() | open_ops!() | lock_ops!() | data_ops!() => None,
    }
}

/// The files that a request changes, as far as it says so.
fn changed_files(pending: &Pending) -> [Option<(Handle, FileUse)>; 2] {
    let writes = matches!(pending.op(), Op::Open { write: true, .. } | Op::Link { .. });
    let changes = |file: &(Handle, FileUse)| match file.1 {
        FileUse::Names | FileUse::Set | FileUse::Write => true,
        FileUse::Look => writes,
        FileUse::Read | FileUse::Sync => false,
    };
    pending.op().files().map(|file| file.filter(changes))
}

/// The directory in which an operation changes names, if it is one.
fn only_directory(op: &Op) -> Option<Handle> {
    let of_names = |file: Option<(Handle, FileUse)>| file.filter(|it| it.1 == FileUse::Names);
    match op.files().map(of_names) {
        [Some((one, _)), Some((other, _))] => (one == other).then_some(one),
        [Some((one, _)), None] | [None, Some((one, _))] => Some(one),
        [None, None] => None,
    }
}

/// The names that an operation makes, moves or removes.
fn changed_names(op: &Op) -> Vec<(Handle, Name)> {
    let [one, other] = op.files();
    let directory = |file: Option<(Handle, FileUse)>| {
        let (handle, of) = file?;
        (of == FileUse::Names).then_some(handle)
    };
    let directories = [directory(one), directory(other)];
    let names = op.names().into_iter().zip(directories);
    let entry = |(name, directory)| match (name, directory) {
        (Some(Named::Entry(name)), Some(directory)) => Some((directory, Name::from(name))),
        _ => None,
    };
    names.filter_map(entry).collect()
}
