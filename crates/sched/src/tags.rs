//! Who is next by shares: weights, reservations and limits of applications and of groups.
//!
//! A block that several policies share, made of two known algorithms.
//!
//! *Weights*: start-time fair queueing with several requests outstanding, SFQ(D) (Jin et al. 2004),
//! in its distributed form DSFQ (Wang and Merchant, FAST'07). The start tag of a request is
//! S = max(v, F + delay / weight), its finish tag F = S + cost / weight. v is the start tag of the
//! request that ran last; the delay accounts for service by other forwarders. In DSFQ the delay of
//! a request is all service that other forwarders gave since the application's last request here.
//! That makes processes that move between forwarders gather at one of them. Here the delay of a
//! request is its cost times the recent ratio of service elsewhere to service here. An application
//! that returns from other forwarders may start behind v, by at most the service it got there. One
//! that always has requests waiting keeps its tag, also when a reservation let another run first.
//!
//! *Reservations and limits*: the tags of mClock (Gulati et al., OSDI'10). One is the time at which
//! the next request is due by its reservation, the other the earliest time that its limit allows.
//! Service by other forwarders moves both.
//!
//! Applications of a group divide what the group gets; an application without a group competes
//! with groups. Requests of one application keep their order of arrival in these tags, so the
//! application needs one tag of each kind, for its first request.

mod change;
mod node;
mod service_reports;

use crate::flat_btree::FlatBTree;
use crate::share::{Service, Shares};
use crate::types::{AppId, Time};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
pub(crate) use node::Next;
use node::{HALF_NS, Level, Node, NodeState, Recent, Reservation, TOLD_NS_MAX, level_of, scaled};

/// Virtual time: nanoseconds of device time at weight 1, times this. Weights above it are alike.
const SCALE: u128 = 1 << 16;

/// Applications without requests whose tags are kept.
const IDLE_MAX: usize = 1024;

/// The longest wait for a limit that is told at once; then it is looked at again.
pub(crate) const THROTTLE_NS_MAX: u64 = 1_000_000_000;

/// How far ahead of its reservation one can be, besides by a request: what is on its way at others.
const AHEAD_NS: u64 = 100_000_000;

/// A limit may be passed by what it gives in this time, so that pauses are made up for.
const BURST_NS: u64 = 20_000_000;

/// When reservations had so much device time in a row, one request goes by weight: reservations
/// that are more than there is must not starve who has none.
const RESERVED_NS_MAX: u64 = 1_000_000_000;

/// So many requests have to tell what others gave before nothing is guessed.
const ENOUGH: u64 = 4;

/// What a request tells of the time since its client's last one here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ServiceDelta {
    /// What others gave the application.
    pub(crate) elsewhere: Service,
    /// Device time that it was given here.
    pub(crate) here_ns: u64,
    /// How long that time was, milliseconds.
    pub(crate) away_ms: u16,
}

/// All applications that wait or did lately.
pub(crate) struct Tags {
    shares: Shares,
    /// How long a reservation that was not asked for can be asked for later.
    credit_ns: u64,
    nodes: Vec<Node>,
    nodes_free: Vec<u32>,
    by_app: FlatBTree<u64, u32>,
    /// By number of a group: its node.
    groups: Vec<u32>,
    /// Of the system; then one for each group.
    levels: Vec<Level>,
    /// By time: who has its reservation until then.
    met_until: FlatBTree<(u64, u32), ()>,
    /// Who is owed, by deadline.
    due: FlatBTree<(u64, u32), ()>,
    throttled: FlatBTree<(u64, u32), ()>,
    /// Who is idle, in the order in which it became so; some are not any more.
    idle: VecDeque<(u32, u64)>,
    idle_count: usize,
    idle_marks: u64,
    /// Whether who is owed comes by the deadline of its request, not by when it was owed.
    by_deadline: bool,
    /// When delays were looked at again.
    looked_at: Time,
    /// Whether the last one that was next was owed its reservation.
    by_reservation: bool,
    /// Device time given to reservations since a request went by weight.
    reserved_ns: u64,
    /// The level that chooses when reservations had theirs for long.
    turn: usize,
}

impl Tags {
    /// Nobody waits. `credit_ns`: how much of its reservation one can be owed at once, in time.
    /// `by_deadline`: of those who are owed the earliest deadline goes first, else who was owed
    /// first.
    pub(crate) fn new(shares: &Shares, credit_ns: u64, by_deadline: bool) -> Tags {
        let mut tags = Tags {
            shares: shares.clone(),
            credit_ns,
            nodes: Vec::new(),
            nodes_free: Vec::new(),
            by_app: FlatBTree::new(),
            groups: Vec::new(),
            levels: Vec::new(),
            met_until: FlatBTree::new(),
            due: FlatBTree::new(),
            throttled: FlatBTree::new(),
            idle: VecDeque::new(),
            idle_count: 0,
            idle_marks: 0,
            by_deadline,
            looked_at: Time(0),
            by_reservation: false,
            reserved_ns: 0,
            turn: 0,
        };
        tags.lay_out();
        tags
    }

    /// What is promised.
    pub(crate) fn shares(&self) -> &Shares {
        &self.shares
    }

    /// The number of an application, new or known. It keeps it while it has requests.
    pub(crate) fn number(&mut self, app: AppId) -> u32 {
        if let Some(number) = self.known(app) {
            return number;
        }
        let known = self.shares.of(app);
        let mut node = Node::new(app, known.group, known.share);
        node.tag = self.levels[level_of(&node)].now;
        let number = self.add(node);
        self.by_app.insert(app.0, number);
        number
    }

    fn known(&self, app: AppId) -> Option<u32> {
        let (found, number) = self.by_app.at_or_after(&app.0)?;
        (found == app.0).then_some(number)
    }

    /// Whether somebody has a limit, so that requests may have to wait for it.
    pub(crate) fn has_limits(&self) -> bool {
        self.shares.all().any(|share| share.max.is_some())
    }

    /// A request came, behind the application's others; `first` counts if it has no other here.
    pub(crate) fn arrived(&mut self, number: u32, now: Time, told: &ServiceDelta, first: Next) {
        let elsewhere = self.without_reported(number, &told.elsewhere);
        let here_ns = self.nodes[number as usize].was_given(told.here_ns);
        let is_first = self.node(number).waiting == 0;
        for one in self.both(number) {
            let alone = self.node(one).waiting == 0;
            let node = &mut self.nodes[one as usize];
            let level = &mut self.levels[level_of(node)];
            let others_ns = elsewhere.device_ns;
            node.hears(now, others_ns, here_ns, told.away_ms);
            node.tells(now, (others_ns, here_ns), &mut level.told);
            let delays = is_first && elsewhere.device_ns > 0;
            if alone || delays || elsewhere.bytes > 0 || elsewhere.operations > 0 {
                self.detach(one);
                let delay_ns = match is_first {
                    true => self.delay(one, now, first),
                    false => 0,
                };
                self.elsewhere(one, now, &elsewhere, delay_ns);
                let node = &mut self.nodes[one as usize];
                if is_first {
                    node.delayed = Some((first, delay_ns));
                }
                node.behind = u128::from(delay_ns) * SCALE / u128::from(node.share.weight);
            }
            let node = &mut self.nodes[one as usize];
            if core::mem::take(&mut node.idle_mark) > 0 {
                self.idle_count -= 1;
            }
            node.waiting += 1;
            if alone {
                node.deadline = first.deadline;
            }
            let level = level_of(node);
            self.levels[level].waiting += 1;
            self.place(one, now);
        }
    }

    /// By how much of what others give a request is delayed: for what it takes here as much as they
    /// gave lately for what was given here. What clients tell is set against what they know to have
    /// got here in the same time: against what was given here it would grow with the queue, which
    /// would then grow more. Of whom little is known is taken to be as the others are.
    fn delay(&mut self, number: u32, now: Time, next: Next) -> u64 {
        let node = &mut self.nodes[number as usize];
        let (told_ns, known_ns) = node.believed(now);
        let (all_ns, all_known_ns) = self.levels[level_of(node)].told.now(now);
        let enough_ns = next.cost_ns.saturating_mul(ENOUGH);
        let missing_ns = enough_ns.saturating_sub(known_ns);
        let guessed_ns = scaled(all_ns, missing_ns, all_known_ns.max(enough_ns));
        let told_ns = told_ns.saturating_add(guessed_ns);
        let told = scaled(told_ns, next.cost_ns, known_ns.max(enough_ns));
        let (heard_ns, here_ns) = node.heard.now(now);
        let heard = scaled(heard_ns, next.cost_ns, here_ns);
        let delay_ns = told.saturating_add(heard.min(heard_ns));
        delay_ns.min(next.delay_ns_max)
    }

    /// Delays that have become shorter count as such: they followed from what was told long ago.
    fn look_again(&mut self, now: Time) {
        self.looked_at = now;
        for number in 0..self.nodes.len() as u32 {
            let node = self.node(number);
            let Some((first, delay_ns)) = node.delayed.filter(|(_, ns)| *ns > 0) else {
                continue;
            };
            // Of whom clients still tell, a delay that happens to be shorter now means nothing.
            let is_quiet = now.0 - node.told_at.0.min(now.0) >= HALF_NS;
            if node.state != NodeState::Active || !is_quiet {
                continue;
            }
            let shorter_ns = delay_ns.saturating_sub(self.delay(number, now, first));
            if shorter_ns > 0 {
                self.detach(number);
                let node = &mut self.nodes[number as usize];
                node.delayed = Some((first, delay_ns - shorter_ns));
                let shorter = u128::from(shorter_ns) * SCALE / u128::from(node.share.weight);
                node.tag = node.tag.saturating_sub(shorter);
                self.place(number, now);
            }
        }
    }

    /// Whose first request runs next; or when to ask again, if limits forbid all.
    pub(crate) fn next(&mut self, now: Time) -> Result<u32, Time> {
        self.wake(now);
        if now.0 >= self.looked_at.0.saturating_add(HALF_NS) {
            self.look_again(now);
        }
        self.by_reservation = false;
        if self.reserved_ns >= RESERVED_NS_MAX
            && let Some(number) = self.by_turn()
        {
            return Ok(number);
        }
        while let Some(((_, number), ())) = self.due.first() {
            let Some(until) = self.blocked_until(number) else {
                self.by_reservation = true;
                return Ok(self.first_of(number));
            };
            self.end_reservation(number);
            self.meet_until(number, until.max(now.0.saturating_add(1)));
        }
        if let Some(((_, number), ())) = self.levels[0].active.first() {
            return Ok(self.first_of(number));
        }
        let ((until, _), ()) = self.throttled.first().expect("who waits is here or there");
        Err(Time(until).min(now + THROTTLE_NS_MAX))
    }

    /// Who is next by weight at one of the levels, in turns: those of a group would else wait for
    /// ever behind the group's tag, when reservations within it are more than there is.
    fn by_turn(&mut self) -> Option<u32> {
        for _ in 0..self.levels.len() {
            self.turn = (self.turn + 1) % self.levels.len();
            let group = self.turn.checked_sub(1).map(|group| self.groups[group]);
            if group.is_some_and(|group| self.node(group).state != NodeState::Active) {
                continue;
            }
            if let Some(((_, number), ())) = self.levels[self.turn].active.first() {
                return Some(self.first_of(number));
            }
        }
        None
    }

    /// The first request of an application runs, and takes so much. `next`: its first one then.
    pub(crate) fn charge(&mut self, number: u32, now: Time, service: &Service, next: Option<Next>) {
        self.reserved_ns = match self.by_reservation {
            true => self.reserved_ns.saturating_add(service.device_ns),
            false => 0,
        };
        for one in self.both(number) {
            self.detach(one);
            let node = &self.nodes[one as usize];
            let level = &mut self.levels[level_of(node)];
            // Who has a reservation may be ahead of those whose turn it is by weight.
            let turn = level.active.first().map_or(node.tag, |((tag, _), ())| tag);
            level.now = level.now.max(node.tag.min(turn));
            // A delay counts as if it had been given here.
            let delay_ns = next.map_or(0, |next| self.delay(one, now, next));
            let node = &mut self.nodes[one as usize];
            node.delayed = next.map(|next| (next, delay_ns));
            node.heard.add(now, 0, service.device_ns);
            let device_ns = service.device_ns.saturating_add(delay_ns);
            self.given(one, now, service, device_ns);
        }
        self.leaves(number, now, next);
    }

    /// The first request of an application is another one now, or none: one was cancelled.
    pub(crate) fn cancelled(&mut self, number: u32, now: Time, next: Option<Next>) {
        self.both(number).for_each(|one| self.detach(one));
        self.leaves(number, now, next);
    }

    /// The system's level, and groups without applications.
    fn lay_out(&mut self) {
        let level = || Level {
            active: FlatBTree::new(),
            now: 0,
            latest: 0,
            waiting: 0,
            told: Recent::default(),
        };
        self.levels.push(level());
        for group in 0..self.shares.groups.len() {
            self.levels.push(level());
            let mut node = Node::new(AppId(0), None, self.shares.groups[group]);
            node.is_group = Some(group as u32);
            let number = self.add(node);
            self.groups.push(number);
        }
    }

    fn add(&mut self, node: Node) -> u32 {
        if let Some(number) = self.nodes_free.pop() {
            self.nodes[number as usize] = node;
            return number;
        }
        self.nodes.push(node);
        self.nodes.len() as u32 - 1
    }

    fn node(&self, number: u32) -> &Node {
        &self.nodes[number as usize]
    }

    /// An application, and its group if it has one.
    fn both(&self, number: u32) -> impl Iterator<Item = u32> + use<> {
        let group = self.node(number).group;
        let group = group.map(|group| self.groups[group as usize]);
        core::iter::once(number).chain(group)
    }

    /// The application whose first request it is.
    fn first_of(&self, number: u32) -> u32 {
        let Some(group) = self.node(number).is_group else {
            return number;
        };
        let first = self.levels[group as usize + 1].active.first();
        let ((_, first), ()) = first.expect("a group without applications is not active");
        first
    }

    /// Until when the group of an application may not run.
    fn blocked_until(&self, number: u32) -> Option<u64> {
        let group = self.groups[self.node(number).group? as usize];
        let group = self.node(group);
        (group.state != NodeState::Active).then_some(group.limit_at)
    }

    /// Time has passed.
    fn wake(&mut self, now: Time) {
        while let Some(((at, number), ())) = self.throttled.first() {
            if at > now.0 {
                break;
            }
            self.detach(number);
            self.place(number, now);
            if let Some(group) = self.node(number).group {
                let group = self.groups[group as usize];
                self.detach(group);
                self.place(group, now);
            }
        }
        while let Some(((at, number), ())) = self.met_until.first() {
            if at > now.0 {
                break;
            }
            self.met_until.remove(&(at, number));
            // A group is as urgent as the first request that it would run.
            let deadline = self.node(self.first_of(number)).deadline;
            let due = if self.by_deadline { deadline } else { at };
            self.nodes[number as usize].reservation = Reservation::Due(due);
            self.due.insert((due, number), ());
        }
    }

    /// What others gave. A client tells it late: after a pause, or when this forwarder was away, it
    /// is much at once, and must not shut anybody out for longer than [`TOLD_NS_MAX`].
    fn elsewhere(&mut self, number: u32, now: Time, service: &Service, device_ns: u64) {
        let node = self.node(number);
        let limit = now.0.saturating_add(TOLD_NS_MAX);
        let (reservation_at, limit_at) = (node.reservation_at.max(limit), node.limit_at.max(limit));
        self.given(number, now, service, device_ns);
        let node = &mut self.nodes[number as usize];
        (node.reservation_at, node.limit_at) = (
            node.reservation_at.min(reservation_at),
            node.limit_at.min(limit_at),
        );
    }

    /// Service given to a node that stands nowhere: device time by its tag, all by its rates.
    fn given(&mut self, number: u32, now: Time, service: &Service, device_ns: u64) {
        let forwarders = self.shares.forwarders;
        let node = &mut self.nodes[number as usize];
        let level = &mut self.levels[level_of(node)];
        node.tag += u128::from(device_ns) * SCALE / u128::from(node.share.weight);
        level.latest = level.latest.max(node.tag);
        if let Some(min) = node.share.min {
            // Whoever had more than its reservation, when others left it, is not owed less for that
            // later.
            let takes_ns = min.ns(service, forwarders);
            let from = node.reservation_from(now, self.credit_ns);
            let most = now.0.saturating_add(takes_ns.max(AHEAD_NS));
            node.reservation_at = from.saturating_add(takes_ns).min(most.max(from));
        }
        if let Some(max) = node.share.max {
            let from = node.limit_from(now, BURST_NS);
            node.limit_at = from.saturating_add(max.ns(service, forwarders));
        }
    }

    /// A request of a detached application is gone.
    fn leaves(&mut self, number: u32, now: Time, next: Option<Next>) {
        for one in self.both(number) {
            let node = &mut self.nodes[one as usize];
            node.waiting -= 1;
            if let Some(next) = next {
                node.deadline = next.deadline;
            }
            let level = &mut self.levels[level_of(node)];
            level.waiting -= 1;
            if level.waiting == 0 {
                level.now = level.latest;
            }
            self.place(one, now);
        }
        self.forget();
    }

    /// Takes a node from wherever it stands.
    fn detach(&mut self, number: u32) {
        self.end_reservation(number);
        let node = &mut self.nodes[number as usize];
        match core::mem::replace(&mut node.state, NodeState::Idle) {
            NodeState::Idle => {}
            NodeState::Active => {
                node.stayed = true;
                let level = &mut self.levels[level_of(node)];
                level.active.remove(&(node.tag, number));
            }
            NodeState::Throttled => {
                self.throttled.remove(&(node.limit_at, number));
            }
        }
    }

    /// Puts a node that stands nowhere, or stays, where it belongs.
    fn place(&mut self, number: u32, now: Time) {
        let node = &self.nodes[number as usize];
        if node.state != NodeState::Idle {
            return;
        }
        let runnable = match node.is_group {
            Some(group) => !self.levels[group as usize + 1].active.is_empty(),
            None => node.waiting > 0,
        };
        let node = &mut self.nodes[number as usize];
        let stayed = core::mem::take(&mut node.stayed);
        let behind = core::mem::take(&mut node.behind);
        if !runnable {
            return self.becomes_idle(number);
        }
        let node = &mut self.nodes[number as usize];
        if node.share.max.is_some() && node.limit_at > now.0 {
            node.state = NodeState::Throttled;
            self.throttled.insert((node.limit_at, number), ());
            return;
        }
        node.state = NodeState::Active;
        let level = &mut self.levels[level_of(node)];
        if !stayed {
            node.tag = node.tag.max(level.now.saturating_sub(behind));
        }
        level.latest = level.latest.max(node.tag);
        level.active.insert((node.tag, number), ());
        if node.share.min.is_some() {
            let from = node.reservation_from(now, self.credit_ns);
            self.meet_until(number, from);
        }
    }

    /// Its reservation owes it something at that time.
    fn meet_until(&mut self, number: u32, at: u64) {
        self.nodes[number as usize].reservation = Reservation::MetUntil(at);
        self.met_until.insert((at, number), ());
    }

    fn end_reservation(&mut self, number: u32) {
        let reservation = &mut self.nodes[number as usize].reservation;
        match core::mem::replace(reservation, Reservation::None) {
            Reservation::None => {}
            Reservation::MetUntil(at) => drop(self.met_until.remove(&(at, number))),
            Reservation::Due(at) => drop(self.due.remove(&(at, number))),
        }
    }

    /// Notes that an application has nothing to run.
    fn becomes_idle(&mut self, number: u32) {
        let node = &mut self.nodes[number as usize];
        if node.is_group.is_some() || node.idle_mark > 0 {
            return;
        }
        self.idle_marks += 1;
        self.idle_count += 1;
        node.idle_mark = self.idle_marks;
        self.idle.push_back((number, self.idle_marks));
    }

    /// Forgets who has been idle longest, when many do.
    fn forget(&mut self) {
        while self.idle_count > IDLE_MAX {
            let first = self.idle.pop_front();
            let (number, idle_mark) = first.expect("there are many");
            let node = &mut self.nodes[number as usize];
            if node.idle_mark == idle_mark {
                node.idle_mark = 0;
                self.idle_count -= 1;
                self.by_app.remove(&node.app.0);
                self.nodes_free.push(number);
            }
        }
        if self.idle.len() > 2 * self.idle_count + 64 {
            let nodes = &self.nodes;
            let is_idle =
                |(number, idle_mark): &(u32, u64)| nodes[*number as usize].idle_mark == *idle_mark;
            self.idle.retain(is_idle);
        }
    }
}
