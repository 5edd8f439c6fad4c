//! Reads and writes: what reaches the back end, and what comes back to whom.

use super::*;
use tidegate_wire::{Extents, Hints, Lens};

pub(super) fn list(handle: Handle, extents: &[(u64, u64)], write: bool) -> Op {
    let mut extents = extents.iter().map(|(offset, len)| Extent {
        offset: *offset,
        len: *len,
    });
    let extents = Extents {
        first: extents.next().expect("at least one"),
        rest: extents.collect(),
    };
    match write {
        true => Op::Write { handle, extents },
        false => Op::Read { handle, extents },
    }
}

fn world() -> (World, Host, Tester, Handle) {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut tester = Tester::new(&mut host, 7);
    let file = tester.create(&mut host, "file");
    (world, host, tester, file)
}

#[test]
fn what_was_written_is_read_and_a_read_ends_at_the_end_of_the_file() {
    let (_, mut host, mut tester, file) = world();
    let (written, _) = tester.call_with(&mut host, write(file, 10, 5), b"hello");
    assert_eq!(written, Ok(Outcome::Written { len: 5 }));
    let (result, bytes) = tester.call_with(&mut host, read(file, 8, 100), &[]);
    let lens = Lens {
        first: 7,
        rest: vec![],
    };
    assert_eq!(result, Ok(Outcome::Data { lens }));
    assert_eq!(bytes, b"\0\0hello");
    let (result, bytes) = tester.call_with(&mut host, read(file, 100, 10), &[]);
    assert!(result.is_ok() && bytes.is_empty());
    assert!(host.slots.is_empty(), "every slot was given back");
}

#[test]
fn list_io_returns_each_extent_up_to_the_end_of_the_file() {
    let (world, mut host, mut tester, file) = world();
    let op = list(file, &[(0, 3), (10, 3), (20, 0), (30, 3)], true);
    let (written, _) = tester.call_with(&mut host, op, b"abcdefghi");
    assert_eq!(written, Ok(Outcome::Written { len: 9 }));
    let contents = world.disk.contents("file").expect("there");
    assert_eq!(
        (&contents[10..13], &contents[30..], contents.len()),
        (&b"def"[..], &b"ghi"[..], 33)
    );
    let op = list(file, &[(1, 2), (9, 4), (31, 5), (50, 5)], false);
    let (result, bytes) = tester.call_with(&mut host, op, &[]);
    let lens = Lens {
        first: 2,
        rest: vec![4, 2, 0],
    };
    assert_eq!(result, Ok(Outcome::Data { lens }));
    assert_eq!(bytes, b"bc\0defhi");
}

#[test]
fn an_empty_request_needs_neither_slot_nor_back_end() {
    let (_, mut host, mut tester, file) = world();
    assert_eq!(
        tester.call(&mut host, write(file, 3, 0)),
        Ok(Outcome::Written { len: 0 })
    );
    assert!(tester.call(&mut host, read(file, 0, 0)).is_ok());
    assert_eq!(tester.attr(&mut host, Op::Getattr { handle: file }).size, 0);
}

#[test]
fn an_error_reaches_the_request_it_belongs_to_only() {
    let (_, mut host, mut tester, file) = world();
    let stale = Handle {
        inode: file.inode,
        birth: 1,
    };
    host.hold_jobs = true;
    let good = tester.send(&mut host, write(file, 0, 4), b"good");
    let mut other = Tester::new(&mut host, 8);
    let bad = other.send(&mut host, write(stale, 8, 3), b"bad");
    while !host.jobs.is_empty() {
        host.run_job();
    }
    assert_eq!(
        tester.take(&mut host, &good).0,
        Ok(Outcome::Written { len: 4 })
    );
    assert_eq!(other.take(&mut host, &bad).0, Err(Status::UnknownHandle));
}

#[test]
fn a_batch_goes_out_in_order_and_its_results_and_costs_come_back_apart() {
    let mut world = World::new();
    let mut config = world.config(0, 1);
    config.scheduler.merge = Some(true);
    let mut host = Host::new(&world, config);
    host.give_seat(&mut world, 0);
    let mut tester = Tester::new(&mut host, 7);
    let file = tester.create(&mut host, "file");
    tester
        .call_with(&mut host, write(file, 0, 30), &[b'x'; 30])
        .0
        .expect("written");
    host.hold_jobs = true;
    // The first read occupies the device; the others wait and can join, last first.
    let mut requests = vec![tester.send(&mut host, read(file, 0, 1), &[])];
    for offset in [26, 16, 6] {
        requests.push(tester.send(&mut host, read(file, offset, 10), &[]));
    }
    host.device_ns = 900;
    host.run_job();
    assert!(tester.take(&mut host, &requests[0]).0.is_ok());
    let mut charged = 0;
    while let Some((_, job)) = host.jobs.front() {
        if let Job::Io { parts, .. } = job {
            assert!(parts.windows(2).all(|pair| pair[0].offset < pair[1].offset));
        }
        host.advance(900);
        host.run_job();
    }
    let mut lens = BTreeMap::new();
    while let Some((_, reply, payload)) = host.replies.pop_front() {
        charged += reply.charged_ns;
        lens.insert(reply.id, payload.len());
    }
    assert_eq!(lens.into_values().collect::<Vec<_>>(), [4, 10, 10]);
    assert!(
        charged == 900 || charged == 2700,
        "the batch's device time is shared: {charged}"
    );
}

#[test]
fn calls_that_run_beside_each_other_share_the_devices_time() {
    let mut world = World::new();
    let mut config = world.config(0, 1);
    config.scheduler.depth = 2;
    let mut host = Host::new(&world, config);
    host.give_seat(&mut world, 0);
    let mut tester = Tester::new(&mut host, 7);
    let file = tester.create(&mut host, "file");
    host.hold_jobs = true;
    let requests = [0, 10].map(|offset| tester.send(&mut host, read(file, offset, 10), &[]));
    // Both took 900 ns, of which the second had the device for 300.
    host.device_ns = 900;
    let charged = [1000, 300].map(|ns| {
        host.advance(ns);
        host.run_job();
        host.replies.back().expect("it is done").1.charged_ns
    });
    assert_eq!(charged, [900, 300]);
    assert_eq!(requests.len(), 2);
}

#[test]
fn overlapping_requests_run_in_order_and_whole_file_operations_exclude_all() {
    let (world, mut host, mut tester, file) = world();
    host.hold_jobs = true;
    let mut others: Vec<Tester> = (8..11).map(|id| Tester::new(&mut host, id)).collect();
    let first = tester.send(&mut host, write(file, 0, 4), b"aaaa");
    let second = others[0].send(&mut host, Op::Append { handle: file }, b"bb");
    let set = tidegate_wire::SetAttr {
        size: Some(5),
        ..Default::default()
    };
    let third = others[1].send(&mut host, Op::Setattr { handle: file, set }, &[]);
    let last = others[2].send(&mut host, read(file, 0, 10), &[]);
    assert_eq!(host.jobs.len(), 1, "each waits for the one before");
    for _ in 0..4 {
        assert_eq!(host.jobs.len(), 1);
        host.run_job();
    }
    assert!(tester.take(&mut host, &first).0.is_ok());
    let appended = others[0].take(&mut host, &second).0;
    assert_eq!(appended, Ok(Outcome::Appended { offset: 4, len: 2 }));
    assert!(others[1].take(&mut host, &third).0.is_ok());
    assert_eq!(others[2].take(&mut host, &last).1, b"aaaab");
    assert_eq!(world.disk.contents("file").expect("there"), b"aaaab");
}

#[test]
fn a_full_scheduler_delays_requests_and_loses_none() {
    let mut world = World::new();
    let mut config = world.config(0, 1);
    config.scheduler.queued_max = 1;
    config.credits = 1000;
    let mut host = Host::new(&world, config);
    host.give_seat(&mut world, 0);
    let mut tester = Tester::new(&mut host, 7);
    let file = tester.create(&mut host, "file");
    tester
        .call_with(&mut host, write(file, 0, 9), b"123456789")
        .0
        .expect("written");
    host.hold_jobs = true;
    let extents: Vec<(u64, u64)> = (0..100).map(|at| (at * 2, 1)).collect();
    for _ in 0..6 {
        tester.send(&mut host, list(file, &extents, false), &[]);
    }
    while !host.jobs.is_empty() {
        host.run_job();
    }
    assert_eq!(host.replies.len(), 6);
    assert!(
        host.replies
            .iter()
            .all(|(_, reply, bytes)| reply.result.is_ok() && bytes == b"13579")
    );
}

#[test]
fn a_full_pool_makes_connections_wait_and_room_comes_back() {
    let (_, mut host, mut tester, file) = world();
    host.hold_jobs = true;
    let megabyte = vec![1; 1 << 20];
    let first = tester.send(&mut host, write(file, 0, 1 << 20), &megabyte);
    let second = tester.request(write(file, 0, 10), 10);
    assert!(!host.receive(tester.conn, second.clone(), &[2; 10]));
    host.run_job();
    assert!(tester.take(&mut host, &first).0.is_ok());
    let reply_slot = ReplySlot {
        index: 1,
        sequence: 1,
    };
    let second = Request {
        reply_slot: Some(reply_slot),
        ..second
    };
    assert!(host.receive(tester.conn, second.clone(), &[2; 10]));
    host.run_job();
    assert!(tester.take(&mut host, &second).0.is_ok());
    assert!(host.slots.is_empty());
}

#[test]
fn hints_reach_the_scheduler_and_the_epoch_comes_back() {
    let mut world = World::new();
    let mut config = world.config(0, 1);
    config.scheduler = Options::for_policy("window");
    let mut host = Host::new(&world, config);
    host.give_seat(&mut world, 0);
    let mut tester = Tester::new(&mut host, 7);
    let file = tester.create(&mut host, "file");
    host.advance(5 * SECOND);
    let hints = Hints {
        app: 9,
        stamp_ns: host.now.0,
        deadline_ns: host.now.0 + SECOND,
        ..Hints::default()
    };
    let request = Request {
        hints: Some(hints),
        ..tester.request(read(file, 0, 10), 0)
    };
    host.receive(tester.conn, request, &[]);
    host.advance(10 * SECOND);
    let reply = host.reply();
    assert!(reply.result.is_ok());
    assert!(reply.epoch > 0, "windows have numbers");
}

#[test]
fn a_replayed_write_is_answered_from_its_reply_slot_and_not_written_again() {
    let (world, mut host, mut tester, file) = world();
    let request = tester.send(&mut host, write(file, 0, 3), b"old");
    tester.take(&mut host, &request).0.expect("written");
    let mut other = Tester::new(&mut host, 8);
    other
        .call_with(&mut host, write(file, 0, 3), b"new")
        .0
        .expect("written");
    let again = tester.again(&mut host, &request, b"old");
    assert_eq!(again, Ok(Outcome::Written { len: 3 }));
    assert_eq!(world.disk.contents("file").expect("there"), b"new");
    assert!(host.slots.is_empty());
}
