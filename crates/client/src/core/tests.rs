//! The core against scripted forwarders: each test says what was sent and what comes back.

mod applications;
mod calls;
mod data;
mod fsync;
mod host_cache;
mod loans;
mod locks;
mod look_ahead;
mod recovery;
mod seats;
mod sessions;

use super::*;
use crate::core::{Answer, Errno};
use crate::payload::Payload;
use crate::wire::{
    Caller, Extent, Extents, HelloReply, Lens, Lent, Lock, LockFamily, LockKind, Op, Outcome,
    Pipeline, Pipelining, Reply, Request, Status,
};
use bytes::Bytes;

/// Directory and files by inode; births are 0.
fn file(inode: u64) -> Handle {
    Handle { inode, birth: 0 }
}

const ROOT: u64 = 1;

fn attr(handle: Handle) -> Attr {
    Attr {
        handle,
        ..Attr::default()
    }
}

/// A request that the core has sent and nobody has answered.
#[derive(Clone, Debug)]
struct Sent {
    forwarder: usize,
    connection: u64,
    request: Request,
    payload: Vec<Bytes>,
}

/// What a scripted forwarder says in its hello.
#[derive(Clone, Copy)]
struct Grant {
    credits: u32,
    reply_slots: u16,
    fresh: bool,
    pipelining: Pipelining,
    identity: (u64, u64),
    ahead_ns: u64,
    connections: u16,
    stripe: u64,
    lease_ms: u32,
    loan_ms: u32,
}

const GRANT: Grant = Grant {
    credits: 64,
    reply_slots: 64,
    fresh: false,
    pipelining: Pipelining::Parallel,
    identity: (1, 1),
    ahead_ns: 0,
    connections: 1,
    stripe: 4096,
    lease_ms: 3000,
    loan_ms: 0,
};

/// A core and everything it has put out, sorted.
struct Rig {
    core: Core,
    now: u64,
    seats: u16,
    calls: u64,
    /// On whose behalf calls are made.
    caller: Option<Caller>,
    /// Whether callers cache attributes.
    caches: bool,
    /// What is to be cleared from their caches.
    invalid: Vec<(u64, Vec<Handle>)>,
    /// Of the file, what fsyncs must make stable.
    range: Option<Extent>,
    sent: Vec<Sent>,
    connects: Vec<usize>,
    joins: Vec<(usize, u16)>,
    done: BTreeMap<CallId, Result<Answer, Errno>>,
    refused: Vec<(usize, Errno)>,
    logs: Vec<String>,
    ended: bool,
}

const NAMES_MAX: usize = 1000;
const WALL: u64 = 1_700_000_000_000_000_000;

impl Rig {
    /// A core of as many forwarders as seats, none of which has been heard of.
    fn new(forwarders: usize) -> Rig {
        Rig::with(forwarders, false)
    }

    fn with(forwarders: usize, merge_blocks: bool) -> Rig {
        Rig::moving(forwarders, merge_blocks, Pipeline::default())
    }

    fn moving(forwarders: usize, merge_blocks: bool, pipeline: Pipeline) -> Rig {
        let core = Core::new(CoreOptions {
            client: forwarders as u64,
            uid: 1000,
            gid: 100,
            name: Box::from(*b"test"),
            forwarders,
            export: None,
            asks: false,
            borrows: true,
            payload_max: 8192,
            connections: 3,
            pipeline,
            merge_blocks,
            names_max: NAMES_MAX,
        });
        let mut rig = Rig {
            core,
            now: 0,
            seats: forwarders as u16,
            calls: 0,
            caller: None,
            caches: false,
            invalid: Vec::new(),
            range: None,
            sent: Vec::new(),
            connects: Vec::new(),
            joins: Vec::new(),
            done: BTreeMap::new(),
            refused: Vec::new(),
            logs: Vec::new(),
            ended: false,
        };
        rig.pump();
        rig
    }

    /// A core whose forwarders have all granted sessions.
    fn open(forwarders: usize) -> Rig {
        let mut rig = Rig::new(forwarders);
        for forwarder in 0..forwarders {
            rig.core.connect(forwarder);
            rig.pump();
            rig.greet(forwarder, GRANT, &[]);
        }
        rig
    }

    fn pump(&mut self) {
        while let Some(output) = self.core.poll(self.now) {
            match output {
                Output::Connect { forwarder } => self.connects.push(forwarder),
                Output::Disconnect { forwarder } => self.gone(forwarder),
                Output::Join {
                    forwarder,
                    connections,
                } => self.joins.push((forwarder, connections)),
                Output::Send {
                    forwarder,
                    connection,
                    request,
                    payload,
                } => self.sent.push(Sent {
                    forwarder,
                    connection,
                    request,
                    payload: payload.into_iter().map(Payload::into_bytes).collect(),
                }),
                Output::Done { id, result } => {
                    assert!(
                        self.done.insert(id, result).is_none(),
                        "{id:?} is done twice"
                    );
                }
                Output::Invalidate { number, files, .. } => self.invalid.push((number, files)),
                Output::Opened { .. } => {}
                Output::Refused {
                    forwarder,
                    errno,
                    why,
                } => {
                    self.refused.push((forwarder, errno));
                    self.logs.push(why);
                }
                Output::Log { text } => self.logs.push(text),
                Output::Ended => self.ended = true,
            }
        }
    }

    /// Nothing of this connection is answered any more.
    fn gone(&mut self, forwarder: usize) {
        self.sent.retain(|sent| sent.forwarder != forwarder);
        self.connects.retain(|connect| *connect != forwarder);
    }

    fn input(&mut self, input: Input) {
        self.core.handle(self.now, WALL + self.now, input);
        self.pump();
    }

    fn at(&mut self, now: u64) {
        self.now = now;
        self.pump();
    }

    /// Goes to the next time that the core wants to be woken at.
    fn wake(&mut self) {
        let at = self.core.wake_at().expect("the core waits for a time");
        self.at(at.max(self.now));
    }

    /// The connection asked for comes about and is granted a session.
    fn greet(&mut self, forwarder: usize, grant: Grant, held: &[(u16, u64)]) {
        self.connected(forwarder);
        self.grant(forwarder, grant, held);
    }

    /// The hello that was sent is answered.
    fn grant(&mut self, forwarder: usize, grant: Grant, held: &[(u16, u64)]) {
        let hello = self
            .take(|sent| sent.forwarder == forwarder && matches!(sent.request.op, Op::Hello(_)));
        let reply = HelloReply {
            version: crate::wire::frame::VERSION,
            forwarder: forwarder as u16,
            seats: self.seats,
            stripe: grant.stripe,
            payload_max: 8192,
            pipeline: Pipeline::new(grant.pipelining, 8192),
            credits: grant.credits,
            connections: grant.connections,
            reply_slots: grant.reply_slots,
            fresh: grant.fresh,
            lease_ms: grant.lease_ms,
            loan_ms: grant.loan_ms,
            wall_ns: WALL + self.now + grant.ahead_ns,
            host: grant.identity.0,
            boot: grant.identity.1,
            export: Default::default(),
            process: 0,
            forwarders: Box::default(),
            held: held.into(),
            root: attr(file(ROOT)),
        };
        self.ok(&hello, Outcome::Hello(Box::new(reply)));
    }

    fn connected(&mut self, forwarder: usize) {
        let at = self.connects.iter().position(|f| *f == forwarder);
        let at = at.unwrap_or_else(|| panic!("no connection to {forwarder} was asked for"));
        self.connects.remove(at);
        self.input(Input::Connected { forwarder });
    }

    fn lose(&mut self, forwarder: usize) {
        self.gone(forwarder);
        self.input(Input::ConnectionLost { forwarder });
    }

    fn call(&mut self, op: Op) -> CallId {
        self.call_with(op, Bytes::new(), None)
    }

    fn call_with(&mut self, op: Op, payload: Bytes, deadline_ns: Option<u64>) -> CallId {
        self.make(op, payload, deadline_ns, None)
    }

    fn call_by(&mut self, op: Op, open: Option<u64>) -> CallId {
        self.make(op, Bytes::new(), None, open)
    }

    fn make(
        &mut self,
        op: Op,
        payload: Bytes,
        deadline_ns: Option<u64>,
        open: Option<u64>,
    ) -> CallId {
        self.calls += 1;
        let id = CallId(self.calls);
        let call = Call {
            op,
            caller: self.caller.clone(),
            app: 7,
            payload: payload.into(),
            deadline_ns,
            forwarder: 0,
            operation: None,
            collective: None,
            caches: self.caches,
            open,
            range: self.range,
        };
        self.input(Input::Call { id, call });
        id
    }

    /// Takes the first unanswered request that fits.
    fn take(&mut self, fits: impl Fn(&Sent) -> bool) -> Sent {
        let at = self.sent.iter().position(fits);
        let at = at.unwrap_or_else(|| panic!("not among the sent: {:#?}", self.sent));
        self.sent.remove(at)
    }

    /// Takes the first unanswered request.
    fn next(&mut self) -> Sent {
        self.take(|_| true)
    }

    fn reply(&mut self, sent: &Sent, generation: u64, result: Result<Outcome, Status>) {
        self.reply_with(sent, generation, result, Bytes::new());
    }

    fn reply_with(
        &mut self,
        sent: &Sent,
        generation: u64,
        result: Result<Outcome, Status>,
        payload: Bytes,
    ) {
        self.reply_lending(sent, (generation, Lent::default()), result, payload);
    }

    fn reply_lending(
        &mut self,
        sent: &Sent,
        (generation, lent): (u64, Lent),
        result: Result<Outcome, Status>,
        payload: Bytes,
    ) {
        let reply = Reply {
            id: sent.request.id,
            seat: sent.request.seat,
            generation,
            epoch: 0,
            charged_ns: 0,
            result,
            payload_len: payload.len() as u32,
            lent,
        };
        self.input(Input::Received {
            forwarder: sent.forwarder,
            reply,
            payload: payload.into(),
        });
    }

    /// Answers with generation 1.
    fn ok(&mut self, sent: &Sent, outcome: Outcome) {
        self.reply(sent, 1, Ok(outcome));
    }

    fn fail(&mut self, sent: &Sent, status: Status) {
        self.reply(sent, 1, Err(status));
    }

    /// Answers a read with so many bytes.
    fn data(&mut self, sent: &Sent, bytes: Bytes) {
        let lens = Lens {
            first: bytes.len() as u32,
            rest: Vec::new(),
        };
        self.reply_with(sent, 1, Ok(Outcome::Data { lens }), bytes);
    }

    fn result(&mut self, id: CallId) -> Result<Answer, Errno> {
        let done = self.done.remove(&id);
        done.unwrap_or_else(|| panic!("{id:?} has not ended"))
    }

    fn errno(&mut self, id: CallId) -> i32 {
        self.result(id).expect_err("the call was to fail").0
    }

    fn succeeded(&mut self, id: CallId) -> Outcome {
        self.result(id).expect("the call was to succeed").outcome
    }

    /// Opens a file and returns the open's number.
    fn open_file(&mut self, handle: Handle) -> u64 {
        let open = 100 + self.calls;
        let id = self.call(Op::Open {
            handle,
            open,
            read: true,
            write: false,
        });
        let sent = self.next();
        self.ok(&sent, Outcome::Attr(attr(handle)));
        self.succeeded(id);
        open
    }

    /// Makes the core know a name of a file in the root.
    fn name_file(&mut self, handle: Handle, name: &[u8]) {
        let id = self.call(lookup(name));
        let sent = self.next();
        self.ok(&sent, Outcome::Attr(attr(handle)));
        self.succeeded(id);
    }

    fn seat_of(&self, handle: Handle) -> usize {
        let layout = self.core.layout().expect("the layout is known");
        usize::from(layout.seat_of_file(handle))
    }

    /// A file whose own seat is this forwarder's.
    fn file_of_seat(&self, seat: usize) -> Handle {
        (100..)
            .map(file)
            .find(|handle| self.seat_of(*handle) == seat)
            .expect("inodes are spread over the seats")
    }
}

fn lookup(name: &[u8]) -> Op {
    Op::Lookup {
        parent: file(ROOT),
        name: name.into(),
    }
}

fn create(name: &[u8]) -> Op {
    Op::Create {
        parent: file(ROOT),
        name: name.into(),
        mode: 0o644,
        exclusive: true,
    }
}

fn getattr(handle: Handle) -> Op {
    Op::Getattr { handle }
}

fn read(handle: Handle, offset: u64, len: u64) -> Op {
    let extents = Extents::from(Extent { offset, len });
    Op::Read { handle, extents }
}

fn write(handle: Handle, offset: u64, len: u64) -> Op {
    let extents = Extents::from(Extent { offset, len });
    Op::Write { handle, extents }
}

fn bytes(len: usize) -> Bytes {
    Bytes::from((0..len).map(|n| (n / 64) as u8).collect::<Vec<u8>>())
}

fn lock(kind: LockKind, owner: u64, start: u64, end: u64) -> Lock {
    Lock {
        family: LockFamily::Range,
        kind,
        owner,
        pid: 5,
        start,
        end,
    }
}

fn set_lock(handle: Handle, lock: Lock, wait: bool) -> Op {
    Op::SetLock {
        handle,
        lock,
        wait,
        reclaim: false,
    }
}
