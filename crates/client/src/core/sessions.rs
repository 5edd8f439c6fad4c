//! Sessions with forwarders. The client opens one when a request needs it, keeps within its
//! credits, and renews its lease.

use super::host_cache::After;
use super::requests::{Id, Ids, Pending, Place, Purpose, Target};
use super::seats::Seat;
use super::types::{Output, Whose};
use super::unstable::Identity;
use super::{BACKOFF_MAX, Core, MS, SILENCE_MAX, Wake, set_of};
use crate::core::Errno;
use crate::wire::frame::VERSION;
use crate::wire::{Hello, HelloReply, Layout, Op, Outcome, Pipelining, Reply, Request, Status};
use std::collections::BTreeSet;

/// The shortest lease that counts, ns, which is the shortest that forwarders can be configured to
/// grant: whatever one says, its client does not keep itself busy with renewing leases.
const LEASE_MIN: u64 = 100 * MS;

/// Number of outstanding requests of a session from which on further connections are of use.
const BUSY: usize = 2;

/// How far the session has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Down,
    Connecting,
    /// The hello waits.
    Connected,
    /// The hello is on its way.
    Greeting {
        hello: Id,
        at: u64,
        wall: u64,
    },
    Open,
}

/// The client's side of a session with one forwarder.
#[derive(Default)]
pub(super) struct Session {
    stage: Stage,
    incarnation: u64,
    credits: usize,
    pipelining: Pipelining,
    lease_third: u64,
    /// How long what the forwarder lends stays true, ns.
    loan_ns: u64,
    pub(super) last_sent: u64,
    /// Requests that wait to be sent, in the order of their ids.
    pub(super) queue: Ids,
    /// Requests without a reply on this connection.
    pub(super) sent: Ids,
    /// Those of the sent requests that wait for a lock.
    pub(super) waits: Ids,
    /// Applications whose name the forwarder has received on this connection.
    pub(super) introduced: BTreeSet<Whose>,
    /// Requests that carry an application's name and have no reply yet.
    pub(super) introducing: BTreeSet<Id>,
    /// Number of connections that the forwarder can use, from its reply to the hello.
    connections: u16,
    /// Whether the core has asked the host to open them.
    joins: bool,
    /// Host and boot id from the last hello.
    pub(super) identity: Option<Identity>,
}

impl Session {
    pub(super) fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Number of the connection.
    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// How long what the forwarder lends stays true, ns; 0: it lends nothing.
    pub(super) fn loan_ns(&self) -> u64 {
        self.loan_ns
    }

    /// Whether a request may be sent now.
    pub(super) fn has_credit(&self) -> bool {
        self.is_open() && self.sent.len() < self.credits
    }

    /// How transfers use the session; `wanted` if the session is not open.
    pub(super) fn pipelining(&self, wanted: Pipelining) -> Pipelining {
        match self.is_open() {
            true => self.pipelining,
            false => wanted,
        }
    }

    /// How many requests may wait for locks. Some credits remain for others, because those who wait
    /// need the others to release the locks.
    pub(super) fn waits_max(&self) -> usize {
        self.credits / 2
    }

    /// When the client must renew the lease, in ns.
    fn ping_at(&self) -> Option<u64> {
        self.is_open().then(|| self.last_sent + self.lease_third)
    }
}

impl Core {
    /// Opens a connection to the forwarder, if there is none.
    pub(super) fn connect(&mut self, forwarder: usize) {
        let session = &mut self.sessions[forwarder];
        if session.stage == Stage::Down && self.ending.is_none() {
            session.stage = Stage::Connecting;
            self.outputs.push_back(Output::Connect { forwarder });
        }
    }

    pub(super) fn disconnect(&mut self, forwarder: usize) {
        self.loans.clear();
        self.invalidate_all(After::Nothing);
        self.ahead.clear();
        let session = &mut self.sessions[forwarder];
        if session.stage != Stage::Down {
            session.stage = Stage::Down;
            self.outputs.push_back(Output::Disconnect { forwarder });
        }
    }

    /// The connection of the session on which to send a request. Data requests may overtake each
    /// other, since requests that are under way at once have no order. Each stripe has its
    /// connection, so that consecutive requests of a file arrive in order as far as possible.
    pub(super) fn connection_for(&mut self, forwarder: usize, op: &Op) -> u64 {
        let Some((handle, extents)) = op.data() else {
            return 0;
        };
        let session = &mut self.sessions[forwarder];
        if !session.joins {
            let connections = session.connections;
            if connections == 1 || session.sent.len() < BUSY {
                return 0;
            }
            session.joins = true;
            self.outputs.push_back(Output::Join {
                forwarder,
                connections,
            });
        }
        match (&self.layout, session.introducing.is_empty()) {
            (Some(layout), true) => {
                let round = layout.stripe.saturating_mul(u64::from(layout.seats));
                handle.inode.wrapping_add(extents.first.offset / round)
            }
            _ => 0,
        }
    }

    /// Sends a hello on a new connection, as soon as nobody has anything of what was lent. The
    /// forwarder counts on that, and it may be the successor of the one that has lent it.
    pub(super) fn connected(&mut self, forwarder: usize) {
        if self.sessions[forwarder].stage != Stage::Connecting || self.ending.is_some() {
            return;
        }
        self.loans.clear();
        self.ahead.clear();
        self.invalidate_all(After::Greet);
        self.sessions[forwarder].stage = Stage::Connected;
        if !self.host_cache.holds_greetings() {
            self.greet_if_due(forwarder);
        }
    }

    /// Whether a hello waits, or its answer is awaited. Meanwhile nothing new is lent.
    pub(super) fn greets(&self) -> bool {
        let mut sessions = self.sessions.iter();
        sessions.any(|it| matches!(it.stage, Stage::Connected | Stage::Greeting { .. }))
    }

    /// Sends the hello if it waits.
    pub(super) fn greet_if_due(&mut self, forwarder: usize) {
        if self.sessions[forwarder].stage != Stage::Connected || self.ending.is_some() {
            return;
        }
        let id = self.next_id();
        let session = &mut self.sessions[forwarder];
        session.incarnation += 1;
        session.introduced.clear();
        session.introducing.clear();
        session.joins = false;
        session.stage = Stage::Greeting {
            hello: id,
            at: self.now,
            wall: self.wall,
        };
        let request = self.hello(forwarder, id, false);
        self.outputs.push_back(Output::Send {
            forwarder,
            connection: 0,
            request,
            payload: Vec::new(),
        });
    }

    /// The first request on a further connection of a session. Its id is the host's, who handles
    /// the reply instead of the core. None if there is no session now.
    pub fn join(&self, forwarder: usize, id: u64) -> Option<Request> {
        let open = self.sessions[forwarder].is_open() && self.ending.is_none();
        open.then(|| self.hello(forwarder, id, true))
    }

    fn hello(&self, forwarder: usize, id: Id, joins: bool) -> Request {
        let op = Op::Hello(Hello {
            version: VERSION,
            client: self.options.client,
            incarnation: self.sessions[forwarder].incarnation,
            joins,
            asks: self.options.asks,
            borrows: self.options.borrows,
            wall_ns: self.wall,
            payload_max: self.options.payload_max,
            pipeline: self.options.pipeline,
            uid: self.options.uid,
            gid: self.options.gid,
            name: self.options.name.clone(),
        });
        Request {
            id,
            seat: 0,
            reply_slot: None,
            generation: 0,
            epoch: self.epoch,
            replay: false,
            caller: None,
            hints: None,
            op,
            payload_len: 0,
        }
    }

    /// Handles the reply to the hello; false if the reply is another one.
    pub(super) fn is_greeting(&mut self, forwarder: usize, reply: &Reply) -> bool {
        let Stage::Greeting { hello, at, wall } = self.sessions[forwarder].stage else {
            return false;
        };
        if reply.id != hello {
            return true;
        }
        match &reply.result {
            Ok(Outcome::Hello(granted)) => {
                let middle = wall + (self.now - at) / 2;
                match self.options.asks {
                    true => self.member_known(forwarder, granted, (at, wall)),
                    false => self.greeted(forwarder, granted, middle),
                }
            }
            Err(Status::Errno(errno)) => {
                let errno = Errno(i32::from(*errno));
                self.refused(forwarder, errno, errno.to_string());
            }
            _ => self.refused(forwarder, Errno::PROTO, Errno::PROTO.to_string()),
        }
        true
    }

    fn refused(&mut self, forwarder: usize, errno: Errno, why: String) {
        self.outputs.push_back(Output::Refused {
            forwarder,
            errno,
            why,
        });
        self.disconnect(forwarder);
        if self.options.asks {
            return self.member_lost(forwarder, Some(errno));
        }
        self.lost(forwarder);
    }

    /// Why this forwarder does not belong at its place in the list; None if it does.
    fn misplaced(&self, forwarder: usize, granted: &HelloReply) -> Option<String> {
        let layout = Layout {
            seats: granted.seats,
            stripe: granted.stripe,
        };
        if granted.version != VERSION {
            return Some(format!(
                "it speaks version {} of the protocol, this client version {VERSION}; use the \
                 same release on both",
                granted.version
            ));
        }
        if self.export.is_some_and(|export| export != granted.export) {
            return Some(format!(
                "it serves another export ({}) than the other forwarders of the list; take it out",
                granted.export
            ));
        }
        if let Some(known) = self.layout.filter(|known| *known != layout) {
            return Some(format!(
                "its layout has {} seats and stripes of {} bytes, that of the other forwarders \
                 {} and {}; give all the same `seats` and `stripe`, then mount again",
                layout.seats, layout.stripe, known.seats, known.stripe
            ));
        }
        if usize::from(granted.forwarder) != forwarder {
            return Some(format!(
                "it is forwarder {}, and the place in the list is that of forwarder {forwarder}; \
                 correct `forwarder` in its configuration, or the list",
                granted.forwarder
            ));
        }
        None
    }

    fn greeted(&mut self, forwarder: usize, granted: &HelloReply, middle: u64) {
        let layout = Layout {
            seats: granted.seats,
            stripe: granted.stripe,
        };
        if let Some(why) = self.misplaced(forwarder, granted) {
            return self.refused(forwarder, Errno::PROTO, why);
        }
        self.export = Some(granted.export);
        self.epoch_of_hello(forwarder, granted, middle);
        // Before the core sends anything, because that also sends the queued fsyncs.
        self.recheck_fsyncs(forwarder);
        if self.layout.is_none() {
            self.learn_layout(layout, granted);
        }
        self.seats_held(forwarder, granted);
        if granted.pipeline.mode < self.options.pipeline.mode {
            self.requeue(forwarder);
        }
        self.flush(forwarder);
    }

    /// Records what the reply to a hello grants.
    fn epoch_of_hello(&mut self, forwarder: usize, granted: &HelloReply, middle: u64) {
        let session = &mut self.sessions[forwarder];
        session.stage = Stage::Open;
        self.greeted_last = self.request_ids;
        session.credits = granted.credits as usize;
        session.connections = granted.connections.min(self.options.connections);
        session.pipelining = granted.pipeline.mode;
        session.lease_third = (u64::from(granted.lease_ms) * MS).max(LEASE_MIN) / 3;
        session.loan_ns = u64::from(granted.loan_ms) * MS;
        session.last_sent = self.now;
        session.identity = Some((granted.host, granted.boot));
        let ping_at = self.now + session.lease_third;
        self.wakes.insert((ping_at, Wake::Session(forwarder)));
        self.boots.insert(granted.host, granted.boot);
        self.clocks.measured(forwarder, middle, granted.wall_ns);
        self.payload_max = self.payload_max.min(granted.payload_max);
        self.chunk_bytes = self.chunk_bytes.min(granted.pipeline.chunk_bytes);
        self.reply_slots = self.reply_slots.min(granted.reply_slots);
        self.outputs.push_back(Output::Opened { forwarder });
    }

    fn learn_layout(&mut self, layout: Layout, granted: &HelloReply) {
        let owner = |seat: u16| usize::from(seat) % self.sessions.len();
        self.seats = (0..layout.seats)
            .map(|seat| Seat::new(owner(seat)))
            .collect();
        self.layout = Some(layout);
        self.discovering.1 = None;
        self.root = Some(granted.root);
        for (id, call) in std::mem::take(&mut self.unrouted) {
            self.begin(id, call);
        }
    }

    /// Takes in which seats a forwarder says it holds. Starts the recovery of those that have
    /// changed hands, or whose opens and locks the forwarder does not know.
    fn seats_held(&mut self, forwarder: usize, granted: &HelloReply) {
        for (number, generation) in &granted.held {
            let seat = &mut self.seats[usize::from(*number)];
            if seat.generation == 0 || *generation < seat.generation {
                // The seat was never used, or the forwarder has not noticed that it lost it.
                continue;
            }
            let changed = seat.generation != *generation;
            if changed || (granted.fresh && self.has_state(*number)) {
                self.recover(*number, forwarder, *generation);
            }
        }
    }

    /// Routes the queued requests of a forwarder again if it has granted less than the client
    /// wanted when it queued them.
    fn requeue(&mut self, forwarder: usize) {
        let queue: Vec<Id> = self.sessions[forwarder].queue.iter().collect();
        self.sessions[forwarder].queue.clear();
        for id in queue {
            self.put(id, Place::Nowhere);
            self.route(id);
        }
    }

    /// Sends the waiting requests as far as the session has credits.
    pub(super) fn flush(&mut self, forwarder: usize) {
        while self.sessions[forwarder].has_credit() {
            let Some(id) = self.sessions[forwarder].queue.pop_first() else {
                return;
            };
            self.transmit(forwarder, id);
        }
    }

    /// Renews the lease of a session that was idle since the last look.
    pub(super) fn ping(&mut self, forwarder: usize) {
        let session = &mut self.sessions[forwarder];
        let Some(at) = session.ping_at() else {
            return;
        };
        if at > self.now {
            self.wakes.insert((at, Wake::Session(forwarder)));
            return;
        }
        session.last_sent = self.now;
        let next = self.now + session.lease_third.max(1);
        self.wakes.insert((next, Wake::Session(forwarder)));
        let is_ping = |id: &Id| self.requests.get(id).is_some_and(|it| it.op == Op::Ping);
        let pings = session
            .sent
            .iter()
            .chain(session.queue.iter())
            .any(|id| is_ping(&id));
        // Without a credit there are requests under way, which renew the lease too. A forwarder
        // that does not answer is not pinged again.
        if self.ending.is_none() && session.has_credit() && !pings {
            let target = Target::Forwarder(forwarder);
            self.submit(Pending::new(Op::Ping, 0, target, Purpose::Session));
        }
    }

    /// Sends a goodbye, if the session has a credit for it.
    pub(super) fn say_goodbye(&mut self, forwarder: usize) {
        let session = &mut self.sessions[forwarder];
        session.queue.clear();
        if session.has_credit() {
            let target = Target::Forwarder(forwarder);
            let id = self.insert(Pending::new(Op::Bye, 0, target, Purpose::Session));
            self.transmit(forwarder, id);
        } else {
            self.disconnect(forwarder);
        }
    }

    /// Handles a connection that has ended or could not be made.
    pub(super) fn connection_lost(&mut self, forwarder: usize) {
        self.sessions[forwarder].stage = Stage::Down;
        self.loans.clear();
        self.invalidate_all(After::Nothing);
        self.ahead.clear();
        match self.options.asks && self.ending.is_none() {
            true => self.member_lost(forwarder, None),
            false => self.lost(forwarder),
        }
        self.end_if_quiet();
    }

    /// Routes everything again that the forwarder was to answer.
    fn lost(&mut self, forwarder: usize) {
        let session = &mut self.sessions[forwarder];
        let unanswered = session.sent.iter().chain(session.queue.iter());
        let mut again = set_of(unanswered);
        session.sent.clear();
        session.queue.clear();
        session.waits.clear();
        for id in &again {
            self.put(*id, Place::Nowhere);
        }
        if self.ending.is_some() {
            again.iter().for_each(|id| drop(self.remove(*id)));
            return;
        }
        if self.layout.is_none() {
            return self.discover_next(forwarder);
        }
        let mut left = Vec::new();
        for seat in 0..self.seats.len() as u16 {
            if self.serves(seat, forwarder) {
                again.extend(self.quit(seat));
                left.push(seat);
            }
        }
        for id in again {
            let target = self.requests.get(&id).map(|pending| pending.target);
            match target {
                Some(Target::Seat) => self.route(id),
                Some(Target::Forwarder(_)) => self.forwarder_lost(forwarder, id),
                None => {}
            }
        }
        for seat in left {
            self.probe_if_needed(seat);
        }
    }

    /// Tries to get the first session from the next forwarder.
    fn discover_next(&mut self, failed: usize) {
        let count = self.sessions.len();
        let first = (self.options.client % count as u64) as usize;
        let next = (failed + 1) % count;
        if next == first {
            self.discovering = (next, Some(self.now + self.discover_backoff));
            self.discover_backoff = (self.discover_backoff * 2).min(BACKOFF_MAX);
        } else {
            self.discovering = (next, Some(self.now + SILENCE_MAX));
            self.connect(next);
        }
    }

    /// Goes on with the search for the first session: the pause is over, or a forwarder does not
    /// answer and the client tries another beside it.
    pub(super) fn discover(&mut self) {
        let (tried, _) = self.discovering;
        let silent = self.sessions[tried].stage != Stage::Down;
        let next = (tried + usize::from(silent)) % self.sessions.len();
        self.discovering = (next, Some(self.now + SILENCE_MAX));
        self.connect(next);
    }
}
