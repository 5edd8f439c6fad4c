//! The event loop of a forwarder: sockets, storage completions, seats and time in one thread.
//!
//! Each pass reads the clock once, takes what has happened, tells the forwarder's core, does what
//! the core asks, and sends what is to be sent. A connection that has more to say than its part
//! of a pass waits for the next one; a connection for which the pool has no slot is not read.

pub mod auth;
mod conn;
mod input;
pub mod jitter;
mod memory;
mod output;
mod pump;
mod receive;
pub mod record;
mod fabric;
pub mod seats;
pub mod shares;
mod traffic;
pub mod transport;

use crate::gossip::Gossip;
use crate::reactor::auth::Secret;
use crate::reactor::conn::Conn;
use crate::reactor::jitter::Jitter;
use crate::reactor::memory::Memory;
use crate::reactor::record::Trace;
use crate::reactor::seats::SeatKeeper;
use crate::reactor::shares::ShareKeeper;
use crate::reactor::traffic::Traffic;
use crate::reactor::transport::{Listener, Stream};
use crate::spin::Spin;
use crate::storage::{Completion, Counts, Slots, Storage};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidegate_forward::{ConnId, Forwarder, GOODBYE, Input, Peer, SlotId};
use tidegate_sched::Time;
use tidegate_wire::Challenge;
use tracing::{debug, info, warn};

const WAKER: Token = Token(0);
const LISTENERS: usize = 1;
const JITTER: usize = CONNS - 1;
const STORAGE: usize = CONNS - 2;
const CONNS: usize = 1024;

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
    /// The rules of shares.
    pub shares: ShareKeeper,
    /// For TCP connections; None accepts any.
    pub secret: Option<Secret>,
    /// Largest payload of one frame.
    pub payload_max: u32,
    /// Connections at once.
    pub conns_max: usize,
    /// A connection that keeps others waiting this long is closed.
    pub stall_ns_max: u64,
    /// Memory that clients offer is taken.
    pub shared_memory: bool,
    /// The process kills itself when it accepts this request.
    pub kill_at_request: Option<u64>,
    /// Delays on purpose.
    pub jitter: Option<Jitter>,
    /// Scheduler options, for what a change of policy leaves out.
    pub scheduler: tidegate_sched::Options,
    /// Width of a window where a change of policy names none, if it is not the policy's own.
    pub window_ms: Option<u64>,
    /// Zero of the monotonic clock.
    pub zero: Instant,
    /// Where requests are recorded, if they are.
    pub trace: Option<Trace>,
    /// What forwarders tell each other.
    pub gossip: Gossip,
}

/// What the connections have in common.
struct Core {
    forwarder: Forwarder,
    slots: Slots,
    secret: Option<Secret>,
    shared_memory: bool,
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
    /// What storage had done at the beginning of this pass.
    storage: Counts,
    now: Time,
}

/// The event loop. Made in one thread, run in any.
pub struct Reactor {
    poll: Poll,
    stop: Stop,
    listeners: Vec<Listener>,
    storage: Box<dyn Storage>,
    seats: SeatKeeper,
    shares: ShareKeeper,
    scheduler: tidegate_sched::Options,
    window_ms: Option<u64>,
    payload_max: u32,
    conns_max: usize,
    stall_ns_max: u64,
    zero: Instant,
    trace: Option<Trace>,
    gossip: Gossip,
    core: Core,
    conns: BTreeMap<ConnId, Conn>,
    conns_made: u64,
    /// Those of them that are through libfabric.
    links: BTreeSet<ConnId>,
    memory: Memory,
    /// Connections that may have something to read, in turn.
    ready: VecDeque<ConnId>,
    /// Connections that have something to send.
    dirty: Vec<ConnId>,
    completions: Vec<Completion>,
    sent: Vec<SlotId>,
    accept_again: Option<Time>,
    scan_at: Time,
    drain_until: Option<Time>,
    drained: bool,
    spin: Spin,
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
            secret: parts.secret,
            shared_memory: parts.shared_memory,
            waiting: VecDeque::new(),
            stale_frees: Vec::new(),
            freed: false,
            requests: 0,
            kill_at_request: parts.kill_at_request,
            jitter: parts.jitter,
            traffic: Traffic::default(),
            storage: Counts::default(),
            now: Time(0),
        };
        Ok(Reactor {
            poll,
            stop: Stop {
                asked: Arc::default(),
                waker,
            },
            listeners: parts.listeners,
            storage: parts.storage,
            seats: parts.seats,
            shares: parts.shares,
            scheduler: parts.scheduler,
            window_ms: parts.window_ms,
            payload_max: parts.payload_max,
            conns_max: parts.conns_max,
            stall_ns_max: parts.stall_ns_max,
            zero: parts.zero,
            trace: parts.trace,
            gossip: parts.gossip,
            core,
            conns: BTreeMap::new(),
            conns_made: 0,
            links: BTreeSet::new(),
            memory: Memory::default(),
            ready: VecDeque::new(),
            dirty: Vec::new(),
            completions: Vec::new(),
            sent: Vec::new(),
            accept_again: None,
            scan_at: Time(0),
            drain_until: None,
            drained: false,
            spin: Spin::default(),
        })
    }

    /// Stops this reactor from elsewhere.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Serves until it is stopped and drained. True if the drain ended in time.
    pub fn run(mut self) -> io::Result<bool> {
        let mut events = Events::with_capacity(256);
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
                    number => {
                        let id = ConnId((number - CONNS) as u64);
                        self.link_woken(id);
                        let hung_up = event.is_read_closed() || event.is_error();
                        if event.is_readable() || hung_up {
                            self.mark_ready(id);
                        }
                        if hung_up && let Some(conn) = self.conns.get_mut(&id) {
                            conn.hung_up = true;
                        }
                        if event.is_writable() {
                            self.mark_dirty(id);
                        }
                    }
                }
            }
            self.pass();
            if let Some(jitter) = &mut self.core.jitter {
                jitter.arm(Time(self.zero.elapsed().as_nanos() as u64))?;
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
        self.core.now = Time(self.zero.elapsed().as_nanos() as u64);
    }

    /// Everything of a pass but new events.
    fn pass(&mut self) {
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
        self.turn_shares();
        for _ in 0..self.ready.len() {
            let id = self.ready.pop_front().expect("its length was counted");
            self.serve(id);
        }
        self.core.take_delayed();
        self.settle();
        if now >= self.scan_at {
            self.scan_at = now + SCAN_NS;
            self.close_stalled();
            self.memory.tidy();
        }
    }

    /// Waits for events, for a moment awake, until the next time that is due.
    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        let bound = self.look_at_links();
        let timeout = [self.timeout(), bound].into_iter().flatten().min();
        let poll = &mut self.poll;
        let look = || {
            // What is wrong, the wait will say.
            let looked = poll.poll(events, Some(Duration::ZERO));
            looked.is_ok() && !events.is_empty()
        };
        // Looking is not counted: it takes the place of sleep.
        let wait = timeout.unwrap_or(Duration::MAX);
        if !wait.is_zero() && self.spin.look(wait, look) {
            return Ok(());
        }
        self.core.traffic.waits += 1;
        match self.poll.poll(events, timeout) {
            Err(error) if error.kind() != ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    /// How long the next poll may sleep.
    fn timeout(&self) -> Option<Duration> {
        if !self.ready.is_empty() {
            return Some(Duration::ZERO);
        }
        // Once more after the last of them has gone.
        let scan = (!self.conns.is_empty() || self.memory.is_due()).then_some(self.scan_at);
        let times = [
            self.core.forwarder.wake_at(),
            self.seats.wake_at(),
            self.accept_again,
            self.drain_until,
            scan,
        ];
        let at = times.into_iter().flatten().min()?;
        let now = Time(self.zero.elapsed().as_nanos() as u64);
        // Rounded up: a poll that ends just before its time would spin.
        Some(Duration::from_nanos(
            at.since(now).next_multiple_of(1_000_000),
        ))
    }

    /// Whether the loop is over, and if so whether all that was accepted is done.
    fn ended(&mut self) -> Option<bool> {
        let until = self.drain_until?;
        let flushed = || self.conns.values().all(Conn::is_flushed);
        if self.drained && flushed() {
            return Some(true);
        }
        (self.core.now >= until).then_some(false)
    }

    fn accept(&mut self, number: usize) {
        while let Some(listener) = self.listeners.get(number) {
            match listener.accept() {
                Ok((_, peer)) if self.conns.len() >= self.conns_max => {
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
    fn connected(&mut self, remote: bool, mut stream: Stream, mut peer: Peer) -> io::Result<()> {
        let now = self.core.now;
        let id = ConnId(self.conns_made);
        self.conns_made += 1;
        stream.register(self.poll.registry(), Token(CONNS + id.0 as usize))?;
        if stream.link().is_some() {
            self.links.insert(id);
        }
        let mut conn = Conn::new(id, peer.address.clone(), stream, self.payload_max, now);
        if remote {
            let mut challenge = Challenge::default();
            if self.core.secret.is_some() {
                challenge = auth::challenge().map_err(io::Error::other)?;
                conn.challenge = Some(challenge);
                peer.challenged = true;
            }
            conn.outbox
                .push(|into| into.extend_from_slice(&challenge), None);
        }
        self.core
            .forwarder
            .handle(now, Input::Connected { conn: id, peer });
        self.conns.insert(id, conn);
        self.mark_ready(id);
        self.mark_dirty(id);
        Ok(())
    }

    fn mark_ready(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(&id)
            && !conn.in_ready
        {
            conn.in_ready = true;
            self.ready.push_back(id);
        }
    }

    fn mark_dirty(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(&id)
            && !conn.in_dirty
        {
            conn.in_dirty = true;
            self.dirty.push(id);
        }
    }

    fn close_stalled(&mut self) {
        let now = self.core.now;
        let stalled: Vec<_> = self
            .conns
            .iter()
            .filter_map(|(id, conn)| Some((*id, conn.stalled(now, self.stall_ns_max)?)))
            .collect();
        for (id, reason) in stalled {
            self.close(id, Some(reason));
        }
        self.settle();
    }

    /// Ends a connection at once. A reason makes it a warning, unless it is the client's goodbye.
    fn close(&mut self, id: ConnId, reason: Option<&str>) {
        let Some(mut conn) = self.conns.remove(&id) else {
            return;
        };
        match reason {
            Some(GOODBYE) => debug!(peer = conn.peer, reason = GOODBYE, "session closed"),
            Some(reason) => warn!(peer = conn.peer, reason, "session closed"),
            None => debug!(peer = conn.peer, "connection ended"),
        }
        if let Some(jitter) = &mut self.core.jitter {
            jitter.forget(id);
        }
        self.memory.ended();
        conn.stream.deregister(self.poll.registry());
        self.links.remove(&id);
        conn.outbox.drop_all(&mut self.sent);
        if let Some(memory) = &mut conn.remote {
            memory.drop_all(&mut self.sent);
        }
        let now = self.core.now;
        for slot in self.sent.drain(..) {
            self.core.sent(slot);
        }
        self.core.freed = true;
        self.core.forwarder.handle(now, Input::Closed { conn: id });
    }
}
