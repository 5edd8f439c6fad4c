//! How the I/O thread makes and ends connections, and what the client and a forwarder say to each
//! other before requests go through a connection.
//!
//! A session may have further connections. The client makes them when several requests are under
//! way at once, so that several threads of the forwarder serve the session. They carry data only.
//! All connections of a session end together, so a session can be lost in one way only. Where the
//! client cannot make a further connection, it works without it.

use super::{Awaits, Entry, Gone, Live, Origin, Ready, Sockets};
use crate::core::Input;
use crate::driver::connection::{Connection, JOIN, ReceiveError, Received, Receiver};
use crate::driver::shared::Shared;
use crate::driver::tickets::NoTicket;
use crate::wire::{Outcome, Reply};
use mio::Token;
use rustix::io::Errno;
use rustix::net::sockopt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_net::{Finished, Greeting, HandshakeError, Initiator, Refusal, Stream};

/// Time after which to try again to connect to a forwarder whose queue of new connections is full.
pub(super) const QUEUE_FULL_WAIT: Duration = Duration::from_millis(10);
/// How long a new connection waits for the secret to be read; then the one that was read before
/// does. Reading takes far less unless the file system does not answer.
const SECRET_MAX: Duration = Duration::from_secs(1);
/// Time after which to look again whether the secret is read.
pub(super) const SECRET_LOOK: Duration = Duration::from_millis(1);
/// How long a forwarder may take to answer the client's greeting. It takes a millisecond, and more
/// where thousands come at once.
const ANSWER_MAX: Duration = Duration::from_secs(10);

impl Sockets {
    pub(super) fn connect(&mut self, shared: &Shared, number: usize, generation: u64) {
        self.release(number);
        let forwarder = self.forwarder(number);
        let socket = match self.dialers[forwarder].connect() {
            Ok(socket) => match self.embedded.place {
                Some(place) => place(socket),
                None => socket,
            },
            // For the first connection only: the client can do without further ones.
            Err(Errno::AGAIN) if number == forwarder => {
                let again = Instant::now() + QUEUE_FULL_WAIT;
                self.connections[number] = Entry::Queued { generation, again };
                return;
            }
            Err(errno) => {
                return self.lost(shared, number, generation, Gone::Connecting(errno));
            }
        };
        let address = self.address(number);
        let arena = match address.reaches_memory() {
            true => shared.arena.clone(),
            false => None,
        };
        let remote = address.is_remote();
        let stream = Stream::new(socket, address.provider);
        let registered = stream.register(self.poller.registry(), Token(number));
        if registered.is_err() {
            return self.lost(shared, number, generation, Gone::Connecting(Errno::NOMEM));
        }
        let memory = Arc::clone(&shared.reply_memory);
        self.connections[number] = Entry::Live(Box::new(Live {
            generation,
            connection: Arc::new(Connection::new(stream, arena)),
            receiver: Receiver::new(self.payload_max, remote, memory),
            awaits: Awaits::Peer,
            ticket: 0,
        }));
        if let Some(proof) = self.proof.as_mut().filter(|_| remote) {
            proof.read_again();
        }
    }

    /// Releases a socket. A thread that still writes to it finds it shut down.
    pub(super) fn release(&mut self, number: usize) {
        let entry = std::mem::replace(&mut self.connections[number], Entry::Free);
        if let Entry::Live(live) = entry {
            live.connection.close();
            // Closing would do it too, but a writing thread may hold the socket a little longer.
            live.connection.stream.deregister(self.poller.registry());
        }
    }

    /// Checks whether a connection has been made.
    pub(super) fn connected(
        &mut self,
        shared: &Shared,
        number: usize,
        ready: Ready,
    ) -> Result<(), Gone> {
        let Entry::Live(live) = &mut self.connections[number] else {
            return Ok(());
        };
        let socket = &live.connection.stream;
        match sockopt::socket_error(socket) {
            Ok(Ok(())) => {}
            Ok(Err(errno)) | Err(errno) => return Err(Gone::Connecting(errno)),
        }
        if !ready.writable || rustix::net::getpeername(socket).is_err() {
            // The event belongs to an earlier socket.
            return Ok(());
        }
        live.awaits = Awaits::Nothing;
        let queue = socket.connected().map_err(Gone::Fabric)?;
        if let Some(queue) = queue {
            let registry = self.poller.registry();
            let registered = Stream::register_also(registry, Token(number), queue);
            registered.map_err(|_| Gone::Connecting(Errno::NOMEM))?;
        }
        match self.address(number).is_remote() {
            true if self.proof.is_some() => self.greet_when_read(number),
            _ => {
                self.usable(shared, number);
                Ok(())
            }
        }
    }

    /// Begins to prove who the client is, as soon as the secret is read.
    fn greet_when_read(&mut self, number: usize) -> Result<(), Gone> {
        if self.has_secret() {
            return self.greet(number);
        }
        if let Entry::Live(live) = &mut self.connections[number] {
            live.awaits = Awaits::Secret(Instant::now() + SECRET_MAX);
        }
        Ok(())
    }

    /// Whether the secret is there as it is now, if the client has one.
    pub(super) fn has_secret(&mut self) -> bool {
        let proof = self.proof.as_mut();
        proof.is_none_or(|proof| !proof.is_being_read())
    }

    /// Begins to prove who the client is.
    pub(super) fn greet(&mut self, number: usize) -> Result<(), Gone> {
        let (Some(proof), Entry::Live(live)) = (&mut self.proof, &mut self.connections[number])
        else {
            return Ok(());
        };
        let (secret, ticket) = proof.current().map_err(Gone::Ticket)?;
        let (initiator, greeting) = Initiator::begin(&secret, proof.encryption);
        live.awaits = Awaits::Answer(Box::new(initiator), Instant::now() + ANSWER_MAX);
        live.ticket = ticket;
        live.connection.greet(&greeting);
        Ok(())
    }

    /// Takes the forwarder's answer to the greeting. The connection is usable then.
    fn greeted(&mut self, shared: &Shared, number: usize, answer: &Greeting) -> Result<(), Gone> {
        let Entry::Live(live) = &mut self.connections[number] else {
            return Ok(());
        };
        if let Some(proof) = self.proof.as_ref().filter(|_| live.ticket > 0) {
            let answered = proof.answered(live.ticket, answer.refused().is_some());
            answered.map_err(Gone::Ticket)?;
        }
        let awaited = std::mem::replace(&mut live.awaits, Awaits::Nothing);
        let Awaits::Answer(initiator, _) = awaited else {
            let why = answer
                .refused()
                .map_or(HandshakeError::Unproved, HandshakeError::Refused);
            return Err(Gone::Handshake(why));
        };
        match initiator.finish(answer).map_err(Gone::Handshake)? {
            Finished::Protected(channel) => live.connection.stream.protect(*channel),
            Finished::Plain(confirmation) => live.connection.greet(&confirmation),
        }
        self.usable(shared, number);
        Ok(())
    }

    /// Reports a usable connection to the core.
    fn usable(&mut self, shared: &Shared, number: usize) {
        let Entry::Live(live) = &self.connections[number] else {
            return;
        };
        let forwarder = self.forwarder(number);
        if number != forwarder {
            return self.ask_to_join(shared, number);
        }
        let mut state = shared.state();
        let peer = &mut state.peers[forwarder];
        if peer.generation != live.generation {
            return;
        }
        peer.connection = Some(Arc::clone(&live.connection));
        let work = shared.handle(&mut state, Input::Connected { forwarder });
        // The offer follows the hello.
        live.connection.offer();
        drop(state);
        shared.carry_out(work);
        live.connection.flush();
    }

    /// Handles what a forwarder sends before it answers requests: its greeting, and the replies to
    /// the driver's own requests.
    pub(super) fn take_in_greeting(
        &mut self,
        shared: &Shared,
        number: usize,
        received: Received,
    ) -> Result<(), Gone> {
        match received {
            Received::Greeting(answer) => self.greeted(shared, number, &answer)?,
            Received::Reply(reply, _) if reply.id == JOIN => {
                self.join_answered(shared, number, &reply);
            }
            Received::Reply(reply, _) => self.offer_answered(number, &reply),
        }
        Ok(())
    }

    /// Handles the forwarder's answer to the offer of the arena.
    fn offer_answered(&self, number: usize, reply: &Reply) {
        let Entry::Live(live) = &self.connections[number] else {
            return;
        };
        match reply.result {
            Ok(_) => live.connection.accepted(),
            Err(status) => tracing::debug!(
                forwarder = self.forwarder(number),
                ?status,
                "shared memory was refused"
            ),
        }
    }

    /// Begins to make further connections, up to this number in all for this generation.
    pub(super) fn join(
        &mut self,
        shared: &Shared,
        forwarder: usize,
        generation: u64,
        connections: u16,
    ) {
        let present = matches!(&self.connections[forwarder], Entry::Live(live)
            if live.generation == generation);
        // With libfabric there is one pair of endpoints, each with memory of its own.
        if !present || self.address(forwarder).provider.is_some() {
            return;
        }
        for round in 1..usize::from(connections) {
            let number = forwarder + round * self.dialers.len();
            while self.connections.len() <= number {
                self.connections.push(Entry::Free);
            }
            self.dialers[forwarder].again();
            self.connect(shared, number, generation);
        }
    }

    /// Asks the forwarder to take a new connection into the session.
    fn ask_to_join(&mut self, shared: &Shared, number: usize) {
        let forwarder = self.forwarder(number);
        let Entry::Live(live) = &self.connections[number] else {
            return;
        };
        let state = shared.state();
        let current = state.peers[forwarder].generation == live.generation;
        let request = state.core.join(forwarder, JOIN);
        drop(state);
        let Some(request) = request.filter(|_| current) else {
            return self.release(number);
        };
        live.connection.enqueue_request(&request, Vec::new());
        live.connection.offer();
        live.connection.flush();
    }

    /// Handles the forwarder's reply: it has taken the connection into the session, or refuses.
    fn join_answered(&mut self, shared: &Shared, number: usize, reply: &Reply) {
        let forwarder = self.forwarder(number);
        let Entry::Live(live) = &self.connections[number] else {
            return;
        };
        let mut state = shared.state();
        let peer = &mut state.peers[forwarder];
        let in_use = number == forwarder || peer.joined.iter().any(|(joined, _)| *joined == number);
        if in_use {
            // The reply belongs to no request of this kind.
            return;
        }
        let granted = matches!(&reply.result, Ok(Outcome::Hello(granted))
            if usize::from(granted.forwarder) == forwarder);
        if !granted {
            drop(state);
            tracing::debug!(forwarder, result = ?reply.result, "no further connection");
            return self.release(number);
        }
        if peer.generation == live.generation && peer.connection.is_some() {
            peer.joined.push((number, Arc::clone(&live.connection)));
        }
    }

    /// Releases all connections to a forwarder.
    pub(super) fn release_all(&mut self, forwarder: usize) {
        for number in (forwarder..self.connections.len()).step_by(self.dialers.len()) {
            self.release(number);
        }
    }

    /// Takes in what has arrived on the other connections of a session, because one connection has
    /// ended: these replies still count.
    pub(super) fn take_in_joined(&mut self, shared: &Shared, ended: usize) {
        let rest = Ready {
            readable: true,
            writable: false,
            closed: true,
        };
        let first = self.forwarder(ended);
        for number in (first..self.connections.len()).step_by(self.dialers.len()) {
            if number != ended {
                // The session ends in any case, so an error here adds nothing.
                let _ = self.receive(shared, number, rest);
            }
        }
    }

    /// Why two ends do not trust each other, in words that follow the forwarder's address.
    fn untrusted(&self, error: HandshakeError) -> String {
        match (error, self.proof.as_ref().map(|proof| &proof.origin)) {
            (HandshakeError::Refused(Refusal::Secret), Some(Origin::File(file))) => {
                format!("{error}; is {} its secret?", file.path().display())
            }
            _ => error.to_string(),
        }
    }

    /// Reports to the core that a connection has ended, unless the core itself has closed it.
    pub(super) fn lost(&mut self, shared: &Shared, number: usize, generation: u64, gone: Gone) {
        let forwarder = self.forwarder(number);
        // Refused: it is no forwarder, or one of another release, or cannot serve this client.
        let (refused, broken, text) = match gone {
            Gone::Connecting(errno) => (false, false, errno.to_string()),
            Gone::Fabric(error) => {
                let absent = matches!(error, tidegate_fabric::Error::Absent(_));
                (absent, true, error.to_string())
            }
            Gone::Receiving(error) => {
                let reset = matches!(error, ReceiveError::Closed | ReceiveError::Socket(_));
                (!reset, !reset, error.to_string())
            }
            Gone::Silent => (false, true, "it does not answer the greeting".to_string()),
            Gone::Handshake(error) => (true, true, self.untrusted(error)),
            Gone::Ticket(NoTicket::Waits) => (false, false, "waits for a ticket".to_string()),
            Gone::Ticket(NoTicket::Ended) => {
                return shared.bar();
            }
        };
        let address = self.address(number);
        if broken {
            tracing::warn!(%address, %text, "connection dropped");
        } else {
            tracing::debug!(%address, %text, "connection lost");
        }
        let mut state = shared.state();
        let peer = &mut state.peers[forwarder];
        let joined = || peer.joined.iter().any(|(joined, _)| *joined == number);
        let in_use = number == forwarder || joined();
        if peer.generation != generation || !in_use {
            return;
        }
        peer.generation += 1;
        peer.take_connections().for_each(|it| it.close());
        shared.note_trouble(&mut state, forwarder, refused, text);
        let work = shared.handle(&mut state, Input::ConnectionLost { forwarder });
        drop(state);
        self.release_all(forwarder);
        shared.carry_out(work);
    }
}
