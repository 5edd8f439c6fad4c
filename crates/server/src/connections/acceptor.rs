//! Accepts new connections and numbers them, refuses those above the limit, and sends a challenge
//! to those that may come from another node.

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

/// How long the forwarder waits before it accepts again after the system ran out of a resource,
/// such as descriptors.
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
            payload_max,
            conns_max,
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

    /// Accepts the next connection of a listener, and names its peer. Refuses connections while
    /// `conns`, the number that exist now, is at the limit. None if no connection waits, or if the
    /// system has run out of a resource.
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
        let powerless = origin.credentials.as_ref().and_then(|it| it.powerless);
        let mut peer = Peer {
            credentials: origin.credentials.map(|it| it.caller),
            powerless,
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
