//! Broken and hostile peers: each loses its own session and disturbs no other.

mod support;

use std::time::{Duration, Instant};
use support::{Peer, Random, Scratch, start};
use tidegate_wire::frame::{HEADER_LEN, encode_request};
use tidegate_wire::{BODY_MAX, Extent, Handle, Op, Outcome, Status};

/// Reactors of each forwarder; `reactors.rs` runs these tests with more.
#[allow(dead_code, reason = "of use where this file is the test program")]
const REACTORS: u32 = 1;

/// Makes both checksums of a frame right again, so that what follows them is tested too.
fn seal(frame: &mut [u8]) {
    let body_len = u32::from_le_bytes(frame[20..24].try_into().expect("4 bytes")) as usize;
    let end = (HEADER_LEN + body_len).min(frame.len());
    let body = crc32fast::hash(&frame[HEADER_LEN..end]);
    frame[56..60].copy_from_slice(&body.to_le_bytes());
    let header = crc32fast::hash(&frame[..60]);
    frame[60..64].copy_from_slice(&header.to_le_bytes());
}

fn hostile_frames(peer: &mut Peer) -> Vec<(&'static str, Vec<u8>)> {
    let handle = peer.root();
    let sound = peer.frame(Op::Getattr { handle }, &[]);
    let changed = |at: usize, value: u8, sealed: bool| {
        let mut frame = sound.clone();
        frame[at] = value;
        if sealed {
            seal(&mut frame);
        }
        frame
    };
    let mut long_body = sound.clone();
    long_body[20..24].copy_from_slice(&(BODY_MAX as u32 + 1).to_le_bytes());
    seal(&mut long_body);
    let mut long_payload = sound.clone();
    long_payload[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
    seal(&mut long_payload);
    let mut read_of_much = Vec::new();
    let extents = Extent {
        offset: 0,
        len: u64::MAX / 2,
    }
    .into();
    let request = peer.request(Op::Read { handle, extents }, 0);
    encode_request(&request, &mut read_of_much);
    vec![
        ("garbage", vec![0xa5; 4096]),
        ("zeros", vec![0; 4096]),
        (
            "text",
            b"GET / HTTP/1.1\r\nHost: tidegate\r\nUser-Agent: a long enough line\r\n\r\n".to_vec(),
        ),
        ("wrong magic", changed(0, b'X', true)),
        ("wrong version", changed(4, 99, true)),
        (
            "a flipped bit of the header",
            changed(9, sound[9] ^ 4, false),
        ),
        (
            "a flipped bit of the body",
            changed(HEADER_LEN + 3, sound[HEADER_LEN + 3] ^ 1, false),
        ),
        ("unknown flags", changed(7, 0x80, true)),
        ("a reply", changed(6, 1, true)),
        ("a seat that does not exist", changed(17, 9, true)),
        ("a body that is too long", long_body),
        ("a payload that is too long", long_payload),
        ("a read of everything", read_of_much),
    ]
}

#[test]
fn each_hostile_frame_ends_its_own_session_only() {
    let scratch = Scratch::new("hostile");
    let running = start(&scratch, |_| ());
    let mut good = Peer::unix(&scratch.socket()).greet();
    let frames = hostile_frames(&mut good);
    for (name, frame) in frames {
        let mut bad = Peer::unix(&scratch.socket()).greet();
        bad.check_alive();
        bad.send(&frame).expect("the socket takes a frame");
        assert!(bad.is_cut_off(), "{name}: the session goes on");
        good.check_alive();
        // The same before any hello.
        let mut stranger = Peer::unix(&scratch.socket());
        stranger.send(&frame).expect("the socket takes a frame");
        assert!(stranger.is_cut_off(), "{name}: the connection goes on");
        good.check_alive();
    }
    assert!(running.shutdown().expect("it ends"));
}

#[test]
fn an_unknown_operation_is_answered_and_the_session_goes_on() {
    let scratch = Scratch::new("unknown");
    let _running = start(&scratch, |_| ());
    let mut peer = Peer::unix(&scratch.socket()).greet();
    let handle = peer.root();
    for payload in [0, 5000] {
        let mut frame = peer.frame(Op::Getattr { handle }, &[]);
        frame[5] = 250;
        frame[24..28].copy_from_slice(&(payload as u32).to_le_bytes());
        seal(&mut frame);
        frame.resize(frame.len() + payload, 1);
        peer.send(&frame).expect("the connection is open");
        let (reply, _) = peer.receive().expect("a reply comes");
        assert_eq!(reply.result, Err(Status::Errno(38)));
        peer.check_alive();
    }
}

#[test]
fn a_frame_that_stops_half_way_holds_nobody_and_is_cut_off() {
    let scratch = Scratch::new("stall");
    // One stalled payload takes the whole pool.
    let _running = start(&scratch, |config| {
        config.stall_ms = 1500;
        config.payload_max = 1 << 20;
        config.pool_bytes = 1 << 20;
    });
    let mut good = Peer::unix(&scratch.socket()).greet();
    let file = good.create("file");
    let payload = vec![7; 1 << 20];
    let extents: tidegate_wire::Extents = Extent {
        offset: 0,
        len: payload.len() as u64,
    }
    .into();
    let mut stalled = Vec::new();
    for part in [3, HEADER_LEN, HEADER_LEN + 9, HEADER_LEN + 100_000] {
        let mut bad = Peer::unix(&scratch.socket()).greet();
        let frame = bad.frame(
            Op::Write {
                handle: file,
                extents: extents.clone(),
            },
            &payload,
        );
        bad.send(&frame[..part]).expect("the socket takes a part");
        stalled.push(bad);
        good.check_alive();
    }
    let begun = Instant::now();
    // Waits for the stalled payload's slot, and has it when that session is cut off.
    good.write(file, 0, &vec![8; 1 << 20]);
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!(good.read(file, 0, 10), [8; 10]);
    for mut bad in stalled {
        assert!(bad.is_cut_off());
    }
}

#[test]
fn a_session_that_does_not_read_its_replies_is_cut_off() {
    let scratch = Scratch::new("deaf");
    let _running = start(&scratch, |config| {
        config.stall_ms = 1500;
        config.pool_bytes = 4 << 20;
    });
    let mut good = Peer::unix(&scratch.socket()).greet();
    let file = good.create("file");
    good.write(file, 0, &vec![5; 1 << 20]);
    let mut deaf = Peer::unix(&scratch.socket()).greet();
    for _ in 0..20 {
        let extents = Extent {
            offset: 0,
            len: 1 << 20,
        }
        .into();
        let frame = deaf.frame(
            Op::Read {
                handle: file,
                extents,
            },
            &[],
        );
        deaf.send(&frame).expect("small frames fit the socket");
    }
    // They have come by then, whichever thread reads them.
    good.pool_holds(4 << 20);
    // The whole pool waits for the deaf session; then the others go on.
    assert_eq!(good.read(file, 0, 100), [5; 100]);
    assert!(deaf.is_cut_off());
}

#[test]
fn replies_that_nobody_reads_do_not_pile_up() {
    const BYTES: usize = 64 << 20;
    let scratch = Scratch::new("pile");
    let _running = start(&scratch, |config| config.stall_ms = 60_000);
    let mut good = Peer::unix(&scratch.socket()).greet();
    let mut deaf = Peer::unix(&scratch.socket()).greet();
    deaf.write_patience(Duration::from_secs(2));
    let mut frames = Vec::new();
    for _ in 0..1000 {
        frames.extend(deaf.frame(Op::ShareMemory { bytes: 1 }, &[]));
    }
    let mut taken = 0;
    while taken < BYTES && deaf.send(&frames).is_ok() {
        taken += frames.len();
    }
    assert!(taken < BYTES, "the forwarder keeps replies without end");
    good.check_alive();
}

/// A request of any kind, with arguments that are partly right.
fn some_op(peer: &mut Peer, file: Handle, random: &mut Random) -> (Op, Vec<u8>) {
    let root = peer.root();
    let name = |random: &mut Random| -> Box<[u8]> {
        let len = 1 + random.below(20);
        (0..len).map(|_| b'a' + random.below(26) as u8).collect()
    };
    let extent = Extent {
        offset: random.next() >> 40,
        len: 1 + (random.next() >> 50),
    };
    let payload = vec![3; extent.len as usize];
    let op = match random.below(12) {
        0 => Op::Getattr { handle: file },
        1 => Op::Lookup {
            parent: root,
            name: name(random),
        },
        2 => Op::Create {
            parent: root,
            name: name(random),
            mode: 0o600,
            exclusive: false,
        },
        3 => Op::Unlink {
            parent: root,
            name: name(random),
        },
        4 => Op::Readdir {
            handle: root,
            cookie: 0,
            bytes_max: 4096,
            plus: true,
            xattrs: vec![name(random)],
        },
        5 => Op::Read {
            handle: file,
            extents: extent.into(),
        },
        6 => Op::Write {
            handle: file,
            extents: extent.into(),
        },
        7 => Op::Append { handle: file },
        8 => Op::Statfs,
        9 => Op::Open {
            handle: file,
            open: random.next(),
            read: true,
            write: false,
        },
        10 => Op::Fsync {
            handle: file,
            data_only: true,
        },
        _ => Op::Status,
    };
    let has_payload = matches!(op, Op::Write { .. } | Op::Append { .. });
    (op, if has_payload { payload } else { Vec::new() })
}

fn mutate(frame: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(frame.len());
        match random.below(5) {
            0 => frame[at] ^= 1 << random.below(8),
            1 => frame[at] = random.next() as u8,
            2 => frame.truncate(at.max(1)),
            3 => frame.insert(at, random.next() as u8),
            _ => {
                let value = [0, 0xff, 0x7f][random.below(3)];
                let end = (at + 1 + random.below(8)).min(frame.len());
                frame[at..end].fill(value);
            }
        }
    }
    if frame.len() >= HEADER_LEN && random.below(3) > 0 {
        frame[..4].copy_from_slice(b"TGW1");
        frame[4] = 1;
        seal(frame);
    }
}

#[test]
fn thousands_of_mutated_frames_disturb_nobody() {
    let seed = std::env::var("TIDEGATE_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(20_261_121);
    println!("TIDEGATE_SEED={seed}");
    let mut random = Random(seed);
    let scratch = Scratch::new("mutated");
    let running = start(&scratch, |_| ());
    let mut good = Peer::unix(&scratch.socket()).greet();
    let file = good.create("written to");
    let kept = good.create("kept");
    good.write(kept, 1 << 30, b"untouched");
    for number in 0..3000 {
        // Few clients with many connections: state of a client outlives its connection.
        let mut bad = Peer::unix(&scratch.socket()).again(4096 + number % 16, number + 1);
        if number % 8 != 0 {
            bad = bad.greet();
        } else {
            bad.reply.clone_from(&good.reply);
        }
        for _ in 0..=random.below(3) {
            let (op, payload) = some_op(&mut bad, file, &mut random);
            let mut frame = bad.frame(op, &payload);
            mutate(&mut frame, &mut random);
            if bad.send(&frame).is_err() {
                break;
            }
        }
        drop(bad);
        if number % 100 == 0 {
            good.check_alive();
            assert_eq!(good.read(kept, 1 << 30, 100), b"untouched");
        }
    }
    let (reply, text) = good.call(Op::Status, &[]);
    assert!(
        matches!(reply.result, Ok(Outcome::Text(_))) && text.is_empty(),
        "{reply:?}"
    );
    assert!(running.shutdown().expect("it ends"));
}
