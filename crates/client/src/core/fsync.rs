//! Fsync: one request to each node that has unstable writes of the file.
//!
//! The client knows a node by its host and boot ids, and any forwarder on the node will do. A node
//! that has booted since the write has lost what it had in memory. So, for all that the client can
//! know, has a node whose seat another host now serves. In both cases the fsync fails with EIO,
//! once.

use super::calls::{FsyncPart, Kind};
use super::replies::Dirt;
use super::requests::{Id, Pending, Place, Purpose, Target};
use super::split::Part;
use super::types::{Call, CallId};
use super::{Core, MS};
use crate::core::Errno;
use crate::wire::{Handle, Op, Outcome};
use bytes::Bytes;
use std::collections::BTreeSet;

/// Pause after a round in which the client could reach no forwarder of the node, ns.
const PAUSE: u64 = 100 * MS;

enum Step {
    Ask(usize),
    Wait,
    Lost,
}

impl Core {
    pub(super) fn begin_fsync(&mut self, id: CallId, call: Call, handle: Handle, data_only: bool) {
        let Some(layout) = self.layout else { return };
        let dirt = self.unstable.of(handle);
        let seat = layout.seat_of_file(handle);
        if dirt.is_empty() {
            return self.begin_single(id, call, seat, Target::Seat);
        }
        let mut requests = Vec::new();
        for (part, dirt) in dirt.iter().enumerate() {
            let op = Op::Fsync { handle, data_only };
            let seat = *dirt.seats.first().unwrap_or(&seat);
            let purpose = Purpose::Fsync { call: id, part };
            let mut pending = Pending::new(op, seat, Target::Seat, purpose);
            pending.caller = call.caller.clone();
            requests.push(self.insert(pending));
        }
        let part = |dirt| FsyncPart {
            dirt,
            tried: BTreeSet::new(),
        };
        let parts = dirt.into_iter().map(part).collect();
        let kind = Kind::Fsync(handle, parts);
        let parts = requests.iter().map(|request| Part::new(*request, None));
        self.activate(id, kind, parts.collect(), call.deadline_ns);
        for request in requests {
            self.fsync_step(request);
        }
    }

    /// Sends the fsync to the next forwarder of the node, or ends it if there is none.
    pub(super) fn fsync_step(&mut self, id: Id) {
        let Some((call, number)) = self.fsync_of(id) else {
            drop(self.remove(id));
            return;
        };
        let Some(part) = self.fsync_part(call, number) else {
            drop(self.remove(id));
            return;
        };
        let (dirt, tried) = (part.dirt.clone(), part.tried.clone());
        match self.next_step(&dirt, &tried) {
            Step::Ask(forwarder) => {
                if !self.sessions[forwarder].is_open()
                    && let Some(part) = self.fsync_part(call, number)
                {
                    part.tried.insert(forwarder);
                }
                if let Some(pending) = self.requests.get_mut(&id) {
                    pending.target = Target::Forwarder(forwarder);
                }
                self.route(id);
            }
            Step::Wait => {
                if let Some(part) = self.fsync_part(call, number) {
                    part.tried.clear();
                }
                self.later(id, PAUSE);
                for seat in dirt.seats {
                    self.probe(seat);
                }
            }
            Step::Lost => {
                let (host, boot) = dirt.identity;
                self.log(format!(
                    "node {host:#x} (boot {boot:#x}) is gone with writes that were not stable"
                ));
                drop(self.remove(id));
                self.fsynced(call, number, Err(Errno::IO));
            }
        }
    }

    fn next_step(&self, dirt: &Dirt, tried: &BTreeSet<usize>) -> Step {
        let (host, boot) = dirt.identity;
        if self.boots.get(&host).is_some_and(|latest| *latest != boot) {
            return Step::Lost;
        }
        let of_node = |forwarder: &usize| self.sessions[*forwarder].identity == Some(dirt.identity);
        let forwarders: Vec<usize> = (0..self.sessions.len()).filter(of_node).collect();
        let left = || forwarders.iter().filter(|f| !tried.contains(f));
        let open = left().find(|f| self.sessions[**f].is_open());
        match open.or(left().next()) {
            Some(forwarder) => Step::Ask(*forwarder),
            None if forwarders.is_empty() || self.moved(dirt) => Step::Lost,
            None => Step::Wait,
        }
    }

    /// Whether another host now serves one of the seats through which the writes went.
    fn moved(&self, dirt: &Dirt) -> bool {
        let host = |forwarder: usize| self.sessions[forwarder].identity.map(|identity| identity.0);
        dirt.seats.iter().any(|seat| {
            let server = self.seats[usize::from(*seat)].server;
            server
                .and_then(host)
                .is_some_and(|host| host != dirt.identity.0)
        })
    }

    /// A forwarder has said hello. Fsyncs that wait for it as part of a node to which it no longer
    /// belongs look for another forwarder.
    pub(super) fn recheck_fsyncs(&mut self, forwarder: usize) {
        let queued: Vec<Id> = self.sessions[forwarder].queue.iter().collect();
        for id in queued {
            let Some((call, number)) = self.fsync_of(id) else {
                continue;
            };
            let identity = self.sessions[forwarder].identity;
            let part = self.fsync_part(call, number);
            if part.is_some_and(|part| Some(part.dirt.identity) == identity) {
                continue;
            }
            self.sessions[forwarder].queue.remove(id);
            self.put(id, Place::Nowhere);
            self.fsync_step(id);
        }
    }

    fn fsync_of(&self, id: Id) -> Option<(CallId, usize)> {
        match self.requests.get(&id)?.purpose {
            Purpose::Fsync { call, part } => Some((call, part)),
            _ => None,
        }
    }

    fn fsync_part(&mut self, call: CallId, part: usize) -> Option<&mut FsyncPart> {
        match &mut self.calls.get_mut(&call)?.kind {
            Kind::Fsync(_, parts) => parts.get_mut(part),
            _ => None,
        }
    }

    /// Sends the fsync to another forwarder of the node, because this one cannot reach the back
    /// end.
    pub(super) fn fsync_elsewhere(&mut self, forwarder: usize, id: Id) {
        if let Some((call, number)) = self.fsync_of(id)
            && let Some(part) = self.fsync_part(call, number)
        {
            part.tried.insert(forwarder);
        }
        self.put(id, Place::Nowhere);
        self.fsync_step(id);
    }

    /// Takes in a node's answer to an fsync, or the loss of the node.
    pub(super) fn fsynced(&mut self, call: CallId, number: usize, result: Result<(), Errno>) {
        let lost = result == Err(Errno::IO);
        if let Some(active) = self.calls.get(&call)
            && let Kind::Fsync(handle, parts) = &active.kind
            && (result.is_ok() || lost)
        {
            self.unstable.settled(*handle, &parts[number].dirt, lost);
        }
        self.part_done(call, number, result.map(|()| (Outcome::Done, Bytes::new())));
    }
}
