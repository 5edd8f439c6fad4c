//! What one user does is not counted for another, and takes from no other user names, rules or
//! accounts.

use super::share_tests::{named, rules, status};
use super::*;
use crate::back_end_files::Errno;
use crate::forwarder::holdings::LOCKS;
use crate::share_rules::User;
use std::string::ToString;
use tidegate_sched::{AppId, Rate, Share};
use tidegate_wire::{Caller, Hints, Lock, LockFamily, LockKind};

const LIMIT: Option<Rate> = Some(Rate::Operations(10));

/// A forwarder with a limit for each application of user 1000.
fn limited(world: &mut World) -> Host {
    let mut config = world.config(0, 1);
    let share = Share {
        max: LIMIT,
        ..Share::default()
    };
    config.shares = rules("*", share);
    config.shares.apps[0].user = Some(User {
        uid: 1000,
        name: "anna".to_string(),
    });
    config.sessions_max = 100;
    config.sessions_of_user_max = 50;
    let mut host = Host::new(world, config);
    host.give_seat(world, 0);
    host
}

/// A file that everybody may read.
fn file(host: &mut Host) -> Handle {
    let mut owner = Tester::new(host, 1);
    owner.create(host, "file")
}

fn open(
    tester: &mut Tester,
    host: &mut Host,
    handle: Handle,
    open: u64,
) -> Result<Outcome, Status> {
    let op = Op::Open {
        handle,
        open,
        read: true,
        write: false,
    };
    tester.call(host, op)
}

/// Reads as an application; None: what the client does not say.
fn read_as(tester: &mut Tester, host: &mut Host, file: Handle, app: Option<&str>) {
    assert_eq!(tester.find(host, "file"), file);
    let request = tester.request(read(file, 0, 1), 0);
    let app = app.map_or(0, |name| AppId::from_name(name).0);
    send(
        tester,
        host,
        Request {
            hints: Some(Hints {
                app,
                ..Hints::default()
            }),
            ..request
        },
    );
}

/// Sends a request, and takes the reply when a limit lets it come.
fn send(tester: &mut Tester, host: &mut Host, request: Request) {
    assert!(host.receive(tester.conn, request.clone(), &[]));
    host.advance(SECOND);
    tester.take(host, &request).0.expect("done");
}

/// What the rules allow the application of this id at most.
fn limit(host: &Host, app: AppId) -> Option<Rate> {
    host.forwarder.shares().of(app).share.max
}

/// How many reads the status shows for an application of a user; "" for what has no name.
fn reads(host: &mut Host, name: &str, uid: u32) -> u64 {
    let text = status(host);
    let of = alloc::format!(r#""name":"{name}","uid":{uid},"#);
    let found = text.split_once(&of);
    let rest = found.and_then(|(_, rest)| rest.split_once(r#""read_requests":"#));
    rest.map_or(0, |(_, rest)| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().expect("a number")
    })
}

#[test]
fn rules_for_a_user_hold_for_ids_that_he_has_not_introduced() {
    let mut world = World::new();
    let mut host = limited(&mut world);
    let file = file(&mut host);
    let mut victim = Tester::of(&mut host, 7, peer(1001));
    victim.call(&mut host, named("victim")).expect("named");
    let mut liar = Tester::of(&mut host, 8, peer(1000));
    for name in [Some("victim"), Some("nobody's"), None] {
        read_as(&mut liar, &mut host, file, name);
    }
    assert_eq!(reads(&mut host, "victim", 1001), 0);
    assert_eq!(reads(&mut host, "", 1000), 3);
    assert_eq!(limit(&host, AppId::unnamed_of(1000)), LIMIT);
    liar.call(&mut host, named("victim")).expect("named");
    read_as(&mut liar, &mut host, file, Some("victim"));
    assert_eq!(reads(&mut host, "victim", 1000), 1);
    let own = AppId::from_name("victim").of_user(1000);
    assert_eq!(limit(&host, own), LIMIT);
    assert_eq!(limit(&host, AppId::from_name("victim").of_user(1001)), None);
}

#[test]
fn a_mount_s_requests_count_for_their_callers() {
    let mut world = World::new();
    let mut host = limited(&mut world);
    let mut mount = Tester::new(&mut host, 7);
    let caller = |uid| {
        Some(Caller {
            uid,
            gid: uid,
            groups: Box::default(),
        })
    };
    let app = AppId::from_name("a").0;
    let file = file(&mut host);
    let mut acts = |host: &mut Host, op: Op, uid| {
        let hints = op.moves_data().then(|| Hints {
            app,
            ..Hints::default()
        });
        let request = Request {
            caller: caller(uid),
            hints,
            ..mount.request(op, 0)
        };
        send(&mut mount, host, request);
    };
    acts(&mut host, named("a"), 1000);
    for uid in [1000, 1001, 0] {
        acts(&mut host, read(file, 0, 1), uid);
    }
    acts(&mut host, named("a"), 1001);
    acts(&mut host, read(file, 0, 1), 1001);
    assert_eq!(reads(&mut host, "a", 1000), 1);
    assert_eq!(reads(&mut host, "", 1001), 1);
    assert_eq!(reads(&mut host, "a", 1001), 1);
    let text = status(&mut host);
    let own = alloc::format!(r#""app":"{app:016x}","read_requests":1,"#);
    assert!(text.contains(&own), "{text}");
}

#[test]
fn a_user_with_all_names_takes_no_rule_of_another() {
    let mut world = World::new();
    let mut host = limited(&mut world);
    for client in 0..4 {
        let mut flood = Tester::of(&mut host, 7 + client, peer(2000));
        for n in 0..1024 {
            let _ = flood.call(&mut host, named(&alloc::format!("{client}-{n}")));
        }
    }
    // Many users, each with all that he may have.
    for user in 0..20 {
        let mut flood = Tester::of(&mut host, 20 + user, peer(3000 + user as u32));
        for n in 0..600 {
            let _ = flood.call(&mut host, named(&n.to_string()));
        }
    }
    let mut late = Tester::of(&mut host, 90, peer(1000));
    late.call(&mut host, named("late")).expect("there is room");
    assert_eq!(
        limit(&host, AppId::from_name("late").of_user(1000)),
        LIMIT,
        "his rule holds"
    );
    let mut root = Tester::new(&mut host, 91);
    for n in 0..1024 {
        root.call(&mut host, named(&n.to_string())).expect("room");
    }
    // The status of so many leaves out those with the least device time.
    host.device_ns = 1000;
    let file = file(&mut host);
    read_as(&mut late, &mut host, file, Some("late"));
    assert_eq!(reads(&mut host, "late", 1000), 1);
    assert!(host.forwarder_status().len() < tidegate_wire::BODY_MAX);
}

#[test]
fn locks_and_opens_of_one_user_are_bounded() {
    let mut world = World::new();
    let mut host = limited(&mut world);
    let file = file(&mut host);
    let lock = |n: u64| Op::SetLock {
        handle: file,
        lock: Lock {
            family: LockFamily::Range,
            kind: LockKind::Shared,
            owner: 1,
            pid: 1,
            start: 2 * n,
            end: 2 * n,
        },
        wait: false,
        reclaim: false,
    };
    let mut granted = 0;
    for session in 0..24 {
        let mut flood = Tester::of(&mut host, 10 + session, peer(1000));
        flood.find(&mut host, "file");
        open(&mut flood, &mut host, file, 1).expect("it may be read");
        let locks = (0..1000).map(|n| flood.call(&mut host, lock(n)));
        granted += locks.take_while(Result::is_ok).count();
    }
    let most = LOCKS.of_user as usize + 24 * 64;
    assert!(
        (LOCKS.of_user as usize..most).contains(&granted),
        "{granted}"
    );
    let mut other = Tester::of(&mut host, 90, peer(1001));
    other.find(&mut host, "file");
    open(&mut other, &mut host, file, 1).expect("it may be read");
    assert_eq!(other.call(&mut host, lock(0)), Ok(Outcome::Done));
}

#[test]
fn a_user_that_asks_again_and_again_gets_the_same_status() {
    let mut world = World::new();
    let mut host = limited(&mut world);
    let mut asker = Tester::of(&mut host, 8, peer(1000));
    let mut text = |host: &mut Host| match asker.call(host, Op::Status) {
        Ok(Outcome::Text(text)) => text,
        other => panic!("no status: {other:?}"),
    };
    let first = text(&mut host);
    assert_eq!(text(&mut host), first);
    host.advance(SECOND);
    assert_ne!(text(&mut host), first, "it counts what was answered");
}

/// Whether one more session of a user begins.
fn begins(host: &mut Host, id: u64, uid: u32) -> bool {
    let conn = host.connect(peer(uid));
    host.receive(conn, plain(1, Op::Hello(hello(id, 1))), &[]);
    host.reply().result.is_ok()
}

#[test]
fn sessions_of_one_user_leave_some_to_others_and_all_some_to_nodes_and_root() {
    let world = World::new();
    let mut config = world.config(0, 1);
    config.sessions_max = 32;
    config.sessions_of_user_max = 0;
    let mut host = Host::new(&world, config);
    for (number, uid) in [(0, 1000), (1, 1001), (2, 1002), (3, 1003)] {
        let of_user = (0..20).filter(|n| begins(&mut host, 100 * number + n + 1, uid));
        assert_eq!(of_user.count(), if number < 3 { 8 } else { 4 });
    }
    assert!(!begins(&mut host, 900, 1004));
    assert!((901..=904).all(|id| begins(&mut host, id, 0)));
    assert!(!begins(&mut host, 905, 0));
}

#[test]
fn no_name_of_a_client_writes_a_line_of_the_log() {
    let mut world = World::new();
    let mut host = limited(&mut world);
    let conn = host.connect(peer(1000));
    let mut named = hello(7, 1);
    named.name = b"node:1\nthe forwarder has ended"[..].into();
    host.receive(conn, plain(1, Op::Hello(named)), &[]);
    assert!(host.reply().result.is_ok());
    host.advance(40 * SECOND);
    let lines: Vec<&String> = host
        .logs
        .iter()
        .filter(|it| it.contains("node:1"))
        .collect();
    assert_eq!(lines.len(), 1, "its lease has ended: {:?}", host.logs);
    assert!(!lines[0].contains('\n'), "{lines:?}");
}

#[test]
fn without_a_name_there_is_no_application() {
    let mut world = World::new();
    let mut host = limited(&mut world);
    let mut tester = Tester::of(&mut host, 7, peer(1000));
    let refused = tester.call(&mut host, named(""));
    assert_eq!(errno(refused), Errno::EINVAL.0);
}

#[test]
fn a_user_sees_of_others_sums_only() {
    let mut world = World::new();
    let mut host = limited(&mut world);
    let mut victim = Tester::of(&mut host, 7, peer(1001));
    victim.call(&mut host, named("secret")).expect("named");
    let file = file(&mut host);
    read_as(&mut victim, &mut host, file, Some("secret"));
    let mut asker = Tester::of(&mut host, 8, peer(1000));
    asker.call(&mut host, named("mine")).expect("named");
    let Ok(Outcome::Text(text)) = asker.call(&mut host, Op::Status) else {
        panic!("no status");
    };
    let text = String::from_utf8(text.into()).expect("text");
    assert!(!text.contains("secret") && !text.contains("1001"), "{text}");
    assert!(text.contains(r#""name":"mine","uid":1000"#), "{text}");
    let others = r#"{"others":true,"read_requests":1,"read_bytes":0,"#;
    assert!(text.contains(others), "{text}");
    assert!(
        text.contains(r#""other_sessions":2,"sessions":[{"#),
        "{text}"
    );
}
