//! Clients through libfabric: payload of every size arrives by remote access, and a peer that is
//! wrong, or gone, costs one session.
#![cfg(feature = "fabric")]

mod support;

use std::io::{self, ErrorKind, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Peer, Random, Scratch, start};
use tidegate_client::{Bytes, Client, Context, Options};
use tidegate_fabric::{Domain, Link};
use tidegate_server::config::{Address, Place};
use tidegate_wire::frame::encode_request_shared;
use tidegate_wire::{Extent, Op, Outcome, Status};

/// Threads of a forwarder: links stay with the first.
const REACTORS: u32 = 2;

/// The forms of address that run anywhere.
fn addresses(scratch: &Scratch) -> [String; 2] {
    let shm = format!("fabric:shm:{}", scratch.socket().display());
    ["fabric:tcp:127.0.0.1:0".to_string(), shm]
}

fn options(address: &str) -> Options {
    let mut options = Options::new([address]);
    options.timeout = Duration::from_secs(30);
    options.connect_timeout = Duration::from_secs(20);
    options
}

#[test]
fn every_size_arrives_both_ways() {
    let scratch = Scratch::new("fabric-sizes");
    for listen in addresses(&scratch) {
        let running = start(&scratch, |config| {
            config.listen = vec![listen.parse().expect("an address")];
        });
        let address = running.addresses()[0].to_string();
        for shared_memory_bytes in [64 << 20, 1 << 20, 0] {
            let mut options = options(&address);
            options.shared_memory_bytes = shared_memory_bytes;
            let client = Client::connect(options).expect("the forwarder is there");
            let ctx = Context::default();
            let name = format!("{}-{shared_memory_bytes}", &address[7..10]);
            let made = client.create(&ctx, client.root().handle, name.as_bytes(), 0o644, true);
            let file = made.expect("a new name").handle;
            let mut random = Random(7);
            let mut offset = 0;
            for len in [
                0,
                1,
                100,
                4096,
                5000,
                65_536,
                300_001,
                1 << 20,
                (5 << 20) + 3,
            ] {
                let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
                let written = client.write(&ctx, file, offset, Bytes::from(bytes.clone()));
                assert_eq!(written, Ok(len), "{address} {len}");
                let read = client
                    .read(&ctx, file, offset, len + 10)
                    .expect("it is there");
                assert!(*read.into_bytes() == bytes[..], "{address} {len}");
                let stored = std::fs::read(scratch.export().join(&name)).expect("it is there");
                assert!(stored[offset as usize..] == bytes[..], "{address} {len}");
                offset += len as u64;
            }
        }
        assert!(running.shutdown().expect("it ran"), "it ended in time");
    }
}

#[test]
fn a_secret_is_proved_as_over_tcp() {
    let scratch = Scratch::new("fabric-secret");
    let file = scratch.0.join("secret");
    std::fs::write(&file, "0123456789abcdef0123456789abcdef\n").expect("the directory is ours");
    let only_us = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, only_us).expect("it is ours");
    let running = start(&scratch, |config| {
        config.listen = vec!["fabric:tcp:127.0.0.1:0".parse().expect("an address")];
        config.insecure = false;
        config.secret_file = Some(file.clone());
    });
    let address = running.addresses()[0].to_string();
    let error = Client::connect(options(&address))
        .err()
        .expect("a secret is asked for");
    assert!(error.to_string().contains("secret"), "{error}");
    let wrong = scratch.0.join("wrong");
    std::fs::write(&wrong, "another secret, which is wrong\n").expect("the directory is ours");
    std::fs::set_permissions(&wrong, PermissionsExt::from_mode(0o600)).expect("it is ours");
    let mut with = options(&address);
    with.secret_file = Some(wrong);
    let begin = Instant::now();
    let error = Client::connect(with).err().expect("it is the wrong one");
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(
        begin.elapsed() < Duration::from_secs(15),
        "the refusal was heard"
    );
    let mut with = options(&address);
    with.secret_file = Some(file);
    Client::connect(with).expect("it is the right one");
    drop(running);
}

#[test]
fn strangers_and_silent_peers_do_not_disturb() {
    let scratch = Scratch::new("fabric-strangers");
    let running = start(&scratch, |config| {
        config.listen = vec!["fabric:tcp:127.0.0.1:0".parse().expect("an address")];
        config.stall_ms = 8000;
    });
    let address = running.addresses()[0].to_string();
    let host = address.trim_start_matches("fabric:tcp:").to_string();
    let mut http = std::net::TcpStream::connect(&host).expect("it listens");
    std::io::Write::write_all(&mut http, b"GET / HTTP/1.1\r\n\r\n").expect("there is room");
    let mut silent = std::net::TcpStream::connect(&host).expect("it listens");
    let client = Client::connect(options(&address)).expect("the forwarder is there");
    for stranger in [&mut http, &mut silent] {
        stranger
            .set_read_timeout(Some(Duration::from_secs(30)))
            .expect("a timeout");
        // Its greeting comes, and then the end.
        let mut rest = Vec::new();
        let end = std::io::Read::read_to_end(stranger, &mut rest);
        assert!(
            end.is_ok() || end.is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock)
        );
    }
    let ctx = Context::default();
    let made = client.create(&ctx, client.root().handle, b"file", 0o644, true);
    made.expect("the session goes on");
    drop(running);
}

/// A link as a stream that blocks, for a peer that is written by hand.
struct Blocking(Arc<Link>);

impl Blocking {
    fn until<T>(&self, mut done: impl FnMut(&Link) -> io::Result<T>) -> io::Result<T> {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            self.0.woken();
            match done(&self.0) {
                Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < end => {
                    std::thread::sleep(Duration::from_micros(200));
                }
                done => return done,
            }
        }
    }
}

impl Read for Blocking {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.until(|link| link.read(&mut [IoSliceMut::new(into)]));
        read.map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => error,
            _ => ErrorKind::ConnectionReset.into(),
        })
    }
}

impl Write for Blocking {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.until(|link| link.write(&[bytes.into()]))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A session by hand, and its link.
fn peer(address: &Address) -> (Peer, Arc<Link>) {
    let (socket, local) = match &address.place {
        Place::Tcp(host) => {
            let stream = TcpStream::connect(host).expect("it listens");
            stream.set_nonblocking(true).expect("it is a socket");
            let local = stream.local_addr().expect("it is connected").ip();
            (stream.into(), Some(local))
        }
        Place::Unix(path) => {
            let stream = UnixStream::connect(path).expect("it listens");
            stream.set_nonblocking(true).expect("it is a socket");
            (stream.into(), None)
        }
    };
    let domain = address
        .provider
        .map(|provider| Domain::shared(provider, local));
    let domain = domain
        .expect("it is an address of libfabric")
        .expect("there is libfabric");
    let link = Arc::new(Link::begin(&domain, Arc::new(socket)).expect("a link"));
    let stream = Blocking(Arc::clone(&link));
    (Peer::over(stream).greet(), link)
}

const MEMORY: u64 = 1 << 20;

/// Registers memory of the peer's, or says that it has.
fn register(peer: &mut Peer, address: u64, key: u64) -> Result<Outcome, Status> {
    let op = Op::RegisterMemory {
        bytes: MEMORY,
        address,
        key,
    };
    let frame = peer.frame(op, &[]);
    peer.send(&frame).expect("the connection is open");
    peer.receive().expect("a reply comes").0.result
}

/// Sends a request whose payload is said to be in registered memory.
fn send_registered(peer: &mut Peer, op: Op, place: u64) {
    let len = match &op {
        Op::Write { extents, .. } => extents.bytes() as u32,
        _ => 0,
    };
    let request = peer.request(op, len);
    let mut frame = Vec::new();
    encode_request_shared(&request, place, &mut frame);
    peer.send(&frame).expect("the connection is open");
}

#[test]
fn a_peer_that_lies_about_its_memory_is_cut_off() {
    let scratch = Scratch::new("fabric-lies");
    for listen in addresses(&scratch) {
        let running = start(&scratch, |config| {
            config.listen = vec![listen.parse().expect("an address")];
            config.stall_ms = 8000;
        });
        let address = running.addresses()[0].clone();
        let (mut good, good_link) = peer(&address);
        let mut memory = vec![7; MEMORY as usize];
        // SAFETY: the memory outlives the links.
        let place = unsafe { good_link.offer(memory.as_mut_ptr(), memory.len(), Box::new(())) };
        // The numbers are nobody's business, and this test's.
        let place = place.expect("it can be registered");
        assert_eq!(
            register(&mut good, place.address, place.key),
            Ok(Outcome::Done)
        );
        assert!(
            register(&mut good, place.address, place.key).is_err(),
            "one offer is enough"
        );
        let file = good.create(&format!("file{}", listen.len()));
        let extents = |len| Extent { offset: 0, len }.into();
        let write = |len| Op::Write {
            handle: file,
            extents: extents(len),
        };
        let read = |len| Op::Read {
            handle: file,
            extents: extents(len),
        };
        send_registered(&mut good, write(5000), 100);
        let (reply, _) = good.receive().expect("a reply comes");
        assert!(reply.result.is_ok(), "{reply:?}");
        for (wrong, op) in [
            ("key", write(5000)),
            ("read's key", read(5000)),
            ("place", write(5000)),
            ("offer", read(5000)),
        ] {
            let (mut bad, _link) = peer(&address);
            let (key, at) = match wrong {
                "place" => (place.key, MEMORY - 10),
                _ => (place.key ^ 0x5a5a, 0),
            };
            if wrong != "offer" {
                assert_eq!(register(&mut bad, place.address, key), Ok(Outcome::Done));
            }
            send_registered(&mut bad, op, at);
            // With a put that the other side refuses, no reply comes; nobody else is disturbed.
            if wrong != "read's key" {
                assert!(bad.is_cut_off(), "{listen} {wrong}");
            }
        }
        send_registered(&mut good, read(5000), 200_000);
        let (reply, _) = good.receive().expect("a reply comes");
        assert_eq!(reply.payload_len, 5000);
        drop((good, good_link));
        assert!(memory.iter().all(|byte| *byte == 7));
        drop(running);
    }
}
