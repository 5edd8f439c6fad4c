//! A client in the simulated world: the product's client core, and the programs that use it.

use super::attr_cache::AttrCache;
use super::network::LinkId;
use super::plan::LoanMutant;
use super::process::Frame;
use super::script::Script;
use std::collections::BTreeMap;
use tidegate_client::core::{Call, CallId, Core, CoreOptions, Input, Output};
use tidegate_client::wire::{Op, Outcome, Pipeline, Pipelining, Reply, Request};
use tidegate_client::{Answer, Data, Errno, Payload};

/// Wall clock at virtual time 0, ns since 1970.
pub const WALL_NS: u64 = 1_700_000_000_000_000_000;

/// What a client asks the world to do.
pub enum Effect {
    /// Open a connection to a forwarder.
    Connect(usize),
    /// Close a connection.
    Cut(LinkId),
    /// Send a frame.
    Send(LinkId, Frame),
}

/// A client.
pub struct Client {
    core: Core,
    /// Connection to each forwarder, if any.
    pub links: Vec<Option<LinkId>>,
    /// Its programs.
    pub scripts: Vec<Script>,
    calls: BTreeMap<CallId, usize>,
    call: u64,
    /// Lines that the core logged.
    pub log: Vec<String>,
    /// Programs that wait before they go on, and until when, ns.
    thinking: Vec<(u64, usize)>,
    /// What its node keeps of attributes.
    cache: AttrCache,
    mutant: Option<LoanMutant>,
    /// Calls that the cache has answered.
    cached: Vec<(CallId, Outcome)>,
    /// Frames of its own, where a test takes something away.
    forged: Vec<(usize, Frame)>,
}

impl Client {
    /// A client of this number of forwarders.
    pub fn new(id: u64, forwarders: usize, scripts: Vec<Script>, merge_blocks: bool) -> Client {
        let options = CoreOptions {
            client: id,
            uid: 0,
            gid: 0,
            name: format!("client-{id}").into_bytes().into(),
            forwarders,
            export: None,
            asks: false,
            borrows: true,
            payload_max: 1 << 20,
            connections: 1,
            // Each way of moving transfers is tried, in chunks shorter than the largest payload.
            pipeline: Pipeline::new(Pipelining::ALL[id as usize % 3], 16 << 10),
            merge_blocks,
            names_max: 10_000,
        };
        Client {
            core: Core::new(options),
            links: vec![None; forwarders],
            scripts,
            calls: BTreeMap::new(),
            call: 0,
            log: Vec::new(),
            thinking: Vec::new(),
            cache: AttrCache::default(),
            mutant: None,
            cached: Vec::new(),
            forged: Vec::new(),
        }
    }

    /// Takes something away from it.
    pub fn without(self, mutant: Option<LoanMutant>) -> Client {
        let cache = AttrCache::without(mutant);
        Client {
            cache,
            mutant,
            ..self
        }
    }

    /// Changes a reply as the mutant does; false if the core does not get it at all.
    fn mutated(&mut self, forwarder: usize, reply: &mut Reply) -> bool {
        match (self.mutant, &mut reply.result) {
            (Some(LoanMutant::TooLong), Ok(Outcome::Hello(granted))) => granted.loan_ms *= 10,
            (Some(LoanMutant::KeptOnRecall), Ok(Outcome::Recalled(Some(handle)))) => {
                let mut frame = Frame::default();
                let request = Request {
                    id: (1 << 40) + self.forged.len() as u64 + self.call,
                    seat: 0,
                    reply_slot: None,
                    generation: 0,
                    epoch: 0,
                    replay: false,
                    caller: None,
                    hints: None,
                    op: Op::GiveBack { handle: *handle },
                    payload_len: 0,
                };
                self.call += 1;
                tidegate_wire::frame::encode_request(&request, &mut frame.head);
                self.forged.push((forwarder, frame));
                return false;
            }
            _ => {}
        }
        true
    }

    /// Whether all programs have ended.
    pub fn is_done(&self) -> bool {
        self.calls.is_empty() && self.thinking.is_empty() && self.call > 0
    }

    /// When the world must pump the client again if nothing happens before, in ns.
    pub fn wake_at(&self) -> Option<u64> {
        let thought = self.thinking.iter().map(|(at, _)| *at);
        let cache = self.cache.wake_at();
        thought.chain(self.core.wake_at()).chain(cache).min()
    }

    /// Starts all programs.
    pub fn start(&mut self, now: u64) {
        for script in 0..self.scripts.len() {
            self.ask(now, script);
        }
    }

    fn ask(&mut self, now: u64, script: usize) {
        self.scripts[script].now = now;
        let Some(ask) = self.scripts[script].next() else {
            return;
        };
        self.call += 1;
        let id = CallId(self.call);
        self.calls.insert(id, script);
        let app = self.scripts[script].id;
        let (op, payload) = (ask.op, ask.payload);
        if let Some(outcome) = self.cache.answer(now, &op) {
            return self.cached.push((id, outcome));
        }
        let call = Call {
            op,
            caller: None,
            app,
            payload: payload.into(),
            deadline_ns: None,
            forwarder: 0,
            operation: None,
            collective: None,
            caches: true,
            open: None,
            range: None,
        };
        self.core
            .handle(now, WALL_NS + now, Input::Call { id, call });
    }

    /// A connection that the client asked for has been made.
    pub fn connected(&mut self, now: u64, forwarder: usize) {
        let input = Input::Connected { forwarder };
        self.core.handle(now, WALL_NS + now, input);
    }

    /// A connection was refused or lost.
    pub fn lost(&mut self, now: u64, forwarder: usize) {
        self.links[forwarder] = None;
        self.core
            .handle(now, WALL_NS + now, Input::ConnectionLost { forwarder });
    }

    /// A frame has arrived.
    pub fn received(&mut self, now: u64, forwarder: usize, frame: Frame) {
        let header = frame.head[..64].try_into().expect("a head has 64 bytes");
        let header = tidegate_wire::frame::decode_header(header, self.core.payload_max())
            .expect("the forwarder's frames are right");
        let mut reply = tidegate_wire::frame::decode_reply(&header, &frame.head[64..])
            .expect("the forwarder's frames are right");
        if !self.mutated(forwarder, &mut reply) {
            return;
        }
        let payload = frame.payload.into();
        self.core.handle(
            now,
            WALL_NS + now,
            Input::Received {
                forwarder,
                reply,
                payload,
            },
        );
    }

    /// Does what the core asks until there is nothing more.
    pub fn pump(&mut self, now: u64, out: &mut Vec<Effect>) -> Result<(), String> {
        for (forwarder, frame) in std::mem::take(&mut self.forged) {
            out.extend(self.links[forwarder].map(|link| Effect::Send(link, frame)));
        }
        for number in self.cache.run(now) {
            let input = Input::Invalidated { number };
            self.core.handle(now, WALL_NS + now, input);
        }
        let (thought, thinking) = self.thinking.drain(..).partition(|(at, _)| *at <= now);
        self.thinking = thinking;
        let thought: Vec<(u64, usize)> = thought;
        thought
            .iter()
            .for_each(|(_, script)| self.ask(now, *script));
        loop {
            if let Some((id, outcome)) = self.cached.pop() {
                let (data, lasts_ns) = (Data::default(), 0);
                let answer = Answer {
                    outcome,
                    data,
                    lasts_ns,
                };
                self.done(now, id, Ok(answer))?;
                continue;
            }
            let Some(output) = self.core.poll(now) else {
                break;
            };
            match output {
                Output::Connect { forwarder } => out.push(Effect::Connect(forwarder)),
                Output::Disconnect { forwarder } => {
                    if let Some(link) = self.links[forwarder].take() {
                        out.push(Effect::Cut(link));
                    }
                }
                Output::Send {
                    forwarder,
                    request,
                    payload,
                    ..
                } => {
                    let mut frame = Frame::default();
                    tidegate_wire::frame::encode_request(&request, &mut frame.head);
                    frame.payload = payload.iter().flat_map(Payload::to_vec).collect();
                    let link = self.links[forwarder].expect("it sends on a connection");
                    out.push(Effect::Send(link, frame));
                }
                Output::Done { id, result } => {
                    result.iter().for_each(|it| self.cache.take_in(now, it));
                    self.done(now, id, result)?;
                }
                Output::Invalidate { number, files, .. } => {
                    self.cache.invalidate(now, number, files)
                }
                Output::Refused {
                    forwarder, errno, ..
                } => {
                    return Err(format!(
                        "forwarder {forwarder} refused the session: {errno:?}"
                    ));
                }
                Output::Log { text } => self.log.push(text),
                Output::Opened { .. } | Output::Join { .. } | Output::Ended => {}
            }
        }
        Ok(())
    }

    fn done(&mut self, now: u64, id: CallId, result: Result<Answer, Errno>) -> Result<(), String> {
        let script = self.calls.remove(&id).expect("a call ends once");
        let answer = match result {
            Ok(answer) => Ok((answer.outcome, answer.data.to_vec())),
            Err(errno) => Err(errno.0),
        };
        self.scripts[script].now = now;
        let lost = self.scripts[script].tells_loss(&answer);
        self.scripts[script].answered(answer)?;
        if lost {
            self.scripts.iter_mut().for_each(Script::doubt_records);
        }
        match self.scripts[script].thinks() {
            0 => self.ask(now, script),
            pause => self.thinking.push((now + pause, script)),
        }
        Ok(())
    }
}
