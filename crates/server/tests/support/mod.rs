//! A forwarder over a temporary directory, and a peer that speaks the protocol byte by byte.
#![allow(dead_code, reason = "each test file uses its own part")]

use rustix::fs::Uid;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::thread::set_thread_res_uid;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidegate_net::{Encryption, Finished, FrameReader, Greeting, Initiator, Secret, Step, Stream};
use tidegate_server::config::{Address, Config, Place};
use tidegate_server::{Running, Server};
use tidegate_wire::frame::{HEADER_LEN, decode_header, decode_reply, encode_request};
use tidegate_wire::{
    Extent, Handle, Hello, HelloReply, Hints, Op, Outcome, PAYLOAD_LIMIT, Reply, ReplySlot, Request,
};

/// A directory that goes with its owner.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(path.join("export")).expect("the temporary directory is ours");
        // Servers of other tests in this process have set the umask to 0.
        for path in [path.clone(), path.join("export")] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(path, mode).expect("ours");
        }
        Scratch(path)
    }

    pub fn export(&self) -> PathBuf {
        self.0.join("export")
    }

    pub fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A forwarder on a Unix socket (and what `edit` adds), one seat, with as many reactors as the test
/// program says.
pub fn start(scratch: &Scratch, edit: impl FnOnce(&mut Config)) -> Running {
    let mut config = Config::local(&scratch.export(), Address::unix(scratch.socket()));
    config.reactors = crate::REACTORS;
    edit(&mut config);
    let server = Server::bind(&config).expect("the configuration is right");
    server.spawn().expect("a thread can be had")
}

/// The name by which a test program runs this test of this module alone.
pub fn test_name(module: &str, test: &str) -> String {
    match module.split_once("::") {
        Some((_, inner)) => format!("{inner}::{test}"),
        None => test.to_string(),
    }
}

/// Makes a file that can serve as a secret.
pub fn write_secret(scratch: &Scratch, name: &str, secret: &str) -> PathBuf {
    let path = scratch.0.join(name);
    std::fs::write(&path, secret).expect("the directory is ours");
    let only_us = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&path, only_us).expect("the file is ours");
    path
}

/// Waits until it is so, for 20 s at most.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < limit, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Connects to a Unix socket as a user; only root can.
pub fn unix_as(path: &Path, uid: u32) -> UnixStream {
    let as_user = |uid: u32| {
        let set = set_thread_res_uid(None, Uid::from_raw(uid), None);
        set.expect("root can be any user");
    };
    as_user(uid);
    let stream = UnixStream::connect(path);
    as_user(0);
    stream.expect("the forwarder listens")
}

/// A connection over TCP.
pub fn tcp(running: &Running) -> TcpStream {
    let address = running
        .addresses()
        .iter()
        .find_map(|address| match &address.place {
            Place::Tcp(host) if address.provider.is_none() => Some(host.clone()),
            _ => None,
        });
    let stream = TcpStream::connect(address.expect("it listens on TCP")).expect("it listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("it is a socket");
    stream
}

/// Sends a greeting on a blocking stream, and receives the answer.
pub fn exchange(stream: &Stream, greeting: &Greeting) -> Greeting {
    let bytes = greeting.to_bytes();
    let sent = stream.send(&[bytes[..].into()], false, None);
    assert_eq!(sent.expect("there is room"), bytes.len());
    let mut reader = FrameReader::of_replies(1 << 20, true);
    loop {
        match reader.next(&mut []).expect("it is an answer") {
            Step::Greeting(answer) => return answer,
            Step::More => {}
            other => panic!("no answer: {other:?}"),
        }
        let filled = reader.fill(|pieces| stream.receive(pieces), &mut []);
        filled.expect("it answers").expect("it answers");
    }
}

/// A blocking stream after its handshake.
struct Protected(Stream);

impl Read for Protected {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.receive(&mut [IoSliceMut::new(into)])
    }
}

impl Write for Protected {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(&[bytes.into()], false, None)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

trait Wire: Read + Write + Send {}
impl<T: Read + Write + Send> Wire for T {}

/// One end of a connection, blocking.
pub struct Peer {
    stream: Box<dyn Wire>,
    /// The same socket, if it is a Unix socket.
    socket: Option<UnixStream>,
    client: u64,
    incarnation: u64,
    next_id: u64,
    sequence: u64,
    pub reply: Option<HelloReply>,
}

impl Peer {
    pub fn unix(path: &Path) -> Peer {
        Peer::over_unix(UnixStream::connect(path).expect("the forwarder listens"))
    }

    /// The same as an ordinary user.
    pub fn unix_as(path: &Path, uid: u32) -> Peer {
        Peer::over_unix(unix_as(path, uid))
    }

    fn over_unix(stream: UnixStream) -> Peer {
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("it is a socket");
        stream
            .set_write_timeout(Some(Duration::from_secs(20)))
            .expect("it is a socket");
        let socket = stream.try_clone().expect("descriptors are left");
        Peer {
            socket: Some(socket),
            ..Peer::over(stream)
        }
    }

    /// Connects over TCP, without a secret.
    pub fn tcp(running: &Running) -> Peer {
        Peer::over(tcp(running))
    }

    /// Connects over TCP and proves what is in the file of a secret. An error is the forwarder's
    /// refusal.
    pub fn proved(running: &Running, secret: &Path) -> Result<Peer, String> {
        Peer::proved_over(tcp(running), secret)
    }

    /// Like [`Peer::proved`], on a connection that is there.
    pub fn proved_over(socket: TcpStream, secret: &Path) -> Result<Peer, String> {
        let stream = Stream::new(socket.into(), None);
        let secret = Secret::read(secret).expect("it is a secret");
        let (initiator, greeting) = Initiator::begin(&secret, Encryption::On);
        let answer = exchange(&stream, &greeting);
        let finished = initiator.finish(&answer);
        match finished.map_err(|error| error.to_string())? {
            Finished::Protected(channel) => stream.protect(*channel),
            Finished::Plain(_) => panic!("it is encrypted"),
        }
        Ok(Peer::over(Protected(stream)))
    }

    pub fn over(stream: impl Read + Write + Send + 'static) -> Peer {
        static CLIENTS: AtomicU64 = AtomicU64::new(1);
        let client = CLIENTS.fetch_add(1, Ordering::Relaxed);
        Peer {
            stream: Box::new(stream),
            socket: None,
            client,
            incarnation: 1,
            next_id: 1,
            sequence: 0,
            reply: None,
        }
    }

    /// Speaks for a client that has had connections before.
    pub fn again(mut self, client: u64, incarnation: u64) -> Peer {
        self.client = client;
        self.incarnation = incarnation;
        self.sequence = incarnation << 16;
        self.next_id = incarnation << 16;
        self
    }

    /// How long a send waits for room.
    pub fn write_patience(&self, patience: Duration) {
        let socket = self.socket.as_ref().expect("a Unix socket");
        let set = socket.set_write_timeout(Some(patience));
        set.expect("it is a socket");
    }

    /// Its number as a client.
    pub fn client(&self) -> u64 {
        self.client
    }

    /// The id of its last request.
    pub fn last_id(&self) -> u64 {
        self.next_id - 1
    }

    pub fn hello_op(&self) -> Op {
        Op::Hello(Hello {
            version: tidegate_wire::frame::VERSION,
            client: self.client,
            incarnation: self.incarnation,
            joins: false,
            asks: false,
            borrows: false,
            wall_ns: 1,
            payload_max: 1 << 20,
            pipeline: Default::default(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            name: (*b"test").into(),
        })
    }

    /// Opens the session.
    pub fn greet(mut self) -> Peer {
        let hello = self.hello_op();
        let (reply, _) = self.call(hello, &[]);
        match reply.result {
            Ok(Outcome::Hello(granted)) => self.reply = Some(*granted),
            other => panic!("no session: {other:?}"),
        }
        self
    }

    pub fn root(&self) -> Handle {
        self.reply.as_ref().expect("after the hello").root.handle
    }

    /// A request as a well-behaved client sends it (one seat, reply slot 0).
    pub fn request(&mut self, op: Op, payload_len: u32) -> Request {
        let id = self.next_id;
        self.next_id += 1;
        let reply_slot = op.mutates().then(|| {
            self.sequence += 1;
            ReplySlot {
                index: 0,
                sequence: self.sequence,
            }
        });
        let data = matches!(op, Op::Read { .. } | Op::Write { .. } | Op::Append { .. });
        let hints = data.then(|| Hints {
            app: 1,
            operation: id,
            ..Hints::default()
        });
        Request {
            id,
            seat: 0,
            reply_slot,
            generation: 0,
            epoch: 0,
            replay: false,
            caller: None,
            hints,
            op,
            payload_len,
        }
    }

    pub fn frame(&mut self, op: Op, payload: &[u8]) -> Vec<u8> {
        let request = self.request(op, payload.len() as u32);
        let mut bytes = Vec::new();
        encode_request(&request, &mut bytes);
        bytes.extend_from_slice(payload);
        bytes
    }

    pub fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends bytes and, with the first of them, a descriptor.
    pub fn send_with(&mut self, bytes: &[u8], fd: BorrowedFd<'_>) {
        let socket = self.socket.as_ref().expect("a Unix socket");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [fd];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let flags = SendFlags::empty();
        let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags);
        assert_eq!(sent, Ok(bytes.len()));
    }

    /// The next reply and its payload.
    pub fn receive(&mut self) -> std::io::Result<(Reply, Vec<u8>)> {
        let mut header = [0; HEADER_LEN];
        self.stream.read_exact(&mut header)?;
        let header =
            decode_header(&header, PAYLOAD_LIMIT).expect("the forwarder's frames are sound");
        let mut body = vec![0; header.body_len as usize];
        self.stream.read_exact(&mut body)?;
        let reply = decode_reply(&header, &body).expect("the forwarder's frames are sound");
        let len = match header.shared {
            true => 0,
            false => header.payload_len as usize,
        };
        let mut payload = vec![0; len];
        self.stream.read_exact(&mut payload)?;
        Ok((reply, payload))
    }

    pub fn call(&mut self, op: Op, payload: &[u8]) -> (Reply, Vec<u8>) {
        let frame = self.frame(op, payload);
        self.send(&frame).expect("the connection is open");
        self.receive().expect("a reply comes")
    }

    /// Whether the forwarder ends the connection, whatever it says before.
    pub fn is_cut_off(&mut self) -> bool {
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return true,
                Err(_) => return false,
            }
        }
    }

    /// Asks for the root's attributes, which always works.
    pub fn check_alive(&mut self) {
        let handle = self.root();
        let (reply, _) = self.call(Op::Getattr { handle }, &[]);
        assert!(matches!(reply.result, Ok(Outcome::Attr(_))), "{reply:?}");
    }

    /// The number behind `key` in the forwarder's status.
    pub fn status(&mut self, key: &str) -> u64 {
        let (reply, _) = self.call(Op::Status, &[]);
        let Ok(Outcome::Text(text)) = reply.result else {
            panic!("no status: {reply:?}");
        };
        let text = String::from_utf8_lossy(&text).into_owned();
        let Some((_, rest)) = text.split_once(key) else {
            panic!("no {key} in {text}");
        };
        let end = rest.find(|it: char| !it.is_ascii_digit());
        rest[..end.unwrap_or(rest.len())].parse().expect("a number")
    }

    /// Waits until the forwarder's pool holds so many bytes.
    pub fn pool_holds(&mut self, bytes: u64) {
        let held = || self.status("\"pool\":{\"bytes\":") == bytes;
        until(&format!("a pool that holds {bytes} bytes"), held);
    }

    pub fn create(&mut self, name: &str) -> Handle {
        let parent = self.root();
        let name = name.as_bytes().into();
        let (reply, _) = self.call(
            Op::Create {
                parent,
                name,
                mode: 0o644,
                exclusive: false,
            },
            &[],
        );
        match reply.result {
            Ok(Outcome::Attr(attr)) => attr.handle,
            other => panic!("create: {other:?}"),
        }
    }

    pub fn write(&mut self, handle: Handle, offset: u64, bytes: &[u8]) {
        let extents = Extent {
            offset,
            len: bytes.len() as u64,
        }
        .into();
        let (reply, _) = self.call(Op::Write { handle, extents }, bytes);
        let len = bytes.len() as u64;
        assert_eq!(reply.result, Ok(Outcome::Written { len }));
    }

    pub fn read(&mut self, handle: Handle, offset: u64, len: u64) -> Vec<u8> {
        let extents = Extent { offset, len }.into();
        let (reply, payload) = self.call(Op::Read { handle, extents }, &[]);
        assert!(
            matches!(reply.result, Ok(Outcome::Data { .. })),
            "{reply:?}"
        );
        payload
    }
}

/// A small generator of pseudo-random numbers (SplitMix64), so that a seed repeats a run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}
