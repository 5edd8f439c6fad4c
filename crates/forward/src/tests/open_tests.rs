//! Files that outlive their names.

use super::*;

fn open(handle: Handle, open: u64) -> Op {
    Op::Open {
        handle,
        open,
        read: true,
        write: true,
    }
}

fn unlink(tester: &Tester, name: &str) -> Op {
    Op::Unlink {
        parent: tester.root(),
        name: name.as_bytes().into(),
    }
}

#[test]
fn an_open_file_outlives_its_last_name_until_the_last_close() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut one = Tester::new(&mut host, 1);
    let mut two = Tester::new(&mut host, 2);
    let file = one.create(&mut host, "file");
    one.call(&mut host, open(file, 1)).expect("opened");
    two.call(&mut host, open(file, 1)).expect("opened");
    two.call(&mut host, open(file, 1))
        .expect("the same again is no other");
    let gone = unlink(&one, "file");
    one.call(&mut host, gone).expect("removed");
    one.call_with(&mut host, write(file, 0, 4), b"data")
        .0
        .expect("still there");
    let close = Op::Close {
        handle: file,
        open: 1,
    };
    one.call(&mut host, close.clone()).expect("closed");
    one.call(&mut host, close.clone())
        .expect("closing twice is closing once");
    assert_eq!(two.call_with(&mut host, read(file, 0, 9), &[]).1, b"data");
    two.call(&mut host, close).expect("closed");
    assert_eq!(world.disk.orphans(), 0);
}

#[test]
fn an_open_that_comes_during_the_last_close_waits_for_it() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut tester = Tester::new(&mut host, 1);
    let file = tester.create(&mut host, "file");
    tester.call(&mut host, open(file, 1)).expect("opened");
    host.hold_jobs = true;
    let close = Op::Close {
        handle: file,
        open: 1,
    };
    tester.call(&mut host, close).expect("answered at once");
    let again = tester.send(&mut host, open(file, 2), &[]);
    assert_eq!(host.jobs.len(), 1, "only the close runs");
    host.run_job();
    host.run_job();
    assert!(tester.take(&mut host, &again).0.is_ok());
    host.hold_jobs = false;
    let gone = unlink(&tester, "file");
    tester.call(&mut host, gone).expect("removed");
    assert_eq!(world.disk.orphans(), 1, "it is open");
}

#[test]
fn a_close_while_another_open_is_on_its_way_is_not_the_last() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut tester = Tester::new(&mut host, 1);
    let file = tester.create(&mut host, "file");
    tester.call(&mut host, open(file, 1)).expect("opened");
    host.hold_jobs = true;
    let second = tester.send(&mut host, open(file, 2), &[]);
    let close = Op::Close {
        handle: file,
        open: 1,
    };
    tester.call(&mut host, close).expect("answered");
    assert_eq!(host.jobs.len(), 1, "no close runs beside the open");
    host.run_job();
    assert!(tester.take(&mut host, &second).0.is_ok());
    assert!(host.jobs.is_empty());
}

#[test]
fn opens_survive_a_change_of_hands_when_they_are_told_again() {
    let mut world = World::new();
    let mut first = Host::serving(&mut world);
    let mut tester = Tester::new(&mut first, 1);
    let file = tester.create(&mut first, "file");
    tester.call(&mut first, open(file, 1)).expect("opened");
    let gone = unlink(&tester, "file");
    tester.call(&mut first, gone).expect("removed");
    drop(first);

    let mut second = Host::serving(&mut world);
    assert!(
        second.reclaimed.is_empty(),
        "the table names a client with opens"
    );
    tester.connect(&mut second, peer(0));
    assert_eq!(
        tester.call(&mut second, open(file, 1)),
        Err(Status::NewGeneration)
    );
    tester
        .call(&mut second, open(file, 1))
        .expect("found by its hidden name");
    tester.call(&mut second, Op::ReclaimDone).expect("told");
    assert_eq!(second.reclaimed, [0]);
    second.files.let_go(|_| true);
    assert_eq!(world.disk.orphans(), 1, "it was opened again");
    let close = Op::Close {
        handle: file,
        open: 1,
    };
    tester.call(&mut second, close).expect("closed");
    assert_eq!(world.disk.orphans(), 0);
}

#[test]
fn files_of_clients_that_do_not_come_back_may_go_after_grace() {
    let mut world = World::new();
    let mut first = Host::serving(&mut world);
    let mut tester = Tester::new(&mut first, 1);
    let file = tester.create(&mut first, "file");
    tester.call(&mut first, open(file, 1)).expect("opened");
    let gone = unlink(&tester, "file");
    tester.call(&mut first, gone).expect("removed");
    let mut second = Host::serving(&mut world);
    second.advance(11 * SECOND);
    assert_eq!(second.reclaimed, [0]);
    second.files.let_go(|_| true);
    assert_eq!(world.disk.orphans(), 0);
}

#[test]
fn an_open_that_ends_with_its_client_is_closed() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut tester = Tester::new(&mut host, 1);
    let file = tester.create(&mut host, "file");
    host.hold_jobs = true;
    tester.send(&mut host, open(file, 1), &[]);
    tester.call(&mut host, Op::Bye).expect("answered");
    host.hold_jobs = false;
    while !host.jobs.is_empty() {
        host.run_job();
        host.run();
    }
    let mut other = Tester::new(&mut host, 2);
    let gone = unlink(&other, "file");
    other.call(&mut host, gone).expect("removed");
    assert_eq!(world.disk.orphans(), 0);
}
