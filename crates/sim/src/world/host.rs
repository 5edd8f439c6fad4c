//! A forwarder in the simulated world: the product's core, and the device behind it, unless that
//! is at servers.

use super::fabric::{Link, LinkId};
use super::own_device::{Given, OwnDevice};
use super::pieces::Asked;
use std::collections::{BTreeMap, VecDeque};
use tidegate_device::DeviceOptions;
use tidegate_device::address::local_offset;
use tidegate_forward::{
    Admission, AdmissionQueues, Admits, ArrivalNumber, Config, ConnId, Forwarder, Input, IoPart,
    Job, JobId, JobResult, Output, Peer,
};
use tidegate_sched::{Direction, Time};
use tidegate_wire::{Caller, Handle, Layout, Op, Outcome, Request};

/// What a forwarder has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Time in which its device had something to do, ns; 0 if it has none.
    pub busy_ns: u64,
    /// Calls to the back end.
    pub calls: u64,
    /// Requests in them; an extent of list I/O counts as one.
    pub requests: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

/// A job at the back end.
struct Running {
    what: What,
    /// When the device began it, or was given it, ns.
    begun: u64,
    /// When the device has done it, if that is known, ns.
    ends: Option<u64>,
}

/// What a job asks of the back end.
enum What {
    /// Pieces of these lengths.
    Io(Vec<u32>),
    /// What was written is made durable.
    Flush,
}

/// One forwarder.
pub(super) struct Host {
    pub(super) core: Option<Forwarder>,
    /// Which life of the process this is.
    pub(super) life: u32,
    /// When the world pumps it again if nothing happens before, in ns.
    pub(super) wakes_at: u64,
    /// Requests for whose payload there is no room.
    waiting: AdmissionQueues<Request>,
    /// When the process has taken in the requests so far, ns: it takes them in one after the other.
    taken_until: u64,
    /// When those of them that wait will be taken, if that makes a difference.
    taking: VecDeque<u64>,
    contention_percent: u64,
    /// How many calls it lets run at once at most.
    depth: u32,
    /// None: its calls go to servers.
    pub(super) device: Option<OwnDevice>,
    layout: Layout,
    jobs: BTreeMap<JobId, Running>,
    work: Work,
}

/// A forwarder that is asked at this time whether it has room for requests.
struct Asking<'h> {
    core: &'h mut Forwarder,
    now: u64,
}

impl Admits<Request> for Asking<'_> {
    fn admit(&mut self, conn: ConnId, number: ArrivalNumber, request: Request) -> Option<Request> {
        let now = Time(self.now);
        let slot = match self.core.admit(now, conn, number, &request) {
            Admission::NoPayload => None,
            Admission::Slot { slot, .. } => Some(slot),
            Admission::Wait => return Some(request),
            // Its connection was closed.
            Admission::Refuse(_) => return None,
        };
        let received = Input::Received {
            conn,
            request,
            slot,
        };
        self.core.handle(now, received);
        None
    }

    fn app_of(request: &Request) -> Option<u64> {
        Forwarder::app_of(request)
    }

    fn forwarder(&mut self) -> &mut Forwarder {
        self.core
    }
}

/// A job that was begun.
pub(super) enum Started {
    /// It ends at this time, in ns.
    At(u64),
    /// The device will tell when it ends.
    Later,
    /// Servers have this to do.
    AtServers(Asked),
    /// It takes no time.
    Now(JobResult),
}

impl Host {
    /// `device`: None where there are servers. `depth`: calls that it lets run at once at most.
    pub(super) fn new(
        device: Option<&DeviceOptions>,
        depth: u32,
        layout: Layout,
        contention_percent: u64,
    ) -> Host {
        Host {
            core: None,
            life: 0,
            wakes_at: u64::MAX,
            waiting: AdmissionQueues::default(),
            taken_until: 0,
            taking: VecDeque::new(),
            contention_percent,
            depth,
            device: device.map(OwnDevice::new),
            layout,
            jobs: BTreeMap::new(),
            work: Work::default(),
        }
    }

    /// Starts a process.
    pub(super) fn start(&mut self, config: &Config, forwarder: u16) {
        let config = Config {
            forwarder,
            ..config.clone()
        };
        self.life += 1;
        self.core = Some(Forwarder::new(config).expect("the options were checked"));
        self.wakes_at = u64::MAX;
    }

    /// The process dies.
    pub(super) fn die(&mut self) {
        self.core = None;
        self.life += 1;
        self.waiting = AdmissionQueues::default();
        self.jobs.clear();
    }

    pub(super) fn connected(&mut self, now: u64, conn: ConnId) {
        let peer = Peer {
            credentials: Some(Caller::alone(0, 0)),
            powerless: None,
            address: String::new(),
            grant: None,
        };
        self.tell(now, Input::Connected { conn, peer });
    }

    /// Gives the core an input, if there is a process.
    pub(super) fn tell(&mut self, now: u64, input: Input) {
        if let Some(core) = &mut self.core {
            core.handle(Time(now), input);
        }
    }

    /// When the process has taken in a request that arrives at `now` and takes `own_ns` of its
    /// time. Threads that wait for a core slow the thread that has it: at most as many as the
    /// its depth.
    pub(super) fn takes(&mut self, now: u64, own_ns: u64) -> u64 {
        let mut percent = 100;
        if self.contention_percent > 0 {
            while self.taking.front().is_some_and(|at| *at <= now) {
                self.taking.pop_front();
            }
            let waiting = (self.taking.len() as u64).min(u64::from(self.depth));
            percent += self.contention_percent.saturating_mul(waiting);
        }
        let takes_ns = own_ns.saturating_mul(percent) / 100;
        self.taken_until = now.max(self.taken_until).saturating_add(takes_ns);
        if self.contention_percent > 0 {
            self.taking.push_back(self.taken_until);
        }
        self.taken_until
    }

    /// A request has arrived.
    pub(super) fn received(&mut self, now: u64, link: LinkId, request: Request) {
        let number = self.waiting.arrived(Time(now));
        let conn = Link::conn(link);
        let Some(core) = &mut self.core else { return };
        let Some(request) = self.waiting.behind(conn, number, request) else {
            return;
        };
        let mut asking = Asking { core, now };
        if let Some(request) = asking.admit(conn, number, request) {
            let queue = core.queue_of(conn);
            self.waiting.wait(conn, number, request, queue);
        }
    }

    /// A connection has ended.
    pub(super) fn closed(&mut self, now: u64, link: LinkId) {
        let conn = Link::conn(link);
        self.waiting.closed(conn);
        self.tell(now, Input::Closed { conn });
    }

    /// Gives the core the requests that wait, as far as the pool has room for their payload.
    pub(super) fn admit(&mut self, now: u64) {
        if let Some(core) = &mut self.core {
            self.waiting.retry(&mut Asking { core, now });
        }
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn poll(&mut self, now: u64) -> Option<Output> {
        self.core.as_mut()?.poll(Time(now))
    }

    /// How many calls it lets run at once; 0 without a process.
    pub(super) fn depth(&self) -> u32 {
        self.core.as_ref().map_or(0, Forwarder::depth)
    }

    /// When the world must pump it again if nothing happens before, in ns.
    pub(super) fn wake_at(&self) -> Option<u64> {
        self.core.as_ref()?.wake_at().map(|at| at.0)
    }

    /// What it has done.
    pub(super) fn work(&self) -> Work {
        Work {
            busy_ns: self.device.as_ref().map_or(0, |device| device.busy_ns),
            ..self.work
        }
    }

    /// From now on work is counted.
    pub(super) fn count_work(&mut self) {
        self.work = Work::default();
        if let Some(device) = &mut self.device {
            device.busy_ns = 0;
        }
    }

    /// Begins a job: data and fsyncs at the back end, anything else at once.
    pub(super) fn begin(&mut self, now: u64, job: JobId, work: Job) -> Started {
        match work {
            Job::Io {
                handle,
                direction,
                parts,
                ..
            } => {
                self.work.calls += 1;
                self.work.requests += parts.len() as u64;
                let lens: Vec<u32> = parts.iter().map(|part| part.len).collect();
                self.work.bytes += lens.iter().map(|len| u64::from(*len)).sum::<u64>();
                let what = What::Io(lens);
                if self.device.is_none() {
                    let extents = parts.iter().map(|part| (part.offset, u64::from(part.len)));
                    let asked = Asked::io(handle, direction, extents);
                    return self.ask_servers(now, job, what, asked);
                }
                self.map(handle, direction, &parts);
                self.ask_device(now, job, what)
            }
            Job::Op { op, .. } => match op {
                Op::Fsync { .. } if self.device.is_none() => {
                    self.ask_servers(now, job, What::Flush, Asked::Flush)
                }
                Op::Fsync { .. } => self.ask_device(now, job, What::Flush),
                op => unreachable!("programs of the simulator do no {op:?}"),
            },
            Job::Resolve { .. } | Job::Closed { .. } => Started::Now(JobResult::Done),
            Job::Persist { .. } => Started::Now(JobResult::Op(Ok(Outcome::Done))),
            Job::Refused(refused) => Started::Now(refused.result(tidegate_forward::Errno::EIO)),
        }
    }

    /// Where on the device the parts of a file lie.
    fn map(&mut self, handle: Handle, direction: Direction, parts: &[IoPart]) {
        let Some(device) = &mut self.device else {
            return;
        };
        device.accesses.clear();
        let write = direction == Direction::Write;
        let seats = u64::from(self.layout.seats);
        for part in parts {
            let len = u64::from(part.len);
            let local = local_offset(part.offset, self.layout.stripe, seats);
            let into = &mut device.accesses;
            device.mapping.map(handle.inode, local, len, write, into);
        }
    }

    fn ask_device(&mut self, now: u64, job: JobId, what: What) -> Started {
        let device = self.device.as_mut().expect("there are no servers");
        let is_flush = matches!(what, What::Flush);
        let (begun, ends) = match device.give(now, (self.life, job), is_flush) {
            Given::Now => return Started::Now(JobResult::Op(Ok(Outcome::Done))),
            Given::Later => (now, None),
            Given::Ends { begun, at } => (begun, Some(at)),
        };
        self.jobs.insert(job, Running { what, begun, ends });
        ends.map_or(Started::Later, Started::At)
    }

    fn ask_servers(&mut self, now: u64, job: JobId, what: What, asked: Asked) -> Started {
        let running = Running {
            what,
            begun: now,
            ends: None,
        };
        self.jobs.insert(job, running);
        Started::AtServers(asked)
    }

    /// Asks the device what it has done.
    pub(super) fn device_advances(&mut self, now: u64) {
        let ended = self.device.as_mut().map(|device| device.advance(now));
        for (life, job) in ended.unwrap_or_default() {
            if life == self.life && self.core.is_some() {
                self.job_ends(now, job);
            }
        }
    }

    /// A job's time is over.
    pub(super) fn job_ends(&mut self, now: u64, job: JobId) {
        let running = self.jobs.remove(&job).expect("a job ends once");
        let device_ns = running.ends.unwrap_or(now).saturating_sub(running.begun);
        let result = match running.what {
            What::Io(lens) => JobResult::Io {
                parts: lens.into_iter().map(Ok).collect(),
                device_ns,
            },
            What::Flush => JobResult::Op(Ok(Outcome::Done)),
        };
        self.tell(now, Input::Finished { job, result });
    }
}
