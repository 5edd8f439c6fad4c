//! Connections and clients, from the hello that opens a session to the client's goodbye or the end
//! of its lease.

use super::Forwarder;
use super::permissions::Rights;
use super::pool::Holder;
use super::reached::Reached;
use super::receive::Key;
use super::standing::Standing;
use super::sync_errors::Unsynced;
use crate::back_end_files::Errno;
use crate::host::{ConnId, GOODBYE, NOT_JOINED, Output, SESSION_OVER};
use crate::peer::Peer;
use crate::printable::Printable;
use crate::reply_table::REPLY_SLOTS;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;
use tidegate_sched::Time;
use tidegate_wire::{
    Caller, Grant, Hello, HelloReply, Lent, Op, Outcome, PAYLOAD_LIMIT, Pipeline, Pipelining,
    Reply, Request, Status, frame,
};

/// The least payload that a session may agree on.
const PAYLOAD_MIN: u32 = 4096;
const EPROTO: u16 = 71;
const EUSERS: u16 = 87;

/// One connection.
pub(super) struct Connection {
    peer: Peer,
    /// After the hello.
    pub(super) client: Option<u64>,
    pub(super) payload_max: u32,
    /// Whose payload it carries; after the hello.
    pub(super) holder: Holder,
    /// Slots of payload that the host is reading from it, or will read.
    pub(super) admitted: u32,
    /// The forwarder has asked the host to close it, and ignores what still arrives on it.
    pub(super) closing: bool,
}

/// A client's state, which outlives its connections for the time of the lease.
pub(super) struct Client {
    pub(super) id: u64,
    pub(super) conn: Option<ConnId>,
    /// Further connections of its session. They open after the first one and end with it.
    pub(super) joined: Vec<ConnId>,
    incarnation: u64,
    pub(super) name: Box<[u8]>,
    /// What it may do, from when it made the session's first connection.
    pub(super) standing: Standing,
    /// Whether it takes what is lent.
    pub(super) borrows: bool,
    /// How its transfers move.
    pub(super) pipelining: Pipelining,
    /// When its last request arrived.
    pub(super) seen: Time,
    /// Unanswered requests: id and number, by id.
    pub(super) outstanding: Vec<(u64, Key)>,
    /// Requests that were answered while their jobs went on.
    pub(super) answered_early: usize,
    /// What it has not made stable, and errors of which it was not told.
    pub(super) unsynced: Unsynced,
    /// What it may do with files, if its rights are checked.
    pub(super) rights: Rights,
    /// The files whose handles it may use, if its rights are checked.
    pub(super) reached: Reached,
    /// Requests that were refused because of their callers.
    pub(super) refused_callers: u64,
    /// The applications that it has named.
    pub(super) introduced: Introduced,
    /// It said goodbye or lost its lease. It loses its reply slots when its last request is done.
    pub(super) ended: bool,
}

/// The applications that one client has named.
#[derive(Default)]
pub(super) struct Introduced {
    /// Ids under which they are counted, and since when each has been known.
    pub(super) apps: BTreeMap<u64, u64>,
}

impl Client {
    fn new(id: u64, standing: Standing) -> Client {
        Client {
            id,
            conn: None,
            joined: Vec::new(),
            incarnation: 0,
            borrows: false,
            name: Box::default(),
            standing,
            pipelining: Pipelining::default(),
            seen: Time(0),
            outstanding: Vec::new(),
            answered_early: 0,
            unsynced: Unsynced::default(),
            rights: Rights::default(),
            reached: Reached::default(),
            refused_callers: 0,
            introduced: Introduced::default(),
            ended: false,
        }
    }

    /// Whether it takes what is lent, and is trusted to give it back.
    pub(super) fn may_borrow(&self) -> bool {
        self.borrows && !self.standing.is_checked()
    }

    /// Where a request with this id is among the outstanding ones, or where it would go. A new
    /// request has the largest id.
    pub(super) fn place_of(&self, id: u64) -> Result<usize, usize> {
        match self.outstanding.last() {
            Some((last, _)) if *last >= id => {
                self.outstanding.binary_search_by_key(&id, |(id, _)| *id)
            }
            _ => Err(self.outstanding.len()),
        }
    }

    /// The connection for the reply to a request that arrived on `from`: the same one. None if that
    /// has ended and the client has not repeated the request: on another connection the reply could
    /// arrive between the repetition and what the client sends after it.
    pub(super) fn replies_on(&self, from: ConnId) -> Option<ConnId> {
        (self.conn == Some(from) || self.joined.contains(&from)).then_some(from)
    }

    /// Connections of its session.
    pub(super) fn connections(&self) -> usize {
        usize::from(self.conn.is_some()) + self.joined.len()
    }
}

impl Forwarder {
    pub(super) fn connected(&mut self, conn: ConnId, peer: Peer) {
        let connection = Connection {
            peer,
            client: None,
            payload_max: 0,
            holder: Holder::RESERVE,
            admitted: 0,
            closing: false,
        };
        self.connections.insert(conn, connection);
    }

    /// Notes what the peer of a connection has proved.
    pub(super) fn proved(&mut self, conn: ConnId, grant: Grant) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.peer.grant = Some(grant);
        }
    }

    /// Ends a connection whose peer broke the protocol's rules, and with it the other connections
    /// of its session, but nothing else.
    pub(super) fn close(&mut self, conn: ConnId, reason: impl Into<Box<str>>) {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        if core::mem::replace(&mut connection.closing, true) {
            return;
        }
        self.detach(conn);
        let reason = reason.into();
        self.outputs.push_back(Output::Close { conn, reason });
    }

    pub(super) fn connection_closed(&mut self, conn: ConnId) {
        self.pool.wait_no_longer(conn);
        self.detach(conn);
        let gone = self.connections.remove(&conn);
        // A look at all slots, so only for those that have some.
        for _ in 0..gone.map_or(0, |it| it.admitted) {
            if let Some(slot) = self.pool.closed(conn) {
                self.outputs.push_back(Output::Free { slot });
            }
        }
    }

    /// A connection has ended. Its session then has no connection, and the client's lease runs.
    fn detach(&mut self, conn: ConnId) {
        let client = self
            .connections
            .get_mut(&conn)
            .and_then(|it| it.client.take());
        let Some(client) = client.and_then(|id| self.clients.get_mut(&id)) else {
            return;
        };
        let joined = core::mem::take(&mut client.joined);
        self.joined -= joined.len();
        let others = client.conn.take().into_iter().chain(joined);
        client.seen = self.now;
        for other in others.filter(|other| *other != conn).collect::<Vec<_>>() {
            if let Some(connection) = self.connections.get_mut(&other) {
                connection.client = None;
            }
            self.close(other, SESSION_OVER);
        }
    }

    /// The first frame of a connection.
    pub(super) fn hello(&mut self, conn: ConnId, request: &Request, hello: &Hello) {
        let standing = match self.standing_of(conn, hello) {
            Ok(standing) => standing,
            Err((errno, reason)) => return self.refuse(conn, request, errno, reason),
        };
        if hello.joins {
            return self.join(conn, request, hello, &standing);
        }
        if hello.asks {
            return self.tell(conn, request, hello);
        }
        let fresh = match self.clients.get(&hello.client) {
            Some(client) if !client.standing.is_of(&standing) => {
                let reason = "the client's id belongs to another user";
                return self.refuse(conn, request, Errno::EACCES.0, reason);
            }
            Some(client) if client.incarnation >= hello.incarnation && !client.ended => {
                return self.refuse(conn, request, EPROTO, "an older incarnation of the client");
            }
            // What it opened for users for whom it does not act any more is judged anew.
            Some(client) => client.ended || client.standing.limits != standing.limits,
            None => match self.room_for(&standing) {
                Ok(()) => true,
                Err(reason) => return self.refuse(conn, request, EUSERS, reason),
            },
        };
        let before = self.clients.get(&hello.client);
        if let Some(older) = before.and_then(|client| client.conn) {
            self.close(older, "the client has opened a newer connection");
        }
        let new = || Client::new(hello.client, standing.clone());
        self.take_all_back(hello.client);
        let client = self.clients.entry(hello.client).or_insert_with(new);
        client.conn = Some(conn);
        client.incarnation = hello.incarnation;
        client.name.clone_from(&hello.name);
        if client.standing.limits != standing.limits {
            client.rights.judge_anew();
        }
        if client.standing != standing {
            client.standing = standing;
            client.rights.forget_asked();
            client.reached = Reached::default();
        }
        client.borrows = hello.borrows;
        client.seen = self.now;
        client.ended = false;
        let payload_max = hello.payload_max.clamp(PAYLOAD_MIN, PAYLOAD_LIMIT);
        let payload_max = payload_max.min(self.config.payload_max);
        let most = Pipeline::new(self.config.pipelining, payload_max);
        let pipeline = hello.pipeline.least(most);
        client.pipelining = pipeline.mode;
        let connection = self.connections.get_mut(&conn).expect("identified above");
        connection.client = Some(hello.client);
        connection.payload_max = payload_max;
        connection.holder = client.standing.holder(&mut self.pool);
        self.wake_by(self.now + (self.config.lease_ns / 8).max(1));
        let granted = self.grant(hello, payload_max, pipeline, fresh);
        self.greet(conn, request, Ok(Outcome::Hello(Box::new(granted))));
    }

    /// Answers a hello that only asks who this forwarder is.
    fn tell(&mut self, conn: ConnId, request: &Request, hello: &Hello) {
        let payload_max = hello.payload_max.clamp(PAYLOAD_MIN, PAYLOAD_LIMIT);
        let pipeline = Pipeline::new(self.config.pipelining, payload_max).least(hello.pipeline);
        let granted = HelloReply {
            forwarders: self.listed.clone(),
            ..self.grant(hello, payload_max, pipeline, false)
        };
        self.greet(conn, request, Ok(Outcome::Hello(Box::new(granted))));
        self.close(conn, GOODBYE);
    }

    /// Adds a further connection to an existing session.
    fn join(&mut self, conn: ConnId, request: &Request, hello: &Hello, peer: &Standing) {
        let room = self.has_room_to_join(peer);
        let client = self.clients.get_mut(&hello.client);
        let client = client.filter(|it| it.conn.is_some() && it.standing == *peer);
        let Some(client) = client.filter(|it| it.incarnation == hello.incarnation) else {
            return self.not_joined(conn, request, EPROTO);
        };
        let first = client.conn.expect("it was looked for");
        if !room || client.connections() >= usize::from(self.config.connections) {
            return self.not_joined(conn, request, EUSERS);
        }
        client.joined.push(conn);
        client.seen = self.now;
        let (mode, payload_max) = (client.pipelining, self.connections[&first].payload_max);
        self.joined += 1;
        let connection = self.connections.get_mut(&conn).expect("identified above");
        connection.client = Some(hello.client);
        connection.payload_max = payload_max;
        connection.holder = peer.holder(&mut self.pool);
        let pipeline = Pipeline::new(mode, payload_max).least(hello.pipeline);
        let granted = self.grant(hello, payload_max, pipeline, false);
        self.greet(conn, request, Ok(Outcome::Hello(Box::new(granted))));
    }

    /// Refuses a further connection. The session goes on without it.
    fn not_joined(&mut self, conn: ConnId, request: &Request, errno: u16) {
        self.greet(conn, request, Err(Status::Errno(errno)));
        self.close(conn, NOT_JOINED);
    }

    /// Why no client may say this hello now.
    pub(super) fn check_hello(&self, hello: &Hello) -> Result<(), (u16, &'static str)> {
        if hello.version < frame::VERSION {
            return Err((EPROTO, "an unknown protocol version"));
        }
        if hello.client == 0 {
            return Err((EPROTO, "client id 0"));
        }
        if self.draining {
            return Err((EUSERS, "the forwarder is stopping"));
        }
        Ok(())
    }

    /// What the transport knows of a connection's other end.
    pub(super) fn peer_of(&self, conn: ConnId) -> &Peer {
        &self.connections[&conn].peer
    }

    fn grant(
        &self,
        hello: &Hello,
        payload_max: u32,
        pipeline: Pipeline,
        fresh: bool,
    ) -> HelloReply {
        let held = self.seats.iter().filter(|(_, seat)| seat.has_lock());
        HelloReply {
            version: hello.version.min(frame::VERSION),
            forwarder: self.config.forwarder,
            seats: self.config.layout.seats,
            stripe: self.config.layout.stripe,
            payload_max,
            pipeline,
            credits: self.config.credits,
            connections: match self.config.joined_max {
                0 => 1,
                _ => self.config.connections.max(1),
            },
            reply_slots: REPLY_SLOTS as u16,
            fresh,
            lease_ms: (self.config.lease_ns / 1_000_000).min(u64::from(u32::MAX)) as u32,
            loan_ms: self.loan_ms(hello.client),
            wall_ns: self
                .now
                .0
                .wrapping_add(self.config.scheduler.wall_offset_ns),
            host: self.config.host,
            boot: self.config.boot,
            export: self.config.export,
            process: self.config.process,
            forwarders: Box::default(),
            held: held.map(|(seat, it)| (seat, it.generation)).collect(),
            root: self.config.root,
        }
    }

    fn refuse(&mut self, conn: ConnId, request: &Request, errno: u16, reason: &str) {
        self.greet(conn, request, Err(Status::Errno(errno)));
        let address = &self.connections[&conn].peer.address;
        let reason = format!("hello of {address} refused: {reason}");
        self.close(conn, reason);
    }

    fn greet(&mut self, conn: ConnId, request: &Request, result: Result<Outcome, Status>) {
        let reply = Reply {
            id: request.id,
            seat: request.seat,
            generation: 0,
            epoch: self.scheduler.epoch(self.now),
            charged_ns: 0,
            result,
            payload_len: 0,
            lent: Lent::default(),
        };
        let op = frame::op_code(&request.op);
        self.outputs.push_back(Output::Send {
            conn,
            op,
            reply,
            slot: None,
        });
    }

    /// Answers an operation on the session.
    pub(super) fn session_operation(&mut self, key: Key) {
        match self.requests[key].op() {
            Op::Hello(_) => unreachable!("a second hello is refused"),
            Op::Bye => self.bye(key),
            Op::Ping => self.answer(key, Ok(Outcome::Done)),
            Op::Status => {
                let text = self.status(self.requests[key].client);
                self.answer(key, Ok(Outcome::Text(text)));
            }
            Op::SetPolicy { .. } => self.set_policy(key),
            Op::SetShares { .. } => self.set_shares(key),
            Op::Drain { undo } => {
                let undo = *undo;
                self.set_aside(key, !undo);
            }
            Op::GiveBack { handle } => {
                let (client, handle) = (self.requests[key].client, *handle);
                self.answer(key, Ok(Outcome::Recalled(None)));
                self.given_back(client, handle);
            }
            Op::Application { .. } => self.introduced(key),
            // The host answers these where it can reach memory.
            Op::ShareMemory { .. } | Op::RegisterMemory { .. } => {
                self.answer(key, Err(Status::Errno(Errno::EOPNOTSUPP.0)));
            }
            path_ops!()
            | look_ops!()
            | name_ops!()
            | attribute_ops!()
            | open_ops!()
            | lock_ops!()
            | content_ops!()
            | data_ops!() => unreachable!("it is of another class"),
        }
    }

    /// Goodbye: the reply to the request goes out, then everything that the client holds is
    /// dropped.
    fn bye(&mut self, key: Key) {
        let client = self.requests[key].client;
        let conn = self.clients[&client].conn;
        self.answer(key, Ok(Outcome::Done));
        if let Some(conn) = conn {
            self.close(conn, GOODBYE);
        }
        self.end_client(client);
    }

    pub(super) fn lease_ended(&mut self, client: u64) {
        let Some(state) = self.clients.get(&client) else {
            return;
        };
        let conn = state.conn;
        let name = Printable(&state.name);
        let text = format!("the lease of client {name} has ended");
        self.log(text);
        if let Some(conn) = conn {
            self.close(conn, "the lease has ended");
        }
        self.end_client(client);
    }

    fn end_client(&mut self, client: u64) {
        self.end_waiting(client);
        self.drop_client_locks(client);
        self.drop_client_opens(client);
        self.take_all_back(client);
        if let Some(state) = self.clients.get_mut(&client) {
            state.ended = true;
            state.rights = Rights::default();
            state.reached = Reached::default();
        }
        self.forget_if_ended(client);
    }

    /// Drops the requests of an ended client that have not begun.
    fn end_waiting(&mut self, client: u64) {
        let outstanding: Vec<Key> = self.clients[&client]
            .outstanding
            .iter()
            .map(|(_, key)| *key)
            .collect();
        for key in outstanding {
            if self.stop_waiting(key) {
                self.answer(key, Err(Status::Errno(Errno::EINTR.0)));
            }
        }
    }

    /// Lets an ended client's reply slots and name go once nothing of it is outstanding.
    pub(super) fn forget_if_ended(&mut self, client: u64) {
        let done = |it: &Client| {
            let idle = it.outstanding.is_empty() && it.answered_early == 0;
            it.ended && idle && it.conn.is_none()
        };
        if !self.clients.get(&client).is_some_and(done) {
            return;
        }
        if let Some(state) = self.clients.remove(&client) {
            self.applications.left(&state.introduced);
        }
        for seat in self.seats.numbers() {
            self.leave_seat(seat, client);
        }
    }

    /// On whose behalf the host asks the back end; None: with the forwarder's own rights.
    pub(super) fn acting(&self, client: u64, caller: Option<Caller>) -> Option<Caller> {
        let client = &self.clients[&client];
        if !self.config.acts_for_callers {
            return None;
        }
        match caller {
            Some(caller) if client.standing.trusted => Some(caller),
            _ if client.standing.trusted && client.standing.user.uid == 0 => None,
            _ => Some(client.standing.user.clone()),
        }
    }
}
