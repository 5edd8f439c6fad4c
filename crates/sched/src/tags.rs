//! Who is next by shares: weights, minima and maxima of applications and of groups.
//!
//! A shared block of the policies, of three known parts. Weights: start-time fair queueing with
//! several requests outstanding, SFQ(D) (Jin et al. 2004), as DSFQ has it (Wang and Merchant,
//! FAST'07): S = max(v, F + delay / weight) and F = S + cost / weight, where v is the start tag of
//! what ran last and the delay is what other servers gave since: here as much for what a request
//! takes as they gave lately for what was given here, for a delay by all that they gave since the
//! last request lets processes that go from server to server gather at one. Who comes back from
//! others may begin behind v by what they gave, and who waits all the time keeps its tag, also when
//! a minimum let somebody run ahead of it. Minima and maxima: the tags of
//! mClock (Gulati et al., OSDI'10), each a time at which the next request is due by its rate, and
//! at which it may run at the soonest. What others gave moves both.
//!
//! An application shares with its group's other applications what the group has; one without a
//! group stands beside the groups. Requests of an application keep their order, so it has one tag
//! of each kind, for its first request.

mod change;
mod node;
mod told;

use crate::flat_btree::FlatBTree;
use crate::share::{Service, Shares};
use crate::types::{AppId, Time};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
pub(crate) use node::Next;
use node::{Claim, HALF_NS, Level, Node, Recent, Stands, TOLD_NS_MAX, level_of, scaled};

/// Virtual time: nanoseconds of device time at weight 1, times this. Weights above it are alike.
const SCALE: u128 = 1 << 16;

/// Applications without requests whose tags are kept.
const RESTING_MAX: usize = 1024;

/// The longest wait for a maximum that is told at once; then it is looked at again.
pub(crate) const THROTTLE_NS_MAX: u64 = 1_000_000_000;

/// How far ahead of its minimum one can be, besides by a request: what is on its way at others.
const AHEAD_NS: u64 = 100_000_000;

/// A maximum may be passed by what it gives in this time, so that pauses are made up for.
const BURST_NS: u64 = 20_000_000;

/// When minima had so much device time in a row, one request goes by weight: minima that are more
/// than there is must not starve who has none.
const MINIMA_NS_MAX: u64 = 1_000_000_000;

/// So many requests have to tell what others gave before nothing is guessed.
const ENOUGH: u64 = 4;

/// What a request tells of the time since its client's last one here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
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
    /// How long a minimum that was not asked for can be asked for later.
    credit_ns: u64,
    nodes: Vec<Node>,
    nodes_free: Vec<u32>,
    by_app: FlatBTree<u64, u32>,
    /// By number of a group: its node.
    groups: Vec<u32>,
    /// Of the system; then one for each group.
    levels: Vec<Level>,
    /// By time: who has its minimum until then.
    later: FlatBTree<(u64, u32), ()>,
    /// Who is owed, by deadline.
    due: FlatBTree<(u64, u32), ()>,
    throttled: FlatBTree<(u64, u32), ()>,
    /// Who rests, in the order in which it came to it; some do not rest any more.
    resting: VecDeque<(u32, u64)>,
    resting_now: usize,
    rests: u64,
    /// Whether who is owed comes by the deadline of its request, not by when it was owed.
    by_deadline: bool,
    /// When delays were looked at again.
    looked_at: Time,
    /// Whether the last one that was next was owed its minimum.
    by_minimum: bool,
    /// Device time given to minima since a request went by weight.
    minima_ns: u64,
    /// The level that chooses when minima had theirs for long.
    turn: usize,
}

impl Tags {
    /// Nobody waits. `credit_ns`: how much of its minimum one can be owed at once, in time.
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
            later: FlatBTree::new(),
            due: FlatBTree::new(),
            throttled: FlatBTree::new(),
            resting: VecDeque::new(),
            resting_now: 0,
            rests: 0,
            by_deadline,
            looked_at: Time(0),
            by_minimum: false,
            minima_ns: 0,
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

    /// Whether somebody has a maximum, so that requests may have to wait for it.
    pub(crate) fn has_maxima(&self) -> bool {
        self.shares.all().any(|share| share.max.is_some())
    }

    /// A request came, behind the application's others; `first` counts if it has no other here.
    pub(crate) fn arrived(&mut self, number: u32, now: Time, told: &Told, first: Next) {
        let elsewhere = self.not_heard(number, &told.elsewhere);
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
            if core::mem::take(&mut node.rested) > 0 {
                self.resting_now -= 1;
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
            if node.stands != Stands::Active || !is_quiet {
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

    /// Whose first request runs next; or when to ask again, if maxima forbid all.
    pub(crate) fn next(&mut self, now: Time) -> Result<u32, Time> {
        self.wake(now);
        if now.0 >= self.looked_at.0.saturating_add(HALF_NS) {
            self.look_again(now);
        }
        self.by_minimum = false;
        if self.minima_ns >= MINIMA_NS_MAX
            && let Some(number) = self.by_turn()
        {
            return Ok(number);
        }
        while let Some(((_, number), ())) = self.due.first() {
            let Some(until) = self.blocked_until(number) else {
                self.by_minimum = true;
                return Ok(self.first_of(number));
            };
            self.unclaim(number);
            self.claim(number, until.max(now.0.saturating_add(1)));
        }
        if let Some(((_, number), ())) = self.levels[0].active.first() {
            return Ok(self.first_of(number));
        }
        let ((until, _), ()) = self.throttled.first().expect("who waits is here or there");
        Err(Time(until).min(now + THROTTLE_NS_MAX))
    }

    /// Who is next by weight at one of the levels, in turns: those of a group would else wait for
    /// ever behind the group's tag, when minima within it are more than there is.
    fn by_turn(&mut self) -> Option<u32> {
        for _ in 0..self.levels.len() {
            self.turn = (self.turn + 1) % self.levels.len();
            let group = self.turn.checked_sub(1).map(|group| self.groups[group]);
            if group.is_some_and(|group| self.node(group).stands != Stands::Active) {
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
        self.minima_ns = match self.by_minimum {
            true => self.minima_ns.saturating_add(service.device_ns),
            false => 0,
        };
        for one in self.both(number) {
            self.detach(one);
            let node = &self.nodes[one as usize];
            let level = &mut self.levels[level_of(node)];
            // Who has a minimum may be ahead of those whose turn it is by weight.
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
        (group.stands != Stands::Active).then_some(group.max_at)
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
        while let Some(((at, number), ())) = self.later.first() {
            if at > now.0 {
                break;
            }
            self.later.remove(&(at, number));
            // A group is as urgent as the first request that it would run.
            let deadline = self.node(self.first_of(number)).deadline;
            let due = if self.by_deadline { deadline } else { at };
            self.nodes[number as usize].claim = Claim::Due(due);
            self.due.insert((due, number), ());
        }
    }

    /// What others gave. A client tells it late: after a pause, or when this forwarder was away, it
    /// is much at once, and must not shut anybody out for longer than [`TOLD_NS_MAX`].
    fn elsewhere(&mut self, number: u32, now: Time, service: &Service, device_ns: u64) {
        let node = self.node(number);
        let limit = now.0.saturating_add(TOLD_NS_MAX);
        let (min_at, max_at) = (node.min_at.max(limit), node.max_at.max(limit));
        self.given(number, now, service, device_ns);
        let node = &mut self.nodes[number as usize];
        (node.min_at, node.max_at) = (node.min_at.min(min_at), node.max_at.min(max_at));
    }

    /// Service given to a node that stands nowhere: device time by its tag, all by its rates.
    fn given(&mut self, number: u32, now: Time, service: &Service, device_ns: u64) {
        let forwarders = self.shares.forwarders;
        let node = &mut self.nodes[number as usize];
        let level = &mut self.levels[level_of(node)];
        node.tag += u128::from(device_ns) * SCALE / u128::from(node.share.weight);
        level.latest = level.latest.max(node.tag);
        if let Some(min) = node.share.min {
            // Whoever had more than its minimum, when others left it, is not owed less for that
            // later.
            let takes_ns = min.ns(service, forwarders);
            let from = node.min_from(now, self.credit_ns);
            let most = now.0.saturating_add(takes_ns.max(AHEAD_NS));
            node.min_at = from.saturating_add(takes_ns).min(most.max(from));
        }
        if let Some(max) = node.share.max {
            let from = node.max_from(now, BURST_NS);
            node.max_at = from.saturating_add(max.ns(service, forwarders));
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
        self.unclaim(number);
        let node = &mut self.nodes[number as usize];
        match core::mem::replace(&mut node.stands, Stands::Resting) {
            Stands::Resting => {}
            Stands::Active => {
                node.stayed = true;
                let level = &mut self.levels[level_of(node)];
                level.active.remove(&(node.tag, number));
            }
            Stands::Throttled => {
                self.throttled.remove(&(node.max_at, number));
            }
        }
    }

    /// Puts a node that stands nowhere, or stays, where it belongs.
    fn place(&mut self, number: u32, now: Time) {
        let node = &self.nodes[number as usize];
        if node.stands != Stands::Resting {
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
            return self.rests(number);
        }
        let node = &mut self.nodes[number as usize];
        if node.share.max.is_some() && node.max_at > now.0 {
            node.stands = Stands::Throttled;
            self.throttled.insert((node.max_at, number), ());
            return;
        }
        node.stands = Stands::Active;
        let level = &mut self.levels[level_of(node)];
        if !stayed {
            node.tag = node.tag.max(level.now.saturating_sub(behind));
        }
        level.latest = level.latest.max(node.tag);
        level.active.insert((node.tag, number), ());
        if node.share.min.is_some() {
            let from = node.min_from(now, self.credit_ns);
            self.claim(number, from);
        }
    }

    /// Its minimum owes it something at that time.
    fn claim(&mut self, number: u32, at: u64) {
        self.nodes[number as usize].claim = Claim::Later(at);
        self.later.insert((at, number), ());
    }

    fn unclaim(&mut self, number: u32) {
        let claim = &mut self.nodes[number as usize].claim;
        match core::mem::replace(claim, Claim::None) {
            Claim::None => {}
            Claim::Later(at) => drop(self.later.remove(&(at, number))),
            Claim::Due(at) => drop(self.due.remove(&(at, number))),
        }
    }

    /// Notes that an application has nothing to run.
    fn rests(&mut self, number: u32) {
        let node = &mut self.nodes[number as usize];
        if node.is_group.is_some() || node.rested > 0 {
            return;
        }
        self.rests += 1;
        self.resting_now += 1;
        node.rested = self.rests;
        self.resting.push_back((number, self.rests));
    }

    /// Forgets who has rested longest, when many do.
    fn forget(&mut self) {
        while self.resting_now > RESTING_MAX {
            let first = self.resting.pop_front();
            let (number, rested) = first.expect("there are many");
            let node = &mut self.nodes[number as usize];
            if node.rested == rested {
                node.rested = 0;
                self.resting_now -= 1;
                self.by_app.remove(&node.app.0);
                self.nodes_free.push(number);
            }
        }
        if self.resting.len() > 2 * self.resting_now + 64 {
            let nodes = &self.nodes;
            let rests = |(number, rested): &(u32, u64)| nodes[*number as usize].rested == *rested;
            self.resting.retain(rests);
        }
    }
}
