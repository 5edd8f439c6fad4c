//! The simulated machine: compute nodes with the product's client core, a network, forwarders with
//! the product's forwarder core, and devices, in virtual time.
//!
//! A run ([`run`]) is a function of its [`Setup`]: same setup, same [`Outcome`], byte for byte.

mod asked;
mod direct;
mod fabric;
mod faults;
mod follow;
mod gossip;
mod host;
mod node;
mod operation;
mod outcome;
mod own_device;
mod passes;
mod pieces;
mod port;
mod process;
mod program;
mod seats;
mod servers;
mod setup;
mod totals;
mod wakes;

pub use follow::{Depth, Slices, Timeline};
pub use host::Work;
pub use node::CALL_BYTES_MAX;
pub use operation::Operation;
pub use outcome::{Outcome, RECORDS_MAX};
pub use port::NetworkOptions;
pub use program::{Access, Part, Program, Step};
pub use servers::ServersOptions;
pub use setup::{Application, Fault, FaultKind, ForwarderOptions, Process, Setup, SetupError};
pub use totals::{ApplicationTotals, Spreads, Totals};

use crate::events::Events;
use crate::rng::Rng;
use fabric::{Body, Fabric, Link, LinkId, Sending, moved_bytes, request_bytes};
use follow::Follows;
use host::Host;
use node::{Answered, Node};
use outcome::Recorder;
use passes::Passes;
use process::{App, Running};
use seats::Seats;
use servers::Servers;
use std::sync::Arc;
use tidegate_client::core as client;
use tidegate_client::core::CallId;
use tidegate_forward::{Config, Input, JobId};
use tidegate_sched::{Prediction, ServiceReport};

/// One second.
const SECOND: u64 = 1_000_000_000;
enum Event {
    /// A message begins to arrive.
    Arrives(u32),
    /// A message has arrived.
    There(u32),
    /// A connection is made at the forwarder's end, then at the node's.
    Accepted(LinkId),
    Connected(LinkId),
    /// No process listened.
    Refused {
        node: u32,
        forwarder: u32,
    },
    /// A connection is lost at the node's end, or at the forwarder's.
    LostAtNode(LinkId),
    LostAtForwarder(LinkId),
    JobEnds {
        forwarder: u32,
        life: u32,
        job: JobId,
    },
    /// A forwarder's device may have done something.
    WakeDevice(u32),
    /// A server may have done something.
    WakeServer(u32),
    Sent(Sending),
    WakeForwarder(u32),
    WakeNode(u32),
    Resume(u32),
    /// The shuffle that follows a process's access has ended.
    ShuffleEnds(u32, Box<Answered>),
    /// A forwarder's service report has arrived at the others.
    Told {
        forwarder: u32,
        given: ServiceReport,
    },
    /// A message has arrived at a process from another of its application on the same node.
    Word(u32),
    TakeSeat {
        forwarder: u32,
        life: u32,
        seat: u16,
    },
    GiveBack {
        forwarder: u32,
        life: u32,
        seat: u16,
    },
    Fault(u32),
}

/// Runs a setup to its end.
pub fn run(setup: Setup) -> Result<Outcome, SetupError> {
    setup.check()?;
    let mut world = World::new(setup);
    world.begin();
    while world.goes_on() {
        let Some(event) = world.events.pop() else {
            return Err(world.stuck("nothing is left to happen"));
        };
        world.recorder.events += 1;
        if world.events.now() > world.ends_by() {
            return Err(world.stuck("the time limit is over"));
        }
        world.step(event);
        if world.recorder.is_full() {
            return Err(SetupError(format!(
                "more than {} requests, which are all kept in memory: make the run shorter, or \
                 leave out what needs each of them (requests, optimum, --record)",
                world.recorder.records_max
            )));
        }
    }
    Ok(world.into_outcome())
}

/// By node, how far its clock is ahead of the slowest that there can be, ns.
fn skews(setup: &Setup, rng: &mut Rng) -> Vec<u64> {
    let skews = (0..setup.nodes).map(|_| match setup.clock_skew_ns {
        0 => 0,
        skew => rng.below(2 * skew + 1),
    });
    skews.collect()
}

struct World {
    forwarding: ForwarderOptions,
    config: Config,
    limit_ns: u64,
    events: Events<Event>,
    fabric: Fabric,
    seats: Seats,
    nodes: Vec<Node>,
    hosts: Vec<Host>,
    servers: Option<Servers>,
    /// Programs reach the servers without forwarders.
    direct: bool,
    direct_work: Work,
    apps: Vec<App>,
    processes: Vec<Running>,
    faults: Vec<Fault>,
    passes: Passes,
    /// By forwarder, if they have any.
    predictions: Vec<Arc<Prediction>>,
    /// Sessions that are being opened before the run.
    opening: usize,
    /// Processes whose program has not ended, and has to.
    running: usize,
    recorder: Recorder,
}

impl World {
    fn new(setup: Setup) -> World {
        let mut rng = Rng::new(setup.seed);
        let forwarders = setup.forwarders.count as usize;
        // Where windows begin relative to the run is chance.
        let wall_ns = 1_700_000_000 * SECOND + rng.below(3600 * SECOND);
        let config = setup.config(wall_ns);
        let layout = config.layout;
        let depth = config.scheduler.depth;
        let device = |number: u64| setup.device(number);
        let servers = setup.servers.clone();
        let servers = servers.map(|it| Servers::new(it, &setup.forwarders.device, device));
        let host = |number: u64| {
            let device = setup.servers.is_none().then(|| device(number));
            let contention_percent = setup.forwarders.contention_percent;
            Host::new(device.as_ref(), depth, layout, contention_percent)
        };
        let hosts = (0..forwarders as u64).map(host).collect();
        let skews = skews(&setup, &mut rng);
        let nodes = skews.iter().enumerate().map(|(number, skew)| {
            let wall_ns = wall_ns + skew - setup.clock_skew_ns.min(wall_ns);
            let merge = setup.forwarders.merge_blocks;
            let payload_max = setup.forwarders.payload_max;
            let mut node = Node::new(number, forwarders, payload_max, merge, wall_ns);
            if setup.note_served {
                node.note_served();
            }
            node
        });
        let nodes: Vec<Node> = nodes.collect();
        let fabric = Fabric::new(setup.network, setup.ports(), rng.split());
        let mut passes = Passes::new(setup.rehearsals, setup.applications, rng);
        let (apps, processes) = passes.next();
        let follows = Follows {
            promises: setup.promises,
            slice_ns: setup.timeline_ns,
            shares: setup.forwarders.scheduler.shares.clone(),
            forwarders,
        };
        let mut world = World {
            forwarding: setup.forwarders,
            config,
            limit_ns: setup.limit_ns,
            events: Events::default(),
            fabric,
            seats: Seats::new(forwarders),
            hosts,
            servers,
            direct: setup.direct,
            direct_work: Work::default(),
            running: 0,
            recorder: Recorder::new(
                setup.open_sessions && !setup.direct,
                setup.keep_accesses,
                setup.records_max,
                follows,
                wall_ns,
            ),
            nodes,
            apps,
            processes,
            faults: setup.faults,
            passes,
            predictions: setup.predictions,
            opening: 0,
        };
        world.running = world.awaited();
        world
    }

    fn now(&self) -> u64 {
        self.events.now()
    }

    /// Starts all forwarders, and the programs once the sessions are open.
    fn begin(&mut self) {
        for forwarder in 0..self.hosts.len() {
            if !self.direct {
                self.start_host(forwarder);
            }
            self.pump_host(forwarder as u32);
        }
        if self.recorder.opens_sessions {
            for node in 0..self.nodes.len() {
                for forwarder in 0..self.hosts.len() {
                    self.opening += 1;
                    self.nodes[node].open_session(0, forwarder);
                }
                self.pump_node(node as u32);
            }
        }
        if self.opening == 0 {
            self.start_programs();
        }
    }

    fn start_programs(&mut self) {
        let now = self.now();
        self.recorder.begin(now, &self.apps);
        for (forwarder, host) in self.hosts.iter().enumerate() {
            self.recorder.depth_is(forwarder, now, || host.depth());
        }
        self.hosts.iter_mut().for_each(Host::count_work);
        if let Some(servers) = &mut self.servers {
            servers.count_work(now);
        }
        self.direct_work = Work::default();
        let faults = self.faults.iter().enumerate();
        for (number, fault) in faults.filter(|_| self.passes.is_last()) {
            self.events
                .push(now + fault.at_ns, Event::Fault(number as u32));
        }
        for (number, process) in self.processes.iter().enumerate() {
            self.events
                .push(now + process.starts_at, Event::Resume(number as u32));
        }
    }

    fn step(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Arrives(message) => self.arrives(message),
            Event::There(message) => self.there(message),
            Event::Accepted(link) => self.accepted(link),
            Event::Connected(link) => self.connected(link),
            Event::Refused { node, forwarder } => {
                self.lost_at_node(node, forwarder);
            }
            Event::LostAtNode(link) => self.link_lost_at_node(link),
            Event::LostAtForwarder(link) => self.link_lost_at_forwarder(link),
            Event::JobEnds {
                forwarder,
                life,
                job,
            } => self.job_ends(forwarder, life, job),
            Event::Sent(sending) if self.lives(sending.forwarder, sending.life) => {
                let slot = sending.slot;
                self.hosts[sending.forwarder as usize].tell(now, Input::Sent { slot });
                self.pump_host(sending.forwarder);
            }
            Event::WakeForwarder(_) | Event::WakeDevice(_) | Event::WakeNode(_) => {
                self.wake(&event);
            }
            Event::WakeServer(server) => self.wake_server(server),
            Event::Resume(process) => self.advance(process),
            Event::ShuffleEnds(process, answered) => self.access_ends(process, &answered),
            Event::Word(process) => self.word(process),
            Event::Told { forwarder, given } => self.told(forwarder, given),
            Event::TakeSeat {
                forwarder,
                life,
                seat,
            } if self.lives(forwarder, life) => {
                self.take_seat(forwarder, seat);
                self.pump_host(forwarder);
            }
            Event::GiveBack {
                forwarder,
                life,
                seat,
            } if self.lives(forwarder, life) => self.give_back(forwarder, seat),
            Event::Fault(number) => self.fault(number),
            // Of a process that is dead.
            Event::Sent(_) | Event::TakeSeat { .. } | Event::GiveBack { .. } => {}
        }
    }

    fn link_lost_at_node(&mut self, link: LinkId) {
        let ends = self.fabric.link(link);
        let (node, forwarder) = (ends.node, ends.forwarder);
        if self.nodes[node as usize].links[forwarder as usize] == Some(link) {
            self.lost_at_node(node, forwarder);
        }
    }

    fn link_lost_at_forwarder(&mut self, link: LinkId) {
        let ends = self.fabric.link(link);
        let (forwarder, life) = (ends.forwarder, ends.life);
        if self.lives(forwarder, life) {
            let now = self.now();
            self.hosts[forwarder as usize].closed(now, link);
            self.pump_host(forwarder);
        }
    }

    /// A job of a forwarder has ended, unless the process that began it is dead.
    fn job_ends(&mut self, forwarder: u32, life: u32, job: JobId) {
        if self.lives(forwarder, life) {
            let now = self.now();
            self.hosts[forwarder as usize].job_ends(now, job);
            self.pump_host(forwarder);
        }
    }

    fn lives(&self, forwarder: u32, life: u32) -> bool {
        let host = &self.hosts[forwarder as usize];
        host.core.is_some() && host.life == life
    }

    fn send(&mut self, ports: (u32, u32), bytes: u64, body: Body) -> u64 {
        let now = self.now();
        let (message, arrives, sent) = self.fabric.send(now, ports, bytes, body);
        self.events.push(arrives, Event::Arrives(message));
        sent
    }

    fn forwarder_port(&self, forwarder: u32) -> u32 {
        self.nodes.len() as u32 + forwarder
    }

    fn arrives(&mut self, message: u32) {
        let now = self.now();
        let there = self.fabric.receive(now, message);
        let there = match self.fabric.message(message).body {
            Body::Request(link, ref request) => {
                let bytes = moved_bytes(request);
                let host = &mut self.hosts[self.fabric.link(link).forwarder as usize];
                host.takes(there, self.forwarding.process_ns(bytes))
            }
            Body::Piece(ref piece) => self.server_takes(there, piece.server),
            Body::Reply(..) | Body::Word(_) | Body::Answer(_) => there,
        };
        self.events.push(there, Event::There(message));
    }

    fn there(&mut self, message: u32) {
        let now = self.now();
        match self.fabric.take(message) {
            Body::Request(link, request) => {
                let ends = self.fabric.link(link);
                let (forwarder, life) = (ends.forwarder, ends.life);
                if ends.open && self.lives(forwarder, life) {
                    self.hosts[forwarder as usize].received(now, link, request);
                    self.pump_host(forwarder);
                }
            }
            Body::Reply(link, reply) => {
                let ends = self.fabric.link(link);
                let (node, forwarder) = (ends.node, ends.forwarder as usize);
                if ends.open && self.nodes[node as usize].links[forwarder] == Some(link) {
                    let payload = Node::payload(reply.payload_len);
                    let input = client::Input::Received {
                        forwarder,
                        reply,
                        payload: payload.into(),
                    };
                    self.nodes[node as usize].tell(now, input);
                    self.pump_node(node);
                }
            }
            Body::Word(process) => self.word(process),
            Body::Piece(piece) => self.piece_arrives(piece),
            Body::Answer(answer) => self.answer_arrives(answer),
        }
    }

    fn connect(&mut self, node: u32, forwarder: u32) {
        let now = self.now();
        let latency = self.fabric.options.latency_ns;
        let host = &self.hosts[forwarder as usize];
        if host.core.is_none() {
            let refused = Event::Refused { node, forwarder };
            return self.events.push(now + 2 * latency, refused);
        }
        let link = self.fabric.connect(node, forwarder, host.life);
        self.nodes[node as usize].links[forwarder as usize] = Some(link);
        self.events.push(now + latency, Event::Accepted(link));
    }

    fn accepted(&mut self, link: LinkId) {
        let now = self.now();
        let latency = self.fabric.options.latency_ns;
        let ends = self.fabric.link(link);
        let (forwarder, life, open) = (ends.forwarder, ends.life, ends.open);
        if !self.lives(forwarder, life) {
            self.fabric.close(link);
            return self.events.push(now + latency, Event::LostAtNode(link));
        }
        if open {
            self.hosts[forwarder as usize].connected(now, Link::conn(link));
            self.pump_host(forwarder);
            self.events.push(now + latency, Event::Connected(link));
        }
    }

    fn connected(&mut self, link: LinkId) {
        let ends = self.fabric.link(link);
        let (node, forwarder, open) = (ends.node, ends.forwarder as usize, ends.open);
        if open && self.nodes[node as usize].links[forwarder] == Some(link) {
            let input = client::Input::Connected { forwarder };
            let now = self.now();
            self.nodes[node as usize].tell(now, input);
            self.pump_node(node);
        }
    }

    fn lost_at_node(&mut self, node: u32, forwarder: u32) {
        let now = self.now();
        let forwarder = forwarder as usize;
        self.nodes[node as usize].links[forwarder] = None;
        let input = client::Input::ConnectionLost { forwarder };
        self.nodes[node as usize].tell(now, input);
        self.pump_node(node);
    }

    /// Does what a forwarder asks until there is nothing more.
    fn pump_host(&mut self, forwarder: u32) {
        let now = self.now();
        let index = forwarder as usize;
        loop {
            while let Some(output) = self.hosts[index].poll(now) {
                self.host_asks(forwarder, output);
            }
            if !self.hosts[index].has_waiting() {
                break;
            }
            self.hosts[index].admit(now);
            match self.hosts[index].poll(now) {
                Some(output) => self.host_asks(forwarder, output),
                None => break,
            }
        }
        let host = &self.hosts[index];
        self.recorder.depth_is(index, now, || host.depth());
        self.wake_host_later(forwarder);
    }

    /// Does what a node's client asks until there is nothing more.
    fn pump_node(&mut self, node: u32) {
        let now = self.now();
        while let Some(output) = self.nodes[node as usize].poll(now) {
            self.node_asks(node, output);
        }
        self.wake_node_later(node);
    }

    fn node_asks(&mut self, node: u32, output: client::Output) {
        match output {
            client::Output::Connect { forwarder } => self.connect(node, forwarder as u32),
            client::Output::Disconnect { forwarder } => {
                let link = self.nodes[node as usize].links[forwarder].take();
                if let Some(link) = link.filter(|link| self.fabric.close(*link)) {
                    let at = self.now() + self.fabric.options.latency_ns;
                    self.events.push(at, Event::LostAtForwarder(link));
                }
            }
            client::Output::Send {
                forwarder, request, ..
            } => {
                let link = self.nodes[node as usize].links[forwarder];
                let link = link.expect("it sends on a connection");
                let ports = (node, self.forwarder_port(forwarder as u32));
                let bytes = request_bytes(&request);
                self.send(ports, bytes, Body::Request(link, request));
            }
            client::Output::Done { id, result } => self.call_done(node, id, result.err()),
            client::Output::Refused { errno, .. } => {
                self.recorder
                    .fails(format!("a session was refused: errno {}", errno.0));
            }
            client::Output::Opened { .. }
            | client::Output::Invalidate { .. }
            | client::Output::Join { .. }
            | client::Output::Log { .. }
            | client::Output::Ended => {}
        }
    }
}
