//! What is told of answered requests: each once, with its times.

use super::data_tests::list;
use super::*;
use crate::{Recorded, Served};
use tidegate_wire::Hints;

fn world() -> (Host, Tester, Handle) {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut tester = Tester::new(&mut host, 7);
    let file = tester.create(&mut host, "file");
    (host, tester, file)
}

#[test]
fn each_answered_request_is_told_once_with_its_hints_and_times() {
    let (mut host, mut tester, file) = world();
    let mut other = Tester::new(&mut host, 8);
    host.hold_jobs = true;
    let hints = Hints {
        app: 9,
        operation: 4,
        stamp_ns: 77,
        shuffle_us: 5,
        shuffle_max_us: 6,
        shuffle_rank: 1,
        ..Hints::default()
    };
    let first = Request {
        hints: Some(hints),
        ..tester.request(write(file, 3, 5), 5)
    };
    let begun = host.now;
    host.receive(tester.conn, first.clone(), b"hello");
    host.advance(10);
    // It overlaps the first, and waits for it.
    let second = other.send(&mut host, read(file, 0, 100), &[]);
    host.advance(20);
    host.run_job();
    tester.take(&mut host, &first).0.expect("written");
    host.advance(40);
    host.run_job();
    other.take(&mut host, &second).0.expect("read");
    let wrote = Served {
        client: 7,
        app: 9,
        operation: 4,
        stamp_ns: 77,
        shuffle: (5, 6, 1),
        file: file.inode,
        direction: Direction::Write,
        append: false,
        listed: false,
        offset: 3,
        len: 5,
        done: 5,
        errno: 0,
        arrived: begun,
        dispatched: Some(begun),
        finished: Some(begun + 30),
    };
    let read = Served {
        client: 8,
        app: 0,
        operation: 0,
        stamp_ns: 0,
        shuffle: (0, 0, 0),
        direction: Direction::Read,
        offset: 0,
        len: 100,
        done: 8,
        arrived: begun + 10,
        dispatched: Some(begun + 30),
        finished: Some(begun + 70),
        ..wrote
    };
    assert_eq!(host.served, [wrote, read]);
}

#[test]
fn each_extent_is_told_by_itself() {
    let (mut host, mut tester, file) = world();
    let op = list(file, &[(0, 3), (10, 3), (20, 0)], true);
    tester
        .call_with(&mut host, op, b"abcdef")
        .0
        .expect("written");
    let op = list(file, &[(1, 2), (9, 40), (60, 5)], false);
    tester.call_with(&mut host, op, &[]).0.expect("read");
    let told: Vec<_> = host
        .served
        .iter()
        .map(|one| (one.offset, one.len, one.done, one.listed))
        .collect();
    let expected = [
        (0, 3, 3, false),
        (10, 3, 3, true),
        (20, 0, 0, true),
        (1, 2, 2, false),
        (9, 40, 4, true),
        (60, 5, 0, true),
    ];
    assert_eq!(told, expected);
    assert!(host.served[0].finished.is_some() && host.served[2].dispatched.is_none());
}

#[test]
fn appends_and_failures_are_told_repetitions_and_other_operations_are_not() {
    let (mut host, mut tester, file) = world();
    let append = tester.send(&mut host, Op::Append { handle: file }, b"abc");
    tester.take(&mut host, &append).0.expect("appended");
    tester.again(&mut host, &append, b"abc").expect("repeated");
    let handle = file;
    tester
        .call(&mut host, Op::Getattr { handle })
        .expect("there");
    let past = u64::MAX / 2;
    assert_eq!(errno(tester.call(&mut host, read(file, past, 4))), 22);
    let stale = Handle {
        inode: file.inode,
        birth: 1,
    };
    let reply = tester.call(&mut host, read(stale, 0, 4));
    assert_eq!(reply, Err(Status::UnknownHandle));
    let told: Vec<_> = host
        .served
        .iter()
        .map(|one| (one.direction, one.append, one.offset, one.done, one.errno))
        .collect();
    let expected = [
        (Direction::Write, true, 0, 3, 0),
        (Direction::Read, false, past, 0, 22),
    ];
    assert_eq!(told, expected);
    assert_eq!(host.served[0].file, file.inode);
    assert_eq!(host.served[1].dispatched, None);
}

#[test]
fn nothing_is_told_unless_it_is_asked_for() {
    let mut world = World::new();
    let mut config = world.config(0, 1);
    config.record = false;
    let mut host = Host::new(&world, config);
    host.give_seat(&mut world, 0);
    let mut tester = Tester::new(&mut host, 7);
    let file = tester.create(&mut host, "file");
    tester
        .call_with(&mut host, write(file, 3, 5), b"hello")
        .0
        .expect("written");
    assert_eq!(host.served, []);
    let status = String::from_utf8(host.forwarder_status()).expect("text");
    assert!(!status.contains("\"trace\""));
}

#[test]
fn the_status_says_how_much_was_recorded() {
    let (mut host, _, _) = world();
    host.tell(Input::Recorded(Recorded {
        recorded: 5,
        buffered: 1,
        dropped: 2,
    }));
    let status = String::from_utf8(host.forwarder_status()).expect("text");
    let expected = r#""trace":{"recorded":5,"buffered":1,"dropped":2}"#;
    assert!(status.contains(expected), "{status}");
}
