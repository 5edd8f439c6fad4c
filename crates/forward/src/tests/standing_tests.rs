//! What clients may do by the secrets that they have proved.

use super::*;
use crate::back_end_files::Errno;
use tidegate_wire::{Caller, Grant, Limits, Role};

/// Who has proved this over TCP.
fn prover(role: Role) -> Peer {
    let name = if role == Role::Site { "" } else { "cn1" };
    Peer {
        credentials: None,
        address: "tcp:10.0.0.7:4000".into(),
        grant: Some(Grant {
            role,
            name: name.into(),
            expires: None,
            by: None,
        }),
        ..peer(0)
    }
}

fn user(uid: u32) -> Role {
    Role::User {
        uid,
        gid: uid,
        groups: Box::default(),
    }
}

/// Creates a file, for a user if there is one.
fn create(
    host: &mut Host,
    tester: &mut Tester,
    caller: Option<Caller>,
    name: &str,
) -> Result<Outcome, Status> {
    let op = Op::Create {
        parent: tester.root,
        name: name.as_bytes().into(),
        mode: 0o644,
        exclusive: false,
    };
    let request = Request {
        caller,
        ..tester.request(op, 0)
    };
    assert!(host.receive(tester.conn, request.clone(), &[]));
    tester.take(host, &request).0
}

/// Whether it may create a file for another user, administer, and create a file of its own.
fn powers(host: &mut Host, id: u64, role: Role) -> [Result<u32, u16>; 3] {
    let mut tester = Tester::of(host, id, prover(role));
    let mut made =
        |caller: Option<Caller>, name: &str| match create(host, &mut tester, caller, name) {
            Ok(Outcome::Attr(attr)) => Ok(attr.uid),
            Err(Status::Errno(errno)) => Err(errno),
            other => panic!("{other:?}"),
        };
    let for_another = made(Some(Caller::alone(1234, 1234)), "another");
    let own = made(None, "own");
    let administers = match tester.call(host, Op::Drain { undo: true }) {
        Ok(_) => Ok(0),
        Err(Status::Errno(errno)) => Err(errno),
        Err(other) => panic!("{other:?}"),
    };
    [for_another, administers, own]
}

#[test]
fn each_role_has_its_powers_and_no_other() {
    let (eperm, eacces) = (Err(Errno::EPERM.0), Err(Errno::EACCES.0));
    for (role, expected) in [
        (Role::Site, [Ok(1234), Ok(0), Ok(0)]),
        (Role::Mount(Limits::default()), [Ok(1234), eperm, Ok(0)]),
        (Role::Operator, [eacces, Ok(0), eacces]),
        (user(4321), [Ok(4321), eperm, Ok(4321)]),
    ] {
        let mut world = World::new();
        let config = world.config(0, 2);
        let mut host = Host::new(&world, config);
        host.give_seat(&mut world, 0);
        host.give_seat(&mut world, 1);
        assert_eq!(powers(&mut host, 1, role.clone()), expected, "{role:?}");
    }
}

/// Of root in a namespace that has no other user, too: the root of another node is no such one, and
/// its users are others.
#[test]
fn a_forwarder_of_one_user_serves_no_other_of_a_remote_mount() {
    // With `insecure = true`.
    let named = Peer {
        grant: None,
        ..prover(Role::Site)
    };
    let refused = Err(Status::Errno(Errno::EACCES.0));
    for (uid, peer, expected) in [
        (0, prover(Role::Site), Ok(())),
        (0, prover(Role::Mount(Limits::default())), Ok(())),
        (0, prover(user(0)), Ok(())),
        (0, named.clone(), Ok(())),
        (0, prover(user(1234)), refused),
        (1000, prover(Role::Site), refused),
        (1000, named, refused),
    ] {
        // A forwarder without peers, and one of two.
        for seats in [1, 2] {
            let mut world = World::new();
            let mut config = world.config(0, seats);
            (config.uid, config.acts_for_callers) = (uid, false);
            let mut host = Host::new(&world, config);
            (0..seats).for_each(|seat| host.give_seat(&mut world, seat));
            let conn = host.connect(peer.clone());
            host.receive(conn, plain(1, Op::Hello(hello(1, 1))), &[]);
            let greeted = host.reply().result.map(drop);
            assert_eq!(greeted, expected, "{uid} {peer:?}");
            if greeted.is_err() {
                continue;
            }
            let mut tester = Tester::of(&mut host, 2, peer.clone());
            let mut made =
                |caller, name: &str| create(&mut host, &mut tester, caller, name).map(drop);
            let of = |uid| Some(Caller::alone(uid, uid));
            assert_eq!(made(None, "none"), Ok(()));
            assert_eq!(made(of(0), "own"), Ok(()));
            assert_eq!(made(of(1234), "other"), refused, "{peer:?}");
        }
    }
}

#[test]
fn a_ticket_gives_what_its_user_has_and_nothing_of_its_givers() {
    let mut world = World::new();
    let config = world.config(0, 1);
    let mut host = Host::new(&world, config);
    host.give_seat(&mut world, 0);
    let giver = prover(Role::Mount(Limits::default()))
        .grant
        .expect("it has proved one");
    let ticket = giver.ticket(Caller::alone(4321, 4321), "", 60);
    let peer = Peer {
        grant: Some(ticket.expect("it may")),
        ..prover(Role::Mount(Limits::default()))
    };
    let mut tester = Tester::of(&mut host, 1, peer);
    let op = Op::Create {
        parent: tester.root,
        name: b"mine".as_slice().into(),
        mode: 0o644,
        exclusive: false,
    };
    let request = Request {
        caller: Some(Caller::alone(1234, 1234)),
        ..tester.request(op, 0)
    };
    assert!(host.receive(tester.conn, request.clone(), &[]));
    let made = tester.take(&mut host, &request).0;
    assert!(matches!(made, Ok(Outcome::Attr(attr)) if attr.uid == 4321));
    let drained = tester.call(&mut host, Op::Drain { undo: true });
    assert_eq!(drained.err(), Some(Status::Errno(Errno::EPERM.0)));
}

#[test]
fn an_operator_finds_room_where_users_have_taken_all_of_theirs() {
    let mut world = World::new();
    let mut config = world.config(0, 1);
    (config.sessions_max, config.sessions_of_user_max) = (16, 14);
    let mut host = Host::new(&world, config);
    host.give_seat(&mut world, 0);
    // As the user whom an operator is towards files, of whom there may be many.
    for id in 1..=14 {
        Tester::of(&mut host, id, peer(65_534));
    }
    let conn = host.connect(peer(65_534));
    host.receive(conn, plain(1, Op::Hello(hello(16, 1))), &[]);
    assert_eq!(host.reply().result, Err(Status::Errno(87)));
    Tester::of(&mut host, 17, prover(Role::Operator));
}

#[test]
fn the_status_names_the_secret_of_a_session() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let _tester = Tester::of(&mut host, 9, prover(Role::Mount(Limits::default())));
    let status = std::string::String::from_utf8(host.forwarder_status()).expect("text");
    let secret = r#""secret":{"role":"mount","name":"cn1"}}"#;
    assert!(status.contains(secret), "{status}");
}
