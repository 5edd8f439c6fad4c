//! The event loop of a forwarder: sockets, storage completions, seats and time in one thread, which
//! has the forwarder's core. Further threads may serve a part of the connections (`network.rs`).
//!
//! Each pass reads the clock once, takes what has happened, tells the forwarder's core, does what
//! the core asks, and sends what is to be sent. A connection that has more to say than its part
//! of a pass waits for the next one; a connection for which the pool has no slot is not read.

mod admit;
mod conn;
mod fabric;
mod input;
pub mod jitter;
mod mail;
mod memory;
mod network;
mod output;
mod pump;
mod receive;
pub mod record;
mod remote;
pub mod seats;
pub mod shares;
mod sockets;
mod stuck;
mod traffic;
pub mod transport;

use crate::clock::Zero;
use crate::gossip::Gossip;
use crate::reactor::conn::Conn;
use crate::reactor::jitter::Jitter;
use crate::reactor::memory::Memory;
use crate::reactor::receive::Door;
use crate::reactor::record::Trace;
use crate::reactor::remote::{ForAll, Remotes};
use crate::reactor::seats::SeatKeeper;
use crate::reactor::shares::Keeper;
use crate::reactor::sockets::{CONNS, Desk, Sockets};
use crate::reactor::stuck::Stuck;
use crate::reactor::traffic::{Published, Traffic};
use crate::reactor::transport::{Listener, Stream};
use crate::storage::{Completion, Counts, Slots, Storage};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_forward::{ConnId, Forwarder, Input, Peer, SlotId};
use tidegate_net::Secret;
use tidegate_sched::Time;
use tidegate_wire::Challenge;
use tracing::{info, warn};

const WAKER: Token = Token(0);
const LISTENERS: usize = 1;
const JITTER: usize = CONNS - 1;
const STORAGE: usize = CONNS - 2;

/// How long a drain may take.
const DRAIN_NS_MAX: u64 = 30 * SECOND_NS;
/// Between two looks at the connections that may be stalled.
const SCAN_NS: u64 = SECOND_NS;
/// Before connections are accepted again after the system ran out of something.
const ACCEPT_AGAIN_NS: u64 = SECOND_NS / 10;
const SECOND_NS: u64 = 1_000_000_000;

/// Stops a reactor from another thread.
#[derive(Clone)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl Stop {
    /// Asks the reactor to drain and end. Does not wait.
    pub fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        // The reactor is gone when this fails, which is what was asked for.
        let _ = self.waker.wake();
    }

    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}

/// What a reactor works with, all of it ready.
pub struct Parts {
    /// Bound sockets.
    pub listeners: Vec<Listener>,
    /// The core.
    pub forwarder: Forwarder,
    /// Where jobs run.
    pub storage: Box<dyn Storage>,
    /// Memory of the slots, shared with storage.
    pub slots: Slots,
    /// The seats' locks and tables.
    pub seats: SeatKeeper,
    /// Policy and rules of shares that come at run time.
    pub keeper: Keeper,
    /// For TCP connections; None accepts any.
    pub secret: Option<Secret>,
    /// Largest payload of one frame.
    pub payload_max: u32,
    /// Connections at once.
    pub conns_max: usize,
    /// A connection that keeps others waiting this long is closed.
    pub stall_ns_max: u64,
    /// Threads that serve connections.
    pub reactors: usize,
    /// Memory that clients offer is taken.
    pub shared_memory: bool,
    /// The process kills itself when it accepts this request.
    pub kill_at_request: Option<u64>,
    /// Delays on purpose.
    pub jitter: Option<Jitter>,
    /// Zero of the forwarder's time.
    pub zero: Zero,
    /// Where requests are recorded, if they are.
    pub trace: Option<Trace>,
    /// What forwarders tell each other.
    pub gossip: Gossip,
}

/// What the connections have in common.
struct Core {
    forwarder: Forwarder,
    slots: Slots,
    door: Arc<Door>,
    /// Connections whose request waits for a slot, in order.
    waiting: VecDeque<ConnId>,
    /// Slots that were given anew before the core's word was heard that they are free.
    stale_frees: Vec<SlotId>,
    /// The pool has more room than when those that wait were last asked for.
    freed: bool,
    /// Requests handed in, session operations left out.
    requests: u64,
    kill_at_request: Option<u64>,
    jitter: Option<Jitter>,
    traffic: Traffic,
    /// What the network threads count.
    network_traffic: Vec<Arc<Published>>,
    memory: Memory,
    /// What storage had done at the beginning of this pass.
    storage: Counts,
    /// How long the oldest job ran at the last look.
    oldest_job: Duration,
    now: Time,
}

/// The event loop. Made in one thread, run in any.
pub struct Reactor {
    sockets: Sockets,
    remotes: Remotes,
    /// Threads that serve connections, this one among them.
    reactors: usize,
    stop: Stop,
    listeners: Vec<Listener>,
    storage: Box<dyn Storage>,
    seats: SeatKeeper,
    keeper: Keeper,
    payload_max: u32,
    conns_max: usize,
    stall_ns_max: u64,
    zero: Zero,
    trace: Option<Trace>,
    gossip: Gossip,
    core: Core,
    conns_made: u64,
    completions: Vec<Completion>,
    accept_again: Option<Time>,
    scan_at: Time,
    drain_until: Option<Time>,
    drained: bool,
    stuck: Stuck,
}

impl Reactor {
    /// A poll and its waker, which the storage needs before the reactor is made.
    pub fn poll() -> io::Result<(Poll, Arc<Waker>)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        Ok((poll, waker))
    }

    /// A reactor that starts when [`Reactor::run`] is called.
    pub fn new(poll: Poll, waker: Arc<Waker>, mut parts: Parts) -> io::Result<Reactor> {
        for (number, listener) in parts.listeners.iter_mut().enumerate() {
            listener.register(poll.registry(), Token(LISTENERS + number))?;
        }
        if let Some(jitter) = &parts.jitter {
            let (source, token) = (jitter.wake_fd(), Token(JITTER));
            poll.registry()
                .register(&mut SourceFd(&source), token, Interest::READABLE)?;
        }
        if let Some(fd) = parts.storage.wake_fd() {
            let token = Token(STORAGE);
            poll.registry()
                .register(&mut SourceFd(&fd), token, Interest::READABLE)?;
        }
        let core = Core {
            forwarder: parts.forwarder,
            slots: parts.slots,
            door: Arc::new(Door {
                secret: parts.secret,
                shared_memory: parts.shared_memory,
            }),
            waiting: VecDeque::new(),
            stale_frees: Vec::new(),
            freed: false,
            requests: 0,
            kill_at_request: parts.kill_at_request,
            jitter: parts.jitter,
            traffic: Traffic::default(),
            network_traffic: Vec::new(),
            memory: Memory::default(),
            storage: Counts::default(),
            oldest_job: Duration::ZERO,
            now: Time(0),
        };
        Ok(Reactor {
            sockets: Sockets::new(poll),
            remotes: Remotes::default(),
            reactors: parts.reactors,
            stop: Stop {
                asked: Arc::default(),
                waker,
            },
            listeners: parts.listeners,
            storage: parts.storage,
            seats: parts.seats,
            keeper: parts.keeper,
            payload_max: parts.payload_max,
            conns_max: parts.conns_max,
            stall_ns_max: parts.stall_ns_max,
            zero: parts.zero,
            trace: parts.trace,
            gossip: parts.gossip,
            core,
            conns_made: 0,
            completions: Vec::new(),
            accept_again: None,
            scan_at: Time(0),
            drain_until: None,
            drained: false,
            stuck: Stuck::default(),
        })
    }

    /// Stops this reactor from elsewhere.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Serves until it is stopped and drained. True if the drain ended in time.
    pub fn run(mut self) -> io::Result<bool> {
        let mut events = Events::with_capacity(256);
        let all = ForAll {
            door: self.core.door.clone(),
            stall_ns_max: self.stall_ns_max,
            zero: self.zero,
        };
        let started = Remotes::start(self.reactors - 1, &self.stop.waker, &all);
        (self.remotes, self.core.network_traffic) = started.map_err(|error| {
            let what = format!("starting {} reactors: {error}", self.reactors);
            io::Error::new(error.kind(), what)
        })?;
        self.tick();
        self.settle();
        loop {
            self.wait(&mut events)?;
            self.tick();
            for event in events.iter() {
                match event.token().0 {
                    0 => self.core.traffic.wakes += 1,
                    JITTER | STORAGE => {}
                    number if number < CONNS => self.accept(number - LISTENERS),
                    _ => self.sockets.note(event),
                }
            }
            self.pass()?;
            if let Some(jitter) = &mut self.core.jitter {
                jitter.arm(self.zero.time())?;
            }
            if let Some(why) = self.storage.failure().or_else(|| self.seats.failure()) {
                self.end_trace();
                // Its threads may wait for a back end that never answers.
                std::mem::forget(self.storage);
                return Err(io::Error::other(why));
            }
            match self.ended() {
                None => {}
                Some(true) => {
                    self.storage.shutdown();
                    self.end_trace();
                    return Ok(true);
                }
                Some(false) => {
                    self.end_trace();
                    // A thread that hangs in the back end cannot be waited for.
                    std::mem::forget(self.storage);
                    return Ok(false);
                }
            }
        }
    }

    /// Reads the clock: once a pass, and when jobs were done meanwhile.
    fn tick(&mut self) {
        self.core.now = self.zero.time();
    }

    /// Everything of a pass but new events.
    fn pass(&mut self) -> io::Result<()> {
        let now = self.core.now;
        if self.stop.is_asked() && self.drain_until.is_none() {
            info!("stopping: finishing what was accepted");
            self.drain_until = Some(now + DRAIN_NS_MAX);
            self.listeners.clear();
            self.core.forwarder.handle(now, Input::Drain);
        }
        if self.accept_again.is_some_and(|at| at <= now) {
            self.accept_again = None;
            (0..self.listeners.len()).for_each(|number| self.accept(number));
        }
        self.tell_recorded();
        self.take_completions();
        self.core.note_storage(self.storage.counts());
        let now = self.core.now;
        for given in self.gossip.heard() {
            self.core.forwarder.handle(now, Input::Heard(given));
        }
        self.turn_seats();
        self.turn_kept();
        self.remotes.take(&mut self.core)?;
        self.sockets.serve(&mut self.core);
        self.core.take_delayed();
        self.settle();
        if now >= self.scan_at {
            self.scan_at = now + SCAN_NS;
            self.sockets
                .close_stalled(self.stall_ns_max, &mut self.core);
            self.settle();
            self.core.memory.tidy();
            self.look_at_calls();
        }
        Ok(())
    }

    /// Waits for events, for a moment awake, until the next time that is due.
    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        let bound = self.sockets.look_at_links();
        let timeout = [self.timeout(), bound].into_iter().flatten().min();
        let traffic = &mut self.core.traffic;
        let remotes = &self.remotes;
        let has_mail = || remotes.has_mail();
        self.sockets
            .wait(events, timeout, traffic, remotes.bell(), has_mail)
    }

    /// How long the next poll may sleep.
    fn timeout(&self) -> Option<Duration> {
        if self.sockets.is_any_ready() {
            return Some(Duration::ZERO);
        }
        // Once more after the last of them has gone.
        let scan = !self.sockets.conns.is_empty()
            || self.core.memory.is_due()
            || self.storage.counts().pending > 0;
        let scan = scan.then_some(self.scan_at);
        let times = [
            self.core.forwarder.wake_at(),
            self.seats.wake_at(),
            self.accept_again,
            self.drain_until,
            scan,
        ];
        let at = times.into_iter().flatten().min()?;
        let now = self.zero.time();
        // Rounded up: a poll that ends just before its time would spin.
        Some(Duration::from_nanos(
            at.since(now).next_multiple_of(1_000_000),
        ))
    }

    /// Whether the loop is over, and if so whether all that was accepted is done.
    fn ended(&mut self) -> Option<bool> {
        let until = self.drain_until?;
        if self.drained && self.sockets.are_flushed() && self.remotes.are_flushed() {
            return Some(true);
        }
        (self.core.now >= until).then_some(false)
    }

    fn accept(&mut self, number: usize) {
        while let Some(listener) = self.listeners.get(number) {
            match listener.accept() {
                Ok((_, peer))
                    if self.sockets.conns.len() + self.remotes.len() >= self.conns_max =>
                {
                    warn!(
                        peer = peer.address,
                        "connection refused: there are too many"
                    );
                }
                Ok((stream, peer)) => {
                    let remote = listener.challenges();
                    if let Err(error) = self.connected(remote, stream, peer) {
                        warn!(%error, "connection refused");
                    }
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return,
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                    _ => {
                        warn!(%error, "accepting connections again in a moment");
                        self.accept_again = Some(self.core.now + ACCEPT_AGAIN_NS);
                        return;
                    }
                },
            }
        }
    }

    /// Takes a new connection in, and challenges it if it may be from another node.
    fn connected(&mut self, remote: bool, stream: Stream, mut peer: Peer) -> io::Result<()> {
        let now = self.core.now;
        let id = ConnId(self.conns_made);
        self.conns_made += 1;
        let mut conn = Conn::new(id, peer.address.clone(), stream, self.payload_max, now);
        if remote {
            let mut challenge = Challenge::default();
            if self.core.door.secret.is_some() {
                challenge = tidegate_net::challenge().map_err(io::Error::other)?;
                conn.challenge = Some(challenge);
                peer.challenged = true;
            }
            conn.outbox
                .push(|into| into.extend_from_slice(&challenge), None);
        }
        self.core
            .forwarder
            .handle(now, Input::Connected { conn: id, peer });
        // Slots are registered with libfabric by this thread alone.
        if conn.stream.link().is_none()
            && let Some(thread) = self.remotes.thread_for_next(self.sockets.conns.len())
        {
            self.remotes.serve(thread, conn);
            return Ok(());
        }
        let added = self.sockets.add(conn);
        if added.is_err() {
            self.core.closed(id);
        }
        added
    }
}
