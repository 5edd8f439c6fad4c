//! The world of the fault test: it passes events in virtual time between clients, network and
//! processes.

use super::client::{self, Client, WALL_NS};
use super::cluster::{Life, Shared};
use super::keeper::{LOOK_NS, Step};
use super::network::{End, LinkId, Network};
use super::plan::{Fault, Plan};
use super::process::{self, Frame, Process};
use super::script::{RECORD, Script};
use super::seats::{Holding, Seats};
use super::sharing;
use super::verdict;
use crate::events::Events;
use crate::rng::Rng;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tidegate_forward::model::Disk;
use tidegate_forward::{Config, JobId};
use tidegate_wire::{Layout, Pipelining};

mod failing;

const MS: u64 = 1_000_000;
/// Virtual time after which a world that is not done counts as stuck.
const END: u64 = 600_000 * MS;
/// Events after which it does.
const EVENTS_MAX: u64 = 20_000_000;

enum Event {
    Accept(LinkId),
    AtForwarder(LinkId, Frame),
    LostAtForwarder(LinkId),
    Connected(LinkId),
    Refused {
        client: usize,
        forwarder: usize,
    },
    AtClient(LinkId, Frame),
    LostAtClient(LinkId),
    Job(Life, JobId),
    Seat(Life, u16),
    Step(Life, Step),
    Look(Life),
    WakeForwarder(Life),
    WakeClient(usize),
    Fault(Fault),
    Start(usize),
    Resume(Life),
    CutStalled(LinkId),
    /// The back end's time limit for a node, in this cut, is over.
    Limit(usize, u64),
    /// The cut is over.
    Heal(usize, u64),
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Virtual time at the end, ns.
    pub end_ns: u64,
    /// Number of events.
    pub events: u64,
    /// Hash over the times of all events, in their order: the same seed gives the same hash.
    pub hash: u64,
}

struct World {
    plan: Plan,
    events: Events<Event>,
    network: Network,
    seats: Holding,
    disk: Disk,
    processes: Vec<Option<Process>>,
    lives: Vec<u32>,
    /// Events of a paused process wait here.
    paused: BTreeMap<usize, VecDeque<Event>>,
    /// Nodes that reach the back end again while their process is paused, and whether it has given
    /// them up.
    deferred_heals: BTreeMap<usize, bool>,
    clients: Vec<Client>,
    wakes: BTreeSet<(u64, bool, usize)>,
    stalled: BTreeSet<LinkId>,
    rng: Rng,
}

/// Runs a plan to its end and checks everything; the error says what was wrong.
pub fn run(plan: Plan) -> Result<Report, String> {
    let mut world = World::new(plan);
    let (mut events, mut hash) = (0, 0u64);
    while !world.clients.iter().all(Client::is_done) {
        let Some(event) = world.events.pop() else {
            return Err(format!("nothing happens any more; {}", world.waiting()));
        };
        events += 1;
        let now = world.events.now();
        world.disk.set_wall_ns((WALL_NS + now) as i64);
        hash = (hash ^ now).wrapping_mul(0x100_0000_01b3).rotate_left(17);
        if now > END || events > EVENTS_MAX {
            return Err(format!("stuck after {events} events; {}", world.waiting()));
        }
        world.happen(event)?;
        world.check()?;
    }
    let scripts = world.clients.iter().flat_map(|c| &c.scripts);
    let scripts: Vec<_> = scripts.collect();
    verdict::check(&world.disk, &scripts)?;
    let seen = scripts.iter().flat_map(|script| script.seen.clone());
    sharing::check(&seen.collect::<Vec<_>>(), RECORD as u64)?;
    Ok(Report {
        end_ns: world.events.now(),
        events,
        hash,
    })
}

impl World {
    fn new(plan: Plan) -> World {
        let mut rng = Rng::new(plan.seed ^ 0xfa17);
        let disk = verdict::shared_files();
        if let Some(cluster) = &plan.cluster {
            cluster.keep_copies(&disk);
        }
        let root = disk.root();
        let programs = plan.programs;
        let clients = (0..plan.clients)
            .map(|c| {
                let script = |p| {
                    let id = (c * programs + p + 1) as u64;
                    let lossy = plan.cluster.is_some();
                    Script::new(id, rng.split(), root.handle, plan.steps, plan.stripe, lossy)
                        .sharing(plan.shares)
                };
                let scripts = (0..programs).map(script).collect();
                Client::new(c as u64 + 1, plan.forwarders, scripts, plan.merge_blocks)
                    .without(plan.loan_mutant)
            })
            .collect();
        let mut world = World {
            events: Events::default(),
            network: Network::new(plan.network, rng.split()),
            seats: match &plan.cluster {
                None => Holding::OneNode(Seats::new(plan.forwarders as u16)),
                Some(cluster) => {
                    Holding::Nodes(Box::new(Shared::new(cluster.clone(), plan.forwarders)))
                }
            },
            disk,
            processes: (0..plan.forwarders).map(|_| None).collect(),
            lives: vec![0; plan.forwarders],
            paused: BTreeMap::new(),
            deferred_heals: BTreeMap::new(),
            clients,
            wakes: BTreeSet::new(),
            stalled: BTreeSet::new(),
            rng,
            plan,
        };
        for forwarder in 0..world.plan.forwarders {
            world.events.push(0, Event::Start(forwarder));
        }
        for (at, fault) in world.plan.faults.clone() {
            world.events.push(at, Event::Fault(fault));
        }
        for client in 0..world.clients.len() {
            world.clients[client].start(0);
            world.events.push(0, Event::WakeClient(client));
        }
        world
    }

    fn config(&mut self, forwarder: usize) -> Config {
        let shared = self.seats.shared();
        let boot = shared.map(|shared| shared.boot(forwarder));
        let plan = &self.plan;
        let layout = Layout {
            seats: plan.forwarders as u16,
            stripe: plan.stripe,
        };
        let scheduler = tidegate_sched::Options {
            policy: plan.policy.into(),
            wall_offset_ns: WALL_NS,
            ..Default::default()
        };
        Config {
            forwarder: forwarder as u16,
            layout,
            fail_over: true,
            payload_max: 64 << 10,
            pipelining: Pipelining::Parallel,
            pool_bytes_max: plan.pool_bytes,
            credits: plan.credits,
            sessions_max: 64,
            sessions_of_user_max: 0,
            connections: 1,
            joined_max: 0,
            lease_ns: 30_000 * MS,
            loan_ns: plan.loan_ns,
            grace_ns: 5_000 * MS,
            uid: 0,
            acts_for_callers: true,
            host: boot.map_or(1, |_| forwarder as u64 + 1),
            boot: boot.unwrap_or(1),
            export: Default::default(),
            process: 0,
            root: self.disk.root(),
            scheduler,
            shares: Default::default(),
            record: false,
        }
    }

    fn waiting(&self) -> String {
        let scripts = self.clients.iter().flat_map(|c| &c.scripts);
        let waiting: Vec<_> = scripts.filter_map(Script::waits_for).collect();
        let alive: Vec<_> = self.processes.iter().map(Option::is_some).collect();
        format!("alive: {alive:?}; waiting for: {waiting:?}")
    }

    /// The forwarder whose process an event concerns, and whether that process still lives.
    fn concerns(&self, event: &Event) -> Option<(usize, bool)> {
        match event {
            Event::Accept(link) | Event::AtForwarder(link, _) | Event::LostAtForwarder(link) => {
                let forwarder = self.network.ends(*link).1;
                Some((forwarder, self.processes[forwarder].is_some()))
            }
            Event::Job(life, _)
            | Event::Seat(life, _)
            | Event::Step(life, _)
            | Event::Look(life)
            | Event::WakeForwarder(life) => {
                let lives = self.processes[life.0]
                    .as_ref()
                    .is_some_and(|p| p.life == *life);
                Some((life.0, lives))
            }
            _ => None,
        }
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        if let Some((forwarder, lives)) = self.concerns(&event) {
            if !lives {
                return Ok(());
            }
            if let Some(waiting) = self.paused.get_mut(&forwarder) {
                waiting.push_back(event);
                return Ok(());
            }
            self.at_forwarder(forwarder, event);
            return Ok(());
        }
        match event {
            Event::Fault(fault) => self.fault(fault)?,
            Event::Start(forwarder) => self.start(forwarder),
            Event::Resume(life) => self.resume(life)?,
            Event::CutStalled(link) => self.cut(link),
            Event::Limit(forwarder, cut) => self.limit(forwarder, cut)?,
            Event::Heal(forwarder, cut) => self.heal(forwarder, cut)?,
            event => return self.at_client(event),
        }
        Ok(())
    }

    fn at_forwarder(&mut self, forwarder: usize, event: Event) {
        let now = self.events.now();
        let mut effects = Vec::new();
        let Some(process) = &mut self.processes[forwarder] else {
            return;
        };
        match event {
            Event::Accept(link) if self.network.is_open(link) => process.connected(now, link),
            Event::AtForwarder(link, frame) if self.network.is_open(link) => {
                process.received(now, link, &frame);
            }
            Event::LostAtForwarder(link) => process.closed(now, link),
            Event::Job(_, job) => process.job_ends(now, job, &mut self.seats),
            Event::Seat(_, seat) => process.try_seat(now, seat, &mut self.seats, &mut effects),
            Event::Step(_, step) => process.step(now, step, &mut self.seats),
            Event::Look(life) => {
                process.look(now, &mut self.seats);
                let often = self.plan.cluster.as_ref().map_or(100 * MS, |_| LOOK_NS);
                self.events.push(now + often, Event::Look(life));
            }
            Event::WakeForwarder(_) => {
                self.wakes.remove(&(now, false, forwarder));
            }
            _ => {}
        }
        self.pump_forwarder(forwarder, effects);
    }

    fn pump_forwarder(&mut self, forwarder: usize, mut effects: Vec<process::Effect>) {
        let now = self.events.now();
        let Some(process) = &mut self.processes[forwarder] else {
            return;
        };
        process.pump(now, &mut self.seats, &mut effects);
        let (life, wake) = (process.life, process.wake_at());
        for effect in effects {
            match effect {
                process::Effect::Send(link, frame) => {
                    self.send(link, End::Client, frame);
                }
                process::Effect::Cut(link) => self.cut(link),
                process::Effect::Job(job, ns) => self.events.push(now + ns, Event::Job(life, job)),
                process::Effect::RetrySeat(seat, ns) => {
                    self.events.push(now + ns, Event::Seat(life, seat));
                }
                process::Effect::Step(step, ns) => {
                    self.events.push(now + ns, Event::Step(life, step));
                }
            }
        }
        if let Some(at) = wake
            && self.wakes.insert((at.max(now + 1), false, forwarder))
        {
            self.events
                .push(at.max(now + 1), Event::WakeForwarder(life));
        }
    }

    fn at_client(&mut self, event: Event) -> Result<(), String> {
        let now = self.events.now();
        let client = match event {
            Event::Connected(link) => {
                let (client, forwarder) = self.network.ends(link);
                if self.clients[client].links[forwarder] != Some(link) {
                    return Ok(());
                }
                self.clients[client].connected(now, forwarder);
                client
            }
            Event::Refused { client, forwarder } => {
                if self.clients[client].links[forwarder].is_some() {
                    return Ok(());
                }
                self.clients[client].lost(now, forwarder);
                client
            }
            Event::AtClient(link, frame) => {
                let (client, forwarder) = self.network.ends(link);
                if self.clients[client].links[forwarder] != Some(link)
                    || !self.network.is_open(link)
                {
                    return Ok(());
                }
                self.clients[client].received(now, forwarder, frame);
                client
            }
            Event::LostAtClient(link) => {
                let (client, forwarder) = self.network.ends(link);
                if self.clients[client].links[forwarder] != Some(link) {
                    return Ok(());
                }
                self.clients[client].lost(now, forwarder);
                client
            }
            Event::WakeClient(client) => {
                self.wakes.remove(&(now, true, client));
                client
            }
            _ => unreachable!("an event of a forwarder's"),
        };
        self.pump_client(client)
    }

    fn pump_client(&mut self, client: usize) -> Result<(), String> {
        let now = self.events.now();
        loop {
            let mut effects = Vec::new();
            self.clients[client].pump(now, &mut effects)?;
            for script in &mut self.clients[client].scripts {
                if let Some(handle) = script.unknown() {
                    let bytes = self.disk.contents_of(handle);
                    script.found(handle, bytes.as_deref().unwrap_or_default())?;
                }
            }
            if effects.is_empty() {
                break;
            }
            for effect in effects {
                match effect {
                    client::Effect::Connect(forwarder) => self.connect(client, forwarder),
                    client::Effect::Cut(link) => self.cut(link),
                    client::Effect::Send(link, frame) => {
                        self.send(link, End::Forwarder, frame);
                    }
                }
            }
        }
        if let Some(at) = self.clients[client].wake_at()
            && self.wakes.insert((at.max(now + 1), true, client))
        {
            self.events.push(at.max(now + 1), Event::WakeClient(client));
        }
        Ok(())
    }

    fn connect(&mut self, client: usize, forwarder: usize) {
        let now = self.events.now();
        if self.processes[forwarder].is_none() {
            let at = now + self.plan.network.delay_min;
            self.events.push(at, Event::Refused { client, forwarder });
            return;
        }
        let (link, at) = self.network.open(now, client, forwarder);
        self.clients[client].links[forwarder] = Some(link);
        self.events.push(at, Event::Accept(link));
        match self.network.arrival(at, link, End::Client) {
            Some(at) => self.events.push(at, Event::Connected(link)),
            None => self.stalls(link),
        }
    }

    fn send(&mut self, link: LinkId, to: End, frame: Frame) {
        match self.network.arrival(self.events.now(), link, to) {
            Some(at) if to == End::Client => self.events.push(at, Event::AtClient(link, frame)),
            Some(at) => self.events.push(at, Event::AtForwarder(link, frame)),
            None => self.stalls(link),
        }
    }

    /// A stalled connection is cut when the transport gives up on it.
    fn stalls(&mut self, link: LinkId) {
        if self.network.is_open(link) && self.stalled.insert(link) {
            let at = self.events.now() + self.rng.between(200 * MS, 3_000 * MS);
            self.events.push(at, Event::CutStalled(link));
        }
    }

    fn cut(&mut self, link: LinkId) {
        if let Some(at) = self.network.cut(self.events.now(), link) {
            // Where nothing says that the other end is gone, a client goes on for a while.
            let unnoticed = match self.plan.shares && self.rng.one_in(2) {
                true => self.rng.below(1_500 * MS),
                false => 0,
            };
            self.events.push(at + unnoticed, Event::LostAtClient(link));
            self.events.push(at, Event::LostAtForwarder(link));
        }
    }
}
