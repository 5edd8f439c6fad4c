//! The client's decisions, without I/O: which request goes to which forwarder, and what its reply
//! means.
//!
//! The host, which owns sockets and threads, reports each event with [`Core::handle`]. Then it
//! calls [`Core::poll`] until that returns None, and does what each [`Output`] asks for.
//! [`Core::wake_at`] gives the time at which the host must poll again if nothing happens before.
//! The core has no clock, thread, socket or random source: the same inputs give the same outputs.
//! `docs/protocol.md` has the rules.
//!
//! The core turns a call into one or more requests (`calls`, `split`, `fsync`). A request that
//! changes something waits for a reply slot; every request waits for its seat (`requests`,
//! `seats`), then for a credit of the session with the forwarder that serves the seat (`sessions`).
//! A reply ends the request, or makes the core send it again (`replies`). If the
//! forwarder does not hold the seat, the core asks the others in the order of their numbers. If it
//! holds the seat, but took it since the client's last request, the core first reclaims its open
//! files and locks there (`recovery`). If it does not know the file's handle, the core first sends
//! the file's path (`resolve`). The core also sends requests again whose connection broke. What
//! forwarders have lent it, it answers itself (`loans`). What the host caches of that, the core
//! asks it to clear (`host_cache`). It asks for several names at once where programs look them up
//! one after the other (`look_ahead`).

mod calls;
mod errno;
mod fsync;
mod gates;
mod hints;
mod host_cache;
mod loans;
mod locks;
mod look_ahead;
mod membership;
mod names;
mod recovery;
mod replies;
mod requests;
mod resolve;
mod seats;
mod sessions;
mod split;
#[cfg(test)]
mod tests;
mod types;
mod unstable;

pub use errno::Errno;
pub use membership::{ClockSeen, Member, Told};
pub use types::{
    Answer, Application, Call, CallId, CoreOptions, Data, Input, Operation, Output, Served,
};

use crate::wire::{Attr, Caller, ExportId, Handle, Layout};
use calls::Active;
use fsync::Untold;
use gates::Gate;
use hints::{Applications, Charges, Clocks};
use host_cache::{After, HostCache};
use loans::Loans;
use locks::{LockKey, Locks};
use look_ahead::LookAhead;
use membership::Membership;
use names::Names;
use requests::{Id, Pending};
use resolve::Resolving;
use seats::Seat;
use sessions::Session;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use unstable::Unstable;

/// One millisecond.
const MS: u64 = 1_000_000;
/// First pause after a full round of forwarders, ns.
const BACKOFF_MIN: u64 = 20 * MS;
/// Longest pause after a full round, ns.
const BACKOFF_MAX: u64 = 500 * MS;
/// Time without an answer from a forwarder after which the core asks the next one too for the first
/// session, ns.
const SILENCE_MAX: u64 = 250 * MS;
/// Longest time that a goodbye may take, ns.
const BYE_MAX: u64 = 1000 * MS;

/// A set of these items, one after the other. `collect` sorts them first, which is code of several
/// kB for each type, in every program that loads the client.
fn set_of<T: Ord>(items: impl Iterator<Item = T>) -> BTreeSet<T> {
    let mut set = BTreeSet::new();
    set.extend(items);
    set
}

/// One client of a set of forwarders.
pub struct Core {
    options: CoreOptions,
    now: u64,
    wall: u64,
    outputs: VecDeque<Output>,

    layout: Option<Layout>,
    root: Option<Attr>,
    payload_max: u32,
    /// Largest number of payload bytes of a request, where a call has more.
    chunk_bytes: u32,
    reply_slots: u16,
    /// The highest number of a time window that a reply has named.
    epoch: u64,
    /// The export, once the core knows it.
    export: Option<ExportId>,
    /// What a core knows that only asks forwarders for their state, as `tidegate stat` does.
    membership: Membership,
    /// The forwarder that the core tries for the first session, and the time of the next try, of it
    /// or of its successor.
    discovering: (usize, Option<u64>),
    discover_backoff: u64,

    sessions: Vec<Session>,
    seats: Vec<Seat>,
    /// What may be due, and when. When its time comes, the core finds out whether it was put off
    /// meanwhile.
    wakes: BTreeSet<(u64, Wake)>,
    /// Latest boot of each node.
    boots: BTreeMap<u64, u64>,

    /// Boxed, because the tree moves what it holds.
    requests: BTreeMap<Id, Box<Pending>>,
    request_ids: Id,
    resolving: BTreeMap<(usize, Handle), Resolving>,

    calls: BTreeMap<CallId, Active>,
    /// Calls that wait for the layout.
    unrouted: BTreeMap<CallId, Call>,
    operations: u64,
    /// Whether calls record when each forwarder answered them, and the records of those that ended.
    notes_served: bool,
    served: BTreeMap<CallId, Vec<Served>>,

    opens: BTreeMap<(Handle, u64), Opened>,
    locks: Locks,
    gates: BTreeMap<LockKey, Gate>,
    names: Names,
    loans: Loans,
    host_cache: HostCache,
    /// The latest request before the latest answer to a hello. What was asked for by then is lent
    /// no more.
    greeted_last: Id,
    ahead: LookAhead,
    unstable: Unstable,
    untold: Untold,
    clocks: Clocks,
    charges: Charges,
    applications: Applications,

    ending: Option<Ending>,
}

/// How a file was opened.
#[derive(Clone, Debug)]
struct Opened {
    read: bool,
    write: bool,
    /// The user who opened it, if the client acts for users.
    opener: Option<Caller>,
}

/// What may be due; of what is due at one time, the first kind comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wake {
    /// A call's deadline.
    Call(CallId),
    /// A request that is to be sent again at this time.
    Request(Id),
    /// The end of a seat's pause.
    Seat(u16),
    /// The time to renew the lease of an idle session.
    Session(usize),
    /// The end of something that the host caches.
    HostCache,
}

/// After [`Input::Shutdown`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The core has sent goodbyes and waits for their replies, until this time at the latest.
    Until(u64),
    Ended,
}

impl Core {
    /// A core that connects to one forwarder after the other until one grants a session, and to the
    /// others once a request needs them.
    pub fn new(options: CoreOptions) -> Core {
        assert!(options.forwarders > 0, "a client needs a forwarder");
        assert!(options.client != 0, "a client's id is not 0");
        let count = options.forwarders;
        let first = (options.client % count as u64) as usize;
        let mut core = Core {
            now: 0,
            wall: 0,
            outputs: VecDeque::new(),
            layout: None,
            root: None,
            payload_max: options.payload_max,
            chunk_bytes: options.pipeline.chunk_bytes.min(options.payload_max),
            reply_slots: u16::MAX,
            epoch: 0,
            export: options.export,
            membership: Membership::default(),
            discovering: (first, Some(SILENCE_MAX)),
            discover_backoff: BACKOFF_MIN,
            sessions: (0..count).map(|_| Session::default()).collect(),
            seats: Vec::new(),
            wakes: BTreeSet::new(),
            boots: BTreeMap::new(),
            requests: BTreeMap::new(),
            request_ids: 0,
            resolving: BTreeMap::new(),
            calls: BTreeMap::new(),
            unrouted: BTreeMap::new(),
            operations: 0,
            notes_served: false,
            served: BTreeMap::new(),
            opens: BTreeMap::new(),
            locks: Locks::default(),
            gates: BTreeMap::new(),
            names: Names::new(options.names_max),
            loans: Loans::default(),
            host_cache: HostCache::default(),
            greeted_last: 0,
            ahead: LookAhead::default(),
            unstable: Unstable::default(),
            untold: Untold::default(),
            clocks: Clocks::new(count),
            charges: Charges::new(count),
            applications: Applications::default(),
            ending: None,
            options,
        };
        match core.options.asks {
            false => core.connect(first),
            true => {
                core.membership = Membership::new(count);
                core.ask_members();
            }
        }
        core
    }

    /// Takes in an event. `now_ns` is a monotonic clock; `wall_ns` is the clock that stamps files,
    /// in ns since 1970. Call [`Core::poll`] until it returns None afterwards.
    pub fn handle(&mut self, now_ns: u64, wall_ns: u64, input: Input) {
        debug_assert!(now_ns >= self.now, "time went back");
        self.now = self.now.max(now_ns);
        self.wall = wall_ns;
        if self.ending == Some(Ending::Ended) {
            if let Input::Call { id, .. } = input {
                self.done(id, Err(Errno::IO));
            }
            return;
        }
        match input {
            Input::Call { id, call } => self.call(id, call),
            Input::Cancel { id } => self.give_up(id, Errno::INTR),
            Input::Connected { forwarder } => self.connected(forwarder),
            Input::ConnectionLost { forwarder } => self.connection_lost(forwarder),
            Input::Received {
                forwarder,
                reply,
                payload,
            } => self.received(forwarder, reply, payload),
            Input::Application { app, application } => self.application(app, application),
            Input::Told { handle, path } => self.told_path(handle, &path),
            Input::Forget { handle } => self.names.forget(handle),
            Input::Invalidated { number } => self.invalidated(number),
            Input::Shutdown => self.shutdown(Errno::IO),
            Input::Barred => self.shutdown(Errno::KEYEXPIRED),
        }
    }

    /// The next thing for the host to do; None: nothing for now.
    pub fn poll(&mut self, now_ns: u64) -> Option<Output> {
        self.now = self.now.max(now_ns);
        self.expire();
        self.outputs.pop_front()
    }

    /// When to call [`Core::poll`] again if nothing happens before, on the clock of `now_ns`. The
    /// time may be too early; `poll` then returns None.
    pub fn wake_at(&self) -> Option<u64> {
        if self.ending == Some(Ending::Ended) {
            return None;
        }
        let ending = match self.ending {
            Some(Ending::Until(at)) => Some(at),
            _ => None,
        };
        let times = [
            self.wakes.first().map(|(at, _)| *at),
            self.discovering.1,
            ending,
        ];
        times.into_iter().flatten().min()
    }

    /// The root directory, once a forwarder has granted a session.
    pub fn root(&self) -> Option<Attr> {
        self.root
    }

    /// How far the forwarders' wall clocks are ahead of this node's, in ns.
    pub fn clock_ahead_ns(&self) -> i64 {
        self.clocks.ahead()
    }

    /// The layout, once a forwarder has granted a session.
    pub fn layout(&self) -> Option<Layout> {
        self.layout
    }

    /// Largest payload of one frame in bytes: the smallest that the client has agreed on with a
    /// forwarder.
    pub fn payload_max(&self) -> u32 {
        self.payload_max
    }

    /// From now on the core records, for each call and forwarder, when that forwarder's last reply
    /// for the call came.
    /// The host must take the record with [`Core::take_served`] when the call ends.
    pub fn note_served(&mut self) {
        self.notes_served = true;
    }

    /// Takes the record of a call that has ended; empty if the call failed.
    pub fn take_served(&mut self, id: CallId) -> Vec<Served> {
        self.served.remove(&id).unwrap_or_default()
    }

    /// Handles everything whose time has come.
    fn expire(&mut self) {
        match self.ending {
            Some(Ending::Ended) => return,
            Some(Ending::Until(at)) if at <= self.now => return self.end(),
            _ => {}
        }
        while let Some((at, wake)) = self.wakes.first().copied()
            && at <= self.now
        {
            self.wakes.remove(&(at, wake));
            match wake {
                Wake::Call(call) => self.give_up(call, Errno::TIMEDOUT),
                Wake::Request(id) => self.resume(id),
                Wake::Seat(seat) => self.end_pause(seat),
                Wake::Session(forwarder) => self.ping(forwarder),
                Wake::HostCache => self.end_cached(),
            }
        }
        if self.discovering.1.is_some_and(|at| at <= self.now) {
            match self.options.asks {
                true => self.ask_members_again(),
                false => self.discover(),
            }
        }
    }

    fn log(&mut self, text: String) {
        self.outputs.push_back(Output::Log { text });
    }

    /// Ends all calls with `errno`; with EIO those of which nobody knows whether they took effect.
    fn shutdown(&mut self, errno: Errno) {
        if self.ending.is_some() {
            return;
        }
        let requests = self.requests.values();
        let doubted = set_of(requests.filter_map(|it| it.doubted()));
        let calls: Vec<CallId> = self.calls.keys().copied().collect();
        for id in calls
            .into_iter()
            .chain(std::mem::take(&mut self.unrouted).into_keys())
        {
            let errno = if doubted.contains(&id) {
                Errno::IO
            } else {
                errno
            };
            self.done(id, Err(errno));
        }
        self.calls.clear();
        self.loans = Loans::default();
        self.invalidate_all(After::Nothing);
        self.ahead = LookAhead::default();
        self.requests.clear();
        self.wakes.clear();
        self.discovering.1 = None;
        self.seats
            .iter_mut()
            .for_each(|seat| seat.paused_until = None);
        self.ending = Some(Ending::Until(self.now + BYE_MAX));
        for forwarder in 0..self.sessions.len() {
            self.say_goodbye(forwarder);
        }
        self.end_if_quiet();
    }

    /// Ends the core once every goodbye has its reply.
    fn end_if_quiet(&mut self) {
        if matches!(self.ending, Some(Ending::Until(_))) && self.requests.is_empty() {
            self.end();
        }
    }

    fn end(&mut self) {
        self.ending = Some(Ending::Ended);
        for forwarder in 0..self.sessions.len() {
            self.disconnect(forwarder);
        }
        self.outputs.push_back(Output::Ended);
    }
}
