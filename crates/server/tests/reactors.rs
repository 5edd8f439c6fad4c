//! The tests of connections once more, with a forwarder of several reactors; and what only several
//! can get wrong.
#![allow(
    clippy::duplicate_mod,
    reason = "each of the files is a test program of its own as well"
)]

#[path = "clients.rs"]
mod clients;
#[path = "floods.rs"]
mod floods;
#[path = "hostile.rs"]
mod hostile;
#[path = "serve.rs"]
mod serve;
#[path = "shared_memory.rs"]
mod shared_memory;
mod support;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use support::{Peer, Random, Scratch, start, until};
use tidegate_device::DeviceOptions;
use tidegate_wire::{Extent, Handle, Op, Outcome};

/// Reactors of each forwarder.
const REACTORS: u32 = 4;

fn read_op(handle: Handle, offset: u64, len: u64) -> Op {
    let extents = Extent { offset, len }.into();
    Op::Read { handle, extents }
}

fn write_op(handle: Handle, offset: u64, len: u64) -> Op {
    let extents = Extent { offset, len }.into();
    Op::Write { handle, extents }
}

/// One client after the other: each writes, reads back, and ends in one of several ways, not all of
/// them kind.
fn come_and_go(socket: &Path, seed: u64, over: &AtomicBool) -> u64 {
    const LEN: u64 = 100_000;
    let (mut random, mut clients) = (Random(seed), 0);
    while !over.load(Ordering::Relaxed) {
        clients += 1;
        let mut peer = Peer::unix(socket).greet();
        let file = peer.create(&format!("file{seed}"));
        let bytes = vec![random.next() as u8; LEN as usize];
        let offset = random.below(8) as u64 * LEN;
        peer.write(file, offset, &bytes);
        assert_eq!(peer.read(file, offset, LEN), bytes);
        match random.below(4) {
            // Amid the payload of a write.
            0 => {
                let frame = peer.frame(write_op(file, offset, LEN), &bytes);
                peer.send(&frame[..random.below(frame.len())])
                    .expect("it is open");
            }
            // With replies under way that nobody takes.
            1 => {
                for _ in 0..8 {
                    let frame = peer.frame(read_op(file, 0, 8 * LEN), &[]);
                    peer.send(&frame).expect("small frames fit the socket");
                }
            }
            // With a frame that is none.
            2 => {
                peer.send(&[0xff; 200]).expect("it is open");
                assert!(peer.is_cut_off());
            }
            _ => {
                peer.call(Op::Bye, &[]);
            }
        }
    }
    clients
}

#[test]
fn clients_that_come_and_go_leave_nothing_behind() {
    let scratch = Scratch::new("go");
    let running = start(&scratch, |config| {
        // Less than they want at once, so that many wait for a slot when they go.
        config.pool_bytes = 2 << 20;
        config.lease_ms = 1000;
        config.sessions_max = 16384;
    });
    let (socket, over) = (scratch.socket(), AtomicBool::new(false));
    let mut good = Peer::unix(&socket).greet();
    thread::scope(|scope| {
        let (socket, over) = (&socket, &over);
        let threads: Vec<_> = (1..=8)
            .map(|seed| scope.spawn(move || come_and_go(socket, seed, over)))
            .collect();
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until && threads.iter().all(|it| !it.is_finished()) {
            good.check_alive();
            thread::sleep(Duration::from_millis(20));
        }
        over.store(true, Ordering::Relaxed);
        for thread in threads {
            assert!(thread.join().expect("each has its own bytes") > 0);
        }
    });
    good.pool_holds(0);
    assert!(running.shutdown().expect("it ends"));
}

#[test]
fn a_stop_answers_what_was_accepted_on_every_thread() {
    const LEN: u64 = 50_000;
    let scratch = Scratch::new("stop");
    let running = start(&scratch, |config| {
        let mut device = DeviceOptions::preset("ideal").expect("there is one");
        device.set("service_us", 5000).expect("it has that");
        config.device = Some(device);
    });
    let socket = scratch.socket();
    let mut peers: Vec<(Peer, Handle)> = (0..8)
        .map(|number| {
            let mut peer = Peer::unix(&socket).greet();
            let file = peer.create(&format!("file{number}"));
            peer.write(file, 0, &vec![number; LEN as usize]);
            (peer, file)
        })
        .collect();
    for (peer, file) in &mut peers {
        for _ in 0..16 {
            let frame = peer.frame(read_op(*file, 0, LEN), &[]);
            peer.send(&frame).expect("small frames fit the socket");
        }
    }
    // All have their slots by then.
    let mut other = Peer::unix(&socket).greet();
    until("all requests", || other.status("\"arrived\":") >= 8 * 17);
    let stopped = thread::spawn(move || running.shutdown());
    for (number, (peer, _)) in peers.iter_mut().enumerate() {
        for _ in 0..16 {
            let (reply, payload) = peer.receive().expect("what was accepted is answered");
            assert!(matches!(reply.result, Ok(Outcome::Data { .. })));
            assert_eq!(payload, vec![number as u8; LEN as usize]);
        }
    }
    assert!(peers.iter_mut().all(|(peer, _)| peer.is_cut_off()));
    assert!(stopped.join().expect("no panic").expect("it ends"));
}

#[test]
fn behind_a_request_without_a_slot_little_is_read_on_any_thread() {
    const BYTES: usize = 16 << 20;
    let scratch = Scratch::new("behind");
    let _running = start(&scratch, |config| {
        config.pool_bytes = 1 << 20;
        config.stall_ms = 60_000;
    });
    let socket = scratch.socket();
    let mut other = Peer::unix(&socket).greet();
    let file = other.create("file");
    other.write(file, 0, &vec![9; 1 << 20]);
    // It takes the whole pool and does not read.
    let mut deaf = Peer::unix(&socket).greet();
    let frame = deaf.frame(read_op(file, 0, 1 << 20), &[]);
    deaf.send(&frame).expect("it is open");
    other.pool_holds(1 << 20);
    let mut waiting: Vec<Peer> = (0..4).map(|_| Peer::unix(&socket).greet()).collect();
    for peer in &mut waiting {
        peer.write_patience(Duration::from_secs(1));
        let mut frames = peer.frame(read_op(file, 0, 10), &[]);
        for _ in 0..1000 {
            let handle = peer.root();
            frames.extend(peer.frame(Op::Getattr { handle }, &[]));
        }
        let mut taken = 0;
        while taken < BYTES && peer.send(&frames).is_ok() {
            taken += frames.len();
        }
        assert!(taken < BYTES, "a connection is read that has to wait");
    }
    other.check_alive();
}

#[test]
fn what_all_threads_do_is_counted_together() {
    const LEN: u64 = 10_000;
    let scratch = Scratch::new("counts");
    let _running = start(&scratch, |_| ());
    let mut peers: Vec<Peer> = (0..8)
        .map(|_| Peer::unix(&scratch.socket()).greet())
        .collect();
    let file = peers[0].create("file");
    for peer in &mut peers {
        let before = ["received_bytes", "sent_bytes", "receives", "sends"]
            .map(|key| peer.status(&format!("\"{key}\":")));
        for _ in 0..10 {
            peer.write(file, 0, &vec![1; LEN as usize]);
            peer.read(file, 0, LEN);
        }
        let after = ["received_bytes", "sent_bytes", "receives", "sends"]
            .map(|key| peer.status(&format!("\"{key}\":")));
        let grown = |at: usize| after[at] - before[at];
        assert!(grown(0) >= 10 * LEN && grown(1) >= 10 * LEN, "{after:?}");
        assert!(grown(2) >= 20 && grown(3) >= 20, "{after:?}");
    }
}
