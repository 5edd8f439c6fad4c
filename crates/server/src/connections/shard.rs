//! A shard: the epoll instance and the connections of one thread, and the lists of connections that
//! have something to read or to send.

use super::log_limit::LogLimit;
use super::outbox::Body;
use super::session::{Session, TICKET_ENDED, Turn};
use super::turns::Turns;
use super::{ConnectionPolicy, RequestSink, ToLoop, ToShard};
use crate::clock::{Zero, wall_s};
use crate::lock::lock;
use mio::event::Event;
use mio::{Events, Token};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate_fabric::Wait;
use tidegate_forward::{ConnId, GOODBYE, HostCounts, NOT_JOINED, SESSION_OVER, SlotId};
use tidegate_net::{Incoming, Outgoing, Poller, Waker};
use tidegate_sched::Time;
use tidegate_wire::Reply;
use tracing::{debug, warn};

/// The poller's token of a thread's waker.
pub const WAKER: Token = Token(0);
/// The poller's token of the first connection. Lower tokens are for what else a thread watches.
pub const CONNS: usize = 1024;
/// How long after one search for stalled connections the next one begins, in ns.
pub const SCAN_NS: u64 = 1_000_000_000;

/// The connections of one thread.
pub struct Shard {
    poller: Poller,
    pub(super) sessions: BTreeMap<ConnId, Session>,
    /// The connections that go through libfabric.
    pub(super) links: BTreeSet<ConnId>,
    /// Connections that may have something to read, in the order of their turns.
    ready: VecDeque<ConnId>,
    /// Connections that wait for their user's next turn.
    over: Vec<ConnId>,
    /// Connections that may continue in this pass, because they now have a payload buffer.
    resumed: VecDeque<ConnId>,
    /// Connections that have something to send.
    dirty: Vec<ConnId>,
    sent: Vec<SlotId>,
    flush_asked: bool,
    /// Whether the loop has asked the shard's thread to end.
    ended: bool,
    /// Messages for the forwarder's loop, and what else the connections share.
    pub sink: RequestSink,
}

impl Shard {
    /// A shard without connections.
    pub fn new(poller: Poller, policy: Arc<ConnectionPolicy>) -> Shard {
        Shard {
            poller,
            sessions: BTreeMap::new(),
            links: BTreeSet::new(),
            ready: VecDeque::new(),
            over: Vec::new(),
            resumed: VecDeque::new(),
            dirty: Vec::new(),
            sent: Vec::new(),
            flush_asked: false,
            ended: false,
            sink: RequestSink {
                now: Time(0),
                counts: HostCounts::default(),
                lines: LogLimit::default(),
                proofs: LogLimit::default(),
                turns: Turns::default(),
                policy,
                messages: Vec::new(),
            },
        }
    }

    /// Waits for events or messages, after looking for them for a moment without sleeping. `waker`
    /// is the one that other threads of this process use, if there are any.
    pub fn wait(
        &mut self,
        events: &mut Events,
        timeout: Option<Duration>,
        waker: Option<&Waker>,
        has_mail: impl Fn() -> bool,
    ) -> io::Result<()> {
        let timeout = [timeout, self.look_at_links()].into_iter().flatten().min();
        let timeout = match self.ready.is_empty() && self.resumed.is_empty() {
            true => timeout,
            false => Some(Duration::ZERO),
        };
        // Looking without sleeping is not counted as a wait, because it replaces the sleep.
        let wait = timeout.unwrap_or(Duration::MAX);
        if !wait.is_zero() && self.poller.look(events, wait, &has_mail) {
            return Ok(());
        }
        self.sink.counts.waits += 1;
        if let Some(waker) = waker {
            waker.park();
        }
        let timeout = match has_mail() {
            true => Some(Duration::ZERO),
            false => timeout,
        };
        let slept = self.poller.sleep(events, timeout);
        if let Some(waker) = waker {
            waker.unpark();
        }
        slept
    }

    /// Looks at the connections through libfabric before a wait, and marks those with news as
    /// ready. Returns how long the wait may be at most, if these connections bound it.
    fn look_at_links(&mut self) -> Option<Duration> {
        let (mut bound, mut news) = (None, Vec::new());
        for id in &self.links {
            let Some(session) = self.sessions.get_mut(id) else {
                continue;
            };
            let link = session.stream.link();
            match link.map_or(Wait::Any, |link| link.wait(false, session.is_read())) {
                Wait::Not => {
                    session.drained = false;
                    news.push(*id);
                }
                Wait::AtMost(wait) => bound = Some(bound.map_or(wait, |least| wait.min(least))),
                Wait::Any => {}
            }
        }
        news.into_iter().for_each(|id| self.mark_ready(id));
        bound
    }

    /// Whether the shard has no connection.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Notes an event of the poller: something happened on a connection, or another thread woke
    /// this one.
    pub fn note(&mut self, event: &Event) {
        let number = event.token().0;
        if event.token() == WAKER {
            self.sink.counts.wakes += 1;
        }
        if number < CONNS {
            return;
        }
        let id = ConnId((number - CONNS) as u64);
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if let Some(link) = session.stream.link() {
            link.woken();
        }
        let hung_up = event.is_read_closed() || event.is_error();
        if event.is_readable() || hung_up {
            session.hung_up |= hung_up;
            session.drained = false;
            if !std::mem::replace(&mut session.in_ready, true) {
                self.ready.push_back(id);
            }
        }
        if event.is_writable() {
            if session.outbox.is_empty() {
                let registry = self.poller.registry();
                session.stream.had_room(registry, event.token());
            }
            if !std::mem::replace(&mut session.in_dirty, true) {
                self.dirty.push(id);
            }
        }
    }

    /// Notes that a connection may have something to read.
    pub(super) fn mark_ready(&mut self, id: ConnId) {
        if let Some(session) = self.sessions.get_mut(&id)
            && !session.in_ready
        {
            session.in_ready = true;
            self.ready.push_back(id);
        }
    }

    /// Notes that a connection has something to send, or is to end once everything is sent.
    fn mark_dirty(&mut self, id: ConnId) {
        if let Some(session) = self.sessions.get_mut(&id)
            && !session.in_dirty
        {
            session.in_dirty = true;
            self.dirty.push(id);
        }
    }

    /// Carries out the messages of the forwarder's loop. True if there were any.
    pub fn take(&mut self, messages: &mut Vec<ToShard>) -> bool {
        let any = !messages.is_empty();
        for message in messages.drain(..) {
            self.perform(message);
        }
        any
    }

    /// Carries out one message, if its connection still exists.
    fn perform(&mut self, message: ToShard) {
        match message {
            ToShard::Serve(session) => self.add(*session),
            ToShard::Taken(id, count) => {
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.handed -= count;
                    self.mark_ready(id);
                }
            }
            ToShard::Payload {
                conn: id,
                request,
                slot,
                buffer,
            } => {
                let now = self.sink.now;
                let Some(session) = self.sessions.get_mut(&id) else {
                    return;
                };
                match session.buffer_came(request, slot, buffer, now) {
                    Ok(()) => self.resumed.push_back(id),
                    Err(reason) => self.close(id, Some(&reason)),
                }
            }
            ToShard::Answer {
                conn,
                op,
                reply,
                body,
            } => self.answer(conn, op, &reply, body),
            ToShard::Close(id, reason) => {
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.closing.get_or_insert(reason);
                    self.mark_dirty(id);
                }
            }
            ToShard::Cut(id, reason) => self.close(id, Some(&reason)),
            ToShard::Turn => {
                self.sink.turns.granted();
                self.ready.extend(self.over.drain(..));
            }
            ToShard::Flush => self.flush_asked = true,
            ToShard::End => self.ended = true,
        }
    }

    fn add(&mut self, mut session: Session) {
        let id = session.id;
        session.begin(self.sink.now);
        let token = token_of(id);
        if let Err(error) = session.stream.register(self.poller.registry(), token) {
            warn!(%error, "connection refused");
            return self.sink.messages.push(ToLoop::Closed(id));
        }
        if session.stream.link().is_some() {
            self.links.insert(id);
        }
        self.sessions.insert(id, session);
        self.mark_ready(id);
        self.mark_dirty(id);
    }

    fn answer(&mut self, id: ConnId, op: u8, reply: &Reply, body: Body) {
        let now = self.sink.now;
        let Some(session) = self.sessions.get_mut(&id) else {
            return self.drop_body(body);
        };
        match session.put(now, op, reply, &body) {
            Ok(true) => return,
            Ok(false) => session.answer(now, op, reply, body),
            Err(reason) => {
                session.closing.get_or_insert(reason.into());
                self.drop_body(body);
            }
        }
        self.mark_dirty(id);
    }

    /// Drops the payload of a reply that will not be sent.
    fn drop_body(&mut self, body: Body) {
        if let Body::Payload(payload) = body {
            let slot = payload.slot;
            drop(payload);
            self.sink.messages.push(ToLoop::Sent(slot));
        }
    }

    /// Reads each connection that may have something, up to its limit of bytes, and its user's of
    /// requests, for a pass.
    pub fn serve(&mut self) {
        self.sink.turns.begin();
        while let Some(id) = self.resumed.pop_front() {
            self.mark_ready(id);
        }
        for _ in 0..self.ready.len() {
            let id = self.ready.pop_front().expect("its length was counted");
            if let Some(session) = self.sessions.get_mut(&id) {
                session.in_ready = false;
                session.begin_turn();
                self.serve_one(id);
            }
        }
    }

    /// Continues with connections that now have a buffer for their payload. Those that have reached
    /// their limit of bytes wait for the next pass. True if there were any.
    pub fn serve_resumed(&mut self) -> bool {
        let any = !self.resumed.is_empty();
        while let Some(id) = self.resumed.pop_front() {
            match self.sessions.get(&id) {
                Some(session) if session.has_had_its_turn() => self.mark_ready(id),
                _ => self.serve_one(id),
            }
        }
        any
    }

    fn serve_one(&mut self, id: ConnId) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let sink = &mut self.sink;
        let turn = session
            .take_moved(sink)
            .and_then(|()| session.receive(sink));
        sink.counts.copied_bytes += session.reader.rest();
        let to_send = !session.outbox.is_empty() || session.closing.is_some();
        match turn {
            Ok(Turn::Later) => {}
            Ok(Turn::Again) => self.mark_ready(id),
            Ok(Turn::Over) => self.wait_for_turn(id),
            Ok(Turn::End) => return self.close(id, None),
            Err(reason) => return self.close(id, Some(&reason)),
        }
        if to_send {
            self.mark_dirty(id);
        }
    }

    /// Lets a connection wait until the loop has taken what its user has brought.
    fn wait_for_turn(&mut self, id: ConnId) {
        if let Some(session) = self.sessions.get_mut(&id)
            && !std::mem::replace(&mut session.in_ready, true)
        {
            self.over.push(id);
            if self.sink.turns.ask() {
                self.sink.messages.push(ToLoop::TurnOver(id));
            }
        }
    }

    /// Sends on every connection that has something to send.
    pub fn flush(&mut self) {
        while let Some(id) = self.dirty.pop() {
            let Some(session) = self.sessions.get_mut(&id) else {
                continue;
            };
            session.in_dirty = false;
            let (registry, token) = (self.poller.registry(), token_of(id));
            let result = session.flush(&mut self.sink, &mut self.sent);
            let result = result.and_then(|()| session.stream.watch_room(registry, token));
            let heard_again = session.unheard && !session.outbox.is_full();
            session.unheard &= !heard_again;
            let now = self.sink.now;
            let over = session.closing.is_some() && session.outbox.is_empty();
            let over = over && session.is_heard(now);
            let closing = session.closing.take_if(|_| over);
            self.tell_sent();
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
            self.close(id, Some(&reason));
        }
        if self.flush_asked && self.sessions.values().all(Session::is_flushed) {
            self.flush_asked = false;
            self.sink.messages.push(ToLoop::Flushed);
        }
    }

    /// Ends the connections that have kept others waiting for too long.
    pub fn close_stalled(&mut self) {
        let (now, patience) = (self.sink.now, self.sink.policy.patience);
        let sessions = self.sessions.iter();
        let stalled: Vec<_> = sessions
            .filter_map(|(id, session)| Some((*id, session.stalled(now, &patience)?)))
            .collect();
        for (id, reason) in stalled {
            self.close(id, Some(reason));
        }
        self.sink.lines.tell(now);
        self.sink.proofs.tell(now);
        self.close_void();
    }

    /// Ends the connections whose secret is not valid any more.
    fn close_void(&mut self) {
        let policy = Arc::clone(&self.sink.policy);
        let Some(secrets) = &policy.secrets else {
            return;
        };
        let (valid, now_s) = (secrets.valid(self.sink.now), wall_s());
        let sessions = self.sessions.iter();
        let void: Vec<_> = sessions
            .filter_map(|(id, session)| Some((*id, session.void(&valid, now_s)?)))
            .collect();
        for (id, reason) in void {
            self.close(id, Some(reason));
        }
    }

    /// Ends a connection at once. With a reason it logs a warning, unless the client has said
    /// goodbye.
    fn close(&mut self, id: ConnId, reason: Option<&str>) {
        let Some(mut session) = self.sessions.remove(&id) else {
            return;
        };
        match reason {
            Some(reason)
                if !matches!(reason, GOODBYE | SESSION_OVER | NOT_JOINED | TICKET_ENDED)
                    && self.sink.lines.has_room(&session.whose, self.sink.now) =>
            {
                warn!(peer = session.peer, reason, "session closed");
            }
            Some(reason) => debug!(peer = session.peer, reason, "session closed"),
            None => debug!(peer = session.peer, "connection ended"),
        }
        session.stream.deregister(self.poller.registry());
        self.links.remove(&id);
        session.outbox.drop_all(&mut self.sent);
        if let Some(memory) = &mut session.rdma {
            memory.drop_all(&mut self.sent);
        }
        // The session drops its buffers before the loop learns that they are free.
        drop(session);
        self.tell_sent();
        self.sink.messages.push(ToLoop::Closed(id));
    }

    fn tell_sent(&mut self) {
        let sent = self.sent.drain(..).map(ToLoop::Sent);
        self.sink.messages.extend(sent);
    }
}

/// The poller's token of a connection.
fn token_of(id: ConnId) -> Token {
    Token(CONNS + id.0 as usize)
}

/// What a thread needs to serve a shard of its own.
pub struct ShardThread {
    /// The shard, without connections.
    pub shard: Shard,
    /// The waker that ends the thread's sleep.
    pub waker: Arc<Waker>,
    /// Messages from the forwarder's loop.
    pub incoming: Incoming<ToShard>,
    /// Messages to the forwarder's loop.
    pub outgoing: Outgoing<ToLoop>,
    /// Where the loop's thread reads the counts of this thread.
    pub counts: Arc<Mutex<HostCounts>>,
    /// The zero of the forwarder's time.
    pub zero: Zero,
}

impl ShardThread {
    /// Serves the shard until the forwarder's loop ends it. Fails if the poller does.
    pub fn run(self) -> io::Result<()> {
        let ShardThread {
            mut shard,
            waker,
            incoming,
            mut outgoing,
            counts,
            zero,
        } = self;
        let mut events = Events::with_capacity(256);
        let mut messages = Vec::new();
        let mut scan_at = Time(0);
        while !shard.ended {
            let timeout = (!shard.is_empty()).then_some(Duration::from_nanos(SCAN_NS));
            let has_mail = || incoming.is_any();
            shard.wait(&mut events, timeout, Some(&waker), has_mail)?;
            shard.sink.now = zero.time();
            events.iter().for_each(|event| shard.note(event));
            shard.ended = incoming.is_ended();
            incoming.take(&mut messages);
            shard.take(&mut messages);
            // Send replies first, while no received request waits to be handed over.
            shard.flush();
            shard.serve();
            shard.flush();
            if shard.sink.now >= scan_at {
                scan_at = shard.sink.now + SCAN_NS;
                shard.close_stalled();
            }
            *lock(&counts) = shard.sink.counts;
            for message in shard.sink.messages.drain(..) {
                outgoing.push(message);
            }
            outgoing.hand_over();
        }
        Ok(())
    }
}
