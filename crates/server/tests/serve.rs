//! A forwarder over real sockets and files: requests, secrets, refusals at start, and the drain.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use support::{Peer, Scratch, start, until, write_secret};
use tidegate_server::config::{Address, Config};
use tidegate_server::{Server, StartError};
use tidegate_wire::{Op, Outcome, Status};

/// Reactors of each forwarder; `reactors.rs` runs these tests with more.
#[allow(dead_code, reason = "of use where this file is the test program")]
const REACTORS: u32 = 1;

#[test]
fn the_loop_of_an_embedded_forwarder_keeps_no_rights_that_it_does_not_need() {
    // Two that only threads need which open users' files.
    const CHOWN: u64 = 1;
    const SETUID: u64 = 1 << 7;
    let rights = |status: &str| {
        let line = status.lines().find_map(|it| it.strip_prefix("CapPrm:"));
        u64::from_str_radix(line.expect("the kernel says").trim(), 16).expect("a number")
    };
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    if rights(&read(Path::new("/proc/thread-self/status"))) & (CHOWN | SETUID) == 0 {
        eprintln!("skipped: this user has no capabilities");
        return;
    }
    let scratch = Scratch::new("embedded");
    let running = start(&scratch, |_| ());
    Peer::unix(&scratch.socket()).greet().check_alive();
    // Those of tests beside this one too.
    let tasks = std::fs::read_dir("/proc/self/task").expect("it is there");
    let tasks = tasks.map(|task| task.expect("it is there").path());
    let loops = tasks.filter(|task| read(&task.join("comm")) == "forwarder\n");
    let loops: Vec<_> = loops.collect();
    assert!(!loops.is_empty());
    for task in loops {
        until("the loop to give up its rights", || {
            let status = read(&task.join("status"));
            status.is_empty() || rights(&status) & (CHOWN | SETUID) == 0
        });
    }
    assert!(running.shutdown().expect("it ends"));
}

#[test]
fn files_are_written_and_read_back() {
    let scratch = Scratch::new("files");
    let running = start(&scratch, |_| ());
    let mut peer = Peer::unix(&scratch.socket()).greet();
    let file = peer.create("data");
    let bytes: Vec<u8> = (0..300_000u32).map(|i| (i / 7) as u8).collect();
    peer.write(file, 12_345, &bytes);
    assert_eq!(peer.read(file, 12_345, 1 << 20), bytes);
    assert_eq!(peer.read(file, 0, 12_345), vec![0; 12_345]);
    assert_eq!(peer.read(file, 1 << 30, 100), b"");
    let on_disk = std::fs::read(scratch.export().join("data")).expect("it is an ordinary file");
    assert_eq!(on_disk[12_345..], bytes);
    let (reply, _) = peer.call(
        Op::Lookup {
            parent: peer.root(),
            name: (*b"none").into(),
        },
        &[],
    );
    assert_eq!(reply.result, Err(Status::Errno(2)));
    assert!(running.shutdown().expect("it ends"));
    assert!(
        !scratch.socket().exists(),
        "the socket goes with the forwarder"
    );
}

#[test]
fn many_requests_in_flight_are_all_answered() {
    let scratch = Scratch::new("many");
    // Less room than the sessions ask for at once, so that some wait for slots.
    let running = start(&scratch, |config| {
        config.pool_bytes = 1 << 20;
        config.payload_max = 256 << 10;
    });
    let socket = scratch.socket();
    std::thread::scope(|scope| {
        for number in 0..8u8 {
            let socket = &socket;
            scope.spawn(move || pipeline(socket, number));
        }
    });
    assert!(running.shutdown().expect("it ends"));
}

/// Writes 16 pieces without waiting, then reads them back without waiting.
fn pipeline(socket: &Path, number: u8) {
    const LEN: u64 = 100_000;
    let mut peer = Peer::unix(socket).greet();
    let file = peer.create(&format!("file{number}"));
    // A reply slot serves one request at a time, so writes with one reply slot go one by one.
    for at in 0..16 {
        peer.write(file, at * LEN, &vec![number ^ at as u8; LEN as usize]);
    }
    for at in 0..16 {
        let extents = tidegate_wire::Extent {
            offset: at * LEN,
            len: LEN,
        }
        .into();
        let frame = peer.frame(
            Op::Read {
                handle: file,
                extents,
            },
            &[],
        );
        peer.send(&frame).expect("the connection is open");
    }
    let mut seen = 0;
    for _ in 0..16 {
        let (reply, payload) = peer.receive().expect("a reply comes");
        assert!(reply.result.is_ok(), "{reply:?}");
        assert_eq!(payload.len() as u64, LEN);
        assert!(payload.iter().all(|byte| *byte == payload[0]));
        seen |= 1u32 << (payload[0] ^ number);
    }
    assert_eq!(seen, 0xffff);
}

#[test]
fn tcp_needs_the_secret() {
    let scratch = Scratch::new("secret");
    let secret = write_secret(&scratch, "secret", "a secret of some length\n");
    let running = start(&scratch, |config| {
        config.listen.push(Address::tcp("127.0.0.1:0"));
        config.secret_file = Some(secret.clone());
    });
    let mut good = Peer::proved(&running, &secret)
        .expect("it is right")
        .greet();
    good.check_alive();
    let wrong = write_secret(&scratch, "wrong", "another secret, not it");
    let refused = Peer::proved(&running, &wrong).err();
    assert_eq!(refused.as_deref(), Some("wrong secret"));
    good.check_alive();
    // Nothing is answered to who begins with a request.
    let mut bare = Peer::tcp(&running);
    let hello = bare.hello_op();
    let frame = bare.frame(hello, &[]);
    bare.send(&frame).expect("there is room");
    assert!(bare.is_cut_off());
    good.check_alive();
    // Unix sockets know their peers without a secret.
    Peer::unix(&scratch.socket()).greet().check_alive();
}

#[test]
fn insecure_tcp_takes_anybody_and_proves_nothing() {
    let scratch = Scratch::new("insecure");
    let running = start(&scratch, |config| {
        config.listen.push(Address::tcp("127.0.0.1:0"));
    });
    Peer::tcp(&running).greet().check_alive();
    let secret = write_secret(&scratch, "secret", "a secret of some length\n");
    let refused = Peer::proved(&running, &secret).err().unwrap_or_default();
    assert!(refused.contains("insecure = true"), "{refused}");
}

#[test]
fn what_is_wrong_at_the_start_is_said() {
    let scratch = Scratch::new("refusals");
    let refusal = |config: &Config| match Server::bind(config) {
        Ok(_) => panic!("it starts"),
        Err(error) => error.to_string(),
    };
    let good = Config::local(&scratch.export(), Address::unix(scratch.socket()));
    let missing = Config {
        export: scratch.0.join("missing"),
        ..good.clone()
    };
    assert!(
        refusal(&missing).contains("missing: "),
        "{}",
        refusal(&missing)
    );
    let mut nowhere = good.clone();
    nowhere.listen = vec![Address::unix(scratch.0.join("no/where"))];
    assert!(
        refusal(&nowhere).contains("create the directory"),
        "{}",
        refusal(&nowhere)
    );
    let short = scratch.0.join("short");
    std::fs::write(&short, "abc").expect("the directory is ours");
    std::fs::set_permissions(&short, PermissionsExt::from_mode(0o600)).expect("it is ours");
    let secret = Config {
        secret_file: Some(short.clone()),
        ..good.clone()
    };
    assert!(
        refusal(&secret).contains("at least 16"),
        "{}",
        refusal(&secret)
    );
    std::fs::set_permissions(&short, PermissionsExt::from_mode(0o644)).expect("it is ours");
    assert!(
        refusal(&secret).contains("chmod 600"),
        "{}",
        refusal(&secret)
    );

    // A stale socket file is replaced; one that is served is not.
    drop(std::os::unix::net::UnixListener::bind(scratch.socket()).expect("the directory is ours"));
    let running = Server::bind(&good)
        .expect("nobody listens there")
        .spawn()
        .expect("a thread");
    let busy = Server::bind(&good).err().expect("somebody listens there");
    assert!(matches!(busy, StartError::Listen(_)));
    assert!(
        busy.to_string().contains("another process listens there"),
        "{busy}"
    );
    Peer::unix(&scratch.socket()).greet().check_alive();

    let mut other_layout = good.clone();
    other_layout.listen = vec![Address::unix(scratch.0.join("other"))];
    other_layout.stripe = 8192;
    assert!(
        refusal(&other_layout).contains("stripe = 8192"),
        "{}",
        refusal(&other_layout)
    );
    drop(running);
}

/// Not a test by itself: the body of the child processes below.
#[test]
fn child() {
    let Some(config) = std::env::var_os("TIDEGATE_TEST_CHILD") else {
        return;
    };
    let mut config = Config::read(Path::new(&config)).expect("the parent wrote it");
    let kill_at = std::env::var("TIDEGATE_TEST_KILL_AT").ok();
    config.faults.kill_at_request = kill_at.and_then(|number| number.parse().ok());
    let in_time = tidegate_server::serve(&config).expect("it starts");
    std::process::exit(if in_time { 0 } else { 1 });
}

fn spawn_child(scratch: &Scratch, more: &str, kill_at: &str) -> Child {
    let path = scratch.0.join("child.toml");
    let text = format!(
        "export = {:?}\nlisten = \"unix:{}\"\npid_file = {:?}\nreactors = {}\n{more}",
        scratch.export(),
        scratch.socket().display(),
        scratch.0.join("pid"),
        crate::REACTORS,
    );
    std::fs::write(&path, text).expect("the directory is ours");
    let child = Command::new(std::env::current_exe().expect("we run"))
        .args([
            &support::test_name(module_path!(), "child"),
            "--exact",
            "--nocapture",
        ])
        .env("TIDEGATE_TEST_CHILD", path)
        .env("TIDEGATE_TEST_KILL_AT", kill_at)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("this test can run itself");
    let pid = child.id().to_string();
    let pid_file = scratch.0.join("pid");
    until("the child's start", || {
        std::fs::read_to_string(&pid_file).is_ok_and(|text| text.trim() == pid)
    });
    child
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).expect("it lives");
}

/// Waits until the forwarder has taken memory for a payload.
fn payload_comes(scratch: &Scratch) {
    let mut other = Peer::unix(&scratch.socket()).greet();
    until("a payload", || other.status("\"pool\":{\"bytes\":") > 0);
}

#[test]
fn sigterm_finishes_what_was_accepted_and_exits_0() {
    let scratch = Scratch::new("drain");
    // A call takes so long that it is under way when the signal comes.
    let device = "[device]\nmodel = \"ideal\"\nservice_us = 1000000\n";
    let mut child = spawn_child(&scratch, device, "");
    let mut peer = Peer::unix(&scratch.socket()).greet();
    let file = peer.create("file");
    let extents: tidegate_wire::Extents = tidegate_wire::Extent { offset: 0, len: 4 }.into();
    let frame = peer.frame(
        Op::Write {
            handle: file,
            extents,
        },
        b"tide",
    );
    peer.send(&frame).expect("the connection is open");
    payload_comes(&scratch);
    signal(&child, rustix::process::Signal::TERM);
    let (reply, _) = peer.receive().expect("what was accepted is answered");
    assert_eq!(reply.result, Ok(Outcome::Written { len: 4 }));
    let status = child.wait().expect("it is our child");
    assert_eq!(status.code(), Some(0));
    assert_eq!(
        std::fs::read(scratch.export().join("file")).expect("it is there"),
        b"tide"
    );
    assert!(!scratch.socket().exists() && !scratch.0.join("pid").exists());
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let scratch = Scratch::new("twice");
    let device = "[device]\nmodel = \"ideal\"\nservice_us = 20000000\n";
    let mut child = spawn_child(&scratch, device, "");
    let mut peer = Peer::unix(&scratch.socket()).greet();
    let file = peer.create("file");
    let extents: tidegate_wire::Extents = tidegate_wire::Extent { offset: 0, len: 4 }.into();
    let frame = peer.frame(
        Op::Write {
            handle: file,
            extents,
        },
        b"tide",
    );
    peer.send(&frame).expect("the connection is open");
    payload_comes(&scratch);
    signal(&child, rustix::process::Signal::TERM);
    until("the begin of the drain", || {
        UnixStream::connect(scratch.socket()).is_err()
    });
    assert!(
        child.try_wait().expect("it is our child").is_none(),
        "it drains"
    );
    signal(&child, rustix::process::Signal::INT);
    // After a drain in time the code is 0.
    assert_eq!(child.wait().expect("it is our child").code(), Some(1));
}

#[test]
fn the_chosen_request_kills_the_process() {
    let scratch = Scratch::new("kill");
    let mut child = spawn_child(&scratch, "", "3");
    let mut peer = Peer::unix(&scratch.socket()).greet();
    peer.check_alive();
    peer.call(Op::Status, &[]);
    peer.check_alive();
    let handle = peer.root();
    let frame = peer.frame(Op::Getattr { handle }, &[]);
    peer.send(&frame).expect("the connection is open");
    assert!(peer.is_cut_off());
    let status = child.wait().expect("it is our child");
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(9)
    );
    // What the dead process left is no obstacle.
    let mut child = spawn_child(&scratch, "", "");
    Peer::unix(&scratch.socket()).greet().check_alive();
    signal(&child, rustix::process::Signal::TERM);
    assert_eq!(child.wait().expect("it is our child").code(), Some(0));
}
