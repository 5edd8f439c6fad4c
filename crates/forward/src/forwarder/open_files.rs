//! Which client has which file open, so that a file without names lives until its last close.
//!
//! The host executes each open, because the back end checks the right to it, and the last close of
//! a file. While the host executes the last close, new opens of the file wait. An open that the
//! host is executing counts as an open.

use super::holdings::OPENS;
use super::receive::Key;
use super::{Forwarder, Running};
use crate::host::Job;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use tidegate_wire::{Handle, Op, Outcome, Status};

/// Opens that one client may have; the forwarder answers more with ENFILE.
const OPENS_MAX: u32 = 1 << 20;
const ENFILE: u16 = 23;

#[derive(Default)]
pub(super) struct OpenFiles {
    files: BTreeMap<Handle, OpenFile>,
    /// The same by client: file and number of each of its opens.
    of_clients: BTreeMap<u64, BTreeSet<(Handle, u64)>>,
}

#[derive(Default)]
struct OpenFile {
    /// For each open the client, and the client's number of the open; whether it may write.
    opens: BTreeMap<(u64, u64), bool>,
    /// How many of them may write.
    writers: usize,
    /// Opens that the host is executing.
    opening: u32,
    /// Whether the back end knows that the file is open here.
    told: bool,
    /// Whether the host is executing the last close.
    closing: bool,
    waiting: VecDeque<Key>,
}

impl OpenFiles {
    pub(super) fn count(&self, client: u64) -> u32 {
        let opens = self.of_clients.get(&client);
        opens.map_or(0, |opens| opens.len() as u32)
    }

    /// Whether the client has the file open.
    pub(super) fn has(&self, client: u64, handle: Handle) -> bool {
        let opens = self.of_clients.get(&client);
        let mut of_file = opens.map(|opens| opens.range((handle, 0)..=(handle, u64::MAX)));
        of_file
            .as_mut()
            .is_some_and(|of_file| of_file.next().is_some())
    }

    /// Whether somebody has the file open for writing.
    pub(super) fn is_written(&self, handle: Handle) -> bool {
        let file = self.files.get(&handle);
        file.is_some_and(|file| file.writers > 0)
    }

    fn note(&mut self, client: u64, handle: Handle, open: u64) {
        let opens = self.of_clients.entry(client).or_default();
        opens.insert((handle, open));
    }

    fn forget(&mut self, client: u64, handle: Handle, open: u64) {
        if let Some(opens) = self.of_clients.get_mut(&client) {
            opens.remove(&(handle, open));
            if opens.is_empty() {
                self.of_clients.remove(&client);
            }
        }
    }
}

impl Forwarder {
    pub(super) fn begin_open(&mut self, key: Key) {
        let pending = &self.requests[key];
        let Op::Open { handle, .. } = *pending.op() else {
            unreachable!("its dispatch says so");
        };
        let client = pending.client;
        let own = self.opens.count(client);
        let count = |client| self.opens.count(client);
        let may = self.may_have_more(client, own, OPENS, count);
        if own >= OPENS_MAX || !may {
            if !may {
                self.has_all_of(client, "open files", OPENS, "ENFILE");
            }
            return self.answer(key, Err(Status::Errno(ENFILE)));
        }
        let file = self.opens.files.entry(handle).or_default();
        if file.closing {
            return file.waiting.push_back(key);
        }
        file.opening += 1;
        self.begin_operation(key);
    }

    pub(super) fn open_finished(&mut self, key: Key, result: Result<Outcome, Status>) {
        let pending = &self.requests[key];
        let (client, seat) = (pending.client, pending.seat);
        let Op::Open {
            handle,
            open,
            read,
            write,
        } = *pending.op()
        else {
            unreachable!("its dispatch says so");
        };
        let file = self
            .opens
            .files
            .get_mut(&handle)
            .expect("an open is on its way");
        file.opening -= 1;
        file.told |= result.is_ok();
        // A client that ended meanwhile holds nothing.
        let lives = self
            .clients
            .get(&client)
            .is_some_and(|client| !client.ended);
        if result.is_ok() && lives {
            let before = file.opens.insert((client, open), write);
            file.writers += usize::from(write);
            file.writers -= usize::from(before == Some(true));
            if before.is_none() {
                self.opens.note(client, handle, open);
                self.seats.entry(seat).hold(client, true);
            }
            if let Some(client) = self
                .clients
                .get_mut(&client)
                .filter(|it| it.standing.is_checked())
            {
                client.rights.opened(handle, open, (read, write));
            }
        }
        self.close_if_last(handle);
        self.answer_holding(key, result);
    }

    pub(super) fn close_file(&mut self, key: Key, handle: Handle, open: u64) {
        let client = self.requests[key].client;
        self.remove_open(handle, client, open);
        self.close_if_last(handle);
        self.answer(key, Ok(Outcome::Done));
    }

    fn remove_open(&mut self, handle: Handle, client: u64, open: u64) {
        let Some(file) = self.opens.files.get_mut(&handle) else {
            return;
        };
        if let Some(wrote) = file.opens.remove(&(client, open)) {
            file.writers -= usize::from(wrote);
            if wrote {
                self.loans.has_changed(handle);
            }
            self.opens.forget(client, handle, open);
            let seat = self.config.layout.seat_of_file(handle);
            self.seats.entry(seat).hold(client, false);
            let last = !self.opens.has(client, handle);
            if last && let Some(client) = self.clients.get_mut(&client) {
                client.unsynced.settle(handle);
            }
            let checked = self
                .clients
                .get_mut(&client)
                .filter(|it| it.standing.is_checked());
            if checked.is_some_and(|it| it.rights.closed(handle, open)) {
                self.drop_locks(client, handle);
            }
        }
    }

    /// Has the host execute the last close of a file.
    fn close_if_last(&mut self, handle: Handle) {
        let Some(file) = self.opens.files.get_mut(&handle) else {
            return;
        };
        if !file.opens.is_empty() || file.opening > 0 || file.closing {
            return;
        }
        if !file.told {
            self.opens.files.remove(&handle);
            return;
        }
        file.closing = true;
        let seat = self.config.layout.seat_of_file(handle);
        self.seats.entry(seat).count_active(true);
        self.start(Running::Closed { handle }, Job::Closed { handle });
    }

    /// The host has executed the last close.
    pub(super) fn file_closed(&mut self, handle: Handle) {
        let file = self
            .opens
            .files
            .remove(&handle)
            .expect("it is kept until now");
        for key in file.waiting {
            self.begin_open(key);
        }
        let seat = self.config.layout.seat_of_file(handle);
        self.seats.entry(seat).count_active(false);
        self.release_if_idle(seat);
    }

    pub(super) fn drop_client_opens(&mut self, client: u64) {
        let opens = self.opens.of_clients.get(&client);
        let opens: Vec<(Handle, u64)> = opens.into_iter().flatten().copied().collect();
        for (handle, open) in opens {
            self.remove_open(handle, client, open);
            self.close_if_last(handle);
        }
    }

    /// Forgets the opens of a seat that goes to another forwarder. The clients re-open their files
    /// there, so the back end must not see a last close.
    pub(super) fn drop_seat_opens(&mut self, seat: u16) {
        let layout = self.config.layout;
        let stays = |handle: Handle| layout.seat_of_file(handle) != seat;
        self.opens.files.retain(|handle, _| stays(*handle));
        self.opens.of_clients.retain(|_, opens| {
            opens.retain(|(handle, _)| stays(*handle));
            !opens.is_empty()
        });
        let clients = self.clients.values_mut();
        for client in clients.filter(|it| it.standing.is_checked()) {
            client.rights.keep_opens(stays);
        }
    }
}
