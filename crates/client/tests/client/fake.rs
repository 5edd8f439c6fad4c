//! A forwarder inside the test: the wire protocol over a Unix socket, files in memory, and faults
//! on demand. It has one seat and one directory.

mod files;

use files::Files;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, IoSliceMut, Read, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use tidegate_client::wire::frame::{self, HEADER_LEN};
use tidegate_client::wire::{
    HelloReply, Op, Outcome, Pipeline, Pipelining, Reply, ReplySlot, Request, Status,
};
use tidegate_client::{Client, Context, Options};
use tidegate_net::{Beside, Encryption, FrameReader, Greeting, Refusal, SiteSecret, Step, Stream};

/// Largest payload of the fake.
pub const PAYLOAD_MAX: u32 = 1 << 20;
/// Bytes of a stripe.
pub const STRIPE: u64 = 64 << 10;

/// A running fake, with its socket's folder.
pub struct Fake {
    shared: Arc<Shared>,
    folder: PathBuf,
}

/// What connections share.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Files, sessions' memory and what shall go wrong.
#[derive(Default)]
pub struct State {
    files: Files,
    /// Stored replies of mutating requests, by client and reply slot.
    reply_slots: BTreeMap<(u64, u16), (u64, Stored)>,
    /// Requests seen, by their kind.
    pub seen: BTreeMap<&'static str, u32>,
    /// Numbers and lengths of the operations that data requests were parts of.
    pub operations: BTreeSet<(u64, u64)>,
    /// Data requests wait while set.
    pub held: bool,
    /// Cuts the connection instead of answering this many data requests.
    pub cuts: u32,
    /// As `cuts`, but after carrying them out.
    pub late_cuts: u32,
    /// Connections of a session beyond the first that are of use, how many have joined, and how
    /// many of them are cut instead of answering a data request.
    pub further: u16,
    pub joined: u32,
    pub cuts_joined: u32,
    /// Those that want to join are refused, which this many were.
    pub refuses_joined: bool,
    pub refused: u32,
    /// Sends bytes that are no frame instead of this many replies to data requests.
    pub garbled: u32,
    /// Never answers data requests.
    pub silent: bool,
    /// Writes replies in portions of this many bytes; 0: whole.
    pub portion: usize,
    /// Takes memory that clients offer; the last that was offered, and how many data requests had
    /// their payload there.
    pub shares: bool,
    pub memory: Option<Arc<File>>,
    pub placed: u32,
    /// Refuses new sessions.
    pub refusing: Option<u16>,
    /// The lock that someone holds, and who waits for it.
    lock_holder: Option<u64>,
    lock_waiting: Vec<(u64, u64, Arc<Mutex<Blocking>>)>,
    connections: u32,
}

/// A reply as stored in a row.
type Stored = (Result<Outcome, Status>, Vec<u8>);

impl Fake {
    /// Listens in a folder of its own.
    pub fn start(test: &str) -> Fake {
        let folder = std::env::temp_dir().join(format!("tidegate-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for the socket");
        let listener = UnixListener::bind(folder.join("sock")).expect("the socket can be bound");
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let served = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let shared = Arc::clone(&served);
                let stream = stream.expect("a connection can be accepted");
                thread::spawn(move || serve(&shared, stream.into(), None));
            }
        });
        Fake { shared, folder }
    }

    /// Listens on TCP as well, and wants a proof of the secret in this file. Returns the address.
    pub fn start_tcp(&self, secret: &Path) -> String {
        let secret = Arc::new(SiteSecret::read(secret).expect("it is a secret"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::clone(&self.shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (shared, secret) = (Arc::clone(&shared), Arc::clone(&secret));
                let stream = stream.expect("a connection can be accepted").into();
                thread::spawn(move || serve(&shared, stream, Some(&secret)));
            }
        });
        format!("tcp:{address}")
    }

    /// From now on so many bytes can be appended.
    pub fn set_room(&self, bytes: usize) {
        self.with(|state| state.files.room = bytes);
    }

    /// The folder of its socket, which goes with it.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The address to connect to.
    pub fn address(&self) -> String {
        format!("unix:{}", self.folder.join("sock").display())
    }

    /// A client of this fake.
    pub fn client(&self) -> Arc<Client> {
        self.client_with(|_| {})
    }

    /// A client with other options.
    pub fn client_with(&self, set: impl FnOnce(&mut Options)) -> Arc<Client> {
        let mut options = Options::new([self.address()]);
        set(&mut options);
        Client::connect(options).expect("the fake grants a session")
    }

    /// Changes what goes wrong, or looks at what was seen.
    pub fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        let result = look(&mut self.shared.state());
        self.shared.changed.notify_all();
        result
    }

    /// Waits until `count` requests of a kind were seen.
    pub fn wait_for(&self, kind: &str, count: u32) {
        let mut state = self.shared.state();
        while state.seen.get(kind).copied().unwrap_or(0) < count {
            state = self
                .shared
                .changed
                .wait(state)
                .expect("no connection panics");
        }
    }

    /// How many connections there were.
    pub fn connections(&self) -> u32 {
        self.shared.state().connections
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no connection panics")
    }
}

/// One connection, until it is cut.
struct Connection<'a> {
    shared: &'a Shared,
    stream: Blocking,
    writer: Arc<Mutex<Blocking>>,
    client: u64,
    joins: bool,
    /// Where in shared memory the payload of the present request lies or shall lie.
    place: Option<u64>,
}

/// A blocking stream, with the descriptors that came. Clones are the same stream.
#[derive(Clone)]
struct Blocking(Arc<Stream>, Arc<Mutex<Beside>>);

impl Read for Blocking {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut beside = self.1.lock().expect("no connection panics");
        let into = &mut [IoSliceMut::new(into)];
        self.0.receive_beside(into, &mut beside)
    }
}

impl Write for Blocking {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(&[bytes.into()], false, None)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Takes or refuses a client that has to prove the secret.
fn handshake(stream: &Stream, secret: &SiteSecret) -> Result<(), Refusal> {
    let greet = |greeting: &Greeting| {
        let bytes = greeting.to_bytes();
        let sent = stream.send(&[bytes[..].into()], false, None);
        assert_eq!(sent.expect("there is room"), bytes.len());
    };
    let mut reader = FrameReader::of_requests(PAYLOAD_MAX, true);
    let accepted = loop {
        match reader.next(&mut []).expect("it is a greeting") {
            Step::More => {}
            Step::Greeting(greeting) => {
                let sites = std::slice::from_ref(secret);
                break tidegate_net::accept(sites, Encryption::On, 0, &greeting);
            }
            Step::Frame(..) | Step::Payload => break Err(Refusal::Missing),
        }
        let filled = reader.fill(|pieces| stream.receive(pieces), &mut []);
        if !matches!(filled, Ok(Some(_))) {
            return Err(Refusal::Missing);
        }
    };
    match accepted {
        Ok(accepted) => {
            greet(&accepted.answer);
            stream.protect(accepted.channel.ok().expect("it is encrypted"));
            Ok(())
        }
        Err(refusal) => {
            greet(&Greeting::refusal(refusal));
            Err(refusal)
        }
    }
}

fn serve(shared: &Shared, socket: OwnedFd, secret: Option<&SiteSecret>) {
    shared.state().connections += 1;
    let stream = Stream::new(socket, None);
    if secret.is_some_and(|secret| handshake(&stream, secret).is_err()) {
        return stream.shutdown();
    }
    let stream = Blocking(Arc::new(stream), Arc::default());
    let mut connection = Connection {
        shared,
        writer: Arc::new(Mutex::new(stream.clone())),
        stream,
        client: 0,
        joins: false,
        place: None,
    };
    while let Some((request, payload)) = connection.next() {
        if !connection.answer(&request, payload) {
            break;
        }
    }
    // The writer may be kept by a waiting lock.
    connection.stream.0.shutdown();
}

impl Connection<'_> {
    /// The next request; None at the end of the stream.
    fn next(&mut self) -> Option<(Request, Vec<u8>)> {
        let mut header = [0; HEADER_LEN];
        self.stream.read_exact(&mut header).ok()?;
        let header = frame::decode_header(&header, PAYLOAD_MAX).expect("the client sends frames");
        let mut body = vec![0; header.body_len as usize];
        self.stream.read_exact(&mut body).ok()?;
        let request = frame::decode_request_shared(&header, &body);
        let (request, place) = request.expect("the client sends requests");
        let mut payload = vec![0; header.payload_len as usize];
        match place {
            Some(place) => {
                let memory = self.shared.state().memory.clone().expect("it was taken");
                let read = memory.read_exact_at(&mut payload, place);
                read.expect("the place is in the memory");
            }
            None => self.stream.read_exact(&mut payload).ok()?,
        }
        self.place = place;
        Some((request, payload))
    }

    /// Serves one request; false to cut the connection.
    fn answer(&mut self, request: &Request, payload: Vec<u8>) -> bool {
        let kind = kind_of(&request.op);
        let mut state = self.shared.state();
        *state.seen.entry(kind).or_default() += 1;
        let operation = request.hints.map(|it| (it.operation, it.operation_bytes));
        state.operations.extend(operation);
        self.shared.changed.notify_all();
        if let Op::Hello(hello) = &request.op {
            self.client = hello.client;
            self.joins = hello.joins;
            if hello.joins && state.refuses_joined {
                state.refused += 1;
                drop(state);
                self.reply(request, Err(Status::Errno(87)), Vec::new(), 0);
                return false;
            }
            state.joined += u32::from(hello.joins);
            let result = match state.refusing {
                Some(errno) => Err(Status::Errno(errno)),
                None => Ok(Outcome::Hello(Box::new(grant(&state)))),
            };
            if hello.asks {
                // Nothing of it is a session's.
                state.connections -= 1;
            }
            drop(state);
            return self.reply(request, result, Vec::new(), 0) && !hello.asks;
        }
        if let Op::ShareMemory { .. } = request.op
            && state.shares
        {
            state.memory = Some(self.descriptor());
            drop(state);
            return self.reply(request, Ok(Outcome::Done), Vec::new(), 0);
        }
        let is_data = matches!(request.op, Op::Read { .. } | Op::Write { .. });
        state.placed += u32::from(is_data && self.place.is_some());
        while is_data && state.held {
            state = self
                .shared
                .changed
                .wait(state)
                .expect("no connection panics");
        }
        if is_data && state.silent {
            return true;
        }
        if is_data && self.joins && take_one(&mut state.cuts_joined) {
            return false;
        }
        if is_data && take_one(&mut state.cuts) {
            return false;
        }
        if let Op::SetLock { .. } | Op::CancelLock { .. } = request.op {
            return self.lock(state, request);
        }
        let (result, bytes) = self.once(&mut state, request, payload);
        if is_data && take_one(&mut state.late_cuts) {
            return false;
        }
        if is_data && take_one(&mut state.garbled) {
            drop(state);
            let mut writer = self.writer.lock().expect("no connection panics");
            let _ = writer.write_all(&[0x55; 200]);
            return true;
        }
        let portion = state.portion;
        drop(state);
        self.reply(request, result, bytes, portion)
    }

    /// The memory that came with a request.
    fn descriptor(&self) -> Arc<File> {
        let mut beside = self.stream.1.lock().expect("no connection panics");
        let descriptor = beside.descriptor.take();
        Arc::new(descriptor.expect("it comes with the frame").into())
    }

    /// Carries out a request, a mutating one once however often it comes.
    fn once(&self, state: &mut State, request: &Request, payload: Vec<u8>) -> Stored {
        let Some(ReplySlot { index, sequence }) = request.reply_slot else {
            return state.files.perform(&request.op, &payload);
        };
        let key = (self.client, index);
        match state.reply_slots.get(&key) {
            Some((stored, reply)) if *stored == sequence => return reply.clone(),
            Some((stored, _)) => assert!(*stored < sequence, "a reply slot's sequence went back"),
            None => {}
        }
        let reply = state.files.perform(&request.op, &payload);
        state.reply_slots.insert(key, (sequence, reply.clone()));
        reply
    }

    /// One exclusive lock is enough to wait for.
    fn lock(&self, mut state: MutexGuard<'_, State>, request: &Request) -> bool {
        let mut replies = Vec::new();
        match &request.op {
            Op::SetLock { lock, wait, .. } => {
                use tidegate_client::wire::LockKind;
                let free = state.lock_holder.is_none_or(|holder| holder == lock.owner);
                if lock.kind == LockKind::None {
                    if state.lock_holder == Some(lock.owner) {
                        state.lock_holder = None;
                        if !state.lock_waiting.is_empty() {
                            let (id, owner, writer) = state.lock_waiting.remove(0);
                            state.lock_holder = Some(owner);
                            replies.push((id, writer, Ok(Outcome::Done)));
                        }
                    }
                    replies.push((request.id, Arc::clone(&self.writer), Ok(Outcome::Done)));
                } else if free {
                    state.lock_holder = Some(lock.owner);
                    replies.push((request.id, Arc::clone(&self.writer), Ok(Outcome::Done)));
                } else if *wait {
                    let writer = Arc::clone(&self.writer);
                    state.lock_waiting.push((request.id, lock.owner, writer));
                } else {
                    let busy = Err(Status::Errno(11));
                    replies.push((request.id, Arc::clone(&self.writer), busy));
                }
            }
            Op::CancelLock { request: waiting } => {
                let at = state.lock_waiting.iter().position(|(id, ..)| id == waiting);
                if let Some(at) = at {
                    let (id, _, writer) = state.lock_waiting.remove(at);
                    replies.push((id, writer, Err(Status::Errno(4))));
                }
                replies.push((request.id, Arc::clone(&self.writer), Ok(Outcome::Done)));
            }
            _ => unreachable!("only these come here"),
        }
        drop(state);
        for (id, writer, result) in replies {
            let op = if id == request.id {
                frame::op_code(&request.op)
            } else {
                set_lock_code()
            };
            send(&writer, op, reply_to(id, result, 0), &[], 0);
        }
        true
    }

    fn reply(
        &self,
        request: &Request,
        result: Result<Outcome, Status>,
        payload: Vec<u8>,
        portion: usize,
    ) -> bool {
        let reply = reply_to(request.id, result, payload.len() as u32);
        if let (Op::Read { .. }, Ok(_), Some(place)) = (&request.op, &reply.result, self.place) {
            let memory = self.shared.state().memory.clone().expect("it was taken");
            let wrote = memory.write_all_at(&payload, place);
            wrote.expect("the place is in the memory");
            let mut bytes = Vec::new();
            frame::encode_reply_shared(frame::op_code(&request.op), &reply, &mut bytes);
            let mut writer = self.writer.lock().expect("no connection panics");
            return writer.write_all(&bytes).is_ok();
        }
        send(
            &self.writer,
            frame::op_code(&request.op),
            reply,
            &payload,
            portion,
        )
    }
}

fn send(writer: &Mutex<Blocking>, op: u8, reply: Reply, payload: &[u8], portion: usize) -> bool {
    let mut bytes = Vec::new();
    frame::encode_reply(op, &reply, &mut bytes);
    bytes.extend_from_slice(payload);
    let portion = if portion == 0 { bytes.len() } else { portion };
    let mut writer = writer.lock().expect("no connection panics");
    bytes
        .chunks(portion)
        .all(|part| writer.write_all(part).is_ok())
}

fn reply_to(id: u64, result: Result<Outcome, Status>, payload_len: u32) -> Reply {
    Reply {
        id,
        seat: 0,
        generation: 1,
        epoch: 1,
        charged_ns: 1,
        result,
        payload_len,
        lent: Default::default(),
    }
}

fn grant(state: &State) -> HelloReply {
    HelloReply {
        version: tidegate_client::wire::frame::VERSION,
        forwarder: 0,
        seats: 1,
        stripe: STRIPE,
        payload_max: PAYLOAD_MAX,
        pipeline: Pipeline::new(Pipelining::Parallel, PAYLOAD_MAX),
        credits: 64,
        connections: 1 + state.further,
        reply_slots: 16,
        fresh: state.connections <= 1,
        lease_ms: 60_000,
        loan_ms: 0,
        wall_ns: 1,
        host: 1,
        boot: 1,
        export: Default::default(),
        process: 0,
        forwarders: Box::default(),
        held: Box::from([(0, 1)]),
        root: state.files.root(),
    }
}

fn take_one(count: &mut u32) -> bool {
    let any = *count > 0;
    *count = count.saturating_sub(1);
    any
}

fn set_lock_code() -> u8 {
    let lock = crate::calls::exclusive(1);
    frame::op_code(&Op::SetLock {
        handle: files::ROOT,
        lock,
        wait: true,
        reclaim: false,
    })
}

fn kind_of(op: &Op) -> &'static str {
    match op {
        Op::Hello(_) => "hello",
        Op::Bye => "bye",
        Op::Read { .. } => "read",
        Op::Write { .. } => "write",
        Op::Append { .. } => "append",
        Op::Create { .. } => "create",
        Op::Lookup { .. } => "lookup",
        Op::Open { .. } => "open",
        Op::Close { .. } => "close",
        Op::SetLock { .. } => "set_lock",
        Op::CancelLock { .. } => "cancel_lock",
        Op::DropLocks { .. } => "drop_locks",
        _ => "other",
    }
}

/// The context of a caller without wishes.
pub fn plain() -> Context {
    Context::default()
}
