//! The whole client, with its threads and sockets, and forwarders that say anything, over Unix
//! sockets and TCP: each call ends, a reader gets no more than was asked for, what the client sends
//! are requests, and no thread of it stays.
//!
//! What the core makes of whole replies is the target `client`; here it is the bytes, and when they
//! come. Times are those of the machine, so a run does not repeat another in every step.

use crate::client::{reply_to, result};
use crate::greeting::{MOUNT, SITE, changed};
use crate::operation::asked;
use crate::{Draw, folder::Folder};
use rustix::net::{self, SendFlags};
use std::io::{self, ErrorKind, IoSliceMut, Read};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Scope};
use std::time::Duration;
use tidegate_client::core::Errno;
use tidegate_client::wire::frame::{decode_request_shared, encode_reply, encode_reply_shared};
use tidegate_client::wire::{ExportId, Handle, Outcome, Request};
use tidegate_client::{Bytes, Client, Context, Encryption, Options, Payload};
use tidegate_net::{Channel, Confirmation, FrameReader, Step, accept};

/// Forwarders that the client is told of.
const FORWARDERS_MAX: usize = 2;
/// What each connection in turn hears; those after these are closed at once.
const SCRIPTS_MAX: usize = 6;
/// Answers of a connection.
const ANSWERS_MAX: usize = 100;
/// How often the client may connect in a run: it waits longer from time to time.
const CONNECTIONS_MAX: usize = 500;
const CALLS_MAX: u8 = 6;
/// How often a run looks whether the client's threads have ended, a millisecond apart.
const PATIENT_LOOKS: usize = 5000;
const PAYLOAD_MAX: u32 = 1 << 16;
/// How long the client tries, so that a run is short.
const PATIENCE: Duration = Duration::from_millis(40);
/// How long a forwarder waits for a client that says nothing.
const SILENCE: Duration = Duration::from_millis(200);

/// A socket of either kind.
trait Socket: Read + AsFd + Send {}

impl<S: Read + AsFd + Send> Socket for S {}

/// Sends as many bytes as there is room for. Where the other end has gone, no signal ends the
/// fuzzer.
fn send(socket: &dyn Socket, bytes: &[u8]) -> io::Result<usize> {
    Ok(net::send(socket, bytes, SendFlags::NOSIGNAL)?)
}

/// Where one forwarder listens.
enum Door {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Door {
    /// Opens it in this folder, and says its address.
    fn open(remote: bool, folder: &Folder, number: usize) -> (Door, String) {
        if remote {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
            let at = listener.local_addr().expect("it is bound");
            return (Door::Tcp(listener), format!("tcp:{at}"));
        }
        let path = folder.path().join(number.to_string());
        let listener = UnixListener::bind(&path).expect("the folder is fresh");
        (Door::Unix(listener), format!("unix:{}", path.display()))
    }

    fn accept(&self) -> io::Result<Box<dyn Socket>> {
        Ok(match self {
            Door::Unix(listener) => {
                let socket = listener.accept()?.0;
                socket.set_read_timeout(Some(SILENCE))?;
                socket.set_write_timeout(Some(SILENCE))?;
                Box::new(socket)
            }
            Door::Tcp(listener) => {
                let socket = listener.accept()?.0;
                socket.set_read_timeout(Some(SILENCE))?;
                socket.set_write_timeout(Some(SILENCE))?;
                Box::new(socket)
            }
        })
    }

    /// Wakes whoever waits in [`Door::accept`].
    fn knock(&self) {
        match self {
            Door::Unix(listener) => {
                let at = listener.local_addr().expect("it is bound");
                drop(UnixStream::connect_addr(&at));
            }
            Door::Tcp(listener) => {
                let at = listener.local_addr().expect("it is bound");
                drop(TcpStream::connect(at));
            }
        }
    }
}

pub(super) fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    let folder = Folder::new();
    let remote = draw.yes();
    let count = 1 + draw.below(FORWARDERS_MAX);
    let doors: Vec<_> = (0..count)
        .map(|number| Door::open(remote, &folder, number))
        .collect();
    let addresses = doors.iter().map(|(_, address)| address.clone()).collect();
    let options = options(&mut draw, &folder, (addresses, remote));
    let mut calls = Draw::new(draw.some_bytes());
    let scripts: Vec<&[u8]> = (0..SCRIPTS_MAX)
        .map(|_| {
            let len = draw.u16() % 4096;
            draw.bytes(len.into())
        })
        .collect();
    let (ends, next) = (AtomicBool::new(false), AtomicUsize::new(0));
    let threads = threads_of_the_client();
    thread::scope(|scope| {
        for (number, (door, _)) in doors.iter().enumerate() {
            let stage = Stage {
                remote,
                forwarder: (number, count),
                scripts: &scripts,
                next: &next,
                ends: &ends,
            };
            scope.spawn(move || stage.listen(scope, door));
        }
        use_client(&mut calls, options);
        ends.store(true, Ordering::Release);
        doors.iter().for_each(|(door, _)| door.knock());
    });
    let connections = next.load(Ordering::Relaxed);
    assert!(connections < CONNECTIONS_MAX, "it connects without end");
    // The kernel shows a thread for a while after it has ended.
    let ended = (0..PATIENT_LOOKS).any(|_| {
        let ended = threads_of_the_client() <= threads;
        thread::sleep(Duration::from_millis(u64::from(!ended)));
        ended
    });
    assert!(ended, "a thread stays");
}

/// Threads of this process whose names begin as those of the client do.
fn threads_of_the_client() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").expect("Linux shows it");
    let names = threads.flatten().map(|thread| thread.path().join("comm"));
    let names = names.filter_map(|name| std::fs::read_to_string(name).ok());
    names.filter(|name| name.starts_with("tidegate")).count()
}

fn options(
    draw: &mut Draw<'_>,
    folder: &Folder,
    (addresses, remote): (Vec<String>, bool),
) -> Options {
    let secret_file = remote.then(|| folder.private("secret", &MOUNT.to_text()));
    Options {
        secret_file,
        encryption: draw.of(&Encryption::ALL),
        // Without it, the client first asks all forwarders what they know of each other.
        export: (!draw.one_in(16)).then_some(ExportId(1)),
        timeout: PATIENCE,
        connect_timeout: PATIENCE,
        payload_max: draw.of(&[4096, PAYLOAD_MAX]),
        connections: 1 + draw.u16() % 3,
        in_flight_bytes_max: 1 << 18,
        shared_memory_bytes: if draw.yes() { 1 << 18 } else { 0 },
        names_max: 10,
        name: "fuzz".to_string(),
        application: "fuzz".to_string(),
        ..Options::new(addresses)
    }
}

/// Connects, and makes calls, some of them at once.
fn use_client(draw: &mut Draw<'_>, options: Options) {
    let Ok(client) = Client::connect(options) else {
        return;
    };
    let ctx = Context {
        timeout: Some(PATIENCE),
        ..Context::default()
    };
    let handles = [client.root().handle, Handle { inode: 2, birth: 1 }];
    for _ in 0..draw.u8() % CALLS_MAX {
        if draw.one_in(4) {
            let (len, offset) = (1 + usize::from(draw.u16()), draw.size());
            let read = client.start_read(&ctx, handles[1], offset, len);
            let bytes = Bytes::from(vec![b'.'; len]);
            let write = client.start_write(&ctx, handles[1], offset, bytes);
            if let Ok(Ok(data)) = read.map(|read| read.wait()) {
                assert!(data.len <= len, "more was read than asked for");
            }
            if let Ok(Ok(written)) = write.map(|write| write.wait()) {
                assert!(written <= len, "more was written than there is");
            }
            continue;
        }
        let (op, payload, most) = asked(draw, &handles, (1 << 17, 1 << 12));
        if let Ok(answer) = client.call(&ctx, op, payload.into_vec()) {
            let pieces: usize = answer.data.pieces.iter().map(Payload::len).sum();
            assert_eq!(pieces, answer.data.len);
            assert!(pieces as u64 <= most, "more was read than asked for");
        }
    }
    client.shutdown();
    let ended: Result<_, Errno> = client.getattr(&ctx, handles[0]);
    assert!(ended.is_err(), "it goes on behind its end");
}

/// What all connections to a forwarder have in common.
#[derive(Clone, Copy)]
struct Stage<'s> {
    remote: bool,
    /// Which forwarder of how many.
    forwarder: (usize, usize),
    scripts: &'s [&'s [u8]],
    /// The script of the next connection, to whichever forwarder.
    next: &'s AtomicUsize,
    ends: &'s AtomicBool,
}

impl<'s> Stage<'s> {
    /// Serves connections until the run ends.
    fn listen<'scope>(self, scope: &'scope Scope<'scope, '_>, door: &Door)
    where
        's: 'scope,
    {
        loop {
            let socket = door.accept();
            if self.ends.load(Ordering::Acquire) {
                return;
            }
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if let (Ok(socket), Some(script)) = (socket, self.scripts.get(number)) {
                scope.spawn(move || Connection::new(self, socket).serve(&mut Draw::new(script)));
            }
        }
    }
}

/// The forwarder's end of a connection.
struct Connection<'s> {
    stage: Stage<'s>,
    socket: Box<dyn Socket>,
    reader: FrameReader,
    channel: Option<Channel>,
    /// Whether it says what follows outside of the channel, in which the client goes on.
    bare: bool,
    /// What the client has to confirm before its first frame.
    unconfirmed: Option<Confirmation>,
}

impl<'s> Connection<'s> {
    fn new(stage: Stage<'s>, socket: Box<dyn Socket>) -> Connection<'s> {
        Connection {
            stage,
            socket,
            reader: FrameReader::of_requests(PAYLOAD_MAX, stage.remote),
            channel: None,
            bare: false,
            unconfirmed: None,
        }
    }

    fn serve(mut self, draw: &mut Draw<'_>) {
        // Where the client has gone away, there is nobody to talk to.
        let _ = self.talk(draw);
        let _ = net::shutdown(&*self.socket, net::Shutdown::Both);
    }

    fn talk(&mut self, draw: &mut Draw<'_>) -> io::Result<()> {
        if draw.one_in(16) {
            // Before it has heard anything.
            self.write(draw.some_bytes())?;
        }
        for _ in 0..ANSWERS_MAX {
            if draw.is_over() {
                return Ok(());
            }
            let Some(heard) = self.hear()? else {
                return Ok(());
            };
            match heard {
                Heard::Greeting(greeting) => self.greet(draw, &greeting)?,
                Heard::Request(request, shared) => self.answer(draw, &request, shared)?,
            }
        }
        Ok(())
    }

    /// The next that the client says; None at its end.
    fn hear(&mut self) -> io::Result<Option<Heard>> {
        loop {
            match self.reader.next(&mut []) {
                Ok(Step::Greeting(greeting)) => return Ok(Some(Heard::Greeting(greeting))),
                Ok(Step::Frame(header, body)) => {
                    let request = decode_request_shared(&header, body);
                    let (request, place) = request.expect("a client sends requests");
                    self.reader.skip_payload();
                    return Ok(Some(Heard::Request(Box::new(request), place.is_some())));
                }
                Ok(Step::More) => {}
                Ok(Step::Payload) => panic!("none is kept"),
                Err(error) => panic!("a client sends frames: {error}"),
            }
            let (socket, channel) = (&mut self.socket, &self.channel);
            let receive = |pieces: &mut [IoSliceMut<'_>]| match channel {
                Some(channel) => channel.receive(pieces, |into| socket.read_vectored(into)),
                None => socket.read_vectored(pieces),
            };
            if self.reader.fill(receive, &mut [])?.is_none() {
                return Ok(None);
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (mut left, socket) = (bytes, &*self.socket);
        while !left.is_empty() {
            let count = match &self.channel {
                Some(channel) if !self.bare => {
                    channel.send(&[left.into()], |bytes| send(socket, bytes))?
                }
                _ => send(socket, left)?,
            };
            left = &left[count..];
        }
        Ok(())
    }

    /// Answers a greeting, mostly as a forwarder does.
    fn greet(&mut self, draw: &mut Draw<'_>, greeting: &tidegate_net::Greeting) -> io::Result<()> {
        if let Some(confirmation) = self.unconfirmed.take() {
            assert!(
                confirmation.is_in(greeting),
                "a client confirms what it got"
            );
            return Ok(());
        }
        if draw.one_in(16) {
            self.write(draw.some_bytes())?;
        }
        let accepted = accept(&*SITE, draw.of(&Encryption::ALL), 0, greeting);
        let Ok(accepted) = accepted else {
            return self.write(draw.some_bytes());
        };
        let answer = accepted.answer.to_bytes();
        let (answer, differs) = match draw.one_in(8) {
            true => changed(draw, &answer),
            false => (answer, false),
        };
        self.write(&answer)?;
        if differs {
            return Ok(());
        }
        match accepted.channel {
            Ok(channel) => self.channel = Some(channel),
            Err(confirmation) => {
                self.unconfirmed = Some(confirmation);
                self.reader.expect_greeting();
            }
        }
        Ok(())
    }

    /// Answers a request: mostly once, whole, and fitting.
    fn answer(&mut self, draw: &mut Draw<'_>, request: &Request, shared: bool) -> io::Result<()> {
        let mut bytes = self.reply(draw, request, shared);
        match draw.u8() % 32 {
            0 => bytes = draw.some_bytes().to_vec(),
            1 => bytes.truncate(draw.below(bytes.len() + 1)),
            2 => bytes = changed(draw, &bytes).0,
            3 => bytes.clear(),
            4 => bytes = [&bytes[..], &bytes].concat(),
            5 => {
                let other = Request {
                    id: request.id.wrapping_add(draw.size()),
                    ..request.clone()
                };
                bytes.extend(self.reply(draw, &other, shared));
            }
            6 => bytes = bytes.repeat(usize::from(draw.u8())),
            // All that follows is nothing that a channel may hold.
            7 => self.bare = true,
            8 => {
                self.write(&bytes)?;
                return Err(ErrorKind::ConnectionAborted.into());
            }
            9 => {
                // In two halves, with a while between them.
                let half = draw.below(bytes.len() + 1).min(bytes.len());
                self.write(&bytes[..half])?;
                thread::sleep(Duration::from_millis(1));
                bytes.drain(..half);
            }
            _ => {}
        }
        self.write(&bytes)
    }

    fn reply(&self, draw: &mut Draw<'_>, request: &Request, shared: bool) -> Vec<u8> {
        let handles = [1, 2].map(|inode| Handle { inode, birth: 1 });
        let mut result = result(draw, &request.op, &handles);
        if let Ok(Outcome::Hello(hello)) = &mut result
            && !draw.one_in(8)
        {
            let (own, all) = self.stage.forwarder;
            hello.version = tidegate_client::wire::frame::VERSION;
            (hello.forwarder, hello.seats) = (own as u16, all as u16);
            (hello.stripe, hello.export) = (4096, ExportId(1));
            hello.payload_max = hello.payload_max.min(PAYLOAD_MAX);
            hello.held = [(own as u16, 1)].into();
            hello.fresh = true;
        }
        let mut bytes = Vec::new();
        let Some((code, reply)) = reply_to(draw, request, result) else {
            return bytes;
        };
        let len = reply.payload_len.min(2 * PAYLOAD_MAX) as usize;
        match shared && !draw.one_in(16) {
            true => encode_reply_shared(code, &reply, &mut bytes),
            false => {
                encode_reply(code, &reply, &mut bytes);
                bytes.resize(bytes.len() + len, b'!');
            }
        }
        bytes
    }
}

/// What a client says.
enum Heard {
    Greeting(tidegate_net::Greeting),
    Request(Box<Request>, bool),
}
