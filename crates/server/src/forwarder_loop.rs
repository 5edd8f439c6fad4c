//! The forwarder's loop: the thread that alone owns the [`Forwarder`]. It also owns the adapters
//! around it: storage, seats, service reports, the trace, and shard 0 of the connections.
//!
//! Each pass reads the clock once, takes the events that have arrived, reports them to the
//! forwarder, carries out the forwarder's commands, and has the shards send what is queued. A
//! connection that has used up its part of a pass continues in the next pass. At what happens
//! seldom the loop looks only when it was notified or something of it is due: at seats, service
//! reports, changes of policy, listeners that had failed, and the order to stop.

mod admission;
mod settling;
mod waker;

use crate::adapters::gossip::Gossip;
use crate::adapters::jitter::Jitter;
use crate::adapters::policy_changes::PolicyChanges;
use crate::adapters::recording::Recording;
use crate::adapters::seat_keeper::SeatKeeper;
use crate::adapters::stuck::Stuck;
use crate::adapters::trim::Trim;
use crate::clock::Zero;
use crate::connections::acceptor::{Accepted, Acceptor, NO_HELLO};
use crate::connections::outbox::Body;
use crate::connections::shard::{CONNS, SCAN_NS, Shard};
use crate::connections::site_secrets::SiteSecrets;
use crate::connections::ticket_desk::TicketDesk;
use crate::connections::{ConnectionPolicy, Patience, Ports, ToLoop, ToShard};
use crate::short_turns;
use crate::storage::{Completion, Slots, Storage};
use admission::Admission;
use mio::unix::SourceFd;
use mio::{Events, Interest, Token};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;
use tidegate_forward::{ConnId, Forwarder, HostCounts, Input, Output, SlotId};
use tidegate_net::{Encryption, Listener, Poller, witness};
use tidegate_sched::Time;
use tidegate_wire::{Op, Reply};
use tracing::info;
use waker::LoopWaker;
pub use waker::Stop;

const LISTENERS: usize = 1;
const JITTER: usize = CONNS - 1;
const STORAGE: usize = CONNS - 2;
const PEERS: usize = CONNS - 3;

/// How many connections are accepted in one pass, before those that exist have a turn.
const ACCEPTED_MAX: usize = 64;

/// How many connections may be about to end while further ones are accepted.
const ENDING_MAX: usize = 64;

/// How long a drain may take, in ns.
const DRAIN_NS_MAX: u64 = 30_000_000_000;

/// What a forwarder's loop is made of. All parts are ready to use.
pub struct Parts {
    /// The sockets to listen on, already bound.
    pub listeners: Vec<Listener>,
    /// The forwarder.
    pub forwarder: Forwarder,
    /// What executes the forwarder's jobs on the back end.
    pub storage: Box<dyn Storage>,
    /// The payload buffers, which loop and storage share.
    pub slots: Slots,
    /// Takes and releases seats.
    pub seats: SeatKeeper,
    /// Changes of policy and share rules at run time.
    pub policy_changes: PolicyChanges,
    /// The site's secrets, of which every TCP client must prove a grant; None accepts every client.
    pub secrets: Option<SiteSecrets>,
    /// Gives tickets to users for whom munge vouches.
    pub desk: Option<TicketDesk>,
    /// The least protection of what TCP clients and the forwarder send each other.
    pub encryption: Encryption,
    /// The largest payload of one frame, in bytes.
    pub payload_max: u32,
    /// The most connections at once.
    pub conns_max: usize,
    /// How long a connection may keep others waiting.
    pub patience: Patience,
    /// How many threads serve connections, the loop's own included.
    pub reactors: usize,
    /// Whether the forwarder maps memory that clients offer to share.
    pub shared_memory: bool,
    /// For tests: the process kills itself when it has accepted this many requests.
    pub kill_at_request: Option<u64>,
    /// For tests: delays every request by a random time.
    pub jitter: Option<Jitter>,
    /// The zero of the forwarder's time.
    pub zero: Zero,
    /// The trace that records requests, if one is configured.
    pub recording: Option<Recording>,
    /// The service reports that forwarders write for each other.
    pub gossip: Gossip,
}

/// The loop. One thread may make it and another one run it.
pub struct ForwarderLoop {
    forwarder: Forwarder,
    /// The time of this pass.
    now: Time,
    zero: Zero,
    /// The connections that the loop's own thread serves.
    shard: Shard,
    ports: Ports,
    /// A vector, kept for reuse, into which the messages of other threads are taken.
    from_threads: Vec<ToLoop>,
    /// How many shards to start.
    shards: usize,
    admission: Admission,
    storage: Box<dyn Storage>,
    completions: Vec<Completion>,
    /// Whether commands of the forwarder, or results, are left for the next pass.
    unsettled: bool,
    seats: SeatKeeper,
    policy_changes: PolicyChanges,
    gossip: Gossip,
    recording: Option<Recording>,
    policy: Arc<ConnectionPolicy>,
    acceptor: Acceptor,
    trim: Trim,
    stuck: Stuck,
    scan_at: Time,
    waker: LoopWaker,
    stop: Stop,
    /// When something that happens seldom is due.
    seldom_at: Option<Time>,
    /// Why the seats let the forwarder not go on.
    failure: Option<String>,
    drain_until: Option<Time>,
    drained: bool,
}

impl ForwarderLoop {
    /// Makes a poller and its waker, which others need before the loop is made.
    pub fn poller() -> io::Result<(Poller, LoopWaker)> {
        let poller = Poller::new()?;
        let waker = LoopWaker::new(&poller)?;
        Ok((poller, waker))
    }

    /// Makes a loop, which does nothing until [`ForwarderLoop::run`] is called. Fails if the system
    /// refuses to register a descriptor.
    pub fn new(poller: Poller, waker: LoopWaker, parts: Parts) -> io::Result<ForwarderLoop> {
        let watch = |fd: Option<i32>, token: usize| match fd {
            Some(fd) => {
                let (source, token) = (&mut SourceFd(&fd), Token(token));
                poller
                    .registry()
                    .register(source, token, Interest::READABLE)
            }
            None => Ok(()),
        };
        watch(parts.jitter.as_ref().map(Jitter::wake_fd), JITTER)?;
        watch(parts.storage.wake_fd(), STORAGE)?;
        watch(witness::socket().map(|it| it.as_raw_fd()), PEERS)?;
        let policy = Arc::new(ConnectionPolicy {
            secrets: parts.secrets,
            desk: parts.desk,
            encryption: parts.encryption,
            shared_memory: parts.shared_memory,
            patience: parts.patience,
        });
        let (payload_max, conns_max) = (parts.payload_max, parts.conns_max);
        let mut acceptor = Acceptor::new(parts.listeners, policy.clone(), payload_max, conns_max);
        acceptor.register(poller.registry(), LISTENERS)?;
        Ok(ForwarderLoop {
            forwarder: parts.forwarder,
            now: Time(0),
            zero: parts.zero,
            shard: Shard::new(poller, policy.clone()),
            ports: Ports::default(),
            from_threads: Vec::new(),
            shards: parts.reactors,
            admission: Admission::new(parts.slots, parts.jitter, parts.kill_at_request),
            storage: parts.storage,
            completions: Vec::new(),
            unsettled: false,
            seats: parts.seats,
            policy_changes: parts.policy_changes,
            gossip: parts.gossip,
            recording: parts.recording,
            policy,
            acceptor,
            trim: Trim::default(),
            stuck: Stuck::default(),
            scan_at: Time(0),
            stop: Stop::new(&waker),
            waker,
            seldom_at: Some(Time(0)),
            failure: None,
            drain_until: None,
            drained: false,
        })
    }

    /// A handle by which another thread stops this loop.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// The effective scheduling policy, as text.
    pub fn policy(&self) -> Box<str> {
        self.forwarder.effective_policy()
    }

    /// Serves until the loop is stopped and drained. True if the drain ended within its time.
    pub fn run(mut self) -> io::Result<bool> {
        let mut events = Events::with_capacity(256);
        // The shards' threads get them from this one.
        short_turns::ask();
        let started = Ports::start(self.shards, &self.waker.waker, &self.policy, self.zero);
        self.ports = started.map_err(|error| {
            let what = format!("starting {} reactors: {error}", self.shards);
            io::Error::new(error.kind(), what)
        })?;
        self.tick();
        self.settle();
        loop {
            self.wait(&mut events)?;
            self.tick();
            for event in events.iter() {
                match event.token().0 {
                    JITTER | STORAGE => {}
                    PEERS => self.take_answers(),
                    number if (LISTENERS..CONNS).contains(&number) => {
                        self.accept(number - LISTENERS);
                    }
                    _ => self.shard.note(event),
                }
            }
            self.pass()?;
            self.admission.arm(self.zero)?;
            if let Some(why) = self.storage.failure().or_else(|| self.failure.take()) {
                self.end_recording();
                // Storage threads may wait for a back end that never answers.
                std::mem::forget(self.storage);
                return Err(io::Error::other(why));
            }
            match self.ended() {
                None => {}
                Some(true) => {
                    self.storage.shutdown();
                    self.end_recording();
                    return Ok(true);
                }
                Some(false) => {
                    self.end_recording();
                    // A thread that hangs in the back end cannot be waited for.
                    std::mem::forget(self.storage);
                    return Ok(false);
                }
            }
        }
    }

    /// Reads the clock: once a pass, and again when jobs were executed meanwhile.
    fn tick(&mut self) {
        self.now = self.zero.time();
        self.shard.sink.now = self.now;
    }

    fn tell(&mut self, input: Input) {
        self.forwarder.handle(self.now, input);
    }

    /// Does everything of a pass, except waiting for new events.
    fn pass(&mut self) -> io::Result<()> {
        self.take_completions();
        if self.waker.was_notified() || self.seldom_at.is_some_and(|at| at <= self.now) {
            self.look_at_seldom();
        }
        self.take_from_threads()?;
        self.serve_own();
        self.take_delayed();
        self.settle();
        if self.now >= self.scan_at {
            self.scan_at = self.now + SCAN_NS;
            self.shard.close_stalled();
            self.settle();
            self.trim.tidy();
            self.stuck.look(self.storage.oldest());
        }
        Ok(())
    }

    /// Looks at what happens seldom.
    fn look_at_seldom(&mut self) {
        if self.stop.is_asked() && self.drain_until.is_none() {
            info!("stopping: finishing what was accepted");
            self.drain_until = Some(self.now + DRAIN_NS_MAX);
            self.acceptor.close();
            self.tell(Input::Drain);
        }
        self.seldom_at = self.drain_until;
        for listener in self.acceptor.again(self.now) {
            self.accept(listener);
        }
        self.take_answers();
        self.look_by(self.acceptor.again_at());
        for report in self.gossip.received() {
            self.tell(Input::PeerService(report));
        }
        for input in self.seats.turn(self.now) {
            self.tell(input);
        }
        self.after_seats();
        for input in self.policy_changes.turn() {
            self.tell(input);
        }
    }

    /// Looks at what happens seldom at `at`, at the latest.
    fn look_by(&mut self, at: Option<Time>) {
        self.seldom_at = [self.seldom_at, at].into_iter().flatten().min();
    }

    /// Notes what a call of the keeper of seats has changed.
    fn after_seats(&mut self) {
        self.look_by(self.seats.wake_at());
        self.failure = self.seats.failure();
    }

    /// Waits for events until the next timer is due, after looking for them for a moment without
    /// sleeping.
    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        let timeout = self.timeout();
        let ports = &self.ports;
        self.shard
            .wait(events, timeout, ports.waker(), || ports.has_mail())
    }

    /// How long the poller may sleep at most.
    fn timeout(&mut self) -> Option<Duration> {
        if std::mem::take(&mut self.unsettled) {
            return Some(Duration::ZERO);
        }
        // One more round after the last connection has closed.
        let scan =
            !self.shard.is_empty() || self.trim.is_due() || self.storage.counts().pending > 0;
        let scan = scan.then_some(self.scan_at);
        let times = [self.forwarder.wake_at(), self.seldom_at, scan];
        let at = times.into_iter().flatten().min()?;
        let now = self.zero.time();
        // Round up: a wait that ends just before the timer is due would spin.
        Some(Duration::from_nanos(
            at.since(now).next_multiple_of(1_000_000),
        ))
    }

    /// Whether the loop has ended, and if so whether all accepted requests were finished.
    fn ended(&mut self) -> Option<bool> {
        let until = self.drain_until?;
        if self.drained && self.ports.are_flushed() {
            return Some(true);
        }
        (self.now >= until).then_some(false)
    }

    fn accept(&mut self, listener: usize) {
        for turn in 0.. {
            // Connections that were told to end keep their descriptors until their shards have had
            // a turn, so those that come must not take it.
            let ending = self.ports.len().saturating_sub(self.acceptor.conns());
            if turn >= ACCEPTED_MAX || ending >= ENDING_MAX {
                self.acceptor
                    .go_on_at(self.now + u64::from(turn == 0) * 1_000_000);
                break;
            }
            let Some(accepted) = self.acceptor.accept(listener, self.now) else {
                break;
            };
            self.connected(accepted);
        }
        self.look_by(self.acceptor.again_at());
        self.look_by(self.acceptor.answer_until());
    }

    fn connected(&mut self, accepted: Accepted) {
        if let Some(older) = accepted.instead_of {
            self.ports.cut(older, NO_HELLO.into());
        }
        let conn = accepted.session.id;
        let peer = accepted.peer;
        self.tell(Input::Connected { conn, peer });
        self.ports.serve(accepted.session);
    }

    /// Serves the connections of which it is known now whether they are root's.
    fn take_answers(&mut self) {
        while let Some(accepted) = self.acceptor.answered(self.now) {
            self.connected(accepted);
        }
        self.look_by(self.acceptor.answer_until());
    }

    /// Serves the connections of shard 0 until none can continue in this pass.
    fn serve_own(&mut self) {
        self.shard.take(self.ports.for_own());
        self.shard.serve();
        loop {
            self.take_from_own();
            self.shard.take(self.ports.for_own());
            if !self.shard.serve_resumed() {
                return;
            }
        }
    }

    /// Takes the messages of shard 0. True if there were any.
    fn take_from_own(&mut self) -> bool {
        let mut messages = std::mem::take(&mut self.shard.sink.messages);
        let any = !messages.is_empty();
        for message in messages.drain(..) {
            self.take(message);
        }
        self.shard.sink.messages = messages;
        any
    }

    /// Takes the messages of the other shards. An error means that the thread of one has ended.
    fn take_from_threads(&mut self) -> io::Result<()> {
        for thread in 0..self.ports.threads() {
            let mut messages = std::mem::take(&mut self.from_threads);
            let taken = self.ports.take(thread, &mut messages);
            for message in messages.drain(..) {
                self.take(message);
            }
            self.from_threads = messages;
            taken?;
        }
        Ok(())
    }

    /// Carries out one message of a shard.
    fn take(&mut self, message: ToLoop) {
        match message {
            ToLoop::Proved {
                conn,
                grant,
                protected,
            } => {
                if protected {
                    self.ports.protected(conn);
                }
                self.tell(Input::Proved { conn, grant });
            }
            ToLoop::Request(conn, came) => {
                match came.request.op {
                    Op::Status => self.tell_counts(),
                    Op::Hello(_) => self.acceptor.greeted(conn),
                    _ => {}
                }
                self.request_came(conn, came);
            }
            ToLoop::PayloadReceived {
                conn,
                request,
                slot,
            } => self.payload_came(conn, request, slot),
            ToLoop::Sent(slot) => self.sent(slot),
            ToLoop::Closed(conn) => {
                self.acceptor.ended(conn);
                if self.ports.closed(conn) {
                    self.admission.closed(conn);
                    self.trim.ended();
                    self.tell(Input::Closed { conn });
                }
            }
            ToLoop::TurnOver(conn) => {
                // The shard has told nothing of the connection since, so the connection is known.
                self.ports.tell(conn, ToShard::Turn);
            }
            ToLoop::Flushed => self.ports.flushed(),
        }
    }

    fn perform(&mut self, output: Output) {
        match output {
            Output::Send {
                conn,
                op,
                reply,
                slot,
            } => self.send(conn, op, reply, slot),
            Output::Free { slot } => self.admission.free(slot),
            Output::Start { job, work } => self.storage.submit(job, work),
            Output::TakeSeat { seat } => {
                if let Some(input) = self.seats.take(self.now, seat) {
                    self.tell(input);
                }
                self.after_seats();
            }
            Output::ReleaseSeat { seat } => self.seats.release(seat),
            Output::Close { conn, reason } => {
                self.ports.tell(conn, ToShard::Close(conn, reason));
            }
            Output::Broadcast(report) => self.gossip.broadcast(report),
            Output::Log { text } => info!("{text}"),
            Output::ParsePolicy { policy, text, keep } => {
                if let Some(input) = self.policy_changes.parse_policy(policy, &text, keep) {
                    self.tell(input);
                }
            }
            Output::ParseShares { policy, text, keep } => {
                if let Some(input) = self.policy_changes.parse_shares(policy, &text, keep) {
                    self.tell(input);
                }
            }
            Output::Served(served) => {
                if let Some(recording) = &mut self.recording {
                    recording.record(&served);
                }
            }
            Output::Reclaimed { seat } => self.seats.reclaimed(seat),
            Output::Drained => {
                self.drained = true;
                self.ports.flush();
            }
        }
    }

    fn send(&mut self, conn: ConnId, op: u8, reply: Reply, slot: Option<SlotId>) {
        let payload = slot.filter(|_| reply.payload_len > 0);
        let body = match (slot, payload) {
            (_, Some(slot)) => self.admission.body(slot, reply.payload_len),
            (Some(slot), None) => {
                self.admission.free(slot);
                Body::Nothing
            }
            (None, None) => Body::Nothing,
        };
        // Bytes that storage has put into shared memory are already the client's.
        let done = matches!(body, Body::Shared(_));
        let message = ToShard::Answer {
            conn,
            op,
            reply,
            body,
        };
        let unsent = self.ports.tell(conn, message).is_some();
        if let Some(slot) = payload.filter(|_| done || unsent) {
            self.sent(slot);
        }
    }

    /// Frees the payload buffer of a reply that was sent, or never will be.
    fn sent(&mut self, slot: SlotId) {
        self.admission.sent(slot);
        self.tell(Input::Sent { slot });
    }

    /// Passes the current counts to the forwarder, which answers requests for the status.
    fn tell_counts(&mut self) {
        if let Some(recording) = &self.recording {
            let recorded = recording.counts();
            self.tell(Input::Recorded(recorded));
        }
        let storage = self.storage.counts();
        let mut counts = HostCounts {
            storage_reads: storage.read_syscalls,
            storage_writes: storage.write_syscalls,
            storage_operations: storage.operations,
            file_descriptors: storage.files.descriptors,
            files_parked: storage.files.parked,
            oldest_job_ms: match storage.pending {
                0 => 0,
                _ => u64::try_from(self.stuck.oldest().as_millis()).unwrap_or(u64::MAX),
            },
            ..self.shard.sink.counts
        };
        self.ports.add_counts(&mut counts);
        self.tell(Input::Counted(counts));
    }

    fn end_recording(&mut self) {
        if let Some(recording) = self.recording.take() {
            recording.end();
        }
    }
}
