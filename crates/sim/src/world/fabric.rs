//! The network between the nodes: ports, connections, and the messages under way.

use super::pieces::{Answer, Piece};
use super::port::{NetworkOptions, Port};
use crate::rng::Rng;
use std::collections::BTreeMap;
use tidegate_forward::{ConnId, SlotId};
use tidegate_wire::{Reply, Request};

/// Number of a connection, never reused.
pub(super) type LinkId = u32;

/// Bytes of a request without its extents and payload, and of a reply without its payload: header,
/// hints, handle.
pub(super) const HEAD_BYTES: u64 = 150;
/// A message from or to a server of at most this many bytes does not wait for others at ports:
/// connections share a port, so a word on one of them passes the data of the others. (Data that
/// clients send to a forwarder without room would otherwise keep it from hearing that there is
/// room.)
const WORD_BYTES: u64 = 4096;
/// Bytes of an extent.
pub(super) const EXTENT_BYTES: u64 = 16;

/// A connection between a node and a life of a forwarder.
pub(super) struct Link {
    pub(super) node: u32,
    pub(super) forwarder: u32,
    pub(super) life: u32,
    pub(super) open: bool,
    /// When the last message towards node and forwarder began to arrive.
    last: [u64; 2],
}

impl Link {
    pub(super) fn conn(id: LinkId) -> ConnId {
        ConnId(u64::from(id))
    }
}

/// The contents of a message.
pub(super) enum Body {
    Request(LinkId, Request),
    Reply(LinkId, Reply),
    /// A message to a process from another one of its application.
    Word(u32),
    /// To a server, and its answer.
    Piece(Piece),
    Answer(Answer),
}

/// A message under way.
pub(super) struct Message {
    pub(super) body: Body,
    pub(super) bytes: u64,
    /// When its last byte can be there at the earliest.
    tail_at: u64,
    /// It does not wait for others.
    passes: bool,
    /// The port that receives it.
    to: u32,
}

/// The network.
pub(super) struct Fabric {
    pub(super) options: NetworkOptions,
    ports: Vec<Port>,
    links: Vec<Link>,
    /// When the last message from a port to another one, of which one is a server's, began to
    /// arrive.
    last: BTreeMap<(u32, u32), u64>,
    messages: Vec<Option<Message>>,
    free: Vec<u32>,
    rng: Rng,
}

/// Bytes of a request on the wire.
pub(super) fn request_bytes(request: &Request) -> u64 {
    let listed = request
        .op
        .data()
        .map_or(0, |(_, extents)| extents.rest.len());
    let extents = 1 + listed as u64;
    HEAD_BYTES + extents * EXTENT_BYTES + u64::from(request.payload_len)
}

/// Bytes that a request reads or writes.
pub(super) fn moved_bytes(request: &Request) -> u64 {
    request.op.data().map_or(0, |(_, extents)| extents.bytes())
}

/// Bytes of a reply on the wire.
pub(super) fn reply_bytes(reply: &Reply) -> u64 {
    HEAD_BYTES + u64::from(reply.payload_len)
}

impl Fabric {
    /// A network of these ports.
    pub(super) fn new(options: NetworkOptions, ports: Vec<Port>, rng: Rng) -> Fabric {
        Fabric {
            options,
            ports,
            last: BTreeMap::new(),
            links: Vec::new(),
            messages: Vec::new(),
            free: Vec::new(),
            rng,
        }
    }

    pub(super) fn connect(&mut self, node: u32, forwarder: u32, life: u32) -> LinkId {
        self.links.push(Link {
            node,
            forwarder,
            life,
            open: true,
            last: [0; 2],
        });
        self.links.len() as LinkId - 1
    }

    pub(super) fn link(&self, id: LinkId) -> &Link {
        &self.links[id as usize]
    }

    /// Closes a connection; false if it was closed.
    pub(super) fn close(&mut self, id: LinkId) -> bool {
        std::mem::replace(&mut self.links[id as usize].open, false)
    }

    /// Open connections of a forwarder.
    pub(super) fn links_of(&self, forwarder: u32) -> Vec<LinkId> {
        let links = self.links.iter().enumerate();
        let its = links.filter(|(_, link)| link.open && link.forwarder == forwarder);
        its.map(|(id, _)| id as LinkId).collect()
    }

    /// Sends a message from port to port. Returns its number, and when it begins to arrive and when
    /// the sending port is done with it.
    pub(super) fn send(
        &mut self,
        now: u64,
        (from, to): (u32, u32),
        bytes: u64,
        body: Body,
    ) -> (u32, u64, u64) {
        let latency_ns = [from, to].map(|port| self.ports[port as usize].latency_ns);
        let latency_ns = latency_ns.into_iter().flatten().next();
        let wire_ns = self.ports[from as usize].wire_ns(bytes);
        let passes = matches!(body, Body::Piece(_) | Body::Answer(_)) && bytes <= WORD_BYTES;
        let start = match passes {
            true => now,
            false => self.ports[from as usize].send(now, wire_ns),
        };
        let jitter = match self.options.jitter_ns {
            0 => 0,
            jitter => self.rng.below(jitter + 1),
        };
        let mut arrives = start + latency_ns.unwrap_or(self.options.latency_ns) + jitter;
        let last = match &body {
            Body::Reply(link, _) => Some(&mut self.links[*link as usize].last[0]),
            Body::Request(link, _) => Some(&mut self.links[*link as usize].last[1]),
            Body::Word(_) => None,
            Body::Piece(_) | Body::Answer(_) => Some(self.last.entry((from, to)).or_default()),
        };
        if let Some(last) = last.filter(|_| !self.options.overtaking) {
            arrives = arrives.max(*last);
            *last = arrives;
        }
        let message = Message {
            body,
            bytes,
            tail_at: arrives + wire_ns,
            passes,
            to,
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.messages[number as usize] = Some(message);
                number
            }
            None => {
                self.messages.push(Some(message));
                self.messages.len() as u32 - 1
            }
        };
        (number, arrives, start + wire_ns)
    }

    /// Begins to receive a message; returns when it will be complete.
    pub(super) fn receive(&mut self, now: u64, number: u32) -> u64 {
        let message = self.messages[number as usize]
            .as_ref()
            .expect("it is on its way");
        let wire_ns = self.ports[message.to as usize].wire_ns(message.bytes);
        let there = match message.passes {
            true => now + wire_ns,
            false => self.ports[message.to as usize].receive(now, wire_ns),
        };
        there.max(message.tail_at)
    }

    pub(super) fn message(&self, number: u32) -> &Message {
        self.messages[number as usize]
            .as_ref()
            .expect("it is on its way")
    }

    /// Takes a message that has arrived.
    pub(super) fn take(&mut self, number: u32) -> Body {
        self.free.push(number);
        let message = self.messages[number as usize].take();
        message.expect("it is taken once").body
    }
}

/// A reply's buffer that is free when the port is done with it.
#[derive(Clone, Copy)]
pub(super) struct Sending {
    pub(super) forwarder: u32,
    pub(super) life: u32,
    pub(super) slot: SlotId,
}
