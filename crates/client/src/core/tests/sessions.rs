//! Hellos, credits, leases and the end.

use super::*;

#[test]
fn the_first_session_is_looked_for_in_rounds() {
    let mut rig = Rig::new(2);
    let id = rig.call(lookup(b"a"));
    assert_eq!(rig.connects, [0]);
    rig.lose(0);
    assert_eq!(rig.connects, [1]);
    rig.lose(1);
    assert!(rig.connects.is_empty());
    assert_eq!(rig.core.wake_at(), Some(20 * MS));
    rig.wake();
    rig.lose(0);
    rig.greet(1, GRANT, &[]);
    assert_eq!(rig.core.root().map(|root| root.handle), Some(file(ROOT)));
    // The call goes to its seat's owner.
    let owner = rig.seat_of(file(ROOT));
    if owner == 0 {
        rig.greet(0, GRANT, &[]);
    }
    let sent = rig.next();
    assert_eq!(sent.forwarder, owner);
    rig.ok(&sent, Outcome::Attr(attr(file(9))));
    rig.succeeded(id);
}

#[test]
fn a_refused_hello_is_told_and_the_next_forwarder_tried() {
    let mut rig = Rig::new(2);
    rig.connected(0);
    let hello = rig.next();
    rig.fail(&hello, Status::Errno(13));
    assert_eq!(rig.refused, [(0, Errno(13))]);
    assert_eq!(rig.connects, [1]);
}

#[test]
fn a_forwarder_of_another_set_is_refused() {
    let mut rig = Rig::open(2);
    rig.lose(1);
    rig.core.connect(1);
    rig.pump();
    rig.seats = 5;
    rig.greet(1, GRANT, &[]);
    assert_eq!(rig.refused, [(1, Errno(71))]);
    assert_eq!(rig.logs.len(), 1);
}

#[test]
fn incarnations_grow_with_each_connection() {
    let mut rig = Rig::new(1);
    let mut last = 0;
    for _ in 0..3 {
        rig.connected(0);
        let hello = rig.next();
        let Op::Hello(hello) = &hello.request.op else {
            panic!("the first frame is the hello");
        };
        assert!(hello.incarnation > last);
        assert_eq!(hello.client, 1);
        last = hello.incarnation;
        rig.lose(0);
        rig.wake();
    }
}

#[test]
fn credits_are_respected_and_the_order_is_kept() {
    let mut rig = Rig::new(1);
    rig.greet(
        0,
        Grant {
            credits: 2,
            ..GRANT
        },
        &[],
    );
    let ids: Vec<CallId> = (0..5).map(|n| rig.call(getattr(file(n)))).collect();
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(rig.sent.len(), 2.min(5 - n));
        let sent = rig.next();
        assert_eq!(sent.request.op, getattr(file(n as u64)));
        rig.ok(&sent, Outcome::Attr(attr(file(n as u64))));
        rig.succeeded(*id);
    }
}

#[test]
fn idle_sessions_are_kept_alive() {
    let mut rig = Rig::open(1);
    assert_eq!(rig.core.wake_at(), Some(1000 * MS));
    rig.wake();
    let ping = rig.next();
    assert_eq!(ping.request.op, Op::Ping);
    rig.ok(&ping, Outcome::Done);
    assert_eq!(rig.core.wake_at(), Some(2000 * MS));
    // Traffic is as good as a ping: that is found when the ping would have been due.
    rig.at(1500 * MS);
    rig.call(getattr(file(3)));
    let getattr = rig.next();
    rig.ok(&getattr, Outcome::Attr(attr(file(3))));
    rig.wake();
    assert_eq!(rig.now, 2000 * MS);
    assert!(rig.sent.is_empty());
    assert_eq!(rig.core.wake_at(), Some(2500 * MS));
}

#[test]
fn stamps_are_corrected_by_the_forwarders_clocks() {
    let mut rig = Rig::new(1);
    let grant = Grant {
        ahead_ns: 5000,
        ..GRANT
    };
    rig.greet(0, grant, &[]);
    rig.now = 77;
    rig.call_with(read(file(3), 0, 10), Bytes::new(), Some(1077));
    let hints = rig.next().request.hints.expect("reads carry hints");
    assert_eq!(hints.stamp_ns, WALL + 5077);
    assert_eq!(hints.deadline_ns, WALL + 6077);
}

#[test]
fn shutdown_ends_calls_and_says_goodbye() {
    let mut rig = Rig::open(2);
    let id = rig.call(lookup(b"a"));
    rig.input(Input::Shutdown);
    assert_eq!(rig.errno(id), 5);
    let byes: Vec<Sent> = rig
        .sent
        .drain(..)
        .filter(|s| s.request.op == Op::Bye)
        .collect();
    assert_eq!(byes.len(), 2);
    rig.ok(&byes[0], Outcome::Done);
    assert!(!rig.ended);
    rig.lose(byes[1].forwarder);
    assert!(rig.ended);
    assert_eq!(rig.core.wake_at(), None);
    let late = rig.call(lookup(b"b"));
    assert_eq!(rig.errno(late), 5);
}

#[test]
fn a_barred_client_says_of_which_changes_it_does_not_know() {
    let mut rig = Rig::open(1);
    let looks = rig.call(lookup(b"a"));
    let appends = rig.call_with(Op::Append { handle: file(3) }, bytes(10), None);
    let writes = rig.call_with(write(file(3), 0, 10), bytes(10), None);
    rig.lose(0);
    // The connection was there when these two were sent, and is not when this one comes.
    let unsent = rig.call_with(Op::Append { handle: file(3) }, bytes(10), None);
    rig.input(Input::Barred);
    assert_eq!(rig.errno(appends), 5);
    for id in [looks, writes, unsent] {
        assert_eq!(rig.errno(id), Errno::KEYEXPIRED.0);
    }
    assert!(rig.ended);
}

#[test]
fn a_goodbye_does_not_wait_for_ever() {
    let mut rig = Rig::open(1);
    rig.input(Input::Shutdown);
    rig.wake();
    assert!(rig.ended);
}

/// A forwarder to which further connections are of use.
const OF_EIGHT: Grant = Grant {
    connections: 8,
    ..GRANT
};

fn granted(grant: Grant) -> Rig {
    let mut rig = Rig::new(1);
    rig.core.connect(0);
    rig.pump();
    rig.greet(0, grant, &[]);
    rig
}

#[test]
fn further_connections_are_of_use_once_several_requests_are_under_way() {
    let mut rig = granted(OF_EIGHT);
    let one = rig.call(read(file(2), 0, 100));
    let sent = rig.next();
    rig.data(&sent, bytes(100));
    rig.succeeded(one);
    assert!(rig.joins.is_empty(), "one after another needs one");
    for stripe in 0..4 {
        rig.call(read(file(2), stripe * 4096, 100));
    }
    assert_eq!(rig.joins, [(0, 3)], "no more than it wants, said once");
    let connections: Vec<u64> = rig.sent.iter().map(|sent| sent.connection % 3).collect();
    assert_eq!(
        connections,
        [0, 0, 1, 2],
        "from the second on stripes take turns"
    );
    rig.call(lookup(b"a"));
    assert_eq!(
        rig.take(|sent| sent.request.op == lookup(b"a")).connection,
        0
    );
    let joined = rig.core.join(0, 99).expect("a session is there");
    let Op::Hello(joined) = joined.op else {
        panic!("it joins with a hello")
    };
    assert!(joined.joins && joined.incarnation == 1);
    rig.lose(0);
    assert!(rig.core.join(0, 99).is_none());
    rig.wake();
    rig.greet(0, OF_EIGHT, &[]);
    assert_eq!(rig.joins, [(0, 3), (0, 3)], "of the new session again");
}

#[test]
fn data_does_not_overtake_its_application() {
    let mut rig = granted(OF_EIGHT);
    rig.call(read(file(1), 0, 10));
    rig.next();
    let application = Application {
        name: "job".into(),
        ..Application::default()
    };
    rig.input(Input::Application {
        app: 7,
        application,
    });
    rig.call(read(file(2), 3 * 4096, 10));
    let introduction = rig.next();
    assert!(matches!(introduction.request.op, Op::Application { .. }));
    assert_eq!(rig.next().connection, 0);
    rig.ok(&introduction, Outcome::Done);
    rig.call(read(file(2), 3 * 4096, 10));
    assert_eq!(rig.next().connection, 5);
}

#[test]
fn stripes_of_any_size_have_connections() {
    let mut rig = Rig::new(1);
    let grant = Grant {
        connections: 8,
        stripe: 1 << 63,
        ..GRANT
    };
    rig.core.connect(0);
    rig.pump();
    rig.seats = 4;
    rig.greet(0, grant, &[]);
    for _ in 0..3 {
        rig.call(read(file(2), 0, 10));
    }
    // Its stripes in all would be no number of 64 bits: none begins a second round.
    assert_eq!(rig.joins.len(), 1);
    let connections: Vec<u64> = rig.sent.iter().map(|sent| sent.connection).collect();
    assert_eq!(connections, [0, 2, 2], "by the inode alone");
}

#[test]
fn whoever_grants_the_shortest_lease_and_does_not_answer_gets_one_ping() {
    let mut rig = Rig::new(1);
    let grant = Grant {
        credits: u32::MAX,
        lease_ms: 1,
        ..GRANT
    };
    rig.core.connect(0);
    rig.pump();
    rig.greet(0, grant, &[]);
    let mut wakes = 0;
    while rig.now < 3000 * MS {
        rig.wake();
        wakes += 1;
    }
    assert_eq!(rig.sent.len(), 1);
    assert_eq!(rig.next().request.op, Op::Ping);
    assert!(wakes < 100, "{wakes} in 3 s");
}

#[test]
fn who_only_asks_learns_who_is_there_and_by_which_clock() {
    let mut rig = Rig::new(2);
    let options = CoreOptions {
        asks: true,
        ..rig.core.options.clone()
    };
    rig.core = Core::new(options);
    rig.connects.clear();
    rig.pump();
    rig.connected(1);
    rig.at(2000);
    let grant = Grant {
        ahead_ns: 5000,
        ..GRANT
    };
    rig.grant(1, grant, &[]);
    assert!(matches!(rig.core.members()[0], Member::Silent));
    assert!(matches!(&rig.core.members()[1], Member::Known(hello) if hello.forwarder == 1));
    let clock = rig.core.member_clock(1).expect("there are two");
    assert_eq!((clock.ahead_ns, clock.trip_ns), (6000, 2000));
    assert!(clock.ahead_ns.abs_diff(5000) <= clock.trip_ns / 2);
    assert_eq!(rig.core.member_clock(2), None);
}
