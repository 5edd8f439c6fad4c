//! Peers that break the rules lose their session, and nobody else notices.

use super::*;
use std::format;
use tidegate_wire::Extents;

fn seated(seats: u16) -> (World, Host, Tester) {
    let mut world = World::new();
    let mut config = world.config(0, seats);
    config.sessions_max = 100;
    let mut host = Host::new(&world, config);
    host.give_seat(&mut world, 0);
    let tester = Tester::new(&mut host, 7);
    (world, host, tester)
}

/// Sends a request that must cost the session, beside another client's that must not notice.
fn breaks(host: &mut Host, request: Request, payload: &[u8]) -> String {
    let mut bad = Tester::new(host, 50 + host.closed.len() as u64);
    let mut good = Tester::new(host, 30 + host.closed.len() as u64);
    let before = host.closed.len();
    host.receive(bad.conn, request, payload);
    assert_eq!(host.closed.len(), before + 1, "the session was not closed");
    let (conn, reason) = host.closed[before].clone();
    assert_eq!(conn, bad.conn);
    host.replies.clear();
    assert!(good.call(host, Op::Ping).is_ok());
    bad.conn = good.conn;
    reason
}

/// Data requests that break a rule, and a word of the reason.
fn data_trials() -> Vec<(&'static str, Request)> {
    let layout = Layout {
        seats: 2,
        stripe: 4096,
    };
    let file = Handle { inode: 9, birth: 9 };
    let start = layout.seat_of_byte(file, 0);
    let extent = |offset, len| Extent { offset, len };
    let reading = |first, rest| Request {
        seat: start,
        ..plain(
            5,
            Op::Read {
                handle: file,
                extents: Extents { first, rest },
            },
        )
    };
    vec![
        ("not in charge", reading(extent(4000, 200), vec![])),
        (
            "not in charge",
            reading(extent(0, 1), vec![extent(4096, 1)]),
        ),
        ("ascend", reading(extent(100, 10), vec![extent(50, 10)])),
        ("ascend", reading(extent(100, 10), vec![extent(109, 10)])),
        ("too many", reading(extent(0, 1), vec![extent(1, 0); 300])),
    ]
}

/// Other requests that break a rule.
fn other_trials(root: Handle) -> Vec<(&'static str, Request)> {
    let layout = Layout {
        seats: 2,
        stripe: 4096,
    };
    let reply_slot = |index, sequence| Some(ReplySlot { index, sequence });
    vec![
        (
            "seat that does not exist",
            Request {
                seat: 2,
                ..plain(5, Op::Ping)
            },
        ),
        (
            "not in charge",
            Request {
                seat: 1 - layout.seat_of_file(root),
                ..plain(5, Op::Getattr { handle: root })
            },
        ),
        (
            "reply slot",
            Request {
                seat: layout.seat_of_file(root),
                ..plain(5, create(root, "a", true))
            },
        ),
        (
            "reply slot",
            Request {
                seat: layout.seat_of_file(root),
                reply_slot: reply_slot(64, 1),
                ..plain(5, create(root, "a", true))
            },
        ),
        (
            "reply slot",
            Request {
                seat: layout.seat_of_file(root),
                reply_slot: reply_slot(0, 1),
                ..plain(5, Op::Getattr { handle: root })
            },
        ),
        (
            "name",
            Request {
                seat: layout.seat_of_file(root),
                reply_slot: reply_slot(0, 1),
                ..plain(5, create(root, "a/b", true))
            },
        ),
        (
            "name",
            Request {
                seat: layout.seat_of_file(root),
                reply_slot: reply_slot(0, 1),
                ..plain(5, create(root, "..", true))
            },
        ),
        ("hello", plain(5, Op::Hello(hello(99, 1)))),
    ]
}

#[test]
fn requests_that_no_client_sends_end_the_session() {
    let (_world, mut host, mut tester) = seated(2);
    let root = tester.root();
    for (expected, request) in data_trials().into_iter().chain(other_trials(root)) {
        let shown = format!("{request:?}");
        let reason = breaks(&mut host, request, &[]);
        assert!(reason.contains(expected), "{reason} for {shown}");
    }
    assert!(tester.call(&mut host, Op::Ping).is_ok());
    assert!(host.slots.is_empty());
}

#[test]
fn a_request_before_the_hello_ends_the_connection() {
    let (_world, mut host, _tester) = seated(1);
    let conn = host.connect(peer(0));
    host.tell(Input::Received {
        conn,
        request: plain(1, Op::Ping),
        slot: None,
    });
    assert_eq!(host.closed.len(), 1);
}

#[test]
fn payloads_that_do_not_fit_are_refused_before_they_are_read() {
    let (_world, mut host, mut tester) = seated(1);
    let file = tester.create(&mut host, "file");
    let sizes = [
        (write(file, 0, 10), 9),
        (write(file, 0, (1 << 20) + 1), (1 << 20) + 1),
        (write(file, 0, u64::MAX), u32::MAX),
        (read(file, 0, 10), 1),
        (read(file, 0, 1 << 40), 0),
        (Op::Ping, 1),
    ];
    for (op, payload_len) in sizes {
        let request = Request {
            payload_len,
            ..plain(900, op)
        };
        let admission = host.admit(tester.conn, &request);
        assert!(
            matches!(admission, Admission::Refuse(_)),
            "{admission:?} for {request:?}"
        );
    }
}

#[test]
fn a_slot_of_another_connection_is_not_believed() {
    let (_world, mut host, mut tester) = seated(1);
    let file = tester.create(&mut host, "file");
    let mut other = Tester::new(&mut host, 8);
    let request = tester.request(write(file, 0, 4), 4);
    let slot = match host.admit(tester.conn, &request) {
        Admission::Slot { slot, .. } => slot,
        other => panic!("no slot: {other:?}"),
    };
    host.slots.insert(slot, vec![0; 4]);
    let stolen = other.request(write(file, 0, 4), 4);
    host.tell(Input::Received {
        conn: other.conn,
        request: stolen,
        slot: Some(slot),
    });
    assert_eq!(host.closed.len(), 1);
    assert!(
        host.slots.contains_key(&slot),
        "it still belongs to the first connection"
    );
    host.tell(Input::Closed { conn: tester.conn });
    assert!(host.slots.is_empty());
}

#[test]
fn more_requests_than_credits_end_the_session() {
    let (_world, mut host, mut tester) = seated(1);
    host.hold_jobs = true;
    let root = tester.root();
    for _ in 0..64 {
        tester.send(&mut host, Op::Getattr { handle: root }, &[]);
    }
    assert!(host.closed.is_empty());
    tester.send(&mut host, Op::Getattr { handle: root }, &[]);
    assert_eq!(host.closed.len(), 1);
    while !host.jobs.is_empty() {
        host.run_job();
    }
    assert!(host.replies.is_empty(), "nobody is there to read them");
}

#[test]
fn a_reply_slot_whose_sequence_goes_back_or_that_is_busy_ends_the_session() {
    let (_world, mut host, mut tester) = seated(1);
    let root = tester.root();
    let first = tester.send(&mut host, create(root, "a", true), &[]);
    tester.take(&mut host, &first).0.expect("made");
    tester
        .call(&mut host, create(root, "b", true))
        .expect("made");
    let back = Request {
        id: 500,
        generation: 1,
        ..first
    };
    host.receive(tester.conn, back, &[]);
    assert_eq!(errno(host.reply().result), 71);
    assert_eq!(host.closed.len(), 1);

    let mut other = Tester::new(&mut host, 8);
    host.hold_jobs = true;
    let one = other.send(&mut host, create(root, "c", true), &[]);
    let two = Request {
        id: one.id + 1,
        reply_slot: Some(ReplySlot {
            index: 0,
            sequence: 2,
        }),
        ..one
    };
    host.receive(other.conn, two, &[]);
    assert_eq!(host.closed.len(), 2);
    host.run_job();
}

#[test]
fn a_repeated_sequence_with_another_operation_ends_the_session() {
    let (_world, mut host, mut tester) = seated(1);
    let root = tester.root();
    let first = tester.send(&mut host, create(root, "a", true), &[]);
    tester.take(&mut host, &first).0.expect("made");
    let other = Request {
        id: 500,
        generation: 1,
        replay: true,
        op: Op::Unlink {
            parent: root,
            name: b"a"[..].into(),
        },
        ..first
    };
    host.receive(tester.conn, other, &[]);
    assert_eq!(errno(host.reply().result), 71);
    assert_eq!(host.closed.len(), 1);
}

#[test]
fn offsets_beyond_what_files_have_are_einval() {
    let (_world, mut host, mut tester) = seated(1);
    let file = tester.create(&mut host, "file");
    let far = i64::MAX as u64;
    let result = tester.call_with(&mut host, write(file, far, 4), b"data").0;
    assert_eq!(errno(result), crate::Errno::EINVAL.0);
    assert!(host.slots.is_empty());
    assert_eq!(
        errno(tester.call(&mut host, read(file, u64::MAX - 1, 1))),
        22
    );
}
