//! A forwarder in the simulated world: the product's core, and the device behind it.

use super::fabric::{Link, LinkId};
use std::collections::{BTreeMap, VecDeque};
use tidegate_device::address::{Mapping, local_offset};
use tidegate_device::{Access, Device, DeviceOptions};
use tidegate_forward::{
    Admission, Config, ConnId, Forwarder, Input, IoPart, Job, JobId, JobResult, Output, Peer,
};
use tidegate_sched::{Direction, Time};
use tidegate_wire::{Caller, Handle, Layout, Op, Outcome, Request};

/// What a forwarder has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Time in which the device had something to do, ns.
    pub busy_ns: u64,
    /// Calls to the back end.
    pub calls: u64,
    /// Requests in them; an extent of list I/O counts as one.
    pub requests: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

/// A job on the device.
struct Running {
    what: Asked,
    /// When the device began it, or was given it, ns.
    begun: u64,
    /// When the device has done it, if that is known, ns.
    ends: Option<u64>,
}

/// What a job asks of the device.
enum Asked {
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
    /// Requests for whose payload there is no room, in order of arrival.
    blocked: VecDeque<(LinkId, Request)>,
    /// When the process has taken in the requests so far, ns: it takes them in one after the other.
    taken_until: u64,
    /// When those of them that wait will be taken, if that makes a difference.
    taking: VecDeque<u64>,
    contention_percent: u64,
    device: Device,
    clock: DeviceClock,
    mapping: Mapping,
    layout: Layout,
    jobs: BTreeMap<JobId, Running>,
    /// Of calls whose end the device has yet to tell: the job, and the life of the process.
    calls: BTreeMap<u64, (u32, JobId)>,
    call_ids: u64,
    /// When the world asks the device next if nothing happens before, in ns.
    pub(super) device_wakes_at: u64,
    accesses: Vec<Access>,
    /// Until when the device is known to be busy.
    busy_until: u64,
    pub(super) work: Work,
}

/// A job that was begun.
pub(super) enum Started {
    /// It ends at this time, in ns.
    At(u64),
    /// The device will tell when it ends.
    Later,
    /// It takes no time.
    Now(JobResult),
}

/// The time of a device that may be slower than its model.
struct DeviceClock {
    percent: u64,
    /// Since when it has been so slow, in ns, and what its time was then.
    since: u64,
    time: u64,
}

impl DeviceClock {
    /// The device's time at `now`.
    fn time(&self, now: u64) -> u64 {
        let passed = u128::from(now - self.since) * 100 / u128::from(self.percent);
        self.time + passed as u64
    }

    /// When it is that time on the device, at the earliest.
    fn now(&self, time: u64) -> u64 {
        let left = u128::from(time.saturating_sub(self.time)) * u128::from(self.percent);
        let left = u64::try_from(left.div_ceil(100)).unwrap_or(u64::MAX);
        self.since.saturating_add(left)
    }
}

impl Host {
    pub(super) fn new(device: &DeviceOptions, layout: Layout, contention_percent: u64) -> Host {
        Host {
            core: None,
            life: 0,
            wakes_at: u64::MAX,
            blocked: VecDeque::new(),
            taken_until: 0,
            taking: VecDeque::new(),
            contention_percent,
            mapping: Mapping::with_unit(device.capacity_bytes(), 0, device.unit_bytes()),
            device: Device::new(device).expect("the options were checked"),
            clock: DeviceClock {
                percent: 100,
                since: 0,
                time: 0,
            },
            layout,
            jobs: BTreeMap::new(),
            calls: BTreeMap::new(),
            call_ids: 0,
            device_wakes_at: u64::MAX,
            accesses: Vec::new(),
            busy_until: 0,
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
        self.blocked.clear();
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
    /// device's depth.
    pub(super) fn takes(&mut self, now: u64, own_ns: u64) -> u64 {
        let mut percent = 100;
        if self.contention_percent > 0 {
            while self.taking.front().is_some_and(|at| *at <= now) {
                self.taking.pop_front();
            }
            let waiting = (self.taking.len() as u64).min(u64::from(self.device.depth()));
            percent += self.contention_percent.saturating_mul(waiting);
        }
        let takes_ns = own_ns.saturating_mul(percent) / 100;
        self.taken_until = now.max(self.taken_until).saturating_add(takes_ns);
        if self.contention_percent > 0 {
            self.taking.push_back(self.taken_until);
        }
        self.taken_until
    }

    /// A request has arrived. True if it waits for room.
    pub(super) fn received(&mut self, now: u64, link: LinkId, request: Request) {
        self.blocked.push_back((link, request));
        if self.blocked.len() == 1 {
            self.admit(now);
        }
    }

    /// A connection has ended.
    pub(super) fn closed(&mut self, now: u64, link: LinkId) {
        self.blocked.retain(|(its, _)| *its != link);
        let conn = Link::conn(link);
        self.tell(now, Input::Closed { conn });
    }

    /// Gives the core requests as far as the pool has room for their payload.
    pub(super) fn admit(&mut self, now: u64) {
        let Some(core) = &mut self.core else { return };
        while let Some((link, request)) = self.blocked.front() {
            let conn = Link::conn(*link);
            let slot = match core.admit(Time(now), conn, request) {
                Admission::NoPayload => None,
                Admission::Slot { slot, .. } => Some(slot),
                Admission::Wait => return,
                // Its connection was closed.
                Admission::Refuse(_) => {
                    self.blocked.pop_front();
                    continue;
                }
            };
            let (_, request) = self.blocked.pop_front().expect("looked at above");
            core.handle(
                Time(now),
                Input::Received {
                    conn,
                    request,
                    slot,
                },
            );
        }
    }

    pub(super) fn has_blocked(&self) -> bool {
        !self.blocked.is_empty()
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

    /// Begins a job: data and fsyncs at the device, anything else at once.
    pub(super) fn begin(&mut self, now: u64, job: JobId, work: Job) -> Started {
        match work {
            Job::Io {
                handle,
                direction,
                parts,
                ..
            } => {
                self.map(handle, direction, &parts);
                let lens = parts.iter().map(|part| part.len).collect();
                self.ask_device(now, job, Asked::Io(lens))
            }
            Job::Op { op, .. } => match op {
                Op::Fsync { .. } => self.ask_device(now, job, Asked::Flush),
                op => unreachable!("programs of the simulator do no {op:?}"),
            },
            Job::Resolve { .. } | Job::Closed { .. } => Started::Now(JobResult::Done),
            Job::Persist { .. } => Started::Now(JobResult::Op(Ok(Outcome::Done))),
            Job::Refused(refused) => Started::Now(refused.result(tidegate_forward::Errno::EIO)),
        }
    }

    /// Where on the device the parts of a file lie.
    fn map(&mut self, handle: Handle, direction: Direction, parts: &[IoPart]) {
        self.accesses.clear();
        let write = direction == Direction::Write;
        let seats = u64::from(self.layout.seats);
        for part in parts {
            let len = u64::from(part.len);
            let local = local_offset(part.offset, self.layout.stripe, seats);
            let into = &mut self.accesses;
            self.mapping.map(handle.inode, local, len, write, into);
            self.work.bytes += len;
        }
        self.work.calls += 1;
        self.work.requests += parts.len() as u64;
    }

    fn ask_device(&mut self, now: u64, job: JobId, what: Asked) -> Started {
        self.call_ids += 1;
        self.count_busy(now);
        let time = self.clock.time(now);
        let ends = match what {
            Asked::Io(_) => self.device.submit(time, self.call_ids, &self.accesses),
            Asked::Flush => self.device.flush(time, self.call_ids),
        };
        let ends = ends.map(|time| self.clock.now(time));
        if let (Some(ends), Asked::Flush) = (ends, &what)
            && ends <= now
        {
            return Started::Now(JobResult::Op(Ok(Outcome::Done)));
        }
        let begun = match self.device.depth() {
            1 => now.max(self.busy_until),
            _ => now,
        };
        let running = Running { what, begun, ends };
        self.jobs.insert(job, running);
        match ends {
            Some(ends) => {
                self.work.busy_ns += ends.saturating_sub(self.busy_until.max(now));
                self.busy_until = self.busy_until.max(ends);
                Started::At(ends)
            }
            None => {
                self.calls.insert(self.call_ids, (self.life, job));
                Started::Later
            }
        }
    }

    /// Counts the time until now in which the device had calls whose end it has yet to tell.
    fn count_busy(&mut self, now: u64) {
        if !self.calls.is_empty() {
            self.work.busy_ns += now.saturating_sub(self.busy_until);
        }
        self.busy_until = self.busy_until.max(now);
    }

    /// When the device must be asked next, in ns.
    pub(super) fn device_next(&self) -> Option<u64> {
        self.device.next_ns().map(|time| self.clock.now(time))
    }

    /// Asks the device what it has done.
    pub(super) fn device_advances(&mut self, now: u64) {
        self.count_busy(now);
        let mut ended = Vec::new();
        self.device.advance(self.clock.time(now), &mut ended);
        for (call, _) in ended {
            let (life, job) = self.calls.remove(&call).expect("a call ends once");
            if life == self.life && self.core.is_some() {
                self.job_ends(now, job);
            }
        }
    }

    /// From now on the device takes so many percent of its model's time.
    pub(super) fn is_slow(&mut self, now: u64, percent: u64) {
        self.clock = DeviceClock {
            percent,
            since: now,
            time: self.clock.time(now),
        };
    }

    /// A job's time is over.
    pub(super) fn job_ends(&mut self, now: u64, job: JobId) {
        let running = self.jobs.remove(&job).expect("a job ends once");
        let device_ns = running.ends.unwrap_or(now).saturating_sub(running.begun);
        let result = match running.what {
            Asked::Io(lens) => JobResult::Io {
                parts: lens.into_iter().map(Ok).collect(),
                device_ns,
            },
            Asked::Flush => JobResult::Op(Ok(Outcome::Done)),
        };
        self.tell(now, Input::Finished { job, result });
    }
}
