//! The reactor: the leading thread waits in it for all connections of a client, and takes in what
//! arrives.

use super::connection::{Connection, JOIN, OFFER};
use super::receiver::{Progress, ReceiveError, Received, Receiver};
use super::shared::{Command, Peer, Shared, State};
use crate::core::{CoreOptions, Input, Lost};
use crate::options::EmbeddedOptions;
use crate::wire::{Challenge, Reply};
use bytes::Bytes;
use mio::event::Event;
use mio::{Events, Token, Waker};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_net::{Dialer, Poller, Secret, Stream};

/// Time after which to try again to connect to a forwarder whose queue of new connections is full.
const QUEUE_FULL_WAIT: Duration = Duration::from_millis(10);

/// The waker's token; the token of a link is its index.
const WAKER: Token = Token(usize::MAX);

/// See the module.
pub(crate) struct Reactor {
    pub(super) poller: Poller,
    pub(super) dialers: Vec<Dialer>,
    secret: Option<Secret>,
    client: u64,
    payload_max: u32,
    /// The first connection to each forwarder, then the second to each, and so on.
    pub(super) links: Vec<Link>,
    received: Vec<Received>,
    embedded: EmbeddedOptions,
    events: Events,
}

/// How one wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cycle {
    /// The thread has taken in what arrived.
    Over,
    /// The I/O thread must make a connection.
    Connect,
    /// The client has ended, and all goodbyes are sent.
    Done,
}

/// One connection as the reactor sees it.
pub(super) enum Link {
    Absent,
    /// The forwarder's queue of new connections is full.
    Queued {
        generation: u64,
        again: Instant,
    },
    Present(Box<Live>),
}

/// A socket, from the first step of connecting on.
pub(super) struct Live {
    pub(super) generation: u64,
    pub(super) connection: Arc<Connection>,
    receiver: Receiver,
    pub(super) connecting: bool,
}

/// What an event says.
#[derive(Clone, Copy)]
pub(super) struct Ready {
    /// There may be bytes, or the end of the stream, to receive.
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// The end of the stream may be there.
    pub(super) closed: bool,
}

impl Ready {
    fn of(event: &Event) -> Ready {
        let closed = event.is_read_closed();
        Ready {
            readable: event.is_readable() || closed || event.is_error(),
            writable: event.is_writable(),
            closed,
        }
    }
}

/// Why a connection has ended.
pub(super) enum Gone {
    Connecting(Errno),
    /// libfabric reports an error.
    Fabric(tidegate_fabric::Error),
    Receiving(ReceiveError),
    /// The forwarder wants a proof, and there is no secret.
    NoSecret,
}

impl Reactor {
    /// Makes a reactor, and the waker of the thread that waits in it.
    pub(crate) fn new(
        dialers: Vec<Dialer>,
        secret: Option<Secret>,
        core: &CoreOptions,
        embedded: EmbeddedOptions,
    ) -> io::Result<(Reactor, Waker)> {
        let poller = Poller::new()?;
        let waker = Waker::new(poller.registry(), WAKER)?;
        let links = dialers.iter().map(|_| Link::Absent).collect();
        let (client, payload_max) = (core.client, core.payload_max);
        let received = Vec::new();
        let reactor = Reactor {
            poller,
            dialers,
            secret,
            client,
            payload_max,
            links,
            received,
            embedded,
            events: Events::with_capacity(256),
        };
        Ok((reactor, waker))
    }

    /// Sets the I/O thread up; it calls this first.
    pub(crate) fn thread_begins(&self) {
        if let Some(begins) = self.embedded.thread_begins {
            begins();
        }
    }

    /// Does what is due, waits once, for at most `wait_max`, and takes in what has arrived. Only
    /// the I/O thread calls this.
    pub(crate) fn cycle(&mut self, shared: &Shared, wait_max: Option<Duration>) -> Cycle {
        let (wait, done) = self.turn(shared);
        if done {
            return Cycle::Done;
        }
        self.wait(shared, [wait, wait_max].into_iter().flatten().min());
        Cycle::Over
    }

    /// Like [`Reactor::cycle`], in a thread that makes a call.
    pub(crate) fn cycle_of_caller(&mut self, shared: &Shared, wait_max: Duration) -> Cycle {
        let mut state = shared.state();
        let now_ns = shared.now_ns();
        let work = shared.poll(&mut state, now_ns);
        let queued = |link: &Link| matches!(link, Link::Queued { .. });
        let connect = !state.commands.is_empty() || self.links.iter().any(queued);
        let wake_at = state.core.wake_at().unwrap_or(u64::MAX);
        state.sleeps_until_ns = if connect { 0 } else { wake_at };
        drop(state);
        shared.carry_out(work);
        if connect {
            return Cycle::Connect;
        }
        let wait = Duration::from_nanos(wake_at.saturating_sub(now_ns)).min(wait_max);
        let mut events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        let wait = self.look_at_links().map_or(wait, |bound| bound.min(wait));
        match self.poller.look(&mut events, wait, || false) {
            true => self.take_in(shared, events),
            false => {
                self.events = events;
                self.wait(shared, Some(wait));
            }
        }
        Cycle::Over
    }

    fn wait(&mut self, shared: &Shared, wait: Option<Duration>) {
        let wait = [wait, self.look_at_links()].into_iter().flatten().min();
        let mut events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        // A tracer may interrupt the sleep even though the thread takes no signals.
        if let Err(error) = self.poller.sleep(&mut events, wait) {
            panic!("epoll: {error}");
        }
        self.take_in(shared, events);
    }

    fn take_in(&mut self, shared: &Shared, events: Events) {
        shared.state().sleeps_until_ns = 0;
        for event in &events {
            if event.token().0 < self.links.len() {
                let link = event.token().0;
                self.woken(link);
                self.react(shared, link, Ready::of(event));
            }
        }
        self.events = events;
        self.serve_links(shared);
    }

    /// Lets the core do what is due, and connects as it asks. Returns how long to sleep, and
    /// whether all goodbyes are sent.
    fn turn(&mut self, shared: &Shared) -> (Option<Duration>, bool) {
        loop {
            let mut state = shared.state();
            let now_ns = shared.now_ns();
            let work = shared.poll(&mut state, now_ns);
            let commands = std::mem::take(&mut state.commands);
            let wake_at = state.core.wake_at();
            state.sleeps_until_ns = wake_at.unwrap_or(u64::MAX);
            let flushed = |state: &State| state.peers.iter().all(Peer::is_flushed);
            let done = state.ended && flushed(&state);
            drop(state);
            shared.carry_out(work);
            let retries = self.retry(shared);
            if commands.is_empty() && !retries {
                let sleep = wake_at.map(|at| Duration::from_nanos(at.saturating_sub(now_ns)));
                return (self.before_retry(sleep), done);
            }
            for command in commands {
                match command {
                    Command::Connect {
                        forwarder,
                        generation,
                    } => {
                        self.release_all(forwarder);
                        self.connect(shared, forwarder, generation);
                    }
                    Command::Join {
                        forwarder,
                        generation,
                        connections,
                    } => self.join(shared, forwarder, generation, connections),
                    Command::Disconnect { forwarder } => self.release_all(forwarder),
                }
            }
        }
    }

    /// Tries again to connect to forwarders whose queue was full; returns whether there was one.
    fn retry(&mut self, shared: &Shared) -> bool {
        let now = Instant::now();
        let mut any = false;
        for link in 0..self.links.len() {
            if let Link::Queued { generation, again } = self.links[link]
                && again <= now
            {
                self.connect(shared, link, generation);
                any = true;
            }
        }
        any
    }

    fn before_retry(&self, sleep: Option<Duration>) -> Option<Duration> {
        let queued = self
            .links
            .iter()
            .any(|link| matches!(link, Link::Queued { .. }));
        let retry = queued.then_some(QUEUE_FULL_WAIT);
        [sleep, retry].into_iter().flatten().min()
    }

    pub(super) fn connect(&mut self, shared: &Shared, link: usize, generation: u64) {
        self.release(link);
        let forwarder = self.forwarder(link);
        let socket = match self.dialers[forwarder].connect() {
            Ok(socket) => match self.embedded.place {
                Some(place) => place(socket),
                None => socket,
            },
            // For the first connection only: the client can do without further ones.
            Err(Errno::AGAIN) if link == forwarder => {
                let again = Instant::now() + QUEUE_FULL_WAIT;
                self.links[link] = Link::Queued { generation, again };
                return;
            }
            Err(errno) => {
                return self.lost(shared, link, generation, Gone::Connecting(errno));
            }
        };
        let address = self.address(link);
        let arena = match address.reaches_memory() {
            true => shared.arena.clone(),
            false => None,
        };
        let challenges = address.is_remote();
        let stream = Stream::new(socket, address.provider);
        let registered = stream.register(self.poller.registry(), Token(link));
        if registered.is_err() {
            return self.lost(shared, link, generation, Gone::Connecting(Errno::NOMEM));
        }
        self.links[link] = Link::Present(Box::new(Live {
            generation,
            connection: Arc::new(Connection::new(stream, arena)),
            receiver: Receiver::new(self.payload_max, challenges, shared.arena.clone()),
            connecting: true,
        }));
    }

    /// Releases a socket. A thread that still writes to it finds it shut down.
    pub(super) fn release(&mut self, link: usize) {
        let link = std::mem::replace(&mut self.links[link], Link::Absent);
        if let Link::Present(live) = link {
            live.connection.close();
            // Closing would do it too, but a writing thread may hold the socket a little longer.
            live.connection.stream.deregister(self.poller.registry());
        }
    }

    pub(super) fn react(&mut self, shared: &Shared, link: usize, ready: Ready) {
        let Link::Present(live) = &mut self.links[link] else {
            return;
        };
        let generation = live.generation;
        let gone = if live.connecting {
            self.connected(shared, link, ready)
        } else {
            if ready.writable {
                live.connection.flush();
            }
            Ok(())
        };
        let gone = gone.and_then(|()| self.receive(shared, link, ready));
        if let Err(gone) = gone {
            self.take_in_joined(shared, link);
            self.release(link);
            self.lost(shared, link, generation, gone);
        }
    }

    /// Checks whether a connection has been made.
    fn connected(&mut self, shared: &Shared, link: usize, ready: Ready) -> Result<(), Gone> {
        let Link::Present(live) = &mut self.links[link] else {
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
        live.connecting = false;
        let queue = socket.connected().map_err(Gone::Fabric)?;
        if let Some(queue) = queue {
            let registry = self.poller.registry();
            let registered = Stream::register_also(registry, Token(link), queue);
            registered.map_err(|_| Gone::Connecting(Errno::NOMEM))?;
        }
        if !self.address(link).is_remote() {
            self.usable(shared, link, Box::default());
        }
        Ok(())
    }

    /// Reports a usable connection to the core.
    fn usable(&mut self, shared: &Shared, link: usize, proof: Box<[u8]>) {
        let Link::Present(live) = &self.links[link] else {
            return;
        };
        let forwarder = self.forwarder(link);
        if link != forwarder {
            return self.ask_to_join(shared, link, proof);
        }
        let mut state = shared.state();
        let peer = &mut state.peers[forwarder];
        if peer.generation != live.generation {
            return;
        }
        peer.connection = Some(Arc::clone(&live.connection));
        let work = shared.handle(&mut state, Input::Connected { forwarder, proof });
        // The offer follows the hello.
        live.connection.offer();
        drop(state);
        shared.carry_out(work);
        live.connection.flush();
    }

    /// Takes in what has arrived on a connection.
    pub(super) fn receive(
        &mut self,
        shared: &Shared,
        link: usize,
        ready: Ready,
    ) -> Result<(), Gone> {
        if !ready.readable {
            return Ok(());
        }
        loop {
            let Link::Present(live) = &mut self.links[link] else {
                return Ok(());
            };
            if live.connecting {
                return Ok(());
            }
            let (stream, generation) = (&live.connection.stream, live.generation);
            let progress = live
                .receiver
                .receive(|pieces| stream.receive(pieces), &mut self.received);
            let received = std::mem::take(&mut self.received);
            if !received.is_empty() {
                self.received = self.deliver(shared, link, generation, received)?;
            }
            match progress {
                Ok(Progress::More) => {}
                // The peer has closed the stream: reads up to its end.
                Ok(Progress::Drained) if ready.closed => {}
                Ok(Progress::Drained | Progress::Empty) => return Ok(()),
                Err(error) => return Err(Gone::Receiving(error)),
            }
        }
    }

    /// Gives the core the replies that have arrived, if they belong to the present connection.
    /// Returns the emptied list.
    fn deliver(
        &mut self,
        shared: &Shared,
        link: usize,
        generation: u64,
        mut received: Vec<Received>,
    ) -> Result<Vec<Received>, Gone> {
        for one in received.drain(..) {
            let (reply, payload) = match one {
                Received::Reply(reply, _) if reply.id == OFFER => {
                    self.offer_answered(link, &reply);
                    continue;
                }
                Received::Reply(reply, _) if reply.id == JOIN => {
                    self.join_answered(shared, link, &reply);
                    continue;
                }
                Received::Reply(reply, payload) => {
                    let payload = self.payload_of(link, &reply, payload)?;
                    (reply, payload)
                }
                Received::Challenge(challenge) => {
                    let proof = self.prove(&challenge)?;
                    self.usable(shared, link, proof);
                    continue;
                }
            };
            let forwarder = self.forwarder(link);
            let mut state = shared.state();
            if state.peers[forwarder].generation != generation {
                continue;
            }
            let input = Input::Received {
                forwarder,
                reply,
                payload,
            };
            let work = shared.handle(&mut state, input);
            drop(state);
            shared.carry_out(work);
        }
        Ok(received)
    }

    /// The payload of a reply, from the socket or from shared memory.
    fn payload_of(
        &self,
        link: usize,
        reply: &Reply,
        payload: Option<Bytes>,
    ) -> Result<Bytes, Gone> {
        let Link::Present(live) = &self.links[link] else {
            return Ok(Bytes::new());
        };
        let shared = payload.is_none().then_some(reply.payload_len as usize);
        let kept = live.connection.replied(reply.id, shared);
        let payload = payload.or(kept);
        payload.ok_or(Gone::Receiving(ReceiveError::Memory))
    }

    /// Handles the forwarder's answer to the offer of the arena.
    fn offer_answered(&self, link: usize, reply: &Reply) {
        let Link::Present(live) = &self.links[link] else {
            return;
        };
        match reply.result {
            Ok(_) => live.connection.accepted(),
            Err(status) => tracing::debug!(
                forwarder = self.forwarder(link),
                ?status,
                "shared memory was refused"
            ),
        }
    }

    /// The proof that the hello carries. A forwarder without a secret sends a challenge of zeros.
    fn prove(&self, challenge: &Challenge) -> Result<Box<[u8]>, Gone> {
        match &self.secret {
            _ if *challenge == [0; 32] => Ok(Box::default()),
            Some(secret) => Ok(Box::new(secret.prove(challenge, self.client))),
            None => Err(Gone::NoSecret),
        }
    }

    /// Reports to the core that a connection has ended, unless the core itself has closed it.
    fn lost(&mut self, shared: &Shared, link: usize, generation: u64, gone: Gone) {
        let forwarder = self.forwarder(link);
        let (why, refused, text) = match gone {
            Gone::Connecting(errno) => (Lost::Refused, false, errno.to_string()),
            Gone::Fabric(error @ tidegate_fabric::Error::Absent(_)) => {
                (Lost::Broken, true, error.to_string())
            }
            Gone::Fabric(error) => (Lost::Broken, false, error.to_string()),
            Gone::Receiving(error @ (ReceiveError::Closed | ReceiveError::Socket(_))) => {
                (Lost::Reset, false, error.to_string())
            }
            // It is no forwarder, or one of another release.
            Gone::Receiving(error) => (Lost::Broken, true, error.to_string()),
            Gone::NoSecret => {
                let text = "it asks for the shared secret; name a file that holds it (secret_file)";
                (Lost::Broken, true, text.to_string())
            }
        };
        let address = self.address(link);
        if why == Lost::Broken {
            tracing::warn!(%address, %text, "connection dropped");
        } else {
            tracing::debug!(%address, %text, "connection lost");
        }
        let mut state = shared.state();
        let peer = &mut state.peers[forwarder];
        let joined = || peer.joined.iter().any(|(joined, _)| *joined == link);
        let in_use = link == forwarder || joined();
        if peer.generation != generation || !in_use {
            return;
        }
        peer.generation += 1;
        peer.take_connections().for_each(|it| it.close());
        shared.note_trouble(&mut state, forwarder, refused, text);
        let work = shared.handle(&mut state, Input::ConnectionLost { forwarder, why });
        drop(state);
        self.release_all(forwarder);
        shared.carry_out(work);
    }
}
