//! A client's core and a forwarder's in one thread, joined without a network and without encoding:
//! each request takes its whole way through both, and nothing else is done.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tidegate_client::core::{Call, CallId, Core, CoreOptions, Input, Output};
use tidegate_client::wire::{
    Attr, Caller, Extent, Extents, Handle, Layout, Lens, Op, Outcome, Pipeline, Pipelining, Reply,
    Request as WireRequest,
};
use tidegate_client::{Bytes, app_id};
use tidegate_forward::{
    Admission, Arrival, ArrivalNumber, Config, ConnId, Forwarder, Input as Told, Job, JobResult,
    Output as Asked, PayloadMemory, Peer, SEGMENT_BYTES, SeatTable, SlotId,
};
use tidegate_sched::{Options, Time};

/// Bytes of one call, unless told otherwise.
const BYTES: u64 = 65_536;
const FILE: Handle = Handle {
    inode: 42,
    birth: 7,
};
const CONN: ConnId = ConnId(1);

/// Whose code runs: [`WORLD`], [`CLIENT`] or [`FORWARDER`]. Who counts looks here.
pub static SIDE: AtomicUsize = AtomicUsize::new(WORLD);
pub const WORLD: usize = 0;
pub const CLIENT: usize = 1;
pub const FORWARDER: usize = 2;

fn on<T>(side: usize, part: impl FnOnce() -> T) -> T {
    SIDE.store(side, Ordering::Relaxed);
    let done = part();
    SIDE.store(WORLD, Ordering::Relaxed);
    done
}

/// One client and one forwarder, joined without a network; every back-end call is done at once.
pub struct World {
    /// Nanoseconds.
    pub now: u64,
    core: Core,
    forwarder: Forwarder,
    payload: Bytes,
    done: u64,
    /// Data is answered at once, without the forwarder: what is left is the client.
    alone: bool,
}

impl World {
    pub fn new(policy: &str) -> World {
        let core = Core::new(CoreOptions {
            client: 1,
            uid: 0,
            gid: 0,
            name: Box::from(*b"count"),
            forwarders: 1,
            export: None,
            asks: false,
            borrows: false,
            payload_max: 1 << 20,
            connections: 1,
            pipeline: Pipeline::default(),
            merge_blocks: true,
            names_max: 1024,
        });
        let mut forwarder = Forwarder::new(config(policy)).expect("POLICY must be a known name");
        // Seats are held by lease, as on several nodes: what that costs is counted too.
        let until = Time(u64::MAX);
        forwarder.handle(Time(1), Told::LeaseRenewed { until });
        World {
            now: 1,
            core,
            forwarder,
            payload: Bytes::from(vec![7; BYTES as usize]),
            done: 0,
            alone: false,
        }
    }

    /// A client whose reads and writes, of so many bytes each, no forwarder sees.
    #[allow(dead_code, reason = "not all who count do so alone")]
    pub fn client_alone(bytes: u64) -> World {
        World {
            payload: Bytes::from(vec![7; bytes as usize]),
            alone: true,
            ..World::new("fifo")
        }
    }

    /// Runs so many requests of 64 KiB, some at once; `writes` tells of a number whether it writes.
    pub fn run(&mut self, count: u64, in_flight: u64, writes: impl Fn(u64) -> bool) {
        let until = self.done + count;
        let mut called = self.done;
        while self.done < until {
            while called < until && called < self.done + in_flight {
                self.call(called, writes(called));
                called += 1;
            }
            self.turn();
        }
    }

    fn call(&mut self, number: u64, writes: bool) {
        let extents = Extents::from(Extent {
            offset: number % 4096 * self.payload.len() as u64,
            len: self.payload.len() as u64,
        });
        let handle = FILE;
        let (op, payload) = match writes {
            false => (Op::Read { handle, extents }, Bytes::new()),
            true => (Op::Write { handle, extents }, self.payload.clone()),
        };
        let call = Call {
            op,
            caller: None,
            app: app_id("count"),
            payload: payload.into(),
            deadline_ns: None,
            forwarder: 0,
            operation: None,
            collective: None,
            caches: false,
            open: None,
            range: None,
        };
        let id = CallId(number);
        self.now += 1000;
        self.tell_core(Input::Call { id, call });
    }

    /// Does what core and forwarder ask, or lets time pass until one of them wants something.
    fn turn(&mut self) {
        let mut idle = true;
        while let Some(output) = on(CLIENT, || self.core.poll(self.now)) {
            idle = false;
            self.do_for_core(output);
        }
        let core_wakes = self.core.wake_at();
        while let Some(output) = on(FORWARDER, || self.forwarder.poll(Time(self.now))) {
            idle = false;
            self.do_for_forwarder(output);
        }
        let forwarder_wakes = self.forwarder.wake_at().map(|time| time.0);
        if idle {
            let wakes = [core_wakes, forwarder_wakes].into_iter().flatten().min();
            self.now = self.now.max(wakes.expect("somebody waits for something"));
        }
    }

    fn tell_core(&mut self, input: Input) {
        on(CLIENT, || self.core.handle(self.now, self.now, input));
    }

    fn tell_forwarder(&mut self, input: Told) {
        on(FORWARDER, || self.forwarder.handle(Time(self.now), input));
    }

    fn do_for_core(&mut self, output: Output) {
        match output {
            Output::Connect { forwarder } => {
                let peer = Peer {
                    credentials: Some(Caller::alone(0, 0)),
                    powerless: None,
                    address: String::from("count"),
                    grant: None,
                };
                self.tell_forwarder(Told::Connected { conn: CONN, peer });
                self.tell_core(Input::Connected { forwarder });
            }
            Output::Send { request, .. } => self.arrives(request),
            Output::Done { result, .. } => {
                result.expect("the back end never fails");
                self.done += 1;
            }
            Output::Opened { .. } => {}
            other => panic!("nothing goes wrong here: {other:?}"),
        }
    }

    fn arrives(&mut self, request: WireRequest) {
        if self.alone && request.op.moves_data() {
            return self.answered(&request);
        }
        let now = Time(self.now);
        if request.payload_len == 0 {
            // As who read its frame has it.
            let request = Box::new(request);
            let arrival = on(FORWARDER, || {
                self.forwarder.request(
                    now,
                    CONN,
                    ArrivalNumber(1, now),
                    request,
                    PayloadMemory::Pool,
                )
            });
            assert!(
                matches!(arrival, Arrival::Received(_)),
                "the pool has room: {arrival:?}"
            );
            return;
        }
        let asked = || {
            self.forwarder
                .admit(now, CONN, ArrivalNumber(1, now), &request)
        };
        let slot = match on(FORWARDER, asked) {
            Admission::Slot { slot, .. } => Some(slot),
            other => panic!("the pool has room: {other:?}"),
        };
        self.tell_forwarder(Told::Received {
            conn: CONN,
            request,
            slot,
        });
    }

    /// As a forwarder answers a read or write that went well.
    fn answered(&mut self, request: &WireRequest) {
        let (outcome, payload_len) = match &request.op {
            Op::Read { extents, .. } => {
                let (first, rest) = (extents.bytes() as u32, Vec::new());
                let lens = Lens { first, rest };
                (Outcome::Data { lens }, first)
            }
            _ => (
                Outcome::Written {
                    len: u64::from(request.payload_len),
                },
                0,
            ),
        };
        let reply = Reply {
            id: request.id,
            seat: request.seat,
            generation: 1,
            epoch: 1,
            charged_ns: 1000,
            result: Ok(outcome),
            payload_len,
            lent: Default::default(),
        };
        self.replied(reply, None);
    }

    fn do_for_forwarder(&mut self, output: Asked) {
        match output {
            Asked::Send { reply, slot, .. } => {
                let slot = slot.filter(|_| reply.payload_len > 0);
                self.replied(reply, slot);
            }
            Asked::Start { job, work } => {
                let Job::Io { parts, .. } = work else {
                    panic!("only reads and writes are asked for");
                };
                let result = JobResult::Io {
                    parts: parts.iter().map(|part| Ok(part.len)).collect(),
                    device_ns: 1000,
                };
                let now = Time(self.now);
                let output = on(FORWARDER, || self.forwarder.finished(now, job, result));
                if let Some(output) = output {
                    self.do_for_forwarder(output);
                }
            }
            Asked::TakeSeat { seat } => self.tell_forwarder(Told::SeatTaken {
                seat,
                generation: 1,
                table: Arc::new(Table(Mutex::new(vec![0; SEGMENT_BYTES]))),
            }),
            Asked::Free { .. } | Asked::Reclaimed { .. } => {}
            _ => panic!("nothing goes wrong here"),
        }
    }

    fn replied(&mut self, reply: Reply, slot: Option<SlotId>) {
        let payload = match reply.payload_len {
            0 => Bytes::new(),
            len => self.payload.slice(..len as usize),
        };
        self.tell_core(Input::Received {
            forwarder: 0,
            reply,
            payload: payload.into(),
        });
        if let Some(slot) = slot {
            self.tell_forwarder(Told::Sent { slot });
        }
    }
}

fn config(policy: &str) -> Config {
    Config {
        forwarder: 0,
        layout: Layout {
            seats: 1,
            stripe: 1 << 20,
        },
        fail_over: false,
        payload_max: 1 << 20,
        pipelining: Pipelining::Parallel,
        pool_bytes_max: 64 << 20,
        credits: 64,
        sessions_max: 8,
        sessions_of_user_max: 0,
        connections: 1,
        joined_max: 0,
        lease_ns: 30_000_000_000,
        loan_ns: 0,
        grace_ns: 5_000_000_000,
        uid: 0,
        acts_for_callers: true,
        host: 1,
        boot: 1,
        export: Default::default(),
        process: 0,
        root: Attr::default(),
        shares: Default::default(),
        record: false,
        scheduler: Options::for_policy(policy),
    }
}

/// A reply table in plain memory.
struct Table(Mutex<Vec<u8>>);

impl SeatTable for Table {
    fn load(&self, at: usize, bytes: &mut [u8]) {
        let table = self.0.lock().expect("nobody panics with it");
        bytes.copy_from_slice(&table[at..][..bytes.len()]);
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        let mut table = self.0.lock().expect("nobody panics with it");
        table[at..][..bytes.len()].copy_from_slice(bytes);
    }

    fn grow(&self) -> bool {
        // One client needs no more.
        false
    }

    fn len(&self) -> usize {
        SEGMENT_BYTES
    }
}
