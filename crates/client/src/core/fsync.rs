//! Fsync: one request to each forwarder that has written the file and to the one in charge of it,
//! on each node that has unstable writes of the file. Where a part of the file must be stable, only
//! the forwarders that have written there are asked.
//!
//! The client knows a node by its host and boot ids. Any forwarder on the node makes the bytes
//! stable, but each tells only of errors that it has seen: so those through which the writes went
//! are asked, and another one only where they do not answer. A node that has booted since the write
//! has lost what it had in memory. So, for all that the client can know, has a node whose seat
//! another host now serves. In both cases the fsync fails with EIO.
//!
//! A forwarder tells a client once of an error, and the client tells each open file once.

use super::calls::{Fsync, FsyncPart, Kind};
use super::requests::{Id, Pending, Place, Purpose, Target};
use super::split::Part;
use super::types::{Call, CallId};
use super::unstable::Dirt;
use super::{Core, MS, set_of};
use crate::core::Errno;
use crate::payload::Payload;
use crate::wire::{Handle, Op, Outcome};
use std::collections::{BTreeMap, BTreeSet};

/// Pause after a round in which the client could reach no forwarder of the node, ns.
const PAUSE: u64 = 100 * MS;

/// How one request of an fsync has ended.
enum Ended {
    /// A forwarder has said so.
    Said(Result<(), Errno>),
    /// No forwarder can say anything: the node is gone, with what was not stable there.
    NodeLost,
}

enum Step {
    Ask(usize),
    Wait,
    Lost,
}

/// Errors of which open files were not told, by file and number of the open file. The client's open
/// files bound it.
#[derive(Default)]
pub(super) struct Untold {
    errors: BTreeMap<(Handle, u64), Errno>,
}

impl Untold {
    /// The file was closed, or is told now.
    pub(super) fn forget(&mut self, handle: Handle, open: u64) -> Option<Errno> {
        self.errors.remove(&(handle, open))
    }
}

impl Core {
    pub(super) fn begin_fsync(&mut self, id: CallId, call: &Call, handle: Handle, data_only: bool) {
        let Some(layout) = self.layout else { return };
        let own_seat = layout.seat_of_file(handle);
        let mut parts = Vec::new();
        let seats: Option<Vec<u16>> = call.range.map(|range| {
            // As many stripes one after another have all seats.
            let stripes = layout.parts(handle, range).take(layout.seats.into());
            stripes.map(|stripe| stripe.seat).collect()
        });
        for mut dirt in self.unstable.of(handle) {
            if let Some(seats) = &seats {
                dirt.seats.retain(|seat| seats.contains(seat));
                if dirt.seats.is_empty() {
                    continue;
                }
            }
            let wanted = self.writers(&dirt, seats.is_none().then_some(own_seat));
            parts.extend(wanted.into_iter().map(|wanted| FsyncPart {
                dirt: dirt.clone(),
                wanted,
                tried: BTreeSet::new(),
                stable: false,
            }));
        }
        let mut request = |seat, purpose| {
            let op = Op::Fsync { handle, data_only };
            let mut pending = Pending::new(op, seat, Target::Seat, purpose);
            pending.caller = call.caller.clone();
            self.insert(pending)
        };
        let requests: Vec<Id> = match parts.is_empty() {
            true => vec![request(own_seat, Purpose::Part { call: id, part: 0 })],
            false => {
                let numbered = parts.iter().enumerate().map(|(part, asked)| {
                    let seat = *asked.dirt.seats.first().unwrap_or(&own_seat);
                    request(seat, Purpose::Fsync { call: id, part })
                });
                numbered.collect()
            }
        };
        let clean = parts.is_empty();
        let kind = Kind::Fsync(Fsync {
            handle,
            open: call.open,
            parts,
        });
        let asked = requests.iter().map(|request| Part::new(*request, None));
        self.activate(id, kind, asked.collect(), call.deadline_ns);
        for request in requests {
            match clean {
                true => self.route(request),
                false => self.fsync_step(request),
            }
        }
    }

    /// The forwarders of the node through which the writes went, and the one of the file's own
    /// seat, which knows who has the file open; None where there are none with a session.
    fn writers(&self, dirt: &Dirt, own_seat: Option<u16>) -> Vec<Option<usize>> {
        let seats = dirt.seats.iter().chain(&own_seat);
        let servers = seats.filter_map(|seat| self.seats[usize::from(*seat)].server);
        let here = servers.filter(|it| {
            let session = &self.sessions[*it];
            session.identity == Some(dirt.identity) && session.is_open()
        });
        let here = set_of(here);
        match here.is_empty() {
            true => vec![None],
            false => here.into_iter().map(Some).collect(),
        }
    }

    /// What an fsync tells its caller, after what forwarders have said. An error is kept for the
    /// client's other open files of the file.
    pub(super) fn told(&mut self, fsync: &Fsync, failed: Option<Errno>) -> Option<Errno> {
        let Fsync { handle, open, .. } = *fsync;
        let untold = open.and_then(|open| self.untold.forget(handle, open));
        let Some(errno) = failed else {
            return untold;
        };
        if tells_loss(errno) {
            let opens = self.opens.range((handle, 0)..=(handle, u64::MAX));
            let others = opens.map(|(key, _)| *key).filter(|key| Some(key.1) != open);
            self.untold.errors.extend(others.map(|key| (key, errno)));
        } else if let (Some(errno), Some(open)) = (untold, open) {
            // The call failed for another reason.
            self.untold.errors.insert((handle, open), errno);
        }
        Some(errno)
    }

    /// A forwarder has answered an fsync whose caller waits no longer. It tells this client of an
    /// error once, so all open files are yet to be told.
    pub(super) fn unheard(&mut self, handle: Handle, result: Result<(), Errno>) {
        if let Err(errno) = result
            && tells_loss(errno)
        {
            let opens = self.opens.range((handle, 0)..=(handle, u64::MAX));
            let all = opens.map(|(key, _)| (*key, errno));
            self.untold.errors.extend(all);
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
        let (dirt, wanted, tried) = (part.dirt.clone(), part.wanted, part.tried.clone());
        match self.next_step(&dirt, wanted, &tried) {
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
                self.fsync_ended(call, number, Ended::NodeLost);
            }
        }
    }

    fn next_step(&self, dirt: &Dirt, wanted: Option<usize>, tried: &BTreeSet<usize>) -> Step {
        let (host, boot) = dirt.identity;
        if self.boots.get(&host).is_some_and(|latest| *latest != boot) {
            return Step::Lost;
        }
        let of_node = |forwarder: &usize| self.sessions[*forwarder].identity == Some(dirt.identity);
        let forwarders: Vec<usize> = (0..self.sessions.len()).filter(of_node).collect();
        let left = || forwarders.iter().filter(|f| !tried.contains(f));
        let open = left().filter(|f| self.sessions[**f].is_open());
        let open = open.min_by_key(|f| Some(**f) != wanted);
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
            Kind::Fsync(fsync) => fsync.parts.get_mut(part),
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

    /// Takes in a forwarder's answer to an fsync.
    pub(super) fn fsynced(&mut self, call: CallId, number: usize, result: Result<(), Errno>) {
        self.fsync_ended(call, number, Ended::Said(result));
    }

    /// What a node has written is settled when all that were asked there have said that it is
    /// stable, or when the node is lost.
    fn fsync_ended(&mut self, call: CallId, number: usize, ended: Ended) {
        let (result, lost) = match ended {
            Ended::Said(result) => (result, false),
            Ended::NodeLost => (Err(Errno::IO), true),
        };
        if let Some(active) = self.calls.get_mut(&call)
            && let Kind::Fsync(fsync) = &mut active.kind
        {
            fsync.parts[number].stable = result.is_ok();
            let dirt = &fsync.parts[number].dirt;
            let mut of_node = fsync.parts.iter();
            if lost || of_node.all(|it| it.stable || it.dirt.identity != dirt.identity) {
                self.unstable.settled(fsync.handle, dirt, lost);
            }
        }
        self.part_done(
            call,
            number,
            result.map(|()| (Outcome::Done, Payload::new())),
        );
    }
}

/// Whether a forwarder says this of bytes that the back end has lost, and not of the call.
fn tells_loss(errno: Errno) -> bool {
    [Errno::IO, Errno::NOSPC, Errno::DQUOT].contains(&errno)
}
