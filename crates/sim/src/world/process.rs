//! The processes of a run: each carries out its program, step by step.

use super::node::Answered;
use super::program::{Access, Program, Step};
use super::setup::Application;
use super::{Body, Event, World};
use crate::rng::Rng;
use tidegate_client::Collective;
use tidegate_client::Errno;
use tidegate_client::core::CallId;
use tidegate_sched::{AppId, Latency};

/// Collective operations of an application that may be under way at once.
const BEGUN_MAX: usize = 64;

/// An application while it runs.
pub(super) struct App {
    pub(super) id: u64,
    pub(super) background: bool,
    pub(super) within: Option<Latency>,
    /// Number of its first process; they follow each other.
    first: u32,
    processes: u32,
    /// Rounds of messages that a barrier takes.
    rounds: u64,
    /// Processes that wait at the barrier.
    waiting: Vec<u32>,
    /// The last collective operations, by number: when the first process began them, by its clock.
    /// In programs that go together no process is two ahead of another one with accesses to make;
    /// in a replay, one that is further ahead leaves the others an operation of their own.
    begun: [(u64, u64); BEGUN_MAX],
    ended: u32,
}

/// What a process waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Nothing,
    /// For at most this number of accesses without an answer.
    Drain(u32),
    Barrier,
    Messages(u32),
    Exit,
    Ended,
}

/// A process while it runs.
pub(super) struct Running {
    app: u32,
    node: u32,
    program: Box<dyn Program>,
    rng: Rng,
    /// When it starts, ns after the run.
    pub(super) starts_at: u64,
    in_flight: u32,
    /// Messages that were not waited for yet.
    messages: u32,
    wait: Wait,
    /// An access whose time has not come.
    timed: Option<Step>,
}

/// Makes applications and processes ready.
pub(super) fn launch(applications: Vec<Application>, rng: &mut Rng) -> (Vec<App>, Vec<Running>) {
    let (mut apps, mut running) = (Vec::new(), Vec::<Running>::new());
    for (number, application) in applications.into_iter().enumerate() {
        let count = application.processes.len() as u32;
        apps.push(App {
            id: AppId::from_name(&application.name).0,
            background: application.background,
            within: application.within,
            first: running.len() as u32,
            processes: count,
            rounds: u64::from(count.max(1).ilog2() + u32::from(!count.is_power_of_two())),
            waiting: Vec::new(),
            begun: [(u64::MAX, 0); BEGUN_MAX],
            ended: 0,
        });
        let processes = application.processes.into_iter();
        running.extend(processes.map(|process| Running {
            app: number as u32,
            node: process.node,
            program: process.program,
            rng: rng.split(),
            starts_at: process.starts_ns,
            in_flight: 0,
            messages: 0,
            wait: Wait::Nothing,
            timed: None,
        }));
    }
    (apps, running)
}

impl World {
    /// Whether the load goes on until this application has ended. In the measured load only
    /// measured applications count.
    fn waits_for(&self, app: u32) -> bool {
        !self.apps[app as usize].background || !self.passes.is_last()
    }

    /// Processes that have to end before the load has.
    pub(super) fn awaited(&self) -> usize {
        let processes = self.processes.iter();
        processes.filter(|it| self.waits_for(it.app)).count()
    }

    /// Carries out steps of a process until it has to wait.
    pub(super) fn advance(&mut self, number: u32) {
        self.processes[number as usize].wait = Wait::Nothing;
        loop {
            let process = &mut self.processes[number as usize];
            let step = match process.timed.take() {
                Some(step) => step,
                None => process.program.next(&mut process.rng),
            };
            if !self.carry_out(number, step) {
                return;
            }
        }
    }

    /// False if the process waits.
    fn carry_out(&mut self, number: u32, step: Step) -> bool {
        let (now, begun) = (self.now(), self.recorder.begun_ns());
        let process = &self.processes[number as usize];
        let (app, in_flight, messages) = (process.app, process.in_flight, process.messages);
        match step {
            Step::Call(access) => {
                // First, for it may be answered at once.
                self.wait_for(number, Wait::Drain(in_flight));
                self.issue(number, access);
                false
            }
            Step::Issue(access) => {
                self.issue(number, access);
                true
            }
            Step::Sync(file) => self.sync(number, file),
            Step::Timed {
                at_ns,
                until_ns,
                access,
            } => self.call_at(number, (at_ns, until_ns), access),
            Step::Drain(left) if in_flight > left => self.wait_for(number, Wait::Drain(left)),
            Step::Drain(_) => true,
            Step::Barrier => {
                self.wait_for(number, Wait::Barrier);
                self.apps[app as usize].waiting.push(number);
                self.open_barrier(app);
                false
            }
            Step::Think(ns) => {
                self.events
                    .push(now.saturating_add(ns), Event::Resume(number));
                false
            }
            Step::Until(at) if begun.saturating_add(at) > now => {
                let at = begun.saturating_add(at);
                self.events.push(at, Event::Resume(number));
                false
            }
            Step::Until(_) => true,
            Step::Send { rank, bytes } => {
                self.send_word(number, rank, bytes);
                true
            }
            Step::Receive(count) if messages < count => {
                self.wait_for(number, Wait::Messages(count))
            }
            Step::Receive(count) => {
                self.processes[number as usize].messages -= count;
                true
            }
            Step::Begin(operation) => {
                self.begins(number, operation);
                self.recorder.operation_begins(app, operation, now);
                true
            }
            Step::End(operation) => {
                let processes = self.apps[app as usize].processes;
                self.recorder.operation_ends(app, operation, now, processes);
                true
            }
            Step::Exit => {
                self.wait_for(number, Wait::Exit);
                self.exit_if_drained(number);
                false
            }
        }
    }

    /// Makes a call within a time, ns since the process's start. False if the process waits: for
    /// the time or for the answer.
    fn call_at(&mut self, number: u32, (at_ns, until_ns): (u64, u64), access: Access) -> bool {
        let now = self.now();
        let process = &mut self.processes[number as usize];
        let started = self.recorder.begun_ns().saturating_add(process.starts_at);
        if now < started.saturating_add(at_ns) {
            process.timed = Some(Step::Timed {
                at_ns,
                until_ns,
                access,
            });
            let at = started.saturating_add(at_ns);
            self.events.push(at, Event::Resume(number));
            return false;
        }
        let in_time = now < started.saturating_add(until_ns);
        !in_time || self.carry_out(number, Step::Call(access))
    }

    /// Always false: the process waits.
    fn wait_for(&mut self, number: u32, wait: Wait) -> bool {
        self.processes[number as usize].wait = wait;
        false
    }

    fn issue(&mut self, number: u32, access: Access) {
        let now = self.now();
        let process = &mut self.processes[number as usize];
        process.in_flight += 1;
        let (node, app) = (process.node, self.apps[process.app as usize].id);
        self.recorder.access_begins(process.app, now);
        if self.direct {
            return self.access_directly(node, number, access);
        }
        let collective = access.part.map(|part| {
            let stamp_ns = self.begins(number, part.operation);
            let us = |ns: u64| u32::try_from(ns / 1000).unwrap_or(u32::MAX);
            Collective {
                // Numbers of the clients' own operations are small.
                operation: 1 << 63 | part.operation,
                // Each aggregator's part is an operation to those who go by its bytes.
                bytes: 0,
                stamp_ns,
                shuffle_us: us(part.shuffle_ns),
                shuffle_max_us: us(part.shuffle_max_ns),
                shuffle_rank: part.rank,
            }
        });
        self.nodes[node as usize].access(now, (number, app), access, collective);
        self.pump_node(node);
    }

    /// Always false: the process waits for the answer.
    fn sync(&mut self, number: u32, file: u64) -> bool {
        let now = self.now();
        let process = &mut self.processes[number as usize];
        process.wait = Wait::Drain(process.in_flight);
        process.in_flight += 1;
        self.recorder.sync_begins(process.app, now);
        let (node, app) = (process.node, self.apps[process.app as usize].id);
        if self.direct {
            self.sync_directly(node, number);
            return false;
        }
        self.nodes[node as usize].sync(now, (number, app), file);
        self.pump_node(node);
        false
    }

    /// Lets a process begin its part of an operation, or go on with it. The first process's clock
    /// gives the operation's stamp.
    fn begins(&mut self, number: u32, operation: u64) -> u64 {
        let now = self.now();
        let process = &self.processes[number as usize];
        let mut stamp_ns = self.nodes[process.node as usize].wall_ns(now);
        let begun = &mut self.apps[process.app as usize].begun;
        let at = (operation % BEGUN_MAX as u64) as usize;
        if begun[at].0 != operation {
            // The stamp tells operations apart: none that is known may have it already.
            while begun.iter().any(|other| other.1 == stamp_ns) {
                stamp_ns += 1;
            }
            begun[at] = (operation, stamp_ns);
        }
        begun[at].1
    }

    /// Handles the answer to a call.
    pub(super) fn call_done(&mut self, node: u32, id: CallId, errno: Option<Errno>) {
        let now = self.now();
        let answered = self.nodes[node as usize].done(id, errno);
        if let Some(errno) = answered.errno {
            self.recorder
                .fails(format!("an access failed with errno {}", errno.0));
        }
        let Some(number) = answered.asked.process else {
            self.opening -= 1;
            if self.opening == 0 {
                self.start_programs();
            }
            return;
        };
        match answered.asked.shuffle_ns {
            0 => self.access_ends(number, &answered),
            shuffle_ns => {
                let event = Event::ShuffleEnds(number, Box::new(answered));
                self.events.push(now.saturating_add(shuffle_ns), event);
            }
        }
    }

    /// Ends an access, of which nothing more is under way.
    pub(super) fn access_ends(&mut self, number: u32, answered: &Answered) {
        let now = self.now();
        let process = &mut self.processes[number as usize];
        process.in_flight -= 1;
        match answered.asked.is_sync {
            true => self.recorder.sync_ends(process.app, now),
            false => self
                .recorder
                .access_ends(process.app, number, answered, now),
        }
        match process.wait {
            Wait::Drain(left) if process.in_flight <= left => {
                self.events.push(now, Event::Resume(number));
                self.processes[number as usize].wait = Wait::Nothing;
            }
            Wait::Exit => self.exit_if_drained(number),
            _ => {}
        }
    }

    fn exit_if_drained(&mut self, number: u32) {
        let process = &mut self.processes[number as usize];
        if process.in_flight > 0 {
            return;
        }
        process.wait = Wait::Ended;
        let app = process.app;
        self.apps[app as usize].ended += 1;
        if self.waits_for(app) {
            self.running -= 1;
        }
        let now = self.now();
        self.recorder.process_ends(app, now);
        // The others need not wait for it any more.
        self.open_barrier(app);
    }

    fn open_barrier(&mut self, number: u32) {
        let app = &mut self.apps[number as usize];
        let waiting = app.waiting.len() as u32;
        if waiting == 0 || waiting + app.ended < app.processes {
            return;
        }
        let at = self.events.now() + app.rounds * self.fabric.options.latency_ns;
        for process in std::mem::take(&mut app.waiting) {
            self.events.push(at, Event::Resume(process));
        }
    }

    fn send_word(&mut self, from: u32, rank: u32, bytes: u64) {
        let now = self.now();
        let app = &self.apps[self.processes[from as usize].app as usize];
        let to = app.first + rank.min(app.processes - 1);
        let ports = (
            self.processes[from as usize].node,
            self.processes[to as usize].node,
        );
        if ports.0 == ports.1 {
            // Through the node's memory.
            let at = now + self.forwarding.memory_ns(bytes);
            return self.events.push(at, Event::Word(to));
        }
        self.send(ports, bytes, Body::Word(to));
    }

    /// A message from another process has arrived.
    pub(super) fn word(&mut self, number: u32) {
        let process = &mut self.processes[number as usize];
        process.messages += 1;
        if let Wait::Messages(count) = process.wait
            && process.messages >= count
        {
            process.messages -= count;
            self.advance(number);
        }
    }
}
