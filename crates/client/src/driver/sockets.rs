//! The client's sockets: the thread that leads lets the core do what is due, waits for all sockets,
//! and takes in what arrives.
//!
//! Beside sockets there may be links through libfabric, which may have received bytes without any
//! descriptor reporting it.

mod connecting;
mod secret_file;

use super::connection::{Connection, JOIN, Progress, ReceiveError, Received, Receiver};
use super::shared::{Command, Peer, Shared, State};
use super::tickets::{NoTicket, Tickets};
use crate::core::{CoreOptions, Input};
use crate::options::EmbeddedOptions;
use crate::payload::Payload;
use crate::wire::Reply;
use connecting::{QUEUE_FULL_WAIT, SECRET_LOOK};
use mio::event::Event;
use mio::{Events, Token, Waker};
use rustix::io::Errno;
pub(crate) use secret_file::SecretFile;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_fabric::Wait;
use tidegate_net::{Address, Dialer, Encryption, HandshakeError, Initiator, Poller, Secret};

/// The waker's token; the token of a connection is its number.
const WAKER: Token = Token(usize::MAX);

/// See the head of the file.
pub(crate) struct Sockets {
    poller: Poller,
    dialers: Vec<Dialer>,
    proof: Option<Proof>,
    payload_max: u32,
    /// By number: the first connection to each forwarder, then the second to each, and so on.
    connections: Vec<Entry>,
    received: Vec<Received>,
    embedded: EmbeddedOptions,
    events: Events,
}

/// What the client proves to forwarders on other nodes, and how it is protected from others.
pub(crate) struct Proof {
    pub(crate) origin: Origin,
    /// The least protection that the client accepts.
    pub(crate) encryption: Encryption,
}

/// From where the client's secret comes.
pub(crate) enum Origin {
    File(SecretFile),
    /// A mount.
    Tickets(Arc<Tickets>),
}

impl Proof {
    /// The tickets that it shows, if it shows some.
    pub(crate) fn tickets(&self) -> Option<Arc<Tickets>> {
        match &self.origin {
            Origin::File(_) => None,
            Origin::Tickets(tickets) => Some(Arc::clone(tickets)),
        }
    }

    /// A new connection will need it. Whoever changes the secret of the site writes it into the
    /// same file.
    fn read_again(&mut self) {
        if let Origin::File(file) = &mut self.origin {
            file.read_again();
        }
    }

    /// Whether the secret is being read.
    fn is_being_read(&mut self) -> bool {
        match &mut self.origin {
            Origin::File(file) => file.is_being_read(),
            Origin::Tickets(_) => false,
        }
    }

    /// What to show now, and the number of the ticket, if it is one.
    fn current(&self) -> Result<(Arc<Secret>, u64), NoTicket> {
        match &self.origin {
            Origin::File(file) => Ok((file.secret(), 0)),
            Origin::Tickets(tickets) => tickets.current(),
        }
    }

    /// A forwarder has answered to the ticket of this number. The error says that none will do.
    fn answered(&self, number: u64, refused: bool) -> Result<(), NoTicket> {
        match (&self.origin, refused) {
            (Origin::File(..), _) => Ok(()),
            (Origin::Tickets(tickets), true) => tickets.refused(number),
            (Origin::Tickets(tickets), false) => {
                tickets.taken();
                Ok(())
            }
        }
    }
}

impl Drop for Proof {
    fn drop(&mut self) {
        if let Origin::Tickets(tickets) = &self.origin {
            tickets.end();
        }
    }
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

/// What there is under the number of a connection.
enum Entry {
    Free,
    /// The forwarder's queue of new connections is full.
    Queued {
        generation: u64,
        again: Instant,
    },
    Live(Box<Live>),
}

/// A connection, from the first step of connecting on.
struct Live {
    generation: u64,
    connection: Arc<Connection>,
    receiver: Receiver,
    awaits: Awaits,
    /// The number of the ticket that the client has greeted with; 0: none.
    ticket: u64,
}

/// What a connection waits for before it is of use.
enum Awaits {
    Nothing,
    /// That the socket is connected.
    Peer,
    /// That the secret is read, until this time.
    Secret(Instant),
    /// The forwarder's answer to the client's greeting, until this time.
    Answer(Box<Initiator>, Instant),
}

/// What an event says.
#[derive(Clone, Copy)]
struct Ready {
    /// There may be bytes, or the end of the stream, to receive.
    readable: bool,
    writable: bool,
    /// The end of the stream may be there.
    closed: bool,
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
enum Gone {
    Connecting(Errno),
    /// libfabric reports an error.
    Fabric(tidegate_fabric::Error),
    Receiving(ReceiveError),
    /// The forwarder has not answered the client's greeting in time.
    Silent,
    /// The two ends do not trust each other.
    Handshake(HandshakeError),
    /// The client has no ticket to show.
    Ticket(NoTicket),
}

impl Entry {
    /// Whether it waits for a time, or for the secret.
    fn waits(&self) -> bool {
        match self {
            Entry::Free => false,
            Entry::Queued { .. } => true,
            Entry::Live(live) => matches!(live.awaits, Awaits::Secret(_) | Awaits::Answer(..)),
        }
    }

    /// Whether the I/O thread must look at it now or soon.
    fn is_due(&self) -> bool {
        match self {
            Entry::Live(live) => match live.awaits {
                Awaits::Answer(_, until) => until <= Instant::now(),
                _ => self.waits(),
            },
            _ => self.waits(),
        }
    }
}

impl Sockets {
    /// No connections yet, and the waker of the thread that waits in it.
    pub(crate) fn new(
        dialers: Vec<Dialer>,
        proof: Option<Proof>,
        core: &CoreOptions,
        embedded: EmbeddedOptions,
    ) -> io::Result<(Sockets, Waker)> {
        let poller = Poller::new()?;
        let waker = Waker::new(poller.registry(), WAKER)?;
        let connections = dialers.iter().map(|_| Entry::Free).collect();
        let payload_max = core.payload_max;
        let received = Vec::new();
        let sockets = Sockets {
            poller,
            dialers,
            proof,
            payload_max,
            connections,
            received,
            embedded,
            events: Events::with_capacity(256),
        };
        Ok((sockets, waker))
    }

    /// Sets the I/O thread up; it calls this first.
    pub(crate) fn thread_begins(&self) {
        if let Some(begins) = self.embedded.thread_begins {
            begins();
        }
    }

    /// Takes no tickets any more.
    pub(crate) fn thread_ends(&mut self) {
        self.proof = None;
    }

    /// Does what is due, waits once, for at most `wait_max`, and takes in what has arrived. Only
    /// the I/O thread calls this.
    pub(crate) fn cycle(&mut self, shared: &Shared, wait_max: Option<Duration>) -> Cycle {
        let (wait, done) = self.run_core(shared);
        if done {
            return Cycle::Done;
        }
        self.wait(shared, [wait, wait_max].into_iter().flatten().min());
        Cycle::Over
    }

    /// Lets the core do what is due, and connects as it asks. Returns how long to sleep, and
    /// whether all goodbyes are sent.
    fn run_core(&mut self, shared: &Shared) -> (Option<Duration>, bool) {
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

    /// Goes on with connections that wait for a time or for the secret: tries again to connect
    /// where the forwarder's queue was full, greets, and gives up where a greeting has no answer.
    /// Returns whether there was one.
    fn retry(&mut self, shared: &Shared) -> bool {
        if !self.connections.iter().any(Entry::waits) {
            return false;
        }
        let (now, is_read) = (Instant::now(), self.has_secret());
        let mut any = false;
        for number in 0..self.connections.len() {
            let (generation, gone) = match &self.connections[number] {
                Entry::Queued { generation, again } if *again <= now => {
                    self.connect(shared, number, *generation);
                    any = true;
                    continue;
                }
                Entry::Live(live) => match live.awaits {
                    Awaits::Secret(until) if is_read || until <= now => {
                        (live.generation, self.greet(number))
                    }
                    Awaits::Answer(_, until) if until <= now => {
                        (live.generation, Err(Gone::Silent))
                    }
                    _ => continue,
                },
                _ => continue,
            };
            if let Err(gone) = gone {
                self.release(number);
                self.lost(shared, number, generation, gone);
            }
            any = true;
        }
        any
    }

    /// How long to sleep: `sleep`, or less where a connection waits for a time or for the secret.
    fn before_retry(&self, sleep: Option<Duration>) -> Option<Duration> {
        let retry = self.connections.iter().filter_map(|entry| match entry {
            Entry::Queued { .. } => Some(QUEUE_FULL_WAIT),
            Entry::Live(live) => match live.awaits {
                Awaits::Secret(_) => Some(SECRET_LOOK),
                Awaits::Answer(_, until) => Some(until.saturating_duration_since(Instant::now())),
                Awaits::Nothing | Awaits::Peer => None,
            },
            Entry::Free => None,
        });
        retry.chain(sleep).min()
    }

    /// Like [`Sockets::cycle`], in a thread that makes a call.
    pub(crate) fn cycle_of_caller(&mut self, shared: &Shared, wait_max: Duration) -> Cycle {
        let mut state = shared.state();
        let now_ns = shared.now_ns();
        let work = shared.poll(&mut state, now_ns);
        let connect = !state.commands.is_empty() || self.connections.iter().any(Entry::is_due);
        let wake_at = state.core.wake_at().unwrap_or(u64::MAX);
        state.sleeps_until_ns = if connect { 0 } else { wake_at };
        drop(state);
        shared.carry_out(work);
        if connect {
            return Cycle::Connect;
        }
        let wait = Duration::from_nanos(wake_at.saturating_sub(now_ns)).min(wait_max);
        let mut events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        let wait = self.before_wait().map_or(wait, |bound| bound.min(wait));
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
        let wait = [wait, self.before_wait()].into_iter().flatten().min();
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
            if event.token().0 < self.connections.len() {
                let number = event.token().0;
                self.woken(number);
                self.react(shared, number, Ready::of(event));
            }
        }
        self.events = events;
        self.serve_links(shared);
    }

    fn react(&mut self, shared: &Shared, number: usize, ready: Ready) {
        let Entry::Live(live) = &mut self.connections[number] else {
            return;
        };
        let generation = live.generation;
        let gone = if matches!(live.awaits, Awaits::Peer) {
            self.connected(shared, number, ready)
        } else {
            if ready.writable {
                let registry = self.poller.registry();
                live.connection.note_room(registry, Token(number));
            }
            Ok(())
        };
        let gone = gone.and_then(|()| self.receive(shared, number, ready));
        if let Err(gone) = gone {
            self.take_in_joined(shared, number);
            self.release(number);
            self.lost(shared, number, generation, gone);
        }
    }

    /// Takes in what has arrived on a connection.
    fn receive(&mut self, shared: &Shared, number: usize, ready: Ready) -> Result<(), Gone> {
        if !ready.readable {
            return Ok(());
        }
        loop {
            let Entry::Live(live) = &mut self.connections[number] else {
                return Ok(());
            };
            if matches!(live.awaits, Awaits::Peer) {
                return Ok(());
            }
            let (stream, generation) = (&live.connection.stream, live.generation);
            let progress = live.receiver.receive(stream, &mut self.received);
            let received = std::mem::take(&mut self.received);
            if !received.is_empty() {
                self.received = self.deliver(shared, number, generation, received)?;
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
        number: usize,
        generation: u64,
        mut received: Vec<Received>,
    ) -> Result<Vec<Received>, Gone> {
        for one in received.drain(..) {
            let (reply, payload) = match one {
                Received::Reply(..) if self.is_unanswered(number) => {
                    return Err(Gone::Handshake(HandshakeError::Unproved));
                }
                Received::Reply(reply, payload) if reply.id < JOIN => {
                    let payload = self.payload_of(number, &reply, payload)?;
                    (reply, payload)
                }
                other => {
                    self.take_in_greeting(shared, number, other)?;
                    continue;
                }
            };
            let forwarder = self.forwarder(number);
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

    /// Whether the forwarder at the other end of a connection has not proved itself yet.
    fn is_unanswered(&self, number: usize) -> bool {
        matches!(&self.connections[number], Entry::Live(live)
            if matches!(live.awaits, Awaits::Secret(_) | Awaits::Answer(..)))
    }

    /// The payload of a reply, from the socket or from shared memory.
    fn payload_of(
        &self,
        number: usize,
        reply: &Reply,
        payload: Option<Payload>,
    ) -> Result<Payload, Gone> {
        let Entry::Live(live) = &self.connections[number] else {
            return Ok(Payload::new());
        };
        let shared = payload.is_none().then_some(reply.payload_len as usize);
        let kept = live.connection.replied(reply.id, shared);
        let payload = payload.or(kept);
        payload.ok_or(Gone::Receiving(ReceiveError::Memory))
    }

    /// The forwarder to which the connection of this number goes.
    fn forwarder(&self, number: usize) -> usize {
        number % self.dialers.len()
    }

    fn address(&self, number: usize) -> &Address {
        self.dialers[self.forwarder(number)].address()
    }

    /// Handles an event at a descriptor of a connection.
    fn woken(&self, number: usize) {
        if let Entry::Live(live) = &self.connections[number]
            && let Some(link) = live.connection.stream.link()
        {
            link.woken();
        }
    }

    /// Watches the sockets in which a send has found no room. Returns the longest time that the
    /// next wait may take, if connections through libfabric bound it.
    fn before_wait(&self) -> Option<Duration> {
        let registry = self.poller.registry();
        let waits = self
            .connections
            .iter()
            .enumerate()
            .filter_map(|(number, entry)| {
                let Entry::Live(live) = entry else {
                    return None;
                };
                let (connection, stream) = (&live.connection, &live.connection.stream);
                if let Err(error) = stream.watch_room(registry, Token(number)) {
                    tracing::warn!(%error, "a socket cannot be watched");
                    stream.shutdown();
                }
                match stream.link()?.wait(connection.awaits(), true) {
                    Wait::Not => Some(Duration::ZERO),
                    Wait::AtMost(wait) => Some(wait),
                    Wait::Any => None,
                }
            });
        waits.min()
    }

    /// Takes in what has arrived through libfabric, whether or not a descriptor has reported it.
    fn serve_links(&mut self, shared: &Shared) {
        for forwarder in 0..self.connections.len() {
            let linked = matches!(&self.connections[forwarder], Entry::Live(live)
                if live.connection.stream.link().is_some_and(|link| link.wants_look()));
            if linked {
                let ready = Ready {
                    readable: true,
                    writable: true,
                    closed: true,
                };
                self.react(shared, forwarder, ready);
            }
        }
    }
}
