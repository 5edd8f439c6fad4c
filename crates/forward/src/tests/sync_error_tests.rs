//! An error of write-back, which the kernel tells once, reaches every client that it concerns.

use super::*;
use crate::back_end_files::Errno;

fn fsync(handle: Handle) -> Op {
    Op::Fsync {
        handle,
        data_only: false,
    }
}

fn open(handle: Handle) -> Op {
    Op::Open {
        handle,
        open: 1,
        read: true,
        write: true,
    }
}

/// A forwarder with two seats, and a file of the first one.
fn world() -> (Host, Tester, Handle) {
    let mut world = World::new();
    let mut host = Host::new(&world, world.config(0, 2));
    host.give_seat(&mut world, 0);
    let mut tester = Tester::new(&mut host, 1);
    let files: Vec<Handle> = (0..9)
        .map(|number| tester.create(&mut host, &std::format!("file{number}")))
        .collect();
    let layout = world.config(0, 2).layout;
    let of_first = |handle: &&Handle| layout.seat_of_file(**handle) == 0;
    let file = *files.iter().find(of_first).expect("one of nine");
    // The second seat is another forwarder's, and is taken when somebody wants it.
    let waits = tester.send(&mut host, write(file, 4096, 1), b"x");
    host.give_seat(&mut world, 1);
    assert!(tester.take(&mut host, &waits).0.is_ok());
    assert_eq!(tester.call(&mut host, fsync(file)), Ok(Outcome::Done));
    (host, tester, file)
}

/// An fsync by which the kernel says `errno`.
fn fails(host: &mut Host, tester: &mut Tester, file: Handle, errno: Errno) -> u16 {
    host.hold_jobs = true;
    let request = tester.send(host, fsync(file), &[]);
    host.end_jobs(errno);
    host.hold_jobs = false;
    self::errno(tester.take(host, &request).0)
}

#[test]
fn every_client_that_has_the_file_open_is_told_once() {
    let (mut host, mut one, file) = world();
    let mut two = Tester::new(&mut host, 2);
    let mut late = Tester::new(&mut host, 3);
    one.call(&mut host, open(file)).expect("opened");
    two.call(&mut host, open(file)).expect("opened");
    assert_eq!(fails(&mut host, &mut two, file, Errno::EIO), Errno::EIO.0);
    late.call(&mut host, open(file)).expect("opened");
    assert_eq!(errno(one.call(&mut host, fsync(file))), Errno::EIO.0);
    for client in [&mut one, &mut two, &mut late] {
        assert_eq!(client.call(&mut host, fsync(file)), Ok(Outcome::Done));
    }
}

#[test]
fn a_client_that_closes_the_file_is_not_told_by_its_next_open() {
    let (mut host, mut one, file) = world();
    let mut two = Tester::new(&mut host, 2);
    one.call(&mut host, open(file)).expect("opened");
    two.call(&mut host, open(file)).expect("opened");
    fails(&mut host, &mut two, file, Errno::ENOSPC);
    let close = Op::Close {
        handle: file,
        open: 1,
    };
    one.call(&mut host, close).expect("closed");
    one.call(&mut host, open(file)).expect("opened");
    assert_eq!(one.call(&mut host, fsync(file)), Ok(Outcome::Done));
}

#[test]
fn a_client_that_wrote_through_another_seat_is_told() {
    let (mut host, mut one, file) = world();
    let mut two = Tester::new(&mut host, 2);
    let second_stripe = |one: &mut Tester, host: &mut Host| {
        let written = one.call_with(host, write(file, 4096, 4), b"data").0;
        assert_eq!(written, Ok(Outcome::Written { len: 4 }));
    };
    second_stripe(&mut one, &mut host);
    fails(&mut host, &mut two, file, Errno::EDQUOT);
    assert_eq!(errno(one.call(&mut host, fsync(file))), Errno::EDQUOT.0);
    assert_eq!(one.call(&mut host, fsync(file)), Ok(Outcome::Done));
    // What it wrote is stable: a later error is not its own.
    second_stripe(&mut one, &mut host);
    assert_eq!(one.call(&mut host, fsync(file)), Ok(Outcome::Done));
    fails(&mut host, &mut two, file, Errno::EIO);
    assert_eq!(one.call(&mut host, fsync(file)), Ok(Outcome::Done));
}

#[test]
fn an_error_of_the_call_is_the_callers_alone() {
    let (mut host, mut one, file) = world();
    let mut two = Tester::new(&mut host, 2);
    one.call(&mut host, open(file)).expect("opened");
    fails(&mut host, &mut two, file, Errno::EROFS);
    assert_eq!(one.call(&mut host, fsync(file)), Ok(Outcome::Done));
    // The kernel's own word stands for what was owed.
    fails(&mut host, &mut two, file, Errno::EIO);
    assert_eq!(fails(&mut host, &mut one, file, Errno::EIO), Errno::EIO.0);
    assert_eq!(one.call(&mut host, fsync(file)), Ok(Outcome::Done));
}

#[test]
fn a_client_whose_connection_ended_is_told_by_its_next_fsync() {
    let (mut host, mut one, file) = world();
    host.hold_jobs = true;
    one.send(&mut host, fsync(file), &[]);
    host.tell(Input::Closed { conn: one.conn });
    host.end_jobs(Errno::EIO);
    host.hold_jobs = false;
    one.connect(&mut host, peer(0));
    assert_eq!(errno(one.call(&mut host, fsync(file))), Errno::EIO.0);
    assert_eq!(one.call(&mut host, fsync(file)), Ok(Outcome::Done));
}

#[test]
fn a_client_that_did_not_get_the_answer_is_told_when_it_repeats_its_fsync() {
    for is_owed in [false, true] {
        let (mut host, mut one, file) = world();
        host.hold_jobs = true;
        if is_owed {
            one.send(&mut host, fsync(file), &[]);
            host.tell(Input::Closed { conn: one.conn });
            host.end_jobs(Errno::EIO);
            one.connect(&mut host, peer(0));
        }
        let request = one.send(&mut host, fsync(file), &[]);
        match is_owed {
            true => host.run_job(),
            false => host.end_jobs(Errno::EIO),
        }
        host.hold_jobs = false;
        for _ in 0..2 {
            host.tell(Input::Closed { conn: one.conn });
            host.replies.clear();
            one.connect(&mut host, peer(0));
            assert_eq!(errno(one.again(&mut host, &request, &[])), Errno::EIO.0);
        }
        assert_eq!(one.call(&mut host, fsync(file)), Ok(Outcome::Done));
    }
}

#[test]
fn a_client_that_has_written_many_files_is_told_of_those_it_has_written() {
    const FILES: usize = 1200;
    let (mut host, mut one, not_written) = world();
    let mut two = Tester::new(&mut host, 2);
    let layout = World::new().config(0, 2).layout;
    let files: Vec<Handle> = (0..2 * FILES + 100)
        .map(|number| one.create(&mut host, &std::format!("many{number}")))
        .filter(|file| layout.seat_of_file(*file) == 0)
        .take(FILES)
        .collect();
    assert_eq!(files.len(), FILES);
    for file in &files {
        let written = one.call_with(&mut host, write(*file, 4096, 1), b"x").0;
        assert_eq!(written, Ok(Outcome::Written { len: 1 }));
    }
    fails(&mut host, &mut two, not_written, Errno::EIO);
    assert_eq!(one.call(&mut host, fsync(not_written)), Ok(Outcome::Done));
    for file in &files {
        fails(&mut host, &mut two, *file, Errno::EIO);
    }
    for file in &files {
        assert_eq!(errno(one.call(&mut host, fsync(*file))), Errno::EIO.0);
        assert_eq!(one.call(&mut host, fsync(*file)), Ok(Outcome::Done));
    }
}

#[test]
fn of_all_that_clients_have_written_whoever_has_the_most_loses_some() {
    // The bound of all clients is 2048 in tests.
    const FILES: usize = 1500;
    let (mut host, mut many, _) = world();
    let [mut few, mut other] = [2, 3].map(|id| Tester::new(&mut host, id));
    let layout = World::new().config(0, 2).layout;
    let files: Vec<Handle> = (0..2 * FILES + 200)
        .map(|number| many.create(&mut host, &std::format!("many{number}")))
        .filter(|file| layout.seat_of_file(*file) == 0)
        .take(FILES)
        .collect();
    assert_eq!(files.len(), FILES);
    let writes = |tester: &mut Tester, host: &mut Host, files: &[Handle]| {
        for file in files {
            let written = tester.call_with(host, write(*file, 4096, 1), b"x").0;
            assert_eq!(written, Ok(Outcome::Written { len: 1 }));
        }
    };
    writes(&mut many, &mut host, &files);
    writes(&mut few, &mut host, &files[..600]);
    let first = files[0];
    fails(&mut host, &mut other, first, Errno::EIO);
    assert_eq!(many.call(&mut host, fsync(first)), Ok(Outcome::Done));
    assert_eq!(errno(few.call(&mut host, fsync(first))), Errno::EIO.0);
    let last = files[FILES - 1];
    fails(&mut host, &mut other, last, Errno::EIO);
    assert_eq!(errno(many.call(&mut host, fsync(last))), Errno::EIO.0);
}
