//! Hello, lease, reconnection, goodbye, and who may do what.

use super::*;
use crate::back_end_files::Errno;
use crate::reply_table::{SEGMENT_CLIENTS, SeatTable};
use tidegate_wire::{Caller, SetAttr};

fn greet(host: &mut Host, peer: Peer, hello: Hello) -> (ConnId, Result<Outcome, Status>) {
    let conn = host.connect(peer);
    host.receive(conn, plain(1, Op::Hello(hello)), &[]);
    (conn, host.reply().result)
}

fn was_closed(host: &Host, conn: ConnId) -> bool {
    host.closed.iter().any(|(closed, _)| *closed == conn)
}

#[test]
fn a_hello_tells_the_layout_and_whether_the_client_is_known() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut tester = Tester::new(&mut host, 7);
    let granted = tester.connect(&mut host, peer(0));
    assert!(!granted.fresh, "its state is still here");
    assert_eq!(&*granted.held, [(0, 1)]);
    assert_eq!(
        (granted.forwarder, granted.seats, granted.credits),
        (0, 1, 64)
    );
    assert_eq!(
        (granted.lease_ms, granted.host, granted.boot),
        (30_000, 5, 6)
    );
    let granted = Tester::new(&mut host, 8).connect(&mut host, peer(0));
    assert!(!granted.fresh);
}

#[test]
fn refused_hellos_are_answered_and_closed() {
    let mut world = World::new();
    let mut config = world.config(0, 1);
    config.sessions_max = 1;
    (config.uid, config.acts_for_callers) = (1000, false);
    let mut host = Host::new(&world, config);
    host.give_seat(&mut world, 0);
    let trials = [
        (peer(1001), hello(1, 1), Errno::EACCES.0),
        (peer(0), hello(1, 1), Errno::EACCES.0),
        (
            peer(1000),
            Hello {
                version: 0,
                ..hello(1, 1)
            },
            71,
        ),
        (
            peer(1000),
            Hello {
                client: 0,
                ..hello(1, 1)
            },
            71,
        ),
    ];
    for (peer, hello, expected) in trials {
        let (conn, result) = greet(&mut host, peer, hello);
        assert_eq!(errno(result), expected);
        assert!(was_closed(&host, conn));
    }
    assert!(greet(&mut host, peer(1000), hello(1, 5)).1.is_ok());
    assert_eq!(
        errno(greet(&mut host, peer(1000), hello(2, 1)).1),
        87,
        "one session is the limit"
    );
    assert_eq!(
        errno(greet(&mut host, peer(1000), hello(1, 5)).1),
        71,
        "not a newer incarnation"
    );
    assert!(greet(&mut host, peer(1000), hello(1, 6)).1.is_ok());
}

#[test]
fn a_client_id_stays_with_its_user() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    assert!(greet(&mut host, peer(1000), hello(1, 1)).1.is_ok());
    assert_eq!(
        errno(greet(&mut host, peer(1001), hello(1, 2)).1),
        Errno::EACCES.0
    );
}

#[test]
fn a_newer_connection_closes_the_older_and_gets_its_replies() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut tester = Tester::new(&mut host, 7);
    let older = tester.conn;
    host.hold_jobs = true;
    let request = tester.send(&mut host, create(tester.root(), "file", true), &[]);
    tester.connect(&mut host, peer(0));
    assert!(was_closed(&host, older));
    // The request is outstanding already: one job, one reply, to the present connection.
    let repeated = Request {
        replay: true,
        ..request.clone()
    };
    host.receive(tester.conn, repeated, &[]);
    assert_eq!(host.jobs.len(), 1);
    host.run_job();
    assert!(tester.take(&mut host, &request).0.is_ok());
    assert!(host.replies.is_empty());
    // What still comes on the older connection is thrown away.
    host.tell(Input::Received {
        conn: older,
        request: plain(99, Op::Ping),
        slot: None,
    });
    assert!(host.replies.is_empty());
}

#[test]
fn state_outlives_the_connection_by_the_lease_and_no_longer() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut tester = Tester::new(&mut host, 7);
    let file = tester.create(&mut host, "file");
    let open = Op::Open {
        handle: file,
        open: 1,
        read: true,
        write: true,
    };
    tester.call(&mut host, open).expect("opened");
    let unlink = Op::Unlink {
        parent: tester.root(),
        name: Box::from(&b"file"[..]),
    };
    tester.call(&mut host, unlink).expect("removed");
    host.tell(Input::Closed { conn: tester.conn });
    host.advance(29 * SECOND);
    assert_eq!(world.disk.orphans(), 1, "the open keeps the file");
    assert!(!tester.connect(&mut host, peer(0)).fresh);
    host.advance(29 * SECOND);
    tester.call(&mut host, Op::Ping).expect("alive");
    host.advance(29 * SECOND);
    assert_eq!(world.disk.orphans(), 1, "a ping renews the lease");
    host.advance(2 * SECOND);
    assert_eq!(world.disk.orphans(), 0);
    assert!(was_closed(&host, tester.conn));
    assert!(tester.connect(&mut host, peer(0)).fresh);
}

#[test]
fn a_pause_of_the_forwarder_ends_no_lease() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut tester = Tester::new(&mut host, 7);
    host.advance(5 * SECOND);
    // Stopped and continued: nobody called for an hour.
    host.now = host.now + 3600 * SECOND;
    host.run();
    assert!(tester.call(&mut host, Op::Ping).is_ok());
    assert!(host.closed.is_empty());
}

#[test]
fn goodbye_ends_everything_at_once() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut tester = Tester::new(&mut host, 7);
    tester.create(&mut host, "file");
    tester.call(&mut host, Op::Bye).expect("answered");
    assert!(was_closed(&host, tester.conn));
    assert!(tester.connect(&mut host, peer(0)).fresh);
    let status = String::from_utf8(host.forwarder_status()).expect("text");
    assert!(
        status.contains("\"clients\":0"),
        "its reply slots are gone: {status}"
    );
}

#[test]
fn a_forwarder_of_root_acts_with_the_callers_rights_and_trusts_root_only() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut root = Tester::new(&mut host, 7);
    let mut user = Tester::of(&mut host, 8, peer(1000));
    let make = |tester: &mut Tester, host: &mut Host, name: &str, uid: u32| {
        let caller = Caller {
            uid,
            gid: uid,
            groups: Box::default(),
        };
        let request = Request {
            caller: Some(caller),
            ..tester.request(create(tester.root(), name, true), 0)
        };
        host.receive(tester.conn, request.clone(), &[]);
        match tester.take(host, &request).0 {
            Ok(Outcome::Attr(attr)) => attr.uid,
            other => panic!("not made: {other:?}"),
        }
    };
    assert_eq!(make(&mut root, &mut host, "a", 1001), 1001);
    assert_eq!(
        make(&mut user, &mut host, "b", 1001),
        1000,
        "it acts as itself only"
    );
    let chown = Op::Setattr {
        handle: user.create(&mut host, "c"),
        set: SetAttr {
            uid: Some(0),
            ..SetAttr::default()
        },
    };
    assert!(
        user.call(&mut host, chown).is_ok(),
        "its own file, in the model"
    );
}

#[test]
fn data_of_an_untrusted_peer_needs_the_files_mode_its_owner_or_an_open() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut root = Tester::new(&mut host, 7);
    let file = root.create(&mut host, "file");
    let (written, _) = root.call_with(&mut host, write(file, 0, 4), b"data");
    written.expect("written");
    let mut user = Tester::of(&mut host, 8, peer(1000));
    user.find(&mut host, "file");
    assert_eq!(user.call_with(&mut host, read(file, 0, 4), &[]).1, b"data");
    let denied = [
        user.call_with(&mut host, write(file, 0, 1), b"x").0,
        user.call_with(&mut host, Op::Append { handle: file }, b"x")
            .0,
        user.call(
            &mut host,
            Op::Fallocate {
                handle: file,
                mode: 0,
                offset: 0,
                len: 9,
            },
        ),
    ];
    for result in denied {
        assert_eq!(errno(result), Errno::EACCES.0);
    }
    let fsync = Op::Fsync {
        handle: file,
        data_only: false,
    };
    let synced = user.call(&mut host, fsync);
    assert!(synced.is_ok(), "who may read may make stable");
    let private = SetAttr {
        mode: Some(0),
        ..SetAttr::default()
    };
    root.call(
        &mut host,
        Op::Setattr {
            handle: file,
            set: private,
        },
    )
    .expect("set");
    assert_eq!(
        errno(user.call(&mut host, read(file, 0, 1))),
        Errno::EACCES.0,
        "it has no open of the file"
    );
    let mut third = Tester::of(&mut host, 9, peer(1000));
    third.find(&mut host, "file");
    assert_eq!(
        errno(third.call(&mut host, read(file, 0, 1))),
        Errno::EACCES.0
    );
    let own = third.create(&mut host, "own");
    third
        .call(
            &mut host,
            Op::Setattr {
                handle: own,
                set: private,
            },
        )
        .expect("set");
    let (written, _) = third.call_with(&mut host, write(own, 0, 1), b"x");
    assert!(written.is_ok(), "the owner may, as with a created file");
}

#[test]
fn a_seat_has_reply_slots_for_many_clients_and_the_next_holder_finds_them_all() {
    const CLIENTS: usize = 2 * SEGMENT_CLIENTS + 100;
    let mut world = World::new();
    let mut config = world.config(0, 1);
    config.sessions_max = CLIENTS as u32;
    let mut host = Host::new(&world, config.clone());
    host.give_seat(&mut world, 0);
    let mut testers: std::vec::Vec<Tester> = (1..=CLIENTS as u64)
        .map(|client| {
            let mut tester = Tester::new(&mut host, client);
            tester.create(&mut host, &std::format!("file {client}"));
            tester
        })
        .collect();
    let (_, one_more) = greet(&mut host, peer(0), hello(5000, 1));
    assert_eq!(errno(one_more), 87, "the configuration has no room for it");
    let table = world.tables[&0].seen_by(&Switch::new());
    assert_eq!(table.len(), 3 * crate::SEGMENT_BYTES);
    drop(host);
    let (found, damaged) = crate::reply_table::clients(&table);
    assert_eq!((found.len(), damaged), (CLIENTS, 0));
    // The next holder knows each of them, and what they did last.
    let mut host = Host::new(&world, config);
    host.give_seat(&mut world, 0);
    for tester in testers.iter_mut().step_by(97) {
        tester.connect(&mut host, peer(0));
        let root = tester.root();
        let again = tester.call(&mut host, Op::Getattr { handle: root });
        assert_eq!(again, Err(Status::NewGeneration));
    }
    assert_eq!(crate::reply_table::clients(&table).0.len(), CLIENTS);
}

#[test]
fn a_client_that_changes_nothing_takes_no_place_and_those_that_ended_give_theirs_back() {
    let mut world = World::new();
    let mut config = world.config(0, 1);
    config.sessions_max = 1000;
    let mut host = Host::new(&world, config);
    host.give_seat(&mut world, 0);
    let table = world.tables[&0].seen_by(&Switch::new());
    let entries = || crate::reply_table::clients(&table).0.len();
    let mut testers = std::vec::Vec::new();
    for client in 1..=300 {
        let mut tester = Tester::new(&mut host, client);
        let root = tester.root();
        assert!(tester.call(&mut host, Op::Getattr { handle: root }).is_ok());
        testers.push(tester);
    }
    assert_eq!(entries(), 0);
    for (number, tester) in testers.iter_mut().enumerate() {
        tester.create(&mut host, &std::format!("file {number}"));
    }
    assert_eq!(entries(), 300);
    let used = table.pages_used();
    for mut tester in testers {
        assert!(tester.call(&mut host, Op::Bye).is_ok());
    }
    assert_eq!(entries(), 0);
    let left = table.pages_used();
    assert!(
        left + 256 <= used,
        "{used} pages were used, {left} still are"
    );
}

#[test]
fn one_who_asks_is_told_who_listens_and_gets_no_session() {
    let world = World::new();
    let mut config = world.config(1, 2);
    config.export = tidegate_wire::ExportId(77);
    config.sessions_max = 1;
    (config.uid, config.acts_for_callers) = (1000, false);
    let mut host = Host::new(&world, config);
    let known = tidegate_wire::Listed {
        index: 1,
        addresses: vec!["tcp:io1:4600".into()],
    };
    host.tell(Input::Forwarders(Box::from([known.clone()])));
    let asks = |client| Hello {
        asks: true,
        ..hello(client, 1)
    };
    // More than one session is not to be had, but anybody may ask, again and again.
    assert!(greet(&mut host, peer(1000), hello(1, 5)).1.is_ok());
    for client in [1, 2, 2] {
        let (conn, told) = greet(&mut host, peer(1000), asks(client));
        let Ok(Outcome::Hello(told)) = told else {
            panic!("not told: {told:?}");
        };
        assert_eq!((told.forwarder, told.seats, told.export.0), (1, 2, 77));
        assert_eq!(&*told.forwarders, core::slice::from_ref(&known));
        assert!(was_closed(&host, conn));
    }
    let (_, refused) = greet(&mut host, peer(1001), asks(3));
    assert_eq!(errno(refused), Errno::EACCES.0, "not those who are refused");
    let (_, second) = greet(&mut host, peer(1000), hello(2, 1));
    assert_eq!(errno(second), 87, "who asked has no session");
}
