//! A forwarder's process in the simulated world: the product's `Forwarder`, a host that carries its
//! jobs out on the model file system, and what a kill does to them.

use super::clock::Clock;
use super::cluster::Life;
use super::keeper::{Keeper, Step};
use super::network::LinkId;
use super::seats::Holding;
use crate::rng::Rng;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::sync::Arc;
use tidegate_forward::model::{Disk, ModelFiles, Switch};
use tidegate_forward::model_jobs::{Slots, carry_out};
use tidegate_forward::{
    Access, Admission, AdmissionQueues, Admits, ArrivalNumber, Config, ConnId, Errno, Forwarder,
    Input, Job, JobId, JobResult, Output, Peer,
};
use tidegate_sched::Time;
use tidegate_wire::{Caller, Layout, Op, Request};

/// Device time that each data job reports, ns.
const DEVICE_NS: u64 = 1000;

/// A frame under way: the header's bytes and the payload.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// Header and body.
    pub head: Vec<u8>,
    /// Payload.
    pub payload: Vec<u8>,
}

/// What a process asks the world to do.
pub enum Effect {
    /// Send a frame to the client's end.
    Send(LinkId, Frame),
    /// Close a connection.
    Cut(LinkId),
    /// End a job after this time, ns.
    Job(JobId, u64),
    /// Ask for a seat again after this time, ns.
    RetrySeat(u16, u64),
    /// Go on with a call about seats after this time, ns.
    Step(Step, u64),
}

/// A request and its payload.
type Came = (Request, Vec<u8>);

/// A running forwarder.
pub struct Process {
    /// The forwarder, and which run of its process this is.
    pub life: Life,
    core: Forwarder,
    files: ModelFiles,
    switch: Switch,
    layout: Layout,
    rng: Rng,
    slots: Slots,
    links: BTreeSet<LinkId>,
    /// What has arrived and the core was not asked for yet.
    inbox: VecDeque<(LinkId, ArrivalNumber, Came)>,
    waiting: AdmissionQueues<Came>,
    jobs: BTreeMap<JobId, Job>,
    /// What those have found that looked when they began.
    looked: BTreeMap<JobId, JobResult>,
    /// Those of them that wait for the back end to be reached again.
    hanging: Vec<JobId>,
    payload_max: u32,
    clock: Clock,
    keeper: Option<Keeper>,
}

impl Process {
    /// Starts a process.
    pub fn start(
        life: Life,
        config: Config,
        disk: &Disk,
        seats: &mut Holding,
        mut rng: Rng,
    ) -> Process {
        let switch = Switch::new();
        let (mut clock, mut keeper) = (Clock::TRUE, None);
        let files = match seats.shared() {
            None => disk.files(&switch),
            Some(shared) => {
                let ttl_ns = shared.options.ttl_ns;
                clock = shared.options.clocks[life.0];
                let rng = rng.split();
                keeper = Some(Keeper::new(life, clock, ttl_ns, switch.clone(), rng));
                disk.files_on(shared.mount(life.0), &switch)
            }
        };
        let (payload_max, layout) = (config.payload_max, config.layout);
        let core = Forwarder::new(config).expect("the world's options are right");
        let (slots, links, inbox, waiting, jobs, hanging) = Default::default();
        Process {
            life,
            core,
            files,
            switch,
            layout,
            rng,
            slots,
            links,
            inbox,
            waiting,
            jobs,
            looked: BTreeMap::new(),
            hanging,
            payload_max,
            clock,
            keeper,
        }
    }

    /// A client has connected.
    pub fn connected(&mut self, now: u64, link: LinkId) {
        self.links.insert(link);
        let peer = Peer {
            credentials: Some(Caller::alone(0, 0)),
            powerless: None,
            address: format!("link {link}"),
            grant: None,
        };
        self.core.handle(
            self.clock.shows(now),
            Input::Connected {
                conn: ConnId(link),
                peer,
            },
        );
    }

    /// A connection has ended.
    pub fn closed(&mut self, now: u64, link: LinkId) {
        if self.forget(link) {
            let time = self.clock.shows(now);
            self.core.handle(time, Input::Closed { conn: ConnId(link) });
        }
    }

    /// Forgets a link with all that came from it. True if there was one.
    fn forget(&mut self, link: LinkId) -> bool {
        self.inbox.retain(|(its, ..)| *its != link);
        self.waiting.closed(ConnId(link));
        self.links.remove(&link)
    }

    /// A frame has arrived.
    pub fn received(&mut self, now: u64, link: LinkId, frame: &Frame) {
        let header = frame.head[..64].try_into().expect("a head has 64 bytes");
        let header = tidegate_wire::frame::decode_header(header, self.payload_max)
            .expect("the client's frames are right");
        let request = tidegate_wire::frame::decode_request(&header, &frame.head[64..])
            .expect("the client's frames are right");
        if self.links.contains(&link) {
            let number = self.waiting.arrived(self.clock.shows(now));
            let came = (request, frame.payload.clone());
            self.inbox.push_back((link, number, came));
        }
    }

    /// Carries a job out whose time has come, and reports it, if the node can reach the back end.
    pub fn job_ends(&mut self, now: u64, job: JobId, seats: &mut Holding) {
        let (mut late, mut hangs) = (false, false);
        if let (Some(keeper), Some(shared)) = (&self.keeper, seats.shared()) {
            late = keeper.is_closed(now, shared);
            hangs = !shared.reaches(self.life.0);
            keeper.fence.set_closed(late);
        }
        if hangs && !late {
            return self.hanging.push(job);
        }
        let work = self.jobs.remove(&job).expect("a job ends once");
        let result = match late {
            // What is cut off may still be asked for what its node knows.
            true => work.refused().result(Access::NotHeld),
            false => match self.looked.remove(&job) {
                Some(result) => result,
                None => carry_out(&mut self.files, &mut self.slots, work, DEVICE_NS),
            },
        };
        let time = self.clock.shows(now);
        self.core.handle(time, Input::Finished { job, result });
    }

    /// Lets some look-ups, and changes that look at their directory afterwards, take place when
    /// they begin: what they tell at their end may be old by then.
    fn look_early(&mut self, job: JobId, work: &Job) {
        let Job::Op {
            caller,
            op,
            reply_slot,
            directory,
            ..
        } = work
        else {
            return;
        };
        let looks = matches!(op, Op::Lookup { .. } | Op::Getattr { .. }) || directory.is_some();
        if !looks || self.keeper.is_some() || self.rng.one_in(2) {
            return;
        }
        let work = Job::Op {
            caller: caller.clone(),
            op: op.clone(),
            reply_slot: reply_slot.clone(),
            payload: None,
            directory: *directory,
        };
        let result = carry_out(&mut self.files, &mut self.slots, work, DEVICE_NS);
        self.looked.insert(job, result);
    }

    /// The node reaches the back end again. Jobs that hung go on, late as they are, unless the back
    /// end has given the node up and refuses them.
    pub fn heal(&mut self, now: u64, dropped: bool, seats: &mut Holding) {
        let (Some(keeper), Some(shared)) = (&mut self.keeper, seats.shared()) else {
            return;
        };
        let late = keeper.is_closed(now, shared);
        for job in std::mem::take(&mut self.hanging) {
            let Some(work) = self.jobs.remove(&job) else {
                continue;
            };
            let result = match dropped {
                true => work.refused().result(Errno::EIO),
                false => {
                    // Either its first call hung, and its intent comes too late; or its last one.
                    let first = self.rng.one_in(2);
                    let fence = self.keeper.as_ref().map(|keeper| keeper.fence.clone());
                    fence.inspect(|fence| fence.set_closed(late && first));
                    carry_out(&mut self.files, &mut self.slots, work, DEVICE_NS)
                }
            };
            let time = self.clock.shows(now);
            self.core.handle(time, Input::Finished { job, result });
        }
        if let Some(keeper) = &mut self.keeper {
            keeper.fence.set_closed(late);
            keeper.heal(now, dropped, shared, &mut self.core);
        }
    }

    /// Kills the process. Each job under way has got to a random point, unless the back end has
    /// given the node up, or the fence keeps the job from beginning. `refused`: jobs that hung when
    /// the node was given up are still here.
    pub fn kill(mut self, seats: &mut Holding, now: u64, refused: bool) {
        let (mut late, mut given_up) = (false, false);
        if let (Some(keeper), Some(shared)) = (&self.keeper, seats.shared()) {
            late = keeper.is_closed(now, shared);
            given_up = shared.has_given_up(self.life.0);
            keeper.fence.set_closed(late);
        }
        for (job, work) in std::mem::take(&mut self.jobs) {
            let torn = self.rng.one_in(2);
            self.switch.fail_after(self.rng.below(24), torn);
            let hangs = self.hanging.contains(&job);
            let kept_out = if hangs { refused } else { late };
            if !given_up && !kept_out {
                let _ = carry_out(&mut self.files, &mut self.slots, work, DEVICE_NS);
            }
        }
        match seats {
            Holding::OneNode(seats) => seats.died(self.life),
            Holding::Nodes(shared) => shared.died(self.life),
        }
    }

    /// When the world must pump the process again if nothing happens before, in ns.
    pub fn wake_at(&self) -> Option<u64> {
        self.core.wake_at().map(|at| self.clock.when(at))
    }

    /// Tries for a seat.
    pub fn try_seat(&mut self, now: u64, seat: u16, seats: &mut Holding, out: &mut Vec<Effect>) {
        let seats = match (seats, &mut self.keeper) {
            (Holding::Nodes(shared), Some(keeper)) => {
                return keeper.ask(now, seat, shared, &mut self.core);
            }
            (Holding::OneNode(seats), _) => seats,
            _ => unreachable!("on a node of its own each process has a keeper"),
        };
        let own = usize::from(seat) == self.life.0;
        match seats.take(seat, self.life, &self.switch) {
            Some((generation, table)) => {
                if own {
                    seats.want(seat, false);
                }
                let table = Arc::new(table);
                self.core.handle(
                    Time(now),
                    Input::SeatTaken {
                        seat,
                        generation,
                        table,
                    },
                );
            }
            None if own => {
                seats.want(seat, true);
                out.push(Effect::RetrySeat(seat, 20_000_000));
            }
            None => self.core.handle(Time(now), Input::SeatRefused { seat }),
        }
    }

    /// Gives seats back whose owners are back, and renews leases.
    pub fn look(&mut self, now: u64, seats: &mut Holding) {
        let seats = match (seats, &mut self.keeper) {
            (Holding::Nodes(shared), Some(keeper)) => {
                return keeper.look(now, shared, &mut self.core);
            }
            (Holding::OneNode(seats), _) => seats,
            _ => unreachable!("on a node of its own each process has a keeper"),
        };
        for seat in seats.to_give_back(self.life) {
            if usize::from(seat) != self.life.0 {
                self.core.handle(Time(now), Input::SeatWanted { seat });
            }
        }
    }

    /// Carries out a step of a call about seats.
    pub fn step(&mut self, now: u64, step: Step, seats: &mut Holding) {
        if let (Some(keeper), Some(shared)) = (&mut self.keeper, seats.shared()) {
            keeper.fence.set_closed(keeper.is_closed(now, shared));
            keeper.step(now, step, shared, &mut self.core);
        }
    }

    /// Gives the core its inputs and does what it asks for, until there is nothing more.
    pub fn pump(&mut self, now: u64, seats: &mut Holding, out: &mut Vec<Effect>) {
        loop {
            let admitted = self.admit(now);
            let mut asked = false;
            while let Some(output) = self.core.poll(self.clock.shows(now)) {
                asked = true;
                self.output(now, output, seats, out);
            }
            if !admitted && !asked {
                break;
            }
        }
        if let Some(keeper) = &mut self.keeper {
            let begun = keeper.begun.drain(..);
            out.extend(begun.map(|(step, ns)| Effect::Step(step, ns)));
        }
    }

    fn admit(&mut self, now: u64) -> bool {
        let mut waiting = mem::take(&mut self.waiting);
        let mut asking = Asking { process: self, now };
        let mut some = false;
        while let Some((link, number, came)) = asking.process.inbox.pop_front() {
            let conn = ConnId(link);
            let Some(came) = waiting.behind(conn, number, came) else {
                continue;
            };
            some = true;
            if let Some(came) = asking.admit(conn, number, came) {
                let queue = asking.process.core.queue_of(conn);
                waiting.wait(conn, number, came, queue);
            }
        }
        some |= waiting.retry(&mut asking);
        self.waiting = waiting;
        some
    }

    fn output(&mut self, now: u64, output: Output, seats: &mut Holding, out: &mut Vec<Effect>) {
        let time = self.clock.shows(now);
        match output {
            Output::Send {
                conn,
                op,
                reply,
                slot,
            } => {
                let mut frame = Frame::default();
                tidegate_wire::frame::encode_reply(op, &reply, &mut frame.head);
                if let Some(slot) = slot {
                    let mut payload = self.slots.remove(&slot).expect("a reply owns its slot");
                    if reply.payload_len > 0 {
                        payload.truncate(reply.payload_len as usize);
                        frame.payload = payload;
                        self.core.handle(time, Input::Sent { slot });
                    }
                }
                if let Some(shared) = seats.shared()
                    && reply.generation != 0
                {
                    shared.answered(reply.seat, self.life, reply.generation, now);
                }
                out.push(Effect::Send(conn.0, frame));
            }
            Output::Broadcast(_) => {}
            Output::Free { slot } => {
                self.slots.remove(&slot);
            }
            Output::Start { job, work } => {
                let ns = self.rng.between(20_000, 3_000_000);
                self.look_early(job, &work);
                self.jobs.insert(job, work);
                out.push(Effect::Job(job, ns));
            }
            Output::TakeSeat { seat } => self.try_seat(now, seat, seats, out),
            Output::ReleaseSeat { seat } => match (seats, &mut self.keeper) {
                (Holding::Nodes(shared), Some(keeper)) => keeper.release(now, seat, shared),
                (Holding::OneNode(seats), _) => seats.release(seat, self.life),
                _ => unreachable!("on a node of its own each process has a keeper"),
            },
            Output::Close { conn, .. } => {
                self.forget(conn.0);
                out.push(Effect::Cut(conn.0));
            }
            Output::ParsePolicy { policy, .. } => {
                let options = Err((Errno::EINVAL, "the world changes no policy".into()));
                self.core
                    .handle(time, Input::PolicyParsed { policy, options });
            }
            Output::ParseShares { policy, .. } => {
                let rules = Err((Errno::EINVAL, "the world changes no shares".into()));
                self.core
                    .handle(time, Input::SharesParsed { policy, rules });
            }
            Output::Reclaimed { seat } => {
                let layout = self.layout;
                self.files
                    .let_go(|handle| layout.seat_of_file(handle) == seat);
            }
            Output::Served(_) | Output::Log { .. } | Output::Drained => {}
        }
    }
}

/// A process that asks at this time whether there is room for requests.
struct Asking<'p> {
    process: &'p mut Process,
    now: u64,
}

impl Admits<Came> for Asking<'_> {
    fn admit(&mut self, conn: ConnId, number: ArrivalNumber, came: Came) -> Option<Came> {
        let process = &mut *self.process;
        let time = process.clock.shows(self.now);
        let slot = match process.core.admit(time, conn, number, &came.0) {
            Admission::NoPayload => None,
            Admission::Slot { slot, len } => Some((slot, len)),
            Admission::Wait => return Some(came),
            Admission::Refuse(reason) => panic!("a right client is refused: {reason}"),
        };
        let (request, mut buffer) = came;
        if let Some((slot, len)) = slot {
            buffer.resize(len as usize, 0);
            let before = process.slots.insert(slot, buffer);
            assert!(before.is_none(), "{slot:?} is in use");
        }
        let received = Input::Received {
            conn,
            request,
            slot: slot.map(|(slot, _)| slot),
        };
        process.core.handle(time, received);
        None
    }

    fn app_of((request, _): &Came) -> Option<u64> {
        Forwarder::app_of(request)
    }

    fn forwarder(&mut self) -> &mut Forwarder {
        &mut self.process.core
    }
}
