//! The sockets of one thread: its epoll, its connections, and which of them have something to do.
//!
//! What comes in goes to a [`Desk`]: the forwarder's core, or the way to it.

use super::conn::Conn;
use super::mail::Bell;
use super::receive::{Door, Turn, receive};
use super::traffic::Traffic;
use mio::event::Event;
use mio::{Events, Poll, Token};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, ErrorKind};
use std::time::Duration;
use tidegate_forward::{ConnId, GOODBYE, NOT_JOINED, SESSION_OVER, SlotId};
use tidegate_net::Spin;
use tidegate_sched::Time;
use tidegate_wire::Request;
use tracing::{debug, warn};

/// The token of the first connection; those below are for what else a thread watches.
pub const CONNS: usize = 1024;

/// Takes what connections bring.
pub trait Desk {
    /// The time of this pass.
    fn now(&self) -> Time;

    /// What is counted.
    fn traffic(&mut self) -> &mut Traffic;

    /// What a connection must prove and may offer.
    fn door(&self) -> &Door;

    /// Header and body of a request have come; its payload is due, or lies at `place` of the
    /// client's memory. An error is the reason why the session ends.
    fn request(
        &mut self,
        conn: &mut Conn,
        request: Box<Request>,
        place: Option<u64>,
    ) -> Result<(), String>;

    /// Payload through libfabric has been moved. An error is the reason why the session ends.
    fn moved(&mut self, _: &mut Conn) -> Result<(), String> {
        Ok(())
    }

    /// The payload that was due is where it belongs, or thrown away.
    fn payload(&mut self, conn: &mut Conn);

    /// The bytes of a reply are out, or will never be.
    fn sent(&mut self, slot: SlotId);

    /// A connection has ended. Nothing of it is held here any more.
    fn closed(&mut self, conn: ConnId);
}

/// One thread's connections.
pub struct Sockets {
    /// Where events come from.
    pub poll: Poll,
    /// By number.
    pub conns: BTreeMap<ConnId, Conn>,
    /// Those of them that are through libfabric.
    pub(super) links: BTreeSet<ConnId>,
    /// Connections that may have something to read, in turn.
    ready: VecDeque<ConnId>,
    /// Connections that have something to send.
    dirty: Vec<ConnId>,
    sent: Vec<SlotId>,
    spin: Spin,
}

impl Sockets {
    /// No connection yet.
    pub fn new(poll: Poll) -> Sockets {
        Sockets {
            poll,
            conns: BTreeMap::new(),
            links: BTreeSet::new(),
            ready: VecDeque::new(),
            dirty: Vec::new(),
            sent: Vec::new(),
            spin: Spin::default(),
        }
    }

    /// Takes a connection in.
    pub fn add(&mut self, mut conn: Conn) -> io::Result<()> {
        let id = conn.id;
        let token = Token(CONNS + id.0 as usize);
        conn.stream.register(self.poll.registry(), token)?;
        if conn.stream.link().is_some() {
            self.links.insert(id);
        }
        self.conns.insert(id, conn);
        self.mark_ready(id);
        self.mark_dirty(id);
        Ok(())
    }

    /// Waits for events or mail, for a moment awake. `bell` is what mail rings, if any can come.
    pub fn wait(
        &mut self,
        events: &mut Events,
        timeout: Option<Duration>,
        traffic: &mut Traffic,
        bell: Option<&Bell>,
        has_mail: impl Fn() -> bool,
    ) -> io::Result<()> {
        let poll = &mut self.poll;
        let look = || {
            // What is wrong, the wait will say.
            let looked = poll.poll(events, Some(Duration::ZERO));
            looked.is_ok() && !events.is_empty() || has_mail()
        };
        // Looking is not counted: it takes the place of sleep.
        let wait = timeout.unwrap_or(Duration::MAX);
        if !wait.is_zero() && self.spin.look(wait, look) {
            return Ok(());
        }
        traffic.waits += 1;
        if let Some(bell) = bell {
            bell.doze();
        }
        let timeout = match has_mail() {
            true => Some(Duration::ZERO),
            false => timeout,
        };
        let waited = self.poll.poll(events, timeout);
        if let Some(bell) = bell {
            bell.woke();
        }
        match waited {
            Err(error) if error.kind() != ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    /// Notes what happened on a connection.
    pub fn note(&mut self, event: &Event) {
        let id = ConnId((event.token().0 - CONNS) as u64);
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        if let Some(link) = conn.stream.link() {
            link.woken();
        }
        let hung_up = event.is_read_closed() || event.is_error();
        if event.is_readable() || hung_up {
            conn.hung_up |= hung_up;
            conn.drained = false;
            if !std::mem::replace(&mut conn.in_ready, true) {
                self.ready.push_back(id);
            }
        }
        if event.is_writable() && !std::mem::replace(&mut conn.in_dirty, true) {
            self.dirty.push(id);
        }
    }

    /// The connection may have something to read.
    pub fn mark_ready(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(&id)
            && !conn.in_ready
        {
            conn.in_ready = true;
            self.ready.push_back(id);
        }
    }

    /// The connection has something to send, or ends when it has not.
    pub fn mark_dirty(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(&id)
            && !conn.in_dirty
        {
            conn.in_dirty = true;
            self.dirty.push(id);
        }
    }

    /// Whether a connection has used up its part of a pass, and has more.
    pub fn is_any_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether everything has been sent.
    pub fn are_flushed(&self) -> bool {
        self.conns.values().all(Conn::is_flushed)
    }

    /// Reads each connection that may have something, as far as its part of the pass goes.
    pub fn serve(&mut self, desk: &mut impl Desk) {
        for _ in 0..self.ready.len() {
            let id = self.ready.pop_front().expect("its length was counted");
            self.serve_one(id, desk);
        }
    }

    fn serve_one(&mut self, id: ConnId, desk: &mut impl Desk) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        conn.in_ready = false;
        let turn = desk.moved(conn).and_then(|()| receive(conn, desk));
        desk.traffic().copied_bytes += conn.reader.rest();
        let to_send = !conn.outbox.is_empty() || conn.closing.is_some();
        match turn {
            Ok(Turn::Later) => {}
            Ok(Turn::Again) => self.mark_ready(id),
            Ok(Turn::End) => return self.close(id, None, desk),
            Err(reason) => return self.close(id, Some(&reason), desk),
        }
        if to_send {
            self.mark_dirty(id);
        }
    }

    /// Sends on every connection that has something to send. True if the desk heard of it.
    pub fn flush(&mut self, desk: &mut impl Desk) -> bool {
        let now = desk.now();
        let mut told = false;
        while let Some(id) = self.dirty.pop() {
            let Some(conn) = self.conns.get_mut(&id) else {
                continue;
            };
            conn.in_dirty = false;
            let result = conn.flush(now, &mut self.sent, desk.traffic());
            let heard_again = conn.unheard && !conn.outbox.is_full();
            conn.unheard &= !heard_again;
            let over = conn.closing.is_some() && conn.outbox.is_empty() && conn.is_heard(now);
            let closing = conn.closing.take_if(|_| over);
            for slot in self.sent.drain(..) {
                told = true;
                desk.sent(slot);
            }
            let reason = match (result, closing) {
                (Err(error), _) => format!("sending: {error}").into(),
                (Ok(()), Some(reason)) => reason,
                (Ok(()), None) => {
                    if heard_again {
                        self.mark_ready(id);
                    }
                    continue;
                }
            };
            told = true;
            self.close(id, Some(&reason), desk);
        }
        told
    }

    /// Ends the connections that have kept others waiting for longer than `limit_ns`.
    pub fn close_stalled(&mut self, limit_ns: u64, desk: &mut impl Desk) {
        let now = desk.now();
        let stalled: Vec<_> = self
            .conns
            .iter()
            .filter_map(|(id, conn)| Some((*id, conn.stalled(now, limit_ns)?)))
            .collect();
        for (id, reason) in stalled {
            self.close(id, Some(reason), desk);
        }
    }

    /// Ends a connection at once. A reason makes it a warning, unless it is the client's goodbye.
    pub fn close(&mut self, id: ConnId, reason: Option<&str>, desk: &mut impl Desk) {
        let Some(mut conn) = self.conns.remove(&id) else {
            return;
        };
        match reason {
            Some(reason @ (GOODBYE | SESSION_OVER | NOT_JOINED)) => {
                debug!(peer = conn.peer, reason, "session closed");
            }
            Some(reason) => warn!(peer = conn.peer, reason, "session closed"),
            None => debug!(peer = conn.peer, "connection ended"),
        }
        conn.stream.deregister(self.poll.registry());
        self.links.remove(&id);
        conn.outbox.drop_all(&mut self.sent);
        if let Some(memory) = &mut conn.remote {
            memory.drop_all(&mut self.sent);
        }
        // With it go its buffers, before anybody hears that their slots are free.
        drop(conn);
        for slot in self.sent.drain(..) {
            desk.sent(slot);
        }
        desk.closed(id);
    }
}
