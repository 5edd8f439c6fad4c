//! Clients that show a credential of munge where nobody takes it, and where munged does not answer.
//! Tickets that are given have the end-to-end tests, which have a munged of their own.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use support::{Peer, Scratch, start, tcp, write_secret};
use tidegate_net::munge::Munge as Library;
use tidegate_net::{Asking, Carried, Greeting, HandshakeError, Refusal};
use tidegate_server::Running;
use tidegate_server::config::{Address, Config, Munge, Source};

const REACTORS: u32 = 1;

/// Connections of one node that may wait for munged.
const OF_NODE_MAX: usize = 16;

/// A connection that has shown a credential, which nobody made.
fn asking(running: &Running) -> (TcpStream, Asking) {
    let mut stream = tcp(running);
    let carried = Carried::new(stream.peer_addr().expect("it is connected"));
    let carried = carried.expect("random bytes");
    let (asking, greeting) = Asking::begin("MUNGE:AwQFAAB=:", &carried).expect("a credential");
    stream
        .write_all(&greeting.to_bytes())
        .expect("there is room");
    (stream, asking)
}

fn refused((mut stream, asking): (TcpStream, Asking)) -> Refusal {
    let answer = Greeting::read(&mut stream).expect("it answers");
    match asking.finish(&answer) {
        Err(HandshakeError::Refused(refusal)) => refusal,
        other => panic!("no refusal: {:?}", other.map(drop)),
    }
}

#[test]
fn who_takes_no_credentials_says_so() {
    let scratch = Scratch::new("no-munge");
    let secret = write_secret(&scratch, "secret", "a secret of some length");
    let running = start(&scratch, |config| {
        config.listen.push(Address::tcp("127.0.0.1:0"));
        config.secret_file = Some(secret.clone());
    });
    assert_eq!(refused(asking(&running)), Refusal::NoMunge);
    Peer::proved(&running, &secret)
        .expect("right")
        .greet()
        .check_alive();
}

#[test]
fn a_munged_that_hangs_keeps_nobody_else_waiting() {
    if Library::load().is_err() {
        eprintln!("skipped: no libmunge.so.2 here");
        return;
    }
    let scratch = Scratch::new("munged-hangs");
    let secret = write_secret(&scratch, "secret", "a secret of some length");
    let socket = secret.with_file_name("munged");
    // Takes what comes and says nothing.
    let _munged = UnixListener::bind(&socket).expect("a socket");
    let running = start(&scratch, |config| {
        config.listen.push(Address::tcp("127.0.0.1:0"));
        config.secret_file = Some(secret.clone());
        config.munge = Munge::On;
        config.munge_socket = Some(socket.clone());
    });
    let mut waiting: Vec<_> = (0..OF_NODE_MAX).map(|_| asking(&running)).collect();
    // Once one is turned away, all of them have come.
    let next = std::iter::repeat_with(|| asking(&running));
    let mut early = next.map(|(mut stream, asking)| {
        let wait = std::time::Duration::from_millis(100);
        stream.set_read_timeout(Some(wait)).expect("a socket");
        let answer = Greeting::read(&mut stream).ok()?;
        Some(asking.finish(&answer).expect_err("no ticket"))
    });
    let early = early.find_map(|answer| answer).expect("it has no end");
    assert_eq!(early, HandshakeError::Refused(Refusal::Busy));
    for _ in 0..3 {
        let peer = Peer::proved(&running, &secret).expect("right");
        peer.greet().check_alive();
    }
    let (first, _) = &mut waiting[0];
    first.set_nonblocking(true).expect("a socket");
    let answer = first.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(answer, Err(ErrorKind::WouldBlock), "it waits for munged");
}

#[test]
fn without_a_secret_there_are_no_tickets() {
    let text = "export = \"/tmp\"\nlisten = [\"unix:/tmp/socket\"]\nmunge = \"on\"\n";
    let source = Source::parse(text, "test").expect("TOML");
    let error = Config::from_source(source).expect_err("of what to make them?");
    assert!(error.to_string().contains("needs secret_file"), "{error}");
}
