//! New connections: accepted as far as there may be more, numbered, and challenged where they may
//! be from another node.

use super::ConnectionPolicy;
use super::session::Session;
use mio::{Registry, Token};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use tidegate_forward::{ConnId, Peer};
use tidegate_net::{Listener, Origin, Stream};
use tidegate_sched::Time;
use tidegate_wire::Challenge;
use tracing::warn;

/// Before connections are accepted again after the system ran out of something.
const ACCEPT_AGAIN_NS: u64 = 100_000_000;

/// The sockets that a forwarder listens on.
pub struct Acceptor {
    listeners: Vec<Listener>,
    policy: Arc<ConnectionPolicy>,
    payload_max: u32,
    conns_max: usize,
    conns_made: u64,
    again_at: Option<Time>,
}

impl Acceptor {
    /// Takes at most `conns_max` connections at once, with frames of at most `payload_max` bytes of
    /// payload.
    pub fn new(
        listeners: Vec<Listener>,
        policy: Arc<ConnectionPolicy>,
        payload_max: u32,
        conns_max: usize,
    ) -> Acceptor {
        Acceptor {
            listeners,
            policy,
            payload_max,
            conns_max,
            conns_made: 0,
            again_at: None,
        }
    }

    /// Reports new connections under tokens from `first` on.
    pub fn register(&mut self, registry: &Registry, first: usize) -> io::Result<()> {
        for (number, listener) in self.listeners.iter().enumerate() {
            listener.register(registry, Token(first + number))?;
        }
        Ok(())
    }

    /// Listens no more.
    pub fn close(&mut self) {
        self.listeners.clear();
    }

    /// When to try again though nothing is reported.
    pub fn again_at(&self) -> Option<Time> {
        self.again_at
    }

    /// The listeners to be tried again now.
    pub fn again(&mut self, now: Time) -> std::ops::Range<usize> {
        match self.again_at.take_if(|at| *at <= now) {
            Some(_) => 0..self.listeners.len(),
            None => 0..0,
        }
    }

    /// The next connection of a listener, and who is at its other end; None: there is none now.
    /// `conns`: how many there are.
    pub fn accept(
        &mut self,
        listener: usize,
        conns: usize,
        now: Time,
    ) -> Option<(Box<Session>, Peer)> {
        loop {
            let listener = self.listeners.get(listener)?;
            let challenges = listener.address().is_remote();
            match listener.accept() {
                Ok((_, origin)) if conns >= self.conns_max => {
                    warn!(
                        peer = origin.address,
                        "connection refused: there are too many"
                    );
                }
                Ok((stream, origin)) => match self.session(challenges, stream, origin, now) {
                    Ok(accepted) => return Some(accepted),
                    Err(error) => warn!(%error, "connection refused"),
                },
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

    fn session(
        &mut self,
        challenges: bool,
        stream: Stream,
        origin: Origin,
        now: Time,
    ) -> io::Result<(Box<Session>, Peer)> {
        let id = ConnId(self.conns_made);
        self.conns_made += 1;
        let mut peer = Peer {
            credentials: origin.credentials,
            address: origin.address.clone(),
            challenged: false,
        };
        let mut session = Session::new(id, origin.address, stream, self.payload_max, now);
        if challenges {
            let mut challenge = Challenge::default();
            if self.policy.secret.is_some() {
                challenge = tidegate_net::challenge().map_err(io::Error::other)?;
                session.challenge = Some(challenge);
                peer.challenged = true;
            }
            session
                .outbox
                .push(|into| into.extend_from_slice(&challenge), None);
        }
        Ok((Box::new(session), peer))
    }
}
