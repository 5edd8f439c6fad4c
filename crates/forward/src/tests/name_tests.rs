//! The order of operations on names.

use super::*;
use tidegate_wire::RenameMode;

fn mkdir(host: &mut Host, tester: &mut Tester, name: &str) -> Handle {
    let parent = tester.root();
    let op = Op::Mkdir {
        parent,
        name: name.as_bytes().into(),
        mode: 0o755,
    };
    tester.attr(host, op).handle
}

fn rename(from: Handle, to: Handle) -> Op {
    Op::Rename {
        parent: from,
        name: Box::from(&b"x"[..]),
        new_parent: to,
        new_name: Box::from(&b"y"[..]),
        mode: RenameMode::Replace,
    }
}

#[test]
fn changes_of_one_directory_run_one_after_another_and_lookups_beside_them() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut testers: Vec<Tester> = (1..5).map(|id| Tester::new(&mut host, id)).collect();
    let one = mkdir(&mut host, &mut testers[0], "one");
    let two = mkdir(&mut host, &mut testers[0], "two");
    host.hold_jobs = true;
    let first = testers[0].send(&mut host, create(one, "a", true), &[]);
    let second = testers[1].send(&mut host, create(one, "a", true), &[]);
    testers[2].send(&mut host, create(two, "a", true), &[]);
    let lookup = Op::Lookup {
        parent: one,
        name: Box::from(&b"a"[..]),
    };
    testers[3].send(&mut host, lookup, &[]);
    assert_eq!(host.jobs.len(), 3, "the second create waits for the first");
    host.run_job();
    assert!(testers[0].take(&mut host, &first).0.is_ok());
    while !host.jobs.is_empty() {
        host.run_job();
    }
    let exists = host
        .replies
        .iter()
        .find(|(conn, ..)| *conn == testers[1].conn);
    let (_, reply, _) = exists.expect("answered");
    assert_eq!(
        (reply.id, &reply.result),
        (second.id, &Err(Status::Errno(17)))
    );
}

#[test]
fn a_rename_waits_for_both_directories_and_none_waits_in_a_circle() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut testers: Vec<Tester> = (1..7).map(|id| Tester::new(&mut host, id)).collect();
    let one = mkdir(&mut host, &mut testers[0], "one");
    let two = mkdir(&mut host, &mut testers[0], "two");
    for directory in [one, two] {
        testers[0]
            .call(&mut host, create(directory, "x", true))
            .expect("made");
    }
    host.hold_jobs = true;
    let ops = [
        create(two, "busy", true),
        rename(one, two),
        rename(two, one),
        rename(one, one),
        create(one, "last", true),
    ];
    for (tester, op) in testers.iter_mut().zip(ops) {
        tester.send(&mut host, op, &[]);
    }
    let mut order = vec![];
    while !host.jobs.is_empty() {
        assert_eq!(
            host.jobs.len(),
            1,
            "each of these depends on the one before"
        );
        host.run_job();
        order.extend(host.replies.drain(..).map(|(conn, ..)| conn));
    }
    let expected: Vec<ConnId> = testers[..5].iter().map(|tester| tester.conn).collect();
    assert_eq!(order, expected);
}

#[test]
fn a_change_behind_many_of_another_user_runs_after_one_of_them() {
    let mut world = World::new();
    let mut config = world.config(0, 1);
    (config.sessions_max, config.sessions_of_user_max) = (100, 50);
    let mut host = Host::new(&world, config);
    host.give_seat(&mut world, 0);
    let mut flooding: Vec<Tester> = (1..=40)
        .map(|id| Tester::of(&mut host, id, peer(7)))
        .collect();
    let mut other = Tester::of(&mut host, 100, peer(8));
    host.hold_jobs = true;
    let root = other.root();
    for tester in &mut flooding {
        tester.send(&mut host, create(root, "flood", false), &[]);
    }
    other.send(&mut host, create(root, "other", false), &[]);
    let mut ran = 0;
    while !host.replies.iter().any(|(conn, ..)| *conn == other.conn) {
        host.run_job();
        ran += 1;
    }
    assert!(ran <= 2, "{ran} changes ran before");
    while !host.jobs.is_empty() {
        host.run_job();
    }
    assert_eq!(host.replies.len(), 41);
}
