//! Transfers in chunks, as sessions agree on them.

use super::*;
use tidegate_wire::Hints;

const CHUNK: u64 = 4096;

fn agreed(host: &mut Host, wanted: Pipeline) -> Pipeline {
    let conn = host.connect(peer(0));
    let hello = Hello {
        pipeline: wanted,
        ..hello(7, 1)
    };
    host.receive(conn, plain(1, Op::Hello(hello)), &[]);
    match host.reply().result {
        Ok(Outcome::Hello(granted)) => granted.pipeline,
        other => panic!("no session: {other:?}"),
    }
}

#[test]
fn a_session_moves_transfers_as_both_sides_allow() {
    let parallel = Pipeline::new(Pipelining::Parallel, 1 << 16);
    let of = |pipelining, wanted| {
        let mut world = World::new();
        let config = Config {
            pipelining,
            payload_max: 32 << 10,
            ..world.config(0, 1)
        };
        let mut host = Host::new(&world, config);
        host.give_seat(&mut world, 0);
        agreed(&mut host, wanted)
    };
    let chunk_bytes = 32 << 10;
    for mode in Pipelining::ALL {
        assert_eq!(of(mode, parallel), Pipeline { mode, chunk_bytes });
    }
    let none = Pipeline::new(Pipelining::None, CHUNK as u32);
    assert_eq!(of(Pipelining::Parallel, none), none);
}

/// A client whose transfers are carried out in order, at a host that holds its jobs.
fn serial() -> (World, Host, Tester, Handle) {
    let mut world = World::new();
    let config = Config {
        pipelining: Pipelining::Serial,
        scheduler: Options {
            depth: 8,
            ..Options::default()
        },
        ..world.config(0, 1)
    };
    let mut host = Host::new(&world, config);
    host.give_seat(&mut world, 0);
    let mut tester = Tester::new(&mut host, 7);
    let file = tester.create(&mut host, "file");
    host.hold_jobs = true;
    (world, host, tester, file)
}

/// Sends chunk number `chunk` of an operation of eight.
fn send(host: &mut Host, tester: &mut Tester, file: Handle, operation: u64, chunk: u64) -> u64 {
    let op = read(file, chunk * CHUNK, CHUNK);
    let request = Request {
        hints: Some(Hints {
            operation,
            operation_bytes: 8 * CHUNK,
            operation_bytes_max: 8 * CHUNK,
            ..Hints::default()
        }),
        ..tester.request(op, 0)
    };
    let id = request.id;
    assert!(host.receive(tester.conn, request, &[]));
    id
}

/// The offsets of the calls that were asked for.
fn offsets(host: &Host) -> Vec<u64> {
    let offset = |(_, job): &(JobId, Job)| match job {
        Job::Io { parts, .. } => parts[0].offset / CHUNK,
        _ => panic!("a job that is no data"),
    };
    host.jobs.iter().map(offset).collect()
}

#[test]
fn chunks_of_one_operation_run_one_after_another_and_those_of_others_beside_them() {
    let (_, mut host, mut tester, file) = serial();
    let first: Vec<u64> = [0, 1, 2]
        .map(|chunk| send(&mut host, &mut tester, file, 1, chunk))
        .into();
    send(&mut host, &mut tester, file, 2, 5);
    assert_eq!(offsets(&host), [0, 5], "one of each operation");
    let mut answered = Vec::new();
    for left in [[5, 1], [5, 2]] {
        host.run_job();
        assert_eq!(offsets(&host), left);
        answered.push(host.reply().id);
        host.jobs.rotate_left(1);
    }
    host.run_job();
    answered.push(host.reply().id);
    assert_eq!(answered, first);
    assert_eq!(offsets(&host), [5]);
}

#[test]
fn requests_of_whole_operations_do_not_take_turns() {
    let (_, mut host, mut tester, file) = serial();
    for chunk in 0..3 {
        tester.send(&mut host, read(file, chunk * CHUNK, CHUNK), &[]);
    }
    assert_eq!(offsets(&host), [0, 1, 2]);
}

#[test]
fn chunks_that_wait_end_with_their_client() {
    let (_, mut host, mut tester, file) = serial();
    for chunk in 0..3 {
        send(&mut host, &mut tester, file, 1, chunk);
    }
    assert_eq!(offsets(&host), [0]);
    tester.requests += 1;
    host.receive(tester.conn, plain(tester.requests, Op::Bye), &[]);
    host.run_job();
    assert!(host.jobs.is_empty(), "those that waited never run");
    assert!(host.slots.is_empty(), "every slot was given back");
}
