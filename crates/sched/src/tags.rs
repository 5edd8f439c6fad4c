//! Which application is served next: weights, reservations and limits of applications and groups.
//!
//! Several policies use this block. It combines two known algorithms.
//!
//! *Weights*: start-time fair queueing with several requests outstanding, SFQ(D) (Jin et al. 2004),
//! in its distributed form DSFQ (Wang and Merchant, FAST'07). The start tag of a request is S =
//! max(v, F + delay / weight), its finish tag F = S + cost / weight. F on the right is the finish
//! tag of the application's previous request. The virtual time v is the start tag of the request
//! that was dispatched last, or the least start tag that waits if that is less. The delay accounts
//! for service by other forwarders. In DSFQ the delay of a request is all service that other
//! forwarders gave the application since its last request here. Processes that move between
//! forwarders then gather at one of them. Here the delay of a request is its cost times the recent
//! ratio of service elsewhere to service here. An application that returns from other forwarders
//! may start behind v, by at most the service that it got there. An application that always has
//! requests waiting keeps its tag, even when a reservation let another application go first.
//!
//! *Reservations and limits*: the tags of mClock (Gulati et al., OSDI'10). The reservation tag is
//! the time at which the application's next request is due by its reservation. The limit tag is the
//! earliest time at which its limit allows that request. Service by other forwarders moves both.
//!
//! The applications of a group divide what the group gets. An application without a group competes
//! with the groups. The requests of one application run in order of arrival, so an application
//! needs one tag of each kind: that of its first request.

mod change;
mod crowd;
mod limited;
mod node;
mod service_reports;

use crate::flat_btree::FlatBTree;
use crate::hash_table::put;
use crate::share::{Service, Shares};
use crate::types::{AppId, Time};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
pub(crate) use node::Next;
use node::{
    Delayed, HALF_NS, Level, Node, NodeState, REPORTED_NS_MAX, Recent, Reservation, level_of,
    scaled,
};

/// Units of virtual time for each nanosecond of device time at weight 1. Weights above this number
/// all count as equal.
const SCALE: u128 = 1 << 16;

/// The tags of at most so many idle applications are kept.
const IDLE_MAX: usize = 1024;

/// The longest wait for a limit that [`Tags::next`] names at once; the caller then asks again.
pub(crate) const THROTTLE_NS_MAX: u64 = 1_000_000_000;

/// An application gets ahead of its reservation by at most this time, or by one request if that
/// takes longer: service that other forwarders are giving meanwhile arrives late in the accounts.
const AHEAD_NS: u64 = 100_000_000;

/// After a pause an application may exceed its limit by what the limit allows in this time.
const BURST_NS: u64 = 20_000_000;

/// After reservations had so much device time in a row, one request is chosen by weight. So
/// reservations that exceed the capacity do not starve applications that have none.
const RESERVED_NS_MAX: u64 = 1_000_000_000;

/// Until an application's clients have reported the service of so many requests, the average of its
/// level stands for the missing ones.
const ENOUGH: u64 = 4;

/// What a client reports with a request about the time since its last request to this forwarder.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ServiceDelta {
    /// What other forwarders served the application.
    pub(crate) elsewhere: Service,
    /// Device time that this forwarder gave it.
    pub(crate) here_ns: u64,
    /// The length of that time, in milliseconds.
    pub(crate) away_ms: u16,
}

/// The tags of all applications that have requests waiting or had some lately.
pub(crate) struct Tags {
    shares: Shares,
    /// For how much of the past an application can claim a reservation that it did not use.
    credit_ns: u64,
    nodes: Vec<Node>,
    nodes_free: Vec<u32>,
    by_app: FlatBTree<u64, u32>,
    /// The node of each group, by the group's number.
    groups: Vec<u32>,
    /// The number of a group that is as many flows as applications of it wait, and not one.
    crowd: Option<u32>,
    /// The level of the whole system, then one level for each group.
    levels: Vec<Level>,
    /// Nodes whose reservation is met for now, by the time until which it is.
    met_until: FlatBTree<(u64, u32), ()>,
    /// Nodes whose reservation is due, by deadline.
    due: FlatBTree<(u64, u32), ()>,
    /// Nodes that their limit holds back, by the time until which it does.
    throttled: FlatBTree<(u64, u32), ()>,
    /// Applications that became idle, in that order. Entries of applications that have requests
    /// again are stale, and are removed lazily.
    idle: VecDeque<(u32, u64)>,
    idle_count: usize,
    idle_marks: u64,
    /// Whether due reservations are ordered by the deadlines of the first requests, not by the time
    /// at which they became due.
    by_deadline: bool,
    /// When `shorten_delays` ran last.
    shortened_at: Time,
    /// Whether `next` chose by a reservation the last time.
    by_reservation: bool,
    /// Whom it chose.
    chosen: Option<u32>,
    /// Device time that reservations had since a request was last chosen by weight.
    reserved_ns: u64,
    /// The level whose turn it is when reservations have had `RESERVED_NS_MAX`.
    turn: usize,
}

impl Tags {
    /// Tags without applications. An application can claim the unused reservation of the last
    /// `credit_ns`. With `by_deadline` the due reservation whose request has the earliest deadline
    /// goes first, otherwise the one that became due first.
    pub(crate) fn new(shares: &Shares, credit_ns: u64, by_deadline: bool) -> Tags {
        let mut tags = Tags {
            shares: shares.clone(),
            credit_ns,
            nodes: Vec::new(),
            nodes_free: Vec::new(),
            by_app: FlatBTree::new(),
            groups: Vec::new(),
            crowd: None,
            levels: Vec::new(),
            met_until: FlatBTree::new(),
            due: FlatBTree::new(),
            throttled: FlatBTree::new(),
            idle: VecDeque::new(),
            idle_count: 0,
            idle_marks: 0,
            by_deadline,
            shortened_at: Time(0),
            by_reservation: false,
            chosen: None,
            reserved_ns: 0,
            turn: 0,
        };
        tags.add_levels();
        tags
    }

    /// The shares that the tags follow.
    pub(crate) fn shares(&self) -> &Shares {
        &self.shares
    }

    /// The number of an application, which is added if it is new. The number stays the same while
    /// the application has requests.
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

    /// Whether any application or group has a limit, so that requests may have to wait for it.
    pub(crate) fn has_limits(&self) -> bool {
        self.shares.all().any(|share| share.max.is_some())
    }

    /// Counts a request that arrived, behind the application's other requests. `first` describes it
    /// as the application's first request, and is used if the application has no other here.
    pub(crate) fn arrived(&mut self, number: u32, now: Time, reported: &ServiceDelta, first: Next) {
        let elsewhere = self.without_reported(number, &reported.elsewhere);
        let here_ns = self.nodes[number as usize].credible_ns(reported.here_ns);
        let is_first = self.node(number).waiting == 0;
        for one in self.both(number) {
            let alone = self.node(one).waiting == 0;
            let node = &mut self.nodes[one as usize];
            let level = &mut self.levels[level_of(node)];
            let others_ns = elsewhere.device_ns;
            node.add_report(now, others_ns, here_ns, reported.away_ms);
            node.add_to_level(now, (others_ns, here_ns), &mut level.reported);
            let delays = is_first && elsewhere.device_ns > 0;
            if alone || delays || elsewhere.bytes > 0 || elsewhere.operations > 0 {
                self.detach(one);
                let delay_ns = if is_first {
                    self.delay(one, now, first)
                } else {
                    0
                };
                self.charge_elsewhere(one, now, &elsewhere, delay_ns);
                let node = &mut self.nodes[one as usize];
                let delayed = node.delayed_by(first, delay_ns);
                node.delayed = if is_first {
                    Some(delayed)
                } else {
                    node.delayed
                };
                node.behind = delayed.tag_of(delay_ns);
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

    /// The delay of a request: its cost times the recent ratio of service elsewhere to service
    /// here.
    ///
    /// Clients report both sides of that ratio for the same time. If their report of other
    /// forwarders were divided by all service given here instead, the ratio would grow with the
    /// queue here, and the queue with the ratio. For an application with few reports the average of
    /// its level stands for what is missing. What peers reported is added by its own ratio.
    fn delay(&mut self, number: u32, now: Time, next: Next) -> u64 {
        let node = &mut self.nodes[number as usize];
        let (reported_ns, known_ns) = node.trusted(now);
        let (all_ns, all_known_ns) = self.levels[level_of(node)].reported.now(now);
        let enough_ns = next.cost_ns.saturating_mul(ENOUGH);
        let missing_ns = enough_ns.saturating_sub(known_ns);
        let guessed_ns = scaled(all_ns, missing_ns, all_known_ns.max(enough_ns));
        let reported_ns = reported_ns.saturating_add(guessed_ns);
        let reported = scaled(reported_ns, next.cost_ns, known_ns.max(enough_ns));
        let (peers_ns, here_ns) = node.peers.now(now);
        let peers = scaled(peers_ns, next.cost_ns, here_ns);
        let delay_ns = reported.saturating_add(peers.min(peers_ns));
        delay_ns.min(next.delay_ns_max)
    }

    /// Recomputes the delays of applications whose clients have been silent for long, and moves the
    /// tags of those whose delay became shorter.
    fn shorten_delays(&mut self, now: Time) {
        self.shortened_at = now;
        for number in 0..self.nodes.len() as u32 {
            let node = self.node(number);
            let Some(delayed) = node.delayed.filter(|delayed| delayed.ns > 0) else {
                continue;
            };
            // While clients still report, a delay varies by chance.
            let is_quiet = now.0 - node.reported_at.0.min(now.0) >= HALF_NS;
            if node.state != NodeState::Active || !is_quiet {
                continue;
            }
            let delay_ns = self.delay(number, now, delayed.first);
            let shorter_ns = delayed.ns.saturating_sub(delay_ns);
            if shorter_ns > 0 {
                self.detach(number);
                let node = &mut self.nodes[number as usize];
                node.delayed = Some(Delayed {
                    ns: delay_ns,
                    ..delayed
                });
                node.tag = node.tag.saturating_sub(delayed.tag_of(shorter_ns));
                self.place(number, now);
            }
        }
    }

    /// The application whose first request runs next; or when to ask again, if limits forbid all.
    pub(crate) fn next(&mut self, now: Time) -> Result<u32, Time> {
        let next = self.choose(now);
        self.chosen = next.ok();
        next
    }

    fn choose(&mut self, now: Time) -> Result<u32, Time> {
        self.wake(now);
        if now.0 >= self.shortened_at.0.saturating_add(HALF_NS) {
            self.shorten_delays(now);
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

    /// Whether `next` chose by weight alone: not by a reservation, nor in place of one.
    pub(crate) fn is_by_weight(&self) -> bool {
        !self.by_reservation && self.reserved_ns < RESERVED_NS_MAX
    }

    /// Chooses by weight at one of the levels, which take turns. Without turns, reservations inside
    /// a group that exceed the capacity would keep the group's tag high, and the group's other
    /// applications would wait behind it for ever.
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

    /// Charges an application for its first request, which is dispatched and takes `service`.
    /// `next` is the application's first request afterwards.
    pub(crate) fn charge(&mut self, number: u32, now: Time, service: &Service, next: Option<Next>) {
        if self.by_reservation {
            self.reserved_ns = self.reserved_ns.saturating_add(service.device_ns);
        } else if self.chosen == Some(number) {
            self.reserved_ns = 0;
        }
        self.weigh_crowd();
        for one in self.both(number) {
            self.detach(one);
            let node = &self.nodes[one as usize];
            let level = &mut self.levels[level_of(node)];
            // Who goes by its reservation, or goes on, may be ahead of the least tag.
            let least = level.active.first().map_or(node.tag, |((tag, _), ())| tag);
            level.now = level.now.max(node.tag.min(least));
            // A delay moves the tag like device time that was given here.
            let delay_ns = next.map_or(0, |next| self.delay(one, now, next));
            let node = &mut self.nodes[one as usize];
            node.delayed = next.map(|next| node.delayed_by(next, delay_ns));
            node.peers.add(now, 0, service.device_ns);
            let device_ns = service.device_ns.saturating_add(delay_ns);
            self.charge_node(one, now, service, device_ns);
        }
        self.remove_request(number, now, next);
    }

    /// Counts a request that was cancelled. `next` is the application's first request afterwards.
    pub(crate) fn cancelled(&mut self, number: u32, now: Time, next: Option<Next>) {
        self.both(number).for_each(|one| self.detach(one));
        self.remove_request(number, now, next);
    }

    /// Adds the level of the system, and the levels and nodes of all groups.
    fn add_levels(&mut self) {
        let level = || Level {
            active: FlatBTree::new(),
            now: 0,
            latest: 0,
            waiting: 0,
            reported: Recent::default(),
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
        put(&mut self.nodes, &mut self.nodes_free, node)
    }

    fn node(&self, number: u32) -> &Node {
        &self.nodes[number as usize]
    }

    /// The nodes of an application and of its group, if it has one.
    fn both(&self, number: u32) -> impl Iterator<Item = u32> + use<> {
        let group = self.node(number).group;
        let group = group.map(|group| self.groups[group as usize]);
        core::iter::once(number).chain(group)
    }

    /// The application that goes first: of a group the one with the least tag, else the node
    /// itself.
    fn first_of(&self, number: u32) -> u32 {
        let Some(group) = self.node(number).is_group else {
            return number;
        };
        let first = self.levels[group as usize + 1].active.first();
        let ((_, first), ()) = first.expect("a group without applications is not active");
        first
    }

    /// Until when the group of an application is held back, if it is.
    fn blocked_until(&self, number: u32) -> Option<u64> {
        let group = self.groups[self.node(number).group? as usize];
        let group = self.node(group);
        (group.state != NodeState::Active).then_some(group.limit_at)
    }

    /// Moves the nodes whose limit allows them again, and those whose reservation became due.
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

    /// Charges a node for service by other forwarders. Clients report that late: after a pause, or
    /// when this forwarder was unreachable, much is reported at once. It moves the tags of
    /// reservation and limit by at most [`REPORTED_NS_MAX`] beyond now.
    fn charge_elsewhere(&mut self, number: u32, now: Time, service: &Service, device_ns: u64) {
        let node = self.node(number);
        let limit = now.0.saturating_add(REPORTED_NS_MAX);
        let (reservation_at, limit_at) = (node.reservation_at.max(limit), node.limit_at.max(limit));
        self.charge_node(number, now, service, device_ns);
        let node = &mut self.nodes[number as usize];
        (node.reservation_at, node.limit_at) = (
            node.reservation_at.min(reservation_at),
            node.limit_at.min(limit_at),
        );
    }

    /// Charges a detached node for service: `device_ns` moves the weight's tag, `service` the tags
    /// of reservation and limit.
    fn charge_node(&mut self, number: u32, now: Time, service: &Service, device_ns: u64) {
        let forwarders = self.shares.forwarders;
        let node = &mut self.nodes[number as usize];
        let level = &mut self.levels[level_of(node)];
        node.tag += u128::from(device_ns) * SCALE / u128::from(node.share.weight);
        level.latest = level.latest.max(node.tag);
        if let Some(min) = node.share.min {
            // Service beyond the reservation, while others left capacity, does not count against
            // the reservation later.
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

    /// Removes one request of an application that is detached.
    fn remove_request(&mut self, number: u32, now: Time, next: Option<Next>) {
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

    /// Removes a node from its level, and from the lists of limits and reservations.
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

    /// Puts a detached node where it belongs; a node that is not detached stays where it is.
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
        if node.share.max.is_some() && node.limited.is_held(now, node.limit_at) {
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

    /// Notes that a node's reservation is met until `at`.
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

    /// Notes that an application has no request waiting.
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

    /// Forgets the applications that have been idle longest, when more than [`IDLE_MAX`] are idle.
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
