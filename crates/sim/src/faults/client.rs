//! A client in the simulated world: the product's client core, and the programs that use it.

use super::network::LinkId;
use super::process::Frame;
use super::script::Script;
use std::collections::BTreeMap;
use tidegate_client::core::{Call, CallId, Core, CoreOptions, Input, Output};
use tidegate_client::wire::{Pipeline, Pipelining};
use tidegate_client::{Answer, Errno, Payload};

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
            borrows: false,
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
        }
    }

    /// Whether all programs have ended.
    pub fn is_done(&self) -> bool {
        self.calls.is_empty() && self.call > 0
    }

    /// When the world must pump the client again if nothing happens before, in ns.
    pub fn wake_at(&self) -> Option<u64> {
        self.core.wake_at()
    }

    /// Starts all programs.
    pub fn start(&mut self, now: u64) {
        for script in 0..self.scripts.len() {
            self.ask(now, script);
        }
    }

    fn ask(&mut self, now: u64, script: usize) {
        let Some(ask) = self.scripts[script].next() else {
            return;
        };
        self.call += 1;
        let id = CallId(self.call);
        self.calls.insert(id, script);
        let app = self.scripts[script].id;
        let (op, payload) = (ask.op, ask.payload);
        let call = Call {
            op,
            caller: None,
            app,
            payload: payload.into(),
            deadline_ns: None,
            forwarder: 0,
            operation: None,
            collective: None,
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
        let reply = tidegate_wire::frame::decode_reply(&header, &frame.head[64..])
            .expect("the forwarder's frames are right");
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
        while let Some(output) = self.core.poll(now) {
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
                Output::Done { id, result } => self.done(now, id, result)?,
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
        let lost = self.scripts[script].tells_loss(&answer);
        self.scripts[script].answered(answer)?;
        if lost {
            self.scripts.iter_mut().for_each(Script::doubt_records);
        }
        self.ask(now, script);
        Ok(())
    }
}
