//! A forwarder that an operator has set aside.

use super::*;
use crate::back_end_files::Errno;

/// A file of `seat`, of two: its attributes, asked for.
fn ask(world: &World, seat: u16) -> Op {
    let layout = world.config(0, 2).layout;
    let handles = (2..).map(|inode| Handle { inode, birth: 0 });
    let handle = handles
        .into_iter()
        .find(|it| layout.seat_of_file(*it) == seat);
    Op::Getattr {
        handle: handle.expect("one of each"),
    }
}

fn says(host: &mut Host, part: &str) -> bool {
    let status = String::from_utf8(host.forwarder_status()).expect("text");
    status.contains(part)
}

const ASIDE: Op = Op::Drain { undo: false };
const BACK: Op = Op::Drain { undo: true };
const DONE: Result<Outcome, Status> = Ok(Outcome::Done);

#[test]
fn it_finishes_what_was_accepted_lets_its_seats_go_and_takes_none_until_it_is_undone() {
    let mut world = World::new();
    let mut host = Host::new(&world, world.config(0, 2));
    host.give_seat(&mut world, 0);
    let mut tester = Tester::new(&mut host, 7);
    let own = tester.send(&mut host, ask(&world, 1), &[]);
    host.give_seat(&mut world, 1);
    tester.take(&mut host, &own).0.expect_err("no such file");
    host.hold_jobs = true;
    let runs = tester.send(&mut host, ask(&world, 0), &[]);
    assert_eq!(tester.call(&mut host, ASIDE), DONE);
    assert!(says(&mut host, r#""draining":true,"#));
    assert_eq!(host.released, [1], "the own one has a request that runs");
    for seat in [0, 1] {
        let late = tester.call(&mut host, ask(&world, seat));
        assert_eq!(late, Err(Status::NotMySeat));
    }
    host.run_job();
    host.hold_jobs = false;
    tester.take(&mut host, &runs).0.expect_err("no such file");
    assert_eq!(host.released, [1, 0]);
    host.advance(20 * SECOND);
    let asked = host.asked_seats.len();
    for seat in [0, 1] {
        let late = tester.call(&mut host, ask(&world, seat));
        assert_eq!(late, Err(Status::NotMySeat));
    }
    assert!(!host.drained, "it goes on");
    assert_eq!(host.asked_seats.len(), asked, "it takes none");
    assert!(says(&mut host, r#""seats":[]"#));
    // Sessions are opened, and asked again is not undone.
    let mut second = Tester::new(&mut host, 8);
    assert_eq!(second.call(&mut host, ASIDE), DONE);
    assert_eq!(second.call(&mut host, BACK), DONE);
    assert_eq!(host.asked_seats[asked..], [0], "its own");
    host.give_seat(&mut world, 0);
    let served = second.call(&mut host, ask(&world, 0));
    assert_eq!(served, Err(Status::UnknownHandle));
    assert!(says(&mut host, r#""draining":false,"#));
}

#[test]
fn a_seat_that_comes_when_it_is_aside_is_let_go_at_once() {
    let mut world = World::new();
    let mut host = Host::new(&world, world.config(0, 2));
    let mut tester = Tester::new(&mut host, 7);
    let waits = tester.send(&mut host, ask(&world, 0), &[]);
    let order = tester.send(&mut host, ASIDE, &[]);
    assert_eq!(tester.take(&mut host, &waits).0, Err(Status::NotMySeat));
    assert_eq!(tester.take(&mut host, &order).0, DONE);
    host.give_seat(&mut world, 0);
    assert_eq!(
        (&host.released[..], &host.asked_seats[..]),
        (&[0][..], &[0][..])
    );
    assert_eq!(tester.call(&mut host, BACK), DONE);
    assert_eq!(host.asked_seats, [0, 0]);
}

#[test]
fn undone_while_it_drains_it_takes_its_seat_when_that_was_let_go() {
    let mut world = World::new();
    let mut host = Host::new(&world, world.config(0, 2));
    host.give_seat(&mut world, 0);
    let mut tester = Tester::new(&mut host, 7);
    host.hold_jobs = true;
    let runs = tester.send(&mut host, ask(&world, 0), &[]);
    assert_eq!(tester.call(&mut host, ASIDE), DONE);
    assert_eq!(tester.call(&mut host, BACK), DONE);
    assert!(host.released.is_empty());
    host.run_job();
    host.hold_jobs = false;
    tester.take(&mut host, &runs).0.expect_err("no such file");
    assert_eq!(
        (&host.released[..], &host.asked_seats[..]),
        (&[0][..], &[0, 0][..])
    );
}

#[test]
fn a_lease_that_ends_meanwhile_changes_nothing() {
    let mut world = World::new();
    let mut host = Host::new(&world, world.config(0, 2));
    host.tell(Input::LeaseRenewed {
        until: Time(2 * SECOND),
    });
    host.give_seat(&mut world, 0);
    assert!(says(&mut host, r#""lease_ms":"#));
    let mut tester = Tester::new(&mut host, 7);
    assert_eq!(tester.call(&mut host, ASIDE), DONE);
    assert!(!says(&mut host, r#""lease_ms":"#), "it holds nothing");
    host.advance(2 * SECOND);
    assert_eq!(host.asked_seats, [0]);
    assert_eq!(tester.call(&mut host, BACK), DONE);
    assert_eq!(host.asked_seats, [0, 0]);
    host.tell(Input::LeaseRenewed {
        until: Time(9 * SECOND),
    });
    host.give_seat(&mut world, 0);
    let served = tester.call(&mut host, ask(&world, 0));
    assert_eq!(served, Err(Status::UnknownHandle));
}

#[test]
fn only_trusted_peers_say_so_and_only_where_another_can_stand_in() {
    let mut world = World::new();
    let mut host = Host::new(&world, world.config(0, 2));
    host.give_seat(&mut world, 0);
    let mut stranger = Tester::of(&mut host, 2, peer(1000));
    for order in [ASIDE, BACK] {
        let refused = stranger.call(&mut host, order);
        assert_eq!(errno(refused), Errno::EPERM.0);
    }
    let mut config = world.config(0, 2);
    config.fail_over = false;
    let unsupported = [config, world.config(0, 1)];
    for config in unsupported {
        let mut host = Host::new(&world, config);
        host.give_seat(&mut world, 0);
        let mut tester = Tester::new(&mut host, 7);
        let refused = tester.call(&mut host, ASIDE);
        assert_eq!(errno(refused), Errno::EOPNOTSUPP.0);
        assert_eq!(tester.call(&mut host, BACK), DONE);
        assert!(host.released.is_empty());
    }
    assert!(host.released.is_empty());
}
