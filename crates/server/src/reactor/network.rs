//! A network thread: connections that another thread than the core's serves.
//!
//! It receives, decodes, sends, and has the payload of its connections in its own hands; what the
//! forwarder's core has to know or to say goes through a letter box, once a pass.

use super::SCAN_NS;
use super::conn::{Conn, Stage};
use super::mail::{Bell, Incoming, Outgoing};
use super::output::Body;
use super::receive::Door;
use super::sockets::{CONNS, Desk, Sockets};
use super::traffic::{Published, Traffic};
use crate::clock::Zero;
use crate::storage::{SharedMemory, SlotBuffer};
use mio::Events;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tidegate_forward::{ConnId, SlotId};
use tidegate_sched::Time;
use tidegate_wire::{Reply, Request};
use tracing::warn;

/// From the core's thread.
pub enum ToNetwork {
    /// A new connection.
    Serve(Box<Conn>),
    /// The core has taken so many more requests of the connection.
    Taken(ConnId, u32),
    /// The payload that is due goes into this buffer, or is thrown away.
    Payload(ConnId, Option<SlotBuffer>),
    /// A reply.
    Answer {
        /// Where to.
        conn: ConnId,
        /// Op code of the request.
        op: u8,
        /// The reply.
        reply: Reply,
        /// Its payload.
        body: Body,
    },
    /// The connection ends when what is queued on it is sent.
    Close(ConnId, Box<str>),
    /// The connection ends at once.
    Cut(ConnId, String),
    /// Say [`ToCore::Flushed`] when nothing is left to send.
    Flush,
    /// End.
    End,
}

/// To the core's thread.
pub enum ToCore {
    /// Header and body of a request have come.
    Request {
        /// On this connection.
        conn: ConnId,
        /// The request.
        request: Box<Request>,
        /// Its payload lies in this memory at this place.
        shared: Option<(Arc<SharedMemory>, u64)>,
    },
    /// The payload that was due is in its buffer, or thrown away.
    Payload(ConnId),
    /// A reply's bytes are out, or will never be.
    Sent(SlotId),
    /// The connection has ended.
    Closed(ConnId),
    /// Everything is sent.
    Flushed,
}

/// What a network thread works with.
pub struct Network {
    /// Its epoll, without connections.
    pub sockets: Sockets,
    /// Its bell.
    pub bell: Arc<Bell>,
    /// From the core's thread.
    pub incoming: Incoming<ToNetwork>,
    /// To it.
    pub outgoing: Outgoing<ToCore>,
    /// What a connection must prove and may offer.
    pub door: Arc<Door>,
    /// Where its counts can be read.
    pub published: Arc<Published>,
    /// A connection that keeps others waiting this long is closed.
    pub stall_ns_max: u64,
    /// Zero of the forwarder's time.
    pub zero: Zero,
}

/// Hands in by letter.
struct ByLetter {
    now: Time,
    traffic: Traffic,
    door: Arc<Door>,
    outgoing: Outgoing<ToCore>,
}

impl Desk for ByLetter {
    fn now(&self) -> Time {
        self.now
    }

    fn traffic(&mut self) -> &mut Traffic {
        &mut self.traffic
    }

    fn door(&self) -> &Door {
        &self.door
    }

    fn request(
        &mut self,
        conn: &mut Conn,
        request: Box<Request>,
        place: Option<u64>,
    ) -> Result<(), String> {
        let shared = place.map(|place| {
            let memory = conn.memory.as_ref().expect("the place was checked");
            (Arc::clone(memory), place)
        });
        if shared.is_none() && request.payload_len > 0 {
            let payload_len = request.payload_len;
            conn.stage = Stage::Waiting { payload_len };
        }
        conn.handed += 1;
        self.outgoing.push(ToCore::Request {
            conn: conn.id,
            request,
            shared,
        });
        Ok(())
    }

    fn payload(&mut self, conn: &mut Conn) {
        self.outgoing.push(ToCore::Payload(conn.id));
    }

    fn sent(&mut self, slot: SlotId) {
        self.outgoing.push(ToCore::Sent(slot));
    }

    fn closed(&mut self, conn: ConnId) {
        self.outgoing.push(ToCore::Closed(conn));
    }
}

/// The event loop of a network thread, until the core's thread ends it.
pub fn run(network: Network) -> io::Result<()> {
    let Network {
        mut sockets,
        bell,
        incoming,
        outgoing,
        door,
        published,
        stall_ns_max,
        zero,
    } = network;
    let mut desk = ByLetter {
        now: Time(0),
        traffic: Traffic::default(),
        door,
        outgoing,
    };
    let mut events = Events::with_capacity(256);
    let mut letters = Vec::new();
    let (mut scan_at, mut flush_asked, mut ending) = (Time(0), false, false);
    while !ending {
        let timeout = match (sockets.is_any_ready(), sockets.conns.is_empty()) {
            (true, _) => Some(Duration::ZERO),
            (false, true) => None,
            (false, false) => Some(Duration::from_nanos(SCAN_NS)),
        };
        let has_mail = || incoming.is_any();
        sockets.wait(
            &mut events,
            timeout,
            &mut desk.traffic,
            Some(&bell),
            has_mail,
        )?;
        desk.now = zero.time();
        for event in events.iter() {
            match event.token().0 {
                0 => desk.traffic.wakes += 1,
                number if number < CONNS => {}
                _ => sockets.note(event),
            }
        }
        ending = incoming.is_ended();
        incoming.take(&mut letters);
        for letter in letters.drain(..) {
            match letter {
                ToNetwork::Flush => flush_asked = true,
                ToNetwork::End => ending = true,
                letter => open(&mut sockets, &mut desk, letter),
            }
        }
        // Replies first: while they go out, nothing that came waits to be handed over.
        sockets.flush(&mut desk);
        sockets.serve(&mut desk);
        sockets.flush(&mut desk);
        if desk.now >= scan_at {
            scan_at = desk.now + SCAN_NS;
            sockets.close_stalled(stall_ns_max, &mut desk);
        }
        if flush_asked && sockets.are_flushed() {
            flush_asked = false;
            desk.outgoing.push(ToCore::Flushed);
        }
        published.publish(&desk.traffic);
        desk.outgoing.hand_over();
    }
    Ok(())
}

/// Does what a letter says of one connection, if that is still there.
fn open(sockets: &mut Sockets, desk: &mut ByLetter, letter: ToNetwork) {
    match letter {
        ToNetwork::Serve(mut conn) => {
            let id = conn.id;
            (conn.heard, conn.spoke) = (desk.now, desk.now);
            if let Err(error) = sockets.add(*conn) {
                warn!(%error, "connection refused");
                desk.closed(id);
            }
        }
        ToNetwork::Taken(id, count) => {
            if let Some(conn) = sockets.conns.get_mut(&id) {
                conn.handed -= count;
                sockets.mark_ready(id);
            }
        }
        ToNetwork::Payload(id, buffer) => {
            let Some(conn) = sockets.conns.get_mut(&id) else {
                return;
            };
            let Stage::Waiting { payload_len } = conn.stage else {
                unreachable!("the core's thread answers a request that waits");
            };
            conn.heard = desk.now;
            conn.payload_due(payload_len, buffer);
            sockets.mark_ready(id);
        }
        ToNetwork::Answer {
            conn: id,
            op,
            reply,
            body,
        } => match sockets.conns.get_mut(&id) {
            Some(conn) => {
                conn.answer(desk.now, op, &reply, body);
                sockets.mark_dirty(id);
            }
            None => {
                if let Body::Payload(payload) = body {
                    let slot = payload.slot;
                    drop(payload);
                    desk.sent(slot);
                }
            }
        },
        ToNetwork::Close(id, reason) => {
            if let Some(conn) = sockets.conns.get_mut(&id) {
                conn.closing.get_or_insert(reason);
                sockets.mark_dirty(id);
            }
        }
        ToNetwork::Cut(id, reason) => sockets.close(id, Some(&reason), desk),
        ToNetwork::Flush | ToNetwork::End => unreachable!("they speak of no connection"),
    }
}
