//! Storage servers behind the forwarders: how a call is divided over them, and how its pieces go
//! there and back.
//!
//! A call becomes a share for each server that has some of its bytes, by the servers' own striping.
//! A share goes in pieces of at most [`ServersOptions::buffer`] bytes, each a message through the
//! ports, of which at most [`ServersOptions::buffers`] are under way: the next one is sent when
//! the answer to an earlier one has arrived. So the shares of different calls take turns at a
//! server piece by piece. The call ends when the answer to its last piece is there.

use super::World;
use super::fabric::{Body, EXTENT_BYTES, HEAD_BYTES};
use super::host::Work;
use super::pieces::{Answer, Asked, Piece};
use super::{CallId, Event};
use std::collections::{BTreeMap, VecDeque};
use tidegate_device::address::{Mapping, local_offset};
use tidegate_device::{Access, Device, DeviceOptions, Server, ServerOptions};
use tidegate_forward::JobId;
use tidegate_wire::{Extent, Layout};

/// The servers of a setup.
#[derive(Clone, Debug)]
pub struct ServersOptions {
    /// How many.
    pub count: u16,
    /// Bytes of a stripe of theirs, a power of two of at least 4096.
    pub stripe: u64,
    /// Megabytes per second through a server's port, each way.
    pub mb_s: u64,
    /// Latency from and to a server, ns.
    pub latency_ns: u64,
    /// Most bytes of one piece.
    pub buffer: u64,
    /// Pieces of one call's share that are under way at most.
    pub buffers: u32,
    /// Time of the server's process that each piece takes, ns.
    pub request_ns: u64,
    /// Threads and page cache.
    pub server: ServerOptions,
}

/// Who called.
#[derive(Clone, Copy)]
pub(super) enum By {
    Forwarder {
        forwarder: u32,
        life: u32,
        job: JobId,
    },
    /// A client, without a forwarder.
    Client { node: u32, call: CallId },
}

/// A call under way.
struct Transfer {
    by: By,
    port: u32,
    /// By server, what is not sent yet.
    shares: BTreeMap<u32, VecDeque<Vec<Access>>>,
    /// Pieces without an answer, sent or not.
    left: usize,
}

struct OneServer {
    server: Server,
    /// When its process has taken in what has arrived so far, ns.
    taken_until: u64,
    /// When the world asks it next if nothing happens before, in ns.
    wakes_at: u64,
    work: Work,
    busy_before_ns: u64,
    moved_before: u64,
}

/// All servers.
pub(super) struct Servers {
    options: ServersOptions,
    mapping: Mapping,
    all: Vec<OneServer>,
    transfers: BTreeMap<u64, Transfer>,
    transfer_ids: u64,
    /// Of pieces at servers: the answer, and its bytes.
    pieces: BTreeMap<u64, (Answer, u64)>,
    piece_ids: u64,
}

impl Servers {
    /// `device_of`: the device of the server of this number.
    pub(super) fn new(
        options: ServersOptions,
        device: &DeviceOptions,
        device_of: impl Fn(u64) -> DeviceOptions,
    ) -> Servers {
        let one = |number: u16| {
            let device = Device::new(&device_of(u64::from(number)));
            OneServer {
                server: Server::new(options.server, device.expect("the options were checked")),
                taken_until: 0,
                wakes_at: u64::MAX,
                work: Work::default(),
                busy_before_ns: 0,
                moved_before: 0,
            }
        };
        Servers {
            mapping: Mapping::with_unit(device.capacity_bytes(), 0, device.unit_bytes()),
            all: (0..options.count).map(one).collect(),
            options,
            transfers: BTreeMap::new(),
            transfer_ids: 0,
            pieces: BTreeMap::new(),
            piece_ids: 0,
        }
    }

    /// From now on work is counted.
    pub(super) fn count_work(&mut self, now: u64) {
        for one in &mut self.all {
            one.work = Work::default();
            one.busy_before_ns = one.server.busy_ns(now);
            one.moved_before = one.server.moved_bytes();
        }
    }

    /// What each has done. Bytes are those of its device: its cache may have answered calls.
    pub(super) fn work(&self, now: u64) -> Vec<Work> {
        let all = self.all.iter();
        all.map(|one| Work {
            busy_ns: one.server.busy_ns(now) - one.busy_before_ns,
            bytes: one.server.moved_bytes() - one.moved_before,
            ..one.work
        })
        .collect()
    }

    /// A forwarder's process dies: what it has not sent is not sent any more.
    pub(super) fn caller_dies(&mut self, dead: u32) {
        for transfer in self.transfers.values_mut() {
            let is_its = |by| matches!(by, By::Forwarder { forwarder, .. } if forwarder == dead);
            if is_its(transfer.by) {
                let unsent: usize = transfer.shares.values().map(VecDeque::len).sum();
                transfer.left -= unsent;
                transfer.shares.clear();
            }
        }
    }

    /// The pieces of a call for each server.
    fn shares(&self, asked: Asked) -> BTreeMap<u32, VecDeque<Vec<Access>>> {
        let (handle, write, extents) = match asked {
            Asked::Flush => {
                let all = 0..u32::from(self.options.count);
                return all
                    .map(|server| (server, VecDeque::from([Vec::new()])))
                    .collect();
            }
            Asked::Io {
                handle,
                write,
                extents,
            } => (handle, write, extents),
        };
        let layout = Layout {
            seats: self.options.count,
            stripe: self.options.stripe,
        };
        // Stripes that follow each other at a server lie together there.
        let mut runs: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
        for part in extents.iter().flat_map(|it| layout.parts(handle, *it)) {
            let Extent { offset, len } = part.extent;
            let local = local_offset(offset, layout.stripe, u64::from(layout.seats));
            let runs = runs.entry(u32::from(part.seat)).or_default();
            match runs.last_mut() {
                Some((start, before)) if *start + *before == local => *before += len,
                _ => runs.push((local, len)),
            }
        }
        let mut shares = BTreeMap::new();
        for (server, runs) in runs {
            let mut accesses = Vec::new();
            for (local, len) in runs {
                let into = &mut accesses;
                self.mapping.map(handle.inode, local, len, write, into);
            }
            shares.insert(server, pieces(&accesses, self.options.buffer));
        }
        shares
    }
}

/// Cuts accesses into pieces of at most `bytes_max`, which is positive.
fn pieces(accesses: &[Access], bytes_max: u64) -> VecDeque<Vec<Access>> {
    let mut pieces: VecDeque<Vec<Access>> = VecDeque::new();
    let mut room = 0;
    for access in accesses {
        let mut rest = *access;
        while rest.len > 0 {
            if room == 0 {
                pieces.push_back(Vec::new());
                room = bytes_max;
            }
            let len = rest.len.min(room);
            if let Some(piece) = pieces.back_mut() {
                piece.push(Access { len, ..rest });
            }
            room -= len;
            rest.address += len;
            rest.len -= len;
        }
    }
    pieces
}

impl World {
    fn server_port(&self, server: u32) -> u32 {
        (self.nodes.len() + self.hosts.len()) as u32 + server
    }

    /// Sends a call to the servers.
    pub(super) fn ask_servers(&mut self, by: By, asked: Asked) {
        let port = match by {
            By::Forwarder { forwarder, .. } => self.forwarder_port(forwarder),
            By::Client { node, .. } => node,
        };
        let Some(servers) = &mut self.servers else {
            return;
        };
        let shares = servers.shares(asked);
        let left = shares.values().map(VecDeque::len).sum();
        let asked: Vec<u32> = shares.keys().copied().collect();
        servers.transfer_ids += 1;
        let (id, buffers) = (servers.transfer_ids, servers.options.buffers);
        let transfer = Transfer {
            by,
            port,
            shares,
            left,
        };
        servers.transfers.insert(id, transfer);
        if left == 0 {
            return self.transfer_ends(id);
        }
        for _ in 0..buffers {
            asked.iter().for_each(|server| self.send_piece(id, *server));
        }
    }

    /// Sends the next piece of a call for a server, if there is one.
    fn send_piece(&mut self, id: u64, server: u32) {
        let transfer = self
            .servers
            .as_mut()
            .and_then(|it| it.transfers.get_mut(&id));
        let Some(transfer) = transfer else { return };
        let shares = transfer.shares.get_mut(&server);
        let Some(accesses) = shares.and_then(VecDeque::pop_front) else {
            return;
        };
        let port = transfer.port;
        let piece = Piece {
            server,
            transfer: id,
            accesses,
        };
        let writes = piece.accesses.first().is_some_and(|access| access.write);
        let payload = if writes { piece.bytes() } else { 0 };
        let bytes = HEAD_BYTES + EXTENT_BYTES * piece.accesses.len() as u64 + payload;
        let ports = (port, self.server_port(server));
        self.send(ports, bytes, Body::Piece(piece));
    }

    /// When the server's process has taken in a piece that arrives at `now`.
    pub(super) fn server_takes(&mut self, now: u64, server: u32) -> u64 {
        let Some(servers) = &mut self.servers else {
            return now;
        };
        let one = &mut servers.all[server as usize];
        one.taken_until = now.max(one.taken_until) + servers.options.request_ns;
        one.taken_until
    }

    /// A piece has arrived at its server.
    pub(super) fn piece_arrives(&mut self, piece: Piece) {
        let now = self.now();
        let Some(servers) = &mut self.servers else {
            return;
        };
        servers.piece_ids += 1;
        let id = servers.piece_ids;
        let one = &mut servers.all[piece.server as usize];
        let answer = Answer {
            server: piece.server,
            transfer: piece.transfer,
        };
        let bytes = piece.bytes();
        match piece.accesses.first() {
            None => one.server.flush(now, id),
            Some(_) => {
                one.work.calls += 1;
                one.work.requests += piece.accesses.len() as u64;
                one.server.submit(now, id, &piece.accesses);
            }
        }
        let reads = piece.accesses.first().is_some_and(|access| !access.write);
        let payload = if reads { bytes } else { 0 };
        servers.pieces.insert(id, (answer, HEAD_BYTES + payload));
        self.wake_server_later(piece.server);
    }

    fn wake_server_later(&mut self, server: u32) {
        let Some(servers) = &mut self.servers else {
            return;
        };
        let one = &mut servers.all[server as usize];
        if let Some(at) = one.server.next_ns()
            && at < one.wakes_at
        {
            one.wakes_at = at;
            self.events.push(at, Event::WakeServer(server));
        }
    }

    /// Asks a server what it has done, unless that has happened since.
    pub(super) fn wake_server(&mut self, server: u32) {
        let now = self.now();
        let Some(servers) = &mut self.servers else {
            return;
        };
        let one = &mut servers.all[server as usize];
        if one.wakes_at > now {
            return;
        }
        one.wakes_at = u64::MAX;
        let mut ended = Vec::new();
        one.server.advance(now, &mut ended);
        for (piece, _) in ended {
            let Some(servers) = &mut self.servers else {
                return;
            };
            let answer = servers.pieces.remove(&piece);
            let (answer, bytes) = answer.expect("a piece ends once");
            let to = servers.transfers[&answer.transfer].port;
            let ports = (self.server_port(server), to);
            self.send(ports, bytes, Body::Answer(answer));
        }
        self.wake_server_later(server);
    }

    /// The answer to a piece has arrived.
    pub(super) fn answer_arrives(&mut self, answer: Answer) {
        let id = answer.transfer;
        let transfer = self
            .servers
            .as_mut()
            .and_then(|it| it.transfers.get_mut(&id));
        let Some(transfer) = transfer else { return };
        transfer.left -= 1;
        match transfer.left {
            0 => self.transfer_ends(id),
            _ => self.send_piece(id, answer.server),
        }
    }

    fn transfer_ends(&mut self, id: u64) {
        let transfer = self
            .servers
            .as_mut()
            .and_then(|it| it.transfers.remove(&id));
        match transfer.expect("a call ends once").by {
            By::Client { node, call } => self.call_done(node, call, None),
            By::Forwarder {
                forwarder,
                life,
                job,
            } => self.job_ends(forwarder, life, job),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(address: u64, len: u64) -> Access {
        Access {
            address,
            len,
            write: true,
        }
    }

    #[test]
    fn pieces_are_full_but_the_last() {
        let cut = pieces(&[access(100, 10), access(200, 25), access(0, 0)], 20);
        let expected = [
            vec![access(100, 10), access(200, 10)],
            vec![access(210, 15)],
        ];
        assert_eq!(cut, expected);
        assert!(pieces(&[], 20).is_empty());
    }
}
