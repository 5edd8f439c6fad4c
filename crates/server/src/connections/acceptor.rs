//! Accepts new connections and numbers them, refuses those above the limit, and tells
//! those that may come from another node from the others.

use super::ConnectionPolicy;
use super::doors::{Bounds, Doors, Entry, Whose};
use super::log_limit::LogLimit;
use super::session::Session;
use super::unknown_peers::{Unknown, UnknownPeers};
use mio::{Registry, Token};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use tidegate_forward::{ConnId, Peer};
use tidegate_net::{FrameReader, Listener, Origin, Stream, witness};
use tidegate_sched::Time;
use tracing::{error, warn};

/// How long the forwarder waits before it accepts again after the system ran out of a resource,
/// such as descriptors.
const ACCEPT_AGAIN_NS: u64 = 100_000_000;

/// How long it waits where connections before have no answer yet of the process that looks at
/// peers.
const ANSWERED_NS: u64 = 1_000_000;

/// Why a connection ends in the place of which another one is served.
pub const NO_HELLO: &str = "it said no hello, and others want to connect";

/// A new connection.
pub struct Accepted {
    /// The connection.
    pub session: Box<Session>,
    /// Who made it.
    pub peer: Peer,
    /// An older connection that must end for it.
    pub instead_of: Option<ConnId>,
}

/// The sockets that a forwarder listens on.
pub struct Acceptor {
    listeners: Vec<Listener>,
    policy: Arc<ConnectionPolicy>,
    /// The forwarder's user.
    owner: u32,
    payload_max: u32,
    doors: Doors,
    /// Connections of peers with uid 0, until it is known whether that is root.
    unknown: UnknownPeers,
    lines: LogLimit,
    conns_made: u64,
    again_at: Option<Time>,
}

impl Acceptor {
    /// Accepts from `listeners`. `conns_max` is the most connections at once; a frame may carry at
    /// most `payload_max` bytes of payload.
    pub fn new(
        listeners: Vec<Listener>,
        policy: Arc<ConnectionPolicy>,
        payload_max: u32,
        conns_max: usize,
    ) -> Acceptor {
        Acceptor {
            listeners,
            policy,
            owner: rustix::process::geteuid().as_raw(),
            payload_max,
            doors: Doors::new(Bounds::new(conns_max)),
            unknown: UnknownPeers::default(),
            lines: LogLimit::default(),
            conns_made: 0,
            again_at: None,
        }
    }

    /// Registers each listener with the poller, under consecutive tokens from `first` on.
    pub fn register(&mut self, registry: &Registry, first: usize) -> io::Result<()> {
        for (number, listener) in self.listeners.iter().enumerate() {
            listener.register(registry, Token(first + number))?;
        }
        Ok(())
    }

    /// Closes all listeners, so that no new connection comes.
    pub fn close(&mut self) {
        self.listeners.clear();
        self.unknown.close();
    }

    /// When the forwarder should try to accept again although the poller reports nothing.
    pub fn again_at(&self) -> Option<Time> {
        self.again_at
    }

    /// The listeners on which the forwarder should try to accept now, after an earlier failure.
    pub fn again(&mut self, now: Time) -> std::ops::Range<usize> {
        match self.again_at.take_if(|at| *at <= now) {
            Some(_) => 0..self.listeners.len(),
            None => 0..0,
        }
    }

    /// The number of connections that were not told to end.
    pub fn conns(&self) -> usize {
        self.doors.len()
    }

    /// Notes that more connections may wait, to be accepted at `at`.
    pub fn go_on_at(&mut self, at: Time) {
        self.again_at = Some(at);
    }

    /// Notes that a connection has said hello.
    pub fn greeted(&mut self, conn: ConnId) {
        self.doors.greeted(conn);
    }

    /// Notes that a connection has ended.
    pub fn ended(&mut self, conn: ConnId) {
        self.doors.ended(conn);
    }

    /// Accepts the next connection of a listener, and names its peer. Refuses connections above the
    /// bounds. None if no connection waits, or if the system has run out of a resource. Of a peer
    /// with uid 0, [`Acceptor::answered`] may return the connection later.
    pub fn accept(&mut self, listener: usize, now: Time) -> Option<Accepted> {
        self.lines.tell(now);
        loop {
            if !self.unknown.have_room() {
                self.again_at = Some(now + ANSWERED_NS);
                return None;
            }
            let listener = self.listeners.get(listener)?;
            let remote = listener.address().is_remote();
            match listener.accept() {
                Ok((stream, origin, Some(question))) => {
                    self.unknown.wait(stream, origin, question, now);
                }
                Ok((stream, origin, None)) => {
                    if let Some(accepted) = self.session(remote, stream, origin, now) {
                        return Some(accepted);
                    }
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return None,
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                    _ => {
                        warn!(%error, "accepting connections again in a moment");
                        self.again_at = Some(now + ACCEPT_AGAIN_NS);
                        return None;
                    }
                },
            }
        }
    }

    /// The next connection of a peer with uid 0 of which it is known now whether that is root, or
    /// no longer waited for. None if there is none.
    pub fn answered(&mut self, now: Time) -> Option<Accepted> {
        loop {
            let known = match witness::answer() {
                Ok(Some(answer)) => match self.unknown.answered(&answer) {
                    Some(known) => known,
                    None => continue,
                },
                Ok(None) => self.not_answered(now, UnknownPeers::overdue)?,
                Err(_) => self.not_answered(now, |unknown, _| unknown.given_up())?,
            };
            let accepted = self.session(false, known.stream, known.origin, now);
            if accepted.is_some() {
                return accepted;
            }
        }
    }

    /// When it is no longer waited for an answer.
    pub fn answer_until(&self) -> Option<Time> {
        self.unknown.until()
    }

    fn not_answered(
        &mut self,
        now: Time,
        take: impl FnOnce(&mut UnknownPeers, Time) -> Option<Unknown>,
    ) -> Option<Unknown> {
        let known = take(&mut self.unknown, now)?;
        if self
            .lines
            .has_room(&Whose::of(&known.origin, self.owner), now)
        {
            let peer = &known.origin.address;
            error!(
                peer,
                "tidegate-peers, which looks at peers with uid 0, does not answer"
            );
        }
        Some(known)
    }

    fn session(
        &mut self,
        remote: bool,
        stream: Stream,
        origin: Origin,
        now: Time,
    ) -> Option<Accepted> {
        let whose = Whose::of(&origin, self.owner);
        let instead_of = match self.doors.ask(&whose) {
            Entry::Welcome => None,
            Entry::InsteadOf(older) => {
                self.doors.ended(older);
                Some(older)
            }
            Entry::Refused => {
                if self.lines.has_room(&whose, now) {
                    let peer = origin.address;
                    warn!(peer, "connection refused: there are too many");
                }
                return None;
            }
        };
        let id = ConnId(self.conns_made);
        self.conns_made += 1;
        let powerless = origin.credentials.as_ref().and_then(|it| it.powerless);
        let peer = Peer {
            credentials: origin.credentials.map(|it| it.caller),
            powerless,
            address: origin.address.clone(),
            grant: None,
        };
        let peer_name = (origin.address, whose.clone());
        let reader = FrameReader::of_requests(self.payload_max, remote);
        let mut session = Session::new(id, peer_name, stream, reader, now);
        session.unproved = remote && self.policy.secrets.is_some();
        self.doors.came(id, whose);
        Some(Accepted {
            session: Box::new(session),
            peer,
            instead_of,
        })
    }
}
