//! What somebody on the way between a client and a forwarder can do: nothing but end the
//! connection.

mod support;

use std::io::{IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use support::{Peer, Scratch, exchange, start, tcp, write_secret};
use tidegate_net::{Finished, Initiator, Secret, Stream};
use tidegate_server::Running;
use tidegate_server::config::{Address, Encryption};
use tidegate_wire::Op;

const REACTORS: u32 = 1;

/// Somebody on the way, who sees all bytes and can change them.
#[derive(Clone)]
struct Between(Arc<Mutex<Way>>);

struct Way {
    to_forwarder: TcpStream,
    /// What has passed to the forwarder, as it was received each time.
    passed: Vec<Vec<u8>>,
    /// What is done to the next bytes.
    change: Option<fn(&mut Vec<u8>)>,
}

impl Between {
    /// Stands between the connection that it returns and the forwarder.
    fn new(running: &Running) -> (Between, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("it has one"));
        let client = client.expect("it listens");
        client
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("it is a socket");
        let (from_client, _) = listener.accept().expect("it came");
        let to_forwarder = tcp(running);
        let both = (from_client.try_clone(), to_forwarder.try_clone());
        let (mut to_client, mut from_forwarder) = (both.0.expect("a number"), both.1.expect("one"));
        thread::spawn(move || {
            // One end is gone.
            let _ = std::io::copy(&mut from_forwarder, &mut to_client);
            let _ = to_client.shutdown(std::net::Shutdown::Both);
        });
        let between = Between(Arc::new(Mutex::new(Way {
            to_forwarder,
            passed: Vec::new(),
            change: None,
        })));
        let passing = between.clone();
        thread::spawn(move || passing.pass(from_client));
        (between, client)
    }

    fn pass(&self, mut from: TcpStream) {
        let mut bytes = vec![0; 1 << 20];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let mut way = self.0.lock().expect("no thread panics");
            let mut passing = bytes[..count].to_vec();
            if let Some(change) = way.change.take() {
                change(&mut passing);
            }
            // The forwarder may have ended the connection.
            let _ = way.to_forwarder.write_all(&passing);
            way.passed.push(passing);
        }
    }

    fn inject(&self, bytes: &[u8]) {
        let mut way = self.0.lock().expect("no thread panics");
        way.to_forwarder.write_all(bytes).expect("it is open");
    }

    fn change_next(&self, change: fn(&mut Vec<u8>)) {
        self.0.lock().expect("no thread panics").change = Some(change);
    }

    fn passed(&self) -> Vec<Vec<u8>> {
        self.0.lock().expect("no thread panics").passed.clone()
    }
}

fn mkdir(peer: &mut Peer) -> Vec<u8> {
    let op = Op::Mkdir {
        parent: peer.root(),
        name: (*b"marked").into(),
        mode: 0o755,
    };
    peer.frame(op, &[])
}

#[test]
fn who_is_on_the_way_can_only_end_the_connection() {
    for encryption in [Encryption::On, Encryption::Integrity] {
        let scratch = Scratch::new("between");
        let secret = write_secret(&scratch, "secret", "a secret of some length");
        let running = start(&scratch, |config| {
            config.listen.push(Address::tcp("127.0.0.1:0"));
            config.secret_file = Some(secret.clone());
            config.encryption = encryption;
        });
        let marked = scratch.export().join("marked");
        let attempts: [fn(&Between, &mut Peer); 6] = [
            // A request behind the hello, as whoever greeted.
            |between, peer| between.inject(&mkdir(peer)),
            |between, _| {
                let last = between.passed().pop().expect("a request has passed");
                between.inject(&last);
            },
            |between, _| {
                let first = between.passed().swap_remove(0);
                between.inject(&first);
            },
            |between, peer| {
                between.change_next(|bytes| *bytes.last_mut().expect("not empty") ^= 1);
                let frame = mkdir(peer);
                peer.send(&frame).expect("there is room");
            },
            |between, peer| {
                between.change_next(|bytes| bytes[4] ^= 0x80);
                let frame = mkdir(peer);
                peer.send(&frame).expect("there is room");
            },
            |between, peer| {
                // The first of two is left out.
                between.change_next(Vec::clear);
                let op = Op::Ping;
                let frame = peer.frame(op, &[]);
                peer.send(&frame).expect("there is room");
                while between.passed().last().is_some_and(|it| !it.is_empty()) {
                    thread::sleep(Duration::from_millis(1));
                }
                let frame = mkdir(peer);
                peer.send(&frame).expect("there is room");
            },
        ];
        for (number, attempt) in attempts.iter().enumerate() {
            let (between, client) = Between::new(&running);
            let mut peer = Peer::proved_over(client, &secret)
                .expect("it only looks")
                .greet();
            peer.check_alive();
            attempt(&between, &mut peer);
            assert!(peer.is_cut_off(), "{encryption:?} {number}");
            assert!(!marked.exists(), "{encryption:?} {number}");
        }
    }
}

#[test]
fn a_record_that_stops_half_way_is_cut_off() {
    let scratch = Scratch::new("half");
    let secret = write_secret(&scratch, "secret", "a secret of some length");
    let running = start(&scratch, |config| {
        config.listen.push(Address::tcp("127.0.0.1:0"));
        config.secret_file = Some(secret.clone());
        config.stall_ms = 1500;
    });
    let connect = || {
        let (between, client) = Between::new(&running);
        let peer = Peer::proved_over(client, &secret);
        (between, peer.expect("it is right").greet())
    };
    let (_, mut waits) = connect();
    let cuts: [fn(&mut Vec<u8>); 3] = [
        |bytes| bytes.truncate(1),
        |bytes| bytes.truncate(20),
        |bytes| bytes.truncate(bytes.len() - 1),
    ];
    for cut in cuts {
        let (between, mut peer) = connect();
        peer.check_alive();
        between.change_next(cut);
        let frame = mkdir(&mut peer);
        peer.send(&frame).expect("there is room");
        assert!(peer.is_cut_off());
    }
    // Who has begun nothing may be silent.
    waits.check_alive();
}

#[test]
fn what_is_sent_between_nodes_is_read_by_nobody_else() {
    let scratch = Scratch::new("reads");
    let secret = write_secret(&scratch, "secret", "a secret of some length");
    for encryption in Encryption::ALL {
        // The client of the tests asks for encryption, and gets it whatever the forwarder wants.
        let running = start(&scratch, |config| {
            config.listen.push(Address::tcp("127.0.0.1:0"));
            config.secret_file = Some(secret.clone());
            config.encryption = encryption;
        });
        let (between, client) = Between::new(&running);
        let mut peer = Peer::proved_over(client, &secret)
            .expect("it is right")
            .greet();
        let word = b"a line of a file that nobody else may read";
        let file = peer.create("data");
        peer.write(file, 0, word);
        let seen = between.passed().concat();
        let is_shown = seen.windows(word.len()).any(|it| it == word);
        assert!(!is_shown, "{encryption:?}");
        std::fs::remove_file(scratch.export().join("data")).expect("it was made");
    }
}

#[test]
fn an_answer_of_a_forwarder_to_somebody_else_proves_nothing() {
    let scratch = Scratch::new("relay");
    let secret = write_secret(&scratch, "secret", "a secret of some length");
    let running = start(&scratch, |config| {
        config.listen.push(Address::tcp("127.0.0.1:0"));
        config.secret_file = Some(secret.clone());
    });
    // Somebody listens where a forwarder should be, and hands greetings on to a real one. All that
    // this gives is a connection to the real one.
    let (between, client) = Between::new(&running);
    let mut peer = Peer::proved_over(client, &secret)
        .expect("it reached a forwarder")
        .greet();
    peer.check_alive();
    let greeting = between.passed().swap_remove(0);
    // What was said then is of no use in another connection: its answer is for other keys.
    let mut thief = Peer::tcp(&running);
    thief.send(&greeting).expect("there is room");
    let frame = mkdir(&mut peer);
    thief.send(&frame).expect("there is room");
    assert!(thief.is_cut_off());
    assert!(!scratch.export().join("marked").exists());
    peer.check_alive();
}

#[test]
fn a_greeting_that_was_heard_is_no_login() {
    let scratch = Scratch::new("heard");
    let secret = write_secret(&scratch, "secret", "a secret of some length");
    let running = start(&scratch, |config| {
        config.listen.push(Address::tcp("127.0.0.1:0"));
        config.secret_file = Some(secret.clone());
        config.encryption = Encryption::Off;
    });
    let secret = Secret::read(&secret).expect("it is a secret");
    let (initiator, greeting) = Initiator::begin(&secret, Encryption::Off);
    let connect = || Stream::new(tcp(&running).into(), None);
    let (ours, thief) = (connect(), connect());
    let answer = exchange(&ours, &greeting);
    exchange(&thief, &greeting);
    let mut hello = Vec::new();
    let op = Peer::tcp(&running).hello_op();
    hello.extend(Peer::tcp(&running).frame(op, &[]));
    let answers = |stream: &Stream, bytes: &[u8]| {
        let sent = stream.send(&[bytes.into()], false, None);
        assert_eq!(sent.expect("there is room"), bytes.len());
        let mut head = [0; 4];
        let received = stream.receive(&mut [IoSliceMut::new(&mut head)]);
        received.is_ok_and(|count| count == 4) && &head == b"TGW1"
    };
    assert!(!answers(&thief, &hello), "nothing was confirmed");
    let Ok(Finished::Plain(confirmation)) = initiator.finish(&answer) else {
        panic!("both want no protection");
    };
    let thief = connect();
    exchange(&thief, &greeting);
    assert!(!answers(
        &thief,
        &[confirmation.to_bytes(), hello.clone()].concat()
    ));
    assert!(answers(&ours, &[confirmation.to_bytes(), hello].concat()));
}
