//! What a mount may do whose secret says for which users it acts.

use super::*;
use crate::back_end_files::Errno;
use crate::forwarder::holdings::LOCKS;
use tidegate_wire::{Caller, Grant, Limits, Lock, LockFamily, LockKind, NOBODY, Role};

fn mount(limits: Limits) -> Peer {
    Peer {
        credentials: None,
        address: "tcp:10.0.0.7:4000".into(),
        grant: Some(Grant {
            role: Role::Mount(limits),
            name: "cn1".into(),
            expires: None,
            by: None,
        }),
        ..peer(0)
    }
}

fn limits(uids: &str) -> Limits {
    Limits {
        root_squash: Some(NOBODY),
        uids: Some(uids.parse().expect("right")),
        gids: None,
    }
}

/// A request for a caller, with its result and payload.
fn call_as(
    tester: &mut Tester,
    host: &mut Host,
    uid: u32,
    op: Op,
    payload: &[u8],
) -> (Result<Outcome, Status>, Vec<u8>) {
    let request = Request {
        caller: Some(Caller::alone(uid, uid)),
        ..tester.request(op, payload.len())
    };
    assert!(host.receive(tester.conn, request.clone(), payload));
    tester.take(host, &request)
}

fn open(handle: Handle) -> Op {
    Op::Open {
        handle,
        open: 1,
        read: true,
        write: true,
    }
}

fn private(parent: Handle, name: &str) -> Op {
    Op::Create {
        parent,
        name: name.as_bytes().into(),
        mode: 0o600,
        exclusive: true,
    }
}

/// The same on a node whose secret has this name.
fn mount_of(node: &str, limits: Limits) -> Peer {
    let mut peer = mount(limits);
    peer.grant.as_mut().expect("it has one").name = node.into();
    peer
}

#[test]
fn a_mount_sees_no_other_nodes_sessions() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut one = Tester::of(&mut host, 9, mount_of("cn1", limits("1000-1999")));
    let mut other = Tester::of(&mut host, 10, mount_of("cn2", limits("1000-1999")));
    let _users = Tester::of(&mut host, 11, peer(65_534));
    for (mount, own, others) in [(&mut one, "cn1", "cn2"), (&mut other, "cn2", "cn1")] {
        let Ok(Outcome::Text(text)) = mount.call(&mut host, Op::Status) else {
            panic!("it may look");
        };
        let text = String::from_utf8(text.into()).expect("text");
        assert!(
            text.contains(r#""other_sessions":2,"sessions":[{"#),
            "{text}"
        );
        assert!(text.contains(own) && !text.contains(others), "{text}");
    }
}

#[test]
fn no_room_is_kept_for_a_mount_with_limits() {
    let mut world = World::new();
    let mut config = world.config(0, 1);
    (config.sessions_max, config.sessions_of_user_max) = (16, 4);
    let mut host = Host::new(&world, config);
    host.give_seat(&mut world, 0);
    let refused = |host: &mut Host, id, peer| {
        let conn = host.connect(peer);
        host.receive(conn, plain(1, Op::Hello(hello(id, 1))), &[]);
        host.reply().result == Err(Status::Errno(87))
    };
    for id in 1..=4 {
        Tester::of(&mut host, id, mount_of("cn1", limits("1000-1999")));
    }
    assert!(refused(&mut host, 5, mount_of("cn1", limits("1000-1999"))));
    // Others have their own part, until what is left is root's.
    let mut id = 5;
    while id <= 15 {
        let node = std::format!("cn{}", id / 4 + 1);
        Tester::of(&mut host, id, mount_of(&node, limits("1000-1999")));
        id += 1;
    }
    assert!(refused(&mut host, 17, mount_of("cn9", limits("1000-1999"))));
    Tester::new(&mut host, 18);
}

/// Whether a session begins by a secret of a name, with a hello of a user.
fn begins(host: &mut Host, id: u64, node: &str, uid: u32) -> bool {
    let conn = host.connect(mount_of(node, limits("1000-1999")));
    let hello = Hello {
        uid,
        ..hello(id, 1)
    };
    host.receive(conn, plain(1, Op::Hello(hello)), &[]);
    host.reply().result.is_ok()
}

#[test]
fn a_node_has_no_more_room_for_hellos_of_many_users() {
    let mut world = World::new();
    let mut config = world.config(0, 1);
    (config.sessions_max, config.sessions_of_user_max) = (16, 2);
    let mut host = Host::new(&world, config);
    host.give_seat(&mut world, 0);
    let begun = (1..=8).filter(|id| begins(&mut host, *id, "cn1", 1000 + *id as u32));
    assert_eq!(begun.count(), 4, "a quarter: a node has many users");
    let mut other = Tester::of(&mut host, 20, mount_of("cn2", limits("1000-1999")));
    let told = |host: &Host| {
        let about = "the mounts with the secret cn1 have all sessions";
        host.logs.iter().filter(|it| it.contains(about)).count()
    };
    assert_eq!(told(&host), 1, "{:?}", host.logs);
    other.call(&mut host, Op::Ping).expect("it is served");
}

#[test]
fn users_leave_room_for_nodes() {
    let mut world = World::new();
    let mut config = world.config(0, 1);
    (config.sessions_max, config.sessions_of_user_max) = (16, 16);
    let mut host = Host::new(&world, config);
    host.give_seat(&mut world, 0);
    for id in 1..=14 {
        Tester::of(&mut host, id, peer(1000 + id as u32));
    }
    let conn = host.connect(peer(1099));
    host.receive(conn, plain(1, Op::Hello(hello(15, 1))), &[]);
    assert_eq!(errno(host.reply().result), 87);
    assert!(begins(&mut host, 16, "cn1", 1000));
    assert!(!begins(&mut host, 17, "cn2", 1000), "the rest is root's");
    Tester::new(&mut host, 18);
}

#[test]
fn a_node_has_the_locks_of_a_mount_whoever_its_sessions_are() {
    let mut world = World::new();
    let mut config = world.config(0, 1);
    config.sessions_max = 100;
    let mut host = Host::new(&world, config);
    host.give_seat(&mut world, 0);
    let mut owner = Tester::new(&mut host, 1);
    let files: Vec<Handle> = (0..64)
        .map(|number| owner.create(&mut host, &std::format!("file{number}")))
        .collect();
    let session = |host: &mut Host, id: u64, node: &str| {
        let anonymous = tidegate_wire::Anonymous {
            anonuid: 3000 + id as u32,
            anongid: 3000,
        };
        let limits = Limits {
            root_squash: Some(anonymous),
            ..Limits::default()
        };
        let mut tester = Tester::of(host, id, mount_of(node, limits));
        for (number, handle) in files.iter().enumerate() {
            tester.find(host, &std::format!("file{number}"));
            let op = Op::Open {
                handle: *handle,
                open: 1,
                read: true,
                write: false,
            };
            tester.call(host, op).expect("everybody may read it");
        }
        tester
    };
    let lock = |tester: &mut Tester, host: &mut Host, n: u64| {
        let lock = Lock {
            family: LockFamily::Range,
            kind: LockKind::Shared,
            owner: 1,
            pid: 1,
            start: 2 * n,
            end: 2 * n,
        };
        let op = Op::SetLock {
            handle: files[n as usize % files.len()],
            lock,
            wait: false,
            reclaim: false,
        };
        tester.call(host, op)
    };
    let mut granted = 0;
    for id in [7, 8] {
        let mut one = session(&mut host, id, "cn1");
        let locked = (0..60_000).take_while(|n| lock(&mut one, &mut host, *n).is_ok());
        granted += locked.count();
    }
    let of_node = LOCKS.of_node as usize;
    assert!((of_node..of_node + 128).contains(&granted), "{granted}");
    let told = host
        .logs
        .iter()
        .filter(|it| it.contains("cn1 have all locks"));
    assert_eq!(told.count(), 1, "{:?}", host.logs);
    let mut other = session(&mut host, 9, "cn2");
    assert_eq!(lock(&mut other, &mut host, 0), Ok(Outcome::Done));
}

#[test]
fn root_is_nobody_and_users_outside_are_refused() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut tester = Tester::of(&mut host, 9, mount(limits("1000-1999")));
    let root = tester.root;
    let made = |result: (Result<Outcome, Status>, Vec<u8>)| match result.0 {
        Ok(Outcome::Attr(attr)) => Ok((attr.uid, attr.gid)),
        Err(Status::Errno(errno)) => Err(errno),
        other => panic!("{other:?}"),
    };
    let mut as_user = |uid, name| {
        made(call_as(
            &mut tester,
            &mut host,
            uid,
            private(root, name),
            &[],
        ))
    };
    assert_eq!(as_user(0, "root's"), Ok((65_534, 65_534)));
    assert_eq!(as_user(1500, "user's"), Ok((1500, 1500)));
    for uid in [1, 999, 2000, 65_534] {
        assert_eq!(as_user(uid, "others"), Err(Errno::EACCES.0));
    }
    // Without a caller it is nobody too, though its hello said root.
    let own = tester.attr(&mut host, private(root, "own"));
    assert_eq!(own.uid, 65_534);
    let told = host.logs.iter().filter(|it| it.contains("does not act"));
    assert_eq!(told.count(), 1, "{:?}", host.logs);
    let status = String::from_utf8(host.forwarder_status()).expect("text");
    for part in [
        r#""root_squash":"65534:65534","uids":"1000-1999"}"#,
        r#""refused_callers":4"#,
    ] {
        assert!(status.contains(part), "{status}");
    }
}

#[test]
fn data_is_for_the_users_that_it_acts_for() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut root = Tester::new(&mut host, 7);
    let secret = root.attr(&mut host, private(root.root, "secret")).handle;
    root.call_with(&mut host, write(secret, 0, 4), b"data")
        .0
        .expect("written");
    let mut tester = Tester::of(&mut host, 9, mount(limits("1000-1999")));
    tester.find(&mut host, "secret");
    for uid in [0, 1500, 500] {
        for op in [read(secret, 0, 4), open(secret)] {
            let refused = call_as(&mut tester, &mut host, uid, op, &[]).0;
            assert_eq!(errno(refused), Errno::EACCES.0, "{uid}");
        }
        let refused = call_as(&mut tester, &mut host, uid, write(secret, 0, 1), b"x").0;
        assert_eq!(errno(refused), Errno::EACCES.0, "{uid}");
    }
    let refused = tester.call(&mut host, read(secret, 0, 4));
    assert_eq!(errno(refused), Errno::EACCES.0);
    // One of its users has a file of his own, and what he has open is read back for nobody.
    let parent = tester.root;
    let made = call_as(&mut tester, &mut host, 1500, private(parent, "mine"), &[]).0;
    let Ok(Outcome::Attr(attr)) = made else {
        panic!("{made:?}");
    };
    let mine = attr.handle;
    call_as(&mut tester, &mut host, 1500, open(mine), &[])
        .0
        .expect("opened");
    call_as(&mut tester, &mut host, 1500, write(mine, 0, 4), b"mine")
        .0
        .expect("written");
    let (result, bytes) = tester.call_with(&mut host, read(mine, 0, 4), &[]);
    result.expect("read");
    assert_eq!(bytes, b"mine");
    // A mount without limits is trusted, as before.
    let mut trusted = Tester::of(&mut host, 10, mount(Limits::default()));
    assert_eq!(
        trusted.call_with(&mut host, read(secret, 0, 4), &[]).1,
        b"data"
    );
}

#[test]
fn with_other_limits_what_is_open_is_judged_anew() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut tester = Tester::of(&mut host, 9, mount(limits("1000-1999")));
    let parent = tester.root;
    let made = call_as(&mut tester, &mut host, 1500, private(parent, "mine"), &[]).0;
    let Ok(Outcome::Attr(attr)) = made else {
        panic!("{made:?}");
    };
    let mine = attr.handle;
    call_as(&mut tester, &mut host, 1500, open(mine), &[])
        .0
        .expect("opened");
    assert!(tester.call(&mut host, read(mine, 0, 0)).is_ok());
    let again = tester.connect(&mut host, mount(limits("1000-1999")));
    assert!(!again.fresh);
    assert!(tester.call(&mut host, read(mine, 0, 0)).is_ok());
    // Its client opens its files again: those of users for whom it acts.
    let narrowed = tester.connect(&mut host, mount(limits("1000-1200")));
    assert!(narrowed.fresh);
    for result in [
        tester.call(&mut host, read(mine, 0, 0)),
        call_as(&mut tester, &mut host, 1500, read(mine, 0, 0), &[]).0,
        call_as(&mut tester, &mut host, 1100, open(mine), &[]).0,
    ] {
        assert_eq!(errno(result), Errno::EACCES.0);
    }
    tester.connect(&mut host, mount(limits("1500")));
    call_as(&mut tester, &mut host, 1500, open(mine), &[])
        .0
        .expect("opened");
    assert!(tester.call(&mut host, read(mine, 0, 0)).is_ok());
}
