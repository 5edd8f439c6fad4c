//! What the calling threads and the I/O thread share: the core under its lock, and the code that
//! carries out its outputs.

use super::caches::{Caches, Invalid, Invalidates};
use super::connection::Connection;
use super::reply_memory::ReplyMemory;
use super::waiter::{Budget, Waiter};
use super::wake;
use crate::arena::Arena;
use crate::core::{Answer, CallId, Core, CoreOptions, Errno, Input, Output};
use crate::options::ConnectError;
use crate::signals::SignalGuard;
use mio::Waker;
use std::collections::BTreeMap;
use std::mem;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// See the module.
pub(crate) struct Shared {
    /// Addresses of the forwarders, as the list or the forwarders give them.
    pub(crate) names: Vec<String>,
    pub(crate) budget: Budget,
    /// Memory for payload that forwarders may share.
    pub(crate) arena: Option<Arc<Arena>>,
    /// Memory for payload of sockets.
    pub(crate) reply_memory: Arc<ReplyMemory>,
    state: Mutex<State>,
    /// What clears the caches of those who make calls.
    caches: Caches,
    /// Signalled when a session is granted or all are refused.
    sessions: Condvar,
    pub(crate) waker: Arc<Waker>,
    /// When the client began, on the clock of [`boot_ns`].
    start_ns: u64,
    /// Set before the core ends.
    closed: AtomicBool,
    /// Set before that, where it ends because forwarders take this client no longer.
    barred: AtomicBool,
}

/// Everything that the lock guards.
pub(crate) struct State {
    pub(crate) core: Core,
    calls_next: u64,
    waiters: BTreeMap<CallId, Arc<Waiter>>,
    pub(crate) peers: Vec<Peer>,
    /// What the I/O thread shall do next.
    pub(crate) commands: Vec<Command>,
    /// The time until which the I/O thread sleeps, in ns. A caller wakes it if the core wants
    /// something earlier.
    pub(crate) sleeps_until_ns: u64,
    /// Whether the core has ended.
    pub(crate) ended: bool,
}

/// One forwarder and its connections now.
#[derive(Default)]
pub(crate) struct Peer {
    /// Present while requests may be sent.
    pub(crate) connection: Option<Arc<Connection>>,
    /// Further connections of the session, each with the number. When
    /// one connection of a session ends, all do.
    pub(crate) joined: Vec<(usize, Arc<Connection>)>,
    /// Number of the connection. The core must not receive anything of an older one.
    pub(crate) generation: u64,
    /// Why there is no connection, in words.
    pub(crate) trouble: String,
    /// The forwarder will not change its answer.
    pub(crate) refused: bool,
}

impl Peer {
    /// The connection with this number, modulo the number of connections.
    fn connection(&self, number: u64) -> Option<&Arc<Connection>> {
        let first = self.connection.as_ref()?;
        let further = number % (self.joined.len() as u64 + 1);
        match further.checked_sub(1) {
            None => Some(first),
            Some(at) => Some(&self.joined[at as usize].1),
        }
    }

    /// Takes out all connections; no request uses them any more.
    pub(crate) fn take_connections(&mut self) -> impl Iterator<Item = Arc<Connection>> {
        let joined = mem::take(&mut self.joined).into_iter().map(|(_, it)| it);
        self.connection.take().into_iter().chain(joined)
    }

    /// Whether all connections have written their frames.
    pub(crate) fn is_flushed(&self) -> bool {
        let joined = self.joined.iter().map(|(_, connection)| connection);
        let mut connections = self.connection.iter().chain(joined);
        connections.all(|connection| connection.is_flushed())
    }
}

/// What the I/O thread shall do.
#[derive(Debug)]
pub(crate) enum Command {
    /// Connect, under this generation.
    Connect { forwarder: usize, generation: u64 },
    /// Make further connections of the session of this generation, up to this number.
    Join {
        forwarder: usize,
        generation: u64,
        connections: u16,
    },
    /// Close the connection.
    Disconnect { forwarder: usize },
}

/// What a thread does after it has released the lock.
#[derive(Default)]
#[must_use = "outputs of the core must be carried out"]
pub(crate) struct Work {
    done: Vec<(Arc<Waiter>, Result<Answer, Errno>)>,
    flush: Vec<Arc<Connection>>,
    invalid: Vec<Invalid>,
    /// Those for which a call waits.
    waited_for: Vec<Invalid>,
    wake: bool,
}

/// A clock that goes on while the node is suspended, in ns: what forwarders have lent for a while
/// is void afterwards.
fn boot_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The wall clock, in ns since 1970.
pub(super) fn wall_ns() -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH);
    wall.unwrap_or(Duration::ZERO).as_nanos() as u64
}

impl Work {
    fn note_flush(&mut self, connection: &Arc<Connection>) {
        let mut queued = self.flush.iter();
        if !queued.any(|queued| Arc::ptr_eq(queued, connection)) {
            self.flush.push(Arc::clone(connection));
        }
    }

    fn note_invalid(&mut self, invalid: Invalid, is_waited_for: bool) {
        match is_waited_for {
            true => self.waited_for.push(invalid),
            false => self.invalid.push(invalid),
        }
    }
}

impl State {
    /// Gives a new call its number, and notes the waiter that gets its result, if there is one.
    pub(crate) fn number(&mut self, waiter: Option<&Arc<Waiter>>) -> CallId {
        let id = CallId(self.calls_next);
        self.calls_next += 1;
        if let Some(waiter) = waiter {
            self.waiters.insert(id, Arc::clone(waiter));
        }
        id
    }
}

impl Shared {
    /// Memory for payload that forwarders do share.
    pub(crate) fn accepted_arena(&self) -> Option<&Arc<Arena>> {
        self.arena.as_ref().filter(|arena| arena.is_accepted())
    }

    pub(crate) fn new(
        (core, names): (CoreOptions, Vec<String>),
        waker: Waker,
        in_flight_bytes_max: u64,
        (arena, reply_memory): (Option<Arc<Arena>>, ReplyMemory),
    ) -> Shared {
        let forwarders = core.forwarders;
        let state = State {
            core: Core::new(core),
            calls_next: 1,
            waiters: BTreeMap::new(),
            peers: (0..forwarders).map(|_| Peer::default()).collect(),
            commands: Vec::new(),
            sleeps_until_ns: 0,
            ended: false,
        };
        Shared {
            names,
            budget: Budget::new(in_flight_bytes_max),
            arena,
            reply_memory: Arc::new(reply_memory),
            state: Mutex::new(state),
            caches: Caches::default(),
            sessions: Condvar::new(),
            waker: Arc::new(waker),
            start_ns: boot_ns(),
            closed: AtomicBool::new(false),
            barred: AtomicBool::new(false),
        }
    }

    /// The time on the core's clock, in ns.
    pub(crate) fn now_ns(&self) -> u64 {
        boot_ns().saturating_sub(self.start_ns)
    }

    /// The time `at` on the core's clock, in ns.
    pub(crate) fn ns_at(&self, at: Instant) -> u64 {
        let ahead = at.saturating_duration_since(Instant::now());
        self.now_ns().saturating_add(ahead.as_nanos() as u64)
    }

    /// Locks the state for a call; EIO once the client has ended, even by a panic, EKEYEXPIRED once
    /// it was barred.
    pub(crate) fn live_state(&self) -> Result<MutexGuard<'_, State>, Errno> {
        let state = self.state.lock().map_err(|_| Errno::IO)?;
        match self.is_closed() {
            true => Err(self.why_ended().unwrap_or(Errno::IO)),
            false => Ok(state),
        }
    }

    /// The error of calls that come after the client's end, if that is not EIO.
    pub(crate) fn why_ended(&self) -> Option<Errno> {
        let barred = self.barred.load(Ordering::Acquire);
        barred.then_some(Errno::KEYEXPIRED)
    }

    /// Locks the state for the I/O thread. Panics if another thread has panicked: then the I/O
    /// thread ends, and all calls with it.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("another thread broke the client")
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Gives the core an input and collects its outputs.
    pub(crate) fn handle(&self, state: &mut State, input: Input) -> Work {
        let now_ns = self.now_ns();
        state.core.handle(now_ns, wall_ns(), input);
        self.poll(state, now_ns)
    }

    /// Collects the core's outputs.
    pub(crate) fn poll(&self, state: &mut State, now_ns: u64) -> Work {
        let mut work = Work::default();
        while let Some(output) = state.core.poll(now_ns) {
            self.take(state, output, &mut work);
        }
        let wake_at = state.core.wake_at().unwrap_or(u64::MAX);
        if wake_at < state.sleeps_until_ns {
            state.sleeps_until_ns = wake_at;
            work.wake = true;
        }
        work.wake |= !state.commands.is_empty();
        work
    }

    /// Does the work that the core decided on, without the lock.
    pub(crate) fn carry_out(&self, mut work: Work) {
        work.invalid.append(&mut work.waited_for);
        self.caches.clear_later(mem::take(&mut work.invalid));
        self.finish(work);
    }

    /// The same on a thread that makes a call, which clears caches itself of what the call waits
    /// for.
    pub(crate) fn carry_out_as_caller(&self, mut work: Work) {
        let waited_for = mem::take(&mut work.waited_for);
        self.carry_out(work);
        for invalid in waited_for {
            let number = invalid.number;
            match self.caches.clear(invalid) {
                None => self.cleared(number),
                Some(left) => self.caches.clear_later(Vec::from([left])),
            }
        }
    }

    /// Lets calls cache what `cache` is then cleared of.
    pub(super) fn caches_by(
        self: &Arc<Shared>,
        cache: Arc<dyn Invalidates>,
    ) -> std::io::Result<()> {
        let client = Arc::downgrade(self);
        self.caches.start(cache, move |number| {
            client.upgrade().iter().for_each(|it| it.cleared(number));
        })
    }

    /// Whether there is a cache.
    pub(super) fn has_cache(&self) -> bool {
        self.caches.is_started()
    }

    /// Tells the core that a cache is cleared.
    fn cleared(&self, number: u64) {
        let _guard = SignalGuard::begin();
        // After the end nobody waits for it.
        if let Ok(mut state) = self.live_state() {
            let work = self.handle(&mut state, Input::Invalidated { number });
            drop(state);
            self.carry_out(work);
        }
    }

    fn finish(&self, work: Work) {
        for (waiter, result) in work.done {
            waiter.finish(result);
        }
        let mut wake_up = work.wake;
        for connection in work.flush {
            connection.flush();
            wake_up |= connection.wants_look();
        }
        if wake_up {
            wake(&self.waker);
        }
    }

    /// Calls `look` until it has a result: whenever a session was granted or refused, and when the
    /// time is over that it returned.
    pub(crate) fn watch_sessions<T>(
        &self,
        mut look: impl FnMut(&State) -> ControlFlow<Result<T, ConnectError>, Duration>,
    ) -> Result<T, ConnectError> {
        let broken = || ConnectError::Unreachable("the client broke".to_string());
        let mut state = self.state.lock().map_err(|_| broken())?;
        loop {
            match look(&state) {
                ControlFlow::Break(result) => return result,
                ControlFlow::Continue(left) => {
                    let waited = self.sessions.wait_timeout(state, left);
                    state = waited.map_err(|_| broken())?.0;
                }
            }
        }
    }

    /// Records why there is no connection to a forwarder. `refused`: the forwarder will not change
    /// its answer.
    pub(crate) fn note_trouble(
        &self,
        state: &mut State,
        forwarder: usize,
        refused: bool,
        text: String,
    ) {
        let peer = &mut state.peers[forwarder];
        peer.trouble = text;
        peer.refused = refused;
        self.sessions.notify_all();
    }

    /// Ends the core, and the I/O thread with it.
    pub(crate) fn shutdown(&self) {
        self.end(Input::Shutdown);
    }

    /// Ends them because forwarders take this client no longer.
    pub(crate) fn bar(&self) {
        self.barred.store(true, Ordering::Release);
        self.end(Input::Barred);
    }

    fn end(&self, input: Input) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.budget.close();
        if let Ok(mut state) = self.state.lock() {
            let mut work = self.handle(&mut state, input);
            drop(state);
            // Before forwarders hear that nothing is lent any more.
            for invalid in mem::take(&mut work.invalid) {
                self.caches.clear(invalid);
            }
            self.carry_out(work);
        }
        self.sessions.notify_all();
        wake(&self.waker);
    }

    /// Ends all calls that still wait, whatever state a panic has left.
    pub(crate) fn abandon(&self) {
        self.closed.store(true, Ordering::Release);
        self.budget.close();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((_, waiter)) = state.waiters.pop_first() {
            waiter.finish(Err(Errno::IO));
        }
        for peer in &mut state.peers {
            peer.take_connections().for_each(|it| it.close());
        }
        self.sessions.notify_all();
    }

    fn take(&self, state: &mut State, output: Output, work: &mut Work) {
        match output {
            Output::Connect { forwarder } => {
                let peer = &mut state.peers[forwarder];
                peer.generation += 1;
                let generation = peer.generation;
                state.commands.push(Command::Connect {
                    forwarder,
                    generation,
                });
            }
            Output::Disconnect { forwarder } => {
                let peer = &mut state.peers[forwarder];
                peer.generation += 1;
                peer.take_connections().for_each(|it| it.close());
                state.commands.push(Command::Disconnect { forwarder });
            }
            Output::Join {
                forwarder,
                connections,
            } => state.commands.push(Command::Join {
                forwarder,
                generation: state.peers[forwarder].generation,
                connections,
            }),
            Output::Send {
                forwarder,
                connection,
                request,
                payload,
            } => {
                let Some(connection) = state.peers[forwarder].connection(connection) else {
                    return;
                };
                connection.enqueue_request(&request, payload);
                work.note_flush(connection);
            }
            Output::Done { id, result } => {
                let served = state.core.take_served(id);
                if let Some(waiter) = state.waiters.remove(&id) {
                    if !served.is_empty() {
                        waiter.note(served);
                    }
                    work.done.push((waiter, result));
                }
            }
            Output::Invalidate {
                number,
                files,
                is_waited_for,
            } => work.note_invalid(Invalid { number, files }, is_waited_for),
            Output::Opened { forwarder } => {
                tracing::debug!(forwarder, "session granted");
                self.note_trouble(state, forwarder, false, String::new());
            }
            Output::Refused { forwarder, why, .. } => {
                if state.peers[forwarder].trouble != why {
                    // Logs each reason once, however often the client tries.
                    let address = &self.names[forwarder];
                    tracing::warn!(forwarder, %address, %why, "session refused");
                }
                self.note_trouble(state, forwarder, true, why);
            }
            Output::Log { text } => tracing::info!("{text}"),
            Output::Ended => state.ended = true,
        }
    }
}
