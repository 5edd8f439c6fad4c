//! A forwarder over the model file system, with the small host that it needs: slots in memory, and
//! jobs that are done at once or kept for later. Each reply is handed to the target.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tidegate_forward::model::{Disk, ModelFiles, ModelTable, Switch};
use tidegate_forward::model_jobs::{Slots, carry_out};
use tidegate_forward::{
    Admission, ArrivalNumber, Config, ConnId, Forwarder, Input, Job, JobId, Output, Peer,
    SeatTable, SlotId,
};
use tidegate_sched::{Options, Time};
use tidegate_wire::frame::{HEADER_LEN, decode_header, decode_request, encode_request};
use tidegate_wire::{Layout, Op, PAYLOAD_LIMIT, Pipelining, Reply, Request};

pub(crate) const SECOND: u64 = 1_000_000_000;

/// Outputs in a row after which a forwarder that goes on has hung.
const OUTPUTS_MAX: usize = 100_000;

/// What a host sends to a connection.
pub(crate) struct Sent {
    pub(crate) conn: ConnId,
    pub(crate) reply: Reply,
    pub(crate) payload: Vec<u8>,
}

/// A forwarder process.
pub(crate) struct Host {
    pub(crate) forwarder: Forwarder,
    pub(crate) files: ModelFiles,
    pub(crate) now: Time,
    pub(crate) layout: Layout,
    pub(crate) sent: VecDeque<Sent>,
    pub(crate) closed: Vec<ConnId>,
    /// Jobs are kept instead of done at once.
    pub(crate) holds_jobs: bool,
    jobs: VecDeque<(JobId, Job)>,
    slots: Slots,
    /// Tables of seats, which outlive their holders.
    pub(crate) tables: BTreeMap<u16, Arc<dyn SeatTable>>,
    /// Seats that the forwarder wants and does not hold.
    wanted: Vec<u16>,
    generation: u64,
    conns: u64,
    arrivals: u64,
    /// Connections that wait, and with which request.
    waits: BTreeMap<ConnId, u64>,
}

impl Host {
    /// A forwarder of root that takes every seat that it asks for. It has not begun.
    pub(crate) fn new(disk: &Disk, seats: u16) -> Host {
        let layout = Layout {
            seats,
            stripe: 4096,
        };
        let config = Config {
            forwarder: 0,
            layout,
            fail_over: true,
            payload_max: 1 << 16,
            pipelining: Pipelining::Parallel,
            pool_bytes_max: 1 << 18,
            credits: 8,
            sessions_max: 8,
            sessions_of_user_max: 3,
            connections: 1,
            joined_max: 4,
            lease_ns: 30 * SECOND,
            loan_ns: SECOND,
            grace_ns: 10 * SECOND,
            uid: 0,
            acts_for_callers: true,
            host: 5,
            boot: 6,
            export: Default::default(),
            process: 0,
            root: disk.root(),
            scheduler: Options::default(),
            shares: Default::default(),
            record: true,
        };
        Host {
            forwarder: Forwarder::new(config).expect("sound options"),
            files: disk.files(&Switch::new()),
            now: Time(SECOND),
            layout,
            sent: VecDeque::new(),
            closed: Vec::new(),
            holds_jobs: false,
            jobs: VecDeque::new(),
            slots: Slots::new(),
            tables: BTreeMap::new(),
            wanted: Vec::new(),
            generation: 0,
            conns: 0,
            arrivals: 0,
            waits: BTreeMap::new(),
        }
    }

    /// The host gets the locks of the seats that the forwarder wants.
    fn take_wanted(&mut self) {
        for seat in std::mem::take(&mut self.wanted) {
            let fresh = || -> Arc<dyn SeatTable> { Arc::new(ModelTable::new(&Switch::new())) };
            let table = self.tables.entry(seat).or_insert_with(fresh).clone();
            self.generation += 1;
            let taken = Input::SeatTaken {
                seat,
                generation: self.generation,
                table,
            };
            self.forwarder.handle(self.now, taken);
        }
    }

    pub(crate) fn tell(&mut self, input: Input) {
        self.forwarder.handle(self.now, input);
        self.run();
    }

    pub(crate) fn connect(&mut self, peer: Peer) -> ConnId {
        self.conns += 1;
        let conn = ConnId(self.conns);
        self.tell(Input::Connected { conn, peer });
        conn
    }

    /// Hands in what would arrive where this request was sent, if anything would. Returns the
    /// request as it arrived.
    pub(crate) fn receive(
        &mut self,
        conn: ConnId,
        request: &Request,
        payload: &[u8],
    ) -> Option<Request> {
        let request = arrived(request)?;
        self.arrivals += 1;
        let number = self.waits.remove(&conn).unwrap_or(self.arrivals);
        let admission =
            (self.forwarder).admit(self.now, conn, ArrivalNumber(number, self.now), &request);
        if admission == Admission::Wait {
            self.waits.insert(conn, number);
        }
        let slot = match admission {
            Admission::NoPayload => None,
            Admission::Slot { slot, len } => {
                let mut bytes = payload.to_vec();
                bytes.resize(len as usize, 0);
                let before = self.slots.insert(slot, bytes);
                assert!(before.is_none(), "a slot was given twice");
                Some(slot)
            }
            // The sender's bytes stay in the socket.
            Admission::Wait => return None,
            Admission::Refuse(_) => {
                self.closed.push(conn);
                self.tell(Input::Closed { conn });
                return None;
            }
        };
        let known = request.clone();
        self.tell(Input::Received {
            conn,
            request,
            slot,
        });
        Some(known)
    }

    pub(crate) fn advance(&mut self, ns: u64) {
        let until = self.now + ns;
        for _ in 0..OUTPUTS_MAX {
            match self.forwarder.wake_at().filter(|at| *at <= until) {
                Some(at) => {
                    assert!(at > self.now || self.holds_jobs, "it wakes without end");
                    self.now = self.now.max(at);
                    self.run();
                    if self.forwarder.wake_at().is_some_and(|next| next <= at) {
                        break;
                    }
                }
                None => break,
            }
        }
        self.now = until;
        self.run();
    }

    /// Does what the forwarder asks, until it asks for nothing.
    pub(crate) fn run(&mut self) {
        for _ in 0..OUTPUTS_MAX {
            match self.forwarder.poll(self.now) {
                Some(output) => self.carry_out(output),
                None if self.wanted.is_empty() => return,
                None => self.take_wanted(),
            }
        }
        panic!("the forwarder asks without end");
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Send {
                conn, reply, slot, ..
            } => self.send(conn, reply, slot),
            Output::Free { slot } => drop(self.slots.remove(&slot).expect("freed once")),
            Output::Start { job, work } => {
                self.jobs.push_back((job, work));
                if !self.holds_jobs {
                    self.run_jobs();
                }
            }
            Output::TakeSeat { seat } => self.wanted.push(seat),
            Output::Close { conn, .. } => {
                self.closed.push(conn);
                self.forwarder.handle(self.now, Input::Closed { conn });
            }
            // Nobody administers this forwarder, and no other one takes its seats.
            Output::ParsePolicy { .. } | Output::ParseShares { .. } => {
                panic!("nobody here may do that")
            }
            _ => {}
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
        self.sent.push_back(Sent {
            conn,
            reply,
            payload,
        });
    }

    /// Does the jobs that are kept, the oldest first.
    pub(crate) fn run_jobs(&mut self) {
        while let Some((job, work)) = self.jobs.pop_front() {
            let result = carry_out(&mut self.files, &mut self.slots, work, 1000);
            self.forwarder
                .handle(self.now, Input::Finished { job, result });
        }
    }

    /// Does the jobs that are kept, and what follows from them.
    pub(crate) fn settle(&mut self) {
        self.run_jobs();
        self.run();
    }
}

/// A request that changes nothing and carries nothing.
pub(crate) fn plain(id: u64, op: Op) -> Request {
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

/// The request that arrives where this one is sent; None if it is none.
fn arrived(request: &Request) -> Option<Request> {
    let mut bytes = Vec::new();
    encode_request(request, &mut bytes);
    let (head, body) = bytes.split_first_chunk::<HEADER_LEN>()?;
    let header = decode_header(head, PAYLOAD_LIMIT).ok()?;
    decode_request(&header, body).ok()
}
