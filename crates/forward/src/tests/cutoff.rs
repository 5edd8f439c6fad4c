//! A forwarder whose host cannot reach the back end: clients that ask it go elsewhere in bounded
//! time, and when the back end answers again it takes part again.

use super::*;
use alloc::format;

const TTL: u64 = 4 * SECOND;

/// A file whose first byte belongs to that seat of two.
fn file_of(world: &World, seat: u16) -> Handle {
    let layout = world.config(0, 2).layout;
    let handles = (2..).map(|inode| Handle { inode, birth: 0 });
    let mut of_seat = handles.filter(|handle| layout.seat_of_file(*handle) == seat);
    of_seat.next().expect("one of each")
}

fn ask(world: &World, seat: u16) -> Op {
    Op::Getattr {
        handle: file_of(world, seat),
    }
}

fn fsync(handle: Handle) -> Op {
    Op::Fsync {
        handle,
        data_only: false,
    }
}

fn resolve_path(handle: Handle) -> Op {
    Op::ResolvePath {
        handle,
        path: b"file"[..].into(),
    }
}

/// Forwarder 0 of two, with its own seat by lease, and a client.
fn leased() -> (World, Host, Tester) {
    let mut world = World::new();
    let mut host = Host::new(&world, world.config(0, 2));
    renew(&mut host);
    host.give_seat(&mut world, 0);
    let tester = Tester::new(&mut host, 7);
    (world, host, tester)
}

fn renew(host: &mut Host) {
    let until = host.now + TTL;
    host.tell(Input::LeaseRenewed { until });
}

/// What is answered by now: no time passes.
fn at_once(host: &mut Host, tester: &mut Tester, op: Op) -> Option<Result<Outcome, Status>> {
    let request = tester.send(host, op, &[]);
    let answered = !host.replies.is_empty();
    answered.then(|| tester.take(host, &request).0)
}

const ELSEWHERE: Option<Result<Outcome, Status>> = Some(Err(Status::NotMySeat));

#[test]
fn a_seat_that_is_asked_for_and_never_given_keeps_nobody_for_long() {
    let (mut world, mut host, mut tester) = leased();
    let first = tester.send(&mut host, ask(&world, 1), &[]);
    assert_eq!(host.asked_seats, [0, 1]);
    host.advance(999 * MS);
    assert!(host.replies.is_empty(), "a taking may last a moment");
    let second = tester.send(&mut host, ask(&world, 1), &[]);
    host.advance(2 * MS);
    for request in [first, second] {
        assert_eq!(tester.take(&mut host, &request).0, Err(Status::NotMySeat));
    }
    // From now on nobody waits, and the host is not asked twice.
    assert_eq!(at_once(&mut host, &mut tester, ask(&world, 1)), ELSEWHERE);
    assert_eq!(host.asked_seats, [0, 1]);
    host.give_seat(&mut world, 1);
    let served = at_once(&mut host, &mut tester, ask(&world, 1));
    assert_eq!(served, Some(Err(Status::UnknownHandle)), "all goes on");
}

#[test]
fn a_seat_that_is_refused_late_may_be_asked_for_again() {
    let (world, mut host, mut tester) = leased();
    let first = tester.send(&mut host, ask(&world, 1), &[]);
    host.advance(5 * SECOND);
    assert_eq!(tester.take(&mut host, &first).0, Err(Status::NotMySeat));
    host.tell(Input::SeatRefused { seat: 1 });
    let again = at_once(&mut host, &mut tester, ask(&world, 1));
    assert_eq!(again, None, "the host answers again");
    assert_eq!(host.asked_seats, [0, 1, 0, 1]);
}

#[test]
fn while_one_taking_hangs_no_other_seat_is_asked_for() {
    let mut world = World::new();
    let mut host = Host::new(&world, world.config(0, 3));
    renew(&mut host);
    host.give_seat(&mut world, 0);
    let mut tester = Tester::new(&mut host, 7);
    let layout = world.config(0, 3).layout;
    let of = |seat| {
        let mut handles = (2..).map(|inode| Handle { inode, birth: 0 });
        let handle = handles.find(|handle| layout.seat_of_file(*handle) == seat);
        Op::Getattr {
            handle: handle.expect("one of each"),
        }
    };
    let first = tester.send(&mut host, of(1), &[]);
    host.advance(SECOND);
    assert_eq!(tester.take(&mut host, &first).0, Err(Status::NotMySeat));
    assert_eq!(at_once(&mut host, &mut tester, of(2)), ELSEWHERE);
    assert_eq!(host.asked_seats, [0, 1]);
}

#[test]
fn the_own_seat_of_a_lapsed_lease_keeps_nobody() {
    let (mut world, mut host, mut tester) = leased();
    host.advance(TTL);
    assert_eq!(host.asked_seats, [0, 0], "it goes on wanting its own seat");
    assert_eq!(at_once(&mut host, &mut tester, ask(&world, 0)), ELSEWHERE);
    renew(&mut host);
    host.give_seat(&mut world, 0);
    let served = at_once(&mut host, &mut tester, ask(&world, 0));
    assert_eq!(served, Some(Err(Status::UnknownHandle)), "all goes on");
}

#[test]
fn a_path_that_hangs_with_the_back_end_is_told_elsewhere() {
    let (world, mut host, mut tester) = leased();
    let file = file_of(&world, 0);
    host.hold_jobs = true;
    let hanging = tester.send(&mut host, resolve_path(file), &[]);
    host.advance(TTL);
    assert_eq!(tester.take(&mut host, &hanging).0, Err(Status::NotMySeat));
    // The call has not returned: others would hang like it.
    for op in [resolve_path(file), fsync(file)] {
        assert_eq!(at_once(&mut host, &mut tester, op), ELSEWHERE);
    }
    while !host.jobs.is_empty() {
        host.run_job();
    }
    assert!(host.replies.is_empty(), "answered once");
    assert_eq!(at_once(&mut host, &mut tester, resolve_path(file)), None);
    assert_eq!(host.jobs.len(), 1, "the back end is asked again");
}

#[test]
fn the_end_of_the_lease_is_not_missed_because_something_else_was_due() {
    let (world, mut host, mut tester) = leased();
    host.hold_jobs = true;
    let hanging = tester.send(&mut host, ask(&world, 0), &[]);
    // The forwarder looks after its clients' leases now and then; then this is due.
    host.advance(TTL - MS);
    assert!(host.replies.is_empty());
    assert_eq!(host.forwarder.wake_at(), Some(host.now + MS));
    host.advance(MS);
    assert_eq!(tester.take(&mut host, &hanging).0, Err(Status::NotMySeat));
}

#[test]
fn what_comes_after_the_lapse_waits_a_second_for_the_back_end() {
    let (world, mut host, mut tester) = leased();
    let file = file_of(&world, 0);
    host.advance(TTL);
    host.hold_jobs = true;
    // Nothing says yet that the back end does not answer.
    for op in [resolve_path(file), fsync(file)] {
        let request = tester.send(&mut host, op, &[]);
        assert!(host.replies.is_empty());
        host.advance(SECOND);
        assert_eq!(tester.take(&mut host, &request).0, Err(Status::NotMySeat));
        host.end_jobs(crate::Access::NotHeld);
    }
    assert!(host.replies.is_empty(), "answered once");
}

#[test]
fn what_waits_when_the_lease_is_renewed_is_not_turned_away() {
    let (mut world, mut host, mut tester) = leased();
    host.advance(TTL);
    host.hold_jobs = true;
    let request = tester.send(&mut host, fsync(file_of(&world, 0)), &[]);
    renew(&mut host);
    host.give_seat(&mut world, 0);
    host.advance(2 * SECOND);
    assert!(host.replies.is_empty());
    while !host.jobs.is_empty() {
        host.run_job();
    }
    let (result, _) = tester.take(&mut host, &request);
    assert_eq!(result, Err(Status::UnknownHandle), "the back end says so");
}

#[test]
fn the_status_says_that_the_back_end_does_not_answer() {
    let (world, mut host, mut tester) = leased();
    let text = |host: &mut Host| String::from_utf8(host.forwarder_status()).expect("text");
    assert!(!text(&mut host).contains("trouble"));
    let waits = tester.send(&mut host, ask(&world, 1), &[]);
    host.advance(3 * SECOND);
    assert_eq!(tester.take(&mut host, &waits).0, Err(Status::NotMySeat));
    let said = text(&mut host);
    let hangs = "\"trouble\":\"it has not answered for 3 s: seat 1 was asked for\"";
    assert!(said.contains(hangs), "{said}");
    assert!(said.contains("{\"seat\":1,\"state\":\"taking\""), "{said}");
    host.tell(Input::SeatRefused { seat: 1 });
    renew(&mut host);
    assert!(!text(&mut host).contains("trouble"));
    host.advance(TTL + 3 * SECOND);
    let said = text(&mut host);
    let lapsed = "\"trouble\":\"the lease of the seats ran out 3 s ago and could not be renewed";
    assert!(said.contains(lapsed), "{said}");
    assert!(said.contains("{\"seat\":0,\"state\":\"taking\""), "{said}");
    assert!(!said.contains("lease_ms"), "{said}");
}

#[test]
fn the_status_says_that_a_renewal_is_late_before_the_lease_has_run_out() {
    let (_world, mut host, _tester) = leased();
    let text = |host: &mut Host| String::from_utf8(host.forwarder_status()).expect("text");
    renew(&mut host);
    let said = text(&mut host);
    assert!(said.contains("\"renewed_ms\":0"), "{said}");
    host.advance(TTL / 5);
    assert!(!text(&mut host).contains("trouble"), "the next one is due");
    host.advance(TTL / 5 * 2);
    let said = text(&mut host);
    assert!(
        said.contains("\"trouble\":\"the lease of the seats was renewed "),
        "{said}"
    );
    let ago = format!("\"renewed_ms\":{}", TTL / 5 * 3 / MS);
    assert!(said.contains(&ago), "{said}");
    assert!(said.contains("\"state\":\"serving\""), "{said}");
    renew(&mut host);
    assert!(!text(&mut host).contains("trouble"));
}

#[test]
fn the_status_names_who_keeps_the_seats_and_who_has_the_same_index() {
    let (_world, mut host, _tester) = leased();
    let text = |host: &mut Host| String::from_utf8(host.forwarder_status()).expect("text");
    assert!(!text(&mut host).contains("ownership"));
    host.tell(Input::Ownership(crate::OwnershipFacts {
        keeper: "etcd",
        ttl_ms: Some(8000),
        durability: "node",
        one_node: false,
    }));
    host.tell(Input::Doubled(Some("tcp:io9:4600".into())));
    let said = text(&mut host);
    let facts = "\"ownership\":{\"keeper\":\"etcd\",\"ttl_ms\":8000,\"durability\":\"node\",\
                 \"one_node\":false}";
    assert!(said.contains(facts), "{said}");
    assert!(said.contains("\"doubled\":\"tcp:io9:4600\""), "{said}");
    host.tell(Input::Doubled(None));
    assert!(!text(&mut host).contains("doubled"));
}
