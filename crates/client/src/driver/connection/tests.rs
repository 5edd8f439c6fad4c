//! Connections over pairs of sockets: what many threads send, and replies that come whole, in
//! pieces and broken.

use super::super::reply_memory::{KEPT_MAX, LONG};
use super::*;
use crate::wire::{Entry, Extent, Handle, Hints, Lens, Listing, Outcome, ReplySlot};
use bytes::Bytes;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use tidegate_net::Refusal;

fn streams() -> (Stream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    ours.set_nonblocking(true)
        .expect("a socket can be non-blocking");
    (Stream::new(ours.into(), None), theirs)
}

fn pair() -> (Connection, UnixStream) {
    let (ours, theirs) = streams();
    (Connection::new(ours, None), theirs)
}

#[test]
fn frames_of_many_threads_arrive_whole() {
    const THREADS: u8 = 8;
    const FRAMES: usize = 200;
    let (connection, mut peer) = pair();
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        peer.read_to_end(&mut bytes)
            .expect("the peer reads to the end");
        bytes
    });
    thread::scope(|scope| {
        for number in 1..=THREADS {
            let connection = &connection;
            scope.spawn(move || {
                for _ in 0..FRAMES {
                    let head = |out: &mut Vec<u8>| out.extend_from_slice(&[number; 10]);
                    connection.push(head, vec![Payload::from(vec![number; 1500]); 2], false);
                    connection.flush();
                }
            });
        }
    });
    // Here the test stands in for the I/O thread.
    while !connection.is_flushed() {
        connection.flush();
        thread::yield_now();
    }
    drop(connection);
    let bytes = reader.join().expect("the reader ends");
    assert_eq!(bytes.len(), usize::from(THREADS) * FRAMES * 3010);
    for frame in bytes.chunks(3010) {
        assert!(
            frame.iter().all(|byte| *byte == frame[0]),
            "two frames were mixed"
        );
    }
}

#[test]
fn what_a_lost_forwarder_may_work_on_is_not_used_again_and_not_kept_for_ever() {
    let arena = Arena::shared(3 * 4096, None).expect("memory");
    let (stream, _peer) = streams();
    let connection = Connection::new(stream, Some(Arc::clone(&arena)));
    connection.accepted();
    let handle = Handle { inode: 1, birth: 2 };
    let request = |id, op: Op, payload_len| Request {
        id,
        seat: 0,
        reply_slot: op.mutates().then_some(ReplySlot {
            index: 0,
            sequence: 1,
        }),
        generation: 0,
        epoch: 0,
        replay: false,
        caller: None,
        hints: Some(Hints::default()),
        op,
        payload_len,
    };
    let extents = |len| Extent { offset: 0, len }.into();
    let read = |len| Op::Read {
        handle,
        extents: extents(len),
    };
    let write = Op::Write {
        handle,
        extents: extents(50),
    };
    connection.enqueue_request(&request(1, read(4096), 0), Vec::new());
    let piece = arena.take(100).expect("there is room");
    let bytes = Payload::of_piece(piece, 100).expect("it has them");
    connection.enqueue_request(&request(2, write, 50), vec![bytes.slice(50..100)]);
    connection.enqueue_request(&request(3, read(10), 0), Vec::new());
    assert_eq!(connection.replied(3, Some(5)).map(|it| it.len()), Some(5));
    connection.close();
    drop((connection, bytes));
    let left = arena.take(4096).expect("the one that was answered");
    assert_eq!(left.place(), 2 * 4096);
    assert!(arena.take(1).is_none(), "the others may be worked on");
    drop(left);
    assert_eq!(Arc::strong_count(&arena), 1, "the memory is never freed");
}

#[test]
fn a_gone_peer_breaks_the_connection_without_a_signal() {
    let (connection, peer) = pair();
    drop(peer);
    connection.push(|out| out.push(1), Vec::new(), false);
    connection.flush();
    assert!(connection.is_flushed());
    connection.push(|out| out.push(1), Vec::new(), false);
    assert!(connection.queue().frames.is_empty());
}

fn reply(id: u64, outcome: Outcome, payload_len: u32) -> Reply {
    let result = Ok(outcome);
    Reply {
        id,
        seat: 0,
        generation: 1,
        epoch: 2,
        charged_ns: 3,
        result,
        payload_len,
        lent: Default::default(),
    }
}

/// A listing whose body is larger than the buffer, a read with a payload, and one without.
fn replies() -> Vec<(Reply, Vec<u8>)> {
    let entry = |n: u64| Entry {
        name: format!("a rather long name of a file, number {n:04}")
            .into_bytes()
            .into(),
        inode: n,
        kind: 8,
        cookie: n,
        attr: None,
        lacks: 0,
        lent: false,
    };
    let listing = Listing {
        entries: (0..500).map(entry).collect(),
        ended: true,
    };
    let data: Vec<u8> = (0..20_000u32).map(|n| n as u8).collect();
    let lens = Lens {
        first: data.len() as u32,
        rest: Vec::new(),
    };
    let empty = Lens {
        first: 0,
        rest: Vec::new(),
    };
    vec![
        (reply(1, Outcome::Entries(listing), 0), Vec::new()),
        (reply(2, Outcome::Data { lens }, data.len() as u32), data),
        (reply(3, Outcome::Data { lens: empty }, 0), Vec::new()),
    ]
}

fn encode(replies: &[(Reply, Vec<u8>)]) -> Vec<u8> {
    let handle = Handle { inode: 1, birth: 1 };
    let list = Op::Readdir {
        handle,
        cookie: 0,
        bytes_max: 1,
        plus: false,
        xattrs: Vec::new(),
    };
    let read = Op::Read {
        handle,
        extents: Extent { offset: 0, len: 1 }.into(),
    };
    let mut bytes = Vec::new();
    for ((reply, payload), op) in replies.iter().zip([&list, &read, &read]) {
        frame::encode_reply(frame::op_code(op), reply, &mut bytes);
        bytes.extend_from_slice(payload);
    }
    bytes
}

fn receive_all(portions: &[&[u8]], greets: bool) -> Vec<Received> {
    let (ours, mut theirs) = streams();
    let mut receiver = Receiver::new(1 << 20, greets, Arc::new(ReplyMemory::new(0)));
    let mut received = Vec::new();
    for portion in portions {
        theirs.write_all(portion).expect("the socket takes it");
        while receiver.receive(&ours, &mut received).expect("valid") == Progress::More {}
    }
    received
}

fn assert_are_the_replies(received: &[Received]) {
    let expected = replies();
    assert_eq!(received.len(), expected.len());
    for (received, (reply, payload)) in received.iter().zip(&expected) {
        let Received::Reply(got, bytes) = received else {
            panic!("{received:?}")
        };
        assert_eq!(got, reply);
        assert_eq!(bytes.as_ref().map(Payload::to_vec).as_ref(), Some(payload));
    }
}

#[test]
fn portions_of_any_size_give_the_same_replies() {
    let bytes = encode(&replies());
    for portion in [1, 7, 64, 4096, 8192, 100_000] {
        let portions: Vec<&[u8]> = bytes.chunks(portion).collect();
        assert_are_the_replies(&receive_all(&portions, false));
    }
}

#[test]
fn a_greeting_comes_before_the_frames() {
    let greeting = Greeting::refusal(Refusal::Missing);
    let (first, rest) = (greeting.to_bytes(), encode(&replies()));
    for portion in [1, 8, 33, 100_000] {
        let portions: Vec<&[u8]> = first.chunks(portion).chain(rest.chunks(portion)).collect();
        let received = receive_all(&portions, true);
        let Received::Greeting(got) = &received[0] else {
            panic!("{:?}", received[0])
        };
        assert_eq!(got, &greeting);
        assert_are_the_replies(&received[1..]);
    }
}

#[test]
fn wrong_bytes_end_it() {
    let good = encode(&replies());
    for at in [0, 4, 12, 63, 70, 500] {
        let (ours, mut theirs) = streams();
        let mut bad = good.clone();
        bad[at] ^= 1;
        theirs.write_all(&bad).expect("the socket takes it");
        let mut receiver = Receiver::new(1 << 20, false, Arc::new(ReplyMemory::new(0)));
        let mut received = Vec::new();
        let error = loop {
            match receiver.receive(&ours, &mut received) {
                Ok(Progress::More) => {}
                Ok(Progress::Drained | Progress::Empty) => panic!("byte {at} was not noticed"),
                Err(error) => break error,
            }
        };
        assert!(
            matches!(error, ReceiveError::Frame(_)),
            "byte {at}: {error}"
        );
        assert!(received.is_empty());
    }
}

#[test]
fn the_end_of_the_stream_is_told() {
    let (ours, theirs) = streams();
    let mut receiver = Receiver::new(1 << 20, false, Arc::new(ReplyMemory::new(0)));
    let progress = receiver.receive(&ours, &mut Vec::new());
    assert_eq!(progress.expect("nothing there yet"), Progress::Empty);
    drop(theirs);
    let error = receiver
        .receive(&ours, &mut Vec::new())
        .expect_err("closed");
    assert!(matches!(error, ReceiveError::Closed));
}

#[test]
fn the_memory_of_a_dropped_payload_is_used_again_and_that_of_a_kept_one_is_not() {
    let lens = Lens {
        first: LONG as u32,
        rest: Vec::new(),
    };
    let data = |byte| {
        let reply = reply(1, Outcome::Data { lens: lens.clone() }, LONG as u32);
        (reply, vec![byte; LONG])
    };
    let (ours, mut theirs) = streams();
    let mut receiver = Receiver::new(1 << 20, false, Arc::new(ReplyMemory::new(0)));
    let mut receive = |receiver: &mut Receiver, byte| {
        let read = Op::Read {
            handle: Handle { inode: 1, birth: 1 },
            extents: Extent { offset: 0, len: 1 }.into(),
        };
        let (reply, payload) = data(byte);
        let (mut bytes, mut received) = (Vec::new(), Vec::new());
        frame::encode_reply(frame::op_code(&read), &reply, &mut bytes);
        bytes.extend_from_slice(&payload);
        theirs.write_all(&bytes).expect("the socket takes it");
        while received.is_empty() {
            receiver.receive(&ours, &mut received).expect("valid");
        }
        match received.pop() {
            Some(Received::Reply(_, Some(bytes))) => bytes.into_bytes(),
            other => panic!("{other:?}"),
        }
    };
    for count in [0, 1, 7, 20] {
        let kept: Vec<Bytes> = (0..count)
            .map(|byte| receive(&mut receiver, byte))
            .collect();
        for byte in 100..120 {
            assert_eq!(receive(&mut receiver, byte), vec![byte; LONG]);
        }
        for (byte, kept) in (0..).zip(kept) {
            assert_eq!(kept, vec![byte; LONG]);
        }
        // Bytes other than zeros show that the memory is that of a payload.
        let again = |_| receiver.memory.take(LONG).bytes_mut()[0] > 0;
        assert!((0..KEPT_MAX).any(again), "{count}");
    }
}
