//! Fsync: each node with unstable writes is asked, by the forwarders that wrote or, for want of
//! them, by whichever it has; and each open file is told of an error.

use super::*;

fn fsync(handle: Handle) -> Op {
    Op::Fsync {
        handle,
        data_only: false,
    }
}

/// Forwarders on nodes of these identities, all with sessions.
fn rig_on(identities: &[(u64, u64)]) -> Rig {
    let mut rig = Rig::new(identities.len());
    for (forwarder, identity) in identities.iter().enumerate() {
        rig.core.connect(forwarder);
        rig.pump();
        greet_as(&mut rig, forwarder, *identity);
    }
    rig
}

fn greet_as(rig: &mut Rig, forwarder: usize, identity: (u64, u64)) {
    rig.greet(forwarder, Grant { identity, ..GRANT }, &[]);
}

/// Writes one stripe to each of the first seats, beginning with the file's own.
fn write_stripes(rig: &mut Rig, handle: Handle, stripes: u64) {
    let len = stripes * 4096;
    let id = rig.call_with(write(handle, 0, len), bytes(len as usize), None);
    for sent in std::mem::take(&mut rig.sent) {
        rig.ok(&sent, Outcome::Written { len: 4096 });
    }
    rig.succeeded(id);
}

fn asked(rig: &mut Rig) -> Vec<usize> {
    let asked: Vec<Sent> = std::mem::take(&mut rig.sent);
    let mut forwarders = Vec::new();
    for sent in asked {
        if matches!(sent.request.op, Op::Fsync { .. }) {
            forwarders.push(sent.forwarder);
            rig.ok(&sent, Outcome::Done);
        }
    }
    forwarders
}

#[test]
fn every_forwarder_that_wrote_is_asked_once() {
    let mut rig = rig_on(&[(1, 1), (1, 1), (2, 1), (1, 1)]);
    let handle = rig.file_of_seat(0);
    write_stripes(&mut rig, handle, 3);
    let id = rig.call(fsync(handle));
    assert_eq!(asked(&mut rig), [0, 1, 2]);
    assert_eq!(rig.succeeded(id), Outcome::Done);
    // Nothing is unstable any more: one is asked for form's sake.
    let id = rig.call(fsync(handle));
    assert_eq!(asked(&mut rig), [0]);
    rig.succeeded(id);
}

#[test]
fn what_must_be_stable_is_synced_where_it_was_written() {
    let mut rig = rig_on(&[(1, 1), (1, 1), (2, 1), (1, 1)]);
    let handle = rig.file_of_seat(0);
    write_stripes(&mut rig, handle, 3);
    let stripe = |number: u64| Extent {
        offset: number * 4096,
        len: 4096,
    };
    for (range, wanted) in [(stripe(1), 1), (stripe(2), 2)] {
        rig.range = Some(range);
        let id = rig.call(fsync(handle));
        assert_eq!(asked(&mut rig), [wanted]);
        rig.succeeded(id);
    }
    // The rest is still to be made stable, and no more than that.
    rig.range = None;
    let id = rig.call(fsync(handle));
    assert_eq!(asked(&mut rig), [0]);
    rig.succeeded(id);
}

#[test]
fn an_error_where_a_part_was_written_leaves_all_of_it_unstable() {
    let mut rig = rig_on(&[(1, 1), (1, 1)]);
    let handle = rig.file_of_seat(0);
    write_stripes(&mut rig, handle, 2);
    rig.range = Some(Extent {
        offset: 4096,
        len: 1,
    });
    let id = fsync_by(&mut rig, handle, 1, FULL);
    assert_eq!(rig.errno(id), 28);
    rig.range = None;
    let id = rig.call(fsync(handle));
    assert_eq!(asked(&mut rig), [0, 1]);
    rig.succeeded(id);
}

#[test]
fn another_forwarder_of_the_node_serves_for_a_dead_one() {
    let mut rig = rig_on(&[(1, 1), (1, 1)]);
    let handle = rig.file_of_seat(0);
    write_stripes(&mut rig, handle, 1);
    rig.lose(0);
    let id = rig.call(fsync(handle));
    assert_eq!(asked(&mut rig), [1]);
    rig.succeeded(id);
}

#[test]
fn a_rebooted_node_is_eio_once() {
    let mut rig = rig_on(&[(1, 1), (2, 1)]);
    let handle = rig.file_of_seat(0);
    write_stripes(&mut rig, handle, 2);
    rig.lose(0);
    rig.core.connect(0);
    rig.pump();
    greet_as(&mut rig, 0, (1, 2));
    let id = rig.call(fsync(handle));
    assert_eq!(asked(&mut rig), [1]);
    assert_eq!(rig.errno(id), 5);
    let id = rig.call(fsync(handle));
    asked(&mut rig);
    rig.succeeded(id);
}

#[test]
fn a_reboot_found_while_asking_is_eio() {
    let mut rig = rig_on(&[(1, 1), (2, 1)]);
    let handle = rig.file_of_seat(0);
    write_stripes(&mut rig, handle, 1);
    rig.lose(0);
    let id = rig.call(fsync(handle));
    greet_as(&mut rig, 0, (1, 2));
    assert!(asked(&mut rig).is_empty());
    assert_eq!(rig.errno(id), 5);
}

#[test]
fn a_reboot_is_noticed_before_what_is_queued_is_sent() {
    let mut rig = rig_on(&[(1, 1), (2, 1)]);
    let handle = rig.file_of_seat(0);
    write_stripes(&mut rig, handle, 1);
    // Something of the seat is to be told to its next holder, which sends what is queued too.
    let open = rig.call(Op::Open {
        handle,
        open: 1,
        read: true,
        write: true,
    });
    let sent = rig.next();
    rig.ok(&sent, Outcome::Attr(attr(handle)));
    rig.succeeded(open);
    rig.lose(0);
    let id = rig.call(fsync(handle));
    let grant = Grant {
        identity: (1, 2),
        ..GRANT
    };
    rig.greet(0, grant, &[(0, 2)]);
    assert!(asked(&mut rig).is_empty(), "the node that wrote is gone");
    assert_eq!(rig.errno(id), 5);
}

#[test]
fn a_process_that_comes_back_is_waited_for() {
    let mut rig = rig_on(&[(1, 1), (2, 1)]);
    let handle = rig.file_of_seat(0);
    write_stripes(&mut rig, handle, 1);
    rig.lose(0);
    let id = rig.call(fsync(handle));
    rig.lose(0);
    // The round found nobody; who serves the seat is asked, and nobody does.
    let probe = rig.take(|sent| sent.request.op == Op::ReclaimDone);
    rig.fail(&probe, Status::NotMySeat);
    assert!(rig.done.is_empty());
    while rig.connects.is_empty() {
        rig.wake();
    }
    greet_as(&mut rig, 0, (1, 1));
    while !rig.done.contains_key(&id) {
        rig.wake();
        assert!(asked(&mut rig).iter().all(|forwarder| *forwarder == 0));
    }
    rig.succeeded(id);
}

#[test]
fn a_seat_served_by_another_host_is_eio() {
    let mut rig = rig_on(&[(1, 1), (2, 1)]);
    let handle = rig.file_of_seat(0);
    write_stripes(&mut rig, handle, 1);
    rig.lose(0);
    let id = rig.call(fsync(handle));
    rig.lose(0);
    let probe = rig.take(|sent| sent.request.op == Op::ReclaimDone);
    assert_eq!(probe.forwarder, 1);
    rig.reply(&probe, 2, Err(Status::NewGeneration));
    let done = rig.next();
    rig.reply(&done, 2, Ok(Outcome::Done));
    while !rig.done.contains_key(&id) {
        rig.wake();
        if rig.connects.contains(&0) {
            rig.lose(0);
        }
    }
    assert_eq!(rig.errno(id), 5);
    assert_eq!(rig.logs.len(), 1);
}

/// Opens the file with this number.
fn open(rig: &mut Rig, handle: Handle, open: u64) {
    let id = rig.call(Op::Open {
        handle,
        open,
        read: true,
        write: true,
    });
    let sent = rig.next();
    rig.ok(&sent, Outcome::Attr(attr(handle)));
    rig.succeeded(id);
}

/// An fsync by the open file with this number, to which each forwarder says the same.
fn fsync_by(rig: &mut Rig, handle: Handle, open: u64, said: Result<Outcome, Status>) -> CallId {
    let id = rig.call_by(fsync(handle), Some(open));
    for sent in std::mem::take(&mut rig.sent) {
        rig.reply(&sent, 1, said.clone());
    }
    id
}

const FULL: Result<Outcome, Status> = Err(Status::Errno(28));
const DONE: Result<Outcome, Status> = Ok(Outcome::Done);

#[test]
fn each_open_file_is_told_of_an_error_once() {
    let mut rig = rig_on(&[(1, 1)]);
    let handle = rig.file_of_seat(0);
    open(&mut rig, handle, 1);
    open(&mut rig, handle, 2);
    write_stripes(&mut rig, handle, 1);
    let id = fsync_by(&mut rig, handle, 2, FULL);
    assert_eq!(rig.errno(id), 28);
    open(&mut rig, handle, 3);
    let id = fsync_by(&mut rig, handle, 1, DONE);
    assert_eq!(rig.errno(id), 28);
    for number in 1..=3 {
        let id = fsync_by(&mut rig, handle, number, DONE);
        rig.succeeded(id);
    }
}

#[test]
fn an_error_of_the_call_is_told_to_its_caller_alone() {
    let mut rig = rig_on(&[(1, 1)]);
    let handle = rig.file_of_seat(0);
    open(&mut rig, handle, 1);
    open(&mut rig, handle, 2);
    let id = fsync_by(&mut rig, handle, 2, Err(Status::Errno(30)));
    assert_eq!(rig.errno(id), 30);
    let id = fsync_by(&mut rig, handle, 1, DONE);
    rig.succeeded(id);
}

#[test]
fn an_error_after_the_caller_has_gone_is_told_to_all() {
    let mut rig = rig_on(&[(1, 1)]);
    let handle = rig.file_of_seat(0);
    open(&mut rig, handle, 1);
    open(&mut rig, handle, 2);
    write_stripes(&mut rig, handle, 1);
    let id = rig.call_by(fsync(handle), Some(1));
    let sent = rig.next();
    rig.input(Input::Cancel { id });
    assert_eq!(rig.errno(id), 4);
    rig.reply(&sent, 1, FULL);
    for number in 1..=2 {
        let id = fsync_by(&mut rig, handle, number, DONE);
        assert_eq!(rig.errno(id), 28);
        let id = fsync_by(&mut rig, handle, number, DONE);
        rig.succeeded(id);
    }
}

#[test]
fn writes_are_unstable_until_every_forwarder_that_wrote_has_answered() {
    for said in [28, 5] {
        let mut rig = rig_on(&[(1, 1), (1, 1)]);
        let handle = rig.file_of_seat(0);
        write_stripes(&mut rig, handle, 2);
        let id = rig.call(fsync(handle));
        let [first, second] = &std::mem::take(&mut rig.sent)[..] else {
            panic!("two were asked")
        };
        rig.ok(first, Outcome::Done);
        rig.reply(second, 1, Err(Status::Errno(said)));
        assert_eq!(rig.errno(id), i32::from(said));
        let id = rig.call(fsync(handle));
        assert_eq!(
            asked(&mut rig),
            [0, 1],
            "errno {said} is no loss of the node"
        );
        rig.succeeded(id);
    }
}
