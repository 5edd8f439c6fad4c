//! A small host around the forwarder, and a client that follows the protocol; the tests are in the
//! folder.
//!
//! The host keeps slots, carries jobs out over the model file system (at once, or one by one when
//! told to hold them) and answers for seats. Nothing runs by itself: time is set by the tests.

mod admission_tests;
mod aside;
mod cutoff;
mod data_tests;
mod exactly_once;
mod hostile;
mod isolation;
mod joined;
mod limits_tests;
mod loans;
mod loans_of_changes;
mod lock_tests;
mod loss_tests;
mod name_tests;
mod open_tests;
mod pool_tests;
mod record_tests;
mod rights;
mod seat_tests;
mod serial_tests;
mod sessions;
mod share_tests;
mod standing_tests;
mod status;
mod sync_error_tests;
mod wait_tests;

use crate::Files as _;
use crate::model::{Disk, ModelFiles, ModelTable, Switch};
use crate::model_jobs::{Slots, carry_out};
use crate::share_rules::Rules;
use crate::{
    Admission, ArrivalNumber, Config, ConnId, Forwarder, Input, Job, JobId, JobResult, Output,
    Peer, SlotId,
};
use std::boxed::Box;
use std::collections::{BTreeMap, VecDeque};
use std::string::String;
use std::sync::Arc;
use std::vec;
use std::vec::Vec;
use tidegate_sched::{Direction, Options, Time};
use tidegate_wire::{
    Attr, Caller, Extent, Handle, Hello, HelloReply, Layout, Op, Outcome, Pipeline, Pipelining,
    Reply, ReplySlot, Request, Status, frame,
};

pub(super) const SECOND: u64 = 1_000_000_000;
pub(super) const MS: u64 = 1_000_000;

/// What outlives a forwarder process: the disk, the tables, the generations.
pub(super) struct World {
    pub(super) disk: Disk,
    pub(super) tables: BTreeMap<u16, ModelTable>,
    pub(super) generations: BTreeMap<u16, u64>,
}

impl World {
    pub(super) fn new() -> World {
        World {
            disk: Disk::new(),
            tables: BTreeMap::new(),
            generations: BTreeMap::new(),
        }
    }

    pub(super) fn config(&self, forwarder: u16, seats: u16) -> Config {
        Config {
            forwarder,
            layout: Layout {
                seats,
                stripe: 4096,
            },
            fail_over: true,
            payload_max: 1 << 20,
            pipelining: Pipelining::Parallel,
            pool_bytes_max: 1 << 20,
            credits: 64,
            sessions_max: 8,
            sessions_of_user_max: 8,
            connections: 1,
            joined_max: 0,
            lease_ns: 30 * SECOND,
            loan_ns: 0,
            grace_ns: 10 * SECOND,
            uid: 0,
            acts_for_callers: true,
            host: 5,
            boot: 6,
            export: Default::default(),
            process: 0,
            root: self.disk.root(),
            scheduler: Options::default(),
            shares: Rules::default(),
            record: true,
        }
    }

    /// The seat's table and its generation, raised, as the host hands them in.
    pub(super) fn take(&mut self, seat: u16, switch: &Switch) -> (u64, ModelTable) {
        let table = self
            .tables
            .entry(seat)
            .or_insert_with(|| ModelTable::new(switch));
        let generation = self.generations.entry(seat).or_insert(0);
        *generation += 1;
        (*generation, table.seen_by(switch))
    }
}

/// A forwarder process.
pub(super) struct Host {
    pub(super) forwarder: Forwarder,
    pub(super) files: ModelFiles,
    pub(super) switch: Switch,
    pub(super) now: Time,
    pub(super) slots: Slots,
    pub(super) replies: VecDeque<(ConnId, Reply, Vec<u8>)>,
    pub(super) closed: Vec<(ConnId, String)>,
    pub(super) logs: Vec<String>,
    pub(super) jobs: VecDeque<(JobId, Job)>,
    /// Jobs are kept in `jobs` instead of carried out at once.
    pub(super) hold_jobs: bool,
    pub(super) asked_seats: Vec<u16>,
    pub(super) released: Vec<u16>,
    pub(super) reclaimed: Vec<u16>,
    pub(super) policies: Vec<(crate::PolicyId, Vec<u8>)>,
    pub(super) served: Vec<crate::Served>,
    pub(super) drained: bool,
    /// Device time that each data job reports.
    pub(super) device_ns: u64,
    conns: u64,
    arrivals: u64,
    /// Connections that wait, and with which request.
    waits: BTreeMap<ConnId, ArrivalNumber>,
}

impl Host {
    pub(super) fn new(world: &World, config: Config) -> Host {
        let switch = Switch::new();
        let mut host = Host {
            forwarder: Forwarder::new(config).expect("sound options"),
            files: world.disk.files(&switch),
            switch,
            now: Time(SECOND),
            slots: Slots::new(),
            replies: VecDeque::new(),
            closed: Vec::new(),
            logs: Vec::new(),
            jobs: VecDeque::new(),
            hold_jobs: false,
            asked_seats: Vec::new(),
            released: Vec::new(),
            reclaimed: Vec::new(),
            policies: Vec::new(),
            served: Vec::new(),
            drained: false,
            device_ns: 0,
            conns: 0,
            arrivals: 0,
            waits: BTreeMap::new(),
        };
        host.run();
        host
    }

    /// A process that holds seat 0 of one.
    pub(super) fn serving(world: &mut World) -> Host {
        let mut host = Host::new(world, world.config(0, 1));
        host.give_seat(world, 0);
        host
    }

    /// The host got a seat's lock.
    pub(super) fn give_seat(&mut self, world: &mut World, seat: u16) {
        let (generation, table) = world.take(seat, &self.switch);
        self.tell(Input::SeatTaken {
            seat,
            generation,
            table: Arc::new(table),
        });
    }

    pub(super) fn tell(&mut self, input: Input) {
        self.forwarder.handle(self.now, input);
        self.run();
    }

    pub(super) fn advance(&mut self, ns: u64) {
        let until = self.now + ns;
        while let Some(at) = self.forwarder.wake_at().filter(|at| *at <= until) {
            assert!(
                at > self.now || self.now == Time(0),
                "it wants to be woken in the past"
            );
            self.now = at;
            self.run();
        }
        self.now = until;
        self.run();
    }

    pub(super) fn connect(&mut self, peer: Peer) -> ConnId {
        self.conns += 1;
        let conn = ConnId(self.conns);
        self.tell(Input::Connected { conn, peer });
        conn
    }

    /// Asks whether there is room for the payload of a request that arrives now, or that waits.
    pub(super) fn admit(&mut self, conn: ConnId, request: &Request) -> Admission {
        self.arrivals += 1;
        let number = ArrivalNumber(self.arrivals, self.now);
        let number = self.waits.remove(&conn).unwrap_or(number);
        let admission = (self.forwarder).admit(self.now, conn, number, request);
        if admission == Admission::Wait {
            self.waits.insert(conn, number);
        }
        admission
    }

    /// Hands a request in as a reactor does; false if there is no room for its payload.
    pub(super) fn receive(&mut self, conn: ConnId, request: Request, payload: &[u8]) -> bool {
        let slot = match self.admit(conn, &request) {
            Admission::NoPayload => None,
            Admission::Slot { slot, len } => {
                let mut bytes = payload.to_vec();
                bytes.resize(len as usize, 0);
                assert!(
                    self.slots.insert(slot, bytes).is_none(),
                    "a slot given twice"
                );
                Some(slot)
            }
            Admission::Wait => return false,
            Admission::Refuse(reason) => {
                self.closed.push((conn, reason.into()));
                self.tell(Input::Closed { conn });
                return true;
            }
        };
        self.tell(Input::Received {
            conn,
            request,
            slot,
        });
        true
    }

    /// Does what the forwarder asks, until it asks for nothing.
    pub(super) fn run(&mut self) {
        while let Some(output) = self.forwarder.poll(self.now) {
            match output {
                Output::Send {
                    conn, reply, slot, ..
                } => self.send(conn, reply, slot),
                Output::Free { slot } => {
                    self.slots.remove(&slot).expect("a slot is freed once");
                }
                Output::Start { job, work } => {
                    self.jobs.push_back((job, work));
                    if !self.hold_jobs {
                        self.run_job();
                    }
                }
                Output::TakeSeat { seat } => self.asked_seats.push(seat),
                Output::ReleaseSeat { seat } => self.released.push(seat),
                Output::Close { conn, reason } => {
                    self.closed.push((conn, reason.into()));
                    self.forwarder.handle(self.now, Input::Closed { conn });
                }
                Output::Broadcast(_) => {}
                Output::Log { text } => self.logs.push(text.into()),
                Output::ParsePolicy { policy, text, .. }
                | Output::ParseShares { policy, text, .. } => {
                    self.policies.push((policy, text.into()))
                }
                Output::Reclaimed { seat } => self.reclaimed.push(seat),
                Output::Served(served) => self.served.push(served),
                Output::Drained => self.drained = true,
            }
        }
    }

    fn send(&mut self, conn: ConnId, reply: Reply, slot: Option<SlotId>) {
        let mut payload = Vec::new();
        if let Some(slot) = slot {
            let bytes = self.slots.remove(&slot).expect("a slot is sent once");
            if reply.payload_len > 0 {
                payload = bytes;
                payload.truncate(reply.payload_len as usize);
                self.forwarder.handle(self.now, Input::Sent { slot });
            }
        }
        assert_eq!(payload.len(), reply.payload_len as usize);
        self.replies.push_back((conn, reply, payload));
    }

    /// Ends all jobs with an error: that of a host whose fence has closed, or of the kernel.
    pub(super) fn end_jobs(&mut self, error: impl Into<crate::Access> + Copy) {
        for (job, work) in core::mem::take(&mut self.jobs) {
            let result = work.refused().result(error);
            self.tell(Input::Finished { job, result });
        }
    }

    /// Carries the oldest job out.
    pub(super) fn run_job(&mut self) {
        let (job, work) = self.jobs.pop_front().expect("a job was started");
        let result = carry_out(&mut self.files, &mut self.slots, work, self.device_ns);
        if !self.switch.is_killed() {
            self.forwarder
                .handle(self.now, Input::Finished { job, result });
        }
        if self.hold_jobs {
            self.run();
        }
    }

    /// The next reply.
    pub(super) fn reply(&mut self) -> Reply {
        self.replies.pop_front().expect("a reply").1
    }
}

/// A client that numbers its requests and reply slots.
#[derive(Clone)]
pub(super) struct Tester {
    pub(super) id: u64,
    pub(super) conn: ConnId,
    incarnation: u64,
    pub(super) requests: u64,
    /// Sequences of reply slot 0 by seat.
    sequences: BTreeMap<u16, u64>,
    /// Generations seen, by seat.
    pub(super) generations: BTreeMap<u16, u64>,
    layout: Layout,
    root: Handle,
}

pub(super) fn peer(uid: u32) -> Peer {
    Peer {
        credentials: Some(Caller::alone(uid, uid)),
        powerless: None,
        address: "unix:pid 1".into(),
        grant: None,
    }
}

pub(super) fn hello(client: u64, incarnation: u64) -> Hello {
    Hello {
        version: frame::VERSION,
        client,
        incarnation,
        joins: false,
        asks: false,
        borrows: true,
        wall_ns: 0,
        payload_max: 1 << 20,
        pipeline: Pipeline::default(),
        uid: 0,
        gid: 0,
        name: Box::from(&b"node:1"[..]),
    }
}

pub(super) fn plain(id: u64, op: Op) -> Request {
    Request {
        id,
        seat: 0,
        reply_slot: None,
        generation: 0,
        epoch: 0,
        replay: false,
        caller: None,
        hints: None,
        op,
        payload_len: 0,
    }
}

impl Tester {
    /// A client of root with a session.
    pub(super) fn new(host: &mut Host, id: u64) -> Tester {
        Tester::of(host, id, peer(0))
    }

    pub(super) fn of(host: &mut Host, id: u64, peer: Peer) -> Tester {
        let mut tester = Tester {
            id,
            conn: ConnId(0),
            incarnation: 0,
            requests: 0,
            sequences: BTreeMap::new(),
            generations: BTreeMap::new(),
            layout: Layout {
                seats: 1,
                stripe: 4096,
            },
            root: Handle { inode: 0, birth: 0 },
        };
        tester.connect(host, peer);
        tester
    }

    /// Opens a connection to a forwarder, the same or another.
    pub(super) fn connect(&mut self, host: &mut Host, peer: Peer) -> HelloReply {
        self.conn = host.connect(peer);
        self.incarnation += 1;
        self.requests += 1;
        let hello = Op::Hello(hello(self.id, self.incarnation));
        host.receive(self.conn, plain(self.requests, hello), &[]);
        match host.reply().result {
            Ok(Outcome::Hello(granted)) => {
                self.layout.seats = granted.seats;
                self.layout.stripe = granted.stripe;
                self.root = granted.root.handle;
                *granted
            }
            other => panic!("no session: {other:?}"),
        }
    }

    /// A request as the protocol wants it: next id, the seat in charge, a reply slot where one
    /// belongs.
    pub(super) fn request(&mut self, op: Op, payload_len: usize) -> Request {
        self.requests += 1;
        let seat = self.layout.seat_of_op(&op, self.root).unwrap_or(0);
        let reply_slot = op.mutates().then(|| {
            let sequence = self.sequences.entry(seat).or_insert(0);
            *sequence += 1;
            ReplySlot {
                index: 0,
                sequence: *sequence,
            }
        });
        Request {
            seat,
            reply_slot,
            generation: self.generations.get(&seat).copied().unwrap_or(0),
            payload_len: payload_len as u32,
            ..plain(self.requests, op)
        }
    }

    /// Sends without looking for the reply.
    pub(super) fn send(&mut self, host: &mut Host, op: Op, payload: &[u8]) -> Request {
        let request = self.request(op, payload.len());
        assert!(
            host.receive(self.conn, request.clone(), payload),
            "the pool is full"
        );
        request
    }

    /// The handle behind a name in the root, which the client has reached then.
    pub(super) fn find(&mut self, host: &mut Host, name: &str) -> Handle {
        let parent = self.root;
        let name = name.as_bytes().into();
        self.attr(host, Op::Lookup { parent, name }).handle
    }

    /// Sends and takes the reply.
    pub(super) fn call(&mut self, host: &mut Host, op: Op) -> Result<Outcome, Status> {
        self.call_with(host, op, &[]).0
    }

    pub(super) fn call_with(
        &mut self,
        host: &mut Host,
        op: Op,
        payload: &[u8],
    ) -> (Result<Outcome, Status>, Vec<u8>) {
        let request = self.send(host, op, payload);
        self.take(host, &request)
    }

    /// Sends a request again, with the generation that is known by now.
    pub(super) fn again(
        &mut self,
        host: &mut Host,
        request: &Request,
        payload: &[u8],
    ) -> Result<Outcome, Status> {
        let generation = self.generations.get(&request.seat).copied().unwrap_or(0);
        let request = Request {
            generation,
            replay: true,
            ..request.clone()
        };
        assert!(
            host.receive(self.conn, request.clone(), payload),
            "the pool is full"
        );
        self.take(host, &request).0
    }

    pub(super) fn take(
        &mut self,
        host: &mut Host,
        request: &Request,
    ) -> (Result<Outcome, Status>, Vec<u8>) {
        let (conn, reply, payload) = host.replies.pop_front().expect("a reply");
        assert_eq!((conn, reply.id), (self.conn, request.id));
        if reply.generation != 0 {
            self.generations.insert(reply.seat, reply.generation);
        }
        (reply.result, payload)
    }

    pub(super) fn attr(&mut self, host: &mut Host, op: Op) -> Attr {
        match self.call(host, op) {
            Ok(Outcome::Attr(attr)) => attr,
            other => panic!("no attributes: {other:?}"),
        }
    }

    pub(super) fn create(&mut self, host: &mut Host, name: &str) -> Handle {
        let parent = self.root;
        self.attr(host, create(parent, name, true)).handle
    }

    pub(super) fn root(&self) -> Handle {
        self.root
    }
}

pub(super) fn create(parent: Handle, name: &str, exclusive: bool) -> Op {
    Op::Create {
        parent,
        name: name.as_bytes().into(),
        mode: 0o644,
        exclusive,
    }
}

pub(super) fn write(handle: Handle, offset: u64, len: u64) -> Op {
    let extents = Extent { offset, len }.into();
    Op::Write { handle, extents }
}

pub(super) fn read(handle: Handle, offset: u64, len: u64) -> Op {
    let extents = Extent { offset, len }.into();
    Op::Read { handle, extents }
}

pub(super) fn errno(result: Result<Outcome, Status>) -> u16 {
    match result {
        Err(Status::Errno(errno)) => errno,
        other => panic!("no errno: {other:?}"),
    }
}
