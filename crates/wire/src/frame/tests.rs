//! Properties of the codec over random messages: what goes in comes out, and damage is noticed.
//!
//! `TIDEGATE_SEED=n cargo test -p tidegate-wire` repeats one run.

extern crate std;

mod random;

use super::*;
use crate::message::{Listing, Op, OpKind, Outcome, PAYLOAD_LIMIT, Reply, Request, Status};
use random::Random;
use std::prelude::v1::*;

const MESSAGES: usize = 4000;

/// Seeds to run: a fixed set, or the one asked for.
fn seeds() -> Vec<u64> {
    match std::env::var("TIDEGATE_SEED") {
        Ok(seed) => vec![seed.parse().expect("TIDEGATE_SEED is a number")],
        Err(_) => (1..=4).collect(),
    }
}

/// A message of either direction, with what the decoder needs to read it back.
#[derive(Debug, PartialEq)]
enum Message {
    /// Where in shared memory its payload is.
    Request(Request, Option<u64>),
    /// Whether its payload is there.
    Reply(u8, Reply, bool),
}

impl Message {
    fn random(random: &mut Random) -> Message {
        let request = random.request();
        match random.below(2) {
            0 => {
                let may = matches!(request.op, Op::Read { .. } | Op::Write { .. });
                let place = (may && random.below(2) == 0).then(|| random.next());
                Message::Request(request, place)
            }
            _ => {
                let reply = random.reply(&request.op);
                let may = matches!(reply.result, Ok(Outcome::Data { .. }));
                let shared = may && random.below(2) == 0;
                Message::Reply(op_code(&request.op), reply, shared)
            }
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Message::Request(request, None) => encode_request(request, &mut out),
            Message::Request(request, Some(at)) => encode_request_shared(request, *at, &mut out),
            Message::Reply(op, reply, false) => encode_reply(*op, reply, &mut out),
            Message::Reply(op, reply, true) => encode_reply_shared(*op, reply, &mut out),
        }
        out
    }

    fn decode(bytes: &[u8]) -> Result<Message, FrameError> {
        let (head, body) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(FrameError::Truncated)?;
        let header = decode_header(head, PAYLOAD_LIMIT)?;
        Ok(match header.reply {
            true => {
                let reply = decode_reply(&header, body)?;
                Message::Reply(header.op(), reply, header.shared)
            }
            false => {
                let (request, place) = decode_request_shared(&header, body)?;
                Message::Request(request, place)
            }
        })
    }
}

#[test]
fn what_is_encoded_is_decoded() {
    for seed in seeds() {
        let mut random = Random::new(seed);
        for _ in 0..MESSAGES {
            let message = Message::random(&mut random);
            let bytes = message.encode();
            assert!(bytes.len() <= HEAD_MAX, "seed {seed}: {message:?}");
            let decoded = Message::decode(&bytes);
            assert_eq!(decoded, Ok(message), "seed {seed}");
        }
    }
}

#[test]
fn every_operation_occurs_in_the_random_messages() {
    let mut random = Random::new(1);
    let seen: std::collections::BTreeSet<u8> = (0..MESSAGES)
        .map(|_| op_code(&random.request().op))
        .collect();
    let known = OpKind::ALL.iter().map(|kind| kind.spec().code);
    assert_eq!(seen, known.collect());
}

#[test]
fn truncated_and_extended_frames_are_refused() {
    for seed in seeds() {
        let mut random = Random::new(seed);
        for _ in 0..MESSAGES / 4 {
            let mut bytes = Message::random(&mut random).encode();
            let cut = random.below(bytes.len() as u64) as usize;
            assert!(Message::decode(&bytes[..cut]).is_err(), "seed {seed}");
            bytes.push(0);
            assert!(Message::decode(&bytes).is_err(), "seed {seed}");
        }
    }
}

#[test]
fn flipped_bits_are_noticed() {
    for seed in seeds() {
        let mut random = Random::new(seed);
        for _ in 0..MESSAGES {
            let message = Message::random(&mut random);
            let mut bytes = message.encode();
            for _ in 0..=random.below(3) {
                let bit = random.below(bytes.len() as u64 * 8) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            // An even number of flips may have undone itself.
            if let Ok(decoded) = Message::decode(&bytes) {
                assert_eq!(decoded, message, "seed {seed}");
            }
        }
    }
}

/// Damage behind the checksums: the decoder of the body must stand on its own.
#[test]
fn damage_with_right_checksums_never_panics_and_reads_back() {
    for seed in seeds() {
        let mut random = Random::new(seed);
        for _ in 0..MESSAGES {
            let mut bytes = Message::random(&mut random).encode();
            for _ in 0..=random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.next() as u8;
            }
            reseal(&mut bytes);
            if let Ok(decoded) = Message::decode(&bytes) {
                assert_eq!(decoded.encode(), bytes, "seed {seed}: {decoded:?}");
            }
        }
    }
}

#[test]
fn garbage_never_panics() {
    for seed in seeds() {
        let mut random = Random::new(seed);
        for _ in 0..MESSAGES {
            let len = HEADER_LEN as u64 + random.below(200);
            let mut bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
            assert!(Message::decode(&bytes).is_err(), "seed {seed}");
            bytes[..5].copy_from_slice(b"TGW1\x01");
            bytes[6] &= 31;
            bytes[7] = 0;
            reseal(&mut bytes);
            let _ = Message::decode(&bytes);
        }
    }
}

/// Makes magic, version, body length and checksums right again.
fn reseal(bytes: &mut [u8]) {
    let (head, body) = bytes.split_at_mut(HEADER_LEN);
    head[..4].copy_from_slice(&MAGIC);
    head[4] = VERSION;
    head[20..24].copy_from_slice(&(body.len() as u32).to_le_bytes());
    head[56..60].copy_from_slice(&checksum(body).to_le_bytes());
    let sum = checksum(&head[..60]);
    head[60..64].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn an_unknown_operation_can_be_answered() {
    let mut bytes = Vec::new();
    encode_request(&random::ping(77), &mut bytes);
    bytes[5] = 250;
    reseal(&mut bytes);
    let unknown = FrameError::UnknownOp { id: 77, op: 250 };
    assert_eq!(Message::decode(&bytes), Err(unknown));

    let reply = Reply {
        id: 77,
        seat: 0,
        generation: 0,
        epoch: 0,
        charged_ns: 0,
        result: Err(Status::Errno(38)),
        payload_len: 0,
        lent: Default::default(),
    };
    let message = Message::Reply(250, reply, false);
    assert_eq!(Message::decode(&message.encode()), Ok(message));
}

#[test]
fn payload_beyond_the_session_is_refused() {
    let mut random = Random::new(5);
    let request = loop {
        let request = random.request();
        if request.payload_len > 1 {
            break request;
        }
    };
    let mut bytes = Vec::new();
    encode_request(&request, &mut bytes);
    let head = bytes.first_chunk().expect("a frame has a header");
    let len = request.payload_len;
    assert!(decode_header(head, len).is_ok());
    let refused = Err(FrameError::PayloadLength(len));
    assert_eq!(decode_header(head, len - 1), refused);
}

#[test]
fn a_reply_must_hold_what_its_request_asked_for() {
    let mut random = Random::new(9);
    let reply = Reply {
        result: Ok(Outcome::Written { len: 3 }),
        payload_len: 0,
        ..random.reply(&Op::Ping)
    };
    let mut bytes = Message::Reply(81, reply, false).encode();
    assert!(Message::decode(&bytes).is_ok());
    bytes[5] = op_code(&Op::Ping);
    reseal(&mut bytes);
    assert_eq!(Message::decode(&bytes), Err(FrameError::Trailing));
}

#[test]
fn the_largest_listing_fits_a_body() {
    let mut random = Random::new(3);
    // One-byte names cost the most beside their 33 bytes of the request's bound.
    let count = crate::READDIR_MAX as usize / 33 + 1;
    let entries = (0..count).map(|_| random.entry(1)).collect();
    let reply = Reply {
        result: Ok(Outcome::Entries(Listing {
            entries,
            ended: true,
        })),
        payload_len: 0,
        ..random.reply(&Op::Ping)
    };
    assert!(Message::Reply(25, reply, false).encode().len() <= HEAD_MAX);
}

#[test]
fn names_are_checked() {
    for good in [&b"a"[..], b"...", b".a", b"a b\xff", &[b'x'; 255]] {
        assert!(name_is_valid(good), "{good:?}");
    }
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\0", &[b'x'; 256]] {
        assert!(!name_is_valid(bad), "{bad:?}");
    }
}
