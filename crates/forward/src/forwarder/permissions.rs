//! The rights of clients to the data of files.
//!
//! A forwarder of root reads and writes data with its own rights, so it must check those of the
//! client. A client is trusted to check its callers itself if it runs as root or as the forwarder's
//! user, or if it has proved the secret. Any other client must have opened the file here as its own
//! user, or access(2) must allow the access to that user; the forwarder asks this once for each
//! file and direction. The owner of a file may always read and write it, as open(2) allows the
//! creator of a file.

use super::receive::Key;
use super::{Forwarder, Running};
use crate::back_end_files::{Access, Errno};
use crate::host::Job;
use alloc::collections::BTreeSet;
use tidegate_wire::{FileUse, Handle, Op, Outcome, Status};

/// Files and directions that the forwarder remembers for one client.
const ALLOWED_MAX: usize = 4096;
const R_OK: u32 = 4;
const W_OK: u32 = 2;

impl Forwarder {
    /// Executes the request of a client that is not trusted, if the client has the right to the
    /// file. If that is unknown, first asks the host.
    pub(super) fn check_rights(&mut self, key: Key) {
        let pending = &self.requests[key];
        let client = &self.clients[&pending.client];
        match missing(pending.op(), &client.allowed) {
            None => self.begin(key),
            Some((handle, write)) => self.ask_permission(key, (handle, write), false),
        }
    }

    fn ask_permission(&mut self, key: Key, (handle, write): (Handle, bool), owner: bool) {
        let client = self.requests[key].client;
        let op = match owner {
            true => Op::Getattr { handle },
            false => Op::Access {
                handle,
                mask: if write { W_OK } else { R_OK },
            },
        };
        let work = Job::Op {
            caller: self.acting(client, None),
            op,
            reply_slot: None,
            payload: None,
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
        let uid = self.clients[&self.requests[key].client].user.uid;
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
                self.allow(client, need);
                self.check_rights(key);
            }
            Err(Access::Errno(Errno::EACCES)) if !owner => self.ask_permission(key, need, true),
            Err(access) => self.answer(key, Err(access.into())),
        }
    }

    /// Remembers what a client may do.
    pub(super) fn allow(&mut self, client: u64, need: (Handle, bool)) {
        if let Some(client) = self.clients.get_mut(&client)
            && !client.trusted
        {
            if client.allowed.len() >= ALLOWED_MAX {
                client.allowed.clear();
            }
            client.allowed.insert(need);
        }
    }
}

/// The first file whose data an operation reads (false) or writes (true) without a known right of
/// the client to do so.
fn missing(op: &Op, allowed: &BTreeSet<(Handle, bool)>) -> Option<(Handle, bool)> {
    let lacks = |(handle, file_use): (Handle, FileUse)| {
        let needs = |write: bool| (!allowed.contains(&(handle, write))).then_some((handle, write));
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
