//! Calls that are interrupted, cut, answered with rubbish or not at all.

use crate::calls::{create, exclusive, pattern};
use crate::fake::{Fake, STRIPE, plain};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use tidegate_client::wire::{Handle, Lock, LockKind};
use tidegate_client::{CancelToken, Client, ConnectError, Context, Errno, Options};

fn cancellable() -> (Context, CancelToken) {
    let token = CancelToken::new();
    (
        Context {
            cancel: Some(token.clone()),
            ..Context::default()
        },
        token,
    )
}

pub const SECRET: &[u8] = b"open sesame, please";

pub fn write_secret(path: &Path, secret: &[u8], mode: u32) {
    std::fs::write(path, secret).expect("the folder is ours");
    let mode = PermissionsExt::from_mode(mode);
    std::fs::set_permissions(path, mode).expect("the file is ours");
}

#[test]
fn a_waiting_call_can_be_cancelled() {
    let fake = Fake::start("cancel");
    let client = fake.client();
    let file = create(&client, b"file");
    fake.with(|state| state.held = true);
    let (ctx, token) = cancellable();
    thread::scope(|scope| {
        let call = scope.spawn(|| client.read(&ctx, file, 0, 100));
        fake.wait_for("read", 1);
        token.cancel();
        assert_eq!(call.join().expect("no panic").err(), Some(Errno::INTR));
    });
    // The forwarder is still stuck. A cancelled token ends later calls, too, unsent.
    assert_eq!(client.read(&ctx, file, 0, 100).err(), Some(Errno::INTR));
    fake.with(|state| state.held = false);
    assert!(client.read(&plain(), file, 0, 100).is_ok());
}

#[test]
fn a_lock_wait_can_be_cancelled() {
    let fake = Fake::start("cancel-lock");
    let client = fake.client();
    let file = create(&client, b"file");
    assert_eq!(client.set_lock(&plain(), file, exclusive(1), true), Ok(()));
    let (ctx, token) = cancellable();
    thread::scope(|scope| {
        let call = scope.spawn(|| client.set_lock(&ctx, file, exclusive(2), true));
        fake.wait_for("set_lock", 2);
        token.cancel();
        assert_eq!(call.join().expect("no panic"), Err(Errno::INTR));
    });
    // The forwarder has forgotten the waiter: the next one gets the lock.
    fake.wait_for("cancel_lock", 1);
    let release = Lock {
        kind: LockKind::None,
        ..exclusive(1)
    };
    assert_eq!(client.set_lock(&plain(), file, release, false), Ok(()));
    assert_eq!(client.set_lock(&plain(), file, exclusive(3), false), Ok(()));
}

#[test]
fn silence_ends_with_the_time() {
    let fake = Fake::start("silence");
    let client = fake.client();
    let file = create(&client, b"file");
    fake.with(|state| state.silent = true);
    let timeout = Duration::from_millis(50);
    let ctx = Context {
        timeout: Some(timeout),
        ..Context::default()
    };
    let start = Instant::now();
    assert_eq!(client.read(&ctx, file, 0, 100).err(), Some(Errno::TIMEDOUT));
    assert!(start.elapsed() >= timeout);
}

#[test]
fn a_cut_connection_is_made_again_and_the_call_ends_well() {
    let fake = Fake::start("cut");
    let client = fake.client();
    let file = create(&client, b"file");
    let bytes = pattern(10_000, 7);
    fake.with(|state| state.cuts = 3);
    assert_eq!(
        client.write(&plain(), file, 0, bytes.clone()),
        Ok(bytes.len())
    );
    fake.with(|state| state.cuts = 1);
    let data = client
        .read(&plain(), file, 0, bytes.len())
        .expect("it is there");
    assert_eq!(data.into_bytes(), bytes);
    assert_eq!(fake.connections(), 5);
}

/// Many threads write and read, each its own stripes; `times` over.
fn many_threads(client: &Client, file: Handle, times: usize) {
    thread::scope(|scope| {
        for number in 0..8 {
            scope.spawn(move || {
                for round in 0..times {
                    let bytes = pattern(3000, number + round);
                    let offset = number as u64 * STRIPE;
                    let written = client.write(&plain(), file, offset, bytes.clone());
                    assert_eq!(written, Ok(bytes.len()));
                    let data = client.read(&plain(), file, offset, bytes.len());
                    assert_eq!(data.expect("it is there").into_bytes(), bytes);
                }
            });
        }
    });
}

#[test]
fn a_session_whose_further_connection_is_cut_begins_anew() {
    let fake = Fake::start("joined");
    let secret = fake.folder().join("secret");
    write_secret(&secret, SECRET, 0o600);
    let address = fake.start_tcp(&secret);
    fake.with(|state| state.further = 2);
    for address in [fake.address(), address] {
        fake.with(|state| state.joined = 0);
        let client = fake.client_with(|options| {
            options.forwarders = vec![address.clone()];
            options.secret_file = Some(secret.clone());
            options.connections = 8;
        });
        let file = create(&client, &address.as_bytes()[..3]);
        many_threads(&client, file, 50);
        assert_eq!(fake.with(|state| state.joined), 2, "{address}");
        let before = fake.connections();
        fake.with(|state| state.cuts_joined = 1);
        many_threads(&client, file, 50);
        let (joined, left) = fake.with(|state| (state.joined, state.cuts_joined));
        assert_eq!((joined, left), (4, 0), "{address}: all of the new session");
        assert_eq!(fake.connections(), before + 3, "{address}");
    }
}

#[test]
fn a_session_does_without_connections_that_are_refused() {
    let fake = Fake::start("refused-joins");
    fake.with(|state| (state.further, state.refuses_joined) = (3, true));
    let client = fake.client_with(|options| options.connections = 3);
    let file = create(&client, b"file");
    many_threads(&client, file, 20);
    assert_eq!(fake.with(|state| state.refused), 2, "asked once each");
    assert_eq!(fake.connections(), 3);
}

#[test]
fn calls_of_many_threads_survive_cuts() {
    const THREADS: usize = 16;
    let fake = Fake::start("cuts");
    let client = fake.client();
    let file = create(&client, b"file");
    fake.with(|state| (state.cuts, state.late_cuts) = (5, 5));
    thread::scope(|scope| {
        for number in 0..THREADS {
            let client = &client;
            scope.spawn(move || {
                let bytes = pattern(3000, number);
                let offset = number as u64 * 3000;
                assert_eq!(
                    client.write(&plain(), file, offset, bytes.clone()),
                    Ok(3000)
                );
                let data = client
                    .read(&plain(), file, offset, 3000)
                    .expect("it is there");
                assert_eq!(data.into_bytes(), bytes);
            });
        }
    });
    assert!(fake.connections() > 5);
}

#[test]
fn rubbish_drops_the_connection_only() {
    let fake = Fake::start("rubbish");
    let client = fake.client();
    let file = create(&client, b"file");
    let bytes = pattern(100, 9);
    fake.with(|state| state.garbled = 2);
    assert_eq!(client.write(&plain(), file, 0, bytes.clone()), Ok(100));
    let data = client.read(&plain(), file, 0, 100).expect("it is there");
    assert_eq!(data.into_bytes(), bytes);
    assert_eq!(fake.connections(), 3);
}

#[test]
fn bytes_in_flight_are_bounded() {
    let fake = Fake::start("bound");
    let client = fake.client_with(|options| options.in_flight_bytes_max = 10_000);
    let file = create(&client, b"file");
    fake.with(|state| state.held = true);
    thread::scope(|scope| {
        let first = scope.spawn(|| client.read(&plain(), file, 0, 8000));
        fake.wait_for("read", 1);
        let ctx = Context {
            timeout: Some(Duration::from_millis(20)),
            ..Context::default()
        };
        assert_eq!(
            client.read(&ctx, file, 0, 4000).err(),
            Some(Errno::TIMEDOUT)
        );
        let (ctx, token) = cancellable();
        token.cancel();
        assert_eq!(client.read(&ctx, file, 0, 4000).err(), Some(Errno::INTR));
        fake.with(|state| {
            assert_eq!(state.seen["read"], 1);
            state.held = false;
        });
        assert!(first.join().expect("no panic").is_ok());
    });
    assert!(client.read(&plain(), file, 0, 50_000).is_ok());
}

#[test]
fn shutdown_ends_waiting_calls() {
    let fake = Fake::start("shutdown");
    let client = fake.client();
    let file = create(&client, b"file");
    fake.with(|state| state.held = true);
    thread::scope(|scope| {
        let call = scope.spawn(|| client.read(&plain(), file, 0, 100));
        fake.wait_for("read", 1);
        client.shutdown();
        assert_eq!(call.join().expect("no panic").err(), Some(Errno::IO));
    });
    assert_eq!(client.getattr(&plain(), file).err(), Some(Errno::IO));
    fake.with(|state| state.held = false);
    client.shutdown();
}

#[test]
fn goodbye_is_said() {
    let fake = Fake::start("goodbye");
    let client = fake.client();
    drop(client);
    fake.wait_for("bye", 1);
}

#[test]
fn an_absent_forwarder_is_named() {
    let mut options = Options::new(["unix:/nonexistent/tidegate.sock"]);
    options.connect_timeout = Duration::from_millis(50);
    let error = Client::connect(options).err().expect("nobody is there");
    assert!(matches!(error, ConnectError::Unreachable(_)), "{error}");
    assert!(
        error
            .to_string()
            .contains("unix:/nonexistent/tidegate.sock: No such file"),
        "{error}"
    );
}

#[test]
fn a_refused_session_says_why() {
    let fake = Fake::start("refused");
    fake.with(|state| state.refusing = Some(13));
    let error = Client::connect(Options::new([fake.address()]))
        .err()
        .expect("refused");
    assert!(matches!(error, ConnectError::Refused(..)), "{error}");
    assert!(error.to_string().contains("Permission denied"), "{error}");
}

#[test]
fn over_tcp_the_secret_decides() {
    let fake = Fake::start("secret");
    let site = fake.folder().join("site");
    write_secret(&site, SECRET, 0o600);
    let address = fake.start_tcp(&site);
    let connect = |secret: Option<&str>, mode: u32| {
        let mut options = Options::new([address.clone()]);
        options.secret_file = secret.map(|secret| {
            let path = fake.folder().join("secret");
            write_secret(&path, secret.as_bytes(), mode);
            path
        });
        Client::connect(options)
    };
    let client = connect(Some("open sesame, please\n"), 0o600).expect("the secret is right");
    let file = create(&client, b"file");
    assert_eq!(
        client.write(&plain(), file, 0, pattern(100_000, 1)),
        Ok(100_000)
    );
    fake.with(|state| state.cuts = 1);
    assert_eq!(
        client.read(&plain(), file, 0, 100_000).expect("there").len,
        100_000
    );

    let error = connect(Some("open barley, please"), 0o600)
        .err()
        .expect("the secret is wrong");
    assert!(matches!(error, ConnectError::Refused(..)), "{error}");
    assert!(error.to_string().contains("its secret?"), "{error}");
    let error = connect(None, 0o600).err().expect("there is no secret");
    assert!(
        error.to_string().contains("asks for the shared secret"),
        "{error}"
    );
    for (secret, mode, said) in [
        ("\n", 0o600, "holds 0 bytes"),
        ("open sesame", 0o600, "holds 11 bytes"),
        ("open sesame, please\n", 0o644, "can be read by others"),
        ("open sesame, please\n", 0o640, "can be read by others"),
    ] {
        let error = connect(Some(secret), mode).err().expect(said);
        assert!(matches!(error, ConnectError::Secret(..)), "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[test]
fn who_has_another_secret_cannot_pose_as_a_forwarder() {
    // It takes every greeting's form, and has a secret of its own.
    let rogue = Fake::start("rogue");
    let (theirs, ours) = (rogue.folder().join("theirs"), rogue.folder().join("ours"));
    write_secret(&theirs, b"another secret, not it", 0o600);
    write_secret(&ours, SECRET, 0o600);
    let address = rogue.start_tcp(&theirs);
    let mut options = Options::new([address]);
    options.secret_file = Some(ours.clone());
    let error = Client::connect(options).err().expect("it proves nothing");
    assert!(matches!(error, ConnectError::Refused(..)), "{error}");
    // One that asks for no proof and greets nobody is not trusted either.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    let seen = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("it comes");
        let mut bytes = [0; 4096];
        let count = std::io::Read::read(&mut stream, &mut bytes).expect("it greets");
        let pong = tidegate_client::wire::Reply {
            id: 1,
            seat: 0,
            generation: 0,
            epoch: 0,
            charged_ns: 0,
            result: Ok(tidegate_client::wire::Outcome::Done),
            payload_len: 0,
            lent: Default::default(),
        };
        let mut frame = Vec::new();
        tidegate_client::wire::frame::encode_reply(3, &pong, &mut frame);
        std::io::Write::write_all(&mut stream, &frame).expect("there is room");
        let _ = std::io::Read::read(&mut stream, &mut bytes);
        bytes[..count].to_vec()
    });
    let mut options = Options::new([format!("tcp:{address}")]);
    options.secret_file = Some(ours);
    let error = Client::connect(options).err().expect("it proves nothing");
    let text = error.to_string();
    assert!(
        text.contains("does not prove that it is a forwarder"),
        "{text}"
    );
    let greeting = seen.join().expect("it ran");
    assert!(
        !greeting.windows(4).any(|it| it == b"TGW1"),
        "no frame came"
    );
}
