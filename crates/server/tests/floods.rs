//! Floods of one user, or of peers without a session: others connect and are served meanwhile.

mod support;

use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use support::{Peer, Scratch, start, until};
use tidegate_server::config::Config;
use tidegate_wire::frame::HEADER_LEN;
use tidegate_wire::{Extent, Handle, Op};

/// Reactors of each forwarder; `reactors.rs` runs these tests with more.
#[allow(dead_code, reason = "of use where this file is the test program")]
const REACTORS: u32 = 1;

/// An ordinary user.
const FLOODER: u32 = 12_345;
/// Another one.
const OTHER: u32 = 12_346;

/// A write of 1 MiB of which the header and one byte of payload are sent.
fn begin_write(peer: &mut Peer, file: Handle) {
    let extents = Extent {
        offset: 0,
        len: 1 << 20,
    }
    .into();
    let op = Op::Write {
        handle: file,
        extents,
    };
    let frame = peer.frame(op, &vec![7; 1 << 20]);
    let head = frame.len() - (1 << 20);
    assert!(head >= HEADER_LEN);
    peer.send(&frame[..head + 1]).expect("the socket has room");
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("SKIP: only root can be several users");
    }
    root
}

#[test]
fn a_hello_that_comes_byte_by_byte_ends_at_its_time() {
    let scratch = Scratch::new("trickle");
    let _running = start(&scratch, |config| {
        config.stall_ms = 600_000;
        config.hello_ms = 1000;
    });
    let mut slow = Peer::unix(&scratch.socket());
    let op = slow.hello_op();
    let frame = slow.frame(op, &[]);
    let mut bytes = frame.iter().cycle();
    until("the end of a connection that says no hello", || {
        thread::sleep(Duration::from_millis(200));
        let byte = *bytes.next().expect("it goes around");
        slow.send(&[byte]).is_err()
    });
}

#[test]
fn connections_without_a_hello_keep_nobody_out() {
    let scratch = Scratch::new("knockers");
    let config_of = |config: &mut Config| {
        config.sessions_max = 16;
        config.insecure = true;
        let listen = "tcp:127.0.0.1:0".parse();
        config.listen.push(listen.expect("an address"));
    };
    let running = start(&scratch, config_of);
    let tcp = running.addresses().iter().map(ToString::to_string);
    let mut tcp = tcp.filter_map(|address| Some(address.strip_prefix("tcp:")?.to_string()));
    let tcp = tcp.next_back().expect("it listens on TCP");
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(&tcp).expect("it listens"));
    }
    for _ in 0..3 {
        let mut own = Peer::unix(&scratch.socket()).greet();
        own.check_alive();
    }
    if !is_root() {
        return;
    }
    let over = AtomicBool::new(false);
    let knocked = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            // New ones as fast as they are accepted.
            let mut knockers = VecDeque::new();
            while !over.load(Ordering::Relaxed) {
                knockers.push_back(support::unix_as(&scratch.socket(), FLOODER));
                if knockers.len() > 300 {
                    knockers.pop_front();
                }
                knocked.fetch_add(1, Ordering::Relaxed);
            }
        });
        until("a flood", || knocked.load(Ordering::Relaxed) > 3000);
        for uid in [OTHER, 0].repeat(20) {
            let mut peer = Peer::unix_as(&scratch.socket(), uid).greet();
            peer.check_alive();
            peer.call(Op::Bye, &[]);
        }
        over.store(true, Ordering::Relaxed);
    });
    // All but those within the bounds were closed, and their descriptors with them.
    assert!(open_descriptors() < 900, "{} are open", open_descriptors());
}

fn open_descriptors() -> usize {
    let all = std::fs::read_dir("/proc/self/fd");
    all.expect("it is ours").count()
}

#[test]
fn sessions_of_one_user_leave_some_to_others() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("sessions");
    let _running = start(&scratch, |config| config.sessions_max = 32);
    let mut sessions = Vec::new();
    for number in 0..64 {
        let mut peer = Peer::unix_as(&scratch.socket(), FLOODER);
        let hello = peer.hello_op();
        let granted = peer.call(hello, &[]).0.result.is_ok();
        assert_eq!(granted, number < 8);
        sessions.push(peer);
    }
    for uid in [OTHER, 0] {
        let mut other = Peer::unix_as(&scratch.socket(), uid).greet();
        other.check_alive();
    }
}

#[test]
fn slow_payload_of_one_user_holds_a_part_of_the_pool() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("slow-payload");
    let _running = start(&scratch, |config| {
        config.stall_ms = 600_000;
        config.pool_bytes = 4 << 20;
        config.shared_memory = false;
    });
    let mut own = Peer::unix(&scratch.socket()).greet();
    let file = own.create("file");
    let path = scratch.export().join("file");
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(&path, everybody).expect("it is there");
    let mut slow = Vec::new();
    for _ in 0..12 {
        let mut peer = Peer::unix_as(&scratch.socket(), FLOODER).greet();
        begin_write(&mut peer, file);
        slow.push(peer);
    }
    own.pool_holds(1 << 20);
    let mut other = Peer::unix_as(&scratch.socket(), OTHER).greet();
    for peer in [&mut own, &mut other] {
        for _ in 0..10 {
            peer.write(file, 0, &vec![9; 1 << 20]);
            assert_eq!(peer.read(file, 0, 1 << 20).len(), 1 << 20);
        }
    }
    // His own next ones go on when the first have ended.
    drop(slow.drain(..11));
    let mut last = slow.pop().expect("one is left");
    last.send(&vec![7; (1 << 20) - 1]).expect("it is read");
    assert!(last.receive().expect("an answer").0.result.is_ok());
}

#[test]
fn payload_below_the_least_rate_ends_the_session() {
    let scratch = Scratch::new("rate");
    let _running = start(&scratch, |config| {
        config.stall_ms = 1000;
        config.payload_rate_min = 1 << 20;
        config.shared_memory = false;
    });
    let mut good = Peer::unix(&scratch.socket()).greet();
    let file = good.create("file");
    let mut slow = Peer::unix(&scratch.socket()).greet();
    begin_write(&mut slow, file);
    until("the end of a session whose payload hardly comes", || {
        thread::sleep(Duration::from_millis(200));
        slow.send(&[7]).is_err()
    });
    good.check_alive();
}

#[test]
fn everything_is_answered_to_one_who_asks_for_many_turns_at_once() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("turns");
    let _running = start(&scratch, |_| {});
    let mut peers: Vec<Peer> = (0..8)
        .map(|_| Peer::unix_as(&scratch.socket(), FLOODER).greet())
        .collect();
    let mut other = Peer::unix_as(&scratch.socket(), OTHER).greet();
    for _ in 0..20 {
        for peer in &mut peers {
            let handle = peer.root();
            let frames: Vec<Vec<u8>> = (0..30)
                .map(|_| peer.frame(Op::Getattr { handle }, &[]))
                .collect();
            peer.send(&frames.concat()).expect("the socket has room");
        }
        other.check_alive();
        for peer in &mut peers {
            for _ in 0..30 {
                assert!(peer.receive().expect("an answer").0.result.is_ok());
            }
        }
    }
}
