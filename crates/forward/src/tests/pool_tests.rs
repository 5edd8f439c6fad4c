//! Who has how much of the memory for payload, and what is left to others.

use super::*;
use tidegate_wire::{Grant, Limits, Role};

/// A mount with limits, by a secret of this name.
fn mount_of(node: &str) -> Peer {
    let limits = Limits {
        uids: Some("1000-1999".parse().expect("right")),
        ..Limits::default()
    };
    Peer {
        credentials: None,
        address: "tcp:10.0.0.7:4000".into(),
        grant: Some(Grant {
            role: Role::Mount(limits),
            name: node.into(),
            expires: None,
            by: None,
        }),
        ..peer(0)
    }
}

/// A forwarder whose pool has room for 16 payloads of the largest size.
fn pooled(world: &mut World) -> Host {
    let mut config = world.config(0, 1);
    (config.pool_bytes_max, config.sessions_max) = (16 << 20, 100);
    let mut host = Host::new(world, config);
    host.give_seat(world, 0);
    host
}

/// How many payloads of the largest size a client that never sends them is given, at most `max`.
fn held(host: &mut Host, tester: &mut Tester, max: usize) -> usize {
    let file = tester.root;
    let gets = |_: &usize| {
        let request = tester.request(write(file, 0, 1 << 20), 1 << 20);
        let admitted = host.admit(tester.conn, &request);
        let Admission::Slot { slot, .. } = admitted else {
            return false;
        };
        host.slots.insert(slot, Vec::new());
        true
    };
    (0..max).take_while(gets).count()
}

#[test]
fn mounts_by_one_secret_with_limits_hold_a_part_of_the_pool() {
    let mut world = World::new();
    let mut host = pooled(&mut world);
    let mut id = 0;
    let mut session = |host: &mut Host, peer: Peer| {
        id += 1;
        Tester::of(host, id, peer)
    };
    let mut of_one: Vec<Tester> = (0..4)
        .map(|_| session(&mut host, mount_of("cn1")))
        .collect();
    let all = of_one.iter_mut().map(|it| held(&mut host, it, 16)).sum();
    assert_eq!(4usize, all, "whatever the number of its sessions");
    // Another node has as much, and whatever those waits for keeps nobody waiting.
    let mut other = session(&mut host, mount_of("cn2"));
    assert_eq!(held(&mut host, &mut other, 16), 4);
    let mut trusted = session(&mut host, peer(0));
    assert_eq!(held(&mut host, &mut trusted, 1), 1);
    // What it held comes back to it.
    let gone = of_one.remove(0);
    host.tell(Input::Closed { conn: gone.conn });
    let mut in_turn = || of_one.iter_mut().map(|it| held(&mut host, it, 16)).sum();
    assert_eq!([3usize, 1], [in_turn(), in_turn()]);
}

#[test]
fn users_and_nodes_together_leave_some_of_the_pool_to_others() {
    let mut world = World::new();
    let mut host = pooled(&mut world);
    let flood = |host: &mut Host, id: u64, peer: Peer| {
        let mut tester = Tester::of(host, id, peer);
        held(host, &mut tester, 16)
    };
    let users: usize = (1..=5)
        .map(|id| flood(&mut host, id, peer(1000 + id as u32)))
        .sum();
    // The fourth leaves one to the fifth, who has nothing.
    assert_eq!(users, 14, "users leave some to nodes and some to root");
    let nodes: usize = (6..=8)
        .map(|id| flood(&mut host, id, mount_of(&std::format!("cn{id}"))))
        .sum();
    assert_eq!(nodes, 1, "nodes leave some to root");
    assert_eq!(flood(&mut host, 20, peer(0)), 1);
    // He who waits for what all have waits in the order of arrival, however often others ask.
    assert_eq!(flood(&mut host, 21, peer(0)), 0);
}
