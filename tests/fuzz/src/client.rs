//! The client's core against forwarders that say anything: it does not panic or go on without end,
//! ends each call once, gives a reader no more than was asked for, and ends when it is told to.

use crate::Draw;
use crate::operation::asked;
use std::collections::BTreeMap;
use tidegate_client::core::{
    Application, Call, CallId, Core, CoreOptions, Data, Errno, Input, Output,
};
use tidegate_client::wire::frame::{HEADER_LEN, decode_header, decode_reply, encode_reply};
use tidegate_client::wire::{
    Attr, Entry, ExportId, Extent, Handle, HelloReply, Lens, Lent, Listed, Listing, Lock,
    LockFamily, LockKind, Op, OpKind, Outcome, PAYLOAD_LIMIT, Pipeline, Pipelining, Reply, Request,
    Statfs, Status,
};
use tidegate_client::{Answer, Payload};

/// Steps of a run.
const STEPS_MAX: usize = 150;
/// Outputs after one input from which on the core goes on without end.
const OUTPUTS_MAX: usize = 20_000;
const MS: u64 = 1_000_000;
const WALL: u64 = 1_700_000_000_000_000_000;

/// What became of the connection to a forwarder.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Link {
    Closed,
    Opening,
    Open,
}

struct World {
    core: Core,
    now: u64,
    asks: bool,
    links: Vec<Link>,
    /// Requests without a reply, by forwarder and id.
    asked: BTreeMap<(usize, u64), Request>,
    /// How many bytes each call may read.
    calls: BTreeMap<CallId, u64>,
    /// What it is to clear from its cache.
    invalid: Vec<u64>,
    called: u64,
    ended: bool,
    handles: Vec<Handle>,
}

pub(super) fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    let mut world = World::new(&mut draw);
    for _ in 0..STEPS_MAX {
        if draw.is_over() || world.ended {
            break;
        }
        world.step(&mut draw);
    }
    world.input(Input::Shutdown);
    world.advance(3000 * MS);
    assert!(world.ended, "it does not end");
    assert!(world.calls.is_empty(), "a call did not end");
}

impl World {
    fn new(draw: &mut Draw<'_>) -> World {
        let (forwarders, asks) = (1 + draw.below(3), draw.one_in(16));
        let mode = draw.of(&Pipelining::ALL);
        let core = Core::new(CoreOptions {
            client: 1 + u64::from(draw.u8()),
            uid: 1000,
            gid: 100,
            name: b"fuzz".as_slice().into(),
            forwarders,
            export: draw.one_in(4).then_some(ExportId(1)),
            asks,
            borrows: true,
            payload_max: draw.of(&[4096, 8192, 1 << 20]),
            connections: 1 + draw.u16() % 4,
            pipeline: Pipeline::new(mode, draw.of(&[4096, 1 << 16])),
            merge_blocks: draw.yes(),
            names_max: 1 + draw.below(20),
        });
        let handle = |inode| Handle { inode, birth: 1 };
        let mut world = World {
            core,
            now: 0,
            asks,
            links: vec![Link::Closed; forwarders],
            asked: BTreeMap::new(),
            calls: BTreeMap::new(),
            invalid: Vec::new(),
            called: 0,
            ended: false,
            handles: (1..5).map(handle).collect(),
        };
        world.pump();
        world
    }

    fn step(&mut self, draw: &mut Draw<'_>) {
        let forwarder = draw.below(self.links.len());
        match draw.u8() % 32 {
            0 => {
                let id = CallId(1 + u64::from(draw.u8()));
                if self.calls.contains_key(&id) {
                    self.input(Input::Cancel { id });
                }
            }
            1 => self.lose(forwarder),
            2 => self.advance(u64::from(draw.u16()) * MS),
            3 => {
                let handle = draw.of(&self.handles);
                let path = draw.some_bytes().into();
                self.input(Input::Told { handle, path });
            }
            4 => {
                let handle = draw.of(&self.handles);
                self.input(Input::Forget { handle });
            }
            5 => {
                let application = Application {
                    name: String::from_utf8_lossy(draw.some_bytes()).into_owned(),
                    ..Application::default()
                };
                let app = u64::from(draw.u8());
                self.input(Input::Application { app, application });
            }
            6 => {
                let request = self.core.join(forwarder, u64::MAX - 1);
                assert!(
                    request.is_none_or(|request| self.links[forwarder] == Link::Open
                        && matches!(request.op, Op::Hello(_)))
                );
            }
            7 if draw.one_in(8) => self.input(Input::Shutdown),
            8..=14 => self.call(draw),
            15..=18 => self.connect(forwarder),
            _ => self.reply(draw, forwarder),
        }
    }

    /// A connection comes about, if one is asked for; else time goes on to when the core asks.
    fn connect(&mut self, forwarder: usize) {
        match self.links[forwarder] {
            Link::Opening => {
                self.links[forwarder] = Link::Open;
                self.input(Input::Connected { forwarder });
            }
            _ => {
                let at = self.core.wake_at().unwrap_or(self.now);
                self.advance(at.saturating_sub(self.now));
            }
        }
    }

    fn lose(&mut self, forwarder: usize) {
        if self.links[forwarder] != Link::Closed {
            self.gone(forwarder);
            self.input(Input::ConnectionLost { forwarder });
        }
    }

    fn gone(&mut self, forwarder: usize) {
        self.links[forwarder] = Link::Closed;
        self.asked.retain(|(of, _), _| *of != forwarder);
    }

    fn input(&mut self, input: Input) {
        if !self.ended {
            self.core.handle(self.now, WALL + self.now, input);
            self.pump();
        }
    }

    fn advance(&mut self, ns: u64) {
        let until = self.now + ns;
        for number in std::mem::take(&mut self.invalid) {
            self.input(Input::Invalidated { number });
        }
        for _ in 0..OUTPUTS_MAX {
            let Some(at) = self.core.wake_at().filter(|at| *at <= until) else {
                self.now = until;
                return self.pump();
            };
            self.now = self.now.max(at);
            self.pump();
        }
        panic!("it wakes without end");
    }

    fn pump(&mut self) {
        for _ in 0..OUTPUTS_MAX {
            let Some(output) = self.core.poll(self.now) else {
                return;
            };
            assert!(!self.ended, "it goes on behind its end");
            self.carry_out(output);
        }
        panic!("it asks without end");
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Connect { forwarder } => {
                assert!(self.links[forwarder] == Link::Closed, "connected twice");
                self.links[forwarder] = Link::Opening;
            }
            Output::Disconnect { forwarder } => self.gone(forwarder),
            Output::Send {
                forwarder,
                request,
                payload,
                ..
            } => {
                assert!(self.links[forwarder] == Link::Open, "nobody hears that");
                let len: usize = payload.iter().map(Payload::len).sum();
                assert_eq!(len, request.payload_len as usize);
                assert!(len <= self.core.payload_max() as usize);
                self.asked.insert((forwarder, request.id), request);
            }
            Output::Done { id, result } => self.done(id, result),
            Output::Invalidate { number, files, .. } => {
                assert!(!files.is_empty(), "nothing to clear");
                self.invalid.push(number);
            }
            Output::Ended => self.ended = true,
            Output::Join { connections, .. } => assert!(connections > 0),
            Output::Opened { .. } | Output::Refused { .. } | Output::Log { .. } => {}
        }
    }

    fn done(&mut self, id: CallId, result: Result<Answer, Errno>) {
        let most = self.calls.remove(&id).expect("a call ends once");
        if let Ok(answer) = result {
            let pieces: usize = answer.data.pieces.iter().map(Payload::len).sum();
            assert_eq!(pieces, answer.data.len);
            assert!(pieces as u64 <= most, "more was read than asked for");
        }
    }

    fn call(&mut self, draw: &mut Draw<'_>) {
        if self.calls.len() > 40 {
            return;
        }
        let (op, payload, most) = asked(draw, &self.handles, (1 << 20, 1 << 20));
        self.called += 1;
        let id = CallId(self.called);
        let deadline = u64::from(draw.u16()) * MS;
        let call = Call {
            op,
            caller: None,
            app: u64::from(draw.u8()),
            payload: payload.into_vec().into(),
            deadline_ns: draw.yes().then_some(self.now + deadline),
            forwarder: draw.below(self.links.len()),
            operation: None,
            collective: None,
            caches: self.called % 4 < 2,
            open: self.called.is_multiple_of(2).then_some(self.called % 8),
            range: self.called.is_multiple_of(3).then_some(Extent {
                offset: self.called << 12,
                len: self.called,
            }),
        };
        // A core that asks who is there is asked nothing else.
        if !self.asks && !self.ended {
            self.calls.insert(id, most);
            self.input(Input::Call { id, call });
        }
    }

    /// The forwarder says something: mostly to what was asked.
    fn reply(&mut self, draw: &mut Draw<'_>, forwarder: usize) {
        if self.links[forwarder] != Link::Open {
            return self.connect(forwarder);
        }
        let asked = self.asked.range((forwarder, 0)..=(forwarder, u64::MAX));
        let asked: Vec<&Request> = asked.map(|(_, request)| request).collect();
        let request = match asked.is_empty() || draw.one_in(32) {
            true => None,
            false => Some(asked[draw.below(asked.len())].clone()),
        };
        let request = request.unwrap_or_else(|| ping(draw.u8().into(), draw.u16() % 4));
        let result = result(draw, &request.op, &self.handles);
        let Some((_, reply)) = reply_to(draw, &request, result) else {
            return self.lose(forwarder);
        };
        match arrived(&request.op, &reply) {
            Some(reply) => {
                self.asked.remove(&(forwarder, request.id));
                let payload = vec![b'!'; reply.payload_len as usize].into();
                self.input(Input::Received {
                    forwarder,
                    reply,
                    payload,
                });
            }
            // The connection ends at what cannot be read.
            None => self.lose(forwarder),
        }
    }
}

/// A request that nobody has made.
fn ping(id: u64, seat: u16) -> Request {
    Request {
        id,
        seat,
        reply_slot: None,
        generation: 0,
        epoch: 0,
        replay: false,
        caller: None,
        hints: None,
        op: Op::Ping,
        payload_len: 0,
    }
}

/// The reply that arrives where this one is sent; None if it is none. It says itself what it
/// answers.
fn arrived(op: &Op, reply: &Reply) -> Option<Reply> {
    let mut bytes = Vec::new();
    encode_reply(code_of(op, reply)?, reply, &mut bytes);
    let (head, body) = bytes.split_first_chunk::<HEADER_LEN>()?;
    let header = decode_header(head, PAYLOAD_LIMIT).ok()?;
    decode_reply(&header, body).ok()
}

/// The code of the operation that a reply answers, if it can be this one; else of another.
fn code_of(op: &Op, reply: &Reply) -> Option<u8> {
    let kind = reply.result.as_ref().ok().map(Outcome::kind);
    let fits = |it: &OpKind| kind.is_none_or(|kind| kind == it.spec().reply);
    match fits(&op.kind()) {
        true => Some(op.kind() as u8),
        false => Some(OpKind::ALL.iter().copied().find(fits)? as u8),
    }
}

/// A reply to this request with this result, and the code of the operation that it answers.
pub(crate) fn reply_to(
    draw: &mut Draw<'_>,
    request: &Request,
    result: Result<Outcome, Status>,
) -> Option<(u8, Reply)> {
    let len = result.as_ref().map_or(0, Outcome::payload_len);
    let reply = Reply {
        id: request.id,
        seat: if draw.one_in(32) {
            draw.u16()
        } else {
            request.seat
        },
        generation: draw.of(&[0, 1, 1, 1, 1, 2, 3, u64::MAX]),
        epoch: draw.of(&[0, 0, 5, u64::MAX]),
        charged_ns: draw.of(&[0, 7, u64::MAX]),
        result,
        payload_len: len.min(1 << 21) as u32,
        lent: lent(draw, &request.op),
    };
    Some((code_of(&request.op, &reply)?, reply))
}

/// What a reply to this operation says that it lends.
fn lent(draw: &mut Draw<'_>, op: &Op) -> Lent {
    let (asked, found) = (draw.yes(), draw.yes());
    let of_file = |(handle, _)| Attr {
        handle,
        size: 1 + u64::from(asked),
        ..Attr::default()
    };
    let directory = op.files()[0].filter(|_| asked == found).map(of_file);
    Lent {
        asked,
        found,
        directory: directory.map(Box::new),
    }
}

/// An answer that the client of a mount may get to this operation.
pub(crate) fn answer(draw: &mut Draw<'_>, op: &Op, handles: &[Handle]) -> Result<Answer, Errno> {
    let outcome = match draw.u8() % 8 {
        0 => Err(Errno(1 + i32::from(draw.u8()))),
        _ => Ok(outcome(draw, |_, op| op.kind(), op, handles)),
    }?;
    let most = op.data().map_or(0, |(_, extents)| extents.bytes());
    let len = outcome.payload_len().min(most).min(1 << 15) as usize;
    let reply = Reply {
        id: 1,
        seat: 0,
        generation: 1,
        epoch: 0,
        charged_ns: 0,
        payload_len: outcome.payload_len() as u32,
        result: Ok(outcome),
        lent: Default::default(),
    };
    let outcome = arrived(op, &reply).ok_or(Errno::IO)?.result;
    let mut data = Data::default();
    if len > 0 {
        data.len = len;
        data.pieces = vec![vec![b'!'; len].into()];
    }
    Ok(Answer {
        outcome: outcome.map_err(|_| Errno::IO)?,
        data,
        lasts_ns: 0,
    })
}

/// What a forwarder may say of this operation, right or wrong.
pub(crate) fn result(draw: &mut Draw<'_>, op: &Op, handles: &[Handle]) -> Result<Outcome, Status> {
    match draw.u8() % 16 {
        0 => Err(Status::NotMySeat),
        1 => Err(Status::UnknownHandle),
        2 => Err(Status::NewGeneration),
        3 => Err(Status::TryLater),
        4 => Err(Status::Errno(draw.of(&[1, 2, 5, 11, 13, 17, 71, 87, 4095]))),
        5 => Ok(outcome(draw, draw_kind, op, handles)),
        _ => Ok(outcome(draw, |_, op| op.kind(), op, handles)),
    }
}

fn draw_kind(draw: &mut Draw<'_>, _: &Op) -> OpKind {
    draw.of(OpKind::ALL)
}

/// An outcome such as that of an operation of this kind.
fn outcome(
    draw: &mut Draw<'_>,
    kind: impl Fn(&mut Draw<'_>, &Op) -> OpKind,
    op: &Op,
    handles: &[Handle],
) -> Outcome {
    use tidegate_client::wire::ReplyKind as Kind;
    match kind(draw, op).spec().reply {
        Kind::Done => Outcome::Done,
        Kind::Hello => Outcome::Hello(Box::new(hello(draw, handles))),
        Kind::Attr => Outcome::Attr(attr(draw, handles)),
        Kind::Removed => Outcome::Removed(draw.yes().then(|| draw.of(handles))),
        Kind::Recalled => Outcome::Recalled(draw.yes().then(|| draw.of(handles))),
        Kind::Text => Outcome::Text(draw.some_bytes().into()),
        Kind::Entries => {
            let entries = (0..draw.u8() % 4).map(|_| Entry {
                name: draw.of(&[&b"a"[..], b"b", b"..", b"a/b", b""]).into(),
                inode: u64::from(draw.u8()),
                kind: draw.u8(),
                cookie: draw.size(),
                attr: draw.yes().then(|| attr(draw, handles)),
                lacks: draw.u8(),
                lent: draw.yes(),
            });
            Outcome::Entries(Listing {
                entries: entries.collect(),
                ended: draw.yes(),
            })
        }
        Kind::Data => Outcome::Data {
            lens: lens(draw, op),
        },
        Kind::Written => Outcome::Written { len: len(draw, op) },
        Kind::Appended => Outcome::Appended {
            offset: draw.size(),
            len: len(draw, op),
        },
        Kind::Offset => Outcome::Offset(draw.size()),
        Kind::Statfs => Outcome::Statfs(Statfs::default()),
        Kind::Lock => Outcome::Lock(draw.yes().then(|| Lock {
            family: LockFamily::Range,
            kind: LockKind::Exclusive,
            owner: 1,
            pid: 1,
            start: draw.size(),
            end: draw.size(),
        })),
    }
}

fn attr(draw: &mut Draw<'_>, handles: &[Handle]) -> Attr {
    Attr {
        handle: draw.of(handles),
        size: draw.size(),
        mode: draw.of(&[0o040_755, 0o100_644, 0o120_777, 0]),
        nlink: u32::from(draw.u8()),
        ..Attr::default()
    }
}

/// Lengths as asked for, or others.
fn lens(draw: &mut Draw<'_>, op: &Op) -> Lens {
    let asked = op.data().map(|(_, extents)| extents.clone());
    let mut one = |len: u64| match draw.u8() % 8 {
        0 => draw.u32() % (1 << 20),
        1 => len as u32 / 2,
        _ => len as u32,
    };
    let first = one(asked.as_ref().map_or(0, |it| it.first.len));
    let rest = asked.map_or(Vec::new(), |it| it.rest);
    let mut rest: Vec<u32> = rest.iter().map(|extent| one(extent.len)).collect();
    match draw.u8() % 16 {
        0 => rest.push(1),
        1 => drop(rest.pop()),
        _ => {}
    }
    Lens { first, rest }
}

fn len(draw: &mut Draw<'_>, op: &Op) -> u64 {
    match op.data() {
        Some((_, extents)) if !draw.one_in(4) => extents.bytes(),
        _ => draw.size(),
    }
}

fn hello(draw: &mut Draw<'_>, handles: &[Handle]) -> HelloReply {
    let seats = draw.of(&[1, 1, 2, 3, 3, 4, u16::MAX]);
    let payload_max = draw.of(&[4096, 8192, 1 << 20, PAYLOAD_LIMIT]);
    let mode = draw.of(&Pipelining::ALL);
    let held = (0..seats.min(4))
        .filter(|_| draw.yes())
        .map(|seat| (seat, 1));
    let held = held.collect();
    HelloReply {
        version: draw.of(&[tidegate_client::wire::frame::VERSION; 8]) - u8::from(draw.one_in(16)),
        forwarder: draw.u16() % 3,
        seats,
        stripe: draw.of(&[4096, 1 << 20, 1 << 63]),
        payload_max,
        pipeline: Pipeline::new(mode, draw.of(&[4096, 8192, payload_max])),
        credits: draw.of(&[1, 2, 64, u32::MAX]),
        connections: draw.of(&[1, 3, u16::MAX]),
        reply_slots: draw.of(&[1, 2, 64, u16::MAX]),
        fresh: draw.yes(),
        lease_ms: draw.of(&[1, 3000, u32::MAX]),
        loan_ms: draw.of(&[0, 10, 1000, u32::MAX]),
        wall_ns: draw.of(&[0, WALL, u64::MAX]),
        host: draw.u8().into(),
        boot: draw.u8().into(),
        export: ExportId(u128::from(draw.u8() % 2)),
        process: draw.u8().into(),
        forwarders: match draw.one_in(4) {
            true => [Listed {
                index: 0,
                addresses: vec!["unix:/a".into()],
            }]
            .into(),
            false => Box::default(),
        },
        held,
        root: attr(draw, handles),
    }
}
